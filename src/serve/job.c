#include "serve/job.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sys/random.h>

void rg_job_make_id(char *out, size_t cap, const char *prefix) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    uint8_t random[24] = {0};
    if (getrandom(random, sizeof random, 0) < 0) {
        const uint64_t now = rg_now_ns();
        memcpy(random, &now, sizeof now);
    }
    char word[sizeof random + 1];
    for (size_t i = 0; i < sizeof random; i++)
        word[i] = letters[random[i] % (sizeof letters - 1)];
    word[sizeof random] = 0;
    snprintf(out, cap, "%s%s", prefix, word);
}

rg_code rg_job_create(rg_job **out, rg_pipe *pipe, const rg_dialect *dialect, rg_status *st) {
    *out = NULL;
    rg_job *job = rg_alloc(1, sizeof *job, st);
    if (!job) return RG_NOMEM;
    job->pipe = rg_pipe_hold(pipe);
    job->dialect = dialect;
    job->created = (int64_t)time(NULL);
    job->begin_ns = rg_now_ns();
    job->block = -1;
    job->choice = RG_CHOICE_AUTO;
    *out = job;
    return RG_OK;
}

void rg_job_destroy(rg_job *job) {
    if (!job) return;
    rg_split_deinit(&job->split);
    rg_guide_destroy(job->guide);
    rg_reply_destroy(job->reply);
    rg_buf *const bufs[] = {&job->reasoning,    &job->answer,      &job->logprobs,
                            &job->text_offsets, &job->token_texts, &job->token_logprobs,
                            &job->top_logprobs};
    for (size_t i = 0; i < RG_ARRAY_LEN(bufs); i++)
        rg_buf_deinit(bufs[i]);
    for (size_t i = 0; i < job->n_calls; i++) {
        rg_buf_deinit(&job->calls[i].name);
        rg_buf_deinit(&job->calls[i].args);
    }
    rg_free(job->calls);
    rg_release(job->ids);
    json_decref(job->tools);
    json_decref(job->any_object);
    json_decref(job->root);
    while (job->scraps) {
        rg_scrap *next = job->scraps->next;
        rg_free(job->scraps);
        job->scraps = next;
    }
    rg_pipe_drop(job->pipe);
    rg_free(job);
}

void *rg_job_take(rg_job *job, size_t count, size_t size, rg_status *st) {
    if (size && count > (SIZE_MAX / 2) / size) {
        rg_fail(st, RG_NOMEM, "%zu things of %zu bytes", count, size);
        return NULL;
    }
    rg_scrap *s = rg_alloc(1, sizeof *s + count * size, st);
    if (!s) return NULL;
    s->next = job->scraps;
    job->scraps = s;
    return s->data;
}

rg_code rg_job_copy(rg_job *job, const char *text, size_t len, rg_str *out, rg_status *st) {
    char *copy = rg_job_take(job, len + 1, 1, st);
    if (!copy) return RG_NOMEM;
    memcpy(copy, text, len);
    *out = (rg_str){copy, len};
    return RG_OK;
}

static rg_code begin_call(rg_job *job, const rg_part *part, rg_status *st) {
    if (job->n_calls == job->cap_calls) {
        const size_t cap = job->cap_calls ? job->cap_calls * 2 : 4;
        rg_made_call *calls = rg_realloc(job->calls, cap, sizeof *calls, st);
        if (!calls) return RG_NOMEM;
        job->calls = calls;
        job->cap_calls = cap;
    }
    rg_made_call *c = &job->calls[job->n_calls++];
    memset(c, 0, sizeof *c);
    rg_job_make_id(c->id, sizeof c->id, job->dialect == &rg_dialect_messages ? "toolu_" : "call_");
    return rg_buf_append(&c->name, part->text.data, part->text.len, st);
}

static rg_code remember(rg_job *job, const rg_part *part, rg_status *st) {
    switch (part->kind) {
    case RG_PART_REASONING:
        return rg_buf_append(&job->reasoning, part->text.data, part->text.len, st);
    case RG_PART_ANSWER:
        return rg_buf_append(&job->answer, part->text.data, part->text.len, st);
    case RG_PART_CALL_BEGIN:
        return begin_call(job, part, st);
    case RG_PART_CALL_ARGS:
        return rg_buf_append(&job->calls[part->call].args, part->text.data, part->text.len, st);
    case RG_PART_CALL_END:
        job->calls[part->call].done = true;
        break;
    }
    return RG_OK;
}

rg_code rg_job_part(rg_job *job, const rg_part *part, rg_status *st) {
    RG_TRY(remember(job, part, st));
    if (!job->stream) return RG_OK;
    rg_buf out;
    rg_buf_init(&out, 0);
    const rg_code rc = job->dialect->part(job, part, &out, st);
    if (rc == RG_OK && out.len) rg_pipe_write(job->pipe, out.data, out.len);
    rg_buf_deinit(&out);
    return rc;
}

const json_t *rg_job_any_object(rg_job *job) {
    if (!job->any_object) job->any_object = json_pack("{s:s}", "type", "object");
    return job->any_object;
}

rg_code rg_job_begin(rg_job *job, rg_status *st) {
    if (!job->stream) return RG_OK;
    rg_buf out;
    rg_buf_init(&out, 0);
    const rg_code rc = job->dialect->begin(job, &out, st);
    if (rc == RG_OK) {
        rg_pipe_start_stream(job->pipe, 200, "text/event-stream");
        if (out.len) rg_pipe_write(job->pipe, out.data, out.len);
    }
    rg_buf_deinit(&out);
    return rc;
}

rg_code rg_job_finish(rg_job *job, rg_status *st) {
    rg_buf out;
    rg_buf_init(&out, 0);
    const rg_code rc =
        job->stream ? job->dialect->end(job, &out, st) : job->dialect->body(job, &out, st);
    if (rc == RG_OK && job->stream) {
        rg_pipe_write(job->pipe, out.data, out.len);
        rg_pipe_end(job->pipe);
    } else if (rc == RG_OK) {
        rg_pipe_reply(job->pipe, 200, "application/json", out.data, out.len);
    }
    rg_buf_deinit(&out);
    return rc;
}

void rg_job_fail(rg_job *job, int http, const char *message) {
    rg_buf out;
    rg_buf_init(&out, 0);
    const bool begun = rg_pipe_started(job->pipe);
    const rg_code rc = job->dialect->error(http, message, begun, &out, NULL);
    if (begun) {
        if (rc == RG_OK) rg_pipe_write(job->pipe, out.data, out.len);
        rg_pipe_end(job->pipe);
    } else if (rc == RG_OK) {
        rg_pipe_reply(job->pipe, http, "application/json", out.data, out.len);
    } else {
        rg_pipe_reply(job->pipe, 503, "application/json", "{}", 2);
    }
    rg_buf_deinit(&out);
}

/* ---- log probabilities ---------------------------------------------------------------------- */

/* A token's bytes as text: what is no UTF-8 becomes U+FFFD. */
static rg_code put_token_text(rg_buf *b, rg_str t, rg_status *st) {
    json_t *whole = json_stringn(t.data, t.len);
    if (whole) {
        json_decref(whole);
        return rg_put_string(b, t.data, t.len, st);
    }
    RG_TRY(rg_buf_append(b, "\"", 1, st));
    for (size_t i = 0; i < t.len; i++) {
        const bool ascii = (unsigned char)t.data[i] < 0x80;
        if (ascii) {
            RG_TRY(rg_put_escaped(b, t.data + i, 1, st));
        } else {
            RG_TRY(rg_buf_puts(b, "\xEF\xBF\xBD", st));
        }
    }
    return rg_buf_append(b, "\"", 1, st);
}

static rg_code put_entry(const rg_job *job, rg_buf *b, int32_t id, double logprob, rg_status *st) {
    const rg_str t = rg_lexicon_token(job->lexicon, id);
    RG_TRY(rg_buf_puts(b, "{\"token\":", st));
    RG_TRY(put_token_text(b, t, st));
    RG_TRY(rg_buf_printf(b, st, ",\"logprob\":%.6g,\"bytes\":[", logprob));
    for (size_t i = 0; i < t.len; i++)
        RG_TRY(rg_buf_printf(b, st, i ? ",%u" : "%u", (unsigned)(unsigned char)t.data[i]));
    return rg_buf_puts(b, "]", st);
}

static rg_code add_chat_logprob(rg_job *job, const rg_reply_step *step, rg_status *st) {
    rg_buf *b = &job->logprobs;
    if (b->len) RG_TRY(rg_buf_puts(b, ",", st));
    RG_TRY(put_entry(job, b, step->id, (double)step->logprob, st));
    RG_TRY(rg_buf_puts(b, ",\"top_logprobs\":[", st));
    for (size_t i = 0; i < step->n_top; i++) {
        if (i) RG_TRY(rg_buf_puts(b, ",", st));
        RG_TRY(put_entry(job, b, step->top_ids[i], (double)step->top_logprobs[i], st));
        RG_TRY(rg_buf_puts(b, "}", st));
    }
    return rg_buf_puts(b, "]}", st);
}

static rg_code add_text_logprob(rg_job *job, const rg_reply_step *step, rg_status *st) {
    const char *comma = job->token_texts.len ? "," : "";
    RG_TRY(rg_buf_printf(&job->text_offsets, st, "%s%zu", comma, job->answer.len));
    RG_TRY(rg_buf_puts(&job->token_texts, comma, st));
    RG_TRY(put_token_text(&job->token_texts, rg_lexicon_token(job->lexicon, step->id), st));
    RG_TRY(rg_buf_printf(&job->token_logprobs, st, "%s%.6g", comma, (double)step->logprob));
    RG_TRY(rg_buf_printf(&job->top_logprobs, st, "%s{", comma));
    for (size_t i = 0; i < step->n_top; i++) {
        if (i) RG_TRY(rg_buf_puts(&job->top_logprobs, ",", st));
        RG_TRY(put_token_text(&job->top_logprobs, rg_lexicon_token(job->lexicon, step->top_ids[i]),
                              st));
        RG_TRY(rg_buf_printf(&job->top_logprobs, st, ":%.6g", (double)step->top_logprobs[i]));
    }
    return rg_buf_puts(&job->top_logprobs, "}", st);
}

rg_code rg_job_logprob(rg_job *job, const rg_reply_step *step, rg_status *st) {
    job->n_logprobs++;
    return job->chat ? add_chat_logprob(job, step, st) : add_text_logprob(job, step, st);
}

rg_code rg_put_receipt(const rg_job *job, rg_buf *out, rg_status *st) {
    const rg_moce_receipt *r = &job->receipt;
    if (!(job->moce > 0) || job->ending == RG_ENDING_NONE) return RG_OK;
    return rg_buf_printf(out, st,
                         ",\"moce\":{\"strength\":%.9g,\"tokens\":%llu,\"routes\":%llu,"
                         "\"routes_changed\":%llu,\"mass_moved\":%.17g}",
                         (double)job->moce, (unsigned long long)r->tokens,
                         (unsigned long long)r->routes, (unsigned long long)r->routes_changed,
                         r->mass_moved);
}
