/* Formats with one scale a block and codes around zero: q4_0, q5_0, q8_0, q2_0, iq4_nl, mxfp4; and
 * the search they share with the formats of 256 elements.
 */
#include "quant/pack/packer_parts.h"

#define BLOCK_MAX 64u

/* ---- codes ------------------------------------------------------------------------------------
 */

static fit fit_integers(const code_set *set, const float *x, const float *w, unsigned n,
                        float inv) {
    float A[LANES] = {0}, C[LANES] = {0};
    const float lo = set->lo, hi = set->hi;
    for (unsigned k = 0; k < n; k += LANES) {
        for (unsigned l = 0; l < LANES; l++) {
            const float q = clamp_code(round_code(inv * x[k + l], lo, hi), lo, hi);
            const float t = w[k + l] * q;
            A[l] += t * x[k + l];
            C[l] += t * q;
        }
    }
    return (fit){lane_sum(A), lane_sum(C)};
}

static fit fit_table(const code_set *set, const float *x, const float *w, unsigned n, float inv) {
    float A[LANES] = {0}, C[LANES] = {0};
    for (unsigned k = 0; k < n; k += LANES) {
        float q[LANES];
        for (unsigned l = 0; l < LANES; l++)
            q[l] = set->values[0];
        for (unsigned i = 0; i < 15; i++) {
            const float mid = set->mids[i], value = set->values[i + 1];
            for (unsigned l = 0; l < LANES; l++)
                q[l] = inv * x[k + l] > mid ? value : q[l];
        }
        for (unsigned l = 0; l < LANES; l++) {
            const float t = w[k + l] * q[l];
            A[l] += t * x[k + l];
            C[l] += t * q[l];
        }
    }
    return (fit){lane_sum(A), lane_sum(C)};
}

fit LV(fit_codes)(const code_set *set, const float *x, const float *w, unsigned n, float inverse) {
    return set->values ? fit_table(set, x, w, n, inverse) : fit_integers(set, x, w, n, inverse);
}

void LV(take_codes)(const code_set *set, const float *x, unsigned n, float scale, uint8_t *codes) {
    const float inv = scale != 0 ? 1 / scale : 0;
    for (unsigned i = 0; i < n; i++) {
        if (!set->values) {
            const float q = clamp_code(round_code(inv * x[i], set->lo, set->hi), set->lo, set->hi);
            codes[i] = (uint8_t)(int)(q - set->lo);
            continue;
        }
        unsigned code = 0;
        while (code < 15 && inv * x[i] > set->mids[code])
            code++;
        codes[i] = (uint8_t)code;
    }
}

float LV(best_scale)(const code_set *set, const float *x, const float *w, unsigned n) {
    const float peak = signed_peak(x, n);
    if (peak == 0) return 0;
    float best = 0, scale = 0;
    for (unsigned end = 0; end < 2; end++) {
        const float to_end = (end ? set->hi : set->lo) / peak;
        for (unsigned i = 0; i <= set->steps; i++) {
            const float at = set->from + (set->to - set->from) * (float)i / (float)set->steps;
            const fit f = LV(fit_codes)(set, x, w, n, to_end * at);
            if (!(f.C > 0) || !(f.A * f.A > best * f.C)) continue;
            best = f.A * f.A / f.C;
            scale = f.A / f.C;
        }
    }
    for (unsigned round = 0; round < 3 && scale != 0; round++) { /* codes and scale in turn */
        const fit f = LV(fit_codes)(set, x, w, n, 1 / scale);
        if (!(f.C > 0) || !(f.A * f.A > best * f.C)) break;
        best = f.A * f.A / f.C;
        scale = f.A / f.C;
    }
    return scale;
}

/* The f16 scale of one block: the best one, with codes chosen under its rounded value. */
static float stored_scale(const code_set *set, const float *x, const float *w, unsigned n) {
    float scale = LV(best_scale)(set, x, w, n), best = 0, kept = 0;
    for (unsigned round = 0; round < 4; round++) {
        if (scale == 0) break;
        const float d = copysignf(least_scale(fabsf(through_f16(scale))), scale);
        const fit f = LV(fit_codes)(set, x, w, n, 1 / d);
        const float gain = gain_of(f, d);
        if (round && !(gain > best)) break;
        best = gain;
        kept = d;
        if (!(f.C > 0)) break;
        scale = f.A / f.C;
    }
    return kept;
}

/* ---- formats ----------------------------------------------------------------------------------
 */

static const code_set q4_set = {.lo = -8, .hi = 7, .from = 0.7f, .to = 1.4f, .steps = 28};
static const code_set q5_set = {.lo = -16, .hi = 15, .from = 0.85f, .to = 1.2f, .steps = 24};
static const code_set q8_set = {.lo = -127, .hi = 127, .from = 0.985f, .to = 1.015f, .steps = 12};
static const code_set q2_set = {.lo = -1, .hi = 2, .from = 0.45f, .to = 3.0f, .steps = 48};

static const float nl_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                    1,    13,   25,  38,  53,  69,  89,  113};
static const float nl_mids[15] = {-115.5f, -93.5f, -74,   -57,   -42, -28.5f, -16, -4.5f,
                                  7,       19,     31.5f, 45.5f, 61,  79,     101};
static const code_set nl_set = {.lo = -127,
                                .hi = 113,
                                .values = nl_values,
                                .mids = nl_mids,
                                .from = 0.75f,
                                .to = 1.35f,
                                .steps = 24};

static void put_nibbles(uint8_t qs[16], const uint8_t codes[32]) {
    for (unsigned j = 0; j < 16; j++)
        qs[j] = (uint8_t)((codes[j] & 15) | (codes[j + 16] & 15) << 4);
}

void LV(q4_0)(const float *x, const float *w, uint8_t *dst, void *scratch) {
    rg_block_q4_0 *b = (rg_block_q4_0 *)(void *)dst;
    uint8_t codes[32];
    (void)scratch;
    const float d = stored_scale(&q4_set, x, w, 32);
    LV(take_codes)(&q4_set, x, 32, d, codes);
    store_u16(b->d, finite_f16(d));
    put_nibbles(b->qs, codes);
}

void LV(q5_0)(const float *x, const float *w, uint8_t *dst, void *scratch) {
    rg_block_q5_0 *b = (rg_block_q5_0 *)(void *)dst;
    uint8_t codes[32];
    (void)scratch;
    const float d = stored_scale(&q5_set, x, w, 32);
    LV(take_codes)(&q5_set, x, 32, d, codes);
    store_u16(b->d, finite_f16(d));
    put_nibbles(b->qs, codes);
    uint32_t high = 0;
    for (unsigned i = 0; i < 32; i++)
        high |= (uint32_t)(codes[i] >> 4) << i;
    store_u32(b->qh, high);
}

void LV(q8_0)(const float *x, const float *w, uint8_t *dst, void *scratch) {
    uint8_t codes[32];
    (void)scratch;
    const float d = stored_scale(&q8_set, x, w, 32);
    LV(take_codes)(&q8_set, x, 32, d, codes);
    store_u16(dst, finite_f16(d));
    for (unsigned i = 0; i < 32; i++)
        dst[2 + i] = (uint8_t)(codes[i] - 127);
}

void LV(q2_0)(const float *x, const float *w, uint8_t *dst, void *scratch) {
    rg_block_q2_0 *b = (rg_block_q2_0 *)(void *)dst;
    uint8_t codes[64];
    (void)scratch;
    const float d = stored_scale(&q2_set, x, w, 64);
    LV(take_codes)(&q2_set, x, 64, d, codes);
    store_u16(b->d, finite_f16(d));
    for (unsigned j = 0; j < 16; j++) {
        b->qs[j] = (uint8_t)(codes[4 * j] | codes[4 * j + 1] << 2 | codes[4 * j + 2] << 4 |
                             codes[4 * j + 3] << 6);
    }
}

void LV(iq4_nl)(const float *x, const float *w, uint8_t *dst, void *scratch) {
    rg_block_iq4_nl *b = (rg_block_iq4_nl *)(void *)dst;
    uint8_t codes[32];
    (void)scratch;
    const float d = stored_scale(&nl_set, x, w, 32);
    LV(take_codes)(&nl_set, x, 32, d, codes);
    store_u16(b->d, finite_f16(d));
    put_nibbles(b->qs, codes);
}

/* The scale is a power of two: the exponents around the one that reaches the peak are tried. */
void LV(mxfp4)(const float *x, const float *w, uint8_t *dst, void *scratch) {
    static const float values[16] = {-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12, 12};
    static const float mids[15] = {-10,  -7,   -5,   -3.5f, -2.5f, -1.5f, -0.5f,   0.5f,
                                   1.5f, 2.5f, 3.5f, 5,     7,     10,    INFINITY};
    static const uint8_t stored[16] = {15, 14, 13, 12, 11, 10, 9, 0, 1, 2, 3, 4, 5, 6, 7, 7};
    static const code_set set = {.values = values, .mids = mids};
    rg_block_mxfp4 *b = (rg_block_mxfp4 *)(void *)dst;
    uint8_t codes[32];
    (void)scratch;
    const float peak = fabsf(signed_peak(x, 32));
    int base = 0, kept = 0;
    float best = -INFINITY;
    (void)frexpf(peak,
                 &base); /* peak = 0.5..1 * 2^base: the stored exponent stands for 2^(e-128) */
    for (int e = base + 123; peak > 0 && e <= base + 127; e++) {
        if (e < 2 || e > 254) continue;
        const float scale = ldexpf(1.0f, e - 128);
        const float gain = gain_of(LV(fit_codes)(&set, x, w, 32, 1 / scale), scale);
        if (!(gain > best)) continue;
        best = gain;
        kept = e;
    }
    LV(take_codes)(&set, x, 32, kept ? ldexpf(1.0f, kept - 128) : 0, codes);
    for (unsigned i = 0; i < 32; i++)
        codes[i] = kept ? stored[codes[i]] : 0;
    b->e = (uint8_t)kept;
    put_nibbles(b->qs, codes);
}
