/* The tokenizer behind text.h, and how to make one without a file. Private to the room. */
#ifndef RG_TEXT_TOKENIZER_H
#define RG_TEXT_TOKENIZER_H

#include "text/bpe.h"
#include "text/pretok.h"

/* Everything a tokenizer is made of; borrowed during the call. */
typedef struct rg_tokenizer_spec {
    rg_str pre;
    const rg_str *tokens;
    const uint8_t *kinds; /* NULL: all normal */
    size_t n_tokens;
    const rg_str *merges;
    size_t n_merges;
    int32_t bos, eos, eot, eom, unknown; /* -1 = none */
    int add_bos;                         /* -1: the family's default */
} rg_tokenizer_spec;

RG_MUST_CHECK rg_code rg_tokenizer_build(rg_tokenizer **out, const rg_tokenizer_spec *spec,
                                         rg_status *st);

/* rg_tokenize with other limits of the pre-tokenizer; adds what happened to `*counts` (may be
 * NULL). */
typedef struct rg_tokenize_counts {
    uint64_t n_queued; /* pairs queued for merging */
    uint64_t n_chunks; /* matches that met a limit */
} rg_tokenize_counts;

RG_MUST_CHECK rg_code rg_tokenize_limited(const rg_tokenizer *t, const char *text, size_t len,
                                          bool parse_special, const rg_pretok_limits *limits,
                                          rg_ids *out, rg_tokenize_counts *counts, rg_status *st);

#endif
