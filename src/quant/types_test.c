/* The type table against the published list of ids, names and sizes; row sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "quant/quant.h"

static const struct {
    uint32_t id;
    const char *name;
    uint32_t elems, bytes;
    rg_type_use use;
} published[] = {
    {0, "f32", 1, 4, RG_USE_WEIGHT},
    {1, "f16", 1, 2, RG_USE_WEIGHT},
    {2, "q4_0", 32, 18, RG_USE_WEIGHT},
    {3, "q4_1", 32, 20, RG_USE_WEIGHT},
    {6, "q5_0", 32, 22, RG_USE_WEIGHT},
    {7, "q5_1", 32, 24, RG_USE_WEIGHT},
    {8, "q8_0", 32, 34, RG_USE_WEIGHT},
    {9, "q8_1", 32, 36, RG_USE_ACTIVATION},
    {10, "q2_K", 256, 84, RG_USE_WEIGHT},
    {11, "q3_K", 256, 110, RG_USE_WEIGHT},
    {12, "q4_K", 256, 144, RG_USE_WEIGHT},
    {13, "q5_K", 256, 176, RG_USE_WEIGHT},
    {14, "q6_K", 256, 210, RG_USE_WEIGHT},
    {15, "q8_K", 256, 292, RG_USE_ACTIVATION},
    {16, "iq2_xxs", 256, 66, RG_USE_WEIGHT},
    {17, "iq2_xs", 256, 74, RG_USE_WEIGHT},
    {18, "iq3_xxs", 256, 98, RG_USE_WEIGHT},
    {19, "iq1_s", 256, 50, RG_USE_WEIGHT},
    {20, "iq4_nl", 32, 18, RG_USE_WEIGHT},
    {21, "iq3_s", 256, 110, RG_USE_WEIGHT},
    {22, "iq2_s", 256, 82, RG_USE_WEIGHT},
    {23, "iq4_xs", 256, 136, RG_USE_WEIGHT},
    {24, "i8", 1, 1, RG_USE_AUX},
    {25, "i16", 1, 2, RG_USE_AUX},
    {26, "i32", 1, 4, RG_USE_AUX},
    {27, "i64", 1, 8, RG_USE_AUX},
    {28, "f64", 1, 8, RG_USE_AUX},
    {29, "iq1_m", 256, 56, RG_USE_WEIGHT},
    {30, "bf16", 1, 2, RG_USE_WEIGHT},
    {34, "tq1_0", 256, 54, RG_USE_WEIGHT},
    {35, "tq2_0", 256, 66, RG_USE_WEIGHT},
    {39, "mxfp4", 32, 17, RG_USE_WEIGHT},
    {40, "nvfp4", 64, 36, RG_USE_WEIGHT},
    {41, "q1_0", 128, 18, RG_USE_WEIGHT},
    {42, "q2_0", 64, 18, RG_USE_WEIGHT},
};

static void table_equals_the_published_one(void **state) {
    (void)state;
    for (size_t i = 0; i < RG_ARRAY_LEN(published); i++) {
        const rg_type_info *info = rg_type_get(published[i].id);
        assert_non_null(info);
        assert_string_equal(info->name, published[i].name);
        assert_int_equal(info->block_elems, published[i].elems);
        assert_int_equal(info->block_bytes, published[i].bytes);
        assert_int_equal(info->use, published[i].use);
    }
}

static void other_ids_have_no_meaning(void **state) {
    (void)state;
    const uint32_t none[] = {4, 5, 31, 32, 33, 36, 37, 38, 43, 44, 255, 0x80000000, UINT32_MAX};
    for (size_t i = 0; i < RG_ARRAY_LEN(none); i++)
        assert_null(rg_type_get(none[i]));
    assert_int_equal(RG_ARRAY_LEN(published) + 8, RG_TYPE_COUNT);
}

static void names_are_found_whatever_their_case(void **state) {
    (void)state;
    rg_type type = RG_TYPE_F32;
    for (size_t i = 0; i < RG_ARRAY_LEN(published); i++) {
        assert_true(rg_type_by_name(published[i].name, &type));
        assert_int_equal(type, published[i].id);
    }
    assert_true(rg_type_by_name("Q4_k", &type));
    assert_int_equal(type, RG_TYPE_Q4_K);
    assert_true(rg_type_by_name("IQ2_XS", &type));
    assert_int_equal(type, RG_TYPE_IQ2_XS);
    const char *const unknown[] = {"", "q4", "q4_K ", "q4_2", "f3", "f322"};
    for (size_t i = 0; i < RG_ARRAY_LEN(unknown); i++) {
        assert_false(rg_type_by_name(unknown[i], &type));
    }
    assert_int_equal(type, RG_TYPE_IQ2_XS); /* left alone */
}

static void row_bytes_follow_the_blocks(void **state) {
    (void)state;
    for (size_t i = 0; i < RG_ARRAY_LEN(published); i++) {
        const rg_type type = (rg_type)published[i].id;
        const size_t elems = published[i].elems, bytes = published[i].bytes;
        assert_int_equal(rg_row_bytes(type, 0), 0);
        assert_int_equal(rg_row_bytes(type, elems), bytes);
        assert_int_equal(rg_row_bytes(type, 12 * elems), 12 * bytes);
        if (elems > 1) assert_int_equal(rg_row_bytes(type, 12 * elems + 1), 0);
        if (elems > 1) assert_int_equal(rg_row_bytes(type, elems - 1), 0);
    }
    assert_int_equal(rg_row_bytes((rg_type)4, 32), 0);
    assert_int_equal(rg_row_bytes(RG_TYPE_COUNT, 32), 0);
    assert_int_equal(rg_row_bytes(RG_TYPE_F32, SIZE_MAX), 0); /* does not fit */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_equals_the_published_one),
        cmocka_unit_test(other_ids_have_no_meaning),
        cmocka_unit_test(names_are_found_whatever_their_case),
        cmocka_unit_test(row_bytes_follow_the_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
