/* Rows of tensors. A row is a pure function of (seed, tensor, row), so any number of threads makes
 * the same bytes.
 *
 * Random rows are two slices of a pool of random blocks, each cut at a random block: making them
 * costs a copy. A pool is a pure function of (seed, type, deviation, size); the last few are kept.
 * The owner's thread builds pools; compute threads read them and own their scratch row.
 */
#include <math.h>
#include <string.h>

#include "forge/synth_parts.h"

#define POOLS          24u
#define POOL_BYTES     ((size_t)4 << 20)
#define POOL_BYTES_MIN ((size_t)64 << 10)
#define POOL_ROWS_MIN  4u

typedef struct pool_entry {
    rg_type type;
    double sigma;
    size_t n_block;
    uint8_t *blocks; /* NULL = free */
    uint64_t used;   /* last use, for replacement */
} pool_entry;

struct rg_synth_fill {
    const rg_synth_plan *plan;
    rg_pool *threads;
    pool_entry pools[POOLS];
    uint64_t clock;
    float **scratch;   /* [threads][widest chosen row] */
    uint32_t *rank_of; /* [X] popularity rank of each expert of the layer being made */
};

typedef struct fill_job {
    rg_synth_fill *f;
    const rg_synth_tensor *t;
    const pool_entry *pool;
    uint64_t seed; /* of the tensor */
    uint64_t begin;
    uint8_t *dst;
} fill_job;

/* ---- pools ----------------------------------------------------------------------------------- */

static uint64_t double_bits(double v) {
    uint64_t b;
    memcpy(&b, &v, sizeof b);
    return b;
}

/* Small tensors take small pools, so that a small model costs little. */
static size_t pool_blocks(const rg_synth_tensor *t) {
    const size_t block = rg_type_get((uint32_t)t->type)->block_bytes;
    size_t bytes = POOL_BYTES_MIN;
    while (bytes < POOL_BYTES && bytes / 4 < (uint64_t)t->row_bytes * t->rows)
        bytes *= 2;
    if (bytes < POOL_ROWS_MIN * t->row_bytes) bytes = POOL_ROWS_MIN * t->row_bytes;
    return bytes / block;
}

static rg_code take_pool(rg_synth_fill *f, const rg_synth_tensor *t, const pool_entry **out,
                         rg_status *st) {
    const size_t n = pool_blocks(t);
    pool_entry *oldest = &f->pools[0];
    for (size_t i = 0; i < POOLS; i++) {
        pool_entry *e = &f->pools[i];
        if (e->blocks && e->type == t->type && e->sigma == t->sigma && e->n_block == n) {
            e->used = ++f->clock;
            *out = e;
            return RG_OK;
        }
        if (e->used < oldest->used) oldest = e;
    }
    rg_free(oldest->blocks);
    *oldest = (pool_entry){.type = t->type, .sigma = t->sigma, .n_block = n};
    oldest->blocks = rg_alloc(n, rg_type_get((uint32_t)t->type)->block_bytes, st);
    if (!oldest->blocks) return RG_NOMEM;
    const uint64_t seed = rg_random_u64(f->plan->opt->seed ^ double_bits(t->sigma),
                                        (uint64_t)t->type << 32 ^ (uint64_t)n);
    rg_synth_blocks(t->type, t->sigma, seed, oldest->blocks, n);
    oldest->used = ++f->clock;
    *out = oldest;
    return RG_OK;
}

/* `n` blocks: two slices, so that rows outnumber the pool's blocks by far. */
static void put_slices(const fill_job *job, uint64_t row, uint8_t *dst, size_t n) {
    const size_t block = rg_type_get((uint32_t)job->t->type)->block_bytes;
    const uint64_t r = rg_random_u64(job->seed, row);
    const size_t half = n / 2;
    const size_t a = (size_t)((r & 0xffffffff) % (job->pool->n_block - half));
    const size_t b = (size_t)((r >> 32) % (job->pool->n_block - (n - half) + 1));
    if (half) memcpy(dst, job->pool->blocks + a * block, half * block);
    memcpy(dst + half * block, job->pool->blocks + b * block, (n - half) * block);
}

/* ---- rows of blocks -------------------------------------------------------------------------- */

/* Blocks of C in a row of this type; 0 when C is not whole blocks of it. */
static size_t const_blocks(const rg_synth_plan *p, const rg_synth_tensor *t) {
    const uint32_t elems = rg_type_get((uint32_t)t->type)->block_elems;
    return p->routing.n_const % elems == 0 ? p->routing.n_const / elems : 0;
}

static void put_block_row(const fill_job *job, uint64_t row, uint8_t *dst) {
    const rg_synth_plan *p = job->f->plan;
    const rg_synth_tensor *t = job->t;
    const size_t block = rg_type_get((uint32_t)t->type)->block_bytes;
    const size_t n = t->row_bytes / block;
    size_t fixed = 0;
    if (t->kind == RG_SYNTH_EMBED) {
        if (p->routing.mu_bytes) memcpy(dst, p->routing.mu_blocks, p->routing.mu_bytes);
        fixed = p->routing.mu_bytes / block;
    } else if (t->kind == RG_SYNTH_QKV) {
        const uint64_t keys = (uint64_t)p->shape->n_k_head * p->shape->ssm_dim;
        if (row < 2 * keys) {
            row %= keys;
        } else { /* zero bytes are zero weights in every type */
            fixed = const_blocks(p, t);
            memset(dst, 0, fixed * block);
        }
    }
    put_slices(job, row, dst + fixed * block, n - fixed);
}

/* ---- rows of chosen values ------------------------------------------------------------------- */

/* softplus(dt) of a value head: log-uniform in 0.01 .. 0.1; the same for dt and a. */
static double step_size(const fill_job *job, uint64_t head) {
    const uint64_t seed = rg_random_u64(job->f->plan->opt->seed, 0xD7000000u + job->t->layer);
    return 0.01 * pow(10, rg_random_unit(seed, head));
}

static void put_norm(const fill_job *job, float *x) {
    const rg_synth_plan *p = job->f->plan;
    const uint64_t n = job->t->ne[0], E = p->shape->n_embd;
    const uint64_t flips = rg_random_u64(job->seed, UINT64_MAX);
    for (uint64_t i = 0; i < n; i++) {
        x[i] = 1 + 0.2f * rg_synth_normal(job->seed, i);
        if (job->t->kind == RG_SYNTH_NORM || i % E < p->routing.n_const) continue;
        if (rg_random_unit(flips, i % E) < p->routing.flip) x[i] = -x[i];
    }
}

/* Positive taps: what lasts over tokens adds up. Values stay small, where silu is nearly linear, so
 * that their average over tokens holds little but their sum. */
static void put_taps(const fill_job *job, uint64_t channel, float *x) {
    const rg_synth_shape *s = job->f->plan->shape;
    const uint64_t keys = (uint64_t)s->n_k_head * s->ssm_dim, n = job->t->ne[0];
    const bool value = channel >= 2 * keys;
    const uint64_t row = value ? channel : channel % keys;
    for (uint64_t k = 0; k < n; k++) {
        const float v = 1 + 0.2f * rg_synth_normal(job->seed, row * n + k);
        x[k] = (value ? 0.2f : 0.5f) * fabsf(v);
    }
}

/* Write strength sigma(-b0) in front of the delta rule: half of the forgetting, the decay is the
 * other half. */
static void put_beta(const fill_job *job, uint64_t head, float *x) {
    const rg_synth_plan *p = job->f->plan;
    const rg_synth_routing *r = &p->routing;
    const double strength = 0.83 / r->memory, b0 = log(1 / strength - 1);
    const double along =
        r->n_const ? -b0 / (rg_synth_gain(p, job->t->layer, false) * r->mu_square) : 0;
    for (uint64_t i = 0; i < job->t->ne[0]; i++) {
        const float noise =
            (float)job->t->sigma * rg_synth_normal(job->seed, head * job->t->ne[0] + i);
        x[i] = i < r->n_const ? (float)(along * (double)r->mu[i]) : noise;
    }
}

static void put_router(const fill_job *job, uint64_t rank, uint64_t expert, float *x) {
    const rg_synth_plan *p = job->f->plan;
    const rg_synth_routing *r = &p->routing;
    const double along =
        r->n_const ? r->bias[rank] / (rg_synth_gain(p, job->t->layer, true) * r->mu_square) : 0;
    const float sigma = (float)job->t->sigma;
    for (uint64_t i = 0; i < job->t->ne[0]; i++) {
        x[i] = i < r->n_const ? (float)(along * (double)r->mu[i])
                              : sigma * rg_synth_normal(job->seed, expert * job->t->ne[0] + i);
    }
}

static void chosen_values(const fill_job *job, uint64_t row, float *x) {
    const rg_synth_tensor *t = job->t;
    switch (t->kind) {
    case RG_SYNTH_NORM:
    case RG_SYNTH_NORM_FFN:
        put_norm(job, x);
        break;
    case RG_SYNTH_TAPS_GDN:
        put_taps(job, row, x);
        break;
    case RG_SYNTH_TAPS_PLE:
        for (uint64_t i = 0; i < t->ne[0]; i++)
            x[i] = (float)t->sigma * rg_synth_normal(job->seed, row * t->ne[0] + i);
        break;
    case RG_SYNTH_DT:
        for (uint64_t i = 0; i < t->ne[0]; i++)
            x[i] = (float)log(expm1(step_size(job, i)));
        break;
    case RG_SYNTH_A:
        for (uint64_t i = 0; i < t->ne[0]; i++)
            x[i] = (float)(-1 / (2 * job->f->plan->routing.memory * step_size(job, i)));
        break;
    case RG_SYNTH_BETA:
        put_beta(job, row, x);
        break;
    case RG_SYNTH_ROUTER:
        put_router(job, job->f->rank_of[row], row, x);
        break;
    case RG_SYNTH_RANDOM:
    case RG_SYNTH_EMBED:
    case RG_SYNTH_QKV:
        RG_ASSERT(false);
    }
}

static bool is_chosen(rg_synth_kind kind) {
    return kind != RG_SYNTH_RANDOM && kind != RG_SYNTH_EMBED && kind != RG_SYNTH_QKV;
}

static void encode(rg_type type, const float *x, uint8_t *dst, size_t n) {
    if (type == RG_TYPE_F32) {
        memcpy(dst, x, n * sizeof *x);
        return;
    }
    if (type == RG_TYPE_Q8_0) {
        rg_block_q8_0 block;
        for (size_t i = 0; i < n / 32; i++) {
            rg_quantize_row_q8_0(x + 32 * i, &block, 32);
            memcpy(dst + i * sizeof block, &block, sizeof block);
        }
        return;
    }
    RG_ASSERT(type == RG_TYPE_F16 || type == RG_TYPE_BF16);
    for (size_t i = 0; i < n; i++) {
        const uint16_t h = type == RG_TYPE_F16 ? rg_f32_to_f16(x[i]) : rg_f32_to_bf16(x[i]);
        memcpy(dst + 2 * i, &h, 2);
    }
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static void fill_share(void *arg, size_t begin, size_t end, int thread) {
    const fill_job *job = arg;
    const rg_synth_tensor *t = job->t;
    for (size_t i = begin; i < end; i++) {
        uint8_t *dst = job->dst + i * t->row_bytes;
        if (!is_chosen(t->kind)) {
            put_block_row(job, job->begin + i, dst);
            continue;
        }
        float *x = job->f->scratch[thread];
        chosen_values(job, job->begin + i, x);
        encode(t->type, x, dst, (size_t)t->ne[0]);
    }
}

/* Popularity ranks dealt to the experts of a layer. */
static void deal_ranks(rg_synth_fill *f, uint32_t layer) {
    const uint32_t X = f->plan->shape->n_expert;
    RG_ASSERT(X > 0); /* a router has experts */
    const uint64_t seed = rg_random_u64(f->plan->opt->seed, 0x4A4E0000u + layer);
    for (uint32_t i = 0; i < X; i++)
        f->rank_of[i] = i;
    for (uint32_t i = X - 1; i > 0; i--) {
        const uint32_t j = (uint32_t)(rg_random_u64(seed, i) % (i + 1));
        const uint32_t swap = f->rank_of[i];
        f->rank_of[i] = f->rank_of[j];
        f->rank_of[j] = swap;
    }
}

rg_code rg_synth_fill_rows(rg_synth_fill *f, uint32_t tensor, uint64_t begin, uint64_t end,
                           uint8_t *dst, rg_status *st) {
    RG_ASSERT(tensor < f->plan->n_tensor);
    const rg_synth_tensor *t = &f->plan->tensors[tensor];
    fill_job job = {.f = f,
                    .t = t,
                    .seed = rg_random_u64(f->plan->opt->seed, 0x7E4500000000u + tensor),
                    .begin = begin,
                    .dst = dst};
    if (!is_chosen(t->kind)) RG_TRY(take_pool(f, t, &job.pool, st));
    if (t->kind == RG_SYNTH_ROUTER) deal_ranks(f, t->layer);
    rg_pool_run(f->threads, (size_t)(end - begin), 16, fill_share, &job);
    return RG_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

rg_code rg_synth_fill_create(rg_synth_fill **out, const rg_synth_plan *p, rg_pool *pool,
                             rg_status *st) {
    *out = NULL;
    rg_synth_fill *f = rg_alloc(1, sizeof *f, st);
    if (!f) return RG_NOMEM;
    f->plan = p;
    f->threads = pool;
    size_t widest = 1;
    for (uint32_t i = 0; i < p->n_tensor; i++) {
        if (is_chosen(p->tensors[i].kind) && p->tensors[i].ne[0] > widest)
            widest = (size_t)p->tensors[i].ne[0];
    }
    const size_t n = (size_t)rg_pool_threads(pool);
    f->scratch = rg_alloc(n, sizeof *f->scratch, st);
    f->rank_of = rg_alloc(p->shape->n_expert, sizeof *f->rank_of, st);
    bool whole = f->scratch && f->rank_of;
    for (size_t i = 0; whole && i < n; i++) {
        f->scratch[i] = rg_alloc(widest, sizeof(float), st);
        whole = f->scratch[i] != NULL;
    }
    if (!whole) {
        rg_synth_fill_destroy(f);
        return RG_NOMEM;
    }
    *out = f;
    return RG_OK;
}

void rg_synth_fill_destroy(rg_synth_fill *f) {
    if (!f) return;
    for (size_t i = 0; f->scratch && i < (size_t)rg_pool_threads(f->threads); i++)
        rg_free(f->scratch[i]);
    for (size_t i = 0; i < POOLS; i++)
        rg_free(f->pools[i].blocks);
    rg_free(f->scratch);
    rg_free(f->rank_of);
    rg_free(f);
}
