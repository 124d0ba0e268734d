/* Mixture of experts (spec 4.6): router, experts grouped by expert, shared expert, combination in
 * router order (charter clause 6).
 */
#include <math.h>
#include <string.h>

#include "engine/core.h"

#define ROW_BLOCK 32u /* output rows of one task */

typedef struct moe_job {
    rg_core *core;
    const rg_moe_weights *w;
    uint32_t T;
    rg_act u; /* rows of the mixed input in the form of gate and up */
    rg_act u_up;
    rg_act hidden; /* pairs, in the form of down */
    uint32_t n_active;
    uint32_t blocks; /* tasks per expert */
    atomic_bool *broken;
} moe_job;

/* ---- router
 * -------------------------------------------------------------------------------------- */

/* Top experts by logit and their softmax weights, normalised over the chosen ones. */
static void route_rows(void *arg, size_t begin, size_t end, int thread) {
    const moe_job *job = arg;
    rg_core *core = job->core;
    const rg_hparams *hp = core->hp;
    const uint32_t K = hp->n_expert_used;
    (void)thread;
    for (size_t t = begin; t < end; t++) {
        const float *logits = core->s.router + t * hp->n_expert;
        uint32_t *ids = core->s.expert_ids + t * K;
        float *w = core->s.expert_w + t * K;
        rg_top_k(logits, hp->n_expert, K, ids);
        core->ops->route_weights(logits, ids, K, hp->expert_scale, w);
        /* All of them: an expert whose logit is NaN would just never be chosen. */
        bool finite = isfinite(w[K - 1]) && isfinite(w[0]);
        for (uint32_t e = 0; e < hp->n_expert; e++)
            finite = finite && isfinite(logits[e]);
        if (!finite) atomic_store_explicit(job->broken, true, memory_order_relaxed);
    }
}

/* Pairs sorted by expert, rows ascending within one (a counting sort), and the experts in use. */
static uint32_t group_pairs(rg_core *core, uint32_t T) {
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

/* ---- experts
 * ------------------------------------------------------------------------------------- */

static rg_mat expert_at(const rg_expert_mat *m, uint32_t e) {
    rg_mat mat = m->mat;
    mat.data += e * m->stride;
    return mat;
}

/* Gate, up and activation of some rows of one expert, for all its pairs. */
static void hidden_tasks(void *arg, size_t begin, size_t end, int thread) {
    const moe_job *job = arg;
    rg_core *core = job->core;
    rg_scratch *s = &core->s;
    const uint32_t n_ff = job->w->n_ff;
    void *tmp = core->threads[thread].mul;
    for (size_t i = begin; i < end; i++) {
        const uint32_t e = s->active[i / job->blocks];
        const uint32_t r0 = (uint32_t)(i % job->blocks) * ROW_BLOCK;
        const uint32_t r1 = r0 + ROW_BLOCK < n_ff ? r0 + ROW_BLOCK : n_ff;
        const uint32_t first = s->expert_begin[e], n = s->expert_begin[e + 1] - first;
        const rg_mat gate = expert_at(&job->w->gate, e), up = expert_at(&job->w->up, e);
        core->ops->mul(&gate, r0, r1, &job->u, s->pair_row + first, s->pair_slot + first, n,
                       s->gate, n_ff, tmp);
        core->ops->mul(&up, r0, r1, &job->u_up, s->pair_row + first, s->pair_slot + first, n, s->up,
                       n_ff, tmp);
        for (uint32_t j = 0; j < n; j++) {
            const size_t at = (size_t)s->pair_slot[first + j] * n_ff + r0;
            core->ops->silu_mul(s->gate + at, s->up + at, s->gate + at, r1 - r0);
        }
    }
}

static void down_tasks(void *arg, size_t begin, size_t end, int thread) {
    const moe_job *job = arg;
    rg_core *core = job->core;
    rg_scratch *s = &core->s;
    const uint32_t E = core->hp->n_embd;
    for (size_t i = begin; i < end; i++) {
        const uint32_t e = s->active[i / job->blocks];
        const uint32_t r0 = (uint32_t)(i % job->blocks) * ROW_BLOCK;
        const uint32_t r1 = r0 + ROW_BLOCK < E ? r0 + ROW_BLOCK : E;
        const uint32_t first = s->expert_begin[e], n = s->expert_begin[e + 1] - first;
        const rg_mat down = expert_at(&job->w->down, e);
        core->ops->mul(&down, r0, r1, &job->hidden, s->pair_slot + first, s->pair_slot + first, n,
                       s->expert_out, E, core->threads[thread].mul);
    }
}

static void run_experts(moe_job *job, rg_input *u) {
    rg_core *core = job->core;
    const rg_hparams *hp = core->hp;
    const uint32_t n_ff = job->w->n_ff;
    job->u = rg_input_as(core, u, job->w->gate.mat.type);
    job->u_up = rg_input_as(core, u, job->w->up.mat.type);
    job->blocks = (n_ff + ROW_BLOCK - 1) / ROW_BLOCK;
    rg_pool_run(core->pool, (size_t)job->n_active * job->blocks, 1, hidden_tasks, job);
    rg_input hidden;
    rg_input_set(&hidden, core->s.gate, job->T * hp->n_expert_used, n_ff, &core->s.act_hidden);
    job->hidden = rg_input_as(core, &hidden, job->w->down.mat.type);
    job->blocks = (hp->n_embd + ROW_BLOCK - 1) / ROW_BLOCK;
    rg_pool_run(core->pool, (size_t)job->n_active * job->blocks, 1, down_tasks, job);
}

/* ---- shared expert and combination
 * ----------------------------------------------------------------- */

static void shared_rows(void *arg, size_t begin, size_t end, int thread) {
    const moe_job *job = arg;
    rg_scratch *s = &job->core->s;
    const uint32_t n = job->core->hp->n_ff_shared;
    (void)thread;
    for (size_t t = begin; t < end; t++) {
        float *h = s->shared_hidden + t * n;
        job->core->ops->silu_mul(h, s->shared_up + t * n, h, n);
        job->core->ops->sigmoid(s->shared_sigma + t, s->shared_sigma + t, 1);
    }
}

static void run_shared(moe_job *job, rg_input *u) {
    rg_core *core = job->core;
    rg_scratch *s = &core->s;
    const rg_product products[4] = {{&job->w->shared_gate_inp, s->shared_sigma},
                                    {&job->w->shared_gate, s->shared_hidden},
                                    {&job->w->shared_up, s->shared_up},
                                    {&job->w->router, s->router}};
    rg_core_mul(core, u, products, 4);
    rg_pool_run(core->pool, job->T, 1, shared_rows, job);
    rg_input hidden;
    rg_input_set(&hidden, s->shared_hidden, job->T, core->hp->n_ff_shared, &s->act_hidden);
    rg_core_mul(core, &hidden, &(rg_product){&job->w->shared_down, s->shared_out}, 1);
}

static void combine_rows(void *arg, size_t begin, size_t end, int thread) {
    const moe_job *job = arg;
    rg_core *core = job->core;
    const rg_scratch *s = &core->s;
    const uint32_t E = core->hp->n_embd, K = core->hp->n_expert_used;
    (void)thread;
    for (size_t t = begin; t < end; t++) {
        float *y = s->y + t * E;
        memset(y, 0, E * sizeof *y);
        for (uint32_t k = 0; k < K; k++) {
            core->ops->axpy(s->expert_w[t * K + k], s->expert_out + (t * K + k) * E, y, E);
        }
        core->ops->axpy(s->shared_sigma[t], s->shared_out + t * E, y, E);
    }
}

/* ---- taps
 * ---------------------------------------------------------------------------------------- */

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

rg_code rg_layer_moe(const rg_window *win, const rg_moe_weights *w, uint32_t layer, rg_status *st) {
    rg_core *core = win->core;
    atomic_bool broken = false;
    moe_job job = {.core = core, .w = w, .T = win->T, .broken = &broken};
    rg_input u;
    rg_input_set(&u, core->s.u, win->T, core->hp->n_embd, &core->s.act);
    run_shared(&job, &u);
    rg_pool_run(core->pool, win->T, 1, route_rows, &job);
    if (atomic_load_explicit(&broken, memory_order_relaxed)) {
        return rg_fail(st, RG_FORMAT, "the router of layer %u gives values that are not finite",
                       layer);
    }
    if (rg_tapped(core)) RG_TRY(tap_routes(win, layer, st));
    job.n_active = group_pairs(core, win->T);
    run_experts(&job, &u);
    rg_pool_run(core->pool, win->T, 1, combine_rows, &job);
    return rg_tapped(core) ? tap_outputs(win, w, layer, st) : RG_OK;
}
