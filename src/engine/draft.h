/* Drafts: windows whose last rows are guesses, and taking the wrong ones back.
 *
 * A verification window holds the chosen token and up to RG_DRAFT_MAX drafts behind it, and goes
 * through the layers like any other window. The caller compares what it would have chosen with each
 * draft and accepts a prefix of the rows; the state is then what it would be had the window held
 * the accepted rows alone, bit by bit.
 *
 * How rows are taken back (draft_journal.c): caches that are read up to the length are cut; the
 * convolution histories and the delta net's states take in the rows that are certain only, and the
 * inputs that the drafts would have brought are kept in a journal, from which the accepted ones are
 * added. The states are never copied as a whole.
 */
#ifndef RG_ENGINE_DRAFT_H
#define RG_ENGINE_DRAFT_H

#include <stdatomic.h>

#include "base/base.h"

#define RG_DRAFT_MAX   7u                 /* drafts of a window */
#define RG_VERIFY_ROWS (RG_DRAFT_MAX + 1) /* rows of a window of one sequence */

typedef struct rg_core rg_core;
typedef struct rg_seq rg_seq;

/* One sequence's share of a verification window. */
typedef struct rg_verify {
    rg_seq *seq;
    const int32_t *ids; /* [n] the chosen token, then the drafts; borrowed until the accept */
    uint32_t n;         /* 1 .. 1 + draft_max of the sequence */
    uint32_t n_kept;    /* for rg_core_accept: rows that are right, 1 .. n */
} rg_verify;

/* How many of n rows the next window of a sequence may hold: its context, its journal, the core's
 * scratch and cache-aware routing have limits. At least 1 unless the context is full. */
uint32_t rg_verify_rows(const rg_seq *seq, uint32_t n);

/* Evaluates the rows of all parts in one window. *logits: [rows of all parts][n_vocab], part by
 * part, valid until the next call with this core. INVALID changes nothing; any other failure leaves
 * the sequences unusable until reset. After success rg_core_accept must follow before any other
 * call with these sequences. */
RG_MUST_CHECK rg_code rg_core_verify(rg_core *core, const rg_verify *parts, uint32_t n_part,
                                     const atomic_bool *cancel, const float **logits,
                                     rg_status *st);
/* Closes the window: the first n_kept rows of each part are appended, the others never were. */
RG_MUST_CHECK rg_code rg_core_accept(rg_core *core, const rg_verify *parts, uint32_t n_part,
                                     rg_status *st);
/* Brings the states in memory up to date (they may lag behind by the drafts of the last window):
 * needed before anyone but a window reads them. */
void rg_seq_settle(rg_seq *seq);

/* ---- the draft block ------------------------------------------------------------------------ */

/* Chooses a draft from the draft block's logits [n_vocab] for `position`. *more: whether another
 * draft is wanted behind it. Called in ascending position. */
typedef struct rg_draft_pick {
    rg_code (*pick)(void *user, const float *logits, uint32_t position, int32_t *id, bool *more,
                    rg_status *st);
    void *user;
    uint32_t few; /* it looks at so many of the best logits alone (rg_core_want_few); 0: at all */
} rg_draft_pick;

/* Chained drafts behind `next`, the chosen token that has not been evaluated (spec 5.1): the draft
 * block takes in the rows it lacks, then goes on with its own. ids [n_max]; *n may be less than
 * n_max, also 0. A failure leaves the sequence unusable until reset. */
RG_MUST_CHECK rg_code rg_mtp_draft(rg_core *core, rg_seq *seq, int32_t next, uint32_t n_max,
                                   const rg_draft_pick *pick, int32_t *ids, uint32_t *n,
                                   rg_status *st);
/* Rows that the draft block has not been fed. */
uint32_t rg_mtp_lag(const rg_seq *seq);
/* Before a window of `rows` rows: when the pending rows would have no room, feeds them, or, with
 * `skip`, leaves the oldest out for good (later drafts are made with a gap behind them). */
RG_MUST_CHECK rg_code rg_mtp_make_room(rg_core *core, rg_seq *seq, uint32_t rows, bool skip,
                                       rg_status *st);

#endif
