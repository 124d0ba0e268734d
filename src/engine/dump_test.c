/* Dumps: what is written is found again; a difference is named by layer, tensor and place; folders
 * and indexes that are none are refused with one line.
 */
#include "engine/dump.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

static int make_dir(void **state) {
    (void)state;
    (void)snprintf(dir, sizeof dir, "dump_test.XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state) {
    (void)state;
    static const char *const files[] = {"index.tsv", "residual.0.f32", "residual.1.f32",
                                        "router_ids.1.f32", "gdn_state.0.f32"};
    for (size_t i = 0; i < RG_ARRAY_LEN(files); i++) {
        char path[160];
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    return rmdir(dir);
}

static void show(const rg_tap *tap, const char *name, uint32_t layer, uint32_t row0, uint32_t rows,
                 uint32_t cols, const float *data) {
    rg_status st = {0};
    if (tap->see(tap->user, name, layer, row0, rows, cols, data, &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
}

static float values[6][4];

/* Two windows: rows 0..3 and 4..5. `change` is added to one value. */
static void feed(const rg_tap *tap, float change) {
    for (uint32_t r = 0; r < 6; r++) {
        for (uint32_t c = 0; c < 4; c++)
            values[r][c] = (float)(r * 10 + c) - 20.0f;
    }
    for (uint32_t window = 0; window < 2; window++) {
        const uint32_t row0 = window * 4, rows = window ? 2 : 4;
        const float state[4] = {(float)window, 1, 2, 3};
        values[5][2] = 32.0f;
        show(tap, "residual", 0, row0, rows, 4, values[row0]);
        show(tap, "gdn_state", 0, 0, 2, 2, state);
        values[5][2] += change;
        show(tap, "residual", 1, row0, rows, 4, values[row0]);
        show(tap, "router_ids", 1, row0, rows, 1, values[row0]);
    }
}

static void write_dump(void) {
    rg_dump *d = NULL;
    rg_status st = {0};
    char report[256];
    if (rg_dump_create(&d, dir, &st) != RG_OK) fail_msg("%s", st.message);
    const rg_tap tap = rg_dump_tap(d);
    feed(&tap, 0.0f);
    assert_int_equal(rg_dump_finish(d, report, sizeof report, &st), RG_OK);
    assert_non_null(strstr(report, "4 tensors"));
    rg_dump_destroy(d);
}

static void compare(float change, double tolerance, char *report, size_t cap) {
    rg_dump *d = NULL;
    rg_status st = {0};
    if (rg_dump_compare(&d, dir, tolerance, &st) != RG_OK) fail_msg("%s", st.message);
    const rg_tap tap = rg_dump_tap(d);
    feed(&tap, change);
    assert_int_equal(rg_dump_finish(d, report, cap, &st), RG_OK);
    rg_dump_destroy(d);
}

static void the_same_run_shows_no_difference(void **state) {
    (void)state;
    char report[256];
    write_dump();
    compare(0.0f, 0.0, report, sizeof report);
    assert_string_equal(report, "no difference in 6 comparisons");
}

static void a_difference_is_named(void **state) {
    (void)state;
    char report[256];
    write_dump();
    compare(0.25f, 0.0, report, sizeof report);
    assert_non_null(strstr(report, "first difference: layer 1 residual, row 5 column 2: 32.25, "
                                   "reference 32"));
    compare(0.25f, 0.5, report, sizeof report);
    assert_non_null(strstr(report, "no difference"));
    compare(NAN, 0.5, report, sizeof report);
    assert_non_null(strstr(report, "layer 1 residual, row 5 column 2: nan"));
}

static void another_shape_is_a_difference(void **state) {
    (void)state;
    rg_dump *d = NULL;
    rg_status st = {0};
    char report[256];
    write_dump();
    const float x[8] = {0};
    const struct {
        const char *name;
        uint32_t layer, row0, rows, cols;
    } shapes[] = {{"residual", 0, 0, 1, 8},
                  {"residual", 0, 5, 2, 4},
                  {"other", 0, 0, 1, 4},
                  {"residual", 9, 0, 1, 4}};
    for (size_t i = 0; i < RG_ARRAY_LEN(shapes); i++) {
        assert_int_equal(rg_dump_compare(&d, dir, 0.0, &st), RG_OK);
        const rg_tap tap = rg_dump_tap(d);
        show(&tap, shapes[i].name, shapes[i].layer, shapes[i].row0, shapes[i].rows, shapes[i].cols,
             x);
        assert_int_equal(rg_dump_finish(d, report, sizeof report, &st), RG_OK);
        assert_non_null(strstr(report, "first difference"));
        assert_non_null(strstr(report, shapes[i].name));
        rg_dump_destroy(d);
    }
}

static void save(const char *name, const char *text) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void bad_folders_are_refused(void **state) {
    (void)state;
    rg_dump *d = NULL;
    rg_status st = {0};
    assert_int_equal(rg_dump_create(&d, "no/such/folder", &st), RG_IO);
    assert_null(d);
    rg_status_clear(&st);
    assert_int_equal(rg_dump_create(&d, "", &st), RG_INVALID);
    rg_status_clear(&st);
    assert_int_not_equal(rg_dump_compare(&d, "no/such/folder", 0.0, &st), RG_OK);
    assert_null(d);
    assert_non_null(strstr(st.message, "no/such/folder"));
    write_dump();
    rg_status_clear(&st);
    assert_int_equal(rg_dump_create(&d, dir, &st), RG_IO); /* one is there */
    assert_null(d);
    assert_non_null(strstr(st.message, "index.tsv"));
    static const double tolerances[] = {-1.0, (double)NAN, (double)INFINITY};
    for (size_t i = 0; i < RG_ARRAY_LEN(tolerances); i++) {
        rg_status_clear(&st);
        assert_int_equal(rg_dump_compare(&d, dir, tolerances[i], &st), RG_INVALID);
        assert_null(d);
    }
}

static void bad_indexes_are_refused(void **state) {
    (void)state;
    static const char head[] = "name\tlayer\trows\tcols\tfile\n";
    static const char *const lines[] = {"residual\n",
                                        "residual\t0\n",
                                        "residual\tx\t1\t1\tf\n",
                                        "residual\t0\t1\n",
                                        "../residual\t0\t1\t1\tf\n",
                                        "a-name-that-is-longer-than-any-tensor-has\t0\t1\t1\tf\n",
                                        "\t0\t1\t1\tf\n"};
    rg_dump *d = NULL;
    rg_status st = {0};
    save("index.tsv", ""); /* of a run that broke off */
    assert_int_equal(rg_dump_compare(&d, dir, 0.0, &st), RG_FORMAT);
    assert_null(d);
    for (size_t i = 0; i < RG_ARRAY_LEN(lines); i++) {
        char text[256];
        snprintf(text, sizeof text, "%s%s", head, lines[i]);
        save("index.tsv", text);
        rg_status_clear(&st);
        assert_int_equal(rg_dump_compare(&d, dir, 0.0, &st), RG_FORMAT);
        assert_null(d);
        assert_non_null(strstr(st.message, "line 2"));
        assert_null(strchr(st.message, '\n'));
    }
}

static void a_short_file_is_an_error(void **state) {
    (void)state;
    rg_dump *d = NULL;
    rg_status st = {0};
    const float x[4] = {0};
    write_dump();
    save("residual.0.f32", "short");
    assert_int_equal(rg_dump_compare(&d, dir, 0.0, &st), RG_OK);
    const rg_tap tap = rg_dump_tap(d);
    assert_int_equal(tap.see(tap.user, "residual", 0, 2, 1, 4, x, &st), RG_FORMAT);
    assert_non_null(strstr(st.message, "residual.0.f32"));
    rg_dump_destroy(d);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)
    const struct CMUnitTest tests[] = {
        TEST(the_same_run_shows_no_difference), TEST(a_difference_is_named),
        TEST(another_shape_is_a_difference),    TEST(bad_folders_are_refused),
        TEST(bad_indexes_are_refused),          TEST(a_short_file_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
