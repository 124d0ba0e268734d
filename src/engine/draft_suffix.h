/* Suffix drafts: what followed the last time the text ended like this (Saxena, "prompt lookup
 * decoding", 2023, without a model). Tokens of one sequence are indexed by the hash of each run of
 * a few tokens, as a compressor finds matches (LZ77); the longest earlier match of the end of the
 * text is continued.
 *
 * Memory is bounded by the number of tokens it is made for; adding a token and finding a match take
 * bounded time. Belongs to one thread.
 */
#ifndef RG_ENGINE_DRAFT_SUFFIX_H
#define RG_ENGINE_DRAFT_SUFFIX_H

#include "base/base.h"

#define RG_SUFFIX_MATCH_MAX 64u /* tokens compared */

typedef struct rg_suffix rg_suffix;

RG_MUST_CHECK rg_code rg_suffix_create(rg_suffix **out, size_t n_max, rg_status *st);
void rg_suffix_destroy(rg_suffix *s); /* NULL is allowed */
void rg_suffix_clear(rg_suffix *s);
size_t rg_suffix_bytes(size_t n_max);

/* Tokens [0, n) of the sequence; those it has are not looked at again. A shorter list, or another
 * last token, starts over. n <= n_max. */
void rg_suffix_sync(rg_suffix *s, const int32_t *ids, size_t n);
/* Appends one token. */
void rg_suffix_push(rg_suffix *s, int32_t id);
size_t rg_suffix_length(const rg_suffix *s);

/* Drafts behind the last token: ids [n_max]. Returns how many, 0 without a match; *match is the
 * length of the match, at most RG_SUFFIX_MATCH_MAX. A continuation that reaches the end of the text
 * goes on with its own drafts: a period repeats. */
uint32_t rg_suffix_draft(const rg_suffix *s, uint32_t n_max, int32_t *ids, uint32_t *match);

#endif
