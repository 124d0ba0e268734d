#include "base/buf.h"

#include <string.h>

#include "base/alloc.h"
#include "base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_append_equals_model(void **state) {
    (void)state;
    enum { MODEL_MAX = 200000 };
    char *model = rg_alloc(MODEL_MAX, 1, NULL);
    assert_non_null(model);
    size_t len = 0;
    rg_buf b;
    rg_buf_init(&b, 0);
    rg_status st = {0};
    for (uint64_t i = 0; len < MODEL_MAX - 400; i++) {
        char piece[300];
        const size_t n = rg_random_u64(1, i) % sizeof piece;
        memset(piece, 'a' + (int)(i % 26), sizeof piece);
        if (i % 3 == 0) {
            piece[n] = 0;
            assert_int_equal(rg_buf_puts(&b, piece, &st), RG_OK);
        } else if (i % 3 == 1) {
            assert_int_equal(rg_buf_append(&b, piece, n, &st), RG_OK);
        } else {
            assert_int_equal(rg_buf_printf(&b, &st, "%.*s", (int)n, piece), RG_OK);
        }
        memcpy(model + len, piece, n);
        len += n;
        assert_int_equal(b.len, len);
        assert_int_equal(b.data[len], 0);
    }
    assert_memory_equal(b.data, model, len);
    rg_buf_clear(&b);
    assert_int_equal(b.len, 0);
    assert_string_equal(b.data, "");
    rg_buf_deinit(&b);
    assert_null(b.data);
    rg_free(model);
}

static void test_empty(void **state) {
    (void)state;
    rg_buf b;
    rg_buf_init(&b, 0);
    rg_buf_clear(&b);
    assert_null(b.data);
    assert_int_equal(rg_buf_append(&b, NULL, 0, NULL), RG_OK);
    assert_string_equal(b.data, "");
    assert_int_equal(rg_buf_printf(&b, NULL, "%s", ""), RG_OK);
    assert_int_equal(b.len, 0);
    rg_buf_deinit(&b);
    rg_buf_deinit(&b);
}

/* A refused append leaves the bytes that were there, and room for one that fits. */
static void test_limit(void **state) {
    (void)state;
    rg_buf b;
    rg_buf_init(&b, 10);
    rg_status st = {0};
    assert_int_equal(rg_buf_puts(&b, "1234567", &st), RG_OK);
    assert_int_equal(rg_buf_puts(&b, "89ab", &st), RG_NOMEM);
    assert_string_equal(st.message, "buffer of 7 bytes cannot grow by 4 (limit 10)");
    assert_int_equal(rg_buf_printf(&b, NULL, "%d", 12345), RG_NOMEM);
    assert_int_equal(rg_buf_append(&b, "x", SIZE_MAX, NULL), RG_NOMEM);
    assert_string_equal(b.data, "1234567");
    assert_int_equal(rg_buf_printf(&b, NULL, "%d", 890), RG_OK);
    assert_string_equal(b.data, "1234567890");
    rg_buf_deinit(&b);
    assert_int_equal(b.max, 10);
    rg_buf huge;
    rg_buf_init(&huge, 0);
    assert_int_equal(rg_buf_append(&huge, "x", SIZE_MAX / 2, NULL), RG_NOMEM);
    assert_int_equal(rg_buf_append(&huge, "x", SIZE_MAX, NULL), RG_NOMEM);
    rg_buf_deinit(&huge);
}

static void test_torture(void **state) {
    (void)state;
    for (uint64_t n = 1;; n++) {
        rg_buf b;
        rg_buf_init(&b, 0);
        rg_status st = {0};
        rg_alloc_fail_at(n, false);
        rg_code rc = RG_OK;
        size_t done = 0;
        for (; done < 1000 && rc == RG_OK; done++)
            rc = rg_buf_printf(&b, &st, "%03zu,", done);
        rg_alloc_fail_at(0, false);
        if (rc == RG_OK) {
            assert_int_equal(b.len, 4000);
            rg_buf_deinit(&b);
            assert_true(n > 3);
            return;
        }
        assert_int_equal(rc, RG_NOMEM);
        assert_int_equal(st.code, RG_NOMEM);
        assert_int_equal(b.len, (done - 1) * 4);
        assert_int_equal(rg_buf_puts(&b, "and on", NULL), RG_OK);
        rg_buf_deinit(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append_equals_model),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_torture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
