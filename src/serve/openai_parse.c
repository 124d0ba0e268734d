/* Requests of OpenAI's chat and text completions. */
#include <string.h>

#include "serve/job.h"

/* ---- messages ------------------------------------------------------------------------------- */

static rg_code read_role(const json_t *m, size_t at, rg_role *out, rg_status *st) {
    static const struct {
        const char *name;
        rg_role role;
    } roles[] = {{"system", RG_ROLE_SYSTEM}, {"developer", RG_ROLE_SYSTEM},
                 {"user", RG_ROLE_USER},     {"assistant", RG_ROLE_ASSISTANT},
                 {"tool", RG_ROLE_TOOL},     {"function", RG_ROLE_TOOL}};
    rg_str role = {"", 0};
    RG_TRY(rg_field_str(m, "role", &role, st));
    for (size_t i = 0; i < RG_ARRAY_LEN(roles); i++) {
        if (!rg_str_is(role, roles[i].name)) continue;
        *out = roles[i].role;
        return RG_OK;
    }
    return rg_fail(st, RG_INVALID, "'messages[%zu].role' is \"%.40s\", which is no role", at,
                   role.data);
}

static rg_code read_calls(rg_job *job, const json_t *m, rg_message *out, rg_status *st) {
    json_t *calls = NULL;
    RG_TRY(rg_field_array(m, "tool_calls", &calls, st));
    const size_t n = json_array_size(calls);
    if (n > RG_SPLIT_CALLS_MAX) {
        return rg_fail(st, RG_INVALID, "a message has %zu tool calls, %u are possible", n,
                       RG_SPLIT_CALLS_MAX);
    }
    if (n == 0) return RG_OK;
    rg_tool_call *to = rg_job_take(job, n, sizeof *to, st);
    if (!to) return RG_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const json_t *f = json_object_get(json_array_get(calls, i), "function");
        const json_t *text = json_object_get(f, "arguments");
        json_error_t e;
        json_t *args = json_is_string(text) && json_string_length(text)
                           ? json_loadb(json_string_value(text), json_string_length(text),
                                        JSON_REJECT_DUPLICATES, &e)
                           : json_object();
        const rg_code rc = rg_read_call(job, &to[i], json_object_get(f, "name"), args, st);
        json_decref(args);
        RG_TRY(rc);
    }
    out->calls = to;
    out->n_calls = n;
    return RG_OK;
}

static rg_code read_message(rg_job *job, const json_t *m, size_t at, rg_message *out,
                            rg_status *st) {
    char where[40];
    snprintf(where, sizeof where, "messages[%zu].content", at);
    if (!json_is_object(m)) {
        return rg_fail(st, RG_INVALID, "'messages[%zu]' is no object", at);
    }
    RG_TRY(read_role(m, at, &out->role, st));
    RG_TRY(rg_read_content(job, json_object_get(m, "content"), where, &out->content, st));
    if (out->role != RG_ROLE_ASSISTANT) return RG_OK;
    RG_TRY(rg_field_str(m, "reasoning_content", &out->reasoning, st));
    out->has_reasoning = out->reasoning.len > 0;
    return read_calls(job, m, out, st);
}

static rg_code read_messages(rg_job *job, rg_status *st) {
    json_t *list = NULL;
    RG_TRY(rg_field_array(job->root, "messages", &list, st));
    const size_t n = json_array_size(list);
    if (n == 0) return rg_fail(st, RG_INVALID, "'messages': at least one expected");
    if (n > RG_MESSAGES_MAX) {
        return rg_fail(st, RG_INVALID, "'messages' has %zu, %u are possible", n, RG_MESSAGES_MAX);
    }
    job->messages = rg_job_take(job, n, sizeof *job->messages, st);
    if (!job->messages) return RG_NOMEM;
    for (size_t i = 0; i < n; i++) {
        RG_TRY(read_message(job, json_array_get(list, i), i, &job->messages[i], st));
    }
    job->n_messages = n;
    return RG_OK;
}

/* ---- tools ---------------------------------------------------------------------------------- */

static rg_code read_choice(rg_job *job, rg_status *st) {
    const json_t *v = rg_field(job->root, "tool_choice");
    if (!v) return RG_OK;
    const rg_str word = json_is_string(v) ? rg_json_str(v) : (rg_str){"", 0};
    if (rg_str_is(word, "none")) {
        job->choice = RG_CHOICE_NONE;
    } else if (rg_str_is(word, "auto")) {
        job->choice = RG_CHOICE_AUTO;
    } else if (rg_str_is(word, "required") || rg_str_is(word, "any")) {
        job->choice = RG_CHOICE_REQUIRED;
    } else {
        const json_t *f = json_object_get(v, "function");
        const json_t *name = json_object_get(f ? f : v, "name");
        if (!json_is_string(name)) {
            return rg_fail(st, RG_INVALID,
                           "'tool_choice': none, auto, required or a function "
                           "by name expected");
        }
        job->choice = RG_CHOICE_NAMED;
        job->chosen = rg_json_str(name);
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
        const json_t *t = json_array_get(list, i), *f = json_object_get(t, "function");
        const char *type = json_string_value(json_object_get(t, "type"));
        if (!type || strcmp(type, "function") != 0) {
            return rg_fail(st, RG_INVALID, "'tools[%zu]': only functions are possible", i);
        }
        RG_TRY(rg_add_tool(job, json_object_get(f, "name"), rg_field(f, "description"),
                           rg_field(f, "parameters"), json_object_get(f, "strict"), st));
    }
    bool parallel = true;
    RG_TRY(rg_field_bool(job->root, "parallel_tool_calls", &parallel, st));
    job->one_call = !parallel;
    RG_TRY(read_choice(job, st));
    return rg_check_named_tool(job, st);
}

/* ---- the rest ------------------------------------------------------------------------------- */

static rg_code read_format(rg_job *job, rg_status *st) {
    json_t *o = NULL;
    rg_str type = {"text", 4};
    RG_TRY(rg_field_object(job->root, "response_format", &o, st));
    if (!o) return RG_OK;
    RG_TRY(rg_field_str(o, "type", &type, st));
    if (rg_str_is(type, "text")) return RG_OK;
    if (rg_str_is(type, "json_object")) {
        job->schema = rg_job_any_object(job);
        if (!job->schema) return rg_fail(st, RG_NOMEM, "no memory for a schema");
        return RG_OK;
    }
    if (!rg_str_is(type, "json_schema")) {
        return rg_fail(st, RG_INVALID,
                       "'response_format.type' is \"%.40s\"; text, json_object and "
                       "json_schema are possible",
                       type.data);
    }
    const json_t *js = json_object_get(o, "json_schema");
    job->schema = json_object_get(js, "schema");
    if (json_is_object(job->schema)) return RG_OK;
    return rg_fail(st, RG_INVALID, "'response_format.json_schema.schema': an object expected");
}

static rg_code read_logprobs(rg_job *job, rg_status *st) {
    int64_t top = 0;
    RG_TRY(rg_field_bool(job->root, "logprobs", &job->options.logprobs, st));
    RG_TRY(rg_field_int(job->root, "top_logprobs", 0, RG_TOP_MAX, &top, st));
    if (top && !job->options.logprobs) {
        return rg_fail(st, RG_INVALID, "'top_logprobs' are given without 'logprobs'");
    }
    job->options.n_top = (uint32_t)top;
    return RG_OK;
}

static rg_code read_length(rg_job *job, rg_status *st) {
    int64_t n = 0;
    RG_TRY(rg_field_int(job->root, "max_tokens", 1, INT32_MAX, &n, st));
    RG_TRY(rg_field_int(job->root, "max_completion_tokens", 1, INT32_MAX, &n, st));
    job->n_predict = (uint32_t)n;
    int64_t choices = 1;
    RG_TRY(rg_field_int(job->root, "n", 1, 1, &choices, st));
    return RG_OK;
}

static rg_code read_thinking(rg_job *job, const rg_serve_options *opt, rg_status *st) {
    json_t *kwargs = NULL;
    rg_str effort = {"", 0};
    job->thinking = !opt->no_think;
    RG_TRY(rg_field_str(job->root, "reasoning_effort", &effort, st));
    RG_TRY(rg_read_effort(job, effort, st));
    RG_TRY(rg_field_object(job->root, "chat_template_kwargs", &kwargs, st));
    return kwargs ? rg_field_bool(kwargs, "enable_thinking", &job->thinking, st) : RG_OK;
}

rg_code rg_parse_chat(rg_job *job, const rg_serve_options *opt, rg_status *st) {
    job->chat = true;
    RG_TRY(read_messages(job, st));
    RG_TRY(read_tools(job, st));
    RG_TRY(read_format(job, st));
    RG_TRY(rg_parse_sampling(job, opt, st));
    RG_TRY(rg_parse_stop(job, "stop", st));
    RG_TRY(rg_parse_stream(job, st));
    RG_TRY(read_logprobs(job, st));
    RG_TRY(read_length(job, st));
    RG_TRY(read_thinking(job, opt, st));
    rg_job_make_id(job->id, sizeof job->id, "chatcmpl-");
    return RG_OK;
}

/* ---- text completions ----------------------------------------------------------------------- */

static rg_code copy_ids(rg_job *job, const json_t *list, rg_status *st) {
    const size_t n = json_array_size(list);
    int32_t *ids = rg_alloc(n + 1, sizeof *ids, st);
    if (!ids) return RG_NOMEM;
    job->ids = ids;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        const json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || (size_t)id >= job->lexicon->n) {
            return rg_fail(st, RG_INVALID, "'prompt[%zu]' is no token of the %zu", i,
                           job->lexicon->n);
        }
        ids[i] = (int32_t)id;
    }
    job->n_ids = n;
    return RG_OK;
}

/* A text, token ids, or an array of one of these. */
static rg_code read_prompt(rg_job *job, const rg_engine *engine, rg_status *st) {
    const json_t *v = rg_field(job->root, "prompt");
    const json_t *first = json_array_get(v, 0);
    if (json_is_array(v) && (json_is_string(first) || json_is_array(first))) {
        if (json_array_size(v) != 1) {
            return rg_fail(st, RG_INVALID, "'prompt' has %zu prompts, 1 is possible",
                           json_array_size(v));
        }
        v = first;
    }
    if (json_is_array(v)) {
        RG_TRY(copy_ids(job, v, st));
    } else if (json_is_string(v)) {
        RG_TRY(rg_engine_tokenize(engine, json_string_value(v), json_string_length(v), true,
                                  &job->ids, &job->n_ids, st));
    } else {
        return rg_fail(st, RG_INVALID, "'prompt': a text or an array of token ids expected");
    }
    return job->n_ids ? RG_OK : rg_fail(st, RG_INVALID, "'prompt' is empty");
}

rg_code rg_parse_text(rg_job *job, const rg_engine *engine, const rg_serve_options *opt,
                      rg_status *st) {
    int64_t logprobs = -1, best = 1;
    rg_str suffix = {"", 0};
    RG_TRY(read_prompt(job, engine, st));
    RG_TRY(rg_parse_sampling(job, opt, st));
    RG_TRY(rg_parse_stop(job, "stop", st));
    RG_TRY(rg_parse_stream(job, st));
    RG_TRY(read_length(job, st));
    if (!job->n_predict) job->n_predict = 16; /* as the interface says */
    RG_TRY(rg_field_int(job->root, "logprobs", 0, RG_TOP_MAX, &logprobs, st));
    job->options.logprobs = logprobs >= 0;
    job->options.n_top = logprobs > 0 ? (uint32_t)logprobs : 0;
    RG_TRY(rg_field_int(job->root, "best_of", 1, 1, &best, st));
    RG_TRY(rg_field_bool(job->root, "echo", &job->echo, st));
    RG_TRY(rg_field_str(job->root, "suffix", &suffix, st));
    if (suffix.len) return rg_fail(st, RG_INVALID, "'suffix' is not possible with this model");
    if (job->echo && job->options.logprobs) {
        return rg_fail(st, RG_INVALID, "'echo' with 'logprobs' is not possible");
    }
    if (job->echo) {
        char *text = NULL;
        size_t len = 0;
        RG_TRY(rg_vocab_detokenize(rg_engine_vocab(engine), job->ids, job->n_ids, &text, &len, st));
        const rg_code rc = rg_buf_append(&job->reasoning, text, len, st); /* said before */
        rg_release(text);
        RG_TRY(rc);
    }
    rg_job_make_id(job->id, sizeof job->id, "cmpl-");
    return RG_OK;
}
