/* The ops over independent lanes: accuracy of the elementary functions against double, all lengths
 * and offsets and levels bit-equal, each op against a naive form.
 */
#include "kernels/level_check.h"

#define N_MAX 67u

/* Relative error that a result of double may differ from, plus `floor` for results that vanish. */
static void expect_near(float got, double want, double relative, double floor, const char *what,
                        float x) {
    if (isnan(want) ? isnan(got) : (isinf(want) ? (double)got == want : isfinite(got))) {
        if (!isfinite(want)) return;
        if (fabs((double)got - want) <= relative * fabs(want) + floor) return;
    }
    fail_msg("%s of %a (%.9g): %a, in double %a, off by %.3g of it", what, (double)x, (double)x,
             (double)got, want, fabs((double)got - want) / fabs(want));
}

/* ---- elementary functions through the ops ---------------------------------------------------- */

/* Largest relative error seen, printed so that a drift shows before it breaks the bound. */
typedef struct meter {
    double max;
    float at;
} meter;

static void meter_add(meter *m, float got, double want, float at) {
    const double error = fabs((double)got - want) / fabs(want);
    if (error > m->max) *m = (meter){.max = error, .at = at};
}

static void meter_close(const meter *m, const char *what, double bound) {
    print_message("%s: largest relative error %.3g at %.9g\n", what, m->max, (double)m->at);
    assert_true(m->max > 0.0 && m->max <= bound);
}

/* exp alone: decay = exp(a * softplus(x + dt)) with softplus(x) = x above 20, here 32 * (x / 32).
 */
static float exp_of(float x) {
    const float thirty_two = 32.0f, zero = 0.0f, a = x / 32.0f;
    float y;
    rg_ops_get(RG_CPU_SCALAR)->gdn_decay(&thirty_two, &zero, &a, &y, 1);
    return y;
}

static void exp_is_accurate(void **state) {
    (void)state;
    draws d = draws_start("exp_is_accurate", 41001);
    meter m = {0};
    for (int i = 0; i < 400000; i++) {
        const float x = i % 2 ? draw_between(&d, -87.3, 88.72) : draw_between(&d, -1.0, 1.0);
        meter_add(&m, exp_of(x), exp((double)x), x);
    }
    meter_close(&m, "exp", 1.2e-7);
    // NOLINTNEXTLINE(clang-analyzer-security.FloatLoopCounter): rounding only moves a sample
    for (float x = -87.3f; x > -106.0f; x -= 0.01f) /* subnormal results: one step of 2^-149 */
        expect_near(exp_of(x), exp((double)x), 1e-6, 0x1p-149, "exp", x);
    for (int i = 1; i < 30; i++) {
        const float tiny = ldexpf(1.0f, -i);
        expect_near(exp_of(-tiny), exp(-(double)tiny), 1.2e-7, 0.0, "exp", -tiny);
    }
    assert_true(exp_of(0.0f) == 1.0f && exp_of(-0.0f) == 1.0f);
    assert_int_equal(bits_of(exp_of(-INFINITY)), 0);
    assert_int_equal(bits_of(exp_of(-1e30f)), 0);
    assert_int_equal(bits_of(exp_of(-105.0f)), 0);
    assert_true(exp_of(INFINITY) == INFINITY && exp_of(88.8f) == INFINITY);
    assert_true(isfinite(exp_of(88.72f)));
    assert_true(isnan(exp_of(NAN)));
}

static float sigmoid_of(float x) {
    float y;
    rg_ops_get(RG_CPU_SCALAR)->sigmoid(&x, &y, 1);
    return y;
}

static float silu_of(float x) {
    float y;
    rg_ops_get(RG_CPU_SCALAR)->silu_div(&x, &y, 1, 1.0f);
    return y;
}

static void sigmoid_and_silu_are_accurate(void **state) {
    (void)state;
    draws d = draws_start("sigmoid_and_silu_are_accurate", 41002);
    meter sigmoid = {0}, silu = {0};
    for (int i = 0; i < 200000; i++) {
        const float x = i % 2 ? draw_between(&d, -80.0, 120.0) : draw_between(&d, -4.0, 4.0);
        const double s = 1.0 / (1.0 + exp(-(double)x));
        meter_add(&sigmoid, sigmoid_of(x), s, x);
        if (x != 0.0f) meter_add(&silu, silu_of(x), (double)x * s, x);
    }
    meter_close(&sigmoid, "sigmoid", 3e-7);
    meter_close(&silu, "silu", 3e-7);
    /* exp(-x) overflows where the result is about to vanish. */
    // NOLINTNEXTLINE(clang-analyzer-security.FloatLoopCounter): rounding only moves a sample
    for (float x = -80.0f; x > -200.0f; x -= 0.37f) {
        const double s = 1.0 / (1.0 + exp(-(double)x));
        expect_near(sigmoid_of(x), s, 3e-7, 1e-38, "sigmoid", x);
        expect_near(silu_of(x), (double)x * s, 3e-7, 3e-37, "silu", x);
    }
    assert_true(sigmoid_of(0.0f) == 0.5f && sigmoid_of(-0.0f) == 0.5f);
    assert_true(sigmoid_of(INFINITY) == 1.0f && sigmoid_of(-INFINITY) == 0.0f);
    assert_true(silu_of(0.0f) == 0.0f && silu_of(INFINITY) == INFINITY);
    assert_true(isnan(sigmoid_of(NAN)) && isnan(silu_of(NAN)));
}

static float decay_of(float x, float dt, float a) {
    float y;
    rg_ops_get(RG_CPU_SCALAR)->gdn_decay(&x, &dt, &a, &y, 1);
    return y;
}

static double softplus_exact(double x) {
    return x > 20.0 ? x : log1p(exp(x));
}

static void decay_is_accurate(void **state) {
    (void)state;
    draws d = draws_start("decay_is_accurate", 41003);
    meter m = {0};
    for (int i = 0; i < 200000; i++) {
        const float x = draw_between(&d, -30.0, 30.0), dt = draw_between(&d, -8.0, 8.0);
        const float a = (float)-exp((double)draw_between(&d, -6.0, 1.0));
        const double want = exp((double)a * softplus_exact((double)(x + dt)));
        if (want < 0x1p-126) {
            expect_near(decay_of(x, dt, a), want, 1e-4, 0x1p-149, "decay", x);
        } else {
            meter_add(&m, decay_of(x, dt, a), want, x);
        }
    }
    meter_close(&m, "decay", 2e-5); /* an exponent of -87 has 87 times the error of softplus */
    assert_true(decay_of(-INFINITY, 0.0f, -1.0f) == 1.0f);
    assert_true(decay_of(INFINITY, 0.0f, -1.0f) == 0.0f);
    assert_true(isnan(decay_of(NAN, 0.0f, -1.0f)));
    assert_true(isnan(decay_of(0.0f, 0.0f, NAN)));
}

/* softplus by itself: with a huge `a` and tiny softplus the product is seen through exp, so the
 * bound on the exponent is one on softplus (which covers log as well). */
static void softplus_is_accurate(void **state) {
    (void)state;
    draws d = draws_start("softplus_is_accurate", 41004);
    double max = 0.0;
    for (int i = 0; i < 200000; i++) {
        const float x = draw_between(&d, -80.0, 20.5);
        const double want = softplus_exact((double)x);
        const float a = (float)(60.0 / want); /* exponent near 60, so exp shows 1.6e-9 of it */
        if (!isfinite(a)) continue;
        const double got = log((double)decay_of(x, 0.0f, a)) / (double)a;
        const double error = fabs(got - want) / want;
        max = error > max ? error : max;
    }
    print_message("softplus: largest relative error %.3g\n", max);
    assert_true(max > 0.0 && max < 4e-7);
}

/* FNV-1a over the bits of a value. */
static uint64_t hash_add(uint64_t hash, float f) {
    for (uint32_t shift = 0; shift < 32; shift += 8)
        hash = (hash ^ (bits_of(f) >> shift & 255)) * 0x100000001b3u;
    return hash;
}

/* One answer for every compiler and machine: recorded from the first version, to be changed only
 * together with the kernel set's identity. */
static void functions_keep_their_bits(void **state) {
    (void)state;
    uint64_t sigmoid = 0xcbf29ce484222325u, silu = sigmoid, decay = sigmoid;
    for (int i = -60000; i <= 60000; i++) {
        const float x = (float)i / 512.0f;
        sigmoid = hash_add(sigmoid, sigmoid_of(x));
        silu = hash_add(silu, silu_of(x));
        decay = hash_add(decay, decay_of(x, 0.375f, -0.0625f));
    }
    assert_int_equal(sigmoid, 0xf0845a59fc730ac8u);
    assert_int_equal(silu, 0x4498a9123e610d3cu);
    assert_int_equal(decay, 0x379ce8e816bfdd44u);
}

/* ---- lengths, offsets, levels ---------------------------------------------------------------- */

enum {
    K_SILU_DIV,
    K_SILU_MUL,
    K_SIGMOID_MUL,
    K_SIGMOID,
    K_DECAY,
    K_AXPY,
    K_ADD,
    K_STORE,
    LANE_OPS
};

/* y[i] of lane op k from a[i], b[i], c[i]; y comes in as c for the ops that update. */
static void lane_op(const rg_ops *ops, int k, const float *a, const float *b, const float *c,
                    float *y, uint32_t n) {
    uint16_t half[N_MAX];
    if (k == K_AXPY || k == K_ADD) memcpy(y, c, n * sizeof *y);
    switch (k) {
    case K_SILU_DIV:
        ops->silu_div(a, y, n, 4.0f);
        break;
    case K_SILU_MUL:
        ops->silu_mul(a, b, y, n);
        break;
    case K_SIGMOID_MUL:
        ops->sigmoid_mul(a, b, y, n);
        break;
    case K_SIGMOID:
        ops->sigmoid(a, y, n);
        break;
    case K_DECAY:
        ops->gdn_decay(a, b, c, y, n);
        break;
    case K_AXPY:
        ops->axpy(-0.7f, a, y, n);
        break;
    case K_ADD:
        ops->add(a, y, n);
        break;
    default:
        ops->store(a, half, true, n);
        ops->load(half, true, y, n);
        break;
    }
}

/* Ordinary numbers, every power of two, both infinities, NaN. */
static float draw_any(draws *d) {
    static const float special[] = {0.0f, -0.0f,   INFINITY, -INFINITY,
                                    NAN,  -105.0f, 89.0f,    0x1p-149f};
    switch (draw_below(d, 8)) {
    case 0:
        return special[draw_below(d, RG_ARRAY_LEN(special))];
    case 1:
        return (float)ldexp((double)draw_between(d, -2.0, 2.0), (int)draw_below(d, 277) - 149);
    default:
        return draw_between(d, -100.0, 100.0);
    }
}

/* Vector body, tail and a call with one element must round alike, at any offset. */
static void body_equals_tail(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("body_equals_tail", 41005);
    float a[N_MAX], b[N_MAX], c[N_MAX], single[N_MAX], y[N_MAX + 1];
    for (int k = 0; k < LANE_OPS; k++) {
        for (uint32_t i = 0; i < N_MAX; i++)
            a[i] = draw_any(&d), b[i] = draw_any(&d), c[i] = draw_any(&d);
        for (uint32_t i = 0; i < N_MAX; i++)
            lane_op(levels.ops[0], k, a + i, b + i, c + i, single + i, 1);
        for (uint32_t l = 0; l < levels.n; l++) {
            for (uint32_t n = 1; n <= N_MAX; n++) {
                for (uint32_t at = 0; at + n <= N_MAX; at += n < 20 ? 1 : 5) {
                    char what[32];
                    y[n] = 77.0f;
                    lane_op(levels.ops[l], k, a + at, b + at, c + at, y, n);
                    (void)snprintf(what, sizeof what, "lane op %d at %u", k, at);
                    expect_same(y, single + at, n, what, levels.ops[l]);
                    assert_true(y[n] == 77.0f);
                }
            }
        }
    }
}

static void lane_ops_equal_their_formula(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("lane_ops_equal_their_formula", 41006);
    for (int round = 0; round < 2000; round++) {
        const float a = draw_between(&d, -20.0, 20.0), b = draw_between(&d, -20.0, 20.0);
        const float c = draw_between(&d, -20.0, 20.0);
        const float want[] = {
            [K_SILU_DIV] = silu_of(a / 4.0f),
            [K_SILU_MUL] = silu_of(a) * b,
            [K_SIGMOID_MUL] = a * sigmoid_of(b),
            [K_SIGMOID] = sigmoid_of(a),
            [K_DECAY] = decay_of(a + b, 0.0f, c),
            [K_AXPY] = fmaf(-0.7f, a, c),
            [K_ADD] = c + a,
            [K_STORE] = rg_f16_to_f32(rg_f32_to_f16(a)),
        };
        for (uint32_t l = 0; l < levels.n; l++) {
            for (int k = 0; k < LANE_OPS; k++) {
                float y;
                lane_op(levels.ops[l], k, &a, &b, &c, &y, 1);
                expect_same(&y, &want[k], 1, "formula", levels.ops[l]);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_accurate),
        cmocka_unit_test(sigmoid_and_silu_are_accurate),
        cmocka_unit_test(decay_is_accurate),
        cmocka_unit_test(softplus_is_accurate),
        cmocka_unit_test(functions_keep_their_bits),
        cmocka_unit_test(body_equals_tail),
        cmocka_unit_test(lane_ops_equal_their_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
