/* A reply in steps: pick, accept, text. */
#include <math.h>
#include <string.h>

#include "api/api.h"

struct rg_reply {
    const rg_engine *engine;
    bool ignore_eos, logprobs;
    bool draws; /* not greedy */
    uint32_t n_top;
    rg_sampler *sampler;
    rg_stop *stop;
    rg_stop_state stop_state;
    rg_utf8_stream utf8;
    rg_buf raw, text, shown; /* bytes of a token; whole characters; behind the stop matcher */
    float *masked;           /* [n_vocab] */
    int32_t top_ids[RG_SAMPLING_LOGPROBS_MAX];
    float top_logprobs[RG_SAMPLING_LOGPROBS_MAX];
};

static rg_code create_parts(rg_reply *r, const rg_reply_options *opt, const int32_t *history,
                            size_t n_history, size_t n_more, rg_status *st) {
    const size_t V = r->engine->model->hp.n_vocab;
    RG_TRY(rg_sampler_create(&r->sampler, &opt->sampling, V, n_history + n_more, st));
    RG_TRY(rg_stop_create(&r->stop, opt->stop, NULL, opt->n_stop, st));
    r->stop_state = rg_stop_begin();
    for (size_t i = 0; i < n_history; i++) {
        RG_TRY(rg_sampler_accept(r->sampler, history[i], st));
    }
    r->masked = rg_alloc(V, sizeof *r->masked, st);
    return r->masked ? RG_OK : RG_NOMEM;
}

rg_code rg_reply_create(rg_reply **out, const rg_engine *e, const rg_reply_options *opt,
                        const int32_t *history, size_t n_history, size_t n_more, rg_status *st) {
    *out = NULL;
    if (opt->n_top > RG_SAMPLING_LOGPROBS_MAX || opt->n_top > e->model->hp.n_vocab) {
        return rg_fail(st, RG_INVALID, "%u alternatives are wanted, %d are possible", opt->n_top,
                       RG_SAMPLING_LOGPROBS_MAX);
    }
    rg_reply *r = rg_alloc(1, sizeof *r, st);
    if (!r) return RG_NOMEM;
    r->engine = e;
    r->ignore_eos = opt->ignore_eos;
    r->logprobs = opt->logprobs;
    r->n_top = opt->n_top;
    r->draws = opt->sampling.temperature > 0;
    const rg_code rc = create_parts(r, opt, history, n_history, n_more, st);
    if (rc != RG_OK) {
        rg_reply_destroy(r);
        return rc;
    }
    *out = r;
    return RG_OK;
}

void rg_reply_destroy(rg_reply *r) {
    if (!r) return;
    rg_sampler_destroy(r->sampler);
    rg_stop_destroy(r->stop);
    rg_buf_deinit(&r->raw);
    rg_buf_deinit(&r->text);
    rg_buf_deinit(&r->shown);
    rg_free(r->masked);
    rg_free(r);
}

rg_sampler *rg_reply_sampler(rg_reply *r) {
    return r->draws ? r->sampler : NULL;
}

/* Logits with what is not allowed at -inf. */
static const float *mask(rg_reply *r, const float *logits, const uint8_t *allowed) {
    if (!allowed) return logits;
    const size_t V = r->engine->model->hp.n_vocab;
    for (size_t i = 0; i < V; i++) {
        r->masked[i] = allowed[i / 8] >> (i % 8) & 1 ? logits[i] : -INFINITY;
    }
    return r->masked;
}

static rg_code room_for_text(rg_reply *r, rg_status *st) {
    static const char blank[64];
    const size_t need = r->text.len + r->stop_state.n_held;
    rg_buf_clear(&r->shown);
    while (r->shown.cap <= need) {
        RG_TRY(rg_buf_append(&r->shown, blank, sizeof blank, st));
    }
    return RG_OK;
}

/* Whole characters go through the stop matcher. */
static rg_code feed(rg_reply *r, rg_str *out, rg_status *st) {
    size_t n = 0;
    RG_TRY(room_for_text(r, st));
    RG_TRY(rg_stop_feed(r->stop, &r->stop_state, r->text.data ? r->text.data : "", r->text.len,
                        r->shown.data, r->shown.cap, &n, st));
    rg_buf_clear(&r->text);
    *out = (rg_str){r->shown.data, n};
    return RG_OK;
}

static rg_code add_logprobs(rg_reply *r, const float *logits, rg_reply_step *out, rg_status *st) {
    double lse = 0;
    RG_TRY(rg_sampler_logprobs(logits, r->engine->model->hp.n_vocab, r->n_top, r->top_ids,
                               r->top_logprobs, &lse, st));
    out->logprob = (float)((double)logits[out->id] - lse);
    out->n_top = r->n_top;
    out->top_ids = r->top_ids;
    out->top_logprobs = r->top_logprobs;
    return RG_OK;
}

uint32_t rg_reply_best(const rg_reply *r) {
    return r->logprobs ? 0 : rg_sampler_few(r->sampler);
}

/* From the best logits where they are all that the session has, else from all: `plain`. */
static rg_code draw(rg_reply *r, const rg_session *s, const float *plain, const uint8_t *allowed,
                    uint32_t position, int32_t *id, rg_status *st) {
    const rg_few *few = s->open.n ? rg_core_few(r->engine->core, plain) : &s->few;
    if (!few || !few->n) {
        return rg_sampler_pick(r->sampler, mask(r, plain, allowed), position, id, st);
    }
    if (!rg_few_has(few, allowed ? 0 : rg_reply_best(r), r->engine->model->hp.n_vocab)) {
        return rg_fail(st, RG_INVALID, "the %u best logits alone are there", few->n);
    }
    *id = rg_sampler_pick_few(r->sampler, few, position);
    return RG_OK;
}

rg_code rg_reply_pick(rg_reply *r, rg_session *s, const uint8_t *allowed, rg_reply_step *out,
                      rg_status *st) {
    *out = (rg_reply_step){.id = -1, .stop = -1, .text = {"", 0}};
    if (!s->has_logits && !s->open.n) return rg_fail(st, RG_INVALID, "no logits to pick from");
    const rg_tokenizer *t = r->engine->vocab.tokenizer;
    const uint32_t position = rg_seq_length(s->seq) + (s->open.n ? s->open_at + 1 : 0);
    const uint64_t begin = rg_now_ns();
    const size_t V = r->engine->model->hp.n_vocab;
    const float *plain = s->open.n ? s->open.logits + s->open_at * V : s->logits;
    const rg_code rc = draw(r, s, plain, allowed, position, &out->id, st);
    if (rc != RG_OK) return rg_context(st, rc, "sampling position %u", position);
    RG_TRY(rg_sampler_accept(r->sampler, out->id, st));
    if (r->logprobs) RG_TRY(add_logprobs(r, plain, out, st));
    if (rg_tokenizer_is_eog(t, out->id) && !r->ignore_eos) {
        out->end = true;
    } else {
        rg_buf_clear(&r->raw);
        RG_TRY(rg_detokenize(t, out->id, false, &r->raw, st));
        if (r->raw.len) {
            RG_TRY(rg_utf8_push(&r->utf8, r->raw.data, r->raw.len, &r->text, st));
            RG_TRY(feed(r, &out->text, st));
        }
    }
    out->stop = r->stop_state.hit;
    out->stopped = out->stop >= 0;
    const double ms = (double)(rg_now_ns() - begin) * 1e-6;
    s->stats.host_ms += ms;
    s->engine->host_ms += ms;
    s->engine->call_ms += ms;
    return RG_OK;
}

rg_code rg_reply_finish(rg_reply *r, rg_str *text, rg_status *st) {
    *text = (rg_str){"", 0};
    if (r->stop_state.hit >= 0) return RG_OK;
    RG_TRY(rg_utf8_finish(&r->utf8, &r->text, st));
    rg_str first;
    RG_TRY(feed(r, &first, st));
    /* What the matcher still holds goes behind that. */
    if (r->stop_state.hit >= 0) {
        *text = first;
        return RG_OK;
    }
    size_t n = 0;
    RG_TRY(rg_stop_flush(r->stop, &r->stop_state, r->shown.data + first.len,
                         r->shown.cap - first.len, &n, st));
    *text = (rg_str){r->shown.data, first.len + n};
    return RG_OK;
}
