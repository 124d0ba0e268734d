/* The packers: error bounds, importance, equal bits on every level, edge values. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "quant/packer.h"

#define N    512u
#define ROWS 8u

/* Root mean square error of normal data, relative; what the reference quantizers reach on such data
 * with all weights one (with weights for q2_0, which is hopeless there), less is better. */
static const struct {
    rg_type type;
    double bound;
} formats[] = {
    {RG_TYPE_F16, 0.0004},    {RG_TYPE_BF16, 0.003},    {RG_TYPE_Q8_0, 0.0053},
    {RG_TYPE_Q4_0, 0.0814},   {RG_TYPE_Q4_1, 0.0740},   {RG_TYPE_Q5_0, 0.0410},
    {RG_TYPE_Q5_1, 0.0337},   {RG_TYPE_IQ4_NL, 0.0746}, {RG_TYPE_MXFP4, 0.1150},
    {RG_TYPE_Q2_0, 0.3574},   {RG_TYPE_Q2_K, 0.2800},   {RG_TYPE_Q3_K, 0.1480},
    {RG_TYPE_Q4_K, 0.0703},   {RG_TYPE_Q5_K, 0.0353},   {RG_TYPE_Q6_K, 0.0173},
    {RG_TYPE_IQ4_XS, 0.0753}, {RG_TYPE_IQ3_XXS, .1814}, {RG_TYPE_IQ3_S, 0.1365},
    {RG_TYPE_IQ2_S, 0.2484},  {RG_TYPE_IQ2_XS, 0.2995}, {RG_TYPE_IQ2_XXS, .3433},
    {RG_TYPE_IQ1_S, 0.4800},
};

static float normal(uint64_t i) {
    const double u = rg_random_unit(5, 2 * i), v = rg_random_unit(5, 2 * i + 1);
    return (float)(sqrt(-2 * log(u + 1e-12)) * cos(6.283185307179586 * v));
}

typedef struct rows {
    float x[ROWS * N], w[N], y[ROWS * N];
    uint8_t blocks[ROWS * N * 4];
} rows;

static rows *make_rows(void) {
    rows *r = calloc(1, sizeof *r);
    assert_non_null(r);
    for (uint32_t i = 0; i < ROWS * N; i++)
        r->x[i] = 0.02f * normal(i);
    for (uint32_t i = 0; i < N; i++)
        r->w[i] = normal(100000 + i) * normal(100000 + i) + 1e-3f;
    return r;
}

static void pack(rows *r, rg_type type, rg_cpu_level level, const float *w) {
    void *scratch = aligned_alloc(64, (rg_pack_scratch_bytes(type) + 63) / 64 * 64);
    assert_non_null(scratch);
    /* Nothing may depend on what lies there. */
    memset(scratch, 0xa5, rg_pack_scratch_bytes(type));
    const rg_packer p = {type, level, scratch};
    for (uint32_t i = 0; i < ROWS; i++)
        rg_pack_row(&p, r->x + i * N, w, r->blocks + i * rg_row_bytes(type, N), N);
    free(scratch);
}

static double error_of(rows *r, rg_type type, const float *w) {
    double e = 0, p = 0;
    size_t block = 0;
    const size_t bytes = rg_row_bytes(type, N);
    assert_false(rg_blocks_find_nonfinite(type, r->blocks,
                                          ROWS * bytes / rg_type_get(type)->block_bytes, &block));
    for (uint32_t i = 0; i < ROWS; i++)
        rg_unpack_row(type, r->blocks + i * bytes, r->y + i * N, N);
    for (uint32_t i = 0; i < ROWS * N; i++) {
        const double d = (double)r->y[i] - (double)r->x[i], k = w ? (double)w[i % N] : 1;
        e += k * d * d;
        p += k * (double)r->x[i] * (double)r->x[i];
    }
    return sqrt(e / p);
}

static rg_cpu_level best_level(void) {
    rg_cpu_level level = RG_CPU_SCALAR;
    assert_int_equal(rg_cpu_level_pick(&level, NULL, NULL), RG_OK);
    return level;
}

static void errors_are_bounded(void **state) {
    (void)state;
    rows *r = make_rows();
    for (size_t i = 0; i < RG_ARRAY_LEN(formats); i++) {
        pack(r, formats[i].type, best_level(), NULL);
        const double e = error_of(r, formats[i].type, NULL);
        if (e > formats[i].bound) print_message("%s %g\n", rg_type_get(formats[i].type)->name, e);
        assert_true(e <= formats[i].bound);
        assert_true(e > 0);
    }
    free(r);
}

/* Weights lower the weighted error, and by more than the plain one rises to. */
static void importance_counts(void **state) {
    (void)state;
    rows *r = make_rows();
    for (size_t i = 2; i < RG_ARRAY_LEN(formats); i++) {
        const rg_type type = formats[i].type;
        pack(r, type, best_level(), NULL);
        const double plain = error_of(r, type, r->w);
        pack(r, type, best_level(), r->w);
        const double weighted = error_of(r, type, r->w);
        if (!(weighted < plain)) {
            print_message("%s %g %g\n", rg_type_get(type)->name, weighted, plain);
        }
        assert_true(weighted < plain);
    }
    free(r);
}

static void levels_agree(void **state) {
    (void)state;
    rows *r = make_rows();
    uint8_t *want = malloc(sizeof r->blocks);
    assert_non_null(want);
    for (size_t i = 0; i < RG_ARRAY_LEN(formats); i++) {
        const size_t bytes = ROWS * rg_row_bytes(formats[i].type, N);
        pack(r, formats[i].type, RG_CPU_SCALAR, r->w);
        memcpy(want, r->blocks, bytes);
        for (int level = 1; level < RG_CPU_LEVEL_COUNT; level++) {
            if (!rg_cpu_level_runs((rg_cpu_level)level)) continue;
            pack(r, formats[i].type, (rg_cpu_level)level, r->w);
            assert_memory_equal(r->blocks, want, bytes);
        }
    }
    free(want);
    free(r);
}

/* Zeros, tiny and huge values, one large element, no importance at all: finite blocks. */
static void edges_are_finite(void **state) {
    (void)state;
    static const float scales[] = {0, 1e-30f, 1e-12f, 1e4f, 3e30f};
    rows *r = make_rows();
    memset(r->w, 0, sizeof r->w);
    for (size_t k = 0; k < RG_ARRAY_LEN(scales); k++) {
        for (uint32_t i = 0; i < ROWS * N; i++)
            r->x[i] = scales[k] * normal(i) * (i % 97 == 5 ? 100 : 1);
        for (size_t i = 2; i < RG_ARRAY_LEN(formats); i++) {
            const rg_type type = formats[i].type;
            size_t block = 0;
            pack(r, type, best_level(), r->w);
            const size_t n = ROWS * rg_row_bytes(type, N) / rg_type_get(type)->block_bytes;
            assert_false(rg_blocks_find_nonfinite(type, r->blocks, n, &block));
            rg_unpack_row(type, r->blocks, r->y, N);
            for (uint32_t c = 0; c < N && scales[k] == 0; c++)
                assert_true(r->y[c] == 0);
        }
    }
    free(r);
}

static void what_can_be_packed(void **state) {
    (void)state;
    for (size_t i = 0; i < RG_ARRAY_LEN(formats); i++)
        assert_true(rg_pack_can(formats[i].type));
    assert_true(rg_pack_can(RG_TYPE_F32));
    assert_false(rg_pack_can(RG_TYPE_Q8_K));
    assert_false(rg_pack_can(RG_TYPE_I32));
    assert_false(rg_pack_can(RG_TYPE_NVFP4));
}

/* Values on a grid of sixteen come back exactly, but for rounding of scales: Q8_0's step of a 127th
 * does not meet the grid. */
static void exact_values_stay(void **state) {
    (void)state;
    rows *r = make_rows();
    for (uint32_t i = 0; i < ROWS * N; i++)
        r->x[i] = 0.25f * (float)((int)(i * 7 % 16) - 8);
    static const rg_type types[] = {RG_TYPE_Q4_0, RG_TYPE_Q5_0, RG_TYPE_Q8_0, RG_TYPE_Q4_1,
                                    RG_TYPE_Q5_1, RG_TYPE_Q6_K, RG_TYPE_Q4_K, RG_TYPE_Q5_K};
    for (size_t i = 0; i < RG_ARRAY_LEN(types); i++) {
        pack(r, types[i], best_level(), NULL);
        const double e = error_of(r, types[i], NULL);
        const double limit = types[i] == RG_TYPE_Q8_0 ? 4e-3 : 2e-3;
        if (e > limit) print_message("%s %g\n", rg_type_get(types[i])->name, e);
        assert_true(e <= limit);
    }
    free(r);
}

/* The scale is 127.25 / 127 rounded to f16: 1.001953125 exactly; 63.62402... and its neighbours
 * fall on both sides of 63.5 of it, -127.25 on the end. */
static void plain_q8_0_is_the_simple_rule(void **state) {
    (void)state;
    float x[64] = {127.25f, -127.25f, 63.62f, 63.63f, 1.5f, -1.5f, 0.5f, 0.51f};
    uint8_t blocks[2 * 34];
    float y[64];
    memset(blocks, 0xa5, sizeof blocks);
    rg_pack_q8_0_plain(x, blocks, 64);
    static const int8_t want[8] = {127, -127, 63, 64, 1, -1, 0, 1};
    static const uint8_t scale[2] = {0x02, 0x3c}; /* 1 + 2 / 1024 */
    assert_memory_equal(blocks, scale, 2);
    assert_memory_equal(blocks + 2, want, sizeof want);
    for (size_t i = 34; i < 68; i++) /* a block of zeros */
        assert_int_equal(blocks[i], 0);
    rg_unpack_row(RG_TYPE_Q8_0, blocks, y, 64);
    assert_true(y[0] == 127.0f * 1.001953125f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_q8_0_is_the_simple_rule),
        cmocka_unit_test(errors_are_bounded),
        cmocka_unit_test(importance_counts),
        cmocka_unit_test(levels_agree),
        cmocka_unit_test(edges_are_finite),
        cmocka_unit_test(what_can_be_packed),
        cmocka_unit_test(exact_values_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
