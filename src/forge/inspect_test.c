/* `inspect` on the tiny models and on a file of another architecture. */
#include "forge/forge.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/gguf_writer.h"

#define TINY RG_TEST_DATA "/tiny/"

static void check_contains(const rg_buf *out, const char *part) {
    if (!strstr(out->data, part)) print_error("no '%s' in:\n%s\n", part, out->data);
    assert_non_null(strstr(out->data, part));
}

static rg_buf inspect(const char *path) {
    rg_buf out;
    rg_buf_init(&out, 0);
    rg_status st = {0};
    const rg_code rc = rg_forge_inspect(path, &out, &st);
    if (rc != RG_OK) print_error("%s\n", st.message);
    assert_int_equal(rc, RG_OK);
    return out;
}

static void shows_a_f32(void **state) {
    (void)state;
    rg_buf out = inspect(TINY "a-f32.gguf");
    check_contains(&out, "GGUF version 3, 1 file\n");
    check_contains(&out, "metadata (49 keys)\n");
    check_contains(&out, "string        \"qwen4exp\"\n");
    check_contains(&out, "i32[4]        [2, 1, 1, 0]\n");
    check_contains(&out, "string[512]   [\"!\", ");
    check_contains(&out, "u64[8]        [0, 101, 204, 311, 420, 533, 660, 791]\n");
    check_contains(&out, "f32           9.99999997e-07\n");
    check_contains(&out, "bool          false\n");
    check_contains(&out, "\\n");
    check_contains(&out, "tensors (113)\n");
    check_contains(&out, "blk.0.ffn_gate_exps.weight");
    check_contains(&out, "f32      64 x 32 x 8                       65536  0\n");
    check_contains(&out, "layers       4 (1 attention, 1 of them sparse; 3 delta net)\n");
    check_contains(&out, "n-grams      up to 3, 8 heads of 8, 928 rows\n");
    check_contains(&out, "  layers 0-3: gate 8192 (f32) + up 8192 (f32) + down 8192 (f32) = 24576 "
                         "bytes, x 8\n");
    check_contains(&out, "experts                  196608           786432\n");
    check_contains(&out, "n-gram table               7424            29696\n");
    rg_buf_deinit(&out);
}

/* The shares add up to what the file holds. */
static void adds_up(void **state) {
    (void)state;
    static const char *const names[] = {
        "a-f32", "a-fused-00002-of-00003", "a-mix", "b-f16", "c-f32", "k-mtp"};
    for (size_t i = 0; i < RG_ARRAY_LEN(names); i++) {
        char path[512];
        snprintf(path, sizeof path, TINY "%s.gguf", names[i]);
        rg_gguf *g = NULL;
        assert_int_equal(rg_gguf_open(&g, path, NULL), RG_OK);
        unsigned long long elems = 0;
        for (size_t k = 0; k < rg_gguf_tensor_count(g); k++) {
            const rg_tensor *t = rg_gguf_tensor_at(g, k);
            elems += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
        }
        rg_gguf_close(g);
        rg_buf out = inspect(path);
        char part[64];
        snprintf(part, sizeof part, "parameters     %16llu total", elems);
        check_contains(&out, part);
        assert_null(strstr(out.data, "not used"));
        rg_buf_deinit(&out);
    }
}

static void shows_variants(void **state) {
    (void)state;
    rg_buf out = inspect(TINY "a-fused-00003-of-00003.gguf");
    check_contains(&out, "GGUF version 3, 3 files\n");
    check_contains(&out, "a-fused-00001-of-00003.gguf\n");
    check_contains(&out, "tensors (109)\n");
    check_contains(&out, "gate_up 4352 (q8_0) + down 1152 (iq4_nl) = 5504 bytes, x 8\n");
    rg_buf_deinit(&out);
    out = inspect(TINY "k-mtp.gguf");
    check_contains(&out, " + 1 draft block\n");
    check_contains(&out, "  draft block: gate ");
    check_contains(&out, "draft experts");
    rg_buf_deinit(&out);
}

/* Layers with equal experts share a line, wherever they stand. */
static void groups_experts(void **state) {
    (void)state;
    rg_gguf *g = NULL;
    assert_int_equal(rg_gguf_open(&g, TINY "a-f32.gguf", NULL), RG_OK);
    rg_gguf_writer w;
    rg_gguf_writer_init(&w);
    w.no_data = true;
    for (size_t i = 0; i < rg_gguf_kv_count(g); i++) {
        rg_gguf_writer_copy_kv(&w, rg_gguf_kv_at(g, i));
    }
    for (size_t i = 0; i < rg_gguf_tensor_count(g); i++) {
        const rg_tensor *t = rg_gguf_tensor_at(g, i);
        const bool half = strcmp(t->name, "blk.1.ffn_down_exps.weight") == 0;
        rg_gguf_writer_tensor(&w, t->name, half ? RG_TYPE_F16 : t->type, t->n_dims, t->ne, NULL);
    }
    rg_gguf_close(g);
    rg_buf header, out;
    rg_buf_init(&header, 0);
    rg_buf_init(&out, 0);
    const uint64_t size = rg_gguf_writer_finish(&w, &header);
    assert_int_equal(rg_gguf_parse(&g, header.data, header.len, size, NULL), RG_OK);
    assert_int_equal(rg_forge_inspect_gguf(g, &out, NULL), RG_OK);
    check_contains(&out, "  layers 0,2-3: gate 8192 (f32) + up 8192 (f32) + down 8192 (f32) =");
    check_contains(&out, "  layers 1: gate 8192 (f32) + up 8192 (f32) + down 4096 (f16) = 20480 ");
    rg_gguf_close(g);
    rg_gguf_writer_deinit(&w);
    rg_buf_deinit(&header);
    rg_buf_deinit(&out);
}

static void shows_other_architectures(void **state) {
    (void)state;
    static const char path[] = "inspect_test.gguf";
    static const uint64_t ne[] = {3, 5};
    static const double d = 0.5;
    rg_gguf_writer w;
    rg_gguf_writer_init(&w);
    rg_gguf_writer_str(&w, "general.architecture", "llama");
    rg_gguf_writer_str(&w, "wild", "a\x1b[31m\xc2\x9b\xff\n\xc3\xa9");
    rg_gguf_writer_raw(&w, "d", RG_GGUF_F64, &d, 8);
    rg_gguf_writer_raw(&w, "i", RG_GGUF_I8, "\xff", 1);
    rg_gguf_writer_tensor(&w, "bad\x1bname", RG_TYPE_I32, 2, ne, NULL);
    rg_gguf_writer_save(&w, path);
    rg_gguf_writer_deinit(&w);
    rg_buf out = inspect(path);
    check_contains(&out, "\"a\\x1b[31m\\xc2\\x9b\\xff\\n\xc3\xa9\"");
    check_contains(&out, "0.5\n");
    check_contains(&out, "-1\n");
    check_contains(&out, "bad\\x1bname");
    check_contains(&out, "i32             1               15               60      32.0000\n");
    check_contains(&out,
                   "model: not described: inspect_test.gguf: general.architecture is 'llama'");
    assert_null(strchr(out.data, 0x1b));
    rg_buf_deinit(&out);
    assert_int_equal(remove(path), 0);
    rg_status st = {0};
    assert_int_equal(rg_forge_inspect(path, &out, &st), RG_IO);
}

static void survives_failing_allocations(void **state) {
    (void)state;
    const uint64_t live = rg_alloc_live_bytes();
    rg_code rc = RG_NOMEM;
    uint64_t n = 1;
    for (; n < 500 && rc != RG_OK; n++) {
        rg_buf out;
        rg_buf_init(&out, 0);
        rg_status st = {0};
        rg_alloc_fail_at(n, n % 2 == 0);
        rc = rg_forge_inspect(TINY "k-mtp.gguf", &out, &st);
        rg_alloc_fail_at(0, false);
        assert_true(rc == RG_OK || rc == RG_NOMEM);
        assert_int_equal(st.code, rc);
        rg_buf_deinit(&out);
        assert_int_equal(rg_alloc_live_bytes(), live);
    }
    assert_int_equal(rc, RG_OK);
    assert_true(n > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shows_a_f32),
        cmocka_unit_test(adds_up),
        cmocka_unit_test(shows_variants),
        cmocka_unit_test(groups_experts),
        cmocka_unit_test(shows_other_architectures),
        cmocka_unit_test(survives_failing_allocations),
    };
    return cmocka_run_group_tests_name("inspect", tests, NULL, NULL);
}
