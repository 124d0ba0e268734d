#include "model/identity.h"

#include <string.h>
#include <xxhash.h>

/* Another number: identities of before are of no use. */
#define IDENTITY_VERSION 1u

static void add_u64(XXH3_state_t *h, uint64_t x) {
    XXH3_128bits_update(h, &x, sizeof x);
}

/* With its length in front, so that no two sequences run together alike. */
static void add_bytes(XXH3_state_t *h, const void *data, size_t len) {
    add_u64(h, len);
    if (len) XXH3_128bits_update(h, data, len);
}

/* The keys "split.*" say how the file is cut, not what it holds. */
static bool is_split_key(rg_str key) {
    static const char prefix[] = "split.";
    return key.len >= sizeof prefix - 1 && memcmp(key.data, prefix, sizeof prefix - 1) == 0;
}

static void add_metadata(XXH3_state_t *h, const rg_gguf *g) {
    for (size_t i = 0; i < rg_gguf_kv_count(g); i++) {
        const rg_gguf_kv *kv = rg_gguf_kv_at(g, i);
        if (is_split_key(kv->key)) continue;
        add_bytes(h, kv->key.data, kv->key.len);
        add_u64(h, kv->type);
        add_u64(h, kv->type == RG_GGUF_ARRAY ? kv->elem_type : kv->type);
        add_u64(h, kv->count);
        add_bytes(h, kv->data, kv->size_bytes);
    }
}

static void add_shape(XXH3_state_t *h, const rg_tensor *t) {
    add_bytes(h, t->name, strlen(t->name));
    add_u64(h, t->type);
    add_u64(h, t->n_dims);
    for (size_t d = 0; d < RG_ARRAY_LEN(t->ne); d++)
        add_u64(h, t->ne[d]);
    add_u64(h, t->size_bytes);
}

static rg_code add_samples(XXH3_state_t *h, const rg_gguf *g, const rg_tensor *t, uint8_t *buffer,
                           rg_status *st) {
    const uint64_t size = t->size_bytes;
    const size_t len = size < RG_IDENTITY_SAMPLE ? (size_t)size : RG_IDENTITY_SAMPLE;
    const uint64_t begins[] = {0, (size - len) / 2, size - len};
    for (size_t i = 0; i < RG_ARRAY_LEN(begins); i++) {
        if (i > 0 && begins[i] == begins[i - 1]) continue;
        RG_TRY(rg_gguf_read(g, t, begins[i], len, buffer, st));
        add_bytes(h, buffer, len);
    }
    return RG_OK;
}

rg_code rg_model_identity(const rg_gguf *g, const rg_model *m, rg_hash128 *out, rg_status *st) {
    *out = (rg_hash128){0};
    rg_code rc = RG_NOMEM;
    uint8_t *buffer = rg_alloc(RG_IDENTITY_SAMPLE, 1, st);
    XXH3_state_t *h = XXH3_createState();
    if (buffer && !h) rg_fail(st, RG_NOMEM, "cannot make the state of a hash");
    if (!buffer || !h) goto cleanup;
    XXH3_128bits_reset(h);
    add_u64(h, IDENTITY_VERSION);
    add_u64(h, m->hp.n_layer);
    add_metadata(h, g);
    const size_t n_tensor = rg_gguf_tensor_count(g);
    add_u64(h, n_tensor);
    for (size_t i = 0; i < n_tensor; i++)
        add_shape(h, rg_gguf_tensor_at(g, i));
    for (size_t i = 0; i < n_tensor; i++)
        RG_GO(add_samples(h, g, rg_gguf_tensor_at(g, i), buffer, st));
    const XXH128_hash_t sum = XXH3_128bits_digest(h);
    *out = (rg_hash128){.low = sum.low64, .high = sum.high64};
    rc = RG_OK;
cleanup:
    XXH3_freeState(h);
    rg_free(buffer);
    return rc;
}
