/* text: bytes to tokens and back, chat templates. Immutable after load: any thread may use a
 * tokenizer; a rg_utf8_stream belongs to one thread.
 */
#ifndef RG_TEXT_H
#define RG_TEXT_H

#include "base/base.h"
#include "model/model.h"

#define RG_TEXT_INPUT_MAX (256u << 20) /* bytes of text in one call */

/* ---- tokenizer ---------------------------------------------------------------------------------
 */

typedef struct rg_tokenizer rg_tokenizer;

typedef enum rg_token_kind {
    RG_TOKEN_NORMAL = 1,
    RG_TOKEN_UNKNOWN = 2,
    RG_TOKEN_CONTROL = 3,
    RG_TOKEN_USER = 4,
    RG_TOKEN_UNUSED = 5,
    RG_TOKEN_BYTE = 6
} rg_token_kind;

/* Builds the byte-level BPE tokenizer described by `tokenizer.ggml.*`. An unknown
 * `tokenizer.ggml.model` or `.pre` is UNSUPPORTED and named. Keeps no reference to `g`. */
RG_MUST_CHECK rg_code rg_tokenizer_create(rg_tokenizer **out, const rg_gguf *g, rg_status *st);
void rg_tokenizer_destroy(rg_tokenizer *t);

/* A growing list of token ids. Release `ids` with rg_free. */
typedef struct rg_ids {
    int32_t *ids;
    size_t count, cap;
} rg_ids;

/* Appends the ids of `len` bytes of text. User-defined tokens are always recognised; control tokens
 * only when `parse_special`. Bytes that are not UTF-8 are kept (byte tokens). */
RG_MUST_CHECK rg_code rg_tokenize(const rg_tokenizer *t, const char *text, size_t len,
                                  bool parse_special, rg_ids *out, rg_status *st);
/* Bytes of one token appended to `out`; control tokens give their text only when `special`. An id
 * outside the vocabulary is INVALID. */
RG_MUST_CHECK rg_code rg_detokenize(const rg_tokenizer *t, int32_t id, bool special, rg_buf *out,
                                    rg_status *st);

int32_t rg_tokenizer_vocab(const rg_tokenizer *t);
rg_token_kind rg_tokenizer_kind(const rg_tokenizer *t, int32_t id);
/* -1 if there is none. */
int32_t rg_tokenizer_find(const rg_tokenizer *t, const char *text, size_t len);
int32_t rg_tokenizer_eos(const rg_tokenizer *t);
int32_t rg_tokenizer_bos(const rg_tokenizer *t); /* -1; `add_bos` tells whether prompts get it */
bool rg_tokenizer_add_bos(const rg_tokenizer *t);
/* Generation ends on these: eos, eot, eom keys of the file and tokens known by text
 * (<|im_end|>, <|endoftext|>, ...). */
bool rg_tokenizer_is_eog(const rg_tokenizer *t, int32_t id);

/* ---- streaming UTF-8 ---------------------------------------------------------------------------
 */

/* Holds back the bytes of an unfinished character between tokens, so that what comes out is always
 * whole characters. Bytes that can never become valid UTF-8 come out as U+FFFD. */
typedef struct rg_utf8_stream {
    uint8_t pending[4];
    uint8_t n_pending;
} rg_utf8_stream;

RG_MUST_CHECK rg_code rg_utf8_push(rg_utf8_stream *s, const char *bytes, size_t len, rg_buf *out,
                                   rg_status *st);
/* The end of the stream: an unfinished character comes out as U+FFFD. */
RG_MUST_CHECK rg_code rg_utf8_finish(rg_utf8_stream *s, rg_buf *out, rg_status *st);

/* ---- chat --------------------------------------------------------------------------------------
 */

/* Messages, tool calls and options are public types: regolith.h. */
typedef struct rg_chat_template rg_chat_template;

/* Recognises the family of a template text by structural markers and reads the sentences the family
 * leaves to the file out of it. `name` (from --chat-template) forces a family; NULL = recognise. An
 * unknown template is UNSUPPORTED and the message names --chat-template and the known names. */
RG_MUST_CHECK rg_code rg_chat_template_create(rg_chat_template **out, rg_str template_text,
                                              const char *name, rg_status *st);
void rg_chat_template_destroy(rg_chat_template *c);
const char *rg_chat_template_name(const rg_chat_template *c);

/* Renders a conversation. `tools_json`: one JSON object text per tool, exactly as it shall appear.
 * What the template refuses (no user turn, a system message that is not first, an unknown effort)
 * is INVALID with the template's reason. */
RG_MUST_CHECK rg_code rg_chat_render(const rg_chat_template *c, const rg_message *messages,
                                     size_t n_messages, const rg_str *tools_json, size_t n_tools,
                                     const rg_chat_options *options, rg_buf *out, rg_status *st);

#endif
