/* OpenAI's responses, without a store: what a request does not carry is not known. */
#include <string.h>

#include "serve/job.h"

/* ---- requests ------------------------------------------------------------------------------- */

static rg_code read_call_item(rg_job *job, const json_t *item, rg_message *m, rg_status *st) {
    const json_t *text = json_object_get(item, "arguments");
    json_error_t e;
    rg_tool_call *call = rg_job_take(job, 1, sizeof *call, st);
    if (!call) return RG_NOMEM;
    json_t *args = json_is_string(text) && json_string_length(text)
                       ? json_loadb(json_string_value(text), json_string_length(text),
                                    JSON_REJECT_DUPLICATES, &e)
                       : json_object();
    const rg_code rc = rg_read_call(job, call, json_object_get(item, "name"), args, st);
    json_decref(args);
    m->role = RG_ROLE_ASSISTANT;
    m->calls = call;
    m->n_calls = 1;
    return rc;
}

/* An item becomes a message; *used is false for those that only help others. */
static rg_code read_item(rg_job *job, const json_t *item, size_t at, rg_message *m, bool *used,
                         rg_status *st) {
    rg_str type = {"message", 7}, role = {"", 0};
    char where[48];
    *used = true;
    snprintf(where, sizeof where, "input[%zu].content", at);
    if (!json_is_object(item)) return rg_fail(st, RG_INVALID, "'input[%zu]' is no object", at);
    RG_TRY(rg_field_str(item, "type", &type, st));
    if (rg_str_is(type, "function_call")) return read_call_item(job, item, m, st);
    if (rg_str_is(type, "function_call_output")) {
        m->role = RG_ROLE_TOOL;
        return rg_read_content(job, json_object_get(item, "output"), where, &m->content, st);
    }
    if (rg_str_is(type, "reasoning")) {
        *used = false;
        return RG_OK;
    }
    if (!rg_str_is(type, "message")) {
        return rg_fail(st, RG_INVALID, "'input[%zu].type' is \"%.40s\", which is not read here", at,
                       type.data);
    }
    RG_TRY(rg_field_str(item, "role", &role, st));
    if (rg_str_is(role, "system") || rg_str_is(role, "developer")) {
        m->role = RG_ROLE_SYSTEM;
    } else if (rg_str_is(role, "assistant")) {
        m->role = RG_ROLE_ASSISTANT;
    } else if (rg_str_is(role, "user")) {
        m->role = RG_ROLE_USER;
    } else {
        return rg_fail(st, RG_INVALID, "'input[%zu].role' is \"%.40s\", which is no role", at,
                       role.data);
    }
    return rg_read_content(job, json_object_get(item, "content"), where, &m->content, st);
}

static rg_code read_input(rg_job *job, rg_status *st) {
    const json_t *input = rg_field(job->root, "input");
    rg_str instructions = {"", 0};
    RG_TRY(rg_field_str(job->root, "instructions", &instructions, st));
    const size_t n = json_is_array(input) ? json_array_size(input) : 1;
    if (!json_is_string(input) && (!json_is_array(input) || n == 0)) {
        return rg_fail(st, RG_INVALID, "'input': a text or an array of items expected");
    }
    if (n > RG_MESSAGES_MAX) {
        return rg_fail(st, RG_INVALID, "'input' has %zu items, %u are possible", n,
                       RG_MESSAGES_MAX);
    }
    job->messages = rg_job_take(job, n + 1, sizeof *job->messages, st);
    if (!job->messages) return RG_NOMEM;
    if (instructions.len) {
        job->messages[job->n_messages++] =
            (rg_message){.role = RG_ROLE_SYSTEM, .content = instructions};
    }
    if (json_is_string(input)) {
        job->messages[job->n_messages++] =
            (rg_message){.role = RG_ROLE_USER, .content = rg_json_str(input)};
        return RG_OK;
    }
    for (size_t i = 0; i < n; i++) {
        bool used = false;
        rg_message *m = &job->messages[job->n_messages];
        m->content = m->reasoning = (rg_str){"", 0};
        RG_TRY(read_item(job, json_array_get(input, i), i, m, &used, st));
        job->n_messages += used;
    }
    return RG_OK;
}

static rg_code read_choice(rg_job *job, rg_status *st) {
    const json_t *v = rg_field(job->root, "tool_choice");
    if (!v) return RG_OK;
    const rg_str word = json_is_string(v) ? rg_json_str(v) : (rg_str){"", 0};
    if (rg_str_is(word, "none")) {
        job->choice = RG_CHOICE_NONE;
    } else if (rg_str_is(word, "required")) {
        job->choice = RG_CHOICE_REQUIRED;
    } else if (json_is_string(json_object_get(v, "name"))) {
        job->choice = RG_CHOICE_NAMED;
        job->chosen = rg_json_str(json_object_get(v, "name"));
    } else if (!rg_str_is(word, "auto")) {
        return rg_fail(st, RG_INVALID,
                       "'tool_choice': none, auto, required or a function by name "
                       "expected");
    }
    return RG_OK;
}

static rg_code read_tools(rg_job *job, rg_status *st) {
    json_t *list = NULL;
    bool parallel = true;
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
        if (!type || strcmp(type, "function") != 0) {
            return rg_fail(st, RG_INVALID, "'tools[%zu]': only functions are possible", i);
        }
        RG_TRY(rg_add_tool(job, json_object_get(t, "name"), rg_field(t, "description"),
                           rg_field(t, "parameters"), json_object_get(t, "strict"), st));
    }
    RG_TRY(rg_field_bool(job->root, "parallel_tool_calls", &parallel, st));
    job->one_call = !parallel;
    RG_TRY(read_choice(job, st));
    return rg_check_named_tool(job, st);
}

static rg_code read_format(rg_job *job, rg_status *st) {
    json_t *text = NULL, *format = NULL;
    rg_str type = {"text", 4};
    RG_TRY(rg_field_object(job->root, "text", &text, st));
    if (text) RG_TRY(rg_field_object(text, "format", &format, st));
    if (!format) return RG_OK;
    RG_TRY(rg_field_str(format, "type", &type, st));
    if (rg_str_is(type, "text")) return RG_OK;
    if (rg_str_is(type, "json_object")) {
        job->schema = rg_job_any_object(job);
        return job->schema ? RG_OK : rg_fail(st, RG_NOMEM, "no memory for a schema");
    }
    job->schema = json_object_get(format, "schema");
    if (rg_str_is(type, "json_schema") && json_is_object(job->schema)) return RG_OK;
    return rg_fail(st, RG_INVALID,
                   "'text.format': text, json_object or json_schema with a schema "
                   "expected");
}

/* What would need a store. */
static rg_code refuse_stored(const rg_job *job, rg_status *st) {
    static const char *const keys[] = {"previous_response_id", "conversation", "prompt"};
    for (size_t i = 0; i < RG_ARRAY_LEN(keys); i++) {
        if (!rg_field(job->root, keys[i])) continue;
        return rg_fail(st, RG_INVALID,
                       "'%s' is not possible: nothing is stored here, send the "
                       "whole input",
                       keys[i]);
    }
    bool background = false;
    RG_TRY(rg_field_bool(job->root, "background", &background, st));
    return background ? rg_fail(st, RG_INVALID,
                                "'background' is not possible: nothing is stored "
                                "here")
                      : RG_OK;
}

rg_code rg_parse_responses(rg_job *job, const rg_serve_options *opt, rg_status *st) {
    json_t *reasoning = NULL;
    rg_str effort = {"", 0};
    int64_t n = 0;
    job->chat = true;
    RG_TRY(refuse_stored(job, st));
    RG_TRY(read_input(job, st));
    RG_TRY(read_tools(job, st));
    RG_TRY(read_format(job, st));
    RG_TRY(rg_parse_sampling(job, opt, st));
    RG_TRY(rg_field_bool(job->root, "stream", &job->stream, st));
    RG_TRY(rg_field_int(job->root, "max_output_tokens", 1, INT32_MAX, &n, st));
    job->n_predict = (uint32_t)n;
    job->thinking = !opt->no_think;
    RG_TRY(rg_field_object(job->root, "reasoning", &reasoning, st));
    if (reasoning) RG_TRY(rg_field_str(reasoning, "effort", &effort, st));
    RG_TRY(rg_read_effort(job, effort, st));
    rg_job_make_id(job->id, sizeof job->id, "resp_");
    return RG_OK;
}

/* ---- replies -------------------------------------------------------------------------------- */

static rg_code put_text_part(const rg_buf *text, rg_buf *out, rg_status *st) {
    RG_TRY(rg_buf_puts(out, "{\"type\":\"output_text\",\"text\":", st));
    RG_TRY(rg_put_string(out, text->data ? text->data : "", text->len, st));
    return rg_buf_puts(out, ",\"annotations\":[],\"logprobs\":[]}", st);
}

/* Items have ids that follow from the response's and their place. */
static rg_code put_item(const rg_job *job, rg_part_kind kind, uint32_t call, int index, bool whole,
                        rg_buf *out, rg_status *st) {
    const char *status = whole ? "completed" : "in_progress";
    if (kind == RG_PART_REASONING) {
        RG_TRY(rg_buf_printf(out, st,
                             "{\"id\":\"rs_%s_%d\",\"type\":\"reasoning\",\"summary\":[],"
                             "\"content\":[",
                             job->id + 5, index));
        if (whole) {
            RG_TRY(rg_buf_puts(out, "{\"type\":\"reasoning_text\",\"text\":", st));
            RG_TRY(rg_put_string(out, job->reasoning.data ? job->reasoning.data : "",
                                 job->reasoning.len, st));
            RG_TRY(rg_buf_puts(out, "}", st));
        }
        return rg_buf_printf(out, st, "],\"status\":\"%s\"}", status);
    }
    if (kind == RG_PART_ANSWER) {
        RG_TRY(rg_buf_printf(out, st,
                             "{\"id\":\"msg_%s_%d\",\"type\":\"message\",\"role\":"
                             "\"assistant\",\"status\":\"%s\",\"content\":[",
                             job->id + 5, index, status));
        if (whole) RG_TRY(put_text_part(&job->answer, out, st));
        return rg_buf_puts(out, "]}", st);
    }
    const rg_made_call *c = &job->calls[call];
    RG_TRY(rg_buf_printf(out, st,
                         "{\"id\":\"fc_%s_%d\",\"type\":\"function_call\",\"call_id\":"
                         "\"%s\",\"status\":\"%s\",\"name\":",
                         job->id + 5, index, c->id, status));
    RG_TRY(rg_put_string(out, c->name.data, c->name.len, st));
    RG_TRY(rg_buf_puts(out, ",\"arguments\":", st));
    RG_TRY(
        rg_put_string(out, c->args.data && whole ? c->args.data : "", whole ? c->args.len : 0, st));
    return rg_buf_puts(out, "}", st);
}

static rg_code put_output(const rg_job *job, rg_buf *out, rg_status *st) {
    int index = 0;
    if (job->reasoning.len) RG_TRY(put_item(job, RG_PART_REASONING, 0, index++, true, out, st));
    if (job->answer.len || (!job->n_calls && !job->reasoning.len)) {
        if (index) RG_TRY(rg_buf_puts(out, ",", st));
        RG_TRY(put_item(job, RG_PART_ANSWER, 0, index++, true, out, st));
    }
    for (uint32_t i = 0; i < job->n_calls; i++) {
        if (index) RG_TRY(rg_buf_puts(out, ",", st));
        RG_TRY(put_item(job, RG_PART_CALL_BEGIN, i, index++, true, out, st));
    }
    return RG_OK;
}

static rg_code put_response(const rg_job *job, bool whole, rg_buf *out, rg_status *st) {
    const bool cut = whole && job->ending == RG_ENDING_LENGTH;
    RG_TRY(rg_buf_printf(out, st,
                         "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,"
                         "\"status\":\"%s\",\"error\":null,\"incomplete_details\":%s,"
                         "\"instructions\":null,\"metadata\":{},\"model\":",
                         job->id, (long long)job->created,
                         !whole ? "in_progress"
                         : cut  ? "incomplete"
                                : "completed",
                         cut ? "{\"reason\":\"max_output_tokens\"}" : "null"));
    RG_TRY(rg_put_string(out, job->model_name, strlen(job->model_name), st));
    RG_TRY(rg_buf_puts(out, ",\"output\":[", st));
    if (whole) RG_TRY(put_output(job, out, st));
    RG_TRY(rg_buf_printf(out, st,
                         "],\"parallel_tool_calls\":%s,\"tool_choice\":\"auto\",\"tools\":"
                         "[],\"store\":false,\"temperature\":%g,\"top_p\":%g,\"usage\":",
                         job->one_call ? "false" : "true",
                         (double)job->options.sampling.temperature,
                         (double)job->options.sampling.top_p));
    if (!whole) return rg_buf_puts(out, "null}", st);
    RG_TRY(rg_buf_printf(out, st,
                         "{\"input_tokens\":%zu,\"input_tokens_details\":{\"cached_tokens\":%u},"
                         "\"output_tokens\":%u,\"output_tokens_details\":{\"reasoning_tokens\":%u},"
                         "\"total_tokens\":%zu",
                         job->n_ids, job->n_cached, job->n_made, job->n_reasoning,
                         job->n_ids + job->n_made));
    RG_TRY(rg_put_receipt(job, out, st));
    return rg_buf_puts(out, "}}", st);
}

/* "event: TYPE", then the data up to what the type needs. */
static rg_code open_event(rg_job *job, const char *type, rg_buf *out, rg_status *st) {
    return rg_buf_printf(out, st, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%u", type,
                         type, job->sequence++);
}

static rg_code close_event(rg_buf *out, rg_status *st) {
    return rg_buf_puts(out, "}\n\n", st);
}

static rg_code response_event(rg_job *job, const char *type, bool whole, rg_buf *out,
                              rg_status *st) {
    RG_TRY(open_event(job, type, out, st));
    RG_TRY(rg_buf_puts(out, ",\"response\":", st));
    RG_TRY(put_response(job, whole, out, st));
    return close_event(out, st);
}

static rg_code begin(rg_job *job, rg_buf *out, rg_status *st) {
    RG_TRY(response_event(job, "response.created", false, out, st));
    return response_event(job, "response.in_progress", false, out, st);
}

/* The open item's number of its call: block_kind holds the kind, the last call is the open one. */
static uint32_t open_call(const rg_job *job) {
    return job->n_calls ? (uint32_t)job->n_calls - 1 : 0;
}

static const char *id_prefix(int kind) {
    return kind == RG_PART_REASONING ? "rs" : kind == RG_PART_ANSWER ? "msg" : "fc";
}

static rg_code item_place(const rg_job *job, rg_buf *out, rg_status *st) {
    return rg_buf_printf(out, st, ",\"item_id\":\"%s_%s_%d\",\"output_index\":%d",
                         id_prefix(job->block_kind), job->id + 5, job->block, job->block);
}

static rg_code close_text(rg_job *job, rg_buf *out, rg_status *st) {
    const bool answer = job->block_kind == RG_PART_ANSWER;
    const rg_buf *text = answer ? &job->answer : &job->reasoning;
    RG_TRY(open_event(job, answer ? "response.output_text.done" : "response.reasoning_text.done",
                      out, st));
    RG_TRY(item_place(job, out, st));
    RG_TRY(rg_buf_puts(out, ",\"content_index\":0,\"text\":", st));
    RG_TRY(rg_put_string(out, text->data ? text->data : "", text->len, st));
    if (answer) RG_TRY(rg_buf_puts(out, ",\"logprobs\":[]", st));
    RG_TRY(close_event(out, st));
    if (!answer) return RG_OK;
    RG_TRY(open_event(job, "response.content_part.done", out, st));
    RG_TRY(item_place(job, out, st));
    RG_TRY(rg_buf_puts(out, ",\"content_index\":0,\"part\":", st));
    RG_TRY(put_text_part(text, out, st));
    return close_event(out, st);
}

static rg_code close_item(rg_job *job, rg_buf *out, rg_status *st) {
    if (job->block < 0 || job->block_kind < 0) return RG_OK;
    if (job->block_kind == RG_PART_CALL_BEGIN) {
        const rg_made_call *c = &job->calls[open_call(job)];
        RG_TRY(open_event(job, "response.function_call_arguments.done", out, st));
        RG_TRY(item_place(job, out, st));
        RG_TRY(rg_buf_puts(out, ",\"name\":", st));
        RG_TRY(rg_put_string(out, c->name.data, c->name.len, st));
        RG_TRY(rg_buf_puts(out, ",\"arguments\":", st));
        RG_TRY(rg_put_string(out, c->args.data ? c->args.data : "", c->args.len, st));
        RG_TRY(close_event(out, st));
    } else {
        RG_TRY(close_text(job, out, st));
    }
    RG_TRY(open_event(job, "response.output_item.done", out, st));
    RG_TRY(rg_buf_printf(out, st, ",\"output_index\":%d,\"item\":", job->block));
    RG_TRY(put_item(job, (rg_part_kind)job->block_kind, open_call(job), job->block, true, out, st));
    job->block_kind = -1;
    return close_event(out, st);
}

static rg_code open_item(rg_job *job, const rg_part *p, rg_buf *out, rg_status *st) {
    RG_TRY(close_item(job, out, st));
    job->block++;
    job->block_kind = (int)p->kind;
    RG_TRY(open_event(job, "response.output_item.added", out, st));
    RG_TRY(rg_buf_printf(out, st, ",\"output_index\":%d,\"item\":", job->block));
    RG_TRY(put_item(job, p->kind, p->call, job->block, false, out, st));
    RG_TRY(close_event(out, st));
    if (p->kind != RG_PART_ANSWER) return RG_OK;
    const rg_buf nothing = {0};
    RG_TRY(open_event(job, "response.content_part.added", out, st));
    RG_TRY(item_place(job, out, st));
    RG_TRY(rg_buf_puts(out, ",\"content_index\":0,\"part\":", st));
    RG_TRY(put_text_part(&nothing, out, st));
    return close_event(out, st);
}

static rg_code put_delta(rg_job *job, const char *type, rg_str text, rg_buf *out, rg_status *st) {
    RG_TRY(open_event(job, type, out, st));
    RG_TRY(item_place(job, out, st));
    if (job->block_kind != RG_PART_CALL_BEGIN) {
        RG_TRY(rg_buf_puts(out, ",\"content_index\":0", st));
    }
    if (job->block_kind == RG_PART_ANSWER) RG_TRY(rg_buf_puts(out, ",\"logprobs\":[]", st));
    RG_TRY(rg_buf_puts(out, ",\"delta\":", st));
    RG_TRY(rg_put_string(out, text.data, text.len, st));
    return close_event(out, st);
}

static rg_code part(rg_job *job, const rg_part *p, rg_buf *out, rg_status *st) {
    switch (p->kind) {
    case RG_PART_REASONING:
    case RG_PART_ANSWER:
        if (job->block_kind != (int)p->kind || job->block < 0) RG_TRY(open_item(job, p, out, st));
        return put_delta(job,
                         p->kind == RG_PART_ANSWER ? "response.output_text.delta"
                                                   : "response.reasoning_text.delta",
                         p->text, out, st);
    case RG_PART_CALL_BEGIN:
        return open_item(job, p, out, st);
    case RG_PART_CALL_ARGS:
        return put_delta(job, "response.function_call_arguments.delta", p->text, out, st);
    case RG_PART_CALL_END:
        return close_item(job, out, st);
    }
    return RG_OK;
}

static rg_code end(rg_job *job, rg_buf *out, rg_status *st) {
    if (job->block < 0) { /* an empty reply is an empty message */
        const rg_part nothing = {RG_PART_ANSWER, 0, {"", 0}};
        RG_TRY(open_item(job, &nothing, out, st));
    }
    RG_TRY(close_item(job, out, st));
    return response_event(
        job, job->ending == RG_ENDING_LENGTH ? "response.incomplete" : "response.completed", true,
        out, st);
}

static rg_code body(rg_job *job, rg_buf *out, rg_status *st) {
    return put_response(job, true, out, st);
}

static rg_code error(int http, const char *message, bool in_stream, rg_buf *out, rg_status *st) {
    if (!in_stream) return rg_dialect_chat.error(http, message, false, out, st);
    RG_TRY(rg_buf_printf(out, st,
                         "event: error\ndata: {\"type\":\"error\",\"code\":\"%d\","
                         "\"message\":",
                         http));
    RG_TRY(rg_put_string(out, message, strlen(message), st));
    return rg_buf_puts(out, ",\"param\":null}\n\n", st);
}

const rg_dialect rg_dialect_responses = {begin, part, end, body, error};
