#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "text/pretok.h"

/* Pieces joined by '|' (the texts here have none). */
typedef struct joined {
    rg_buf buf;
    size_t n;
    size_t longest;
} joined;

static rg_code join(void *arg, const char *piece, size_t len, rg_status *st) {
    joined *j = arg;
    assert_true(len > 0);
    if (len > j->longest) j->longest = len;
    if (j->n++) RG_TRY(rg_buf_puts(&j->buf, "|", st));
    return rg_buf_append(&j->buf, piece, len, st);
}

static void split(const char *name, const char *text, size_t len, const rg_pretok_limits *limits,
                  joined *out, uint64_t *n_chunks) {
    rg_pretok p;
    rg_pretok_matcher m;
    rg_status st = {0};
    *out = (joined){0};
    if (rg_pretok_init(&p, (rg_str){name, strlen(name)}, &st) != RG_OK) fail_msg("%s", st.message);
    assert_int_equal(rg_pretok_matcher_init(&m, &p, limits, NULL), RG_OK);
    if (rg_pretok_split(&m, text, len, join, out, &st) != RG_OK) fail_msg("%s", st.message);
    if (n_chunks) *n_chunks = m.n_chunks;
    rg_pretok_matcher_deinit(&m);
    rg_pretok_deinit(&p);
}

static void expect(const char *name, const char *text, const char *want) {
    for (int no_jit = 0; no_jit < 2; no_jit++) {
        rg_pretok_limits limits = rg_pretok_default_limits;
        limits.no_jit = no_jit;
        joined got;
        split(name, text, strlen(text), &limits, &got, NULL);
        assert_string_equal(got.buf.data ? got.buf.data : "", want);
        rg_buf_deinit(&got.buf);
    }
}

static void families(void **state) {
    (void)state;
    expect("qwen35", "", "");
    expect("qwen35", "Don't 1234  go\n\n x", "Don|'t| |1|2|3|4| | go|\n\n| x");
    expect("qwen35", "e\xCC\x81t", "e\xCC\x81t"); /* marks join letters */
    expect("qwen35",
           "a\xC2\x85"
           "b",
           "a|\xC2\x85"
           "b"); /* NEL is white space, and may lead a word */
    expect("qwen2", "e\xCC\x81t", "e|\xCC\x81t");
    expect("qwen2", "I'LL 12!!\r\n", "I|'LL| |1|2|!!\r\n");
    expect("gpt-2", "I'LL don't 1234  go!\n", "I|'|LL| don|'t| 1234| | go|!|\n");
    expect("llama-bpe", "1234567 a's", "123|456|7| a|'s");
    expect("gpt-4o", "HelloWorld don't 12345", "Hello|World| don't| |123|45");
    expect("starcoder", "a  12b", "a|  |1|2|b");
    expect("falcon", "a 12345!", "a| |123|45|!");
    expect("default", "a 12345!x", "a| |123|45|!|x");
}

static void unknown_name(void **state) {
    (void)state;
    rg_pretok p;
    rg_status st = {0};
    assert_int_equal(rg_pretok_init(&p, (rg_str){"tekken", 6}, &st), RG_UNSUPPORTED);
    assert_non_null(strstr(st.message, "tekken"));
    assert_non_null(strstr(st.message, "qwen35"));
    rg_pretok_deinit(&p);
}

/* A limit that is met cuts chunks of whole characters and loses nothing. */
static void limits_are_survived(void **state) {
    (void)state;
    static char text[20002];
    for (size_t i = 0; i < 20001; i += 3) {
        text[i] = '\xE2'; /* EM SPACE: many steps back from "\s*[\r\n]+" */
        text[i + 1] = '\x80';
        text[i + 2] = '\x83';
    }
    rg_pretok_limits limits = rg_pretok_default_limits;
    limits.no_jit = true;
    limits.match = 100;
    joined got;
    uint64_t n_chunks = 0;
    split("qwen35", text, 20001, &limits, &got, &n_chunks);
    assert_true(n_chunks >= 4);
    assert_true(got.longest <= RG_PRETOK_CHUNK);
    assert_int_equal(got.buf.len, 20001 + got.n - 1);
    for (size_t i = 0, run = 0; i <= got.buf.len; i++) {
        if (i == got.buf.len || got.buf.data[i] == '|') {
            assert_int_equal(run % 3, 0);
            run = 0;
        } else {
            run++;
        }
    }
    rg_buf_deinit(&got.buf);

    split("qwen35", text, 20001, &rg_pretok_default_limits, &got, &n_chunks);
    assert_int_equal(n_chunks, 0);
    assert_int_equal(got.n, 1);
    rg_buf_deinit(&got.buf);
}

static void out_of_memory(void **state) {
    (void)state;
    for (uint64_t n = 1; n <= 4; n++) {
        rg_pretok p;
        rg_status st = {0};
        rg_alloc_fail_at(n, true);
        const rg_code rc = rg_pretok_init(&p, (rg_str){"default", 7}, &st);
        rg_alloc_fail_at(0, false);
        assert_int_equal(rc, RG_NOMEM);
        assert_int_equal(st.code, RG_NOMEM);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families),
        cmocka_unit_test(unknown_name),
        cmocka_unit_test(limits_are_survived),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
