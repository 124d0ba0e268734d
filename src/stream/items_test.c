#include "stream/items.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static rg_stream_group group(uint32_t n, uint32_t bytes, uint64_t offset, uint64_t stride) {
    rg_stream_group g = {.n_item = n, .n_extent = 1};
    g.extents[0] = (rg_stream_extent){0, bytes, offset, stride};
    return g;
}

/* The superset of every part covers the payload, is aligned, and fits the slot of its class. */
static void test_parts(void **state) {
    (void)state;
    rg_stream_group g = {.n_item = 100, .n_extent = 3};
    g.extents[0] = (rg_stream_extent){0, 5000, 33, 5000};
    g.extents[1] = (rg_stream_extent){1, 4096, 4096, 4096};
    g.extents[2] = (rg_stream_extent){0, 1, 1 << 20, 7};
    rg_items t;
    assert_int_equal(rg_items_init(&t, &g, 1, NULL), RG_OK);
    for (uint32_t i = 0; i < 100; i++) {
        rg_item_part p[RG_STREAM_EXTENTS_MAX];
        uint64_t at = 0;
        assert_int_equal(rg_items_parts(&t, i, p), 3);
        for (uint32_t e = 0; e < 3; e++) {
            const uint64_t begin = g.extents[e].offset + i * g.extents[e].stride;
            assert_int_equal(p[e].read_offset + p[e].payload_skip, begin);
            assert_int_equal(p[e].payload_bytes, g.extents[e].bytes);
            assert_true(p[e].payload_skip + p[e].payload_bytes <= p[e].read_bytes);
            assert_int_equal(p[e].read_offset % RG_STREAM_ALIGN, 0);
            assert_int_equal(p[e].read_bytes % RG_STREAM_ALIGN, 0);
            assert_int_equal(p[e].slot_offset, at);
            at += p[e].read_bytes;
        }
        assert_true(at <= t.layout.slot_bytes_max);
    }
    rg_items_deinit(&t);
}

static void test_classes(void **state) {
    (void)state;
    rg_stream_group g[20];
    rg_stream_layout l;
    for (uint32_t i = 0; i < 20; i++)
        g[i] = group(4, 4096 * (100 + i % 3), 0, 4096ull * 200);
    assert_int_equal(rg_stream_layout_of(&l, g, 20, NULL), RG_OK);
    assert_int_equal(l.n_class, 1); /* within 1/32 */
    assert_int_equal(l.slot_bytes_max, 4096 * 102);
    assert_int_equal(l.slot_bytes_all, 80 * 4096ull * 102);
    assert_int_equal(rg_stream_min_bytes(&l, 10), 11 * 4096ull * 102);
    for (uint32_t i = 0; i < 20; i++)
        g[i] = group(4, 4096 * (1 + i * i), 0, 4096ull * 400);
    assert_int_equal(rg_stream_layout_of(&l, g, 20, NULL), RG_OK);
    assert_true(l.n_class > 1 && l.n_class <= RG_STREAM_CLASSES_MAX);
    for (uint32_t c = 1; c < l.n_class; c++)
        assert_true(l.class_bytes[c] > l.class_bytes[c - 1]);
    assert_int_equal(l.slot_bytes_max, 4096 * 362);
    rg_items t;
    assert_int_equal(rg_items_init(&t, g, 20, NULL), RG_OK);
    for (uint32_t i = 0; i < 20; i++) {
        assert_true(l.class_bytes[t.class_of[i]] >= 4096ull * (1 + i * i));
        assert_int_equal(rg_items_group(&t, i * 4 + 3), i);
        assert_int_equal(rg_items_index(&t, i * 4 + 3), 3);
    }
    rg_items_deinit(&t);
}

static void expect_refused(rg_stream_group g, const char *word) {
    rg_stream_layout l;
    rg_status st = {0};
    assert_int_equal(rg_stream_layout_of(&l, &g, 1, &st), RG_INVALID);
    assert_non_null(strstr(st.message, word));
}

static void test_malformed(void **state) {
    (void)state;
    rg_stream_layout l;
    expect_refused(group(0, 1, 0, 1), "0 items");
    expect_refused(group(RG_STREAM_ITEMS_MAX + 1, 1, 0, 1), "items");
    expect_refused(group(1, 0, 0, 0), "0 bytes");
    expect_refused(group(2, 1, UINT64_MAX, 0), "overflow");
    expect_refused(group(2, 1, 0, UINT64_MAX), "overflow");
    expect_refused(group(1000, 1, 0, (uint64_t)1 << 60), "overflow");
    rg_stream_group g = group(1, 1, 0, 0);
    g.n_extent = 4;
    expect_refused(g, "4 extents");
    assert_int_equal(rg_stream_layout_of(&l, &g, 0, NULL), RG_INVALID);
    const rg_stream_group two[2] = {group(RG_STREAM_ITEMS_MAX, 1, 0, 1), group(1, 1, 0, 0)};
    assert_int_equal(rg_stream_layout_of(&l, two, 2, NULL), RG_INVALID);
}

static void test_files(void **state) {
    (void)state;
    const rg_stream_group g = group(3, 10, 5, 10);
    const char *const path = "x.gguf";
    const uint64_t whole = 35, cut = 34;
    rg_items t;
    rg_status st = {0};
    assert_int_equal(rg_items_init(&t, &g, 1, NULL), RG_OK);
    assert_int_equal(rg_items_check_files(&t, &whole, &path, 1, &st), RG_OK);
    assert_int_equal(rg_items_check_files(&t, &cut, &path, 1, &st), RG_FORMAT);
    assert_non_null(strstr(st.message, "x.gguf: group 0 item 2 ends at 35, the file at 34"));
    assert_int_equal(rg_items_check_files(&t, &cut, &path, 0, NULL), RG_INVALID);
    rg_items_deinit(&t);
}

static void test_torture(void **state) {
    (void)state;
    const rg_stream_group g = group(3, 10, 5, 10);
    rg_items t;
    uint64_t n = 1;
    for (;; n++) {
        rg_alloc_fail_at(n, false);
        const rg_code rc = rg_items_init(&t, &g, 1, NULL);
        rg_alloc_fail_at(0, false);
        if (rc == RG_OK) break;
        assert_int_equal(rc, RG_NOMEM);
    }
    assert_int_equal(n, 6);
    rg_items_deinit(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),     cmocka_unit_test(test_classes),
        cmocka_unit_test(test_malformed), cmocka_unit_test(test_files),
        cmocka_unit_test(test_torture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
