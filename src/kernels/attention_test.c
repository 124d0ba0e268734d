/* Attention over spans against a softmax in double and against its formula restated; what must not
 * change a bit: the cut of the runs, masked keys, masked spans. Index scores beside it.
 */
#include "kernels/level_check.h"

#define D_MAX      256u
#define N_POS      448u
#define STRIDE_MAX (2 * D_MAX + 3)

/* One query head over a cache with room for two key heads. */
typedef struct setup {
    uint32_t D;
    float scale;
    float q[D_MAX];
    float *k_exact, *v_exact; /* [N_POS][D] values as the cache holds them */
    void *k_data, *v_data;    /* [N_POS][stride] */
    rg_cache_view k, v;
    uint32_t first[N_POS], count[N_POS], n_run;
    float o[D_MAX], want[D_MAX];
    float tmp[RG_ATTENTION_TMP(D_MAX)];
} setup;

static setup *setup_create(void) {
    setup *s = test_alloc(sizeof *s);
    s->k_exact = test_alloc(sizeof(float) * N_POS * D_MAX);
    s->v_exact = test_alloc(sizeof(float) * N_POS * D_MAX);
    s->k_data = test_alloc(sizeof(float) * N_POS * STRIDE_MAX);
    s->v_data = test_alloc(sizeof(float) * N_POS * STRIDE_MAX);
    return s;
}

static void setup_destroy(setup *s) {
    rg_free(s->k_exact);
    rg_free(s->v_exact);
    rg_free(s->k_data);
    rg_free(s->v_data);
    rg_free(s);
}

/* Stores one row at `pos` of the second head and keeps what a load gives back. */
static void put_row(const rg_cache_view *c, void *data, size_t offset, uint32_t pos, float *x,
                    uint32_t n) {
    const size_t at = pos * c->stride + offset;
    const size_t bytes = c->f16 ? 2 : 4;
    uint8_t *row = (uint8_t *)data + at * bytes;
    rg_ops_get(RG_CPU_SCALAR)->store(x, row, c->f16, n);
    rg_ops_get(RG_CPU_SCALAR)->load(row, c->f16, x, n);
}

static void fill_cache(setup *s, draws *d, uint32_t D, bool f16, double reach) {
    const size_t offset = D + 1; /* the second head, at an odd address */
    s->D = D;
    s->scale = (float)(1.0 / sqrt(D));
    s->k = (rg_cache_view){.f16 = f16, .stride = 2 * D + 3};
    s->v = s->k;
    s->k.data = (const uint8_t *)s->k_data + offset * (f16 ? 2 : 4);
    s->v.data = (const uint8_t *)s->v_data + offset * (f16 ? 2 : 4);
    draw_floats(d, s->q, D, -reach, reach);
    draw_floats(d, s->k_exact, N_POS * D, -2.0, 2.0);
    draw_floats(d, s->v_exact, N_POS * D, -1.0, 1.0);
    for (uint32_t pos = 0; pos < N_POS; pos++) {
        put_row(&s->k, s->k_data, offset, pos, s->k_exact + pos * D, D);
        put_row(&s->v, s->v_data, offset, pos, s->v_exact + pos * D, D);
    }
}

/* Ascending runs with gaps that hold about `n` keys; at least one. */
static void draw_runs(setup *s, draws *d, uint32_t n) {
    uint32_t pos = draw_below(d, 70), left = n;
    s->n_run = 0;
    while (left > 0 && pos < N_POS) {
        uint32_t count = 1 + draw_below(d, left < 100 ? left : 100);
        if (count > N_POS - pos) count = N_POS - pos;
        s->first[s->n_run] = pos;
        s->count[s->n_run++] = count;
        left -= count;
        pos += count + 1 + draw_below(d, 90);
    }
}

static void one_run(setup *s, uint32_t first, uint32_t count) {
    s->first[0] = first, s->count[0] = count, s->n_run = 1;
}

static void run(setup *s, const rg_ops *ops, float *o) {
    memset(s->tmp, 0xff, sizeof s->tmp);
    memset(o, 0xff, s->D * sizeof *o);
    ops->attention(s->q, 1, &s->k, &s->v, s->D, s->scale, s->first, s->count, s->n_run, o, s->tmp);
}

/* ---- softmax in double ----------------------------------------------------------------------- */

static double score_of(const setup *s, uint32_t pos) {
    double sum = 0.0;
    for (uint32_t c = 0; c < s->D; c++)
        sum += (double)s->q[c] * (double)s->k_exact[pos * s->D + c];
    return sum * (double)s->scale;
}

static void expect_softmax(const setup *s, const float *o, double slack) {
    double max = -HUGE_VAL, sum = 0.0, exact[D_MAX] = {0};
    for (uint32_t r = 0; r < s->n_run; r++) {
        for (uint32_t j = 0; j < s->count[r]; j++)
            max = fmax(max, score_of(s, s->first[r] + j));
    }
    for (uint32_t r = 0; r < s->n_run; r++) {
        for (uint32_t j = 0; j < s->count[r]; j++) {
            const uint32_t pos = s->first[r] + j;
            const double p = exp(score_of(s, pos) - max);
            sum += p;
            for (uint32_t c = 0; c < s->D; c++)
                exact[c] += p * (double)s->v_exact[pos * s->D + c];
        }
    }
    for (uint32_t c = 0; c < s->D; c++) {
        if (fabs((double)o[c] - exact[c] / sum) <= slack) continue;
        fail_msg("D %u, %u runs from %u, element %u: %a, in double %a", s->D, s->n_run, s->first[0],
                 c, (double)o[c], exact[c] / sum);
    }
}

/* ---- the formula restated -------------------------------------------------------------------- */

static float exp_of(float x) {
    const float thirty_two = 32.0f, zero = 0.0f, a = x / 32.0f; /* softplus(32) = 32 */
    float y;
    rg_ops_get(RG_CPU_SCALAR)->gdn_decay(&thirty_two, &zero, &a, &y, 1);
    return y;
}

static bool chosen(const setup *s, uint32_t pos) {
    for (uint32_t r = 0; r < s->n_run; r++) {
        if (pos >= s->first[r] && pos - s->first[r] < s->count[r]) return true;
    }
    return false;
}

/* One span from a fresh state: its maximum, sum and output. False: fully masked. */
static bool span_canonical(const setup *s, uint32_t base, float *m, float *l, float *os) {
    float score[RG_SPAN], lane[16] = {0};
    *m = -INFINITY;
    memset(os, 0, s->D * sizeof *os);
    for (uint32_t i = 0; i < RG_SPAN; i++) {
        score[i] = -INFINITY;
        if (!chosen(s, base + i)) continue;
        score[i] = rg_ops_get(RG_CPU_SCALAR)->dot(s->q, s->k_exact + (base + i) * s->D, s->D);
        score[i] *= s->scale;
        *m = score[i] > *m ? score[i] : *m;
    }
    if (*m == -INFINITY) return false;
    for (uint32_t i = 0; i < RG_SPAN; i++) {
        if (score[i] == -INFINITY) continue;
        const float p = exp_of(score[i] - *m);
        lane[i % 16] += p;
        for (uint32_t c = 0; c < s->D; c++)
            os[c] = fmaf(p, s->v_exact[(base + i) * s->D + c], os[c]);
    }
    for (uint32_t half = 8; half > 0; half /= 2) {
        for (uint32_t i = 0; i < half; i++)
            lane[i] += lane[i + half];
    }
    *l = lane[0];
    return true;
}

static void attention_canonical(const setup *s, float *o) {
    float m = -INFINITY, l = 0.0f, ms, ls, os[D_MAX];
    memset(o, 0, s->D * sizeof *o);
    for (uint32_t base = 0; base < N_POS; base += RG_SPAN) {
        if (!span_canonical(s, base, &ms, &ls, os)) continue;
        const float M = m > ms ? m : ms, a = exp_of(m - M), b = exp_of(ms - M);
        l = fmaf(l, a, ls * b);
        for (uint32_t c = 0; c < s->D; c++)
            o[c] = fmaf(o[c], a, os[c] * b);
        m = M;
    }
    for (uint32_t c = 0; c < s->D; c++)
        o[c] /= l;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static const uint32_t sizes[] = {16, 20, 64, 72, 100, 128, 192, 250, 256};

static void expect_all(setup *s, double slack) {
    const level_list levels = levels_here();
    attention_canonical(s, s->want);
    expect_softmax(s, s->want, slack);
    for (uint32_t l = 0; l < levels.n; l++) {
        run(s, levels.ops[l], s->o);
        expect_same(s->o, s->want, s->D, "attention", levels.ops[l]);
    }
}

static void equals_softmax(void **state) {
    (void)state;
    draws d = draws_start("equals_softmax", 51001);
    setup *s = setup_create();
    for (size_t i = 0; i < 2 * RG_ARRAY_LEN(sizes); i++) {
        fill_cache(s, &d, sizes[i / 2], i % 2, 2.0);
        for (uint32_t n = 1; n <= 300; n += 1 + n / 2 + draw_below(&d, 30)) {
            draw_runs(s, &d, n);
            expect_all(s, 1e-5);
        }
        one_run(s, 63, 2); /* over a span boundary */
        expect_all(s, 1e-5);
        one_run(s, 0, 300);
        expect_all(s, 1e-5);
    }
    setup_destroy(s);
}

/* Heads that share keys: what each gives alone, for every count of heads. */
static void heads_together_equal_heads_alone(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("heads_together_equal_heads_alone", 51006);
    setup *s = setup_create();
    float *q = test_alloc(sizeof(float) * RG_ATTENTION_HEADS * D_MAX);
    float *o = test_alloc(sizeof(float) * RG_ATTENTION_HEADS * D_MAX);
    for (uint32_t round = 0; round < 3 * RG_ATTENTION_HEADS; round++) {
        const uint32_t n = round % RG_ATTENTION_HEADS + 1, D = sizes[draw_below(&d, 9)];
        fill_cache(s, &d, D, draw_below(&d, 2), 2.0);
        draw_floats(&d, q, n * D, -2.0, 2.0);
        draw_runs(s, &d, 1 + draw_below(&d, 200));
        for (uint32_t l = 0; l < levels.n; l++) {
            memset(o, 0xff, sizeof(float) * n * D);
            levels.ops[l]->attention(q, n, &s->k, &s->v, D, s->scale, s->first, s->count, s->n_run,
                                     o, s->tmp);
            for (uint32_t h = 0; h < n; h++) {
                memcpy(s->q, q + (size_t)h * D, sizeof(float) * D);
                run(s, levels.ops[0], s->want);
                expect_same(o + (size_t)h * D, s->want, D, "one of several heads", levels.ops[l]);
            }
        }
    }
    rg_free(q);
    rg_free(o);
    setup_destroy(s);
}

static void one_key_gives_its_value(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("one_key_gives_its_value", 51002);
    setup *s = setup_create();
    fill_cache(s, &d, 72, true, 5.0);
    for (uint32_t pos = 0; pos < 130; pos++) {
        one_run(s, pos, 1);
        for (uint32_t l = 0; l < levels.n; l++) {
            run(s, levels.ops[l], s->o);
            expect_same(s->o, s->v_exact + pos * s->D, s->D, "one key", levels.ops[l]);
        }
    }
    setup_destroy(s);
}

/* The same keys as runs of random length, empty ones among them; everything outside holds NaN. */
static void cut_of_runs_and_masked_keys_change_nothing(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("cut_of_runs_and_masked_keys_change_nothing", 51003);
    setup *s = setup_create();
    for (uint32_t round = 0; round < 60; round++) {
        fill_cache(s, &d, sizes[round % RG_ARRAY_LEN(sizes)], round % 2, 2.0);
        draw_runs(s, &d, 1 + draw_below(&d, 200));
        run(s, levels.ops[0], s->want);
        const size_t offset = s->D + 1;
        uint32_t first[N_POS], count[N_POS], n_run = 0;
        float broken[D_MAX];
        for (uint32_t c = 0; c < s->D; c++)
            broken[c] = NAN;
        for (uint32_t pos = 0; pos < N_POS; pos++) {
            if (chosen(s, pos)) {
                const bool joins = n_run > 0 && first[n_run - 1] + count[n_run - 1] == pos;
                if (joins && draw_below(&d, 3) > 0) {
                    count[n_run - 1]++;
                } else {
                    first[n_run] = pos, count[n_run++] = 1;
                }
                continue;
            }
            put_row(&s->k, s->k_data, offset, pos, broken, s->D);
            put_row(&s->v, s->v_data, offset, pos, broken, s->D);
            if (pos % 7 == 0) first[n_run] = pos, count[n_run++] = 0;
        }
        memcpy(s->first, first, sizeof first);
        memcpy(s->count, count, sizeof count);
        s->n_run = n_run;
        for (uint32_t l = 0; l < levels.n; l++) {
            run(s, levels.ops[l], s->o);
            expect_same(s->o, s->want, s->D, "cut of runs", levels.ops[l]);
        }
    }
    setup_destroy(s);
}

/* The spans of a query moved apart: masked spans before, between and behind. */
static void masked_spans_change_nothing(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("masked_spans_change_nothing", 51004);
    setup *s = setup_create();
    for (uint32_t round = 0; round < 30; round++) {
        const size_t offset = sizes[round % RG_ARRAY_LEN(sizes)] + 1;
        fill_cache(s, &d, (uint32_t)offset - 1, round % 2, 2.0);
        /* Keys in spans 0, 1 and 2 go to spans 1, 3 and 6. */
        static const uint32_t to[] = {1, 3, 6};
        s->n_run = 0;
        for (uint32_t span = 0; span < 3; span++) {
            const uint32_t from = draw_below(&d, RG_SPAN);
            s->first[s->n_run] = span * RG_SPAN + from;
            s->count[s->n_run++] = 1 + draw_below(&d, RG_SPAN - from);
        }
        run(s, levels.ops[0], s->want);
        for (uint32_t span = 3; span-- > 0;) {
            for (uint32_t i = 0; i < RG_SPAN; i++) {
                const uint32_t pos = span * RG_SPAN + i, moved = to[span] * RG_SPAN + i;
                put_row(&s->k, s->k_data, offset, moved, s->k_exact + pos * s->D, s->D);
                put_row(&s->v, s->v_data, offset, moved, s->v_exact + pos * s->D, s->D);
            }
            s->first[span] += (to[span] - span) * RG_SPAN;
        }
        for (uint32_t l = 0; l < levels.n; l++) {
            run(s, levels.ops[l], s->o);
            expect_same(s->o, s->want, s->D, "masked spans", levels.ops[l]);
        }
    }
    setup_destroy(s);
}

/* Scores near +-10^4: exp underflows for all keys but the best, in any order of spans. */
static void extreme_scores_stay_finite(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("extreme_scores_stay_finite", 51005);
    setup *s = setup_create();
    for (uint32_t round = 0; round < 12; round++) {
        fill_cache(s, &d, 128, round % 2, 1.0);
        double reach = 0.0;
        for (uint32_t pos = 0; pos < N_POS; pos++)
            reach = fmax(reach, fabs(score_of(s, pos)));
        for (uint32_t c = 0; c < s->D; c++)
            s->q[c] = (float)((double)s->q[c] * 1e4 / reach);
        draw_runs(s, &d, 200);
        attention_canonical(s, s->want);
        for (uint32_t l = 0; l < levels.n; l++) {
            run(s, levels.ops[l], s->o);
            expect_same(s->o, s->want, s->D, "extreme scores", levels.ops[l]);
            for (uint32_t c = 0; c < s->D; c++)
                assert_true(fabsf(s->o[c]) <= 1.0f); /* a mean of values within [-1, 1] */
        }
    }
    setup_destroy(s);
}

static void broken_key_shows(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("broken_key_shows", 51006);
    setup *s = setup_create();
    fill_cache(s, &d, 64, false, 1.0);
    one_run(s, 10, 200);
    float row[D_MAX];
    memcpy(row, s->k_exact + 100 * s->D, s->D * sizeof row[0]);
    row[5] = NAN;
    put_row(&s->k, s->k_data, s->D + 1, 100, row, s->D);
    for (uint32_t l = 0; l < levels.n; l++) {
        run(s, levels.ops[l], s->o);
        for (uint32_t c = 0; c < s->D; c++)
            assert_true(isnan(s->o[c]));
    }
    setup_destroy(s);
}

static void index_scores_equal_their_formula(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("index_scores_equal_their_formula", 51007);
    setup *s = setup_create();
    static float q[8 * D_MAX], out[N_POS], want[N_POS];
    for (size_t i = 0; i < 2 * RG_ARRAY_LEN(sizes); i++) {
        const uint32_t D = sizes[i / 2], n_head = 1 + draw_below(&d, 8);
        fill_cache(s, &d, D, i % 2, 1.0);
        draw_floats(&d, q, n_head * D, -1.0, 1.0);
        const uint32_t b0 = draw_below(&d, 20), b1 = b0 + 1 + draw_below(&d, 60);
        for (uint32_t b = b0; b < b1; b++) {
            double exact = 0.0;
            want[b] = 0.0f;
            for (uint32_t h = 0; h < n_head; h++) {
                const float *key = s->k_exact + b * D;
                const float dot = rg_ops_get(RG_CPU_SCALAR)->dot(q + h * D, key, D);
                double sum = 0.0;
                for (uint32_t c = 0; c < D; c++)
                    sum += (double)q[h * D + c] * (double)key[c];
                want[b] += dot > 0.0f ? dot : 0.0f;
                exact += fmax(sum, 0.0);
            }
            assert_true(fabs((double)want[b] - exact) <= 1e-5 * D);
        }
        for (uint32_t l = 0; l < levels.n; l++) {
            out[b1] = -7.0f;
            levels.ops[l]->index_scores(q, n_head, D, &s->k, b0, b1, out, s->tmp);
            expect_same(out + b0, want + b0, b1 - b0, "index scores", levels.ops[l]);
            assert_true(out[b1] == -7.0f);
        }
    }
    setup_destroy(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_softmax),
        cmocka_unit_test(heads_together_equal_heads_alone),
        cmocka_unit_test(one_key_gives_its_value),
        cmocka_unit_test(cut_of_runs_and_masked_keys_change_nothing),
        cmocka_unit_test(masked_spans_change_nothing),
        cmocka_unit_test(extreme_scores_stay_finite),
        cmocka_unit_test(broken_key_shows),
        cmocka_unit_test(index_scores_equal_their_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
