/* Ops that reduce or mix whole rows: dot, norms, hyper-connection mix, routing weights,
 * convolution, rotation. Each against double or its restated formula, all levels bit-equal.
 */
#include "kernels/level_check.h"

#define N_MAX 2560u

static float x[N_MAX], w[N_MAX], want[N_MAX], got[N_MAX], gate[4 * N_MAX], streams[4 * N_MAX];

static void expect_close(float value, double exact, double slack, const char *what, uint32_t n) {
    if (fabs((double)value - exact) <= slack) return;
    fail_msg("%s, n %u: %a, in double %a, allowed %.3g", what, n, (double)value, exact, slack);
}

/* Sixteen accumulators by index, folded in halves. */
static float dot_canonical(const float *a, const float *b, uint32_t n) {
    float acc[16] = {0};
    for (uint32_t i = 0; i < n; i++)
        acc[i % 16] = fmaf(a[i], b[i], acc[i % 16]);
    for (uint32_t half = 8; half > 0; half /= 2) {
        for (uint32_t l = 0; l < half; l++)
            acc[l] += acc[l + half];
    }
    return acc[0];
}

static const uint32_t lengths[] = {1, 2, 7, 15, 16, 17, 31, 32, 33, 64, 100, 127, 128, 640, 2560};

static void dot_is_canonical(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("dot_is_canonical", 43001);
    for (size_t k = 0; k < RG_ARRAY_LEN(lengths); k++) {
        const uint32_t n = lengths[k];
        double sum = 0.0, magnitude = 0.0;
        draw_floats(&d, x, n, -2.0, 2.0);
        draw_floats(&d, w, n, -2.0, 2.0);
        for (uint32_t i = 0; i < n; i++) {
            sum += (double)x[i] * (double)w[i];
            magnitude += fabs((double)x[i] * (double)w[i]);
        }
        const float canonical = dot_canonical(x, w, n);
        expect_close(canonical, sum, 1e-5 * magnitude, "dot", n);
        for (uint32_t l = 0; l < levels.n; l++) {
            got[0] = levels.ops[l]->dot(x, w, n);
            expect_same(got, &canonical, 1, "dot", levels.ops[l]);
        }
    }
}

static void norms_equal_their_formula(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("norms_equal_their_formula", 43002);
    const float eps = 1e-6f;
    for (size_t k = 0; k < RG_ARRAY_LEN(lengths); k++) {
        const uint32_t n = lengths[k];
        double sum = 0.0;
        draw_floats(&d, x, n, -3.0, 3.0);
        draw_floats(&d, w, n, 0.0, 2.0);
        for (uint32_t i = 0; i < n; i++)
            sum += (double)x[i] * (double)x[i];
        const double rms = 1.0 / sqrt(sum / n + (double)eps), l2 = 1.0 / sqrt(sum + (double)eps);
        const float squares = dot_canonical(x, x, n);
        const float mean = squares / (float)n;
        for (uint32_t l = 0; l < levels.n; l++) {
            for (int weighted = 0; weighted < 2; weighted++) {
                const float inv = 1.0f / sqrtf(mean + eps);
                for (uint32_t i = 0; i < n; i++) {
                    want[i] = weighted ? x[i] * inv * w[i] : x[i] * inv;
                    const double exact = (double)x[i] * rms * (weighted ? (double)w[i] : 1.0);
                    expect_close(want[i], exact, 1e-6 * fabs(exact), "rms_norm", n);
                }
                const float result = levels.ops[l]->rms_norm(x, weighted ? w : NULL, got, n, eps);
                expect_same(&result, &mean, 1, "mean square", levels.ops[l]);
                expect_same(got, want, n, "rms_norm", levels.ops[l]);
            }
            const float inv = 1.0f / sqrtf(squares + eps), scale = 0.08838835f;
            for (uint32_t i = 0; i < n; i++) {
                want[i] = x[i] * inv * scale;
                const double exact = (double)x[i] * l2 * (double)scale;
                expect_close(want[i], exact, 1e-6 * fabs(exact), "l2_norm", n);
            }
            levels.ops[l]->l2_norm(x, got, n, eps, scale);
            expect_same(got, want, n, "l2_norm", levels.ops[l]);
            memcpy(got, x, n * sizeof x[0]); /* in place */
            levels.ops[l]->l2_norm(got, got, n, eps, scale);
            expect_same(got, want, n, "l2_norm in place", levels.ops[l]);
        }
    }
}

/* The mean square tells of a broken input, and of zeros. */
static void rms_norm_shows_broken_input(void **state) {
    (void)state;
    const level_list levels = levels_here();
    const float broken[] = {NAN, INFINITY, -INFINITY};
    for (uint32_t l = 0; l < levels.n; l++) {
        for (uint32_t at = 0; at < 67; at++) {
            memset(x, 0, 67 * sizeof x[0]);
            assert_true(levels.ops[l]->rms_norm(x, NULL, got, 67, 1e-6f) == 0.0f);
            assert_true(got[at] == 0.0f);
            x[at] = broken[at % 3];
            assert_false(isfinite(levels.ops[l]->rms_norm(x, NULL, got, 67, 1e-6f)));
        }
    }
}

static void hc_mix_equals_its_formula(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("hc_mix_equals_its_formula", 43003);
    for (uint32_t n_hc = 1; n_hc <= 4; n_hc++) {
        for (uint32_t n = 1; n <= 640; n = n * 2 + 1) {
            float sigmoid[4 * 640];
            draw_floats(&d, gate, (size_t)n_hc * n, -9.0, 9.0);
            draw_floats(&d, streams, (size_t)n_hc * n, -3.0, 3.0);
            levels.ops[0]->sigmoid(gate, sigmoid, n_hc * n);
            for (uint32_t i = 0; i < n; i++) {
                float u = sigmoid[i] * streams[i];
                double exact = 0.0;
                for (uint32_t s = 0; s < n_hc; s++) {
                    if (s > 0) u = fmaf(sigmoid[s * n + i], streams[s * n + i], u);
                    exact += (double)streams[s * n + i] / (1.0 + exp(-(double)gate[s * n + i]));
                }
                want[i] = u / (float)n_hc;
                expect_close(want[i], exact / n_hc, 2e-6, "hc_mix", n);
            }
            for (uint32_t l = 0; l < levels.n; l++) {
                levels.ops[l]->hc_mix(gate, n, streams, n, got, n_hc, n);
                expect_same(got, want, n, "hc_mix", levels.ops[l]);
                /* Some columns alone are the same columns. */
                const uint32_t from = n / 3, part = n - from - n / 4;
                levels.ops[l]->hc_mix(gate + from, n, streams + from, n, got, n_hc, part);
                expect_same(got, want + from, part, "hc_mix of some columns", levels.ops[l]);
            }
        }
    }
}

static void route_weights_are_a_softmax(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("route_weights_are_a_softmax", 43004);
    const float scale = 1.75f;
    for (uint32_t k = 1; k <= 16; k++) {
        uint32_t ids[16];
        draw_floats(&d, x, 512, -20.0, 20.0);
        rg_top_k(x, 512, k, ids);
        double sum = 0.0, total = 0.0;
        for (uint32_t i = 0; i < k; i++)
            sum += exp((double)x[ids[i]] - (double)x[ids[0]]);
        levels.ops[0]->route_weights(x, ids, k, scale, want);
        for (uint32_t i = 0; i < k; i++) {
            const double exact = exp((double)x[ids[i]] - (double)x[ids[0]]) / sum * (double)scale;
            expect_close(want[i], exact, 5e-6 * exact, "route_weights", k);
            total += (double)want[i];
        }
        assert_true(fabs(total - (double)scale) < 1e-6);
        for (uint32_t l = 0; l < levels.n; l++) {
            levels.ops[l]->route_weights(x, ids, k, scale, got);
            expect_same(got, want, k, "route_weights", levels.ops[l]);
        }
    }
}

/* Taps missing at the start of a sequence count as zeros. */
static void conv_silu_equals_its_formula(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("conv_silu_equals_its_formula", 43005);
    for (uint32_t n = 1; n <= 600; n = 2 * n + 1) {
        for (uint32_t missing = 0; missing <= 4; missing++) {
            const float *tap[4];
            draw_floats(&d, w, 4 * n, -1.0, 1.0);
            draw_floats(&d, streams, 4 * n, -4.0, 4.0);
            for (uint32_t k = 0; k < 4; k++)
                tap[k] = k < missing ? NULL : streams + k * n;
            for (uint32_t c = 0; c < n; c++) {
                float sum = 0.0f;
                double exact = 0.0;
                for (uint32_t k = missing; k < 4; k++) {
                    sum = k == missing ? w[4 * c + k] * tap[k][c]
                                       : fmaf(w[4 * c + k], tap[k][c], sum);
                    exact += (double)w[4 * c + k] * (double)tap[k][c];
                }
                levels.ops[0]->silu_div(&sum, &want[c], 1, 1.0f);
                expect_close(want[c], exact / (1.0 + exp(-exact)), 5e-6, "conv_silu", n);
            }
            for (uint32_t l = 0; l < levels.n; l++) {
                memset(got, 0xff, n * sizeof got[0]);
                levels.ops[l]->conv_silu(w, tap, 4, got, n);
                expect_same(got, want, n, "conv_silu", levels.ops[l]);
            }
        }
    }
}

static void rope_rotates_pairs(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("rope_rotates_pairs", 43006);
    for (uint32_t n_rot = 2; n_rot <= 128; n_rot += 2) {
        const uint32_t half = n_rot / 2;
        double inv_freq[64];
        float cs[128];
        for (uint32_t i = 0; i < half; i++)
            inv_freq[i] = pow(1e7, -2.0 * i / n_rot);
        rg_rope_table(cs, inv_freq, half, draw_below(&d, 262144));
        draw_floats(&d, x, n_rot + 1, -3.0, 3.0);
        for (uint32_t i = 0; i < half; i++) {
            const double a = (double)x[i], b = (double)x[i + half];
            const double c = (double)cs[i], s = (double)cs[i + half];
            want[i] = fmaf(x[i], cs[i], -(x[i + half] * cs[i + half]));
            want[i + half] = fmaf(x[i + half], cs[i], x[i] * cs[i + half]);
            expect_close(want[i], a * c - b * s, 1e-6, "rope", n_rot);
            expect_close(want[i + half], b * c + a * s, 1e-6, "rope", n_rot);
        }
        want[n_rot] = x[n_rot]; /* beyond the rotated part */
        for (uint32_t l = 0; l < levels.n; l++) {
            memcpy(got, x, (n_rot + 1) * sizeof x[0]);
            levels.ops[l]->rope(got, cs, n_rot);
            expect_same(got, want, n_rot + 1, "rope", levels.ops[l]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dot_is_canonical),
        cmocka_unit_test(norms_equal_their_formula),
        cmocka_unit_test(rms_norm_shows_broken_input),
        cmocka_unit_test(hc_mix_equals_its_formula),
        cmocka_unit_test(route_weights_are_a_softmax),
        cmocka_unit_test(conv_silu_equals_its_formula),
        cmocka_unit_test(rope_rotates_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
