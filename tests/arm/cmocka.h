/* The part of cmocka that the tests of the kernels use, for cross compilers without the library. */
#ifndef RG_TESTS_ARM_CMOCKA_H
#define RG_TESTS_ARM_CMOCKA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

#define cmocka_unit_test(f)                                                                        \
    { #f, f }
#define print_message(...) ((void)printf(__VA_ARGS__))
#define fail_msg(...)                                                                              \
    do {                                                                                           \
        (void)printf("%s:%d: ", __FILE__, __LINE__);                                               \
        (void)printf(__VA_ARGS__);                                                                 \
        (void)printf("\n");                                                                        \
        exit(1);                                                                                   \
    } while (0)
#define assert_true(c)                                                                             \
    do {                                                                                           \
        if (!(c)) fail_msg("not true: %s", #c);                                                    \
    } while (0)
#define assert_false(c)                  assert_true(!(c))
#define assert_non_null(p)               assert_true((p) != NULL)
#define assert_int_equal(a, b)           assert_true((a) == (b))
#define assert_string_equal(a, b)        assert_true(strcmp(a, b) == 0)
#define assert_memory_not_equal(a, b, n) assert_true(memcmp(a, b, n) != 0)

/* Runs all in order; a failed one ends the program with 1. */
static inline int cmocka_run(const struct CMUnitTest *tests, size_t n) {
    void *state = NULL;
    for (size_t i = 0; i < n; i++) {
        tests[i].run(&state);
        (void)printf("ok %s\n", tests[i].name);
    }
    return 0;
}
#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    cmocka_run(tests, sizeof(tests) / sizeof((tests)[0]))

#endif
