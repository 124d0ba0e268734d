/* The scheduler through the door, on a virtual drive: who is read when. The random side of it is
 * tests/sim.
 */
#include "stream/stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "stream/io_virtual.h"
#include "stream/stream_state.h"

#define ITEMS 32u

typedef struct fixture {
    rg_stream *s;
    rg_io *io;
    rg_stream_group groups[3];
    uint32_t order[256]; /* items in the order in which they reached the drive */
    uint32_t n_order;
    uint32_t vanish_item; /* its reads never answer */
    uint32_t fail_item;
} fixture;

static uint32_t item_of(const fixture *f, const rg_io_op *op) {
    return f->s->sched.jobs[op->tag >> 8].item;
}

static void on_submitting(void *user, const rg_io_op *ops, uint32_t n) {
    fixture *f = user;
    for (uint32_t i = 0; i < n; i++)
        if (f->n_order < 256) f->order[f->n_order++] = item_of(f, &ops[i]);
}

static void open_fixture(fixture *f, rg_virtual_config c, uint32_t depth, uint32_t slots) {
    memset(f, 0, sizeof *f);
    for (uint32_t g = 0; g < 3; g++) {
        f->groups[g] = (rg_stream_group){.n_item = ITEMS, .n_extent = 1};
        f->groups[g].extents[0] =
            (rg_stream_extent){.bytes = 4096, .stride = 4096, .offset = (uint64_t)g * ITEMS * 4096};
    }
    c.depth = depth;
    c.hooks = (rg_virtual_hooks){.user = f, .submitting = on_submitting};
    if (!c.drive.latency_ns) c.drive.latency_ns = 100000;
    assert_int_equal(rg_io_virtual_open(&f->io, &c, NULL), RG_OK);
    static const char *const path = "file";
    const rg_stream_options o = {.paths = &path,
                                 .n_file = 1,
                                 .groups = f->groups,
                                 .n_group = 3,
                                 .budget_bytes = (uint64_t)slots * 4096,
                                 .lookahead = 32,
                                 .depth = depth,
                                 .stall_ms_max = 10,
                                 .retries_max = 2,
                                 .io = f->io};
    assert_int_equal(rg_stream_create(&f->s, &o, NULL), RG_OK);
}

static void close_fixture(fixture *f) {
    rg_stream_destroy(f->s);
    rg_io_close(f->io);
}

static void ahead(fixture *f, uint32_t g, uint32_t n) {
    uint32_t items[ITEMS];
    for (uint32_t i = 0; i < n; i++)
        items[i] = g * ITEMS + i;
    rg_stream_ahead(f->s, g, items, n, UINT32_MAX, RG_MODE_DECODE);
}

static const rg_turn *begin(fixture *f, uint32_t g, uint32_t first, uint32_t n) {
    uint32_t items[ITEMS];
    const rg_turn *turn;
    for (uint32_t i = 0; i < n; i++)
        items[i] = g * ITEMS + first + i;
    assert_int_equal(rg_stream_begin(f->s, g, items, n, RG_MODE_DECODE, &turn, NULL), RG_OK);
    return turn;
}

static uint32_t wait_all(fixture *f, const rg_turn *turn, rg_status *st) {
    uint32_t failed = 0;
    for (uint32_t i = 0; i < turn->n_pending; i++) {
        uint32_t item;
        if (rg_stream_wait(f->s, &item, st) != RG_OK) failed++;
    }
    return failed;
}

/* Read-aheads leave the reserve free; an urgent read overtakes those that wait. */
static void test_urgent_first(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, (rg_virtual_config){0}, 8, 64);
    wait_all(&f, begin(&f, 0, 0, 1), NULL); /* decode mode is on */
    f.n_order = 0;
    ahead(&f, 1, 12);
    assert_int_equal(f.n_order, 6); /* a quarter of 8 is kept */
    rg_stream_end(f.s, 0);
    const rg_turn *turn = begin(&f, 2, 0, 4);
    assert_int_equal(f.n_order, 8); /* the reserve, at once */
    assert_int_equal(turn->n_pending, 4);
    wait_all(&f, turn, NULL);
    for (uint32_t i = 6; i < 10; i++)
        assert_in_range(f.order[i], 2 * ITEMS, 2 * ITEMS + 3);
    rg_stream_end(f.s, 0);
    rg_stream_advance(f.s, 10000000);
    assert_int_equal(f.n_order, 16);
    rg_stream_meters m;
    rg_stream_meters_get(f.s, &m);
    assert_int_equal(m.reads, 17);
    assert_int_equal(m.cancels, 0);
    close_fixture(&f);
}

/* Guesses that nobody wants are cancelled before they start; those started are orphans. */
static void test_cancel(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, (rg_virtual_config){0}, 4, 64);
    wait_all(&f, begin(&f, 0, 0, 1), NULL);
    ahead(&f, 1, 10);
    rg_stream_end(f.s, 0);
    const rg_turn *turn = begin(&f, 1, 0, 1); /* wants the first, already in flight */
    rg_stream_meters m;
    rg_stream_meters_get(f.s, &m);
    assert_int_equal(m.cancels, 7);
    assert_int_equal(m.orphans, 2);
    assert_int_equal(m.late, 1);
    assert_int_equal(turn->n_hit, 1);
    assert_int_equal(turn->n_pending, 1);
    wait_all(&f, turn, NULL);
    rg_stream_end(f.s, 0);
    rg_stream_advance(f.s, 10000000);
    rg_stream_meters_get(f.s, &m);
    assert_int_equal(m.reads, 2);
    assert_int_equal(m.wasted_bytes, 2 * 4096);
    close_fixture(&f);
}

/* A device that fails: as many repetitions as allowed, then the item; the slot is free again. */
static void test_bounded_retries(void **state) {
    (void)state;
    fixture f;
    rg_virtual_config c = {.fault_permille = {[RG_VIRTUAL_EIO] = 1000}};
    open_fixture(&f, c, 4, 8);
    rg_status st = {0};
    const rg_turn *turn = begin(&f, 0, 0, 2);
    assert_int_equal(wait_all(&f, turn, &st), 2);
    assert_int_equal(st.code, RG_IO);
    assert_non_null(strstr(st.message, "file: group 0 item"));
    rg_stream_end(f.s, 0);
    assert_int_equal(f.n_order, 2 * 3);
    rg_stream_meters m;
    rg_stream_meters_get(f.s, &m);
    assert_int_equal(m.retries, 4);
    assert_int_equal(m.read_errors, 2);
    assert_int_equal(m.slots_used, 0);
    close_fixture(&f);
}

/* A device that always says try again does not hang the turn. */
static void test_transient_for_ever(void **state) {
    (void)state;
    fixture f;
    rg_virtual_config c = {.fault_permille = {[RG_VIRTUAL_TRANSIENT] = 1000}};
    c.drive.latency_ns = 10;
    open_fixture(&f, c, 4, 8);
    rg_status st = {0};
    assert_int_equal(wait_all(&f, begin(&f, 0, 0, 1), &st), 1);
    assert_int_equal(st.code, RG_IO);
    rg_stream_end(f.s, 0);
    close_fixture(&f);
    c = (rg_virtual_config){.fault_permille = {[RG_VIRTUAL_REFUSE] = 1000}};
    open_fixture(&f, c, 4, 8);
    st = (rg_status){0};
    assert_int_equal(wait_all(&f, begin(&f, 0, 0, 3), &st), 3);
    assert_int_equal(st.code, RG_TIMEOUT);
    rg_stream_end(f.s, 0);
    close_fixture(&f);
}

/* Reads that never return: TIMEOUT, their slots stay away; those that return late come back. */
static void test_lost_reads(void **state) {
    (void)state;
    fixture f;
    rg_virtual_config c = {.fault_permille = {[RG_VIRTUAL_STALL] = 1000}, .stall_ns = 25000000};
    open_fixture(&f, c, 4, 8);
    rg_status st = {0};
    assert_int_equal(wait_all(&f, begin(&f, 0, 0, 2), &st), 2);
    assert_int_equal(st.code, RG_TIMEOUT);
    assert_non_null(strstr(st.message, "in 10 ms"));
    rg_stream_end(f.s, 0);
    rg_stream_meters m;
    rg_stream_meters_get(f.s, &m);
    assert_int_equal(m.slots_lost, 2);
    assert_int_equal(m.lost_reads, 2);
    rg_stream_advance(f.s, 40000000);
    wait_all(&f, begin(&f, 1, 0, 1), NULL);
    rg_stream_end(f.s, 0);
    rg_stream_meters_get(f.s, &m);
    assert_int_equal(m.slots_lost, 1); /* the two came back, and this one is out */
    close_fixture(&f);
}

/* When the drive is gone, turns fail; nothing hangs, and the budget is honoured. */
static void test_drive_gone(void **state) {
    (void)state;
    fixture f;
    rg_virtual_config c = {.fault_permille = {[RG_VIRTUAL_VANISH] = 1000}};
    open_fixture(&f, c, 4, 4);
    bool refused = false;
    for (uint32_t t = 0; t < 12 && !refused; t++) {
        const uint32_t item = t % 3 * ITEMS + t;
        const rg_turn *turn;
        rg_status st = {0};
        const rg_code rc = rg_stream_begin(f.s, t % 3, &item, 1, RG_MODE_DECODE, &turn, &st);
        if (rc == RG_OK) {
            assert_int_equal(wait_all(&f, turn, &st), 1);
            assert_int_equal(st.code, RG_TIMEOUT);
            rg_stream_end(f.s, 0);
        } else {
            assert_int_equal(rc, RG_IO);
            assert_non_null(strstr(st.message, "4 of 4 are lost"));
            refused = true;
        }
    }
    assert_true(refused);
    close_fixture(&f);
}

/* Slots of a turn with a fence are not refilled before it retires. */
static void test_fence(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, (rg_virtual_config){0}, 4, 2);
    wait_all(&f, begin(&f, 0, 0, 2), NULL);
    rg_stream_end(f.s, 7);
    const rg_turn *turn = begin(&f, 1, 0, 2);
    assert_int_equal(turn->n_pending, 2);
    rg_stream_advance(f.s, 5000000);
    assert_false(rg_stream_arrived(f.s));
    assert_int_equal(f.n_order, 2);
    rg_stream_retire(f.s, 6);
    assert_int_equal(f.n_order, 2);
    rg_stream_retire(f.s, 7);
    assert_int_equal(f.n_order, 4);
    assert_int_equal(wait_all(&f, turn, NULL), 0);
    rg_stream_end(f.s, 0);
    close_fixture(&f);
}

/* One clock: a drive of 1 GB/s reads 32 items of 4 KiB in the time of its bus and one latency. */
static void test_virtual_time(void **state) {
    (void)state;
    fixture f;
    rg_virtual_config c = {.drive = {.latency_ns = 100000, .bytes_per_s = 1000000000}};
    open_fixture(&f, c, 32, 64);
    wait_all(&f, begin(&f, 0, 0, 32), NULL);
    rg_stream_end(f.s, 0);
    assert_int_equal(rg_stream_now_ns(f.s), 32 * 4096 + 100000);
    rg_stream_meters m;
    rg_stream_meters_get(f.s, &m);
    assert_int_equal(m.busy_ns, 32 * 4096 + 100000);
    assert_int_equal(m.wait_ns, 32 * 4096 + 100000);
    assert_int_equal(m.read_bytes, 32 * 4096);
    close_fixture(&f);
}

/* The door's own virtual drive gives the same hits as any other. */
static void test_door_virtual_drive(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, (rg_virtual_config){0}, 4, 8);
    static const char *const path = "file";
    const rg_stream_virtual drive = {.seed = 1, .latency_ns = 50000, .bytes_per_s = 2000000000};
    const rg_stream_options o = {.paths = &path,
                                 .n_file = 1,
                                 .groups = f.groups,
                                 .n_group = 3,
                                 .budget_bytes = 8 * 4096ull,
                                 .lookahead = 32,
                                 .virtual_drive = &drive};
    rg_stream *borrowed = f.s, *s;
    assert_int_equal(rg_stream_create(&s, &o, NULL), RG_OK);
    rg_stream_meters a, b;
    for (uint32_t way = 0; way < 2; way++) {
        f.s = way ? borrowed : s;
        for (uint32_t t = 0; t < 60; t++) {
            const rg_turn *turn = begin(&f, t % 3, t * 5 % 17, 3);
            ahead(&f, (t + 1) % 3, 4);
            if (!way)
                wait_all(&f, turn, NULL);
            else
                assert_int_equal(wait_all(&f, turn, NULL), 0);
            rg_stream_end(f.s, 0);
            rg_stream_touch(f.s, turn->ready, 0);
        }
        rg_stream_meters_get(f.s, way ? &b : &a);
    }
    assert_memory_equal(&a, &b, offsetof(rg_stream_meters, late));
    f.s = borrowed;
    rg_stream_destroy(s);
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_urgent_first),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_bounded_retries),
        cmocka_unit_test(test_transient_for_ever),
        cmocka_unit_test(test_lost_reads),
        cmocka_unit_test(test_drive_gone),
        cmocka_unit_test(test_fence),
        cmocka_unit_test(test_virtual_time),
        cmocka_unit_test(test_door_virtual_drive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
