#include "stream/arena.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static rg_stream_layout layout(uint32_t n, const uint64_t *bytes) {
    rg_stream_layout l = {.n_class = n};
    memcpy(l.class_bytes, bytes, n * sizeof *bytes);
    l.slot_bytes_max = bytes[n - 1];
    return l;
}

/* Slots lie inside the budget and never overlap, whatever the classes. */
static void test_slots_are_apart(void **state) {
    (void)state;
    const uint64_t bytes[] = {8192, 20480, 28672};
    const rg_stream_layout l = layout(3, bytes);
    for (uint64_t budget = 2 * 28672ull; budget < 3000000; budget += 77777) {
        rg_arena a;
        assert_int_equal(rg_arena_init(&a, &l, budget, NULL, false, NULL), RG_OK);
        assert_true(a.n_slab * a.slab_bytes <= budget);
        uint32_t n = 0;
        for (uint32_t slot;; n++) {
            slot = rg_arena_take(&a, n % 3);
            if (slot == RG_SLOT_NONE) break;
            rg_arena_claim(&a, slot, n, 0, RG_SLOT_HELD);
            char *p = rg_arena_data(&a, slot);
            assert_true(p >= a.memory);
            assert_true(p + bytes[n % 3] <= a.memory + budget);
            for (uint64_t k = 0; k < bytes[n % 3]; k += 4096) {
                assert_int_equal(p[k], 0);
                p[k] = 1;
            }
        }
        assert_true(n >= 2 || a.n_slab < 3);
        assert_true(a.used_bytes <= budget);
        assert_true(rg_arena_is_valid(&a));
        rg_arena_deinit(&a);
    }
}

static void test_least_budget(void **state) {
    (void)state;
    const uint64_t bytes[] = {4096, 12288};
    const rg_stream_layout l = layout(2, bytes);
    rg_arena a;
    rg_status st = {0};
    assert_int_equal(rg_arena_init(&a, &l, 2 * 12288 - 1, NULL, false, &st), RG_INVALID);
    assert_non_null(strstr(st.message, "24575"));
    /* k + 1 slots of the largest class are always there. */
    for (uint32_t k = 1; k < 12; k++) {
        assert_int_equal(rg_arena_init(&a, &l, 12288ull * (k + 1), NULL, false, NULL), RG_OK);
        for (uint32_t i = 0; i <= k; i++)
            assert_int_not_equal(rg_arena_take(&a, 1), RG_SLOT_NONE);
        assert_int_equal(rg_arena_take(&a, 1), RG_SLOT_NONE);
        rg_arena_deinit(&a);
    }
}

static void test_life_of_a_slot(void **state) {
    (void)state;
    const uint64_t bytes[] = {4096};
    const rg_stream_layout l = layout(1, bytes);
    static char memory[3 * 4096] __attribute__((aligned(4096)));
    rg_arena a;
    assert_int_equal(rg_arena_init(&a, &l, sizeof memory, memory, true, NULL), RG_OK);
    assert_true(rg_arena_can_take(&a, 0));
    const uint32_t x = rg_arena_take(&a, 0), y = rg_arena_take(&a, 0), z = rg_arena_take(&a, 0);
    assert_ptr_equal(rg_arena_data(&a, x), memory);
    assert_false(rg_arena_can_take(&a, 0));
    rg_arena_claim(&a, x, 7, 0, RG_SLOT_GUESS);
    rg_arena_claim(&a, y, 8, 0, RG_SLOT_HELD);
    rg_arena_claim(&a, z, 9, 0, RG_SLOT_HELD);
    rg_arena_hold(&a, x);
    rg_arena_pin(&a, x);
    rg_arena_pin(&a, x);
    assert_int_equal(a.slabs[rg_arena_slab_of(&a, x)].n_pinned, 1);
    rg_arena_unpin(&a, x);
    rg_arena_unpin(&a, x);
    assert_int_equal(a.slabs[rg_arena_slab_of(&a, x)].n_pinned, 0);
    assert_true(rg_arena_is_valid(&a));
    /* Freed first, taken first. */
    rg_arena_free(&a, y);
    rg_arena_free(&a, x);
    assert_int_equal(rg_arena_take(&a, 0), y);
    rg_arena_claim(&a, y, 1, 0, RG_SLOT_HELD);
    rg_arena_lose(&a, z);
    assert_true(rg_arena_is_valid(&a));
    assert_int_equal(rg_arena_take(&a, 0), x);
    assert_int_equal(rg_arena_take(&a, 0), RG_SLOT_NONE);
    rg_arena_claim(&a, x, 2, 0, RG_SLOT_HELD);
    rg_arena_find(&a, z);
    assert_true(rg_arena_is_valid(&a));
    assert_int_equal(a.peak_bytes, 3 * 4096);
    assert_int_equal(a.used_bytes, 2 * 4096);
    rg_arena_poison(&a, x);
    float f;
    memcpy(&f, rg_arena_data(&a, x), sizeof f);
    assert_true(isnan(f));
    rg_arena_deinit(&a);
}

static void test_recut(void **state) {
    (void)state;
    const uint64_t bytes[] = {4096, 8192};
    const rg_stream_layout l = layout(2, bytes);
    rg_arena a;
    assert_int_equal(rg_arena_init(&a, &l, 2 * 8192ull, NULL, false, NULL), RG_OK);
    const uint32_t s0 = rg_arena_take(&a, 0), s1 = rg_arena_take(&a, 0);
    assert_int_equal(rg_arena_slab_of(&a, s0), rg_arena_slab_of(&a, s1));
    rg_arena_claim(&a, s0, 0, 0, RG_SLOT_HELD);
    rg_arena_claim(&a, s1, 1, 0, RG_SLOT_HELD);
    const uint32_t big = rg_arena_take(&a, 1);
    rg_arena_claim(&a, big, 2, 1, RG_SLOT_HELD);
    assert_int_equal(rg_arena_take(&a, 1), RG_SLOT_NONE);
    rg_arena_free(&a, s0);
    rg_arena_free(&a, s1);
    rg_arena_recut(&a, rg_arena_slab_of(&a, s0), 1);
    assert_true(rg_arena_is_valid(&a));
    const uint32_t other = rg_arena_take(&a, 1);
    assert_int_not_equal(other, RG_SLOT_NONE);
    rg_arena_claim(&a, other, 3, 1, RG_SLOT_HELD);
    assert_int_equal(a.used_bytes, 2 * 8192);
    assert_true(rg_arena_is_valid(&a));
    rg_arena_deinit(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots_are_apart),
        cmocka_unit_test(test_least_budget),
        cmocka_unit_test(test_life_of_a_slot),
        cmocka_unit_test(test_recut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
