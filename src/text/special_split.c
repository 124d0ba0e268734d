/* Cuts text at special tokens, before pre-tokenisation.
 *
 * The rule is "longest token first over the whole text, then leftmost". All occurrences are found
 * in one pass (binary search over the sorted texts, one byte deeper at a time), then taken in order
 * of rank unless they touch one already taken. Those are at least as long as the candidate, so an
 * overlap always covers its first or its last byte: two look-ups in a bit map decide.
 */
#include "text/vocab.h"

#include <string.h>

typedef struct found {
    size_t pos;
    uint32_t special; /* index in vocab.specials */
    bool taken;
} found;

typedef struct found_list {
    found *items; /* in order of position */
    size_t count, cap;
} found_list;

static rg_code list_push(found_list *l, found item, rg_status *st) {
    if (l->count == l->cap) {
        const size_t cap = l->cap ? l->cap * 2 : 64;
        found *grown = rg_realloc(l->items, cap, sizeof *grown, st);
        if (!grown) return RG_NOMEM;
        l->items = grown;
        l->cap = cap;
    }
    l->items[l->count++] = item;
    return RG_OK;
}

/* First of specials[lo, hi), which share `depth` bytes, whose next byte is >= `byte` (> `byte` when
 * `above`). A text that ends here sorts first. */
static size_t bound(const rg_vocab *v, size_t lo, size_t hi, size_t depth, uint8_t byte,
                    bool above) {
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        const rg_special *s = &v->specials[mid];
        const int have = s->len > depth ? (uint8_t)s->text[depth] : -1;
        if (have < (int)byte || (above && have == (int)byte)) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static bool is_wanted(const rg_vocab *v, const rg_special *s, bool parse_special) {
    return parse_special || v->kinds[s->id] == RG_TOKEN_USER;
}

/* Adds every special token that stands at `pos`. */
static rg_code find_at(const rg_vocab *v, const char *text, size_t len, size_t pos,
                       bool parse_special, found_list *out, rg_status *st) {
    size_t lo = 0;
    size_t hi = v->n_specials;
    for (size_t depth = 0; pos + depth < len; depth++) {
        const uint8_t byte = (uint8_t)text[pos + depth];
        lo = bound(v, lo, hi, depth, byte, false);
        hi = bound(v, lo, hi, depth, byte, true);
        if (lo == hi) break;
        /* Equal texts stand together in order of id; the first wanted one counts. */
        for (size_t i = lo; i < hi && v->specials[i].len == depth + 1; i++) {
            if (!is_wanted(v, &v->specials[i], parse_special)) continue;
            RG_TRY(list_push(out, (found){pos, (uint32_t)i, false}, st));
            break;
        }
    }
    return RG_OK;
}

static bool bit_get(const uint8_t *bits, size_t i) {
    return bits[i >> 3] >> (i & 7) & 1;
}

/* Marks the occurrences that count. */
static rg_code take(const rg_vocab *v, found_list *l, size_t text_len, rg_status *st) {
    rg_code rc = RG_NOMEM;
    uint8_t *covered = rg_alloc(text_len / 8 + 1, 1, st);
    size_t *order = covered ? rg_alloc(l->count, sizeof *order, st) : NULL;
    size_t *starts = order ? rg_alloc(v->n_specials + 1, sizeof *starts, st) : NULL;
    if (!starts) goto cleanup;
    for (size_t i = 0; i < l->count; i++) { /* counting sort by rank, stable in position */
        starts[v->specials[l->items[i].special].rank + 1]++;
    }
    for (size_t i = 0; i < v->n_specials; i++) {
        starts[i + 1] += starts[i];
    }
    for (size_t i = 0; i < l->count; i++) {
        order[starts[v->specials[l->items[i].special].rank]++] = i;
    }
    for (size_t i = 0; i < l->count; i++) {
        found *f = &l->items[order[i]];
        const size_t end = f->pos + v->specials[f->special].len;
        if (bit_get(covered, f->pos) || bit_get(covered, end - 1)) continue;
        f->taken = true;
        for (size_t k = f->pos; k < end; k++) {
            covered[k >> 3] = (uint8_t)(covered[k >> 3] | 1u << (k & 7));
        }
    }
    rc = RG_OK;

cleanup:
    rg_free(covered);
    rg_free(order);
    rg_free(starts);
    return rc;
}

rg_code rg_special_split(const rg_vocab *v, const char *text, size_t len, bool parse_special,
                         rg_special_fn *fn, void *arg, rg_status *st) {
    rg_code rc = RG_OK;
    found_list list = {0};
    bool first[256] = {false}; /* bytes that begin a wanted token */
    for (size_t i = 0; i < v->n_specials; i++) {
        const rg_special *s = &v->specials[i];
        if (is_wanted(v, s, parse_special)) first[(uint8_t)s->text[0]] = true;
    }
    for (size_t pos = 0; pos < len; pos++) {
        if (!first[(uint8_t)text[pos]]) continue;
        RG_GO(find_at(v, text, len, pos, parse_special, &list, st));
    }
    if (list.count) RG_GO(take(v, &list, len, st));
    size_t done = 0;
    for (size_t i = 0; i < list.count; i++) {
        const found *f = &list.items[i];
        if (!f->taken) continue;
        const rg_special *s = &v->specials[f->special];
        if (f->pos > done) RG_GO(fn(arg, text + done, f->pos - done, -1, st));
        RG_GO(fn(arg, text + f->pos, s->len, s->id, st));
        done = f->pos + s->len;
    }
    if (len > done) RG_GO(fn(arg, text + done, len - done, -1, st));

cleanup:
    rg_free(list.items);
    return rc;
}
