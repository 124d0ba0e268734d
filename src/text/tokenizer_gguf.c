/* Reads the tokenizer.ggml.* keys of a file into a tokenizer. */
#include "text/tokenizer.h"

#include <string.h>

#define TOKENS_MAX (1u << 24)
#define MERGES_MAX (1u << 24)

static rg_code read_strings(const rg_gguf *g, const char *key, uint64_t max, rg_str **out,
                            size_t *count, rg_status *st) {
    const rg_gguf_kv *kv = NULL;
    RG_TRY(rg_gguf_get_array(g, key, 0, max, &kv, st));
    if (kv->elem_type != RG_GGUF_STRING) {
        return rg_fail(st, RG_FORMAT, "key %s: array of type %d, wanted strings (%d)", key,
                       (int)kv->elem_type, (int)RG_GGUF_STRING);
    }
    rg_str *list = rg_alloc((size_t)kv->count, sizeof *list, st);
    if (!list) return RG_NOMEM;
    for (uint64_t i = 0; i < kv->count; i++) {
        list[i] = rg_gguf_elem_str(kv, i);
    }
    *out = list;
    *count = (size_t)kv->count;
    return RG_OK;
}

static rg_code read_kinds(const rg_gguf *g, size_t n_tokens, uint8_t **out, rg_status *st) {
    static const char key[] = "tokenizer.ggml.token_type";
    if (!rg_gguf_find(g, key)) return RG_OK;
    const rg_gguf_kv *kv = NULL;
    RG_TRY(rg_gguf_get_array(g, key, n_tokens, n_tokens, &kv, st));
    uint8_t *kinds = rg_alloc(n_tokens, 1, st);
    if (!kinds) return RG_NOMEM;
    *out = kinds;
    for (size_t i = 0; i < n_tokens; i++) {
        uint64_t kind = 0;
        RG_TRY(rg_gguf_elem_u64(kv, i, UINT8_MAX, &kind, st));
        kinds[i] = (uint8_t)kind;
    }
    return RG_OK;
}

/* -1 for an absent key. */
static rg_code read_id(const rg_gguf *g, const char *key, size_t n_tokens, int32_t *out,
                       rg_status *st) {
    *out = -1;
    if (!rg_gguf_find(g, key) || n_tokens == 0) return RG_OK;
    uint64_t id = 0;
    RG_TRY(rg_gguf_get_u64(g, key, 0, n_tokens - 1, &id, st));
    *out = (int32_t)id;
    return RG_OK;
}

static rg_code read_names(const rg_gguf *g, rg_tokenizer_spec *spec, rg_status *st) {
    rg_str model;
    RG_TRY(rg_gguf_get_str(g, "tokenizer.ggml.model", &model, st));
    if (model.len != 4 || memcmp(model.data, "gpt2", 4) != 0) {
        return rg_fail(st, RG_UNSUPPORTED,
                       "tokenizer.ggml.model \"%.*s\" is not supported, only gpt2 (byte-level BPE)",
                       (int)(model.len < 40 ? model.len : 40), model.len ? model.data : "");
    }
    spec->pre = (rg_str){"default", 7}; /* what files older than the key mean */
    if (!rg_gguf_find(g, "tokenizer.ggml.pre")) return RG_OK;
    return rg_gguf_get_str(g, "tokenizer.ggml.pre", &spec->pre, st);
}

static rg_code read_ids(const rg_gguf *g, rg_tokenizer_spec *spec, rg_status *st) {
    const size_t n = spec->n_tokens;
    RG_TRY(read_id(g, "tokenizer.ggml.bos_token_id", n, &spec->bos, st));
    RG_TRY(read_id(g, "tokenizer.ggml.eos_token_id", n, &spec->eos, st));
    RG_TRY(read_id(g, "tokenizer.ggml.eot_token_id", n, &spec->eot, st));
    RG_TRY(read_id(g, "tokenizer.ggml.eom_token_id", n, &spec->eom, st));
    RG_TRY(read_id(g, "tokenizer.ggml.unknown_token_id", n, &spec->unknown, st));
    spec->add_bos = -1;
    if (!rg_gguf_find(g, "tokenizer.ggml.add_bos_token")) return RG_OK;
    bool add = false;
    RG_TRY(rg_gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &add, st));
    spec->add_bos = add;
    return RG_OK;
}

rg_code rg_tokenizer_create(rg_tokenizer **out, const rg_gguf *g, rg_status *st) {
    rg_code rc = RG_OK;
    rg_tokenizer_spec spec = {0};
    rg_str *tokens = NULL;
    rg_str *merges = NULL;
    uint8_t *kinds = NULL;
    *out = NULL;
    RG_GO(read_names(g, &spec, st));
    RG_GO(read_strings(g, "tokenizer.ggml.tokens", TOKENS_MAX, &tokens, &spec.n_tokens, st));
    RG_GO(read_strings(g, "tokenizer.ggml.merges", MERGES_MAX, &merges, &spec.n_merges, st));
    RG_GO(read_kinds(g, spec.n_tokens, &kinds, st));
    RG_GO(read_ids(g, &spec, st));
    spec.tokens = tokens;
    spec.merges = merges;
    spec.kinds = kinds;
    RG_GO(rg_tokenizer_build(out, &spec, st));

cleanup:
    rg_free(tokens);
    rg_free(merges);
    rg_free(kinds);
    return rc;
}
