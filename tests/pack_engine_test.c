/* An engine that streams from a pack: a damaged expert fails the requests that need it, by name,
 * and no other; after the damage is mended the same session gives the same bits as before. Also
 * which pack is taken, and the identity of bits between pack and model file.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "forge/forge.h"

#define MODEL    RG_TEST_DATA "/tiny/a-mix.gguf"
#define LAYER    2u
#define N_TOKENS 24

static char dir[64], packed[96];

static int setup(void **state) {
    (void)state;
    (void)snprintf(dir, sizeof dir, "pack_engine_test.XXXXXX");
    if (!mkdtemp(dir)) return -1;
    (void)snprintf(packed, sizeof packed, "%s/m.rgpack", dir);
    rg_buf text;
    rg_buf_init(&text, 0);
    const rg_forge_pack_options opt = {.model_path = MODEL, .out_path = packed};
    const rg_code rc = rg_forge_pack(&opt, &text, NULL);
    rg_buf_deinit(&text);
    return rc == RG_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    (void)unlink(packed);
    return rmdir(dir);
}

typedef struct running {
    rg_engine *engine;
    rg_session *session;
    uint32_t n_vocab;
} running;

static running start(const char *pack, rg_io_backend io) {
    running r = {0};
    rg_status st = {0};
    rg_engine_info info;
    rg_engine_options opt = {
        .model_path = MODEL, .n_threads = 1, .arena_experts = 3, .io = io, .pack_path = pack};
    rg_code rc = RG_INVALID;
    while (rc == RG_INVALID && opt.arena_experts < 16) { /* the smallest arena that is legal */
        rg_status_clear(&st);
        rc = rg_engine_open(&r.engine, &opt, &st);
        opt.arena_experts++;
    }
    if (rc != RG_OK) print_error("%s\n", st.message);
    assert_int_equal(rc, RG_OK);
    rg_engine_get_info(r.engine, &info);
    assert_string_equal(info.pack_path, pack);
    r.n_vocab = info.n_vocab;
    const rg_session_options so = {.n_ctx = N_TOKENS};
    assert_int_equal(rg_session_create(&r.session, r.engine, &so, NULL), RG_OK);
    return r;
}

static void stop(running *r) {
    rg_session_destroy(r->session);
    rg_engine_close(r->engine);
}

typedef struct rows {
    float *at;
    uint32_t n_vocab;
} rows;

static rg_code on_row(void *user, uint32_t position, const float *logits, rg_status *st) {
    (void)st;
    const rows *r = user;
    memcpy(r->at + (size_t)position * r->n_vocab, logits, r->n_vocab * sizeof *logits);
    return RG_OK;
}

/* Logits [n][n_vocab] of tokens first .. first + n - 1, from an empty session. */
static rg_code eval(running *r, int32_t first, uint32_t n, float *logits, rg_status *st) {
    int32_t ids[N_TOKENS];
    for (uint32_t i = 0; i < n; i++)
        ids[i] = first + (int32_t)i;
    rows to = {logits, r->n_vocab};
    rg_session_reset(r->session);
    return rg_session_eval(r->session, ids, n, 0, on_row, &to, st);
}

static float *new_logits(const running *r) {
    float *x = rg_alloc((size_t)N_TOKENS * r->n_vocab, sizeof *x, NULL);
    assert_non_null(x);
    return x;
}

/* Flips a bit of experts [begin, end) of LAYER in the file, or flips it back. */
static void flip(uint32_t begin, uint32_t end) {
    rg_pack *p = NULL;
    assert_int_equal(rg_pack_open(&p, packed, NULL), RG_OK);
    const rg_pack_group *g = rg_pack_group_at(p, LAYER);
    const int fd = open(packed, O_RDWR);
    assert_true(fd >= 0);
    for (uint32_t i = begin; i < end; i++) {
        const off_t at = (off_t)(g->offset + i * g->stride + g->item_bytes / 2);
        char byte = 0;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 0x10;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
    rg_pack_close(p);
}

static void gives_the_bits_of_the_model_file(void **state) {
    (void)state;
    running plain = start("", RG_IO_AUTO);
    float *want = new_logits(&plain), *got = new_logits(&plain);
    const size_t bytes = (size_t)N_TOKENS * plain.n_vocab * sizeof *want;
    assert_int_equal(eval(&plain, 3, N_TOKENS, want, NULL), RG_OK);
    static const rg_io_backend backends[] = {RG_IO_AUTO, RG_IO_PREAD};
    for (size_t i = 0; i < RG_ARRAY_LEN(backends); i++) {
        running r = start(packed, backends[i]);
        assert_int_equal(eval(&r, 3, N_TOKENS, got, NULL), RG_OK);
        assert_memory_equal(got, want, bytes);
        stop(&r);
    }
    rg_free(want);
    rg_free(got);
    stop(&plain);
}

static void names_the_damaged_expert_and_goes_on(void **state) {
    (void)state;
    running r = start(packed, RG_IO_AUTO);
    float *want = new_logits(&r), *got = new_logits(&r);
    const size_t bytes = (size_t)N_TOKENS * r.n_vocab * sizeof *want;
    rg_engine_meters before, after;
    assert_int_equal(eval(&r, 3, N_TOKENS, want, NULL), RG_OK);
    rg_engine_get_meters(r.engine, &before);
    flip(0, 8);
    for (int attempt = 0; attempt < 2; attempt++) {
        rg_status st = {0};
        assert_int_equal(eval(&r, 3, N_TOKENS, got, &st), RG_FORMAT);
        assert_non_null(strstr(st.message, "m.rgpack: layer 2 expert "));
        assert_non_null(strstr(st.message, "checksum "));
        assert_non_null(strstr(st.message, ", should be "));
        /* A session that failed says so until it is reset. */
        const int32_t id = 1;
        assert_int_not_equal(rg_session_eval(r.session, &id, 1, 0, NULL, NULL, NULL), RG_OK);
    }
    rg_engine_get_meters(r.engine, &after);
    assert_true(after.retries > before.retries);
    flip(0, 8);
    assert_int_equal(eval(&r, 3, N_TOKENS, got, NULL), RG_OK);
    assert_memory_equal(got, want, bytes);
    rg_free(want);
    rg_free(got);
    stop(&r);
}

/* One damaged expert: single tokens either do not need it and get the right bits, or fail. */
static void fails_only_what_needs_the_expert(void **state) {
    (void)state;
    running good = start("", RG_IO_AUTO);
    flip(3, 4);
    running r = start(packed, RG_IO_AUTO);
    float *want = new_logits(&r), *got = new_logits(&r);
    int n_ok = 0, n_failed = 0;
    for (int32_t id = 0; id < 40; id++) {
        rg_status st = {0};
        assert_int_equal(eval(&good, id, 1, want, NULL), RG_OK);
        if (eval(&r, id, 1, got, &st) == RG_OK) {
            assert_memory_equal(got, want, r.n_vocab * sizeof *want);
            n_ok++;
        } else {
            assert_int_equal(st.code, RG_FORMAT);
            assert_non_null(strstr(st.message, "layer 2 expert 3 at "));
            n_failed++;
        }
    }
    assert_true(n_ok > 0);
    assert_true(n_failed > 0);
    flip(3, 4);
    rg_free(want);
    rg_free(got);
    stop(&good);
    stop(&r);
}

static void opens_nothing_when_all_experts_fit(void **state) {
    (void)state;
    rg_engine *e = NULL;
    rg_engine_info info;
    const rg_engine_options opt = {
        .model_path = MODEL, .n_threads = 1, .pack_path = "no/such/pack.rgpack"};
    assert_int_equal(rg_engine_open(&e, &opt, NULL), RG_OK);
    rg_engine_get_info(e, &info);
    assert_string_equal(info.pack_path, "");
    rg_engine_close(e);
}

static void survives_failing_allocations(void **state) {
    (void)state;
    const rg_engine_options opt = {
        .model_path = MODEL, .n_threads = 1, .arena_experts = 8, .pack_path = packed};
    rg_code rc = RG_NOMEM;
    uint64_t n = 1;
    const uint64_t live = rg_alloc_live_bytes();
    for (; n < 3000 && rc != RG_OK; n += 3) {
        rg_engine *e = NULL;
        rg_status st = {0};
        rg_alloc_fail_at(n, n % 2 == 0);
        rc = rg_engine_open(&e, &opt, &st);
        rg_alloc_fail_at(0, false);
        assert_int_equal(st.code, rc);
        rg_engine_close(e);
        assert_int_equal(rg_alloc_live_bytes(), live);
    }
    assert_int_equal(rc, RG_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_the_bits_of_the_model_file),
        cmocka_unit_test(names_the_damaged_expert_and_goes_on),
        cmocka_unit_test(fails_only_what_needs_the_expert),
        cmocka_unit_test(opens_nothing_when_all_experts_fit),
        cmocka_unit_test(survives_failing_allocations),
    };
    return cmocka_run_group_tests_name("pack_engine", tests, setup, teardown);
}
