#include "base/map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define N_KEYS    100000
#define KEY_BYTES 24

typedef struct map_key {
    char text[KEY_BYTES]; /* any bytes, NUL included */
    size_t len;
    uint64_t value;
} map_key;

static int compare_keys(const void *a, const void *b) {
    const map_key *x = a, *y = b;
    if (x->len != y->len) return x->len < y->len ? -1 : 1;
    return memcmp(x->text, y->text, x->len);
}

/* Keys of 0 to 23 bytes drawn from few letters, so that short ones repeat. */
static map_key *make_keys(uint64_t seed) {
    map_key *keys = rg_alloc(N_KEYS, sizeof *keys, NULL);
    assert_non_null(keys);
    for (uint64_t i = 0; i < N_KEYS; i++) {
        const uint64_t r = rg_random_u64(seed, i * 4);
        keys[i].len = r % KEY_BYTES;
        keys[i].value = i;
        for (size_t j = 0; j < keys[i].len; j++) {
            const uint64_t word = rg_random_u64(seed, i * 4 + 1 + j / 8);
            keys[i].text[j] = (char)(word >> (j % 8 * 8) & 0x83);
        }
    }
    return keys;
}

/* The model: the keys sorted; the first value added for a key is the one that stays. */
static void test_equals_model(void **state) {
    (void)state;
    map_key *keys = make_keys(11), *sorted = rg_alloc(N_KEYS, sizeof *sorted, NULL);
    assert_non_null(sorted);
    rg_map m;
    rg_map_init(&m);
    rg_status st = {0};
    size_t n_new = 0;
    for (size_t i = 0; i < N_KEYS; i++) {
        bool existed = false;
        assert_int_equal(rg_map_add(&m, keys[i].text, keys[i].len, keys[i].value, &existed, &st),
                         RG_OK);
        n_new += !existed;
        assert_int_equal(m.count, n_new);
    }
    memcpy(sorted, keys, N_KEYS * sizeof *keys);
    qsort(sorted, N_KEYS, sizeof *sorted, compare_keys);
    size_t n_distinct = 0;
    for (size_t i = 0, end = 0; i < N_KEYS; i = end) {
        uint64_t first = UINT64_MAX, got = 0;
        for (end = i; end < N_KEYS && compare_keys(&sorted[i], &sorted[end]) == 0; end++) {
            if (sorted[end].value < first) first = sorted[end].value;
        }
        n_distinct++;
        assert_true(rg_map_get(&m, sorted[i].text, sorted[i].len, &got));
        assert_int_equal(got, first);
    }
    assert_int_equal(n_distinct, m.count);
    assert_true(n_distinct < N_KEYS && n_distinct > N_KEYS / 2);
    for (size_t i = 0; i < N_KEYS; i++) {
        map_key absent = keys[i];
        absent.text[KEY_BYTES - 1] = 0x40; /* no key has this byte, nor this length */
        assert_false(rg_map_get(&m, absent.text, KEY_BYTES, NULL));
    }
    rg_map_deinit(&m);
    rg_free(sorted);
    rg_free(keys);
}

static void test_empty_and_reuse(void **state) {
    (void)state;
    rg_map m;
    rg_map_init(&m);
    uint64_t v = 5;
    assert_false(rg_map_get(&m, "a", 1, &v));
    assert_int_equal(v, 5);
    assert_int_equal(rg_map_add(&m, "", 0, 9, NULL, NULL), RG_OK);
    assert_true(rg_map_get(&m, "a", 0, &v));
    assert_int_equal(v, 9);
    rg_map_deinit(&m);
    assert_false(rg_map_get(&m, "", 0, &v));
    assert_int_equal(rg_map_add(&m, "b", 1, 1, NULL, NULL), RG_OK);
    assert_true(rg_map_get(&m, "b", 1, NULL));
    rg_map_deinit(&m);
}

/* A failed growth leaves all that was there. */
static void test_torture(void **state) {
    (void)state;
    static char names[1000][8];
    for (size_t i = 0; i < 1000; i++)
        snprintf(names[i], sizeof names[i], "%zu", i);
    uint64_t n = 1;
    for (;; n++) {
        rg_map m;
        rg_map_init(&m);
        rg_status st = {0};
        rg_code rc = RG_OK;
        rg_alloc_fail_at(n, false);
        size_t added = 0;
        while (added < 1000 && rc == RG_OK) {
            rc = rg_map_add(&m, names[added], strlen(names[added]), added, NULL, &st);
            if (rc == RG_OK) added++;
        }
        rg_alloc_fail_at(0, false);
        assert_int_equal(m.count, added);
        for (size_t i = 0; i < 1000; i++) {
            uint64_t v = 0;
            assert_int_equal(rg_map_get(&m, names[i], strlen(names[i]), &v), i < added);
            if (i < added) assert_int_equal(v, i);
        }
        rg_map_deinit(&m);
        if (rc == RG_OK) break;
        assert_int_equal(st.code, RG_NOMEM);
    }
    assert_true(n > 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_model),
        cmocka_unit_test(test_empty_and_reuse),
        cmocka_unit_test(test_torture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
