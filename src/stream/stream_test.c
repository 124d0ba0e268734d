/* The stream on real files: both devices, direct and buffered, with faults between. */
#include "stream/stream.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <xxhash.h>

#define GROUPS 3u
#define ITEMS  24u
#define FILES  2u

/* Two files of a small model whose parts are aligned to nothing. */
typedef struct fixture {
    char path[FILES][64];
    const char *paths[FILES];
    unsigned char *bytes[FILES];
    uint64_t n_bytes[FILES];
    rg_stream_group groups[GROUPS];
    uint64_t sums[GROUPS][ITEMS];
} fixture;

static fixture fx;

static void write_file(uint32_t f) {
    FILE *out = fopen(fx.path[f], "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(fx.bytes[f], 1, fx.n_bytes[f], out), fx.n_bytes[f]);
    assert_int_equal(fclose(out), 0);
}

static uint64_t sum_of(uint32_t g, uint32_t i) {
    char buffer[1 << 17];
    size_t n = 0;
    for (uint32_t e = 0; e < fx.groups[g].n_extent; e++) {
        const rg_stream_extent *x = &fx.groups[g].extents[e];
        memcpy(buffer + n, fx.bytes[x->file] + x->offset + i * x->stride, x->bytes);
        n += x->bytes;
    }
    return XXH3_64bits(buffer, n);
}

static int set_up(void **state) {
    (void)state;
    for (uint32_t f = 0; f < FILES; f++) {
        snprintf(fx.path[f], sizeof fx.path[f], "stream_test-%d-%u.bin", (int)getpid(), f);
        fx.paths[f] = fx.path[f];
        fx.n_bytes[f] = 3 + ITEMS * (uint64_t)(3 * 10007 + 2 * 20011);
        fx.bytes[f] = malloc(fx.n_bytes[f]);
        assert_non_null(fx.bytes[f]);
        for (uint64_t i = 0; i < fx.n_bytes[f]; i++)
            fx.bytes[f][i] = (unsigned char)rg_random_u64(f, i);
        write_file(f);
    }
    for (uint32_t g = 0; g < GROUPS; g++) {
        fx.groups[g] = (rg_stream_group){.n_item = ITEMS, .n_extent = 3};
        const rg_stream_extent parts[3] = {
            {g % 2, 10007, 3 + g * 10007 * ITEMS, 10007},
            {1 - g % 2, 9973, 1 + g * 10007 * ITEMS, 10007},
            {0, 20011, 3 + 30021 * ITEMS + g % 2 * 20011 * ITEMS, 20011},
        };
        memcpy(fx.groups[g].extents, parts, sizeof parts);
        for (uint32_t i = 0; i < ITEMS; i++)
            fx.sums[g][i] = sum_of(g, i);
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    for (uint32_t f = 0; f < FILES; f++) {
        unlink(fx.path[f]);
        free(fx.bytes[f]);
    }
    return 0;
}

static rg_stream_options options(uint32_t slots) {
    rg_stream_layout layout;
    assert_int_equal(rg_stream_layout_of(&layout, fx.groups, GROUPS, NULL), RG_OK);
    return (rg_stream_options){.paths = fx.paths,
                               .n_file = FILES,
                               .groups = fx.groups,
                               .n_group = GROUPS,
                               .group_noun = "layer",
                               .item_noun = "expert",
                               .budget_bytes = layout.slot_bytes_max * slots,
                               .lookahead = -1,
                               .depth = 8};
}

static void check_bytes(rg_stream *s, uint32_t item) {
    const uint32_t g = rg_stream_group_of(s, item), i = item - rg_stream_item(s, g, 0);
    for (uint32_t e = 0; e < fx.groups[g].n_extent; e++) {
        const rg_stream_extent *x = &fx.groups[g].extents[e];
        assert_memory_equal(rg_stream_payload(s, item, e),
                            fx.bytes[x->file] + x->offset + i * x->stride, x->bytes);
    }
}

/* One layer of one window; returns the number of failed items. */
static uint32_t run_turn(rg_stream *s, uint32_t g, uint64_t draw, uint32_t n, rg_status *st) {
    uint32_t items[ITEMS], n_item = 0, failed = 0;
    const rg_turn *turn;
    bool seen[ITEMS] = {false};
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t i = (uint32_t)(rg_random_u64(draw, k) % ITEMS);
        if (!seen[i]) items[n_item++] = rg_stream_item(s, g, i);
        seen[i] = true;
    }
    assert_int_equal(rg_stream_begin(s, g, items, n_item, RG_MODE_DECODE, &turn, NULL), RG_OK);
    uint32_t done = 0;
    do {
        for (uint32_t i = 0; i < turn->n_ready; i++)
            check_bytes(s, turn->ready[i]);
        uint32_t guesses[4];
        for (uint32_t i = 0; i < 4; i++)
            guesses[i] = rg_stream_item(s, (g + 1) % GROUPS, i * 5);
        if (turn->wave == 0)
            rg_stream_ahead(s, (g + 1) % GROUPS, guesses, 4, UINT32_MAX, RG_MODE_DECODE);
        for (uint32_t i = 0; i < turn->n_pending; i++) {
            uint32_t item;
            if (rg_stream_wait(s, &item, st) == RG_OK)
                check_bytes(s, item);
            else
                failed++;
        }
        done += turn->n_ready + turn->n_pending;
    } while (rg_stream_wave_next(s, 0, NULL));
    assert_int_equal(done, n_item);
    rg_stream_end(s, 0);
    rg_stream_touch(s, items, n_item);
    return failed;
}

static rg_stream_meters run(const rg_stream_options *o, uint32_t windows, uint32_t *failed) {
    rg_stream *s;
    rg_status st = {0}, why = {0};
    rg_stream_meters m;
    *failed = 0;
    if (rg_stream_create(&s, o, &st) != RG_OK) {
        /* A small memlock limit also counts rings that are closed and not yet gone. */
        if (o->backend != RG_STREAM_URING || st.code != RG_UNSUPPORTED) fail_msg("%s", st.message);
        print_message("skipped: %s\n", st.message);
        return (rg_stream_meters){0};
    }
    for (uint32_t i = 0; i < windows * GROUPS; i++)
        *failed += run_turn(s, i % GROUPS, i, 1 + i % 12, &why);
    rg_stream_meters_get(s, &m);
    assert_true(m.arena_peak_bytes <= o->budget_bytes);
    rg_stream_destroy(s);
    return m;
}

static bool uring_works(void) {
    rg_stream *s;
    rg_status st = {0};
    rg_stream_options o = options(8);
    o.backend = RG_STREAM_URING;
    if (rg_stream_create(&s, &o, &st) != RG_OK) {
        print_message("no io_uring: %s\n", st.message);
        return false;
    }
    print_message("%s\n", rg_stream_backend_name(s));
    rg_stream_destroy(s);
    return true;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Every device gives the right bytes and the same hits, in arenas from the least to all. */
static void test_devices_agree(void **state) {
    (void)state;
    const bool uring = uring_works();
    for (uint32_t slots = 2; slots <= 80; slots += 13) {
        rg_stream_options o = options(slots);
        rg_stream_meters first = {0};
        uint32_t failed;
        for (uint32_t way = uring ? 0 : 2; way < 8; way++) {
            const bool pread = way == 2 || way == 3 || way == 6;
            o.backend = way < 2 ? RG_STREAM_URING : pread ? RG_STREAM_PREAD : RG_STREAM_AUTO;
            o.direct = way == 1 || way == 3 ? RG_DIRECT_OFF : RG_DIRECT_AUTO;
            o.read_bytes_max = way == 4 ? 8192 : 0;
            o.staged = way == 5;
            o.look_ns = way >= 6 ? 100000 : 0;
            const rg_stream_meters m = run(&o, 12, &failed);
            assert_int_equal(failed, 0);
            if (m.reads == 0) continue;
            assert_true(m.read_bytes > 0 && m.busy_ns > 0);
            if (first.hits + first.misses == 0) first = m;
            assert_memory_equal(&m, &first, offsetof(rg_stream_meters, late));
        }
        assert_true(first.hits > 0 && first.misses > 0);
    }
}

static void test_faults_are_survived(void **state) {
    (void)state;
    for (uint32_t g = 0; g < GROUPS; g++)
        fx.groups[g].checksums = fx.sums[g];
    rg_stream_options o = options(20);
    uint32_t failed;
    const rg_stream_meters clean = run(&o, 8, &failed);
    const rg_stream_faults soft = {.seed = 5,
                                   .eio_permille = 20,
                                   .short_permille = 200,
                                   .flip_permille = 20,
                                   .stall_permille = 100,
                                   .stall_ms_max = 3};
    o.faults = &soft;
    o.retries_max = 8;
    for (uint32_t way = 0; way < 2; way++) {
        o.backend = way ? RG_STREAM_PREAD : RG_STREAM_AUTO;
        o.look_ns = way ? 50000 : 0;
        const rg_stream_meters m = run(&o, 8, &failed);
        assert_int_equal(failed, 0);
        assert_true(m.retries > 0 && m.checksum_errors > 0);
        assert_memory_equal(&m, &clean, offsetof(rg_stream_meters, late));
    }
    for (uint32_t g = 0; g < GROUPS; g++)
        fx.groups[g].checksums = NULL;
}

/* Errors that beat the retries reach the items that needed them, and the stream goes on. */
static void test_errors_name_the_item(void **state) {
    (void)state;
    const rg_stream_faults hard = {.seed = 9, .eio_permille = 100, .eio_burst = 12};
    rg_stream_options o = options(20);
    o.faults = &hard;
    o.backend = RG_STREAM_PREAD;
    rg_stream *s;
    assert_int_equal(rg_stream_create(&s, &o, NULL), RG_OK);
    uint32_t failed = 0, good = 0;
    for (uint32_t i = 0; i < 60; i++) {
        rg_status st = {0};
        const uint32_t n = run_turn(s, i % GROUPS, i, 6, &st);
        failed += n;
        if (n == 0)
            good++;
        else {
            assert_int_equal(st.code, RG_IO);
            assert_int_equal(st.sys_errno, 5);
            assert_non_null(strstr(st.message, "stream_test-"));
            assert_non_null(strstr(st.message, "expert"));
            assert_non_null(strstr(st.message, " at "));
        }
    }
    assert_true(failed > 0 && good > 0);
    rg_stream_destroy(s);
}

/* A pack with a flipped bit: the checksum says which item. */
static void test_checksum(void **state) {
    (void)state;
    fx.sums[1][7] ^= 1;
    for (uint32_t g = 0; g < GROUPS; g++)
        fx.groups[g].checksums = fx.sums[g];
    rg_stream_options o = options(20);
    rg_stream *s;
    assert_int_equal(rg_stream_create(&s, &o, NULL), RG_OK);
    const uint32_t items[2] = {rg_stream_item(s, 1, 7), rg_stream_item(s, 1, 8)};
    const rg_turn *turn;
    assert_int_equal(rg_stream_begin(s, 1, items, 2, RG_MODE_DECODE, &turn, NULL), RG_OK);
    for (uint32_t i = 0; i < 2; i++) {
        rg_status st = {0};
        uint32_t item;
        const rg_code rc = rg_stream_wait(s, &item, &st);
        assert_int_equal(rc, item == items[0] ? RG_FORMAT : RG_OK);
        if (rc != RG_OK) assert_non_null(strstr(st.message, "layer 1 expert 7"));
        if (rc != RG_OK) assert_non_null(strstr(st.message, "checksum"));
    }
    rg_stream_end(s, 0);
    assert_false(rg_stream_holds(s, items[0]));
    assert_true(rg_stream_holds(s, items[1]));
    rg_stream_destroy(s);
    fx.sums[1][7] ^= 1;
    for (uint32_t g = 0; g < GROUPS; g++)
        fx.groups[g].checksums = NULL;
}

/* The file shrinks under us, and grows back. */
static void test_truncated(void **state) {
    (void)state;
    for (uint32_t way = 0; way < 2; way++) {
        rg_stream_options o = options(40);
        o.backend = way ? RG_STREAM_PREAD : RG_STREAM_AUTO;
        rg_stream *s;
        rg_status st = {0};
        assert_int_equal(rg_stream_create(&s, &o, NULL), RG_OK);
        assert_int_equal(truncate(fx.path[0], 5000), 0);
        assert_int_equal(run_turn(s, 0, 1, 6, &st) > 0, true);
        assert_int_equal(st.code, RG_FORMAT);
        assert_non_null(strstr(st.message, "the file ends"));
        write_file(0);
        assert_int_equal(run_turn(s, 0, 1, 6, &st), 0);
        rg_stream_destroy(s);
        assert_int_equal(truncate(fx.path[0], 5000), 0); /* and at open */
        st = (rg_status){0};
        assert_int_equal(rg_stream_create(&s, &o, &st), RG_FORMAT);
        assert_null(s);
        assert_non_null(strstr(st.message, "the file at 5000"));
        write_file(0);
    }
}

static void test_bad_options(void **state) {
    (void)state;
    rg_stream *s;
    rg_status st = {0};
    rg_stream_options o = options(1);
    assert_int_equal(rg_stream_create(&s, &o, &st), RG_INVALID);
    assert_null(s);
    o = options(8);
    o.urgent_reserve = 8;
    assert_int_equal(rg_stream_create(&s, &o, NULL), RG_INVALID);
    o = options(8);
    o.depth = RG_STREAM_DEPTH_MAX + 1;
    assert_int_equal(rg_stream_create(&s, &o, NULL), RG_INVALID);
    o = options(8);
    const char *const gone[FILES] = {fx.path[0], "no-such-file.bin"};
    o.paths = gone;
    st = (rg_status){0};
    assert_int_equal(rg_stream_create(&s, &o, &st), RG_IO);
    assert_non_null(strstr(st.message, "no-such-file.bin"));
    o.n_file = 1; /* an extent names file 1 */
    assert_int_equal(rg_stream_create(&s, &o, NULL), RG_INVALID);
}

/* Nothing is read twice into a slot, everything is a hit, and payloads are some item's bytes. */
static void test_null_reads(void **state) {
    (void)state;
    rg_stream_options o = options(10);
    o.null_reads = true;
    rg_stream *s;
    assert_int_equal(rg_stream_create(&s, &o, NULL), RG_OK);
    for (uint32_t i = 0; i < 200; i++) {
        const uint32_t g = i % GROUPS, item = rg_stream_item(s, g, i * 7 % ITEMS);
        const rg_turn *turn;
        uint32_t got;
        assert_int_equal(rg_stream_begin(s, g, &item, 1, RG_MODE_DECODE, &turn, NULL), RG_OK);
        assert_int_equal(turn->n_hit, 1);
        if (turn->n_pending) assert_int_equal(rg_stream_wait(s, &got, NULL), RG_OK);
        const unsigned char *p = rg_stream_payload(s, item, 0);
        bool found = false;
        for (uint32_t h = 0; h < GROUPS && !found; h++)
            for (uint32_t k = 0; k < ITEMS && !found; k++)
                found = memcmp(p,
                               fx.bytes[fx.groups[h].extents[0].file] +
                                   fx.groups[h].extents[0].offset + (size_t)k * 10007,
                               64) == 0;
        assert_true(found);
        rg_stream_end(s, 0);
        rg_stream_touch(s, &item, 1);
    }
    rg_stream_meters m;
    rg_stream_meters_get(s, &m);
    assert_int_equal(m.reads, 10);
    assert_int_equal(m.misses, 0);
    assert_int_equal(m.hits, 200);
    rg_stream_destroy(s);
}

static uint64_t rss_pages(void) {
    char line[128], *after_size, *end;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    const bool have = fgets(line, sizeof line, f) != NULL;
    fclose(f);
    if (!have) return 0;
    (void)strtoull(line, &after_size, 10);
    if (after_size == line) return 0;
    const uint64_t rss = strtoull(after_size, &end, 10);
    return end == after_size ? 0 : rss;
}

/* Pages that may come: a few of the system's own; more where a sanitizer shadows memory. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLACK_PAGES 4096u
#else
#define SLACK_PAGES 64u
#endif

static void test_rss_is_flat(void **state) {
    (void)state;
    rg_stream_options o = options(9);
    rg_stream *s;
    rg_stream_meters m = {0};
    assert_int_equal(rg_stream_create(&s, &o, NULL), RG_OK);
    uint64_t before = 0, draw = 0;
    while (m.evictions < 10000) {
        assert_int_equal(run_turn(s, (uint32_t)(draw % GROUPS), draw, 8, NULL), 0);
        draw++;
        rg_stream_meters_get(s, &m);
        if (!before && m.evictions > 1000) {
            before = rss_pages();
            rg_alloc_guard_enter(); /* and nothing is allocated in the loop */
        }
    }
    rg_alloc_guard_leave();
    if (before) assert_true(rss_pages() <= before + SLACK_PAGES);
    rg_stream_destroy(s);
}

/* Every allocation of create fails once. */
static void test_torture(void **state) {
    (void)state;
    for (uint32_t way = 0; way < 2; way++) {
        rg_stream_options o = options(8);
        const rg_stream_faults none = {.seed = 1};
        o.faults = &none;
        o.backend = way ? RG_STREAM_PREAD : RG_STREAM_AUTO;
        for (uint64_t n = 1;; n++) {
            rg_stream *s = NULL;
            rg_status st = {0};
            assert_true(n < 200);
            rg_alloc_fail_at(n, false);
            const rg_code rc = rg_stream_create(&s, &o, &st);
            rg_alloc_fail_at(0, false);
            if (rc == RG_OK) {
                rg_stream_destroy(s);
                break;
            }
            assert_int_equal(rc, RG_NOMEM);
            assert_null(s);
            assert_int_equal(st.code, RG_NOMEM);
        }
    }
}

typedef struct watcher {
    rg_stream *s;
    atomic_bool stop;
    uint64_t n;
} watcher;

static void *watch(void *arg) {
    watcher *w = arg;
    uint64_t last = 0;
    while (!atomic_load_explicit(&w->stop, memory_order_relaxed)) { /* no data hangs on it */
        rg_stream_meters m;
        rg_stream_meters_get(w->s, &m);
        if (m.read_bytes < last || m.arena_peak_bytes > m.arena_bytes) abort();
        last = m.read_bytes;
        w->n++;
    }
    return NULL;
}

/* The meters are for any thread (ThreadSanitizer looks on). */
static void test_meters_from_another_thread(void **state) {
    (void)state;
    rg_stream_options o = options(12);
    o.backend = RG_STREAM_PREAD;
    watcher w = {0};
    pthread_t thread;
    assert_int_equal(rg_stream_create(&w.s, &o, NULL), RG_OK);
    assert_int_equal(pthread_create(&thread, NULL, watch, &w), 0);
    for (uint32_t i = 0; i < 60; i++)
        assert_int_equal(run_turn(w.s, i % GROUPS, i, 8, NULL), 0);
    atomic_store_explicit(&w.stop, true, memory_order_relaxed);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(w.n > 0);
    rg_stream_destroy(w.s);
}

static void test_warm_and_clear(void **state) {
    (void)state;
    rg_stream_options o = options(10);
    rg_stream *s;
    assert_int_equal(rg_stream_create(&s, &o, NULL), RG_OK);
    uint32_t items[30];
    for (uint32_t i = 0; i < 30; i++)
        items[i] = rg_stream_item(s, i % GROUPS, i / GROUPS);
    assert_int_equal(rg_stream_warm(s, items, 30), 10); /* slots, no more */
    assert_int_equal(rg_stream_warm(s, items, 30), 0);
    const rg_turn *turn;
    assert_int_equal(rg_stream_begin(s, 0, items, 1, RG_MODE_DECODE, &turn, NULL), RG_OK);
    assert_int_equal(turn->n_hit, 1);
    uint32_t item;
    if (turn->n_pending) assert_int_equal(rg_stream_wait(s, &item, NULL), RG_OK);
    check_bytes(s, items[0]);
    rg_stream_end(s, 0);
    rg_stream_clear(s);
    for (uint32_t i = 0; i < 30; i++)
        assert_false(rg_stream_holds(s, items[i]));
    assert_int_equal(run_turn(s, 1, 3, 8, NULL), 0);
    rg_stream_destroy(s);
}

/* A window of one turn on `group`. */
static void run_window(rg_stream *s, uint32_t group, const uint32_t *guesses, uint32_t n_guess,
                       const uint32_t *items, uint32_t n) {
    const rg_turn *turn;
    uint32_t item;
    if (rg_stream_wants_guesses(s, group, RG_MODE_DECODE))
        rg_stream_ahead(s, group, guesses, n_guess, UINT32_MAX, RG_MODE_DECODE);
    assert_int_equal(rg_stream_begin(s, group, items, n, RG_MODE_DECODE, &turn, NULL), RG_OK);
    const uint32_t n_pending = turn->n_pending;
    for (uint32_t i = 0; i < n_pending; i++)
        assert_int_equal(rg_stream_wait(s, &item, NULL), RG_OK);
    rg_stream_end(s, 0);
    rg_stream_touch(s, items, n);
}

static void test_guesses_are_wanted_while_they_can_pay(void **state) {
    (void)state;
    uint32_t items[ITEMS], wanted = 0;
    rg_stream_options o = options(2 * ITEMS);
    rg_stream *s;
    assert_int_equal(rg_stream_create(&s, &o, NULL), RG_OK);
    for (uint32_t i = 0; i < ITEMS; i++)
        items[i] = rg_stream_item(s, 1, i);
    run_window(s, 1, items, ITEMS - 1, items, ITEMS - 1);
    assert_true(rg_stream_wants_guesses(s, 1, RG_MODE_DECODE));
    assert_true(rg_stream_wants_guesses(s, 1, RG_MODE_PREFILL));
    run_window(s, 1, items, ITEMS, items, ITEMS); /* now it is held whole */
    assert_false(rg_stream_wants_guesses(s, 1, RG_MODE_DECODE));
    assert_false(rg_stream_wants_guesses(s, 1, RG_MODE_PREFILL));
    assert_true(rg_stream_wants_guesses(s, 2, RG_MODE_DECODE));
    rg_stream_destroy(s);

    /* Guesses that never come true are asked for ever more rarely, and never not at all. */
    o = options(12);
    assert_int_equal(rg_stream_create(&s, &o, NULL), RG_OK);
    for (uint32_t w = 0; w < 4000; w++) {
        uint32_t other[4], guesses[8];
        for (uint32_t i = 0; i < 8; i++) {
            other[i % 4] = rg_stream_item(s, 1, (8 * w + i) % (ITEMS / 2));
            guesses[i] = rg_stream_item(s, 1, ITEMS / 2 + (8 * w + i) % (ITEMS / 2));
        }
        run_window(s, 1, guesses, 8, other, 4);
        if (w >= 3200) wanted += rg_stream_wants_guesses(s, 1, RG_MODE_DECODE);
    }
    assert_int_equal(rg_stream_lookahead(s), 0);
    assert_int_equal(wanted, 100);
    rg_stream_destroy(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_devices_agree),
        cmocka_unit_test(test_faults_are_survived),
        cmocka_unit_test(test_errors_name_the_item),
        cmocka_unit_test(test_checksum),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_null_reads),
        cmocka_unit_test(test_rss_is_flat),
        cmocka_unit_test(test_torture),
        cmocka_unit_test(test_warm_and_clear),
        cmocka_unit_test(test_guesses_are_wanted_while_they_can_pay),
        cmocka_unit_test(test_meters_from_another_thread),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
