#include <string.h>

#include "api/api.h"

static rg_code open_dump(rg_session *s, const rg_session_options *opt, rg_status *st) {
    if (opt->dump_dir && opt->dump_ref_dir) {
        return rg_fail(st, RG_INVALID, "a session dumps or compares, not both");
    }
    if (opt->dump_dir) return rg_dump_create(&s->dump, opt->dump_dir, st);
    if (opt->dump_ref_dir) {
        return rg_dump_compare(&s->dump, opt->dump_ref_dir, opt->dump_tolerance, st);
    }
    return RG_OK;
}

/* A session must fit the room that a given budget has for it. */
static rg_code check_plan(const rg_engine *e, const rg_seq_options *seq, rg_status *st) {
    if (e->plan.automatic) return RG_OK;
    const uint64_t need = rg_seq_bytes_for(e->model, seq, rg_core_threads(e->core));
    if (need <= e->plan.seq_bytes) return RG_OK;
    return rg_fail(st, RG_INVALID,
                   "a context of %u tokens takes %llu MiB, the budget has %llu MiB for it (%u "
                   "tokens)",
                   seq->n_ctx, (unsigned long long)need >> 20,
                   (unsigned long long)e->plan.seq_bytes >> 20, e->planned.n_ctx);
}

static rg_code create_parts(rg_session *s, const rg_session_options *opt, rg_status *st) {
    const rg_hparams *hp = &s->engine->model->hp;
    rg_seq_options seq = {.n_ctx = opt->n_ctx, .kv = opt->kv, .mtp = opt->mtp};
    if (!seq.n_ctx) seq.n_ctx = s->engine->planned.n_ctx;
    rg_session_draft_needs(&seq, s->engine->model, opt);
    RG_TRY(check_plan(s->engine, &seq, st));
    s->options = seq;
    RG_TRY(open_dump(s, opt, st));
    RG_TRY(rg_seq_create(&s->seq, s->engine->core, &seq, st));
    s->stats.state_bytes = rg_seq_bytes(s->seq);
    RG_TRY(rg_session_create_drafter(s, opt, st));
    s->logits = rg_alloc(hp->n_vocab, sizeof *s->logits, st);
    return s->logits ? RG_OK : RG_NOMEM;
}

rg_code rg_session_create(rg_session **out, rg_engine *engine, const rg_session_options *opt,
                          rg_status *st) {
    *out = NULL;
    rg_session *s = rg_alloc(1, sizeof *s, st);
    if (!s) return RG_NOMEM;
    s->engine = engine;
    s->pending = -1;
    const rg_code rc = create_parts(s, opt, st);
    if (rc != RG_OK) {
        rg_session_destroy(s);
        return rc;
    }
    *out = s;
    return RG_OK;
}

void rg_session_destroy(rg_session *s) {
    if (!s) return;
    rg_dump_destroy(s->dump);
    rg_drafter_destroy(s->drafter);
    rg_seq_destroy(s->seq);
    rg_free(s->logits);
    rg_buf_deinit(&s->raw);
    rg_buf_deinit(&s->text);
    rg_buf_deinit(&s->shown);
    rg_free(s);
}

void rg_session_reset(rg_session *s) {
    rg_seq_reset(s->seq);
    s->has_logits = false;
    s->pending = -1;
    s->open.n = 0;
    atomic_store(&s->cancel, false);
}

uint32_t rg_session_length(const rg_session *s) {
    return rg_seq_length(s->seq);
}
uint32_t rg_session_capacity(const rg_session *s) {
    return rg_seq_capacity(s->seq);
}
void rg_session_cancel(rg_session *s) {
    atomic_store(&s->cancel, true);
}

rg_code rg_session_moce(rg_session *s, float lambda, uint32_t slots, rg_status *st) {
    const rg_plan *plan = &s->engine->plan;
    if (lambda <= 0.0f && lambda >= 0.0f) {
        rg_seq_moce_end(s->seq);
        return RG_OK;
    }
    return rg_seq_moce_begin(s->seq, lambda, slots ? slots : plan->n_slot, st);
}

void rg_session_moce_receipt(const rg_session *s, rg_moce_receipt *out) {
    *out = rg_seq_moce_receipt(s->seq);
}

/* ---- eval ----------------------------------------------------------------------------------- */

typedef struct eval_sink {
    rg_session *session;
    rg_logits_fn *fn;
    void *user;
} eval_sink;

bool rg_few_has(const rg_few *few, uint32_t n_best, uint32_t n_vocab) {
    return n_best && (few->n >= n_best || few->n == n_vocab);
}

bool rg_session_can_pick(const rg_session *s, uint32_t n_best) {
    if (!s->has_logits) return false;
    return s->few.n == 0 || rg_few_has(&s->few, n_best, s->engine->model->hp.n_vocab);
}

void rg_session_take_logits(rg_session *s, const float *logits) {
    const rg_few *few = rg_core_few(s->engine->core, logits);
    s->few.n = 0;
    if (few) {
        s->few = *few;
    } else {
        memcpy(s->logits, logits, s->engine->model->hp.n_vocab * sizeof *logits);
    }
}

static rg_code take_row(void *user, uint32_t position, const float *logits, rg_status *st) {
    const eval_sink *sink = user;
    rg_session *s = sink->session;
    rg_session_take_logits(s, logits);
    s->has_logits = true;
    return sink->fn ? sink->fn(sink->user, position, logits, st) : RG_OK;
}

static rg_code eval_ids(rg_session *s, const int32_t *ids, uint32_t n, uint32_t chunk,
                        rg_logits_fn *fn, void *user, rg_status *st) {
    rg_core *core = s->engine->core;
    eval_sink to = {.session = s, .fn = fn, .user = user};
    const rg_logits_sink sink = {.row = take_row, .user = &to};
    const rg_tap tap = s->dump ? rg_dump_tap(s->dump) : (rg_tap){0};
    const uint64_t begin = rg_now_ns();
    if (!s->first_ns) s->first_ns = begin;
    rg_core_set_tap(core, s->dump ? &tap : NULL);
    const rg_code rc = rg_core_eval(core, s->seq, ids, n, chunk, fn ? RG_WANT_ALL : RG_WANT_LAST,
                                    &sink, &s->cancel, st);
    rg_core_set_tap(core, NULL);
    if (rg_seq_failed(s->seq)) s->has_logits = false;
    const double ms = (double)(rg_now_ns() - begin) * 1e-6;
    s->stats.compute_ms += ms;
    s->engine->call_ms += ms;
    if (n > 1) {
        s->stats.prefill_tokens += n;
        s->stats.prefill_ms += ms;
    }
    return rc;
}

rg_code rg_session_eval_pending(rg_session *s, rg_status *st) {
    if (s->pending < 0) return RG_OK;
    const int32_t id = s->pending;
    RG_TRY(eval_ids(s, &id, 1, 0, NULL, NULL, st));
    s->pending = -1;
    return RG_OK;
}

rg_code rg_session_eval(rg_session *s, const int32_t *ids, size_t n_ids, uint32_t chunk,
                        rg_logits_fn *fn, void *user, rg_status *st) {
    if (n_ids == 0) return rg_fail(st, RG_INVALID, "no tokens to evaluate");
    const uint32_t used = rg_seq_length(s->seq) + (s->pending >= 0 ? 1u : 0u);
    const uint32_t capacity = rg_seq_capacity(s->seq);
    if (used > capacity || n_ids > capacity - used) {
        return rg_fail(st, RG_INVALID, "%zu tokens do not fit behind %u in a context of %u", n_ids,
                       used, capacity);
    }
    RG_TRY(rg_session_eval_pending(s, st));
    return eval_ids(s, ids, (uint32_t)n_ids, chunk, fn, user, st);
}

rg_code rg_session_finish_dump(rg_session *s, char *report, size_t cap, rg_status *st) {
    if (!s->dump) return rg_fail(st, RG_INVALID, "the session has no dump");
    return rg_dump_finish(s->dump, report, cap, st);
}

void rg_session_get_stats(const rg_session *s, rg_session_stats *out) {
    *out = s->stats;
    out->rss_peak_bytes = rg_rss_peak_bytes();
}
