#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "forge/ple_constants.h"

#define EOS 248044u

static const uint64_t SIZES[16] = {20000003, 20000023, 20000033, 20000047, 20000059, 20000063,
                                   20000069, 20000077, 20000081, 20000093, 20000107, 20000147,
                                   20000153, 20000159, 20000161, 20000171};

static void derive_release(rg_ple_constants *c) {
    rg_status st = {0};
    assert_int_equal(rg_ple_constants_derive(c, 248320, 3, 8, 20000000, 128, 1234, &st), RG_OK);
}

static void release_constants(void **state) {
    (void)state;
    rg_ple_constants c;
    derive_release(&c);
    assert_int_equal(c.n_head, 16);
    assert_true(c.mult[0] == 23703573157769u);
    assert_true(c.mult[1] == 20109073645365u);
    assert_true(c.mult[2] == 8052911324071u);
    for (int h = 0; h < 16; h++)
        assert_true(c.size[h] == SIZES[h]);
    assert_true(c.offset[0] == 0);
    assert_true(c.offset[15] == 300001275u);
    assert_true(c.rows == 320001536u);
}

static void release_rows(void **state) {
    (void)state;
    static const uint64_t want_a[16] = {
        1531522,   26458325,  48967948,  72533165,  95637132,  116681687, 138257734, 140376286,
        167316121, 196780774, 201192701, 239730030, 244538402, 269354175, 284294431, 319007479};
    static const uint64_t want_b[16] = {
        16410909,  39682429,  55103279,  60931720,  87006904,  116506179, 131512017, 152932897,
        169641436, 182022480, 209277433, 237891023, 256841529, 277007269, 290665954, 300984276};
    rg_ple_constants c;
    uint64_t rows[RG_NGRAM_HEADS_MAX];
    derive_release(&c);
    rg_ple_constants_rows(&c, 3, (const uint64_t[]){1000, 2000, 3000}, rows);
    assert_memory_equal(rows, want_a, sizeof want_a);
    rg_ple_constants_rows(&c, 3, (const uint64_t[]){9707, EOS, EOS}, rows);
    assert_memory_equal(rows, want_b, sizeof want_b);
}

/* The base itself counts when it is prime. */
static void small_tables(void **state) {
    (void)state;
    rg_ple_constants c;
    rg_status st = {0};
    assert_int_equal(rg_ple_constants_derive(&c, 384, 3, 4, 97, 16, 1234, &st), RG_OK);
    const uint64_t want[8] = {97, 101, 103, 107, 109, 113, 127, 131};
    assert_memory_equal(c.size, want, sizeof want);
    assert_true(c.rows == 896);
    assert_true(c.mult[0] == 16304757896083889u);
}

static void too_large(void **state) {
    (void)state;
    rg_ple_constants c;
    rg_status st = {0};
    assert_int_equal(rg_ple_constants_derive(&c, 1000, 3, 32, 1u << 30, 128, 1, &st), RG_INVALID);
    assert_non_null(strstr(st.message, "64 n-gram heads"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(release_constants),
        cmocka_unit_test(release_rows),
        cmocka_unit_test(small_tables),
        cmocka_unit_test(too_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
