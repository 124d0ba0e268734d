/* Schemas against texts, and the mask over tokens against a trial of each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/schema.h"

typedef struct text_case {
    const char *schema;
    const char *good[8], *bad[12];
} text_case;

static const text_case cases[] = {
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}"
     "},\"required\":[\"a\"]}",
     {"{\"a\":1}", "{\"a\": -20, \"b\": \"x\"}", "{\n  \"a\": 0\n}", "{\"a\":12,\"b\":\"\"}"},
     {"{}", "{\"b\":\"x\"}", "{\"a\":1.5}", "{\"a\":01}", "{\"a\":1,}", "{\"a\":1} ", "{\"c\":1}",
      "{\"a\":\"1\"}", "[1]", "{\"a\":1,\"a\":2}"}},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"\\n\\\"\"", "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"", "\"\\u00e9x\""},
     {"\"a\"", "\"abcd\"", "\"a\nb\"", "\"a\\x\"", "\"\xC3\"", "\"\\ud800x\"", "ab",
      "\"\xFF\xFF\""}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"number\"},\"minItems\":1,\"maxItems\":3}",
     {"[1]", "[1, -2.5,3e4]", "[-0.25]", "[ 7 ]"},
     {"[]", "[1,2,3,4]", "[1,]", "[.5]", "[1.]", "[+1]", "[--1]", "[1 2]"}},
    {"{\"enum\":[\"x\",3,null,{\"k\":[1]}]}",
     {"\"x\"", "3", "null", "{\"k\": [1]}"},
     {"\"y\"", "33", "nul", "x"}},
    {"{\"anyOf\":[{\"type\":\"boolean\"},{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}]}",
     {"true", "[]", "[[true],[[]],false]"},
     {"[", "[true", "1", "[null]", "tru"}},
    {"{\"type\":\"object\"}",
     {"{}", "{\"a\":{\"b\":[1,\"x\",null,{}]}}", "{\"\":false}"},
     {"[]", "{a:1}", "{\"a\"}", "{\"a\":}", "{\"a\":1,,}"}},
    {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{\"x\":1,\"y\":2}", "{}"},
     {"{\"x\":true}"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}",
     {"[1,\"a\"]", "[1, \"a\" ]"},
     {"[1]", "[\"a\",1]", "[1,\"a\",2]"}},
    {"{\"type\":[\"integer\",\"null\"]}", {"5", "null"}, {"true", "\"5\""}},
    {"{\"const\":\"a\\\"b\"}", {"\"a\\\"b\""}, {"\"a\"", "ab"}},
    {"{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}",
     {"{}", "{ }"},
     {"{\"a\":1}"}},
};

static json_t *parse(const char *text) {
    json_error_t e;
    json_t *v = json_loads(text, JSON_DECODE_ANY, &e);
    if (!v) fail_msg("%s: %s", text, e.text);
    return v;
}

static rg_grammar *compile(const json_t *schema, uint32_t *rule) {
    rg_grammar *g = NULL;
    rg_schema_rules r;
    rg_status st = {0};
    if (rg_grammar_create(&g, &st) != RG_OK) fail_msg("%s", st.message);
    rg_schema_init(&r, g);
    if (rg_schema_compile(&r, schema, schema, rule, &st) != RG_OK) fail_msg("%s", st.message);
    return g;
}

static bool accepts(rg_grammar *g, uint32_t rule, const char *text) {
    rg_status st = {0};
    bool fits = false;
    if (rg_grammar_start(g, rule, &st) != RG_OK) fail_msg("%s", st.message);
    if (rg_grammar_feed(g, text, strlen(text), &fits, &st) != RG_OK) fail_msg("%s", st.message);
    return fits && rg_grammar_complete(g);
}

static void schemas_take_and_refuse_texts(void **state) {
    (void)state;
    for (size_t i = 0; i < RG_ARRAY_LEN(cases); i++) {
        uint32_t rule = 0;
        json_t *schema = parse(cases[i].schema);
        rg_grammar *g = compile(schema, &rule);
        for (size_t k = 0; k < 8 && cases[i].good[k]; k++) {
            if (!accepts(g, rule, cases[i].good[k])) {
                fail_msg("%s refuses %s", cases[i].schema, cases[i].good[k]);
            }
            json_decref(parse(cases[i].good[k]));
        }
        for (size_t k = 0; k < 12 && cases[i].bad[k]; k++) {
            if (accepts(g, rule, cases[i].bad[k])) {
                fail_msg("%s takes %s", cases[i].schema, cases[i].bad[k]);
            }
        }
        rg_grammar_destroy(g);
        json_decref(schema);
    }
}

static void other_keywords_are_named(void **state) {
    (void)state;
    static const char *const schemas[][2] = {
        {"{\"type\":\"string\",\"pattern\":\"(?=a)\"}", "pattern"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"contains\":{}}}}", "contains"},
        {"{\"type\":\"array\",\"items\":{\"format\":\"iri\"}}", "format"},
        {"{\"oneOf\":[{},{}]}", "oneOf"},
        {"{\"type\":\"object\",\"patternProperties\":{}}", "patternProperties"},
        {"{\"$ref\":\"#/$defs/none\"}", "none"},
        {"{\"$ref\":\"#\"}", "itself"},
        {"{\"type\":\"thing\"}", "thing"},
        {"{\"type\":\"string\",\"maxLength\":100000}", "maxLength"},
        {"{\"type\":\"object\",\"required\":[3]}", "required"},
        {"{\"enum\":[]}", "enum"},
    };
    for (size_t i = 0; i < RG_ARRAY_LEN(schemas); i++) {
        rg_grammar *g = NULL;
        rg_schema_rules r;
        rg_status st = {0};
        uint32_t rule;
        json_t *schema = parse(schemas[i][0]);
        assert_int_equal(rg_grammar_create(&g, &st), RG_OK);
        rg_schema_init(&r, g);
        rg_code rc = rg_schema_compile(&r, schema, schema, &rule, &st);
        if (rc == RG_OK) rc = rg_grammar_start(g, rule, &st);
        assert_int_equal(rc, RG_INVALID);
        if (!strstr(st.message, schemas[i][1])) {
            fail_msg("%s: %s", schemas[i][0], st.message);
        }
        rg_grammar_destroy(g);
        json_decref(schema);
    }
}

/* ---- masks ---------------------------------------------------------------------------------- */

static const char *const tokens[] = {
    "{", "}",     "\"",    "\"a\"", "a",    ":",  " ",    "{\"a\"", "1",    "12", "\":1", ", ",
    ",", "\"b\"", "\":\"", "\xC3",  "\xA9", "\n", "\n  ", "tr",     "true", "ue", "null", "]"};

/* Sorted as the lexicon is. */
static void make_lexicon(rg_lexicon *l, uint32_t *offsets, uint8_t *kinds, uint32_t *order,
                         uint16_t *shared, char *bytes) {
    const size_t n = RG_ARRAY_LEN(tokens);
    offsets[0] = 0;
    for (size_t i = 0; i < n; i++) {
        memcpy(bytes + offsets[i], tokens[i], strlen(tokens[i]));
        offsets[i + 1] = offsets[i] + (uint32_t)strlen(tokens[i]);
        kinds[i] = 0;
        order[i] = (uint32_t)i;
    }
    kinds[n] = 2; /* the end */
    offsets[n + 1] = offsets[n];
    for (size_t i = 1; i < n; i++) {
        for (size_t k = i; k > 0 && strcmp(tokens[order[k - 1]], tokens[order[k]]) > 0; k--) {
            const uint32_t t = order[k];
            order[k] = order[k - 1];
            order[k - 1] = t;
        }
    }
    for (size_t i = 1; i < n; i++) {
        const char *a = tokens[order[i - 1]], *b = tokens[order[i]];
        while (a[shared[i]] && a[shared[i]] == b[shared[i]])
            shared[i]++;
    }
    *l = (rg_lexicon){n + 1, bytes, offsets, kinds, order, shared, n};
}

static void masks_equal_a_trial_of_each_token(void **state) {
    (void)state;
    enum { N = RG_ARRAY_LEN(tokens) };
    uint32_t offsets[N + 2], order[N];
    uint8_t kinds[N + 1], allowed[(N + 8) / 8];
    uint16_t shared[N] = {0};
    char bytes[256];
    rg_lexicon l;
    make_lexicon(&l, offsets, kinds, order, shared, bytes);
    static const char *const before[] = {
        "",          "{",        "{\"",       "{\"a\"",
        "{\"a\":",   "{\"a\":1", "{\"a\":1,", "{\"a\":1,\"b\":\"\xC3",
        "{\"a\":1}", "{\n"};
    uint32_t rule = 0;
    json_t *schema = parse(cases[0].schema);
    rg_grammar *g = compile(schema, &rule);
    unsigned some = 0;
    for (size_t i = 0; i < RG_ARRAY_LEN(before); i++) {
        rg_status st = {0};
        for (size_t t = 0; t < N; t++) {
            bool fits = false;
            char both[64];
            snprintf(both, sizeof both, "%s%s", before[i], tokens[t]);
            assert_int_equal(rg_grammar_start(g, rule, &st), RG_OK);
            assert_int_equal(rg_grammar_feed(g, both, strlen(both), &fits, &st), RG_OK);
            assert_int_equal(rg_grammar_start(g, rule, &st), RG_OK);
            bool whole = false;
            assert_int_equal(rg_grammar_feed(g, before[i], strlen(before[i]), &whole, &st), RG_OK);
            assert_true(whole);
            assert_int_equal(rg_grammar_mask(g, &l, allowed, &st), RG_OK);
            if ((allowed[t / 8] >> (t % 8) & 1) != fits) fail_msg("%s | %s", before[i], tokens[t]);
            some += fits;
        }
        assert_int_equal(allowed[N / 8] >> (N % 8) & 1, rg_grammar_complete(g));
    }
    assert_true(some > 20);
    rg_grammar_destroy(g);
    json_decref(schema);
}

static void a_long_text_takes_bounded_memory(void **state) {
    (void)state;
    uint32_t rule = 0;
    json_t *schema = parse("{\"type\":\"array\",\"items\":{\"type\":\"object\"}}");
    rg_grammar *g = compile(schema, &rule);
    rg_status st = {0};
    bool fits = false;
    assert_int_equal(rg_grammar_start(g, rule, &st), RG_OK);
    assert_int_equal(rg_grammar_feed(g, "[", 1, &fits, &st), RG_OK);
    const uint64_t live = rg_alloc_live_bytes();
    for (unsigned i = 0; i < 20000; i++) {
        static const char item[] = "{\"key\": [1, {\"x\": \"y\"}]}, ";
        assert_int_equal(rg_grammar_feed(g, item, sizeof item - 1, &fits, &st), RG_OK);
        assert_true(fits);
    }
    assert_true(rg_alloc_live_bytes() < live + (8u << 20));
    rg_grammar_destroy(g);
    json_decref(schema);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schemas_take_and_refuse_texts),
        cmocka_unit_test(other_keywords_are_named),
        cmocka_unit_test(masks_equal_a_trial_of_each_token),
        cmocka_unit_test(a_long_text_takes_bounded_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
