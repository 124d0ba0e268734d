/* Hyper-connections: the read (norm, gate, mix, inject weights) and the write (spec 4.1). */
#include <math.h>

#include "engine/core.h"

typedef struct hc_job {
    rg_core *core;
    const rg_hc_weights *w;
    const float *residual; /* [T][H*E] */
    float *target;         /* of a write */
    atomic_bool *broken;   /* a value that is not finite was met */
} hc_job;

static void norm_rows(void *arg, size_t begin, size_t end, int thread) {
    const hc_job *job = arg;
    const rg_core *core = job->core;
    const uint32_t E = core->hp->n_embd, H = core->hp->n_hc;
    (void)thread;
    for (size_t i = begin; i < end; i++) { /* one stream of one row */
        const size_t at = i * E;
        const float mean = core->ops->rms_norm(job->residual + at, job->w->norm + i % H * E,
                                               core->s.normed + at, E, core->hp->rms_eps);
        if (!isfinite(mean)) atomic_store_explicit(job->broken, true, memory_order_relaxed);
    }
}

static void low_rows(void *arg, size_t begin, size_t end, int thread) {
    const hc_job *job = arg;
    const rg_core *core = job->core;
    const uint32_t rank = core->hp->n_hc_rank, H = core->hp->n_hc;
    (void)thread;
    for (size_t t = begin; t < end; t++) {
        float *low = core->s.low + t * rank;
        core->ops->silu_div(low, low, rank, (float)H);
        if (!job->w->inject.data) continue;
        /* w = 2 sigma(x / H) */
        float *inject = core->s.inject + t * H;
        for (uint32_t s = 0; s < H; s++)
            inject[s] /= (float)H;
        core->ops->sigmoid(inject, inject, H);
        for (uint32_t s = 0; s < H; s++)
            inject[s] *= 2.0f;
    }
}

static void mix_rows(void *arg, size_t begin, size_t end, int thread) {
    const hc_job *job = arg;
    const rg_core *core = job->core;
    const uint32_t E = core->hp->n_embd, H = core->hp->n_hc;
    (void)thread;
    for (size_t t = begin; t < end; t++) {
        core->ops->hc_mix(core->s.mix + t * H * E, core->s.normed + t * H * E, core->s.u + t * E, H,
                          E);
    }
}

rg_code rg_hc_read(rg_core *core, const rg_hc_weights *w, const float *residual, uint32_t T,
                   uint32_t layer, const char *where, rg_status *st) {
    rg_scratch *s = &core->s;
    const rg_hparams *hp = core->hp;
    atomic_bool broken = false;
    rg_timing_part(core->timing, RG_PART_HC);
    hc_job job = {.core = core, .w = w, .residual = residual, .broken = &broken};
    const uint64_t wide = (uint64_t)T * hp->n_hc * hp->n_embd * sizeof(float);
    rg_timing_expect(core->timing, RG_KERNEL_NORM, RG_TIMING_NO_TYPE, 2 * wide, 0);
    rg_core_run(core, RG_KERNEL_NORM, (size_t)T * hp->n_hc, 1, norm_rows, &job);
    if (atomic_load_explicit(&broken, memory_order_relaxed)) {
        return rg_fail(st, RG_FORMAT,
                       "values that are not finite reach layer %u (%s): the weights before it are "
                       "damaged",
                       layer, where);
    }
    rg_input in;
    rg_input_set(&in, s->normed, T, hp->n_hc * hp->n_embd, &s->act);
    const rg_product first[2] = {{&w->down, s->low}, {&w->inject, s->inject}};
    rg_core_mul(core, &in, first, w->inject.data ? 2 : 1);
    rg_core_run(core, RG_KERNEL_ACTIVATE, T, 1, low_rows, &job);
    rg_input_set(&in, s->low, T, hp->n_hc_rank, &s->act);
    rg_core_mul(core, &in, &(rg_product){&w->up, s->mix}, 1);
    rg_timing_expect(core->timing, RG_KERNEL_MIX, RG_TIMING_NO_TYPE, 2 * wide, 0);
    rg_core_run(core, RG_KERNEL_MIX, T, 1, mix_rows, &job);
    return RG_OK;
}

static void write_rows(void *arg, size_t begin, size_t end, int thread) {
    const hc_job *job = arg;
    const rg_core *core = job->core;
    const uint32_t E = core->hp->n_embd, H = core->hp->n_hc;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        core->ops->axpy(core->s.inject[i], core->s.y + i / H * E, job->target + i * E, E);
    }
}

void rg_hc_write(rg_core *core, float *residual, uint32_t T) {
    hc_job job = {.core = core, .target = residual};
    rg_timing_part(core->timing, RG_PART_HC);
    rg_timing_expect(core->timing, RG_KERNEL_WRITE, RG_TIMING_NO_TYPE,
                     2 * sizeof(float) * T * core->hp->n_hc * core->hp->n_embd, 0);
    rg_core_run(core, RG_KERNEL_WRITE, (size_t)T * core->hp->n_hc, 1, write_rows, &job);
}
