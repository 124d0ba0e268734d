/* Sums of squares of what is multiplied with each column of each matrix, while a core evaluates.
 * For experts one row of sums each. Owned by the core's thread.
 */
#ifndef RG_ENGINE_IMPORTANCE_H
#define RG_ENGINE_IMPORTANCE_H

#include "kernels/kernels.h"
#include "model/model.h"

typedef struct rg_importance rg_importance;

/* A matrix in memory and the tensor it was read from. */
typedef struct rg_mat_name {
    const rg_mat *mat;
    const rg_tensor *tensor;
} rg_mat_name;

RG_MUST_CHECK rg_code rg_importance_create(rg_importance **out, const rg_mat_name *mats,
                                           uint32_t n_mat, rg_status *st);
void rg_importance_destroy(rg_importance *im);
/* Rows of x, `stride` apart, go into matrix `index` of a weight: those in `rows` [n], or the first
 * n. A matrix that was not named is passed over. */
void rg_importance_see(rg_importance *im, const rg_mat *mat, uint32_t index, const float *x,
                       size_t stride, const uint32_t *rows, uint32_t n);

/* What was seen of one tensor. */
typedef struct rg_importance_view {
    const rg_tensor *tensor;
    uint64_t cols, n;    /* of each matrix; matrices */
    const float *sums;   /* [n][cols] */
    const float *counts; /* [n] rows seen */
} rg_importance_view;
/* Tensor i; false behind the last. */
bool rg_importance_at(const rg_importance *im, uint32_t i, rg_importance_view *out);

#endif
