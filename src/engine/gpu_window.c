/* A window on the device.
 *
 * With all experts in memory the whole window is one list (two where the n-gram rows are joined),
 * handed over at once. With experts that stream, or with a choice that the host makes, each layer
 * is a turn: gpu_turns.c.
 */
#include <math.h>
#include <string.h>

#include "engine/gpu_pass.h"

rg_gpu_rec rg_gpu_pass_rec(const rg_gpu_pass *w, rg_gpu_list *list) {
    return (rg_gpu_rec){.g = w->g,
                        .core = w->core,
                        .win = w->win,
                        .list = list,
                        .residual = w->draft ? w->g->s.mtp_residual : w->g->s.residual};
}

/* ---- what the host tells -------------------------------------------------------------------- */

void rg_gpu_pass_tell(const rg_gpu_pass *w) {
    const rg_hparams *hp = w->core->hp;
    const rg_gpu_shared *to = &w->g->to;
    uint32_t ratio = 0;
    for (uint32_t i = 0; i < rg_gpu_layers(w->core); i++) {
        const rg_layer_weights *l = rg_gpu_layer(w->core, i);
        if (l->is_attn && l->attn.ratio) ratio = l->attn.ratio;
    }
    memcpy(to->ids, w->win->ids, w->win->T * sizeof *to->ids);
    memcpy(to->rope, w->core->s.rope, (size_t)w->win->T * hp->n_rot * sizeof(float));
    for (uint32_t i = 0; i < w->win->n_seg; i++) {
        const rg_segment *seg = &w->win->segs[i];
        to->stands[i] = (rg_gpu_stand){.pos0 = seg->pos0,
                                       .owed = seg->seq->n_owed,
                                       .firm = seg->n - seg->n_draft,
                                       .cap = seg->seq->opt.draft_max};
        if (!ratio) continue;
        float *cs = to->rope_blocks + (size_t)(seg->row0 + i) * hp->n_rot;
        const uint32_t last = (seg->pos0 + seg->n) / ratio;
        for (uint32_t b = seg->pos0 / ratio; b < last; b++, cs += hp->n_rot)
            rg_rope_table(cs, w->core->inv_freq, hp->n_rot / 2, (uint64_t)b * ratio);
    }
}

rg_code rg_gpu_pass_tell_ple(const rg_gpu_pass *w, rg_status *st) {
    const rg_hparams *hp = w->core->hp;
    RG_TRY(rg_ple_join(w->win, st));
    memcpy(w->g->to.ple_in, w->core->s.ple_in,
           (size_t)w->win->T * hp->ple_n_head * hp->ple_row * sizeof(float));
    return RG_OK;
}

/* States lag behind by accepted drafts: the window's kernels take them in, or it is done here. */
static rg_code settle(const rg_gpu_pass *w, rg_status *st) {
    rg_seq *seqs[RG_SEGMENTS_MAX];
    if (rg_gpu_window_settles(w->core, w->win->T)) return RG_OK;
    for (uint32_t i = 0; i < w->win->n_seg; i++)
        seqs[i] = w->win->segs[i].seq;
    return rg_gpu_settle(w->core, seqs, w->win->n_seg, st);
}

/* Fresh sequences begin with zero states. */
static rg_code zero_states(const rg_gpu_pass *w, rg_status *st) {
    const rg_hparams *hp = w->core->hp;
    const size_t bytes = (size_t)hp->n_v_head * hp->ssm_head_dim * hp->ssm_head_dim * sizeof(float);
    bool any = false;
    for (uint32_t i = 0; i < w->win->n_seg; i++)
        any = any || w->win->segs[i].pos0 == 0;
    if (!any) return RG_OK;
    any = false;
    rg_gpu_list_begin(w->g->zero, false);
    for (uint32_t i = 0; i < w->win->n_seg; i++) {
        const rg_segment *seg = &w->win->segs[i];
        if (seg->pos0) continue;
        const rg_gpu_seq *d = seg->seq->gpu;
        for (uint32_t l = 0; l < hp->n_layer; l++) {
            if (!d->layers[l].S) continue;
            rg_gpu_fill(w->g->zero, &d->memory, rg_at(d->layers[l].S) - d->memory.address, bytes,
                        0);
            any = true;
        }
    }
    RG_TRY(rg_gpu_list_end(w->g->zero, st));
    const rg_gpu_part part = {.list = w->g->zero};
    return any ? rg_gpu_submit(w->g->gpu, &part, 1, st) : RG_OK;
}

/* ---- what the device says ------------------------------------------------------------------- */

rg_code rg_gpu_pass_check(const rg_gpu_pass *w, rg_status *st) {
    const uint32_t code = *w->g->from.flag;
    if (code == UINT32_MAX) return RG_OK;
    const uint32_t layer = code / RG_GPU_PLACES, place = code % RG_GPU_PLACES;
    if (place == RG_GPU_IN_ROUTER) {
        return rg_fail(st, RG_FORMAT, "the router of layer %u gives values that are not finite",
                       layer);
    }
    if (place == RG_GPU_IN_INDEX)
        return rg_fail(st, RG_FORMAT, "the block scores of layer %u are not finite", layer);
    return rg_fail(st, RG_FORMAT,
                   "values that are not finite reach layer %u (%s): the weights before it are "
                   "damaged",
                   layer, place == RG_GPU_BEFORE_EXPERTS ? "experts" : "mixer");
}

void rg_gpu_pass_begin(const rg_gpu_pass *w, rg_gpu_rec *r) {
    rg_gpu_fill(r->list, &w->g->scratch, rg_at(w->g->flag) - w->g->scratch.address, 4, UINT32_MAX);
    if (w->draft) {
        rg_gpu_barrier(r->list); /* the flag */
        rg_gpu_rec_draft(r);
    } else {
        rg_gpu_rec_embed(r, &w->core->w.token_embd, r->residual);
    }
}

static void record_head(rg_gpu_rec *r, uint32_t row, uint32_t rows, uint32_t few) {
    rg_gpu_rec_head(r, &r->core->w.output_hc, &r->core->w.output, row, rows, few);
}

/* How many of the best logits come back when n are wanted; 0: all. */
static uint32_t few_of(const rg_core *core, uint32_t n) {
    _Static_assert(RG_FEW_MAX == RG_GPU_BEST_MAX, "a list holds what the device finds");
    const bool there = n && !(core->opt.gpu_unfused & RG_GPU_FEW);
    return there && rg_gpu_best_takes(core->hp->n_vocab, n) ? n : 0;
}

uint32_t rg_gpu_pass_few(const rg_gpu_pass *w) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < w->win->n_seg; i++)
        most = w->win->segs[i].n_best > most ? w->win->segs[i].n_best : most;
    return w->win->T <= RG_GPU_ROWS_MAX ? few_of(w->core, most) : 0;
}

/* Bits of the rows that are wanted whole where the best of the others come back. */
static uint32_t whole_rows(const rg_gpu_pass *w) {
    uint32_t rows = 0;
    if (!rg_gpu_pass_few(w)) return 0;
    for (uint32_t i = 0; i < w->win->n_seg; i++) {
        const rg_segment *seg = &w->win->segs[i];
        if (seg->n_best) continue;
        const uint32_t first = seg->open ? 0 : seg->n - 1; /* who is certain wants the last */
        for (uint32_t k = first; k < seg->n; k++)
            rows |= 1u << (seg->row0 + k);
    }
    return rows;
}

static void record_whole_rows(const rg_gpu_pass *w, rg_gpu_list *list) {
    const size_t V = w->core->hp->n_vocab;
    const rg_gpu_core *g = w->g;
    for (uint32_t row = 0, rows = whole_rows(w); rows; row++, rows >>= 1) {
        if (!(rows & 1)) continue;
        rg_gpu_copy(list, &g->readback, rg_at(g->out.logits + row * V) - g->readback.address,
                    &g->scratch, rg_at(g->s.logits + row * V) - g->scratch.address,
                    V * sizeof(float));
    }
}

/* The last list of a window: logits of a short one, and whether all was finite. */
void rg_gpu_pass_end(const rg_gpu_pass *w, rg_gpu_rec *r) {
    if (w->draft) {
        rg_gpu_rec_settle(r);
    } else if (w->win->T <= RG_GPU_ROWS_MAX) {
        record_head(r, 0, w->win->T, rg_gpu_pass_few(w));
    }
    rg_gpu_barrier(r->list); /* the flag, the logits */
    if (!w->draft) record_whole_rows(w, r->list);
    rg_gpu_copy(r->list, &w->g->readback, rg_at(w->g->out.flag) - w->g->readback.address,
                &w->g->scratch, rg_at(w->g->flag) - w->g->scratch.address, 4);
}

void rg_gpu_pass_count(const rg_gpu_pass *w, const rg_gpu_list *list) {
    w->g->dispatches += rg_gpu_list_dispatches(list);
    w->g->barriers += rg_gpu_list_barriers(list);
}

bool rg_gpu_pass_moce(const rg_gpu_pass *w) {
    for (uint32_t i = 0; i < w->win->n_seg && !w->draft; i++) {
        if (w->win->segs[i].seq->moce) return true;
    }
    return false;
}

/* ---- everything in memory ------------------------------------------------------------------- */

/* What a recorded window depends on beside the weights; 0 never. */
uint64_t rg_gpu_pass_key(const rg_gpu_pass *w) {
    if (w->win->n_seg != 1 || w->win->T > RG_GPU_ROWS_MAX) return 0;
    const rg_segment *seg = &w->win->segs[0];
    uint64_t indexed = 0;
    for (uint32_t i = 0; i < w->core->hp->n_layer; i++) {
        const rg_layer_weights *l = &w->core->w.layers[i];
        if (!l->is_attn || !l->attn.ratio) continue;
        const uint32_t keep = w->core->hp->idx_budget / l->attn.ratio;
        indexed += (seg->pos0 + seg->n) / l->attn.ratio > keep;
    }
    const uint64_t of_seq = seg->seq->gpu->memory.address * 8192 + indexed * 32;
    return of_seq + 2 * (uint64_t)w->win->T + rg_gpu_pass_moce(w);
}

static rg_gpu_whole *whole_of(const rg_gpu_pass *w) {
    const uint32_t T = w->win->T;
    return &w->g->whole[T <= RG_GPU_ROWS_MAX ? T - 1 : RG_GPU_ROWS_MAX];
}

static rg_code record_whole(const rg_gpu_pass *w, rg_status *st) {
    const rg_gpu_whole *whole = whole_of(w);
    rg_gpu_rec r = rg_gpu_pass_rec(w, whole->lists[0]);
    w->g->n_recorded++;
    rg_gpu_list_begin(r.list, w->core->opt.gpu_stamps);
    rg_gpu_pass_begin(w, &r);
    bool split = false;
    for (uint32_t i = 0; i < w->core->hp->n_layer; i++) {
        if (w->core->w.layers[i].has_ple) {
            if (!split) { /* the rest waits for the rows of the table */
                RG_TRY(rg_gpu_list_end(r.list, st));
                r.list = whole->lists[1];
                rg_gpu_list_begin(r.list, w->core->opt.gpu_stamps);
                split = true;
            }
            rg_gpu_rec_ple(&r, i);
        }
        rg_gpu_rec_mixer(&r, i);
        rg_gpu_rec_moe(&r, i);
    }
    if (!split) { /* always two lists */
        RG_TRY(rg_gpu_list_end(r.list, st));
        r.list = whole->lists[1];
        rg_gpu_list_begin(r.list, w->core->opt.gpu_stamps);
    }
    rg_gpu_pass_end(w, &r);
    return rg_gpu_list_end(r.list, st);
}

static rg_code have_whole(const rg_gpu_pass *w, rg_gpu_whole *whole, rg_status *st) {
    const uint64_t key = rg_gpu_pass_key(w);
    const uint32_t few = rg_gpu_pass_few(w);
    if (key && key == whole->key && few == whole->few) return RG_OK;
    whole->key = 0;
    RG_TRY(record_whole(w, st));
    whole->key = key;
    whole->few = few;
    return RG_OK;
}

static rg_code run_whole(const rg_gpu_pass *w, rg_status *st) {
    rg_gpu_whole *whole = whole_of(w);
    RG_TRY(have_whole(w, whole, st));
    w->g->dispatches = w->g->barriers = 0;
    rg_gpu_pass_count(w, whole->lists[0]);
    rg_gpu_pass_count(w, whole->lists[1]);
    bool ple = false;
    for (uint32_t i = 0; i < w->core->hp->n_layer; i++)
        ple = ple || w->core->w.layers[i].has_ple;
    const uint64_t joined = ple ? rg_gpu_next_host(w->g->gpu) : 0;
    const uint64_t done = rg_gpu_next(w->g->gpu);
    const rg_gpu_part parts[2] = {{.list = whole->lists[0]},
                                  {.list = whole->lists[1], .wait_host = joined, .signal = done}};
    RG_TRY(rg_gpu_submit(w->g->gpu, parts, 2, st));
    rg_code rc = RG_OK;
    if (ple) {
        rc = rg_gpu_pass_tell_ple(w, st);
        /* Also after a failure: the list must end before anything else can run. */
        RG_TRY(rg_gpu_signal(w->g->gpu, joined, st));
    }
    RG_TRY(rg_gpu_wait(w->g->gpu, done, RG_GPU_ANSWER_NS, rc == RG_OK ? st : NULL));
    if (w->core->opt.gpu_stamps) {
        rg_gpu_add_times(w->g, whole->lists[0]);
        rg_gpu_add_times(w->g, whole->lists[1]);
    }
    return rc;
}

/* ---- ahead of the first token --------------------------------------------------------------- */

rg_code rg_gpu_record_rows(rg_seq *seq, uint32_t T, uint32_t pos0, uint32_t n_best, rg_status *st) {
    rg_core *core = seq->core;
    const rg_segment seg = {.seq = seq, .n = T, .pos0 = pos0, .n_best = n_best};
    const rg_window win = {.core = core, .segs = &seg, .n_seg = 1, .T = T};
    const rg_gpu_pass w = {.win = &win, .core = core, .g = core->gpu};
    if (T > core->chunk || T > seq->opt.n_ctx) return RG_OK;
    if (core->stream || core->trace) return rg_gpu_turns_record(&w, st);
    return have_whole(&w, whole_of(&w), st);
}

/* Rows of the draft block behind pos0, and what its head gives: builds their kernels. */
static rg_code record_draft_rows(rg_seq *seq, uint32_t T, uint32_t pos0, rg_status *st) {
    rg_core *core = seq->core;
    const rg_segment seg = {.seq = seq, .n = T, .pos0 = pos0};
    const rg_window win = {.core = core, .segs = &seg, .n_seg = 1, .T = T};
    const rg_gpu_pass w = {.win = &win, .core = core, .g = core->gpu, .draft = true};
    const uint32_t layer = core->hp->n_layer;
    if (T > core->chunk || T > seq->opt.n_ctx) return RG_OK;
    rg_gpu_rec r = rg_gpu_pass_rec(&w, w.g->last);
    rg_gpu_list_begin(r.list, false);
    rg_gpu_pass_begin(&w, &r);
    rg_gpu_rec_mixer(&r, layer);
    rg_gpu_rec_router(&r, layer, true);
    rg_gpu_rec_shared(&r, layer, rg_experts_next_router(core, layer));
    rg_gpu_rec_phase(&r, layer, 0, 0, 0);
    rg_gpu_rec_combine(&r, layer);
    rg_gpu_pass_end(&w, &r);
    rg_gpu_rec_head(&r, &core->w.mtp.head, &core->w.mtp.output, 0, 1, few_of(core, 2));
    return rg_gpu_list_end(r.list, st);
}

/* The draft block follows prompts in chunks, and drafts from as many rows as a window accepted; of
 * windows that it sat out more wait for it, so draft_max is no limit. */
static rg_code record_drafts(rg_seq *seq, const uint32_t *wide, size_t n_wide, rg_status *st) {
    const uint32_t rows = seq->opt.draft_max ? RG_VERIFY_ROWS : 1;
    const uint32_t chunk = seq->core->chunk, n_ctx = seq->opt.n_ctx;
    for (size_t i = 0; i < n_wide; i++)
        RG_TRY(record_draft_rows(seq, wide[i], 0, st));
    for (uint32_t T = 1; T <= rows && T <= n_ctx; T++) {
        RG_TRY(record_draft_rows(seq, T, n_ctx - T, st));
        RG_TRY(record_draft_rows(seq, T, 0, st));
    }
    return chunk <= n_ctx ? record_draft_rows(seq, chunk, n_ctx - chunk, st) : RG_OK;
}

/* The most rows of a decode window: a certain one and drafts. */
static uint32_t decode_rows(const rg_seq *seq, bool all) {
    const uint32_t rows = all ? RG_GPU_ROWS_MAX : 1 + seq->opt.draft_max;
    return rows < RG_GPU_ROWS_MAX ? rows : RG_GPU_ROWS_MAX;
}

static rg_code record_all(rg_seq *seq, bool all, rg_status *st) {
    const uint32_t chunk = seq->core->chunk, n_ctx = seq->opt.n_ctx;
    const uint32_t wide[] = {chunk, 64, 32, 16}; /* sizes of tiles */
    const size_t n_wide = all ? RG_ARRAY_LEN(wide) : 1;
    if (seq->opt.mtp) RG_TRY(record_drafts(seq, wide, n_wide, st));
    for (size_t i = 0; i < n_wide; i++)
        RG_TRY(rg_gpu_record_rows(seq, wide[i], 0, 0, st));
    RG_TRY(rg_gpu_record_rows(seq, 1, 0, 1, st)); /* a greedy step */
    for (uint32_t T = 1; T <= decode_rows(seq, all) && T <= n_ctx; T++) {
        RG_TRY(rg_gpu_record_rows(seq, T, n_ctx - T, 0, st)); /* blocks are selected there */
        RG_TRY(rg_gpu_record_rows(seq, T, 0, 0, st));
    }
    return chunk <= n_ctx ? rg_gpu_record_rows(seq, chunk, n_ctx - chunk, 0, st) : RG_OK;
}

/* Recorded twice: to learn which kernels are wanted, which all threads build, and for good. */
rg_code rg_gpu_prewarm_run(rg_seq *seq, bool all, rg_status *st) {
    rg_gpu_core *g = seq->core->gpu;
    const uint64_t begin = rg_now_ns();
    rg_gpu_plan_begin(g->gpu);
    const rg_code noted = record_all(seq, all, st);
    rg_gpu_forget(g); /* they hold nothing */
    const rg_code built = rg_gpu_plan_end(g->gpu, seq->core->pool, noted == RG_OK ? st : NULL);
    RG_TRY(noted);
    RG_TRY(built);
    const uint64_t ready = rg_now_ns();
    RG_TRY(record_all(seq, all, st));
    rg_log(RG_LOG_INFO, "%u kernels built in %.0f ms by %d threads, windows in %.0f ms",
           rg_gpu_kernels(g->gpu), (double)(ready - begin) * 1e-6, rg_pool_threads(seq->core->pool),
           (double)(rg_now_ns() - ready) * 1e-6);
    return RG_OK;
}

/* ---- window --------------------------------------------------------------------------------- */

/* Rows of the host's logits that are no list any more. */
static void forget_few(rg_gpu_core *g, uint32_t row, uint32_t n) {
    RG_ASSERT(row + n <= RG_HEAD_ROWS);
    for (; n; row++, n--)
        g->few[row].n = 0;
}

void rg_gpu_forget_rows(rg_gpu_core *g) {
    forget_few(g, 0, RG_HEAD_ROWS);
}

static rg_code run_window(const rg_window *win, const rg_eval_call *call, rg_status *st) {
    rg_core *core = win->core;
    const rg_gpu_pass w = {.win = win, .call = call, .core = core, .g = core->gpu};
    if (rg_tapped(core)) return rg_fail(st, RG_UNSUPPORTED, "the GPU shows no intermediate values");
    if (call->cancel && atomic_load_explicit(call->cancel, memory_order_relaxed))
        return rg_fail(st, RG_CANCELED, "canceled at layer 0");
    RG_TRY(rg_ple_request(win, st));
    for (uint32_t i = 0; i < win->n_seg; i++) {
        const rg_segment *seg = &win->segs[i];
        if (seg->seq->moce) rg_moce_begin(seg->seq->moce, seg->pos0, seg->n);
    }
    rg_window_rope(win);
    core->lap_ns = rg_now_ns();
    w.g->n_head_rows = 0;
    RG_TRY(settle(&w, st));
    rg_gpu_pass_tell(&w);
    RG_TRY(zero_states(&w, st));
    const bool turns = core->stream || core->trace || rg_gpu_pass_moce(&w);
    RG_TRY(turns ? rg_gpu_turns_run(&w, st) : run_whole(&w, st));
    RG_TRY(rg_gpu_pass_check(&w, st));
    if (win->T <= RG_GPU_ROWS_MAX) w.g->n_head_rows = win->T;
    w.g->head_few = rg_gpu_pass_few(&w);
    w.g->head_whole = whole_rows(&w);
    for (uint32_t i = 0; i < win->n_seg; i++)
        win->segs[i].seq->n_owed = 0;
    return RG_OK;
}

rg_code rg_gpu_window_run(const rg_window *win, const rg_eval_call *call, rg_status *st) {
    const uint64_t begin = rg_now_ns();
    const rg_code rc = run_window(win, call, st);
    win->core->gpu->windows_ns += rg_now_ns() - begin;
    win->core->gpu->n_window++;
    return rc;
}

static rg_code bad_logit(const rg_core *core, size_t id, rg_status *st) {
    return rg_fail(st, RG_FORMAT,
                   "logit %zu is not finite behind layer %u: the output weights are damaged", id,
                   core->hp->n_layer - 1);
}

static rg_code check_logits(const rg_core *core, const float *logits, uint32_t n, rg_status *st) {
    const rg_hparams *hp = core->hp;
    const size_t all = (size_t)n * hp->n_vocab;
    uint32_t bad = 0; /* a loop without a way out is a wide one */
    for (size_t i = 0; i < all; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        bad |= (bits & 0x7F800000u) == 0x7F800000u;
    }
    for (size_t i = 0; bad && i < all; i++) {
        if (isfinite(logits[i])) continue;
        return bad_logit(core, i % hp->n_vocab, st);
    }
    return RG_OK;
}

/* A row of logits of which the few best are known: the first of `there` that the device found. */
static rg_code give_few(rg_core *core, uint32_t row, uint32_t there, uint32_t few, uint32_t to,
                        rg_status *st) {
    rg_gpu_core *g = core->gpu;
    const uint32_t *best = g->from.best + (size_t)row * (1 + 2 * there);
    float *logits = core->s.logits + (size_t)to * core->hp->n_vocab;
    rg_few *list = &g->few[to];
    if (best[0] != UINT32_MAX) return bad_logit(core, best[0], st);
    for (uint32_t i = 0; i < core->hp->n_vocab && !list->n; i++)
        logits[i] = -INFINITY;
    for (uint32_t i = 0; i < list->n; i++)
        logits[list->ids[i]] = -INFINITY;
    for (list->n = 0; list->n < few && best[1 + list->n] != UINT32_MAX; list->n++) {
        const uint32_t id = best[1 + list->n];
        RG_ASSERT(id < core->hp->n_vocab);
        list->ids[list->n] = (int32_t)id;
        memcpy(&list->logits[list->n], &best[1 + there + list->n], sizeof *list->logits);
        logits[id] = list->logits[list->n];
    }
    g->rows_best++;
    return RG_OK;
}

/* Rows of the window through the head in a list of their own; what its list left is gone. */
static rg_code run_head(rg_core *core, uint32_t row, uint32_t n, uint32_t few, rg_status *st) {
    rg_gpu_core *g = core->gpu;
    rg_gpu_rec r = {.g = g, .core = core, .list = g->head, .residual = g->s.residual};
    g->n_head_rows = 0;
    rg_gpu_list_begin(g->head, core->opt.gpu_stamps);
    record_head(&r, row, n, few);
    RG_TRY(rg_gpu_list_end(g->head, st));
    RG_TRY(rg_gpu_run(g->gpu, g->head, st));
    rg_gpu_add_times(g, g->head);
    return RG_OK;
}

static rg_code give_best(rg_core *core, uint32_t row, uint32_t n, uint32_t to, uint32_t few,
                         rg_status *st) {
    const rg_gpu_core *g = core->gpu;
    uint32_t there = g->head_few;
    if (there < few || row + n > g->n_head_rows) {
        RG_TRY(run_head(core, row, n, few, st));
        row = 0;
        there = few;
    }
    for (uint32_t i = 0; i < n; i++)
        RG_TRY(give_few(core, row + i, there, few, to + i, st));
    return RG_OK;
}

/* Whether the window's list brought these rows whole. */
static bool has_whole(const rg_gpu_core *g, uint32_t row, uint32_t n) {
    if (row + n > g->n_head_rows) return false;
    const uint32_t rows = ((1u << n) - 1) << row;
    return !g->head_few || (g->head_whole & rows) == rows;
}

static rg_code give_all(rg_core *core, uint32_t row, uint32_t n, uint32_t to, rg_status *st) {
    rg_gpu_core *g = core->gpu;
    const float *from = g->from.logits;
    float *logits = core->s.logits + (size_t)to * core->hp->n_vocab;
    if (has_whole(g, row, n)) {
        from += (size_t)row * core->hp->n_vocab;
    } else {
        RG_TRY(run_head(core, row, n, 0, st));
    }
    memcpy(logits, from, (size_t)n * core->hp->n_vocab * sizeof *from);
    forget_few(g, to, n);
    g->rows_whole += n;
    return check_logits(core, logits, n, st);
}

static rg_code take_draft_logits(rg_core *core, rg_status *st) {
    rg_gpu_core *g = core->gpu;
    memcpy(core->s.logits, g->from.logits, core->hp->n_vocab * sizeof(float));
    forget_few(g, 0, 1);
    g->rows_whole++;
    return check_logits(core, core->s.logits, 1, st);
}

rg_code rg_gpu_mtp_head(rg_core *core, const float *residual, uint32_t few, rg_status *st) {
    rg_gpu_core *g = core->gpu;
    const size_t HE = (size_t)core->hp->n_hc * core->hp->n_embd;
    rg_gpu_rec r = {.g = g, .core = core, .list = g->head, .residual = g->s.mtp_residual};
    const uint32_t row = (uint32_t)((size_t)(residual - g->s.mtp_residual) / HE);
    const uint64_t begin = rg_now_ns();
    g->n_head_rows = 0; /* the trunk's logits make room */
    few = few_of(core, few);
    rg_gpu_list_begin(g->head, core->opt.gpu_stamps);
    rg_gpu_rec_head(&r, &core->w.mtp.head, &core->w.mtp.output, row, 1, few);
    RG_TRY(rg_gpu_list_end(g->head, st));
    RG_TRY(rg_gpu_run(g->gpu, g->head, st));
    rg_gpu_add_times(g, g->head);
    const rg_code rc = few ? give_few(core, 0, few, few, 0, st) : take_draft_logits(core, st);
    g->windows_ns += rg_now_ns() - begin;
    return rc;
}

const rg_few *rg_core_few(const rg_core *core, const float *logits) {
    const rg_gpu_core *g = core->gpu;
    for (uint32_t row = 0; g && row < RG_HEAD_ROWS; row++) {
        if (logits == core->s.logits + (size_t)row * core->hp->n_vocab)
            return g->few[row].n ? &g->few[row] : NULL;
    }
    return NULL;
}

void rg_core_gpu_rows_given(const rg_core *core, uint64_t *whole, uint64_t *best) {
    *whole = core->gpu ? core->gpu->rows_whole : 0;
    *best = core->gpu ? core->gpu->rows_best : 0;
}

rg_code rg_gpu_head(rg_core *core, uint32_t row, uint32_t n, uint32_t to, uint32_t few,
                    rg_status *st) {
    const uint64_t begin = rg_now_ns();
    RG_ASSERT(n >= 1 && to + n <= RG_HEAD_ROWS);
    few = n <= RG_GPU_ROWS_MAX ? few_of(core, few) : 0;
    const rg_code rc = few ? give_best(core, row, n, to, few, st) : give_all(core, row, n, to, st);
    core->gpu->windows_ns += rg_now_ns() - begin;
    return rc;
}
