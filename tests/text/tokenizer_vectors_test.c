/* The demo vocabulary and the tiny one against recorded ids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer.h"

static rg_tokenizer *load(const char *path) {
    rg_status st = {0};
    rg_gguf *g = NULL;
    rg_tokenizer *t = NULL;
    if (rg_gguf_open(&g, path, &st) != RG_OK) fail_msg("%s", st.message);
    if (rg_tokenizer_create(&t, g, &st) != RG_OK) fail_msg("%s", st.message);
    rg_gguf_close(g);
    return t;
}

static void assert_round_trip(const rg_tokenizer *t, const rg_ids *ids, const char *text,
                              size_t len) {
    rg_buf back;
    rg_buf_init(&back, 0);
    for (size_t i = 0; i < ids->count; i++) {
        assert_int_equal(rg_detokenize(t, ids->ids[i], true, &back, NULL), RG_OK);
    }
    assert_int_equal(back.len, len);
    if (len) assert_memory_equal(back.data, text, len);
    rg_buf_deinit(&back);
}

static void check(const rg_tokenizer *t, const char *text, size_t len, bool special,
                  const int32_t *want, size_t n_want, const char *label) {
    rg_status st = {0};
    rg_ids ids = {0};
    if (rg_tokenize(t, text, len, special, &ids, &st) != RG_OK) fail_msg("%s", st.message);
    if (ids.count != n_want) {
        fail_msg("%s: \"%s\": %zu ids, wanted %zu", label, text, ids.count, n_want);
    }
    for (size_t i = 0; i < n_want; i++) {
        if (ids.ids[i] != want[i]) {
            fail_msg("%s: \"%s\": id %zu is %d, wanted %d", label, text, i, ids.ids[i], want[i]);
        }
    }
    assert_round_trip(t, &ids, text, len);
    rg_free(ids.ids);
}

static void check_json(const rg_tokenizer *t, const char *text, size_t len, bool special,
                       const json_t *list, const char *label) {
    int32_t want[4096];
    const size_t n = json_array_size(list);
    assert_true(n <= sizeof want / sizeof want[0]);
    for (size_t i = 0; i < n; i++) {
        want[i] = (int32_t)json_integer_value(json_array_get(list, i));
    }
    check(t, text, len, special, want, n, label);
}

static void demo_vectors(void **state) {
    (void)state;
    rg_tokenizer *t = load(RG_TEST_DATA "/text/demo-vocab.gguf");
    json_error_t error;
    json_t *all =
        json_load_file(RG_TEST_DATA "/text/tokenizer_vectors.json", JSON_ALLOW_NUL, &error);
    if (!all) fail_msg("line %d: %s", error.line, error.text);
    assert_int_equal(json_array_size(all), 260);
    size_t n_plain = 0;
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *v = json_array_get(all, i);
        const json_t *text = json_object_get(v, "text");
        const json_t *ids = json_object_get(v, "ids");
        const json_t *plain = json_object_get(v, "ids_plain");
        const char *s = json_string_value(text);
        const size_t len = json_string_length(text);
        assert_true(json_is_array(ids));
        check_json(t, s, len, true, ids, "special parsed");
        check_json(t, s, len, false, plain ? plain : ids, "plain");
        n_plain += plain != NULL;
    }
    assert_int_equal(n_plain, 32);
    json_decref(all);
    rg_tokenizer_destroy(t);
}

static void tiny_vectors(void **state) {
    (void)state;
    static const char *const files[2] = {RG_TEST_DATA "/tiny/tok.ids",
                                         RG_TEST_DATA "/tiny/tok-special.ids"};
    rg_tokenizer *t = load(RG_TEST_DATA "/tiny/a-f32.gguf");
    char *text = NULL;
    size_t len = 0;
    assert_int_equal(rg_file_slurp(&text, &len, RG_TEST_DATA "/tiny/tok.txt", 1 << 20, NULL),
                     RG_OK);
    for (int special = 0; special < 2; special++) {
        char *list = NULL;
        size_t list_len = 0;
        int32_t want[2048];
        size_t n = 0;
        assert_int_equal(rg_file_slurp(&list, &list_len, files[special], 1 << 20, NULL), RG_OK);
        for (char *at = list; n < 2048;) {
            char *end = at;
            const long id = strtol(at, &end, 10);
            if (end == at) break;
            want[n++] = (int32_t)id;
            at = end;
        }
        assert_true(n > 100);
        check(t, text, len, special, want, n, files[special]);
        rg_free(list);
    }
    rg_free(text);
    rg_tokenizer_destroy(t);
}

static void demo_questions(void **state) {
    (void)state;
    rg_tokenizer *t = load(RG_TEST_DATA "/text/demo-vocab.gguf");
    assert_int_equal(rg_tokenizer_vocab(t), 4096);
    assert_int_equal(rg_tokenizer_eos(t), 2);
    assert_int_equal(rg_tokenizer_bos(t), 0);
    assert_false(rg_tokenizer_add_bos(t));
    assert_int_equal(rg_tokenizer_kind(t, 1), RG_TOKEN_CONTROL);
    assert_int_equal(rg_tokenizer_kind(t, 7), RG_TOKEN_USER);
    assert_int_equal(rg_tokenizer_kind(t, 9), RG_TOKEN_NORMAL);
    assert_int_equal(rg_tokenizer_find(t, "<think>", 7), 7);
    assert_int_equal(rg_tokenizer_find(t, "\n", 1), 207);
    assert_int_equal(rg_tokenizer_find(t, "no such token", 13), -1);
    for (int32_t id = -1; id <= 4096; id++) {
        assert_int_equal(rg_tokenizer_is_eog(t, id), id == 0 || id == 2);
    }
    rg_tokenizer_destroy(t);
}

static void random_bytes_survive(void **state) {
    (void)state;
    static const uint64_t seed = 20240607;
    rg_tokenizer *t = load(RG_TEST_DATA "/text/demo-vocab.gguf");
    for (uint64_t round = 0; round < 400; round++) {
        char text[300];
        const size_t len = rg_random_u64(seed, round) % sizeof text;
        /* Half of the rounds draw from a small set of bytes, to hit characters and tokens. */
        static const char usual[] = "ab <|im_end|>\n\r\xC3\xA9\xE2\x80\x94'sL\xF0\x9F\x98\x80 9";
        for (size_t i = 0; i < len; i++) {
            const uint64_t r = rg_random_u64(seed + 1 + round, i);
            text[i] = round % 2 ? (char)(r & 0xFF) : usual[r % (sizeof usual - 1)];
        }
        for (int special = 0; special < 2; special++) {
            rg_ids ids = {0};
            rg_status st = {0};
            if (rg_tokenize(t, text, len, special, &ids, &st) != RG_OK) {
                fail_msg("seed %llu round %llu: %s", (unsigned long long)seed,
                         (unsigned long long)round, st.message);
            }
            assert_round_trip(t, &ids, text, len);
            rg_free(ids.ids);
        }
    }
    rg_tokenizer_destroy(t);
}

/* One megabyte of one character: linear numbers of queued pairs, no limit met, nothing lost. */
static void long_runs(void **state) {
    (void)state;
    static const char *const units[] = {"a",    " ",  "\n", "\xCC\x81",    "e",
                                        "\t",   "1",  "'",  "<",           "\xF0\x9F\x98\x80",
                                        "\xFF", " a", "\r", "\xE2\x80\x83"};
    rg_tokenizer *t = load(RG_TEST_DATA "/text/demo-vocab.gguf");
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        const size_t unit = strlen(units[u]);
        const size_t n = (1u << 20) / unit * unit;
        char *text = malloc(n + 2);
        assert_non_null(text);
        for (size_t i = 0; i < n; i += unit) {
            memcpy(text + i, units[u], unit);
        }
        memcpy(text + n, "b", 2); /* so that spaces do not end the text */
        for (int no_jit = 0; no_jit < 2; no_jit++) {
            rg_ids ids = {0};
            rg_tokenize_counts counts = {0};
            rg_pretok_limits limits = rg_pretok_default_limits;
            limits.no_jit = no_jit;
            assert_int_equal(
                rg_tokenize_limited(t, text, n + 1, true, &limits, &ids, &counts, NULL), RG_OK);
            assert_int_equal(counts.n_chunks, 0);
            assert_true(counts.n_queued <= 3 * (n + 1));
            assert_round_trip(t, &ids, text, n + 1);
            rg_free(ids.ids);
        }
        free(text);
    }
    rg_tokenizer_destroy(t);
}

static rg_code load_and_use(const rg_gguf *g, rg_status *st) {
    rg_tokenizer *t = NULL;
    rg_ids ids = {0};
    rg_code rc = rg_tokenizer_create(&t, g, st);
    if (rc == RG_OK) rc = rg_tokenize(t, "it's <think> 12\xFF", 16, true, &ids, st);
    if (rc == RG_OK) assert_true(ids.count > 3);
    if (rc != RG_OK) assert_int_equal(ids.count, 0);
    rg_free(ids.ids);
    rg_tokenizer_destroy(t);
    return rc;
}

/* Load and use with allocation n failing, for each n. A failure inside the JIT compiler is survived
 * (the interpreter takes over), all others come back as NOMEM. */
static void load_torture(void **state) {
    (void)state;
    rg_gguf *g = NULL;
    rg_status st = {0};
    assert_int_equal(rg_gguf_open(&g, RG_TEST_DATA "/tiny/a-f32.gguf", NULL), RG_OK);
    const uint64_t before = rg_alloc_count();
    assert_int_equal(load_and_use(g, &st), RG_OK);
    const uint64_t n_allocs = rg_alloc_count() - before;
    assert_true(n_allocs > 20);
    size_t n_failed = 0;
    for (uint64_t n = 1; n <= n_allocs; n++) {
        rg_status_clear(&st);
        rg_alloc_fail_at(n, false);
        const rg_code rc = load_and_use(g, &st);
        rg_alloc_fail_at(0, false);
        if (rc == RG_OK) continue;
        assert_int_equal(rc, RG_NOMEM);
        assert_int_equal(st.code, RG_NOMEM);
        n_failed++;
    }
    assert_true(n_failed * 2 > n_allocs);
    rg_gguf_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(demo_vectors),   cmocka_unit_test(tiny_vectors),
        cmocka_unit_test(demo_questions), cmocka_unit_test(random_bytes_survive),
        cmocka_unit_test(long_runs),      cmocka_unit_test(load_torture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
