/* What the dialects' requests have in common. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "serve/job.h"

static rg_code read_bias(rg_job *job, rg_status *st) {
    json_t *o = NULL;
    RG_TRY(rg_field_object(job->root, "logit_bias", &o, st));
    if (!o) return RG_OK;
    const size_t n = json_object_size(o);
    if (n > RG_SAMPLING_BIAS_MAX) {
        return rg_fail(st, RG_INVALID, "'logit_bias' has %zu entries, %d are possible", n,
                       RG_SAMPLING_BIAS_MAX);
    }
    rg_logit_bias *bias = rg_job_take(job, n + 1, sizeof *bias, st);
    if (!bias) return RG_NOMEM;
    const char *key;
    json_t *v;
    size_t i = 0;
    json_object_foreach(o, key, v) {
        char *end = NULL;
        const long id = strtol(key, &end, 10);
        if (!*key || *end || id < 0 || (size_t)id >= job->lexicon->n) {
            return rg_fail(st, RG_INVALID, "'logit_bias': \"%.40s\" is no token of the %zu", key,
                           job->lexicon->n);
        }
        const double x = json_number_value(v);
        if (!json_is_number(v) || !(x >= -100 && x <= 100)) {
            return rg_fail(st, RG_INVALID, "'logit_bias' of token %ld: -100 to 100 expected", id);
        }
        /* The interface says that -100 bans a token. */
        bias[i++] = (rg_logit_bias){(int32_t)id, x <= -100 ? -INFINITY : (float)x};
    }
    job->options.sampling.logit_bias = bias;
    job->options.sampling.n_logit_bias = n;
    return RG_OK;
}

rg_code rg_parse_sampling(rg_job *job, const rg_serve_options *opt, rg_status *st) {
    rg_sampling_params *s = &job->options.sampling;
    *s = opt->sampling;
    s->logit_bias = NULL;
    s->n_logit_bias = 0;
    s->penalty_last_n = -1;
    const json_t *r = job->root;
    int64_t top_k = s->top_k, seed = 0;
    RG_TRY(rg_field_float(r, "temperature", 0, 2, &s->temperature, st));
    RG_TRY(rg_field_float(r, "top_p", 0, 1, &s->top_p, st));
    RG_TRY(rg_field_float(r, "min_p", 0, 1, &s->min_p, st));
    RG_TRY(rg_field_int(r, "top_k", -1, INT32_MAX, &top_k, st));
    RG_TRY(rg_field_float(r, "presence_penalty", -2, 2, &s->presence_penalty, st));
    RG_TRY(rg_field_float(r, "frequency_penalty", -2, 2, &s->frequency_penalty, st));
    RG_TRY(rg_field_float(r, "repeat_penalty", 0.01, 10, &s->repeat_penalty, st));
    RG_TRY(rg_field_float(r, "repetition_penalty", 0.01, 10, &s->repeat_penalty, st));
    job->moce = opt->moce;
    RG_TRY(rg_field_float(r, "moce", 0, 1, &job->moce, st));
    s->top_k = top_k < 0 ? 0 : (int32_t)top_k;
    if (s->top_p <= 0.0f) s->top_p = 1e-6f; /* the best token alone */
    if (rg_field(r, "seed")) {
        RG_TRY(rg_field_int(r, "seed", INT64_MIN, INT64_MAX, &seed, st));
        s->seed = (uint64_t)seed;
    } else {
        s->seed = opt->sampling.seed ? opt->sampling.seed : rg_now_ns();
    }
    RG_TRY(rg_field_bool(r, "ignore_eos", &job->options.ignore_eos, st));
    return read_bias(job, st);
}

rg_code rg_parse_stop(rg_job *job, const char *key, rg_status *st) {
    json_t *v = rg_field(job->root, key);
    if (!v) return RG_OK;
    const bool one = json_is_string(v);
    const size_t n = one ? 1 : json_array_size(v);
    if (!one && !json_is_array(v)) {
        return rg_fail(st, RG_INVALID, "'%s': a string or an array of strings expected", key);
    }
    if (n > RG_STOPS_MAX) {
        return rg_fail(st, RG_INVALID, "'%s' has %zu texts, %u are possible", key, n, RG_STOPS_MAX);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *s = one ? v : json_array_get(v, i);
        if (!json_is_string(s) || json_string_length(s) == 0) {
            return rg_fail(st, RG_INVALID, "'%s': texts that are not empty expected", key);
        }
        if (json_string_length(s) > 1024) {
            return rg_fail(st, RG_INVALID, "'%s' has a text of %zu bytes, 1024 are possible", key,
                           json_string_length(s));
        }
        job->stops[i] = json_string_value(s);
    }
    job->options.stop = job->stops;
    job->options.n_stop = n;
    return RG_OK;
}

rg_code rg_parse_stream(rg_job *job, rg_status *st) {
    json_t *o = NULL;
    RG_TRY(rg_field_bool(job->root, "stream", &job->stream, st));
    RG_TRY(rg_field_object(job->root, "stream_options", &o, st));
    if (!o) return RG_OK;
    if (!job->stream) {
        return rg_fail(st, RG_INVALID, "'stream_options' are given without 'stream'");
    }
    return rg_field_bool(o, "include_usage", &job->usage_in_stream, st);
}

rg_code rg_read_effort(rg_job *job, rg_str effort, rg_status *st) {
    if (effort.len == 0) return RG_OK;
    if (effort.len > 32) return rg_fail(st, RG_INVALID, "'reasoning_effort' is no known word");
    if (rg_str_is(effort, "none")) {
        job->thinking = false;
    } else {
        job->thinking = true;
        job->effort = rg_str_is(effort, "minimal") ? (rg_str){"low", 3} : effort;
    }
    return RG_OK;
}

rg_code rg_read_content(rg_job *job, const json_t *content, const char *where, rg_str *out,
                        rg_status *st) {
    *out = (rg_str){"", 0};
    if (!content || json_is_null(content)) return RG_OK;
    if (json_is_string(content)) {
        *out = rg_json_str(content);
        return RG_OK;
    }
    if (!json_is_array(content)) {
        return rg_fail(st, RG_INVALID, "'%s': a string or an array of parts expected", where);
    }
    rg_buf b;
    rg_buf_init(&b, RG_BODY_BYTES_MAX);
    rg_code rc = RG_OK;
    size_t i;
    json_t *part;
    json_array_foreach(content, i, part) {
        const json_t *text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type || !json_is_string(text)) {
            rc = rg_fail(st, RG_INVALID, "'%s[%zu]' of type %.40s: this model reads text alone",
                         where, i, type ? type : "(none)");
            break;
        }
        rc = rg_buf_append(&b, json_string_value(text), json_string_length(text), st);
        if (rc != RG_OK) break;
    }
    if (rc == RG_OK) rc = rg_job_copy(job, b.data ? b.data : "", b.len, out, st);
    rg_buf_deinit(&b);
    return rc;
}

/* ---- tools ---------------------------------------------------------------------------------- */

static bool is_name(const json_t *name) {
    const char *s = json_string_value(name);
    const size_t len = json_string_length(name);
    if (!s || len == 0 || len >= RG_SPLIT_NAME_MAX) return false;
    return strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == len;
}

/* jansson counts references through pointers that are not const. */
static json_t *shared(const json_t *v) {
    return (json_t *)(uintptr_t)v;
}

/* The text that the template shows: {"type": "function", "function": {...}}. */
static rg_code tool_text(rg_job *job, const json_t *name, const json_t *description,
                         const json_t *parameters, rg_str *out, rg_status *st) {
    json_t *f = json_object(), *tool = NULL;
    rg_buf b;
    rg_buf_init(&b, 0);
    bool ok = f && json_object_set(f, "name", shared(name)) == 0;
    if (ok && description) ok = json_object_set(f, "description", shared(description)) == 0;
    if (ok) ok = json_object_set(f, "parameters", shared(parameters)) == 0;
    if (ok) tool = json_pack("{s:s, s:O}", "type", "function", "function", f);
    rg_code rc = tool ? rg_put_json(&b, tool, st) : rg_fail(st, RG_NOMEM, "no memory for a tool");
    if (rc == RG_OK) rc = rg_job_copy(job, b.data, b.len, out, st);
    rg_buf_deinit(&b);
    json_decref(tool);
    json_decref(f);
    return rc;
}

rg_code rg_add_tool(rg_job *job, const json_t *name, const json_t *description,
                    const json_t *parameters, const json_t *strict, rg_status *st) {
    const size_t at = json_array_size(job->tools);
    if (!is_name(name)) {
        return rg_fail(st, RG_INVALID,
                       "'tools[%zu]': a name of letters, digits, '_', '-' and '.' expected", at);
    }
    if (parameters && !json_is_object(parameters)) {
        return rg_fail(st, RG_INVALID, "'tools[%zu]': parameters are a JSON schema object", at);
    }
    json_t *schema = parameters ? json_incref(shared(parameters))
                                : json_pack("{s:s, s:{}}", "type", "object", "properties");
    if (!schema) return rg_fail(st, RG_NOMEM, "no memory for a tool");
    rg_code rc = tool_text(job, name, description, schema, &job->tool_texts[at], st);
    json_t *tool = json_pack("{s:O, s:O, s:b}", "name", name, "parameters", schema, "strict",
                             json_is_true(strict));
    json_decref(schema);
    if (rc == RG_OK && (!tool || json_array_append(job->tools, tool) != 0)) {
        rc = rg_fail(st, RG_NOMEM, "no memory for a tool");
    }
    json_decref(tool);
    return rc;
}

rg_code rg_check_named_tool(const rg_job *job, rg_status *st) {
    if (job->choice == RG_CHOICE_NONE || job->choice == RG_CHOICE_AUTO) return RG_OK;
    if (!json_array_size(job->tools)) {
        return rg_fail(st, RG_INVALID, "'tool_choice' asks for a tool and there are none");
    }
    if (job->choice != RG_CHOICE_NAMED) return RG_OK;
    size_t i;
    json_t *t;
    json_array_foreach(job->tools, i, t) {
        const rg_str name = rg_json_str(json_object_get(t, "name"));
        if (name.len == job->chosen.len && memcmp(name.data, job->chosen.data, name.len) == 0) {
            return RG_OK;
        }
    }
    return rg_fail(st, RG_INVALID, "'tool_choice' names \"%.80s\", which is no tool",
                   job->chosen.data);
}

rg_code rg_read_call(rg_job *job, rg_tool_call *call, const json_t *name, const json_t *arguments,
                     rg_status *st) {
    if (!is_name(name)) return rg_fail(st, RG_INVALID, "a tool call in the history has no name");
    if (!json_is_object(arguments)) {
        return rg_fail(st, RG_INVALID, "the arguments of a call of \"%.80s\" are no JSON object",
                       json_string_value(name));
    }
    const size_t n = json_object_size(arguments);
    rg_tool_arg *args = rg_job_take(job, n + 1, sizeof *args, st);
    if (!args) return RG_NOMEM;
    const char *key;
    json_t *v;
    size_t i = 0;
    json_object_foreach(shared(arguments), key, v) {
        rg_tool_arg *a = &args[i++];
        RG_TRY(rg_job_copy(job, key, strlen(key), &a->name, st));
        a->is_string = json_is_string(v);
        if (a->is_string) {
            RG_TRY(rg_job_copy(job, json_string_value(v), json_string_length(v), &a->value, st));
            continue;
        }
        rg_buf b;
        rg_buf_init(&b, 0);
        rg_code rc = rg_put_json(&b, v, st);
        if (rc == RG_OK) rc = rg_job_copy(job, b.data, b.len, &a->value, st);
        rg_buf_deinit(&b);
        RG_TRY(rc);
    }
    *call = (rg_tool_call){rg_json_str(name), args, n};
    return RG_OK;
}
