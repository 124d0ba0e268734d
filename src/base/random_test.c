#include "base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Drawn once from the definition, by an independent implementation: they pin the function, since
 * seeds in scripts and recorded texts depend on it. */
static void test_fixed_vectors(void **state) {
    (void)state;
    static const struct {
        uint64_t seed, counter, value;
    } vectors[] = {
        {0x0u, 0x0u, 0x57b74577e39d30beu},
        {0x0u, 0x1u, 0x73f5d07973c29620u},
        {0x1u, 0x0u, 0xcc8a45b929f9cd56u},
        {0x1u, 0x1u, 0xe3dc3188760c5e88u},
        {0x2au, 0xf4240u, 0x4dbdc984e3747248u},
        {0xffffffffffffffffu, 0xffffffffffffffffu, 0x3baa9dfd4390920fu},
        {0x123456789abcdefu, 0xfedcba987654321u, 0xe34c838aee4dbb99u},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        assert_true(rg_random_u64(vectors[i].seed, vectors[i].counter) == vectors[i].value);
        assert_true(rg_random_unit(vectors[i].seed, vectors[i].counter) ==
                    (double)(vectors[i].value >> 11) / 9007199254740992.0);
    }
}

/* A draw does not depend on the draws before it. */
static void test_counter_independence(void **state) {
    (void)state;
    enum { N = 1000 };
    uint64_t forward[N];
    for (uint64_t i = 0; i < N; i++)
        forward[i] = rg_random_u64(42, i);
    for (uint64_t i = N; i-- > 0;)
        assert_true(rg_random_u64(42, i) == forward[i]);
    for (uint64_t i = 0; i < N; i++) {
        (void)rg_random_unit(i, 3);
        assert_true(rg_random_u64(42, i * 7 % N) == forward[i * 7 % N]);
    }
}

/* Flipping one bit of the seed or the counter flips half of the result's bits. */
static void test_avalanche(void **state) {
    (void)state;
    for (int word = 0; word <= 1; word++) {
        for (int bit = 0; bit < 64; bit++) {
            int flips = 0;
            for (uint64_t i = 0; i < 200; i++) {
                const uint64_t seed = i * 3, counter = i, mask = (uint64_t)1 << bit;
                const uint64_t a = rg_random_u64(seed, counter);
                const uint64_t b = word ? rg_random_u64(seed, counter ^ mask)
                                        : rg_random_u64(seed ^ mask, counter);
                flips += __builtin_popcountll(a ^ b);
            }
            /* 12,800 fair bits: 6,400 +- 57; eight deviations. */
            assert_in_range(flips, 6400 - 456, 6400 + 456);
        }
    }
}

static void test_unit_is_uniform(void **state) {
    (void)state;
    enum { N = 200000, BINS = 20 };
    static int bins[BINS];
    double sum = 0;
    for (uint64_t i = 0; i < N; i++) {
        const double u = rg_random_unit(7, i);
        assert_true(u >= 0 && u < 1);
        bins[(int)(u * BINS)]++;
        sum += u;
    }
    assert_true(sum / N > 0.497 && sum / N < 0.503);
    for (int i = 0; i < BINS; i++)
        assert_in_range(bins[i], N / BINS - 600, N / BINS + 600);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixed_vectors),
        cmocka_unit_test(test_counter_independence),
        cmocka_unit_test(test_avalanche),
        cmocka_unit_test(test_unit_is_uniform),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
