/* Every storable format against its golden vectors, bit for bit, at aligned and odd addresses. */
#include "quant/golden_words.h"

#include "quant/half.h"
#include "quant/quant.h"

#define BLOCK_ELEMS_MAX 256
#define BLOCK_BYTES_MAX 292
#define GOLDEN_FILES    28 /* one per RG_USE_WEIGHT type */

/* The f32 words of one block of the file. */
static void read_block(golden *g, uint8_t *raw, size_t bytes, uint32_t *bits, size_t elems) {
    assert_string_equal(golden_word(g), "BLOCK");
    assert_non_null(golden_word(g));
    assert_string_equal(golden_word(g), "RAW");
    golden_bytes(golden_word(g), raw, bytes);
    for (size_t i = 0; i < elems; i++) {
        const char *word = golden_word(g);
        if (strcmp(word, "F32") == 0) word = golden_word(g);
        bits[i] = golden_bits(word);
    }
}

static void check_type(rg_type type) {
    const rg_type_info *info = rg_type_get((uint32_t)type);
    char name[64];
    golden g;
    char *header = NULL;
    (void)snprintf(name, sizeof name, "quant_golden_%s.txt", info->name);
    golden_open(&g, name, &header);
    const size_t elems = golden_number(header, "block_elems=");
    const size_t bytes = golden_number(header, "block_bytes=");
    const size_t n_blocks = golden_number(header, "blocks=");
    assert_int_equal(golden_number(header, " id="), type);
    assert_true(elems <= BLOCK_ELEMS_MAX && bytes <= BLOCK_BYTES_MAX && n_blocks > 0);
    assert_int_equal(rg_row_bytes(type, elems), bytes);
    for (size_t block = 0; block < n_blocks; block++) {
        uint32_t bits[BLOCK_ELEMS_MAX];
        uint8_t raw[BLOCK_BYTES_MAX], odd[BLOCK_BYTES_MAX + 1];
        float x[BLOCK_ELEMS_MAX];
        read_block(&g, raw, bytes, bits, elems);
        memcpy(odd + 1, raw, bytes);
        for (int pass = 0; pass < 2; pass++) {
            memset(x, 0xa5, sizeof x);
            rg_unpack_row(type, pass == 0 ? raw : odd + 1, x, elems);
            for (size_t i = 0; i < elems; i++) {
                if (f32_to_bits(x[i]) == bits[i]) continue;
                fail_msg("%s block %zu element %zu: %08x, golden %08x", info->name, block, i,
                         f32_to_bits(x[i]), bits[i]);
            }
        }
    }
    assert_null(golden_word(&g));
    golden_close(&g);
}

static void every_weight_type_equals_golden(void **state) {
    (void)state;
    int count = 0;
    for (uint32_t id = 0; id < RG_TYPE_COUNT; id++) {
        const rg_type_info *info = rg_type_get(id);
        if (!info || info->use != RG_USE_WEIGHT) continue;
        check_type((rg_type)id);
        count++;
    }
    assert_int_equal(count, GOLDEN_FILES);
}

/* The activation format has golden vectors too: they define its layout. */
static void q8_K_layout_equals_golden(void **state) {
    (void)state;
    golden g;
    char *header = NULL;
    golden_open(&g, "quant_golden_q8_K.txt", &header);
    const size_t n_blocks = golden_number(header, "blocks=");
    assert_true(n_blocks > 0);
    for (size_t n = 0; n < n_blocks; n++) {
        uint32_t bits[256];
        uint8_t raw[sizeof(rg_block_q8_K)];
        rg_block_q8_K b;
        read_block(&g, raw, sizeof raw, bits, 256);
        memcpy(&b, raw, sizeof b);
        for (size_t i = 0; i < 256; i++) {
            assert_int_equal(f32_to_bits(b.d * (float)b.qs[i]), bits[i]);
        }
    }
    golden_close(&g);
}

static void rows_of_several_blocks_are_contiguous(void **state) {
    (void)state;
    uint8_t src[3 * sizeof(rg_block_q4_0)];
    float whole[96], part[96];
    for (size_t i = 0; i < sizeof src; i++)
        src[i] = (uint8_t)(7 * i + 3);
    rg_unpack_row(RG_TYPE_Q4_0, src, whole, 96);
    for (size_t b = 0; b < 3; b++) {
        rg_unpack_row(RG_TYPE_Q4_0, src + b * sizeof(rg_block_q4_0), part + 32 * b, 32);
    }
    assert_memory_equal(whole, part, sizeof whole);
    part[0] = 42.0f;
    rg_unpack_row(RG_TYPE_Q4_0, src, part, 0);
    assert_true(part[0] == 42.0f);
}

/* The scale bytes whose values the golden vectors may not contain. */
static void fp4_scales_at_their_ends(void **state) {
    (void)state;
    uint8_t mx[sizeof(rg_block_mxfp4)] = {0};
    uint8_t nv[sizeof(rg_block_nvfp4)] = {0};
    float x[64];
    memset(mx + 1, 0x81, sizeof mx - 1); /* value +1 below, +0 above */
    const struct {
        uint8_t e;
        uint32_t bits;
    } mx_cases[] = {
        {0, 0x00200000}, {1, 0x00400000}, {2, 0x00800000}, {128, 0x3f800000}, {254, 0x7e800000}};
    for (size_t i = 0; i < RG_ARRAY_LEN(mx_cases); i++) {
        mx[0] = mx_cases[i].e;
        rg_unpack_row(RG_TYPE_MXFP4, mx, x, 32);
        assert_int_equal(f32_to_bits(x[0]), mx_cases[i].bits);
        assert_int_equal(f32_to_bits(x[16]), 0);
    }
    memset(nv + 4, 0x11, sizeof nv - 4);
    const struct {
        uint8_t b;
        float value;
    } nv_cases[] = {{0, 0.0f},      {0x7f, 0.0f}, {0x80, 0.0f},     {0xff, 240.0f},
                    {0x7e, 224.0f}, {0x38, 0.5f}, {0x01, 0x1p-10f}, {0x08, 0x1p-7f}};
    for (size_t i = 0; i < RG_ARRAY_LEN(nv_cases); i++) {
        nv[2] = nv_cases[i].b;
        rg_unpack_row(RG_TYPE_NVFP4, nv, x, 64);
        assert_int_equal(f32_to_bits(x[32]), f32_to_bits(nv_cases[i].value));
    }
}

/* Grids are sorted by code word, and sign masks have even parity: a transposed table would show. */
static void tables_have_their_order(void **state) {
    (void)state;
    for (unsigned c = 0; c < 128; c++) {
        const unsigned parity = (unsigned)__builtin_popcount(c) & 1u;
        assert_int_equal(rg_ksigns_iq2xs[c], c | parity << 7);
    }
    for (size_t i = 1; i < 1024; i++)
        assert_true(rg_grid_iq2s[i - 1] < rg_grid_iq2s[i]);
    for (size_t i = 1; i < 512; i++)
        assert_true(rg_grid_iq3s[i - 1] < rg_grid_iq3s[i]);
    for (size_t i = 0; i < 2048; i++) {
        for (unsigned j = 0; j < 8; j++) {
            const int level = (int8_t)((rg_grid_iq1s[i] >> (8 * j)) & 255);
            assert_in_range(level + 1, 0, 2);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_type_equals_golden),
        cmocka_unit_test(q8_K_layout_equals_golden),
        cmocka_unit_test(rows_of_several_blocks_are_contiguous),
        cmocka_unit_test(fp4_scales_at_their_ends),
        cmocka_unit_test(tables_have_their_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
