/* What is the same on every level: top k, the rope table, the form of activations, scratch sizes,
 * the tables of ops.
 */
#include "kernels/level_check.h"

#define N_MAX 5000u

static float scores[N_MAX];
static uint32_t order[N_MAX], got[N_MAX], ascending[N_MAX];

/* ---- top k ----------------------------------------------------------------------------------- */

/* Negative: a first. Higher score, then lower index; NaN last. */
static int compare_rank(const void *pa, const void *pb) {
    const uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
    const bool a_nan = isnan(scores[a]), b_nan = isnan(scores[b]);
    if (a_nan != b_nan) return a_nan ? 1 : -1;
    if (!a_nan && scores[a] != scores[b]) return scores[a] > scores[b] ? -1 : 1;
    return a < b ? -1 : 1;
}

static int compare_index(const void *pa, const void *pb) {
    const uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
    return a < b ? -1 : a > b;
}

static void sort_all(uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    qsort(order, n, sizeof order[0], compare_rank);
}

static void expect_top(uint32_t n, uint32_t k) {
    got[k % N_MAX] = 0xdeadbeef; /* at k = N_MAX it is overwritten */
    rg_top_k(scores, n, k, got);
    for (uint32_t i = 0; i < k; i++) {
        if (got[i] == order[i]) continue;
        fail_msg("n %u k %u: rank %u is %u (%a), expected %u (%a)", n, k, i, got[i],
                 (double)scores[got[i] % N_MAX], order[i], (double)scores[order[i]]);
    }
    if (k < N_MAX) assert_int_equal(got[k], 0xdeadbeef);
    memcpy(ascending, order, k * sizeof *order);
    qsort(ascending, k, sizeof *ascending, compare_index);
    rg_top_k_ascending(scores, n, k, got);
    assert_memory_equal(got, ascending, k * sizeof *got);
    if (k < N_MAX) assert_int_equal(got[k], 0xdeadbeef);
}

/* `kinds` different values (0: all different), a share of NaN and infinities. */
static void draw_scores(draws *d, uint32_t n, uint32_t kinds, bool special) {
    static const float specials[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0f, -0.0f};
    for (uint32_t i = 0; i < n; i++) {
        scores[i] = kinds ? (float)draw_below(d, kinds) - 2.0f : draw_between(d, -9.0, 9.0);
        if (special && draw_below(d, 3) == 0)
            scores[i] = specials[draw_below(d, RG_ARRAY_LEN(specials))];
    }
}

static void top_k_equals_a_sort(void **state) {
    (void)state;
    draws d = draws_start("top_k_equals_a_sort", 71001);
    static const uint32_t kinds[] = {0, 1, 2, 7};
    for (uint32_t n = 1; n <= 40; n++) {
        for (uint32_t round = 0; round < 8; round++) {
            draw_scores(&d, n, kinds[round % 4], round >= 4);
            sort_all(n);
            for (uint32_t k = 1; k <= n; k++)
                expect_top(n, k);
        }
    }
    for (uint32_t round = 0; round < 12; round++) {
        const uint32_t n = round == 0 ? N_MAX : 41 + draw_below(&d, N_MAX - 41);
        draw_scores(&d, n, round % 2 ? 50 : 0, round % 3 == 0);
        sort_all(n);
        const uint32_t ks[] = {1, 2, 10, 64, 1 + draw_below(&d, n), n - 1, n};
        for (size_t i = 0; i < RG_ARRAY_LEN(ks); i++) {
            if (ks[i] <= n) expect_top(n, ks[i]);
        }
    }
}

/* Orders that a heap likes least. */
static void top_k_of_sorted_scores(void **state) {
    (void)state;
    for (int which = 0; which < 3; which++) {
        for (uint32_t i = 0; i < 1000; i++)
            scores[i] = which == 0 ? (float)i : which == 1 ? -(float)i : NAN;
        sort_all(1000);
        for (uint32_t k = 1; k <= 1000; k += 37)
            expect_top(1000, k);
        expect_top(1000, 1000);
    }
}

/* ---- rope table ------------------------------------------------------------------------------ */

/* Distance of a float from a double in units of the float's last place. */
static double ulps(float x, double exact) {
    int e = 0;
    (void)frexp(exact, &e);
    return fabs((double)x - exact) / ldexp(1.0, (e < -125 ? -125 : e) - 24);
}

static void rope_table_equals_libm(void **state) {
    (void)state;
    draws d = draws_start("rope_table_equals_libm", 71002);
    double inv_freq[64], worst = 0.0, off_circle = 0.0;
    float cs[128];
    for (uint32_t i = 0; i < 64; i++)
        inv_freq[i] = pow(1e7, -(double)i / 64.0);
    for (uint32_t round = 0; round < 4000; round++) {
        const uint64_t pos = round < 1000 ? round : round == 1000 ? 262143 : draw_below(&d, 262144);
        rg_rope_table(cs, inv_freq, 64, pos);
        for (uint32_t i = 0; i < 64; i++) {
            const double angle = (double)pos * inv_freq[i];
            const double c = (double)cs[i], s = (double)cs[64 + i];
            worst = fmax(worst, fmax(ulps(cs[i], cos(angle)), ulps(cs[64 + i], sin(angle))));
            off_circle = fmax(off_circle, fabs(c * c + s * s - 1.0));
        }
    }
    print_message("rope table: at most 0.5 + %.3g ulp from libm, %.3g off the circle\n",
                  worst - 0.5, off_circle);
    assert_true(worst <= 0.5 + 1e-7);
    assert_true(off_circle <= 1.3e-7);
}

static void rope_table_at_zero_and_quarters(void **state) {
    (void)state;
    float cs[4];
    const double freq[] = {1.0, 1.57079632679489661923};
    rg_rope_table(cs, freq, 2, 0);
    assert_true(cs[0] == 1.0f && cs[1] == 1.0f && cs[2] == 0.0f && cs[3] == 0.0f);
    for (uint32_t quarter = 1; quarter <= 8; quarter++) { /* all four branches, at their edges */
        rg_rope_table(cs, freq, 2, quarter);
        const double angle = quarter * freq[1];
        assert_true(fabs((double)cs[1] - cos(angle)) < 1e-7);
        assert_true(fabs((double)cs[3] - sin(angle)) < 1e-7);
    }
}

/* ---- forms, tables --------------------------------------------------------------------------- */

static void forms_follow_the_block(void **state) {
    (void)state;
    for (uint32_t id = 0; id < RG_TYPE_COUNT; id++) {
        const rg_type_info *info = rg_type_get(id);
        if (!info || info->use != RG_USE_WEIGHT) continue;
        const rg_act_form form = rg_act_form_of((rg_type)id, RG_KERNELS_AUTO);
        const rg_act_form want = info->block_elems == 1     ? RG_ACT_F32
                                 : info->block_elems == 256 ? RG_ACT_Q256
                                                            : RG_ACT_Q32;
        assert_int_equal(form, want);
        assert_int_equal(rg_act_form_of((rg_type)id, RG_KERNELS_REF), RG_ACT_F32);
    }
}

/* A table without a hole for each level, also for one that this machine lacks. */
static void tables_are_complete(void **state) {
    (void)state;
    for (int level = 0; level < RG_CPU_LEVEL_COUNT; level++) {
        const rg_ops *ops = rg_ops_get((rg_cpu_level)level);
        assert_non_null(ops);
        const uint8_t *at = (const uint8_t *)ops + offsetof(rg_ops, mul);
        for (; at < (const uint8_t *)ops + offsetof(rg_ops, int8_peak);
             at += sizeof(void (*)(void))) {
            const uint8_t none[sizeof(void (*)(void))] = {0};
            assert_memory_not_equal(at, none, sizeof none);
        }
    }
    assert_int_equal(rg_ops_get(RG_CPU_SCALAR)->level, RG_CPU_SCALAR);
    (void)levels_here(); /* fails when a level that runs here has no kernels of its own */
}

static void peaks_count_their_work(void **state) {
    (void)state;
    const level_list levels = levels_here();
    for (uint32_t l = 0; l < levels.n; l++) {
        int32_t one = 0, ten = 0;
        if (!levels.ops[l]->int8_peak) continue;
        const uint64_t n = levels.ops[l]->int8_peak(1, &one);
        assert_int_equal(levels.ops[l]->int8_peak(10, &ten), 10 * n);
        assert_true(one > 0 && ten == 10 * one); /* sums of equal products */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(top_k_equals_a_sort),    cmocka_unit_test(top_k_of_sorted_scores),
        cmocka_unit_test(rope_table_equals_libm), cmocka_unit_test(rope_table_at_zero_and_quarters),
        cmocka_unit_test(forms_follow_the_block), cmocka_unit_test(tables_are_complete),
        cmocka_unit_test(peaks_count_their_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
