#include "base/cpu.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_levels(void **state) {
    (void)state;
    assert_true(rg_cpu_level_runs(RG_CPU_SCALAR));
    assert_false(rg_cpu_level_runs(RG_CPU_LEVEL_COUNT));
    /* A level implies those before it; no machine runs levels of two architectures. */
    if (rg_cpu_level_runs(RG_CPU_X86_V4)) assert_true(rg_cpu_level_runs(RG_CPU_X86_V3));
    if (rg_cpu_level_runs(RG_CPU_NEON)) assert_false(rg_cpu_level_runs(RG_CPU_X86_V3));
    assert_string_equal(rg_cpu_level_name(RG_CPU_X86_V3), "x86-64-v3");
    assert_string_equal(rg_cpu_level_name(RG_CPU_LEVEL_COUNT), "unknown");
}

/* Every name either caps the choice at its level or is refused as another architecture's. */
static void test_pick(void **state) {
    (void)state;
    rg_cpu_level best = RG_CPU_SCALAR, level = RG_CPU_SCALAR;
    assert_int_equal(rg_cpu_level_pick(&best, NULL, NULL), RG_OK);
    assert_true(rg_cpu_level_runs(best));
    for (int i = best + 1; i < RG_CPU_LEVEL_COUNT; i++)
        assert_false(rg_cpu_level_runs((rg_cpu_level)i));
    for (int i = 0; i < RG_CPU_LEVEL_COUNT; i++) {
        rg_status st = {0};
        const rg_code rc = rg_cpu_level_pick(&level, rg_cpu_level_name((rg_cpu_level)i), &st);
        assert_true(rg_cpu_level_runs(level));
        if (rc == RG_OK) {
            assert_true(level <= (rg_cpu_level)i && level <= best);
            if (rg_cpu_level_runs((rg_cpu_level)i)) assert_int_equal(level, i);
        } else {
            assert_int_equal(rc, RG_INVALID);
            assert_false(rg_cpu_level_runs((rg_cpu_level)i));
            assert_int_equal(level, RG_CPU_SCALAR);
        }
    }
    assert_int_equal(rg_cpu_level_pick(&level, "scalar", NULL), RG_OK);
    assert_int_equal(level, RG_CPU_SCALAR);
}

static void test_unknown_names(void **state) {
    (void)state;
    static const char *const names[] = {"", "x86", "x86-64-v3 ", "SCALAR", "unknown"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        rg_cpu_level level = RG_CPU_NEON;
        rg_status st = {0};
        assert_int_equal(rg_cpu_level_pick(&level, names[i], &st), RG_INVALID);
        assert_int_equal(level, RG_CPU_SCALAR);
        assert_non_null(strstr(st.message, "known: scalar, x86-64-v3"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_pick),
        cmocka_unit_test(test_unknown_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
