/* Pre-tokenizers through PCRE2 (see pretok.h).
 *
 * Each is a list of expressions; every one cuts the pieces of the one before further, and text
 * between matches is a piece too. The expressions are the published ones of the model families,
 * with one change of spelling: \s is written out as the White_Space characters of Unicode, since
 * PCRE2's own \s lacks U+0085 or has U+180E, depending on its options.
 *
 * All expressions advance by single-character repeats, so neither the machine stack nor the JIT
 * stack grows with the text. Should a limit be met all the same, the JIT stack is doubled up to its
 * maximum; after that the next RG_PRETOK_CHUNK bytes become a piece of their own and matching goes
 * on behind them. The tokens may then differ from the published ones at that place, but no byte is
 * lost and no request fails.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretok.h"

#include <pcre2.h>
#include <string.h>

const rg_pretok_limits rg_pretok_default_limits = {
    .match = RG_PRETOK_MATCH_LIMIT,
    .depth = RG_PRETOK_DEPTH_LIMIT,
    .heap_kib = RG_PRETOK_HEAP_LIMIT_KIB,
    .jit_stack_max_bytes = RG_PRETOK_JIT_STACK_MAX,
};

/* ---- the published expressions -----------------------------------------------------------------
 */

#define WS                                                                                         \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}"
#define SPACE      "[" WS "]"
#define SPACES_END SPACE "+(?![^" WS "])|" SPACE "+" /* \s+(?!\S)|\s+ */
#define ENDINGS    "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LINES      SPACE "*[\\r\\n]+|" /* \s*[\r\n]+ */

#define RE_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" SPACES_END
#define RE_QWEN2                                                                                   \
    ENDINGS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" WS                                        \
            "\\p{L}\\p{N}]+[\\r\\n]*|" LINES SPACES_END
#define RE_QWEN35                                                                                  \
    ENDINGS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"                                        \
            "| ?[^" WS "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES SPACES_END
#define RE_LLAMA3                                                                                  \
    ENDINGS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"                                           \
            "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|" LINES SPACES_END
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define RE_GPT4O                                                                                   \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" ENDINGS "?"                                       \
    "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" ENDINGS "?"                                      \
    "|\\p{N}{1,3}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|" LINES SPACES_END
#define RE_DIGIT   "\\p{N}"
#define RE_NUMBERS "\\p{N}+"
#define RE_3DIGITS "[0-9][0-9][0-9]"
#define RE_MARKS   "[\\p{P}\\$\\+<=>\\^~\\|]+"
#define RE_FALCON  "[\\p{P}\\$\\+<=>\\^~\\|`]+"

typedef struct family {
    const char *names[8]; /* tokenizer.ggml.pre values */
    const char *stages[RG_PRETOK_STAGES_MAX];
    bool ignore_merges, add_bos;
} family;

static const family families[] = {
    {{"qwen35"}, {RE_QWEN35}, false, false},
    {{"qwen2", "stablelm2", "deepseek-r1-qwen", "megrez"}, {RE_QWEN2}, false, false},
    {{"gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "roberta-bpe"}, {RE_GPT2}, false, false},
    {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral"},
     {RE_LLAMA3},
     true,
     true},
    {{"dbrx", "smaug-bpe"}, {RE_LLAMA3}, false, false},
    {{"gpt-4o"}, {RE_GPT4O}, false, false},
    {{"starcoder", "refact", "command-r", "smollm", "codeshell"},
     {RE_DIGIT, RE_GPT2},
     false,
     false},
    {{"falcon"}, {RE_FALCON, RE_GPT2, RE_3DIGITS}, false, false},
    {{"default"}, {RE_MARKS, RE_GPT2, RE_NUMBERS, RE_3DIGITS}, false, false},
};

static const family *find_family(rg_str name, const char **known_as) {
    for (size_t i = 0; i < RG_ARRAY_LEN(families); i++) {
        for (size_t k = 0; k < RG_ARRAY_LEN(families[i].names) && families[i].names[k]; k++) {
            const char *candidate = families[i].names[k];
            if (strlen(candidate) != name.len || memcmp(candidate, name.data, name.len) != 0) {
                continue;
            }
            *known_as = candidate;
            return &families[i];
        }
    }
    return NULL;
}

/* ---- compiling ---------------------------------------------------------------------------------
 */

static void *pcre_alloc(size_t size, void *user) {
    (void)user;
    return rg_alloc(1, size, NULL);
}

static void pcre_free(void *p, void *user) {
    (void)user;
    rg_free(p);
}

static rg_code compile(rg_pretok *p, const char *expression, rg_status *st) {
    int error = 0;
    PCRE2_SIZE at = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(p->general);
    if (!context) return rg_fail(st, RG_NOMEM, "pre-tokenizer %s: out of memory", p->name);
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)expression, PCRE2_ZERO_TERMINATED, PCRE2_UTF,
                                     &error, &at, context);
    pcre2_compile_context_free(context);
    if (!code && (error == PCRE2_ERROR_HEAP_FAILED || error == PCRE2_ERROR_NOMEMORY)) {
        return rg_fail(st, RG_NOMEM, "pre-tokenizer %s: out of memory", p->name);
    }
    if (!code) {
        return rg_fail(st, RG_BUG, "pre-tokenizer %s: error %d at byte %zu", p->name, error,
                       (size_t)at);
    }
    /* Without JIT (a hardened system) the interpreter does the same, more slowly. */
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    p->stages[p->n_stages++] = code;
    return RG_OK;
}

rg_code rg_pretok_init(rg_pretok *p, rg_str name, rg_status *st) {
    *p = (rg_pretok){0};
    const family *f = find_family(name, &p->name);
    if (!f) {
        return rg_fail(st, RG_UNSUPPORTED,
                       "pre-tokenizer \"%.*s\" is not known (known are qwen35, qwen2, gpt-2, "
                       "llama-bpe, gpt-4o, starcoder, falcon, default and their aliases)",
                       (int)(name.len < 40 ? name.len : 40), name.len ? name.data : "");
    }
    p->ignore_merges = f->ignore_merges;
    p->add_bos = f->add_bos;
    rg_code rc = RG_OK;
    p->general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    if (!p->general) {
        return rg_fail(st, RG_NOMEM, "pre-tokenizer %s: out of memory", p->name);
    }
    for (size_t i = 0; i < RG_PRETOK_STAGES_MAX && f->stages[i]; i++) {
        RG_GO(compile(p, f->stages[i], st));
    }

cleanup:
    if (rc != RG_OK) rg_pretok_deinit(p);
    return rc;
}

void rg_pretok_deinit(rg_pretok *p) {
    for (size_t i = 0; i < p->n_stages; i++) {
        pcre2_code_free(p->stages[i]);
    }
    pcre2_general_context_free(p->general);
    *p = (rg_pretok){0};
}

/* ---- matching ----------------------------------------------------------------------------------
 */

rg_code rg_pretok_matcher_init(rg_pretok_matcher *m, const rg_pretok *p,
                               const rg_pretok_limits *limits, rg_status *st) {
    *m = (rg_pretok_matcher){.pretok = p, .limits = *limits};
    m->data = pcre2_match_data_create(1, p->general);
    m->context = m->data ? pcre2_match_context_create(p->general) : NULL;
    if (!m->context) {
        rg_pretok_matcher_deinit(m);
        return rg_fail(st, RG_NOMEM, "pre-tokenizer %s: out of memory", p->name);
    }
    pcre2_set_match_limit(m->context, limits->match);
    pcre2_set_depth_limit(m->context, limits->depth);
    pcre2_set_heap_limit(m->context, limits->heap_kib);
    return RG_OK;
}

void rg_pretok_matcher_deinit(rg_pretok_matcher *m) {
    pcre2_jit_stack_free(m->jit_stack);
    pcre2_match_context_free(m->context);
    pcre2_match_data_free(m->data);
    *m = (rg_pretok_matcher){0};
}

/* false when the JIT stack has its full size already. */
static bool grow_jit_stack(rg_pretok_matcher *m) {
    const size_t start_bytes = 32u << 10;
    const size_t bytes = m->jit_stack_bytes ? m->jit_stack_bytes * 2 : start_bytes * 2;
    if (bytes > m->limits.jit_stack_max_bytes) return false;
    pcre2_jit_stack *grown = pcre2_jit_stack_create(start_bytes, bytes, m->pretok->general);
    if (!grown) return false;
    pcre2_jit_stack_free(m->jit_stack);
    m->jit_stack = grown;
    m->jit_stack_bytes = bytes;
    pcre2_jit_stack_assign(m->context, NULL, grown);
    return true;
}

/* Length of the chunk that stands in for a match that met a limit: at most RG_PRETOK_CHUNK bytes,
 * whole characters. */
static size_t chunk_len(const char *text, size_t len) {
    if (len <= RG_PRETOK_CHUNK) return len;
    size_t n = RG_PRETOK_CHUNK;
    while ((text[n] & 0xC0) == 0x80) {
        n--;
    }
    RG_ASSERT(n > 0);
    return n;
}

/* The next match at or behind `pos`; begin == end == len when there is none. */
static rg_code next_match(rg_pretok_matcher *m, size_t stage, const char *text, size_t len,
                          size_t pos, size_t *begin, size_t *end, rg_status *st) {
    const pcre2_code *code = m->pretok->stages[stage];
    const uint32_t options = PCRE2_NO_UTF_CHECK | (m->limits.no_jit ? PCRE2_NO_JIT : 0);
    int rc = 0;
    do {
        rc = pcre2_match(code, (PCRE2_SPTR)text, len, pos, options, m->data, m->context);
    } while (rc == PCRE2_ERROR_JIT_STACKLIMIT && grow_jit_stack(m));
    if (rc == PCRE2_ERROR_NOMATCH) {
        *begin = *end = len;
        return RG_OK;
    }
    switch (rc) {
    case PCRE2_ERROR_JIT_STACKLIMIT:
    case PCRE2_ERROR_MATCHLIMIT:
    case PCRE2_ERROR_DEPTHLIMIT:
    case PCRE2_ERROR_HEAPLIMIT:
        m->n_chunks++;
        *begin = pos;
        *end = pos + chunk_len(text + pos, len - pos);
        return RG_OK;
    case PCRE2_ERROR_NOMEMORY:
        return rg_fail(st, RG_NOMEM, "pre-tokenizer %s: out of memory", m->pretok->name);
    default:
        break;
    }
    if (rc < 0) {
        return rg_fail(st, RG_BUG, "pre-tokenizer %s: match error %d at byte %zu of %zu",
                       m->pretok->name, rc, pos, len);
    }
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(m->data);
    *begin = place[0];
    *end = place[1];
    RG_ASSERT(*begin >= pos);
    RG_ASSERT(*end > *begin);
    RG_ASSERT(*end <= len);
    return RG_OK;
}

/* Depth is bounded by RG_PRETOK_STAGES_MAX. */
static rg_code split_stage(rg_pretok_matcher *m, size_t stage, const char *text, size_t len,
                           rg_pretok_fn *fn, void *arg, rg_status *st) {
    if (stage == m->pretok->n_stages) return fn(arg, text, len, st);
    size_t pos = 0;
    while (pos < len) {
        size_t begin = 0;
        size_t end = 0;
        RG_TRY(next_match(m, stage, text, len, pos, &begin, &end, st));
        if (begin > pos) RG_TRY(split_stage(m, stage + 1, text + pos, begin - pos, fn, arg, st));
        if (end > begin) RG_TRY(split_stage(m, stage + 1, text + begin, end - begin, fn, arg, st));
        pos = end;
    }
    return RG_OK;
}

rg_code rg_pretok_split(rg_pretok_matcher *m, const char *text, size_t len, rg_pretok_fn *fn,
                        void *arg, rg_status *st) {
    return split_stage(m, 0, text, len, fn, arg, st);
}
