/* Typed getters: what they accept, and that a wrong type, sign or range is refused with the key. */
#include "model/gguf.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "support/gguf_writer.h"

static rg_gguf *parse(rg_gguf_writer *w) {
    rg_buf out;
    rg_buf_init(&out, 0);
    const uint64_t size = rg_gguf_writer_finish(w, &out);
    rg_gguf *g = NULL;
    assert_int_equal(rg_gguf_parse(&g, out.data, out.len, size, NULL), RG_OK);
    rg_buf_deinit(&out);
    rg_gguf_writer_deinit(w);
    return g;
}

static int setup(void **state) {
    static const char *const words[] = {"x", "yy"};
    static const int16_t small[] = {3, -1};
    static const float floats[] = {0.5f, NAN};
    static const double nan_value = (double)NAN;
    rg_gguf_writer w;
    rg_gguf_writer_init(&w);
    rg_gguf_writer_raw(&w, "u8", RG_GGUF_U8, "\xff", 1);
    rg_gguf_writer_raw(&w, "i8", RG_GGUF_I8, "\xff", 1);
    rg_gguf_writer_raw(&w, "u16", RG_GGUF_U16, "\xff\xff", 2);
    rg_gguf_writer_raw(&w, "i16", RG_GGUF_I16, "\x05\0", 2);
    rg_gguf_writer_u32(&w, "u32", UINT32_MAX);
    rg_gguf_writer_i32(&w, "i32", INT32_MIN);
    rg_gguf_writer_u64(&w, "u64", UINT64_MAX);
    rg_gguf_writer_raw(&w, "i64", RG_GGUF_I64, "\0\0\0\0\0\0\0\x80", 8);
    rg_gguf_writer_f32(&w, "f32", 1.5f);
    rg_gguf_writer_raw(&w, "nan", RG_GGUF_F64, &nan_value, 8);
    rg_gguf_writer_f32(&w, "inf", INFINITY);
    rg_gguf_writer_bool(&w, "bool", true);
    rg_gguf_writer_raw(&w, "str", RG_GGUF_STRING, "\3\0\0\0\0\0\0\0a\0b", 11);
    rg_gguf_writer_strings(&w, "words", words, 2);
    rg_gguf_writer_array(&w, "small", RG_GGUF_I16, 2, small, 2);
    rg_gguf_writer_array(&w, "floats", RG_GGUF_F32, 2, floats, 4);
    *state = parse(&w);
    return 0;
}

static int teardown(void **state) {
    rg_gguf_close(*state);
    return 0;
}

static void accepts_any_integer_that_fits(void **state) {
    const rg_gguf *g = *state;
    static const struct {
        const char *key;
        uint64_t value;
    } cases[] = {{"u8", 255}, {"u16", 65535}, {"i16", 5}, {"u32", UINT32_MAX}, {"u64", UINT64_MAX}};
    for (size_t i = 0; i < RG_ARRAY_LEN(cases); i++) {
        uint64_t v = 0;
        assert_int_equal(rg_gguf_get_u64(g, cases[i].key, 0, UINT64_MAX, &v, NULL), RG_OK);
        assert_true(v == cases[i].value);
    }
}

static void refuse_u64(const rg_gguf *g, const char *key, uint64_t min, uint64_t max,
                       const char *part) {
    uint64_t v = 77;
    rg_status st = {0};
    assert_int_equal(rg_gguf_get_u64(g, key, min, max, &v, &st), RG_FORMAT);
    assert_non_null(strstr(st.message, part));
    assert_non_null(strstr(st.message, key));
    assert_int_equal(v, 77);
}

static void refuses_integers(void **state) {
    const rg_gguf *g = *state;
    refuse_u64(g, "i8", 0, 9, "is -1, allowed are 0..9");
    refuse_u64(g, "i32", 0, 9, "is -2147483648");
    refuse_u64(g, "i64", 0, 9, "is -9223372036854775808");
    refuse_u64(g, "u64", 0, INT64_MAX, "is 18446744073709551615");
    refuse_u64(g, "i16", 6, 9, "is 5, allowed are 6..9");
    refuse_u64(g, "i16", 0, 4, "is 5, allowed are 0..4");
    refuse_u64(g, "f32", 0, 9, "is f32, expected an integer");
    refuse_u64(g, "bool", 0, 9, "is bool, expected an integer");
    refuse_u64(g, "str", 0, 9, "is string, expected an integer");
    refuse_u64(g, "small", 0, 9, "is an array of i16, expected an integer");
    refuse_u64(g, "none", 0, 9, "required key 'none' is missing");
    rg_status st = {0};
    uint64_t v = 0;
    assert_int_equal(rg_gguf_get_u64(g, "i8", 0, 9, &v, &st), RG_FORMAT);
    assert_string_equal(st.message, "(memory): byte 53: key 'i8' is -1, allowed are 0..9");
}

static void reads_floats(void **state) {
    const rg_gguf *g = *state;
    double v = 0;
    rg_status st = {0};
    assert_int_equal(rg_gguf_get_f64(g, "f32", 1, 2, &v, &st), RG_OK);
    assert_true(v == 1.5);
    assert_int_equal(rg_gguf_get_f64(g, "f32", 2, 3, &v, &st), RG_FORMAT);
    assert_non_null(strstr(st.message, "key 'f32' is 1.5, allowed are 2..3"));
    static const char *const bad[] = {"nan", "inf", "u8", "floats", "none"};
    for (size_t i = 0; i < RG_ARRAY_LEN(bad); i++) {
        rg_status_clear(&st);
        assert_int_equal(rg_gguf_get_f64(g, bad[i], (double)-INFINITY, (double)INFINITY, &v, &st),
                         RG_FORMAT);
        assert_non_null(strstr(st.message, bad[i]));
    }
}

static void reads_bools_and_strings(void **state) {
    const rg_gguf *g = *state;
    bool flag = false;
    rg_str s = {0};
    assert_int_equal(rg_gguf_get_bool(g, "bool", &flag, NULL), RG_OK);
    assert_true(flag);
    assert_int_equal(rg_gguf_get_bool(g, "u8", &flag, NULL), RG_FORMAT);
    assert_int_equal(rg_gguf_get_bool(g, "none", &flag, NULL), RG_FORMAT);
    assert_int_equal(rg_gguf_get_str(g, "str", &s, NULL), RG_OK);
    assert_int_equal(s.len, 3);
    assert_memory_equal(s.data, "a\0b", 3);
    assert_int_equal(rg_gguf_get_str(g, "words", &s, NULL), RG_FORMAT);
    assert_int_equal(rg_gguf_get_str(g, "none", &s, NULL), RG_FORMAT);
}

static void reads_arrays(void **state) {
    const rg_gguf *g = *state;
    const rg_gguf_kv *kv = NULL;
    rg_status st = {0};
    uint64_t v = 0;
    double d = 0;
    assert_int_equal(rg_gguf_get_array(g, "small", 2, 2, &kv, &st), RG_OK);
    assert_int_equal(rg_gguf_elem_u64(kv, 0, 3, &v, &st), RG_OK);
    assert_int_equal(v, 3);
    assert_int_equal(rg_gguf_elem_u64(kv, 0, 2, &v, &st), RG_FORMAT);
    assert_string_equal(st.message, "element 0: key 'small' is 3, allowed are 0..2");
    rg_status_clear(&st);
    assert_int_equal(rg_gguf_elem_u64(kv, 1, 9, &v, &st), RG_FORMAT);
    assert_string_equal(st.message, "element 1: key 'small' is -1, allowed are 0..9");
    assert_int_equal(rg_gguf_elem_u64(kv, 2, 9, &v, NULL), RG_INVALID);
    assert_int_equal(rg_gguf_elem_f64(kv, 0, &d, NULL), RG_FORMAT);
    rg_status_clear(&st);
    assert_int_equal(rg_gguf_get_array(g, "small", 3, 9, &kv, &st), RG_FORMAT);
    assert_null(kv);
    assert_non_null(strstr(st.message, "key 'small' has 2 elements, allowed are 3..9"));
    assert_int_equal(rg_gguf_get_array(g, "small", 0, 1, &kv, NULL), RG_FORMAT);
    assert_int_equal(rg_gguf_get_array(g, "u8", 0, 9, &kv, NULL), RG_FORMAT);
    assert_int_equal(rg_gguf_get_array(g, "none", 0, 9, &kv, NULL), RG_FORMAT);
    assert_int_equal(rg_gguf_get_array(g, "floats", 0, 9, &kv, NULL), RG_OK);
    assert_int_equal(rg_gguf_elem_f64(kv, 0, &d, NULL), RG_OK);
    assert_true(d == 0.5);
    assert_int_equal(rg_gguf_elem_f64(kv, 1, &d, NULL), RG_FORMAT);
    assert_int_equal(rg_gguf_elem_f64(kv, 2, &d, NULL), RG_INVALID);
    assert_int_equal(rg_gguf_elem_u64(kv, 0, 9, &v, NULL), RG_FORMAT);
    assert_int_equal(rg_gguf_get_array(g, "words", 0, 9, &kv, NULL), RG_OK);
    assert_int_equal(rg_gguf_elem_u64(kv, 0, 9, &v, NULL), RG_FORMAT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_any_integer_that_fits),
        cmocka_unit_test(refuses_integers),
        cmocka_unit_test(reads_floats),
        cmocka_unit_test(reads_bools_and_strings),
        cmocka_unit_test(reads_arrays),
    };
    return cmocka_run_group_tests_name("gguf_get", tests, setup, teardown);
}
