/* Routing of synthetic models, measured with the engine on small shapes with fixed seeds: the bands
 * are wide against the noise, narrow against the effects.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>

#include <cmocka.h>

#include "forge/route_stats.h"
#include "forge/synth_parts.h"
#include "forge/test_folder.h"

static void measure(const char *const *fields, double skew, double correlation,
                    double predictability, uint32_t n_tokens, rg_route_stats *out) {
    static const char *const base[] = {
        "hidden=256",  "ff=32",     "ff_shared=32", "heads=2",    "head_dim=64",    "rot=16",
        "ssm_dim=64",  "k_heads=2", "v_heads=4",    "idx_dim=64", "rank=64",        "vocab=2048",
        "experts=256", "used=8",    "layers=2",     "interval=4", "ngram_base=2003"};
    test_folder f;
    rg_synth_options opt;
    rg_synth_result r;
    rg_status st = {0};
    folder_make(&f);
    rg_synth_options_init(&opt);
    assert_int_equal(rg_synth_preset(&opt.shape, "tiny", NULL), RG_OK);
    for (size_t i = 0; i < RG_ARRAY_LEN(base); i++)
        assert_int_equal(rg_synth_set(&opt.shape, base[i], NULL), RG_OK);
    for (size_t i = 0; fields && fields[i]; i++)
        assert_int_equal(rg_synth_set(&opt.shape, fields[i], NULL), RG_OK);
    static const char *const rules[] = {"ffn_.*_exps=iq2_xs"}; /* small files */
    opt.type_rules = rules;
    opt.n_type_rules = 1;
    opt.type_default = "q8_0";
    opt.skew = skew;
    opt.correlation = correlation;
    opt.predictability = predictability;
    if (rg_synth_write(folder_file(&f, "m.gguf"), &opt, &r, &st) != RG_OK)
        fail_msg("%s", st.message);
    const rg_code rc = rg_route_measure(
        f.file, &(rg_route_options){.n_tokens = n_tokens, .seed = 7, .n_threads = 2}, out, &st);
    assert_int_equal(unlink(f.file), 0);
    folder_remove(&f);
    if (rc != RG_OK) fail_msg("%s", st.message);
}

static void between(const char *what, double v, double low, double high) {
    if (!(v >= low && v <= high)) fail_msg("%s is %g, wanted %g to %g", what, v, low, high);
}

/* The defaults land near the figures of the reference job. */
static void defaults(void **state) {
    (void)state;
    static const char *const fields[] = {"experts=512", "used=10", NULL};
    rg_route_stats s;
    measure(fields, -1, -1, -1, 1024, &s);
    between("distinct experts of 3 tokens", s.distinct_3, 19, 23.5);
    between("distinct experts of 1,024 tokens", s.distinct_1024, 370, 440);
    between("hit of rank 1 among the missing", s.hit_missing[0], 0.35, 0.75);
    between("hit of rank 4 among the missing", s.hit_missing[3], 0.15, 0.45);
    between("hit of rank 10 among the missing", s.hit_missing[9], 0.02, 0.25);
    between("logit deviation", s.logit_std, 0.7, 1.4);
    between("residual", s.residual_rms_max, 4, 16);
}

static void skew(void **state) {
    (void)state;
    rg_route_stats flat, steep;
    measure(NULL, 0, -1, -1, 320, &flat);
    measure(NULL, 2, -1, -1, 320, &steep);
    between("share of the top tenth, flat", flat.top_tenth_share, 0.1, 0.4);
    between("share of the top tenth, steep", steep.top_tenth_share, flat.top_tenth_share + 0.2, 1);
}

static void correlation(void **state) {
    (void)state;
    rg_route_stats none, some;
    measure(NULL, 0.5, 0, -1, 320, &none);
    measure(NULL, 0.5, 0.7, -1, 320, &some);
    between("reuse by the next token, uncorrelated", none.reuse_1 - none.reuse_64, -0.03, 0.05);
    between("reuse by the next token, correlated", some.reuse_1 - some.reuse_64, 0.12, 0.6);
}

static void predictability(void **state) {
    (void)state;
    rg_route_stats low, high;
    measure(NULL, 0.5, 0.3, 0.3, 384, &low);
    measure(NULL, 0.5, 0.3, 1, 384, &high);
    between("hit of rank 1, unpredictable", low.hit[0], 0, 0.45);
    between("hit of rank 1, predictable", high.hit[0], 0.8, 1);
    for (uint32_t r = 1; r < high.n_rank; r++)
        between("hit by rank", high.hit[r], 0, high.hit[r - 1] + 0.05);
}

/* Depth changes little: nothing blows up and the last layers route like the first. */
static void deep(void **state) {
    (void)state;
    static const char *const fields[] = {"layers=48", "hidden=256", "experts=64",
                                         "used=4",    "heads=2",    NULL};
    rg_route_stats s;
    measure(fields, -1, -1, -1, 48, &s);
    between("residual", s.residual_rms_max, 4, 16);
    between("logit deviation", s.logit_std, 0.7, 1.4);
    between("hit of rank 1", s.hit[0], 0.6, 1);
}

static void usage_is_zipf(void **state) {
    (void)state;
    static double usage[512];
    rg_synth_usage(512, 10, 1.35, usage);
    double sum = 0;
    for (int i = 0; i < 512; i++) {
        sum += usage[i];
        if (i) assert_true(usage[i] <= usage[i - 1]);
    }
    between("sum", sum, 9.999, 10.001);
    between("most popular", usage[0], 0.3, 0.5001);
    rg_synth_usage(8, 8, 2, usage);
    for (int i = 0; i < 8; i++)
        between("usage when all are used", usage[i], 0, 8);
}

static void bad_requests(void **state) {
    (void)state;
    rg_route_stats s;
    rg_status st = {0};
    assert_int_equal(
        rg_route_measure("no-such-file.gguf", &(rg_route_options){.n_tokens = 8}, &s, &st), RG_IO);
    rg_status_clear(&st);
    assert_int_equal(rg_route_measure(RG_TEST_DATA "/tiny/a-f32.gguf",
                                      &(rg_route_options){.n_tokens = 100000}, &s, &st),
                     RG_INVALID);
    assert_non_null(strstr(st.message, "100000 tokens"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),       cmocka_unit_test(skew), cmocka_unit_test(correlation),
        cmocka_unit_test(predictability), cmocka_unit_test(deep), cmocka_unit_test(usage_is_zipf),
        cmocka_unit_test(bad_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
