/* Mixture of experts (spec 4.6): router, experts grouped by expert, shared expert, combination in
 * router order (charter clause 6).
 */
#include <math.h>
#include <string.h>

#include "engine/core.h"

#define ROW_BLOCK 64u /* output rows of one task: those of a tile of the wide products */

typedef struct moe_job {
    rg_core *core;
    const rg_window *win;
    const rg_moe_weights *w;
    rg_layer_times *times;
    uint32_t layer, T;
    rg_act u; /* rows of the mixed input in the form of gate and up */
    rg_act u_up;
    rg_act hidden;      /* pairs, in the form of down */
    uint32_t rows;      /* output rows of a task */
    uint32_t blocks;    /* tasks of an expert */
    uint32_t n_batch;   /* experts computed together; in the down product the shared one follows */
    uint32_t forms;     /* bits 1 << rg_act_form: codes that the task makes of its hidden rows */
    bool shared_due;    /* the shared expert is computed with the next experts */
    atomic_bool broken; /* a router value is not finite */
} moe_job;

/* ---- router --------------------------------------------------------------------------------- */

/* Chooses the experts of row t: the best logits, or as the row's request has it. */
static void select_experts(const moe_job *job, uint32_t t, const float *logits, uint32_t *ids) {
    const rg_hparams *hp = job->core->hp;
    const rg_window *win = job->win;
    for (uint32_t i = 0; i < win->n_seg && job->layer < hp->n_layer; i++) {
        const rg_segment *seg = &win->segs[i];
        if (!seg->seq->moce || t < seg->row0 || t >= seg->row0 + seg->n) continue;
        rg_moce_route(seg->seq->moce, job->core->ops, job->layer, t - seg->row0, logits, ids);
        return;
    }
    rg_top_k(logits, hp->n_expert, hp->n_expert_used, ids);
}

/* Top experts by logit and their softmax weights, normalised over the chosen ones. */
static void route_rows(void *arg, size_t begin, size_t end, int thread) {
    moe_job *job = arg;
    rg_core *core = job->core;
    const rg_hparams *hp = core->hp;
    const uint32_t K = hp->n_expert_used;
    (void)thread;
    for (size_t t = begin; t < end; t++) {
        const float *logits = core->s.router + t * hp->n_expert;
        uint32_t *ids = core->s.expert_ids + t * K;
        float *w = core->s.expert_w + t * K;
        select_experts(job, (uint32_t)t, logits, ids);
        core->ops->route_weights(logits, ids, K, hp->expert_scale, w);
        /* All of them: an expert whose logit is NaN would just never be chosen. */
        bool finite = isfinite(w[K - 1]) && isfinite(w[0]);
        for (uint32_t e = 0; e < hp->n_expert; e++)
            finite = finite && isfinite(logits[e]);
        if (!finite) atomic_store_explicit(&job->broken, true, memory_order_relaxed);
    }
}

/* Pairs sorted by expert, rows ascending within one (a counting sort), and the experts in use. */
uint32_t rg_moe_group(rg_core *core, uint32_t T) {
    const rg_hparams *hp = core->hp;
    rg_scratch *s = &core->s;
    const uint32_t n = T * hp->n_expert_used;
    memset(s->expert_begin, 0, ((size_t)hp->n_expert + 1) * sizeof *s->expert_begin);
    for (uint32_t i = 0; i < n; i++)
        s->expert_begin[s->expert_ids[i] + 1]++;
    uint32_t n_active = 0;
    for (uint32_t e = 0; e < hp->n_expert; e++) {
        if (s->expert_begin[e + 1]) s->active[n_active++] = e;
        s->expert_begin[e + 1] += s->expert_begin[e];
    }
    for (uint32_t i = 0; i < n; i++) { /* begin[e] moves to the end of e ... */
        const uint32_t at = s->expert_begin[s->expert_ids[i]]++;
        s->pair_slot[at] = i;
        s->pair_row[at] = i / hp->n_expert_used;
    }
    for (uint32_t e = hp->n_expert; e > 0; e--)
        s->expert_begin[e] = s->expert_begin[e - 1];
    s->expert_begin[0] = 0; /* ... and back */
    return n_active;
}

/* ---- experts -------------------------------------------------------------------------------- */

/* Pairs of expert e: [first, first + n) of the sorted lists. */
static uint32_t pairs_of(const rg_scratch *s, uint32_t e, uint32_t *first) {
    *first = s->expert_begin[e];
    return s->expert_begin[e + 1] - s->expert_begin[e];
}

static rg_mat with_data(const rg_expert_mat *m, const uint8_t *data) {
    rg_mat mat = m->mat;
    mat.data = data;
    return mat;
}

/* Activation of the shared expert's row t and its gate; with codes where they are due. */
static void shared_row(const moe_job *job, size_t t) {
    const rg_core *core = job->core;
    const rg_scratch *s = &core->s;
    const uint32_t n = core->hp->n_ff_shared;
    float *h = s->shared_hidden + t * n;
    core->ops->silu_mul(h, s->shared_up + t * n, h, n);
    core->ops->sigmoid(s->shared_sigma + t, s->shared_sigma + t, 1);
    if (!job->shared_due) return;
    const rg_act_form form = rg_act_form_of(job->w->shared_down.type, core->opt.kernels);
    rg_quantize_part(core, 1u << form, h, &s->act_shared, t, n, 0, n);
}

static void shared_rows(void *arg, size_t begin, size_t end, int thread) {
    (void)thread;
    for (size_t t = begin; t < end; t++)
        shared_row(arg, t);
}

/* Whether the shared expert's rows are few enough to go with the first task of the experts. */
static bool shared_rides(const moe_job *job) {
    return job->shared_due && job->n_batch && job->T <= RG_DECODE_ROWS;
}

/* Gate, up and activation of some rows of one expert, for all its pairs. */
static void hidden_tasks(void *arg, size_t begin, size_t end, int thread) {
    const moe_job *job = arg;
    rg_core *core = job->core;
    rg_scratch *s = &core->s;
    const uint32_t n_ff = job->w->n_ff;
    void *tmp = core->threads[thread].mul;
    if (begin == 0 && shared_rides(job)) {
        shared_rows(arg, 0, job->T, thread);
        rg_timing_lap(core->timing, thread, 2);
    }
    for (size_t i = begin; i < end; i++) {
        const rg_expert_bytes *e = &s->batch[i / job->blocks];
        const uint32_t r0 = (uint32_t)(i % job->blocks) * job->rows;
        const uint32_t r1 = r0 + job->rows < n_ff ? r0 + job->rows : n_ff;
        uint32_t first = 0;
        const uint32_t n = pairs_of(s, e->expert, &first);
        const rg_mat gate = with_data(&job->w->gate, e->gate);
        const rg_mat up = with_data(&job->w->up, e->up);
        core->ops->mul(&gate, r0, r1, &job->u, s->pair_row + first, s->pair_slot + first, n,
                       s->gate, n_ff, tmp);
        rg_timing_lap(core->timing, thread, 0);
        core->ops->mul(&up, r0, r1, &job->u_up, s->pair_row + first, s->pair_slot + first, n, s->up,
                       n_ff, tmp);
        rg_timing_lap(core->timing, thread, 1);
        for (uint32_t j = 0; j < n; j++) {
            const size_t slot = s->pair_slot[first + j];
            float *h = s->gate + slot * n_ff;
            core->ops->silu_mul(h + r0, s->up + slot * n_ff + r0, h + r0, r1 - r0);
            rg_quantize_part(core, job->forms, h, &s->act_hidden, slot, n_ff, r0, r1 - r0);
        }
        rg_timing_lap(core->timing, thread, 2);
    }
}

/* Hidden rows of the batch in the form of down. */
static void quantize_tasks(void *arg, size_t begin, size_t end, int thread) {
    const moe_job *job = arg;
    const rg_scratch *s = &job->core->s;
    const size_t n_ff = job->w->n_ff;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        uint32_t first = 0;
        const uint32_t n = pairs_of(s, s->batch[i].expert, &first);
        for (uint32_t j = 0; j < n; j++) {
            const size_t slot = s->pair_slot[first + j];
            rg_quantize_part(job->core, 1u << job->hidden.form, s->gate + slot * n_ff,
                             &s->act_hidden, slot, n_ff, 0, job->w->n_ff);
        }
    }
}

/* Rows [r0, r1) of the shared expert's down product. */
static void shared_down(const moe_job *job, uint32_t r0, uint32_t r1, void *tmp) {
    const rg_core *core = job->core;
    const rg_scratch *s = &core->s;
    const rg_mat *w = &job->w->shared_down;
    const rg_act_buffer *b = &s->act_shared;
    const rg_act_form form = rg_act_form_of(w->type, core->opt.kernels);
    const rg_act act = rg_act_in(b, form, s->shared_hidden, core->hp->n_ff_shared);
    core->ops->mul(w, r0, r1, &act, NULL, NULL, job->T, s->shared_out, core->hp->n_embd, tmp);
}

static void down_tasks(void *arg, size_t begin, size_t end, int thread) {
    const moe_job *job = arg;
    rg_core *core = job->core;
    rg_scratch *s = &core->s;
    const uint32_t E = core->hp->n_embd;
    for (size_t i = begin; i < end; i++) {
        const rg_expert_bytes *e = &s->batch[i / job->blocks];
        const uint32_t r0 = (uint32_t)(i % job->blocks) * job->rows;
        const uint32_t r1 = r0 + job->rows < E ? r0 + job->rows : E;
        if (i / job->blocks == job->n_batch) {
            rg_timing_lap(core->timing, thread, 0);
            shared_down(job, r0, r1, core->threads[thread].mul);
            rg_timing_lap(core->timing, thread, 1);
            continue;
        }
        uint32_t first = 0;
        const uint32_t n = pairs_of(s, e->expert, &first);
        const rg_mat down = with_data(&job->w->down, e->down);
        core->ops->mul(&down, r0, r1, &job->hidden, s->pair_slot + first, s->pair_slot + first, n,
                       s->expert_out, E, core->threads[thread].mul);
    }
}

static void prepare_experts(moe_job *job, rg_input *u) {
    rg_core *core = job->core;
    const rg_act_form form = rg_act_form_of(job->w->down.mat.type, core->opt.kernels);
    const rg_act_buffer *b = &core->s.act_hidden;
    job->u = rg_input_as(core, u, job->w->gate.mat.type);
    job->u_up = rg_input_as(core, u, job->w->up.mat.type);
    job->hidden = rg_act_in(b, form, core->s.gate, job->w->n_ff);
}

/* Collects what the n experts of s->batch were multiplied with. */
static void see_batch(const moe_job *job, uint32_t n) {
    const rg_core *core = job->core;
    const rg_scratch *s = &core->s;
    const rg_moe_weights *w = job->w;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t e = s->batch[i].expert, E = core->hp->n_embd;
        uint32_t first = 0;
        const uint32_t k = pairs_of(s, e, &first);
        const uint32_t *rows = s->pair_row + first, *slots = s->pair_slot + first;
        rg_importance_see(core->importance, &w->gate.mat, e, s->u, E, rows, k);
        rg_importance_see(core->importance, &w->up.mat, e, s->u, E, rows, k);
        rg_importance_see(core->importance, &w->down.mat, e, s->gate, w->n_ff, slots, k);
    }
}

static void cut_tasks(moe_job *job, uint32_t n_out, uint32_t rows) {
    job->rows = rows;
    job->blocks = (n_out + rows - 1) / rows;
}

/* What the timing is told of the n experts of s->batch. */
static uint32_t batch_pairs(const moe_job *job, uint32_t n) {
    uint32_t pairs = 0, first = 0;
    for (uint32_t i = 0; i < n; i++)
        pairs += pairs_of(&job->core->s, job->core->s.batch[i].expert, &first);
    return pairs;
}

static void expect_hidden(const moe_job *job, uint32_t n) {
    rg_timing *p = job->core->timing;
    if (!p) return;
    const uint32_t pairs = batch_pairs(job, n);
    rg_timing_part(p, RG_PART_EXPERTS);
    rg_timing_expect_products(p, &job->w->gate.mat, n, pairs, job->u.form);
    rg_timing_expect_products(p, &job->w->up.mat, n, pairs, job->u_up.form);
    rg_timing_expect(p, RG_KERNEL_ACTIVATE, RG_TIMING_NO_TYPE,
                     (uint64_t)pairs * job->w->n_ff * 3 * sizeof(float), 0);
}

static void expect_down(const moe_job *job, uint32_t n) {
    if (!job->core->timing) return;
    const rg_mat *shared = &job->w->shared_down;
    rg_timing_expect_products(job->core->timing, &job->w->down.mat, n, batch_pairs(job, n),
                              job->hidden.form);
    if (!job->shared_due) return;
    rg_timing_expect_products(job->core->timing, shared, 1, job->T,
                              rg_act_form_of(shared->type, job->core->opt.kernels));
}

/* Computes the n experts of s->batch, whose bytes are at hand, for all their pairs; and the shared
 * one when it is due. */
static void run_batch(moe_job *job, uint32_t n) {
    rg_core *core = job->core;
    if (!n && !job->shared_due) return;
    const rg_act_form form = job->hidden.form;
    job->n_batch = n;
    job->forms = rg_fused(core, RG_FUSE_EXPERTS) ? 1u << form : 0;
    cut_tasks(job, job->w->n_ff, job->forms && form == RG_ACT_Q256 ? 256 : ROW_BLOCK);
    if (job->shared_due && !shared_rides(job)) {
        rg_core_run(core, RG_KERNEL_ACTIVATE, job->T, 1, shared_rows, job);
    }
    expect_hidden(job, n);
    rg_core_run(core, RG_KERNEL_PRODUCT, (size_t)n * job->blocks, 1, hidden_tasks, job);
    if (!job->forms && form != RG_ACT_F32)
        rg_core_run(core, RG_KERNEL_QUANTIZE, n, 1, quantize_tasks, job);
    cut_tasks(job, core->hp->n_embd, ROW_BLOCK);
    expect_down(job, n);
    const size_t parts = n + (job->shared_due ? 1u : 0u);
    rg_core_run(core, RG_KERNEL_PRODUCT, parts * job->blocks, 1, down_tasks, job);
    job->shared_due = false;
    if (core->importance) see_batch(job, n);
}

static void add_to_batch(const moe_job *job, uint32_t at, uint32_t expert) {
    job->core->s.batch[at] = rg_experts_at(job->core, job->w, job->layer, expert);
}

/* The experts of a wave that are still on their way: in order of arrival, those that have come
 * meanwhile together. With splitting off, all of them at once, behind the ready ones. */
static rg_code run_pending(moe_job *job, const rg_turn *turn, uint32_t n_batch, uint64_t *wait_ns,
                           rg_status *st) {
    rg_core *core = job->core;
    rg_stream *stream = core->stream;
    const uint32_t base = rg_stream_item(stream, job->layer, 0);
    for (uint32_t i = 0; i < turn->n_pending; i++) {
        uint32_t item = 0;
        const uint64_t begin = rg_now_ns();
        const rg_code rc = rg_stream_wait(stream, &item, st);
        *wait_ns += rg_now_ns() - begin;
        rg_timing_end(core->timing, RG_KERNEL_WAIT, begin);
        RG_TRY(rc);
        add_to_batch(job, n_batch++, item - base);
        const bool last = i + 1 == turn->n_pending;
        if (!last && (core->opt.split_off || rg_stream_arrived(stream))) continue;
        run_batch(job, n_batch);
        n_batch = 0;
    }
    run_batch(job, n_batch);
    return RG_OK;
}

static rg_code run_waves(moe_job *job, const rg_turn *turn, rg_status *st) {
    rg_core *core = job->core;
    const uint32_t base = rg_stream_item(core->stream, job->layer, 0);
    for (;;) {
        for (uint32_t i = 0; i < turn->n_ready; i++)
            add_to_batch(job, i, turn->ready[i] - base);
        uint32_t n_batch = turn->n_ready;
        if (!core->opt.split_off) {
            run_batch(job, n_batch);
            n_batch = 0;
        }
        rg_experts_count_pending(core, job->w, job->layer, turn);
        job->times->phase1_ns += rg_core_lap(core);
        uint64_t wait_ns = 0;
        const rg_code rc = run_pending(job, turn, n_batch, &wait_ns, st);
        job->times->wait_ns += wait_ns;
        job->times->phase2_ns += rg_core_lap(core) - wait_ns;
        RG_TRY(rc);
        if (!turn->n_left) return RG_OK;
        rg_status wave = {0};
        if (!rg_stream_wave_next(core->stream, 0, &wave)) {
            return rg_fail(st, wave.code ? wave.code : RG_BUG, "%s", wave.message);
        }
    }
}

/* ---- shared expert and combination ---------------------------------------------------------- */

/* Products of the mixed input with everything but the experts: shared expert, the router unless it
 * has been applied, and the next layer's router to guess with. */
static void run_shared(moe_job *job, rg_input *u, const rg_mat *router, const rg_mat *next) {
    rg_core *core = job->core;
    rg_scratch *s = &core->s;
    rg_product products[RG_PRODUCTS_MAX] = {{&job->w->shared_gate_inp, s->shared_sigma},
                                            {&job->w->shared_gate, s->shared_hidden},
                                            {&job->w->shared_up, s->shared_up}};
    uint32_t n = 3;
    if (router) products[n++] = (rg_product){router, s->router};
    if (next) products[n++] = (rg_product){next, s->ahead};
    rg_core_mul(core, u, products, n);
}

static void finish_shared(moe_job *job) {
    rg_core *core = job->core;
    rg_scratch *s = &core->s;
    job->shared_due = rg_fused(core, RG_FUSE_EXPERTS);
    if (job->shared_due) return;
    rg_core_run(core, RG_KERNEL_ACTIVATE, job->T, 1, shared_rows, job);
    rg_input hidden;
    rg_input_set(&hidden, s->shared_hidden, job->T, core->hp->n_ff_shared, &s->act_hidden);
    rg_core_mul(core, &hidden, &(rg_product){&job->w->shared_down, s->shared_out}, 1);
}

void rg_moe_combine_row(const rg_core *core, size_t t, float *y) {
    const rg_scratch *s = &core->s;
    const uint32_t E = core->hp->n_embd, K = core->hp->n_expert_used;
    memset(y, 0, E * sizeof *y);
    for (uint32_t k = 0; k < K; k++)
        core->ops->axpy(s->expert_w[t * K + k], s->expert_out + (t * K + k) * E, y, E);
    core->ops->axpy(s->shared_sigma[t], s->shared_out + t * E, y, E);
}

static void combine_rows(void *arg, size_t begin, size_t end, int thread) {
    const rg_core *core = ((const moe_job *)arg)->core;
    (void)thread;
    for (size_t t = begin; t < end; t++)
        rg_moe_combine_row(core, t, core->s.y + t * core->hp->n_embd);
}

/* ---- taps ----------------------------------------------------------------------------------- */

static rg_code tap_routes(const rg_window *win, uint32_t layer, rg_status *st) {
    const rg_scratch *s = &win->core->s;
    const rg_hparams *hp = win->core->hp;
    const uint32_t K = hp->n_expert_used;
    RG_TRY(rg_window_tap(win, "router_logits", layer, hp->n_expert, s->router, st));
    /* Ids as floats: exact, and one element type for every dump. The gate buffer is free here. */
    for (size_t i = 0; i < (size_t)win->T * K; i++)
        s->gate[i] = (float)s->expert_ids[i];
    RG_TRY(rg_window_tap(win, "router_ids", layer, K, s->gate, st));
    return rg_window_tap(win, "router_weights", layer, K, s->expert_w, st);
}

static rg_code tap_outputs(const rg_window *win, const rg_moe_weights *w, uint32_t layer,
                           rg_status *st) {
    const rg_scratch *s = &win->core->s;
    const uint32_t K = win->core->hp->n_expert_used;
    RG_TRY(rg_window_tap(win, "expert_hidden", layer, K * w->n_ff, s->gate, st));
    RG_TRY(rg_window_tap(win, "expert_out", layer, K * win->core->hp->n_embd, s->expert_out, st));
    return rg_window_tap(win, "shared_gate", layer, 1, s->shared_sigma, st);
}

/* ---- the half layer ------------------------------------------------------------------------- */

/* Routes, checks and groups the rows; *n experts are in use. */
/* For whoever watches: routing never reads it. */
static void count_uses(rg_core *core, uint32_t layer, uint32_t n) {
    uint32_t *uses = core->expert_uses + (size_t)layer * core->hp->n_expert;
    const uint32_t *begin = core->s.expert_begin;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t e = core->s.active[i];
        uses[e] += begin[e + 1] - begin[e];
    }
}

static rg_code route(moe_job *job, const rg_window *win, uint32_t *n, rg_status *st) {
    rg_core *core = job->core;
    rg_core_run(core, RG_KERNEL_ROUTE, job->T, 1, route_rows, job);
    if (atomic_load_explicit(&job->broken, memory_order_relaxed)) {
        return rg_fail(st, RG_FORMAT, "the router of layer %u gives values that are not finite",
                       job->layer);
    }
    if (rg_tapped(core)) RG_TRY(tap_routes(win, job->layer, st));
    const uint64_t begin = rg_timing_begin(core->timing);
    *n = rg_moe_group(core, job->T);
    rg_timing_end(core->timing, RG_KERNEL_PLAN, begin);
    core->times.n_distinct += *n;
    count_uses(core, job->layer, *n);
    if (core->trace) {
        rg_trace_turn(core->trace, job->layer, core->s.expert_ids, job->T, rg_experts_mode(job->T));
    }
    return RG_OK;
}

/* All experts in memory. */
static rg_code run_resident(moe_job *job, const rg_window *win, rg_input *u, rg_status *st) {
    uint32_t n = 0;
    const rg_mat *next = rg_experts_next_router(job->core, job->layer); /* for a trace */
    run_shared(job, u, &job->w->router, next);
    RG_TRY(route(job, win, &n, st));
    job->times->before_router_ns += rg_core_lap(job->core);
    if (next) rg_experts_ahead(job->core, job->layer + 1, job->T);
    finish_shared(job);
    prepare_experts(job, u);
    for (uint32_t i = 0; i < n; i++)
        add_to_batch(job, i, job->core->s.active[i]);
    run_batch(job, n);
    job->times->phase1_ns += rg_core_lap(job->core);
    return RG_OK;
}

/* A turn of the stream: reads are asked for before anything else is computed, and what is there is
 * computed while they run. */
static rg_code run_streamed(moe_job *job, const rg_window *win, rg_input *u, rg_status *st) {
    rg_core *core = job->core;
    rg_scratch *s = &core->s;
    uint32_t n = 0;
    rg_core_mul(core, u, &(rg_product){&job->w->router, s->router}, 1);
    const uint64_t begin = rg_now_ns();
    RG_TRY(route(job, win, &n, st));
    rg_experts_record(core, job->layer, job->T);
    const uint64_t planning = rg_timing_begin(core->timing);
    const uint32_t base = rg_stream_item(core->stream, job->layer, 0);
    for (uint32_t i = 0; i < n; i++)
        s->items[i] = base + s->active[i];
    const rg_turn *turn = NULL;
    RG_TRY(
        rg_stream_begin(core->stream, job->layer, s->items, n, rg_experts_mode(job->T), &turn, st));
    rg_timing_end(core->timing, RG_KERNEL_PLAN, planning);
    core->times.plan_ns += rg_now_ns() - begin;
    job->times->before_router_ns += rg_core_lap(core);
    const rg_mat *next = rg_experts_guess_router(core, job->layer, job->T);
    run_shared(job, u, NULL, next);
    if (next) rg_experts_ahead(core, job->layer + 1, job->T);
    finish_shared(job);
    prepare_experts(job, u);
    rg_timing_part(core->timing, RG_PART_EXPERTS);
    const rg_code rc = run_waves(job, turn, st);
    rg_stream_end(core->stream, 0);
    return rc;
}

rg_code rg_layer_moe(const rg_window *win, const rg_moe_weights *w, uint32_t layer, rg_status *st) {
    rg_core *core = win->core;
    moe_job job = {.core = core,
                   .win = win,
                   .w = w,
                   .times = &core->layer_times[layer],
                   .layer = layer,
                   .T = win->T};
    rg_timing_part(core->timing, RG_PART_ROUTER);
    rg_input u;
    rg_input_mixed(core, &u, win->T);
    RG_TRY(core->stream ? run_streamed(&job, win, &u, st) : run_resident(&job, win, &u, st));
    core->due.combine = rg_fused(core, RG_FUSE_WRITE);
    if (!core->due.combine) {
        rg_timing_expect(
            core->timing, RG_KERNEL_COMBINE, RG_TIMING_NO_TYPE,
            (uint64_t)win->T * (core->hp->n_expert_used + 2) * core->hp->n_embd * sizeof(float), 0);
        rg_core_run(core, RG_KERNEL_COMBINE, win->T, 1, combine_rows, &job);
    }
    job.times->phase2_ns += rg_core_lap(core);
    return rg_tapped(core) ? tap_outputs(win, w, layer, st) : RG_OK;
}
