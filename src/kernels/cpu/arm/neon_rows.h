/* NEON products of quantised weights: a row unpacked once to signed bytes, then byte products with
 * up to four activation rows at a time. All give the bits of RG_OP(mul) (cpu/ref/mul.c). Included
 * by one form each, which defines before
 *
 *     static inline int32x4_t neon_dot16(int32x4_t acc, int8x16_t w, int8x16_t y);
 *
 * adding 16 products to the four lanes in any arrangement: the totals are exact integers.
 */
#ifndef RG_KERNELS_NEON_ROWS_H
#define RG_KERNELS_NEON_ROWS_H

#include <arm_neon.h>
#include <math.h>

#include "kernels/cpu/arm/neon_mul.h"
#include "kernels/cpu/row_codes.h"

#define NEON_INLINE static inline __attribute__((always_inline))

/* Sum of minimum codes times sums of activation codes over one block of 256. */
NEON_INLINE int32_t neon_low(const int16_t *mins, const int16_t *sums) {
    int32x4_t s = vdupq_n_s32(0);
    for (uint32_t k = 0; k < 16; k += 4)
        s = vmlal_s16(s, vld1_s16(mins + k), vld1_s16(sums + k));
    return vaddvq_s32(s);
}

/* A row with blocks of 256 against C activation rows. */
NEON_INLINE void neon_dot_256(const row_codes *w, const rg_act *x, const uint32_t rows[4],
                              uint32_t C, float acc[4]) {
    const size_t n = x->n_in;
    for (uint32_t c = 0; c < C; c++)
        acc[c] = 0.0f;
    for (uint32_t b = 0; b < n / 256; b++) {
        int32x4_t total[4];
        for (uint32_t c = 0; c < C; c++)
            total[c] = vdupq_n_s32(0);
        for (uint32_t g = 0; g < 16; g++) {
            const size_t at = 256 * (size_t)b + 16 * g;
            const int8x16_t q = vld1q_s8(w->q + at);
            const int32_t scale = w->scale[at / 16];
            for (uint32_t c = 0; c < C; c++) {
                const int8x16_t y = vld1q_s8(x->codes + rows[c] * n + at);
                total[c] = vmlaq_n_s32(total[c], neon_dot16(vdupq_n_s32(0), q, y), scale);
            }
        }
        for (uint32_t c = 0; c < C; c++) {
            const float dx = x->scales[rows[c] * (n / 256) + b];
            acc[c] = fmaf(w->d[b] * dx, (float)vaddvq_s32(total[c]), acc[c]);
            if (!w->has_mins) continue;
            const size_t at = 16 * (size_t)b;
            const int32_t low = neon_low(w->mins + at, x->sums + rows[c] * (n / 16) + at);
            acc[c] = fmaf(w->m[b] * dx, (float)low, acc[c]);
        }
    }
}

/* A row with blocks of 32 against one activation row. */
NEON_INLINE float neon_dot_32(const row_codes *w, const rg_act *x, size_t row) {
    const size_t n = x->n_in;
    const int8_t *y = x->codes + row * n;
    const float *dx = x->scales + row * (n / 32);
    const int16_t *sums = x->sums + row * (n / 16);
    float acc = 0.0f;
    for (uint32_t b = 0; b < n / 32; b++) {
        const size_t at = 32 * (size_t)b;
        int32x4_t t = neon_dot16(vdupq_n_s32(0), vld1q_s8(w->q + at), vld1q_s8(y + at));
        t = neon_dot16(t, vld1q_s8(w->q + at + 16), vld1q_s8(y + at + 16));
        acc = fmaf(w->d[b] * dx[b], (float)vaddvq_s32(t), acc);
        if (!w->has_mins) continue;
        acc = fmaf(w->m[b] * dx[b], (float)(sums[2 * b] + sums[2 * b + 1]), acc);
    }
    return acc;
}

/* One unpacked row against activation rows [first, n). */
static void neon_columns(const row_codes *w, const neon_job *j, uint32_t first, float *y) {
    for (uint32_t i = first; i < j->n; i += 4) {
        const uint32_t C = j->n - i < 4 ? j->n - i : 4;
        uint32_t rows[4];
        float acc[4];
        for (uint32_t c = 0; c < C; c++)
            rows[c] = neon_x_row(j, i + c);
        if (w->span == 256 && C == 4) { /* a constant count unrolls */
            neon_dot_256(w, j->x, rows, 4, acc);
        } else {
            for (uint32_t c = 0; c < C; c++) {
                if (w->span == 256) {
                    neon_dot_256(w, j->x, rows + c, 1, acc + c);
                } else {
                    acc[c] = neon_dot_32(w, j->x, rows[c]);
                }
            }
        }
        for (uint32_t c = 0; c < C; c++)
            y[neon_y_at(j, i + c)] = acc[c];
    }
}

/* Rows [r0, r1) one by one; false: the type has no form here. */
static inline bool neon_rows(const neon_job *j, uint32_t r0, uint32_t r1) {
    row_codes c = row_codes_in(j->scratch, j->w->n_in);
    for (uint32_t r = r0; r < r1; r++) {
        const uint8_t *row = j->w->data + r * j->w->row_bytes;
        if (!row_unpack(j->w->type, row, j->w->n_in, &c)) return false;
        neon_columns(&c, j, 0, j->y + r);
    }
    return true;
}

#endif
