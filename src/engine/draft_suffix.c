#include "engine/draft_suffix.h"

#include <string.h>

#define N_ORDER   2u
#define TRIES_MAX 32u /* earlier places looked at, for each order */

static const uint32_t orders[N_ORDER] = {6, 2}; /* tokens hashed, longest first */

struct rg_suffix {
    size_t n, n_max;
    int32_t *ids; /* [n_max] */
    /* Positions behind a run of tokens, + 1; 0 = none. */
    uint32_t *head[N_ORDER]; /* [n_bucket] latest */
    uint32_t *prev[N_ORDER]; /* [n_max] the one before, of the same bucket */
    size_t n_bucket;         /* a power of two */
};

static size_t buckets_for(size_t n_max) {
    size_t n = 64;
    while (n < n_max)
        n *= 2;
    return n;
}

size_t rg_suffix_bytes(size_t n_max) {
    const size_t words = N_ORDER * (buckets_for(n_max) + n_max + 1) + n_max + 1;
    return sizeof(rg_suffix) + words * sizeof(uint32_t);
}

rg_code rg_suffix_create(rg_suffix **out, size_t n_max, rg_status *st) {
    *out = NULL;
    if (n_max >= UINT32_MAX) return rg_fail(st, RG_INVALID, "an index of %zu tokens", n_max);
    rg_suffix *s = rg_alloc(1, sizeof *s, st);
    if (!s) return RG_NOMEM;
    s->n_max = n_max;
    s->n_bucket = buckets_for(n_max);
    s->ids = rg_alloc(n_max + 1, sizeof *s->ids, st);
    bool good = s->ids != NULL;
    for (uint32_t o = 0; o < N_ORDER && good; o++) {
        s->head[o] = rg_alloc(s->n_bucket, sizeof *s->head[o], st);
        s->prev[o] = rg_alloc(n_max + 1, sizeof *s->prev[o], st);
        good = s->head[o] && s->prev[o];
    }
    if (!good) {
        rg_suffix_destroy(s);
        return RG_NOMEM;
    }
    *out = s;
    return RG_OK;
}

void rg_suffix_destroy(rg_suffix *s) {
    if (!s) return;
    for (uint32_t o = 0; o < N_ORDER; o++) {
        rg_free(s->head[o]);
        rg_free(s->prev[o]);
    }
    rg_free(s->ids);
    rg_free(s);
}

void rg_suffix_clear(rg_suffix *s) {
    s->n = 0;
    for (uint32_t o = 0; o < N_ORDER; o++)
        memset(s->head[o], 0, s->n_bucket * sizeof *s->head[o]);
}

size_t rg_suffix_length(const rg_suffix *s) {
    return s->n;
}

/* FNV-1a over the words, its high bits folded in. */
static size_t bucket_of(const rg_suffix *s, const int32_t *ids, uint32_t order) {
    uint64_t h = 14695981039346656037u;
    for (uint32_t i = 0; i < order; i++)
        h = (h ^ (uint32_t)ids[i]) * 1099511628211u;
    return (size_t)(h ^ h >> 32) & (s->n_bucket - 1);
}

void rg_suffix_push(rg_suffix *s, int32_t id) {
    RG_ASSERT(s->n < s->n_max);
    /* The runs that end before this token lead to it. */
    for (uint32_t o = 0; o < N_ORDER; o++) {
        if (s->n < orders[o]) continue;
        const size_t b = bucket_of(s, s->ids + s->n - orders[o], orders[o]);
        s->prev[o][s->n] = s->head[o][b];
        s->head[o][b] = (uint32_t)s->n + 1;
    }
    s->ids[s->n++] = id;
}

void rg_suffix_sync(rg_suffix *s, const int32_t *ids, size_t n) {
    RG_ASSERT(n <= s->n_max);
    if (n < s->n || (s->n && ids[s->n - 1] != s->ids[s->n - 1])) rg_suffix_clear(s);
    while (s->n < n)
        rg_suffix_push(s, ids[s->n]);
}

/* Tokens that agree before position `at` and before the end. */
static uint32_t match_length(const rg_suffix *s, size_t at) {
    uint32_t n = 0;
    while (n < RG_SUFFIX_MATCH_MAX && n < at && s->ids[at - 1 - n] == s->ids[s->n - 1 - n])
        n++;
    return n;
}

/* The longest match, the latest of equals; 0: none. */
static uint32_t find(const rg_suffix *s, uint32_t o, size_t *from) {
    uint32_t best = 0;
    if (s->n < orders[o]) return 0;
    uint32_t at = s->head[o][bucket_of(s, s->ids + s->n - orders[o], orders[o])];
    for (uint32_t i = 0; at && i < TRIES_MAX && best < RG_SUFFIX_MATCH_MAX; i++) {
        const uint32_t n = match_length(s, at - 1);
        if (n >= orders[o] && n > best) {
            best = n;
            *from = at - 1;
        }
        at = s->prev[o][at - 1];
    }
    return best;
}

uint32_t rg_suffix_draft(const rg_suffix *s, uint32_t n_max, int32_t *ids, uint32_t *match) {
    size_t from = 0;
    uint32_t best = 0;
    for (uint32_t o = 0; o < N_ORDER && !best; o++)
        best = find(s, o, &from);
    *match = best;
    if (!best) return 0;
    for (uint32_t i = 0; i < n_max; i++)
        ids[i] = from + i < s->n ? s->ids[from + i] : ids[from + i - s->n];
    return n_max;
}
