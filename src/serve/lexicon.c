#include "serve/lexicon.h"

#include <stdlib.h>
#include <string.h>

rg_str rg_lexicon_token(const rg_lexicon *l, int32_t id) {
    if (id < 0 || (size_t)id >= l->n) return (rg_str){"", 0};
    return (rg_str){l->bytes + l->offsets[id], l->offsets[id + 1] - l->offsets[id]};
}

static rg_code collect(rg_lexicon *l, const rg_vocab *vocab, rg_buf *all, rg_status *st) {
    for (size_t i = 0; i < l->n; i++) {
        char *text = NULL;
        size_t len = 0;
        bool control = false;
        RG_TRY(rg_vocab_token(vocab, (int32_t)i, &text, &len, &control, st));
        const rg_code rc = rg_buf_append(all, text, len, st);
        rg_release(text);
        RG_TRY(rc);
        l->offsets[i + 1] = (uint32_t)all->len;
        l->kinds[i] = rg_vocab_is_end(vocab, (int32_t)i) ? 2 : control ? 1 : 0;
        if (l->kinds[i] == 0 && len > 0 && len <= RG_LEXICON_TOKEN_MAX) {
            l->order[l->n_sorted++] = (uint32_t)i;
        }
    }
    return RG_OK;
}

static int compare(const void *a, const void *b, void *lexicon) {
    const rg_lexicon *l = lexicon;
    const uint32_t *i = a, *k = b;
    const rg_str x = rg_lexicon_token(l, (int32_t)*i), y = rg_lexicon_token(l, (int32_t)*k);
    const int c = memcmp(x.data, y.data, x.len < y.len ? x.len : y.len);
    if (c) return c;
    if (x.len != y.len) return x.len < y.len ? -1 : 1;
    return *i < *k ? -1 : *i > *k;
}

rg_code rg_lexicon_init(rg_lexicon *l, const rg_vocab *vocab, rg_status *st) {
    *l = (rg_lexicon){.n = rg_vocab_size(vocab)};
    rg_buf all;
    rg_buf_init(&all, UINT32_MAX);
    l->offsets = rg_alloc(l->n + 1, sizeof *l->offsets, st);
    l->kinds = rg_alloc(l->n, 1, st);
    l->order = rg_alloc(l->n, sizeof *l->order, st);
    l->shared = rg_alloc(l->n, sizeof *l->shared, st);
    rg_code rc = l->offsets && l->kinds && l->order && l->shared ? RG_OK : RG_NOMEM;
    if (rc == RG_OK) rc = collect(l, vocab, &all, st);
    if (rc != RG_OK) {
        rg_buf_deinit(&all);
        rg_lexicon_deinit(l);
        return rc;
    }
    l->bytes = all.data;
    qsort_r(l->order, l->n_sorted, sizeof *l->order, compare, l);
    for (size_t i = 1; i < l->n_sorted; i++) {
        const rg_str x = rg_lexicon_token(l, (int32_t)l->order[i - 1]);
        const rg_str y = rg_lexicon_token(l, (int32_t)l->order[i]);
        uint16_t n = 0;
        while (n < x.len && n < y.len && x.data[n] == y.data[n])
            n++;
        l->shared[i] = n;
    }
    return RG_OK;
}

void rg_lexicon_deinit(rg_lexicon *l) {
    rg_free(l->bytes);
    rg_free(l->offsets);
    rg_free(l->kinds);
    rg_free(l->order);
    rg_free(l->shared);
    *l = (rg_lexicon){0};
}
