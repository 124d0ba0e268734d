/* Vocabulary: the bytes and the kind of each token. Private to the room. Immutable after load. */
#ifndef RG_TEXT_VOCAB_H
#define RG_TEXT_VOCAB_H

#include "text/text.h"

/* A token that is searched in the text before pre-tokenisation. */
typedef struct rg_special {
    const char *text; /* in the vocabulary's bytes */
    size_t len;
    int32_t id;
    uint32_t rank; /* by falling length, then id: the order in which occurrences are taken */
} rg_special;

typedef struct rg_vocab {
    size_t n_tokens;
    char *bytes;           /* of all tokens, one behind the other */
    size_t *offsets;       /* [n_tokens + 1] into bytes */
    uint8_t *kinds;        /* [n_tokens] rg_token_kind */
    rg_map by_bytes;       /* token bytes -> id; of equal tokens the last */
    int32_t byte_ids[256]; /* the token of a single byte; -1 if there is none */
    rg_special *specials;  /* sorted bytewise by text */
    size_t n_specials;
} rg_vocab;

/* `tokens` are as in the file: normal ones spelt in GPT-2's stand-in characters. `kinds` may be
 * NULL (all normal). Borrows nothing. */
RG_MUST_CHECK rg_code rg_vocab_init(rg_vocab *v, const rg_str *tokens, const uint8_t *kinds,
                                    size_t n_tokens, rg_status *st);
void rg_vocab_deinit(rg_vocab *v);

rg_str rg_vocab_bytes(const rg_vocab *v, int32_t id);

/* The byte that each stand-in character means; -1 for characters that stand for none. */
#define RG_SPELLING_CODES 324 /* 256 + 68 */
typedef struct rg_spelling {
    int16_t bytes[RG_SPELLING_CODES];
} rg_spelling;

void rg_spelling_init(rg_spelling *s);
/* Writes the bytes that a text in stand-in characters means to `dst` (room for `text.len`) and
 * returns their count; a text that is not such a spelling is copied as it is. `spelt` (may be NULL)
 * tells which. */
size_t rg_unspell(const rg_spelling *s, rg_str text, char *dst, bool *spelt);

/* Called for each stretch of text between special tokens (`id` < 0) and each special token. */
typedef rg_code rg_special_fn(void *arg, const char *text, size_t len, int32_t id, rg_status *st);

/* Cuts the text at special tokens: longer tokens are taken first wherever they stand, then further
 * left ones, as llama.cpp does. Control and unknown tokens only when `parse_special`. */
RG_MUST_CHECK rg_code rg_special_split(const rg_vocab *v, const char *text, size_t len,
                                       bool parse_special, rg_special_fn *fn, void *arg,
                                       rg_status *st);

#endif
