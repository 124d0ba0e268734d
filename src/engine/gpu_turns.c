/* Windows in turns: experts stream, or the host chooses them.
 *
 *     device: A combination of the layer before, mixer, router -> ids
 *     host:                          the stream's turn begins; tables and lists are written
 *     device: B shared expert, next router -> its logits
 *     device: C experts at hand
 *     host:                          guesses; waits for the reads; tables and lists are written
 *     device: D experts as they came
 *
 * What the host writes are tables in shared memory, so the lists are the same in every window:
 * those of short windows are recorded once (rg_gpu_pass_key says for which windows they hold). They
 * are handed over before the host knows what they will do: C waits for a value of the host's
 * timeline, and so does D. While the device computes C the host hands over D, where something is
 * still to come, and A, B and C of the next layer. So between the router's answer and the experts'
 * start there is no recording and no submission.
 *
 * C and D are handed over when their tables are written (`gated` is false) where they are timed,
 * whose sums want to know what they hold, and where slots are filled by transfers (gpu_arena.c),
 * for which the lists that read them wait on the device. So it is too for later waves of a turn.
 *
 * Slots are read by the device until its timeline passes the turn's fence: the stream refills them
 * only then.
 */
#include <string.h>

#include "engine/gpu_pass.h"

typedef enum step {
    STEP_ROUTER, /* A */
    STEP_BESIDE, /* B without a router to guess with */
    STEP_GUESS,  /* B */
    STEP_READY,  /* C */
    STEP_LATE,   /* D */
    STEP_COUNT
} step;

typedef struct kept_list {
    rg_gpu_list *list;
    bool recorded;
} kept_list;

/* Lists of windows of so many rows. */
struct rg_gpu_turns {
    kept_list *lists; /* [n_layer][STEP_COUNT], then the last one of the window */
    uint64_t key;     /* what is recorded; 0: nothing */
    uint32_t few;
};

/* Lists of a layer that the device has, and what the host owes them. */
typedef struct opened {
    const rg_mat *next;      /* the router to guess with; NULL: nothing is guessed */
    uint64_t told;           /* A starts at this value of the host's timeline; 0: at once */
    uint64_t routed, shared; /* ends of A and B on the device's */
    uint64_t go, done;       /* C: start on the host's, end on the device's; 0: not handed over */
} opened;

typedef struct turns {
    const rg_gpu_pass *w;
    rg_gpu_turns *kept; /* NULL: lists are recorded anew */
    bool gated;
    uint32_t end;    /* the layer behind the last one */
    opened open;     /* the layer whose turn comes */
    uint64_t handed; /* end of the last list that was handed over */
    /* Of the host's timeline: the first and the last value that lists wait for, which have no gaps;
     * the last one that it got. */
    uint64_t first_gate, gates, signaled;
    uint32_t n_recorded;
    rg_gpu_part parts[STEP_COUNT];
    uint32_t n_part;
} turns;

/* ---- recording ------------------------------------------------------------------------------ */

/* Router and what the host needs of it. */
static void record_route(const rg_gpu_pass *w, rg_gpu_rec *r, uint32_t layer) {
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
static void record_shared(const rg_gpu_pass *w, rg_gpu_rec *r, uint32_t layer, const rg_mat *next) {
    rg_gpu_core *g = w->g;
    rg_gpu_rec_shared(r, layer, next);
    if (!next) return;
    rg_gpu_copy(r->list, &g->readback, rg_at(g->out.ahead) - g->readback.address, &g->scratch,
                rg_at(g->s.ahead) - g->scratch.address,
                (size_t)w->win->T * w->core->hp->n_expert * 4);
}

/* What follows the experts of a layer, in front of the next one. */
static void record_after(const rg_gpu_pass *w, rg_gpu_rec *r, uint32_t layer) {
    if (rg_gpu_pass_moce(w)) rg_gpu_rec_router(r, layer, false); /* weights of the host's choice */
    rg_gpu_rec_combine(r, layer);
}

/* `phase`: of which list of slots; n_expert of them with n_slot slots, as far as that is known. */
static void record_step(const rg_gpu_pass *w, rg_gpu_rec *r, uint32_t layer, step s,
                        uint32_t n_expert, uint32_t n_slot) {
    if (s == STEP_READY || s == STEP_LATE) {
        rg_gpu_rec_phase(r, layer, s == STEP_LATE, n_expert, n_slot);
    } else if (s != STEP_ROUTER) {
        record_shared(w, r, layer, s == STEP_GUESS ? rg_experts_next_router(w->core, layer) : NULL);
    } else {
        if (layer == 0 || w->draft) {
            rg_gpu_pass_begin(w, r);
        } else {
            record_after(w, r, layer - 1);
        }
        if (rg_gpu_layer(w->core, layer)->has_ple) rg_gpu_rec_ple(r, layer);
        rg_gpu_rec_mixer(r, layer);
        record_route(w, r, layer);
    }
}

/* The last list of a window. */
static void record_last(const rg_gpu_pass *w, rg_gpu_rec *r) {
    record_after(w, r, w->core->hp->n_layer - !w->draft);
    rg_gpu_pass_end(w, r);
}

/* ---- lists ---------------------------------------------------------------------------------- */

/* Lists that are recorded anew are so only after the router that follows their last use was waited
 * for. B and C of the layer before may still run then: there are two of each. */
static uint32_t index_of(uint32_t layer, step s) {
    switch (s) {
    case STEP_ROUTER:
        return 0;
    case STEP_BESIDE:
    case STEP_GUESS:
        return 1 + layer % 2;
    case STEP_READY:
        return 3 + layer % 2;
    default:
        return 5;
    }
}

static rg_gpu_list *list_at(const rg_gpu_core *g, uint32_t index) {
    return index < RG_GPU_STEPS ? g->steps[index] : g->last;
}

/* Adds the times of the list's last run, which is over. */
static void add_times(rg_gpu_core *g, uint32_t index) {
    if (g->timed >> index & 1) rg_gpu_add_times(g, list_at(g, index));
    g->timed &= ~(1u << index);
}

static kept_list *kept_at(const turns *t, uint32_t layer, step s) {
    return &t->kept->lists[layer < t->end ? (size_t)layer * STEP_COUNT + s
                                          : (size_t)t->end * STEP_COUNT];
}

/* The list that is to be recorded for a step; the kept one if that holds it already. `layer` is
 * t->end for the last list. */
static rg_code take_list(turns *t, uint32_t layer, step s, rg_gpu_list **out, bool *holds,
                         rg_status *st) {
    rg_gpu_core *g = t->w->g;
    *holds = false;
    if (t->kept) {
        kept_list *k = kept_at(t, layer, s);
        if (!k->list) RG_TRY(rg_gpu_list_create(&k->list, g->gpu, st));
        *out = k->list;
        *holds = k->recorded;
        return RG_OK;
    }
    const uint32_t index = layer < t->end ? index_of(layer, s) : RG_GPU_STEPS;
    add_times(g, index);
    if (t->w->core->opt.gpu_stamps) g->timed |= 1u << index;
    *out = list_at(g, index);
    return RG_OK;
}

static rg_code have_list(turns *t, uint32_t layer, step s, uint32_t n_expert, uint32_t n_slot,
                         rg_gpu_list **out, rg_status *st) {
    bool holds = false;
    RG_TRY(take_list(t, layer, s, out, &holds, st));
    if (holds) return RG_OK;
    rg_gpu_rec r = rg_gpu_pass_rec(t->w, *out);
    rg_gpu_list_begin(r.list, t->w->core->opt.gpu_stamps);
    if (layer < t->end) {
        record_step(t->w, &r, layer, s, n_expert, n_slot);
    } else {
        record_last(t->w, &r);
    }
    RG_TRY(rg_gpu_list_end(r.list, st));
    t->n_recorded++;
    if (t->kept) kept_at(t, layer, s)->recorded = true;
    return RG_OK;
}

/* Of windows of w's rows; NULL: they are never the same. */
static rg_code have_kept(const rg_gpu_pass *w, rg_gpu_turns **out, rg_status *st) {
    const rg_hparams *hp = w->core->hp;
    const size_t n = (size_t)hp->n_layer * STEP_COUNT + 1;
    const uint64_t key = w->draft ? 0 : rg_gpu_pass_key(w);
    *out = NULL;
    if (!key || w->core->opt.gpu_stamps) return RG_OK;
    rg_gpu_turns **at = &w->g->turns[w->win->T - 1], *k = *at;
    if (!k) {
        k = *at = rg_alloc(1, sizeof *k, st);
        if (!k) return RG_NOMEM;
    }
    if (!k->lists) k->lists = rg_alloc(n, sizeof *k->lists, st);
    if (!k->lists) return RG_NOMEM;
    if (k->key != key || k->few != rg_gpu_pass_few(w)) {
        for (size_t i = 0; i < n; i++)
            k->lists[i].recorded = false;
    }
    k->key = key;
    k->few = rg_gpu_pass_few(w);
    *out = k;
    return RG_OK;
}

void rg_gpu_turns_forget(rg_gpu_core *g) {
    for (uint32_t i = 0; i < RG_GPU_ROWS_MAX; i++) {
        if (g->turns[i]) g->turns[i]->key = 0;
    }
}

void rg_gpu_turns_destroy(rg_gpu_core *g) {
    const size_t n = (size_t)g->core->hp->n_layer * STEP_COUNT + 1;
    for (uint32_t i = 0; i < RG_GPU_ROWS_MAX; i++) {
        rg_gpu_turns *k = g->turns[i];
        for (size_t j = 0; k && k->lists && j < n; j++)
            rg_gpu_list_destroy(k->lists[j].list);
        if (k) rg_free(k->lists);
        rg_free(k);
    }
}

/* ---- handing over --------------------------------------------------------------------------- */

static uint64_t new_gate(turns *t) {
    t->gates = rg_gpu_next_host(t->w->g->gpu);
    if (!t->first_gate) t->first_gate = t->gates;
    return t->gates;
}

static rg_code open_gate(turns *t, uint64_t gate, rg_status *st) {
    RG_TRY(rg_gpu_signal(t->w->g->gpu, gate, st));
    t->signaled = gate;
    return RG_OK;
}

/* The list of `part` is the step's, of n_expert experts in n_slot slots; it goes with the next
 * submission. */
static rg_code put_phase(turns *t, uint32_t layer, step s, uint32_t n_expert, uint32_t n_slot,
                         rg_gpu_part part, rg_status *st) {
    RG_ASSERT(t->n_part < RG_ARRAY_LEN(t->parts));
    RG_TRY(have_list(t, layer, s, n_expert, n_slot, &part.list, st));
    rg_gpu_pass_count(t->w, part.list);
    t->parts[t->n_part++] = part;
    return RG_OK;
}

static rg_code put(turns *t, uint32_t layer, step s, rg_gpu_part part, rg_status *st) {
    return put_phase(t, layer, s, 0, 0, part, st);
}

static rg_code submit(turns *t, rg_status *st) {
    const uint32_t n = t->n_part;
    t->n_part = 0;
    RG_TRY(rg_gpu_submit(t->w->g->gpu, t->parts, n, st));
    t->handed = t->parts[n - 1].signal;
    return RG_OK;
}

/* A, B and, gated, C of a layer. */
static rg_code put_layer(turns *t, uint32_t layer, rg_status *st) {
    const rg_gpu_pass *w = t->w;
    rg_gpu *gpu = w->g->gpu;
    opened *o = &t->open;
    *o = (opened){.next = rg_experts_guess_router(w->core, layer, w->win->T)};
    if (rg_gpu_layer(w->core, layer)->has_ple) o->told = new_gate(t);
    o->routed = rg_gpu_next(gpu);
    o->shared = rg_gpu_next(gpu);
    RG_TRY(
        put(t, layer, STEP_ROUTER, (rg_gpu_part){.wait_host = o->told, .signal = o->routed}, st));
    RG_TRY(
        put(t, layer, o->next ? STEP_GUESS : STEP_BESIDE, (rg_gpu_part){.signal = o->shared}, st));
    if (!t->gated) return RG_OK;
    o->go = new_gate(t);
    o->done = rg_gpu_next(gpu);
    return put(t, layer, STEP_READY, (rg_gpu_part){.wait_host = o->go, .signal = o->done}, st);
}

/* What follows the experts of a layer; with what waits to be handed over. */
static rg_code go_on(turns *t, uint32_t layer, rg_status *st) {
    if (layer + 1 < t->end) {
        RG_TRY(put_layer(t, layer + 1, st));
    } else {
        const uint64_t last = rg_gpu_next(t->w->g->gpu);
        RG_TRY(put(t, t->end, STEP_ROUTER, (rg_gpu_part){.signal = last}, st));
    }
    return submit(t, st);
}

/* The device is past `value`: slots that it read until then are free. */
static rg_code pass(const rg_gpu_pass *w, uint64_t value, rg_status *st) {
    RG_TRY(rg_gpu_wait(w->g->gpu, value, RG_GPU_ANSWER_NS, st));
    if (w->core->stream) rg_stream_retire(w->core->stream, value);
    return RG_OK;
}

/* ---- experts -------------------------------------------------------------------------------- */

/* The host's scratch of ids and pairs, from the device's choice or its logits. */
static void choose(const rg_gpu_pass *w, uint32_t layer) {
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
static uint32_t list_phase(const rg_gpu_pass *w, uint32_t layer, uint32_t phase,
                           const uint32_t *experts, uint32_t n) {
    const rg_core *core = w->core;
    const rg_scratch *s = &core->s;
    const rg_hparams *hp = core->hp;
    const uint32_t n_ff = rg_gpu_layer(core, layer)->moe.n_ff;
    const bool tiles = w->win->T > RG_GPU_ROWS_MAX;
    rg_gpu_tile shape;
    (void)rg_gpu_expert_tile(core, layer, w->win->T, &shape);
    const uint32_t cols = 16 * shape.side;
    const uint32_t n_slot = w->win->T * hp->n_expert_used;
    const rg_gpu_rec r = rg_gpu_pass_rec(w, NULL);
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
static uint64_t tell_expert(const rg_gpu_pass *w, uint32_t layer, uint32_t expert) {
    rg_stream *stream = w->core->stream;
    const rg_moe_weights *m = &rg_gpu_layer(w->core, layer)->moe;
    const rg_expert_bytes b = rg_experts_at(w->core, m, layer, expert);
    w->g->to.experts[0][expert] = rg_gpu_expert_at(w->g, b.gate);
    w->g->to.experts[1][expert] = rg_gpu_expert_at(w->g, b.up);
    w->g->to.experts[2][expert] = rg_gpu_expert_at(w->g, b.down);
    return stream ? rg_stream_ticket(stream, rg_stream_item(stream, layer, expert)) : 0;
}

/* Experts whose bytes are at hand: their tables are written, then C or D runs: behind the gate that
 * it waits at, or handed over now (gate 0). `*end`: of the list, told where there is a gate. */
static rg_code run_experts(turns *t, uint32_t layer, step s, const uint32_t *experts, uint32_t n,
                           uint64_t gate, uint64_t *end, rg_status *st) {
    const rg_gpu_pass *w = t->w;
    uint64_t landed = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t ticket = tell_expert(w, layer, experts[i]);
        landed = ticket > landed ? ticket : landed;
    }
    const uint32_t n_slot = list_phase(w, layer, s == STEP_LATE, experts, n);
    if (gate) return open_gate(t, gate, st);
    *end = rg_gpu_next(w->g->gpu);
    const rg_gpu_part part = {.wait_transfer = landed, .signal = *end};
    RG_TRY(put_phase(t, layer, s, n, n_slot, part, st));
    return submit(t, st);
}

/* Waits for the n_pending experts of the wave. */
static rg_code await_experts(const rg_gpu_pass *w, uint32_t layer, const rg_turn *turn,
                             uint32_t *experts, rg_status *st) {
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

static void guess(const rg_gpu_pass *w, uint32_t layer) {
    rg_core *core = w->core;
    const size_t n = (size_t)w->win->T * core->hp->n_expert;
    memcpy(core->s.ahead, w->g->from.ahead, n * sizeof *core->s.ahead);
    rg_experts_ahead(core, layer + 1, w->win->T);
}

/* The experts that are there, into experts[]. */
static uint32_t list_ready(const rg_gpu_pass *w, uint32_t layer, const rg_turn *turn,
                           uint32_t *experts) {
    const uint32_t base = rg_stream_item(w->core->stream, layer, 0);
    for (uint32_t i = 0; i < turn->n_ready; i++)
        experts[i] = turn->ready[i] - base;
    return turn->n_ready;
}

/* A turn on its way. */
typedef struct waves {
    const rg_turn *turn;
    opened open;
    uint64_t late_go, late_done; /* D as it was handed over; 0: it is not */
    uint64_t fence;              /* end of the last list that reads slots */
    bool gone_on;                /* the next layer is handed over */
} waves;

/* The experts at hand; a list that waits at its gate is let go in any case. */
static rg_code run_ready(turns *t, uint32_t layer, waves *v, uint32_t *experts, uint32_t n,
                         rg_status *st) {
    const uint64_t gate = v->open.go;
    v->open.go = 0;
    if (!n && !gate) return RG_OK;
    if (gate) v->fence = v->open.done;
    return run_experts(t, layer, STEP_READY, experts, n, gate, &v->fence, st);
}

static rg_code run_late(turns *t, uint32_t layer, waves *v, const uint32_t *experts, uint32_t n,
                        rg_status *st) {
    const uint64_t gate = v->late_go;
    v->late_go = 0;
    if (!n) return RG_OK;
    if (gate) v->fence = v->late_done;
    return run_experts(t, layer, STEP_LATE, experts, n, gate, &v->fence, st);
}

/* The last wave is known: what follows goes to the device while it computes. */
static rg_code hand_ahead(turns *t, uint32_t layer, waves *v, bool late, rg_status *st) {
    if (late) {
        v->late_go = new_gate(t);
        v->late_done = rg_gpu_next(t->w->g->gpu);
        const rg_gpu_part part = {.wait_host = v->late_go, .signal = v->late_done};
        RG_TRY(put(t, layer, STEP_LATE, part, st));
    }
    v->gone_on = true;
    return go_on(t, layer, st);
}

static rg_code run_guess(const turns *t, uint32_t layer, waves *v, rg_status *st) {
    if (!v->open.next) return RG_OK;
    v->open.next = NULL;
    RG_TRY(pass(t->w, v->open.shared, st));
    guess(t->w, layer);
    return RG_OK;
}

/* One wave: the device has the experts that are there before the host guesses, unless the turn is
 * not split. */
static rg_code run_wave(turns *t, uint32_t layer, waves *v, rg_status *st) {
    rg_core *core = t->w->core;
    uint32_t *experts = core->s.guess_count; /* [n_expert], free between guesses */
    const bool split = !core->opt.split_off;
    uint32_t n = 0;
    if (split) {
        n = list_ready(t->w, layer, v->turn, experts);
        RG_TRY(run_ready(t, layer, v, experts, n, st));
    }
    /* Not where the experts of a later wave have yet to be handed over: they come first. */
    if (t->gated && !v->turn->n_left && (split || v->open.go))
        RG_TRY(hand_ahead(t, layer, v, split && v->turn->n_pending, st));
    RG_TRY(run_guess(t, layer, v, st));
    n = split ? 0 : list_ready(t->w, layer, v->turn, experts);
    RG_TRY(await_experts(t->w, layer, v->turn, experts + n, st));
    n += v->turn->n_pending;
    RG_TRY(split ? run_late(t, layer, v, experts, n, st) : run_ready(t, layer, v, experts, n, st));
    core->layer_times[layer].phase2_ns += rg_core_lap(core);
    return RG_OK;
}

static rg_code run_waves(turns *t, uint32_t layer, waves *v, rg_status *st) {
    rg_stream *stream = t->w->core->stream;
    for (;;) {
        RG_TRY(run_wave(t, layer, v, st));
        if (!v->turn->n_left) break;
        /* Lists and slots of the wave are used again. */
        RG_TRY(rg_gpu_wait(t->w->g->gpu, v->fence, RG_GPU_ANSWER_NS, st));
        rg_status wave = {0};
        if (!rg_stream_wave_next(stream, 0, &wave)) {
            return rg_fail(st, wave.code ? wave.code : RG_BUG, "%s", wave.message);
        }
    }
    return v->gone_on ? RG_OK : go_on(t, layer, st);
}

/* Experts that stream: begins the turn, computes, guesses, ends it. */
static rg_code run_streamed(turns *t, uint32_t layer, uint32_t n, rg_status *st) {
    rg_core *core = t->w->core;
    const uint32_t T = t->w->win->T;
    rg_scratch *s = &core->s;
    rg_experts_record(core, layer, T);
    const uint32_t base = rg_stream_item(core->stream, layer, 0);
    for (uint32_t i = 0; i < n; i++)
        s->items[i] = base + s->active[i];
    waves v = {.open = t->open};
    RG_TRY(rg_stream_begin(core->stream, layer, s->items, n, rg_experts_mode(T), &v.turn, st));
    core->layer_times[layer].before_router_ns += rg_core_lap(core);
    const rg_code rc = run_waves(t, layer, &v, st);
    rg_stream_end(core->stream, v.fence);
    return rc;
}

/* All experts are in memory. */
static rg_code run_resident(turns *t, uint32_t layer, uint32_t n, rg_status *st) {
    rg_core *core = t->w->core;
    waves v = {.open = t->open};
    core->layer_times[layer].before_router_ns += rg_core_lap(core);
    RG_TRY(run_ready(t, layer, &v, core->s.active, n, st));
    RG_TRY(go_on(t, layer, st));
    RG_TRY(run_guess(t, layer, &v, st));
    core->layer_times[layer].phase1_ns += rg_core_lap(core);
    return RG_OK;
}

static rg_code run_turn(turns *t, uint32_t layer, rg_status *st) {
    const rg_gpu_pass *w = t->w;
    rg_core *core = w->core;
    if (t->open.told) {
        RG_TRY(rg_gpu_pass_tell_ple(w, st));
        RG_TRY(open_gate(t, t->open.told, st));
    }
    RG_TRY(pass(w, t->open.routed, st));
    RG_TRY(rg_gpu_pass_check(w, st));
    choose(w, layer);
    const uint32_t n = rg_moe_group(core, w->win->T);
    core->times.n_distinct += n;
    if (core->trace)
        rg_trace_turn(core->trace, layer, core->s.expert_ids, w->win->T,
                      rg_experts_mode(w->win->T));
    return core->stream ? run_streamed(t, layer, n, st) : run_resident(t, layer, n, st);
}

/* ---- windows -------------------------------------------------------------------------------- */

static rg_code begin(turns *t, uint32_t layer, rg_status *st) {
    const rg_gpu_pass *w = t->w;
    RG_TRY(have_kept(w, &t->kept, st));
    t->gated = !w->core->opt.gpu_stamps && !w->g->landing;
    RG_TRY(put_layer(t, layer, st));
    return submit(t, st);
}

/* Lists that wait for the host run, without experts: what they make is thrown away. Gate by gate:
 * validation layers lose count when one is passed over. */
static rg_code release(turns *t, rg_status *st) {
    for (uint32_t i = 0; i < 2; i++)
        memset(t->w->g->to.grids[i], 0, 6 * sizeof(uint32_t));
    if (!t->signaled) t->signaled = t->first_gate - 1;
    while (t->gates > t->signaled)
        RG_TRY(open_gate(t, t->signaled + 1, st));
    return RG_OK;
}

/* Ends the window; also after a failure: what was handed over is done before its lists and slots
 * are used again. */
static rg_code finish(turns *t, bool failed, rg_status *st) {
    rg_gpu_core *g = t->w->g;
    if (failed) {
        g->timed = 0;
        const rg_code rc = release(t, st);
        rg_gpu_drain(g->gpu); /* also what was handed over before the first turn */
        if (rc != RG_OK) return rc;
    }
    if (t->handed) RG_TRY(pass(t->w, t->handed, st));
    for (uint32_t i = 0; i <= RG_GPU_STEPS; i++)
        add_times(g, i);
    return RG_OK;
}

/* Times of a layer are the host's: what the device still does behind the last list of a turn counts
 * as before the next router. */
static rg_code run_layers(turns *t, uint32_t first, rg_status *st) {
    const rg_gpu_pass *w = t->w;
    w->core->lap_ns = rg_now_ns();
    rg_code rc = begin(t, first, st);
    for (uint32_t i = first; rc == RG_OK && i < t->end; i++) {
        if (w->call->cancel && atomic_load_explicit(w->call->cancel, memory_order_relaxed)) {
            rc = rg_fail(st, RG_CANCELED, "canceled at layer %u", i);
        } else {
            rc = run_turn(t, i, st);
        }
    }
    w->g->n_recorded += t->n_recorded > 0;
    rg_status ended = {0};
    const rg_code end = finish(t, rc != RG_OK, &ended);
    if (rc == RG_OK && end != RG_OK) return rg_fail(st, end, "%s", ended.message);
    return rc;
}

rg_code rg_gpu_turns_run(const rg_gpu_pass *w, rg_status *st) {
    turns t = {.w = w, .end = w->core->hp->n_layer};
    w->g->dispatches = w->g->barriers = 0;
    return run_layers(&t, 0, st);
}

rg_code rg_gpu_draft_layer(const rg_window *win, rg_status *st) {
    const rg_eval_call call = {0};
    const rg_gpu_pass w = {
        .win = win, .call = &call, .core = win->core, .g = win->core->gpu, .draft = true};
    const uint32_t layer = win->core->hp->n_layer;
    turns t = {.w = &w, .end = layer + 1};
    const uint64_t begin_ns = rg_now_ns();
    rg_gpu_pass_tell(&w);
    const rg_code rc = run_layers(&t, layer, st);
    w.g->windows_ns += rg_now_ns() - begin_ns;
    RG_TRY(rc);
    return rg_gpu_pass_check(&w, st);
}

/* ---- ahead of the first token --------------------------------------------------------------- */

/* One list with the steps of all layers, and what a choice of the host asks for: their kernels. */
static rg_code record_at_once(const rg_gpu_pass *w, rg_status *st) {
    rg_gpu_rec r = rg_gpu_pass_rec(w, w->g->last);
    rg_gpu_list_begin(r.list, false);
    for (uint32_t i = 0; i < w->core->hp->n_layer; i++) {
        record_step(w, &r, i, STEP_ROUTER, 0, 0);
        rg_gpu_rec_router(&r, i, false);
        record_step(w, &r, i, STEP_GUESS, 0, 0);
        record_step(w, &r, i, STEP_READY, 0, 0);
    }
    record_last(w, &r);
    return rg_gpu_list_end(r.list, st);
}

rg_code rg_gpu_turns_record(const rg_gpu_pass *w, rg_status *st) {
    turns t = {.w = w, .end = w->core->hp->n_layer};
    rg_gpu_list *list = NULL;
    RG_TRY(record_at_once(w, st));
    RG_TRY(have_kept(w, &t.kept, st));
    if (!t.kept) return RG_OK;
    for (uint32_t i = 0; i < t.end; i++) {
        for (uint32_t s = 0; s < STEP_COUNT; s++) {
            if (s == STEP_GUESS && !rg_experts_next_router(w->core, i)) continue;
            RG_TRY(have_list(&t, i, s, 0, 0, &list, st));
        }
    }
    RG_TRY(have_list(&t, t.end, STEP_ROUTER, 0, 0, &list, st));
    w->g->n_recorded += t.n_recorded > 0;
    return RG_OK;
}
