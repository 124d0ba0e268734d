/* Suffix drafts against a search through the whole text, on texts of few and of many tokens; bounds
 * of memory; going back and starting over.
 */
#include "engine/draft_suffix.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define N     600u
#define DRAFT 7u

/* Longest earlier match of the end, the latest of equals: looked for everywhere. */
static uint32_t naive_match(const int32_t *ids, size_t n, size_t *from) {
    uint32_t best = 0;
    for (size_t at = 1; at < n; at++) {
        uint32_t k = 0;
        while (k < at && k < RG_SUFFIX_MATCH_MAX && ids[at - 1 - k] == ids[n - 1 - k])
            k++;
        if (k < best || k < 2) continue;
        best = k;
        *from = at;
    }
    return best;
}

static rg_suffix *create(size_t n_max) {
    rg_suffix *s = NULL;
    assert_int_equal(rg_suffix_create(&s, n_max, NULL), RG_OK);
    return s;
}

static void fill(int32_t *ids, size_t n, uint32_t n_kind, uint64_t seed) {
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(rg_random_u64(seed, i) % n_kind);
    /* A passage that comes back. */
    for (size_t i = n / 2; i + 40 < n && i < n / 2 + 90; i++)
        ids[i] = ids[i - n / 3];
}

static void the_longest_match_goes_on(void **state) {
    (void)state;
    static int32_t ids[N];
    uint32_t longest = 0;
    for (uint32_t n_kind = 20; n_kind <= 2000; n_kind *= 10) {
        rg_suffix *s = create(N);
        fill(ids, N, n_kind, n_kind);
        for (size_t n = 1; n <= N; n++) {
            int32_t draft[DRAFT];
            uint32_t match = 77;
            size_t from = 0;
            rg_suffix_sync(s, ids, n);
            assert_int_equal(rg_suffix_length(s), n);
            const uint32_t want = naive_match(ids, n, &from);
            const uint32_t got = rg_suffix_draft(s, DRAFT, draft, &match);
            assert_int_equal(match, want);
            assert_int_equal(got, want ? DRAFT : 0);
            for (uint32_t i = 0; i < got && from + i < n; i++)
                assert_int_equal(draft[i], ids[from + i]);
            longest = match > longest ? match : longest;
        }
        rg_suffix_destroy(s);
    }
    assert_true(longest >= 40);
}

static void a_period_repeats(void **state) {
    (void)state;
    rg_suffix *s = create(64);
    int32_t draft[DRAFT];
    uint32_t match = 0;
    for (int32_t i = 0; i < 8; i++)
        rg_suffix_push(s, 100 + i % 3);
    assert_int_equal(rg_suffix_draft(s, DRAFT, draft, &match), DRAFT);
    assert_int_equal(match, 5);
    for (int32_t i = 0; i < (int32_t)DRAFT; i++)
        assert_int_equal(draft[i], 100 + (8 + i) % 3);
    rg_suffix_destroy(s);
}

static void another_text_starts_over(void **state) {
    (void)state;
    static int32_t a[N], b[N];
    fill(a, N, 30, 1);
    fill(b, N, 30, 2);
    rg_suffix *s = create(N), *fresh = create(N);
    for (uint32_t round = 0; round < 3; round++) {
        const size_t n = 100 + 150 * round;
        rg_suffix_sync(s, a, N);
        rg_suffix_sync(s, b, n); /* shorter */
        rg_suffix_clear(fresh);
        rg_suffix_sync(fresh, b, n);
        int32_t x[DRAFT], y[DRAFT];
        uint32_t m = 0, k = 1;
        const uint32_t got = rg_suffix_draft(s, DRAFT, x, &m);
        assert_int_equal(got, rg_suffix_draft(fresh, DRAFT, y, &k));
        assert_int_equal(m, k);
        if (got) assert_memory_equal(x, y, got * sizeof *x);
    }
    rg_suffix_clear(s);
    uint32_t match = 5;
    int32_t draft[DRAFT];
    assert_int_equal(rg_suffix_draft(s, DRAFT, draft, &match), 0);
    assert_int_equal(match, 0);
    rg_suffix_destroy(s);
    rg_suffix_destroy(fresh);
}

/* Time is bounded: a text of one token has every place in one bucket. */
static void memory_and_time_are_bounded(void **state) {
    (void)state;
    const size_t n = 200000;
    const uint64_t before = rg_alloc_live_bytes();
    rg_suffix *s = create(n);
    const uint64_t taken = rg_alloc_live_bytes() - before; /* in whole pages */
    assert_true(taken <= rg_suffix_bytes(n) + 32768);
    assert_true(rg_suffix_bytes(n) < 40 * n);
    for (size_t i = 0; i < n; i++)
        rg_suffix_push(s, 7);
    int32_t draft[DRAFT];
    uint32_t match = 0;
    for (int i = 0; i < 1000; i++)
        assert_int_equal(rg_suffix_draft(s, DRAFT, draft, &match), DRAFT);
    assert_int_equal(match, RG_SUFFIX_MATCH_MAX);
    assert_int_equal(draft[DRAFT - 1], 7);
    rg_suffix_destroy(s);
    rg_suffix *none = NULL;
    assert_int_equal(rg_suffix_create(&none, UINT32_MAX, NULL), RG_INVALID);
    assert_null(none);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_match_goes_on),
        cmocka_unit_test(a_period_repeats),
        cmocka_unit_test(another_text_starts_over),
        cmocka_unit_test(memory_and_time_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
