/* A reply taken apart gives the same parts however it is cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/guard.h"
#include "serve/split.h"

static const char TOOLS[] =
    "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":"
    "\"integer\"},\"o\":{\"type\":\"object\"},\"e\":{\"enum\":[\"a\",\"b\"]}}}}]";

typedef struct text_case {
    const char *reply;
    bool thinking, no_tools;
    const char *parts; /* kinds T A < args > with the text behind */
} text_case;

static const text_case cases[] = {
    {"hello", false, false, "A:hello"},
    {"why\n</think>\n\nbecause", true, false, "T:why|A:because"},
    {"a < b <tool", false, false, "A:a < b <tool"},
    {"<tool_call>\n<function=f>\n<parameter=s>\nx \"y\"\n<z>\n</parameter>\n<parameter=n>\n12\n"
     "</parameter>\n</function>\n</tool_call>",
     false, false, "<:f|+:{\"s\": \"x \\\"y\\\"\\n<z>\", \"n\": 12}|>:"},
    {"I look.\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=f>\n"
     "<parameter=o>\n{\"k\": [1]}\n</parameter>\n<parameter=e>\nb\n</parameter>\n</function>\n"
     "</tool_call>",
     false, false, "A:I look.|<:f|+:{}|>:|<:f|+:{\"o\": {\"k\": [1]}, \"e\": \"b\"}|>:"},
    {"<tool_call>\n<function=f>\n<parameter=s>\n\n</parameter>\n</function>\n</tool_call>", false,
     false, "<:f|+:{\"s\": \"\"}|>:"},
    {"<tool_call>\n<function=f>\n<parameter=n>\nmany\n</parameter>\n</function>\n</tool_call>",
     false, false, "<:f|+:{\"n\": \"many\"}|>:"},
    {"<tool_call> is a tag", false, false, "A:<tool_call> is a tag"},
    {"<tool_call>\n<function=f>\n<parameter=s>\ncut", false, false, "<:f|+:{\"s\": \"cut\"}|>:"},
    {"<tool_call>\n<function=f>", false, true, "A:<tool_call>\n<function=f>"},
};

typedef struct record {
    char text[1024];
    rg_part_kind last;
    bool any;
} record;

static rg_code on_part(void *user, const rg_part *p, rg_status *st) {
    static const char letters[] = "TA<+>";
    record *r = user;
    (void)st;
    const size_t len = strlen(r->text);
    const bool joins =
        r->any && r->last == p->kind &&
        (p->kind == RG_PART_ANSWER || p->kind == RG_PART_REASONING || p->kind == RG_PART_CALL_ARGS);
    char head[4] = {0};
    if (!joins) snprintf(head, sizeof head, "%s%c:", r->any ? "|" : "", letters[p->kind]);
    snprintf(r->text + len, sizeof r->text - len, "%s%.*s", head, (int)p->text.len, p->text.data);
    r->last = p->kind;
    r->any = true;
    return RG_OK;
}

/* Pieces of `step` bytes; 0: pseudo-random lengths. */
static void run(const text_case *c, const json_t *tools, size_t step) {
    record r = {0};
    rg_split s;
    rg_status st = {0};
    rg_split_init(&s, c->thinking, c->no_tools ? NULL : tools, on_part, &r);
    const size_t len = strlen(c->reply);
    for (size_t at = 0; at < len;) {
        size_t n = step ? step : 1 + rg_random_u64(9, at) % 7;
        if (n > len - at) n = len - at;
        if (rg_split_push(&s, c->reply + at, n, &st) != RG_OK) fail_msg("%s", st.message);
        at += n;
    }
    if (rg_split_finish(&s, &st) != RG_OK) fail_msg("%s", st.message);
    rg_split_deinit(&s);
    assert_string_equal(r.text, c->parts);
}

static void replies_come_apart_however_they_are_cut(void **state) {
    (void)state;
    json_error_t e;
    json_t *tools = json_loads(TOOLS, 0, &e);
    assert_non_null(tools);
    for (size_t i = 0; i < RG_ARRAY_LEN(cases); i++) {
        for (size_t step = 0; step < 24; step++)
            run(&cases[i], tools, step);
        run(&cases[i], tools, 10000);
    }
    json_decref(tools);
}

static void hosts_origins_and_keys(void **state) {
    (void)state;
    assert_true(rg_guard_host_ok("localhost:80", "127.0.0.1"));
    assert_true(rg_guard_host_ok("[::1]:80", "127.0.0.1"));
    assert_true(rg_guard_host_ok("127.0.0.1", "localhost"));
    assert_false(rg_guard_host_ok("127.0.0.1.evil.example", "127.0.0.1"));
    assert_false(rg_guard_host_ok("evil.example", "127.0.0.1"));
    assert_false(rg_guard_host_ok(NULL, "127.0.0.1"));
    assert_false(rg_guard_host_ok("", "127.0.0.1"));
    assert_false(rg_guard_host_ok("[::1", "127.0.0.1"));
    assert_true(rg_guard_host_ok("any.example", "0.0.0.0"));
    assert_true(rg_guard_origin_ok(NULL, "localhost:80", NULL));
    assert_true(rg_guard_origin_ok("http://localhost:80", "localhost:80", NULL));
    assert_false(rg_guard_origin_ok("http://localhost:81", "localhost:80", NULL));
    assert_false(rg_guard_origin_ok("null", "localhost:80", NULL));
    assert_true(rg_guard_origin_ok("https://a.example", "x", "https://a.example"));
    assert_false(rg_guard_origin_ok("https://b.example", "x", "https://a.example"));
    assert_true(rg_guard_key_ok("Bearer k", NULL, "k"));
    assert_true(rg_guard_key_ok(NULL, "k", "k"));
    assert_false(rg_guard_key_ok("Bearer kk", "", "k"));
    assert_false(rg_guard_key_ok(NULL, NULL, "k"));
    assert_false(rg_guard_key_ok("k", NULL, "k"));
    assert_true(rg_guard_key_ok(NULL, NULL, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replies_come_apart_however_they_are_cut),
        cmocka_unit_test(hosts_origins_and_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
