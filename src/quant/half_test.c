/* f16 and bf16 conversions: all 65536 halves, and every boundary between two neighbouring halves,
 * against values computed from the fields by ldexp. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>

#include "quant/half.h"
#include "quant/quant.h"

/* Value of a finite half, from the definition of binary16. */
static double half_value(uint16_t h) {
    const int exponent = (h >> 10) & 31;
    const int mantissa = h & 1023;
    const double magnitude =
        exponent == 0 ? ldexp(mantissa, -24) : ldexp(mantissa + 1024, exponent - 25);
    return h & 0x8000 ? -magnitude : magnitude;
}

static uint32_t bits_of(double v) {
    return f32_to_bits((float)v); /* exact for the values used here */
}

static void all_halves_are_exact_and_round_trip(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        const uint16_t h = (uint16_t)i;
        const float f = rg_f16_to_f32(h);
        if ((h & 0x7fff) < 0x7c00) {
            assert_int_equal(f32_to_bits(f), bits_of(half_value(h)));
            assert_int_equal(rg_f32_to_f16(f), h);
        } else if ((h & 0x7fff) == 0x7c00) {
            assert_int_equal(f32_to_bits(f), h & 0x8000 ? 0xff800000 : 0x7f800000);
            assert_int_equal(rg_f32_to_f16(f), h);
        } else { /* payload and sign kept, quiet */
            assert_true(isnan(f));
            assert_int_equal(f32_to_bits(f) >> 31, h >> 15);
            assert_int_equal(rg_f32_to_f16(f), h | 0x0200);
        }
    }
}

/* Between each two neighbours lie a tie and its two f32 neighbours; the last pair is the largest
 * half and infinity, whose tie is at 65520. */
static void every_boundary_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 0x7c00; i++) {
        const uint16_t below = (uint16_t)i;
        const uint16_t above = (uint16_t)(i + 1);
        const double upper = above == 0x7c00 ? 65536.0 : half_value(above);
        const float tie = (float)((half_value(below) + upper) / 2);
        const uint16_t even = below & 1 ? above : below;
        const float before = nextafterf(tie, 0.0f);
        const float after = nextafterf(tie, INFINITY);
        assert_int_equal(rg_f32_to_f16(tie), even);
        assert_int_equal(rg_f32_to_f16(-tie), even | 0x8000);
        assert_int_equal(rg_f32_to_f16(before), below);
        assert_int_equal(rg_f32_to_f16(-before), below | 0x8000);
        assert_int_equal(rg_f32_to_f16(after), above);
        assert_int_equal(rg_f32_to_f16(-after), above | 0x8000);
    }
}

/* The half nearest to a magnitude, by bisection over the ordered halves. */
static uint16_t nearest_half(double magnitude) {
    uint16_t low = 0, high = 0x7c00;
    if (magnitude >= 65520.0) return 0x7c00;
    while (high - low > 1) {
        const uint16_t middle = (uint16_t)((low + high) / 2);
        if (half_value(middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    const double upper = high == 0x7c00 ? 65536.0 : half_value(high);
    const double to_low = magnitude - half_value(low), to_high = upper - magnitude;
    if (to_low == to_high) return low & 1 ? high : low;
    return to_low < to_high ? low : high;
}

static void random_floats_round_to_the_nearest_half(void **state) {
    (void)state;
    uint32_t bits = 1;
    for (int i = 0; i < 400000; i++) {
        bits = bits * 1664525u + 1013904223u; /* Numerical Recipes' LCG, full period */
        const float f = bits_to_f32(bits);
        if (isnan(f)) continue;
        const uint32_t want = nearest_half(fabs((double)f)) | (bits >> 16 & 0x8000);
        if (rg_f32_to_f16(f) != want) {
            fail_msg("%08x gives %04x, nearest is %04x", bits, rg_f32_to_f16(f), want);
        }
    }
}

static void single_values(void **state) {
    (void)state;
    const struct {
        uint32_t bits;
        uint16_t f16, bf16;
    } cases[] = {
        {0x00000000, 0x0000, 0x0000}, {0x80000000, 0x8000, 0x8000},
        {0x3f800000, 0x3c00, 0x3f80}, {0x33000000, 0x0000, 0x3300}, /* 2^-25: a tie to zero */
        {0x33000001, 0x0001, 0x3300}, {0x00000001, 0x0000, 0x0000}, /* smallest f32 */
        {0x477fefff, 0x7bff, 0x4780}, {0x477ff000, 0x7c00, 0x4780}, /* about 65520 */
        {0x7f7fffff, 0x7c00, 0x7f80}, {0x7f800000, 0x7c00, 0x7f80},
        {0xff800000, 0xfc00, 0xff80}, {0x7fc00000, 0x7e00, 0x7fc0},
        {0x7f800001, 0x7e00, 0x7fc0}, {0xffa02000, 0xff01, 0xffe0}, /* signalling NaNs */
        {0x3f808000, 0x3c04, 0x3f80}, {0x3f818000, 0x3c0c, 0x3f82}, /* bf16 ties */
        {0x3f808001, 0x3c04, 0x3f81}, {0x3f807fff, 0x3c04, 0x3f80},
    };
    for (size_t i = 0; i < RG_ARRAY_LEN(cases); i++) {
        assert_int_equal(rg_f32_to_f16(bits_to_f32(cases[i].bits)), cases[i].f16);
        assert_int_equal(rg_f32_to_bf16(bits_to_f32(cases[i].bits)), cases[i].bf16);
    }
}

static void all_bf16_are_exact_and_round_trip(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        const float f = rg_bf16_to_f32((uint16_t)i);
        assert_int_equal(f32_to_bits(f), i << 16);
        assert_int_equal(rg_f32_to_bf16(f), isnan(f) ? i | 0x40 : i);
    }
}

static void every_bf16_boundary_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 0x7f80; i++) {
        const uint32_t tie = i << 16 | 0x8000, even = i + (i & 1);
        assert_int_equal(rg_f32_to_bf16(bits_to_f32(tie)), even);
        assert_int_equal(rg_f32_to_bf16(bits_to_f32(tie - 1)), i);
        assert_int_equal(rg_f32_to_bf16(bits_to_f32(tie + 1)), i + 1);
        assert_int_equal(rg_f32_to_bf16(bits_to_f32(tie | 0x80000000)), even | 0x8000);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_halves_are_exact_and_round_trip),
        cmocka_unit_test(every_boundary_rounds_to_nearest_even),
        cmocka_unit_test(random_floats_round_to_the_nearest_half),
        cmocka_unit_test(single_values),
        cmocka_unit_test(all_bf16_are_exact_and_round_trip),
        cmocka_unit_test(every_bf16_boundary_rounds_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
