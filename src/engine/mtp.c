/* The draft block (spec 5): its cache follows the trunk token by token, and it drafts.
 *
 * A row is a residual R_p of the trunk and the token at p + 1. Rows of the last window wait, as
 * `pending`, until the token behind them is chosen. Chained drafts are rows made of the block's own
 * residual; they stand in the cache behind the rows of the text and are overwritten by those.
 */
#include <math.h>
#include <string.h>

#include "engine/core.h"
#include "engine/gpu_core.h"

typedef struct mtp_job {
    const rg_mtp_feed *feeds;
    const rg_window *win; /* the draft block's rows */
    atomic_bool *broken;
} mtp_job;

/* Residual of row i of a feed. */
static const float *row_source(const rg_mtp_feed *f, uint32_t i) {
    const rg_hparams *hp = f->seq->core->hp;
    const size_t HE = (size_t)hp->n_hc * hp->n_embd;
    return i < f->n_old ? f->seq->mtp_pending + i * HE : f->rest + (i - f->n_old) * HE;
}

/* One mean over all streams, or one for each (spec 5.1: engines differ). False when a value is not
 * finite. */
static bool norm_hidden(const rg_core *core, const float *from, float *to) {
    const rg_hparams *hp = core->hp;
    const rg_mtp_weights *w = &core->w.mtp;
    const uint32_t E = hp->n_embd, H = hp->n_hc;
    if (!core->opt.mtp_stream_norm) {
        return isfinite(core->ops->rms_norm(from, w->hnorm, to, H * E, hp->rms_eps));
    }
    bool finite = true;
    for (size_t h = 0; h < H; h++) {
        const size_t at = h * E;
        finite = isfinite(core->ops->rms_norm(from + at, w->hnorm + at, to + at, E, hp->rms_eps)) &&
                 finite;
    }
    return finite;
}

/* Input rows of the projection: for each stream the normed embedding, then the normed stream. */
static void input_rows(void *arg, size_t begin, size_t end, int thread) {
    const mtp_job *job = arg;
    rg_core *core = job->win->core;
    const rg_hparams *hp = core->hp;
    const rg_mtp_weights *w = &core->w.mtp;
    const uint32_t E = hp->n_embd, H = hp->n_hc;
    float *e = core->threads[thread].row;
    for (uint32_t s = 0; s < job->win->n_seg; s++) {
        const rg_segment *seg = &job->win->segs[s];
        for (uint32_t i = 0; i < seg->n; i++) {
            const size_t row = seg->row0 + i;
            if (row < begin || row >= end) continue;
            const size_t next = (size_t)job->feeds[s].next[i];
            rg_unpack_row(w->embd.type, w->embd.data + next * w->embd.row_bytes, e, E);
            core->ops->rms_norm(e, w->enorm, e, E, hp->rms_eps);
            float *hidden = core->s.normed + row * H * E;
            if (!norm_hidden(core, row_source(&job->feeds[s], i), hidden)) {
                atomic_store_explicit(job->broken, true, memory_order_relaxed);
            }
            float *in = core->s.mtp_in + row * H * 2 * E;
            for (uint32_t h = 0; h < H; h++) {
                memcpy(in + (size_t)h * 2 * E, e, E * sizeof *in);
                memcpy(in + (size_t)h * 2 * E + E, hidden + (size_t)h * E, E * sizeof *in);
            }
        }
    }
}

/* The two halves as matrices of their own: embedding term into each stream, then added. */
static void project_halves(rg_core *core, uint32_t T) {
    const uint32_t E = core->hp->n_embd, H = core->hp->n_hc;
    rg_scratch *s = &core->s;
    const rg_mtp_weights *w = &core->w.mtp;
    for (uint32_t half = 0; half < 2; half++) {
        /* Rows of one half, packed, in `normed`; its product in `mix`. */
        for (size_t i = 0; i < (size_t)T * H; i++) {
            memcpy(s->normed + i * E, s->mtp_in + i * 2 * E + (size_t)half * E, E * sizeof(float));
        }
        rg_input in;
        rg_input_set(&in, s->normed, T * H, E, &s->act);
        float *to = half ? s->mix : s->mtp_residual;
        rg_core_mul(core, &in, &(rg_product){half ? &w->fc_hidden : &w->fc_embd, to}, 1);
    }
    core->ops->add(s->mix, s->mtp_residual, T * H * E);
}

static void project(rg_core *core, uint32_t T) {
    if (!core->w.mtp.eh_proj.data) {
        project_halves(core, T);
        return;
    }
    rg_input in;
    rg_input_set(&in, core->s.mtp_in, T * core->hp->n_hc, 2 * core->hp->n_embd, &core->s.act);
    rg_core_mul(core, &in, &(rg_product){&core->w.mtp.eh_proj, core->s.mtp_residual}, 1);
}

static rg_code block(const rg_window *win, rg_status *st) {
    rg_core *core = win->core;
    const rg_layer_weights *w = &core->w.mtp.layer;
    const uint32_t layer = core->hp->n_layer;
    float *residual = core->s.mtp_residual;
    RG_TRY(rg_hc_read(core, &w->hc_attn, residual, win->T, layer, "draft attention", st));
    RG_TRY(rg_layer_attn(win, &w->attn, layer, st));
    rg_hc_write(core, residual, win->T);
    RG_TRY(rg_hc_read(core, &w->hc_ffn, residual, win->T, layer, "draft experts", st));
    RG_TRY(rg_layer_moe(win, &w->moe, layer, st));
    rg_hc_write(core, residual, win->T);
    rg_hc_settle(core);
    return RG_OK;
}

rg_code rg_mtp_run(rg_core *core, const rg_mtp_feed *feeds, uint32_t n_feed, rg_status *st) {
    RG_ASSERT(n_feed <= RG_SEGMENTS_MAX);
    if (core->gpu) return rg_gpu_mtp_run(core, feeds, n_feed, st);
    rg_segment segs[RG_SEGMENTS_MAX];
    rg_window win = {.core = core, .segs = segs, .n_seg = n_feed};
    for (uint32_t s = 0; s < n_feed; s++) {
        segs[s] = (rg_segment){
            .seq = feeds[s].seq, .row0 = win.T, .n = feeds[s].n, .pos0 = feeds[s].pos0};
        win.T += feeds[s].n;
    }
    if (!win.T) return RG_OK;
    RG_ASSERT(win.T <= core->chunk);
    core->due = (rg_due){0};
    atomic_bool broken = false;
    mtp_job job = {.feeds = feeds, .win = &win, .broken = &broken};
    rg_timing_part(core->timing, RG_PART_DRAFT);
    rg_core_run(core, RG_KERNEL_NORM, win.T, 1, input_rows, &job);
    if (atomic_load(&broken)) {
        return rg_fail(st, RG_FORMAT, "values that are not finite leave layer %u",
                       core->hp->n_layer - 1);
    }
    rg_window_rope(&win);
    project(core, win.T);
    for (uint32_t s = 0; s < n_feed; s++) /* from here on the place in the cache counts */
        segs[s].pos0 = feeds[s].kv0;
    return block(&win, st);
}

/* ---- following the trunk -------------------------------------------------------------------- */

/* Draft logits of every row, for the tap. */
static rg_code tap_logits(rg_core *core, const rg_mtp_feed *feeds, uint32_t n_feed, rg_status *st) {
    const size_t HE = (size_t)core->hp->n_hc * core->hp->n_embd;
    size_t row0 = 0;
    for (uint32_t s = 0; s < n_feed; s++) {
        for (uint32_t i = 0; i < feeds[s].n; i += RG_HEAD_ROWS) {
            const uint32_t n = feeds[s].n - i < RG_HEAD_ROWS ? feeds[s].n - i : RG_HEAD_ROWS;
            RG_TRY(rg_core_head(core, &core->w.mtp.head, &core->w.mtp.output,
                                core->s.mtp_residual + (row0 + i) * HE, n, st));
            RG_TRY(core->tap.see(core->tap.user, "mtp_logits", core->hp->n_layer, feeds[s].pos0 + i,
                                 n, core->hp->n_vocab, core->s.logits, st));
        }
        row0 += feeds[s].n;
    }
    return RG_OK;
}

/* Residuals of the trunk's last window, and of the draft block's last pass; on a device their
 * addresses there. */
static const float *trunk_rows(const rg_core *core) {
    return core->gpu ? core->gpu->s.residual : core->s.residual;
}
static const float *draft_rows(const rg_core *core) {
    return core->gpu ? core->gpu->s.mtp_residual : core->s.mtp_residual;
}

rg_code rg_mtp_keep(rg_seq *seq, uint32_t at, uint32_t row0, uint32_t n, rg_status *st) {
    const size_t HE = (size_t)seq->core->hp->n_hc * seq->core->hp->n_embd;
    const float *rows = trunk_rows(seq->core) + row0 * HE;
    if (seq->gpu) return rg_gpu_keep_pending(seq, at, rows, n, st);
    memcpy(seq->mtp_pending + at * HE, rows, n * HE * sizeof *rows);
    return RG_OK;
}

static rg_code keep_pending(const rg_window *trunk, rg_status *st) {
    for (uint32_t s = 0; s < trunk->n_seg; s++) {
        const rg_segment *seg = &trunk->segs[s];
        rg_seq *seq = seg->seq;
        if (!seq->opt.mtp || seg->open) continue;
        const uint32_t end = seg->pos0 + seg->n - 1;
        RG_TRY(rg_mtp_keep(seq, 0, seg->row0 + seg->n - 1, 1, st));
        seq->mtp_length += end - seq->mtp_pos;
        seq->mtp_pos = end;
        seq->n_pending = 1;
    }
    return RG_OK;
}

rg_code rg_mtp_follow(const rg_window *trunk, rg_status *st) {
    rg_core *core = trunk->core;
    const size_t HE = (size_t)core->hp->n_hc * core->hp->n_embd;
    rg_mtp_feed feeds[RG_SEGMENTS_MAX];
    for (uint32_t s = 0; s < trunk->n_seg; s++) {
        const rg_segment *t = &trunk->segs[s];
        feeds[s] = (rg_mtp_feed){.seq = t->seq};
        if (!t->seq->opt.mtp || t->open) continue;
        RG_ASSERT(t->seq->n_pending <= 1);
        RG_ASSERT(t->seq->mtp_pos + t->seq->n_pending == t->pos0);
        feeds[s].n = t->n - 1 + t->seq->n_pending;
        feeds[s].n_old = t->seq->n_pending;
        feeds[s].kv0 = t->seq->mtp_length;
        feeds[s].pos0 = t->seq->mtp_pos;
        feeds[s].rest = trunk_rows(core) + t->row0 * HE;
        feeds[s].next = trunk->ids + t->row0 + 1 - t->seq->n_pending;
    }
    RG_TRY(rg_mtp_run(core, feeds, trunk->n_seg, st));
    if (rg_tapped(core)) RG_TRY(tap_logits(core, feeds, trunk->n_seg, st));
    return keep_pending(trunk, st);
}

/* ---- drafting ------------------------------------------------------------------------------- */

uint32_t rg_mtp_lag(const rg_seq *seq) {
    return seq->n_pending;
}

static rg_code drop_pending(rg_seq *seq, uint32_t n, rg_status *st) {
    const rg_hparams *hp = seq->core->hp;
    const size_t HE = (size_t)hp->n_hc * hp->n_embd;
    RG_ASSERT(n <= seq->n_pending);
    if (seq->gpu) RG_TRY(rg_gpu_drop_pending(seq, n, st));
    seq->n_pending -= n;
    seq->mtp_pos += n;
    if (seq->gpu) return RG_OK;
    memmove(seq->mtp_pending, seq->mtp_pending + n * HE,
            seq->n_pending * HE * sizeof *seq->mtp_pending);
    return RG_OK;
}

/* Remembers the items that a pass of `rows` rows used; chained ones stand behind. */
static void keep_items(rg_core *core, rg_seq *seq, uint32_t rows, uint32_t *count) {
    const uint32_t K = core->hp->n_expert_used, G = core->hp->n_layer;
    const uint32_t at = seq->n_draft_true + seq->n_draft_chain;
    if (!core->stream || !seq->draft_items || at + rows > 2 * RG_VERIFY_ROWS) return;
    memcpy(seq->draft_items + (size_t)at * K, core->routes + (size_t)G * core->chunk * K,
           (size_t)rows * K * sizeof(uint32_t));
    *count += rows;
}

/* Feeds the first n pending rows; next[i] is the token behind each. */
static rg_code feed_pending(rg_core *core, rg_seq *seq, uint32_t n, const int32_t *next,
                            rg_status *st) {
    const rg_mtp_feed feed = {
        .seq = seq, .n = n, .n_old = n, .kv0 = seq->mtp_length, .pos0 = seq->mtp_pos, .next = next};
    RG_TRY(rg_mtp_run(core, &feed, 1, st));
    keep_items(core, seq, n, &seq->n_draft_true);
    RG_TRY(drop_pending(seq, n, st));
    seq->mtp_length += n;
    return RG_OK;
}

/* In passes that the core's scratch holds and that count as decoding. */
static rg_code feed_known(rg_core *core, rg_seq *seq, uint32_t n, rg_status *st) {
    const uint32_t most = core->chunk < RG_VERIFY_ROWS ? core->chunk : RG_VERIFY_ROWS;
    while (n) {
        const uint32_t rows = n < most ? n : most;
        RG_TRY(feed_pending(core, seq, rows, seq->ids + seq->mtp_pos + 1, st));
        n -= rows;
    }
    return RG_OK;
}

rg_code rg_mtp_settle(rg_core *core, rg_seq *seq, rg_status *st) {
    return seq->n_pending > 1 ? feed_known(core, seq, seq->n_pending - 1, st) : RG_OK;
}

rg_code rg_mtp_make_room(rg_core *core, rg_seq *seq, uint32_t rows, bool skip, rg_status *st) {
    if (seq->n_pending + rows <= RG_PENDING_MAX) return RG_OK;
    const uint64_t begin = rg_now_ns();
    core->lap_ns = begin;
    const rg_code rc = skip ? drop_pending(seq, seq->n_pending + rows - RG_PENDING_MAX, st)
                            : rg_mtp_settle(core, seq, st);
    if (rc != RG_OK) seq->failed = true;
    core->times.window_ns += rg_now_ns() - begin;
    return rc;
}

/* One chained row: the block's own residual of the row before, and its draft. */
static rg_code chain_row(rg_core *core, rg_seq *seq, uint32_t at, const float *residual,
                         const int32_t *draft, rg_status *st) {
    const rg_mtp_feed feed = {.seq = seq,
                              .n = 1,
                              .kv0 = seq->mtp_length + at,
                              .pos0 = seq->mtp_pos + at,
                              .rest = residual,
                              .next = draft};
    RG_TRY(rg_mtp_run(core, &feed, 1, st));
    keep_items(core, seq, 1, &seq->n_draft_chain);
    return RG_OK;
}

static rg_code head(rg_core *core, const float *residual, uint32_t few, rg_status *st) {
    if (core->gpu) return rg_gpu_mtp_head(core, residual, few, st);
    return rg_core_head(core, &core->w.mtp.head, &core->w.mtp.output, residual, 1, st);
}

static rg_code draft_chain(rg_core *core, rg_seq *seq, int32_t next, uint32_t n_max,
                           const rg_draft_pick *pick, int32_t *ids, uint32_t *n, rg_status *st) {
    const size_t HE = (size_t)core->hp->n_hc * core->hp->n_embd;
    int32_t behind[RG_VERIFY_ROWS];
    uint32_t rows = seq->n_pending;
    if (rows > core->chunk || rows > RG_VERIFY_ROWS) { /* all but one in passes of their own */
        RG_TRY(feed_known(core, seq, rows - 1, st));
        rows = 1;
    }
    for (uint32_t i = 0; i + 1 < rows; i++)
        behind[i] = seq->ids[seq->mtp_pos + 1 + i];
    behind[rows - 1] = next;
    RG_TRY(feed_pending(core, seq, rows, behind, st));
    const float *residual = draft_rows(core) + (rows - 1) * HE;
    bool more = true;
    while (more) {
        RG_TRY(head(core, residual, pick->few, st));
        RG_TRY(pick->pick(pick->user, core->s.logits, seq->length + 1 + *n, &ids[*n], &more, st));
        if (++*n == n_max) return RG_OK;
        if (!more) return RG_OK;
        RG_TRY(chain_row(core, seq, *n - 1, residual, &ids[*n - 1], st));
        residual = draft_rows(core);
    }
    return RG_OK;
}

rg_code rg_mtp_draft(rg_core *core, rg_seq *seq, int32_t next, uint32_t n_max,
                     const rg_draft_pick *pick, int32_t *ids, uint32_t *n, rg_status *st) {
    *n = 0;
    if (!seq->opt.mtp || !seq->n_pending || !n_max) return RG_OK;
    RG_ASSERT(!seq->n_open);
    RG_ASSERT(n_max <= RG_DRAFT_MAX);
    const uint64_t begin = rg_now_ns();
    core->lap_ns = begin;
    const rg_code rc = draft_chain(core, seq, next, n_max, pick, ids, n, st);
    if (rc != RG_OK) seq->failed = true;
    core->times.window_ns += rg_now_ns() - begin;
    return rc;
}
