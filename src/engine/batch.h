/* Several sequences in one window, and putting a sequence back to an earlier length.
 *
 * By the charter the rows of a window are independent, so what a sequence gets does not depend on
 * its neighbours. Keys and values of a position never change once written; only the recurrent state
 * (delta net, convolutions, the draft block's pending row) moves on with every token. A state holds
 * that part at one length: with it a sequence that still has the rows below goes back.
 */
#ifndef RG_ENGINE_BATCH_H
#define RG_ENGINE_BATCH_H

#include <stdatomic.h>

#include "base/base.h"
#include "engine/sampler.h"

typedef struct rg_core rg_core;
typedef struct rg_seq rg_seq;

#define RG_BATCH_PARTS_MAX 64u

typedef struct rg_batch_rows {
    rg_seq *seq; /* each at most once */
    uint32_t n;  /* rows, >= 1 */
    /* A chosen token and drafts behind it, as many rows as rg_verify_rows allows (draft.h): the
     * window waits for rg_core_accept with the open parts. */
    bool open;
    float *logits; /* [n_vocab] gets those of the last row; NULL = not wanted. Not of open parts */
    /* So many of the best logits of a row are enough; 0, or more than RG_FEW_MAX: all are wanted.
     * `best` gets what was given instead of all, `logits` is as it was then; n = 0: all are there.
     * Rows of open parts tell by rg_core_few. */
    uint32_t n_best;
    rg_few *best; /* NULL is allowed without n_best, or when the part is open */
} rg_batch_rows;

#define RG_OPEN_ROWS_MAX 32u /* rows of all open parts of a window */

/* Appends ids[sum of n], part by part, in one window of at most the core's chunk. INVALID changes
 * nothing; any other failure leaves all sequences unusable until they are reset or put back.
 * *open_logits: [rows of the open parts][n_vocab], part by part, valid until the next call with
 * this core; NULL is allowed when no part is open. Parts under cache-aware routing end at a
 * multiple of RG_MOCE_PERIOD at the latest. */
RG_MUST_CHECK rg_code rg_core_eval_batch(rg_core *core, const rg_batch_rows *parts, uint32_t n_part,
                                         const int32_t *ids, const atomic_bool *cancel,
                                         const float **open_logits, rg_status *st);

/* How many of n rows a window may hold of this sequence: cache-aware routing has limits. */
uint32_t rg_seq_window_rows(const rg_seq *seq, uint32_t n);

/* Whether a sequence's state can be copied out and in: not where it lies on a device. The functions
 * below are for those that can. */
bool rg_seq_copies(const rg_seq *seq);
/* Bytes of the recurrent part of a sequence's state, the same for every length. */
size_t rg_seq_state_bytes(const rg_seq *seq);
/* Copies it out, brought up to date first; the sequence has not failed and is not open. */
void rg_seq_state_save(rg_seq *seq, void *dst);
/* Whether bytes that came from outside can be the state at `length`. */
bool rg_seq_state_fits(const rg_seq *seq, uint32_t length, const void *src);
/* Puts the sequence back to `length`: its rows below are still there and `src` was saved at that
 * length, of this sequence or of another with the same options and the same tokens. */
void rg_seq_state_load(rg_seq *seq, uint32_t length, const void *src);

/* What positions [from, to) take in the trunk's caches, token ids included. By the charter these
 * bytes depend on ids[0 .. to) alone. */
size_t rg_seq_rows_bytes(const rg_seq *seq, uint32_t from, uint32_t to);
void rg_seq_rows_save(const rg_seq *seq, uint32_t from, uint32_t to, void *dst);
/* Fills positions [from, to); the length is set by rg_seq_state_load. */
void rg_seq_rows_load(rg_seq *seq, uint32_t from, uint32_t to, const void *src);
/* The same of the draft block beside n positions. Which rows it has depends on what was drafted,
 * and a row on the token behind it: they belong to a state, not to its tokens. */
size_t rg_seq_draft_rows_bytes(const rg_seq *seq, uint32_t n);
void rg_seq_draft_rows_save(const rg_seq *seq, uint32_t n, void *dst);
void rg_seq_draft_rows_load(rg_seq *seq, uint32_t n, const void *src);

/* Times each expert was chosen since the core was created: [n_layer + n_mtp][n_expert]. */
const uint32_t *rg_core_expert_uses(const rg_core *core);

#endif
