/* The gguf object: one or more shards joined into one list of tensors, and reading of payloads.
 *
 * Invariants
 *  1. n_shard >= 1; metadata is that of shard 0.
 *  2. Tensor names are unique over all shards; every payload lies inside its file.
 *  3. Nothing changes after open, so any thread may read.
 */
#include "model/gguf.h"

#include <string.h>

#include "model/gguf_load.h"
#include "model/gguf_parts.h"
#include "model/gguf_split.h"

#define CHECK_CHUNK_BYTES (1u << 20)

typedef unsigned long long ull;

/* All tensors in one list, in the order of shards, under unique names. */
static rg_code join_tensors(rg_gguf *g, rg_status *st) {
    if (g->n_shard == 1) {
        g->tensors = g->shards[0].tensors;
        g->n_tensor = g->shards[0].n_tensor;
        return RG_OK;
    }
    size_t total = 0;
    for (uint32_t f = 0; f < g->n_shard; f++) {
        total += g->shards[f].n_tensor;
    }
    g->tensors = rg_alloc(total, sizeof *g->tensors, st);
    if (!g->tensors) return RG_NOMEM;
    for (uint32_t f = 0; f < g->n_shard; f++) {
        const rg_gguf_shard *s = &g->shards[f];
        for (size_t i = 0; i < s->n_tensor; i++) {
            rg_tensor *t = &g->tensors[g->n_tensor];
            *t = s->tensors[i];
            t->file = f;
            bool existed = false;
            RG_TRY(rg_map_add(&g->index, t->name, strlen(t->name), g->n_tensor, &existed, st));
            if (existed) {
                uint64_t first = 0;
                rg_map_get(&g->index, t->name, strlen(t->name), &first);
                return rg_fail(st, RG_FORMAT, "tensor '%s' is in two shards, %u and %u, of %.*s",
                               t->name, g->tensors[first].file, f, RG_GGUF_SHOWN_MAX,
                               rg_gguf_base_name(g->shards[0].path));
            }
            g->n_tensor++;
        }
    }
    return RG_OK;
}

/* An object with room for `n_shard` shards, none of them open. */
static rg_gguf *make_gguf(uint32_t n_shard, rg_status *st) {
    rg_gguf *g = rg_alloc(1, sizeof *g, st);
    if (!g) return NULL;
    g->shards = rg_alloc(n_shard, sizeof *g->shards, st);
    if (!g->shards) {
        rg_free(g);
        return NULL;
    }
    g->n_shard = n_shard;
    rg_map_init(&g->index);
    for (uint32_t i = 0; i < n_shard; i++) {
        g->shards[i].file.fd = -1;
    }
    return g;
}

rg_code rg_gguf_open(rg_gguf **out, const char *path, rg_status *st) {
    *out = NULL;
    rg_gguf *g = NULL;
    rg_gguf_shard any = {.file.fd = -1};
    uint32_t count = 0;
    rg_code rc = rg_gguf_shard_open(&any, path, st);
    if (rc != RG_OK) return rc;
    RG_GO(rg_gguf_split_count(&any, &count, st));
    g = make_gguf(count, st);
    if (!g) {
        rc = RG_NOMEM;
        goto cleanup;
    }
    if (count == 1) {
        g->shards[0] = any;
        any = (rg_gguf_shard){.file.fd = -1};
    } else {
        RG_GO(rg_gguf_split_open(g->shards, count, &any, st));
    }
    RG_GO(join_tensors(g, st));
    *out = g;
    return RG_OK;
cleanup:
    rg_gguf_shard_deinit(&any);
    rg_gguf_close(g);
    return rc;
}

rg_code rg_gguf_parse(rg_gguf **out, const void *header, size_t header_bytes, uint64_t file_size,
                      rg_status *st) {
    *out = NULL;
    rg_gguf *g = make_gguf(1, st);
    if (!g) return RG_NOMEM;
    uint32_t count = 0;
    rg_code rc = RG_OK;
    RG_GO(rg_gguf_shard_parse(&g->shards[0], header, header_bytes, file_size, st));
    RG_GO(rg_gguf_split_count(&g->shards[0], &count, st));
    if (count > 1) {
        rc =
            rg_fail(st, RG_UNSUPPORTED, "(memory): split.count is %u, one header was given", count);
        goto cleanup;
    }
    RG_GO(join_tensors(g, st));
    *out = g;
    return RG_OK;
cleanup:
    rg_gguf_close(g);
    return rc;
}

void rg_gguf_close(rg_gguf *g) {
    if (!g) return;
    if (g->n_shard > 1) rg_free(g->tensors);
    for (uint32_t i = 0; i < g->n_shard; i++) {
        rg_gguf_shard_deinit(&g->shards[i]);
    }
    rg_map_deinit(&g->index);
    rg_free(g->shards);
    rg_free(g);
}

uint32_t rg_gguf_version(const rg_gguf *g) {
    return g->shards[0].version;
}

uint32_t rg_gguf_file_count(const rg_gguf *g) {
    return g->n_shard;
}

const char *rg_gguf_file_path(const rg_gguf *g, uint32_t file) {
    RG_ASSERT(file < g->n_shard);
    return g->shards[file].path;
}

const rg_file *rg_gguf_file(const rg_gguf *g, uint32_t file) {
    RG_ASSERT(file < g->n_shard);
    return &g->shards[file].file;
}

size_t rg_gguf_kv_count(const rg_gguf *g) {
    return g->shards[0].n_kv;
}

const rg_gguf_kv *rg_gguf_kv_at(const rg_gguf *g, size_t i) {
    RG_ASSERT(i < g->shards[0].n_kv);
    return &g->shards[0].kvs[i];
}

const rg_gguf_kv *rg_gguf_find(const rg_gguf *g, const char *key) {
    return rg_gguf_shard_find(&g->shards[0], key);
}

size_t rg_gguf_tensor_count(const rg_gguf *g) {
    return g->n_tensor;
}

const rg_tensor *rg_gguf_tensor_at(const rg_gguf *g, size_t i) {
    RG_ASSERT(i < g->n_tensor);
    return &g->tensors[i];
}

const rg_tensor *rg_gguf_tensor(const rg_gguf *g, const char *name) {
    const rg_map *index = g->n_shard == 1 ? &g->shards[0].tensor_index : &g->index;
    uint64_t i = 0;
    return rg_map_get(index, name, strlen(name), &i) ? &g->tensors[i] : NULL;
}

rg_code rg_gguf_read(const rg_gguf *g, const rg_tensor *t, uint64_t begin, size_t len, void *dst,
                     rg_status *st) {
    RG_ASSERT(t->file < g->n_shard);
    const rg_gguf_shard *s = &g->shards[t->file];
    if (s->file.fd < 0) {
        return rg_fail(st, RG_INVALID, "tensor '%s' has no file: the header was parsed from memory",
                       t->name);
    }
    if (begin > t->size_bytes || len > t->size_bytes - begin) {
        return rg_fail(st, RG_INVALID, "tensor '%s': %zu bytes wanted at %llu of %llu", t->name,
                       len, (ull)begin, (ull)t->size_bytes);
    }
    const rg_code rc =
        rg_file_read_at(&s->file, dst, len, t->offset + begin, rg_gguf_base_name(s->path), st);
    return rc == RG_OK ? RG_OK : rg_context(st, rc, "tensor '%s'", t->name);
}

static rg_code check_tensor(const rg_gguf *g, const rg_tensor *t, uint8_t *chunk, rg_status *st) {
    const rg_type_info *info = rg_type_get((uint32_t)t->type);
    RG_ASSERT(info != NULL && info->block_bytes <= CHECK_CHUNK_BYTES);
    /* Integers have no bad values. */
    if (info->use != RG_USE_WEIGHT && t->type != RG_TYPE_F64) return RG_OK;
    const uint64_t step = CHECK_CHUNK_BYTES - CHECK_CHUNK_BYTES % info->block_bytes;
    for (uint64_t at = 0; at < t->size_bytes; at += step) {
        const uint64_t left = t->size_bytes - at;
        const size_t len = (size_t)(left < step ? left : step);
        RG_TRY(rg_gguf_read(g, t, at, len, chunk, st));
        size_t block = 0;
        if (!rg_blocks_find_nonfinite(t->type, chunk, len / info->block_bytes, &block)) continue;
        const uint64_t bad = at + block * info->block_bytes;
        return rg_fail(st, RG_FORMAT,
                       "%.*s: tensor '%s' (%s): block %llu of %llu, at byte %llu, is not finite",
                       RG_GGUF_SHOWN_MAX, rg_gguf_base_name(g->shards[t->file].path), t->name,
                       info->name, (ull)(bad / info->block_bytes),
                       (ull)(t->size_bytes / info->block_bytes), (ull)(t->offset + bad));
    }
    return RG_OK;
}

rg_code rg_gguf_check_data(const rg_gguf *g, rg_status *st) {
    uint8_t *chunk = rg_alloc(CHECK_CHUNK_BYTES, 1, st);
    if (!chunk) return RG_NOMEM;
    rg_code rc = RG_OK;
    for (size_t i = 0; i < g->n_tensor && rc == RG_OK; i++) {
        rc = check_tensor(g, &g->tensors[i], chunk, st);
    }
    rg_free(chunk);
    return rc;
}
