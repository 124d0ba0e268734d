#include "engine/drafter.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/core.h"
#include "engine/draft_suffix.h"
#include "engine/gpu_core.h"

const char *rg_source_name(rg_draft_source source) {
    static const char *const text[] = {
#define RG_SOURCE_TEXT(name, words) words,
        RG_DRAFT_SOURCES(RG_SOURCE_TEXT)
#undef RG_SOURCE_TEXT
    };
    return (unsigned)source < RG_ARRAY_LEN(text) ? text[source] : "unknown";
}

struct rg_drafter {
    rg_core *core; /* borrowed, as is the sequence */
    rg_seq *seq;
    rg_drafter_options opt;
    rg_suffix *suffix; /* NULL: not used */
    rg_governor governor;
    rg_draft_stats stats;
    /* The open window. */
    rg_drafter_window win;
    rg_draft_source source;
    uint32_t confidence[RG_DRAFT_MAX];
    uint32_t n_made;
    uint64_t draft_ns, window_ns;
    uint64_t experts, read_bytes, waves; /* counted when it began */
    uint32_t built;
};

/* ---- life ----------------------------------------------------------------------------------- */

static bool uses_suffix(const rg_drafter_options *opt) {
    return opt->mode == RG_DRAFT_SUFFIX || opt->mode == RG_DRAFT_AUTO;
}

uint64_t rg_drafter_bytes(const rg_drafter_options *opt, uint32_t n_ctx) {
    return sizeof(rg_drafter) + (uses_suffix(opt) ? rg_suffix_bytes((size_t)n_ctx + 1) : 0);
}

rg_code rg_drafter_create(rg_drafter **out, rg_core *core, rg_seq *seq,
                          const rg_drafter_options *opt, rg_status *st) {
    *out = NULL;
    RG_ASSERT(opt->draft_max >= 1);
    RG_ASSERT(opt->draft_max <= seq->opt.draft_max);
    rg_drafter *d = rg_alloc(1, sizeof *d, st);
    if (!d) return RG_NOMEM;
    d->core = core;
    d->seq = seq;
    d->opt = *opt;
    const rg_governor_options g = {.draft_max = opt->draft_max,
                                   .mtp = seq->opt.mtp && opt->mode != RG_DRAFT_SUFFIX &&
                                          opt->mode != RG_DRAFT_OFF,
                                   .suffix = uses_suffix(opt),
                                   .fixed = opt->fixed};
    rg_governor_init(&d->governor, &g, &core->drafts);
    if (uses_suffix(opt) && rg_suffix_create(&d->suffix, (size_t)seq->opt.n_ctx + 1, st) != RG_OK) {
        rg_drafter_destroy(d);
        return RG_NOMEM;
    }
    *out = d;
    return RG_OK;
}

void rg_drafter_destroy(rg_drafter *d) {
    if (!d) return;
    rg_suffix_destroy(d->suffix);
    rg_free(d);
}

void rg_drafter_begin(rg_drafter *d) {
    rg_governor_new_text(&d->governor);
}

/* ---- the draft block's drafts --------------------------------------------------------------- */

typedef struct picker {
    rg_drafter *d;
    rg_sampler *sampler;
    uint32_t n; /* picked and accepted by the sampler */
} picker;

/* Lead of the best logit: how sure the draft block is. */
static float lead_of(const float *logits, uint32_t n, int32_t *best_id) {
    float best = -INFINITY, second = -INFINITY;
    *best_id = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (logits[i] > best) {
            second = best;
            best = logits[i];
            *best_id = (int32_t)i;
        } else if (logits[i] > second) {
            second = logits[i];
        }
    }
    return best - second;
}

static float lead_of_few(const rg_few *few, int32_t *best_id) {
    *best_id = few->ids[0];
    return few->n > 1 ? few->logits[0] - few->logits[1] : INFINITY;
}

/* The best logits that show the lead, and that the sampler looks at; 0: all. */
static uint32_t few_of(const rg_sampler *sampler) {
    if (!sampler) return 2;
    const uint32_t n = rg_sampler_few(sampler);
    return n == 1 ? 2 : n;
}

/* Drawn like the token itself, with the same random number: the draft is right whenever both
 * distributions put it there. */
static rg_code pick(void *user, const float *logits, uint32_t position, int32_t *id, bool *more,
                    rg_status *st) {
    picker *p = user;
    rg_drafter *d = p->d;
    const rg_few *few = rg_core_few(d->core, logits);
    const float lead = few ? lead_of_few(few, id) : lead_of(logits, d->core->hp->n_vocab, id);
    d->confidence[p->n] = rg_confidence_of_lead(lead);
    if (p->sampler) {
        if (few) {
            *id = rg_sampler_pick_few(p->sampler, few, position);
        } else {
            RG_TRY(rg_sampler_pick(p->sampler, logits, position, id, st));
        }
        RG_TRY(rg_sampler_accept(p->sampler, *id, st));
    }
    p->n++;
    *more = rg_governor_go_on(&d->governor, d->confidence, p->n);
    return RG_OK;
}

static rg_code draft_mtp(rg_drafter *d, const rg_drafter_request *req, uint32_t n_max, uint32_t *n,
                         rg_status *st) {
    picker p = {.d = d, .sampler = req->sampler};
    const rg_draft_pick how = {.pick = pick, .user = &p, .few = few_of(p.sampler)};
    rg_code rc =
        rg_mtp_draft(d->core, d->seq, req->next, n_max, &how, d->win.ids + 1, &d->n_made, st);
    if (p.sampler) {
        const rg_code back = rg_sampler_rollback(p.sampler, p.n, st);
        if (rc == RG_OK) rc = back;
    }
    RG_TRY(rc);
    *n = rg_governor_trim(&d->governor, d->confidence, d->n_made);
    return RG_OK;
}

/* ---- sources -------------------------------------------------------------------------------- */

static uint32_t draft_suffix(rg_drafter *d, int32_t next, uint32_t *match) {
    *match = 0;
    if (!d->suffix) return 0;
    rg_suffix_sync(d->suffix, d->seq->ids, d->seq->length);
    rg_suffix_push(d->suffix, next);
    const uint32_t n = rg_suffix_draft(d->suffix, RG_DRAFT_MAX, d->win.ids + 1, match);
    for (uint32_t i = 0; i < n; i++)
        d->confidence[i] = rg_confidence_of_match(*match + i);
    return n;
}

/* Fills win.ids behind the first; *n drafts. */
static rg_code make_drafts(rg_drafter *d, const rg_drafter_request *req, uint32_t n_max,
                           uint32_t *n, rg_status *st) {
    d->source = RG_SOURCE_NONE;
    d->n_made = *n = 0;
    if (req->n_ids) {
        d->source = RG_SOURCE_CALLER;
        *n = req->n_ids < n_max ? req->n_ids : n_max;
        memcpy(d->win.ids + 1, req->ids, *n * sizeof *req->ids);
        memset(d->confidence, 0, sizeof d->confidence);
        return RG_OK;
    }
    uint32_t match = 0;
    const uint32_t found = draft_suffix(d, req->next, &match);
    const rg_governor_plan plan = rg_governor_choose(&d->governor, match, n_max, req->others);
    if (plan.source == RG_SOURCE_SUFFIX) {
        RG_ASSERT(plan.n <= found);
        *n = plan.n;
    } else if (plan.source == RG_SOURCE_MTP) {
        RG_TRY(draft_mtp(d, req, plan.n, n, st));
    }
    d->source = plan.source;
    return RG_OK;
}

/* ---- the window ----------------------------------------------------------------------------- */

/* Kernels and windows of a device that were made so far. */
static uint32_t count_built(const rg_drafter *d) {
    const rg_gpu_core *g = d->core->gpu;
    return g ? rg_gpu_kernels(g->gpu) + g->n_recorded : 0;
}

static void count_begin(rg_drafter *d) {
    rg_stream_meters m = {0};
    if (d->core->stream) rg_stream_meters_get(d->core->stream, &m);
    d->experts = d->core->times.n_distinct;
    d->read_bytes = m.read_bytes;
    d->waves = m.waves;
}

rg_code rg_drafter_make(rg_drafter *d, const rg_drafter_request *req, rg_drafter_window *win,
                        rg_status *st) {
    const uint32_t rows =
        rg_verify_rows(d->seq, req->n_max < RG_DRAFT_MAX ? req->n_max + 1 : RG_VERIFY_ROWS);
    uint32_t n = 0;
    if (!rows) {
        return rg_fail(st, RG_INVALID, "no token fits behind %u in a context of %u", d->seq->length,
                       d->seq->opt.n_ctx);
    }
    d->win.ids[0] = req->next;
    d->built = count_built(d);
    const uint64_t begin = rg_now_ns();
    RG_TRY(make_drafts(d, req, rows - 1, &n, st));
    d->win.n = n + 1;
    if (d->seq->opt.mtp) {
        const bool skip = rg_governor_mtp_rests(&d->governor);
        RG_TRY(rg_mtp_make_room(d->core, d->seq, d->win.n, skip, st));
    }
    d->draft_ns = rg_now_ns() - begin;
    count_begin(d);
    *win = d->win;
    return RG_OK;
}

rg_code rg_drafter_run(rg_drafter *d, const rg_drafter_request *req, rg_drafter_window *win,
                       rg_status *st) {
    RG_TRY(rg_drafter_make(d, req, win, st));
    const uint64_t drafted = rg_now_ns();
    const rg_verify part = {.seq = d->seq, .ids = d->win.ids, .n = d->win.n};
    RG_TRY(rg_core_verify(d->core, &part, 1, req->cancel, &d->win.logits, st));
    d->window_ns = rg_now_ns() - drafted;
    *win = d->win;
    return RG_OK;
}

/* What was guessed, for people who look closely. */
static void log_window(const rg_drafter *d, uint32_t n_kept) {
    char text[16 * RG_DRAFT_MAX] = "";
    size_t at = 0;
    for (uint32_t i = 1; i < d->win.n; i++) {
        const int n = snprintf(text + at, sizeof text - at, " %d", d->win.ids[i]);
        at += n > 0 ? (size_t)n : 0;
    }
    if (at) {
        rg_log(RG_LOG_DEBUG, "drafts (%s) behind %d:%s; %u right", rg_source_name(d->source),
               d->win.ids[0], text, n_kept - 1);
    }
}

static void count_window(rg_drafter *d, uint32_t n_kept, uint32_t rows) {
    const uint32_t n = d->win.n - 1, right = n_kept - 1;
    /* Drafts that were all trimmed away cost their time all the same. */
    rg_draft_windows *w = &d->stats.windows[d->source][n];
    rg_stream_meters m = {0};
    if (d->core->stream) rg_stream_meters_get(d->core->stream, &m);
    w->n++;
    w->tokens += n_kept;
    w->window_ns += d->window_ns;
    w->draft_ns += d->draft_ns;
    w->experts += d->core->times.n_distinct - d->experts;
    w->read_bytes += m.read_bytes - d->read_bytes;
    w->waves += m.waves - d->waves;
    for (uint32_t i = 0; i < n && i <= right; i++) {
        d->stats.tried[d->source][i]++;
        d->stats.right[d->source][i] += i < right;
    }
    d->stats.offered += n;
    d->stats.accepted += right;
    d->core->times.draft_offered += n;
    d->core->times.draft_accepted += right;
    /* The first draft and the first window of a length build their kernels: their time tells
     * nothing about the next. */
    const bool first = count_built(d) != d->built;
    const rg_governor_window learned = {.source = d->source,
                                        .n = n,
                                        .right = right,
                                        .confidence = d->confidence,
                                        .rows = rows,
                                        .window_ns = first ? 0 : d->window_ns,
                                        .draft_ns = d->draft_ns,
                                        .n_made = first ? 0 : d->n_made,
                                        .waves = m.waves - d->waves};
    rg_governor_learn(&d->governor, &learned);
}

void rg_drafter_learn(rg_drafter *d, uint32_t n_kept, uint32_t rows, uint64_t window_ns) {
    d->window_ns = window_ns;
    count_window(d, n_kept, rows);
    log_window(d, n_kept);
    d->win.n = 0;
}

rg_code rg_drafter_close(rg_drafter *d, uint32_t n_kept, rg_status *st) {
    const uint64_t begin = rg_now_ns();
    const rg_verify part = {.seq = d->seq, .ids = d->win.ids, .n = d->win.n, .n_kept = n_kept};
    RG_TRY(rg_core_accept(d->core, &part, 1, st));
    rg_drafter_learn(d, n_kept, d->win.n, d->window_ns + (rg_now_ns() - begin));
    return RG_OK;
}

void rg_drafter_stats_get(const rg_drafter *d, rg_draft_stats *out) {
    *out = d->stats;
    for (uint32_t rows = 1; rows <= RG_VERIFY_ROWS; rows++)
        out->window_ns[rows] = rg_governor_window_ns(&d->governor, rows);
    for (uint32_t s = 0; s < RG_SOURCE_COUNT; s++) {
        for (uint32_t i = 0; i < RG_DRAFT_MAX; i++)
            out->chance[s][i] = rg_governor_rate(&d->governor, (rg_draft_source)s, i);
    }
    out->rows_max = d->governor.m->rows_max;
}
