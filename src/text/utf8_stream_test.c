#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "text/text.h"
#include "text/utf8.h"

#define R "\xEF\xBF\xBD"

typedef struct utf8_case {
    const char *in;
    const char *out;
} utf8_case;

static const utf8_case cases[] = {
    {"", ""},
    {"plain", "plain"},
    {"\xC3\xA9t\xC3\xA9", "\xC3\xA9t\xC3\xA9"},
    {"\xE2\x82\xAC", "\xE2\x82\xAC"},
    {"\xF0\x9F\x98\x80!", "\xF0\x9F\x98\x80!"},
    {"\xEF\xBF\xBF\xF4\x8F\xBF\xBF", "\xEF\xBF\xBF\xF4\x8F\xBF\xBF"},
    {"\xED\x9F\xBF\xEE\x80\x80", "\xED\x9F\xBF\xEE\x80\x80"},
    /* Unicode 15.0, section 3.9, tables 3-8 to 3-11. */
    {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", R R R R R R R R "A"},
    {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", R R R R R R R R "A"},
    {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", R R R R R "A" R R "B"},
    {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", R R R R "A"},
    /* Unfinished at the end: one replacement. */
    {"a\xE2\x82", "a" R},
    {"a\xF0\x9F\x98", "a" R},
    {"\xF0\x9F\x98\xE2\x82\xAC", R "\xE2\x82\xAC"},
    {"\xE2\x82\xE2\x82\xE2\x82\xAC", R R "\xE2\x82\xAC"},
    {"\xC3\xC3\xC3\xA9", R R "\xC3\xA9"},
    {"\xF8\x88\x80\x80\x80", R R R R R},
};

static void push(rg_utf8_stream *s, const char *bytes, size_t len, rg_buf *out) {
    assert_int_equal(rg_utf8_push(s, bytes, len, out, NULL), RG_OK);
    assert_true(s->n_pending < 4);
}

static void check_cut(const utf8_case *c, const size_t *cuts, size_t n_cuts) {
    rg_utf8_stream s = {0};
    rg_buf out;
    rg_buf_init(&out, 0);
    size_t at = 0;
    for (size_t i = 0; i < n_cuts; i++) {
        push(&s, c->in + at, cuts[i] - at, &out);
        at = cuts[i];
    }
    push(&s, c->in + at, strlen(c->in) - at, &out);
    assert_int_equal(rg_utf8_finish(&s, &out, NULL), RG_OK);
    assert_int_equal(s.n_pending, 0);
    assert_int_equal(out.len, strlen(c->out));
    if (out.len) assert_memory_equal(out.data, c->out, out.len);
    rg_buf_deinit(&out);
}

static void every_cut(void **state) {
    (void)state;
    for (size_t k = 0; k < RG_ARRAY_LEN(cases); k++) {
        const size_t len = strlen(cases[k].in);
        /* Every subset of cut points: bit i of the mask cuts behind byte i. */
        for (uint32_t mask = 0; mask < 1u << (len ? len - 1 : 0); mask++) {
            size_t cuts[32];
            size_t n = 0;
            for (size_t i = 0; i + 1 < len; i++) {
                if (mask >> i & 1) cuts[n++] = i + 1;
            }
            check_cut(&cases[k], cuts, n);
        }
    }
}

/* What came out so far never ends inside a character. */
static void whole_characters_only(void **state) {
    (void)state;
    for (size_t k = 0; k < RG_ARRAY_LEN(cases); k++) {
        rg_utf8_stream s = {0};
        rg_buf out;
        rg_buf_init(&out, 0);
        for (size_t i = 0; i < strlen(cases[k].in); i++) {
            push(&s, cases[k].in + i, 1, &out);
            for (size_t at = 0; at < out.len;) {
                const rg_utf8_step step =
                    rg_utf8_next((const uint8_t *)out.data + at, out.len - at);
                assert_int_equal(step.kind, RG_UTF8_VALID);
                at += step.len;
            }
        }
        rg_buf_deinit(&out);
    }
}

/* All code points, and the bounds of every range of table 3-7. */
static void every_code_point(void **state) {
    (void)state;
    for (uint32_t code = 0; code <= 0x10FFFF; code++) {
        uint8_t b[4];
        uint8_t n = 0;
        if (code < 0x80) {
            b[n++] = (uint8_t)code;
        } else if (code < 0x800) {
            b[n++] = (uint8_t)(0xC0 | code >> 6);
            b[n++] = (uint8_t)(0x80 | (code & 0x3F));
        } else if (code < 0x10000) {
            b[n++] = (uint8_t)(0xE0 | code >> 12);
            b[n++] = (uint8_t)(0x80 | (code >> 6 & 0x3F));
            b[n++] = (uint8_t)(0x80 | (code & 0x3F));
        } else {
            b[n++] = (uint8_t)(0xF0 | code >> 18);
            b[n++] = (uint8_t)(0x80 | (code >> 12 & 0x3F));
            b[n++] = (uint8_t)(0x80 | (code >> 6 & 0x3F));
            b[n++] = (uint8_t)(0x80 | (code & 0x3F));
        }
        const rg_utf8_step step = rg_utf8_next(b, n);
        const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
        assert_int_equal(step.kind, surrogate ? RG_UTF8_INVALID : RG_UTF8_VALID);
        if (!surrogate) assert_int_equal(step.code, code);
        if (!surrogate) assert_int_equal(step.len, n);
        if (!surrogate && n > 1) assert_int_equal(rg_utf8_next(b, n - 1u).kind, RG_UTF8_SHORT);
    }
}

static void out_of_memory(void **state) {
    (void)state;
    rg_utf8_stream s = {0};
    rg_status st = {0};
    rg_buf out;
    rg_buf_init(&out, 0);
    rg_alloc_fail_at(1, false);
    assert_int_equal(rg_utf8_push(&s, "abc", 3, &out, &st), RG_NOMEM);
    rg_alloc_fail_at(0, false);
    assert_int_equal(st.code, RG_NOMEM);
    rg_buf_deinit(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut),
        cmocka_unit_test(whole_characters_only),
        cmocka_unit_test(every_code_point),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
