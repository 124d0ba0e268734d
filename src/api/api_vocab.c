#include "api/api.h"

rg_code rg_vocab_open(rg_vocab **out, const char *model_path, rg_status *st) {
    *out = NULL;
    rg_vocab *v = rg_alloc(1, sizeof *v, st);
    if (!v) return RG_NOMEM;
    rg_code rc = rg_gguf_open(&v->gguf, model_path, st);
    if (rc == RG_OK) {
        rc = rg_tokenizer_create(&v->tokenizer, v->gguf, st);
        if (rc != RG_OK) rg_context(st, rc, "%s", model_path);
    }
    if (rc != RG_OK) {
        rg_vocab_close(v);
        return rc;
    }
    *out = v;
    return RG_OK;
}

void rg_vocab_close(rg_vocab *v) {
    if (!v) return;
    rg_tokenizer_destroy(v->tokenizer);
    rg_gguf_close(v->gguf);
    rg_free(v);
}

rg_code rg_vocab_tokenize(const rg_vocab *v, const char *text, size_t len, bool parse_special,
                          int32_t **ids, size_t *n_ids, rg_status *st) {
    *ids = NULL;
    *n_ids = 0;
    rg_ids list = {0};
    const rg_code rc = rg_tokenize(v->tokenizer, text, len, parse_special, &list, st);
    if (rc != RG_OK) {
        rg_free(list.ids);
        return rc;
    }
    *ids = list.ids;
    *n_ids = list.count;
    return RG_OK;
}

rg_code rg_vocab_detokenize(const rg_vocab *v, const int32_t *ids, size_t n_ids, char **text,
                            size_t *len, rg_status *st) {
    *text = NULL;
    *len = 0;
    rg_buf b;
    rg_buf_init(&b, 0);
    rg_code rc = rg_buf_append(&b, "", 0, st);
    for (size_t i = 0; i < n_ids && rc == RG_OK; i++) {
        rc = rg_detokenize(v->tokenizer, ids[i], true, &b, st);
    }
    if (rc != RG_OK) {
        rg_buf_deinit(&b);
        return rc;
    }
    *text = b.data;
    *len = b.len;
    return RG_OK;
}

void rg_release(void *p) {
    rg_free(p);
}
