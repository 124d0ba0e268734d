#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "text/jinja_scan.h"

/* Strings as 's', printed text as 'd', each followed by its text in brackets. */
static void expect(const char *source, const char *want) {
    rg_jinja j;
    rg_buf got;
    rg_buf_init(&got, 0);
    assert_int_equal(rg_jinja_scan(&j, (rg_str){source, strlen(source)}, NULL), RG_OK);
    assert_int_equal(rg_buf_puts(&got, "", NULL), RG_OK);
    for (size_t i = 0; i < j.n_literals; i++) {
        const rg_jinja_literal *l = &j.literals[i];
        assert_true(l->begin < l->end && l->end <= strlen(source));
        assert_int_equal(rg_buf_printf(&got, NULL, "%c[%.*s]", l->kind == RG_JINJA_DATA ? 'd' : 's',
                                       (int)l->text.len, l->text.data),
                         RG_OK);
    }
    assert_string_equal(got.data, want);
    rg_buf_deinit(&got);
    rg_jinja_deinit(&j);
}

static void strings(void **state) {
    (void)state;
    expect("", "");
    expect("{{ 'a' }}{{ \"b\" }}{% set x = 'c' %}", "s[a]s[b]s[c]");
    expect("{{ 'it\\'s' + \"q\\\"q\" + '\\n\\t\\\\' }}", "s[it's]s[q\"q]s[\n\t\\]");
    expect("{{ '\\q' + '' }}", "s[\\q]s[]");
    expect("{{ '}} {% ' }}", "s[}} {% ]");
    expect("{# 'no' #}{{ 'yes' }}", "s[yes]");
}

static void white_space(void **state) {
    (void)state;
    expect("a{{ x }}b", "d[a]d[b]");
    expect("a {{- x -}} b", "d[a]d[b]");
    expect("{% if x %}\n  b\n  {% endif %}\n", "d[  b\n]");
    expect("{{ x }}\n", ""); /* one newline at the end of the file is dropped */
    expect("{{ x }}\ny\n", "d[\ny]");
    expect("  {% if x %}{# c #}\n{% endif %}", "");
    expect("{%- for m in l %}\n    {{- m }}\n{%- endfor %}\n", "");
    expect("x  {% if y %}", "d[x  ]");
    expect("  {{ x }}", "d[  ]");
}

static void broken_templates(void **state) {
    (void)state;
    expect("{", "d[{]");
    expect("{{", "");
    expect("{{ '", "s[]");
    expect("{{ 'a\\", "s[a\\]");
    expect("{% 'a' %", "s[a]");
    expect("{# never closed", "");
    expect("}} %} #}", "d[}} %} #}]");
}

static void too_large(void **state) {
    (void)state;
    rg_jinja j;
    rg_status st = {0};
    assert_int_equal(rg_jinja_scan(&j, (rg_str){"", RG_JINJA_TEXT_MAX + 1}, &st), RG_UNSUPPORTED);
    rg_buf many;
    rg_buf_init(&many, 0);
    assert_int_equal(rg_buf_puts(&many, "{{", NULL), RG_OK);
    for (size_t i = 0; i <= RG_JINJA_LITERALS_MAX; i++) {
        assert_int_equal(rg_buf_puts(&many, "''", NULL), RG_OK);
    }
    rg_status_clear(&st);
    assert_int_equal(rg_jinja_scan(&j, (rg_str){many.data, many.len}, &st), RG_UNSUPPORTED);
    assert_non_null(strstr(st.message, "4096"));
    rg_buf_deinit(&many);
}

static void preceded(void **state) {
    (void)state;
    static const char source[] = "{{ a == 'x' }}{{ b|default( 'y' ) }}";
    rg_jinja j;
    assert_int_equal(rg_jinja_scan(&j, (rg_str){source, sizeof source - 1}, NULL), RG_OK);
    const rg_jinja_literal *x = rg_jinja_find(&j, "x");
    const rg_jinja_literal *y = rg_jinja_find(&j, "y");
    assert_non_null(x);
    assert_non_null(y);
    assert_null(rg_jinja_find(&j, "z"));
    assert_true(rg_jinja_preceded(&j, x->begin, "=="));
    assert_true(rg_jinja_preceded(&j, x->begin, "a =="));
    assert_false(rg_jinja_preceded(&j, x->begin, "b =="));
    assert_true(rg_jinja_preceded(&j, y->begin, "b | default("));
    assert_false(rg_jinja_preceded(&j, 0, "a"));
    rg_jinja_deinit(&j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings),          cmocka_unit_test(white_space),
        cmocka_unit_test(broken_templates), cmocka_unit_test(too_large),
        cmocka_unit_test(preceded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
