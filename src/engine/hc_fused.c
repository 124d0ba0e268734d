/* Hyper-connections in few phases. Each phase of the compute threads costs a hand-over, and while
 * one row is computed most steps between two products are too short to share (bench/results.tsv):
 *
 *   enter  the write that is due (with the combination of the experts), the norm, the rows as
 *          codes: by streams of a row. Threads that share a row make its y each for itself
 *   down   a product
 *   mix    the low rank rows (each thread for itself while they are few), the up product, the gates
 *          and the mix, the mixed rows as codes: by columns, so that the gates of all streams of a
 *          column meet where they were made and are never written out
 *
 * The operations on a value and their order are those of layer_hc.c and layer_moe.c.
 */
#include <math.h>

#include "engine/core.h"

/* Columns whose gates are made at once; of wide windows fewer, their gates must fit a cache. */
#define MIX_COLUMNS      256u
#define MIX_COLUMNS_WIDE 64u

/* ---- enter ---------------------------------------------------------------------------------- */

typedef struct enter_job {
    rg_core *core;
    const rg_hc_weights *w; /* NULL: only the write */
    const float *residual;
    uint32_t forms;
    atomic_bool *broken;
} enter_job;

static void enter_streams(void *arg, size_t begin, size_t end, int thread) {
    const enter_job *job = arg;
    const rg_core *core = job->core;
    const rg_hparams *hp = core->hp;
    const uint32_t E = hp->n_embd, H = hp->n_hc;
    const uint32_t norm = core->due.residual ? 1 : 0; /* slot, as run_streams announced it */
    const float *y = NULL;
    for (size_t i = begin; i < end; i++) { /* one stream of one row */
        const size_t at = i * E, t = i / H;
        if (core->due.residual) {
            if (!core->due.combine) {
                y = core->s.y + t * E;
            } else if (i == begin || i % H == 0) {
                float *own = core->threads[thread].row;
                rg_moe_combine_row(core, t, own);
                y = own;
            }
            core->ops->axpy(core->s.inject[i], y, core->due.residual + at, E);
            rg_timing_lap(core->timing, thread, 0);
        }
        if (!job->w) continue;
        const float mean = core->ops->rms_norm(job->residual + at, job->w->norm + i % H * E,
                                               core->s.normed + at, E, hp->rms_eps);
        if (!isfinite(mean)) atomic_store_explicit(job->broken, true, memory_order_relaxed);
        rg_timing_lap(core->timing, thread, norm);
        if (!job->forms) continue;
        rg_quantize_part(core, job->forms, core->s.normed, &core->s.act, 0, 0, at, E);
        rg_timing_lap(core->timing, thread, norm + 1);
    }
}

static void run_streams(enter_job *job, uint32_t T) {
    rg_core *core = job->core;
    rg_timing *p = core->timing;
    const uint64_t wide = sizeof(float) * T * core->hp->n_hc * core->hp->n_embd;
    rg_timing_part(p, RG_PART_HC);
    if (core->due.residual) rg_timing_expect(p, RG_KERNEL_WRITE, RG_TIMING_NO_TYPE, 2 * wide, 0);
    if (job->w) {
        rg_timing_expect(p, RG_KERNEL_NORM, RG_TIMING_NO_TYPE, 2 * wide, 0);
        if (job->forms) rg_timing_expect(p, RG_KERNEL_QUANTIZE, RG_TIMING_NO_TYPE, 0, 0);
    }
    rg_core_run(core, RG_KERNEL_NORM, (size_t)T * core->hp->n_hc, 1, enter_streams, job);
    core->due = (rg_due){0};
}

void rg_hc_settle(rg_core *core) {
    enter_job job = {.core = core};
    if (core->due.residual) run_streams(&job, core->due.T);
}

static uint32_t form_bit(const rg_core *core, const rg_mat *w) {
    return w->data ? 1u << rg_act_form_of(w->type, core->opt.kernels) : 0;
}

void rg_hc_enter(rg_core *core, const rg_hc_weights *w, const float *residual, uint32_t T,
                 rg_input *in, atomic_bool *broken) {
    const uint32_t E = core->hp->n_embd;
    enter_job job = {.core = core, .w = w, .residual = residual, .broken = broken};
    if (core->due.residual != residual || core->due.T != T) rg_hc_settle(core);
    job.forms = rg_forms_that_fit(form_bit(core, &w->down) | form_bit(core, &w->inject), E);
    run_streams(&job, T);
    for (int form = RG_ACT_Q32; form <= RG_ACT_Q256; form++)
        in->ready[form] = (job.forms >> form & 1u) != 0;
}

/* ---- mix ------------------------------------------------------------------------------------ */

typedef struct mix_job {
    rg_core *core;
    const rg_hc_weights *w;
    rg_act low; /* low rank rows for all threads */
    bool own;   /* each thread makes them for itself instead */
    uint32_t T;
    uint32_t grain; /* columns of a task */
    uint32_t forms; /* of the mixed rows */
} mix_job;

/* Activation of the low rank rows [begin, end) from s.low into `low`, and their codes. */
static void make_low(const rg_core *core, float *low, const rg_act_buffer *b, uint32_t form,
                     size_t begin, size_t end) {
    const uint32_t rank = core->hp->n_hc_rank;
    for (size_t t = begin; t < end; t++) {
        core->ops->silu_div(core->s.low + t * rank, low + t * rank, rank, (float)core->hp->n_hc);
        rg_quantize_part(core, form, low + t * rank, b, t, rank, 0, rank);
    }
}

/* Gates of columns [c, c + n) of all streams, for all rows: [T][H][n]; then the mix. */
static void mix_block(const mix_job *job, const rg_act *low, uint32_t c, uint32_t n, float *gates,
                      int thread) {
    const rg_core *core = job->core;
    const uint32_t E = core->hp->n_embd, H = core->hp->n_hc;
    void *tmp = core->threads[thread].mul;
    for (uint32_t s = 0; s < H; s++) {
        rg_mat part = job->w->up;
        part.data += ((size_t)s * E + c) * part.row_bytes;
        part.n_out = n;
        core->ops->mul(&part, 0, n, low, NULL, NULL, job->T, gates + (size_t)s * n, (size_t)H * n,
                       tmp);
    }
    rg_timing_lap(core->timing, thread, 0);
    for (uint32_t t = 0; t < job->T; t++) {
        float *u = core->s.u + (size_t)t * E;
        core->ops->hc_mix(gates + (size_t)t * H * n, n, core->s.normed + (size_t)t * H * E + c, E,
                          u + c, H, n);
        rg_quantize_part(core, job->forms, u, &core->s.act, t, E, c, n);
    }
    rg_timing_lap(core->timing, thread, 1);
}

static void mix_columns(void *arg, size_t begin, size_t end, int thread) {
    const mix_job *job = arg;
    rg_core *core = job->core;
    const rg_thread_scratch *own = &core->threads[thread];
    const uint32_t E = core->hp->n_embd;
    const size_t c0 = begin * job->grain, c1 = end * job->grain < E ? end * job->grain : E;
    rg_act low = job->low;
    if (job->own) {
        low = rg_act_in(&own->low_act, job->low.form, own->low, job->low.n_in);
        make_low(core, own->low, &own->low_act, 1u << low.form, 0, job->T);
        if (begin == 0 && job->w->inject.data) rg_hc_inject(core, 0, job->T);
        rg_timing_lap(core->timing, thread, 2);
    }
    /* A thread's share of s.mix is larger than its gates. */
    float *gates = core->s.mix + c0 * core->hp->n_hc * job->T;
    const uint32_t most = job->own ? MIX_COLUMNS : MIX_COLUMNS_WIDE;
    const size_t step = job->grain > most ? job->grain : most / job->grain * job->grain;
    for (size_t c = c0; c < c1; c += step) {
        const size_t n = c1 - c < step ? c1 - c : step;
        mix_block(job, &low, (uint32_t)c, (uint32_t)n, gates, thread);
    }
}

static void low_share(void *arg, size_t begin, size_t end, int thread) {
    const mix_job *job = arg;
    rg_core *core = job->core;
    (void)thread;
    make_low(core, core->s.low, &core->s.act, 1u << job->low.form, begin, end);
    if (job->w->inject.data) rg_hc_inject(core, (uint32_t)begin, (uint32_t)end);
}

/* Columns of a task: whole scale blocks where that leaves the threads work of equal size. */
static void cut_columns(mix_job *job) {
    const uint32_t E = job->core->hp->n_embd;
    const uint32_t threads = (uint32_t)rg_pool_threads(job->core->pool);
    static const uint32_t grains[] = {256, 32};
    for (size_t i = 0; i < RG_ARRAY_LEN(grains); i++) {
        const uint32_t blocks = E / grains[i];
        const uint32_t fit = rg_forms_that_fit(job->w->forms, grains[i]);
        if (!fit || E % grains[i] != 0) continue;
        if (blocks % threads != 0 && blocks < 8 * threads) continue;
        job->grain = grains[i];
        job->forms = fit;
        return;
    }
    job->grain = 16;
}

void rg_hc_mix_fused(rg_core *core, const rg_hc_weights *w, uint32_t T) {
    const uint32_t rank = core->hp->n_hc_rank, E = core->hp->n_embd;
    const rg_act_form form = rg_act_form_of(w->up.type, core->opt.kernels);
    mix_job job = {.core = core, .w = w, .T = T, .own = T <= RG_DECODE_ROWS};
    job.low = rg_act_in(&core->s.act, form, core->s.low, rank);
    if (!job.own) rg_core_run(core, RG_KERNEL_ACTIVATE, T, 1, low_share, &job);
    cut_columns(&job);
    /* Codes of the mixed rows would overwrite those of the low rank rows. */
    if (!job.own) job.forms &= ~(1u << form);
    rg_timing_expect_products(core->timing, &w->up, 1, T, form);
    rg_timing_expect(core->timing, RG_KERNEL_MIX, RG_TIMING_NO_TYPE,
                     2 * sizeof(float) * T * core->hp->n_hc * E, 0);
    rg_timing_expect(core->timing, RG_KERNEL_ACTIVATE, RG_TIMING_NO_TYPE, 0, 0);
    rg_core_run(core, RG_KERNEL_PRODUCT, (E + job.grain - 1) / job.grain, 1, mix_columns, &job);
    core->u_forms = job.forms;
}

/* ---- what follows --------------------------------------------------------------------------- */

static uint32_t forms_of(const rg_core *core, const rg_mat *const *mats, size_t n) {
    uint32_t forms = 0;
    for (size_t i = 0; i < n; i++)
        forms |= form_bit(core, mats[i]);
    return forms;
}

static void link_layer(const rg_core *core, rg_layer_weights *l) {
    const rg_gdn_weights *g = &l->gdn;
    const rg_attn_weights *a = &l->attn;
    const rg_moe_weights *m = &l->moe;
    const rg_mat *const gdn[] = {&g->qkv, &g->gate, &g->alpha, &g->beta};
    const rg_mat *const attn[] = {&a->q, &a->k, &a->v, &a->idx_q, &a->idx_k};
    const rg_mat *const moe[] = {&m->router, &m->shared_gate_inp, &m->shared_gate, &m->shared_up};
    l->hc_attn.forms = l->is_attn ? forms_of(core, attn, RG_ARRAY_LEN(attn))
                                  : forms_of(core, gdn, RG_ARRAY_LEN(gdn));
    /* Experts that stream have no data yet. */
    l->hc_ffn.forms = forms_of(core, moe, RG_ARRAY_LEN(moe)) |
                      1u << rg_act_form_of(m->gate.mat.type, core->opt.kernels) |
                      1u << rg_act_form_of(m->up.mat.type, core->opt.kernels);
}

void rg_hc_link(rg_core *core) {
    rg_weights *w = &core->w;
    for (uint32_t i = 0; i < core->hp->n_layer; i++)
        link_layer(core, &w->layers[i]);
    w->output_hc.forms = form_bit(core, &w->output);
    if (!core->hp->n_mtp) return;
    link_layer(core, &w->mtp.layer);
    w->mtp.head.forms = form_bit(core, &w->mtp.output);
}
