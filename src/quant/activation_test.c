/* Activation quantizers against the golden file, and at the ends of the number range. */
#include "quant/golden_words.h"

#include <math.h>

#include "quant/half.h"
#include "quant/quant.h"

static void expect_bytes(golden *g, const char *tag, const void *got, size_t n) {
    uint8_t want[sizeof(rg_block_q8_K)]; /* the longest of the three */
    assert_true(n <= sizeof want);
    assert_string_equal(golden_word(g), tag);
    golden_bytes(golden_word(g), want, n);
    assert_memory_equal(got, want, n);
}

static void equal_golden(void **state) {
    (void)state;
    golden g;
    char *header = NULL;
    golden_open(&g, "act_golden_q8.txt", &header);
    const size_t n_cases = golden_number(header, "cases=");
    assert_true(n_cases > 0);
    for (size_t n = 0; n < n_cases; n++) {
        float x[256];
        rg_block_q8_0 y0[8];
        rg_block_q8_1 y1[8];
        rg_block_q8_K yk;
        assert_string_equal(golden_word(&g), "CASE");
        assert_non_null(golden_word(&g));
        for (size_t i = 0; i < 256; i++) {
            const char *word = golden_word(&g);
            if (strcmp(word, "IN") == 0) word = golden_word(&g);
            x[i] = bits_to_f32(golden_bits(word));
        }
        rg_quantize_row_q8_0(x, y0, 256);
        rg_quantize_row_q8_1(x, y1, 256);
        rg_quantize_row_q8_K(x, &yk, 256);
        expect_bytes(&g, "Q8_0", y0, sizeof y0);
        expect_bytes(&g, "Q8_1", y1, sizeof y1);
        expect_bytes(&g, "Q8_K", &yk, sizeof yk);
    }
    assert_null(golden_word(&g));
    golden_close(&g);
}

/* With amax 127 the scale is one, so codes show the rounding rule alone. */
static void ties_round_by_their_rule(void **state) {
    (void)state;
    const struct {
        float x;
        int away, even;
    } cases[] = {{0.5f, 1, 0},          {-0.5f, -1, 0},         {1.5f, 2, 2},
                 {2.5f, 3, 2},          {-2.5f, -3, -2},        {126.5f, 127, 126},
                 {-126.5f, -127, -126}, {0x1.fffffep-2f, 0, 0}, {-0x1.fffffep-2f, 0, 0},
                 {0.50000006f, 1, 1}};
    for (size_t i = 0; i < RG_ARRAY_LEN(cases); i++) {
        float x[256] = {cases[i].x, -127.0f};
        rg_block_q8_0 y0;
        rg_block_q8_K yk;
        rg_quantize_row_q8_0(x, &y0, 32);
        rg_quantize_row_q8_K(x, &yk, 256);
        assert_int_equal(y0.d, 0x3c00);
        assert_int_equal(y0.qs[0], cases[i].away);
        assert_int_equal(y0.qs[1], -127);
        assert_true(yk.d == 1.0f);
        assert_int_equal(yk.qs[0], cases[i].even);
        assert_int_equal(yk.bsums[0], cases[i].even - 127);
    }
}

static void zeros_give_zero_blocks(void **state) {
    (void)state;
    const float x[256] = {0.0f, -0.0f};
    rg_block_q8_0 y0[8];
    rg_block_q8_1 y1[8];
    rg_block_q8_K yk;
    const rg_block_q8_K zero = {0};
    memset(y0, 0xff, sizeof y0);
    memset(y1, 0xff, sizeof y1);
    memset(&yk, 0xff, sizeof yk);
    rg_quantize_row_q8_0(x, y0, 256);
    rg_quantize_row_q8_1(x, y1, 256);
    rg_quantize_row_q8_K(x, &yk, 256);
    assert_memory_equal(&yk, &zero, sizeof zero);
    assert_memory_equal(y0, &zero, sizeof y0);
    assert_memory_equal(y1, &zero, sizeof y1);
}

/* The first of two equal magnitudes gives q8_K the sign of its scale. */
static void first_largest_gives_the_sign(void **state) {
    (void)state;
    float x[256] = {0.25f, 2.0f, -2.0f};
    rg_block_q8_K y;
    rg_quantize_row_q8_K(x, &y, 256);
    assert_true(y.d < 0.0f);
    assert_int_equal(y.qs[1], -127);
    assert_int_equal(y.qs[2], 127);
    x[1] = -2.0f;
    rg_quantize_row_q8_K(x, &y, 256);
    assert_true(y.d > 0.0f);
    assert_int_equal(y.qs[1], -127);
}

static void extremes_give_defined_codes(void **state) {
    (void)state;
    const float extremes[] = {0x1p-149f, -0x1p-149f, 0x1p-126f, 0x1.fffffep127f, -INFINITY, NAN};
    for (size_t i = 0; i < RG_ARRAY_LEN(extremes); i++) {
        float x[256] = {extremes[i], 0.0f, 1e-30f};
        x[200] = NAN;
        rg_block_q8_0 y0;
        rg_block_q8_1 y1;
        rg_block_q8_K yk;
        rg_quantize_row_q8_0(x, &y0, 32);
        rg_quantize_row_q8_1(x, &y1, 32);
        rg_quantize_row_q8_K(x, &yk, 256);
        for (size_t j = 0; j < 32; j++)
            assert_in_range(y0.qs[j] + 127, 0, 254);
        assert_memory_equal(y0.qs, y1.qs, sizeof y0.qs);
        assert_int_equal(y0.qs[1], 0);
        for (size_t j = 0; j < 256; j++)
            assert_in_range(yk.qs[j] + 127, 0, 254);
        assert_int_equal(yk.qs[200], 0);
        if (isinf(extremes[i])) {
            assert_int_equal(y0.d, 0x7c00);
            assert_true(isinf(yk.d));
        }
        if (isnan(extremes[i])) assert_int_equal(y0.qs[0], 0);
    }
}

/* A lone subnormal: its inverse scale overflows. */
static void subnormal_blocks_stay_in_range(void **state) {
    (void)state;
    float x[256] = {0x1p-149f, 0.0f, -0x1p-149f};
    rg_block_q8_0 y0;
    rg_block_q8_K yk;
    rg_quantize_row_q8_0(x, &y0, 32);
    rg_quantize_row_q8_K(x, &yk, 256);
    assert_int_equal(y0.d, 0);
    assert_int_equal(y0.qs[1], 0);
    assert_true(yk.d == 0.0f);
    assert_int_equal(yk.qs[0], -127);
    assert_int_equal(yk.qs[1], 0);
    assert_int_equal(yk.qs[2], 127);
    x[0] = 0x1p-140f; /* here amax / 127 is a subnormal other than zero */
    rg_quantize_row_q8_0(x, &y0, 32);
    assert_int_equal(y0.d, 0);
    assert_int_equal(y0.qs[0], 127);
    assert_int_equal(y0.qs[1], 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_golden),
        cmocka_unit_test(ties_round_by_their_rule),
        cmocka_unit_test(zeros_give_zero_blocks),
        cmocka_unit_test(first_largest_gives_the_sign),
        cmocka_unit_test(extremes_give_defined_codes),
        cmocka_unit_test(subnormal_blocks_stay_in_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
