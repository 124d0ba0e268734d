/* Merging against a naive form: scan for the best pair, join it, start again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "text/bpe.h"

#define N_LETTERS 3
#define TEXTS_MAX 64

/* A random vocabulary over the letters a, b, c: each merge joins two earlier texts. */
typedef struct fixture {
    char texts[TEXTS_MAX][64];
    char merges[TEXTS_MAX][132];
    size_t n_texts, n_merges;
    rg_str token_list[TEXTS_MAX], merge_list[TEXTS_MAX];
    uint32_t left[TEXTS_MAX], right[TEXTS_MAX], merged[TEXTS_MAX];
} fixture;

static uint32_t text_index(fixture *f, const char *text) {
    for (size_t i = 0; i < f->n_texts; i++) {
        if (strcmp(f->texts[i], text) == 0) return (uint32_t)i;
    }
    memcpy(f->texts[f->n_texts], text, strlen(text) + 1);
    return (uint32_t)f->n_texts++;
}

static void make_fixture(fixture *f, uint64_t seed) {
    *f = (fixture){0};
    text_index(f, "a");
    text_index(f, "b");
    text_index(f, "c");
    for (uint64_t k = 0; k < 20; k++) {
        const uint32_t left = (uint32_t)(rg_random_u64(seed, 2 * k) % f->n_texts);
        const uint32_t right = (uint32_t)(rg_random_u64(seed, 2 * k + 1) % f->n_texts);
        char joined[128];
        snprintf(joined, sizeof joined, "%s%s", f->texts[left], f->texts[right]);
        if (strlen(joined) > 12) continue;
        char spelt[132];
        snprintf(spelt, sizeof spelt, "%s %s", f->texts[left], f->texts[right]);
        memcpy(f->merges[f->n_merges], spelt, sizeof spelt);
        f->left[f->n_merges] = left;
        f->right[f->n_merges] = right;
        f->merged[f->n_merges] = text_index(f, joined);
        f->n_merges++;
    }
    for (size_t i = 0; i < f->n_texts; i++) {
        f->token_list[i] = (rg_str){f->texts[i], strlen(f->texts[i])};
    }
    for (size_t i = 0; i < f->n_merges; i++) {
        f->merge_list[i] = (rg_str){f->merges[i], strlen(f->merges[i])};
    }
}

static size_t merge_naively(const fixture *f, uint32_t *symbols, size_t n) {
    for (;;) {
        size_t best_at = 0;
        size_t best_rank = f->n_merges;
        for (size_t i = 0; i + 1 < n; i++) {
            for (size_t rank = 0; rank < best_rank; rank++) {
                if (f->left[rank] != symbols[i] || f->right[rank] != symbols[i + 1]) continue;
                best_rank = rank;
                best_at = i;
                break;
            }
        }
        if (best_rank == f->n_merges) return n;
        symbols[best_at] = f->merged[best_rank];
        memmove(&symbols[best_at + 1], &symbols[best_at + 2],
                (n - best_at - 2) * sizeof symbols[0]);
        n--;
    }
}

static void equals_naive(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        fixture f;
        make_fixture(&f, seed);
        rg_vocab v;
        rg_bpe b;
        rg_bpe_scratch scratch = {0};
        assert_int_equal(rg_vocab_init(&v, f.token_list, NULL, f.n_texts, NULL), RG_OK);
        assert_int_equal(rg_bpe_init(&b, &v, f.merge_list, f.n_merges, NULL), RG_OK);
        for (uint64_t round = 0; round < 30; round++) {
            char text[80];
            uint32_t want[80];
            size_t n = rg_random_u64(seed, 1000 + round) % sizeof text;
            for (size_t i = 0; i < n; i++) {
                want[i] = (uint32_t)(rg_random_u64(seed * 100 + round, i) % N_LETTERS);
                text[i] = (char)('a' + (int)want[i]);
            }
            rg_ids ids = {0};
            assert_int_equal(rg_bpe_piece(&b, &v, &scratch, text, n, &ids, NULL), RG_OK);
            n = merge_naively(&f, want, n);
            assert_int_equal(ids.count, n);
            for (size_t i = 0; i < n; i++) {
                assert_int_equal(ids.ids[i], want[i]);
            }
            rg_free(ids.ids);
        }
        rg_bpe_scratch_deinit(&scratch);
        rg_bpe_deinit(&b);
        rg_vocab_deinit(&v);
    }
}

#define STR(s)                                                                                     \
    { s, sizeof(s) - 1 }

/* A merge whose result is no token: it takes part, but comes out byte by byte. */
static void merged_text_without_token(void **state) {
    (void)state;
    static const rg_str tokens[] = {STR("a"), STR("b"), STR("c"), STR("abc")};
    static const rg_str merges[] = {STR("a b"), STR("ab c")};
    rg_vocab v;
    rg_bpe b;
    rg_bpe_scratch scratch = {0};
    rg_ids ids = {0};
    assert_int_equal(rg_vocab_init(&v, tokens, NULL, 4, NULL), RG_OK);
    assert_int_equal(rg_bpe_init(&b, &v, merges, 2, NULL), RG_OK);
    assert_int_equal(rg_bpe_piece(&b, &v, &scratch, "abcab", 5, &ids, NULL), RG_OK);
    assert_int_equal(ids.count, 3);
    assert_int_equal(ids.ids[0], 3);
    assert_int_equal(ids.ids[1], 0);
    assert_int_equal(ids.ids[2], 1);

    rg_status st = {0};
    assert_int_equal(rg_bpe_piece(&b, &v, &scratch, "az", 2, &ids, &st), RG_INVALID);
    assert_non_null(strstr(st.message, "0x7a"));
    b.unknown_id = 2;
    ids.count = 0;
    assert_int_equal(rg_bpe_piece(&b, &v, &scratch, "az", 2, &ids, NULL), RG_OK);
    assert_int_equal(ids.count, 2);
    assert_int_equal(ids.ids[1], 2);
    rg_free(ids.ids);
    rg_bpe_scratch_deinit(&scratch);
    rg_bpe_deinit(&b);
    rg_vocab_deinit(&v);
}

static void bad_merges(void **state) {
    (void)state;
    static const rg_str tokens[] = {STR("a"), STR("b")};
    static const rg_str bad[] = {STR(""), STR("ab"), STR(" a"), STR("a "), STR(" ")};
    rg_vocab v;
    assert_int_equal(rg_vocab_init(&v, tokens, NULL, 2, NULL), RG_OK);
    for (size_t i = 0; i < RG_ARRAY_LEN(bad); i++) {
        rg_bpe b;
        rg_status st = {0};
        assert_int_equal(rg_bpe_init(&b, &v, &bad[i], 1, &st), RG_FORMAT);
        assert_non_null(strstr(st.message, "merge 0"));
    }
    rg_vocab_deinit(&v);
}

/* One megabyte where everything merges: a a, aa aa, ... Queued pairs stay linear in the text. */
static void long_piece(void **state) {
    (void)state;
    enum { LEVELS = 12, N = (1 << 20) + 5 };
    static char texts[LEVELS + 1][1 << LEVELS];
    static char spelt[LEVELS][(2 << LEVELS) + 1];
    rg_str tokens[LEVELS + 1];
    rg_str merges[LEVELS];
    for (size_t i = 0; i <= LEVELS; i++) {
        const size_t len = (size_t)1 << i;
        memset(texts[i], 'a', len);
        tokens[i] = (rg_str){texts[i], len};
        if (i == LEVELS) break;
        memset(spelt[i], 'a', 2 * len + 1);
        spelt[i][len] = ' ';
        merges[i] = (rg_str){spelt[i], 2 * len + 1};
    }
    rg_vocab v;
    rg_bpe b;
    rg_bpe_scratch scratch = {0};
    rg_ids ids = {0};
    assert_int_equal(rg_vocab_init(&v, tokens, NULL, LEVELS + 1, NULL), RG_OK);
    assert_int_equal(rg_bpe_init(&b, &v, merges, LEVELS, NULL), RG_OK);
    char *text = rg_alloc(N, 1, NULL);
    assert_non_null(text);
    memset(text, 'a', N);
    assert_int_equal(rg_bpe_piece(&b, &v, &scratch, text, N, &ids, NULL), RG_OK);
    assert_true(scratch.n_queued <= 3 * (uint64_t)N);
    assert_int_equal(ids.count, (N >> LEVELS) + 2); /* whole ones, then 4 and 1 */
    for (size_t i = 0; i + 2 < ids.count; i++) {
        assert_int_equal(ids.ids[i], LEVELS);
    }
    assert_int_equal(ids.ids[ids.count - 2], 2);
    assert_int_equal(ids.ids[ids.count - 1], 0);
    rg_free(text);
    rg_free(ids.ids);
    rg_bpe_scratch_deinit(&scratch);
    rg_bpe_deinit(&b);
    rg_vocab_deinit(&v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_naive),
        cmocka_unit_test(merged_text_without_token),
        cmocka_unit_test(long_piece),
        cmocka_unit_test(bad_merges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
