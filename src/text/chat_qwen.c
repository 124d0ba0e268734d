/* The Qwen family with XML-like tool calls (Qwen3-Coder, 3.5 and later, and the qwen4exp models):
 * turns between <|im_start|> and <|im_end|>, <think> blocks, <function=NAME> calls, results of
 * tools as user turns. The members differ in their sentences and in a few rules; both are found by
 * markers in the template text, and each rule below names its marker.
 */
#include "text/chat.h"

#include <string.h>

#define CONST_STR(s) ((rg_str){s, sizeof(s) - 1})

/* ---- reading the template ----------------------------------------------------------------------
 */

/* Strings without which a template is of another family. Each must be in some literal. */
static const char *const markers[] = {
    "<|im_start|>assistant\n",
    "<|im_end|>",
    "<tools>",
    "\n</tools>",
    "<tool_call>\n<function=",
    "<parameter=",
    "\n</parameter>\n",
    "</function>\n</tool_call>",
    "\n<tool_response>\n",
    "\n</tool_response>",
    "<think>\n",
    "<think>\n\n</think>\n\n",
};

static bool any_literal_has(const rg_jinja *j, const char *text) {
    for (size_t i = 0; i < j->n_literals; i++) {
        if (rg_str_find(j->literals[i].text, text, 0) != SIZE_MAX) return true;
    }
    return false;
}

static bool source_has(const rg_jinja *j, const char *text) {
    return rg_str_find(j->source, text, 0) != SIZE_MAX;
}

static bool matches(const rg_jinja *j) {
    for (size_t i = 0; i < RG_ARRAY_LEN(markers); i++) {
        /* Some members build the head of a turn from the role. */
        if (i == 0 && any_literal_has(j, "<|im_start|>") && any_literal_has(j, "assistant\n")) {
            continue;
        }
        if (!any_literal_has(j, markers[i])) return false;
    }
    return source_has(j, "add_generation_prompt") && source_has(j, "tojson");
}

static bool ends_with(rg_str s, const char *tail) {
    const size_t len = strlen(tail);
    return s.len >= len && memcmp(s.data + s.len - len, tail, len) == 0;
}

/* "...<tools>", then the list, then "\n</tools>..." in one string or two. */
static void read_tools(const rg_jinja *j, rg_chat_qwen *q) {
    q->tools_head = CONST_STR("# Tools\n\nYou may call these functions:\n\n<tools>");
    q->tools_tail[0] =
        CONST_STR("\n</tools>\n\nTo call one, reply in this form:\n\n<tool_call>\n<function=NAME>\n"
                  "<parameter=KEY>\nvalue\n</parameter>\n</function>\n</tool_call>");
    for (size_t i = 0; i < j->n_literals; i++) {
        if (!ends_with(j->literals[i].text, "<tools>")) continue;
        for (size_t k = i + 1; k < j->n_literals; k++) {
            const rg_str tail = j->literals[k].text;
            if (!rg_str_starts(tail, "\n</tools>")) continue;
            q->tools_head = j->literals[i].text;
            q->tools_tail[0] = tail;
            if (rg_str_equal(tail, "\n</tools>") && k + 1 < j->n_literals &&
                rg_str_starts(j->literals[k + 1].text, "\n\n")) {
                q->tools_tail[1] = j->literals[k + 1].text;
            }
            return;
        }
    }
}

static void read_effort_list(const rg_jinja *j, rg_chat_qwen *q) {
    const size_t at = rg_str_find(j->source, "reasoning_effort not in", 0);
    if (at == SIZE_MAX) return;
    const size_t end = rg_str_find(j->source, "%}", at);
    for (size_t i = 0; i < j->n_literals && q->n_effort_allowed < RG_CHAT_EFFORTS_MAX; i++) {
        if (j->literals[i].begin < at || j->literals[i].begin >= end) continue;
        q->effort_allowed[q->n_effort_allowed++] = j->literals[i].text;
    }
}

static void read_efforts(const rg_jinja *j, rg_chat_qwen *q) {
    size_t first = SIZE_MAX; /* source position of the first sentence */
    for (size_t i = 0; i < j->n_literals; i++) {
        const rg_jinja_literal *l = &j->literals[i];
        if (rg_jinja_preceded(j, l->begin, "reasoning_effort | default(")) {
            q->effort_default = l->text;
        }
        if (i == 0) continue;
        const rg_jinja_literal *before = l - 1;
        const bool tested = rg_jinja_preceded(j, before->begin, "reasoning_effort ==");
        if (tested && rg_jinja_preceded(j, l->begin, "reasoning_effort =") &&
            !rg_jinja_preceded(j, l->begin, "==")) {
            q->effort_alias_from = before->text;
            q->effort_alias_to = l->text;
        }
        if (tested && rg_str_starts(l->text, "Reasoning effort is set to ") &&
            q->n_efforts < RG_CHAT_EFFORTS_MAX) {
            q->effort_names[q->n_efforts] = before->text;
            q->effort_texts[q->n_efforts++] = l->text;
            if (first == SIZE_MAX) first = l->begin;
        }
    }
    const size_t switch_at = rg_str_find(j->source, "enable_thinking", 0);
    q->effort_needs_thinking = first != SIZE_MAX && switch_at < first;
    read_effort_list(j, q);
}

static bool has_any(rg_str s, const char *a, const char *b) {
    return rg_str_find(s, a, 0) != SIZE_MAX || rg_str_find(s, b, 0) != SIZE_MAX;
}

/* raise_exception('...'), told apart by what they speak of. */
static void read_errors(const rg_jinja *j, rg_chat_qwen *q) {
    for (size_t i = 0; i < j->n_literals; i++) {
        const rg_jinja_literal *l = &j->literals[i];
        if (!rg_jinja_preceded(j, l->begin, "raise_exception(")) continue;
        if (has_any(l->text, "effort", "Effort")) {
            q->effort_error[0] = l->text;
            const rg_str next = i + 1 < j->n_literals ? l[1].text : (rg_str){0};
            const bool joined =
                i + 1 < j->n_literals && rg_jinja_preceded(j, l[1].begin, "reasoning_effort ~");
            if (joined) q->effort_error[1] = next;
        } else if (has_any(l->text, "system", "System") && has_any(l->text, "first", "begin")) {
            q->error_system_first = l->text;
        } else if (rg_str_starts(l->text, "No messages")) {
            q->error_no_messages = l->text;
        } else if (has_any(l->text, "user", "User") && !has_any(l->text, "role", "image")) {
            q->error_no_user = l->text;
        }
    }
}

static void read_template(rg_chat_template *c) {
    const rg_jinja *j = &c->jinja;
    rg_chat_qwen *q = &c->qwen;
    read_tools(j, q);
    read_efforts(j, q);
    read_errors(j, q);
    const bool known = matches(j); /* a forced family takes the newest rules */
    q->split_inline = source_has(j, "'</think>' in content");
    q->split_strips_newlines = source_has(j, "split('</think>')[-1].lstrip('\\n')");
    q->reasoning_may_be_empty = source_has(j, "reasoning_content is string");
    q->has_preserve = !known || source_has(j, "preserve_thinking");
    q->skip_wrapped_results = source_has(j, "startswith('<tool_response>')");
    q->merge_system = source_has(j, "merged_system");
    q->empty_system_turn = source_has(j, "'<|im_start|>system\\n' + content + '<|im_end|>\\n'");
    q->first_tool_unopened = source_has(j, "loop.previtem and loop.previtem.role");
    q->python_scalars = source_has(j, "else args_value | string");
    if (!known && !q->error_no_user.len) q->error_no_user = CONST_STR("a user turn is needed");
}

/* ---- rendering ---------------------------------------------------------------------------------
 */

static rg_code refuse(rg_status *st, rg_str reason) {
    return rg_fail(st, RG_INVALID, "chat template: %.*s",
                   (int)(reason.len < 180 ? reason.len : 180), reason.len ? reason.data : "");
}

static bool same(rg_str a, rg_str b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* The sentence an effort puts in front of the system turn; empty if none. */
static rg_code effort_sentence(const rg_chat_qwen *q, const rg_chat_options *o, rg_str *out,
                               rg_status *st) {
    *out = (rg_str){0};
    if (q->effort_needs_thinking && !o->enable_thinking) return RG_OK;
    rg_str effort = o->reasoning_effort.len ? o->reasoning_effort : q->effort_default;
    if (effort.len && same(effort, q->effort_alias_from)) effort = q->effort_alias_to;
    bool allowed = q->n_effort_allowed == 0;
    for (size_t i = 0; i < q->n_effort_allowed; i++) {
        allowed |= same(effort, q->effort_allowed[i]);
    }
    if (!allowed) {
        const rg_str *e = q->effort_error;
        const rg_str word = e[1].len ? o->reasoning_effort : (rg_str){0};
        return rg_fail(st, RG_INVALID, "chat template: %.*s%.*s%.*s",
                       (int)(e[0].len < 80 ? e[0].len : 80), e[0].len ? e[0].data : "",
                       (int)(word.len < 32 ? word.len : 32), word.len ? word.data : "",
                       (int)(e[1].len < 80 ? e[1].len : 80), e[1].len ? e[1].data : "");
    }
    for (size_t i = 0; i < q->n_efforts; i++) {
        if (same(effort, q->effort_names[i])) *out = q->effort_texts[i];
    }
    return RG_OK;
}

/* Number of messages the system turn consumes. */
static size_t leading_system(const rg_chat_qwen *q, const rg_conversation *conv) {
    size_t n = 0;
    while (n < conv->n_messages && conv->messages[n].role == RG_ROLE_SYSTEM) {
        n++;
        if (!q->merge_system) break;
    }
    return n;
}

static rg_code put_system_text(const rg_conversation *conv, size_t n_system, const char *before,
                               rg_buf *out, rg_status *st) {
    for (size_t i = 0; i < n_system; i++) {
        const rg_str text = rg_chat_trim(conv->messages[i].content);
        if (!text.len) continue;
        RG_TRY(rg_buf_puts(out, before, st));
        RG_TRY(rg_chat_put(out, text, st));
        before = "\n";
    }
    return RG_OK;
}

static rg_code put_system_turn(const rg_chat_qwen *q, const rg_conversation *conv, size_t n_system,
                               rg_buf *out, rg_status *st) {
    rg_str sentence;
    RG_TRY(effort_sentence(q, conv->options, &sentence, st));
    bool has_text = false;
    for (size_t i = 0; i < n_system; i++) {
        has_text |= rg_chat_trim(conv->messages[i].content).len > 0;
    }
    const bool empty_turn = q->empty_system_turn && n_system > 0;
    if (!sentence.len && !conv->n_tools && !has_text && !empty_turn) return RG_OK;
    RG_TRY(rg_buf_puts(out, "<|im_start|>system\n", st));
    RG_TRY(rg_chat_put(out, sentence, st));
    if (conv->n_tools) {
        if (sentence.len) RG_TRY(rg_buf_puts(out, "\n\n", st));
        RG_TRY(rg_chat_put(out, q->tools_head, st));
        for (size_t i = 0; i < conv->n_tools; i++) {
            RG_TRY(rg_buf_puts(out, "\n", st));
            RG_TRY(rg_chat_put(out, conv->tools[i], st));
        }
        RG_TRY(rg_chat_put(out, q->tools_tail[0], st));
        RG_TRY(rg_chat_put(out, q->tools_tail[1], st));
    }
    const bool first = !sentence.len && !conv->n_tools;
    RG_TRY(put_system_text(conv, n_system, first ? "" : "\n\n", out, st));
    return rg_buf_puts(out, "<|im_end|>\n", st);
}

/* Index of the last real user turn: assistant turns behind it always keep their reasoning. */
static rg_code last_query(const rg_chat_qwen *q, const rg_conversation *conv, size_t *out,
                          rg_status *st) {
    for (size_t i = conv->n_messages; i-- > 0;) {
        if (conv->messages[i].role != RG_ROLE_USER) continue;
        const rg_str text = rg_chat_trim(conv->messages[i].content);
        if (q->skip_wrapped_results && rg_str_starts(text, "<tool_response>") &&
            ends_with(text, "</tool_response>")) {
            continue;
        }
        *out = i;
        return RG_OK;
    }
    if (q->error_no_user.len) return refuse(st, q->error_no_user);
    *out = conv->n_messages ? conv->n_messages - 1 : 0;
    return RG_OK;
}

static size_t find_last(rg_str s, const char *needle) {
    size_t last = SIZE_MAX;
    for (size_t at = rg_str_find(s, needle, 0); at != SIZE_MAX;
         at = rg_str_find(s, needle, at + strlen(needle))) {
        last = at;
    }
    return last;
}

static rg_str from(rg_str s, size_t at) {
    return (rg_str){s.data + at, s.len - at};
}

/* Takes "<think> reasoning </think> answer" apart: reasoning between the last <think> before the
 * first </think>, the answer behind the last </think>. */
static void split_content(const rg_chat_qwen *q, rg_str *content, rg_str *reasoning) {
    static const char open[] = "<think>";
    static const char close[] = "</think>";
    const size_t first_close = rg_str_find(*content, close, 0);
    if (first_close == SIZE_MAX) return;
    rg_str head = {content->data, first_close};
    const size_t last_open = find_last(head, open);
    if (last_open != SIZE_MAX) head = from(head, last_open + sizeof open - 1);
    *reasoning = rg_chat_trim(head);
    const rg_str tail = from(*content, find_last(*content, close) + sizeof close - 1);
    *content =
        q->split_strips_newlines ? rg_chat_trim_newlines(tail, true, false) : rg_chat_trim(tail);
}

static rg_code put_argument(const rg_chat_qwen *q, const rg_tool_arg *arg, rg_buf *out,
                            rg_status *st) {
    rg_str value = arg->value;
    if (q->python_scalars && !arg->is_string) {
        if (rg_str_equal(value, "true")) value = CONST_STR("True");
        if (rg_str_equal(value, "false")) value = CONST_STR("False");
        if (rg_str_equal(value, "null")) value = CONST_STR("None");
    }
    RG_TRY(rg_buf_puts(out, "<parameter=", st));
    RG_TRY(rg_chat_put(out, arg->name, st));
    RG_TRY(rg_buf_puts(out, ">\n", st));
    RG_TRY(rg_chat_put(out, value, st));
    return rg_buf_puts(out, "\n</parameter>\n", st);
}

static rg_code put_calls(const rg_chat_qwen *q, const rg_message *m, bool behind_text, rg_buf *out,
                         rg_status *st) {
    for (size_t i = 0; i < m->n_calls; i++) {
        const rg_tool_call *call = &m->calls[i];
        const char *before = i > 0 ? "\n" : "";
        if (i == 0 && behind_text) before = "\n\n";
        RG_TRY(rg_buf_puts(out, before, st));
        RG_TRY(rg_buf_puts(out, "<tool_call>\n<function=", st));
        RG_TRY(rg_chat_put(out, call->name, st));
        RG_TRY(rg_buf_puts(out, ">\n", st));
        for (size_t k = 0; k < call->n_args; k++) {
            RG_TRY(put_argument(q, &call->args[k], out, st));
        }
        RG_TRY(rg_buf_puts(out, "</function>\n</tool_call>", st));
    }
    return RG_OK;
}

static rg_code put_assistant(const rg_chat_qwen *q, const rg_message *m, bool keep_reasoning,
                             rg_buf *out, rg_status *st) {
    rg_str content = rg_chat_trim(m->content);
    rg_str reasoning = {0};
    const bool given = m->reasoning.len > 0 || (m->has_reasoning && q->reasoning_may_be_empty);
    if (given) {
        reasoning = rg_chat_trim(m->reasoning);
    } else if (q->split_inline) {
        split_content(q, &content, &reasoning);
    }
    RG_TRY(rg_buf_puts(out, "<|im_start|>assistant\n", st));
    if (keep_reasoning) {
        RG_TRY(rg_buf_puts(out, "<think>\n", st));
        RG_TRY(rg_chat_put(out, reasoning, st));
        RG_TRY(rg_buf_puts(out, "\n</think>\n\n", st));
    }
    RG_TRY(rg_chat_put(out, content, st));
    RG_TRY(put_calls(q, m, rg_chat_trim(content).len > 0, out, st));
    return rg_buf_puts(out, "<|im_end|>\n", st);
}

/* Neighbouring results share one user turn. */
static rg_code put_tool(const rg_chat_qwen *q, const rg_conversation *conv, size_t i, rg_buf *out,
                        rg_status *st) {
    const rg_message *m = &conv->messages[i];
    const bool opens = i == 0 ? !q->first_tool_unopened : m[-1].role != RG_ROLE_TOOL;
    const bool closes = i + 1 == conv->n_messages || m[1].role != RG_ROLE_TOOL;
    if (opens) RG_TRY(rg_buf_puts(out, "<|im_start|>user", st));
    RG_TRY(rg_buf_puts(out, "\n<tool_response>\n", st));
    RG_TRY(rg_chat_put(out, rg_chat_trim(m->content), st));
    RG_TRY(rg_buf_puts(out, "\n</tool_response>", st));
    return closes ? rg_buf_puts(out, "<|im_end|>\n", st) : RG_OK;
}

static rg_code put_user(const rg_message *m, rg_buf *out, rg_status *st) {
    RG_TRY(rg_buf_puts(out, "<|im_start|>user\n", st));
    RG_TRY(rg_chat_put(out, rg_chat_trim(m->content), st));
    return rg_buf_puts(out, "<|im_end|>\n", st);
}

static rg_code render(const rg_chat_template *c, const rg_conversation *conv, rg_buf *out,
                      rg_status *st) {
    const rg_chat_qwen *q = &c->qwen;
    if (conv->n_messages == 0 && q->error_no_messages.len) return refuse(st, q->error_no_messages);
    const size_t n_system = leading_system(q, conv);
    size_t query = 0;
    RG_TRY(put_system_turn(q, conv, n_system, out, st));
    RG_TRY(last_query(q, conv, &query, st));
    for (size_t i = n_system; i < conv->n_messages; i++) {
        const rg_message *m = &conv->messages[i];
        switch (m->role) {
        case RG_ROLE_SYSTEM:
            return refuse(st, q->error_system_first.len ? q->error_system_first
                                                        : CONST_STR("the system turn comes first"));
        case RG_ROLE_USER:
            RG_TRY(put_user(m, out, st));
            break;
        case RG_ROLE_ASSISTANT: {
            const bool keep = (q->has_preserve && conv->options->preserve_thinking) || i > query;
            RG_TRY(put_assistant(q, m, keep, out, st));
            break;
        }
        case RG_ROLE_TOOL:
            RG_TRY(put_tool(q, conv, i, out, st));
            break;
        }
    }
    if (!conv->options->add_generation_prompt) return RG_OK;
    RG_TRY(rg_buf_puts(out, "<|im_start|>assistant\n", st));
    return rg_buf_puts(
        out, conv->options->enable_thinking ? "<think>\n" : "<think>\n\n</think>\n\n", st);
}

const rg_chat_family rg_chat_family_qwen = {"qwen", matches, read_template, render};
