/* Activation codes against the quantizers of quant and the golden file, on every level. */
#include "kernels/level_check.h"

#define N_MAX 2560u

/* Results of the op and of quant for one row. */
typedef struct quantised {
    int8_t codes[N_MAX];
    float scales[N_MAX / 32];
    int16_t sums[N_MAX / 16];
} quantised;

static quantised got, want;

/* Below these the block counts as zero: its scale vanishes as f16, or its inverse overflows. */
static const double vanish_32 = 1e-37 * 127.0, vanish_256 = 1e-35;

static float magnitude_max(const float *x, uint32_t n) {
    float max = 0.0f;
    for (uint32_t i = 0; i < n; i++)
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    return max;
}

static void sums_of_codes(quantised *q, uint32_t n) {
    memset(q->sums, 0, sizeof q->sums);
    for (uint32_t i = 0; i < n; i++)
        q->sums[i / 16] = (int16_t)(q->sums[i / 16] + q->codes[i]);
}

static void reference(rg_act_form form, const float *x, uint32_t n) {
    const uint32_t span = form == RG_ACT_Q256 ? 256 : 32;
    for (uint32_t i = 0; i < n; i += span) {
        const double max = (double)magnitude_max(x + i, span);
        if (form == RG_ACT_Q256) {
            rg_block_q8_K b;
            rg_quantize_row_q8_K(x + i, &b, 256);
            if (max < vanish_256) memset(&b, 0, sizeof b);
            memcpy(want.codes + i, b.qs, 256);
            want.scales[i / 256] = b.d;
        } else {
            rg_block_q8_0 b;
            rg_quantize_row_q8_0(x + i, &b, 32);
            if (max < vanish_32) memset(b.qs, 0, 32);
            memcpy(want.codes + i, b.qs, 32);
            want.scales[i / 32] = rg_f16_to_f32(b.d);
        }
    }
    sums_of_codes(&want, n);
}

static void expect_want(const rg_ops *ops, rg_act_form form, uint32_t n, const char *what) {
    const char *level = rg_cpu_level_name(ops->level);
    expect_same(got.scales, want.scales, n / (form == RG_ACT_Q256 ? 256 : 32), what, ops);
    for (uint32_t i = 0; i < n; i++) {
        if (got.codes[i] != want.codes[i]) {
            fail_msg("%s level %s form %d: code %u of %u is %d, expected %d", what, level,
                     (int)form, i, n, got.codes[i], want.codes[i]);
        }
        if (got.sums[i / 16] != want.sums[i / 16]) {
            fail_msg("%s level %s: sum %u is %d, expected %d", what, level, i / 16,
                     got.sums[i / 16], want.sums[i / 16]);
        }
    }
}

static void run(const rg_ops *ops, rg_act_form form, const float *x, uint32_t n) {
    memset(&got, 0x5a, sizeof got);
    ops->quantize(form, x, n, got.codes, got.scales, got.sums);
}

static void expect_rules(const float *x, uint32_t n, const char *what) {
    const level_list levels = levels_here();
    for (int form = RG_ACT_Q32; form <= RG_ACT_Q256; form++) {
        if (form == RG_ACT_Q256 && n % 256 != 0) continue;
        reference((rg_act_form)form, x, n);
        for (uint32_t l = 0; l < levels.n; l++) {
            run(levels.ops[l], (rg_act_form)form, x, n);
            expect_want(levels.ops[l], (rg_act_form)form, n, what);
        }
    }
}

static void random_rows(void **state) {
    (void)state;
    draws d = draws_start("random_rows", 31001);
    static float x[N_MAX];
    for (int round = 0; round < 100; round++) {
        const uint32_t n = 32 * (1 + draw_below(&d, N_MAX / 32));
        const double reach = ldexp(1.0, (int)draw_below(&d, 40) - 20);
        draw_floats(&d, x, n, -reach, reach);
        if (round % 4 == 0) { /* one element towers over the rest */
            x[draw_below(&d, n)] = (float)(50.0 * reach);
        }
        expect_rules(x, n, "random");
        expect_rules(x, n / 256 * 256, "random of 256");
    }
}

/* Magnitudes over the whole range of f32, a scale of its own for each block. */
static void every_magnitude(void **state) {
    (void)state;
    draws d = draws_start("every_magnitude", 31002);
    float x[256];
    for (int e = -149; e < 128; e++) {
        for (uint32_t i = 0; i < 256; i++) {
            /* Two steps: the product of mantissa and power may be subnormal. */
            x[i] = (float)ldexp((double)draw_between(&d, -1.0, 1.0), e);
        }
        expect_rules(x, 256, "magnitude");
    }
}

/* With a largest magnitude of 127 the scale is one and each half is a tie. */
static void ties(void **state) {
    (void)state;
    float x[512];
    for (uint32_t i = 0; i < 512; i++)
        x[i] = (float)(int)i * 0.5f - 127.0f > 127.0f ? 0.0f : (float)(int)i * 0.5f - 127.0f;
    for (uint32_t b = 0; b < 512; b += 32)
        x[b] = b % 64 ? 127.0f : -127.0f;
    expect_rules(x, 512, "ties");
    for (uint32_t i = 0; i < 512; i++) {
        if (i % 32) x[i] = nextafterf(x[i], i % 2 ? 200.0f : -200.0f);
    }
    for (uint32_t b = 0; b < 512; b += 32)
        x[b] = 127.0f;
    expect_rules(x, 512, "beside ties");
}

static void zeros_and_equal_magnitudes(void **state) {
    (void)state;
    float x[256] = {0.0f, -0.0f};
    expect_rules(x, 256, "zeros");
    x[255] = -3.0f;
    expect_rules(x, 256, "one element");
    for (uint32_t i = 0; i < 256; i++)
        x[i] = i % 3 ? 0.75f : -0.75f;
    expect_rules(x, 256, "negative first");
    x[0] = 0.75f;
    expect_rules(x, 256, "positive first");
}

/* Here a NaN or infinite element marks its block by a NaN scale; the other blocks stay. */
static void broken_blocks_are_marked(void **state) {
    (void)state;
    const level_list levels = levels_here();
    const float broken[] = {NAN, -NAN, INFINITY, -INFINITY};
    draws d = draws_start("broken_blocks_are_marked", 31003);
    float x[768];
    for (uint32_t k = 0; k < 4 * 2; k++) {
        const rg_act_form form = k % 2 ? RG_ACT_Q256 : RG_ACT_Q32;
        const uint32_t span = form == RG_ACT_Q256 ? 256 : 32;
        draw_floats(&d, x, 768, -2.0, 2.0);
        const uint32_t at = draw_below(&d, 768), first = at / span * span;
        x[at] = 0.0f;
        reference(form, x, 768);
        memset(want.codes + first, 0, span);
        want.scales[first / span] = NAN;
        sums_of_codes(&want, 768);
        x[at] = broken[k / 2];
        for (uint32_t l = 0; l < levels.n; l++) {
            run(levels.ops[l], form, x, 768);
            expect_want(levels.ops[l], form, 768, "broken");
        }
    }
}

/* ---- golden file ----------------------------------------------------------------------------- */

static uint8_t hex_byte(const char *p) {
    const char digits[3] = {p[0], p[1], '\0'};
    return (uint8_t)strtoul(digits, NULL, 16);
}

/* The bytes of a word into `out`; the word must have exactly `n`. */
static void hex_bytes(const char *word, void *out, size_t n) {
    assert_non_null(word);
    assert_int_equal(strlen(word), 2 * n);
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)out)[i] = hex_byte(word + 2 * i);
}

static char *word_of(char **rest) {
    char *word = NULL;
    do {
        word = strsep(rest, " \n");
    } while (word && *word == '\0');
    return word;
}

static void expect_golden_case(const float *x, const rg_block_q8_0 *y0, const rg_block_q8_K *yk) {
    const level_list levels = levels_here();
    for (uint32_t l = 0; l < levels.n; l++) {
        for (uint32_t b = 0; b < 8; b++) {
            memcpy(want.codes + 32 * b, y0[b].qs, 32);
            want.scales[b] = rg_f16_to_f32(y0[b].d);
        }
        sums_of_codes(&want, 256);
        run(levels.ops[l], RG_ACT_Q32, x, 256);
        expect_want(levels.ops[l], RG_ACT_Q32, 256, "golden");
        memcpy(want.codes, yk->qs, 256);
        want.scales[0] = yk->d;
        memcpy(want.sums, yk->bsums, sizeof yk->bsums);
        run(levels.ops[l], RG_ACT_Q256, x, 256);
        expect_want(levels.ops[l], RG_ACT_Q256, 256, "golden");
    }
}

static void equal_golden(void **state) {
    (void)state;
    char *text = NULL;
    size_t len = 0, n_cases = 0;
    rg_status st = {0};
    const char *path = RG_TEST_DATA "/quant/act_golden_q8.txt";
    if (rg_file_slurp(&text, &len, path, 1 << 20, &st) != RG_OK) fail_msg("%s", st.message);
    char *rest = text, *word = NULL;
    strsep(&rest, "\n"); /* the comment */
    while ((word = word_of(&rest)) != NULL) {
        float x[256];
        rg_block_q8_0 y0[8];
        rg_block_q8_K yk;
        assert_string_equal(word, "CASE");
        word_of(&rest);
        for (uint32_t i = 0; i < 256; i++) {
            word = word_of(&rest);
            if (word && strcmp(word, "IN") == 0) word = word_of(&rest);
            assert_non_null(word);
            RG_ASSERT(word); /* cmocka's failures are not declared as not returning */
            x[i] = float_of((uint32_t)strtoul(word, NULL, 16));
        }
        assert_string_equal(word_of(&rest), "Q8_0");
        hex_bytes(word_of(&rest), y0, sizeof y0);
        assert_string_equal(word_of(&rest), "Q8_1");
        word_of(&rest); /* no op makes this form */
        assert_string_equal(word_of(&rest), "Q8_K");
        hex_bytes(word_of(&rest), &yk, sizeof yk);
        expect_golden_case(x, y0, &yk);
        n_cases++;
    }
    assert_true(n_cases > 0);
    rg_free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_rows),
        cmocka_unit_test(every_magnitude),
        cmocka_unit_test(ties),
        cmocka_unit_test(zeros_and_equal_magnitudes),
        cmocka_unit_test(broken_blocks_are_marked),
        cmocka_unit_test(equal_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
