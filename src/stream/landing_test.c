/* Reads that land beside their slots, and a device that copies them there later: the right bytes
 * for readers that wait for their tickets, in every arena, whatever fails on the way.
 */
#include "stream/stream.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <xxhash.h>

#define GROUPS   2u
#define ITEMS    20u
#define PARTS    2u
#define DEPTH    3u
#define PLACES   (2 * DEPTH)
#define PLACE    ((size_t)40960)
#define SLOTS    64u
#define COPY_MAX 64u

typedef struct pending_copy {
    uint32_t place;
    uint64_t offset, bytes;
} pending_copy;

/* A device: copies wait in a queue and are made as late as they can be, one for every `lag` times
 * that somebody asks how far it is, or when a reader waits. */
typedef struct device {
    pthread_mutex_t lock;
    uint8_t *memory;  /* [SLOTS * PLACE] */
    uint8_t *staging; /* [PLACES][PLACE] */
    pending_copy queue[COPY_MAX];
    uint64_t queued, made; /* tickets */
    uint32_t lag, asked;
    uint32_t refuse_after; /* copies; 0: never */
    uint32_t n_deep;       /* times that more than one was under way */
} device;

typedef struct fixture {
    char path[64];
    const char *paths[1];
    uint8_t *bytes;
    size_t n_bytes;
    rg_stream_group groups[GROUPS];
    uint64_t sums[GROUPS][ITEMS];
    device d;
} fixture;

static fixture fx;

/* Under the lock. */
static void make_next(device *d) {
    const pending_copy *c = &d->queue[d->made % COPY_MAX];
    memcpy(d->memory + c->offset, d->staging + c->place * PLACE, (size_t)c->bytes);
    d->made++;
}

static rg_code queue_copy(void *user, uint32_t place, uint64_t offset, uint64_t bytes,
                          uint64_t *ticket, rg_status *st) {
    device *d = user;
    rg_code rc = RG_OK;
    pthread_mutex_lock(&d->lock);
    if (place >= PLACES || bytes > PLACE || offset + bytes > SLOTS * PLACE ||
        d->queued - d->made == COPY_MAX) {
        rc = rg_fail(st, RG_BUG, "a copy of %llu bytes from place %u", (unsigned long long)bytes,
                     place);
    } else if (d->refuse_after && d->queued >= d->refuse_after) {
        rc = rg_fail(st, RG_IO, "the device was lost");
    } else {
        d->queue[d->queued % COPY_MAX] = (pending_copy){place, offset, bytes};
        d->n_deep += d->queued > d->made;
        *ticket = ++d->queued;
    }
    pthread_mutex_unlock(&d->lock);
    return rc;
}

static uint64_t copies_done(void *user) {
    device *d = user;
    pthread_mutex_lock(&d->lock);
    if (++d->asked >= d->lag && d->made < d->queued) {
        d->asked = 0;
        make_next(d);
    }
    const uint64_t made = d->made;
    pthread_mutex_unlock(&d->lock);
    return made;
}

/* What a list of the device does that waits for a ticket. */
static void await(device *d, uint64_t ticket) {
    pthread_mutex_lock(&d->lock);
    assert_true(ticket >= 1 && ticket <= d->queued);
    while (d->made < ticket)
        make_next(d);
    pthread_mutex_unlock(&d->lock);
}

/* ---- fixture --------------------------------------------------------------------------------- */

static const uint8_t *part_of(uint32_t g, uint32_t i, uint32_t e) {
    const rg_stream_extent *x = &fx.groups[g].extents[e];
    return fx.bytes + x->offset + i * x->stride;
}

static int set_up(void **state) {
    (void)state;
    snprintf(fx.path, sizeof fx.path, "landing_test-%d.bin", (int)getpid());
    fx.paths[0] = fx.path;
    fx.n_bytes = 7 + (size_t)GROUPS * ITEMS * (9001 + 16003);
    fx.bytes = malloc(fx.n_bytes);
    assert_non_null(fx.bytes);
    for (size_t i = 0; i < fx.n_bytes; i++)
        fx.bytes[i] = (uint8_t)rg_random_u64(3, i);
    FILE *out = fopen(fx.path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(fx.bytes, 1, fx.n_bytes, out), fx.n_bytes);
    assert_int_equal(fclose(out), 0);
    uint64_t at = 7;
    for (uint32_t g = 0; g < GROUPS; g++) {
        fx.groups[g] = (rg_stream_group){.n_item = ITEMS, .n_extent = PARTS};
        fx.groups[g].extents[0] = (rg_stream_extent){0, 9001, at, 9001};
        at += (uint64_t)9001 * ITEMS;
        fx.groups[g].extents[1] = (rg_stream_extent){0, 16003, at, 16003};
        at += (uint64_t)16003 * ITEMS;
        for (uint32_t i = 0; i < ITEMS; i++) {
            uint8_t both[9001 + 16003];
            memcpy(both, part_of(g, i, 0), 9001);
            memcpy(both + 9001, part_of(g, i, 1), 16003);
            fx.sums[g][i] = XXH3_64bits(both, sizeof both);
        }
        fx.groups[g].checksums = fx.sums[g];
    }
    pthread_mutex_init(&fx.d.lock, NULL);
    fx.d.memory = aligned_alloc(4096, SLOTS * PLACE);
    fx.d.staging = aligned_alloc(4096, (size_t)PLACES * PLACE);
    assert_true(fx.d.memory && fx.d.staging);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    unlink(fx.path);
    free(fx.bytes);
    free(fx.d.memory);
    free(fx.d.staging);
    pthread_mutex_destroy(&fx.d.lock);
    return 0;
}

static void reset_device(uint32_t lag) {
    device *d = &fx.d;
    d->queued = d->made = 0;
    d->lag = lag;
    d->asked = d->refuse_after = d->n_deep = 0;
    memset(d->memory, 0xA5, SLOTS * PLACE);
    memset(d->staging, 0x5A, (size_t)PLACES * PLACE);
}

static rg_stream_landing landing(void) {
    rg_stream_layout layout;
    assert_int_equal(rg_stream_layout_of(&layout, fx.groups, GROUPS, NULL), RG_OK);
    assert_true(layout.slot_bytes_max <= PLACE);
    assert_int_equal(rg_stream_places(DEPTH), PLACES);
    return (rg_stream_landing){.user = &fx.d,
                               .staging = fx.d.staging,
                               .n_place = PLACES,
                               .place_bytes = PLACE,
                               .copy = queue_copy,
                               .done = copies_done};
}

static rg_stream_options options(const rg_stream_landing *l, uint32_t slots) {
    rg_stream_layout layout;
    assert_int_equal(rg_stream_layout_of(&layout, fx.groups, GROUPS, NULL), RG_OK);
    return (rg_stream_options){.paths = fx.paths,
                               .n_file = 1,
                               .groups = fx.groups,
                               .n_group = GROUPS,
                               .group_noun = "layer",
                               .item_noun = "expert",
                               .budget_bytes = layout.slot_bytes_max * slots,
                               .memory = fx.d.memory,
                               .landing = l,
                               .backend = RG_STREAM_PREAD,
                               .lookahead = 4,
                               .poison = true,
                               .depth = DEPTH};
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* Items that a list of the device reads, and where: it is done when its fence retires. */
typedef struct reader {
    uint32_t n, items[ITEMS];
    const uint8_t *at[ITEMS][PARTS];
} reader;

static void read_later(rg_stream *s, reader *r, uint32_t item) {
    await(&fx.d, rg_stream_ticket(s, item));
    r->items[r->n] = item;
    for (uint32_t e = 0; e < PARTS; e++)
        r->at[r->n][e] = rg_stream_payload(s, item, e);
    r->n++;
}

static void check_reader(const rg_stream *s, const reader *r) {
    for (uint32_t k = 0; k < r->n; k++) {
        const uint32_t g = rg_stream_group_of(s, r->items[k]);
        const uint32_t i = r->items[k] - rg_stream_item(s, g, 0);
        for (uint32_t e = 0; e < PARTS; e++)
            assert_memory_equal(r->at[k][e], part_of(g, i, e), fx.groups[g].extents[e].bytes);
    }
}

/* A turn; its readers are checked when the next turn is over, then they retire. Returns failures.
 */
static uint32_t run_turn(rg_stream *s, uint32_t turn_no, reader *now, const reader *before,
                         rg_status *st) {
    const uint32_t g = turn_no % GROUPS, n_most = 1 + turn_no % 5;
    uint32_t items[ITEMS], guesses[6], n = 0, failed = 0, item = 0;
    bool seen[ITEMS] = {false};
    const rg_turn *turn;
    for (uint32_t k = 0; k < n_most; k++) {
        const uint32_t i = (uint32_t)(rg_random_u64(turn_no, k) % ITEMS);
        if (!seen[i]) items[n++] = rg_stream_item(s, g, i);
        seen[i] = true;
    }
    now->n = 0;
    assert_int_equal(rg_stream_begin(s, g, items, n, RG_MODE_DECODE, &turn, NULL), RG_OK);
    for (uint32_t i = 0; i < 6; i++)
        guesses[i] = rg_stream_item(s, 1 - g, (turn_no + 3 * i) % ITEMS);
    rg_stream_ahead(s, 1 - g, guesses, 6, UINT32_MAX, RG_MODE_DECODE);
    assert_int_equal(turn->n_left, 0);
    for (uint32_t i = 0; i < turn->n_ready; i++)
        read_later(s, now, turn->ready[i]);
    /* Blocked reads wait for the readers of the turn before. */
    check_reader(s, before);
    rg_stream_retire(s, turn_no);
    for (uint32_t i = 0; i < turn->n_pending; i++) {
        if (rg_stream_wait(s, &item, st) == RG_OK)
            read_later(s, now, item);
        else
            failed++;
    }
    rg_stream_end(s, turn_no + 1);
    rg_stream_touch(s, items, n);
    return failed;
}

static uint32_t run(const rg_stream_options *o, uint32_t turns, rg_stream_meters *m,
                    rg_status *why) {
    static reader readers[2];
    rg_stream *s;
    rg_status st = {0};
    uint32_t failed = 0;
    memset(readers, 0, sizeof readers);
    if (rg_stream_create(&s, o, &st) != RG_OK) {
        fail_msg("%s", st.message);
        abort(); /* not reached */
    }
    for (uint32_t t = 0; t < turns; t++)
        failed += run_turn(s, t, &readers[t % 2], &readers[1 - t % 2], why);
    rg_stream_meters_get(s, m);
    rg_stream_destroy(s);
    return failed;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* The right bytes and the same hits as reads that land in the slots, however late copies are. */
static void test_late_copies(void **state) {
    (void)state;
    const rg_stream_landing l = landing();
    for (uint32_t slots = 6; slots <= 42; slots += 9) {
        rg_stream_meters want = {0}, got;
        for (uint32_t lag = 1; lag <= 64; lag *= 4) {
            reset_device(lag);
            const rg_stream_options o = options(&l, slots);
            assert_int_equal(run(&o, 120, &got, NULL), 0);
            if (lag == 1) want = got;
            assert_memory_equal(&got, &want, offsetof(rg_stream_meters, late));
            assert_true(got.misses > 0 && got.copies >= got.reads && got.reads > 0);
            assert_true(got.copied_bytes >= got.reads * (9001 + 16003));
            if (lag == 64) assert_true(fx.d.n_deep > 0);
        }
    }
}

/* Reads that fail, come short, late or damaged: only whole and right ones are copied. */
static void test_faults(void **state) {
    (void)state;
    const rg_stream_landing l = landing();
    const rg_stream_faults f = {.seed = 9,
                                .eio_permille = 30,
                                .short_permille = 200,
                                .flip_permille = 40,
                                .stall_permille = 100,
                                .stall_ms_max = 2};
    reset_device(7);
    rg_stream_options o = options(&l, 12);
    rg_stream_meters m;
    o.faults = &f;
    o.retries_max = 10;
    assert_int_equal(run(&o, 200, &m, NULL), 0);
    assert_true(m.checksum_errors > 0 && m.retries > 0);
}

/* A device that refuses copies: the items say so, those that were there stay, and all ends well. */
static void test_refused(void **state) {
    (void)state;
    const rg_stream_landing l = landing();
    rg_status st = {0};
    rg_stream_meters m;
    reset_device(5);
    fx.d.refuse_after = 30;
    const rg_stream_options o = options(&l, 12);
    const uint32_t failed = run(&o, 60, &m, &st);
    assert_true(failed > 0 && m.copies == 30 && m.read_errors >= failed);
    assert_int_equal(st.code, RG_IO);
    assert_non_null(strstr(st.message, "cannot be copied to its slot: the device was lost"));
    assert_non_null(strstr(st.message, "layer "));
}

/* A copy that never ends: what waits for its place or slot is given up in time. */
static void test_stuck(void **state) {
    (void)state;
    const rg_stream_landing l = landing();
    rg_stream *s;
    rg_status st = {0};
    uint32_t items[8], item = 0, failed = 0;
    const rg_turn *turn;
    reset_device(UINT32_MAX); /* nobody waits for it */
    rg_stream_options o = options(&l, 8);
    o.stall_ms_max = 60;
    o.lookahead = 0;
    assert_int_equal(rg_stream_create(&s, &o, NULL), RG_OK);
    for (uint32_t round = 0; round < 2; round++) { /* six places: two of the eight wait in vain */
        for (uint32_t i = 0; i < 8; i++)
            items[i] = rg_stream_item(s, round, i);
        assert_int_equal(rg_stream_begin(s, round, items, 8, RG_MODE_DECODE, &turn, NULL), RG_OK);
        for (uint32_t i = 0; i < turn->n_pending; i++)
            failed += rg_stream_wait(s, &item, &st) != RG_OK;
        rg_stream_end(s, 0);
    }
    assert_true(failed >= 2);
    assert_int_equal(st.code, RG_TIMEOUT);
    pthread_mutex_lock(&fx.d.lock);
    fx.d.lag = 1;
    pthread_mutex_unlock(&fx.d.lock);
    rg_stream_destroy(s);
}

/* Items without reads: their slots hold what was copied there first. */
static void test_null_reads(void **state) {
    (void)state;
    const rg_stream_landing l = landing();
    rg_stream *s;
    uint32_t item = 0;
    const rg_turn *turn;
    rg_stream_meters m;
    reset_device(9);
    rg_stream_options o = options(&l, 6);
    o.null_reads = true;
    assert_int_equal(rg_stream_create(&s, &o, NULL), RG_OK);
    for (uint32_t t = 0; t < 60; t++) {
        const uint32_t want = rg_stream_item(s, t % GROUPS, t * 7 % ITEMS);
        assert_int_equal(rg_stream_begin(s, t % GROUPS, &want, 1, RG_MODE_DECODE, &turn, NULL),
                         RG_OK);
        if (turn->n_pending) assert_int_equal(rg_stream_wait(s, &item, NULL), RG_OK);
        await(&fx.d, rg_stream_ticket(s, want));
        bool found = false;
        for (uint32_t k = 0; k < GROUPS * ITEMS && !found; k++)
            found =
                memcmp(rg_stream_payload(s, want, 0), part_of(k / ITEMS, k % ITEMS, 0), 64) == 0;
        assert_true(found);
        rg_stream_end(s, 0);
        rg_stream_touch(s, &want, 1);
    }
    rg_stream_meters_get(s, &m);
    assert_int_equal(m.copies, 6);
    rg_stream_destroy(s);
}

static void test_bad_landings(void **state) {
    (void)state;
    rg_stream *s;
    rg_status st = {0};
    rg_stream_landing l = landing();
    rg_stream_options o = options(&l, 8);
    l.n_place = PLACES - 1;
    assert_int_equal(rg_stream_create(&s, &o, &st), RG_INVALID);
    assert_non_null(strstr(st.message, "5 places"));
    l = landing();
    l.staging = fx.d.staging + 16;
    assert_int_equal(rg_stream_create(&s, &o, NULL), RG_INVALID);
    l = landing();
    o.memory = NULL;
    assert_int_equal(rg_stream_create(&s, &o, NULL), RG_INVALID);
    assert_null(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_copies), cmocka_unit_test(test_faults),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_stuck),
        cmocka_unit_test(test_null_reads),  cmocka_unit_test(test_bad_landings),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
