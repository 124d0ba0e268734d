#include "forge/ple_constants.h"

#define GAMMA UINT64_C(0x9E3779B97F4A7C15)

/* SplitMix64's step: the increment belongs to the function here (spec 4.3). */
static uint64_t mix64(uint64_t v) {
    v += GAMMA;
    v = (v ^ (v >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    v = (v ^ (v >> 27)) * UINT64_C(0x94D049BB133111EB);
    return v ^ (v >> 31);
}

static bool is_prime(uint64_t n) {
    if (n < 4) return n >= 2;
    if (n % 2 == 0) return false;
    for (uint64_t i = 3; i * i <= n; i += 2) {
        if (n % i == 0) return false;
    }
    return true;
}

rg_code rg_ple_constants_derive(rg_ple_constants *c, uint32_t vocab, uint32_t ngram,
                                uint32_t heads_per_ngram, uint64_t base, uint64_t divisor,
                                uint64_t seed, rg_status *st) {
    RG_ASSERT(vocab >= 1);
    RG_ASSERT(ngram >= 2 && ngram <= RG_NGRAM_MAX);
    RG_ASSERT(heads_per_ngram >= 1 && heads_per_ngram * (ngram - 1) <= RG_NGRAM_HEADS_MAX);
    *c = (rg_ple_constants){.n_head = heads_per_ngram * (ngram - 1)};
    if (base > RG_PLE_ROWS_MAX / c->n_head || divisor == 0 || divisor > RG_PLE_ROWS_MAX) {
        return rg_fail(st, RG_INVALID, "%u n-gram heads of %llu rows exceed the limit of %u rows",
                       c->n_head, (unsigned long long)base, RG_PLE_ROWS_MAX);
    }
    uint64_t bound = (uint64_t)INT64_MAX / vocab / 2;
    if (bound == 0) bound = 1;
    for (uint32_t i = 0; i < ngram; i++)
        c->mult[i] = 2 * (mix64(seed + GAMMA * (i + 1)) % bound) + 1;
    /* A prime lies below twice any number above 1 (Bertrand), so the loop is bounded by the limit
     * on the base. */
    uint64_t v = base, sum = 0;
    for (uint32_t h = 0; h < c->n_head; v++) {
        if (!is_prime(v)) continue;
        c->size[h] = v;
        c->offset[h] = sum;
        sum += v;
        h++;
    }
    c->rows = (sum + divisor - 1) / divisor * divisor;
    if (c->rows >= RG_PLE_ROWS_MAX) {
        return rg_fail(st, RG_INVALID, "the n-gram table would have %llu rows, the limit is %u",
                       (unsigned long long)c->rows, RG_PLE_ROWS_MAX);
    }
    return RG_OK;
}

void rg_ple_constants_rows(const rg_ple_constants *c, uint32_t ngram, const uint64_t *context,
                           uint64_t *rows) {
    const uint32_t per = c->n_head / (ngram - 1);
    uint64_t hash = context[0] * c->mult[0];
    for (uint32_t k = 1; k < ngram; k++) {
        hash ^= context[k] * c->mult[k];
        for (uint32_t h = (k - 1) * per; h < k * per; h++)
            rows[h] = hash % c->size[h] + c->offset[h];
    }
}
