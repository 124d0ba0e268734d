#include "stream/readahead.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

typedef struct fixture {
    rg_items items;
    rg_arena arena;
    rg_cache cache;
    rg_stream_meters meters;
    rg_readahead ahead;
} fixture;

static void on_dropped(void *user, uint32_t slot) {
    (void)user;
    (void)slot;
}

static void on_recut(void *user, uint32_t first_slot, uint32_t n_slot) {
    (void)user;
    (void)first_slot;
    (void)n_slot;
}

static void open_fixture(fixture *f, int32_t lookahead, uint32_t cost_permille) {
    rg_stream_group groups[2] = {{.n_item = 64, .n_extent = 1}, {.n_item = 64, .n_extent = 1}};
    const rg_cache_hooks hooks = {NULL, on_dropped, on_recut};
    memset(f, 0, sizeof *f);
    for (uint32_t g = 0; g < 2; g++)
        groups[g].extents[0] = (rg_stream_extent){.bytes = 4096, .stride = 4096};
    assert_int_equal(rg_items_init(&f->items, groups, 2, NULL), RG_OK);
    assert_int_equal(rg_arena_init(&f->arena, &f->items.layout, 4 * 4096ull, NULL, false, NULL),
                     RG_OK);
    assert_int_equal(rg_cache_init(&f->cache, &f->arena, &f->items, RG_POLICY_LRU, true, &hooks,
                                   &f->meters, NULL),
                     RG_OK);
    rg_readahead_init(&f->ahead, lookahead, cost_permille, &f->meters);
}

static void close_fixture(fixture *f) {
    rg_cache_deinit(&f->cache);
    rg_arena_deinit(&f->arena);
    rg_items_deinit(&f->items);
}

/* One token: guesses 0..15 for group 1; the guess of rank r comes true with chance share[r]. */
static void token(fixture *f, uint64_t n, const uint32_t *share_permille) {
    uint32_t guesses[16], wanted[17], n_wanted = 1;
    wanted[0] = 64 + 63;
    for (uint32_t r = 0; r < 16; r++) {
        guesses[r] = 64 + r;
        if (rg_random_u64(n, r) % 1000 < share_permille[r]) wanted[n_wanted++] = guesses[r];
    }
    rg_readahead_note(&f->ahead, &f->cache, 1, guesses, 16);
    rg_cache_begin(&f->cache, 1, wanted, n_wanted);
    rg_readahead_judge(&f->ahead, &f->cache, 1);
    rg_cache_end(&f->cache);
    rg_readahead_token(&f->ahead);
}

static const uint32_t falling[16] = {580, 460, 340, 230, 170, 120, 80, 60, 50, 30};
static const uint32_t nothing[16] = {0};
static const uint32_t perfect[16] = {900, 900, 900, 900, 900, 900, 900, 900,
                                     900, 900, 900, 900, 900, 900, 900, 900};

/* The depth goes where the useful share meets the cost: rank 5 is worth 12 %, rank 6 8 %. */
static void test_finds_the_depth(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, -1, 100);
    assert_int_equal(f.ahead.depth, 6);
    uint64_t n = 0;
    for (; n < 2000; n++)
        token(&f, n, falling);
    assert_in_range(f.ahead.depth, 5, 7);
    assert_int_equal(f.meters.guess_total[0], 2000);
    assert_in_range(f.meters.guess_wanted[0], 1000, 1320);
    for (; n < 6000; n++)
        token(&f, n, nothing);
    assert_int_equal(f.ahead.depth, 0); /* it does not pay at all */
    for (; n < 10000; n++)
        token(&f, n, perfect);
    assert_int_equal(f.ahead.depth, 16); /* and it comes back from 0, without probing reads */
    close_fixture(&f);
}

static void test_moves_by_one_at_token_boundaries(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, -1, 100);
    for (uint64_t n = 0; n < 300; n++) {
        const uint32_t before = f.ahead.depth;
        token(&f, n, n < 150 ? perfect : nothing);
        assert_true(f.ahead.depth + 1 >= before && f.ahead.depth <= before + 1);
    }
    const uint32_t depth = f.ahead.depth;
    for (uint32_t i = 0; i < 10; i++)
        rg_readahead_token(&f.ahead); /* windows without a decode turn decide nothing */
    assert_int_equal(f.ahead.depth, depth);
    close_fixture(&f);
}

static void test_fixed(void **state) {
    (void)state;
    static const int32_t asked[] = {0, 3, 1000};
    for (size_t i = 0; i < RG_ARRAY_LEN(asked); i++) {
        fixture f;
        open_fixture(&f, asked[i], 100);
        for (uint64_t n = 0; n < 300; n++)
            token(&f, n, asked[i] ? nothing : perfect);
        assert_int_equal(f.ahead.depth, asked[i] < 32 ? asked[i] : 32);
        close_fixture(&f);
    }
}

/* Guesses that the directory holds cost nothing and are not counted. */
static void test_held_guesses_do_not_count(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, -1, 100);
    assert_int_not_equal(rg_cache_claim(&f.cache, 64, RG_CLAIM_WARM, 0), RG_SLOT_NONE);
    const uint32_t guesses[2] = {64, 65}, wanted[1] = {65};
    rg_readahead_note(&f.ahead, &f.cache, 1, guesses, 2);
    rg_cache_begin(&f.cache, 1, wanted, 1);
    rg_readahead_judge(&f.ahead, &f.cache, 1);
    rg_readahead_judge(&f.ahead, &f.cache, 1); /* once only */
    rg_cache_end(&f.cache);
    assert_int_equal(f.meters.guess_total[0], 0);
    assert_int_equal(f.meters.guess_total[1], 1);
    assert_int_equal(f.meters.guess_wanted[1], 1);
    close_fixture(&f);
}

/* A rank is trusted after enough guesses that came true, and no longer when they fail. */
static void test_trusts_what_comes_true(void **state) {
    (void)state;
    static const uint32_t mixed[16] = {950, 900, 500};
    fixture f;
    open_fixture(&f, -1, 100);
    assert_false(rg_readahead_trusts(&f.ahead, 0)); /* nothing seen yet */
    uint64_t n = 0;
    for (; n < 500; n++)
        token(&f, n, mixed);
    assert_true(rg_readahead_trusts(&f.ahead, 0));
    assert_true(rg_readahead_trusts(&f.ahead, 1));
    assert_false(rg_readahead_trusts(&f.ahead, 2));
    assert_false(rg_readahead_trusts(&f.ahead, RG_STREAM_RANKS));
    for (; n < 2500; n++)
        token(&f, n, nothing);
    assert_false(rg_readahead_trusts(&f.ahead, 0));
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_the_depth),
        cmocka_unit_test(test_moves_by_one_at_token_boundaries),
        cmocka_unit_test(test_fixed),
        cmocka_unit_test(test_held_guesses_do_not_count),
        cmocka_unit_test(test_trusts_what_comes_true),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
