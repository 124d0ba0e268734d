/* The charter for n-gram rows, on the tiny models: the bits of all logits do not depend on how the
 * rows come into memory. Windows that break off before the rows came harm nothing.
 */
#include "engine/core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N_TOK 40u

typedef struct subject {
    rg_gguf *gguf;
    rg_model *model;
    int32_t ids[N_TOK];
    float *want; /* [N_TOK][n_vocab] */
} subject;

static subject open_subject(const char *file) {
    subject s = {0};
    rg_status st = {0};
    char path[512];
    snprintf(path, sizeof path, RG_TEST_DATA "/tiny/%s", file);
    if (rg_gguf_open(&s.gguf, path, &st) != RG_OK ||
        rg_model_create(&s.model, s.gguf, &(rg_model_options){0}, &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
    for (uint32_t i = 0; i < N_TOK; i++)
        s.ids[i] = (int32_t)(rg_random_u64(4, i) % 40); /* few: pairs come again */
    return s;
}

static void close_subject(subject *s) {
    rg_free(s->want);
    rg_model_destroy(s->model);
    rg_gguf_close(s->gguf);
}

static rg_core_options options(void) {
    rg_core_options o = {.n_threads = 2, .chunk = 64};
    assert_int_equal(rg_cpu_level_pick(&o.level, NULL, NULL), RG_OK);
    return o;
}

static rg_core *open_core(const subject *s, const rg_core_options *o) {
    rg_core *core = NULL;
    rg_status st = {0};
    if (rg_core_create(&core, s->gguf, s->model, o, &st) != RG_OK) fail_msg("%s", st.message);
    return core;
}

static rg_seq *new_seq(rg_core *core) {
    rg_seq *seq = NULL;
    rg_status st = {0};
    const rg_seq_options o = {.n_ctx = N_TOK};
    if (rg_seq_create(&seq, core, &o, &st) != RG_OK) fail_msg("%s", st.message);
    return seq;
}

typedef struct sheet {
    float *rows;
    size_t n_vocab;
} sheet;

static rg_code keep(void *user, uint32_t position, const float *logits, rg_status *st) {
    const sheet *s = user;
    (void)st;
    memcpy(s->rows + position * s->n_vocab, logits, s->n_vocab * sizeof *logits);
    return RG_OK;
}

static rg_code eval(rg_seq *seq, const subject *s, float *rows, const atomic_bool *cancel,
                    rg_status *st) {
    sheet sh = {.rows = rows, .n_vocab = s->model->hp.n_vocab};
    const rg_logits_sink sink = {.row = keep, .user = &sh};
    rg_seq_reset(seq);
    return rg_core_eval(seq->core, seq, s->ids, N_TOK, 0, RG_WANT_ALL, &sink, cancel, st);
}

static size_t sheet_floats(const subject *s) {
    return (size_t)N_TOK * s->model->hp.n_vocab;
}

static float *new_sheet(const subject *s) {
    float *rows = rg_alloc(sheet_floats(s), sizeof *rows, NULL);
    assert_non_null(rows);
    return rows;
}

/* Logits with the table in memory. */
static void make_reference(subject *s) {
    rg_core_options o = options();
    o.ple_resident = true;
    rg_core *core = open_core(s, &o);
    rg_seq *seq = new_seq(core);
    s->want = new_sheet(s);
    assert_int_equal(eval(seq, s, s->want, NULL, NULL), RG_OK);
    rg_ple_meters m;
    rg_core_ple_meters(core, &m);
    assert_int_equal(m.wanted, N_TOK * s->model->hp.ple_n_head);
    assert_int_equal(m.reads, 0);
    rg_seq_destroy(seq);
    rg_core_destroy(core);
}

static uint64_t least_arena(const subject *s) {
    rg_stream_layout layout;
    assert_int_equal(rg_experts_layout(&layout, s->model, NULL, NULL), RG_OK);
    return rg_stream_min_bytes(&layout, s->model->hp.n_expert_used);
}

static void check_way(const subject *s, const rg_core_options *o) {
    rg_core *core = open_core(s, o);
    rg_seq *seq = new_seq(core);
    float *rows = new_sheet(s);
    rg_status st = {0};
    for (int again = 0; again < 2; again++) { /* the second time with a warm cache */
        memset(rows, 0, sheet_floats(s) * sizeof *rows);
        if (eval(seq, s, rows, NULL, &st) != RG_OK) fail_msg("%s", st.message);
        if (memcmp(rows, s->want, sheet_floats(s) * sizeof *rows) != 0)
            fail_msg("chunk %u, depth %u, direct %d: other logits", o->chunk, o->io.depth,
                     (int)o->io.direct);
    }
    const rg_core_times t = rg_core_get_times(core);
    rg_ple_meters m;
    rg_core_ple_meters(core, &m);
    assert_int_equal(m.wanted, 2 * N_TOK * s->model->hp.ple_n_head);
    assert_true(m.reads > 0);
    assert_true(t.ple_wait_ns >= m.wait_ns);
    assert_true(t.ple_ns + t.ple_wait_ns <= t.window_ns);
    rg_free(rows);
    rg_seq_destroy(seq);
    rg_core_destroy(core);
}

static void test_charter(void **state) {
    (void)state;
    static const char *const files[] = {"a-mix.gguf", "c-f32.gguf", "a-fused-00001-of-00003.gguf"};
    static const uint32_t chunks[] = {64, 1, 7, 3};
    static const uint32_t depths[] = {1, 3, 16};
    for (size_t f = 0; f < RG_ARRAY_LEN(files); f++) {
        subject s = open_subject(files[f]);
        make_reference(&s);
        for (uint32_t k = 0; k < 9; k++) {
            const rg_stream_faults faults = {.seed = k + 1,
                                             .short_permille = 200,
                                             .eio_permille = 5,
                                             .stall_permille = 5,
                                             .stall_ms_max = 1};
            rg_core_options o = options();
            o.chunk = chunks[k % 4];
            o.n_threads = 1 + (int)(k % 3);
            o.ple_cache_bytes = k % 2 ? 1 : 0; /* 1: as small as a window allows */
            o.io.depth = depths[k / 3];
            o.io.direct = k % 3 ? RG_DIRECT_AUTO : RG_DIRECT_OFF;
            o.io.backend = RG_STREAM_PREAD;
            if (k >= 3) o.io.faults = &faults;
            o.io.retries_max = 20;
            if (k % 6 == 3) o.arena_bytes = least_arena(&s);
            check_way(&s, &o);
        }
        close_subject(&s);
    }
}

static void test_windows_that_break_off(void **state) {
    (void)state;
    subject s = open_subject("a-mix.gguf");
    make_reference(&s);
    const rg_stream_faults faults = {
        .seed = 2, .eio_permille = 100, .eio_burst = 8, .stall_permille = 50, .stall_ms_max = 1};
    rg_core_options o = options();
    o.chunk = 20;
    o.ple_cache_bytes = 1;
    o.io.faults = &faults;
    o.io.depth = 1; /* bursts hit one row, not the neighbours' tries */
    rg_core *core = open_core(&s, &o);
    rg_seq *seq = new_seq(core);
    float *rows = new_sheet(&s);
    const atomic_bool canceled = true;
    uint32_t good = 0, bad = 0;
    for (uint32_t i = 0; i < 200 && (good < 10 || bad < 10); i++) {
        rg_status st = {0};
        if (i % 2) { /* between the request and the layer that waits */
            assert_int_equal(eval(seq, &s, rows, &canceled, &st), RG_CANCELED);
            continue;
        }
        if (eval(seq, &s, rows, NULL, &st) == RG_OK) {
            assert_memory_equal(rows, s.want, sheet_floats(&s) * sizeof *rows);
            good++;
        } else {
            assert_int_equal(st.code, RG_IO);
            assert_non_null(strstr(st.message, "a-mix.gguf: n-gram row "));
            bad++;
        }
    }
    assert_true(good >= 10);
    assert_true(bad >= 10);
    rg_free(rows);
    rg_seq_destroy(seq);
    rg_core_destroy(core);
    close_subject(&s);
}

/* Weights come out the same whichever way the file is read. */
static void test_load_ways(void **state) {
    (void)state;
    static const char *const files[] = {"a-mix.gguf", "b-f16.gguf", "k-mtp.gguf",
                                        "a-fused-00001-of-00003.gguf"};
    for (size_t f = 0; f < RG_ARRAY_LEN(files); f++) {
        subject s = open_subject(files[f]);
        rg_core_options o = options();
        o.io.direct = RG_DIRECT_OFF;
        rg_core *plain = open_core(&s, &o);
        /* Direct reads where the file system has them, else the same again. */
        o.io.direct = RG_DIRECT_AUTO;
        rg_file probe;
        if (rg_file_open_direct(&probe, rg_gguf_file_path(s.gguf, 0), NULL) == RG_OK) {
            rg_file_close(&probe);
            o.io.direct = RG_DIRECT_ON;
        }
        for (int threads = 1; threads <= 3; threads++) {
            o.n_threads = threads;
            rg_core *direct = open_core(&s, &o);
            assert_int_equal(plain->w.memory_bytes, direct->w.memory_bytes);
            assert_memory_equal(plain->w.memory, direct->w.memory, plain->w.memory_bytes);
            rg_core_destroy(direct);
        }
        rg_core_destroy(plain);
        close_subject(&s);
    }
}

/* A budget of `ram` bytes. */
static rg_plan plan_of(const subject *s, uint64_t ram) {
    const rg_plan_request req = {
        .ram_bytes = ram, .chunk = 64, .n_ctx = N_TOK, .n_threads = 2, .host_bytes = 1 << 20};
    rg_plan p;
    rg_status st = {0};
    if (rg_plan_make(&p, s->model, &req, &st) != RG_OK) fail_msg("%s", st.message);
    assert_int_equal(p.total_bytes, p.trunk_bytes + p.state_bytes + p.scratch_bytes + p.host_bytes +
                                        p.io_bytes + p.ngram_bytes + p.arena_bytes);
    return p;
}

static void test_plan(void **state) {
    (void)state;
    subject s = open_subject("a-f32.gguf");
    rg_buf text;
    const rg_plan large = plan_of(&s, (uint64_t)1 << 30);
    assert_true(large.ngram_resident);
    assert_true(large.ngram_bytes >= large.ngram_table_bytes);
    rg_buf_init(&text, 0);
    assert_int_equal(rg_plan_print(&large, &text, NULL), RG_OK);
    assert_non_null(strstr(text.data, "the whole table"));
    rg_buf_deinit(&text);

    rg_plan small = large;
    uint64_t ram = (uint64_t)20 << 20;
    /* The rule, whatever the size of this table. */
    if (large.ngram_table_bytes * 64 > ram) {
        small = plan_of(&s, ram);
        assert_false(small.ngram_resident);
        rg_buf_init(&text, 0);
        assert_int_equal(rg_plan_print(&small, &text, NULL), RG_OK);
        assert_non_null(strstr(text.data, "read as tokens come"));
        rg_buf_deinit(&text);
    }
    /* The core takes what the plan says. */
    rg_core_options o = options();
    o.ple_cache_bytes = small.ngram_cache_bytes;
    o.ple_resident = small.ngram_resident;
    rg_core *core = open_core(&s, &o);
    assert_int_equal(rg_ple_reader_memory(core->ple), small.ngram_bytes);
    rg_core_destroy(core);
    close_subject(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_charter),
        cmocka_unit_test(test_windows_that_break_off),
        cmocka_unit_test(test_load_ways),
        cmocka_unit_test(test_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
