/* Importance of the columns of each matrix: mean squares of what is multiplied with them, over a
 * text. Stored as GGUF in llama.cpp's layout: for a weight NAME the F32 tensors NAME.in_sum2
 * [columns][matrices] (sums of squares) and NAME.counts [1][matrices] (rows summed); keys
 * general.type = "imatrix", imatrix.chunk_count, imatrix.chunk_size, imatrix.datasets. Private to
 * the room.
 */
#ifndef RG_FORGE_IMATRIX_H
#define RG_FORGE_IMATRIX_H

#include "model/model.h"

typedef struct rg_imatrix rg_imatrix;

RG_MUST_CHECK rg_code rg_imatrix_open(rg_imatrix **out, const char *path, rg_status *st);
void rg_imatrix_close(rg_imatrix *m); /* NULL is allowed */
/* Matrices that have data. */
uint32_t rg_imatrix_count(const rg_imatrix *m);
/* Hash of all of it, to tell two apart. */
uint64_t rg_imatrix_hash(const rg_imatrix *m);
/* Importance [columns] of matrix `index` (expert) of a weight into `w`; false when the file knows
 * nothing about it. Experts that saw few rows lean on the mean of all experts of their tensor, as
 * if that had been seen RG_IMATRIX_PRIOR times more. FORMAT when shapes disagree. */
#define RG_IMATRIX_PRIOR 16.0
RG_MUST_CHECK rg_code rg_imatrix_get(const rg_imatrix *m, const rg_tensor *t, uint64_t index,
                                     float *w, bool *found, rg_status *st);
/* Rows seen by all matrices of a weight; 0 when unknown. */
double rg_imatrix_rows(const rg_imatrix *m, const rg_tensor *t);

#endif
