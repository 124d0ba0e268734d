/* Vocabulary (see vocab.h). Normal tokens are stored in the file in GPT-2's spelling: each byte
 * stands as one printable character (Radford et al. 2019, bytes_to_unicode): bytes that print in
 * Latin-1 as themselves, the other 68 in ascending order as U+0100, U+0101, ...
 */
#include "text/vocab.h"

#include <string.h>

#include "text/utf8.h"

static bool prints(unsigned byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

void rg_spelling_init(rg_spelling *s) {
    unsigned next = 256;
    for (unsigned i = 0; i < RG_SPELLING_CODES; i++) {
        s->bytes[i] = -1;
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        s->bytes[prints(byte) ? byte : next++] = (int16_t)byte;
    }
    RG_ASSERT(next == RG_SPELLING_CODES);
}

size_t rg_unspell(const rg_spelling *s, rg_str text, char *dst, bool *spelt) {
    size_t n = 0;
    for (size_t i = 0; i < text.len;) {
        const rg_utf8_step step = rg_utf8_next((const uint8_t *)text.data + i, text.len - i);
        if (step.kind != RG_UTF8_VALID || step.code >= RG_SPELLING_CODES ||
            s->bytes[step.code] < 0) {
            memcpy(dst, text.data, text.len);
            if (spelt) *spelt = false;
            return text.len;
        }
        dst[n++] = (char)s->bytes[step.code];
        i += step.len;
    }
    if (spelt) *spelt = true;
    return n;
}

/* "<0x0A>" of a byte token; -1 if it is not of that form. */
static int byte_token_value(rg_str text) {
    if (text.len != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>') return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        const char c = text.data[i];
        if (c >= '0' && c <= '9') {
            value = value * 16 + (c - '0');
        } else if (c >= 'A' && c <= 'F') {
            value = value * 16 + (c - 'A' + 10);
        } else {
            return -1;
        }
    }
    return value;
}

static bool is_special(rg_token_kind kind) {
    return kind == RG_TOKEN_CONTROL || kind == RG_TOKEN_USER || kind == RG_TOKEN_UNKNOWN;
}

static void read_tokens(rg_vocab *v, const rg_str *tokens) {
    rg_spelling spelling;
    int32_t byte_tokens[256]; /* "<0x..>" tokens, second choice */
    rg_spelling_init(&spelling);
    for (int i = 0; i < 256; i++) {
        v->byte_ids[i] = byte_tokens[i] = -1;
    }
    size_t n = 0;
    for (size_t i = 0; i < v->n_tokens; i++) {
        const rg_token_kind kind = (rg_token_kind)v->kinds[i];
        char *dst = v->bytes + n;
        v->offsets[i] = n;
        if (kind == RG_TOKEN_NORMAL) {
            bool spelt = false;
            const size_t len = rg_unspell(&spelling, tokens[i], dst, &spelt);
            if (spelt && len == 1) v->byte_ids[(uint8_t)*dst] = (int32_t)i;
            n += len;
            continue;
        }
        const int value = kind == RG_TOKEN_BYTE ? byte_token_value(tokens[i]) : -1;
        if (value >= 0) {
            byte_tokens[value] = (int32_t)i;
            *dst = (char)value;
            n++;
        } else {
            if (tokens[i].len) memcpy(dst, tokens[i].data, tokens[i].len);
            n += tokens[i].len;
        }
        if (is_special(kind) && tokens[i].len) v->n_specials++;
    }
    v->offsets[v->n_tokens] = n;
    for (int i = 0; i < 256; i++) {
        if (v->byte_ids[i] < 0) v->byte_ids[i] = byte_tokens[i];
    }
}

static int compare_bytes(const char *a, size_t a_len, const char *b, size_t b_len) {
    const int order = memcmp(a, b, a_len < b_len ? a_len : b_len);
    if (order != 0) return order;
    return a_len < b_len ? -1 : a_len > b_len;
}

static bool before_bytewise(const rg_special *a, const rg_special *b) {
    const int order = compare_bytes(a->text, a->len, b->text, b->len);
    return order != 0 ? order < 0 : a->id < b->id;
}

static bool before_in_rank(const rg_special *a, const rg_special *b) {
    return a->len != b->len ? a->len > b->len : a->id < b->id;
}

/* Heap sort (Williams 1964): no extra memory, no bad case. */
static void sort_specials(rg_special *a, size_t n,
                          bool (*before)(const rg_special *, const rg_special *)) {
    for (size_t built = n / 2, end = n; end > 1;) {
        rg_special moving;
        if (built > 0) {
            moving = a[--built];
        } else {
            moving = a[--end];
            a[end] = a[0];
        }
        size_t hole = built;
        for (size_t child = hole * 2 + 1; child < end; child = hole * 2 + 1) {
            if (child + 1 < end && before(&a[child], &a[child + 1])) child++;
            if (!before(&moving, &a[child])) break;
            a[hole] = a[child];
            hole = child;
        }
        a[hole] = moving;
    }
}

static rg_code index_specials(rg_vocab *v, rg_status *st) {
    v->specials = rg_alloc(v->n_specials, sizeof *v->specials, st);
    if (!v->specials) return RG_NOMEM;
    size_t n = 0;
    for (size_t i = 0; i < v->n_tokens; i++) {
        const rg_str s = rg_vocab_bytes(v, (int32_t)i);
        if (!is_special((rg_token_kind)v->kinds[i]) || !s.len) continue;
        v->specials[n++] = (rg_special){.text = s.data, .len = s.len, .id = (int32_t)i};
    }
    RG_ASSERT(n == v->n_specials);
    sort_specials(v->specials, n, before_in_rank);
    for (size_t i = 0; i < n; i++) {
        v->specials[i].rank = (uint32_t)i;
    }
    sort_specials(v->specials, n, before_bytewise);
    return RG_OK;
}

rg_code rg_vocab_init(rg_vocab *v, const rg_str *tokens, const uint8_t *kinds, size_t n_tokens,
                      rg_status *st) {
    *v = (rg_vocab){.n_tokens = n_tokens};
    if (n_tokens == 0 || n_tokens > INT32_MAX) {
        return rg_fail(st, RG_FORMAT, "tokenizer: %zu tokens, allowed are 1 to %d", n_tokens,
                       INT32_MAX);
    }
    size_t total = 0;
    for (size_t i = 0; i < n_tokens; i++) {
        total += tokens[i].len;
    }
    rg_code rc = RG_NOMEM;
    v->bytes = rg_alloc(total + 1, 1, st);
    v->offsets = v->bytes ? rg_alloc(n_tokens + 1, sizeof *v->offsets, st) : NULL;
    v->kinds = v->offsets ? rg_alloc(n_tokens, 1, st) : NULL;
    if (!v->kinds) goto cleanup;
    for (size_t i = 0; i < n_tokens; i++) {
        v->kinds[i] = kinds ? kinds[i] : (uint8_t)RG_TOKEN_NORMAL;
        if (v->kinds[i] < RG_TOKEN_NORMAL || v->kinds[i] > RG_TOKEN_BYTE) {
            rc = rg_fail(st, RG_FORMAT, "tokenizer: token %zu has type %d, known are 1 to 6", i,
                         v->kinds[i]);
            goto cleanup;
        }
    }
    read_tokens(v, tokens);
    for (size_t i = n_tokens; i-- > 0;) {
        const rg_str s = rg_vocab_bytes(v, (int32_t)i);
        RG_GO(rg_map_add(&v->by_bytes, s.data, s.len, i, NULL, st));
    }
    RG_GO(index_specials(v, st));
    return RG_OK;

cleanup:
    rg_vocab_deinit(v);
    return rc;
}

void rg_vocab_deinit(rg_vocab *v) {
    rg_map_deinit(&v->by_bytes);
    rg_free(v->bytes);
    rg_free(v->offsets);
    rg_free(v->kinds);
    rg_free(v->specials);
    *v = (rg_vocab){0};
}

rg_str rg_vocab_bytes(const rg_vocab *v, int32_t id) {
    RG_ASSERT(id >= 0 && (size_t)id < v->n_tokens);
    const size_t begin = v->offsets[id];
    return (rg_str){v->bytes + begin, v->offsets[id + 1] - begin};
}
