/* Gated delta net (spec 4.2): projections, causal convolution, delta rule, gated norm. */
#include <math.h>
#include <string.h>

#include "engine/core.h"

typedef struct gdn_job {
    rg_core *core;
    const rg_gdn_weights *w;
    const rg_segment *seg;
    rg_layer_state *state;
    const rg_window *win; /* of the fused form */
    uint32_t layer;
    uint32_t forms; /* bits 1 << rg_act_form: codes of the gated outputs */
} gdn_job;

static uint32_t n_channel(const rg_hparams *hp) {
    return (uint32_t)rg_gdn_channels(hp);
}

/* Inputs of the convolution for row t of the segment from channel c on, oldest first; NULL before
 * the first token. */
static void find_taps(const gdn_job *job, uint32_t t, size_t c, const float *taps[]) {
    const rg_hparams *hp = job->core->hp;
    const uint32_t n_tap = hp->ssm_conv;
    const size_t n = n_channel(hp);
    const float *rows = job->core->s.qkv + job->seg->row0 * n;
    for (uint32_t k = 0; k < n_tap; k++) {
        const uint32_t back = n_tap - 1 - k;
        if (back > job->seg->pos0 + t) {
            taps[k] = NULL;
        } else if (back > t) {
            taps[k] = job->state->conv + (n_tap - 1 - (back - t)) * n + c;
        } else {
            taps[k] = rows + (t - back) * n + c;
        }
    }
}

/* Convolution, then the norms of q and k and the decay of each head. */
static void conv_rows(void *arg, size_t begin, size_t end, int thread) {
    const gdn_job *job = arg;
    rg_core *core = job->core;
    const rg_hparams *hp = core->hp;
    const rg_ops *ops = core->ops;
    const uint32_t D = hp->ssm_head_dim, Hk = hp->n_k_head, Hv = hp->n_v_head;
    const uint32_t n = n_channel(hp);
    const float scale = 1.0f / sqrtf((float)D);
    (void)thread;
    for (size_t t = begin; t < end; t++) {
        const size_t row = job->seg->row0 + t;
        const float *taps[RG_CONV_MAX];
        float *c = core->s.conv + row * n;
        find_taps(job, (uint32_t)t, 0, taps);
        ops->conv_silu(job->w->conv, taps, hp->ssm_conv, c, n);
        for (uint32_t h = 0; h < Hk; h++) {
            float *q = c + (size_t)h * D, *k = q + (size_t)Hk * D;
            ops->l2_norm(q, q, D, 1e-6f, scale);
            ops->l2_norm(k, k, D, 1e-6f, 1.0f);
        }
        ops->gdn_decay(core->s.alpha + row * Hv, job->w->dt, job->w->a, core->s.decay + row * Hv,
                       Hv);
        ops->sigmoid(core->s.beta + row * Hv, core->s.beta + row * Hv, Hv);
    }
}

/* Rows that stay go into the state of the sequence; drafts go into a copy, which is forgotten. */
static void head_steps(void *arg, size_t begin, size_t end, int thread) {
    const gdn_job *job = arg;
    rg_core *core = job->core;
    const rg_hparams *hp = core->hp;
    const uint32_t D = hp->ssm_head_dim, Hk = hp->n_k_head, Hv = hp->n_v_head;
    const uint32_t n_draft = job->seg->n_draft, n_firm = job->seg->n - n_draft;
    const size_t n = n_channel(hp);
    for (size_t h = begin; h < end; h++) {
        const size_t key = h % Hk; /* tiled order of the file */
        float *S = job->state->S + h * D * D;
        if (job->seg->seq->n_owed) rg_journal_replay_head(job->seg->seq, job->state, h, thread);
        for (uint32_t part = 0; part < (n_draft ? 2u : 1u); part++) {
            const size_t row = job->seg->row0 + (part ? n_firm : 0);
            const float *c = core->s.conv + row * n;
            if (part) S = memcpy(core->threads[thread].state, S, (size_t)D * D * sizeof *S);
            core->ops->gdn_steps(
                S, D, c + key * D, c + (Hk + key) * D, n, c + (2 * (size_t)Hk + h) * D, n,
                core->s.decay + row * Hv + h, core->s.beta + row * Hv + h, Hv,
                core->s.gdn_o + row * Hv * D + h * D, (size_t)Hv * D, part ? n_draft : n_firm);
        }
    }
}

/* A state is read and written once a window, each row passes over it twice: 2 D^2 products a row
 * for the memory and the answer, D^2 for the change. */
static void expect_steps(const gdn_job *job) {
    const rg_hparams *hp = job->core->hp;
    const uint64_t cells = (uint64_t)hp->n_v_head * hp->ssm_head_dim * hp->ssm_head_dim;
    rg_timing_expect(job->core->timing, RG_KERNEL_DELTA, RG_TIMING_NO_TYPE,
                     2 * cells * sizeof(float), 3 * cells * job->seg->n);
}

static void gate_rows(void *arg, size_t begin, size_t end, int thread) {
    const gdn_job *job = arg;
    rg_core *core = job->core;
    const uint32_t D = core->hp->ssm_head_dim;
    (void)thread;
    for (size_t i = begin; i < end; i++) { /* one head of one row */
        float *o = core->s.gdn_o + i * D;
        core->ops->rms_norm(o, job->w->norm, o, D, core->hp->rms_eps);
        core->ops->sigmoid_mul(o, core->s.z + i * D, o, D);
    }
}

/* The last n_tap - 1 inputs become the history of the next window; drafts wait in the journal. */
static void keep_history(const gdn_job *job) {
    const size_t n = n_channel(job->core->hp);
    rg_history_push(job->state->conv, job->core->hp->ssm_conv - 1, n,
                    job->core->s.qkv + job->seg->row0 * n, job->seg->n - job->seg->n_draft);
    if (job->seg->n_draft) rg_journal_keep_gdn(job->core, job->seg, job->state);
}

/* ---- fused: everything between the products, by key heads ----------------------------------- */

/* Convolution of channels [c, c + D) for all rows of the segment; then their history moves on. */
static void conv_slice(const gdn_job *job, size_t c) {
    const rg_core *core = job->core;
    const rg_hparams *hp = core->hp;
    const uint32_t D = hp->ssm_head_dim, n_tap = hp->ssm_conv, keep = n_tap - 1;
    const rg_segment *seg = job->seg;
    const size_t n = n_channel(hp);
    for (uint32_t t = 0; t < seg->n; t++) {
        const float *taps[RG_CONV_MAX];
        find_taps(job, t, c, taps);
        core->ops->conv_silu(job->w->conv + c * n_tap, taps, n_tap,
                             core->s.conv + (seg->row0 + t) * n + c, D);
    }
    const uint32_t firm = seg->n - seg->n_draft;
    const float *rows = core->s.qkv + seg->row0 * n + c;
    for (uint32_t k = 0; k < keep; k++) { /* oldest first: what is read was not written yet */
        const float *from = k + firm < keep ? job->state->conv + (size_t)(k + firm) * n + c
                                            : rows + (size_t)(k + firm - keep) * n;
        memcpy(job->state->conv + (size_t)k * n + c, from, D * sizeof *from);
    }
}

static void gate_head(const gdn_job *job, size_t h) {
    const rg_core *core = job->core;
    const rg_hparams *hp = core->hp;
    const uint32_t D = hp->ssm_head_dim, inner = hp->n_v_head * D;
    for (uint32_t t = 0; t < job->seg->n; t++) {
        const size_t row = job->seg->row0 + t, at = row * inner + h * D;
        float *o = core->s.gdn_o + at;
        core->ops->rms_norm(o, job->w->norm, o, D, hp->rms_eps);
        core->ops->sigmoid_mul(o, core->s.z + at, o, D);
        rg_quantize_part(core, job->forms, core->s.gdn_o + row * inner, &core->s.act, row, inner,
                         h * D, D);
    }
}

/* One key head of one segment: its q and k, then the value heads that share them. */
static void key_head(const gdn_job *job, size_t key, int thread) {
    rg_core *core = job->core;
    const rg_hparams *hp = core->hp;
    const rg_ops *ops = core->ops;
    const uint32_t D = hp->ssm_head_dim, Hk = hp->n_k_head, Hv = hp->n_v_head;
    const size_t n = n_channel(hp), q = key * D, k = (Hk + key) * D;
    const float scale = 1.0f / sqrtf((float)D);
    conv_slice(job, q);
    conv_slice(job, k);
    for (uint32_t t = 0; t < job->seg->n; t++) {
        float *c = core->s.conv + (job->seg->row0 + t) * n;
        ops->l2_norm(c + q, c + q, D, 1e-6f, scale);
        ops->l2_norm(c + k, c + k, D, 1e-6f, 1.0f);
    }
    for (size_t h = key; h < Hv; h += Hk) {
        conv_slice(job, (2 * (size_t)Hk + h) * D);
        for (uint32_t t = 0; t < job->seg->n; t++) {
            const size_t at = (size_t)(job->seg->row0 + t) * Hv + h;
            ops->gdn_decay(core->s.alpha + at, job->w->dt + h, job->w->a + h, core->s.decay + at,
                           1);
            ops->sigmoid(core->s.beta + at, core->s.beta + at, 1);
        }
        gdn_job one = *job;
        rg_timing_lap(core->timing, thread, 1);
        head_steps(&one, h, h + 1, thread);
        rg_timing_lap(core->timing, thread, 0);
        gate_head(job, h);
        rg_timing_lap(core->timing, thread, 2);
    }
}

static void key_heads(void *arg, size_t begin, size_t end, int thread) {
    gdn_job job = *(const gdn_job *)arg;
    const uint32_t Hk = job.core->hp->n_k_head;
    for (size_t i = begin; i < end; i++) {
        job.seg = &job.win->segs[i / Hk];
        job.state = &job.seg->seq->layers[job.layer];
        key_head(&job, i % Hk, thread);
    }
}

/* Not where threads would be left with less than when value heads are handed out one by one. */
static bool by_key_heads(const rg_core *core, uint32_t n_seg) {
    const size_t threads = (size_t)rg_pool_threads(core->pool);
    const size_t Hk = core->hp->n_k_head, Hv = core->hp->n_v_head;
    const size_t most = (n_seg * Hk + threads - 1) / threads * ((Hv + Hk - 1) / Hk);
    const size_t parts = n_seg * ((Hv + threads - 1) / threads);
    return rg_fused(core, RG_FUSE_GDN) && 8 * most <= 9 * parts;
}

/* Slots: the delta rule, the convolution with its norms, the gate with the codes. */
static void expect_key_heads(const gdn_job *job) {
    const rg_core *core = job->core;
    const rg_hparams *hp = core->hp;
    const uint64_t cells = (uint64_t)hp->n_v_head * hp->ssm_head_dim * hp->ssm_head_dim;
    rg_timing_expect(core->timing, RG_KERNEL_DELTA, RG_TIMING_NO_TYPE,
                     (uint64_t)job->win->n_seg * 2 * cells * sizeof(float),
                     3 * cells * job->win->T);
    rg_timing_expect(core->timing, RG_KERNEL_CONV, RG_TIMING_NO_TYPE, 0, 0);
    rg_timing_expect(core->timing, RG_KERNEL_GATE, RG_TIMING_NO_TYPE, 0, 0);
}

static void run_key_heads(gdn_job *job, rg_input *out) {
    rg_core *core = job->core;
    const rg_window *win = job->win;
    const uint32_t forms = 1u << rg_act_form_of(job->w->out.type, core->opt.kernels);
    job->forms = rg_forms_that_fit(forms, core->hp->ssm_head_dim);
    expect_key_heads(job);
    rg_core_run(core, RG_KERNEL_DELTA, (size_t)win->n_seg * core->hp->n_k_head, 1, key_heads, job);
    for (uint32_t i = 0; i < win->n_seg; i++) {
        const rg_segment *seg = &win->segs[i];
        if (seg->n_draft) rg_journal_keep_gdn(core, seg, &seg->seq->layers[job->layer]);
    }
    for (int form = RG_ACT_Q32; form <= RG_ACT_Q256; form++)
        out->ready[form] = (job->forms >> form & 1u) != 0;
}

void rg_layer_gdn(const rg_window *win, uint32_t layer) {
    rg_core *core = win->core;
    rg_scratch *s = &core->s;
    const rg_hparams *hp = core->hp;
    const rg_gdn_weights *w = &core->w.layers[layer].gdn;
    rg_timing_part(core->timing, RG_PART_GDN);
    rg_input in;
    rg_input_mixed(core, &in, win->T);
    const rg_product products[4] = {
        {&w->qkv, s->qkv}, {&w->gate, s->z}, {&w->beta, s->beta}, {&w->alpha, s->alpha}};
    rg_core_mul(core, &in, products, 4);
    gdn_job job = {.core = core, .w = w, .win = win, .layer = layer};
    rg_input_set(&in, s->gdn_o, win->T, hp->n_v_head * hp->ssm_head_dim, &s->act);
    if (by_key_heads(core, win->n_seg)) {
        run_key_heads(&job, &in);
        rg_core_mul(core, &in, &(rg_product){&w->out, s->y}, 1);
        return;
    }
    for (uint32_t i = 0; i < win->n_seg; i++) {
        job.seg = &win->segs[i];
        job.state = &job.seg->seq->layers[layer];
        rg_core_run(core, RG_KERNEL_CONV, job.seg->n, 1, conv_rows, &job);
        expect_steps(&job);
        rg_core_run(core, RG_KERNEL_DELTA, hp->n_v_head, 1, head_steps, &job);
        keep_history(&job);
    }
    rg_core_run(core, RG_KERNEL_GATE, (size_t)win->T * hp->n_v_head, 1, gate_rows, &job);
    rg_core_mul(core, &in, &(rg_product){&w->out, s->y}, 1);
}
