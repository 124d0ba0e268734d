/* The NEON forms of the product: plain, with dotprod, with i8mm. */
#ifndef RG_KERNELS_NEON_MUL_H
#define RG_KERNELS_NEON_MUL_H

#include "kernels/kernels.h"

/* One call of rg_ops.mul. */
typedef struct neon_job {
    const rg_mat *w;
    const rg_act *x;
    const uint32_t *x_rows, *y_rows;
    uint32_t n; /* activation rows */
    float *y;
    size_t y_stride;
    void *scratch;
} neon_job;

static inline uint32_t neon_x_row(const neon_job *j, uint32_t i) {
    return j->x_rows ? j->x_rows[i] : i;
}

/* Where row i of the result starts in y. */
static inline size_t neon_y_at(const neon_job *j, uint32_t i) {
    return (j->y_rows ? j->y_rows[i] : i) * j->y_stride;
}

/* Rows [r0, r1) for all activation rows; false: the type has no form, and nothing is written. */
bool rg_neon_mul_plain(const neon_job *j, uint32_t r0, uint32_t r1);
bool rg_neon_mul_dotprod(const neon_job *j, uint32_t r0, uint32_t r1);
bool rg_neon_mul_i8mm(const neon_job *j, uint32_t r0, uint32_t r1);

#endif
