#include "engine/importance.h"

#include <string.h>

#define COLS_AT_ONCE 256u

typedef struct entry {
    rg_importance_view view;
    float *sums, *counts;
} entry;

struct rg_importance {
    rg_mat_name *names; /* [n_name]; keys of the map point into it */
    entry *entries;
    uint32_t n_name, n;
    rg_map by_mat; /* address of the matrix -> entry */
};

static rg_code add(rg_importance *im, const rg_mat_name *name, rg_status *st) {
    uint32_t at = 0;
    while (at < im->n && im->entries[at].view.tensor != name->tensor)
        at++;
    entry *e = &im->entries[at];
    if (at == im->n) {
        const rg_tensor *t = name->tensor;
        e->view = (rg_importance_view){.tensor = t, .cols = t->ne[0], .n = t->ne[2] * t->ne[3]};
        e->sums = rg_alloc((size_t)(e->view.n * e->view.cols), sizeof *e->sums, st);
        e->counts = rg_alloc((size_t)e->view.n, sizeof *e->counts, st);
        im->n++;
        if (!e->sums || !e->counts) return RG_NOMEM;
        e->view.sums = e->sums;
        e->view.counts = e->counts;
    }
    return rg_map_add(&im->by_mat, (const char *)&name->mat, sizeof name->mat, at, NULL, st);
}

rg_code rg_importance_create(rg_importance **out, const rg_mat_name *mats, uint32_t n_mat,
                             rg_status *st) {
    *out = NULL;
    rg_importance *im = rg_alloc(1, sizeof *im, st);
    if (!im) return RG_NOMEM;
    rg_map_init(&im->by_mat);
    im->names = rg_alloc(n_mat, sizeof *im->names, st);
    im->entries = rg_alloc(n_mat, sizeof *im->entries, st);
    rg_code rc = im->names && im->entries ? RG_OK : RG_NOMEM;
    if (rc == RG_OK) memcpy(im->names, mats, n_mat * sizeof *mats);
    for (uint32_t i = 0; i < n_mat && rc == RG_OK; i++)
        rc = add(im, &im->names[i], st);
    if (rc != RG_OK) {
        rg_importance_destroy(im);
        return rc;
    }
    *out = im;
    return RG_OK;
}

void rg_importance_destroy(rg_importance *im) {
    if (!im) return;
    for (uint32_t i = 0; i < im->n; i++) {
        rg_free(im->entries[i].sums);
        rg_free(im->entries[i].counts);
    }
    rg_map_deinit(&im->by_mat);
    rg_free(im->names);
    rg_free(im->entries);
    rg_free(im);
}

void rg_importance_see(rg_importance *im, const rg_mat *mat, uint32_t index, const float *x,
                       size_t stride, const uint32_t *rows, uint32_t n) {
    uint64_t at = 0;
    if (!rg_map_get(&im->by_mat, (const char *)&mat, sizeof mat, &at)) return;
    const entry *e = &im->entries[at];
    RG_ASSERT(index < e->view.n);
    float *sums = e->sums + (size_t)index * e->view.cols;
    for (uint64_t c0 = 0; c0 < e->view.cols; c0 += COLS_AT_ONCE) {
        const uint64_t left = e->view.cols - c0;
        const uint32_t width = left < COLS_AT_ONCE ? (uint32_t)left : COLS_AT_ONCE;
        double part[COLS_AT_ONCE] = {0};
        for (uint32_t i = 0; i < n; i++) {
            const float *row = x + (size_t)(rows ? rows[i] : i) * stride + c0;
            for (uint32_t c = 0; c < width; c++)
                part[c] += (double)row[c] * (double)row[c];
        }
        for (uint32_t c = 0; c < width; c++)
            sums[c0 + c] = (float)((double)sums[c0 + c] + part[c]);
    }
    e->counts[index] += (float)n;
}

bool rg_importance_at(const rg_importance *im, uint32_t i, rg_importance_view *out) {
    if (i >= im->n) return false;
    *out = im->entries[i].view;
    return true;
}
