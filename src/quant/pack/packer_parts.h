/* Shared pieces of the packers. Private to quant/pack. Everything here is compiled once per
 * instruction level and gives the same bits on each: sums run in LANES partial sums with one fixed
 * tree, codes are rounded to nearest even by an addition.
 *
 * A packer looks for the block whose decoded values have the least error sum w (x - xhat)^2. All of
 * them maximise the gain, which is sum w x^2 minus that error: for values s*q of codes q it is
 * 2 s A - s^2 C with A = sum w x q and C = sum w q^2, so the best scale of given codes is A / C.
 */
#ifndef RG_QUANT_PACKER_PARTS_H
#define RG_QUANT_PACKER_PARTS_H

#include <math.h>
#include <string.h>

#include "quant/packer_levels.h"
#include "quant/unpack.h"

#define RG_PACK_JOIN2(name, level) name##_##level
#define RG_PACK_JOIN(name, level)  RG_PACK_JOIN2(name, level)
#define LV(name)                   RG_PACK_JOIN(rg_pack_##name, RG_LEVEL)

#define LANES 16u

/* Nearest integer, ties to even; |v| < 2^22. */
static inline float rne(float v) {
    return (v + 12582912.0f) - 12582912.0f;
}

/* Limits a code; anything that is no number becomes lo. */
static inline float clamp_code(float v, float lo, float hi) {
    v = v > lo ? v : lo;
    return v < hi ? v : hi;
}

/* In front of rne: far outside values would lose their place. */
static inline float round_code(float v, float lo, float hi) {
    return rne(clamp_code(v, lo - 1, hi + 1));
}

static inline float lane_sum(const float v[LANES]) {
    float t[LANES / 2];
    for (unsigned i = 0; i < 8; i++)
        t[i] = v[i] + v[i + 8];
    for (unsigned i = 0; i < 4; i++)
        t[i] = t[i] + t[i + 4];
    return (t[0] + t[2]) + (t[1] + t[3]);
}

/* The f16 nearest to v, finite always. */
static inline uint16_t finite_f16(float v) {
    if (!(v > -65504.0f)) v = v == v ? -65504.0f : 0; /* NaN: 0 */
    if (v > 65504.0f) v = 65504.0f;
    return f32_to_f16(v);
}

static inline float through_f16(float v) {
    return f16_to_f32(finite_f16(v));
}

/* A scale that f16 cannot hold becomes the smallest one it can: some codes may still gain. */
static inline float least_scale(float d) {
    return d > 0 ? d : 0x1p-24f;
}

static inline void store_u16(uint8_t *p, unsigned v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static inline void store_u32(uint8_t *p, uint32_t v) {
    store_u16(p, v & 0xffff);
    store_u16(p + 2, v >> 16);
}

/* The element of largest magnitude, its sign kept; 0 when all are too small for any scale. */
static inline float signed_peak(const float *x, unsigned n) {
    float peak = 0;
    for (unsigned i = 0; i < n; i++) {
        if (fabsf(x[i]) > fabsf(peak)) peak = x[i];
    }
    return fabsf(peak) < 1e-15f ? 0 : peak;
}

/* LANES values at once; the compiler makes of them what the level has. */
typedef float lanes_f32 __attribute__((vector_size(4 * LANES)));
typedef int32_t lanes_i32 __attribute__((vector_size(4 * LANES)));

/* The point of least s*s*Q - 2*s*P of n, a multiple of LANES; the lower index of equal ones. */
static inline unsigned least_point(const float *P, const float *Q, unsigned n, float s,
                                   float *cost) {
    lanes_f32 best = {0};
    lanes_i32 at = {0}, index = {0};
    for (unsigned l = 0; l < LANES; l++) {
        best[l] = INFINITY;
        at[l] = index[l] = (int32_t)l;
    }
    const float twice = 2 * s, square = s * s;
    for (unsigned p = 0; p < n; p += LANES) {
        lanes_f32 q, r;
        memcpy(&q, Q + p, sizeof q);
        memcpy(&r, P + p, sizeof r);
        const lanes_f32 c = square * q - twice * r;
        const lanes_i32 less = c < best;
        best = (lanes_f32)((less & (lanes_i32)c) | (~less & (lanes_i32)best));
        at = (less & index) | (~less & at);
        index += (int32_t)LANES;
    }
    unsigned lane = 0;
    for (unsigned l = 1; l < LANES; l++) {
        if (best[l] < best[lane] || (best[l] == best[lane] && at[l] < at[lane])) lane = l;
    }
    *cost = best[lane];
    return (unsigned)at[lane];
}

typedef struct fit {
    float A, C;
} fit;

static inline float gain_of(fit f, float s) {
    return s * (2 * f.A - s * f.C);
}

/* What codes a symmetric format has: integers lo..hi, or 16 table values between `lo` and `hi`
 * where code k is chosen above mid[k - 1]. The search tries inverse scales that bring the peak to
 * `from` .. `to` times an end, in `steps` steps. */
typedef struct code_set {
    float lo, hi;
    const float *values, *mids; /* [16], [15]; NULL: integers */
    float from, to;
    unsigned steps;
} code_set;

/* pack_symmetric.c. n is a multiple of LANES, 64 at most. */
fit LV(fit_codes)(const code_set *set, const float *x, const float *w, unsigned n, float inverse);
/* The best scale found, unrounded; 0 for a block of zeros. */
float LV(best_scale)(const code_set *set, const float *x, const float *w, unsigned n);
/* Codes [n] at that scale, integers from 0 (lo). */
void LV(take_codes)(const code_set *set, const float *x, unsigned n, float scale, uint8_t *codes);

pack_block_fn LV(q4_0), LV(q5_0), LV(q8_0), LV(q4_1), LV(q5_1), LV(q2_0), LV(iq4_nl), LV(mxfp4);
pack_block_fn LV(q2_K), LV(q3_K), LV(q4_K), LV(q5_K), LV(q6_K), LV(iq4_xs);
pack_block_fn LV(iq1_s), LV(iq2_xxs), LV(iq2_xs), LV(iq2_s), LV(iq3_xxs), LV(iq3_s);

#endif
