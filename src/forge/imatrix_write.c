#include "forge/imatrix_write.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "forge/gguf_write.h"

typedef struct seen {
    const float *data;
} seen;

typedef struct writer {
    rg_out_tensor *tensors; /* sums and counts of each weight in turn */
    seen *data;
    uint32_t n, cap;
    uint64_t experts, unseen; /* matrices of stacked tensors; those without a row */
    XXH3_state_t *hash;
} writer;

static rg_code add(writer *w, const char *name, const char *suffix, uint64_t cols, uint64_t rows,
                   const float *data, rg_status *st) {
    if (w->n == w->cap) {
        const uint32_t cap = w->cap ? 2 * w->cap : 256;
        rg_out_tensor *t = rg_realloc(w->tensors, cap, sizeof *t, st);
        if (!t) return RG_NOMEM;
        w->tensors = t;
        seen *d = rg_realloc(w->data, cap, sizeof *d, st);
        if (!d) return RG_NOMEM;
        w->data = d;
        w->cap = cap;
    }
    rg_out_tensor *t = &w->tensors[w->n];
    *t = (rg_out_tensor){.type = RG_TYPE_F32, .n_dims = 2, .ne = {cols, rows, 1, 1}};
    const int n = snprintf(t->name, sizeof t->name, "%s%s", name, suffix);
    if (n >= (int)sizeof t->name) return rg_fail(st, RG_INVALID, "'%s' is too long a name", name);
    t->size_bytes = rg_out_tensor_bytes(t);
    w->data[w->n++].data = data;
    XXH3_128bits_update(w->hash, data, (size_t)t->size_bytes);
    return RG_OK;
}

static rg_code visit(void *user, const char *tensor, uint64_t cols, uint64_t n, const float *sums,
                     const float *counts, rg_status *st) {
    writer *w = user;
    double rows = 0;
    for (uint64_t i = 0; i < n; i++)
        rows += (double)counts[i];
    if (!(rows > 0)) return RG_OK;
    for (uint64_t i = 0; i < n && n > 1; i++) {
        w->experts++;
        w->unseen += !(counts[i] > 0);
    }
    RG_TRY(add(w, tensor, ".in_sum2", cols, n, sums, st));
    return add(w, tensor, ".counts", 1, n, counts, st);
}

static rg_code metadata(const rg_imatrix_info *info, rg_gguf_out *g, rg_status *st) {
    RG_TRY(rg_gguf_out_str(g, "general.type", "imatrix", st));
    RG_TRY(rg_gguf_out_strs(g, "imatrix.datasets", 1, st));
    RG_TRY(rg_gguf_out_elem(g, info->text, strlen(info->text), st));
    RG_TRY(rg_gguf_out_u32(g, "imatrix.chunk_count", info->n_chunk, st));
    return rg_gguf_out_u32(g, "imatrix.chunk_size", info->chunk_size, st);
}

static rg_code write_all(writer *w, const rg_gguf_out *head, const char *path,
                         const rg_imatrix_info *info, rg_status *st) {
    XXH128_canonical_t id;
    rg_gguf_write *out = NULL;
    XXH128_canonicalFromHash(&id, XXH3_128bits_digest(w->hash));
    const rg_write_options o = {.path = path, .overwrite = info->overwrite, .identity = id.digest};
    RG_TRY(rg_gguf_write_create(&out, &o, head, w->tensors, w->n, st));
    rg_code rc = RG_OK;
    for (uint32_t i = 0; i < w->n && rc == RG_OK; i++) {
        rc = rg_gguf_write_at(out, i, 0, w->data[i].data, (size_t)w->tensors[i].size_bytes, st);
        if (rc == RG_OK) rc = rg_gguf_write_end(out, i, st);
    }
    if (rc == RG_OK) rc = rg_gguf_write_finish(out, st);
    rg_gguf_write_destroy(out);
    return rc;
}

rg_code rg_forge_imatrix_write(const rg_engine *engine, const char *path,
                               const rg_imatrix_info *info, rg_buf *out, rg_status *st) {
    writer w = {.hash = XXH3_createState()};
    rg_gguf_out head;
    rg_code rc = RG_OK;
    rg_gguf_out_init(&head);
    if (!w.hash) RG_GO(rg_fail(st, RG_NOMEM, "no memory for a hash"));
    XXH3_128bits_reset(w.hash);
    RG_GO(rg_engine_visit_importance(engine, visit, &w, st));
    RG_GO(metadata(info, &head, st));
    RG_GO(write_all(&w, &head, path, info, st));
    RG_GO(rg_buf_printf(out, st, "%s: %u matrices and stacks of them", path, w.n / 2));
    if (w.unseen) {
        RG_GO(rg_buf_printf(out, st, ", %llu of %llu expert parts saw no token",
                            (unsigned long long)w.unseen, (unsigned long long)w.experts));
    }
    rc = rg_buf_puts(out, "\n", st);
cleanup:
    XXH3_freeState(w.hash);
    rg_free(w.tensors);
    rg_free(w.data);
    rg_gguf_out_deinit(&head);
    return rc;
}
