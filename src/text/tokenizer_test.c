/* The tokenizer on a vocabulary made here: all bytes, a few merges, special tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "text/tokenizer.h"

#define STR(s)                                                                                     \
    { s, sizeof(s) - 1 }
#define N_EXTRA  12
#define FIRST    256 /* id of the first extra token */
#define N_TOKENS (FIRST + N_EXTRA)

static const rg_str extra[N_EXTRA] = {
    STR("he"),     STR("hel"),     STR("\xC4\xA0h"), STR("hello"),  STR("<|im_end|>"), STR("<|im"),
    STR("<tool>"), STR("<tool><"), STR("<unk>"),     STR("unused"), STR("<|eot_id|>"), STR("a b"),
};
static const uint8_t extra_kinds[N_EXTRA] = {
    RG_TOKEN_NORMAL,  RG_TOKEN_NORMAL,  RG_TOKEN_NORMAL, RG_TOKEN_NORMAL,
    RG_TOKEN_CONTROL, RG_TOKEN_CONTROL, RG_TOKEN_USER,   RG_TOKEN_CONTROL,
    RG_TOKEN_UNKNOWN, RG_TOKEN_UNUSED,  RG_TOKEN_NORMAL, RG_TOKEN_USER,
};
enum { HE = FIRST, HEL, SPACE_H, HELLO, IM_END, IM, TOOL, TOOL_LT, UNK, UNUSED, EOT, A_B };

static const rg_str merges[] = {STR("h e"), STR("he l"), STR("\xC4\xA0 h")};

typedef struct fixture {
    char spelling[256][3];
    rg_str tokens[N_TOKENS];
    uint8_t kinds[N_TOKENS];
    rg_tokenizer_spec spec;
} fixture;

static void make(fixture *f) {
    unsigned next = 256;
    for (unsigned byte = 0; byte < 256; byte++) {
        const bool prints = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
        const unsigned code = prints ? byte : next++;
        if (code < 0x80) {
            f->spelling[byte][0] = (char)code;
        } else {
            f->spelling[byte][0] = (char)(0xC0 | code >> 6);
            f->spelling[byte][1] = (char)(0x80 | (code & 0x3F));
        }
        f->tokens[byte] = (rg_str){f->spelling[byte], code < 0x80 ? 1 : 2};
        f->kinds[byte] = RG_TOKEN_NORMAL;
    }
    for (size_t i = 0; i < N_EXTRA; i++) {
        f->tokens[FIRST + i] = extra[i];
        f->kinds[FIRST + i] = extra_kinds[i];
    }
    f->spec = (rg_tokenizer_spec){.pre = STR("qwen35"),
                                  .tokens = f->tokens,
                                  .kinds = f->kinds,
                                  .n_tokens = N_TOKENS,
                                  .merges = merges,
                                  .n_merges = RG_ARRAY_LEN(merges),
                                  .bos = -1,
                                  .eos = IM_END,
                                  .eot = -1,
                                  .eom = TOOL_LT,
                                  .unknown = UNK,
                                  .add_bos = -1};
}

static rg_tokenizer *build(const fixture *f) {
    rg_status st = {0};
    rg_tokenizer *t = NULL;
    if (rg_tokenizer_build(&t, &f->spec, &st) != RG_OK) fail_msg("%s", st.message);
    return t;
}

static void expect(const rg_tokenizer *t, const char *text, bool special, const int32_t *want,
                   size_t n) {
    rg_ids ids = {0};
    assert_int_equal(rg_tokenize(t, text, strlen(text), special, &ids, NULL), RG_OK);
    for (size_t i = 0; i < n && i < ids.count; i++) {
        if (ids.ids[i] != want[i])
            fail_msg("%s: id %zu is %d, not %d", text, i, ids.ids[i], want[i]);
    }
    assert_int_equal(ids.count, n);
    rg_free(ids.ids);
}
#define EXPECT(t, text, special, ...)                                                              \
    expect(t, text, special, (const int32_t[]){__VA_ARGS__},                                       \
           sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void special_tokens(void **state) {
    (void)state;
    fixture f = {0};
    make(&f);
    rg_tokenizer *t = build(&f);
    EXPECT(t, "hello", false, HEL, 'l', 'o');
    EXPECT(t, "x<tool>y", false, 'x', TOOL, 'y');
    EXPECT(t, "<|im_end|>", true, IM_END);
    EXPECT(t, "<|im_end|>", false, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>');
    EXPECT(t, "<|im<|im_end|>", true, IM, IM_END);
    EXPECT(t, "<unk>", true, UNK);
    EXPECT(t, "<unk>", false, '<', 'u', 'n', 'k', '>');
    /* The longer token wins where both stand, and where they overlap. */
    EXPECT(t, "<tool><x", true, TOOL_LT, 'x');
    EXPECT(t, "<tool><x", false, TOOL, '<', 'x');
    EXPECT(t, "<tool><|im_end|>", true, TOOL, IM_END);
    EXPECT(t, "a b h", false, A_B, SPACE_H);
    EXPECT(t, "unused", true, 'u', 'n', 'u', 's', 'e', 'd');
    rg_tokenizer_destroy(t);
}

static void invalid_utf8(void **state) {
    (void)state;
    fixture f = {0};
    make(&f);
    rg_tokenizer *t = build(&f);
    EXPECT(t, "he\xFFhe", false, HE, 0xFF, HE);
    EXPECT(t, "\xE2\x82h", false, 0xE2, 0x82, 'h');
    EXPECT(t, "h\xC3", false, 'h', 0xC3);
    EXPECT(t, "\xED\xA0\x80<tool>\xF4", false, 0xED, 0xA0, 0x80, TOOL, 0xF4);
    rg_tokenizer_destroy(t);
}

static void detokenize(void **state) {
    (void)state;
    fixture f = {0};
    make(&f);
    rg_tokenizer *t = build(&f);
    rg_buf out;
    rg_buf_init(&out, 0);
    const int32_t ids[] = {SPACE_H, IM_END, TOOL, UNK, UNUSED, A_B, 0xE9, '\n'};
    for (size_t i = 0; i < RG_ARRAY_LEN(ids); i++) {
        assert_int_equal(rg_detokenize(t, ids[i], false, &out, NULL), RG_OK);
    }
    assert_string_equal(out.data, " h<tool>a b\xE9\n");
    rg_buf_clear(&out);
    assert_int_equal(rg_detokenize(t, IM_END, true, &out, NULL), RG_OK);
    assert_string_equal(out.data, "<|im_end|>");
    rg_status st = {0};
    assert_int_equal(rg_detokenize(t, N_TOKENS, true, &out, &st), RG_INVALID);
    assert_non_null(strstr(st.message, "268"));
    assert_int_equal(rg_detokenize(t, -1, true, &out, NULL), RG_INVALID);
    rg_buf_deinit(&out);
    rg_tokenizer_destroy(t);
}

static void ends_of_generation(void **state) {
    (void)state;
    fixture f = {0};
    make(&f);
    rg_tokenizer *t = build(&f);
    for (int32_t id = 0; id < N_TOKENS; id++) {
        assert_int_equal(rg_tokenizer_is_eog(t, id), id == IM_END || id == TOOL_LT || id == EOT);
    }
    /* A turn token marked normal is made control. */
    assert_int_equal(rg_tokenizer_kind(t, EOT), RG_TOKEN_CONTROL);
    EXPECT(t, "<|eot_id|>", true, EOT);
    assert_int_equal(rg_tokenizer_kind(t, N_TOKENS), RG_TOKEN_UNUSED);
    rg_tokenizer_destroy(t);
}

static void family_rules(void **state) {
    (void)state;
    fixture f = {0};
    make(&f);
    f.spec.pre = (rg_str)STR("llama-bpe");
    f.spec.bos = 1;
    rg_tokenizer *t = build(&f);
    EXPECT(t, "hello", false, HELLO); /* a whole piece that is a token needs no merges */
    assert_true(rg_tokenizer_add_bos(t));
    rg_tokenizer_destroy(t);
    f.spec.add_bos = 0;
    t = build(&f);
    assert_false(rg_tokenizer_add_bos(t));
    rg_tokenizer_destroy(t);
    f.spec.pre = (rg_str)STR("gpt-2");
    f.spec.add_bos = 1;
    t = build(&f);
    assert_true(rg_tokenizer_add_bos(t));
    assert_int_equal(rg_tokenizer_bos(t), 1);
    EXPECT(t, "hello", false, HEL, 'l', 'o');
    rg_tokenizer_destroy(t);
}

static void refused(const fixture *f, rg_code want, const char *word) {
    rg_status st = {0};
    rg_tokenizer *t = NULL;
    assert_int_equal(rg_tokenizer_build(&t, &f->spec, &st), want);
    assert_null(t);
    if (!strstr(st.message, word)) fail_msg("\"%s\" lacks \"%s\"", st.message, word);
}

static void bad_specs(void **state) {
    (void)state;
    fixture f = {0};
    make(&f);
    f.spec.eos = N_TOKENS;
    refused(&f, RG_FORMAT, "eos_token_id is 268");
    make(&f);
    f.kinds[3] = 7;
    refused(&f, RG_FORMAT, "token 3 has type 7");
    make(&f);
    f.spec.n_tokens = 0;
    f.spec.eos = f.spec.eom = f.spec.unknown = -1;
    refused(&f, RG_FORMAT, "0 tokens");
    make(&f);
    f.spec.pre = (rg_str)STR("viking");
    refused(&f, RG_UNSUPPORTED, "viking");
}

static void text_too_long(void **state) {
    (void)state;
    fixture f = {0};
    make(&f);
    rg_tokenizer *t = build(&f);
    rg_ids ids = {0};
    rg_status st = {0};
    assert_int_equal(rg_tokenize(t, "", (size_t)RG_TEXT_INPUT_MAX + 1, false, &ids, &st),
                     RG_INVALID);
    assert_non_null(strstr(st.message, "268435457"));
    assert_int_equal(ids.count, 0);
    rg_tokenizer_destroy(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(special_tokens), cmocka_unit_test(invalid_utf8),
        cmocka_unit_test(detokenize),     cmocka_unit_test(ends_of_generation),
        cmocka_unit_test(family_rules),   cmocka_unit_test(bad_specs),
        cmocka_unit_test(text_too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
