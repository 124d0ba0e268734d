#include "base/alloc.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static bool all_zero(const void *p, size_t size) {
    const unsigned char *bytes = p;
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] != 0) return false;
    }
    return true;
}

static void test_alloc_is_zeroed(void **state) {
    (void)state;
    rg_status st = {0};
    for (int round = 0; round < 50; round++) {
        char *p = rg_alloc(37, 11, &st);
        assert_non_null(p);
        assert_true(all_zero(p, 407));
        memset(p, 0xa5, 407); /* the next round gets the same block back, dirty */
        rg_free(p);
    }
    for (size_t align = sizeof(void *); align <= 4096; align *= 2) {
        char *p = rg_alloc_aligned(align, 1000, &st);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % align, 0);
        assert_true(all_zero(p, 1000));
        memset(p, 0xa5, 1000);
        rg_free(p);
    }
    assert_int_equal(st.code, RG_OK);
}

static void test_zero_sizes(void **state) {
    (void)state;
    rg_status st = {0};
    void *a = rg_alloc(0, 8, &st), *b = rg_alloc(8, 0, &st), *c = rg_realloc(NULL, 0, 0, &st);
    void *d = rg_alloc_aligned(64, 0, &st);
    char *e = rg_strndup("", 0, &st);
    assert_true(a && b && c && d && e);
    assert_int_equal(e[0], 0);
    rg_free(a);
    rg_free(b);
    rg_free(c);
    rg_free(d);
    rg_free(e);
    rg_free(NULL);
    assert_int_equal(st.code, RG_OK);
}

static void test_overflow_is_nomem(void **state) {
    (void)state;
    rg_status st = {0};
    assert_null(rg_alloc(SIZE_MAX, 2, &st));
    assert_int_equal(st.code, RG_NOMEM);
    assert_non_null(strstr(st.message, "18446744073709551615 x 2"));
    assert_null(rg_alloc(SIZE_MAX / 2 + 1, 2, NULL));
    char *p = rg_strndup("keep", 4, NULL);
    assert_non_null(p);
    rg_status_clear(&st);
    assert_null(rg_realloc(p, SIZE_MAX / 4 + 1, 4, &st));
    assert_int_equal(st.code, RG_NOMEM);
    assert_string_equal(p, "keep");
    rg_free(p);
    rg_status_clear(&st);
    assert_null(rg_strndup("x", SIZE_MAX, &st));
    assert_int_equal(st.code, RG_NOMEM);
}

/* More than the address space holds: the system says no, and so do we. */
static void test_too_large_is_nomem(void **state) {
    (void)state;
    rg_status st = {0};
    assert_null(rg_alloc(SIZE_MAX / 4, 1, &st));
    assert_int_equal(st.code, RG_NOMEM);
    rg_status_clear(&st);
    assert_null(rg_alloc_aligned(64, SIZE_MAX / 4, &st));
    assert_int_equal(st.code, RG_NOMEM);
}

static void test_realloc_keeps_bytes(void **state) {
    (void)state;
    rg_status st = {0};
    uint32_t *p = NULL;
    for (size_t n = 1; n <= 4096; n *= 2) {
        uint32_t *more = rg_realloc(p, n, sizeof *p, &st);
        assert_non_null(more);
        p = more;
        for (size_t i = 0; i < n / 2; i++)
            assert_int_equal(p[i], i * 7);
        for (size_t i = 0; i < n; i++)
            p[i] = (uint32_t)i * 7;
    }
    rg_free(p);
    char *s = rg_strndup("abcdef", 3, &st);
    assert_string_equal(s, "abc");
    rg_free(s);
}

/* Takes three allocations, leaks none on any failure. */
static rg_code take_three(rg_status *st) {
    rg_code rc = RG_NOMEM;
    void *b = NULL;
    char *c = NULL;
    void *a = rg_alloc(1, 10, st);
    if (!a) goto cleanup;
    b = rg_alloc_aligned(64, 10, st);
    if (!b) goto cleanup;
    c = rg_strndup("abc", 3, st);
    if (c) rc = RG_OK;
cleanup:
    rg_free(c);
    rg_free(b);
    rg_free(a);
    return rc;
}

static void test_torture(void **state) {
    (void)state;
    for (int sticky = 0; sticky <= 1; sticky++) {
        for (uint64_t n = 1; n <= 4; n++) {
            rg_status st = {0};
            rg_alloc_fail_at(n, sticky);
            const uint64_t before = rg_alloc_count();
            const rg_code rc = take_three(&st);
            assert_int_equal(rc, n <= 3 ? RG_NOMEM : RG_OK);
            assert_int_equal(st.code, rc);
            assert_int_equal(rg_alloc_count() - before, n <= 3 ? n : 3);
            /* After the n-th: all fail when sticky, none does otherwise. */
            if (n <= 3) assert_int_equal(take_three(NULL), sticky ? RG_NOMEM : RG_OK);
            rg_alloc_fail_at(0, false);
            assert_int_equal(take_three(NULL), RG_OK);
        }
    }
    void *old = rg_alloc(1, 8, NULL);
    rg_alloc_fail_at(1, false);
    assert_null(rg_realloc(old, 2, 8, NULL));
    rg_alloc_fail_at(0, false);
    rg_free(old);
}

static void test_byte_counts(void **state) {
    (void)state;
    const uint64_t before = rg_alloc_live_bytes();
    rg_alloc_peak_reset();
    assert_int_equal(rg_alloc_peak_bytes(), before);
    void *a = rg_alloc(1000, 1, NULL);
    void *b = rg_alloc_aligned(64, 3000, NULL);
    assert_non_null(a);
    assert_non_null(b);
    const uint64_t live = rg_alloc_live_bytes();
    assert_true(live >= before + 4000);
    void *more = rg_realloc(a, 10000, 1, NULL);
    assert_non_null(more);
    assert_true(rg_alloc_live_bytes() >= before + 13000);
    rg_free(more);
    rg_free(b);
    assert_int_equal(rg_alloc_live_bytes(), before);
    assert_true(rg_alloc_peak_bytes() >= before + 13000);
    /* A failed call changes nothing. */
    rg_alloc_fail_at(1, false);
    assert_null(rg_alloc(1, 1, NULL));
    assert_int_equal(rg_alloc_live_bytes(), before);
}

static void allocate_guarded(void) {
    rg_alloc_guard_enter();
    rg_alloc_guard_enter();
    rg_alloc_guard_leave();
    void *p = rg_alloc(1, 1, NULL);
    rg_alloc_guard_leave();
    rg_free(p);
}

static void leave_unentered(void) {
    rg_alloc_guard_leave();
}

/* Runs fn in a child; returns the signal that ended it, 0 when it went well. */
static int signal_of(void (*fn)(void)) {
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGABRT, SIG_DFL); /* cmocka and sanitizers catch it */
        if (!freopen("/dev/null", "w", stderr)) _exit(2);
        fn();
        _exit(0);
    }
    int how = 0;
    assert_int_equal(waitpid(pid, &how, 0), pid);
    if (WIFSIGNALED(how)) return WTERMSIG(how);
    assert_int_equal(WEXITSTATUS(how), 0);
    return 0;
}

static void test_guard(void **state) {
    (void)state;
    rg_alloc_guard_enter();
    rg_alloc_guard_enter();
    rg_alloc_guard_leave();
    rg_alloc_guard_leave();
    void *p = rg_alloc(1, 1, NULL);
    assert_non_null(p);
    rg_free(p);
#ifdef RG_DEBUG
    const int wanted = SIGABRT;
#else
    const int wanted = 0;
#endif
    assert_int_equal(signal_of(allocate_guarded), wanted);
    assert_int_equal(signal_of(leave_unentered), SIGABRT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alloc_is_zeroed),     cmocka_unit_test(test_zero_sizes),
        cmocka_unit_test(test_overflow_is_nomem),   cmocka_unit_test(test_too_large_is_nomem),
        cmocka_unit_test(test_realloc_keeps_bytes), cmocka_unit_test(test_torture),
        cmocka_unit_test(test_byte_counts),         cmocka_unit_test(test_guard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
