/* Byte pair merging of one piece. Private to the room. */
#ifndef RG_TEXT_BPE_H
#define RG_TEXT_BPE_H

#include "text/merges.h"
#include "text/vocab.h"

/* Immutable after load. */
typedef struct rg_bpe {
    rg_merges merges;
    /* Symbol of each byte. Symbols below n_tokens are tokens; those above are texts that occur in
     * merges but are no tokens: a piece that ends as one is written byte by byte. */
    uint32_t byte_symbols[256];
    uint32_t n_tokens;
    int32_t unknown_id; /* for bytes without a token; -1: such a byte is an error */
} rg_bpe;

/* Memory of one caller, reused from piece to piece. */
typedef struct rg_bpe_scratch {
    struct rg_bpe_symbol *symbols;
    struct rg_bpe_pair *heap;
    size_t symbols_cap, heap_cap;
    size_t heap_count;
    uint64_t n_queued; /* pairs ever queued, for tests */
} rg_bpe_scratch;

void rg_bpe_scratch_deinit(rg_bpe_scratch *s);

/* `merges` in order of rank, each "LEFT RIGHT" in stand-in characters. */
RG_MUST_CHECK rg_code rg_bpe_init(rg_bpe *b, const rg_vocab *v, const rg_str *merges, size_t n,
                                  rg_status *st);
void rg_bpe_deinit(rg_bpe *b);

/* Appends the tokens of one piece of at most RG_TEXT_INPUT_MAX bytes. */
RG_MUST_CHECK rg_code rg_bpe_piece(const rg_bpe *b, const rg_vocab *v, rg_bpe_scratch *s,
                                   const char *bytes, size_t len, rg_ids *out, rg_status *st);

RG_MUST_CHECK rg_code rg_ids_push(rg_ids *ids, int32_t id, rg_status *st);

#endif
