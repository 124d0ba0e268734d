/* Tests of the stop matcher: known cases, and random texts over two letters against a search of the
 * whole text, cut in every way.
 */
#include "engine/stop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"

enum { OUT_MAX = 4096 };

static rg_stop *make(const char *const *strings, size_t n) {
    rg_stop *m = NULL;
    rg_status st = {0};
    if (rg_stop_create(&m, strings, NULL, n, &st) != RG_OK) fail_msg("%s", st.message);
    return m;
}

/* Feeds `text` in pieces of `cut` bytes; `out` gets all text released, flushed at the end. */
static int32_t run(const rg_stop *m, const char *text, size_t cut, char out[OUT_MAX]) {
    rg_stop_state state = rg_stop_begin();
    size_t total = 0, n = 0;
    const size_t len = strlen(text);
    for (size_t at = 0; at < len; at += cut) {
        const size_t bytes = len - at < cut ? len - at : cut;
        assert_int_equal(
            rg_stop_feed(m, &state, text + at, bytes, out + total, OUT_MAX - 1 - total, &n, NULL),
            RG_OK);
        total += n;
    }
    assert_int_equal(rg_stop_flush(m, &state, out + total, OUT_MAX - 1 - total, &n, NULL), RG_OK);
    out[total + n] = '\0';
    return state.hit;
}

static void expect(const char *const *strings, size_t n, const char *text, int32_t hit,
                   const char *want) {
    rg_stop *m = make(strings, n);
    char out[OUT_MAX];
    for (size_t cut = 1; cut <= strlen(text); cut++) {
        assert_int_equal(run(m, text, cut, out), hit);
        assert_string_equal(out, want);
    }
    rg_stop_destroy(m);
}

static void known_texts_stop_where_they_should(void **state) {
    (void)state;
    static const char *const one[] = {"\nUser:"};
    expect(one, 1, "Hello\nUs\nUser: more", 0, "Hello\nUs");
    expect(one, 1, "\nUser:", 0, "");
    expect(one, 1, "no stop here\nUser", -1, "no stop here\nUser");
    static const char *const repeats[] = {"aab"};
    expect(repeats, 1, "aaaab", 0, "aa");
    static const char *const nested[] = {"abcd", "bc", "c"};
    expect(nested, 3, "xabcd", 1, "xa"); /* first to end, then the longest */
    static const char *const overlap[] = {"abab!", "ba?", "b"};
    expect(overlap, 2, "ababa?", 1, "aba");
    expect(overlap, 2, "abababab!", 0, "abab");
    static const char *const utf8[] = {"\xc3\xa9t", "\xe2\x82\xac"};
    expect(utf8, 2, "caf\xc3\xa9 \xe2\x82\xac", 1, "caf\xc3\xa9 ");
    static const char *const same[] = {"xy", "xy"};
    expect(same, 2, "axyz", 0, "a");
    expect(NULL, 0, "anything", -1, "anything");
}

static void text_is_held_back_no_longer_than_needed(void **state) {
    (void)state;
    static const char *const strings[] = {"<end>", "</s>"};
    rg_stop *m = make(strings, 2);
    rg_stop_state s = rg_stop_begin();
    char out[16];
    size_t n = 0;
    assert_int_equal(rg_stop_feed(m, &s, "ab<", 3, out, sizeof out, &n, NULL), RG_OK);
    assert_int_equal(n, 2);
    assert_int_equal(s.n_held, 1);
    assert_int_equal(rg_stop_feed(m, &s, "en", 2, out, sizeof out, &n, NULL), RG_OK);
    assert_int_equal(n, 0);
    assert_int_equal(s.n_held, 3);
    const rg_stop_state saved = s; /* a draft begins */
    assert_int_equal(rg_stop_feed(m, &s, "d>!", 3, out, sizeof out, &n, NULL), RG_OK);
    assert_int_equal(n, 0);
    assert_int_equal(s.hit, 0);
    assert_int_equal(rg_stop_feed(m, &s, "later", 5, out, sizeof out, &n, NULL), RG_OK);
    assert_int_equal(n, 0);
    s = saved; /* and is rejected */
    assert_int_equal(rg_stop_feed(m, &s, "</", 2, out, sizeof out, &n, NULL), RG_OK);
    assert_int_equal(n, 3);
    assert_memory_equal(out, "<en", 3);
    assert_int_equal(s.hit, -1);
    assert_int_equal(rg_stop_flush(m, &s, out, sizeof out, &n, NULL), RG_OK);
    assert_int_equal(n, 2);
    assert_memory_equal(out, "</", 2);
    rg_stop_destroy(m);
}

/* The stop string that ends first in the text, the longest among those, the first among equals. */
static int32_t search(const char *const *strings, size_t n, const char *text, size_t *begin) {
    const size_t len = strlen(text);
    for (size_t end = 1; end <= len; end++) {
        int32_t hit = -1;
        size_t longest = 0;
        for (size_t i = 0; i < n; i++) {
            const size_t bytes = strlen(strings[i]);
            if (bytes > end || bytes <= longest) continue;
            if (memcmp(text + end - bytes, strings[i], bytes) != 0) continue;
            longest = bytes;
            hit = (int32_t)i;
        }
        *begin = end - longest;
        if (hit >= 0) return hit;
    }
    *begin = len;
    return -1;
}

static void random_word(char *out, size_t len, uint64_t seed) {
    for (size_t i = 0; i < len; i++)
        out[i] = rg_random_u64(seed, i) % 3 ? 'a' : 'b';
    out[len] = '\0';
}

static void random_texts_agree_with_a_search(void **state) {
    (void)state;
    unsigned n_hits = 0;
    for (uint64_t c = 0; c < 3000; c++) {
        char word[4][12], text[64], out[OUT_MAX];
        const char *strings[4];
        const size_t n = 1 + (size_t)(rg_random_u64(c, 0) % 4);
        for (size_t i = 0; i < n; i++) {
            random_word(word[i], 3 + (size_t)(rg_random_u64(c, 1 + i) % 8), c * 8 + i);
            strings[i] = word[i];
        }
        random_word(text, 1 + (size_t)(rg_random_u64(c, 9) % 60), c * 8 + 7);
        size_t begin = 0;
        const int32_t hit = search(strings, n, text, &begin);
        n_hits += hit >= 0;
        rg_stop *m = make(strings, n);
        for (size_t cut = 1; cut <= strlen(text); cut += cut < 4 ? 1 : 7) {
            assert_int_equal(run(m, text, cut, out), hit);
            assert_int_equal(strlen(out), begin);
            assert_memory_equal(out, text, begin);
        }
        rg_stop_destroy(m);
    }
    assert_true(n_hits > 500 && n_hits < 2900);
}

static void bad_strings_are_refused(void **state) {
    (void)state;
    rg_stop *m = NULL;
    rg_status st = {0};
    static const char *const empty[] = {"a", ""};
    assert_int_equal(rg_stop_create(&m, empty, NULL, 2, &st), RG_INVALID);
    assert_string_equal(st.message, "stop string 2 of 2 is empty");
    assert_null(m);
    static char big[RG_STOP_BYTES_MAX + 2];
    memset(big, 'x', RG_STOP_BYTES_MAX + 1);
    const char *strings[RG_STOP_STRINGS_MAX + 1];
    for (size_t i = 0; i < RG_ARRAY_LEN(strings); i++)
        strings[i] = big;
    rg_status_clear(&st);
    assert_int_equal(rg_stop_create(&m, strings, NULL, 1, &st), RG_INVALID);
    assert_non_null(strstr(st.message, "1025 bytes or more, at most 1024"));
    rg_status_clear(&st);
    assert_int_equal(rg_stop_create(&m, strings, NULL, RG_STOP_STRINGS_MAX + 1, &st), RG_INVALID);
    assert_string_equal(st.message, "33 stop strings, at most 32 are allowed");
    big[RG_STOP_BYTES_MAX] = '\0';
    m = make(strings, RG_STOP_STRINGS_MAX);
    rg_stop_destroy(m);
}

static void lengths_allow_zero_bytes(void **state) {
    (void)state;
    const char *const strings[] = {"\0x"};
    const size_t len[] = {2};
    rg_stop *m = NULL;
    assert_int_equal(rg_stop_create(&m, strings, len, 1, NULL), RG_OK);
    rg_stop_state s = rg_stop_begin();
    char out[4];
    size_t n = 0;
    assert_int_equal(rg_stop_feed(m, &s, "a\0x", 3, out, sizeof out, &n, NULL), RG_OK);
    assert_int_equal(n, 1);
    assert_int_equal(s.hit, 0);
    rg_stop_destroy(m);
}

static void room_and_memory_failures_are_clean(void **state) {
    (void)state;
    static const char *const strings[] = {"abc"};
    rg_stop *m = NULL;
    unsigned n_failed = 0;
    for (uint64_t n = 1; !m; n++) {
        rg_alloc_fail_at(n, false);
        const rg_code rc = rg_stop_create(&m, strings, NULL, 1, NULL);
        rg_alloc_fail_at(0, false);
        assert_int_equal(rc, m ? RG_OK : RG_NOMEM);
        n_failed += !m;
    }
    assert_int_equal(n_failed, 3);
    rg_stop_state s = rg_stop_begin();
    char out[4];
    size_t n = 0;
    assert_int_equal(rg_stop_feed(m, &s, "ab", 2, out, 2, &n, NULL), RG_OK);
    rg_status st = {0};
    assert_int_equal(rg_stop_feed(m, &s, "xyz", 3, out, 4, &n, &st), RG_INVALID);
    assert_string_equal(st.message, "stop: room for 4 bytes, 2 held and 3 new");
    assert_int_equal(rg_stop_flush(m, &s, out, 1, &n, NULL), RG_INVALID);
    assert_int_equal(s.n_held, 2);
    assert_int_equal(rg_stop_flush(m, &s, out, 2, &n, NULL), RG_OK);
    assert_int_equal(n, 2);
    rg_stop_destroy(m);
    rg_stop_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_texts_stop_where_they_should),
        cmocka_unit_test(text_is_held_back_no_longer_than_needed),
        cmocka_unit_test(random_texts_agree_with_a_search),
        cmocka_unit_test(bad_strings_are_refused),
        cmocka_unit_test(lengths_allow_zero_bytes),
        cmocka_unit_test(room_and_memory_failures_are_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
