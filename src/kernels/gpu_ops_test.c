/* The other ops of the device against the CPU's, on the same inputs: within an error bound, and the
 * choice of experts and blocks exactly.
 */
#include "kernels/gpu_check.h"
#include "support/released.h"

#define BOUND 1e-11 /* of the mean squared error: f32 sums in another order */

static gpu_check gc;

static void expect_near(const float *got, const float *want, size_t n, const char *what) {
    double *w = test_alloc(n * sizeof *w);
    for (size_t i = 0; i < n; i++)
        w[i] = (double)want[i];
    expect_nmse(got, w, n, BOUND, what);
    rg_free(w);
}

static const rg_ops *cpu(void) {
    return rg_ops_get(RG_CPU_SCALAR);
}

/* ---- norms ----------------------------------------------------------------------------------- */

static void norms(void **state) {
    (void)state;
    enum { N = 203, ROWS = 6 };
    draws d = draws_start("norms", 11);
    static float x[ROWS * N], w[2 * N], gate[ROWS * N], got[ROWS * N], want[ROWS * N];
    const uint32_t clear = UINT32_MAX;
    draw_floats(&d, x, ROWS * N, -2, 2);
    draw_floats(&d, w, 2 * N, -1, 1);
    draw_floats(&d, gate, ROWS * N, -3, 3);
    rg_gpu_buffer xb = gpu_filled(&gc, x, sizeof x), wb = gpu_filled(&gc, w, sizeof w);
    rg_gpu_buffer gb = gpu_filled(&gc, gate, sizeof gate), yb = gpu_filled(&gc, NULL, sizeof x);
    rg_gpu_buffer flag = gpu_filled(&gc, &clear, sizeof clear);
    for (int mode = RG_GPU_RMS; mode <= RG_GPU_L2; mode++) {
        const rg_gpu_norm_args a = {.x = xb.address,
                                    .w = wb.address,
                                    .y = yb.address,
                                    .gate = gb.address,
                                    .flag = flag.address,
                                    .n = N,
                                    .n_w = 2,
                                    .per = ROWS,
                                    .x_stride = ROWS * N,
                                    .y_stride = ROWS * N,
                                    .eps = 1e-6f,
                                    .scale = 0.25f,
                                    .n_scaled = 3,
                                    .code = 7};
        rg_gpu_list_begin(gc.list, false);
        rg_gpu_norm(gc.list, &a, (rg_gpu_norm_mode)mode, ROWS);
        gpu_run_list(&gc);
        gpu_fetch(&gc, &yb, got, sizeof got);
        for (int r = 0; r < ROWS; r++) {
            float *y = want + r * N;
            if (mode == RG_GPU_L2) {
                cpu()->l2_norm(x + r * N, y, N, 1e-6f, r < 3 ? 0.25f : 1.0f);
            } else {
                cpu()->rms_norm(x + r * N, w + r % 2 * N, y, N, 1e-6f);
                if (mode == RG_GPU_RMS_GATED) cpu()->sigmoid_mul(y, gate + r * N, y, N);
            }
        }
        expect_near(got, want, ROWS * N, "norm");
    }
    uint32_t seen = 0;
    gpu_fetch(&gc, &flag, &seen, sizeof seen);
    assert_int_equal(seen, UINT32_MAX);
    x[N + 5] = INFINITY;
    assert_int_equal(rg_gpu_write(gc.gpu, &xb, 0, x, sizeof x, NULL), RG_OK);
    const rg_gpu_norm_args a = {.x = xb.address,
                                .w = wb.address,
                                .y = yb.address,
                                .flag = flag.address,
                                .n = N,
                                .n_w = 1,
                                .per = ROWS,
                                .x_stride = ROWS * N,
                                .y_stride = ROWS * N,
                                .eps = 1e-6f,
                                .code = 7};
    rg_gpu_list_begin(gc.list, false);
    rg_gpu_norm(gc.list, &a, RG_GPU_RMS, ROWS);
    gpu_run_list(&gc);
    gpu_fetch(&gc, &flag, &seen, sizeof seen);
    assert_int_equal(seen, 7);
    rg_gpu_buffer *all[] = {&xb, &wb, &gb, &yb, &flag};
    for (size_t i = 0; i < RG_ARRAY_LEN(all); i++)
        rg_gpu_buffer_destroy(gc.gpu, all[i]);
}

/* ---- delta rule ------------------------------------------------------------------------------ */

static void delta_rule(void **state) {
    (void)state;
    enum { D = 48, HK = 2, HV = 4, T = 5, C = (2 * HK + HV) * D };
    draws d = draws_start("delta_rule", 12);
    static float S[HV * D * D], c[T * C], alpha[T * HV], beta[T * HV], dt[HV], a[HV];
    static float o[T * HV * D], got[T * HV * D], S_got[HV * D * D], decay[T * HV];
    draw_floats(&d, S, HV * D * D, -0.5, 0.5);
    draw_floats(&d, c, T * C, -0.3, 0.3);
    draw_floats(&d, alpha, T * HV, -2, 2);
    draw_floats(&d, beta, T * HV, 0, 1);
    draw_floats(&d, dt, HV, -1, 1);
    draw_floats(&d, a, HV, -1, -0.1);
    rg_gpu_buffer Sb = gpu_filled(&gc, S, sizeof S), cb = gpu_filled(&gc, c, sizeof c);
    rg_gpu_buffer ab = gpu_filled(&gc, alpha, sizeof alpha),
                  bb = gpu_filled(&gc, beta, sizeof beta);
    rg_gpu_buffer db = gpu_filled(&gc, dt, sizeof dt), eb = gpu_filled(&gc, a, sizeof a);
    rg_gpu_buffer ob = gpu_filled(&gc, NULL, sizeof o);
    const rg_gpu_stand stand = {.firm = T};
    rg_gpu_buffer sb = gpu_filled(&gc, &stand, sizeof stand);
    const rg_gpu_gdn_args args = {.S = Sb.address,
                                  .c = cb.address,
                                  .alpha = ab.address,
                                  .beta = bb.address,
                                  .dt = db.address,
                                  .a = eb.address,
                                  .o = ob.address,
                                  .stand = sb.address,
                                  .D = D,
                                  .n_head = HV,
                                  .n_k = HK,
                                  .rows = T};
    rg_gpu_list_begin(gc.list, false);
    rg_gpu_gdn(gc.list, &args);
    gpu_run_list(&gc);
    gpu_fetch(&gc, &ob, got, sizeof got);
    gpu_fetch(&gc, &Sb, S_got, sizeof S_got);
    for (int t = 0; t < T; t++)
        cpu()->gdn_decay(alpha + t * HV, dt, a, decay + t * HV, HV);
    for (int h = 0; h < HV; h++) {
        cpu()->gdn_steps(S + h * D * D, D, c + h % HK * D, c + (HK + h % HK) * D, C,
                         c + (2 * HK + h) * D, C, decay + h, beta + h, HV, o + h * D, HV * D, T);
    }
    expect_near(got, o, T * HV * D, "outputs");
    expect_near(S_got, S, HV * D * D, "states");
    rg_gpu_buffer *all[] = {&Sb, &cb, &ab, &bb, &db, &eb, &ob, &sb};
    for (size_t i = 0; i < RG_ARRAY_LEN(all); i++)
        rg_gpu_buffer_destroy(gc.gpu, all[i]);
}

/* ---- routes ---------------------------------------------------------------------------------- */

/* Few different logits: ties are many, and go to the lower index. */
static void routes(void **state) {
    (void)state;
    enum { N = 300, K = 7, ROWS = 5 };
    draws d = draws_start("routes", 13);
    static float logits[ROWS * N], w[ROWS * K], want[ROWS * K];
    static uint32_t ids[ROWS * K], best[K];
    const uint32_t clear = UINT32_MAX;
    for (size_t i = 0; i < ROWS * N; i++)
        logits[i] = i < 3 * N ? (float)draw_below(&d, 9) : draw_between(&d, -4, 4);
    rg_gpu_buffer lb = gpu_filled(&gc, logits, sizeof logits),
                  ib = gpu_filled(&gc, NULL, sizeof ids);
    rg_gpu_buffer wb = gpu_filled(&gc, NULL, sizeof w), fb = gpu_filled(&gc, &clear, sizeof clear);
    const rg_gpu_route_args a = {.logits = lb.address,
                                 .ids = ib.address,
                                 .w = wb.address,
                                 .flag = fb.address,
                                 .n = N,
                                 .k = K,
                                 .scale = 1.5f};
    rg_gpu_list_begin(gc.list, false);
    rg_gpu_route(gc.list, &a, false, ROWS);
    gpu_run_list(&gc);
    gpu_fetch(&gc, &ib, ids, sizeof ids);
    gpu_fetch(&gc, &wb, w, sizeof w);
    for (int r = 0; r < ROWS; r++) {
        rg_top_k(logits + r * N, N, K, best);
        assert_memory_equal(ids + r * K, best, sizeof best);
        cpu()->route_weights(logits + r * N, best, K, 1.5f, want + r * K);
    }
    expect_near(w, want, ROWS * K, "weights");
    rg_gpu_buffer *all[] = {&lb, &ib, &wb, &fb};
    for (size_t i = 0; i < RG_ARRAY_LEN(all); i++)
        rg_gpu_buffer_destroy(gc.gpu, all[i]);
}

/* ---- attention ------------------------------------------------------------------------------- */

enum { AD = 40, HEADS = 4, KV = 2, POS = 600, AT = 3, RATIO = 4, KEEP = 9, CAP = POS / RATIO };

/* Runs of allowed positions of a row: the best blocks and the tail. */
static uint32_t runs_of(const float *scores, uint32_t pos, uint32_t *first, uint32_t *count) {
    const uint32_t n = (pos + 1) / RATIO;
    uint32_t best[KEEP], n_run = 0;
    rg_top_k(scores, n, KEEP, best);
    for (uint32_t b = 0; b < n; b++) {
        for (uint32_t k = 0; k < KEEP; k++) {
            if (best[k] != b) continue;
            first[n_run] = b * RATIO;
            count[n_run++] = RATIO;
        }
    }
    first[n_run] = n * RATIO;
    count[n_run] = pos + 1 - n * RATIO;
    return n_run + (count[n_run] > 0);
}

static void attention_over_chosen_blocks(void **state) {
    (void)state;
    draws d = draws_start("attention_over_chosen_blocks", 14);
    static float q[AT * HEADS * AD], k[POS * KV * AD], v[POS * KV * AD], gate[AT * HEADS * 2 * AD];
    static float scores[AT * CAP], got[AT * HEADS * AD], want[AT * HEADS * AD];
    static float tmp[RG_ATTENTION_TMP(AD)];
    const uint32_t pos0 = POS - AT;
    draw_floats(&d, q, AT * HEADS * AD, -1, 1);
    draw_floats(&d, k, POS * KV * AD, -1, 1);
    draw_floats(&d, v, POS * KV * AD, -1, 1);
    draw_floats(&d, gate, AT * HEADS * 2 * AD, -2, 2);
    for (size_t i = 0; i < AT * CAP; i++)
        scores[i] = (float)draw_below(&d, 5); /* ties */
    rg_gpu_buffer qb = gpu_filled(&gc, q, sizeof q), kb = gpu_filled(&gc, k, sizeof k);
    rg_gpu_buffer vb = gpu_filled(&gc, v, sizeof v), gb = gpu_filled(&gc, gate, sizeof gate);
    rg_gpu_buffer sb = gpu_filled(&gc, scores, sizeof scores),
                  ob = gpu_filled(&gc, NULL, sizeof got);
    rg_gpu_buffer pb = gpu_filled(&gc, &pos0, sizeof pos0),
                  bits = gpu_filled(&gc, NULL, (size_t)4 * AT * ((CAP + 31) / 32));
    const rg_gpu_select_args select = {.scores = sb.address,
                                       .bits = bits.address,
                                       .pos0 = pb.address,
                                       .ratio = RATIO,
                                       .cap = CAP,
                                       .keep = KEEP};
    const rg_gpu_attention_args a = {.q = qb.address,
                                     .k = kb.address,
                                     .v = vb.address,
                                     .gate = gb.address,
                                     .o = ob.address,
                                     .bits = bits.address,
                                     .pos0 = pb.address,
                                     .D = AD,
                                     .n_head = HEADS,
                                     .n_kv = KV,
                                     .ratio = RATIO,
                                     .cap = CAP,
                                     .keep = KEEP,
                                     .scale = 0.2f};
    rg_gpu_list_begin(gc.list, false);
    rg_gpu_select(gc.list, &select, AT);
    rg_gpu_barrier(gc.list);
    rg_gpu_attention(gc.list, &a, false, AT);
    gpu_run_list(&gc);
    gpu_fetch(&gc, &ob, got, sizeof got);
    for (uint32_t i = 0; i < AT * HEADS; i++) {
        const uint32_t t = i / HEADS, kv = i % HEADS / (HEADS / KV);
        const rg_cache_view kc = {k + kv * AD, false, KV * AD}, vc = {v + kv * AD, false, KV * AD};
        uint32_t first[KEEP + 1], count[KEEP + 1];
        const uint32_t n = runs_of(scores + t * CAP, pos0 + t, first, count);
        float *o = want + i * AD;
        cpu()->attention(q + i * AD, 1, &kc, &vc, AD, 0.2f, first, count, n, o, tmp);
        cpu()->sigmoid_mul(o, gate + i * 2 * AD + AD, o, AD);
    }
    expect_near(got, want, AT * HEADS * AD, "attention");
    rg_gpu_buffer *all[] = {&qb, &kb, &vb, &gb, &sb, &ob, &pb, &bits};
    for (size_t i = 0; i < RG_ARRAY_LEN(all); i++)
        rg_gpu_buffer_destroy(gc.gpu, all[i]);
}

static int open_gpu(void **state) {
    (void)state;
    gc = gpu_check_open();
    return 0;
}

static int close_gpu(void **state) {
    (void)state;
    gpu_check_close(&gc);
    return 0;
}

/* ---- head ------------------------------------------------------------------------------------ */

/* x: [rows][n]. `bad`: of row 0, the lowest id that is not finite; the other rows are finite. */
static void expect_best(const float *x, uint32_t n, uint32_t rows, uint32_t k, uint32_t bad) {
    const size_t words = (size_t)rows * (1 + 2 * k);
    rg_gpu_buffer xb = gpu_filled(&gc, x, (size_t)rows * n * sizeof *x);
    rg_gpu_buffer rb = gpu_filled(&gc, NULL, words * sizeof(uint32_t));
    rg_gpu_buffer pb = gpu_filled(&gc, NULL, sizeof(uint32_t) * rows * RG_GPU_BEST_WORDS);
    const rg_gpu_best_args a = {
        .logits = xb.address, .parts = pb.address, .result = rb.address, .n = n, .k = k};
    static uint32_t got[8 * (1 + 2 * RG_GPU_BEST_MAX)], want[RG_GPU_BEST_MAX];
    assert_true(rg_gpu_best_takes(n, k));
    rg_gpu_list_begin(gc.list, false);
    rg_gpu_best(gc.list, &a, rows);
    gpu_run_list(&gc);
    gpu_fetch(&gc, &rb, got, words * sizeof *got);
    for (uint32_t r = 0; r < rows; r++) {
        const uint32_t *row = got + (size_t)r * (1 + 2 * k), there = k < n ? k : n;
        assert_int_equal(row[0], r ? UINT32_MAX : bad);
        if (row[0] != UINT32_MAX) continue;
        rg_top_k(x + (size_t)r * n, n, there, want);
        assert_memory_equal(row + 1, want, there * sizeof *want);
        for (uint32_t i = 0; i < k; i++) {
            if (i >= there) assert_int_equal(row[1 + i], UINT32_MAX);
            if (i < there) assert_int_equal(row[1 + k + i], bits_of(x[(size_t)r * n + want[i]]));
        }
    }
    rg_gpu_buffer_destroy(gc.gpu, &xb);
    rg_gpu_buffer_destroy(gc.gpu, &pb);
    rg_gpu_buffer_destroy(gc.gpu, &rb);
}

/* Ties go to the lowest id, zeros of both signs are one value, and what is not finite is found. */
static void best_of_rows(void **state) {
    (void)state;
    draws d = draws_start("best_of_rows", 77);
    static const uint32_t sizes[] = {1, 2, 63, 64, 65, 1000, 40009};
    static const uint32_t counts[] = {1, 2, 7, 40, RG_GPU_BEST_MAX};
    static float x[8 * 40009];
    for (size_t s = 0; s < RG_ARRAY_LEN(sizes); s++) {
        const uint32_t n = sizes[s];
        for (size_t c = 0; c < RG_ARRAY_LEN(counts); c++) {
            const uint32_t k = counts[c], rows = n < 40009 ? 1 + (uint32_t)(s + 3 * c) % 8 : 2;
            draw_floats(&d, x, rows * n, -9, -1);
            expect_best(x, n, rows, k, UINT32_MAX);
            /* A few values, so that the border lies among equals; both zeros among them. */
            for (uint32_t i = 0; i < rows * n; i++)
                x[i] = (float)draw_below(&d, 3) * (draw_below(&d, 2) ? -0.5f : 0.5f);
            expect_best(x, n, rows, k, UINT32_MAX);
            const uint32_t a = draw_below(&d, n), b = draw_below(&d, n);
            x[a] = NAN;
            expect_best(x, n, rows, k, a);
            x[b] = -INFINITY;
            expect_best(x, n, rows, k, a < b ? a : b);
        }
    }
    for (uint32_t i = 0; i < 40009; i++)
        x[i] = -1.0f;
    expect_best(x, 40009, 1, RG_GPU_BEST_MAX, UINT32_MAX);
    assert_true(rg_gpu_best_takes(64 * 4096, RG_GPU_BEST_MAX));
    assert_false(rg_gpu_best_takes(64 * 4096 + 1, RG_GPU_BEST_MAX));
    assert_true(rg_gpu_best_takes(1u << 24, 1));
    assert_false(rg_gpu_best_takes(1000, RG_GPU_BEST_MAX + 1));
}

int main(void) {
    if (!gpu_check_here()) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms),        cmocka_unit_test(delta_rule),
        cmocka_unit_test(routes),       cmocka_unit_test(attention_over_chosen_blocks),
        cmocka_unit_test(best_of_rows),
    };
    return failed_or_leaked(cmocka_run_group_tests(tests, open_gpu, close_gpu));
}
