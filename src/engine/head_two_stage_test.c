/* The two-stage head: its bound holds for every type and level and is not idle, its best row is
 * always that of the full product, and where it cannot tell it says so.
 */
#include "engine/core.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/tiny_model.h"

#define N_IN  512u
#define N_OUT 600u

/* ---- a core to compute with, and matrices of our own ------------------------------------------
 */

typedef struct bench {
    rg_gguf *gguf;
    rg_model *model;
    rg_core *core;
} bench;

static void open_bench(bench *b, rg_cpu_level level, int threads, bool two_stage) {
    char path[RG_TINY_PATH_MAX];
    rg_status st = {0};
    const rg_model_options mo = {0};
    const rg_core_options co = {
        .n_threads = threads, .level = level, .chunk = 64, .two_stage_head = two_stage};
    snprintf(path, sizeof path, "%s/../../models/regolith-demo-q4.gguf", RG_TEST_DATA);
    if (rg_gguf_open(&b->gguf, path, &st) != RG_OK ||
        rg_model_create(&b->model, b->gguf, &mo, &st) != RG_OK ||
        rg_core_create(&b->core, b->gguf, b->model, &co, &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
}

static void close_bench(bench *b) {
    rg_core_destroy(b->core);
    rg_model_destroy(b->model);
    rg_gguf_close(b->gguf);
}

static rg_cpu_level best_level(void) {
    rg_cpu_level level = RG_CPU_SCALAR;
    rg_status st = {0};
    if (rg_cpu_level_pick(&level, NULL, &st) != RG_OK) fail_msg("%s", st.message);
    return level;
}

static float draw(uint64_t seed, uint64_t at) { /* -1 .. 1, most near 0 */
    const double u = (double)(rg_random_u64(seed, at) >> 11) * 0x1p-53 * 2.0 - 1.0;
    return (float)(u * u * u);
}

/* Rows of random values packed to a type; every eighth has one large value. */
static rg_mat new_matrix(rg_type type, uint64_t seed) {
    rg_mat m = {.type = type, .n_in = N_IN, .n_out = N_OUT, .row_bytes = rg_row_bytes(type, N_IN)};
    static _Alignas(64) uint8_t unused[64];
    const rg_packer p = {.type = type, .level = RG_CPU_SCALAR, .scratch = unused};
    uint8_t *data = rg_alloc(N_OUT, m.row_bytes, NULL);
    assert_non_null(data);
    for (uint32_t r = 0; r < N_OUT; r++) {
        float row[N_IN];
        for (uint32_t i = 0; i < N_IN; i++)
            row[i] = draw(seed, (uint64_t)r * N_IN + i);
        if (r % 8 == 0) row[r % N_IN] = 9.0f;
        rg_pack_row(&p, row, NULL, data + r * m.row_bytes, N_IN);
    }
    m.data = data;
    return m;
}

static void free_matrix(rg_mat *m) {
    rg_free((void *)(uintptr_t)m->data);
    m->data = NULL;
}

/* Activations as floats and in both forms. */
typedef struct input {
    float x[N_IN];
    int8_t codes[RG_ACT_FORMS][N_IN];
    float scales[RG_ACT_FORMS][N_IN / 32];
    int16_t sums[RG_ACT_FORMS][N_IN / 16];
} input;

static rg_act act_of(const rg_ops *ops, input *in, rg_act_form form) {
    rg_act a = {.form = form, .n_in = N_IN, .f32 = in->x};
    if (form == RG_ACT_F32) return a;
    ops->quantize(form, in->x, N_IN, in->codes[form], in->scales[form], in->sums[form]);
    a.codes = in->codes[form];
    a.scales = in->scales[form];
    a.sums = in->sums[form];
    return a;
}

static void product(const rg_core *core, const rg_mat *w, const rg_act *x, float *y) {
    core->ops->mul(w, 0, w->n_out, x, NULL, NULL, 1, y, w->n_out, core->threads[0].mul);
}

static rg_two_stage *new_head(const bench *b, const rg_mat *w) {
    rg_two_stage *h = NULL;
    rg_status st = {0};
    if (rg_two_stage_create(&h, b->core, w, &st) != RG_OK) {
        fail_msg("%s", st.message);
        abort(); /* not reached: fail_msg ends the test */
    }
    return h;
}

static uint32_t first_best(const float *y, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        if (y[i] > y[best]) best = i;
    }
    return best;
}

/* The input that the copy of row r serves worst: what it lost. */
static void lost_direction(const rg_mat *w, const rg_mat *copy, uint32_t r, float *x) {
    float back[N_IN];
    rg_unpack_row(w->type, w->data + r * w->row_bytes, x, N_IN);
    rg_unpack_row(copy->type, copy->data + r * copy->row_bytes, back, N_IN);
    for (uint32_t i = 0; i < N_IN; i++)
        x[i] -= back[i];
}

/* ---- the bound ------------------------------------------------------------------------------- */

static const rg_type types[] = {RG_TYPE_F32,  RG_TYPE_F16,    RG_TYPE_BF16,
                                RG_TYPE_Q8_0, RG_TYPE_Q6_K,   RG_TYPE_Q4_0,
                                RG_TYPE_Q5_0, RG_TYPE_IQ4_NL, RG_TYPE_IQ4_XS};

/* Differences of both products over their bounds; the largest. */
static double worst_part(const bench *b, const rg_mat *w, const rg_two_stage *h, input *in) {
    static float exact[N_OUT], rough[N_OUT];
    const float *lost, *length;
    const rg_mat *copy = rg_two_stage_copy(h, &lost, &length);
    const rg_act x = act_of(b->core->ops, in, rg_act_form_of(w->type, RG_KERNELS_AUTO));
    const rg_act y = act_of(b->core->ops, in, RG_ACT_Q256);
    const rg_two_stage_step step = rg_two_stage_measure(&x, &y, N_IN);
    product(b->core, w, &x, exact);
    product(b->core, copy, &y, rough);
    double worst = 0.0;
    for (uint32_t r = 0; r < N_OUT; r++) {
        const double bound = rg_two_stage_bound(&step, lost[r], length[r]);
        const double part =
            fabs((double)exact[r] - (double)rough[r]) / (bound > 0.0 ? bound : 1e-300);
        if (!(part <= 1.0)) {
            fail_msg("type %d, row %u: %g and %g are further apart than %g", (int)w->type, r,
                     (double)exact[r], (double)rough[r], bound);
        }
        if (part > worst) worst = part;
    }
    return worst;
}

static void bound_of_type(const bench *b, rg_type type) {
    static input in;
    rg_mat w = new_matrix(type, 77 + (uint64_t)type);
    rg_two_stage *h = new_head(b, &w);
    const float *lost, *length;
    const rg_mat *copy = rg_two_stage_copy(h, &lost, &length);
    for (uint32_t k = 0; k < 12; k++) {
        for (uint32_t i = 0; i < N_IN; i++)
            in.x[i] = draw(k, i) * powf(10.0f, (float)k - 6.0f);
        worst_part(b, &w, h, &in);
    }
    double worst = 0.0;
    for (uint32_t r = 0; r < N_OUT; r += 37) {
        lost_direction(&w, copy, r, in.x);
        const double part = worst_part(b, &w, h, &in);
        if (part > worst) worst = part;
    }
    /* The inequality is met: a bound of two thirds would be broken. */
    assert_true(worst > 0.67);
    memset(in.x, 0, sizeof in.x);
    worst_part(b, &w, h, &in);
    rg_two_stage_destroy(h);
    free_matrix(&w);
}

static void the_bound_holds_and_is_met(void **state) {
    (void)state;
    const rg_cpu_level top = best_level();
    for (int level = RG_CPU_SCALAR; level <= (int)top; level++) {
        if (!rg_cpu_level_runs((rg_cpu_level)level)) continue;
        bench b;
        open_bench(&b, (rg_cpu_level)level, 2, false);
        for (size_t i = 0; i < RG_ARRAY_LEN(types); i++)
            bound_of_type(&b, types[i]);
        close_bench(&b);
    }
}

/* ---- the best row ---------------------------------------------------------------------------- */

/* Whether the step was decided; then every logit that is there is the full product's, and so is the
 * best row and all that equal it. */
static bool check_step(const bench *b, const rg_mat *w, rg_two_stage *h, input *in) {
    static float want[N_OUT], got[N_OUT];
    const rg_act x = act_of(b->core->ops, in, rg_act_form_of(w->type, RG_KERNELS_AUTO));
    product(b->core, w, &x, want);
    if (!rg_two_stage_run(h, b->core, in->x, &x, got)) return false;
    const uint32_t best = first_best(want, N_OUT);
    assert_int_equal(first_best(got, N_OUT), best);
    for (uint32_t r = 0; r < N_OUT; r++) {
        if (isinf(got[r])) {
            assert_true(want[r] < want[best]);
        } else {
            assert_memory_equal(&got[r], &want[r], sizeof want[r]);
        }
    }
    return true;
}

/* x near row r: its logit stands out as much as `part` says. */
static void look_like(const rg_mat *w, uint32_t r, float part, uint64_t seed, float *x) {
    rg_unpack_row(w->type, w->data + r * w->row_bytes, x, N_IN);
    for (uint32_t i = 0; i < N_IN; i++)
        x[i] = part * x[i] + draw(seed, i);
}

static void near_ties_go_to_the_lowest_id(void **state) {
    static input in;
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        bench b;
        open_bench(&b, best_level(), threads, false);
        for (size_t t = 0; t < RG_ARRAY_LEN(types); t++) {
            rg_mat w = new_matrix(types[t], 5);
            uint8_t *data = (uint8_t *)(uintptr_t)w.data;
            /* Equal rows, and rows that differ in one bit of a code. */
            for (uint32_t r = 0; r < N_OUT; r += 50) {
                const uint8_t *from = data + (size_t)11 * w.row_bytes;
                memcpy(data + r * w.row_bytes, from, w.row_bytes);
                memcpy(data + (r + 1) * w.row_bytes, from, w.row_bytes);
                data[(r + 1) * w.row_bytes + w.row_bytes / 2] ^= 1;
            }
            rg_two_stage *h = new_head(&b, &w);
            rg_two_stage_tune(h, N_OUT, false);
            uint32_t decided = 0;
            for (uint32_t k = 0; k < 40; k++) {
                look_like(&w, k % 4 ? 11 : k * 13, 0.25f * (float)(k % 5), k, in.x);
                decided += check_step(&b, &w, h, &in);
            }
            assert_int_equal(decided, 40);
            rg_two_stage_meters m;
            rg_two_stage_get_meters(h, &m);
            assert_int_equal(m.steps, 40);
            assert_int_equal(m.full, 0);
            assert_true(m.exact >= 40 && m.exact < 40ull * N_OUT + 40ull * 24);
            rg_two_stage_destroy(h);
            free_matrix(&w);
        }
        close_bench(&b);
    }
}

static void undecided_steps_are_given_back_and_the_copy_rests(void **state) {
    static input in;
    rg_two_stage_meters m;
    bench b;
    (void)state;
    open_bench(&b, best_level(), 2, false);
    rg_mat w = new_matrix(RG_TYPE_Q6_K, 9);
    rg_two_stage *h = new_head(&b, &w);
    for (uint32_t i = 0; i < N_IN; i++)
        in.x[i] = draw(1, i); /* like no row */
    rg_two_stage_tune(h, 1, true);
    /* Undecided, 1 rest, undecided, 2 rests, undecided, 4 rests. */
    for (uint32_t k = 0; k < 10; k++)
        assert_false(check_step(&b, &w, h, &in));
    rg_two_stage_get_meters(h, &m);
    assert_int_equal(m.steps, 3);
    assert_int_equal(m.full, 3);
    assert_int_equal(m.rested, 7);
    /* Enough room: decided again. */
    rg_two_stage_tune(h, 0, true);
    look_like(&w, 123, 3.0f, 4, in.x);
    assert_true(check_step(&b, &w, h, &in));
    rg_two_stage_destroy(h);
    free_matrix(&w);
    close_bench(&b);
}

static void damaged_rows_are_left_to_the_full_product(void **state) {
    static input in;
    bench b;
    (void)state;
    open_bench(&b, best_level(), 2, false);
    rg_mat w = new_matrix(RG_TYPE_Q8_0, 13);
    const uint16_t nan = 0x7E00;
    memcpy((uint8_t *)(uintptr_t)w.data + 400 * w.row_bytes, &nan, sizeof nan);
    rg_two_stage *h = new_head(&b, &w);
    rg_two_stage_tune(h, N_OUT, false);
    look_like(&w, 123, 3.0f, 4, in.x);
    assert_false(check_step(&b, &w, h, &in));
    in.x[5] = NAN;
    assert_false(check_step(&b, &w, h, &in));
    rg_two_stage_destroy(h);
    free_matrix(&w);
    w = new_matrix(RG_TYPE_Q4_K, 13);
    rg_status st = {0};
    assert_int_equal(rg_two_stage_create(&h, b.core, &w, &st), RG_UNSUPPORTED);
    assert_non_null(strstr(st.message, "q4_K"));
    assert_null(h);
    free_matrix(&w);
    close_bench(&b);
}

/* ---- in a model ------------------------------------------------------------------------------ */

typedef struct greedy {
    int32_t id;
    uint32_t n_vocab, n_there;
} greedy;

static rg_code take_best(void *user, uint32_t position, const float *logits, rg_status *st) {
    greedy *g = user;
    (void)position, (void)st;
    g->id = (int32_t)first_best(logits, g->n_vocab);
    g->n_there = 0;
    for (uint32_t i = 0; i < g->n_vocab; i++)
        g->n_there += isfinite(logits[i]) != 0;
    return RG_OK;
}

static void generate(const bench *b, bool few, int32_t first, int32_t *ids, uint32_t n,
                     uint32_t *full) {
    greedy g = {.n_vocab = b->model->hp.n_vocab};
    const rg_logits_sink sink = {.row = take_best, .user = &g};
    const rg_seq_options so = {.n_ctx = n + 8, .kv = RG_KV_F16};
    rg_seq *seq = NULL;
    rg_status st = {0};
    if (rg_seq_create(&seq, b->core, &so, &st) != RG_OK) {
        fail_msg("%s", st.message);
        abort(); /* not reached: fail_msg ends the test */
    }
    rg_core_want_few(b->core, few ? 1 : 0);
    int32_t id = first;
    for (uint32_t i = 0; i < n; i++) {
        if (rg_core_eval(b->core, seq, &id, 1, 0, RG_WANT_LAST, &sink, NULL, &st) != RG_OK) {
            fail_msg("%s", st.message);
        }
        ids[i] = id = g.id;
        *full += g.n_there == g.n_vocab;
    }
    rg_core_want_few(b->core, 0);
    rg_seq_destroy(seq);
}

static void a_model_says_the_same(void **state) {
    enum { TEXTS = 6, N = 40 };
    bench b;
    (void)state;
    open_bench(&b, best_level(), 2, true);
    rg_two_stage *h = rg_core_two_stage(b.core);
    assert_non_null(h);
    uint32_t full = 0, none = 0;
    for (int32_t t = 0; t < TEXTS; t++) {
        int32_t want[N], got[N];
        generate(&b, false, 20 + 300 * t, want, N, &none);
        generate(&b, true, 20 + 300 * t, got, N, &full);
        assert_memory_equal(want, got, sizeof want);
    }
    rg_two_stage_meters m;
    rg_two_stage_get_meters(h, &m);
    /* Nobody was asked while all logits were wanted; every decided step left some out. */
    assert_int_equal(none, TEXTS * N);
    assert_int_equal(m.steps + m.rested, TEXTS * N);
    assert_int_equal(full, m.full + m.rested);
    assert_true(m.steps > m.full);
    close_bench(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bound_holds_and_is_met),
        cmocka_unit_test(near_ties_go_to_the_lowest_id),
        cmocka_unit_test(undecided_steps_are_given_back_and_the_copy_rests),
        cmocka_unit_test(damaged_rows_are_left_to_the_full_product),
        cmocka_unit_test(a_model_says_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
