/* prepare: from a body to a job, away from the HTTP thread: a large prompt takes a while to parse
 * and to tokenise, and others want their answers meanwhile.
 */
#include <string.h>

#include "serve/server.h"

int rg_http_status(rg_code code) {
    switch (code) {
    case RG_INVALID:
    case RG_UNSUPPORTED:
        return 400;
    case RG_BUSY:
        return 429;
    case RG_NOMEM:
    case RG_CANCELED:
        return 503;
    case RG_TIMEOUT:
        return 504;
    case RG_OK:
    case RG_FORMAT:
    case RG_IO:
    case RG_BUG:
    case RG_CODE_COUNT:
        break;
    }
    return 500;
}

void rg_refuse(rg_pipe *pipe, const rg_dialect *dialect, int http, const char *message) {
    rg_buf b;
    rg_buf_init(&b, 0);
    if (!dialect) dialect = &rg_dialect_chat;
    if (http == 429 || http == 503) pipe->retry_after_s = 1;
    if (dialect->error(http, message, false, &b, NULL) == RG_OK) {
        rg_pipe_reply(pipe, http, "application/json", b.data, b.len);
    } else {
        rg_pipe_reply(pipe, 503, "application/json", "{}", 2);
    }
    rg_buf_deinit(&b);
}

/* ---- prompt --------------------------------------------------------------------------------- */

static rg_code render(rg_server *s, rg_job *job, rg_status *st) {
    const rg_chat_options chat = {.add_generation_prompt = true,
                                  .enable_thinking = job->thinking,
                                  .preserve_thinking = true,
                                  .reasoning_effort = job->effort};
    const size_t n_tools = job->choice == RG_CHOICE_NONE ? 0 : json_array_size(job->tools);
    char *text = NULL;
    size_t len = 0;
    RG_TRY(rg_engine_render_chat(s->engine, job->messages, job->n_messages, job->tool_texts,
                                 n_tools, &chat, &text, &len, st));
    const rg_code rc = rg_engine_tokenize(s->engine, text, len, true, &job->ids, &job->n_ids, st);
    rg_release(text);
    return rc;
}

static rg_code check_length(const rg_server *s, const rg_job *job, rg_status *st) {
    if (job->n_ids == 0) return rg_fail(st, RG_INVALID, "the prompt is empty");
    if (job->n_ids < s->opt.n_ctx) return RG_OK;
    return rg_fail(st, RG_INVALID,
                   "the prompt has %zu tokens, the context holds %u and a reply needs at least one",
                   job->n_ids, s->opt.n_ctx);
}

static rg_code make_guide(rg_server *s, rg_job *job, rg_status *st) {
    const bool tools = json_array_size(job->tools) && job->choice != RG_CHOICE_NONE;
    if (!tools && !job->schema) return RG_OK;
    const rg_guide_options o = {.schema = job->schema,
                                .tools = tools ? job->tools : NULL,
                                .only = job->choice == RG_CHOICE_NAMED ? job->chosen.data : NULL,
                                .must_call = job->choice == RG_CHOICE_NAMED ||
                                             job->choice == RG_CHOICE_REQUIRED,
                                .one_call = job->one_call,
                                .thinking = job->thinking};
    return rg_guide_create(&job->guide, &s->lexicon, &o, st);
}

static rg_code parse(rg_server *s, rg_job *job, rg_order_kind kind, rg_status *st) {
    switch (kind) {
    case RG_ORDER_CHAT:
        RG_TRY(rg_parse_chat(job, &s->opt, st));
        break;
    case RG_ORDER_TEXT:
        RG_TRY(rg_parse_text(job, s->engine, &s->opt, st));
        break;
    case RG_ORDER_RESPONSES:
        RG_TRY(rg_parse_responses(job, &s->opt, st));
        break;
    case RG_ORDER_MESSAGES:
    case RG_ORDER_COUNT:
        RG_TRY(rg_parse_messages(job, &s->opt, kind == RG_ORDER_COUNT, st));
        break;
    case RG_ORDER_TOKENIZE:
    case RG_ORDER_DETOKENIZE:
        break;
    }
    if (job->chat) RG_TRY(render(s, job, st));
    return RG_OK;
}

/* ---- small orders --------------------------------------------------------------------------- */

static rg_code tokenize(rg_server *s, const json_t *root, rg_buf *out, rg_status *st) {
    rg_str text = {"", 0};
    bool special = false;
    int32_t *ids = NULL;
    size_t n = 0;
    RG_TRY(rg_field_str(root, "content", &text, st));
    RG_TRY(rg_field_bool(root, "parse_special", &special, st));
    if (!rg_field(root, "content")) return rg_fail(st, RG_INVALID, "'content': a text expected");
    RG_TRY(rg_engine_tokenize(s->engine, text.data, text.len, special, &ids, &n, st));
    rg_code rc = rg_buf_puts(out, "{\"tokens\":[", st);
    for (size_t i = 0; i < n && rc == RG_OK; i++)
        rc = rg_buf_printf(out, st, i ? ",%d" : "%d", ids[i]);
    rg_release(ids);
    return rc == RG_OK ? rg_buf_puts(out, "]}", st) : rc;
}

static rg_code detokenize(rg_server *s, const json_t *root, rg_buf *out, rg_status *st) {
    json_t *list = NULL;
    RG_TRY(rg_field_array(root, "tokens", &list, st));
    if (!list) return rg_fail(st, RG_INVALID, "'tokens': an array of token ids expected");
    const size_t n = json_array_size(list);
    rg_buf all;
    rg_buf_init(&all, 0);
    rg_code rc = rg_buf_append(&all, "", 0, st);
    for (size_t i = 0; i < n && rc == RG_OK; i++) {
        const json_t *v = json_array_get(list, i);
        const json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || (size_t)id >= s->lexicon.n) {
            rc = rg_fail(st, RG_INVALID, "'tokens[%zu]' is no token of the %zu", i, s->lexicon.n);
            break;
        }
        const rg_str t = rg_lexicon_token(&s->lexicon, (int32_t)id);
        rc = rg_buf_append(&all, t.data, t.len, st);
    }
    if (rc == RG_OK) {
        json_t *whole = json_stringn(all.data, all.len);
        if (!whole) rc = rg_fail(st, RG_INVALID, "the tokens' bytes are no whole characters");
        json_decref(whole);
    }
    if (rc == RG_OK) rc = rg_buf_puts(out, "{\"content\":", st);
    if (rc == RG_OK) rc = rg_put_string(out, all.data, all.len, st);
    if (rc == RG_OK) rc = rg_buf_puts(out, "}", st);
    rg_buf_deinit(&all);
    return rc;
}

static void answer_small(rg_server *s, const rg_order *o) {
    rg_status st = {0};
    json_t *root = NULL;
    rg_buf out;
    rg_buf_init(&out, 0);
    rg_code rc = rg_body_parse(&root, o->body.data, o->body.len, &st);
    if (rc == RG_OK) {
        rc = o->kind == RG_ORDER_TOKENIZE ? tokenize(s, root, &out, &st)
                                          : detokenize(s, root, &out, &st);
    }
    if (rc == RG_OK) {
        rg_pipe_reply(o->pipe, 200, "application/json", out.data, out.len);
    } else {
        rg_refuse(o->pipe, NULL, rg_http_status(rc), st.message);
    }
    json_decref(root);
    rg_buf_deinit(&out);
}

/* ---- jobs ----------------------------------------------------------------------------------- */

/* Takes the job over unless it fails. */
static rg_code submit(rg_server *s, rg_job *job, rg_status *st) {
    rg_code rc = RG_OK;
    pthread_mutex_lock(&s->job_lock);
    if (atomic_load(&s->closing)) {
        rc = rg_fail(st, RG_CANCELED, "the server is ending");
    } else if (s->n_jobs >= s->opt.queue_max) {
        rc = rg_fail(st, RG_BUSY, "%zu requests wait already, try again later", s->n_jobs);
    } else {
        /* From here on a stream has begun: whoever waits in the queue gets heartbeats. */
        rc = rg_job_begin(job, st);
    }
    if (rc == RG_OK) {
        *(s->last_job ? &s->last_job->next : &s->jobs) = job;
        s->last_job = job;
        s->n_jobs++;
        pthread_cond_signal(&s->job_came);
    }
    pthread_mutex_unlock(&s->job_lock);
    return rc;
}

static rg_code make_job(rg_server *s, rg_job *job, const rg_order *o, rg_status *st) {
    RG_TRY(rg_body_parse(&job->root, o->body.data, o->body.len, st));
    job->model_name = s->model_name;
    job->lexicon = &s->lexicon;
    RG_TRY(parse(s, job, o->kind, st));
    if (o->kind == RG_ORDER_COUNT) return RG_OK;
    RG_TRY(check_length(s, job, st));
    RG_TRY(make_guide(s, job, st));
    return rg_reply_create(&job->reply, s->engine, &job->options, job->ids, job->n_ids,
                           s->opt.n_ctx - job->n_ids + 1, st);
}

static void answer_count(const rg_job *job) {
    char text[64];
    const int n = snprintf(text, sizeof text, "{\"input_tokens\":%zu}", job->n_ids);
    rg_pipe_reply(job->pipe, 200, "application/json", text, (size_t)n);
}

static void prepare(rg_server *s, rg_order *o) {
    static const rg_dialect *const dialects[] = {&rg_dialect_chat, &rg_dialect_text,
                                                 &rg_dialect_responses, &rg_dialect_messages,
                                                 &rg_dialect_messages};
    if (rg_pipe_left(o->pipe)) return;
    if (o->kind >= RG_ORDER_TOKENIZE) {
        answer_small(s, o);
        return;
    }
    rg_status st = {0};
    rg_job *job = NULL;
    rg_code rc = rg_job_create(&job, o->pipe, dialects[o->kind], &st);
    if (rc == RG_OK) rc = make_job(s, job, o, &st);
    if (rc == RG_OK && o->kind == RG_ORDER_COUNT) {
        answer_count(job);
        rg_job_destroy(job);
        return;
    }
    if (rc == RG_OK) rc = submit(s, job, &st);
    if (rc == RG_OK) return;
    rg_refuse(o->pipe, dialects[o->kind], rg_http_status(rc), st.message);
    rg_job_destroy(job);
}

/* ---- the thread ----------------------------------------------------------------------------- */

static void drop_order(rg_order *o) {
    rg_pipe_drop(o->pipe);
    rg_buf_deinit(&o->body);
    rg_free(o);
}

rg_code rg_prepare_add(rg_server *s, rg_order_kind kind, rg_pipe *pipe, rg_buf *body,
                       rg_status *st) {
    rg_order *o = rg_alloc(1, sizeof *o, st);
    if (!o) return RG_NOMEM;
    o->kind = kind;
    o->pipe = rg_pipe_hold(pipe);
    o->body = *body;
    rg_buf_init(body, 0);
    rg_code rc = RG_OK;
    pthread_mutex_lock(&s->order_lock);
    if (atomic_load(&s->closing)) {
        rc = rg_fail(st, RG_CANCELED, "the server is ending");
    } else if (s->n_orders >= RG_ORDERS_MAX) {
        rc = rg_fail(st, RG_BUSY, "too many requests at once, try again later");
    } else {
        *(s->last_order ? &s->last_order->next : &s->orders) = o;
        s->last_order = o;
        s->n_orders++;
        pthread_cond_signal(&s->order_came);
    }
    pthread_mutex_unlock(&s->order_lock);
    if (rc != RG_OK) drop_order(o);
    return rc;
}

static void *prepare_all(void *server) {
    rg_server *s = server;
    for (;;) {
        pthread_mutex_lock(&s->order_lock);
        while (!s->orders && !atomic_load(&s->closing))
            pthread_cond_wait(&s->order_came, &s->order_lock);
        rg_order *o = s->orders;
        if (o) {
            s->orders = o->next;
            if (!s->orders) s->last_order = NULL;
            s->n_orders--;
        }
        pthread_mutex_unlock(&s->order_lock);
        if (!o) return NULL;
        prepare(s, o);
        drop_order(o);
    }
}

rg_code rg_prepare_start(rg_server *s, rg_status *st) {
    const int e = pthread_create(&s->prepare, NULL, prepare_all, s);
    if (e) return rg_fail_errno(st, RG_NOMEM, e, "cannot start a thread");
    s->has_prepare = true;
    return RG_OK;
}

/* Orders that wait are refused by `submit`, once `closing` is set. */
void rg_prepare_stop(rg_server *s) {
    if (!s->has_prepare) return;
    pthread_mutex_lock(&s->order_lock);
    pthread_cond_signal(&s->order_came);
    pthread_mutex_unlock(&s->order_lock);
    pthread_join(s->prepare, NULL);
    s->has_prepare = false;
}
