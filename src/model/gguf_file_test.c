/* GGUF files on disk: what is no file at all, headers larger than the first step, split models and
 * every way in which their parts can disagree, reading of payloads, the pass over all data.
 */
#include "model/gguf.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/gguf_writer.h"

#define TINY RG_TEST_DATA "/tiny/"

static char dir[64];

static int setup(void **state) {
    (void)state;
    (void)snprintf(dir, sizeof dir, "gguf_file_test.XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static const char *in_dir(const char *name) {
    static char path[4][128];
    static unsigned turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static int teardown(void **state) {
    (void)state;
    static const char *const names[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                        "m-00003-of-00003.gguf", "renamed.gguf", "file.gguf"};
    for (size_t i = 0; i < RG_ARRAY_LEN(names); i++) {
        (void)unlink(in_dir(names[i]));
    }
    return rmdir(dir);
}

static void refuse(const char *path, rg_code code, const char *part) {
    rg_gguf *g = NULL;
    rg_status st = {0};
    const uint64_t live = rg_alloc_live_bytes();
    const rg_code rc = rg_gguf_open(&g, path, &st);
    if (rc != code || !strstr(st.message, part)) {
        print_error("code %d, message '%s', wanted %d '%s'\n", (int)rc, st.message, (int)code,
                    part);
    }
    assert_int_equal(rc, code);
    assert_null(g);
    assert_non_null(strstr(st.message, part));
    assert_int_equal(rg_alloc_live_bytes(), live);
}

static void refuses_what_is_no_file(void **state) {
    (void)state;
    refuse(dir, RG_INVALID, "directory");
    refuse(in_dir("absent.gguf"), RG_IO, "cannot open");
    rg_test_save(in_dir("file.gguf"), "", 0);
    refuse(in_dir("file.gguf"), RG_FORMAT, "file.gguf: the file has 0 bytes");
    rg_test_save(in_dir("file.gguf"), "GGUF\3\0\0\0\0\0", 10);
    refuse(in_dir("file.gguf"), RG_FORMAT, "file.gguf: the file has 10 bytes");
}

/* 250,000 tokens: 4.5 MB of header, several steps. */
static void reads_large_vocabularies(void **state) {
    (void)state;
    enum { COUNT = 250000 };
    char(*text)[20] = rg_alloc(COUNT, sizeof *text, NULL);
    const char **words = rg_alloc(COUNT, sizeof *words, NULL);
    assert_non_null(text);
    assert_non_null(words);
    for (int i = 0; i < COUNT; i++) {
        snprintf(text[i], sizeof text[i], "token%d", i);
        words[i] = text[i];
    }
    static const uint64_t ne[] = {32};
    rg_gguf_writer w;
    rg_gguf_writer_init(&w);
    rg_gguf_writer_strings(&w, "tokens", words, COUNT);
    rg_gguf_writer_u32(&w, "behind", 5);
    rg_gguf_writer_tensor(&w, "t", RG_TYPE_F32, 1, ne, NULL);
    rg_gguf_writer_save(&w, in_dir("file.gguf"));
    const size_t header = w.kvs.len;
    rg_gguf_writer_deinit(&w);
    rg_alloc_peak_reset();
    const uint64_t before = rg_alloc_peak_bytes();
    const uint64_t start_ns = rg_now_ns();
    rg_gguf *g = NULL;
    assert_int_equal(rg_gguf_open(&g, in_dir("file.gguf"), NULL), RG_OK);
    assert_true(rg_now_ns() - start_ns < 1000000000u);
    assert_true(rg_alloc_peak_bytes() - before < 4 * header);
    const rg_gguf_kv *kv = rg_gguf_find(g, "tokens");
    for (int i = 0; i < COUNT; i++) {
        const rg_str s = rg_gguf_elem_str(kv, (uint64_t)i);
        assert_int_equal(s.len, strlen(words[i]));
        assert_memory_equal(s.data, words[i], s.len);
    }
    uint64_t v = 0;
    assert_int_equal(rg_gguf_get_u64(g, "behind", 0, 9, &v, NULL), RG_OK);
    assert_int_equal(v, 5);
    rg_gguf_close(g);
    rg_free(words);
    rg_free(text);
}

static void reads_payloads(void **state) {
    (void)state;
    static const uint64_t ne[] = {4, 2};
    static const float values[] = {1, 2, 3, 4, 5, 6, 7, 8};
    rg_gguf_writer w;
    rg_gguf_writer_init(&w);
    rg_gguf_writer_tensor(&w, "zeros", RG_TYPE_F32, 2, ne, NULL);
    rg_gguf_writer_tensor(&w, "values", RG_TYPE_F32, 2, ne, values);
    rg_gguf_writer_save(&w, in_dir("file.gguf"));
    rg_gguf_writer_deinit(&w);
    rg_gguf *g = NULL;
    assert_int_equal(rg_gguf_open(&g, in_dir("file.gguf"), NULL), RG_OK);
    assert_string_equal(rg_gguf_file_path(g, 0), in_dir("file.gguf"));
    assert_true(rg_gguf_file(g, 0)->fd >= 0);
    const rg_tensor *t = rg_gguf_tensor(g, "values");
    float got[3] = {0};
    rg_status st = {0};
    assert_int_equal(rg_gguf_read(g, t, 20, 12, got, &st), RG_OK);
    assert_true(got[0] == 6 && got[1] == 7 && got[2] == 8);
    assert_int_equal(rg_gguf_read(g, t, 24, 12, got, &st), RG_INVALID);
    assert_string_equal(st.message, "tensor 'values': 12 bytes wanted at 24 of 32");
    assert_int_equal(rg_gguf_read(g, t, UINT64_MAX, 2, got, NULL), RG_INVALID);
    assert_int_equal(rg_gguf_check_data(g, NULL), RG_OK);
    /* The file shrinks behind our back. */
    assert_int_equal(truncate(in_dir("file.gguf"), 100), 0);
    rg_status_clear(&st);
    assert_int_equal(rg_gguf_read(g, t, 0, 12, got, &st), RG_FORMAT);
    assert_non_null(strstr(st.message, "tensor 'values': file.gguf shrank"));
    rg_gguf_close(g);
}

static void finds_values_that_are_not_finite(void **state) {
    (void)state;
    static const uint64_t ne[] = {256, 4096}; /* more than one chunk */
    uint8_t *data = rg_alloc(32768, 34, NULL);
    assert_non_null(data);
    const size_t bad = 32000;
    data[bad * 34 + 1] = 0x7c; /* infinity as the scale of a q8_0 block */
    rg_gguf_writer w;
    rg_gguf_writer_init(&w);
    static const uint64_t ne_ints[] = {2};
    rg_gguf_writer_tensor(&w, "ints", RG_TYPE_I32, 1, ne_ints, "\xff\xff\xff\xff\xff\xff\xff\xff");
    rg_gguf_writer_tensor(&w, "scales", RG_TYPE_Q8_0, 2, ne, data);
    rg_gguf_writer_save(&w, in_dir("file.gguf"));
    rg_gguf_writer_deinit(&w);
    rg_free(data);
    rg_gguf *g = NULL;
    rg_status st = {0};
    assert_int_equal(rg_gguf_open(&g, in_dir("file.gguf"), NULL), RG_OK);
    assert_int_equal(rg_gguf_check_data(g, &st), RG_FORMAT);
    assert_non_null(strstr(st.message, "tensor 'scales' (q8_0): block 32000 of 32768, at byte"));
    rg_gguf_close(g);
    static const double doubles[] = {1, (double)NAN};
    rg_gguf_writer_init(&w);
    rg_gguf_writer_tensor(&w, "doubles", RG_TYPE_F64, 1, ne_ints, doubles);
    rg_gguf_writer_save(&w, in_dir("file.gguf"));
    rg_gguf_writer_deinit(&w);
    rg_status_clear(&st);
    assert_int_equal(rg_gguf_open(&g, in_dir("file.gguf"), NULL), RG_OK);
    assert_int_equal(rg_gguf_check_data(g, &st), RG_FORMAT);
    assert_non_null(strstr(st.message, "tensor 'doubles' (f64): block 1 of 2"));
    rg_gguf_close(g);
}

/* ---- split models --------------------------------------------------------------------------- */

/* What shard `no` of three holds; the fields of a well-formed one come from shard_of. */
typedef struct shard_spec {
    uint32_t no, count, n_tensor, version;
    const char *architecture; /* NULL: no such key */
    const char *tensor;
    bool no_keys;
} shard_spec;

static shard_spec shard_of(uint32_t no) {
    static const char *const tensors[] = {"a", "b", "c"};
    return (shard_spec){.no = no,
                        .count = 3,
                        .n_tensor = 3,
                        .version = 3,
                        .architecture = no == 0 ? "other" : NULL,
                        .tensor = tensors[no]};
}

static const char *shard_name(uint32_t no) {
    char name[32];
    snprintf(name, sizeof name, "m-%05u-of-00003.gguf", no + 1);
    return in_dir(name);
}

static void save_shard(uint32_t place, const shard_spec *s) {
    static const uint64_t ne[] = {32};
    rg_gguf_writer w;
    rg_gguf_writer_init(&w);
    w.version = s->version;
    if (s->architecture) rg_gguf_writer_str(&w, "general.architecture", s->architecture);
    if (!s->no_keys) {
        rg_gguf_writer_raw(&w, "split.no", RG_GGUF_U16, &s->no, 2);
        rg_gguf_writer_raw(&w, "split.count", RG_GGUF_U16, &s->count, 2);
        rg_gguf_writer_i32(&w, "split.tensors.count", (int32_t)s->n_tensor);
    }
    rg_gguf_writer_tensor(&w, s->tensor, RG_TYPE_F32, 1, ne, NULL);
    rg_gguf_writer_save(&w, shard_name(place));
    rg_gguf_writer_deinit(&w);
}

static void save_all(void) {
    for (uint32_t i = 0; i < 3; i++) {
        const shard_spec s = shard_of(i);
        save_shard(i, &s);
    }
}

static void opens_split_models_from_any_shard(void **state) {
    (void)state;
    save_all();
    for (uint32_t i = 0; i < 3; i++) {
        rg_gguf *g = NULL;
        assert_int_equal(rg_gguf_open(&g, shard_name(i), NULL), RG_OK);
        assert_int_equal(rg_gguf_file_count(g), 3);
        assert_int_equal(rg_gguf_tensor_count(g), 3);
        assert_string_equal(rg_gguf_file_path(g, 2), shard_name(2));
        assert_non_null(rg_gguf_find(g, "general.architecture"));
        assert_int_equal(rg_gguf_tensor(g, "c")->file, 2);
        assert_null(rg_gguf_tensor(g, "d"));
        uint8_t bytes[128];
        for (size_t t = 0; t < 3; t++) {
            assert_int_equal(rg_gguf_read(g, rg_gguf_tensor_at(g, t), 0, 128, bytes, NULL), RG_OK);
        }
        rg_gguf_close(g);
    }
}

/* Shard 1 (of 0..2) is replaced; opening shard 0 must fail. */
static void refuse_second(const shard_spec *s, const char *part) {
    save_all();
    save_shard(1, s);
    refuse(shard_name(0), RG_FORMAT, part);
}

static void refuses_shards_that_disagree(void **state) {
    (void)state;
    shard_spec s = shard_of(1);
    s.no = 2;
    refuse_second(&s, "m-00002-of-00003.gguf: split.no is 2, its name and place say 1");
    s = shard_of(1);
    s.count = 4;
    refuse_second(&s, "m-00002-of-00003.gguf: split.count is 4, other shards say 3");
    s = shard_of(1);
    s.n_tensor = 4;
    refuse_second(&s, "split.tensors.count is 4, all shards hold 3");
    s = shard_of(1);
    s.version = 2;
    refuse_second(&s, "GGUF version 2, the first shard has 3");
    s = shard_of(1);
    s.architecture = "another";
    refuse_second(&s, "general.architecture (7 bytes) differs from the first shard's (5)");
    s = shard_of(1);
    s.tensor = "c";
    refuse_second(&s, "tensor 'c' is in two shards, 1 and 2");
    s = shard_of(1);
    s.no_keys = true;
    refuse_second(&s, "required key 'split.no' is missing");
    save_all();
    assert_int_equal(unlink(shard_name(2)), 0);
    refuse(shard_name(0), RG_IO, "shard 3 of 3: cannot open");
    rg_test_save(shard_name(2), "GGUF", 4);
    refuse(shard_name(0), RG_FORMAT, "shard 3 of 3: m-00003-of-00003.gguf: the file has 4 bytes");
}

static void refuses_renamed_and_wild_shards(void **state) {
    (void)state;
    save_all();
    assert_int_equal(rename(shard_name(0), in_dir("renamed.gguf")), 0);
    refuse(in_dir("renamed.gguf"), RG_FORMAT,
           "renamed.gguf: shard file renamed: split.no 0 of split.count 3 asks for "
           "'*-00001-of-00003.gguf'");
    shard_spec s = shard_of(0);
    s.no = 3;
    save_shard(0, &s);
    refuse(shard_name(0), RG_FORMAT, "key 'split.no' is 3, allowed are 0..2");
    s = shard_of(0);
    s.count = 4097;
    save_shard(0, &s);
    refuse(shard_name(0), RG_FORMAT, "key 'split.count' is 4097");
    s = shard_of(0); /* 0 and 1 mean: not split */
    for (s.count = 0; s.count < 2; s.count++) {
        save_shard(0, &s);
        rg_gguf *g = NULL;
        assert_int_equal(rg_gguf_open(&g, shard_name(0), NULL), RG_OK);
        assert_int_equal(rg_gguf_file_count(g), 1);
        rg_gguf_close(g);
    }
}

static void opens_a_split_without_tensors_in_front(void **state) {
    (void)state;
    rg_gguf *g = NULL;
    assert_int_equal(rg_gguf_open(&g, TINY "a-fused-00002-of-00003.gguf", NULL), RG_OK);
    assert_int_equal(rg_gguf_file_count(g), 3);
    assert_int_equal(rg_gguf_tensor_count(g), 109);
    assert_int_equal(rg_gguf_tensor(g, "token_embd.weight")->file, 1);
    assert_int_equal(rg_gguf_check_data(g, NULL), RG_OK);
    rg_gguf_close(g);
}

static void survives_failing_allocations(void **state) {
    (void)state;
    const uint64_t live = rg_alloc_live_bytes();
    rg_code rc = RG_NOMEM;
    uint64_t n = 1;
    for (; n < 500 && rc != RG_OK; n++) {
        rg_gguf *g = NULL;
        rg_status st = {0};
        rg_alloc_fail_at(n, n % 2 == 0);
        rc = rg_gguf_open(&g, TINY "a-fused-00003-of-00003.gguf", &st);
        if (rc == RG_OK) rc = rg_gguf_check_data(g, &st);
        rg_alloc_fail_at(0, false);
        assert_true(rc == RG_OK || rc == RG_NOMEM);
        assert_int_equal(st.code, rc);
        rg_gguf_close(g);
        assert_int_equal(rg_alloc_live_bytes(), live);
    }
    assert_int_equal(rc, RG_OK);
    assert_true(n > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_what_is_no_file),
        cmocka_unit_test(reads_large_vocabularies),
        cmocka_unit_test(reads_payloads),
        cmocka_unit_test(finds_values_that_are_not_finite),
        cmocka_unit_test(opens_split_models_from_any_shard),
        cmocka_unit_test(refuses_shards_that_disagree),
        cmocka_unit_test(refuses_renamed_and_wild_shards),
        cmocka_unit_test(opens_a_split_without_tensors_in_front),
        cmocka_unit_test(survives_failing_allocations),
    };
    return cmocka_run_group_tests_name("gguf_file", tests, setup, teardown);
}
