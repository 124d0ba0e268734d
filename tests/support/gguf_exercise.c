#include "support/gguf_exercise.h"

#include <math.h>
#include <string.h>

#include "model/model.h"

#define ELEMS_MAX 4096 /* of one array: each costs the same */
#define KEY_MAX   256

static void check_failed(rg_code rc, const rg_status *st) {
    RG_ASSERT(rc != RG_BUSY && rc != RG_BUG);
    RG_ASSERT(st->code == rc && st->message[0] != 0);
    RG_ASSERT(!strpbrk(st->message, "\n\r\t"));
}

static void read_elems(const rg_gguf_kv *kv) {
    const uint64_t n = kv->count < ELEMS_MAX ? kv->count : ELEMS_MAX;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t v = 0;
        double d = 0;
        if (kv->elem_type == RG_GGUF_STRING) {
            const rg_str s = rg_gguf_elem_str(kv, i);
            for (size_t k = 0; k < s.len; k++) {
                sum += (uint8_t)s.data[k];
            }
            continue;
        }
        rg_status st = {0};
        rg_code rc = rg_gguf_elem_u64(kv, i, INT32_MAX, &v, &st);
        if (rc != RG_OK) check_failed(rc, &st);
        RG_ASSERT(v <= INT32_MAX);
        rg_status_clear(&st);
        rc = rg_gguf_elem_f64(kv, i, &d, &st);
        if (rc != RG_OK) check_failed(rc, &st);
        sum += v;
    }
    rg_status st = {0};
    uint64_t v = 0;
    if (kv->elem_type != RG_GGUF_STRING) {
        RG_ASSERT(rg_gguf_elem_u64(kv, kv->count, 9, &v, &st) == RG_INVALID);
    }
    RG_ASSERT(sum != UINT64_MAX); /* the sum is there to touch every byte */
}

static void get_all(const rg_gguf *g, const char *key) {
    uint64_t u = 0;
    double d = 0;
    bool b = false;
    rg_str s = {0};
    const rg_gguf_kv *kv = NULL;
    rg_status st[5] = {0};
    const rg_code rc[5] = {
        rg_gguf_get_u64(g, key, 1, 1000, &u, &st[0]),
        rg_gguf_get_f64(g, key, -1, 1e9, &d, &st[1]),
        rg_gguf_get_bool(g, key, &b, &st[2]),
        rg_gguf_get_str(g, key, &s, &st[3]),
        rg_gguf_get_array(g, key, 0, UINT64_MAX, &kv, &st[4]),
    };
    int ok = 0;
    for (size_t i = 0; i < RG_ARRAY_LEN(rc); i++) {
        if (rc[i] != RG_OK) check_failed(rc[i], &st[i]);
        ok += rc[i] == RG_OK;
    }
    RG_ASSERT(ok <= 1); /* one value has one type */
    if (rc[0] == RG_OK) RG_ASSERT(u >= 1 && u <= 1000);
    if (rc[1] == RG_OK) RG_ASSERT(isfinite(d));
    if (kv) read_elems(kv);
}

static void read_metadata(const rg_gguf *g) {
    for (size_t i = 0; i < rg_gguf_kv_count(g); i++) {
        const rg_gguf_kv *kv = rg_gguf_kv_at(g, i);
        char key[KEY_MAX];
        if (kv->key.len >= sizeof key || memchr(kv->key.data, 0, kv->key.len)) continue;
        memcpy(key, kv->key.data, kv->key.len);
        key[kv->key.len] = 0;
        RG_ASSERT(rg_gguf_find(g, key) == kv);
        get_all(g, key);
    }
}

static void read_tensors(const rg_gguf *g) {
    const uint64_t file_size = rg_gguf_file(g, 0)->size_bytes;
    for (size_t i = 0; i < rg_gguf_tensor_count(g); i++) {
        const rg_tensor *t = rg_gguf_tensor_at(g, i);
        RG_ASSERT(rg_gguf_tensor(g, t->name) == t);
        RG_ASSERT(t->offset <= file_size && t->size_bytes <= file_size - t->offset);
        RG_ASSERT(t->size_bytes > 0 && t->file == 0);
        const uint64_t rows = t->ne[1] * t->ne[2] * t->ne[3];
        RG_ASSERT(rg_row_bytes(t->type, (size_t)t->ne[0]) * rows == t->size_bytes);
    }
}

static bool describe(const rg_gguf *g, bool no_mtp) {
    rg_status st = {0};
    rg_model *m = NULL;
    const rg_model_options opt = {.no_mtp = no_mtp};
    const rg_code rc = rg_model_create(&m, g, &opt, &st);
    RG_ASSERT((rc == RG_OK) == (m != NULL));
    if (rc != RG_OK) check_failed(rc, &st);
    if (m) RG_ASSERT(m->hp.n_layer > 0 && m->layers && m->token_embd && m->output);
    rg_model_destroy(m);
    return rc == RG_OK;
}

rg_code rg_test_gguf_exercise(const void *data, size_t size, uint64_t file_size, bool *described) {
    rg_status st = {0};
    rg_gguf *g = NULL;
    bool valid = false;
    const rg_code rc = rg_gguf_parse(&g, data, size, file_size, &st);
    RG_ASSERT((rc == RG_OK) == (g != NULL));
    if (rc == RG_OK) {
        read_metadata(g);
        read_tensors(g);
        valid = describe(g, false);
        if (valid) RG_ASSERT(describe(g, true));
    } else {
        check_failed(rc, &st);
    }
    rg_gguf_close(g);
    if (described) *described = valid;
    return rc;
}
