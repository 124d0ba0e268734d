/* The two-stage head: the argmax of the output product from a 3-bit copy of its matrix and a few
 * exact rows. Opt-in; the token is always that of the full product.
 *
 * For each row r of the matrix W the copy C keeps a bound of the length of what it lost, |W_r -
 * C_r|, and one of |W_r|. One step:
 *
 *   rough    c_r = C_r . y, y the activations as 8-bit codes of 256
 *   seeds    the best rough rows of each part of the vocabulary, exactly; t = the best of them
 *   bound    with x the activations as the full product takes them, by Cauchy and Schwarz
 *              |W_r . x - C_r . y| <= |W_r - C_r| |y| + |W_r| |x - y| + rounding
 *            so that rows with c_r + bound_r < t cannot be the best, nor equal to it
 *   rows     all others exactly, by the canonical product: their logits are those of the full head
 *
 * Too many rows left: the full product. Behind such a step the copy rests for some steps, more each
 * time, so that text for which the bound does not separate costs little. None of this can be seen
 * in the answer.
 *
 * Rounding: a canonical dot is a chain of at most n_in / 16 + 8 fused steps and conversions, each
 * with one relative error of 2^-24; sum of |terms| <= |W_r| |x|. Twice that, for both products and
 * the unpacked weights, is allowed for. Formats with minima have larger terms: they are refused.
 */
#ifndef RG_ENGINE_HEAD_TWO_STAGE_H
#define RG_ENGINE_HEAD_TWO_STAGE_H

#include "base/base.h"
#include "kernels/kernels.h"
#include "model/model.h"

typedef struct rg_core rg_core;
typedef struct rg_two_stage rg_two_stage;

typedef struct rg_two_stage_meters {
    uint64_t steps;     /* heads that the copy was asked for */
    uint64_t full;      /* of those, by the full product: too many rows were left */
    uint64_t rested;    /* further heads that went to the full product at once */
    uint64_t exact;     /* rows computed exactly in the other steps, seeds included */
    uint64_t rough_hit; /* of the other steps, those whose best rough row was the best row */
} rg_two_stage_meters;

/* Whether a matrix can have a copy: rows of whole blocks of 256, a type without minima. */
bool rg_two_stage_can(rg_type type, uint64_t n_in);
/* Bytes of the copy and what belongs to it; 0 for a model whose output cannot have one. */
uint64_t rg_two_stage_bytes(const rg_model *m);

/* Makes the copy of `w` (borrowed), on the core's threads. UNSUPPORTED when it cannot have one. */
RG_MUST_CHECK rg_code rg_two_stage_create(rg_two_stage **out, rg_core *core, const rg_mat *w,
                                          rg_status *st);
void rg_two_stage_destroy(rg_two_stage *h);

/* Logits of one row x [n_in], `act` being the same in the form of the matrix: exact where the row
 * may be the best, -INFINITY elsewhere. False: not decided, nothing is written that counts. */
bool rg_two_stage_run(rg_two_stage *h, rg_core *core, const float *x, const rg_act *act,
                      float *logits);

/* The highest |W_r . x - C_r . y| can be, for a row with those lengths. */
typedef struct rg_two_stage_step {
    double y, x, apart; /* at least |y|, |x|, |x - y| */
    double rounding;    /* relative, of both products */
} rg_two_stage_step;
double rg_two_stage_bound(const rg_two_stage_step *s, float lost, float length);
/* Lengths of the activations in both forms; `x` is read where act is f32. */
rg_two_stage_step rg_two_stage_measure(const rg_act *act, const rg_act *rough, uint32_t n_in);

void rg_two_stage_get_meters(const rg_two_stage *h, rg_two_stage_meters *out);
/* For tests and measurements: rows that may be left (0: as always), no rests. */
void rg_two_stage_tune(rg_two_stage *h, uint32_t rows_max, bool rests);
/* Row r of the copy, for tests. */
const rg_mat *rg_two_stage_copy(const rg_two_stage *h, const float **lost, const float **length);

#endif
