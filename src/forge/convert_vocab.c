/* tokenizer.json, tokenizer_config.json and chat_template.jinja into GGUF metadata. Byte-level BPE;
 * the pre-tokenizer is the family's, named here because nothing in the files names it.
 */
#include <stdio.h>
#include <string.h>

#include "forge/convert_parts.h"

#define TEMPLATE_MAX ((size_t)16 << 20)

enum { KIND_NORMAL = 1, KIND_CONTROL = 3, KIND_USER = 4, KIND_UNUSED = 5 };

typedef struct vocab {
    uint32_t n;
    const char **text; /* [n]; NULL: filler */
    int32_t *kind;     /* [n] */
} vocab;

static rg_code load(json_t **out, const char *folder, const char *name, rg_status *st) {
    char path[RG_WRITE_PATH_MAX + 64];
    json_error_t why;
    snprintf(path, sizeof path, "%.4090s/%s", folder, name);
    *out = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
    return *out ? RG_OK : rg_fail(st, RG_IO, "%s: %.100s", path, why.text);
}

static rg_code put_token(vocab *v, const char *text, json_int_t id, int32_t kind, rg_status *st) {
    if (!text || id < 0 || id >= (json_int_t)v->n) {
        return rg_fail(st, RG_FORMAT, "tokenizer.json: token %lld of a vocabulary of %u",
                       (long long)id, v->n);
    }
    if (v->text[id] && strcmp(v->text[id], text) != 0) {
        return rg_fail(st, RG_FORMAT, "tokenizer.json: token %lld has two texts", (long long)id);
    }
    v->text[id] = text;
    v->kind[id] = kind;
    return RG_OK;
}

static rg_code read_tokens(vocab *v, json_t *root, rg_status *st) {
    json_t *table = json_object_get(json_object_get(root, "model"), "vocab");
    const json_t *added = json_object_get(root, "added_tokens");
    if (!json_is_object(table)) {
        return rg_fail(st, RG_UNSUPPORTED, "tokenizer.json holds no BPE vocabulary");
    }
    for (void *it = json_object_iter(table); it; it = json_object_iter_next(table, it)) {
        RG_TRY(put_token(v, json_object_iter_key(it),
                         json_integer_value(json_object_iter_value(it)), KIND_NORMAL, st));
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *t = json_array_get(added, i);
        RG_TRY(put_token(v, json_string_value(json_object_get(t, "content")),
                         json_integer_value(json_object_get(t, "id")),
                         json_is_true(json_object_get(t, "special")) ? KIND_CONTROL : KIND_USER,
                         st));
    }
    return RG_OK;
}

static rg_code put_tokens(vocab *v, rg_gguf_out *g, rg_status *st) {
    RG_TRY(rg_gguf_out_strs(g, "tokenizer.ggml.tokens", v->n, st));
    for (uint32_t i = 0; i < v->n; i++) {
        char filler[24];
        snprintf(filler, sizeof filler, "[PAD%u]", i);
        if (!v->text[i]) v->kind[i] = KIND_UNUSED;
        const char *text = v->text[i] ? v->text[i] : filler;
        RG_TRY(rg_gguf_out_elem(g, text, strlen(text), st));
    }
    return rg_gguf_out_i32s(g, "tokenizer.ggml.token_type", v->kind, v->n, st);
}

/* Pairs ["a", "b"] or strings "a b". */
static rg_code put_merges(const json_t *root, rg_gguf_out *g, rg_status *st) {
    const json_t *list = json_object_get(json_object_get(root, "model"), "merges");
    const size_t n = json_array_size(list);
    RG_TRY(rg_gguf_out_strs(g, "tokenizer.ggml.merges", n, st));
    rg_buf text;
    rg_buf_init(&text, 0);
    rg_code rc = RG_OK;
    for (size_t i = 0; i < n && rc == RG_OK; i++) {
        const json_t *m = json_array_get(list, i);
        const char *one = json_string_value(m);
        const char *a = json_string_value(json_array_get(m, 0));
        const char *b = json_string_value(json_array_get(m, 1));
        rg_buf_clear(&text);
        rc = one      ? rg_buf_puts(&text, one, st)
             : a && b ? rg_buf_printf(&text, st, "%s %s", a, b)
                      : rg_fail(st, RG_FORMAT, "tokenizer.json: merge %zu is no pair", i);
        if (rc == RG_OK) rc = rg_gguf_out_elem(g, text.data, text.len, st);
    }
    rg_buf_deinit(&text);
    return rc;
}

/* Token named by a key of tokenizer_config.json; -1 when there is none. A token may be a string or
 * an object with its content. */
static int64_t token_of(const vocab *v, const json_t *config, const char *key) {
    const json_t *t = json_object_get(config, key);
    if (json_is_object(t)) t = json_object_get(t, "content");
    const char *text = json_string_value(t);
    for (uint32_t i = 0; text && i < v->n; i++) {
        if (v->text[i] && strcmp(v->text[i], text) == 0) return i;
    }
    return -1;
}

static rg_code put_special(const vocab *v, const json_t *config, rg_gguf_out *g, rg_status *st) {
    static const struct {
        const char *from, *to;
    } keys[] = {{"eos_token", "tokenizer.ggml.eos_token_id"},
                {"pad_token", "tokenizer.ggml.padding_token_id"},
                {"bos_token", "tokenizer.ggml.bos_token_id"}};
    for (size_t i = 0; i < RG_ARRAY_LEN(keys); i++) {
        const int64_t id = token_of(v, config, keys[i].from);
        if (id >= 0) RG_TRY(rg_gguf_out_u32(g, keys[i].to, (uint32_t)id, st));
        if (id < 0 && i == 0) {
            return rg_fail(st, RG_FORMAT, "tokenizer_config.json names no eos_token");
        }
    }
    return rg_gguf_out_bool(g, "tokenizer.ggml.add_bos_token",
                            json_is_true(json_object_get(config, "add_bos_token")), st);
}

static rg_code put_template(const char *folder, const json_t *config, rg_gguf_out *g,
                            rg_status *st) {
    char path[RG_WRITE_PATH_MAX + 64];
    char *text = NULL;
    size_t len = 0;
    snprintf(path, sizeof path, "%.4090s/chat_template.jinja", folder);
    FILE *probe = fopen(path, "re");
    if (probe) fclose(probe);
    if (probe) {
        RG_TRY(rg_file_slurp(&text, &len, path, TEMPLATE_MAX, st));
        const rg_code rc = rg_gguf_out_str(g, "tokenizer.chat_template", text, st);
        rg_free(text);
        return rc;
    }
    const char *inside = json_string_value(json_object_get(config, "chat_template"));
    return inside ? rg_gguf_out_str(g, "tokenizer.chat_template", inside, st) : RG_OK;
}

rg_code rg_convert_vocab(const char *folder, uint32_t n_vocab, rg_gguf_out *g, rg_status *st) {
    json_t *root = NULL, *config = NULL;
    vocab v = {.n = n_vocab};
    rg_code rc = RG_OK;
    v.text = rg_alloc(n_vocab, sizeof *v.text, st);
    v.kind = rg_alloc(n_vocab, sizeof *v.kind, st);
    if (!v.text || !v.kind) RG_GO(RG_NOMEM);
    RG_GO(load(&root, folder, "tokenizer.json", st));
    RG_GO(load(&config, folder, "tokenizer_config.json", st));
    RG_GO(read_tokens(&v, root, st));
    RG_GO(rg_gguf_out_str(g, "tokenizer.ggml.model", "gpt2", st));
    RG_GO(rg_gguf_out_str(g, "tokenizer.ggml.pre", "qwen35", st));
    RG_GO(put_tokens(&v, g, st));
    RG_GO(put_merges(root, g, st));
    RG_GO(put_special(&v, config, g, st));
    RG_GO(put_template(folder, config, g, st));
cleanup:
    rg_free((void *)v.text);
    rg_free(v.kind);
    json_decref(root);
    json_decref(config);
    return rc;
}
