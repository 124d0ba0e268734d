/* fp8 blocks against values made by hand, and headers that must be refused. */
#include <math.h>

#include "forge/safetensors.h"
#include "forge/test_folder.h"

static void fp8_codes(void **state) {
    (void)state;
    /* E4M3: bias 7, no infinities, steps of 2^-9 below 2^-6. */
    static const struct {
        uint8_t code;
        float value;
    } known[] = {{0x00, 0},         {0x01, 0x1p-9f},  {0x07, 0x1.cp-7f}, {0x08, 0x1p-6f},
                 {0x09, 0x1.2p-6f}, {0x38, 1},        {0x3c, 1.5f},      {0x40, 2},
                 {0x77, 240},       {0x78, 256},      {0x7e, 448},       {0xb8, -1},
                 {0xfe, -448},      {0x81, -0x1p-9f}, {0x2b, 0.34375f}};
    for (size_t i = 0; i < RG_ARRAY_LEN(known); i++)
        assert_true(rg_f8_e4m3_to_f32(known[i].code) == known[i].value);
    assert_true(isnan(rg_f8_e4m3_to_f32(0x7f)));
    assert_true(isnan(rg_f8_e4m3_to_f32(0xff)));
    assert_true(signbit(rg_f8_e4m3_to_f32(0x80)));
}

static void save(test_folder *f, const char *header, const void *data, size_t n) {
    FILE *out = fopen(folder_file(f, "model.safetensors"), "wbe");
    const uint64_t len = strlen(header);
    assert_non_null(out);
    assert_int_equal(fwrite(&len, 8, 1, out), 1);
    assert_int_equal(fwrite(header, 1, len, out), len);
    assert_true(n == 0 || fwrite(data, 1, n, out) == n);
    assert_int_equal(fclose(out), 0);
}

/* 130 rows of 129: four blocks, each with a scale of its own. */
static void fp8_blocks(void **state) {
    (void)state;
    enum { R = 130, C = 129 };
    static uint8_t data[R * C + 16];
    static const float scales[4] = {0.5f, 3.0f, -2.0f, 0.1f};
    test_folder f;
    rg_checkpoint *c = NULL;
    rg_status st = {0};
    float x[C];
    folder_make(&f);
    for (unsigned i = 0; i < R * C; i++)
        data[i] = (uint8_t)(i * 11 % 127);
    memcpy(data + (size_t)R * C, scales, sizeof scales);
    save(&f,
         "{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[130,129],\"data_offsets\":[0,16770]},"
         "\"w_scale_inv\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[16770,16786]}}",
         data, sizeof data);
    assert_int_equal(rg_checkpoint_open(&c, f.path, &st), RG_OK);
    const rg_st_tensor *w = rg_checkpoint_find(c, "w"), *s = NULL;
    assert_non_null(w);
    assert_int_equal(rg_checkpoint_scale(c, w, &s, &st), RG_OK);
    for (uint64_t r = 0; r < R; r++) {
        assert_int_equal(rg_checkpoint_row(c, w, s, r, x, &st), RG_OK);
        for (unsigned k = 0; k < C; k++) {
            const float scale = scales[(r < 128 ? 0 : 2) + (k < 128 ? 0 : 1)];
            assert_true(x[k] == rg_f8_e4m3_to_f32(data[r * C + k]) * scale);
        }
    }
    rg_checkpoint_close(c);
    assert_int_equal(unlink(folder_file(&f, "model.safetensors")), 0);
    folder_remove(&f);
}

static void bad_headers(void **state) {
    (void)state;
    static const char *const headers[] = {
        "",
        "[]",
        "{\"w\":1}",
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}",
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,8]}}",
        "{\"w\":{\"dtype\":\"Q9\",\"shape\":[2],\"data_offsets\":[0,8]}}",
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}",
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}"};
    const float data[2] = {1, 2};
    for (size_t i = 0; i < RG_ARRAY_LEN(headers); i++) {
        test_folder f;
        rg_checkpoint *c = NULL;
        rg_status st = {0};
        folder_make(&f);
        save(&f, headers[i], data, sizeof data);
        assert_int_not_equal(rg_checkpoint_open(&c, f.path, &st), RG_OK);
        assert_null(c);
        assert_true(st.message[0] != 0);
        assert_int_equal(unlink(folder_file(&f, "model.safetensors")), 0);
        folder_remove(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fp8_codes), cmocka_unit_test(fp8_blocks),
                                       cmocka_unit_test(bad_headers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
