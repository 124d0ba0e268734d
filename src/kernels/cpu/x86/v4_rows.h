/* The row loop of every quantised family: rows directly for few columns, strips of up to 64 rows by
 * tile for many. Constant counts reach the bodies, so that their loops unroll.
 */
#ifndef RG_KERNELS_V4_ROWS_H
#define RG_KERNELS_V4_ROWS_H

#include "kernels/cpu/x86/v4_mul.h"
#include "kernels/cpu/x86/v4_tile.h"

/* Rows [r0, r1) against all C = j->n columns. */
typedef void v4_direct_fn(const void *format, const v4_job *j, uint32_t r0, uint32_t r1,
                          uint32_t C);
/* `n` rows from r on, V = ceil(n / 16), against all columns. */
typedef void v4_strip_fn(const void *format, const v4_job *j, uint32_t r, uint32_t n, uint32_t V);

RG_INLINE void v4_rows(v4_direct_fn *direct, v4_strip_fn *strip, const void *format,
                       const v4_job *j, uint32_t r0, uint32_t r1) {
    switch (j->n) {
    case 1:
        direct(format, j, r0, r1, 1);
        return;
    case 2:
        direct(format, j, r0, r1, 2);
        return;
    case 3:
        direct(format, j, r0, r1, 3);
        return;
    case 4:
        direct(format, j, r0, r1, 4);
        return;
    default:
        break;
    }
    uint32_t r = r0;
    for (; r + V4_ROWS <= r1; r += V4_ROWS)
        strip(format, j, r, V4_ROWS, 4);
    const uint32_t n = r1 - r;
    if (n > 48) strip(format, j, r, n, 4);
    if (n > 32 && n <= 48) strip(format, j, r, n, 3);
    if (n > 16 && n <= 32) strip(format, j, r, n, 2);
    if (n > 0 && n <= 16) strip(format, j, r, n, 1);
}

/* Four weight rows from r on; beyond r1 the last one again. */
RG_INLINE void v4_four_rows(const v4_job *j, uint32_t r, uint32_t r1, const uint8_t *rows[4]) {
    for (uint32_t i = 0; i < 4; i++)
        rows[i] = j->w->data + (r + i < r1 ? r + i : r1 - 1) * j->w->row_bytes;
}

RG_INLINE void v4_store_four(const v4_job *j, uint32_t c, uint32_t r, uint32_t r1, __m128 acc) {
    const uint32_t left = r1 - r < 4 ? r1 - r : 4;
    _mm_mask_storeu_ps(v4_y_row(j, c) + r, (__mmask8)((1u << left) - 1), acc);
}

/* Lanes of vector v of a strip of n rows. */
RG_INLINE __mmask16 v4_live(uint32_t n, uint32_t v) {
    return n >= 16 * v + 16 ? (__mmask16)0xFFFF : (__mmask16)((1u << (n - 16 * v)) - 1);
}

#endif
