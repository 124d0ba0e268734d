/* The trunk on a GPU, on the tiny models: logits near the float reference of the CPU, and the
 * charter inside the backend: the same bits whatever the chunk, the arena, splitting and
 * read-ahead. Skipped without a device; the validation layers, where installed, must stay silent.
 */
#include "support/gpu_trunk.h"

#include <math.h>

#define KL_FLOAT 1e-8 /* mean, nats; f32 against f32 sums in another order */
#define KL_CODES 2.0  /* of what the CPU's own 8-bit activations give */

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

static rg_code see_nothing(void *user, const char *name, uint32_t layer, uint32_t row0,
                           uint32_t rows, uint32_t cols, const float *data, rg_status *st) {
    (void)user, (void)name, (void)layer, (void)row0, (void)rows, (void)cols, (void)data, (void)st;
    return RG_OK;
}

/* What the GPU does not do is refused, and leaves the core usable. */
static void refusals(void **state) {
    (void)state;
    bench b = open_bench("k-mtp.gguf", "k-mtp", 4);
    rg_core_options o = gpu_options(16);
    rg_core *core = open_core(&b, &o);
    rg_seq *seq = NULL;
    rg_status st = {0};
    const rg_tap tap = {.see = see_nothing};
    sheet s = new_sheet(&b);
    if (rg_seq_create(&seq, core, &(rg_seq_options){.n_ctx = N_CTX}, &st) != RG_OK)
        fail_msg("%s", st.message);
    rg_core_set_tap(core, &tap);
    assert_int_equal(one_token(core, seq, &b, 1, &s, &st), RG_UNSUPPORTED);
    assert_non_null(strstr(st.message, "intermediate values"));
    rg_core_set_tap(core, NULL);
    rg_seq_destroy(seq);
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

int main(void) {
    if (!gpu_here()) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(charter),  cmocka_unit_test(batches), cmocka_unit_test(selection),
        cmocka_unit_test(refusals), cmocka_unit_test(faults),
    };
    return failed_or_leaked(cmocka_run_group_tests(tests, NULL, gpu_kept_release));
}
