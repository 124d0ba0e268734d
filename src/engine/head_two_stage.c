#include "engine/head_two_stage.h"

#include <math.h>
#include <string.h>

#include "engine/core.h"
#include "engine/layout.h"

#define COPY_TYPE  RG_TYPE_Q3_K
#define COPY_BLOCK 256u
/* Parts of a thread's share whose best rough row is a seed. */
#define SEEDS 8u
/* Of this many rows one may be left for the exact product. */
#define ROWS_PART 12u
#define REST_MAX  64u
/* Lengths are sums in double of up to 2^20 squares, kept as floats. */
#define LENGTH_SLACK 1e-6

struct rg_two_stage {
    const rg_mat *w; /* borrowed */
    rg_mat copy;
    float *lost, *length; /* [n_out] at least |W_r - C_r| and |W_r| */
    float *rough;         /* [n_out] */
    uint32_t *list;       /* [n_out] rows left; a thread's begin at the first row of its share */
    uint32_t *count;      /* [threads][16] */
    uint32_t *seeds;      /* [threads][16] */
    int8_t *codes;        /* [n_in] y, with scales and sums */
    float *scales;
    int16_t *sums;
    uint32_t rows_max;
    bool rests;
    uint32_t rest, rest_next; /* steps to rest, and after the next failure */
    rg_two_stage_meters meters;
    void *memory;
    size_t memory_bytes;
};

bool rg_two_stage_can(rg_type type, uint64_t n_in) {
    switch (type) {
    case RG_TYPE_F32:
    case RG_TYPE_F16:
    case RG_TYPE_BF16:
    case RG_TYPE_Q8_0:
    case RG_TYPE_Q6_K:
    case RG_TYPE_Q4_0:
    case RG_TYPE_Q5_0:
    case RG_TYPE_IQ4_NL:
    case RG_TYPE_IQ4_XS:
        return n_in > 0 && n_in % COPY_BLOCK == 0;
    default:
        return false;
    }
}

static size_t place(rg_two_stage *h, uint64_t n_out, uint64_t n_in, size_t threads, void *base) {
    rg_layout l = {.base = base};
    h->copy.data = rg_layout_take(&l, n_out, rg_row_bytes(COPY_TYPE, n_in));
    h->lost = rg_layout_take(&l, n_out, sizeof(float));
    h->length = rg_layout_take(&l, n_out, sizeof(float));
    h->rough = rg_layout_take(&l, n_out, sizeof(float));
    h->list = rg_layout_take(&l, n_out, sizeof(uint32_t));
    h->count = rg_layout_take(&l, threads * 16, sizeof(uint32_t));
    h->seeds = rg_layout_take(&l, threads * 16, sizeof(uint32_t));
    h->codes = rg_layout_take(&l, n_in, 1);
    h->scales = rg_layout_take(&l, n_in / COPY_BLOCK, sizeof(float));
    h->sums = rg_layout_take(&l, n_in / 16, sizeof(int16_t));
    return l.used;
}

uint64_t rg_two_stage_bytes(const rg_model *m) {
    const rg_tensor *t = m->output ? m->output : m->token_embd;
    rg_two_stage h;
    if (!t || !rg_two_stage_can(t->type, t->ne[0])) return 0;
    return place(&h, t->ne[1], t->ne[0], RG_POOL_THREADS_MAX, NULL);
}

/* ---- making the copy ------------------------------------------------------------------------ */

typedef struct copy_job {
    rg_two_stage *h;
    rg_core *core;
} copy_job;

static float at_least(double sum) {
    return (float)(sqrt(sum) * (1.0 + LENGTH_SLACK));
}

static void copy_rows(void *arg, size_t begin, size_t end, int thread) {
    const copy_job *job = arg;
    rg_two_stage *h = job->h;
    const rg_mat *w = h->w;
    _Alignas(64) uint8_t unused[64];
    const rg_packer packer = {.type = COPY_TYPE, .level = job->core->opt.level, .scratch = unused};
    float *row = job->core->threads[thread].row, *back = row + w->n_in;
    uint8_t *copy = (uint8_t *)(uintptr_t)h->copy.data;
    for (size_t r = begin; r < end; r++) {
        uint8_t *to = copy + r * h->copy.row_bytes;
        rg_unpack_row(w->type, w->data + r * w->row_bytes, row, w->n_in);
        double length = 0.0, lost = 0.0;
        for (uint32_t i = 0; i < w->n_in; i++)
            length += (double)row[i] * (double)row[i];
        h->length[r] = at_least(length);
        /* A damaged row: infinite bounds keep it, the exact product shows it. */
        h->lost[r] = INFINITY;
        memset(to, 0, h->copy.row_bytes);
        if (!isfinite(h->length[r])) continue;
        rg_pack_row(&packer, row, NULL, to, w->n_in);
        rg_unpack_row(COPY_TYPE, to, back, w->n_in);
        for (uint32_t i = 0; i < w->n_in; i++) {
            const double d = (double)row[i] - (double)back[i];
            lost += d * d;
        }
        h->lost[r] = at_least(lost);
    }
}

rg_code rg_two_stage_create(rg_two_stage **out, rg_core *core, const rg_mat *w, rg_status *st) {
    *out = NULL;
    if (!rg_two_stage_can(w->type, w->n_in)) {
        return rg_fail(st, RG_UNSUPPORTED,
                       "no two-stage head for an output matrix of %s with rows of %u",
                       rg_type_get((uint32_t)w->type)->name, w->n_in);
    }
    rg_two_stage *h = rg_alloc(1, sizeof *h, st);
    if (!h) return RG_NOMEM;
    const size_t threads = (size_t)rg_pool_threads(core->pool);
    h->memory_bytes = place(h, w->n_out, w->n_in, threads, NULL);
    if (rg_take_memory(&h->memory, h->memory_bytes, st) != RG_OK) {
        rg_free(h);
        return rg_context(st, RG_NOMEM, "the copy of the output matrix");
    }
    place(h, w->n_out, w->n_in, threads, h->memory);
    h->w = w;
    h->copy.type = COPY_TYPE;
    h->copy.n_in = w->n_in;
    h->copy.n_out = w->n_out;
    h->copy.row_bytes = rg_row_bytes(COPY_TYPE, w->n_in);
    rg_two_stage_tune(h, 0, true);
    copy_job job = {.h = h, .core = core};
    rg_pool_run(core->pool, w->n_out, 1, copy_rows, &job);
    *out = h;
    return RG_OK;
}

void rg_two_stage_destroy(rg_two_stage *h) {
    if (!h) return;
    rg_mem_unmap(h->memory, h->memory_bytes);
    rg_free(h);
}

void rg_two_stage_tune(rg_two_stage *h, uint32_t rows_max, bool rests) {
    h->rows_max = rows_max ? rows_max : h->w->n_out / ROWS_PART;
    h->rests = rests;
    h->rest = 0;
    h->rest_next = 1;
}

void rg_two_stage_get_meters(const rg_two_stage *h, rg_two_stage_meters *out) {
    *out = h->meters;
}

const rg_mat *rg_two_stage_copy(const rg_two_stage *h, const float **lost, const float **length) {
    *lost = h->lost;
    *length = h->length;
    return &h->copy;
}

/* ---- the bound ------------------------------------------------------------------------------ */

static double value_of(const rg_act *a, uint32_t i) {
    if (a->form == RG_ACT_F32) return (double)a->f32[i];
    return (double)a->scales[i / rg_act_span(a->form)] * a->codes[i];
}

rg_two_stage_step rg_two_stage_measure(const rg_act *act, const rg_act *rough, uint32_t n_in) {
    double x = 0.0, y = 0.0, apart = 0.0;
    for (uint32_t i = 0; i < n_in; i++) {
        const double a = value_of(act, i), b = value_of(rough, i);
        x += a * a;
        y += b * b;
        apart += (a - b) * (a - b);
    }
    const double slack = 1.0 + LENGTH_SLACK;
    const uint32_t groups = n_in / 16; /* sums of a lane */
    return (rg_two_stage_step){.x = sqrt(x) * slack,
                               .y = sqrt(y) * slack,
                               .apart = sqrt(apart) * slack,
                               .rounding = ldexp(groups + 64.0, -23)};
}

double rg_two_stage_bound(const rg_two_stage_step *s, float lost, float length) {
    const double l = (double)lost, w = (double)length;
    return l * s->y + w * s->apart + s->rounding * (w * s->x + (w + l) * s->y);
}

/* ---- one step ------------------------------------------------------------------------------- */

typedef struct step_job {
    rg_two_stage *h;
    rg_core *core;
    const rg_act *act;
    rg_act y;
    rg_two_stage_step step;
    float best; /* exact logit of the best seed */
    float *logits;
    uint32_t n;
} step_job;

/* Rough logits of a share, and its seeds. */
static void rough_share(void *arg, size_t begin, size_t end, int thread) {
    const step_job *job = arg;
    const rg_two_stage *h = job->h;
    uint32_t *seeds = h->seeds + 16 * (size_t)thread, n = 0;
    job->core->ops->mul(&h->copy, (uint32_t)begin, (uint32_t)end, &job->y, NULL, NULL, 1, h->rough,
                        h->copy.n_out, job->core->threads[thread].mul);
    for (uint32_t part = 0; part < SEEDS; part++) {
        const size_t from = begin + (end - begin) * part / SEEDS;
        const size_t to = begin + (end - begin) * (part + 1) / SEEDS;
        if (from == to) continue;
        size_t top = from;
        for (size_t r = from + 1; r < to; r++) {
            if (h->rough[r] > h->rough[top]) top = r;
        }
        seeds[n++] = (uint32_t)top;
    }
    h->count[16 * (size_t)thread] = n;
}

/* Rows that may be the best, marked with 0 among -INFINITY and listed. What compares with nothing
 * may be the best. */
static void left_share(void *arg, size_t begin, size_t end, int thread) {
    const step_job *job = arg;
    const rg_two_stage *h = job->h;
    const double best = (double)job->best;
    uint32_t n = 0;
    for (size_t r = begin; r < end; r++) {
        const double most =
            (double)h->rough[r] + rg_two_stage_bound(&job->step, h->lost[r], h->length[r]);
        job->logits[r] = -INFINITY;
        if (!(most < best)) h->list[begin + n++] = (uint32_t)r;
    }
    h->count[16 * (size_t)thread] = n;
    h->seeds[16 * (size_t)thread] = (uint32_t)begin;
}

static void exact_rows(void *arg, size_t begin, size_t end, int thread) {
    const step_job *job = arg;
    const rg_two_stage *h = job->h;
    for (size_t i = begin; i < end; i++) {
        const uint32_t r = h->list[i];
        job->core->ops->mul(h->w, r, r + 1, job->act, NULL, NULL, 1, job->logits, h->w->n_out,
                            job->core->threads[thread].mul);
    }
}

/* The lists of the threads become one. Returns its length. */
static uint32_t join_lists(const rg_two_stage *h, size_t threads) {
    uint32_t n = 0;
    for (size_t t = 0; t < threads; t++) {
        const uint32_t count = h->count[16 * t];
        if (count) memmove(h->list + n, h->list + h->seeds[16 * t], count * sizeof *h->list);
        n += count;
    }
    return n;
}

/* Exact seeds; their best. */
static void try_seeds(step_job *job, size_t threads) {
    const rg_two_stage *h = job->h;
    job->n = 0;
    for (size_t t = 0; t < threads; t++) {
        for (uint32_t i = 0; i < h->count[16 * t]; i++)
            h->list[job->n++] = h->seeds[16 * t + i];
    }
    rg_core_run(job->core, RG_KERNEL_PRODUCT, job->n, 1, exact_rows, job);
    job->best = -INFINITY;
    for (uint32_t i = 0; i < job->n; i++) {
        const float y = job->logits[h->list[i]];
        if (!(y <= job->best)) job->best = y; /* NaN stays, and keeps every row */
    }
}

static uint32_t first_best(const float *y, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        if (y[i] > y[best]) best = i;
    }
    return best;
}

static bool not_decided(rg_two_stage *h) {
    h->meters.full++;
    if (!h->rests) return false;
    h->rest = h->rest_next;
    h->rest_next = 2 * h->rest_next < REST_MAX ? 2 * h->rest_next : REST_MAX;
    return false;
}

bool rg_two_stage_run(rg_two_stage *h, rg_core *core, const float *x, const rg_act *act,
                      float *logits) {
    const uint32_t n_out = h->w->n_out;
    const size_t threads = (size_t)rg_pool_threads(core->pool);
    if (h->rest) {
        h->rest--;
        h->meters.rested++;
        return false;
    }
    h->meters.steps++;
    core->ops->quantize(RG_ACT_Q256, x, h->w->n_in, h->codes, h->scales, h->sums);
    step_job job = {.h = h,
                    .core = core,
                    .act = act,
                    .y = {.form = RG_ACT_Q256,
                          .n_in = h->w->n_in,
                          .codes = h->codes,
                          .scales = h->scales,
                          .sums = h->sums},
                    .logits = logits};
    job.step = rg_two_stage_measure(act, &job.y, h->w->n_in);
    memset(h->count, 0, threads * 16 * sizeof *h->count);
    rg_timing_expect_products(core->timing, &h->copy, 1, 1, RG_ACT_Q256);
    rg_core_run(core, RG_KERNEL_PRODUCT, n_out, 64, rough_share, &job);
    try_seeds(&job, threads);
    const uint32_t n_seed = job.n;
    memset(h->count, 0, threads * 16 * sizeof *h->count);
    rg_core_run(core, RG_KERNEL_CHECK, n_out, 64, left_share, &job);
    job.n = join_lists(h, threads);
    if (job.n > h->rows_max) return not_decided(h);
    rg_core_run(core, RG_KERNEL_PRODUCT, job.n, 1, exact_rows, &job);
    for (uint32_t i = 0; i < job.n; i++) {
        if (!isfinite(logits[h->list[i]])) return not_decided(h); /* the full head says where */
    }
    h->rest_next = 1;
    h->meters.exact += job.n + n_seed;
    h->meters.rough_hit += first_best(h->rough, n_out) == first_best(logits, n_out);
    return true;
}
