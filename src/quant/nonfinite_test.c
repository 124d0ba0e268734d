/* The finite check: every scale field of every type, in any block; nothing else in a block. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "quant/quant.h"

#define N_BLOCKS        3
#define BLOCK_BYTES_MAX 292

/* Byte offsets of the 16-bit scales of the block formats, from the published layouts. */
static const struct {
    rg_type type;
    size_t at[2];
    size_t count;
} f16_scales[] = {
    {RG_TYPE_F16, {0}, 1},     {RG_TYPE_Q4_0, {0}, 1},      {RG_TYPE_Q4_1, {0, 2}, 2},
    {RG_TYPE_Q5_0, {0}, 1},    {RG_TYPE_Q5_1, {0, 2}, 2},   {RG_TYPE_Q8_0, {0}, 1},
    {RG_TYPE_Q8_1, {0, 2}, 2}, {RG_TYPE_Q2_K, {80, 82}, 2}, {RG_TYPE_Q3_K, {108}, 1},
    {RG_TYPE_Q4_K, {0, 2}, 2}, {RG_TYPE_Q5_K, {0, 2}, 2},   {RG_TYPE_Q6_K, {208}, 1},
    {RG_TYPE_IQ2_XXS, {0}, 1}, {RG_TYPE_IQ2_XS, {0}, 1},    {RG_TYPE_IQ3_XXS, {0}, 1},
    {RG_TYPE_IQ1_S, {0}, 1},   {RG_TYPE_IQ4_NL, {0}, 1},    {RG_TYPE_IQ3_S, {0}, 1},
    {RG_TYPE_IQ2_S, {0}, 1},   {RG_TYPE_IQ4_XS, {0}, 1},    {RG_TYPE_TQ1_0, {52}, 1},
    {RG_TYPE_TQ2_0, {64}, 1},  {RG_TYPE_Q1_0, {0}, 1},      {RG_TYPE_Q2_0, {0}, 1},
};

/* Puts `len` bytes of `value` at `at` of block `index` among blocks of `filler`, and asks. */
static bool check(rg_type type, uint8_t filler, size_t index, size_t at, const void *value,
                  size_t len, size_t *block) {
    uint8_t blocks[N_BLOCKS * BLOCK_BYTES_MAX];
    const size_t bytes = rg_type_get((uint32_t)type)->block_bytes;
    memset(blocks, filler, sizeof blocks);
    memcpy(blocks + index * bytes + at, value, len);
    *block = 99;
    return rg_blocks_find_nonfinite(type, blocks, N_BLOCKS, block);
}

/* `bad` must be found wherever it lies, `good` (the largest finite value) nowhere. */
static void check_field(rg_type type, size_t at, const void *bad, const void *good, size_t len) {
    for (size_t index = 0; index < N_BLOCKS; index++) {
        size_t block = 0;
        assert_true(check(type, 0, index, at, bad, len, &block));
        assert_int_equal(block, index);
        assert_false(check(type, 0, index, at, good, len, &block));
        assert_int_equal(block, 99); /* left alone */
    }
}

static void f16_scales_are_checked(void **state) {
    (void)state;
    const uint16_t bad[] = {0x7c00, 0xfc00, 0x7c01, 0xffff};
    const uint16_t good[] = {0x7bff, 0xfbff, 0x0001, 0x8000};
    for (size_t i = 0; i < RG_ARRAY_LEN(f16_scales); i++) {
        for (size_t k = 0; k < f16_scales[i].count; k++) {
            for (size_t v = 0; v < RG_ARRAY_LEN(bad); v++) {
                check_field(f16_scales[i].type, f16_scales[i].at[k], &bad[v], &good[v], 2);
            }
        }
    }
}

static void wider_floats_are_checked(void **state) {
    (void)state;
    const uint16_t bad16 = 0xff80, good16 = 0xff7f;
    const uint32_t bad32 = 0x7f800001, good32 = 0x7f7fffff;
    const uint64_t bad64 = 0xfff0000000000000u, good64 = 0xffefffffffffffffu;
    check_field(RG_TYPE_BF16, 0, &bad16, &good16, 2);
    check_field(RG_TYPE_F32, 0, &bad32, &good32, 4);
    check_field(RG_TYPE_Q8_K, 0, &bad32, &good32, 4);
    check_field(RG_TYPE_F64, 0, &bad64, &good64, 8);
}

static void mxfp4_exponent_255_is_nan(void **state) {
    (void)state;
    const uint8_t bad = 255, good = 254;
    check_field(RG_TYPE_MXFP4, 0, &bad, &good, 1);
}

/* d of iq1_m lies in the top nibbles of four words; 0x7c00 needs the last two. */
static void iq1_m_scattered_scale_is_checked(void **state) {
    (void)state;
    const uint8_t bad[8] = {0, 0, 0, 0, 0, 0xc0, 0, 0x70};
    const uint8_t good[8] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xbf, 0xff, 0x7f}; /* d = 0x7bff */
    check_field(RG_TYPE_IQ1_M, 48, bad, good, sizeof bad);
}

/* All other bytes may be anything: with finite scales among 0xff bytes nothing is found. */
static void codes_are_not_checked(void **state) {
    (void)state;
    for (size_t i = 0; i < RG_ARRAY_LEN(f16_scales); i++) {
        const rg_type type = f16_scales[i].type;
        uint8_t block_bytes[BLOCK_BYTES_MAX];
        const uint16_t one = 0x3c00;
        size_t block = 0;
        memset(block_bytes, 0xff, sizeof block_bytes);
        assert_true(rg_blocks_find_nonfinite(type, block_bytes, 1, &block));
        for (size_t k = 0; k < f16_scales[i].count; k++) {
            memcpy(block_bytes + f16_scales[i].at[k], &one, sizeof one);
        }
        assert_false(rg_blocks_find_nonfinite(type, block_bytes, 1, &block));
    }
}

static void types_without_floats_are_always_finite(void **state) {
    (void)state;
    const rg_type types[] = {RG_TYPE_I8, RG_TYPE_I16, RG_TYPE_I32, RG_TYPE_I64, RG_TYPE_NVFP4};
    const uint8_t ones = 0xff;
    for (size_t i = 0; i < RG_ARRAY_LEN(types); i++) {
        size_t block = 0;
        assert_false(check(types[i], 0xff, 0, 0, &ones, 1, &block));
    }
}

static void every_type_is_covered(void **state) {
    (void)state;
    size_t count = RG_ARRAY_LEN(f16_scales) + 4 + 1 + 1 + 5; /* the tests above */
    for (uint32_t id = 0; id < RG_TYPE_COUNT; id++) {
        if (rg_type_get(id)) count--;
    }
    assert_int_equal(count, 0);
}

static void no_blocks_are_finite(void **state) {
    (void)state;
    size_t block = 0;
    const uint8_t ones[4] = {0xff, 0xff, 0xff, 0xff};
    assert_false(rg_blocks_find_nonfinite(RG_TYPE_F32, ones, 0, &block));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_scales_are_checked),
        cmocka_unit_test(wider_floats_are_checked),
        cmocka_unit_test(mxfp4_exponent_255_is_nan),
        cmocka_unit_test(iq1_m_scattered_scale_is_checked),
        cmocka_unit_test(codes_are_not_checked),
        cmocka_unit_test(types_without_floats_are_always_finite),
        cmocka_unit_test(every_type_is_covered),
        cmocka_unit_test(no_blocks_are_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
