/* lexicon: the bytes of every token, and the tokens in the order of their bytes, so that a grammar
 * can walk all of them as one tree. Immutable after creation: any thread.
 */
#ifndef RG_SERVE_LEXICON_H
#define RG_SERVE_LEXICON_H

#include "base/base.h"

#define RG_LEXICON_TOKEN_MAX 256u /* bytes; a longer token is never allowed under a grammar */

typedef struct rg_lexicon {
    size_t n;
    char *bytes;
    uint32_t *offsets; /* [n + 1] */
    uint8_t *kinds;    /* [n] 0 text, 1 control, 2 ends a generation */
    uint32_t *order;   /* [n_sorted] text tokens by their bytes */
    uint16_t *shared;  /* [n_sorted] leading bytes in common with the one before */
    size_t n_sorted;
} rg_lexicon;

RG_MUST_CHECK rg_code rg_lexicon_init(rg_lexicon *l, const rg_vocab *vocab, rg_status *st);
void rg_lexicon_deinit(rg_lexicon *l);
rg_str rg_lexicon_token(const rg_lexicon *l, int32_t id);

#endif
