/* N-gram memory (spec 4.3): hashed rows of a table on disk, injected into the residual streams.
 *
 * The rows depend on token ids alone: the window asks for them at its start, and the layer waits.
 */
#include <math.h>
#include <string.h>

#include "engine/core.h"

/* ---- gather --------------------------------------------------------------------------------- */

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

static const rg_segment *segment_of(const rg_window *win, size_t row) {
    const rg_segment *seg = win->segs;
    while (row >= (size_t)seg->row0 + seg->n)
        seg++;
    return seg;
}

static void hash_share(void *arg, size_t begin, size_t end, int thread) {
    const rg_window *win = arg;
    const uint32_t n_head = win->core->hp->ple_n_head;
    uint64_t *wants = rg_ple_reader_wants(win->core->ple);
    (void)thread;
    for (size_t row = begin; row < end; row++) {
        const rg_segment *seg = segment_of(win, row);
        hash_rows(win, seg, seg->pos0 + (uint32_t)row - seg->row0, wants + row * n_head);
    }
}

bool rg_ple_describe(rg_ple_reader_options *out, const rg_model *m, uint32_t chunk) {
    const rg_tensor *t = m->ple_table;
    *out = (rg_ple_reader_options){0};
    if (!m->hp.ple_ngram || !t) return false;
    out->offset = t->offset;
    out->n_row = t->ne[1];
    out->row_bytes = rg_row_bytes(t->type, m->hp.ple_row);
    out->n_want_max = chunk * m->hp.ple_n_head;
    return true;
}

rg_code rg_ple_open(rg_core *core, rg_status *st) {
    rg_ple_reader_options o;
    const rg_core_options *opt = &core->opt;
    if (!rg_ple_describe(&o, core->model, core->chunk)) return RG_OK;
    o.path = rg_gguf_file_path(core->gguf, core->model->ple_table->file);
    o.cache_bytes = opt->ple_cache_bytes ? opt->ple_cache_bytes : RG_PLE_CACHE_DEFAULT;
    o.resident = opt->ple_resident;
    /* Where experts stream memory is short: pages of 4 KiB for rows of 100 bytes would fill what a
     * memory cgroup has left. */
    o.direct =
        opt->io.direct == RG_DIRECT_AUTO && !opt->arena_bytes ? RG_DIRECT_OFF : opt->io.direct;
    o.n_thread = opt->io.depth;
    o.retries_max = opt->io.retries_max;
    o.null_reads = opt->io.null_reads;
    o.faults = opt->io.faults;
    return rg_ple_reader_create(&core->ple, &o, st);
}

rg_code rg_ple_request(const rg_window *win, rg_status *st) {
    rg_core *core = win->core;
    if (!core->ple) return RG_OK;
    const uint64_t begin = rg_now_ns();
    rg_window copy = *win;
    rg_ple_reader_cancel(core->ple);
    rg_timing_part(core->timing, RG_PART_NGRAM);
    rg_core_run(core, RG_KERNEL_HASH, win->T, 1, hash_share, &copy);
    const rg_code rc = rg_ple_reader_request(core->ple, win->T * core->hp->ple_n_head, st);
    core->times.ple_ns += rg_now_ns() - begin;
    return rc;
}

void rg_ple_abandon(rg_core *core) {
    if (core->ple) rg_ple_reader_cancel(core->ple);
}

typedef struct unpack_job {
    rg_core *core;
    _Atomic uint64_t *damaged; /* smallest index of a row that is not finite */
} unpack_job;

static void unpack_share(void *arg, size_t begin, size_t end, int thread) {
    const unpack_job *job = arg;
    const rg_core *core = job->core;
    const uint32_t n = core->hp->ple_row;
    const rg_type type = core->model->ple_table->type;
    const size_t n_block = rg_row_bytes(type, n) / rg_type_get((uint32_t)type)->block_bytes;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        const uint8_t *row = rg_ple_reader_row(core->ple, (uint32_t)i);
        size_t block = 0;
        if (rg_blocks_find_nonfinite(type, row, n_block, &block)) {
            uint64_t first = atomic_load_explicit(job->damaged, memory_order_relaxed);
            while (i < first && !atomic_compare_exchange_weak(job->damaged, &first, i))
                continue;
            return;
        }
        rg_unpack_row(type, row, core->s.ple_in + i * n, n);
    }
}

/* Waits for the rows and unpacks them into ple_in [T][heads * row]. */
rg_code rg_ple_join(const rg_window *win, rg_status *st) {
    rg_core *core = win->core;
    const uint64_t begin = rg_now_ns();
    rg_timing_part(core->timing, RG_PART_NGRAM);
    const rg_code rc = rg_ple_reader_join(core->ple, st);
    rg_timing_end(core->timing, RG_KERNEL_WAIT, begin);
    const uint64_t joined = rg_now_ns();
    core->times.ple_wait_ns += joined - begin;
    RG_TRY(rc);
    _Atomic uint64_t damaged = UINT64_MAX;
    unpack_job job = {.core = core, .damaged = &damaged};
    rg_core_run(core, RG_KERNEL_UNPACK, (size_t)win->T * core->hp->ple_n_head, core->hp->ple_n_head,
                unpack_share, &job);
    core->times.ple_ns += rg_now_ns() - joined;
    const uint64_t bad = atomic_load(&damaged);
    if (bad == UINT64_MAX) return RG_OK;
    return rg_fail(st, RG_FORMAT, "%s is damaged: row %llu holds a value that is not finite",
                   core->model->ple_table->name,
                   (unsigned long long)rg_ple_reader_wants(core->ple)[bad]);
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
    rg_history_push(job->state->ple_conv, history(hp), HE,
                    job->core->s.ple_normed + job->seg->row0 * HE, job->seg->n - job->seg->n_draft);
    if (job->seg->n_draft) rg_journal_keep_ple(job->core, job->seg, job->state);
}

rg_code rg_layer_ple(const rg_window *win, uint32_t layer, rg_status *st) {
    rg_core *core = win->core;
    RG_TRY(rg_ple_join(win, st));
    rg_scratch *s = &core->s;
    const rg_hparams *hp = core->hp;
    const rg_ple_weights *w = &core->w.layers[layer].ple;
    rg_input in;
    rg_input_set(&in, s->ple_in, win->T, hp->ple_n_head * hp->ple_row, &s->act);
    const rg_product products[2] = {{&w->key, s->mix}, {&w->value, s->ple_value}};
    rg_core_mul(core, &in, products, 2);
    ple_job job = {.core = core, .w = w};
    rg_core_run(core, RG_KERNEL_GATE, (size_t)win->T * hp->n_hc, 1, gate_rows, &job);
    for (uint32_t i = 0; i < win->n_seg; i++) {
        job.seg = &win->segs[i];
        job.state = &job.seg->seq->layers[layer];
        rg_core_run(core, RG_KERNEL_CONV, job.seg->n, 1, inject_rows, &job);
        keep_history(&job);
    }
    return RG_OK;
}
