/* Byte pair encoding (Sennrich, Haddow, Birch 2016): of all neighbours in a piece the pair of the
 * lowest merge rank is joined, the leftmost on ties, until none merges.
 *
 * Symbols form a doubly linked list over an array; candidate pairs wait in a binary heap. A merge
 * queues at most two new pairs, so a piece of n bytes costs O(n log n) with no recursion. Pairs are
 * not removed from the heap when a neighbour changes; they are recognised as stale when they come
 * up: symbols at a place only ever grow, so equal symbols mean the same pair.
 */
#include "text/bpe.h"

#include <string.h>

#define NO_SYMBOL UINT32_MAX

typedef struct rg_bpe_symbol {
    uint32_t symbol;
    uint32_t start, len; /* bytes in the piece; len 0: joined into a symbol on the left */
    uint32_t prev, next; /* NO_SYMBOL at the ends */
} rg_bpe_symbol;

typedef struct rg_bpe_pair {
    uint64_t order; /* rank << 32 | place of the left symbol */
    uint32_t left, right, merged;
} rg_bpe_pair;

_Static_assert(RG_TEXT_INPUT_MAX < NO_SYMBOL, "places fit 32 bits");

void rg_bpe_scratch_deinit(rg_bpe_scratch *s) {
    rg_free(s->symbols);
    rg_free(s->heap);
    *s = (rg_bpe_scratch){0};
}

/* ---- loading -----------------------------------------------------------------------------------
 */

/* Names the texts of merges while loading. */
typedef struct symbol_names {
    const rg_vocab *vocab;
    rg_map others; /* texts that are no tokens; keys lie in the loader's buffer */
} symbol_names;

static rg_code name_symbol(symbol_names *names, const char *bytes, size_t len, uint32_t *out,
                           rg_status *st) {
    uint64_t id = 0;
    if (rg_map_get(&names->vocab->by_bytes, bytes, len, &id)) {
        *out = (uint32_t)id;
        return RG_OK;
    }
    const uint64_t fresh = names->vocab->n_tokens + names->others.count;
    if (!rg_map_get(&names->others, bytes, len, &id)) {
        id = fresh;
        RG_TRY(rg_map_add(&names->others, bytes, len, fresh, NULL, st));
    }
    *out = (uint32_t)id;
    return RG_OK;
}

/* Splits "LEFT RIGHT" at the first space that is not its first character. */
static rg_code split_merge(rg_str text, size_t index, rg_str *left, rg_str *right, rg_status *st) {
    const char *space = text.len > 2 ? memchr(text.data + 1, ' ', text.len - 2) : NULL;
    if (!space) {
        return rg_fail(st, RG_FORMAT, "tokenizer: merge %zu is no pair: \"%.*s\"", index,
                       (int)(text.len < 40 ? text.len : 40), text.len ? text.data : "");
    }
    *left = (rg_str){text.data, (size_t)(space - text.data)};
    *right = (rg_str){space + 1, text.len - left->len - 1};
    return RG_OK;
}

static rg_code read_merges(rg_bpe *b, symbol_names *names, const rg_str *merges, size_t n,
                           char *buffer, rg_status *st) {
    rg_spelling spelling;
    rg_spelling_init(&spelling);
    for (size_t i = 0; i < n; i++) {
        rg_str left = {0};
        rg_str right = {0};
        RG_TRY(split_merge(merges[i], i, &left, &right, st));
        rg_merge m = {.rank = (uint32_t)i};
        const size_t left_len = rg_unspell(&spelling, left, buffer, NULL);
        const size_t right_len = rg_unspell(&spelling, right, buffer + left_len, NULL);
        RG_TRY(name_symbol(names, buffer, left_len, &m.left, st));
        RG_TRY(name_symbol(names, buffer + left_len, right_len, &m.right, st));
        RG_TRY(name_symbol(names, buffer, left_len + right_len, &m.merged, st));
        rg_merges_add(&b->merges, m);
        buffer += left_len + right_len;
    }
    return RG_OK;
}

rg_code rg_bpe_init(rg_bpe *b, const rg_vocab *v, const rg_str *merges, size_t n, rg_status *st) {
    *b = (rg_bpe){.n_tokens = (uint32_t)v->n_tokens, .unknown_id = -1};
    if (n > INT32_MAX / 4) {
        return rg_fail(st, RG_FORMAT, "tokenizer: %zu merges, at most %d are allowed", n,
                       INT32_MAX / 4);
    }
    rg_code rc = RG_OK;
    symbol_names names = {.vocab = v};
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        total += merges[i].len;
    }
    char *buffer = rg_alloc(total + 1, 1, st);
    if (!buffer) return RG_NOMEM;
    RG_GO(rg_merges_init(&b->merges, n, st));
    RG_GO(read_merges(b, &names, merges, n, buffer, st));
    for (int i = 0; i < 256; i++) {
        const char byte = (char)i;
        uint64_t id = 0;
        if (v->byte_ids[i] >= 0) {
            b->byte_symbols[i] = (uint32_t)v->byte_ids[i];
        } else if (rg_map_get(&names.others, &byte, 1, &id)) {
            b->byte_symbols[i] = (uint32_t)id;
        } else {
            b->byte_symbols[i] = NO_SYMBOL - 1; /* merges with nothing */
        }
    }

cleanup:
    rg_map_deinit(&names.others);
    rg_free(buffer);
    if (rc != RG_OK) rg_bpe_deinit(b);
    return rc;
}

void rg_bpe_deinit(rg_bpe *b) {
    rg_merges_deinit(&b->merges);
    *b = (rg_bpe){0};
}

/* ---- merging -----------------------------------------------------------------------------------
 */

rg_code rg_ids_push(rg_ids *ids, int32_t id, rg_status *st) {
    if (ids->count == ids->cap) {
        const size_t cap = ids->cap ? ids->cap * 2 : 64;
        int32_t *grown = rg_realloc(ids->ids, cap, sizeof *grown, st);
        if (!grown) return RG_NOMEM;
        ids->ids = grown;
        ids->cap = cap;
    }
    ids->ids[ids->count++] = id;
    return RG_OK;
}

static rg_code heap_push(rg_bpe_scratch *s, rg_bpe_pair pair, rg_status *st) {
    if (s->heap_count == s->heap_cap) {
        const size_t cap = s->heap_cap ? s->heap_cap * 2 : 256;
        rg_bpe_pair *grown = rg_realloc(s->heap, cap, sizeof *grown, st);
        if (!grown) return RG_NOMEM;
        s->heap = grown;
        s->heap_cap = cap;
    }
    size_t hole = s->heap_count++;
    while (hole > 0) {
        const size_t parent = (hole - 1) / 2;
        if (s->heap[parent].order <= pair.order) break;
        s->heap[hole] = s->heap[parent];
        hole = parent;
    }
    s->heap[hole] = pair;
    s->n_queued++;
    return RG_OK;
}

static rg_bpe_pair heap_pop(rg_bpe_scratch *s) {
    RG_ASSERT(s->heap_count > 0);
    const rg_bpe_pair top = s->heap[0];
    const rg_bpe_pair moving = s->heap[--s->heap_count];
    size_t hole = 0;
    for (size_t child = 1; child < s->heap_count; child = hole * 2 + 1) {
        if (child + 1 < s->heap_count && s->heap[child + 1].order < s->heap[child].order) child++;
        if (moving.order <= s->heap[child].order) break;
        s->heap[hole] = s->heap[child];
        hole = child;
    }
    s->heap[hole] = moving;
    return top;
}

/* Queues the pair that begins at `place`, if it merges. */
static rg_code queue_pair(const rg_bpe *b, rg_bpe_scratch *s, uint32_t place, rg_status *st) {
    if (place == NO_SYMBOL || s->symbols[place].next == NO_SYMBOL) return RG_OK;
    const rg_bpe_symbol *left = &s->symbols[place];
    const rg_bpe_symbol *right = &s->symbols[left->next];
    const rg_merge *m = rg_merges_find(&b->merges, left->symbol, right->symbol);
    if (!m) return RG_OK;
    const rg_bpe_pair pair = {(uint64_t)m->rank << 32 | place, left->symbol, right->symbol,
                              m->merged};
    return heap_push(s, pair, st);
}

static rg_code merge_all(const rg_bpe *b, rg_bpe_scratch *s, rg_status *st) {
    while (s->heap_count > 0) {
        const rg_bpe_pair pair = heap_pop(s);
        const uint32_t place = (uint32_t)pair.order;
        rg_bpe_symbol *left = &s->symbols[place];
        if (left->len == 0 || left->symbol != pair.left || left->next == NO_SYMBOL) continue;
        rg_bpe_symbol *right = &s->symbols[left->next];
        if (right->symbol != pair.right) continue;
        left->symbol = pair.merged;
        left->len += right->len;
        left->next = right->next;
        right->len = 0;
        if (left->next != NO_SYMBOL) s->symbols[left->next].prev = place;
        RG_TRY(queue_pair(b, s, left->prev, st));
        RG_TRY(queue_pair(b, s, place, st));
    }
    return RG_OK;
}

/* A symbol that is no token comes out as the tokens of its bytes. */
static rg_code emit(const rg_bpe *b, const rg_vocab *v, const rg_bpe_symbol *symbol,
                    const char *bytes, rg_ids *out, rg_status *st) {
    if (symbol->symbol < b->n_tokens) return rg_ids_push(out, (int32_t)symbol->symbol, st);
    for (uint32_t i = 0; i < symbol->len; i++) {
        const uint8_t byte = (uint8_t)bytes[symbol->start + i];
        const int32_t id = v->byte_ids[byte] >= 0 ? v->byte_ids[byte] : b->unknown_id;
        if (id < 0) {
            return rg_fail(st, RG_INVALID, "tokenizer: the vocabulary has no token for byte 0x%02x",
                           byte);
        }
        RG_TRY(rg_ids_push(out, id, st));
    }
    return RG_OK;
}

rg_code rg_bpe_piece(const rg_bpe *b, const rg_vocab *v, rg_bpe_scratch *s, const char *bytes,
                     size_t len, rg_ids *out, rg_status *st) {
    RG_ASSERT(len <= RG_TEXT_INPUT_MAX);
    if (len == 0) return RG_OK;
    if (len > s->symbols_cap) {
        size_t cap = s->symbols_cap ? s->symbols_cap : 64;
        while (cap < len) {
            cap *= 2;
        }
        rg_bpe_symbol *grown = rg_realloc(s->symbols, cap, sizeof *grown, st);
        if (!grown) return RG_NOMEM;
        s->symbols = grown;
        s->symbols_cap = cap;
    }
    const uint32_t n = (uint32_t)len;
    for (uint32_t i = 0; i < n; i++) {
        s->symbols[i] = (rg_bpe_symbol){.symbol = b->byte_symbols[(uint8_t)bytes[i]],
                                        .start = i,
                                        .len = 1,
                                        .prev = i ? i - 1 : NO_SYMBOL,
                                        .next = i + 1 < n ? i + 1 : NO_SYMBOL};
    }
    s->heap_count = 0;
    for (uint32_t i = 0; i + 1 < n; i++) {
        RG_TRY(queue_pair(b, s, i, st));
    }
    RG_TRY(merge_all(b, s, st));
    for (uint32_t i = 0; i != NO_SYMBOL; i = s->symbols[i].next) {
        RG_TRY(emit(b, v, &s->symbols[i], bytes, out, st));
    }
    return RG_OK;
}
