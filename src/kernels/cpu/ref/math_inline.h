/* Own elementary functions, f32. One sequence of IEEE operations without branches, so that a vector
 * body, its tail and a scalar call give the same bits. exp: Cody-Waite reduction by ln 2 in two
 * parts, then 1 + r + r^2 q(r) with q of degree 4 fitted minimax on [-ln2/2, ln2/2] (3e-9 relative
 * before rounding); log: mantissa reduced to [sqrt(1/2), sqrt(2)), f - f^2/2 + f^3 p(f) with p of
 * degree 8 fitted likewise (8e-10).
 */
#ifndef RG_KERNELS_MATH_INLINE_H
#define RG_KERNELS_MATH_INLINE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float rg_bits_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t rg_f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* Nearest integer for |x| < 2^22, ties to even: adding 1.5 * 2^23 leaves no fraction bits. */
static inline float rg_rint_small(float x) {
    return (x + 12582912.0f) - 12582912.0f;
}

/* 2^n for integral n in [-126, 127]. */
static inline float rg_pow2i(float n) {
    return rg_bits_f32((uint32_t)((int32_t)n + 127) << 23);
}

/* exp(x). exp(0) = 1 exactly; below -104 the result is +0, above 88.8 infinity; NaN stays NaN. */
static inline float rg_expf(float x) {
    const float lo = x < -104.0f ? -104.0f : x;
    const float c = lo > 89.0f ? 89.0f : lo;
    const float n = rg_rint_small(c * 1.44269504088896341f);
    const float r0 = fmaf(n, -0.693145751953125f, c);
    const float r = fmaf(n, -1.42860682030941723212e-6f, r0);
    float p = fmaf(1.381453825160861e-3f, r, 8.36874544620514e-3f);
    p = fmaf(p, r, 4.166838899254799e-2f);
    p = fmaf(p, r, 0.1666652113199234f);
    p = fmaf(p, r, 0.4999999403953552f);
    p = fmaf(p * r, r, r) + 1.0f;
    /* n is in [-150, 129]: scale in two exact steps, the second may round into the subnormals. */
    const float half = rg_rint_small(n * 0.5f);
    const float y = p * rg_pow2i(half) * rg_pow2i(n - half);
    return x < -104.0f ? 0.0f : y;
}

static inline float rg_sigmoidf(float x) {
    return 1.0f / (1.0f + rg_expf(-x));
}

static inline float rg_siluf(float x) {
    return x / (1.0f + rg_expf(-x));
}

/* log(x) for normal positive x. */
static inline float rg_logf(float x) {
    const uint32_t u = rg_f32_bits(x);
    /* Mantissa in [sqrt(1/2), sqrt(2)), exponent adjusted to match. */
    const uint32_t shifted = u - 0x3F3504F3u;
    const int32_t e = (int32_t)shifted >> 23;
    const float m = rg_bits_f32((shifted & 0x007FFFFFu) + 0x3F3504F3u);
    const float f = m - 1.0f;
    float p = fmaf(6.746559590101242e-2f, f, -0.11679643392562866f);
    p = fmaf(p, f, 0.11890336126089096f);
    p = fmaf(p, f, -0.12405137717723846f);
    p = fmaf(p, f, 0.14219222962856293f);
    p = fmaf(p, f, -0.16668006777763367f);
    p = fmaf(p, f, 0.20002134144306183f);
    p = fmaf(p, f, -0.25000008940696716f);
    p = fmaf(p, f, 0.3333331346511841f);
    const float z = f * f;
    float y = f * z * p;
    const float ef = (float)e;
    y = fmaf(ef, 1.42860682030941723212e-6f, y);
    y = fmaf(-0.5f, z, y);
    return fmaf(ef, 0.693145751953125f, f + y);
}

/* log(1 + exp(x)); x itself above 20. log1p(t) = log(u) * t / (u - 1) with u = 1 + t rounded
 * (Kahan's correction), t where u is 1. */
static inline float rg_softplusf(float x) {
    const float t = rg_expf(x > 20.0f ? 20.0f : x);
    const float u = 1.0f + t;
    const float d = u - 1.0f;
    const float y = d == 0.0f ? t : rg_logf(u) * (t / (d == 0.0f ? 1.0f : d));
    return x > 20.0f ? x : y;
}

#endif
