/* prefix: sessions and the states they can go back to, so that a prompt is evaluated from the
 * longest beginning that some session has seen.
 *
 * Invariants:
 *  1. a snapshot of session i was taken of tokens that session i still holds;
 *  2. the snapshots together take at most the budget, the least recently used go first;
 *  3. by the charter, going on from a prefix gives the bits of a cold start.
 * Engine thread.
 */
#ifndef RG_SERVE_PREFIX_H
#define RG_SERVE_PREFIX_H

#include "base/base.h"

#define RG_PREFIX_GRID 1024u /* tokens between the snapshots of a long prompt */

typedef struct rg_prefix rg_prefix;

RG_MUST_CHECK rg_code rg_prefix_create(rg_prefix **out, rg_engine *engine, uint32_t n_session,
                                       const rg_session_options *opt, uint64_t budget_bytes,
                                       rg_status *st);
void rg_prefix_destroy(rg_prefix *p);
rg_session *rg_prefix_session(rg_prefix *p, uint32_t i);
uint64_t rg_prefix_bytes(const rg_prefix *p);
uint32_t rg_prefix_count(const rg_prefix *p);

/* A prompt, and how many of the best logits behind it will be looked at; 0: all. */
typedef struct rg_prefix_wish {
    const int32_t *ids; /* [n] */
    size_t n;
    uint32_t n_best;
} rg_prefix_wish;
/* Chooses one of the sessions that are not busy[] and puts it to the longest prefix of the prompt
 * that any session can give, busy ones included. Returns its index; *cached tokens need no
 * evaluation. At least one session is not busy. */
uint32_t rg_prefix_choose(rg_prefix *p, const rg_prefix_wish *wish, const bool *busy,
                          uint32_t *cached);
/* Puts session i to the longest prefix of ids[n] that it can go back to itself: after a failure. */
void rg_prefix_restore(rg_prefix *p, uint32_t i, const int32_t *ids, size_t n);
/* Remembers where session i stands, if the budget allows. */
void rg_prefix_keep(rg_prefix *p, uint32_t i);
/* The state kept of session i at a length; NULL: there is none. Borrowed until the next call. */
const rg_snapshot *rg_prefix_find(const rg_prefix *p, uint32_t i, uint32_t length);
/* Session i is about to hold other tokens. */
void rg_prefix_forget(rg_prefix *p, uint32_t i);
/* The length at which session i shall be kept next on its way from `from` to `n` tokens, whose last
 * user turn begins at `turn`; n when there is none in between. */
uint32_t rg_prefix_next(const rg_prefix *p, uint32_t from, uint32_t n, uint32_t turn);

#endif
