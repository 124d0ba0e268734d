/* drafter: the drafts of one sequence. Joins the sources, the governor and the verification window.
 *
 *     rg_drafter_run     chooses a source, makes drafts, evaluates the window
 *     the caller picks a token from each row of logits, until one differs from the row's draft
 *     rg_drafter_close   keeps the rows that were right, and learns
 *
 * Or, for a window that is shared with other sequences, rg_drafter_make, the window with an open
 * part (batch.h), rg_core_accept, rg_drafter_learn.
 *
 * Belongs to the engine's worker, like its sequence.
 */
#ifndef RG_ENGINE_DRAFTER_H
#define RG_ENGINE_DRAFTER_H

#include "engine/draft_governor.h"
#include "engine/sampler.h"

typedef struct rg_drafter rg_drafter;

const char *rg_source_name(rg_draft_source source); /* static text */

typedef struct rg_drafter_options {
    rg_draft_mode mode;
    uint32_t draft_max; /* 1..RG_DRAFT_MAX; that of the sequence */
    bool fixed;
} rg_drafter_options;

/* Borrows the sequence, which must have been created with draft_max (and mtp, where the mode uses
 * the draft block). */
RG_MUST_CHECK rg_code rg_drafter_create(rg_drafter **out, rg_core *core, rg_seq *seq,
                                        const rg_drafter_options *opt, rg_status *st);
void rg_drafter_destroy(rg_drafter *d); /* NULL is allowed */
/* Bytes it takes beside the sequence's own. */
uint64_t rg_drafter_bytes(const rg_drafter_options *opt, uint32_t n_ctx);
/* A generation begins. */
void rg_drafter_begin(rg_drafter *d);

typedef struct rg_drafter_window {
    int32_t ids[RG_VERIFY_ROWS]; /* the chosen token, then the drafts */
    uint32_t n;                  /* rows */
    const float *logits;         /* [n][n_vocab], valid until the close */
} rg_drafter_window;

/* What a window is made from. */
typedef struct rg_drafter_request {
    int32_t next;        /* the chosen token, not evaluated yet */
    uint32_t n_max;      /* drafts that the caller can use */
    rg_sampler *sampler; /* drafts are drawn as the caller draws: its history ends with `next` */
    const int32_t *ids;  /* [n_ids] the caller's own drafts, used when there are some */
    uint32_t n_ids;
    uint32_t others; /* rows of other sequences in the window */
    const atomic_bool *cancel;
} rg_drafter_request;

/* A failure leaves the sequence unusable until reset. */
RG_MUST_CHECK rg_code rg_drafter_run(rg_drafter *d, const rg_drafter_request *req,
                                     rg_drafter_window *win, rg_status *st);
/* The first n_kept rows were right, 1 .. n. */
RG_MUST_CHECK rg_code rg_drafter_close(rg_drafter *d, uint32_t n_kept, rg_status *st);

/* The first half of a run: the rows of the window, logits to come. */
RG_MUST_CHECK rg_code rg_drafter_make(rg_drafter *d, const rg_drafter_request *req,
                                      rg_drafter_window *win, rg_status *st);
/* How a shared window ended: its first n_kept rows of this sequence were right. `rows` are all of
 * its rows; window_ns 0: its time tells nothing. */
void rg_drafter_learn(rg_drafter *d, uint32_t n_kept, uint32_t rows, uint64_t window_ns);

void rg_drafter_stats_get(const rg_drafter *d, rg_draft_stats *out);

#endif
