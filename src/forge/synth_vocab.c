/* The vocabulary of synthetic models: special tokens, the 256 bytes, some merges of common English
 * pieces, fillers. Byte-level BPE with the pre-tokenizer of the family.
 */
#include <stdio.h>
#include <string.h>

#include "forge/synth_parts.h"

typedef struct special {
    const char *text;
    int32_t kind; /* 3 control, 4 user-defined */
} special;

static const special SPECIALS[] = {
    {"<|endoftext|>", 3}, {"<|im_start|>", 3},    {"<|im_end|>", 3},       {"<tool_call>", 4},
    {"</tool_call>", 4},  {"<tool_response>", 4}, {"</tool_response>", 4}, {"<think>", 4},
    {"</think>", 4},      {"<|image_pad|>", 3},
};

#define SP "\xC4\xA0" /* how byte-level BPE writes a space */

/* In order of application: each part is a byte or made by an earlier merge. */
static const char *const MERGES[][2] = {
    {SP, "t"},     {"h", "e"},     {SP, "a"},     {SP "t", "he"}, {"i", "n"},     {"r", "e"},
    {SP, "w"},     {"o", "n"},     {SP, "s"},     {"n", "d"},     {"e", "r"},     {SP, "o"},
    {"i", "s"},    {"o", "u"},     {"a", "t"},    {SP, "h"},      {SP "a", "nd"}, {SP, "b"},
    {"in", "g"},   {"e", "n"},     {SP "t", "o"}, {SP, "i"},      {"e", "d"},     {SP, "f"},
    {SP, "c"},     {SP, "m"},      {SP, "p"},     {"l", "l"},     {"o", "r"},     {SP "o", "f"},
    {"l", "e"},    {"a", "s"},     {"i", "t"},    {SP "i", "n"},  {SP, "d"},      {"v", "e"},
    {SP "w", "h"}, {"e", "s"},     {SP, "l"},     {"o", "m"},     {"a", "n"},     {"a", "r"},
    {SP, "y"},     {SP "y", "ou"}, {SP, "n"},     {"s", "t"},     {"u", "t"},     {SP "b", "e"},
};

#define N_BASE (RG_ARRAY_LEN(SPECIALS) + 256 + RG_ARRAY_LEN(MERGES))
_Static_assert(N_BASE <= RG_SYNTH_VOCAB_MIN, "every vocabulary holds the base tokens");

uint32_t rg_synth_special_id(uint32_t special_index) {
    RG_ASSERT(special_index < RG_ARRAY_LEN(SPECIALS));
    return special_index; /* they come first */
}

/* Printable stand-ins of bytes (GPT-2's table): printable bytes stand for themselves, the others
 * for the characters from U+0100 on, in order. */
static bool stands_for_itself(unsigned b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
}

static size_t put_char(unsigned c, char out[4]) {
    if (c < 128) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xC0 | c >> 6);
    out[1] = (char)(0x80 | (c & 63));
    return 2;
}

static rg_code put_bytes(rg_gguf_out *g, rg_status *st) {
    char text[4];
    for (unsigned b = 0; b < 256; b++) {
        if (!stands_for_itself(b)) continue;
        RG_TRY(rg_gguf_out_elem(g, text, put_char(b, text), st));
    }
    unsigned next = 256;
    for (unsigned b = 0; b < 256; b++) {
        if (stands_for_itself(b)) continue;
        RG_TRY(rg_gguf_out_elem(g, text, put_char(next++, text), st));
    }
    return RG_OK;
}

static rg_code put_tokens(const rg_synth_shape *s, rg_gguf_out *g, rg_status *st) {
    char text[32];
    RG_TRY(rg_gguf_out_strs(g, "tokenizer.ggml.tokens", s->n_vocab, st));
    for (size_t i = 0; i < RG_ARRAY_LEN(SPECIALS); i++)
        RG_TRY(rg_gguf_out_elem(g, SPECIALS[i].text, strlen(SPECIALS[i].text), st));
    RG_TRY(put_bytes(g, st));
    for (size_t i = 0; i < RG_ARRAY_LEN(MERGES); i++) {
        const int n = snprintf(text, sizeof text, "%s%s", MERGES[i][0], MERGES[i][1]);
        RG_TRY(rg_gguf_out_elem(g, text, (size_t)n, st));
    }
    for (size_t i = N_BASE; i < s->n_vocab; i++) {
        const int n = snprintf(text, sizeof text, "[UNUSED_%zu]", i - N_BASE);
        RG_TRY(rg_gguf_out_elem(g, text, (size_t)n, st));
    }
    return RG_OK;
}

static rg_code put_kinds(const rg_synth_shape *s, rg_gguf_out *g, rg_status *st) {
    int32_t *kinds = rg_alloc(s->n_vocab, sizeof *kinds, st);
    if (!kinds) return RG_NOMEM;
    for (size_t i = 0; i < s->n_vocab; i++) {
        kinds[i] = i < RG_ARRAY_LEN(SPECIALS) ? SPECIALS[i].kind
                   : i < N_BASE               ? RG_SYNTH_KIND_NORMAL
                                              : RG_SYNTH_KIND_UNUSED;
    }
    const rg_code rc = rg_gguf_out_i32s(g, "tokenizer.ggml.token_type", kinds, s->n_vocab, st);
    rg_free(kinds);
    return rc;
}

rg_code rg_synth_vocab(const rg_synth_shape *s, rg_gguf_out *g, rg_status *st) {
    char text[32];
    RG_TRY(rg_gguf_out_str(g, "tokenizer.ggml.model", "gpt2", st));
    RG_TRY(rg_gguf_out_str(g, "tokenizer.ggml.pre", "qwen35", st));
    RG_TRY(put_tokens(s, g, st));
    RG_TRY(put_kinds(s, g, st));
    RG_TRY(rg_gguf_out_strs(g, "tokenizer.ggml.merges", RG_ARRAY_LEN(MERGES), st));
    for (size_t i = 0; i < RG_ARRAY_LEN(MERGES); i++) {
        const int n = snprintf(text, sizeof text, "%s %s", MERGES[i][0], MERGES[i][1]);
        RG_TRY(rg_gguf_out_elem(g, text, (size_t)n, st));
    }
    const uint32_t end = rg_synth_special_id(RG_SYNTH_ENDOFTEXT);
    RG_TRY(rg_gguf_out_u32(g, "tokenizer.ggml.eos_token_id", rg_synth_special_id(RG_SYNTH_IM_END),
                           st));
    RG_TRY(rg_gguf_out_u32(g, "tokenizer.ggml.padding_token_id", end, st));
    RG_TRY(rg_gguf_out_u32(g, "tokenizer.ggml.bos_token_id", end, st));
    RG_TRY(rg_gguf_out_bool(g, "tokenizer.ggml.add_bos_token", false, st));
    return rg_gguf_out_str(g, "tokenizer.chat_template", rg_synth_chat_template, st);
}
