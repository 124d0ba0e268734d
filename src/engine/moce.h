/* moce: cache-aware routing of generated tokens, an opt-in that changes text.
 *
 * A request has a shadow directory of its own: the least recently used list of as many experts as
 * the planned arena has slots, empty at the first generated token and fed by accepted generated
 * tokens alone. At every position that is a multiple of RG_MOCE_PERIOD a copy of it is taken, with
 * the mean range of each layer's router logits so far; routers see the copy only. So a reply
 * depends on its own text, not on the real cache, on drafts or on neighbours.
 *
 * Selection adds lambda x mean range to the logits of the experts in the copy; the best expert of
 * the plain router always stays. Order and weights of the chosen ones are those of the plain
 * logits.
 *
 * Threads: rg_moce_route may run for different rows at once; all else belongs to the worker.
 */
#ifndef RG_ENGINE_MOCE_H
#define RG_ENGINE_MOCE_H

#include "base/base.h"
#include "kernels/kernels.h"

#define RG_MOCE_PERIOD 16u /* positions; a window never crosses a multiple of it */

typedef struct rg_moce rg_moce;

typedef struct rg_moce_shape {
    uint32_t n_layer, n_expert, n_used;
    float lambda;    /* 0..1 */
    uint32_t n_slot; /* of the shadow directory */
} rg_moce_shape;

RG_MUST_CHECK rg_code rg_moce_create(rg_moce **out, const rg_moce_shape *shape, rg_status *st);
void rg_moce_destroy(rg_moce *m);

/* How many of n tokens at `position` may share a window. */
uint32_t rg_moce_rows(uint32_t position, uint32_t n);
/* A window of up to RG_MOCE_PERIOD rows begins; takes the copy when it is due. */
void rg_moce_begin(rg_moce *m, uint32_t position, uint32_t rows);
/* Chooses experts for a row of the window: ids [n_used], best plain logit first. */
void rg_moce_route(rg_moce *m, const rg_ops *ops, uint32_t layer, uint32_t row, const float *logits,
                   uint32_t *ids);
/* The first `rows` rows of the window were accepted. */
void rg_moce_accept(rg_moce *m, uint32_t rows);

rg_moce_receipt rg_moce_get_receipt(const rg_moce *m);

/* ---- the rule, for tests -------------------------------------------------------------------- */

/* ids [k] for logits [n]; resident [n] is 0 or 1; scores [n] is scratch. */
void rg_moce_select(const float *logits, const uint8_t *resident, float bonus, uint32_t n,
                    uint32_t k, float *scores, uint32_t *ids);
/* Whether the shadow directory holds the expert now; whether the copy does. */
bool rg_moce_holds(const rg_moce *m, uint32_t layer, uint32_t expert);
bool rg_moce_copy_holds(const rg_moce *m, uint32_t layer, uint32_t expert);

#endif
