/* The product with smmla: two weight rows by two activation rows at a time. Lanes are (row 0,
 * column 0), (0, 1), (1, 0), (1, 1). Single rows and columns go by sdot, which these CPUs have too.
 */
#include <arm_neon.h>

static inline int32x4_t neon_dot16(int32x4_t acc, int8x16_t w, int8x16_t y) {
    return vdotq_s32(acc, w, y);
}

#include "kernels/cpu/arm/neon_rows.h"

/* 16 products of each of the four pairs on top of acc. */
NEON_INLINE int32x4_t mma16(int32x4_t acc, const int8_t *w0, const int8_t *w1, const int8_t *y0,
                            const int8_t *y1) {
    const int64x2_t a0 = vreinterpretq_s64_s8(vld1q_s8(w0));
    const int64x2_t a1 = vreinterpretq_s64_s8(vld1q_s8(w1));
    const int64x2_t b0 = vreinterpretq_s64_s8(vld1q_s8(y0));
    const int64x2_t b1 = vreinterpretq_s64_s8(vld1q_s8(y1));
    acc = vmmlaq_s32(acc, vreinterpretq_s8_s64(vzip1q_s64(a0, a1)),
                     vreinterpretq_s8_s64(vzip1q_s64(b0, b1)));
    return vmmlaq_s32(acc, vreinterpretq_s8_s64(vzip2q_s64(a0, a1)),
                      vreinterpretq_s8_s64(vzip2q_s64(b0, b1)));
}

/* a of row 0 and b of row 1, by columns with factors c and d. */
NEON_INLINE float32x4_t scale_four(float a, float b, float c, float d) {
    const float32x4_t rows = {a, a, b, b}, columns = {c, d, c, d};
    return vmulq_f32(rows, columns);
}

NEON_INLINE float32x4_t two_by_two_256(const row_codes w[2], const rg_act *x, size_t c0,
                                       size_t c1) {
    const size_t n = x->n_in;
    const int8_t *y0 = x->codes + c0 * n, *y1 = x->codes + c1 * n;
    const int16_t *s0 = x->sums + c0 * (n / 16), *s1 = x->sums + c1 * (n / 16);
    float32x4_t acc = vdupq_n_f32(0.0f);
    for (size_t b = 0; b < n / 256; b++) {
        int32x4_t total = vdupq_n_s32(0);
        for (size_t at = 256 * b; at < 256 * b + 256; at += 16) {
            const int32x4_t dot = mma16(vdupq_n_s32(0), w[0].q + at, w[1].q + at, y0 + at, y1 + at);
            const int32_t k0 = w[0].scale[at / 16], k1 = w[1].scale[at / 16];
            const int32x4_t scale = {k0, k0, k1, k1};
            total = vmlaq_s32(total, dot, scale);
        }
        const float dx0 = x->scales[c0 * (n / 256) + b], dx1 = x->scales[c1 * (n / 256) + b];
        acc = vfmaq_f32(acc, scale_four(w[0].d[b], w[1].d[b], dx0, dx1), vcvtq_f32_s32(total));
        if (!w[0].has_mins) continue;
        const int16_t *m0 = w[0].mins + 16 * b, *m1 = w[1].mins + 16 * b;
        const int32x4_t low = {neon_low(m0, s0 + 16 * b), neon_low(m0, s1 + 16 * b),
                               neon_low(m1, s0 + 16 * b), neon_low(m1, s1 + 16 * b)};
        acc = vfmaq_f32(acc, scale_four(w[0].m[b], w[1].m[b], dx0, dx1), vcvtq_f32_s32(low));
    }
    return acc;
}

NEON_INLINE float32x4_t two_by_two_32(const row_codes w[2], const rg_act *x, size_t c0, size_t c1) {
    const size_t n = x->n_in;
    const int8_t *y0 = x->codes + c0 * n, *y1 = x->codes + c1 * n;
    const int16_t *s0 = x->sums + c0 * (n / 16), *s1 = x->sums + c1 * (n / 16);
    float32x4_t acc = vdupq_n_f32(0.0f);
    for (size_t b = 0; b < n / 32; b++) {
        const size_t at = 32 * b;
        int32x4_t total = mma16(vdupq_n_s32(0), w[0].q + at, w[1].q + at, y0 + at, y1 + at);
        total = mma16(total, w[0].q + at + 16, w[1].q + at + 16, y0 + at + 16, y1 + at + 16);
        const float dx0 = x->scales[c0 * (n / 32) + b], dx1 = x->scales[c1 * (n / 32) + b];
        acc = vfmaq_f32(acc, scale_four(w[0].d[b], w[1].d[b], dx0, dx1), vcvtq_f32_s32(total));
        if (!w[0].has_mins) continue;
        const float t0 = (float)(s0[2 * b] + s0[2 * b + 1]);
        const float t1 = (float)(s1[2 * b] + s1[2 * b + 1]);
        const float32x4_t sums = {t0, t1, t0, t1};
        acc = vfmaq_f32(acc, scale_four(w[0].m[b], w[1].m[b], dx0, dx1), sums);
    }
    return acc;
}

bool rg_neon_mul_i8mm(const neon_job *j, uint32_t r0, uint32_t r1) {
    const uint32_t n_in = j->w->n_in, pairs = j->n / 2 * 2;
    uint32_t r = r0;
    if (pairs == 0) return neon_rows(j, r0, r1);
    for (; r + 2 <= r1; r += 2) {
        /* Two rows take 3 bytes a value, scratch has 4. */
        row_codes w[2] = {row_codes_in(j->scratch, n_in)};
        w[1] = row_codes_in(w[0].m + (n_in / 32 + 15) / 16 * 16, n_in);
        for (uint32_t k = 0; k < 2; k++) {
            const uint8_t *row = j->w->data + (r + k) * j->w->row_bytes;
            if (!row_unpack(j->w->type, row, n_in, &w[k])) return false;
        }
        for (uint32_t i = 0; i < pairs; i += 2) {
            const uint32_t c0 = neon_x_row(j, i), c1 = neon_x_row(j, i + 1);
            const float32x4_t acc =
                w[0].span == 256 ? two_by_two_256(w, j->x, c0, c1) : two_by_two_32(w, j->x, c0, c1);
            float *y0 = j->y + neon_y_at(j, i) + r, *y1 = j->y + neon_y_at(j, i + 1) + r;
            y0[0] = vgetq_lane_f32(acc, 0);
            y1[0] = vgetq_lane_f32(acc, 1);
            y0[1] = vgetq_lane_f32(acc, 2);
            y1[1] = vgetq_lane_f32(acc, 3);
        }
        for (uint32_t k = 0; k < 2; k++)
            neon_columns(&w[k], j, pairs, j->y + r + k);
    }
    return r == r1 || neon_rows(j, r, r1);
}
