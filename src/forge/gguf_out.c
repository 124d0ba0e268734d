#include "forge/gguf_out.h"

#include <string.h>

#define HEADER_MAX ((size_t)1 << 30)

void rg_gguf_out_init(rg_gguf_out *g) {
    *g = (rg_gguf_out){0};
    rg_buf_init(&g->kv, HEADER_MAX);
    rg_buf_init(&g->table, HEADER_MAX);
}

void rg_gguf_out_deinit(rg_gguf_out *g) {
    rg_buf_deinit(&g->kv);
    rg_buf_deinit(&g->table);
}

/* Only little-endian machines are supported: integers go out as they lie in memory. */
static rg_code put_str(rg_buf *b, const char *s, size_t len, rg_status *st) {
    const uint64_t n = len;
    RG_TRY(rg_buf_append(b, &n, sizeof n, st));
    return rg_buf_append(b, s, len, st);
}

static rg_code put_key(rg_gguf_out *g, const char *key, rg_gguf_type type, rg_status *st) {
    const uint32_t t = (uint32_t)type;
    g->n_kv++;
    RG_TRY(put_str(&g->kv, key, strlen(key), st));
    return rg_buf_append(&g->kv, &t, sizeof t, st);
}

static rg_code put_scalar(rg_gguf_out *g, const char *key, rg_gguf_type type, const void *v,
                          size_t size, rg_status *st) {
    RG_TRY(put_key(g, key, type, st));
    return rg_buf_append(&g->kv, v, size, st);
}

static rg_code put_array(rg_gguf_out *g, const char *key, rg_gguf_type elem, uint64_t n,
                         rg_status *st) {
    const uint32_t t = (uint32_t)elem;
    RG_TRY(put_key(g, key, RG_GGUF_ARRAY, st));
    RG_TRY(rg_buf_append(&g->kv, &t, sizeof t, st));
    return rg_buf_append(&g->kv, &n, sizeof n, st);
}

rg_code rg_gguf_out_u16(rg_gguf_out *g, const char *key, uint16_t v, rg_status *st) {
    return put_scalar(g, key, RG_GGUF_U16, &v, sizeof v, st);
}

rg_code rg_gguf_out_u32(rg_gguf_out *g, const char *key, uint32_t v, rg_status *st) {
    return put_scalar(g, key, RG_GGUF_U32, &v, sizeof v, st);
}

rg_code rg_gguf_out_i32(rg_gguf_out *g, const char *key, int32_t v, rg_status *st) {
    return put_scalar(g, key, RG_GGUF_I32, &v, sizeof v, st);
}

rg_code rg_gguf_out_f32(rg_gguf_out *g, const char *key, float v, rg_status *st) {
    return put_scalar(g, key, RG_GGUF_F32, &v, sizeof v, st);
}

rg_code rg_gguf_out_bool(rg_gguf_out *g, const char *key, bool v, rg_status *st) {
    const uint8_t b = v ? 1 : 0;
    return put_scalar(g, key, RG_GGUF_BOOL, &b, sizeof b, st);
}

rg_code rg_gguf_out_str(rg_gguf_out *g, const char *key, const char *v, rg_status *st) {
    RG_TRY(put_key(g, key, RG_GGUF_STRING, st));
    return put_str(&g->kv, v, strlen(v), st);
}

rg_code rg_gguf_out_i32s(rg_gguf_out *g, const char *key, const int32_t *v, size_t n,
                         rg_status *st) {
    RG_TRY(put_array(g, key, RG_GGUF_I32, n, st));
    return rg_buf_append(&g->kv, v, n * sizeof *v, st);
}

rg_code rg_gguf_out_u64s(rg_gguf_out *g, const char *key, const uint64_t *v, size_t n,
                         rg_status *st) {
    RG_TRY(put_array(g, key, RG_GGUF_U64, n, st));
    return rg_buf_append(&g->kv, v, n * sizeof *v, st);
}

rg_code rg_gguf_out_strs(rg_gguf_out *g, const char *key, uint64_t n, rg_status *st) {
    return put_array(g, key, RG_GGUF_STRING, n, st);
}

rg_code rg_gguf_out_elem(rg_gguf_out *g, const char *s, size_t len, rg_status *st) {
    return put_str(&g->kv, s, len, st);
}

rg_code rg_gguf_out_copy(rg_gguf_out *g, const rg_gguf_kv *kv, rg_status *st) {
    const uint32_t type = (uint32_t)kv->type, elem = (uint32_t)kv->elem_type;
    const uint64_t size = kv->size_bytes;
    g->n_kv++;
    RG_TRY(put_str(&g->kv, kv->key.data, kv->key.len, st));
    RG_TRY(rg_buf_append(&g->kv, &type, sizeof type, st));
    if (kv->type == RG_GGUF_ARRAY) {
        RG_TRY(rg_buf_append(&g->kv, &elem, sizeof elem, st));
        RG_TRY(rg_buf_append(&g->kv, &kv->count, sizeof kv->count, st));
    }
    if (kv->type == RG_GGUF_STRING) RG_TRY(rg_buf_append(&g->kv, &size, sizeof size, st));
    return rg_buf_append(&g->kv, kv->data, kv->size_bytes, st);
}

static uint64_t padded(uint64_t n) {
    return (n + RG_GGUF_OUT_ALIGN - 1) / RG_GGUF_OUT_ALIGN * RG_GGUF_OUT_ALIGN;
}

rg_code rg_gguf_out_tensor(rg_gguf_out *g, const char *name, rg_type type, const uint64_t *ne,
                           uint32_t n_dims, uint64_t size_bytes, rg_status *st) {
    RG_ASSERT(n_dims >= 1 && n_dims <= 4);
    const uint32_t t = (uint32_t)type;
    RG_TRY(put_str(&g->table, name, strlen(name), st));
    RG_TRY(rg_buf_append(&g->table, &n_dims, sizeof n_dims, st));
    RG_TRY(rg_buf_append(&g->table, ne, n_dims * sizeof *ne, st));
    RG_TRY(rg_buf_append(&g->table, &t, sizeof t, st));
    RG_TRY(rg_buf_append(&g->table, &g->data_bytes, sizeof g->data_bytes, st));
    g->n_tensor++;
    g->data_bytes += padded(size_bytes);
    return RG_OK;
}

uint64_t rg_gguf_out_header_bytes(const rg_gguf_out *g) {
    return padded(24 + g->kv.len + g->table.len);
}

uint64_t rg_gguf_out_file_bytes(const rg_gguf_out *g) {
    return rg_gguf_out_header_bytes(g) + g->data_bytes;
}

void rg_gguf_out_start(const rg_gguf_out *g, uint8_t start[24]) {
    static const uint8_t magic[4] = {'G', 'G', 'U', 'F'};
    const uint32_t version = 3;
    memcpy(start, magic, 4);
    memcpy(start + 4, &version, 4);
    memcpy(start + 8, &g->n_tensor, 8);
    memcpy(start + 16, &g->n_kv, 8);
}
