/* The n-gram row reader against files of random bytes: every row that comes is the file's, whatever
 * the cache, the number of threads, delays and faults; failures stay with their request.
 */
#include "engine/ple_reader.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "quant/quant.h"

#define OFFSET   1237u /* of row 0: nothing is aligned */
#define N_ROW    4000u
#define WANT_MAX 96u

/* ---- a table on disk ------------------------------------------------------------------------ */

typedef struct table {
    char path[64];
    uint8_t *bytes; /* [OFFSET + n_row * row_bytes] */
    size_t size, row_bytes;
} table;

static table make_table(size_t row_bytes, size_t n_row) {
    table t = {.size = OFFSET + n_row * row_bytes, .row_bytes = row_bytes};
    snprintf(t.path, sizeof t.path, "/tmp/rg_ple_test_XXXXXX");
    const int fd = mkstemp(t.path);
    assert_true(fd >= 0);
    t.bytes = malloc(t.size);
    assert_non_null(t.bytes);
    for (size_t i = 0; i < t.size; i++)
        t.bytes[i] = (uint8_t)rg_random_u64(row_bytes, i);
    assert_int_equal(write(fd, t.bytes, t.size), (ssize_t)t.size);
    close(fd);
    return t;
}

static void drop_table(table *t) {
    (void)remove(t->path);
    free(t->bytes);
}

static rg_ple_reader_options options(const table *t) {
    return (rg_ple_reader_options){.path = t->path,
                                   .offset = OFFSET,
                                   .n_row = N_ROW,
                                   .row_bytes = t->row_bytes,
                                   .n_want_max = WANT_MAX,
                                   .cache_bytes = 1,
                                   .direct = RG_DIRECT_OFF,
                                   .n_thread = 3};
}

static rg_ple_reader *open_reader(const rg_ple_reader_options *o) {
    rg_ple_reader *r = NULL;
    rg_status st = {0};
    if (rg_ple_reader_create(&r, o, &st) != RG_OK) fail_msg("%s", st.message);
    return r;
}

static rg_ple_meters meters(rg_ple_reader *r) {
    rg_ple_meters m;
    rg_ple_reader_meters_get(r, &m);
    return m;
}

/* Rows that mostly come from a few favourites, as n-grams do. */
static uint32_t draw_wants(uint64_t *wants, uint64_t seed, uint64_t window, uint32_t n_max) {
    const uint32_t n = (uint32_t)(rg_random_u64(seed, window * 1000) % (n_max + 1));
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t x = rg_random_u64(seed, window * 1000 + 1 + i);
        wants[i] = x >> 32 & 1 ? x % 50 * 71 : x % N_ROW;
    }
    return n;
}

static void check_rows(const rg_ple_reader *r, const table *t, const uint64_t *wants, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *row = t->bytes + OFFSET + wants[i] * t->row_bytes;
        if (memcmp(rg_ple_reader_row(r, i), row, t->row_bytes) != 0)
            fail_msg("row %llu differs", (unsigned long long)wants[i]);
    }
}

static void run_windows(rg_ple_reader *r, const table *t, uint64_t seed, uint32_t n_window,
                        uint32_t n_max) {
    uint64_t *wants = rg_ple_reader_wants(r);
    rg_status st = {0};
    for (uint32_t w = 0; w < n_window; w++) {
        const uint32_t n = draw_wants(wants, seed, w, n_max);
        rg_alloc_guard_enter(); /* a window allocates nothing */
        rg_code rc = rg_ple_reader_request(r, n, &st);
        if (rc == RG_OK) rc = rg_ple_reader_join(r, &st);
        rg_alloc_guard_leave();
        if (rc != RG_OK) fail_msg("%s", st.message);
        check_rows(r, t, wants, n);
    }
}

/* ---- a read that misbehaves ------------------------------------------------------------------ */

typedef struct quirks {
    atomic_uint calls, fail_next; /* so many coming reads fail with `error` */
    int error;
    size_t longest;    /* bytes that come at most; 0: all */
    uint32_t delay_us; /* at most */
    atomic_bool gate;  /* reads wait until it opens */
    atomic_uint waiting;
} quirks;

static void nap(long us) {
    const struct timespec t = {.tv_nsec = us * 1000};
    nanosleep(&t, NULL);
}

static ssize_t quirky_read(void *user, int fd, void *dst, size_t bytes, off_t offset) {
    quirks *q = user;
    const unsigned call = atomic_fetch_add(&q->calls, 1);
    atomic_fetch_add(&q->waiting, 1);
    while (atomic_load(&q->gate))
        nap(50);
    if (q->delay_us) nap((long)(rg_random_u64(9, call) % q->delay_us));
    unsigned left = atomic_load(&q->fail_next);
    while (left && !atomic_compare_exchange_weak(&q->fail_next, &left, left - 1))
        continue;
    if (left) {
        errno = q->error;
        return -1;
    }
    if (q->longest && bytes > q->longest) bytes = q->longest;
    return pread(fd, dst, bytes, offset);
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void test_rows_of_all_shapes(void **state) {
    (void)state;
    static const rg_type types[] = {RG_TYPE_Q4_0, RG_TYPE_Q8_0, RG_TYPE_IQ4_NL, RG_TYPE_BF16,
                                    RG_TYPE_F32};
    static const uint64_t caches[] = {1, 40000, (uint64_t)4 << 20};
    for (size_t i = 0; i < RG_ARRAY_LEN(types); i++) {
        table t = make_table(rg_row_bytes(types[i], 160), N_ROW);
        float got[160], want[160];
        for (int k = 0; k < 12; k++) {
            rg_ple_reader_options o = options(&t);
            o.cache_bytes = caches[k % 3];
            o.n_thread = k % 4 == 0 ? 1 : k % 4 == 1 ? 3 : 16;
            o.direct = k % 2 ? RG_DIRECT_AUTO : RG_DIRECT_OFF;
            o.resident = k == 11;
            rg_ple_reader *r = open_reader(&o);
            assert_int_equal(rg_ple_reader_memory(r), rg_ple_reader_bytes(&o));
            run_windows(r, &t, (uint64_t)k, 60, WANT_MAX);
            uint64_t *wants = rg_ple_reader_wants(r);
            wants[0] = N_ROW - 1; /* ends with the file */
            assert_int_equal(rg_ple_reader_request(r, 1, NULL), RG_OK);
            assert_int_equal(rg_ple_reader_join(r, NULL), RG_OK);
            rg_unpack_row(types[i], rg_ple_reader_row(r, 0), got, 160);
            rg_unpack_row(types[i], t.bytes + t.size - t.row_bytes, want, 160);
            assert_memory_equal(got, want, sizeof got);
            const rg_ple_meters m = meters(r);
            assert_true(m.hits + m.shared <= m.wanted);
            assert_true(o.resident ? m.reads == 0 && m.hits == m.wanted : m.read_bytes > 0);
            rg_ple_reader_destroy(r);
        }
        drop_table(&t);
    }
}

static void test_rows_longer_than_a_span(void **state) {
    (void)state;
    table t = make_table(70001, 40);
    rg_ple_reader_options o = options(&t);
    o.n_row = 40;
    o.n_want_max = 5;
    for (int direct = 0; direct < 2; direct++) {
        o.direct = direct ? RG_DIRECT_AUTO : RG_DIRECT_OFF;
        rg_ple_reader *r = open_reader(&o);
        uint64_t *wants = rg_ple_reader_wants(r);
        for (uint64_t w = 0; w < 30; w++) {
            for (uint64_t i = 0; i < 5; i++)
                wants[i] = rg_random_u64(w, i) % 40;
            assert_int_equal(rg_ple_reader_request(r, 5, NULL), RG_OK);
            assert_int_equal(rg_ple_reader_join(r, NULL), RG_OK);
            check_rows(r, &t, wants, 5);
        }
        rg_ple_reader_destroy(r);
    }
    drop_table(&t);
}

static void test_two_rows_and_delays(void **state) {
    (void)state;
    table t = make_table(90, N_ROW);
    quirks q = {.delay_us = 60};
    rg_ple_reader_options o = options(&t);
    o.n_want_max = 2;
    o.read = quirky_read;
    o.read_user = &q;
    rg_ple_reader *r = open_reader(&o);
    assert_int_equal(meters(r).n_slot, 2);
    run_windows(r, &t, 5, 3000, 2);
    rg_ple_reader_destroy(r);
    drop_table(&t);
}

/* Hits as a list kept in order of use would have them. */
static void test_least_recently_used(void **state) {
    (void)state;
    table t = make_table(90, N_ROW);
    rg_ple_reader_options o = options(&t);
    o.n_want_max = 8;
    o.cache_bytes = 6000;
    rg_ple_reader *r = open_reader(&o);
    const uint32_t n_slot = meters(r).n_slot;
    assert_in_range(n_slot, 20, 100);
    uint64_t list[100], hits = 0, shared = 0; /* youngest last */
    uint32_t len = 0;
    uint64_t *wants = rg_ple_reader_wants(r);
    for (uint32_t w = 0; w < 2000; w++) {
        const uint32_t n = draw_wants(wants, 77, w, 8);
        bool was_hit[8] = {false};
        for (int pass = 0; pass < 2; pass++) { /* hits first, then misses */
            for (uint32_t i = 0; i < n; i++) {
                uint32_t at = 0;
                while (at < len && list[at] != wants[i])
                    at++;
                if (pass == 0 && at == len) continue;
                if (pass == 1 && was_hit[i]) continue;
                if (pass == 1 && at < len) {
                    shared++;
                    continue;
                }
                if (pass == 0) {
                    hits++;
                    was_hit[i] = true;
                }
                if (at == len && len == n_slot) at = 0;
                if (at < len) memmove(list + at, list + at + 1, (--len - at) * sizeof *list);
                list[len++] = wants[i];
            }
        }
        assert_int_equal(rg_ple_reader_request(r, n, NULL), RG_OK);
        assert_int_equal(rg_ple_reader_join(r, NULL), RG_OK);
        check_rows(r, &t, wants, n);
    }
    assert_int_equal(meters(r).hits, hits);
    assert_int_equal(meters(r).shared, shared);
    assert_true(hits > 1000);
    rg_ple_reader_destroy(r);
    drop_table(&t);
}

static void test_neighbours_share_reads(void **state) {
    (void)state;
    table t = make_table(90, N_ROW);
    rg_ple_reader_options o = options(&t);
    rg_ple_reader *r = open_reader(&o);
    uint64_t *wants = rg_ple_reader_wants(r);
    for (uint32_t i = 0; i < 60; i++)
        wants[i] = 1000 + (i * 7) % 60; /* two pages, in disorder */
    wants[60] = 1003;                   /* again */
    wants[61] = 3900;
    assert_int_equal(rg_ple_reader_request(r, 62, NULL), RG_OK);
    assert_int_equal(rg_ple_reader_join(r, NULL), RG_OK);
    check_rows(r, &t, wants, 62);
    assert_int_equal(meters(r).reads, 2);
    assert_int_equal(meters(r).read_bytes, 61 * 90);
    assert_int_equal(meters(r).shared, 1);
    rg_ple_reader_destroy(r);
    drop_table(&t);
}

static void test_file_too_short(void **state) {
    (void)state;
    table t = make_table(90, N_ROW);
    rg_ple_reader_options o = options(&t);
    rg_ple_reader *r = NULL;
    rg_status st = {0};
    o.n_row = N_ROW + 1;
    assert_int_equal(rg_ple_reader_create(&r, &o, &st), RG_FORMAT);
    assert_null(r);
    assert_non_null(strstr(st.message, "the n-gram table ends at 361327, the file at 361237"));
    o.n_row = N_ROW;
    for (int direct = 0; direct < 2; direct++) {
        o.direct = direct ? RG_DIRECT_AUTO : RG_DIRECT_OFF;
        r = open_reader(&o);
        assert_int_equal(truncate(t.path, 200000), 0);
        uint64_t *wants = rg_ple_reader_wants(r);
        wants[0] = 5;
        wants[1] = 3000;
        rg_status_clear(&st);
        assert_int_equal(rg_ple_reader_request(r, 2, &st), RG_OK);
        assert_int_equal(rg_ple_reader_join(r, &st), RG_FORMAT);
        assert_non_null(strstr(st.message, "shrank: n-gram row 3000"));
        assert_non_null(strstr(st.message, t.path));
        wants[1] = 6; /* what is left is still served */
        assert_int_equal(rg_ple_reader_request(r, 2, NULL), RG_OK);
        assert_int_equal(rg_ple_reader_join(r, NULL), RG_OK);
        check_rows(r, &t, wants, 2);
        rg_ple_reader_destroy(r);
        FILE *f = fopen(t.path, "r+b");
        assert_non_null(f);
        assert_int_equal(fwrite(t.bytes, 1, t.size, f), t.size);
        assert_int_equal(fclose(f), 0);
    }
    drop_table(&t);
}

static void test_failed_reads(void **state) {
    (void)state;
    table t = make_table(90, N_ROW);
    quirks q = {.error = EIO};
    rg_ple_reader_options o = options(&t);
    o.read = quirky_read;
    o.read_user = &q;
    rg_ple_reader *r = open_reader(&o);
    uint64_t *wants = rg_ple_reader_wants(r);
    rg_status st = {0};
    atomic_store(&q.fail_next, 2); /* within the bound */
    wants[0] = 17;
    assert_int_equal(rg_ple_reader_request(r, 1, &st), RG_OK);
    assert_int_equal(rg_ple_reader_join(r, &st), RG_OK);
    check_rows(r, &t, wants, 1);
    assert_int_equal(meters(r).retries, 2);
    assert_int_equal(meters(r).errors, 0);
    atomic_store(&q.fail_next, 4); /* beyond it: row 17 is held, 2000 fails */
    wants[1] = 2000;
    assert_int_equal(rg_ple_reader_request(r, 2, &st), RG_OK);
    assert_int_equal(rg_ple_reader_join(r, &st), RG_IO);
    assert_int_equal(st.sys_errno, EIO);
    assert_non_null(strstr(st.message, "n-gram row 2000: reading 90 bytes at 181237"));
    assert_non_null(strstr(st.message, t.path));
    assert_int_equal(meters(r).errors, 1);
    const uint64_t hits = meters(r).hits;
    assert_int_equal(rg_ple_reader_request(r, 2, NULL), RG_OK); /* and again, all well */
    assert_int_equal(rg_ple_reader_join(r, NULL), RG_OK);
    check_rows(r, &t, wants, 2);
    assert_int_equal(meters(r).hits, hits + 1);
    q.error = EINTR;
    atomic_store(&q.fail_next, 50); /* no failure at all */
    wants[0] = 3;
    assert_int_equal(rg_ple_reader_request(r, 1, NULL), RG_OK);
    assert_int_equal(rg_ple_reader_join(r, NULL), RG_OK);
    check_rows(r, &t, wants, 1);
    q.longest = 7; /* short reads go on */
    run_windows(r, &t, 8, 50, WANT_MAX);
    assert_int_equal(meters(r).errors, 1);
    wants[0] = N_ROW;
    rg_status_clear(&st);
    assert_int_equal(rg_ple_reader_request(r, 1, &st), RG_INVALID);
    assert_string_equal(st.message, "n-gram row 4000 is wanted, the table has 4000");
    run_windows(r, &t, 9, 20, WANT_MAX);
    rg_ple_reader_destroy(r);
    drop_table(&t);
}

/* A window that breaks off while its reads are stuck: nothing half read is taken for a row. */
static void *open_gate(void *arg) {
    quirks *q = arg;
    while (atomic_load(&q->waiting) == 0)
        nap(100);
    nap(2000);
    atomic_store(&q->gate, false);
    return NULL;
}

static void test_cancel_while_reading(void **state) {
    (void)state;
    table t = make_table(90, N_ROW);
    quirks q = {.gate = true};
    rg_ple_reader_options o = options(&t);
    o.read = quirky_read;
    o.read_user = &q;
    rg_ple_reader *r = open_reader(&o);
    uint64_t *wants = rg_ple_reader_wants(r);
    for (uint32_t i = 0; i < 40; i++)
        wants[i] = (uint64_t)i * 100;
    assert_int_equal(rg_ple_reader_request(r, 40, NULL), RG_OK);
    pthread_t opener;
    assert_int_equal(pthread_create(&opener, NULL, open_gate, &q), 0);
    while (atomic_load(&q.waiting) == 0)
        nap(100);
    rg_ple_reader_cancel(r);
    rg_ple_reader_cancel(r); /* nothing left to give up */
    pthread_join(opener, NULL);
    const unsigned calls = atomic_load(&q.calls);
    nap(3000);
    assert_int_equal(atomic_load(&q.calls), calls); /* nothing goes on behind the back */
    assert_true(calls >= 1);
    assert_int_equal(rg_ple_reader_request(r, 40, NULL), RG_OK);
    assert_int_equal(rg_ple_reader_join(r, NULL), RG_OK);
    check_rows(r, &t, wants, 40);
    assert_int_equal(meters(r).hits, 0);
    rg_ple_reader_destroy(r);
    drop_table(&t);
}

static void test_cancels_at_random(void **state) {
    (void)state;
    table t = make_table(34, N_ROW);
    quirks q = {.delay_us = 40};
    rg_ple_reader_options o = options(&t);
    o.n_want_max = 12;
    o.read = quirky_read;
    o.read_user = &q;
    rg_ple_reader *r = open_reader(&o);
    uint64_t *wants = rg_ple_reader_wants(r);
    uint32_t joined = 0;
    for (uint32_t w = 0; w < 3000; w++) {
        const uint32_t n = draw_wants(wants, 31, w, 12);
        assert_int_equal(rg_ple_reader_request(r, n, NULL), RG_OK);
        const uint64_t what = rg_random_u64(32, w) % 4;
        if (what == 0) rg_ple_reader_cancel(r);
        if (what <= 1) continue; /* 1: the next request gives it up */
        assert_int_equal(rg_ple_reader_join(r, NULL), RG_OK);
        check_rows(r, &t, wants, n);
        joined++;
    }
    assert_true(joined > 1000);
    assert_int_equal(rg_ple_reader_request(r, draw_wants(wants, 31, 4, 12), NULL), RG_OK);
    rg_ple_reader_destroy(r); /* with a request open */
    drop_table(&t);
}

static void test_injected_faults(void **state) {
    (void)state;
    table t = make_table(90, N_ROW);
    const rg_stream_faults faults = {.seed = 3,
                                     .eio_permille = 20,
                                     .eio_burst = 6,
                                     .short_permille = 200,
                                     .stall_permille = 10,
                                     .stall_ms_max = 2};
    for (int direct = 0; direct < 2; direct++) {
        rg_ple_reader_options o = options(&t);
        o.faults = &faults;
        o.direct = direct ? RG_DIRECT_AUTO : RG_DIRECT_OFF;
        o.n_want_max = 16;
        rg_ple_reader *r = open_reader(&o);
        uint64_t *wants = rg_ple_reader_wants(r);
        uint32_t good = 0, bad = 0;
        for (uint32_t w = 0; w < 400; w++) {
            const uint32_t n = draw_wants(wants, 41, w, 16);
            rg_status st = {0};
            assert_int_equal(rg_ple_reader_request(r, n, &st), RG_OK);
            if (rg_ple_reader_join(r, &st) == RG_OK) {
                check_rows(r, &t, wants, n);
                good++;
            } else {
                assert_int_equal(st.code, RG_IO);
                bad++;
            }
        }
        assert_true(good > 50);
        assert_true(bad > 5);
        assert_true(meters(r).errors >= bad);
        rg_ple_reader_destroy(r);
    }
    drop_table(&t);
}

static void test_null_reads(void **state) {
    (void)state;
    table t = make_table(90, N_ROW);
    rg_ple_reader_options o = options(&t);
    o.null_reads = true;
    o.n_want_max = 4;
    rg_ple_reader *r = open_reader(&o);
    uint64_t *wants = rg_ple_reader_wants(r);
    for (uint64_t w = 0; w < 20; w++) {
        for (uint64_t i = 0; i < 4; i++)
            wants[i] = w * 20 + i * 900;
        assert_int_equal(rg_ple_reader_request(r, 4, NULL), RG_OK);
        assert_int_equal(rg_ple_reader_join(r, NULL), RG_OK);
    }
    assert_int_equal(meters(r).read_bytes, 4 * 90); /* each slot once */
    rg_ple_reader_destroy(r);
    drop_table(&t);
}

static void test_out_of_memory(void **state) {
    (void)state;
    table t = make_table(90, N_ROW);
    for (int resident = 0; resident < 2; resident++) {
        rg_ple_reader_options o = options(&t);
        o.resident = resident != 0;
        rg_ple_reader *r = NULL;
        uint64_t n = 0;
        while (!r && n < 20) {
            rg_status st = {0};
            rg_alloc_fail_at(++n, false);
            const rg_code rc = rg_ple_reader_create(&r, &o, &st);
            rg_alloc_fail_at(0, false);
            assert_int_equal(rc, r ? RG_OK : RG_NOMEM);
        }
        assert_in_range(n, 3, 19);
        run_windows(r, &t, n, 5, WANT_MAX);
        rg_ple_reader_destroy(r);
    }
    rg_ple_reader_options o = options(&t);
    rg_ple_reader *r = NULL;
    o.n_want_max = RG_PLE_WANT_MAX + 1;
    assert_int_equal(rg_ple_reader_create(&r, &o, NULL), RG_INVALID);
    o = options(&t);
    o.path = "/nowhere/table";
    assert_int_equal(rg_ple_reader_create(&r, &o, NULL), RG_IO);
    assert_null(r);
    rg_ple_reader_destroy(NULL);
    drop_table(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_all_shapes),
        cmocka_unit_test(test_rows_longer_than_a_span),
        cmocka_unit_test(test_two_rows_and_delays),
        cmocka_unit_test(test_least_recently_used),
        cmocka_unit_test(test_neighbours_share_reads),
        cmocka_unit_test(test_file_too_short),
        cmocka_unit_test(test_failed_reads),
        cmocka_unit_test(test_cancel_while_reading),
        cmocka_unit_test(test_cancels_at_random),
        cmocka_unit_test(test_injected_faults),
        cmocka_unit_test(test_null_reads),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
