/* The trunk on a GPU, on the tiny models: logits near the float reference of the CPU, and the
 * charter inside the backend: the same bits whatever the chunk, the arena, splitting and
 * read-ahead. Skipped without a device; the validation layers, where installed, must stay silent.
 */
#include "engine/gpu_core.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/released.h"
#include "support/tiny_model.h"

#define N_CTX    256u
#define KL_FLOAT 1e-8 /* mean, nats; f32 against f32 sums in another order */
#define KL_CODES 2.0  /* of what the CPU's own 8-bit activations give */

typedef struct bench {
    rg_gguf *gguf;
    rg_model *model;
    int32_t *ids;
    uint32_t n;
} bench;

static bench open_bench(const char *file, const char *name, uint32_t n_most) {
    bench b = {0};
    rg_status st = {0};
    char path[RG_TINY_PATH_MAX];
    if (rg_gguf_open(&b.gguf, rg_tiny_path(path, file), &st) != RG_OK ||
        rg_model_create(&b.model, b.gguf, &(rg_model_options){0}, &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
    b.ids = rg_tiny_ids(name, &b.n);
    if (b.n > n_most) b.n = n_most;
    return b;
}

static void close_bench(bench *b) {
    rg_free(b->ids);
    rg_model_destroy(b->model);
    rg_gguf_close(b->gguf);
}

static rg_core_options gpu_options(uint32_t chunk) {
    rg_core_options o = {
        .n_threads = 2, .chunk = chunk, .gpu = true, .gpu_device = -1, .gpu_validate = true};
    assert_int_equal(rg_cpu_level_pick(&o.level, NULL, NULL), RG_OK);
    return o;
}

static rg_core *open_core(const bench *b, const rg_core_options *o) {
    rg_core *core = NULL;
    rg_status st = {0};
    if (rg_core_create(&core, b->gguf, b->model, o, &st) != RG_OK) fail_msg("%s", st.message);
    return core;
}

typedef struct sheet {
    float *rows; /* [n][n_vocab] */
    size_t n_vocab;
} sheet;

static rg_code keep(void *user, uint32_t position, const float *logits, rg_status *st) {
    const sheet *s = user;
    (void)st;
    memcpy(s->rows + position * s->n_vocab, logits, s->n_vocab * sizeof *logits);
    return RG_OK;
}

static sheet new_sheet(const bench *b) {
    sheet s = {.n_vocab = b->model->hp.n_vocab};
    s.rows = rg_alloc((size_t)b->n * s.n_vocab, sizeof *s.rows, NULL);
    assert_non_null(s.rows);
    return s;
}

/* All positions: windows of `chunk`, the last `tail` tokens one by one. */
static void eval_on(rg_core *core, rg_seq *seq, const bench *b, uint32_t chunk, uint32_t tail,
                    sheet *s) {
    rg_status st = {0};
    const rg_logits_sink sink = {.row = keep, .user = s};
    const uint32_t head = b->n - tail;
    rg_seq_reset(seq);
    memset(s->rows, 0, b->n * s->n_vocab * sizeof *s->rows);
    if (rg_core_eval(core, seq, b->ids, head, chunk, RG_WANT_ALL, &sink, NULL, &st) != RG_OK ||
        (tail &&
         rg_core_eval(core, seq, b->ids + head, tail, 1, RG_WANT_ALL, &sink, NULL, &st) != RG_OK)) {
        fail_msg("%s", st.message);
    }
}

static void eval(rg_core *core, const bench *b, uint32_t chunk, uint32_t tail, sheet *s) {
    rg_seq *seq = NULL;
    rg_status st = {0};
    if (rg_seq_create(&seq, core, &(rg_seq_options){.n_ctx = N_CTX}, &st) != RG_OK)
        fail_msg("%s", st.message);
    eval_on(core, seq, b, chunk, tail, s);
    rg_seq_destroy(seq);
}

static bool same_bits(float a, float b) {
    uint32_t x;
    uint32_t y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return x == y;
}

static void expect_same(const sheet *got, const sheet *want, uint32_t n, const char *what) {
    for (size_t i = 0; i < n * want->n_vocab; i++) {
        if (same_bits(got->rows[i], want->rows[i])) continue;
        fail_msg("%s: row %zu, logit %zu is %a, expected %a", what, i / want->n_vocab,
                 i % want->n_vocab, (double)got->rows[i], (double)want->rows[i]);
    }
}

/* Mean divergence of got from want over all rows. */
static double divergence(const sheet *got, const sheet *want, uint32_t n) {
    double sum = 0.0;
    for (uint32_t r = 0; r < n; r++) {
        const float *p = want->rows + r * want->n_vocab, *q = got->rows + r * want->n_vocab;
        double zp = 0.0, zq = 0.0, kl = 0.0;
        for (size_t i = 0; i < want->n_vocab; i++) {
            zp += exp((double)p[i]);
            zq += exp((double)q[i]);
        }
        for (size_t i = 0; i < want->n_vocab; i++) {
            const double lp = (double)p[i] - log(zp), lq = (double)q[i] - log(zq);
            kl += exp(lp) * (lp - lq);
        }
        sum += kl;
    }
    return sum / n;
}

static uint64_t arena_of(const bench *b, uint32_t n_expert) {
    rg_stream_layout layout;
    assert_int_equal(rg_experts_layout(&layout, b->model, NULL, NULL), RG_OK);
    return layout.slot_bytes_max * n_expert;
}

static void on_cpu(const bench *b, rg_kernel_set kernels, sheet *s) {
    rg_core_options o = gpu_options(64);
    o.gpu = false;
    o.kernels = kernels;
    rg_core *core = open_core(b, &o);
    eval(core, b, 64, 0, s);
    rg_core_destroy(core);
}

/* Near the float reference, as the CPU with its codes is; the same bits for other windows on the
 * same device. */
static void check_resident(const bench *b, sheet *want) {
    sheet ref = new_sheet(b), got = new_sheet(b);
    on_cpu(b, RG_KERNELS_REF, &ref);
    on_cpu(b, RG_KERNELS_AUTO, &got);
    const double bound = KL_FLOAT + KL_CODES * divergence(&got, &ref, b->n);
    const rg_core_options o = gpu_options(64);
    rg_core *core = open_core(b, &o);
    eval(core, b, 64, 0, want);
    const double kl = divergence(want, &ref, b->n);
    if (!(kl < bound)) fail_msg("divergence from the reference: %g, bound %g", kl, bound);
    eval(core, b, 7, 5, &got);
    expect_same(&got, want, b->n, "windows of 7, then one by one");
    assert_int_equal(rg_core_gpu_complaints(core), 0);
    rg_core_destroy(core);
    rg_free(ref.rows);
    rg_free(got.rows);
}

static void check_streamed(const bench *b, const sheet *want, uint32_t experts, bool split_off,
                           int32_t lookahead) {
    sheet got = new_sheet(b);
    rg_core_options o = gpu_options(32);
    char what[96];
    o.arena_bytes = arena_of(b, experts);
    o.split_off = split_off;
    o.io.lookahead = lookahead;
    rg_core *core = open_core(b, &o);
    snprintf(what, sizeof what, "arena of %u experts, split %d, read-ahead %d", experts, !split_off,
             (int)lookahead);
    eval(core, b, 32, 6, &got);
    expect_same(&got, want, b->n, what);
    eval(core, b, 1, 0, &got); /* with a warm cache */
    expect_same(&got, want, b->n, what);
    rg_stream_meters m;
    rg_stream_meters_get(rg_core_stream(core), &m);
    assert_true(m.misses > 0);
    assert_true(m.evictions > 0);
    assert_int_equal(rg_core_gpu_complaints(core), 0);
    rg_core_destroy(core);
    rg_free(got.rows);
}

static void charter(void **state) {
    (void)state;
    bench b = open_bench("a-mix.gguf", "a-mix", 33);
    sheet want = new_sheet(&b);
    check_resident(&b, &want);
    check_streamed(&b, &want, b.model->hp.n_expert_used + 1, false, -1); /* waves */
    check_streamed(&b, &want, 2 * b.model->hp.n_expert_used + 3, true, 4);
    rg_free(want.rows);
    close_bench(&b);
}

/* A model whose attention selects blocks. */
static void selection(void **state) {
    (void)state;
    bench b = open_bench("c-f32.gguf", "c-f32", 90);
    sheet want = new_sheet(&b);
    check_resident(&b, &want);
    rg_free(want.rows);
    close_bench(&b);
}

/* What the GPU does not do is refused, and leaves the core usable. */
static void refusals(void **state) {
    (void)state;
    bench b = open_bench("k-mtp.gguf", "k-mtp", 4);
    rg_core_options o = gpu_options(16);
    rg_core *core = open_core(&b, &o);
    rg_seq *seq = NULL;
    rg_status st = {0};
    const rg_seq_options drafts = {.n_ctx = N_CTX, .mtp = true};
    assert_int_equal(rg_seq_create(&seq, core, &drafts, &st), RG_UNSUPPORTED);
    assert_null(seq);
    sheet s = new_sheet(&b);
    eval(core, &b, 4, 0, &s);
    assert_true(isfinite(s.rows[0]));
    rg_core_destroy(core);
    o.gpu_device = 63;
    rg_status_clear(&st);
    assert_int_equal(rg_core_create(&core, b.gguf, b.model, &o, &st), RG_UNSUPPORTED);
    assert_non_null(strstr(st.message, "device 63"));
    rg_free(s.rows);
    close_bench(&b);
}

/* Prompts of a few sequences in one window, then a row of each: the bits of each alone. */
static void batches(void **state) {
    (void)state;
    enum { PARTS = 3, ROWS = 7, STEPS = 4 };
    const bench b = open_bench("a-mix.gguf", "a-mix", PARTS * (ROWS + STEPS));
    const rg_core_options o = gpu_options(32);
    rg_core *core = open_core(&b, &o);
    const size_t V = b.model->hp.n_vocab;
    float *got = rg_alloc((size_t)(STEPS + 1) * PARTS * V, sizeof *got, NULL);
    rg_batch_rows parts[PARTS] = {{0}};
    int32_t ids[PARTS * ROWS];
    rg_status st = {0};
    assert_int_equal(b.n, PARTS * (ROWS + STEPS));
    assert_non_null(got);
    for (uint32_t i = 0; i < PARTS; i++) {
        const rg_seq_options so = {.n_ctx = N_CTX};
        if (rg_seq_create(&parts[i].seq, core, &so, &st) != RG_OK) fail_msg("%s", st.message);
        assert_false(rg_seq_copies(parts[i].seq));
    }
    for (uint32_t step = 0; step <= STEPS; step++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < PARTS; i++) {
            const int32_t *own = b.ids + (size_t)i * (ROWS + STEPS);
            parts[i].n = step ? 1 : ROWS;
            parts[i].logits = got + ((size_t)step * PARTS + i) * V;
            for (uint32_t k = 0; k < parts[i].n; k++)
                ids[n++] = own[step ? ROWS + step - 1 : k];
        }
        if (rg_core_eval_batch(core, parts, PARTS, ids, NULL, NULL, &st) != RG_OK)
            fail_msg("%s", st.message);
    }
    for (uint32_t i = 0; i < PARTS; i++) {
        bench one = {.gguf = b.gguf, .model = b.model, .n = ROWS + STEPS};
        one.ids = b.ids + (size_t)i * (ROWS + STEPS);
        sheet want = new_sheet(&one);
        eval_on(core, parts[i].seq, &one, 32, STEPS, &want);
        for (uint32_t step = 0; step <= STEPS; step++) {
            const sheet row = {got + ((size_t)step * PARTS + i) * V, V};
            const sheet alone = {want.rows + (ROWS - 1 + step) * V, V};
            expect_same(&row, &alone, 1, "in a batch");
        }
        rg_free(want.rows);
        rg_seq_destroy(parts[i].seq);
    }
    rg_free(got);
    rg_core_destroy(core);
    bench done = b;
    close_bench(&done);
}

/* ---- ahead of the first token, faults ---------------------------------------------------------
 */

static rg_code one_token(rg_core *core, rg_seq *seq, const bench *b, uint32_t T, sheet *s,
                         rg_status *st) {
    const rg_logits_sink sink = {.row = keep, .user = s};
    return rg_core_eval(core, seq, b->ids, T, T, RG_WANT_LAST, &sink, NULL, st);
}

/* Behind a prewarm the first windows record nothing more, whether blocks are selected or not. */
static void prewarm(void **state) {
    (void)state;
    bench b = open_bench("c-f32.gguf", "c-f32", 90);
    rg_core_options o = gpu_options(16);
    o.gpu_prewarm = RG_GPU_PREWARM_ON;
    rg_core *core = open_core(&b, &o);
    rg_seq *seq = NULL;
    rg_status st = {0};
    sheet s = new_sheet(&b);
    if (rg_seq_create(&seq, core, &(rg_seq_options){.n_ctx = N_CTX}, &st) != RG_OK)
        fail_msg("%s", st.message);
    const uint32_t kernels = rg_gpu_kernels(core->gpu->gpu), windows = core->gpu->n_recorded;
    assert_true(kernels > 0);
    assert_true(windows >= 2 * RG_GPU_ROWS_MAX);
    for (uint32_t T = 1; T <= RG_GPU_ROWS_MAX; T++) {
        rg_seq_reset(seq);
        if (one_token(core, seq, &b, T, &s, &st) != RG_OK) fail_msg("%s", st.message);
    }
    assert_int_equal(core->gpu->n_recorded, windows);
    /* Up to where blocks are selected: wide windows are recorded each time, nothing is built. */
    eval_on(core, seq, &b, 16, 6, &s);
    assert_int_equal(rg_gpu_kernels(core->gpu->gpu), kernels);
    assert_int_equal(rg_core_gpu_complaints(core), 0);
    rg_seq_destroy(seq);
    rg_core_destroy(core);
    rg_free(s.rows);
    close_bench(&b);
}

/* Each joined kernel taken apart: the same bits, and more dispatches. */
static void switches(void **state) {
    (void)state;
    bench b = open_bench("a-mix.gguf", "a-mix", 9);
    const rg_core_options o = gpu_options(16);
    rg_core *core = open_core(&b, &o);
    sheet want = new_sheet(&b), got = new_sheet(&b);
    uint32_t joined = 0, apart = 0, barriers = 0, all_barriers = 0;
    eval(core, &b, 3, 4, &want);
    rg_core_gpu_counts(core, &joined, &barriers);
    for (uint32_t bit = 1; bit <= RG_GPU_FUSE_ALL; bit *= 2) {
        char what[40];
        snprintf(what, sizeof what, "without %u", bit);
        rg_core_gpu_switch(core, bit, 0, false);
        eval(core, &b, 3, 4, &got);
        expect_same(&got, &want, b.n, what);
        rg_core_gpu_counts(core, &apart, &all_barriers);
        if (bit != RG_GPU_UNROLL) assert_true(apart > joined);
    }
    rg_core_gpu_switch(core, RG_GPU_FUSE_ALL, 1, true);
    eval(core, &b, 3, 4, &got);
    expect_same(&got, &want, b.n, "all apart");
    rg_core_gpu_counts(core, &apart, &all_barriers);
    assert_true(all_barriers > barriers);
    print_message("%u dispatches and %u barriers, apart %u and %u\n", joined, barriers, apart,
                  all_barriers);
    assert_int_equal(rg_core_gpu_complaints(core), 0);
    rg_core_destroy(core);
    rg_free(want.rows);
    rg_free(got.rows);
    close_bench(&b);
}

/* Rows of the profile hold every dispatch; products know their bytes. Streamed windows too. */
static void profile_rows(void **state) {
    (void)state;
    enum { CAP = 128 };
    bench b = open_bench("a-mix.gguf", "a-mix", 6);
    for (int streamed = 0; streamed < 2; streamed++) {
        rg_core_options o = gpu_options(16);
        o.gpu_stamps = true;
        if (streamed) o.arena_bytes = arena_of(&b, 9);
        rg_core *core = open_core(&b, &o);
        sheet s = new_sheet(&b);
        rg_core_gpu_row rows[CAP];
        uint32_t dispatches = 0, barriers = 0;
        eval(core, &b, 6, 0, &s);
        rg_core_gpu_counts(core, &dispatches, &barriers);
        const uint32_t n = rg_core_gpu_rows(core, rows, CAP);
        uint64_t calls = 0, products = 0;
        for (uint32_t i = 0; i < n; i++) {
            calls += rows[i].calls;
            products += strcmp(rows[i].name, "mul_rows") == 0 && rows[i].type[0] && rows[i].bytes;
            if (i) assert_true(rows[i - 1].ns >= rows[i].ns);
        }
        assert_int_equal(calls, dispatches);
        assert_true(products > 0);
        assert_true(n && rows[0].ns > 0);
        rg_core_gpu_rows_reset(core);
        assert_int_equal(rg_core_gpu_rows(core, rows, CAP), 0);
        rg_core_destroy(core);
        rg_free(s.rows);
    }
    close_bench(&b);
}

/* Too little memory, a lost device: one clear status each, and everything can be closed. */
static void faults(void **state) {
    (void)state;
    bench b = open_bench("a-mix.gguf", "a-mix", 4);
    rg_core_options o = gpu_options(16);
    rg_core *core = open_core(&b, &o);
    rg_status st = {0};
    rg_gpu_buffer huge;
    assert_int_equal(
        rg_gpu_buffer_create(core->gpu->gpu, &huge, (size_t)1 << 44, RG_GPU_DEVICE, &st), RG_NOMEM);
    assert_non_null(strstr(st.message, "16777216 MiB"));
    sheet s = new_sheet(&b);
    eval(core, &b, 4, 0, &s); /* still usable */
    assert_true(isfinite(s.rows[0]));
    rg_seq *seq = NULL;
    rg_status_clear(&st);
    assert_int_equal(rg_seq_create(&seq, core, &(rg_seq_options){.n_ctx = N_CTX}, &st), RG_OK);
    rg_gpu_lose(core->gpu->gpu);
    assert_int_equal(one_token(core, seq, &b, 1, &s, &st), RG_IO);
    assert_non_null(strstr(st.message, "was lost"));
    assert_int_equal(rg_core_gpu_complaints(core), 0);
    rg_seq_destroy(seq);
    rg_core_destroy(core);
    /* The CPU only where it is asked for. */
    o.gpu_device = 63;
    rg_status_clear(&st);
    assert_int_equal(rg_core_create(&core, b.gguf, b.model, &o, &st), RG_UNSUPPORTED);
    o.gpu_or_cpu = true;
    rg_status_clear(&st);
    assert_int_equal(rg_core_create(&core, b.gguf, b.model, &o, &st), RG_OK);
    assert_string_equal(rg_core_gpu_name(core), "");
    eval(core, &b, 4, 0, &s);
    assert_true(isfinite(s.rows[0]));
    rg_core_destroy(core);
    rg_free(s.rows);
    close_bench(&b);
}

static uint32_t timing_runs = 2; /* the long tests ask for 20 */

/* Reads that come late, fail and come short, differently each time: the same bits. */
static void timing(void **state) {
    (void)state;
    const uint32_t n = timing_runs;
    bench b = open_bench("a-mix.gguf", "a-mix", 20);
    sheet want = new_sheet(&b), got = new_sheet(&b);
    rg_core_options o = gpu_options(8);
    rg_core *core = open_core(&b, &o);
    eval(core, &b, 8, 0, &want);
    rg_core_destroy(core);
    for (uint32_t i = 0; i < n; i++) {
        const rg_stream_faults f = {.seed = 100 + i,
                                    .eio_permille = 20,
                                    .short_permille = 50,
                                    .stall_permille = 300,
                                    .stall_ms_max = 1 + i % 5};
        char what[64];
        o = gpu_options(i % 2 ? 8 : 20);
        o.arena_bytes = arena_of(&b, b.model->hp.n_expert_used + 1 + 3 * (i % 7));
        o.split_off = i % 3 == 2;
        o.io.lookahead = (int32_t)(i % 4) - 1;
        o.io.faults = &f;
        core = open_core(&b, &o);
        eval(core, &b, o.chunk, i % 2 ? 10 : 4, &got);
        snprintf(what, sizeof what, "run %u with late reads", i);
        expect_same(&got, &want, b.n, what);
        assert_int_equal(rg_core_gpu_complaints(core), 0);
        rg_core_destroy(core);
    }
    rg_free(want.rows);
    rg_free(got.rows);
    close_bench(&b);
}

int main(int argc, char **argv) {
    if (argc > 1) timing_runs = (uint32_t)strtoul(argv[1], NULL, 10);
    rg_gpu_info info[RG_GPU_DEVICES_MAX];
    uint32_t n = 0;
    if (rg_gpu_enumerate(info, RG_GPU_DEVICES_MAX, &n, NULL) != RG_OK || n == 0 ||
        !info[0].usable) {
        fprintf(stderr, "skipped: no usable GPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(charter),      cmocka_unit_test(batches), cmocka_unit_test(selection),
        cmocka_unit_test(refusals),     cmocka_unit_test(prewarm), cmocka_unit_test(switches),
        cmocka_unit_test(profile_rows), cmocka_unit_test(faults),  cmocka_unit_test(timing),
    };
    return failed_or_leaked(cmocka_run_group_tests(tests, NULL, NULL));
}
