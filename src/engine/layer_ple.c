/* N-gram memory (spec 4.3): hashed rows of a table on disk, injected into the residual streams. */
#include <math.h>
#include <string.h>

#include "engine/core.h"

/* ---- gather --------------------------------------------------------------------------------- */

typedef struct gather_job {
    const rg_window *win;
    atomic_bool *failed;
    rg_status *first; /* written by the thread that flips `failed` */
} gather_job;

/* Token at position p of a segment: from the window or from the sequence's past. */
static int32_t token_at(const rg_window *win, const rg_segment *seg, uint32_t p) {
    return p >= seg->pos0 ? win->ids[seg->row0 + p - seg->pos0] : seg->seq->ids[p];
}

/* Table rows of the token at position p, one for each hash head. */
static void hash_rows(const rg_window *win, const rg_segment *seg, uint32_t p, uint64_t *rows) {
    const rg_hparams *hp = win->core->hp;
    uint64_t h = (uint64_t)token_at(win, seg, p) * hp->ple_mult[0];
    bool cut = false; /* an end of text lies between */
    uint32_t head = 0;
    for (uint32_t s = 1; s < hp->ple_ngram; s++) {
        const int32_t id = p >= s ? token_at(win, seg, p - s) : hp->ple_eos;
        cut = cut || id == hp->ple_eos;
        h ^= (uint64_t)(cut ? hp->ple_eos : id) * hp->ple_mult[s];
        for (uint32_t j = 0; j < hp->ple_heads_per_ngram; j++, head++) {
            rows[head] = h % hp->ple_size[head] + hp->ple_offset[head];
        }
    }
}

static rg_code gather_row(rg_core *core, const uint64_t *rows, uint8_t *raw, float *out,
                          rg_status *st) {
    const rg_hparams *hp = core->hp;
    const rg_tensor *table = core->model->ple_table;
    const size_t bytes = rg_row_bytes(table->type, hp->ple_row);
    for (uint32_t h = 0; h < hp->ple_n_head; h++) {
        RG_TRY(rg_gguf_read(core->gguf, table, rows[h] * bytes, bytes, raw, st));
        size_t block = 0;
        const size_t n_block = bytes / rg_type_get((uint32_t)table->type)->block_bytes;
        if (rg_blocks_find_nonfinite(table->type, raw, n_block, &block)) {
            return rg_fail(st, RG_FORMAT,
                           "%s is damaged: row %llu holds a value that is not finite", table->name,
                           (unsigned long long)rows[h]);
        }
        rg_unpack_row(table->type, raw, out + (size_t)h * hp->ple_row, hp->ple_row);
    }
    return RG_OK;
}

static const rg_segment *segment_of(const rg_window *win, size_t row) {
    const rg_segment *seg = win->segs;
    while (row >= (size_t)seg->row0 + seg->n)
        seg++;
    return seg;
}

static void gather_share(void *arg, size_t begin, size_t end, int thread) {
    const gather_job *job = arg;
    rg_core *core = job->win->core;
    const rg_hparams *hp = core->hp;
    for (size_t row = begin; row < end; row++) {
        const rg_segment *seg = segment_of(job->win, row);
        uint64_t rows[RG_NGRAM_HEADS_MAX] = {0};
        hash_rows(job->win, seg, seg->pos0 + (uint32_t)row - seg->row0, rows);
        rg_status st = {0};
        float *out = core->s.ple_in + row * hp->ple_n_head * hp->ple_row;
        if (gather_row(core, rows, core->threads[thread].raw, out, &st) != RG_OK) {
            bool expected = false;
            if (atomic_compare_exchange_strong(job->failed, &expected, true)) *job->first = st;
            return;
        }
    }
}

rg_code rg_ple_gather(const rg_window *win, rg_status *st) {
    if (!win->core->hp->ple_ngram) return RG_OK;
    atomic_bool failed = false;
    rg_status first = {0};
    gather_job job = {.win = win, .failed = &failed, .first = &first};
    rg_pool_run(win->core->pool, win->T, 1, gather_share, &job);
    if (!atomic_load(&failed)) return RG_OK;
    if (st && st->code == RG_OK) *st = first;
    return first.code;
}

/* ---- injection ------------------------------------------------------------------------------ */

typedef struct ple_job {
    rg_core *core;
    const rg_ple_weights *w;
    const rg_segment *seg;
    rg_layer_state *state;
} ple_job;

/* Gated values of one row and their norm, the input of the convolution. */
static void gate_rows(void *arg, size_t begin, size_t end, int thread) {
    const ple_job *job = arg;
    rg_core *core = job->core;
    const rg_hparams *hp = core->hp;
    const rg_ops *ops = core->ops;
    const uint32_t E = hp->n_embd, H = hp->n_hc;
    (void)thread;
    for (size_t i = begin; i < end; i++) { /* one stream of one row */
        const size_t at = i * E, stream = i % H * E;
        float *key = core->s.mix + at, *query = core->s.normed + at;
        ops->rms_norm(key, job->w->norm_key + stream, key, E, hp->rms_eps);
        ops->rms_norm(core->s.residual + at, job->w->norm_query + stream, query, E, hp->rms_eps);
        const float s = ops->dot(key, query, E) / sqrtf((float)E);
        const float magnitude = sqrtf(fabsf(s) > 1e-6f ? fabsf(s) : 1e-6f);
        float a = s > 0.0f ? magnitude : s < 0.0f ? -magnitude : s; /* NaN stays */
        ops->sigmoid(&a, &a, 1);
        float *gated = core->s.ple_gated + at;
        memset(gated, 0, E * sizeof *gated);
        ops->axpy(a, core->s.ple_value + i / H * E, gated, E);
        ops->rms_norm(gated, job->w->norm_conv + stream, core->s.ple_normed + at, E, hp->rms_eps);
    }
}

/* Rows of the dilated convolution history, in rows of [H*E]. */
static uint32_t history(const rg_hparams *hp) {
    return (hp->ple_conv - 1) * hp->ple_ngram;
}

static void inject_rows(void *arg, size_t begin, size_t end, int thread) {
    const ple_job *job = arg;
    rg_core *core = job->core;
    const rg_hparams *hp = core->hp;
    const uint32_t HE = hp->n_hc * hp->n_embd, n_tap = hp->ple_conv;
    const float *rows = core->s.ple_normed + (size_t)job->seg->row0 * HE;
    (void)thread;
    for (size_t t = begin; t < end; t++) {
        const size_t row = job->seg->row0 + t;
        const float *taps[RG_CONV_MAX];
        for (uint32_t k = 0; k < n_tap; k++) {
            const uint32_t back = (n_tap - 1 - k) * hp->ple_ngram;
            if (back > job->seg->pos0 + t) {
                taps[k] = NULL;
            } else if (back > t) {
                taps[k] = job->state->ple_conv + (history(hp) - (back - t)) * (size_t)HE;
            } else {
                taps[k] = rows + (t - back) * HE;
            }
        }
        float *conv = core->s.mix + row * HE;
        core->ops->conv_silu(job->w->conv, taps, n_tap, conv, HE);
        float *residual = core->s.residual + row * HE;
        core->ops->add(core->s.ple_gated + row * HE, residual, HE);
        core->ops->add(conv, residual, HE);
    }
}

static void keep_history(const ple_job *job) {
    const rg_hparams *hp = job->core->hp;
    const size_t HE = (size_t)hp->n_hc * hp->n_embd;
    const uint32_t keep = history(hp), T = job->seg->n;
    const float *rows = job->core->s.ple_normed + job->seg->row0 * HE;
    float *to = job->state->ple_conv;
    if (T >= keep) {
        memcpy(to, rows + (T - keep) * HE, keep * HE * sizeof *to);
        return;
    }
    memmove(to, to + T * HE, (keep - T) * HE * sizeof *to);
    memcpy(to + (keep - T) * HE, rows, T * HE * sizeof *to);
}

void rg_layer_ple(const rg_window *win, uint32_t layer) {
    rg_core *core = win->core;
    rg_scratch *s = &core->s;
    const rg_hparams *hp = core->hp;
    const rg_ple_weights *w = &core->w.layers[layer].ple;
    rg_input in;
    rg_input_set(&in, s->ple_in, win->T, hp->ple_n_head * hp->ple_row, &s->act);
    const rg_product products[2] = {{&w->key, s->mix}, {&w->value, s->ple_value}};
    rg_core_mul(core, &in, products, 2);
    ple_job job = {.core = core, .w = w};
    rg_pool_run(core->pool, (size_t)win->T * hp->n_hc, 1, gate_rows, &job);
    for (uint32_t i = 0; i < win->n_seg; i++) {
        job.seg = &win->segs[i];
        job.state = &job.seg->seq->layers[layer];
        rg_pool_run(core->pool, job.seg->n, 1, inject_rows, &job);
        keep_history(&job);
    }
}
