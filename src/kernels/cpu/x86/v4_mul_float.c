/* AVX-512 products with f32, f16 and bf16 weights: 16 accumulators an output, as the canonical dot
 * has them, for blocks of 4 rows by up to 4 columns.
 */
#include "kernels/cpu/x86/v4_mul.h"
#include "kernels/cpu/x86/v4_types.h"

#define COLUMN_BYTES (256u << 10)
#define AHEAD        16384u /* bytes read ahead when other columns meet the same rows again */

typedef __m512 v4_load_fn(const uint8_t *row, uint32_t i, __mmask16 live);

RG_INLINE __m512 load_f32(const uint8_t *row, uint32_t i, __mmask16 live) {
    return _mm512_maskz_loadu_ps(live, row + (size_t)4 * i);
}

RG_INLINE __m512 load_f16(const uint8_t *row, uint32_t i, __mmask16 live) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(live, row + (size_t)2 * i));
}

RG_INLINE __m512 load_bf16(const uint8_t *row, uint32_t i, __mmask16 live) {
    const __m256i h = _mm256_maskz_loadu_epi16(live, row + (size_t)2 * i);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* acc[l] += acc[l + 8], then 4, 2, 1. */
RG_INLINE float tree(__m512 acc) {
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(acc), _mm512_extractf32x8_ps(acc, 1));
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

RG_INLINE void block(v4_load_fn *load, const v4_job *j, uint32_t r, uint32_t R, uint32_t first,
                     uint32_t C) {
    const uint32_t n = j->x->n_in;
    const size_t step = (size_t)16 * R * rg_type_get(j->w->type)->block_bytes;
    const uint8_t *w[4];
    const float *x[4];
    __m512 acc[4][4];
    for (uint32_t i = 0; i < R; i++)
        w[i] = j->w->data + (r + i) * j->w->row_bytes;
    for (uint32_t c = 0; c < C; c++) {
        x[c] = j->x->f32 + (size_t)v4_x_row(j, first + c) * n;
        for (uint32_t i = 0; i < R; i++)
            acc[i][c] = _mm512_setzero_ps();
    }
    uint32_t k = 0;
    for (; k + 16 <= n; k += 16) {
        __m512 y[4];
        if (j->n <= V4_DIRECT_MAX) {
            v4_stream(w[0] + k / 16 * step, step, j->w->row_bytes);
        } else if (first == 0) {
            v4_fetch(w[0] + k / 16 * step, step, AHEAD);
        }
        for (uint32_t c = 0; c < C; c++)
            y[c] = _mm512_loadu_ps(x[c] + k);
        for (uint32_t i = 0; i < R; i++) {
            const __m512 a = load(w[i], k, 0xFFFF);
            for (uint32_t c = 0; c < C; c++)
                acc[i][c] = _mm512_fmadd_ps(a, y[c], acc[i][c]);
        }
    }
    if (k < n) { /* the other accumulators stay as they are */
        const __mmask16 live = (__mmask16)((1u << (n - k)) - 1);
        for (uint32_t c = 0; c < C; c++) {
            const __m512 y = _mm512_maskz_loadu_ps(live, x[c] + k);
            for (uint32_t i = 0; i < R; i++) {
                acc[i][c] = _mm512_mask3_fmadd_ps(load(w[i], k, live), y, acc[i][c], live);
            }
        }
    }
    for (uint32_t c = 0; c < C; c++) {
        float *y = v4_y_row(j, first + c) + r;
        for (uint32_t i = 0; i < R; i++)
            y[i] = tree(acc[i][c]);
    }
}

/* Columns [c, end) of R rows. */
RG_INLINE void rows(v4_load_fn *load, const v4_job *j, uint32_t r, uint32_t R, uint32_t c,
                    uint32_t end) {
    for (; c + 4 <= end; c += 4)
        block(load, j, r, R, c, 4);
    switch (end - c) {
    case 3:
        block(load, j, r, R, c, 3);
        break;
    case 2:
        block(load, j, r, R, c, 2);
        break;
    case 1:
        block(load, j, r, R, c, 1);
        break;
    default:
        break;
    }
}

/* As many columns at a time as a second-level cache holds while all rows pass by. */
RG_INLINE void all(v4_load_fn *load, const v4_job *j, uint32_t r0, uint32_t r1) {
    const uint32_t fit = COLUMN_BYTES / (uint32_t)sizeof(float) / j->x->n_in / 4 * 4;
    const uint32_t step = fit < 4 ? 4 : fit;
    for (uint32_t c = 0; c < j->n; c += step) {
        const uint32_t end = j->n - c < step ? j->n : c + step;
        uint32_t r = r0;
        for (; r + 4 <= r1; r += 4)
            rows(load, j, r, 4, c, end);
        for (; r < r1; r++)
            rows(load, j, r, 1, c, end);
    }
}

static void mul_f32(const v4_job *j, uint32_t r0, uint32_t r1) {
    all(load_f32, j, r0, r1);
}
static void mul_f16(const v4_job *j, uint32_t r0, uint32_t r1) {
    all(load_f16, j, r0, r1);
}
static void mul_bf16(const v4_job *j, uint32_t r0, uint32_t r1) {
    all(load_bf16, j, r0, r1);
}

/* The float reference of quantised weights: each row unpacked, then as f32. */
static void mul_unpacked(const v4_job *j, uint32_t r0, uint32_t r1) {
    rg_mat row = *j->w;
    v4_job one = *j;
    row.type = RG_TYPE_F32;
    row.data = j->scratch;
    row.row_bytes = 0; /* every row number finds the unpacked one */
    one.w = &row;
    for (uint32_t r = r0; r < r1; r++) {
        rg_unpack_row(j->w->type, j->w->data + r * j->w->row_bytes, (float *)(void *)j->scratch,
                      j->x->n_in);
        rows(load_f32, &one, r, 1, 0, j->n);
    }
}

bool rg_v4_mul_float(const v4_job *j, uint32_t r0, uint32_t r1) {
    switch (j->w->type) {
    case RG_TYPE_F32:
        mul_f32(j, r0, r1);
        return true;
    case RG_TYPE_F16:
        mul_f16(j, r0, r1);
        return true;
    case RG_TYPE_BF16:
        mul_bf16(j, r0, r1);
        return true;
    default:
        mul_unpacked(j, r0, r1);
        return true;
    }
}
