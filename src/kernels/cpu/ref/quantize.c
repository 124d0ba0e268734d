/* Activation rows to 8-bit codes: the rules of rg_quantize_row_q8_0 and _q8_K (quant.h) with the
 * scales as f32 and sums of 16 codes beside them.
 */
#include <math.h>

#include "kernels/cpu/levels.h"
#include "kernels/cpu/ref/math_inline.h"

/* Nearest, halves away from zero, |x| < 2^22. */
static inline float round_half_away(float x) {
    const float t = (float)(int32_t)x; /* toward zero */
    const float d = x - t;             /* exact */
    return t + (d >= 0.5f ? 1.0f : 0.0f) - (d <= -0.5f ? 1.0f : 0.0f);
}

static void sum_codes(const int8_t *codes, int16_t *sums, uint32_t n) {
    for (uint32_t s = 0; s < n / 16; s++) {
        int32_t sum = 0;
        for (uint32_t i = 0; i < 16; i++)
            sum += codes[16 * s + i];
        sums[s] = (int16_t)sum;
    }
}

static float f16_rounded(float x) {
    uint16_t h;
    RG_OP(store)(&x, &h, true, 1);
    float y;
    RG_OP(load)(&h, true, &y, 1);
    return y;
}

/* Bits of the largest magnitude. As integers NaN > infinity > finite, so nothing is lost. */
static uint32_t max_magnitude(const float *x, uint32_t n) {
    uint32_t max = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t a = rg_f32_bits(x[i]) & 0x7FFFFFFFu;
        max = a > max ? a : max;
    }
    return max;
}

/* A NaN scale makes every product NaN: a broken activation must show, not vanish in rounding. */
static void quantize_broken(int8_t *codes, float *scale, uint32_t n) {
    memset(codes, 0, n);
    *scale = NAN;
}

static void quantize_32(const float *restrict x, int8_t *restrict codes, float *scale) {
    const uint32_t max = max_magnitude(x, 32);
    if (max >= 0x7F800000u) {
        quantize_broken(codes, scale, 32);
        return;
    }
    const float d = rg_bits_f32(max) / 127.0f;
    /* Below this the scale is 0 as f16 and the reciprocal would overflow. */
    const float id = d > 1e-37f ? 1.0f / d : 0.0f;
    for (uint32_t i = 0; i < 32; i++)
        codes[i] = (int8_t)(int32_t)round_half_away(x[i] * id);
    *scale = f16_rounded(d);
}

static void quantize_256(const float *restrict x, int8_t *restrict codes, float *scale) {
    const uint32_t max = max_magnitude(x, 256);
    if (max >= 0x7F800000u) {
        quantize_broken(codes, scale, 256);
        return;
    }
    if (rg_bits_f32(max) < 1e-35f) { /* the reciprocal would overflow */
        memset(codes, 0, 256);
        *scale = 0.0f;
        return;
    }
    /* The sign of the first element of that magnitude. */
    uint32_t first = 0;
    while ((rg_f32_bits(x[first]) & 0x7FFFFFFFu) != max)
        first++;
    const float is = -127.0f / x[first];
    for (uint32_t i = 0; i < 256; i++) {
        const float r = rg_rint_small(is * x[i]);
        codes[i] = (int8_t)(int32_t)(r < 127.0f ? r : 127.0f);
    }
    *scale = 1.0f / is;
}

void RG_OP(quantize)(rg_act_form form, const float *x, uint32_t n, int8_t *codes, float *scales,
                     int16_t *sums) {
    const uint32_t span = form == RG_ACT_Q256 ? 256 : 32;
    for (uint32_t i = 0; i < n; i += span) {
        if (form == RG_ACT_Q256) {
            quantize_256(x + i, codes + i, scales + i / span);
        } else {
            quantize_32(x + i, codes + i, scales + i / span);
        }
    }
    sum_codes(codes, sums, n);
}
