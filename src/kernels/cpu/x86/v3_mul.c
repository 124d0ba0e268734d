/* AVX2 products of quantised weights: a row unpacked once to signed bytes, then byte products with
 * up to four activation rows at a time. All give the bits of RG_OP(mul) (cpu/ref/mul.c).
 */
#include <immintrin.h>
#include <math.h>

#include "kernels/cpu/levels.h"
#include "kernels/cpu/row_codes.h"

#define V3_INLINE static inline __attribute__((always_inline))

V3_INLINE __m256i load32(const void *p) {
    return _mm256_loadu_si256(p);
}

/* Pair sums of w * y as int16: |w| <= 128 and |y| <= 127, so nothing saturates. */
V3_INLINE __m256i pair_sums(__m256i w, __m256i magnitude, const int8_t *y) {
    return _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(load32(y), w));
}

V3_INLINE int32_t sum_8(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
    return _mm_cvtsi128_si32(s);
}

/* A row with blocks of 256 against C activation rows. */
V3_INLINE void dot_256(const row_codes *w, const rg_act *x, const uint32_t rows[4], uint32_t C,
                       float acc[4]) {
    const size_t n = x->n_in;
    /* Bytes of two int16: the first in the low lane, the second in the high one. */
    const __m256i spread = _mm256_set_epi64x(0x0302030203020302, 0x0302030203020302,
                                             0x0100010001000100, 0x0100010001000100);
    for (uint32_t c = 0; c < C; c++)
        acc[c] = 0.0f;
    for (uint32_t b = 0; b < n / 256; b++) {
        __m256i total[4];
        for (uint32_t c = 0; c < C; c++)
            total[c] = _mm256_setzero_si256();
        for (uint32_t k = 0; k < 8; k++) {
            const __m256i q = load32(w->q + 256 * (size_t)b + 32 * k);
            const __m256i magnitude = _mm256_abs_epi8(q);
            int32_t two;
            memcpy(&two, w->scale + 16 * (size_t)b + 2 * k, sizeof two);
            const __m256i scale = _mm256_shuffle_epi8(_mm256_set1_epi32(two), spread);
            for (uint32_t c = 0; c < C; c++) {
                const int8_t *y = x->codes + rows[c] * n + 256 * (size_t)b + 32 * k;
                const __m256i t = _mm256_madd_epi16(pair_sums(q, magnitude, y), scale);
                total[c] = _mm256_add_epi32(total[c], t);
            }
        }
        for (uint32_t c = 0; c < C; c++) {
            const float dx = x->scales[rows[c] * (n / 256) + b];
            acc[c] = fmaf(w->d[b] * dx, (float)sum_8(total[c]), acc[c]);
            if (!w->has_mins) continue;
            const __m256i sums = load32(x->sums + rows[c] * (n / 16) + 16 * (size_t)b);
            const __m256i low = _mm256_madd_epi16(load32(w->mins + 16 * (size_t)b), sums);
            acc[c] = fmaf(w->m[b] * dx, (float)sum_8(low), acc[c]);
        }
    }
}

/* Sums of four registers, one element each. */
V3_INLINE __m128i sum_four(const __m256i t[4]) {
    const __m256i a = _mm256_hadd_epi32(t[0], t[1]), b = _mm256_hadd_epi32(t[2], t[3]);
    const __m256i s = _mm256_hadd_epi32(a, b);
    return _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
}

/* `count` <= 4 blocks of 32 from b on of one activation row, on top of acc. */
V3_INLINE float dot_blocks(const row_codes *w, const rg_act *x, size_t row, uint32_t b,
                           uint32_t count, float acc) {
    const int8_t *y = x->codes + row * x->n_in + (size_t)32 * b;
    const float *dx = x->scales + row * (x->n_in / 32) + b;
    const int16_t *sums = x->sums + row * (x->n_in / 16) + (size_t)2 * b;
    __m256i t[4];
    float total[4];
    for (uint32_t k = 0; k < 4; k++) {
        t[k] = _mm256_setzero_si256();
        if (k >= count) continue;
        const __m256i q = load32(w->q + 32 * ((size_t)b + k));
        t[k] =
            _mm256_madd_epi16(pair_sums(q, _mm256_abs_epi8(q), y + 32 * k), _mm256_set1_epi16(1));
    }
    _mm_storeu_ps(total, _mm_cvtepi32_ps(sum_four(t)));
    for (uint32_t k = 0; k < count; k++) {
        acc = fmaf(w->d[b + k] * dx[k], total[k], acc);
        if (!w->has_mins) continue;
        acc = fmaf(w->m[b + k] * dx[k], (float)(sums[2 * k] + sums[2 * k + 1]), acc);
    }
    return acc;
}

/* A row with blocks of 32 against four activation rows, a lane each. */
V3_INLINE void dot_32_by_4(const row_codes *w, const rg_act *x, const uint32_t rows[4],
                           float out[4]) {
    const size_t n = x->n_in;
    const int8_t *y[4];
    const float *dx[4];
    const int16_t *sums[4];
    for (uint32_t c = 0; c < 4; c++) {
        y[c] = x->codes + rows[c] * n;
        dx[c] = x->scales + rows[c] * (n / 32);
        sums[c] = x->sums + rows[c] * (n / 16);
    }
    __m128 acc = _mm_setzero_ps();
    for (size_t b = 0; b < n / 32; b++) {
        const __m256i q = load32(w->q + 32 * b), magnitude = _mm256_abs_epi8(q);
        __m256i t[4];
        for (uint32_t c = 0; c < 4; c++) {
            t[c] = _mm256_madd_epi16(pair_sums(q, magnitude, y[c] + 32 * b), _mm256_set1_epi16(1));
        }
        const __m128 d = _mm_set_ps(dx[3][b], dx[2][b], dx[1][b], dx[0][b]);
        acc = _mm_fmadd_ps(_mm_mul_ps(_mm_set1_ps(w->d[b]), d), _mm_cvtepi32_ps(sum_four(t)), acc);
        if (!w->has_mins) continue;
        int32_t two[4];
        for (uint32_t c = 0; c < 4; c++)
            memcpy(&two[c], sums[c] + 2 * b, sizeof two[c]);
        const __m128i pairs = _mm_set_epi32(two[3], two[2], two[1], two[0]);
        const __m128 sum = _mm_cvtepi32_ps(_mm_madd_epi16(pairs, _mm_set1_epi16(1)));
        acc = _mm_fmadd_ps(_mm_mul_ps(_mm_set1_ps(w->m[b]), d), sum, acc);
    }
    _mm_storeu_ps(out, acc);
}

/* A row with blocks of 32 against one activation row. */
V3_INLINE float dot_32(const row_codes *w, const rg_act *x, size_t row) {
    const uint32_t blocks = x->n_in / 32;
    float acc = 0.0f;
    uint32_t b = 0;
    for (; b + 4 <= blocks; b += 4)
        acc = dot_blocks(w, x, row, b, 4, acc);
    for (; b < blocks; b++)
        acc = dot_blocks(w, x, row, b, 1, acc);
    return acc;
}

/* One unpacked row against all activation rows. */
static void row_columns(const row_codes *w, const rg_act *x, const uint32_t *x_rows,
                        const uint32_t *y_rows, uint32_t n, float *y, size_t y_stride) {
    for (uint32_t first = 0; first < n; first += 4) {
        const uint32_t C = n - first < 4 ? n - first : 4;
        uint32_t rows[4];
        float acc[4];
        for (uint32_t c = 0; c < C; c++)
            rows[c] = x_rows ? x_rows[first + c] : first + c;
        if (C == 4) { /* constant counts unroll */
            if (w->span == 256) {
                dot_256(w, x, rows, 4, acc);
            } else {
                dot_32_by_4(w, x, rows, acc);
            }
        } else {
            for (uint32_t c = 0; c < C; c++) {
                if (w->span == 256) {
                    dot_256(w, x, rows + c, 1, acc + c);
                } else {
                    acc[c] = dot_32(w, x, rows[c]);
                }
            }
        }
        for (uint32_t c = 0; c < C; c++)
            y[(y_rows ? y_rows[first + c] : first + c) * y_stride] = acc[c];
    }
}

void rg_v3_mul(const rg_mat *w, uint32_t r0, uint32_t r1, const rg_act *x, const uint32_t *x_rows,
               const uint32_t *y_rows, uint32_t n, float *y, size_t y_stride, void *scratch) {
    row_codes c = row_codes_in(scratch, w->n_in);
    for (uint32_t r = r0; r < r1; r++) {
        const uint8_t *row = w->data + r * w->row_bytes;
        for (size_t at = 0; at < w->row_bytes; at += 64) /* four rows ahead, in memory order */
            __builtin_prefetch((const void *)((uintptr_t)row + 4 * w->row_bytes + at), 0, 2);
        if (x->form == RG_ACT_F32 || !row_unpack(w->type, row, w->n_in, &c)) {
            rg_mul_v3(w, r0, r1, x, x_rows, y_rows, n, y, y_stride, scratch);
            return;
        }
        row_columns(&c, x, x_rows, y_rows, n, y + r, y_stride);
    }
}
