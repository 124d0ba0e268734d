/* Replies of OpenAI's chat and text completions. */
#include <string.h>

#include "serve/job.h"

static const char *finish_text(const rg_job *job) {
    switch (job->ending) {
    case RG_ENDING_LENGTH:
        return "length";
    case RG_ENDING_CALLS:
        return "tool_calls";
    case RG_ENDING_NONE:
    case RG_ENDING_STOP:
    case RG_ENDING_SEQUENCE:
    case RG_ENDING_ERROR:
        break;
    }
    return "stop";
}

static rg_code put_usage(const rg_job *job, rg_buf *out, rg_status *st) {
    RG_TRY(rg_buf_printf(out, st,
                         "\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%u,"
                         "\"total_tokens\":%zu,\"prompt_tokens_details\":{\"cached_tokens\":%u},"
                         "\"completion_tokens_details\":{\"reasoning_tokens\":%u}",
                         job->n_ids, job->n_made, job->n_ids + job->n_made, job->n_cached,
                         job->n_reasoning));
    RG_TRY(rg_put_receipt(job, out, st));
    return rg_buf_puts(out, "}", st);
}

static rg_code put_head(const rg_job *job, const char *object, rg_buf *out, rg_status *st) {
    RG_TRY(rg_buf_printf(out, st, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":",
                         job->id, object, (long long)job->created));
    return rg_put_string(out, job->model_name, strlen(job->model_name), st);
}

/* ---- chat ----------------------------------------------------------------------------------- */

static rg_code begin_chunk(const rg_job *job, rg_buf *out, rg_status *st) {
    RG_TRY(rg_buf_puts(out, "data: ", st));
    return put_head(job, "chat.completion.chunk", out, st);
}

static rg_code put_logprobs(rg_job *job, rg_buf *out, rg_status *st) {
    if (!job->options.logprobs) return rg_buf_puts(out, ",\"logprobs\":null", st);
    RG_TRY(rg_buf_puts(out, ",\"logprobs\":{\"content\":[", st));
    RG_TRY(rg_buf_append(out, job->logprobs.data ? job->logprobs.data : "", job->logprobs.len, st));
    return rg_buf_puts(out, "],\"refusal\":null}", st);
}

static rg_code open_delta(const rg_job *job, rg_buf *out, rg_status *st) {
    RG_TRY(begin_chunk(job, out, st));
    return rg_buf_puts(out, ",\"choices\":[{\"index\":0,\"delta\":", st);
}

static rg_code close_delta(rg_job *job, const char *finish, rg_buf *out, rg_status *st) {
    RG_TRY(put_logprobs(job, out, st));
    rg_buf_clear(&job->logprobs);
    if (finish) {
        RG_TRY(rg_buf_printf(out, st, ",\"finish_reason\":\"%s\"}]", finish));
    } else {
        RG_TRY(rg_buf_puts(out, ",\"finish_reason\":null}]", st));
    }
    if (job->usage_in_stream) RG_TRY(rg_buf_puts(out, ",\"usage\":null", st));
    return rg_buf_puts(out, "}\n\n", st);
}

static rg_code chat_begin(rg_job *job, rg_buf *out, rg_status *st) {
    RG_TRY(open_delta(job, out, st));
    RG_TRY(rg_buf_puts(out, "{\"role\":\"assistant\",\"content\":\"\"}", st));
    return close_delta(job, NULL, out, st);
}

static rg_code chat_part(rg_job *job, const rg_part *part, rg_buf *out, rg_status *st) {
    if (part->kind == RG_PART_CALL_END) return RG_OK;
    RG_TRY(open_delta(job, out, st));
    switch (part->kind) {
    case RG_PART_REASONING:
    case RG_PART_ANSWER:
        RG_TRY(rg_buf_puts(
            out, part->kind == RG_PART_ANSWER ? "{\"content\":" : "{\"reasoning_content\":", st));
        RG_TRY(rg_put_string(out, part->text.data, part->text.len, st));
        RG_TRY(rg_buf_puts(out, "}", st));
        break;
    case RG_PART_CALL_BEGIN:
        RG_TRY(rg_buf_printf(out, st,
                             "{\"tool_calls\":[{\"index\":%u,\"id\":\"%s\",\"type\":\"function\","
                             "\"function\":{\"name\":",
                             part->call, job->calls[part->call].id));
        RG_TRY(rg_put_string(out, part->text.data, part->text.len, st));
        RG_TRY(rg_buf_puts(out, ",\"arguments\":\"\"}}]}", st));
        break;
    case RG_PART_CALL_ARGS:
        RG_TRY(rg_buf_printf(
            out, st, "{\"tool_calls\":[{\"index\":%u,\"function\":{\"arguments\":", part->call));
        RG_TRY(rg_put_string(out, part->text.data, part->text.len, st));
        RG_TRY(rg_buf_puts(out, "}}]}", st));
        break;
    case RG_PART_CALL_END:
        break;
    }
    return close_delta(job, NULL, out, st);
}

static rg_code chat_end(rg_job *job, rg_buf *out, rg_status *st) {
    RG_TRY(open_delta(job, out, st));
    RG_TRY(rg_buf_puts(out, "{}", st));
    RG_TRY(close_delta(job, finish_text(job), out, st));
    if (job->usage_in_stream) {
        RG_TRY(begin_chunk(job, out, st));
        RG_TRY(rg_buf_puts(out, ",\"choices\":[],", st));
        RG_TRY(put_usage(job, out, st));
        RG_TRY(rg_buf_puts(out, "}\n\n", st));
    }
    return rg_buf_puts(out, "data: [DONE]\n\n", st);
}

static rg_code put_calls(const rg_job *job, rg_buf *out, rg_status *st) {
    RG_TRY(rg_buf_puts(out, ",\"tool_calls\":[", st));
    for (size_t i = 0; i < job->n_calls; i++) {
        const rg_made_call *c = &job->calls[i];
        RG_TRY(rg_buf_printf(
            out, st, "%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", i ? "," : "",
            c->id));
        RG_TRY(rg_put_string(out, c->name.data, c->name.len, st));
        RG_TRY(rg_buf_puts(out, ",\"arguments\":", st));
        RG_TRY(rg_put_string(out, c->args.data ? c->args.data : "", c->args.len, st));
        RG_TRY(rg_buf_puts(out, "}}", st));
    }
    return rg_buf_puts(out, "]", st);
}

static rg_code chat_body(rg_job *job, rg_buf *out, rg_status *st) {
    RG_TRY(put_head(job, "chat.completion", out, st));
    RG_TRY(rg_buf_puts(out,
                       ",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
                       "\"content\":",
                       st));
    if (job->n_calls && !job->answer.len) {
        RG_TRY(rg_buf_puts(out, "null", st));
    } else {
        RG_TRY(rg_put_string(out, job->answer.data ? job->answer.data : "", job->answer.len, st));
    }
    RG_TRY(rg_buf_puts(out, ",\"refusal\":null", st));
    if (job->reasoning.len) {
        RG_TRY(rg_buf_puts(out, ",\"reasoning_content\":", st));
        RG_TRY(rg_put_string(out, job->reasoning.data, job->reasoning.len, st));
    }
    if (job->n_calls) RG_TRY(put_calls(job, out, st));
    RG_TRY(rg_buf_puts(out, "}", st));
    RG_TRY(put_logprobs(job, out, st));
    RG_TRY(rg_buf_printf(out, st, ",\"finish_reason\":\"%s\"}],", finish_text(job)));
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
    case 429:
        return "rate_limit_error";
    default:
        return http >= 500 ? "server_error" : "invalid_request_error";
    }
}

static rg_code openai_error(int http, const char *message, bool in_stream, rg_buf *out,
                            rg_status *st) {
    if (in_stream) RG_TRY(rg_buf_puts(out, "data: ", st));
    RG_TRY(rg_buf_puts(out, "{\"error\":{\"message\":", st));
    RG_TRY(rg_put_string(out, message, strlen(message), st));
    RG_TRY(rg_buf_printf(out, st, ",\"type\":\"%s\",\"param\":null,\"code\":%d}}", error_type(http),
                         http));
    return in_stream ? rg_buf_puts(out, "\n\ndata: [DONE]\n\n", st) : RG_OK;
}

const rg_dialect rg_dialect_chat = {chat_begin, chat_part, chat_end, chat_body, openai_error};

/* ---- text ----------------------------------------------------------------------------------- */

static rg_code put_text_logprobs(rg_job *job, rg_buf *out, rg_status *st) {
    if (!job->options.logprobs) return rg_buf_puts(out, ",\"logprobs\":null", st);
    const struct {
        const char *key;
        rg_buf *list;
    } lists[] = {{",\"logprobs\":{\"tokens\":[", &job->token_texts},
                 {"],\"token_logprobs\":[", &job->token_logprobs},
                 {"],\"top_logprobs\":[", &job->top_logprobs},
                 {"],\"text_offset\":[", &job->text_offsets}};
    for (size_t i = 0; i < RG_ARRAY_LEN(lists); i++) {
        RG_TRY(rg_buf_puts(out, lists[i].key, st));
        RG_TRY(rg_buf_append(out, lists[i].list->data ? lists[i].list->data : "",
                             lists[i].list->len, st));
        rg_buf_clear(lists[i].list);
    }
    return rg_buf_puts(out, "]}", st);
}

static rg_code text_chunk(rg_job *job, rg_str text, const char *finish, rg_buf *out,
                          rg_status *st) {
    RG_TRY(rg_buf_puts(out, "data: ", st));
    RG_TRY(put_head(job, "text_completion", out, st));
    RG_TRY(rg_buf_puts(out, ",\"choices\":[{\"index\":0,\"text\":", st));
    RG_TRY(rg_put_string(out, text.data, text.len, st));
    RG_TRY(put_text_logprobs(job, out, st));
    if (finish) {
        RG_TRY(rg_buf_printf(out, st, ",\"finish_reason\":\"%s\"}]", finish));
    } else {
        RG_TRY(rg_buf_puts(out, ",\"finish_reason\":null}]", st));
    }
    return rg_buf_puts(out, "}\n\n", st);
}

static rg_code text_begin(rg_job *job, rg_buf *out, rg_status *st) {
    if (!job->echo) return RG_OK;
    return text_chunk(job, (rg_str){job->reasoning.data, job->reasoning.len}, NULL, out, st);
}

static rg_code text_part(rg_job *job, const rg_part *part, rg_buf *out, rg_status *st) {
    return text_chunk(job, part->text, NULL, out, st);
}

static rg_code text_end(rg_job *job, rg_buf *out, rg_status *st) {
    RG_TRY(text_chunk(job, (rg_str){"", 0}, finish_text(job), out, st));
    if (job->usage_in_stream) {
        RG_TRY(rg_buf_puts(out, "data: ", st));
        RG_TRY(put_head(job, "text_completion", out, st));
        RG_TRY(rg_buf_puts(out, ",\"choices\":[],", st));
        RG_TRY(put_usage(job, out, st));
        RG_TRY(rg_buf_puts(out, "}\n\n", st));
    }
    return rg_buf_puts(out, "data: [DONE]\n\n", st);
}

static rg_code text_body(rg_job *job, rg_buf *out, rg_status *st) {
    RG_TRY(put_head(job, "text_completion", out, st));
    RG_TRY(rg_buf_puts(out, ",\"choices\":[{\"index\":0,\"text\":\"", st));
    const rg_buf *texts[2] = {&job->reasoning, &job->answer};
    for (size_t i = job->echo ? 0 : 1; i < 2; i++) {
        if (texts[i]->len) RG_TRY(rg_put_escaped(out, texts[i]->data, texts[i]->len, st));
    }
    RG_TRY(rg_buf_puts(out, "\"", st));
    RG_TRY(put_text_logprobs(job, out, st));
    RG_TRY(rg_buf_printf(out, st, ",\"finish_reason\":\"%s\"}],", finish_text(job)));
    RG_TRY(put_usage(job, out, st));
    return rg_buf_puts(out, "}", st);
}

const rg_dialect rg_dialect_text = {text_begin, text_part, text_end, text_body, openai_error};
