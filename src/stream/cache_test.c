/* What the policy promises, one clause at a time; the whole is compared with a model in tests/fuzz.
 */
#include "stream/cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Debug builds walk the whole cache at every turn. */
#ifdef RG_DEBUG
#define SLOTS_MAX 1000u
#else
#define SLOTS_MAX 100000u
#endif

typedef struct fixture {
    rg_items items;
    rg_arena arena;
    rg_cache cache;
    rg_stream_meters meters;
    uint32_t n_dropped, n_recut;
} fixture;

static void on_dropped(void *user, uint32_t slot) {
    fixture *f = user;
    assert_int_equal(f->arena.slots[slot].pins, 0);
    f->n_dropped++;
}

static void on_recut(void *user, uint32_t first_slot, uint32_t n_slot) {
    fixture *f = user;
    assert_true(first_slot + n_slot <= f->arena.n_slot);
    f->n_recut++;
}

static void open_sized(fixture *f, uint32_t n_group, uint32_t n_item, const uint32_t *pages,
                       uint64_t budget_pages, rg_stream_policy policy) {
    static rg_stream_group groups[64];
    const rg_cache_hooks hooks = {f, on_dropped, on_recut};
    memset(f, 0, sizeof *f);
    for (uint32_t g = 0; g < n_group; g++) {
        const uint32_t bytes = 4096 * (pages ? pages[g] : 1);
        groups[g] = (rg_stream_group){.n_item = n_item, .n_extent = 1};
        groups[g].extents[0] = (rg_stream_extent){.bytes = bytes, .stride = bytes};
    }
    assert_int_equal(rg_items_init(&f->items, groups, n_group, NULL), RG_OK);
    assert_int_equal(
        rg_arena_init(&f->arena, &f->items.layout, budget_pages * 4096, NULL, false, NULL), RG_OK);
    assert_int_equal(
        rg_cache_init(&f->cache, &f->arena, &f->items, policy, true, &hooks, &f->meters, NULL),
        RG_OK);
}

static void close_fixture(fixture *f) {
    assert_true(rg_cache_is_valid(&f->cache));
    rg_cache_deinit(&f->cache);
    rg_arena_deinit(&f->arena);
    rg_items_deinit(&f->items);
}

static bool holds(const fixture *f, uint32_t item) {
    return rg_cache_find(&f->cache, item) != RG_SLOT_NONE;
}

/* A whole turn of one group; items are pinned, then let go. Returns the misses. */
static uint32_t turn(fixture *f, uint32_t group, const uint32_t *items, uint32_t n) {
    uint32_t misses = 0;
    rg_cache_begin(&f->cache, group, items, n);
    for (uint32_t i = 0; i < n; i++)
        if (holds(f, items[i])) rg_cache_use(&f->cache, rg_cache_find(&f->cache, items[i]));
    for (uint32_t i = 0; i < n; i++) {
        if (holds(f, items[i])) continue;
        assert_int_not_equal(rg_cache_claim(&f->cache, items[i], RG_CLAIM_MISS, 0), RG_SLOT_NONE);
        misses++;
    }
    for (uint32_t i = 0; i < n; i++)
        rg_arena_unpin(&f->arena, rg_cache_find(&f->cache, items[i]));
    rg_cache_end(&f->cache);
    return misses;
}

/* A turn whose rows are all accepted. */
static void use(fixture *f, uint32_t group, uint32_t item) {
    turn(f, group, &item, 1);
    rg_cache_touch(&f->cache, &item, 1);
}

/* Four slots; group g has items 10 g .. 10 g + 9. */
static void test_least_recent_leaves(void **state) {
    (void)state;
    fixture f;
    open_sized(&f, 4, 10, NULL, 4, RG_POLICY_LRU);
    use(&f, 0, 0);
    use(&f, 0, 1);
    use(&f, 1, 10);
    use(&f, 0, 0);
    use(&f, 1, 11);
    use(&f, 2, 20); /* 1 is the oldest */
    assert_true(holds(&f, 0) && holds(&f, 10) && holds(&f, 11) && holds(&f, 20));
    assert_false(holds(&f, 1));
    /* All hits of a route are protected before a victim is chosen: 10 is older than 0. */
    const uint32_t route[3] = {12, 10, 13};
    assert_int_equal(turn(&f, 1, route, 3), 2);
    assert_true(holds(&f, 10) && holds(&f, 12) && holds(&f, 13));
    close_fixture(&f);
}

static void test_unwanted_guesses_leave_first(void **state) {
    (void)state;
    fixture f;
    open_sized(&f, 4, 10, NULL, 4, RG_POLICY_LRU);
    use(&f, 0, 0);
    rg_cache_expect(&f.cache, 1);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_not_equal(rg_cache_claim(&f.cache, 10 + i, RG_CLAIM_GUESS, i), RG_SLOT_NONE);
    const uint32_t want[2] = {11, 15};
    assert_int_equal(turn(&f, 1, want, 2), 1);
    assert_true(holds(&f, 0) && holds(&f, 11) && holds(&f, 15));
    assert_false(holds(&f, 10) || holds(&f, 12));
    assert_int_equal(f.meters.ahead_useful[1], 1);
    assert_int_equal(f.meters.ahead_wasted[0], 1);
    assert_int_equal(f.meters.ahead_wasted[2], 1);
    assert_int_equal(f.meters.evictions, 0);
    close_fixture(&f);
}

/* A guess takes neither the group in flight nor the next, nor what is warmer, nor this window's. */
static void test_guess_guard(void **state) {
    (void)state;
    fixture f;
    open_sized(&f, 4, 10, NULL, 3, RG_POLICY_LRU);
    use(&f, 0, 0);
    use(&f, 0, 0);
    use(&f, 0, 0); /* warm: three windows */
    use(&f, 1, 10);
    use(&f, 2, 20);
    rg_cache_expect(&f.cache, 2);
    /* 0 is the oldest but warm; a guess counts as one use. */
    assert_int_equal(rg_cache_claim(&f.cache, 25, RG_CLAIM_GUESS, 0), RG_SLOT_NONE);
    assert_int_not_equal(rg_cache_claim(&f.cache, 25, RG_CLAIM_GUESS_TRUSTED, 0), RG_SLOT_NONE);
    assert_false(holds(&f, 0));
    rg_cache_begin(&f.cache, 1, (const uint32_t[]){10}, 1);
    rg_cache_use(&f.cache, rg_cache_find(&f.cache, 10));
    rg_cache_expect(&f.cache, 2);
    /* Left: group 1 in flight, group 2 next. */
    assert_int_equal(rg_cache_claim(&f.cache, 26, RG_CLAIM_GUESS_PREFILL, 1), RG_SLOT_NONE);
    /* A miss finds a victim even so: the guess of the next group. */
    assert_int_not_equal(rg_cache_claim(&f.cache, 11, RG_CLAIM_MISS, 0), RG_SLOT_NONE);
    assert_false(holds(&f, 25));
    assert_true(holds(&f, 20));
    /* And in the end the rest of the next group; never a pinned one. */
    assert_int_not_equal(rg_cache_claim(&f.cache, 12, RG_CLAIM_MISS, 0), RG_SLOT_NONE);
    assert_int_equal(rg_cache_claim(&f.cache, 13, RG_CLAIM_MISS, 0), RG_SLOT_NONE);
    for (uint32_t i = 10; i < 13; i++)
        rg_arena_unpin(&f.arena, rg_cache_find(&f.cache, i));
    rg_cache_end(&f.cache);
    close_fixture(&f);
}

/* What was read for rejected rows only is the first to go; what was hit for them keeps its age. */
static void test_rejected_rows(void **state) {
    (void)state;
    fixture f;
    open_sized(&f, 4, 10, NULL, 4, RG_POLICY_LRU);
    use(&f, 0, 0);
    use(&f, 0, 1);
    const uint32_t window[2] = {0, 2}, accepted[1] = {3};
    turn(&f, 0, window, 2); /* 0 hit, 2 read; both rejected */
    turn(&f, 0, accepted, 1);
    rg_cache_touch(&f.cache, accepted, 1);
    use(&f, 1, 10);
    assert_false(holds(&f, 2));
    use(&f, 1, 11);
    assert_false(holds(&f, 0)); /* older than 1 */
    assert_true(holds(&f, 1) && holds(&f, 3));
    close_fixture(&f);
}

/* An item used in this window is spared while others are there, though its recency is old. */
static void test_window_is_spared(void **state) {
    (void)state;
    fixture f;
    open_sized(&f, 4, 10, NULL, 3, RG_POLICY_LRU);
    use(&f, 0, 0);
    use(&f, 1, 10);
    use(&f, 2, 20);
    const uint32_t first = 0, second = 30, both[2] = {0, 30};
    turn(&f, 0, &first, 1);  /* a hit, the oldest of all */
    turn(&f, 3, &second, 1); /* a miss in the same window */
    assert_true(holds(&f, 0));
    assert_false(holds(&f, 10));
    rg_cache_touch(&f.cache, both, 2);
    close_fixture(&f);
}

static void test_heat_decays(void **state) {
    (void)state;
    fixture f;
    open_sized(&f, 2, 10, NULL, 3, RG_POLICY_LRU);
    use(&f, 0, 0);
    assert_int_equal(rg_cache_heat(&f.cache, 0), RG_HEAT_USE);
    for (uint32_t i = 0; i < 2 * RG_HEAT_PERIOD; i++)
        rg_cache_touch(&f.cache, NULL, 0);
    assert_int_equal(rg_cache_heat(&f.cache, 0), RG_HEAT_USE / 4);
    for (uint32_t i = 0; i < 16 * RG_HEAT_PERIOD; i++)
        rg_cache_touch(&f.cache, NULL, 0);
    assert_int_equal(rg_cache_heat(&f.cache, 0), 0);
    close_fixture(&f);
}

/* Items seen once do not push out those seen twice. */
static void test_scan_resistance(void **state) {
    (void)state;
    for (int p = RG_POLICY_SLRU; p < RG_POLICY_COUNT; p++) {
        fixture f;
        open_sized(&f, 4, 100, NULL, 12, (rg_stream_policy)p);
        for (uint32_t round = 0; round < 3; round++)
            for (uint32_t i = 0; i < 3; i++)
                use(&f, 0, i);
        for (uint32_t i = 0; i < 60; i++)
            use(&f, 1 + i % 3, 100 * (1 + i % 3) + i);
        assert_true(holds(&f, 0) && holds(&f, 1) && holds(&f, 2));
        close_fixture(&f);
    }
}

/* Two sizes share one budget: each gets slabs as it is used, and no slab with a pin moves. */
static void test_slabs_follow_use(void **state) {
    (void)state;
    const uint32_t pages[2] = {1, 3};
    fixture f;
    open_sized(&f, 2, 100, pages, 30, RG_POLICY_LRU);
    for (uint32_t i = 0; i < 60; i++)
        use(&f, 0, i % 30);
    assert_true(f.arena.n_cut == f.arena.n_slab);
    for (uint32_t i = 0; i < 100; i++)
        use(&f, 1, 100 + i % 8);
    uint32_t held = 0;
    for (uint32_t i = 100; i < 108; i++)
        held += holds(&f, i);
    assert_int_equal(held, 8); /* eight of ten slabs went over */
    assert_true(f.meters.slab_moves >= 8 && f.n_recut == f.meters.slab_moves);
    for (uint32_t i = 0; i < 100; i++)
        use(&f, 0, i % 20);
    held = 0;
    for (uint32_t i = 0; i < 20; i++)
        held += holds(&f, i);
    assert_int_equal(held, 20);
    close_fixture(&f);
}

static void test_warm_fills_only_free_slots(void **state) {
    (void)state;
    fixture f;
    open_sized(&f, 2, 10, NULL, 3, RG_POLICY_LRU);
    use(&f, 0, 0);
    assert_int_not_equal(rg_cache_claim(&f.cache, 5, RG_CLAIM_WARM, 0), RG_SLOT_NONE);
    assert_int_not_equal(rg_cache_claim(&f.cache, 6, RG_CLAIM_WARM, 0), RG_SLOT_NONE);
    assert_int_equal(rg_cache_claim(&f.cache, 7, RG_CLAIM_WARM, 0), RG_SLOT_NONE);
    use(&f, 1, 10); /* the last warmed leaves first */
    assert_true(holds(&f, 0) && holds(&f, 5));
    assert_false(holds(&f, 6));
    close_fixture(&f);
}

/* List nodes and groups looked at per eviction, in arenas from 10^2 to 10^5 slots. */
static void test_eviction_cost_is_constant(void **state) {
    (void)state;
    uint64_t first = 0;
    for (uint32_t slots = 100; slots <= SLOTS_MAX; slots *= 10) {
        fixture f;
        const uint32_t n_group = 16, n_item = slots / 4;
        open_sized(&f, n_group, n_item, NULL, slots, RG_POLICY_LRU);
        const uint32_t n_turn = slots / 5 + 2400;
        uint64_t steps = 0, evictions = 0;
        for (uint32_t t = 0; t < n_turn; t++) {
            uint32_t items[5];
            if (t == n_turn - 2000) { /* full by now */
                steps = f.meters.evict_steps;
                evictions = f.meters.evictions;
            }
            for (uint32_t i = 0; i < 5; i++)
                items[i] = t % n_group * n_item + (t / n_group * 5 + i) % n_item;
            turn(&f, t % n_group, items, 5);
            rg_cache_touch(&f.cache, items, 5);
        }
        steps = f.meters.evict_steps - steps;
        evictions = f.meters.evictions - evictions;
        assert_true(evictions >= 9000);
        const uint64_t cost = steps * 100 / evictions;
        if (first == 0) first = cost;
        assert_in_range(cost, first * 9 / 10, first * 11 / 10);
        close_fixture(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_least_recent_leaves),
        cmocka_unit_test(test_unwanted_guesses_leave_first),
        cmocka_unit_test(test_guess_guard),
        cmocka_unit_test(test_rejected_rows),
        cmocka_unit_test(test_window_is_spared),
        cmocka_unit_test(test_heat_decays),
        cmocka_unit_test(test_scan_resistance),
        cmocka_unit_test(test_slabs_follow_use),
        cmocka_unit_test(test_warm_fills_only_free_slots),
        cmocka_unit_test(test_eviction_cost_is_constant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
