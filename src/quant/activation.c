/* Activation quantizers: q8_0, q8_1, q8_K, by the scalar rule that every CPU level must reproduce
 * bit for bit. Pure functions, any thread.
 *
 * Needs the default rounding mode. Codes are clamped, so that scales whose inverse overflows (an
 * amax below about 2^-121) and non-finite elements give defined codes.
 */
#include "quant/half.h"
#include "quant/quant.h"

/* -127..127, NaN to 0. */
static float clamp_code(float v) {
    if (v > 127.0f) return 127.0f;
    if (v < -127.0f) return -127.0f;
    return v == v ? v : 0.0f;
}

/* Half away from zero: the fraction left by truncation is exact. */
static int round_away(float v) {
    const int whole = (int)v;
    const float rest = v - (float)whole;
    return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

/* Half to even, |v| < 2^22: at 1.5 * 2^23 the last place of f32 is one. */
static int round_even(float v) {
    return (int)((v + 0x1.8p23f) - 0x1.8p23f);
}

/* Codes of 32 elements; returns the unrounded scale and the sum of the codes. */
static float quantize_32(const float *x, int8_t *qs, int *sum) {
    float amax = 0.0f;
    for (unsigned j = 0; j < 32; j++) {
        const float a = bits_to_f32(f32_to_bits(x[j]) & 0x7fffffffu);
        if (a > amax) amax = a;
    }
    const float d = amax / 127.0f;
    const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
    *sum = 0;
    for (unsigned j = 0; j < 32; j++) {
        const int q = round_away(clamp_code(x[j] * inverse));
        qs[j] = (int8_t)q;
        *sum += q;
    }
    return d;
}

void rg_quantize_row_q8_0(const float *x, rg_block_q8_0 *y, size_t n) {
    RG_ASSERT(n % 32 == 0);
    for (size_t i = 0; i < n / 32; i++) {
        int sum = 0;
        y[i].d = f32_to_f16(quantize_32(x + 32 * i, y[i].qs, &sum));
    }
}

void rg_quantize_row_q8_1(const float *x, rg_block_q8_1 *y, size_t n) {
    RG_ASSERT(n % 32 == 0);
    for (size_t i = 0; i < n / 32; i++) {
        int sum = 0;
        const float d = quantize_32(x + 32 * i, y[i].qs, &sum);
        y[i].d = f32_to_f16(d);
        y[i].s = f32_to_f16(d * (float)sum);
    }
}

/* The element of largest magnitude, the first one on ties; 0 when there is none. */
static float largest_of_256(const float *x) {
    float amax = 0.0f;
    float largest = 0.0f;
    for (unsigned j = 0; j < 256; j++) {
        const float a = bits_to_f32(f32_to_bits(x[j]) & 0x7fffffffu);
        if (a > amax) {
            amax = a;
            largest = x[j];
        }
    }
    return largest;
}

void rg_quantize_row_q8_K(const float *x, rg_block_q8_K *y, size_t n) {
    RG_ASSERT(n % 256 == 0);
    for (size_t i = 0; i < n / 256; i++, x += 256, y++) {
        memset(y, 0, sizeof *y);
        const float largest = largest_of_256(x);
        if (largest == 0.0f) continue;
        const float inverse = -127.0f / largest;
        for (unsigned j = 0; j < 256; j++) {
            const int q = round_even(clamp_code(x[j] * inverse));
            y->qs[j] = (int8_t)q;
            y->bsums[j / 16] = (int16_t)(y->bsums[j / 16] + q);
        }
        y->d = 1.0f / inverse;
    }
}
