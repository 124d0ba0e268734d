/* The gated delta rule against its recurrence in double and its formula restated; many tokens at
 * once equal one by one.
 */
#include "kernels/level_check.h"

#define D_MAX  200u
#define N_TOK  9u
#define N_HEAD 3u
#define HEAD   1u /* the one under test */

static const uint32_t sizes[] = {1, 15, 16, 63, 64, 65, 96, 128, 200};

/* Inputs of N_TOK tokens, rows as the engine lays them out: all heads of a token side by side. */
typedef struct setup {
    uint32_t D;
    size_t qk_stride, v_stride, o_stride;
    float qk[N_TOK * 2 * N_HEAD * D_MAX], v[N_TOK * (N_HEAD * D_MAX + 5)];
    float decay[N_TOK * N_HEAD], beta[N_TOK * N_HEAD];
    float start[D_MAX * D_MAX], S[D_MAX * D_MAX + 1], S_want[D_MAX * D_MAX];
    double S_exact[D_MAX * D_MAX];
    float o[N_TOK * (N_HEAD * D_MAX + 1)], o_want[N_TOK * D_MAX];
} setup;

static const float *q_at(const setup *s, uint32_t t) {
    return s->qk + t * s->qk_stride + HEAD * s->D;
}

static const float *k_at(const setup *s, uint32_t t) {
    return q_at(s, t) + N_HEAD * s->D;
}

static const float *v_at(const setup *s, uint32_t t) {
    return s->v + t * s->v_stride + HEAD * s->D;
}

static void draw_inputs(setup *s, draws *d, uint32_t D) {
    s->D = D;
    s->qk_stride = 2 * N_HEAD * D;
    s->v_stride = N_HEAD * D + 5;
    s->o_stride = N_HEAD * D + 1;
    draw_floats(d, s->qk, N_TOK * s->qk_stride, -1.0, 1.0);
    for (uint32_t t = 0; t < N_TOK; t++) { /* unit length, as the layer makes them */
        for (uint32_t part = 0; part < 2; part++) {
            float *x = s->qk + t * s->qk_stride + (part * N_HEAD + HEAD) * D;
            rg_ops_get(RG_CPU_SCALAR)->l2_norm(x, x, D, 1e-6f, 1.0f);
        }
    }
    draw_floats(d, s->v, N_TOK * s->v_stride, -2.0, 2.0);
    draw_floats(d, s->decay, N_TOK * N_HEAD, 0.2, 1.0);
    draw_floats(d, s->beta, N_TOK * N_HEAD, 0.0, 1.0);
    draw_floats(d, s->start, D * D, -1.0, 1.0);
}

/* S *= decay; m = S^T k; d = beta (v - m); S += k d^T; o = S^T q, column by column. */
static void recurrence(setup *s) {
    const uint32_t D = s->D;
    for (uint32_t i = 0; i < D * D; i++)
        s->S_want[i] = s->start[i], s->S_exact[i] = (double)s->start[i];
    for (uint32_t t = 0; t < N_TOK; t++) {
        const float *q = q_at(s, t), *k = k_at(s, t), *v = v_at(s, t);
        const float decay = s->decay[t * N_HEAD + HEAD], beta = s->beta[t * N_HEAD + HEAD];
        for (uint32_t c = 0; c < D; c++) {
            float m = 0.0f, o = 0.0f;
            double m_exact = 0.0, o_exact = 0.0;
            for (uint32_t i = 0; i < D; i++) {
                s->S_want[i * D + c] *= decay;
                s->S_exact[i * D + c] *= (double)decay;
                m = fmaf(s->S_want[i * D + c], k[i], m);
                m_exact += s->S_exact[i * D + c] * (double)k[i];
            }
            const float d = beta * (v[c] - m);
            const double d_exact = (double)beta * ((double)v[c] - m_exact);
            for (uint32_t i = 0; i < D; i++) {
                s->S_want[i * D + c] = fmaf(k[i], d, s->S_want[i * D + c]);
                s->S_exact[i * D + c] += (double)k[i] * d_exact;
                o = fmaf(s->S_want[i * D + c], q[i], o);
                o_exact += s->S_exact[i * D + c] * (double)q[i];
            }
            s->o_want[t * D + c] = o;
            assert_true(fabs((double)o - o_exact) < 1e-5);
        }
    }
    for (uint32_t i = 0; i < D * D; i++)
        assert_true(fabs((double)s->S_want[i] - s->S_exact[i]) < 1e-5);
}

/* Tokens [t0, t0 + n) in one call. */
static void step(setup *s, const rg_ops *ops, uint32_t t0, uint32_t n) {
    ops->gdn_steps(s->S, s->D, q_at(s, t0), k_at(s, t0), s->qk_stride, v_at(s, t0), s->v_stride,
                   s->decay + t0 * N_HEAD + HEAD, s->beta + t0 * N_HEAD + HEAD, N_HEAD,
                   s->o + t0 * s->o_stride + HEAD * s->D, s->o_stride, n);
}

/* All tokens in calls of `n`; everything but this head's output stays. */
static void expect_tokens(setup *s, const rg_ops *ops, uint32_t n) {
    const uint32_t D = s->D;
    memcpy(s->S, s->start, D * D * sizeof s->S[0]);
    s->S[D * D] = 77.0f;
    for (size_t i = 0; i < N_TOK * s->o_stride; i++)
        s->o[i] = 77.0f;
    for (uint32_t t = 0; t < N_TOK; t += n)
        step(s, ops, t, n < N_TOK - t ? n : N_TOK - t);
    expect_same(s->S, s->S_want, D * D, "state", ops);
    assert_true(s->S[D * D] == 77.0f);
    for (uint32_t t = 0; t < N_TOK; t++) {
        const float *o = s->o + t * s->o_stride;
        expect_same(o + HEAD * D, s->o_want + t * D, D, "output", ops);
        for (uint32_t i = 0; i < s->o_stride; i++) {
            if (i / D != HEAD) assert_true(o[i] == 77.0f);
        }
    }
}

static void equals_the_recurrence(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("equals_the_recurrence", 61001);
    setup *s = test_alloc(sizeof *s);
    for (size_t i = 0; i < RG_ARRAY_LEN(sizes); i++) {
        draw_inputs(s, &d, sizes[i]);
        recurrence(s);
        for (uint32_t l = 0; l < levels.n; l++) {
            for (uint32_t n = 1; n <= N_TOK; n += n < 2 ? 1 : 7) /* 1, 2, 9 tokens a call */
                expect_tokens(s, levels.ops[l], n);
        }
    }
    rg_free(s);
}

/* beta 0 only decays, decay 0 forgets. */
static void ends_of_the_gates(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("ends_of_the_gates", 61002);
    setup *s = test_alloc(sizeof *s);
    for (int which = 0; which < 4; which++) {
        draw_inputs(s, &d, 96);
        for (uint32_t i = 0; i < N_TOK * N_HEAD; i++) {
            s->decay[i] = which & 1 ? 0.0f : 1.0f;
            s->beta[i] = which & 2 ? 0.0f : 1.0f;
        }
        recurrence(s);
        for (uint32_t l = 0; l < levels.n; l++)
            expect_tokens(s, levels.ops[l], N_TOK);
        for (uint32_t i = 0; i < s->D * s->D; i++) {
            if (which == 2) assert_true(s->S[i] == s->start[i]);
            if (which == 3) assert_true(s->S[i] == 0.0f);
        }
    }
    rg_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_recurrence),
        cmocka_unit_test(ends_of_the_gates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
