#include "base/status.h"

#include <errno.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_first_failure_wins(void **state) {
    (void)state;
    rg_status st = {0};
    assert_int_equal(rg_fail(&st, RG_FORMAT, "tensor %s has %d rows, %d wanted", "a.b", 3, 4),
                     RG_FORMAT);
    assert_string_equal(st.message, "tensor a.b has 3 rows, 4 wanted");
    assert_int_equal(st.sys_errno, 0);
    assert_int_equal(rg_fail(&st, RG_IO, "later"), RG_IO);
    assert_int_equal(rg_fail_errno(&st, RG_IO, EIO, "later still"), RG_IO);
    assert_int_equal(st.code, RG_FORMAT);
    assert_string_equal(st.message, "tensor a.b has 3 rows, 4 wanted");
    rg_status_clear(&st);
    assert_int_equal(st.code, RG_OK);
    assert_string_equal(st.message, "");
    assert_int_equal(rg_fail_errno(&st, RG_IO, ENOENT, "cannot open %s", "x"), RG_IO);
    assert_int_equal(st.sys_errno, ENOENT);
    assert_string_equal(st.message, "cannot open x: No such file or directory");
}

static void test_null_status(void **state) {
    (void)state;
    assert_int_equal(rg_fail(NULL, RG_BUSY, "%d", 1), RG_BUSY);
    assert_int_equal(rg_fail_errno(NULL, RG_IO, EIO, "%d", 1), RG_IO);
    assert_int_equal(rg_context(NULL, RG_TIMEOUT, "%d", 1), RG_TIMEOUT);
    rg_status_clear(NULL);
}

static void test_context_goes_in_front(void **state) {
    (void)state;
    rg_status st = {0};
    assert_int_equal(rg_context(&st, RG_OK, "nothing failed"), RG_OK);
    assert_string_equal(st.message, "");
    rg_fail(&st, RG_FORMAT, "2 bytes left, 4 wanted");
    assert_int_equal(rg_context(&st, RG_FORMAT, "key %d", 7), RG_FORMAT);
    assert_int_equal(rg_context(&st, RG_IO, "m.gguf"), RG_FORMAT);
    assert_string_equal(st.message, "m.gguf: key 7: 2 bytes left, 4 wanted");
    assert_int_equal(st.code, RG_FORMAT);
}

/* Whatever lengths meet, the message stays terminated, one line, and says that it was cut. */
static void test_long_messages(void **state) {
    (void)state;
    char text[600];
    for (size_t len = 0; len < sizeof text; len++) {
        memset(text, 'y', len);
        text[len] = 0;
        rg_status st = {0};
        rg_fail(&st, RG_INVALID, "%s", text);
        const size_t room = sizeof st.message - 1;
        assert_int_equal(strlen(st.message), len < room ? len : room);
        if (len > room) assert_string_equal(st.message + room - 3, "...");
        rg_context(&st, RG_INVALID, "front");
        assert_int_equal(strncmp(st.message, "front: y", len ? 8 : 7), 0);
        assert_true(strlen(st.message) <= room);
        rg_context(&st, RG_INVALID, "%s", text);
        assert_true(strlen(st.message) <= room);
        rg_status_clear(&st);
        rg_fail_errno(&st, RG_IO, EACCES, "%s", text);
        assert_true(strlen(st.message) <= room);
        assert_int_equal(st.sys_errno, EACCES);
    }
}

static void test_one_line(void **state) {
    (void)state;
    rg_status st = {0};
    rg_fail(&st, RG_FORMAT, "key %s", "a\nb\r\x1b[2J\x7f\xc3\xa9");
    assert_string_equal(st.message, "key a?b??[2J?\xc3\xa9");
}

static rg_code step(int *calls, rg_code code) {
    ++*calls;
    return code;
}

static rg_code tries(int *calls, rg_code second) {
    RG_TRY(step(calls, RG_OK));
    RG_TRY(step(calls, second));
    RG_TRY(step(calls, RG_OK));
    return RG_OK;
}

static rg_code goes(int *calls, rg_code second) {
    rg_code rc = RG_OK;
    RG_GO(step(calls, RG_OK));
    RG_GO(step(calls, second));
    RG_GO(step(calls, RG_OK));
cleanup:
    *calls += 100;
    return rc;
}

static void test_try_and_go(void **state) {
    (void)state;
    int calls = 0;
    assert_int_equal(tries(&calls, RG_OK), RG_OK);
    assert_int_equal(calls, 3);
    calls = 0;
    assert_int_equal(tries(&calls, RG_BUSY), RG_BUSY);
    assert_int_equal(calls, 2);
    calls = 0;
    assert_int_equal(goes(&calls, RG_IO), RG_IO);
    assert_int_equal(calls, 102);
    calls = 0;
    assert_int_equal(goes(&calls, RG_OK), RG_OK);
    assert_int_equal(calls, 103);
}

static void test_code_texts(void **state) {
    (void)state;
    assert_string_equal(rg_code_text(RG_OK), "ok");
    assert_string_equal(rg_code_text(RG_BUG), "internal error");
    for (int code = 0; code < RG_CODE_COUNT; code++)
        assert_true(strlen(rg_code_text((rg_code)code)) > 0);
    assert_string_equal(rg_code_text(RG_CODE_COUNT), "unknown code");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_failure_wins),
        cmocka_unit_test(test_null_status),
        cmocka_unit_test(test_context_goes_in_front),
        cmocka_unit_test(test_long_messages),
        cmocka_unit_test(test_one_line),
        cmocka_unit_test(test_try_and_go),
        cmocka_unit_test(test_code_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
