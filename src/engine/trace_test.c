/* Traces and usage profiles: what was written is read back; damaged files are refused. */
#include "engine/trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/usage.h"

#define TRACE   "trace_test.trace"
#define PROFILE "trace_test.rgprofile"

enum { GROUPS = 3, USED = 2 };

static rg_stream_group groups[GROUPS];

static rg_trace_header header(void) {
    rg_trace_header h = {.n_used = USED,
                         .chunk = 64,
                         .arena_bytes = 1 << 20,
                         .policy = RG_POLICY_SLRU,
                         .guard_off = true,
                         .lookahead = -1,
                         .depth = 8,
                         .n_group = GROUPS,
                         .groups = groups};
    for (uint32_t g = 0; g < GROUPS; g++) {
        groups[g] = (rg_stream_group){.n_item = 4 + g, .n_extent = 1};
        groups[g].extents[0] =
            (rg_stream_extent){.bytes = 100, .offset = 1000 * g + 7, .stride = 100};
    }
    memset(h.identity, 0x5A, sizeof h.identity);
    return h;
}

static const uint32_t two_rows[] = {3, 1, 1, 0}, one_row[] = {5, 2}, guesses[] = {2, 0, 3};
static const uint32_t warmed[] = {14, 0, 9}, touched[] = {0, 1};

/* One window where everything counts, one with a rejected row, one that failed. */
static rg_code write_trace(const char *path, rg_status *st) {
    const rg_trace_header h = header();
    rg_trace *t;
    RG_TRY(rg_trace_create(&t, path, &h, st));
    rg_code rc = RG_OK;
    const uint32_t all[] = {3, 1, 1, 0, 14, 11};
    rg_trace_warm(t, warmed, 3);
    rg_trace_turn(t, 0, two_rows, 2, RG_MODE_PREFILL);
    rg_trace_ahead(t, 1, guesses, 3, RG_MODE_PREFILL);
    rg_trace_turn(t, 2, one_row, 1, RG_MODE_DECODE);
    const rg_trace_window first = {
        .touched = all, .n_touched = 6, .lookahead = 6, .hits = 10, .misses = 4};
    RG_GO(rg_trace_end_window(t, &first, st));
    rg_trace_turn(t, 0, two_rows, 2, RG_MODE_DECODE);
    const rg_trace_window second = {
        .touched = touched, .n_touched = 2, .lookahead = 5, .hits = 11, .misses = 7};
    RG_GO(rg_trace_end_window(t, &second, st));
    rg_trace_turn(t, 1, guesses, 1, RG_MODE_DECODE);
    const rg_trace_window third = {.failed = true, .lookahead = 5, .hits = 2, .misses = 1};
    RG_GO(rg_trace_end_window(t, &third, st));
cleanup:
    rg_trace_close(t);
    return rc;
}

static void write_or_fail(void) {
    rg_status st = {0};
    if (write_trace(TRACE, &st) != RG_OK) fail_msg("%s", st.message);
}

static rg_trace_event next(rg_trace_reader *r, rg_trace_kind kind) {
    rg_trace_event e;
    bool more;
    rg_status st = {0};
    if (rg_trace_next(r, &e, &more, &st) != RG_OK) fail_msg("%s", st.message);
    assert_true(more);
    assert_int_equal(e.kind, kind);
    return e;
}

static void check_values(const rg_trace_event *e, const uint32_t *want, uint32_t n) {
    assert_int_equal(e->n, n);
    assert_memory_equal(e->values, want, n * sizeof *want);
}

static void check_events(rg_trace_reader *r) {
    rg_trace_event e = next(r, RG_TRACE_WARM);
    check_values(&e, warmed, 3);
    e = next(r, RG_TRACE_TURN);
    check_values(&e, two_rows, 4);
    assert_int_equal(e.group, 0);
    assert_int_equal(e.rows, 2);
    assert_int_equal(e.mode, RG_MODE_PREFILL);
    e = next(r, RG_TRACE_AHEAD);
    check_values(&e, guesses, 3);
    assert_int_equal(e.group, 1);
    e = next(r, RG_TRACE_TURN);
    check_values(&e, one_row, 2);
    assert_int_equal(e.mode, RG_MODE_DECODE);
    e = next(r, RG_TRACE_WINDOW);
    assert_false(e.explicit_touch);
    assert_int_equal(e.accepted, 2);
    assert_int_equal(e.lookahead, 6);
    assert_int_equal(e.hits, 10);
    assert_int_equal(e.misses, 4);
    next(r, RG_TRACE_TURN);
    e = next(r, RG_TRACE_WINDOW);
    assert_true(e.explicit_touch);
    check_values(&e, touched, 2);
    assert_int_equal(e.accepted, 1);
    assert_int_equal(e.hits, 1);
    assert_int_equal(e.misses, 3);
    next(r, RG_TRACE_TURN);
    e = next(r, RG_TRACE_WINDOW);
    assert_true(e.failed);
    assert_int_equal(e.accepted, 0);
    assert_int_equal(e.hits, 2); /* the meters were reset in between */
    bool more = true;
    assert_int_equal(rg_trace_next(r, &e, &more, NULL), RG_OK);
    assert_false(more);
}

static void gives_back_what_was_written(void **state) {
    (void)state;
    write_or_fail();
    rg_trace_reader *r;
    rg_status st = {0};
    if (rg_trace_open(&r, TRACE, &st) != RG_OK) fail_msg("%s", st.message);
    const rg_trace_header want = header(), *h = rg_trace_header_of(r);
    assert_memory_equal(h->identity, want.identity, sizeof want.identity);
    assert_int_equal(h->n_used, want.n_used);
    assert_int_equal(h->chunk, want.chunk);
    assert_int_equal(h->arena_bytes, want.arena_bytes);
    assert_int_equal(h->policy, want.policy);
    assert_int_equal(h->lookahead, want.lookahead);
    assert_int_equal(h->depth, want.depth);
    assert_true(h->guard_off);
    assert_false(h->null_reads);
    assert_int_equal(h->n_group, GROUPS);
    assert_memory_equal(h->groups, groups, sizeof groups);
    check_events(r);
    rg_trace_rewind(r);
    check_events(r);
    rg_trace_reader_destroy(r);
}

/* Reads everything; the code it ends with. */
static rg_code read_all(const void *data, size_t size, uint32_t *n_window) {
    rg_trace_reader *r;
    *n_window = 0;
    rg_code rc = rg_trace_parse(&r, data, size, "bytes", NULL);
    for (bool more = true; rc == RG_OK && more;) {
        rg_trace_event e;
        rc = rg_trace_next(r, &e, &more, NULL);
        if (rc == RG_OK && more && e.kind == RG_TRACE_WINDOW) (*n_window)++;
    }
    rg_trace_reader_destroy(r);
    return rc;
}

static void refuses_a_file_that_is_cut(void **state) {
    (void)state;
    write_or_fail();
    char *data;
    size_t size;
    uint32_t n = 0, whole = 0;
    assert_int_equal(rg_file_slurp(&data, &size, TRACE, 1 << 20, NULL), RG_OK);
    assert_int_equal(read_all(data, size, &n), RG_OK);
    assert_int_equal(n, 3);
    for (size_t cut = 0; cut < size; cut++) {
        char *copy = rg_alloc(cut, 1, NULL); /* a block of its own: the sanitizer sees its end */
        assert_non_null(copy);
        memcpy(copy, data, cut);
        const rg_code rc = read_all(copy, cut, &n);
        assert_true(rc == RG_OK || rc == RG_FORMAT);
        whole += rc == RG_OK;
        rg_free(copy);
    }
    assert_int_equal(whole, 9); /* behind the header and behind each event but the last */
    rg_free(data);
}

static void survives_any_changed_byte(void **state) {
    (void)state;
    write_or_fail();
    char *data;
    size_t size;
    uint32_t n, refused = 0;
    assert_int_equal(rg_file_slurp(&data, &size, TRACE, 1 << 20, NULL), RG_OK);
    for (size_t at = 0; at < size; at++) {
        for (uint32_t bit = 0; bit < 8; bit++) {
            data[at] = (char)(data[at] ^ (1 << bit));
            const rg_code rc = read_all(data, size, &n);
            assert_true(rc == RG_OK || rc == RG_FORMAT || rc == RG_INVALID);
            refused += rc != RG_OK;
            data[at] = (char)(data[at] ^ (1 << bit));
        }
    }
    assert_true(refused > size);
    rg_free(data);
}

static void leaks_nothing_when_memory_is_out(void **state) {
    (void)state;
    rg_code rc = RG_NOMEM;
    uint32_t n_failed = 0;
    for (uint64_t n = 1; rc != RG_OK; n++) {
        rg_status st = {0};
        rg_trace_reader *r = NULL;
        rg_alloc_fail_at(n, false);
        rc = write_trace(TRACE, &st);
        if (rc == RG_OK) rc = rg_trace_open(&r, TRACE, &st);
        rg_trace_event e;
        bool more = true;
        while (rc == RG_OK && more)
            rc = rg_trace_next(r, &e, &more, &st);
        rg_alloc_fail_at(0, false);
        rg_trace_reader_destroy(r);
        assert_true(rc == RG_OK || rc == RG_NOMEM);
        n_failed += rc != RG_OK;
        assert_true(n < 1000);
    }
    assert_true(n_failed > 10);
}

static void names_a_file_that_cannot_be_written(void **state) {
    (void)state;
    const rg_trace_header h = header();
    rg_trace *t = NULL;
    rg_status st = {0};
    assert_int_equal(rg_trace_create(&t, "no/such/folder/x", &h, &st), RG_IO);
    assert_null(t);
    assert_non_null(strstr(st.message, "no/such/folder/x"));
    if (access("/dev/full", W_OK) != 0) skip();
    rg_status_clear(&st);
    assert_int_equal(rg_trace_create(&t, "/dev/full", &h, &st), RG_IO);
    assert_non_null(strstr(st.message, "/dev/full"));
}

static void profile_comes_back_and_ranks(void **state) {
    (void)state;
    static const uint32_t n_item[] = {3, 4};
    static const uint32_t uses[] = {5, 0, 7, 7, 1, 0, 9};
    static const uint8_t identity[RG_IDENTITY_BYTES] = {1, 2, 3};
    rg_profile p, q;
    rg_status st = {0};
    assert_int_equal(rg_profile_init(&p, identity, 2, n_item, &st), RG_OK);
    memcpy(p.uses, uses, sizeof uses);
    if (rg_profile_write(&p, PROFILE, &st) != RG_OK) fail_msg("%s", st.message);
    if (rg_profile_read(&q, PROFILE, &st) != RG_OK) fail_msg("%s", st.message);
    assert_int_equal(q.n_total, 7);
    assert_memory_equal(q.uses, uses, sizeof uses);
    assert_memory_equal(q.identity, identity, sizeof identity);
    uint32_t rank[7];
    static const uint32_t all[] = {6, 2, 3, 0, 4}, second[] = {6, 3, 4};
    assert_int_equal(rg_profile_rank(&q, 0, 7, rank), 5);
    assert_memory_equal(rank, all, sizeof all);
    assert_int_equal(rg_profile_rank(&q, 3, 4, rank), 3);
    assert_memory_equal(rank, second, sizeof second);
    rg_profile_deinit(&p);
    rg_profile_deinit(&q);
}

static void profile_refuses_damage(void **state) {
    (void)state;
    profile_comes_back_and_ranks(NULL);
    char *data;
    size_t size;
    rg_profile p;
    assert_int_equal(rg_file_slurp(&data, &size, PROFILE, 1 << 20, NULL), RG_OK);
    for (size_t cut = 0; cut < size; cut++)
        assert_int_equal(rg_profile_parse(&p, data, cut, "cut", NULL), RG_FORMAT);
    data[24] = 0; /* no layer */
    assert_int_equal(rg_profile_parse(&p, data, size, "none", NULL), RG_FORMAT);
    rg_free(data);
    assert_int_equal(rg_profile_read(&p, "no/such/profile", NULL), RG_IO);
    assert_null(p.uses);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_back_what_was_written),
        cmocka_unit_test(refuses_a_file_that_is_cut),
        cmocka_unit_test(survives_any_changed_byte),
        cmocka_unit_test(leaks_nothing_when_memory_is_out),
        cmocka_unit_test(names_a_file_that_cannot_be_written),
        cmocka_unit_test(profile_comes_back_and_ranks),
        cmocka_unit_test(profile_refuses_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
