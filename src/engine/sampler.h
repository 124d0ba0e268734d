/* sampler: from one row of logits to one token id.
 *
 * A pick applies, in this order (llama.cpp's): logit bias, penalties (repeat, then frequency and
 * presence), top_k, top_p, min_p, temperature, one draw. Temperature 0 or less is greedy: the
 * highest logit after bias and penalties, the lowest id among equals.
 *
 * The draw for a position is a pure function of (seed, position): it does not depend on what was
 * drawn before it or on how many rows a window held. Penalties depend on the accepted tokens alone;
 * a rollback of rejected drafts restores them exactly.
 *
 * Threads: an rg_sampler belongs to one thread at a time (a pick uses its scratch).
 */
#ifndef RG_ENGINE_SAMPLER_H
#define RG_ENGINE_SAMPLER_H

#include "base/base.h"

typedef struct rg_sampler rg_sampler;

/* INVALID with one line that names the parameter, its value and its range. */
RG_MUST_CHECK rg_code rg_sampling_validate(const rg_sampling_params *p, size_t n_vocab,
                                           rg_status *st);

/* Validates `p` and takes all memory: no later call allocates. `n_ctx` is the largest number of
 * tokens that can be accepted. */
RG_MUST_CHECK rg_code rg_sampler_create(rg_sampler **out, const rg_sampling_params *p,
                                        size_t n_vocab, size_t n_ctx, rg_status *st);
void rg_sampler_destroy(rg_sampler *s); /* NULL is allowed */

/* The best logits of a row, best first and the lowest id first among equals. */
#define RG_FEW_MAX 64u
typedef struct rg_few {
    uint32_t n;
    int32_t ids[RG_FEW_MAX];
    float logits[RG_FEW_MAX]; /* finite */
} rg_few;
/* How many of the best logits are all that a pick looks at: 1 of a greedy one, top_k; 0: of all it
 * looks at, or of more than RG_FEW_MAX. */
uint32_t rg_sampling_few(const rg_sampling_params *p);
uint32_t rg_sampler_few(const rg_sampler *s);

/* Appends a token to the history that the penalties look at. INVALID when the id is outside the
 * vocabulary or n_ctx tokens are held. */
RG_MUST_CHECK rg_code rg_sampler_accept(rg_sampler *s, int32_t id, rg_status *st);

/* Takes back the last n accepted tokens. INVALID (and nothing changed) when fewer are held. */
RG_MUST_CHECK rg_code rg_sampler_rollback(rg_sampler *s, size_t n, rg_status *st);

size_t rg_sampler_n_accepted(const rg_sampler *s);

/* logits: [n_vocab] f32, not changed. `position` is that of the token being drawn. Does not accept
 * the token. INVALID when a logit is NaN or +inf, or when every one is -inf; *out is -1 then. */
RG_MUST_CHECK rg_code rg_sampler_pick(rg_sampler *s, const float *logits, uint64_t position,
                                      int32_t *out, rg_status *st);
/* The same token from so many of the best of the row, or more: rg_sampler_few is not 0. (Where the
 * vocabulary is smaller: from all of it.) */
int32_t rg_sampler_pick_few(rg_sampler *s, const rg_few *few, uint64_t position);

/* The top_n most probable ids, best first (lower id among equals), with natural-log probabilities
 * of the raw logits; *lse_out (NULL allowed) gets the log-sum-exp, so that the log probability of
 * any id is logits[id] - lse. Same errors as a pick. top_n may be 0 and is at most n_vocab and
 * RG_SAMPLING_LOGPROBS_MAX. */
RG_MUST_CHECK rg_code rg_sampler_logprobs(const float *logits, size_t n_vocab, size_t top_n,
                                          int32_t *ids_out, float *logprobs_out, double *lse_out,
                                          rg_status *st);

#endif
