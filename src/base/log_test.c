#include "base/log.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

typedef struct log_seen {
    int n_lines;
    rg_log_level level;
    char line[1024];
} log_seen;

static void keep_line(void *user, rg_log_level level, const char *line) {
    log_seen *seen = user;
    seen->n_lines++;
    seen->level = level;
    assert_true(strlen(line) < sizeof seen->line);
    memcpy(seen->line, line, strlen(line) + 1);
}

static void test_levels(void **state) {
    (void)state;
    log_seen seen = {0};
    rg_log(RG_LOG_ERROR, "dropped: no sink yet");
    rg_log_set(keep_line, &seen, RG_LOG_INFO);
    rg_log(RG_LOG_DEBUG, "%d", 1);
    assert_int_equal(seen.n_lines, 0);
    rg_log(RG_LOG_INFO, "%d of %s", 3, "seven");
    assert_int_equal(seen.n_lines, 1);
    assert_int_equal(seen.level, RG_LOG_INFO);
    assert_string_equal(seen.line, "3 of seven");
    rg_log_set(NULL, NULL, RG_LOG_DEBUG);
    rg_log(RG_LOG_ERROR, "dropped again");
    assert_int_equal(seen.n_lines, 1);
}

static void test_long_line_is_cut(void **state) {
    (void)state;
    log_seen seen = {0};
    char text[900];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    rg_log_set(keep_line, &seen, RG_LOG_DEBUG);
    rg_log(RG_LOG_WARN, "%s", text);
    rg_log_set(NULL, NULL, RG_LOG_ERROR);
    assert_int_equal(strlen(seen.line), 511);
    assert_int_equal(seen.line[510], 'x');
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_long_line_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
