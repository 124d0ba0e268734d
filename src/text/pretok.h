/* Pre-tokenizer: cuts valid UTF-8 text into the pieces that byte pair encoding works on. Private
 * to the room. The compiled expressions are immutable; a matcher belongs to one thread.
 */
#ifndef RG_TEXT_PRETOK_H
#define RG_TEXT_PRETOK_H

#include "text/text.h"

#define RG_PRETOK_STAGES_MAX 4

/* Limits of one match. No published expression comes near them on real text; where one does, the
 * text goes on in chunks of RG_PRETOK_CHUNK bytes (see pretok.c). */
#define RG_PRETOK_MATCH_LIMIT    (1u << 26) /* backtracking steps */
#define RG_PRETOK_DEPTH_LIMIT    1000u      /* nested groups */
#define RG_PRETOK_HEAP_LIMIT_KIB 65536u     /* frames of the interpreter */
#define RG_PRETOK_JIT_STACK_MAX  (64u << 20)
#define RG_PRETOK_CHUNK          4096u

typedef struct rg_pretok {
    const char *name;
    struct pcre2_real_code_8 *stages[RG_PRETOK_STAGES_MAX];
    size_t n_stages;
    bool ignore_merges; /* a piece that is a token is not merged */
    bool add_bos;       /* the default when the file does not say */
    struct pcre2_real_general_context_8 *general;
} rg_pretok;

/* `name`: tokenizer.ggml.pre. An unknown one is UNSUPPORTED. */
RG_MUST_CHECK rg_code rg_pretok_init(rg_pretok *p, rg_str name, rg_status *st);
void rg_pretok_deinit(rg_pretok *p);

typedef struct rg_pretok_limits {
    uint32_t match, depth, heap_kib;
    size_t jit_stack_max_bytes;
    bool no_jit; /* tests: the interpreter must give the same pieces */
} rg_pretok_limits;

extern const rg_pretok_limits rg_pretok_default_limits;

typedef struct rg_pretok_matcher {
    const rg_pretok *pretok;
    rg_pretok_limits limits;
    struct pcre2_real_match_data_8 *data;
    struct pcre2_real_match_context_8 *context;
    struct pcre2_real_jit_stack_8 *jit_stack; /* NULL until the default 32 KiB are not enough */
    size_t jit_stack_bytes;
    uint64_t n_chunks; /* times a limit was met, for tests */
} rg_pretok_matcher;

RG_MUST_CHECK rg_code rg_pretok_matcher_init(rg_pretok_matcher *m, const rg_pretok *p,
                                             const rg_pretok_limits *limits, rg_status *st);
void rg_pretok_matcher_deinit(rg_pretok_matcher *m);

typedef rg_code rg_pretok_fn(void *arg, const char *piece, size_t len, rg_status *st);

/* Calls `fn` for each piece, in order; the pieces together are the text. `text` must be valid
 * UTF-8. */
RG_MUST_CHECK rg_code rg_pretok_split(rg_pretok_matcher *m, const char *text, size_t len,
                                      rg_pretok_fn *fn, void *arg, rg_status *st);

#endif
