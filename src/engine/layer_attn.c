/* Attention with partial rotary positions, output gate and sparse block selection (spec 4.4, 4.5).
 *
 * Keys, values and index keys are rounded to the cache type before their first use, also inside the
 * window that makes them, so that a position sees the same keys however the prompt was cut.
 */
#include <math.h>
#include <string.h>

#include "engine/core.h"

typedef struct attn_job {
    rg_core *core;
    const rg_attn_weights *w;
    const rg_segment *seg;
    const rg_kv *kv;
    uint32_t first_block; /* of the finished blocks to make */
    uint32_t piece_heads; /* query heads of one task at most, all on one key head */
    uint32_t n_piece;     /* tasks of a row */
    atomic_bool *broken;  /* the index met a value that is not finite: the selection hides it */
} attn_job;

static size_t cache_bytes(const rg_seq *seq) {
    return rg_seq_f16(seq) ? 2 : 4;
}

static void *cache_at(const attn_job *job, void *base, size_t index) {
    return (uint8_t *)base + index * cache_bytes(job->seg->seq);
}

static uint32_t keep_blocks(const attn_job *job) {
    return job->w->ratio ? job->core->hp->idx_budget / job->w->ratio : 0;
}

/* Whether some row of the segment sees more complete blocks than it may keep. */
static bool selects(const attn_job *job) {
    const uint32_t n = job->seg->pos0 + job->seg->n;
    return job->w->ratio && n / job->w->ratio > keep_blocks(job);
}

/* The rectified block scores would turn NaN into 0: queries and keys of the index are looked at. */
static void look_at(const attn_job *job, const float *x, uint32_t n) {
    float sum = 0.0f;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * 0.0f;
    if (!isfinite(sum)) atomic_store_explicit(job->broken, true, memory_order_relaxed);
}

/* Norm, rotation and caching of one row's queries and keys. */
static void prepare_rows(void *arg, size_t begin, size_t end, int thread) {
    const attn_job *job = arg;
    rg_core *core = job->core;
    const rg_hparams *hp = core->hp;
    const rg_ops *ops = core->ops;
    const uint32_t D = hp->head_dim, n_kv = hp->n_head_kv * D, iD = hp->idx_head_dim;
    const bool f16 = rg_seq_f16(job->seg->seq);
    const bool indexed = selects(job);
    (void)thread;
    for (size_t t = begin; t < end; t++) {
        const size_t row = job->seg->row0 + t, pos = job->seg->pos0 + t;
        const float *cs = core->s.rope + row * hp->n_rot;
        for (uint32_t h = 0; h < hp->n_head; h++) {
            float *q = core->s.q + (row * hp->n_head + h) * D;
            const float *from = core->s.qg + (row * hp->n_head + h) * 2 * D;
            ops->rms_norm(from, job->w->q_norm, q, D, hp->rms_eps);
            ops->rope(q, cs, hp->n_rot);
        }
        for (uint32_t h = 0; h < hp->n_head_kv; h++) {
            float *k = core->s.k + row * n_kv + (size_t)h * D;
            ops->rms_norm(k, job->w->k_norm, k, D, hp->rms_eps);
            ops->rope(k, cs, hp->n_rot);
        }
        ops->store(core->s.k + row * n_kv, cache_at(job, job->kv->k, pos * n_kv), f16, n_kv);
        ops->store(core->s.v + row * n_kv, cache_at(job, job->kv->v, pos * n_kv), f16, n_kv);
        if (!job->w->ratio) continue;
        ops->store(core->s.idx_k + row * iD, cache_at(job, job->kv->idx_raw, pos * iD), f16, iD);
        for (uint32_t h = 0; indexed && h < hp->idx_n_head; h++) {
            float *q = core->s.idx_q + (row * hp->idx_n_head + h) * iD;
            ops->rms_norm(q, job->w->idx_q_norm, q, iD, hp->rms_eps);
            ops->rope(q, cs, hp->n_rot);
            look_at(job, q, iD);
        }
    }
}

/* Keys of blocks that the window completed: mean of the raw keys, norm, rotation at the position of
 * the block's first token. */
static void block_keys(void *arg, size_t begin, size_t end, int thread) {
    const attn_job *job = arg;
    rg_core *core = job->core;
    const rg_hparams *hp = core->hp;
    const rg_ops *ops = core->ops;
    const uint32_t iD = hp->idx_head_dim, ratio = job->w->ratio;
    const bool f16 = rg_seq_f16(job->seg->seq);
    float *mean = core->threads[thread].row, *raw = mean + iD, *cs = raw + iD;
    for (size_t i = begin; i < end; i++) {
        const size_t block = job->first_block + i;
        const size_t pos = block * ratio;
        ops->load(cache_at(job, job->kv->idx_raw, pos * iD), f16, mean, iD);
        for (uint32_t j = 1; j < ratio; j++) {
            ops->load(cache_at(job, job->kv->idx_raw, (pos + j) * iD), f16, raw, iD);
            ops->add(raw, mean, iD);
        }
        for (uint32_t c = 0; c < iD; c++)
            mean[c] /= (float)ratio;
        ops->rms_norm(mean, job->w->idx_k_norm, mean, iD, hp->rms_eps);
        rg_rope_table(cs, core->inv_freq, hp->n_rot / 2, pos);
        ops->rope(mean, cs, hp->n_rot);
        look_at(job, mean, iD);
        ops->store(mean, cache_at(job, job->kv->idx_block, block * iD), f16, iD);
    }
}

/* Allowed keys of one row as runs of positions, ascending (spec 4.5). */
static void select_rows(void *arg, size_t begin, size_t end, int thread) {
    const attn_job *job = arg;
    rg_core *core = job->core;
    const rg_hparams *hp = core->hp;
    const rg_seq *seq = job->seg->seq;
    const uint32_t ratio = job->w->ratio, keep = keep_blocks(job);
    float *scores = seq->idx_scores + (size_t)thread * seq->opt.n_ctx;
    uint32_t *top = seq->idx_top + (size_t)thread * hp->idx_budget;
    const rg_cache_view keys = {
        .data = job->kv->idx_block, .f16 = rg_seq_f16(seq), .stride = hp->idx_head_dim};
    for (size_t t = begin; t < end; t++) {
        const size_t row = job->seg->row0 + t;
        const uint32_t n = job->seg->pos0 + (uint32_t)t + 1;
        const uint32_t n_block = ratio ? n / ratio : 0;
        uint32_t *first = core->s.run_first + row * core->s.run_cap;
        uint32_t *count = core->s.run_count + row * core->s.run_cap;
        if (!ratio || n_block <= keep) {
            first[0] = 0;
            count[0] = n;
            core->s.n_run[row] = 1;
            continue;
        }
        core->ops->index_scores(core->s.idx_q + row * hp->idx_n_head * hp->idx_head_dim,
                                hp->idx_n_head, hp->idx_head_dim, &keys, 0, n_block, scores,
                                core->threads[thread].attn);
        look_at(job, scores, n_block);
        rg_top_k_ascending(scores, n_block, keep, top);
        uint32_t runs = 0;
        for (uint32_t b = 0; b < keep; b++) {
            const uint32_t pos = top[b] * ratio;
            if (runs && first[runs - 1] + count[runs - 1] == pos) {
                count[runs - 1] += ratio;
            } else {
                first[runs] = pos;
                count[runs++] = ratio;
            }
        }
        const uint32_t tail = n_block * ratio;
        if (tail < n) {
            first[runs] = tail;
            count[runs++] = n - tail;
        }
        RG_ASSERT(runs <= core->s.run_cap);
        core->s.n_run[row] = runs;
    }
}

static void attend(void *arg, size_t begin, size_t end, int thread) {
    const attn_job *job = arg;
    rg_core *core = job->core;
    const rg_hparams *hp = core->hp;
    const uint32_t D = hp->head_dim, group = hp->n_head / hp->n_head_kv;
    const bool f16 = rg_seq_f16(job->seg->seq);
    const size_t stride = (size_t)hp->n_head_kv * D;
    const float scale = 1.0f / sqrtf((float)D);
    for (size_t i = begin; i < end; i++) { /* a piece of the heads of one row */
        const size_t row = job->seg->row0 + i / job->n_piece;
        const uint32_t piece = (uint32_t)(i % job->n_piece), pieces = job->n_piece / hp->n_head_kv;
        const uint32_t kv = piece / pieces, from = piece % pieces * job->piece_heads;
        const uint32_t h = kv * group + from;
        const uint32_t n = group - from < job->piece_heads ? group - from : job->piece_heads;
        const size_t kv_head = (size_t)kv * D;
        const rg_cache_view k = {cache_at(job, job->kv->k, kv_head), f16, stride};
        const rg_cache_view v = {cache_at(job, job->kv->v, kv_head), f16, stride};
        const size_t at = row * hp->n_head + h;
        float *o = core->s.attn_o + at * D;
        core->ops->attention(core->s.q + at * D, n, &k, &v, D, scale,
                             core->s.run_first + row * core->s.run_cap,
                             core->s.run_count + row * core->s.run_cap, core->s.n_run[row], o,
                             core->threads[thread].attn);
        for (uint32_t j = 0; j < n; j++) {
            const float *gate = core->s.qg + (at + j) * 2 * D + D;
            core->ops->sigmoid_mul(o + (size_t)j * D, gate, o + (size_t)j * D, D);
        }
    }
}

/* Heads that share keys are computed together, which loads a key once; cut finer where few rows
 * would leave threads without work. */
static void cut_heads(attn_job *job) {
    const rg_hparams *hp = job->core->hp;
    const uint32_t group = hp->n_head / hp->n_head_kv;
    const size_t tasks = (size_t)job->seg->n * hp->n_head_kv;
    const size_t threads = (size_t)rg_pool_threads(job->core->pool);
    uint32_t pieces = (group + RG_ATTENTION_HEADS - 1) / RG_ATTENTION_HEADS;
    if (tasks * pieces < threads) pieces = (uint32_t)((threads + tasks - 1) / tasks);
    if (pieces > group) pieces = group;
    job->piece_heads = (group + pieces - 1) / pieces;
    job->n_piece = (group + job->piece_heads - 1) / job->piece_heads * hp->n_head_kv;
}

/* Every row reads the keys and values it may see, once for each head of the cache. */
static void expect_attention(const attn_job *job) {
    const rg_core *core = job->core;
    if (!core->timing) return;
    const rg_hparams *hp = core->hp;
    uint64_t seen = 0;
    for (uint32_t t = 0; t < job->seg->n; t++) {
        const size_t row = job->seg->row0 + t;
        for (uint32_t i = 0; i < core->s.n_run[row]; i++)
            seen += core->s.run_count[row * core->s.run_cap + i];
    }
    const uint64_t width = 2 * (uint64_t)hp->head_dim;
    rg_timing_expect(core->timing, RG_KERNEL_ATTEND, RG_TIMING_NO_TYPE,
                     seen * hp->n_head_kv * width * cache_bytes(job->seg->seq),
                     seen * hp->n_head * width);
}

static void attend_segment(attn_job *job) {
    rg_core *core = job->core;
    rg_core_run(core, RG_KERNEL_PREPARE, job->seg->n, 1, prepare_rows, job);
    if (job->w->ratio) {
        const uint32_t ratio = job->w->ratio;
        job->first_block = job->seg->pos0 / ratio;
        const uint32_t last = (job->seg->pos0 + job->seg->n) / ratio;
        rg_core_run(core, RG_KERNEL_BLOCK_KEYS, last - job->first_block, 1, block_keys, job);
    }
    rg_core_run(core, RG_KERNEL_SELECT, job->seg->n, 1, select_rows, job);
    cut_heads(job);
    expect_attention(job);
    rg_core_run(core, RG_KERNEL_ATTEND, (size_t)job->seg->n * job->n_piece, 1, attend, job);
}

rg_code rg_layer_attn(const rg_window *win, const rg_attn_weights *w, uint32_t kv_layer,
                      rg_status *st) {
    rg_core *core = win->core;
    rg_scratch *s = &core->s;
    const rg_hparams *hp = core->hp;
    rg_product products[RG_PRODUCTS_MAX] = {{&w->q, s->qg}, {&w->k, s->k}, {&w->v, s->v}};
    uint32_t n = 3;
    if (w->ratio) products[n++] = (rg_product){&w->idx_k, s->idx_k};
    bool indexed = false;
    for (uint32_t i = 0; i < win->n_seg; i++) {
        const attn_job job = {.core = core, .w = w, .seg = &win->segs[i]};
        indexed = indexed || selects(&job);
    }
    if (indexed) products[n++] = (rg_product){&w->idx_q, s->idx_q};
    rg_timing_part(core->timing, RG_PART_ATTENTION);
    rg_input in;
    rg_input_set(&in, s->u, win->T, hp->n_embd, &s->act);
    rg_core_mul(core, &in, products, n);
    atomic_bool broken = false;
    for (uint32_t i = 0; i < win->n_seg; i++) {
        attn_job job = {.core = core,
                        .w = w,
                        .seg = &win->segs[i],
                        .broken = &broken,
                        .kv = &win->segs[i].seq->layers[kv_layer].kv};
        if (!job.seg->n) continue; /* a draft block without rows of this sequence */
        attend_segment(&job);
    }
    if (atomic_load_explicit(&broken, memory_order_relaxed)) {
        return rg_fail(st, RG_FORMAT, "the block scores of layer %u are not finite", kv_layer);
    }
    rg_input_set(&in, s->attn_o, win->T, hp->n_head * hp->head_dim, &s->act);
    rg_core_mul(core, &in, &(rg_product){&w->out, s->y}, 1);
    return RG_OK;
}
