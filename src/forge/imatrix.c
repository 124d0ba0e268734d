#include "forge/imatrix.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

typedef struct entry {
    char name[RG_GGUF_NAME_MAX]; /* of the weight */
    uint64_t cols, n;
    float *sums;   /* [n][cols] */
    float *counts; /* [n] */
    float *mean;   /* [cols] over all matrices */
} entry;

struct rg_imatrix {
    entry *entries;
    uint32_t n;
    rg_map by_name;
    uint64_t hash;
};

static rg_code read_f32(const rg_gguf *g, const rg_tensor *t, float **out, rg_status *st) {
    if (t->type != RG_TYPE_F32) {
        return rg_fail(st, RG_FORMAT, "'%s' is %s, not f32", t->name,
                       rg_type_get((uint32_t)t->type)->name);
    }
    *out = rg_alloc((size_t)(t->size_bytes / sizeof(float)), sizeof(float), st);
    if (!*out) return RG_NOMEM;
    RG_TRY(rg_gguf_read(g, t, 0, (size_t)t->size_bytes, *out, st));
    for (size_t i = 0; i < t->size_bytes / sizeof(float); i++) {
        if (isfinite((*out)[i]) && (*out)[i] >= 0) continue;
        return rg_fail(st, RG_FORMAT, "value %zu of '%s' is %g", i, t->name, (double)(*out)[i]);
    }
    return RG_OK;
}

static rg_code take_mean(entry *e, rg_status *st) {
    e->mean = rg_alloc((size_t)e->cols, sizeof *e->mean, st);
    if (!e->mean) return RG_NOMEM;
    double rows = 0;
    for (uint64_t i = 0; i < e->n; i++)
        rows += (double)e->counts[i];
    for (uint64_t c = 0; c < e->cols && rows > 0; c++) {
        double sum = 0;
        for (uint64_t i = 0; i < e->n; i++)
            sum += (double)e->sums[i * e->cols + c];
        e->mean[c] = (float)(sum / rows);
    }
    return RG_OK;
}

static rg_code read_entry(rg_imatrix *m, const rg_gguf *g, const rg_tensor *sums, size_t name_len,
                          rg_status *st) {
    char counts_name[RG_GGUF_NAME_MAX + 16];
    entry *e = &m->entries[m->n++];
    memcpy(e->name, sums->name, name_len);
    snprintf(counts_name, sizeof counts_name, "%s.counts", e->name);
    const rg_tensor *counts = rg_gguf_tensor(g, counts_name);
    if (!counts) return rg_fail(st, RG_FORMAT, "'%s' is missing", counts_name);
    e->cols = sums->ne[0];
    e->n = sums->ne[1] * sums->ne[2] * sums->ne[3];
    if (counts->size_bytes != e->n * sizeof(float)) {
        return rg_fail(st, RG_FORMAT, "'%s' has %llu values, '%s' %llu matrices", counts_name,
                       (unsigned long long)(counts->size_bytes / sizeof(float)), sums->name,
                       (unsigned long long)e->n);
    }
    RG_TRY(read_f32(g, sums, &e->sums, st));
    RG_TRY(read_f32(g, counts, &e->counts, st));
    m->hash = XXH3_64bits_withSeed(e->sums, (size_t)sums->size_bytes, m->hash);
    m->hash = XXH3_64bits_withSeed(e->counts, (size_t)counts->size_bytes, m->hash);
    RG_TRY(take_mean(e, st));
    return rg_map_add(&m->by_name, e->name, name_len, m->n - 1, NULL, st);
}

static rg_code read_all(rg_imatrix *m, const rg_gguf *g, rg_status *st) {
    static const char suffix[] = ".in_sum2";
    const size_t n = rg_gguf_tensor_count(g);
    m->entries = rg_alloc(n, sizeof *m->entries, st);
    if (!m->entries) return RG_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const rg_tensor *t = rg_gguf_tensor_at(g, i);
        const size_t len = strlen(t->name);
        if (len < sizeof suffix || strcmp(t->name + len - (sizeof suffix - 1), suffix) != 0)
            continue;
        RG_TRY(read_entry(m, g, t, len - (sizeof suffix - 1), st));
    }
    return m->n ? RG_OK : rg_fail(st, RG_FORMAT, "it holds no importance data");
}

rg_code rg_imatrix_open(rg_imatrix **out, const char *path, rg_status *st) {
    rg_gguf *g = NULL;
    *out = NULL;
    rg_imatrix *m = rg_alloc(1, sizeof *m, st);
    if (!m) return RG_NOMEM;
    rg_map_init(&m->by_name);
    rg_code rc = rg_gguf_open(&g, path, st);
    if (rc == RG_OK) {
        rc = read_all(m, g, st);
        if (rc != RG_OK) rc = rg_context(st, rc, "%s", path);
    }
    rg_gguf_close(g);
    if (rc != RG_OK) {
        rg_imatrix_close(m);
        return rc;
    }
    *out = m;
    return RG_OK;
}

void rg_imatrix_close(rg_imatrix *m) {
    if (!m) return;
    for (uint32_t i = 0; i < m->n; i++) {
        rg_free(m->entries[i].sums);
        rg_free(m->entries[i].counts);
        rg_free(m->entries[i].mean);
    }
    rg_map_deinit(&m->by_name);
    rg_free(m->entries);
    rg_free(m);
}

uint32_t rg_imatrix_count(const rg_imatrix *m) {
    return m->n;
}

uint64_t rg_imatrix_hash(const rg_imatrix *m) {
    return m->hash;
}

static const entry *find(const rg_imatrix *m, const char *name) {
    uint64_t at = 0;
    return m && rg_map_get(&m->by_name, name, strlen(name), &at) ? &m->entries[at] : NULL;
}

rg_code rg_imatrix_get(const rg_imatrix *m, const rg_tensor *t, uint64_t index, float *w,
                       bool *found, rg_status *st) {
    const entry *e = find(m, t->name);
    *found = false;
    if (!e) return RG_OK;
    if (e->cols != t->ne[0] || e->n != t->ne[2] * t->ne[3]) {
        return rg_fail(st, RG_FORMAT,
                       "the importance of '%s' is for %llu matrices of %llu columns, not %llu of "
                       "%llu",
                       t->name, (unsigned long long)e->n, (unsigned long long)e->cols,
                       (unsigned long long)(t->ne[2] * t->ne[3]), (unsigned long long)t->ne[0]);
    }
    const double prior = e->n > 1 ? RG_IMATRIX_PRIOR : 0;
    const double rows = (double)e->counts[index] + prior;
    if (!(rows > 0)) return RG_OK;
    double sum = 0;
    for (uint64_t c = 0; c < e->cols; c++) {
        const double own = (double)e->sums[index * e->cols + c];
        w[c] = (float)((own + prior * (double)e->mean[c]) / rows);
        sum += (double)w[c];
    }
    *found = sum > 0;
    return RG_OK;
}

double rg_imatrix_rows(const rg_imatrix *m, const rg_tensor *t) {
    const entry *e = find(m, t->name);
    double rows = 0;
    for (uint64_t i = 0; e && i < e->n; i++)
        rows += (double)e->counts[i];
    return rows;
}
