/* The chat door: choosing a family, refusing, memory. What is rendered is compared with Jinja2 by
 * tests/chat_oracle_test.py.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "text/chat.h"

#define STR(s) ((rg_str){s, sizeof(s) - 1})

static const char plain[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

static const rg_chat_options defaults = {
    .add_generation_prompt = true, .enable_thinking = true, .preserve_thinking = true};

static void choosing(void **state) {
    (void)state;
    rg_chat_template *c = NULL;
    assert_int_equal(rg_chat_template_create(&c, STR(plain), NULL, NULL), RG_OK);
    assert_string_equal(rg_chat_template_name(c), "chatml");
    rg_chat_template_destroy(c);
    assert_int_equal(rg_chat_template_create(&c, STR(plain), "qwen", NULL), RG_OK);
    assert_string_equal(rg_chat_template_name(c), "qwen");
    rg_chat_template_destroy(c);

    rg_status st = {0};
    assert_int_equal(rg_chat_template_create(&c, STR("{{ bos_token }}"), NULL, &st),
                     RG_UNSUPPORTED);
    assert_null(c);
    assert_non_null(strstr(st.message, "--chat-template: qwen, chatml"));
    rg_status_clear(&st);
    assert_int_equal(rg_chat_template_create(&c, STR(plain), "llama", &st), RG_UNSUPPORTED);
    assert_non_null(strstr(st.message, "\"llama\""));
    assert_non_null(strstr(st.message, "qwen, chatml"));
}

static const rg_tool_arg args[] = {{{"city", 4}, {"Bath", 4}, true}, {{"n", 1}, {"2", 1}, false}};
static const rg_tool_call calls[] = {{{"get", 3}, args, 2}, {{"put", 3}, NULL, 0}};
static const rg_str tools[] = {{"{\"name\": \"get\"}", 15}};

static rg_code render_forced(rg_buf *out, rg_status *st) {
    const rg_message messages[] = {
        {.role = RG_ROLE_SYSTEM, .content = STR(" be brief ")},
        {.role = RG_ROLE_USER, .content = STR("weather?")},
        {.role = RG_ROLE_ASSISTANT,
         .content = STR("I ask."),
         .reasoning = STR("hm\n"),
         .has_reasoning = true,
         .calls = calls,
         .n_calls = 2},
        {.role = RG_ROLE_TOOL, .content = STR("fog")},
        {.role = RG_ROLE_TOOL, .content = STR("")},
    };
    rg_chat_template *c = NULL;
    RG_TRY(rg_chat_template_create(&c, (rg_str){0}, "qwen", st));
    const rg_code rc =
        rg_chat_render(c, messages, RG_ARRAY_LEN(messages), tools, 1, &defaults, out, st);
    rg_chat_template_destroy(c);
    return rc;
}

static void forced_qwen(void **state) {
    (void)state;
    rg_buf out;
    rg_buf_init(&out, 0);
    assert_int_equal(render_forced(&out, NULL), RG_OK);
    assert_string_equal(
        out.data,
        "<|im_start|>system\n# Tools\n\nYou may call these functions:\n\n<tools>\n"
        "{\"name\": \"get\"}\n</tools>\n\nTo call one, reply in this form:\n\n<tool_call>\n"
        "<function=NAME>\n<parameter=KEY>\nvalue\n</parameter>\n</function>\n</tool_call>"
        "\n\nbe brief<|im_end|>\n<|im_start|>user\nweather?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nhm\n</think>\n\nI ask.\n\n<tool_call>\n"
        "<function=get>\n<parameter=city>\nBath\n</parameter>\n<parameter=n>\n2\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=put>\n"
        "</function>\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nfog\n"
        "</tool_response>\n<tool_response>\n\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n");
    rg_buf_deinit(&out);
}

/* A refused conversation leaves what was in the buffer. */
static void refused_keeps_buffer(void **state) {
    (void)state;
    const rg_message messages[] = {{.role = RG_ROLE_SYSTEM, .content = STR("a")},
                                   {.role = RG_ROLE_USER, .content = STR("b")},
                                   {.role = RG_ROLE_SYSTEM, .content = STR("c")}};
    const rg_message odd[] = {{.role = (rg_role)9, .content = STR("a")}};
    rg_chat_template *c = NULL;
    rg_status st = {0};
    rg_buf out;
    rg_buf_init(&out, 0);
    assert_int_equal(rg_buf_puts(&out, "kept", NULL), RG_OK);
    assert_int_equal(rg_chat_template_create(&c, (rg_str){0}, "qwen", NULL), RG_OK);
    assert_int_equal(rg_chat_render(c, messages, 3, NULL, 0, &defaults, &out, &st), RG_INVALID);
    assert_string_equal(out.data, "kept");
    assert_non_null(strstr(st.message, "system"));
    rg_status_clear(&st);
    assert_int_equal(rg_chat_render(c, messages, 1, NULL, 0, &defaults, &out, &st), RG_INVALID);
    assert_non_null(strstr(st.message, "user turn"));
    rg_status_clear(&st);
    assert_int_equal(rg_chat_render(c, odd, 1, NULL, 0, &defaults, &out, &st), RG_INVALID);
    assert_non_null(strstr(st.message, "role 9"));
    rg_buf_deinit(&out);
    rg_chat_template_destroy(c);
}

static void torture(void **state) {
    (void)state;
    for (uint64_t n = 1;; n++) {
        rg_buf out;
        rg_status st = {0};
        rg_buf_init(&out, 0);
        rg_alloc_fail_at(n, false);
        const rg_code rc = render_forced(&out, &st);
        rg_alloc_fail_at(0, false);
        rg_buf_deinit(&out);
        if (rc == RG_OK) {
            assert_true(n > 4);
            break;
        }
        assert_int_equal(rc, RG_NOMEM);
        assert_true(n < 100);
    }
}

static void trimming(void **state) {
    (void)state;
    static const struct {
        rg_str in, want;
    } cases[] = {
        {{"", 0}, {"", 0}},
        {{" \n\t", 3}, {"", 0}},
        {{" a b ", 5}, {"a b", 3}},
        {{"\xC2\xA0x\xE3\x80\x80", 6}, {"x", 1}},
        {{"\xE2\x80\x8Bx", 4}, {"\xE2\x80\x8Bx", 4}}, /* ZERO WIDTH SPACE is no white space */
        {{"x\xA0", 2}, {"x\xA0", 2}},                 /* not UTF-8: stays */
        {{"\x80 ", 2}, {"\x80", 1}},
        {{"\x1C\x1Fx\x85", 4}, {"x\x85", 2}},
    };
    for (size_t i = 0; i < RG_ARRAY_LEN(cases); i++) {
        const rg_str got = rg_chat_trim(cases[i].in);
        assert_int_equal(got.len, cases[i].want.len);
        assert_memory_equal(got.data, cases[i].want.data, got.len);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choosing),
        cmocka_unit_test(forced_qwen),
        cmocka_unit_test(refused_keeps_buffer),
        cmocka_unit_test(torture),
        cmocka_unit_test(trimming),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
