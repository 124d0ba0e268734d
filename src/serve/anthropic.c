/* Anthropic's messages: requests and replies. */
#include <string.h>

#include "serve/job.h"

/* ---- requests ------------------------------------------------------------------------------- */

typedef struct builder {
    rg_job *job;
    size_t n, cap;
} builder;

static rg_code add_message(builder *b, rg_role role, rg_message **out, rg_status *st) {
    if (b->n == b->cap) {
        return rg_fail(st, RG_INVALID, "'messages' hold more than %zu parts", b->cap);
    }
    *out = &b->job->messages[b->n++];
    **out = (rg_message){.role = role, .content = {"", 0}, .reasoning = {"", 0}};
    return RG_OK;
}

static rg_code append_text(rg_job *job, rg_str *to, rg_str more, rg_status *st) {
    if (to->len == 0) {
        *to = more;
        return RG_OK;
    }
    char *both = rg_job_take(job, to->len + more.len + 1, 1, st);
    if (!both) return RG_NOMEM;
    memcpy(both, to->data, to->len);
    memcpy(both + to->len, more.data, more.len);
    *to = (rg_str){both, to->len + more.len};
    return RG_OK;
}

/* A user turn: results of tools first, as turns of their own, then its text. */
static rg_code read_user(builder *b, const json_t *content, rg_status *st) {
    rg_str text = {"", 0};
    if (!json_is_array(content)) {
        RG_TRY(rg_read_content(b->job, content, "messages.content", &text, st));
    }
    size_t i;
    json_t *block;
    bool any = !json_is_array(content);
    json_array_foreach(content, i, block) {
        const rg_str type = rg_json_str(json_object_get(block, "type"));
        if (type.data && rg_str_is(type, "tool_result")) {
            rg_message *m = NULL;
            RG_TRY(add_message(b, RG_ROLE_TOOL, &m, st));
            RG_TRY(rg_read_content(b->job, json_object_get(block, "content"), "tool_result.content",
                                   &m->content, st));
        } else if (type.data && rg_str_is(type, "text")) {
            rg_str piece = {"", 0};
            RG_TRY(rg_field_str(block, "text", &piece, st));
            RG_TRY(append_text(b->job, &text, piece, st));
            any = true;
        } else {
            return rg_fail(st, RG_INVALID,
                           "a content block of type %.40s: text and tool_result "
                           "are possible here",
                           type.data ? type.data : "(none)");
        }
    }
    if (!any) return RG_OK;
    rg_message *m = NULL;
    RG_TRY(add_message(b, RG_ROLE_USER, &m, st));
    RG_ASSERT(m);
    m->content = text;
    return RG_OK;
}

static rg_code read_assistant_block(rg_job *job, rg_message *m, rg_tool_call *calls,
                                    const json_t *block, rg_status *st) {
    const rg_str type = rg_json_str(json_object_get(block, "type"));
    rg_str piece = {"", 0};
    if (type.data && rg_str_is(type, "text")) {
        RG_TRY(rg_field_str(block, "text", &piece, st));
        return append_text(job, &m->content, piece, st);
    }
    if (type.data && rg_str_is(type, "thinking")) {
        RG_TRY(rg_field_str(block, "thinking", &piece, st));
        m->has_reasoning = true;
        return append_text(job, &m->reasoning, piece, st);
    }
    if (type.data && rg_str_is(type, "redacted_thinking")) return RG_OK;
    if (type.data && rg_str_is(type, "tool_use")) {
        return rg_read_call(job, &calls[m->n_calls++], json_object_get(block, "name"),
                            json_object_get(block, "input"), st);
    }
    return rg_fail(st, RG_INVALID,
                   "a content block of type %.40s: text, thinking and tool_use "
                   "are possible here",
                   type.data ? type.data : "(none)");
}

static rg_code read_assistant(builder *b, const json_t *content, rg_status *st) {
    rg_message *m = NULL;
    RG_TRY(add_message(b, RG_ROLE_ASSISTANT, &m, st));
    RG_ASSERT(m);
    if (!json_is_array(content)) {
        return rg_read_content(b->job, content, "messages.content", &m->content, st);
    }
    rg_tool_call *calls = rg_job_take(b->job, json_array_size(content) + 1, sizeof *calls, st);
    if (!calls) return RG_NOMEM;
    m->calls = calls;
    size_t i;
    json_t *block;
    json_array_foreach(content, i, block) {
        RG_TRY(read_assistant_block(b->job, m, calls, block, st));
    }
    return RG_OK;
}

/* Blocks of all messages, an upper bound of the turns they make. */
static size_t count_parts(const json_t *list) {
    size_t n = 2, i;
    json_t *m;
    json_array_foreach(list, i, m) {
        n += 1 + json_array_size(json_object_get(m, "content"));
    }
    return n;
}

static rg_code read_messages(rg_job *job, rg_status *st) {
    json_t *list = NULL;
    RG_TRY(rg_field_array(job->root, "messages", &list, st));
    if (json_array_size(list) == 0) {
        return rg_fail(st, RG_INVALID, "'messages': at least one expected");
    }
    builder b = {.job = job, .cap = count_parts(list)};
    if (b.cap > (size_t)4 * RG_MESSAGES_MAX) {
        return rg_fail(st, RG_INVALID, "'messages' hold %zu parts, %zu are possible", b.cap,
                       (size_t)4 * RG_MESSAGES_MAX);
    }
    job->messages = rg_job_take(job, b.cap, sizeof *job->messages, st);
    if (!job->messages) return RG_NOMEM;
    const json_t *system = rg_field(job->root, "system");
    if (system) {
        rg_message *m = NULL;
        RG_TRY(add_message(&b, RG_ROLE_SYSTEM, &m, st));
        RG_TRY(rg_read_content(job, system, "system", &m->content, st));
    }
    size_t i;
    json_t *m;
    json_array_foreach(list, i, m) {
        rg_str role = {"", 0};
        if (!json_is_object(m)) return rg_fail(st, RG_INVALID, "'messages[%zu]' is no object", i);
        RG_TRY(rg_field_str(m, "role", &role, st));
        const json_t *content = json_object_get(m, "content");
        if (!json_is_string(content) && !json_is_array(content)) {
            return rg_fail(st, RG_INVALID, "'messages[%zu].content': a text or blocks expected", i);
        }
        if (rg_str_is(role, "user")) {
            RG_TRY(read_user(&b, content, st));
        } else if (rg_str_is(role, "assistant")) {
            RG_TRY(read_assistant(&b, content, st));
        } else {
            return rg_fail(st, RG_INVALID, "'messages[%zu].role': user or assistant expected", i);
        }
    }
    job->n_messages = b.n;
    return RG_OK;
}

static rg_code read_choice(rg_job *job, rg_status *st) {
    json_t *o = NULL;
    rg_str type = {"auto", 4};
    RG_TRY(rg_field_object(job->root, "tool_choice", &o, st));
    if (!o) return RG_OK;
    RG_TRY(rg_field_str(o, "type", &type, st));
    RG_TRY(rg_field_bool(o, "disable_parallel_tool_use", &job->one_call, st));
    if (rg_str_is(type, "none")) {
        job->choice = RG_CHOICE_NONE;
    } else if (rg_str_is(type, "any")) {
        job->choice = RG_CHOICE_REQUIRED;
    } else if (rg_str_is(type, "tool")) {
        job->choice = RG_CHOICE_NAMED;
        RG_TRY(rg_field_str(o, "name", &job->chosen, st));
        if (!job->chosen.len) return rg_fail(st, RG_INVALID, "'tool_choice' has no name");
    } else if (!rg_str_is(type, "auto")) {
        return rg_fail(st, RG_INVALID, "'tool_choice.type': auto, any, tool or none expected");
    }
    return RG_OK;
}

static rg_code read_tools(rg_job *job, rg_status *st) {
    json_t *list = NULL;
    RG_TRY(rg_field_array(job->root, "tools", &list, st));
    const size_t n = json_array_size(list);
    if (n > RG_TOOLS_MAX) {
        return rg_fail(st, RG_INVALID, "'tools' has %zu, %u are possible", n, RG_TOOLS_MAX);
    }
    if (n) {
        job->tools = json_array();
        job->tool_texts = rg_job_take(job, n, sizeof *job->tool_texts, st);
        if (!job->tools || !job->tool_texts) return rg_fail(st, RG_NOMEM, "no memory for tools");
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *t = json_array_get(list, i);
        const char *type = json_string_value(json_object_get(t, "type"));
        if (type && strcmp(type, "custom") != 0) {
            return rg_fail(st, RG_INVALID, "'tools[%zu]' of type %.40s is not run here", i, type);
        }
        RG_TRY(rg_add_tool(job, json_object_get(t, "name"), rg_field(t, "description"),
                           rg_field(t, "input_schema"), NULL, st));
    }
    RG_TRY(read_choice(job, st));
    return rg_check_named_tool(job, st);
}

static rg_code read_thinking(rg_job *job, const rg_serve_options *opt, rg_status *st) {
    json_t *o = NULL;
    rg_str type = {"", 0};
    job->thinking = !opt->no_think;
    RG_TRY(rg_field_object(job->root, "thinking", &o, st));
    if (!o) return RG_OK;
    RG_TRY(rg_field_str(o, "type", &type, st));
    if (rg_str_is(type, "enabled") || rg_str_is(type, "adaptive")) {
        job->thinking = true;
    } else if (rg_str_is(type, "disabled")) {
        job->thinking = false;
    } else {
        return rg_fail(st, RG_INVALID, "'thinking.type': enabled, adaptive or disabled expected");
    }
    return RG_OK;
}

rg_code rg_parse_messages(rg_job *job, const rg_serve_options *opt, bool count_only,
                          rg_status *st) {
    job->chat = true;
    int64_t n = 0;
    RG_TRY(read_messages(job, st));
    RG_TRY(read_tools(job, st));
    RG_TRY(read_thinking(job, opt, st));
    if (count_only) return RG_OK;
    RG_TRY(rg_field_int(job->root, "max_tokens", 1, INT32_MAX, &n, st));
    if (n == 0) return rg_fail(st, RG_INVALID, "'max_tokens': a number above 0 expected");
    job->n_predict = (uint32_t)n;
    RG_TRY(rg_parse_sampling(job, opt, st));
    RG_TRY(rg_parse_stop(job, "stop_sequences", st));
    RG_TRY(rg_field_bool(job->root, "stream", &job->stream, st));
    rg_job_make_id(job->id, sizeof job->id, "msg_");
    return RG_OK;
}

/* ---- replies -------------------------------------------------------------------------------- */

static const char *stop_reason(const rg_job *job) {
    switch (job->ending) {
    case RG_ENDING_SEQUENCE:
        return "stop_sequence";
    case RG_ENDING_LENGTH:
        return "max_tokens";
    case RG_ENDING_CALLS:
        return "tool_use";
    case RG_ENDING_NONE:
    case RG_ENDING_STOP:
    case RG_ENDING_ERROR:
        break;
    }
    return "end_turn";
}

static rg_code put_usage(const rg_job *job, rg_buf *out, rg_status *st) {
    RG_TRY(rg_buf_printf(out, st,
                         "\"usage\":{\"input_tokens\":%zu,\"cache_creation_input_tokens\":0,"
                         "\"cache_read_input_tokens\":%u,\"output_tokens\":%u",
                         job->n_ids - job->n_cached, job->n_cached, job->n_made));
    RG_TRY(rg_put_receipt(job, out, st));
    return rg_buf_puts(out, "}", st);
}

static rg_code put_head(const rg_job *job, rg_buf *out, rg_status *st) {
    RG_TRY(rg_buf_printf(out, st,
                         "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\","
                         "\"model\":",
                         job->id));
    return rg_put_string(out, job->model_name, strlen(job->model_name), st);
}

static rg_code begin(rg_job *job, rg_buf *out, rg_status *st) {
    RG_TRY(rg_buf_puts(out,
                       "event: message_start\ndata: {\"type\":\"message_start\",\"message\":", st));
    RG_TRY(put_head(job, out, st));
    RG_TRY(rg_buf_puts(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,", st));
    RG_TRY(put_usage(job, out, st));
    return rg_buf_puts(out, "}}\n\n", st);
}

static rg_code close_block(rg_job *job, rg_buf *out, rg_status *st) {
    if (job->block < 0 || job->block_kind < 0) return RG_OK;
    job->block_kind = -1;
    return rg_buf_printf(out, st,
                         "event: content_block_stop\ndata: {\"type\":\"content_block_stop\","
                         "\"index\":%d}\n\n",
                         job->block);
}

static rg_code open_block(rg_job *job, const rg_part *part, rg_buf *out, rg_status *st) {
    RG_TRY(close_block(job, out, st));
    job->block++;
    job->block_kind = (int)part->kind;
    RG_TRY(rg_buf_printf(out, st,
                         "event: content_block_start\ndata: {\"type\":\"content_block_start\","
                         "\"index\":%d,\"content_block\":",
                         job->block));
    if (part->kind == RG_PART_REASONING) {
        RG_TRY(
            rg_buf_puts(out, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}", st));
    } else if (part->kind == RG_PART_ANSWER) {
        RG_TRY(rg_buf_puts(out, "{\"type\":\"text\",\"text\":\"\"}", st));
    } else {
        RG_TRY(rg_buf_printf(
            out, st, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", job->calls[part->call].id));
        RG_TRY(rg_put_string(out, part->text.data, part->text.len, st));
        RG_TRY(rg_buf_puts(out, ",\"input\":{}}", st));
    }
    return rg_buf_puts(out, "}\n\n", st);
}

static rg_code put_delta(const rg_job *job, const char *type, const char *key, rg_str text,
                         rg_buf *out, rg_status *st) {
    RG_TRY(rg_buf_printf(out, st,
                         "event: content_block_delta\ndata: {\"type\":\"content_block_delta\","
                         "\"index\":%d,\"delta\":{\"type\":\"%s\",\"%s\":",
                         job->block, type, key));
    RG_TRY(rg_put_string(out, text.data, text.len, st));
    return rg_buf_puts(out, "}}\n\n", st);
}

static rg_code part(rg_job *job, const rg_part *p, rg_buf *out, rg_status *st) {
    switch (p->kind) {
    case RG_PART_REASONING:
        if (job->block_kind != (int)p->kind || job->block < 0) RG_TRY(open_block(job, p, out, st));
        return put_delta(job, "thinking_delta", "thinking", p->text, out, st);
    case RG_PART_ANSWER:
        if (job->block_kind != (int)p->kind || job->block < 0) RG_TRY(open_block(job, p, out, st));
        return put_delta(job, "text_delta", "text", p->text, out, st);
    case RG_PART_CALL_BEGIN:
        return open_block(job, p, out, st);
    case RG_PART_CALL_ARGS:
        return put_delta(job, "input_json_delta", "partial_json", p->text, out, st);
    case RG_PART_CALL_END:
        return close_block(job, out, st);
    }
    return RG_OK;
}

static rg_code put_stop(const rg_job *job, rg_buf *out, rg_status *st) {
    RG_TRY(rg_buf_printf(out, st, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_reason(job)));
    if (job->ending != RG_ENDING_SEQUENCE || !job->stop_hit.data) {
        return rg_buf_puts(out, "null", st);
    }
    return rg_put_string(out, job->stop_hit.data, job->stop_hit.len, st);
}

static rg_code end(rg_job *job, rg_buf *out, rg_status *st) {
    RG_TRY(close_block(job, out, st));
    RG_TRY(rg_buf_puts(out, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{",
                       st));
    RG_TRY(put_stop(job, out, st));
    RG_TRY(rg_buf_puts(out, "},", st));
    RG_TRY(put_usage(job, out, st));
    return rg_buf_puts(out, "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", st);
}

static rg_code put_blocks(const rg_job *job, rg_buf *out, rg_status *st) {
    const char *comma = "";
    if (job->reasoning.len) {
        RG_TRY(rg_buf_puts(out, "{\"type\":\"thinking\",\"thinking\":", st));
        RG_TRY(rg_put_string(out, job->reasoning.data, job->reasoning.len, st));
        RG_TRY(rg_buf_puts(out, ",\"signature\":\"\"}", st));
        comma = ",";
    }
    if (job->answer.len) {
        RG_TRY(rg_buf_printf(out, st, "%s{\"type\":\"text\",\"text\":", comma));
        RG_TRY(rg_put_string(out, job->answer.data, job->answer.len, st));
        RG_TRY(rg_buf_puts(out, "}", st));
        comma = ",";
    }
    for (size_t i = 0; i < job->n_calls; i++, comma = ",") {
        const rg_made_call *c = &job->calls[i];
        RG_TRY(rg_buf_printf(out, st, "%s{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", comma,
                             c->id));
        RG_TRY(rg_put_string(out, c->name.data, c->name.len, st));
        RG_TRY(rg_buf_puts(out, ",\"input\":", st));
        RG_TRY(rg_buf_append(out, c->args.data ? c->args.data : "{}", c->args.len ? c->args.len : 2,
                             st));
        RG_TRY(rg_buf_puts(out, "}", st));
    }
    return RG_OK;
}

static rg_code body(rg_job *job, rg_buf *out, rg_status *st) {
    RG_TRY(put_head(job, out, st));
    RG_TRY(rg_buf_puts(out, ",\"content\":[", st));
    RG_TRY(put_blocks(job, out, st));
    RG_TRY(rg_buf_puts(out, "],", st));
    RG_TRY(put_stop(job, out, st));
    RG_TRY(rg_buf_puts(out, ",", st));
    RG_TRY(put_usage(job, out, st));
    return rg_buf_puts(out, "}", st);
}

static const char *error_type(int http) {
    switch (http) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
        return "overloaded_error";
    default:
        return http >= 500 ? "api_error" : "invalid_request_error";
    }
}

static rg_code error(int http, const char *message, bool in_stream, rg_buf *out, rg_status *st) {
    if (in_stream) RG_TRY(rg_buf_puts(out, "event: error\ndata: ", st));
    RG_TRY(rg_buf_printf(
        out, st, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", error_type(http)));
    RG_TRY(rg_put_string(out, message, strlen(message), st));
    RG_TRY(rg_buf_puts(out, "}}", st));
    return in_stream ? rg_buf_puts(out, "\n\n", st) : RG_OK;
}

const rg_dialect rg_dialect_messages = {begin, part, end, body, error};
