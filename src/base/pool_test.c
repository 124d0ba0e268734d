#include "base/pool.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define N_MAX 600

typedef struct run_record {
    /* Written by the worker of each index, read by the owner after the run: plain on purpose, so
     * that ThreadSanitizer sees a missing hand-over. */
    int hits[N_MAX];
    int thread_of[N_MAX];
    size_t n, grain;
    int n_threads;
    int calls[RG_POOL_THREADS_MAX];
    bool bad_range;
} run_record;

static void mark(void *arg, size_t begin, size_t end, int thread) {
    run_record *r = arg;
    if (thread < 0 || thread >= r->n_threads || begin >= end || end > r->n) {
        r->bad_range = true;
        return;
    }
    r->calls[thread]++;
    for (size_t i = begin; i < end; i++) {
        r->hits[i]++;
        r->thread_of[i] = thread;
    }
}

/* Each index exactly once, at most one share a thread, shares in order and cut at the grain. */
static void check_run(rg_pool *pool, size_t n, size_t grain) {
    static run_record r;
    memset(&r, 0, sizeof r);
    r.n = n;
    r.grain = grain;
    r.n_threads = rg_pool_threads(pool);
    rg_pool_run(pool, n, grain, mark, &r);
    assert_false(r.bad_range);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(r.hits[i], 1);
    for (size_t i = 1; i < n; i++) {
        assert_true(r.thread_of[i] >= r.thread_of[i - 1]);
        if (r.thread_of[i] != r.thread_of[i - 1]) assert_int_equal(i % grain, 0);
    }
    for (int t = 0; t < r.n_threads; t++)
        assert_true(r.calls[t] <= 1);
}

static void test_every_index_once(void **state) {
    (void)state;
    static const int threads[] = {1, 2, 3, 4, 7, 16};
    static const size_t sizes[] = {0, 1, 2, 3, 5, 8, 15, 16, 17, 63, 64, 65, 599, 600};
    static const size_t grains[] = {1, 2, 3, 4, 16, 64, 599, 600, 601, SIZE_MAX / 2, SIZE_MAX};
    for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
        rg_pool *pool = NULL;
        assert_int_equal(rg_pool_create(&pool, threads[t], NULL), RG_OK);
        assert_int_equal(rg_pool_threads(pool), threads[t]);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            for (size_t g = 0; g < sizeof grains / sizeof grains[0]; g++)
                check_run(pool, sizes[i], grains[g]);
        }
        rg_pool_destroy(pool);
    }
}

/* Thousands of runs on one pool; pauses of every length meet workers that spin and that sleep. */
static void test_many_runs(void **state) {
    (void)state;
    rg_pool *pool = NULL;
    assert_int_equal(rg_pool_create(&pool, 3, NULL), RG_OK);
    for (uint64_t i = 0; i < 5000; i++) {
        const uint64_t r = rg_random_u64(5, i);
        check_run(pool, r % N_MAX, (r >> 32) % 9 + 1);
        if (i % 50 == 0) {
            const struct timespec pause = {.tv_nsec = (long)((r >> 40) % 400000)};
            nanosleep(&pause, NULL);
        }
    }
    rg_pool_destroy(pool);
}

/* Which thread gets what depends on n, grain and the thread count alone. */
static void test_shares_are_fixed(void **state) {
    (void)state;
    rg_pool *pool = NULL;
    assert_int_equal(rg_pool_create(&pool, 4, NULL), RG_OK);
    static run_record first, again;
    for (int i = 0; i < 200; i++) {
        run_record *r = i ? &again : &first;
        memset(r, 0, sizeof *r);
        r->n = 501;
        r->n_threads = 4;
        rg_pool_run(pool, 501, 3, mark, r);
        if (i) assert_memory_equal(first.thread_of, again.thread_of, sizeof first.thread_of);
    }
    rg_pool_destroy(pool);
}

static void slow_mark(void *arg, size_t begin, size_t end, int thread) {
    const struct timespec pause = {.tv_nsec = 3000000};
    if (thread == 1) nanosleep(&pause, NULL);
    mark(arg, begin, end, thread);
}

/* The owner outwaits its spinning and sleeps until a slow worker is done. */
static void test_owner_sleeps(void **state) {
    (void)state;
    rg_pool *pool = NULL;
    assert_int_equal(rg_pool_create(&pool, 2, NULL), RG_OK);
    static run_record r;
    for (int i = 0; i < 20; i++) {
        memset(&r, 0, sizeof r);
        r.n = 2;
        r.n_threads = 2;
        rg_pool_run(pool, 2, 1, slow_mark, &r);
        assert_int_equal(r.hits[0], 1);
        assert_int_equal(r.hits[1], 1);
    }
    rg_pool_destroy(pool);
}

static void test_create_and_destroy(void **state) {
    (void)state;
    rg_status st = {0};
    rg_pool *pool = NULL;
    assert_int_equal(rg_pool_create(&pool, 0, &st), RG_INVALID);
    assert_null(pool);
    assert_string_equal(st.message, "0 threads wanted, 1..256 are possible");
    assert_int_equal(rg_pool_create(&pool, RG_POOL_THREADS_MAX + 1, NULL), RG_INVALID);
    rg_pool_destroy(NULL);
    for (int i = 0; i < 200; i++) {
        assert_int_equal(rg_pool_create(&pool, i % 5 + 1, NULL), RG_OK);
        if (i % 2) check_run(pool, 40, 1);
        rg_pool_destroy(pool);
    }
    rg_alloc_fail_at(1, false);
    rg_status_clear(&st);
    assert_int_equal(rg_pool_create(&pool, 2, &st), RG_NOMEM);
    rg_alloc_fail_at(0, false);
    assert_null(pool);
    assert_int_equal(st.code, RG_NOMEM);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_index_once),   cmocka_unit_test(test_many_runs),
        cmocka_unit_test(test_shares_are_fixed),   cmocka_unit_test(test_owner_sleeps),
        cmocka_unit_test(test_create_and_destroy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
