/* The draft block (spec 5): its cache follows the trunk token by token. */
#include <math.h>
#include <string.h>

#include "engine/core.h"

typedef struct mtp_job {
    const rg_window *trunk; /* the trunk's window */
    const rg_window *win;   /* the draft block's rows */
    atomic_bool *broken;
} mtp_job;

/* Trunk residual and following token of row i of a draft segment. */
static const float *row_source(const mtp_job *job, uint32_t seg, uint32_t i, int32_t *next) {
    const rg_segment *trunk = &job->trunk->segs[seg], *draft = &job->win->segs[seg];
    const rg_core *core = job->win->core;
    const size_t HE = (size_t)core->hp->n_hc * core->hp->n_embd;
    const uint32_t pos = draft->pos0 + i; /* of the residual */
    *next = job->trunk->ids[trunk->row0 + pos + 1 - trunk->pos0];
    if (pos < trunk->pos0) return trunk->seq->mtp_pending;
    return core->s.residual + (trunk->row0 + pos - trunk->pos0) * HE;
}

/* Input rows of the projection: for each stream the normed embedding, then the normed stream. The
 * hidden norm is one RMS over all streams. */
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
            int32_t next = 0;
            const float *from = row_source(job, s, i, &next);
            rg_unpack_row(w->embd.type, w->embd.data + (size_t)next * w->embd.row_bytes, e, E);
            core->ops->rms_norm(e, w->enorm, e, E, hp->rms_eps);
            float *hidden = core->s.normed + row * H * E;
            const float mean = core->ops->rms_norm(from, w->hnorm, hidden, H * E, hp->rms_eps);
            if (!isfinite(mean)) atomic_store_explicit(job->broken, true, memory_order_relaxed);
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
    return RG_OK;
}

/* Draft logits of every row, for the tap. */
static rg_code tap_logits(const rg_window *win, rg_status *st) {
    rg_core *core = win->core;
    const size_t HE = (size_t)core->hp->n_hc * core->hp->n_embd;
    for (uint32_t s = 0; s < win->n_seg; s++) {
        const rg_segment *seg = &win->segs[s];
        for (uint32_t i = 0; i < seg->n; i += RG_HEAD_ROWS) {
            const uint32_t n = seg->n - i < RG_HEAD_ROWS ? seg->n - i : RG_HEAD_ROWS;
            RG_TRY(rg_core_head(core, &core->w.mtp.head, &core->w.mtp.output,
                                core->s.mtp_residual + (seg->row0 + i) * HE, n, st));
            RG_TRY(core->tap.see(core->tap.user, "mtp_logits", core->hp->n_layer, seg->pos0 + i, n,
                                 core->hp->n_vocab, core->s.logits, st));
        }
    }
    return RG_OK;
}

static void keep_pending(const rg_window *trunk) {
    const rg_core *core = trunk->core;
    const size_t HE = (size_t)core->hp->n_hc * core->hp->n_embd;
    for (uint32_t s = 0; s < trunk->n_seg; s++) {
        const rg_segment *seg = &trunk->segs[s];
        if (!seg->seq->opt.mtp) continue;
        const float *last = core->s.residual + (size_t)(seg->row0 + seg->n - 1) * HE;
        memcpy(seg->seq->mtp_pending, last, HE * sizeof *last);
        seg->seq->mtp_length = seg->pos0 + seg->n - 1;
    }
}

rg_code rg_mtp_follow(const rg_window *trunk, rg_status *st) {
    rg_core *core = trunk->core;
    rg_segment segs[RG_SEGMENTS_MAX];
    rg_window win = {.core = core, .segs = segs, .n_seg = trunk->n_seg};
    for (uint32_t s = 0; s < trunk->n_seg; s++) {
        const rg_segment *t = &trunk->segs[s];
        segs[s] = (rg_segment){.seq = t->seq, .row0 = win.T, .pos0 = t->seq->mtp_length};
        if (t->seq->opt.mtp) segs[s].n = t->pos0 + t->n - 1 - t->seq->mtp_length;
        win.T += segs[s].n;
    }
    RG_ASSERT(win.T <= trunk->T);
    rg_code rc = RG_OK;
    if (win.T) {
        atomic_bool broken = false;
        mtp_job job = {.trunk = trunk, .win = &win, .broken = &broken};
        rg_pool_run(core->pool, win.T, 1, input_rows, &job);
        if (atomic_load(&broken)) {
            return rg_fail(st, RG_FORMAT, "values that are not finite leave layer %u",
                           core->hp->n_layer - 1);
        }
        rg_window_rope(&win);
        if (core->w.mtp.eh_proj.data) {
            rg_input in;
            rg_input_set(&in, core->s.mtp_in, win.T * core->hp->n_hc, 2 * core->hp->n_embd,
                         &core->s.act);
            const rg_product p = {&core->w.mtp.eh_proj, core->s.mtp_residual};
            rg_core_mul(core, &in, &p, 1);
        } else {
            project_halves(core, win.T);
        }
        rc = block(&win, st);
        if (rc == RG_OK && rg_tapped(core)) rc = tap_logits(&win, st);
    }
    keep_pending(trunk);
    return rc;
}
