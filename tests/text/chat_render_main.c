/* Renders chats for tests: reads jobs from standard input, writes results to standard output.
 *
 * A job is a row of fields, each "LENGTH:BYTES,": template text, forced family name (empty = none),
 * three flags as 0 or 1 (add_generation_prompt, enable_thinking, preserve_thinking), effort, number
 * of tools, the tools, number of messages; of each message: role (0 system .. 3 tool), content,
 * has_reasoning, reasoning, number of calls; of each call: name, number of arguments; of each
 * argument: name, value, is_string. The result is two fields: "ok" or the error code's number, and
 * the text or message.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/text.h"

#define CALLS_MAX 16
#define ARGS_MAX  16
#define ITEMS_MAX 64

typedef struct job {
    rg_str tools[ITEMS_MAX];
    rg_message messages[ITEMS_MAX];
    rg_tool_call calls[ITEMS_MAX][CALLS_MAX];
    rg_tool_arg args[ITEMS_MAX][CALLS_MAX][ARGS_MAX];
} job;

static void die(const char *why) {
    fprintf(stderr, "chat_render: %s\n", why);
    exit(2);
}

static rg_str field(rg_cursor *in) {
    size_t len = 0;
    while (in->pos < in->size && in->data[in->pos] != ':') {
        const uint8_t c = in->data[in->pos++];
        if (c < '0' || c > '9' || len > (64u << 20)) die("bad length of a field");
        len = len * 10 + (c - '0');
    }
    if (rg_cursor_remaining(in) < 1 || rg_cursor_remaining(in) - 1 <= len) die("field cut short");
    in->pos++;
    const rg_str s = {(const char *)in->data + in->pos, len};
    in->pos += len;
    if (in->data[in->pos++] != ',') die("field without its end");
    return s;
}

static size_t number(rg_cursor *in, size_t max) {
    const rg_str s = field(in);
    size_t n = 0;
    for (size_t i = 0; i < s.len; i++) {
        n = n * 10 + (size_t)(s.data[i] - '0');
    }
    if (n > max) die("number too large");
    return n;
}

static void read_message(rg_cursor *in, job *j, size_t i) {
    rg_message *m = &j->messages[i];
    *m = (rg_message){.role = (rg_role)number(in, 3)};
    m->content = field(in);
    m->has_reasoning = number(in, 1);
    m->reasoning = field(in);
    m->n_calls = number(in, CALLS_MAX);
    m->calls = j->calls[i];
    for (size_t k = 0; k < m->n_calls; k++) {
        rg_tool_call *call = &j->calls[i][k];
        call->name = field(in);
        call->n_args = number(in, ARGS_MAX);
        call->args = j->args[i][k];
        for (size_t a = 0; a < call->n_args; a++) {
            rg_tool_arg *arg = &j->args[i][k][a];
            arg->name = field(in);
            arg->value = field(in);
            arg->is_string = number(in, 1);
        }
    }
}

static void answer(const char *head, const char *text, size_t len) {
    printf("%zu:%s,%zu:", strlen(head), head, len);
    fwrite(text, 1, len, stdout);
    putchar(',');
}

static void run_job(rg_cursor *in, job *j) {
    const rg_str template_text = field(in);
    const rg_str name = field(in);
    rg_chat_options options = {0};
    options.add_generation_prompt = number(in, 1);
    options.enable_thinking = number(in, 1);
    options.preserve_thinking = number(in, 1);
    options.reasoning_effort = field(in);
    const size_t n_tools = number(in, ITEMS_MAX);
    for (size_t i = 0; i < n_tools; i++) {
        j->tools[i] = field(in);
    }
    const size_t n_messages = number(in, ITEMS_MAX);
    for (size_t i = 0; i < n_messages; i++) {
        read_message(in, j, i);
    }
    rg_status st = {0};
    rg_buf out;
    rg_chat_template *c = NULL;
    char *forced = name.len ? rg_strndup(name.data, name.len, &st) : NULL;
    rg_buf_init(&out, 0);
    rg_code rc = rg_chat_template_create(&c, template_text, forced, &st);
    if (rc == RG_OK) {
        rc = rg_chat_render(c, j->messages, n_messages, j->tools, n_tools, &options, &out, &st);
    }
    if (rc == RG_OK) {
        answer("ok", out.len ? out.data : "", out.len);
    } else {
        char code[16];
        snprintf(code, sizeof code, "%d", (int)rc);
        answer(code, st.message, strlen(st.message));
    }
    rg_free(forced);
    rg_buf_deinit(&out);
    rg_chat_template_destroy(c);
}

int main(void) {
    char *text = NULL;
    size_t len = 0;
    rg_status st = {0};
    if (rg_file_slurp(&text, &len, "-", 256u << 20, &st) != RG_OK) die(st.message);
    job *j = rg_alloc(1, sizeof *j, &st);
    if (!j) die(st.message);
    rg_cursor in = {(const uint8_t *)text, len, 0};
    while (rg_cursor_remaining(&in)) {
        run_job(&in, j);
    }
    rg_free(j);
    rg_free(text);
    return 0;
}
