/* The cache types: all halves, every rounding boundary and any length, against quant. */
#include "kernels/level_check.h"

#define HALVES 65536u

static uint16_t half[HALVES];
static float wide[HALVES], back[HALVES];

static void all_halves_load_as_in_quant(void **state) {
    (void)state;
    const level_list levels = levels_here();
    for (uint32_t i = 0; i < HALVES; i++)
        half[i] = (uint16_t)i;
    for (uint32_t l = 0; l < levels.n; l++) {
        levels.ops[l]->load(half, true, wide, HALVES);
        for (uint32_t i = 0; i < HALVES; i++) {
            const uint32_t want = bits_of(rg_f16_to_f32((uint16_t)i));
            if (bits_of(wide[i]) == want) continue;
            fail_msg("level %s: half %04x loads as %08x, quant %08x",
                     rg_cpu_level_name(levels.ops[l]->level), i, bits_of(wide[i]), want);
        }
    }
}

static void expect_stored(const float *x, uint32_t n) {
    const level_list levels = levels_here();
    for (uint32_t l = 0; l < levels.n; l++) {
        memset(half, 0xa5, n * sizeof half[0]);
        levels.ops[l]->store(x, half, true, n);
        for (uint32_t i = 0; i < n; i++) {
            const uint16_t want = rg_f32_to_f16(x[i]);
            if (half[i] == want) continue;
            fail_msg("level %s: %08x stores as %04x, quant %04x",
                     rg_cpu_level_name(levels.ops[l]->level), bits_of(x[i]), half[i], want);
        }
    }
}

/* The middle between each half and the next (the last one: where infinity begins) and its two
 * neighbours, both signs; and all halves themselves. */
static void boundaries_store_as_in_quant(void **state) {
    (void)state;
    for (int which = 0; which < 4; which++) {
        for (uint32_t i = 0; i < HALVES; i++) {
            const uint16_t h = (uint16_t)i;
            const uint32_t magnitude = h & 0x7fffu;
            const double low = (double)rg_f16_to_f32(h);
            double next = (double)rg_f16_to_f32((uint16_t)(h + 1));
            if (magnitude == 0x7bff) next = copysign(65536.0, low);
            const float tie = (float)((low + next) / 2);
            const float beside = which == 1 ? 0.0f : copysignf(INFINITY, tie);
            wide[i] = which == 0 ? tie : nextafterf(tie, beside);
            if (which == 3 || magnitude >= 0x7c00) wide[i] = rg_f16_to_f32(h);
        }
        expect_stored(wide, HALVES);
    }
}

static void random_bits_store_as_in_quant(void **state) {
    (void)state;
    draws d = draws_start("random_bits_store_as_in_quant", 42001);
    for (int round = 0; round < 4; round++) {
        for (uint32_t i = 0; i < HALVES; i++)
            wide[i] = float_of((uint32_t)rg_random_u64(d.seed, d.at++));
        expect_stored(wide, HALVES);
    }
}

/* Short rows write no element too many, and f32 rows are copies. */
static void any_length(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("any_length", 42002);
    float x[68], y[68];
    draw_floats(&d, x, 68, -70000.0, 70000.0);
    for (uint32_t l = 0; l < levels.n; l++) {
        for (uint32_t n = 0; n < 68; n++) {
            for (int f16 = 0; f16 < 2; f16++) {
                memset(back, 0x5a, sizeof x);
                memset(y, 0x5a, sizeof y);
                levels.ops[l]->store(x, back, f16, n);
                levels.ops[l]->load(back, f16, y, n);
                for (uint32_t i = 0; i < n; i++)
                    assert_true(y[i] == (f16 ? rg_f16_to_f32(rg_f32_to_f16(x[i])) : x[i]));
                assert_int_equal(bits_of(y[n]), 0x5a5a5a5a);
                assert_int_equal(((const uint8_t *)back)[n * (f16 ? 2 : 4)], 0x5a);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_halves_load_as_in_quant),
        cmocka_unit_test(boundaries_store_as_in_quant),
        cmocka_unit_test(random_bits_store_as_in_quant),
        cmocka_unit_test(any_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
