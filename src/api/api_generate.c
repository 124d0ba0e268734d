/* The generation loop: pick, accept, show, evaluate. */
#include <math.h>
#include <string.h>

#include "api/api.h"

const char *rg_finish_text(rg_finish finish) {
    static const char *const text[] = {
#define RG_FINISH_TEXT(name, words) words,
        RG_FINISH(RG_FINISH_TEXT)
#undef RG_FINISH_TEXT
    };
    return (unsigned)finish < RG_ARRAY_LEN(text) ? text[finish] : "unknown";
}

typedef struct generation {
    rg_session *s;
    const rg_generate_options *opt;
    rg_sampler *sampler;
    rg_stop *stop;
    rg_stop_state stop_state;
    rg_utf8_stream utf8;
    rg_generate_result result;
    bool ended;
} generation;

static rg_code create_parts(generation *g, rg_status *st) {
    rg_session *s = g->s;
    const uint32_t n_ctx = rg_seq_capacity(s->seq);
    RG_TRY(rg_sampler_create(&g->sampler, &g->opt->sampling, s->engine->model->hp.n_vocab,
                             (size_t)n_ctx + 1, st));
    RG_TRY(rg_stop_create(&g->stop, g->opt->stop, NULL, g->opt->n_stop, st));
    g->stop_state = rg_stop_begin();
    const int32_t *ids = rg_seq_ids(s->seq);
    for (uint32_t i = 0; i < rg_seq_length(s->seq); i++) {
        RG_TRY(rg_sampler_accept(g->sampler, ids[i], st));
    }
    return RG_OK;
}

static void end(generation *g, rg_finish finish) {
    if (g->ended) return;
    g->ended = true;
    g->result.finish = finish;
}

static bool give(const generation *g, const char *text, size_t n) {
    return n == 0 || !g->opt->on_text || g->opt->on_text(g->opt->user, text, n);
}

/* Whole characters in s->text go through the stop matcher to the caller. */
static rg_code show_text(generation *g, bool last, rg_status *st) {
    rg_session *s = g->s;
    const size_t need = s->text.len + g->stop_state.n_held;
    rg_buf_clear(&s->shown);
    while (s->shown.cap <= need) { /* grows to hold the text and what was held back */
        static const char blank[64];
        RG_TRY(rg_buf_append(&s->shown, blank, sizeof blank, st));
    }
    size_t n = 0;
    RG_TRY(rg_stop_feed(g->stop, &g->stop_state, s->text.data ? s->text.data : "", s->text.len,
                        s->shown.data, s->shown.cap, &n, st));
    const bool hit = g->stop_state.hit >= 0;
    bool more = give(g, s->shown.data, n);
    if (last && !hit) {
        RG_TRY(rg_stop_flush(g->stop, &g->stop_state, s->shown.data, s->shown.cap, &n, st));
        more = give(g, s->shown.data, n) && more;
    }
    rg_buf_clear(&s->text);
    if (hit) end(g, RG_FINISH_STOP);
    if (!more) end(g, RG_FINISH_CALLER);
    return RG_OK;
}

static rg_code show_token(generation *g, int32_t id, rg_status *st) {
    rg_session *s = g->s;
    const rg_tokenizer *t = s->engine->vocab.tokenizer;
    if (g->opt->on_token && !g->opt->on_token(g->opt->user, id)) end(g, RG_FINISH_CALLER);
    if (rg_tokenizer_is_eog(t, id) && !g->opt->ignore_eos) {
        end(g, RG_FINISH_EOS);
        return RG_OK;
    }
    rg_buf_clear(&s->raw);
    RG_TRY(rg_detokenize(t, id, g->opt->show_special, &s->raw, st));
    if (!s->raw.len) return RG_OK;
    RG_TRY(rg_utf8_push(&g->utf8, s->raw.data, s->raw.len, &s->text, st));
    return show_text(g, false, st);
}

/* From a row of the core's, or from the session's own. */
static rg_code pick(generation *g, const float *logits, uint32_t position, int32_t *id,
                    rg_status *st) {
    const rg_session *s = g->s;
    const bool own = logits == s->logits;
    const rg_few *few = own && s->few.n ? &s->few : rg_core_few(s->engine->core, logits);
    if (!few) return rg_sampler_pick(g->sampler, logits, position, id, st);
    *id = rg_sampler_pick_few(g->sampler, few, position);
    return RG_OK;
}

/* The token behind `position` - 1 from its logits; shows it. */
static rg_code choose(generation *g, const float *logits, uint32_t position, int32_t *id,
                      rg_status *st) {
    rg_session *s = g->s;
    const uint64_t begin = rg_now_ns();
    const rg_code rc = pick(g, logits, position, id, st);
    if (rc != RG_OK) return rg_context(st, rc, "sampling position %u", position);
    RG_TRY(rg_sampler_accept(g->sampler, *id, st));
    if (g->opt->on_logits) RG_TRY(g->opt->on_logits(g->opt->user, position, logits, st));
    s->pending = *id;
    g->result.n_tokens++;
    if (s->stats.ttft_ms <= 0.0) s->stats.ttft_ms = (double)(rg_now_ns() - s->first_ns) * 1e-6;
    RG_TRY(show_token(g, *id, st));
    const double host_ms = (double)(rg_now_ns() - begin) * 1e-6;
    s->stats.host_ms += host_ms;
    s->engine->host_ms += host_ms;
    if (g->opt->n_predict && g->result.n_tokens >= g->opt->n_predict) end(g, RG_FINISH_LENGTH);
    if (position >= rg_seq_capacity(s->seq)) end(g, RG_FINISH_CONTEXT);
    return RG_OK;
}

/* A window with drafts: each of its rows gives a token until one is not what was drafted. */
static rg_code step_drafts(generation *g, rg_status *st) {
    rg_session *s = g->s;
    const size_t n_vocab = s->engine->model->hp.n_vocab;
    const uint32_t position = rg_seq_length(s->seq) + 1;
    const uint32_t most = g->opt->n_predict;
    const rg_draft_call call = {.sampler = g->sampler,
                                .opt = g->opt,
                                .n_left = most ? most - g->result.n_tokens : UINT32_MAX};
    rg_drafter_window win;
    RG_TRY(rg_session_draft(s, &call, &win, st));
    rg_code rc = RG_OK;
    uint32_t n = 0;
    for (bool right = true; right && n < win.n;) {
        int32_t id = -1;
        rc = choose(g, win.logits + n * n_vocab, position + n, &id, st);
        n++;
        right = rc == RG_OK && !g->ended && n < win.n && id == win.ids[n];
    }
    const rg_code kept = rg_session_keep(s, &win, n, st);
    return rc == RG_OK ? kept : rc;
}

static rg_code step(generation *g, rg_status *st) {
    rg_session *s = g->s;
    if (rg_session_drafts(s)) return step_drafts(g, st);
    RG_TRY(rg_session_eval_pending(s, st));
    int32_t id = -1;
    return choose(g, s->logits, rg_seq_length(s->seq), &id, st);
}

/* The session's logits are whole again. */
static void spread_few(rg_session *s) {
    const uint32_t V = s->engine->model->hp.n_vocab;
    for (uint32_t i = 0; i < V && s->few.n; i++)
        s->logits[i] = -INFINITY;
    for (uint32_t i = 0; i < s->few.n; i++)
        s->logits[s->few.ids[i]] = s->few.logits[i];
    s->few.n = 0;
}

static rg_code run(generation *g, rg_status *st) {
    RG_TRY(create_parts(g, st));
    rg_code rc = RG_OK;
    rg_core *core = g->s->engine->core;
    rg_core_want_few(core, g->opt->on_logits ? 0 : rg_sampling_few(&g->opt->sampling));
    while (!g->ended && rc == RG_OK)
        rc = step(g, st);
    rg_core_want_few(core, 0);
    spread_few(g->s);
    if (rc != RG_OK && rc != RG_CANCELED) return rc;
    if (rc == RG_CANCELED) end(g, RG_FINISH_CANCELED);
    RG_TRY(rg_utf8_finish(&g->utf8, &g->s->text, st));
    RG_TRY(show_text(g, true, st));
    return rc;
}

rg_code rg_session_generate(rg_session *s, const rg_generate_options *opt, rg_generate_result *out,
                            rg_status *st) {
    if (out) *out = (rg_generate_result){0};
    if (rg_seq_failed(s->seq)) {
        return rg_fail(st, RG_INVALID, "the session failed before and was not reset");
    }
    if (!s->has_logits) return rg_fail(st, RG_INVALID, "no token has been evaluated yet");
    if (!rg_session_can_pick(s, opt->on_logits ? 0 : rg_sampling_few(&opt->sampling))) {
        return rg_fail(st, RG_INVALID, "of the last token the %u best logits alone are there",
                       s->few.n);
    }
    generation g = {.s = s, .opt = opt};
    const uint64_t begin = rg_now_ns();
    const double calls_ms = s->engine->call_ms; /* evaluations inside are part of this call */
    rg_buf_clear(&s->text);
    if (s->drafter) rg_drafter_begin(s->drafter);
    rg_code rc = RG_OK;
    if (opt->moce != 0.0f) rc = rg_session_moce(s, opt->moce, opt->moce_slots, st);
    if (rc == RG_OK) rc = run(&g, st);
    rg_session_moce_receipt(s, &g.result.moce);
    if (opt->moce != 0.0f) rg_seq_moce_end(s->seq);
    s->stats.decode_tokens += g.result.n_tokens;
    rg_sampler_destroy(g.sampler);
    rg_stop_destroy(g.stop);
    const double ms = (double)(rg_now_ns() - begin) * 1e-6;
    s->stats.decode_ms += ms;
    s->engine->call_ms = calls_ms + ms;
    if ((rc == RG_OK || rc == RG_CANCELED) && out) *out = g.result;
    return rc;
}
