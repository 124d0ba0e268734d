/* Generation with drafts: what a session needs for it, and its windows. */
#include "api/api.h"

const char *rg_draft_source_text(rg_draft_source source) {
    return rg_source_name(source);
}

_Static_assert(RG_DRAFTS_MAX == RG_DRAFT_MAX, "the public limit is the engine's");

static uint32_t draft_max_of(const rg_session_options *opt) {
    if (opt->draft_max) return opt->draft_max;
    return opt->draft == RG_DRAFT_OFF ? 0 : RG_DRAFT_DEFAULT;
}

void rg_session_draft_needs(rg_seq_options *seq, const rg_model *m, const rg_session_options *opt) {
    seq->draft_max = draft_max_of(opt);
    const bool chooses = opt->draft == RG_DRAFT_AUTO && m->hp.n_mtp;
    seq->mtp = seq->mtp || opt->draft == RG_DRAFT_MTP || chooses;
}

rg_code rg_session_create_drafter(rg_session *s, const rg_session_options *opt, rg_status *st) {
    if ((unsigned)opt->draft > RG_DRAFT_AUTO) {
        return rg_fail(st, RG_INVALID, "draft mode %u", (unsigned)opt->draft);
    }
    const rg_drafter_options o = {
        .mode = opt->draft, .draft_max = draft_max_of(opt), .fixed = opt->draft_fixed};
    if (!o.draft_max) return RG_OK;
    return rg_drafter_create(&s->drafter, s->engine->core, s->seq, &o, st);
}

/* A dump shows windows as they are asked for. */
bool rg_session_drafts(const rg_session *s) {
    return s->drafter && !s->dump && s->pending >= 0;
}

void rg_session_get_draft_stats(const rg_session *s, rg_draft_stats *out) {
    *out = (rg_draft_stats){0};
    if (s->drafter) rg_drafter_stats_get(s->drafter, out);
}

static void count_time(rg_session *s, uint64_t begin) {
    const double ms = (double)(rg_now_ns() - begin) * 1e-6;
    s->stats.compute_ms += ms;
    s->engine->call_ms += ms;
}

rg_code rg_session_draft(rg_session *s, const rg_draft_call *call, rg_drafter_window *win,
                         rg_status *st) {
    const rg_generate_options *opt = call->opt;
    int32_t ids[RG_DRAFTS_MAX];
    const uint64_t begin = rg_now_ns();
    const uint32_t most = call->n_left - 1 < RG_DRAFTS_MAX ? call->n_left - 1 : RG_DRAFTS_MAX;
    rg_drafter_request req = {.next = s->pending,
                              .n_max = most,
                              .sampler = opt->sampling.temperature > 0 ? call->sampler : NULL,
                              .ids = ids,
                              .cancel = &s->cancel};
    if (opt->on_draft && most) req.n_ids = opt->on_draft(opt->user, ids, most);
    if (req.n_ids > most) {
        return rg_fail(st, RG_INVALID, "%u drafts were given, %u were asked for", req.n_ids, most);
    }
    const rg_code rc = rg_drafter_run(s->drafter, &req, win, st);
    if (rg_seq_failed(s->seq)) s->has_logits = false;
    count_time(s, begin);
    return rc;
}

rg_code rg_session_keep(rg_session *s, const rg_drafter_window *win, uint32_t n_kept,
                        rg_status *st) {
    const size_t n_vocab = s->engine->model->hp.n_vocab;
    const uint64_t begin = rg_now_ns();
    rg_session_take_logits(s, win->logits + (n_kept - 1) * n_vocab);
    const rg_code rc = rg_drafter_close(s->drafter, n_kept, st);
    s->has_logits = rc == RG_OK;
    count_time(s, begin);
    return rc;
}
