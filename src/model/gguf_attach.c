/* A file with the draft block alone, beside the model's: its shards join the list of files, its
 * tensors join the table under names of their own, so that nothing of the model is hidden.
 */
#include "model/gguf.h"

#include <stdio.h>
#include <string.h>

#include "model/gguf_load.h"
#include "model/gguf_parts.h"

/* "blk.48.x" becomes "draft:blk.48.x". */
static rg_code rename_tensor(rg_tensor *t, const char *path, rg_status *st) {
    char name[RG_GGUF_NAME_MAX + sizeof RG_GGUF_DRAFT_PREFIX];
    const int n = snprintf(name, sizeof name, RG_GGUF_DRAFT_PREFIX "%s", t->name);
    if (n < (int)RG_GGUF_NAME_MAX) {
        memcpy(t->name, name, (size_t)n + 1);
        return RG_OK;
    }
    return rg_fail(st, RG_UNSUPPORTED, "%.*s: the name of tensor '%s' has more than %zu bytes",
                   RG_GGUF_SHOWN_MAX, rg_gguf_base_name(path), t->name,
                   RG_GGUF_NAME_MAX - sizeof RG_GGUF_DRAFT_PREFIX);
}

/* Both tables in one, the model's first. */
static rg_code join_tables(rg_gguf *g, const rg_gguf *other, rg_tensor **tensors, rg_map *index,
                           rg_status *st) {
    const size_t total = g->n_tensor + other->n_tensor;
    *tensors = rg_alloc(total, sizeof **tensors, st);
    if (!*tensors) return RG_NOMEM;
    for (size_t i = 0; i < total; i++) {
        rg_tensor *t = &(*tensors)[i];
        *t = i < g->n_tensor ? g->tensors[i] : other->tensors[i - g->n_tensor];
        if (i >= g->n_tensor) {
            t->file += g->n_shard;
            RG_TRY(rename_tensor(t, other->shards[0].path, st));
        }
        bool existed = false;
        RG_TRY(rg_map_add(index, t->name, strlen(t->name), i, &existed, st));
        if (existed) return rg_fail(st, RG_FORMAT, "tensor '%s' is there twice", t->name);
    }
    return RG_OK;
}

rg_code rg_gguf_attach(rg_gguf *g, const char *path, rg_status *st) {
    if (g->n_attached) return rg_fail(st, RG_INVALID, "a second draft file: %s", path);
    rg_gguf *other = NULL;
    rg_tensor *tensors = NULL;
    rg_gguf_shard *shards = NULL;
    rg_map index;
    rg_code rc = RG_OK;
    rg_map_init(&index);
    RG_GO(rg_gguf_open(&other, path, st));
    RG_GO(join_tables(g, other, &tensors, &index, st));
    const uint32_t n = g->n_shard + other->n_shard;
    shards = rg_alloc(n, sizeof *shards, st);
    if (!shards) RG_GO(RG_NOMEM);
    /* From here on nothing fails: the shards change hands. */
    memcpy(shards, g->shards, g->n_shard * sizeof *shards);
    memcpy(shards + g->n_shard, other->shards, other->n_shard * sizeof *shards);
    if (g->n_shard > 1) rg_free(g->tensors);
    if (other->n_shard > 1) rg_free(other->tensors);
    rg_map_deinit(&g->index);
    rg_map_deinit(&other->index);
    rg_free(g->shards);
    rg_free(other->shards);
    g->tensors = tensors;
    g->n_tensor += other->n_tensor;
    g->index = index;
    g->shards = shards;
    g->n_attached = other->n_shard;
    g->n_shard = n;
    rg_free(other);
    return RG_OK;
cleanup:
    rg_free(tensors);
    rg_map_deinit(&index);
    rg_gguf_close(other);
    return rc;
}

bool rg_gguf_has_attached(const rg_gguf *g) {
    return g->n_attached > 0;
}

const rg_gguf_kv *rg_gguf_find_attached(const rg_gguf *g, const char *key) {
    RG_ASSERT(g->n_attached > 0);
    return rg_gguf_shard_find(&g->shards[g->n_shard - g->n_attached], key);
}
