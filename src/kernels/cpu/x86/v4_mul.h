/* AVX-512 forms of the matrix product: shared shapes and the entry points of each family. All give
 * the bits of RG_OP(mul) (cpu/ref/mul.c).
 */
#ifndef RG_KERNELS_V4_MUL_H
#define RG_KERNELS_V4_MUL_H

#include "kernels/kernels.h"

/* One call of rg_ops.mul. */
typedef struct v4_job {
    const rg_mat *w;
    const rg_act *x;
    const uint32_t *x_rows, *y_rows;
    uint32_t n; /* activation rows: columns of the product */
    float *y;
    size_t y_stride;
    uint8_t *scratch;
} v4_job;

static inline uint32_t v4_x_row(const v4_job *j, uint32_t i) {
    return j->x_rows ? j->x_rows[i] : i;
}

static inline float *v4_y_row(const v4_job *j, uint32_t i) {
    return j->y + (j->y_rows ? j->y_rows[i] : i) * j->y_stride;
}

/* Columns up to which rows are multiplied directly; beyond, a tile is unpacked first. */
#define V4_DIRECT_MAX 4u

/* Hints for `bytes` of weights `ahead` of `at`; may name memory past the end. */
static inline void v4_fetch(const uint8_t *at, size_t bytes, size_t ahead) {
    const uintptr_t from = ((uintptr_t)at + ahead) & ~(uintptr_t)63;
    const uintptr_t end = ((uintptr_t)at + bytes + ahead) & ~(uintptr_t)63;
    for (uintptr_t line = from; line < end; line += 64)
        __builtin_prefetch((const void *)line, 0, 2);
}

/* Bytes that direct forms, four rows side by side, read ahead of the last of them: in memory order,
 * 10 -> 21 GB/s a thread against hints a row. */
#define V4_AHEAD 6144u

/* Hints for `bytes` of weights of four rows that are read once: lines that pass by the last cache
 * instead of being written down into it when they leave the second (q6_K, two threads: 50 -> 73
 * GB/s). */
static inline void v4_stream(const uint8_t *at, size_t bytes, size_t row_bytes) {
    const size_t ahead = 3 * row_bytes + V4_AHEAD;
    const uintptr_t from = ((uintptr_t)at + ahead) & ~(uintptr_t)63;
    const uintptr_t end = ((uintptr_t)at + bytes + ahead) & ~(uintptr_t)63;
    for (uintptr_t line = from; line < end; line += 64)
        __builtin_prefetch((const void *)line, 0, 0);
}

/* Bytes of scratch of the tile forms. */
#define V4_TILE_SCRATCH (96u << 10)

/* Rows [r0, r1) for all columns; false when the family has no form for the type. */
bool rg_v4_mul_k(const v4_job *j, uint32_t r0, uint32_t r1);
bool rg_v4_mul_grid(const v4_job *j, uint32_t r0, uint32_t r1);
bool rg_v4_mul_32(const v4_job *j, uint32_t r0, uint32_t r1);
bool rg_v4_mul_float(const v4_job *j, uint32_t r0, uint32_t r1);

#endif
