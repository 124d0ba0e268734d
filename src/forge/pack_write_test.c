/* regolith pack in process: what lies on the disk after success, after every failing allocation,
 * behind an interrupted run, beside another writer.
 */
#include "forge/forge.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/gguf_writer.h"

#define MODEL RG_TEST_DATA "/tiny/a-mix.gguf"

static char dir[64], out[96], temp[112];

static int setup(void **state) {
    (void)state;
    (void)snprintf(dir, sizeof dir, "pack_write_test.XXXXXX");
    if (!mkdtemp(dir)) return -1;
    (void)snprintf(out, sizeof out, "%s/m.rgpack", dir);
    (void)snprintf(temp, sizeof temp, "%s.part", out);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    (void)unlink(out);
    (void)unlink(temp);
    return rmdir(dir);
}

static rg_code pack(const char *model, rg_buf *text, rg_status *st) {
    const rg_forge_pack_options opt = {.model_path = model, .out_path = out};
    return rg_forge_pack(&opt, text, st);
}

/* Packs and expects one line with `part`. */
static void pack_well(const char *part) {
    rg_buf text;
    rg_status st = {0};
    rg_buf_init(&text, 0);
    assert_int_equal(pack(MODEL, &text, &st), RG_OK);
    assert_non_null(strstr(text.data, part));
    assert_ptr_equal(strchr(text.data, '\n'), text.data + text.len - 1);
    rg_buf_deinit(&text);
    assert_int_equal(access(temp, F_OK), -1);
}

static void refuse(rg_code code, const char *part) {
    rg_buf text;
    rg_status st = {0};
    rg_buf_init(&text, 0);
    const rg_code rc = pack(MODEL, &text, &st);
    if (rc != code || !strstr(st.message, part)) print_error("%d %s\n", (int)rc, st.message);
    assert_int_equal(rc, code);
    assert_non_null(strstr(st.message, part));
    assert_int_equal(text.len, 0);
    rg_buf_deinit(&text);
}

static void slurp(const char *path, char **data, size_t *len) {
    assert_int_equal(rg_file_slurp(data, len, path, 1u << 24, NULL), RG_OK);
}

static void writes_a_pack_that_belongs_to_the_model(void **state) {
    (void)state;
    rg_gguf *g = NULL;
    rg_model *m = NULL;
    rg_pack *p = NULL;
    pack_well("32 experts in 4 layers");
    assert_int_equal(rg_gguf_open(&g, MODEL, NULL), RG_OK);
    assert_int_equal(rg_model_create(&m, g, &(rg_model_options){0}, NULL), RG_OK);
    assert_int_equal(rg_pack_open(&p, out, NULL), RG_OK);
    assert_int_equal(rg_pack_check(p, g, m, NULL), RG_OK);
    rg_pack_close(p);
    rg_model_destroy(m);
    rg_gguf_close(g);
}

static bool count_layers(void *user) {
    return ++*(uint32_t *)user < 100;
}

static bool stop_at_once(void *user) {
    (void)user;
    return false;
}

/* A flipped bit anywhere in the experts is found, and which expert it is in. */
static void a_flipped_bit_is_found(void **state) {
    (void)state;
    rg_pack *p = NULL;
    rg_status st = {0};
    uint32_t layers = 0;
    pack_well("32 experts in 4 layers");
    assert_int_equal(rg_pack_open(&p, out, NULL), RG_OK);
    assert_int_equal(rg_pack_verify(p, count_layers, &layers, NULL), RG_OK);
    assert_int_equal(layers, 4);
    assert_int_equal(rg_pack_verify(p, stop_at_once, NULL, NULL), RG_CANCELED);
    for (uint32_t i = 0; i < 32; i += 5) {
        const rg_pack_group *g = rg_pack_group_at(p, i / 8);
        const off_t at = (off_t)(g->offset + i % 8 * g->stride + (i * 97) % g->item_bytes);
        char byte = 0, where[40];
        const int fd = open(out, O_RDWR | O_CLOEXEC);
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 16;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        assert_int_equal(rg_pack_verify(p, NULL, NULL, &st), RG_IO);
        snprintf(where, sizeof where, "layer %u expert %u ", i / 8, i % 8);
        assert_non_null(strstr(st.message, where));
        assert_non_null(strstr(st.message, out));
        byte ^= 16;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        close(fd);
        st = (rg_status){0};
    }
    assert_int_equal(rg_pack_verify(p, NULL, NULL, NULL), RG_OK);
    rg_pack_close(p);
}

/* Cut anywhere, with a byte flipped or of another pack: the result is the same file. */
static void continues_what_a_killed_run_left(void **state) {
    (void)state;
    static const char part_magic[8] = {'r', 'g', 'p', 'a', 'r', 't', '\r', '\n'};
    char *whole = NULL, *again = NULL;
    size_t len = 0, again_len = 0;
    pack_well("32 experts");
    slurp(out, &whole, &len);
    static const struct {
        size_t len, flip;
        const char *part;
    } cases[] = {
        {0, 0, "verified\n"},
        {100, 0, "verified\n"},
        {4096, 0, "verified\n"},
        {4096 + 4095, 0, "verified\n"},
        {(size_t)4096 * 2, 0, ", 1 of them"},
        {(size_t)4096 * 21 + 7, 0, ", 20 of them"},
        {(size_t)4096 * 33, 0, ", 32 of them"},
        {(size_t)4096 * 33, (size_t)4096 * 10 + 3, ", 9 of them"},
        {(size_t)4096 * 33, 40, "verified\n"},
        {(size_t)4096 * 33, 88, "verified\n"},
        {(size_t)4096 * 33, 2000, ", 32 of them"}, /* of the checksums: they are made anew */
    };
    for (size_t i = 0; i < RG_ARRAY_LEN(cases); i++) {
        char *cut = rg_alloc(len, 1, NULL);
        assert_non_null(cut);
        memcpy(cut, whole, len);
        if (i % 2) memcpy(cut, part_magic, sizeof part_magic);
        if (cases[i].flip) cut[cases[i].flip] ^= 1;
        assert_int_equal(unlink(out), 0);
        rg_test_save(temp, cut, cases[i].len);
        rg_free(cut);
        pack_well(cases[i].part);
        slurp(out, &again, &again_len);
        assert_int_equal(again_len, len);
        assert_memory_equal(again, whole, len);
        rg_free(again);
    }
    rg_free(whole);
}

static void keeps_other_files(void **state) {
    (void)state;
    rg_test_save(out, "GGUF precious", 13);
    refuse(RG_INVALID, "no expert pack; it is left alone");
    assert_int_equal(access(temp, F_OK), -1);
    char *data = NULL;
    size_t len = 0;
    slurp(out, &data, &len);
    assert_string_equal(data, "GGUF precious");
    rg_free(data);
    assert_int_equal(unlink(out), 0);
    rg_test_save(temp, "a diary", 7);
    refuse(RG_INVALID, "m.rgpack.part is there");
    assert_int_equal(access(temp, F_OK), 0);
    assert_int_equal(unlink(temp), 0);
}

static void yields_to_another_writer(void **state) {
    (void)state;
    const int fd = open(temp, O_RDWR | O_CREAT, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "rgpart\r\n", 8), 8);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    refuse(RG_BUSY, "is being written by another process");
    assert_int_equal(access(temp, F_OK), 0);
    close(fd);
    pack_well("32 experts");
}

static void leaves_nothing_when_memory_fails(void **state) {
    (void)state;
    const uint64_t live = rg_alloc_live_bytes();
    rg_code rc = RG_NOMEM;
    uint64_t n = 1;
    for (; n < 2000 && rc != RG_OK; n++) {
        rg_buf text;
        rg_status st = {0};
        (void)unlink(out);
        rg_buf_init(&text, 0);
        rg_alloc_fail_at(n, n % 2 == 0);
        rc = pack(MODEL, &text, &st);
        rg_alloc_fail_at(0, false);
        rg_buf_deinit(&text);
        assert_true(rc == RG_OK || rc == RG_NOMEM);
        assert_int_equal(st.code, rc);
        assert_int_equal(access(temp, F_OK), -1);
        assert_int_equal(rg_alloc_live_bytes(), live);
    }
    assert_int_equal(rc, RG_OK);
    assert_true(n > 20);
}

typedef struct seen {
    uint64_t last, calls;
    const char *what;
} seen;

static void on_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    seen *s = user;
    if (!s->what || strcmp(s->what, what) != 0) s->last = 0;
    s->what = what;
    assert_true(done >= s->last && done <= total);
    s->last = done;
    s->calls++;
}

static void tells_how_far_it_is(void **state) {
    (void)state;
    seen s = {0};
    rg_buf text;
    rg_buf_init(&text, 0);
    const rg_forge_pack_options opt = {
        .model_path = MODEL, .out_path = out, .progress = on_progress, .progress_user = &s};
    assert_int_equal(rg_forge_pack(&opt, &text, NULL), RG_OK);
    rg_buf_deinit(&text);
    assert_string_equal(s.what, "verify");
    assert_int_equal(s.last, 33 * 4096);
    assert_true(s.calls > 32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_a_pack_that_belongs_to_the_model),
        cmocka_unit_test(a_flipped_bit_is_found),
        cmocka_unit_test(continues_what_a_killed_run_left),
        cmocka_unit_test(keeps_other_files),
        cmocka_unit_test(yields_to_another_writer),
        cmocka_unit_test(leaves_nothing_when_memory_fails),
        cmocka_unit_test(tells_how_far_it_is),
    };
    return cmocka_run_group_tests_name("pack_write", tests, setup, teardown);
}
