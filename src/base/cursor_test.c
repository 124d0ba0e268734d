#include "base/cursor.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const uint8_t bytes[15] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static void test_reads_little_endian(void **state) {
    (void)state;
    rg_cursor c = {.data = bytes, .size = sizeof bytes};
    uint8_t a = 0;
    uint16_t b = 0;
    uint32_t d = 0;
    uint64_t e = 0;
    assert_int_equal(rg_cursor_u8(&c, &a, "a", NULL), RG_OK);
    assert_int_equal(rg_cursor_u16(&c, &b, "b", NULL), RG_OK);
    assert_int_equal(rg_cursor_u32(&c, &d, "d", NULL), RG_OK);
    assert_int_equal(rg_cursor_u64(&c, &e, "e", NULL), RG_OK);
    assert_int_equal(a, 0x01);
    assert_int_equal(b, 0x0302);
    assert_int_equal(d, 0x07060504);
    assert_true(e == 0x0f0e0d0c0b0a0908u);
    assert_int_equal(rg_cursor_remaining(&c), 0);
}

/* Each read at each distance from the end: all or nothing. */
static void test_every_end(void **state) {
    (void)state;
    for (size_t size = 0; size <= 8; size++) {
        for (size_t pos = 0; pos <= size; pos++) {
            rg_cursor c = {.data = bytes, .size = size, .pos = pos};
            const size_t left = size - pos;
            uint8_t a = 0;
            uint16_t b = 0;
            uint32_t d = 0;
            uint64_t e = 0;
            assert_int_equal(rg_cursor_u64(&c, &e, "x", NULL), left >= 8 ? RG_OK : RG_FORMAT);
            c.pos = left >= 8 ? pos : c.pos;
            assert_int_equal(c.pos, pos);
            assert_int_equal(rg_cursor_u32(&c, &d, "x", NULL), left >= 4 ? RG_OK : RG_FORMAT);
            c.pos = left >= 4 ? pos : c.pos;
            assert_int_equal(c.pos, pos);
            assert_int_equal(rg_cursor_u16(&c, &b, "x", NULL), left >= 2 ? RG_OK : RG_FORMAT);
            c.pos = left >= 2 ? pos : c.pos;
            assert_int_equal(c.pos, pos);
            assert_int_equal(rg_cursor_u8(&c, &a, "x", NULL), left >= 1 ? RG_OK : RG_FORMAT);
            assert_int_equal(c.pos, left >= 1 ? pos + 1 : pos);
        }
    }
}

static void test_bytes(void **state) {
    (void)state;
    rg_cursor c = {.data = bytes, .size = sizeof bytes, .pos = 5};
    const uint8_t *p = NULL;
    rg_status st = {0};
    assert_int_equal(rg_cursor_bytes(&c, &p, 10, "name", &st), RG_OK);
    assert_ptr_equal(p, bytes + 5);
    assert_int_equal(rg_cursor_bytes(&c, &p, 0, "name", &st), RG_OK);
    assert_ptr_equal(p, bytes + 15);
    c.pos = 12;
    assert_int_equal(rg_cursor_bytes(&c, &p, 4, "key length", &st), RG_FORMAT);
    assert_null(p);
    assert_int_equal(c.pos, 12);
    assert_string_equal(st.message, "key length at byte 12 needs 4 bytes, 3 are left");
    assert_int_equal(rg_cursor_bytes(&c, &p, UINT64_MAX, "name", NULL), RG_FORMAT);
    assert_int_equal(c.pos, 12);
}

/* An empty range without data: reads of nothing succeed, all else fails. */
static void test_empty_range(void **state) {
    (void)state;
    rg_cursor c = {0};
    const uint8_t *p = bytes;
    uint8_t a = 0;
    assert_int_equal(rg_cursor_bytes(&c, &p, 0, "nothing", NULL), RG_OK);
    assert_null(p);
    assert_int_equal(rg_cursor_bytes(&c, &p, 1, "something", NULL), RG_FORMAT);
    assert_int_equal(rg_cursor_u8(&c, &a, "something", NULL), RG_FORMAT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_little_endian),
        cmocka_unit_test(test_every_end),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_empty_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
