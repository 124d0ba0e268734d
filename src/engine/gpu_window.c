/* A window on the device.
 *
 * With all experts in memory the whole window is one list (two where the n-gram rows are joined),
 * handed over at once. With experts that stream, or with a choice that the host makes, each layer
 * is a turn:
 *
 *     device: ... mixer, router -> signal          shared expert, next router -> signal
 *     host:                       ids: turn begins, tables and lists are written
 *     device:                                      experts that are there
 *     host:                       guesses; waits for the reads
 *     device:                                      experts as they came, combination, next layer
 *
 * Slots are read by the device until its timeline passes the turn's fence: the stream refills them
 * only then. With a staged arena (gpu_arena.c) experts that are there may still be on their way
 * from staging memory: the lists that read them wait for the transfers' timeline, the host does
 * not.
 */
#include <math.h>
#include <string.h>

#include "engine/gpu_core.h"

#define ANSWER_NS ((uint64_t)120 * 1000000000u) /* a device that answers later is given up */

typedef struct run {
    const rg_window *win;
    const rg_eval_call *call;
    rg_core *core;
    rg_gpu_core *g;
    bool draft; /* rows of the draft block */
} run;

static rg_gpu_rec rec_of(const run *w, rg_gpu_list *list) {
    return (rg_gpu_rec){.g = w->g,
                        .core = w->core,
                        .win = w->win,
                        .list = list,
                        .residual = w->draft ? w->g->s.mtp_residual : w->g->s.residual};
}

/* ---- what the host tells -------------------------------------------------------------------- */

static void tell_positions(const run *w) {
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

static rg_code tell_ple(const run *w, rg_status *st) {
    const rg_hparams *hp = w->core->hp;
    RG_TRY(rg_ple_join(w->win, st));
    memcpy(w->g->to.ple_in, w->core->s.ple_in,
           (size_t)w->win->T * hp->ple_n_head * hp->ple_row * sizeof(float));
    return RG_OK;
}

/* States lag behind by accepted drafts: the window's kernels take them in, or it is done here. */
static rg_code settle(const run *w, rg_status *st) {
    rg_seq *seqs[RG_SEGMENTS_MAX];
    if (rg_gpu_window_settles(w->core, w->win->T)) return RG_OK;
    for (uint32_t i = 0; i < w->win->n_seg; i++)
        seqs[i] = w->win->segs[i].seq;
    return rg_gpu_settle(w->core, seqs, w->win->n_seg, st);
}

/* Fresh sequences begin with zero states. */
static rg_code zero_states(const run *w, rg_status *st) {
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

static rg_code check_flag(const run *w, rg_status *st) {
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

static void record_begin(const run *w, rg_gpu_rec *r) {
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

static uint32_t few_of_window(const run *w) {
    return w->win->T <= RG_GPU_ROWS_MAX ? few_of(w->core, w->core->n_few) : 0;
}

/* The last list of a window: logits of a short one, and whether all was finite. */
static void record_end(const run *w, rg_gpu_rec *r) {
    if (w->draft) {
        rg_gpu_rec_settle(r);
    } else if (w->win->T <= RG_GPU_ROWS_MAX) {
        record_head(r, 0, w->win->T, few_of_window(w));
    }
    rg_gpu_barrier(r->list); /* the flag */
    rg_gpu_copy(r->list, &w->g->readback, rg_at(w->g->out.flag) - w->g->readback.address,
                &w->g->scratch, rg_at(w->g->flag) - w->g->scratch.address, 4);
}

static void count(const run *w, const rg_gpu_list *list) {
    w->g->dispatches += rg_gpu_list_dispatches(list);
    w->g->barriers += rg_gpu_list_barriers(list);
}

/* ---- everything in memory ------------------------------------------------------------------- */

/* What a recorded window depends on beside the weights; 0 never. */
static uint64_t key_of(const run *w) {
    if (w->win->n_seg != 1 || w->win->T > RG_GPU_ROWS_MAX) return 0;
    const rg_segment *seg = &w->win->segs[0];
    uint64_t indexed = 0;
    for (uint32_t i = 0; i < w->core->hp->n_layer; i++) {
        const rg_layer_weights *l = &w->core->w.layers[i];
        if (!l->is_attn || !l->attn.ratio) continue;
        const uint32_t keep = w->core->hp->idx_budget / l->attn.ratio;
        indexed += (seg->pos0 + seg->n) / l->attn.ratio > keep;
    }
    return seg->seq->gpu->memory.address * 4096 + indexed * 16 + w->win->T;
}

static rg_gpu_whole *whole_of(const run *w) {
    const uint32_t T = w->win->T;
    return &w->g->whole[T <= RG_GPU_ROWS_MAX ? T - 1 : RG_GPU_ROWS_MAX];
}

static rg_code record_whole(const run *w, rg_status *st) {
    const rg_gpu_whole *whole = whole_of(w);
    rg_gpu_rec r = rec_of(w, whole->lists[0]);
    w->g->n_recorded++;
    rg_gpu_list_begin(r.list, w->core->opt.gpu_stamps);
    record_begin(w, &r);
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
    record_end(w, &r);
    return rg_gpu_list_end(r.list, st);
}

static rg_code have_whole(const run *w, rg_gpu_whole *whole, rg_status *st) {
    const uint64_t key = key_of(w);
    const uint32_t few = few_of_window(w);
    if (key && key == whole->key && few == whole->few) return RG_OK;
    whole->key = 0;
    RG_TRY(record_whole(w, st));
    whole->key = key;
    whole->few = few;
    return RG_OK;
}

static rg_code run_whole(const run *w, rg_status *st) {
    rg_gpu_whole *whole = whole_of(w);
    RG_TRY(have_whole(w, whole, st));
    w->g->dispatches = w->g->barriers = 0;
    count(w, whole->lists[0]);
    count(w, whole->lists[1]);
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
        rc = tell_ple(w, st);
        /* Also after a failure: the list must end before anything else can run. */
        RG_TRY(rg_gpu_signal(w->g->gpu, joined, st));
    }
    RG_TRY(rg_gpu_wait(w->g->gpu, done, ANSWER_NS, rc == RG_OK ? st : NULL));
    if (w->core->opt.gpu_stamps) {
        rg_gpu_add_times(w->g, whole->lists[0]);
        rg_gpu_add_times(w->g, whole->lists[1]);
    }
    return rc;
}

/* ---- turns ---------------------------------------------------------------------------------- */

static rg_gpu_list *step_list(const run *w, uint32_t step) {
    return step < RG_GPU_STEPS ? w->g->steps[step] : w->g->last;
}

/* Adds the times of the list's last run, which is over. */
static void add_step(const run *w, uint32_t step) {
    if (w->g->timed >> step & 1) rg_gpu_add_times(w->g, step_list(w, step));
    w->g->timed &= ~(1u << step);
}

static rg_gpu_rec begin_step(const run *w, uint32_t step) {
    add_step(w, step);
    const rg_gpu_rec r = rec_of(w, step_list(w, step));
    rg_gpu_list_begin(r.list, w->core->opt.gpu_stamps);
    return r;
}

/* `landed`: it reads what the transfers up to this value bring; 0: nothing of the kind. */
static rg_code submit_behind(const run *w, uint32_t step, uint64_t landed, uint64_t *value,
                             rg_status *st) {
    rg_gpu_list *list = step_list(w, step);
    if (w->core->opt.gpu_stamps) w->g->timed |= 1u << step;
    RG_TRY(rg_gpu_list_end(list, st));
    count(w, list);
    *value = rg_gpu_next(w->g->gpu);
    const rg_gpu_part part = {.list = list, .wait_transfer = landed, .signal = *value};
    return rg_gpu_submit(w->g->gpu, &part, 1, st);
}

static rg_code submit_step(const run *w, uint32_t step, uint64_t *value, rg_status *st) {
    return submit_behind(w, step, 0, value, st);
}

/* The device is past `value`: slots that it read until then are free. */
static rg_code pass(const run *w, uint64_t value, rg_status *st) {
    RG_TRY(rg_gpu_wait(w->g->gpu, value, ANSWER_NS, st));
    if (w->core->stream) rg_stream_retire(w->core->stream, value);
    return RG_OK;
}

/* The host's scratch of ids and pairs, from the device's choice or its logits. */
static void choose(const run *w, uint32_t layer) {
    rg_core *core = w->core;
    const rg_hparams *hp = core->hp;
    const size_t n = (size_t)w->win->T * hp->n_expert_used;
    memcpy(core->s.expert_ids, w->g->from.ids, n * sizeof *core->s.expert_ids);
    for (uint32_t i = 0; i < w->win->n_seg; i++) {
        const rg_segment *seg = &w->win->segs[i];
        for (uint32_t t = 0; seg->seq->moce && !w->draft && t < seg->n; t++) {
            const size_t row = seg->row0 + t;
            rg_moce_route(seg->seq->moce, core->ops, layer, t,
                          w->g->from.router + row * hp->n_expert,
                          core->s.expert_ids + row * hp->n_expert_used);
        }
    }
    memcpy(w->g->to.moe_ids, core->s.expert_ids, n * sizeof *core->s.expert_ids);
}

/* Slots of the experts of items[n] (or `active`) into the list of a phase; returns how many. */
static uint32_t list_phase(const run *w, uint32_t layer, uint32_t phase, const uint32_t *experts,
                           uint32_t n) {
    const rg_core *core = w->core;
    const rg_scratch *s = &core->s;
    const rg_hparams *hp = core->hp;
    const uint32_t n_ff = rg_gpu_layer(core, layer)->moe.n_ff;
    const bool tiles = w->win->T > RG_GPU_ROWS_MAX;
    rg_gpu_tile shape;
    (void)rg_gpu_expert_tile(core, layer, w->win->T, &shape);
    const uint32_t cols = 16 * shape.side;
    const uint32_t n_slot = w->win->T * hp->n_expert_used;
    const rg_gpu_rec r = rec_of(w, NULL);
    uint32_t *list = w->g->to.slots[phase], *tile = list + n_slot, *grid = w->g->to.grids[phase];
    uint32_t count_slot = 0, count_tile = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t e = experts[i], begin = s->expert_begin[e];
        const uint32_t slots = s->expert_begin[e + 1] - begin;
        memcpy(list + count_slot, s->pair_slot + begin, slots * sizeof *list);
        for (uint32_t at = 0; tiles && at < slots; at += cols, count_tile++) {
            uint32_t *t = tile + (size_t)4 * count_tile;
            t[0] = e;
            t[1] = count_slot + at;
            t[2] = slots - at < cols ? slots - at : cols;
            t[3] = 0;
        }
        count_slot += slots;
    }
    const uint32_t rows[2] = {n_ff, hp->n_embd};
    for (uint32_t k = 0; k < 2; k++) {
        grid[(size_t)3 * k] = tiles ? (rows[k] + RG_GPU_TILE_ROWS - 1) / RG_GPU_TILE_ROWS
                                    : rg_gpu_expert_groups(&r, layer, k);
        grid[3 * k + 1] = tiles ? count_tile : count_slot;
        grid[3 * k + 2] = 1;
    }
    return count_slot;
}

/* Also gives the copy that brings its bytes, if one does. */
static uint64_t tell_expert(const run *w, uint32_t layer, uint32_t expert) {
    rg_stream *stream = w->core->stream;
    const rg_moe_weights *m = &rg_gpu_layer(w->core, layer)->moe;
    const rg_expert_bytes b = rg_experts_at(w->core, m, layer, expert);
    w->g->to.experts[0][expert] = rg_gpu_expert_at(w->g, b.gate);
    w->g->to.experts[1][expert] = rg_gpu_expert_at(w->g, b.up);
    w->g->to.experts[2][expert] = rg_gpu_expert_at(w->g, b.down);
    return stream ? rg_stream_ticket(stream, rg_stream_item(stream, layer, expert)) : 0;
}

/* Runs experts[n], whose bytes are at hand, in a list of their own; `*value` is its end. */
static rg_code run_phase(const run *w, uint32_t layer, uint32_t phase, const uint32_t *experts,
                         uint32_t n, uint64_t *value, rg_status *st) {
    uint64_t landed = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t ticket = tell_expert(w, layer, experts[i]);
        landed = ticket > landed ? ticket : landed;
    }
    const uint32_t n_slot = list_phase(w, layer, phase, experts, n);
    rg_gpu_rec r = begin_step(w, 2 + phase);
    rg_gpu_rec_phase(&r, layer, phase, n, n_slot);
    return submit_behind(w, 2 + phase, landed, value, st);
}

/* Waits for the n_pending experts of the wave. */
static rg_code await_experts(const run *w, uint32_t layer, const rg_turn *turn, uint32_t *experts,
                             rg_status *st) {
    rg_stream *stream = w->core->stream;
    const uint32_t base = rg_stream_item(stream, layer, 0);
    rg_layer_times *times = &w->core->layer_times[layer];
    rg_experts_count_pending(w->core, &rg_gpu_layer(w->core, layer)->moe, layer, turn);
    times->phase1_ns += rg_core_lap(w->core);
    for (uint32_t i = 0; i < turn->n_pending; i++) {
        uint32_t item = 0;
        RG_TRY(rg_stream_wait(stream, &item, st));
        experts[i] = item - base;
    }
    times->wait_ns += rg_core_lap(w->core);
    return RG_OK;
}

static void guess(const run *w, uint32_t layer) {
    rg_core *core = w->core;
    const size_t n = (size_t)w->win->T * core->hp->n_expert;
    memcpy(core->s.ahead, w->g->from.ahead, n * sizeof *core->s.ahead);
    rg_experts_ahead(core, layer + 1, w->win->T);
}

/* The experts that are there, into experts[]. */
static uint32_t list_ready(const run *w, uint32_t layer, const rg_turn *turn, uint32_t *experts) {
    const uint32_t base = rg_stream_item(w->core->stream, layer, 0);
    for (uint32_t i = 0; i < turn->n_ready; i++)
        experts[i] = turn->ready[i] - base;
    return turn->n_ready;
}

/* The waves of a turn. `guesses`: where the step with the next router's logits ends, 0: nothing is
 * guessed; the device has the experts that are there before the host guesses. `*fence`: the end of
 * the last list that reads slots. */
static rg_code run_waves(const run *w, uint32_t layer, const rg_turn *turn, uint64_t guesses,
                         uint64_t *fence, rg_status *st) {
    rg_stream *stream = w->core->stream;
    uint32_t *experts = w->core->s.guess_count; /* [n_expert], free between guesses */
    const bool split = !w->core->opt.split_off;
    for (;;) {
        if (split && turn->n_ready)
            RG_TRY(run_phase(w, layer, 0, experts, list_ready(w, layer, turn, experts), fence, st));
        if (guesses) {
            RG_TRY(pass(w, guesses, st));
            guess(w, layer);
            guesses = 0;
        }
        uint32_t n = split ? 0 : list_ready(w, layer, turn, experts);
        RG_TRY(await_experts(w, layer, turn, experts + n, st));
        n += turn->n_pending;
        if (n) RG_TRY(run_phase(w, layer, 1, experts, n, fence, st));
        w->core->layer_times[layer].phase2_ns += rg_core_lap(w->core);
        if (!turn->n_left) return RG_OK;
        /* Lists and slots of the wave are used again. */
        RG_TRY(rg_gpu_wait(w->g->gpu, *fence, ANSWER_NS, st));
        rg_status wave = {0};
        if (!rg_stream_wave_next(stream, 0, &wave)) {
            return rg_fail(st, wave.code ? wave.code : RG_BUG, "%s", wave.message);
        }
    }
}

/* Experts that stream: begins the turn, computes, guesses, ends it. */
static rg_code run_streamed(const run *w, uint32_t layer, uint32_t n, uint64_t guesses,
                            rg_status *st) {
    rg_core *core = w->core;
    rg_scratch *s = &core->s;
    rg_experts_record(core, layer, w->win->T);
    const uint32_t base = rg_stream_item(core->stream, layer, 0);
    for (uint32_t i = 0; i < n; i++)
        s->items[i] = base + s->active[i];
    const rg_turn *turn = NULL;
    RG_TRY(
        rg_stream_begin(core->stream, layer, s->items, n, rg_experts_mode(w->win->T), &turn, st));
    core->layer_times[layer].before_router_ns += rg_core_lap(core);
    uint64_t fence = 0;
    const rg_code rc = run_waves(w, layer, turn, guesses, &fence, st);
    rg_stream_end(core->stream, fence);
    return rc;
}

static rg_code run_turn(const run *w, uint32_t layer, uint64_t routed, uint64_t guesses,
                        rg_status *st) {
    rg_core *core = w->core;
    RG_TRY(pass(w, routed, st));
    RG_TRY(check_flag(w, st));
    choose(w, layer);
    const uint32_t n = rg_moe_group(core, w->win->T);
    core->times.n_distinct += n;
    if (core->trace)
        rg_trace_turn(core->trace, layer, core->s.expert_ids, w->win->T,
                      rg_experts_mode(w->win->T));
    if (core->stream) return run_streamed(w, layer, n, guesses, st);
    core->layer_times[layer].before_router_ns += rg_core_lap(core);
    if (guesses) {
        RG_TRY(pass(w, guesses, st));
        guess(w, layer);
    }
    uint64_t end = 0;
    const rg_code rc = run_phase(w, layer, 0, core->s.active, n, &end, st);
    core->layer_times[layer].phase1_ns += rg_core_lap(core);
    return rc;
}

/* Router and what the host needs of it. */
static void record_route(const run *w, rg_gpu_rec *r, uint32_t layer) {
    const rg_hparams *hp = w->core->hp;
    rg_gpu_core *g = w->g;
    const size_t T = w->win->T;
    rg_gpu_rec_router(r, layer, true);
    rg_gpu_barrier(r->list); /* ids, flag */
    rg_gpu_copy(r->list, &g->readback, rg_at(g->out.ids) - g->readback.address, &g->scratch,
                rg_at(g->s.expert_ids) - g->scratch.address, T * hp->n_expert_used * 4);
    rg_gpu_copy(r->list, &g->readback, rg_at(g->out.router) - g->readback.address, &g->scratch,
                rg_at(g->s.router) - g->scratch.address, T * hp->n_expert * 4);
    rg_gpu_copy(r->list, &g->readback, rg_at(g->out.flag) - g->readback.address, &g->scratch,
                rg_at(g->flag) - g->scratch.address, 4);
}

/* `next`: the router to guess with; NULL: nothing is guessed. */
static void record_shared(const run *w, rg_gpu_rec *r, uint32_t layer, const rg_mat *next) {
    rg_gpu_core *g = w->g;
    rg_gpu_rec_shared(r, layer, next);
    if (!next) return;
    rg_gpu_copy(r->list, &g->readback, rg_at(g->out.ahead) - g->readback.address, &g->scratch,
                rg_at(g->s.ahead) - g->scratch.address,
                (size_t)w->win->T * w->core->hp->n_expert * 4);
}

static bool any_moce(const run *w) {
    for (uint32_t i = 0; i < w->win->n_seg && !w->draft; i++) {
        if (w->win->segs[i].seq->moce) return true;
    }
    return false;
}

/* What follows the experts of a layer, in front of the next one. */
static void record_after(const run *w, rg_gpu_rec *r, uint32_t layer) {
    if (any_moce(w)) rg_gpu_rec_router(r, layer, false); /* weights of the host's choice */
    rg_gpu_rec_combine(r, layer);
}

/* The step in front of a layer's turn: the end of the layer before it, then up to the router; and
 * the step beside it. Lists are recorded again only after the router that follows their last use
 * was waited for; the step beside may still run then, so there are two of it. */
static rg_code run_layer(const run *w, uint32_t layer, rg_status *st) {
    uint64_t routed = 0, shared = 0;
    const bool ple = rg_gpu_layer(w->core, layer)->has_ple;
    if (ple) RG_TRY(tell_ple(w, st));
    rg_gpu_rec r = begin_step(w, 0);
    if (layer == 0 || w->draft) {
        record_begin(w, &r);
    } else {
        record_after(w, &r, layer - 1);
    }
    if (ple) rg_gpu_rec_ple(&r, layer);
    rg_gpu_rec_mixer(&r, layer);
    record_route(w, &r, layer);
    RG_TRY(submit_step(w, 0, &routed, st));
    const uint32_t beside = layer % 2 ? 4 : 1;
    const rg_mat *next = rg_experts_guess_router(w->core, layer, w->win->T);
    r = begin_step(w, beside);
    record_shared(w, &r, layer, next);
    RG_TRY(submit_step(w, beside, &shared, st));
    return run_turn(w, layer, routed, next ? shared : 0, st);
}

/* Ends the window; also after a failure: what was handed over is done before its lists and slots
 * are used again. */
static rg_code end_turns(const run *w, bool failed, rg_status *st) {
    rg_gpu_rec r = begin_step(w, RG_GPU_STEPS);
    uint64_t last = 0;
    if (!failed) {
        record_after(w, &r, w->core->hp->n_layer - !w->draft);
        record_end(w, &r);
    }
    const rg_code rc = submit_step(w, RG_GPU_STEPS, &last, st);
    if (rc != RG_OK) {
        rg_gpu_drain(w->g->gpu); /* the lists before are not to run when they are used again */
        return rc;
    }
    RG_TRY(pass(w, last, st));
    for (uint32_t i = 0; i <= RG_GPU_STEPS; i++)
        add_step(w, i);
    return RG_OK;
}

/* Times of a layer are the host's: what the device still does behind the last list of a turn counts
 * as before the next router. */
static rg_code run_turns(const run *w, rg_status *st) {
    w->g->dispatches = w->g->barriers = 0;
    w->core->lap_ns = rg_now_ns();
    rg_code rc = RG_OK;
    for (uint32_t i = 0; rc == RG_OK && i < w->core->hp->n_layer; i++) {
        if (w->call->cancel && atomic_load_explicit(w->call->cancel, memory_order_relaxed)) {
            rc = rg_fail(st, RG_CANCELED, "canceled at layer %u", i);
        } else {
            rc = run_layer(w, i, st);
        }
    }
    rg_status ended = {0};
    const rg_code end = end_turns(w, rc != RG_OK, &ended);
    if (rc == RG_OK && end != RG_OK) return rg_fail(st, end, "%s", ended.message);
    return rc;
}

rg_code rg_gpu_draft_layer(const rg_window *win, rg_status *st) {
    const rg_eval_call call = {0};
    const run w = {
        .win = win, .call = &call, .core = win->core, .g = win->core->gpu, .draft = true};
    const uint64_t begin = rg_now_ns();
    tell_positions(&w);
    win->core->lap_ns = begin;
    rg_code rc = run_layer(&w, win->core->hp->n_layer, st);
    rg_status ended = {0};
    const rg_code end = end_turns(&w, rc != RG_OK, &ended);
    if (rc == RG_OK && end != RG_OK) rc = rg_fail(st, end, "%s", ended.message);
    w.g->windows_ns += rg_now_ns() - begin;
    RG_TRY(rc);
    return check_flag(&w, st);
}

/* ---- ahead of the first token --------------------------------------------------------------- */

/* Records a turn's lists and hands none of them over: that builds their kernels. */
static rg_code prewarm_turns(const run *w, rg_status *st) {
    rg_gpu_rec r = rec_of(w, w->g->last);
    rg_gpu_list_begin(r.list, false);
    record_begin(w, &r);
    for (uint32_t i = 0; i < w->core->hp->n_layer; i++) {
        if (w->core->w.layers[i].has_ple) rg_gpu_rec_ple(&r, i);
        rg_gpu_rec_mixer(&r, i);
        rg_gpu_rec_router(&r, i, true);
        rg_gpu_rec_router(&r, i, false);
        rg_gpu_rec_shared(&r, i, rg_experts_next_router(w->core, i));
        rg_gpu_rec_phase(&r, i, 0, 0, 0);
        rg_gpu_rec_combine(&r, i);
    }
    record_end(w, &r);
    return rg_gpu_list_end(r.list, st);
}

rg_code rg_gpu_record_rows(rg_seq *seq, uint32_t T, uint32_t pos0, rg_status *st) {
    rg_core *core = seq->core;
    const rg_segment seg = {.seq = seq, .n = T, .pos0 = pos0};
    const rg_window win = {.core = core, .segs = &seg, .n_seg = 1, .T = T};
    const run w = {.win = &win, .core = core, .g = core->gpu};
    if (T > core->chunk || T > seq->opt.n_ctx) return RG_OK;
    if (core->stream || core->trace) return prewarm_turns(&w, st);
    return have_whole(&w, whole_of(&w), st);
}

/* The window of a greedy step: the best logit alone comes back. */
static rg_code record_few(rg_seq *seq, rg_status *st) {
    const uint32_t n_few = seq->core->n_few;
    seq->core->n_few = 1;
    const rg_code rc = rg_gpu_record_rows(seq, 1, 0, st);
    seq->core->n_few = n_few;
    return rc;
}

/* Rows of the draft block behind pos0, and what its head gives: builds their kernels. */
static rg_code record_draft_rows(rg_seq *seq, uint32_t T, uint32_t pos0, rg_status *st) {
    rg_core *core = seq->core;
    const rg_segment seg = {.seq = seq, .n = T, .pos0 = pos0};
    const rg_window win = {.core = core, .segs = &seg, .n_seg = 1, .T = T};
    const run w = {.win = &win, .core = core, .g = core->gpu, .draft = true};
    const uint32_t layer = core->hp->n_layer;
    if (T > core->chunk || T > seq->opt.n_ctx) return RG_OK;
    rg_gpu_rec r = rec_of(&w, w.g->last);
    rg_gpu_list_begin(r.list, false);
    record_begin(&w, &r);
    rg_gpu_rec_mixer(&r, layer);
    rg_gpu_rec_router(&r, layer, true);
    rg_gpu_rec_shared(&r, layer, rg_experts_next_router(core, layer));
    rg_gpu_rec_phase(&r, layer, 0, 0, 0);
    rg_gpu_rec_combine(&r, layer);
    record_end(&w, &r);
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
        RG_TRY(rg_gpu_record_rows(seq, wide[i], 0, st));
    RG_TRY(record_few(seq, st));
    for (uint32_t T = 1; T <= decode_rows(seq, all) && T <= n_ctx; T++) {
        if (T == 3) continue;
        RG_TRY(rg_gpu_record_rows(seq, T, n_ctx - T, st)); /* blocks are selected there */
        RG_TRY(rg_gpu_record_rows(seq, T, 0, st));
    }
    return chunk <= n_ctx ? rg_gpu_record_rows(seq, chunk, n_ctx - chunk, st) : RG_OK;
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
    for (; n && row < RG_GPU_ROWS_MAX; row++, n--)
        g->few[row].n = 0;
}

static rg_code run_window(const rg_window *win, const rg_eval_call *call, rg_status *st) {
    rg_core *core = win->core;
    const run w = {.win = win, .call = call, .core = core, .g = core->gpu};
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
    if (win->T > RG_GPU_ROWS_MAX) forget_few(w.g, 0, RG_GPU_ROWS_MAX); /* trimmed behind it */
    RG_TRY(settle(&w, st));
    tell_positions(&w);
    RG_TRY(zero_states(&w, st));
    const bool turns = core->stream || core->trace || any_moce(&w);
    RG_TRY(turns ? run_turns(&w, st) : run_whole(&w, st));
    RG_TRY(check_flag(&w, st));
    if (win->T <= RG_GPU_ROWS_MAX) w.g->n_head_rows = win->T;
    w.g->head_few = few_of_window(&w);
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

/* A row of logits of which the few best are known, as the device found them. */
static rg_code give_few(rg_core *core, uint32_t row, uint32_t few, uint32_t to, rg_status *st) {
    rg_gpu_core *g = core->gpu;
    const uint32_t *best = g->from.best + (size_t)row * (1 + 2 * few);
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
        memcpy(&list->logits[list->n], &best[1 + few + list->n], sizeof *list->logits);
        logits[id] = list->logits[list->n];
    }
    return RG_OK;
}

static rg_code give_all(rg_core *core, uint32_t row, uint32_t n, uint32_t to, rg_status *st) {
    rg_gpu_core *g = core->gpu;
    const float *from = g->from.logits;
    float *logits = core->s.logits + (size_t)to * core->hp->n_vocab;
    if (row + n <= g->n_head_rows && !g->head_few) {
        from += (size_t)row * core->hp->n_vocab;
    } else {
        rg_gpu_rec r = {.g = g, .core = core, .list = g->head, .residual = g->s.residual};
        rg_gpu_list_begin(g->head, core->opt.gpu_stamps);
        record_head(&r, row, n, 0);
        RG_TRY(rg_gpu_list_end(g->head, st));
        RG_TRY(rg_gpu_run(g->gpu, g->head, st));
        rg_gpu_add_times(g, g->head);
    }
    memcpy(logits, from, (size_t)n * core->hp->n_vocab * sizeof *from);
    forget_few(g, to, n);
    return check_logits(core, logits, n, st);
}

static rg_code take_draft_logits(rg_core *core, rg_status *st) {
    rg_gpu_core *g = core->gpu;
    memcpy(core->s.logits, g->from.logits, core->hp->n_vocab * sizeof(float));
    forget_few(g, 0, 1);
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
    const rg_code rc = few ? give_few(core, 0, few, 0, st) : take_draft_logits(core, st);
    g->windows_ns += rg_now_ns() - begin;
    return rc;
}

const rg_few *rg_core_few(const rg_core *core, const float *logits) {
    const rg_gpu_core *g = core->gpu;
    for (uint32_t row = 0; g && row < RG_GPU_ROWS_MAX; row++) {
        if (logits == core->s.logits + (size_t)row * core->hp->n_vocab)
            return g->few[row].n ? &g->few[row] : NULL;
    }
    return NULL;
}

rg_code rg_gpu_head(rg_core *core, uint32_t row, uint32_t n, uint32_t to, rg_status *st) {
    const uint64_t begin = rg_now_ns();
    const rg_gpu_core *g = core->gpu;
    RG_ASSERT(n >= 1 && to + n <= RG_HEAD_ROWS);
    const bool few = core->n_few && g->head_few && row + n <= g->n_head_rows;
    rg_code rc = few ? RG_OK : give_all(core, row, n, to, st);
    for (uint32_t i = 0; i < n && few && rc == RG_OK; i++)
        rc = give_few(core, row + i, g->head_few, to + i, st);
    core->gpu->windows_ns += rg_now_ns() - begin;
    return rc;
}
