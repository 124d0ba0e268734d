/* Test support: the levels of this machine, comparison by bits, seeded numbers. Private to the
 * tests of this room.
 */
#ifndef RG_KERNELS_LEVEL_CHECK_H
#define RG_KERNELS_LEVEL_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

/* Tables of the levels that this machine runs, the scalar one first. A level
 * that runs here but has no table of its own fails the test: nothing is left out in silence. That
 * every compiled level runs is for tests/levels_test.c to say. */
typedef struct level_list {
    const rg_ops *ops[RG_CPU_LEVEL_COUNT];
    uint32_t n;
} level_list;

static inline level_list levels_here(void) {
    level_list list = {.n = 0};
    for (int level = 0; level < RG_CPU_LEVEL_COUNT; level++) {
        if (!rg_cpu_level_runs((rg_cpu_level)level)) continue;
        const rg_ops *ops = rg_ops_get((rg_cpu_level)level);
        if ((int)ops->level != level) {
            fail_msg("%s has no kernels of its own", rg_cpu_level_name((rg_cpu_level)level));
        }
        list.ops[list.n++] = ops;
    }
    assert_true(list.n > 0 && list.ops[0]->level == RG_CPU_SCALAR);
    return list;
}

static inline uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Equal bits; two NaN are equal whatever their payload, which no standard fixes. */
static inline bool same_bits(float a, float b) {
    return bits_of(a) == bits_of(b) || (isnan(a) && isnan(b));
}

static inline void expect_same(const float *got, const float *want, size_t n, const char *what,
                               const rg_ops *ops) {
    for (size_t i = 0; i < n; i++) {
        if (same_bits(got[i], want[i])) continue;
        fail_msg("%s at level %s, element %zu of %zu: %a (%08x), expected %a (%08x)", what,
                 rg_cpu_level_name(ops->level), i, n, (double)got[i], bits_of(got[i]),
                 (double)want[i], bits_of(want[i]));
    }
}

/* A stream of draws; the seed is printed by the test that starts it. */
typedef struct draws {
    uint64_t seed, at;
} draws;

static inline draws draws_start(const char *test, uint64_t seed) {
    print_message("%s: seed %llu\n", test, (unsigned long long)seed);
    return (draws){.seed = seed, .at = 0};
}

static inline uint32_t draw_below(draws *d, uint32_t n) {
    return (uint32_t)(rg_random_u64(d->seed, d->at++) % n);
}

static inline float draw_between(draws *d, double lo, double hi) {
    return (float)(lo + (hi - lo) * rg_random_unit(d->seed, d->at++));
}

static inline void draw_floats(draws *d, float *x, size_t n, double lo, double hi) {
    for (size_t i = 0; i < n; i++)
        x[i] = draw_between(d, lo, hi);
}

static inline void draw_bytes(draws *d, uint8_t *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        x[i] = (uint8_t)draw_below(d, 256);
}

/* Zeroed and 64-byte aligned; release with rg_free. */
static inline void *test_alloc(size_t bytes) {
    rg_status st = {0};
    void *p = rg_alloc_aligned(64, bytes ? bytes : 64, &st);
    if (!p) fail_msg("%s", st.message);
    RG_ASSERT(p); /* fail_msg does not return, but is not declared so */
    memset(p, 0, bytes);
    return p;
}

#endif
