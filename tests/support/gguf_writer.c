#include "support/gguf_writer.h"

#include <stdio.h>
#include <string.h>

static void put(rg_buf *b, const void *data, size_t len) {
    rg_status st = {0};
    RG_ASSERT(rg_buf_append(b, data, len, &st) == RG_OK);
}

static void put_u32(rg_buf *b, uint32_t v) {
    put(b, &v, sizeof v);
}

static void put_u64(rg_buf *b, uint64_t v) {
    put(b, &v, sizeof v);
}

static void put_string(rg_buf *b, const char *s, size_t len) {
    put_u64(b, len);
    put(b, s, len);
}

static void put_zeros(rg_buf *b, uint64_t count) {
    static const char zeros[4096];
    for (uint64_t left = count; left > 0;) {
        const size_t n = left < sizeof zeros ? (size_t)left : sizeof zeros;
        put(b, zeros, n);
        left -= n;
    }
}

void rg_gguf_writer_init(rg_gguf_writer *w) {
    *w = (rg_gguf_writer){.version = 3, .alignment = 32};
}

void rg_gguf_writer_deinit(rg_gguf_writer *w) {
    rg_buf_deinit(&w->kvs);
    rg_buf_deinit(&w->infos);
    rg_buf_deinit(&w->data);
}

void rg_gguf_writer_raw(rg_gguf_writer *w, const char *key, uint32_t type, const void *body,
                        size_t body_bytes) {
    put_string(&w->kvs, key, strlen(key));
    put_u32(&w->kvs, type);
    put(&w->kvs, body, body_bytes);
    w->n_kv++;
}

void rg_gguf_writer_u32(rg_gguf_writer *w, const char *key, uint32_t v) {
    rg_gguf_writer_raw(w, key, RG_GGUF_U32, &v, sizeof v);
}

void rg_gguf_writer_i32(rg_gguf_writer *w, const char *key, int32_t v) {
    rg_gguf_writer_raw(w, key, RG_GGUF_I32, &v, sizeof v);
}

void rg_gguf_writer_u64(rg_gguf_writer *w, const char *key, uint64_t v) {
    rg_gguf_writer_raw(w, key, RG_GGUF_U64, &v, sizeof v);
}

void rg_gguf_writer_f32(rg_gguf_writer *w, const char *key, float v) {
    rg_gguf_writer_raw(w, key, RG_GGUF_F32, &v, sizeof v);
}

void rg_gguf_writer_bool(rg_gguf_writer *w, const char *key, bool v) {
    const uint8_t byte = v;
    rg_gguf_writer_raw(w, key, RG_GGUF_BOOL, &byte, sizeof byte);
}

void rg_gguf_writer_str(rg_gguf_writer *w, const char *key, const char *v) {
    rg_gguf_writer_raw(w, key, RG_GGUF_STRING, NULL, 0);
    put_string(&w->kvs, v, strlen(v));
}

void rg_gguf_writer_array(rg_gguf_writer *w, const char *key, uint32_t elem_type, uint64_t count,
                          const void *elems, size_t elem_bytes) {
    rg_gguf_writer_raw(w, key, RG_GGUF_ARRAY, NULL, 0);
    put_u32(&w->kvs, elem_type);
    put_u64(&w->kvs, count);
    put(&w->kvs, elems, (size_t)count * elem_bytes);
}

void rg_gguf_writer_strings(rg_gguf_writer *w, const char *key, const char *const *v,
                            uint64_t count) {
    rg_gguf_writer_array(w, key, RG_GGUF_STRING, count, NULL, 0);
    for (uint64_t i = 0; i < count; i++) {
        put_string(&w->kvs, v[i], strlen(v[i]));
    }
}

void rg_gguf_writer_info(rg_gguf_writer *w, const char *name, size_t name_len, uint32_t n_dims,
                         const uint64_t *ne, uint32_t type, uint64_t offset) {
    put_string(&w->infos, name, name_len);
    put_u32(&w->infos, n_dims);
    put(&w->infos, ne, n_dims * sizeof *ne);
    put_u32(&w->infos, type);
    put_u64(&w->infos, offset);
    w->n_tensor++;
}

void rg_gguf_writer_tensor(rg_gguf_writer *w, const char *name, rg_type type, uint32_t n_dims,
                           const uint64_t *ne, const void *data) {
    const rg_type_info *info = rg_type_get((uint32_t)type);
    RG_ASSERT(info != NULL);
    uint64_t elems = 1;
    for (uint32_t i = 0; i < n_dims; i++) {
        elems *= ne[i];
    }
    const uint64_t bytes = elems / info->block_elems * info->block_bytes;
    const uint64_t padded = (bytes + w->alignment - 1) / w->alignment * w->alignment;
    rg_gguf_writer_info(w, name, strlen(name), n_dims, ne, (uint32_t)type, w->data_bytes);
    w->data_bytes += padded;
    if (w->no_data) return;
    if (data) {
        put(&w->data, data, (size_t)bytes);
        put_zeros(&w->data, padded - bytes);
    } else {
        put_zeros(&w->data, padded);
    }
}

void rg_gguf_writer_copy_kv(rg_gguf_writer *w, const rg_gguf_kv *kv) {
    put_string(&w->kvs, kv->key.data, kv->key.len);
    put_u32(&w->kvs, (uint32_t)kv->type);
    if (kv->type == RG_GGUF_STRING) put_u64(&w->kvs, kv->size_bytes);
    if (kv->type == RG_GGUF_ARRAY) {
        put_u32(&w->kvs, (uint32_t)kv->elem_type);
        put_u64(&w->kvs, kv->count);
    }
    put(&w->kvs, kv->data, kv->size_bytes);
    w->n_kv++;
}

uint64_t rg_gguf_writer_finish(const rg_gguf_writer *w, rg_buf *out) {
    rg_buf_clear(out);
    put(out, "GGUF", 4);
    put_u32(out, w->version);
    put_u64(out, w->n_tensor);
    put_u64(out, w->n_kv);
    put(out, w->kvs.data, w->kvs.len);
    put(out, w->infos.data, w->infos.len);
    put_zeros(out, (w->alignment - out->len % w->alignment) % w->alignment);
    const uint64_t size = out->len + w->data_bytes;
    if (!w->no_data) put(out, w->data.data, w->data.len);
    return size;
}

void rg_test_save(const char *path, const void *data, size_t len) {
    FILE *f = fopen(path, "wb");
    RG_ASSERT(f != NULL);
    RG_ASSERT(len == 0 || fwrite(data, 1, len, f) == len);
    RG_ASSERT(fclose(f) == 0);
}

void rg_gguf_writer_save(const rg_gguf_writer *w, const char *path) {
    rg_buf out;
    rg_buf_init(&out, 0);
    rg_gguf_writer_finish(w, &out);
    rg_test_save(path, out.data, out.len);
    rg_buf_deinit(&out);
}
