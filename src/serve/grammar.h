/* grammar: which bytes may come next.
 *
 * A context-free grammar over bytes, run as a set of stacks (the parallel pushdown simulation that
 * grammar-constrained samplers use): each stack is what one way of reading the text so far still
 * wants. Rules are lists of alternatives; an alternative is a row of elements, each a set of bytes
 * or another rule. Recursion is fine, left recursion is not (the builder here never makes one).
 *
 * Owner: whoever holds it. A grammar is built once, then only its run moves.
 */
#ifndef RG_SERVE_GRAMMAR_H
#define RG_SERVE_GRAMMAR_H

#include "serve/lexicon.h"

#define RG_GRAMMAR_ELEMENTS_MAX (1u << 20)
#define RG_GRAMMAR_STACKS_MAX   512u
#define RG_GRAMMAR_NODES_MAX    (1u << 20)

/* ---- building ------------------------------------------------------------------------------- */

typedef struct rg_byte_set {
    uint64_t bits[4];
} rg_byte_set;

typedef struct rg_grammar rg_grammar;

RG_MUST_CHECK rg_code rg_grammar_create(rg_grammar **out, rg_status *st);
void rg_grammar_destroy(rg_grammar *g); /* NULL is allowed */

/* A fresh rule without alternatives. */
RG_MUST_CHECK rg_code rg_grammar_rule(rg_grammar *g, uint32_t *rule, rg_status *st);
/* An alternative is written between begin and end; alternatives of different rules do not nest. */
RG_MUST_CHECK rg_code rg_grammar_begin(rg_grammar *g, uint32_t rule, rg_status *st);
RG_MUST_CHECK rg_code rg_grammar_text(rg_grammar *g, const char *text, size_t len, rg_status *st);
RG_MUST_CHECK rg_code rg_grammar_set(rg_grammar *g, const rg_byte_set *set, rg_status *st);
RG_MUST_CHECK rg_code rg_grammar_ref(rg_grammar *g, uint32_t rule, rg_status *st);
RG_MUST_CHECK rg_code rg_grammar_end(rg_grammar *g, rg_status *st);

/* Takes out what can never come to an end (an object that must hold another of its kind, for ever).
 * INVALID when nothing is left of `root`. Before the first run. */
RG_MUST_CHECK rg_code rg_grammar_prune(rg_grammar *g, uint32_t root, rg_status *st);

void rg_byte_set_add(rg_byte_set *s, unsigned first, unsigned last);

/* ---- running -------------------------------------------------------------------------------- */

RG_MUST_CHECK rg_code rg_grammar_start(rg_grammar *g, uint32_t root, rg_status *st);
/* Moves on by these bytes; *fits is false, and the run ends, when they cannot follow. */
RG_MUST_CHECK rg_code rg_grammar_feed(rg_grammar *g, const char *bytes, size_t len, bool *fits,
                                      rg_status *st);
/* The text so far is whole. */
bool rg_grammar_complete(const rg_grammar *g);
/* Nothing more can follow. */
bool rg_grammar_closed(const rg_grammar *g);
/* Equal for runs that want the same: what may follow depends on it alone. */
uint64_t rg_grammar_state(const rg_grammar *g);
/* Bits of the text tokens that can follow; tokens that end a generation when it is complete. */
RG_MUST_CHECK rg_code rg_grammar_mask(rg_grammar *g, const rg_lexicon *l, uint8_t *allowed,
                                      rg_status *st);

#endif
