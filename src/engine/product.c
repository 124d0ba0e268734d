/* Products of the window's rows with weight matrices, spread over output rows. */
#include "engine/core.h"

#define ROW_GRAIN 16u /* output rows a thread takes at once: one cache line of results */

void rg_input_set(rg_input *in, const float *x, uint32_t T, uint32_t n_in, rg_act_buffer *buffer) {
    *in = (rg_input){.x = x, .T = T, .n_in = n_in, .buffer = buffer};
}

typedef struct quantize_job {
    const rg_core *core;
    const rg_input *in;
    rg_act_form form;
} quantize_job;

static uint32_t form_span(rg_act_form form) {
    return form == RG_ACT_Q256 ? 256 : 32;
}

static void quantize_rows(void *arg, size_t begin, size_t end, int thread) {
    const quantize_job *job = arg;
    const rg_input *in = job->in;
    const size_t n = in->n_in;
    const rg_act_buffer *b = in->buffer;
    (void)thread;
    for (size_t t = begin; t < end; t++) {
        job->core->ops->quantize(job->form, in->x + t * n, in->n_in, b->codes[job->form] + t * n,
                                 b->scales[job->form] + t * (n / form_span(job->form)),
                                 b->sums[job->form] + t * (n / 16));
    }
}

rg_act rg_input_as(rg_core *core, rg_input *in, rg_type type) {
    const rg_act_form form = rg_act_form_of(type, core->opt.kernels);
    rg_act act = {.form = form, .n_in = in->n_in, .f32 = in->x};
    if (form == RG_ACT_F32) return act;
    if (!in->ready[form]) {
        quantize_job job = {.core = core, .in = in, .form = form};
        rg_core_run(core, RG_KERNEL_QUANTIZE, in->T, 1, quantize_rows, &job);
        in->ready[form] = true;
    }
    act.codes = in->buffer->codes[form];
    act.scales = in->buffer->scales[form];
    act.sums = in->buffer->sums[form];
    return act;
}

typedef struct mul_job {
    rg_core *core;
    const rg_product *products;
    const rg_act *acts;
    uint32_t n, T;
} mul_job;

/* Tasks are the output rows of all products in turn. */
static void mul_rows(void *arg, size_t begin, size_t end, int thread) {
    const mul_job *job = arg;
    size_t first = 0;
    for (uint32_t i = 0; i < job->n && first < end; i++) {
        const rg_product *p = &job->products[i];
        const size_t last = first + p->w->n_out;
        const size_t r0 = begin > first ? begin : first;
        const size_t r1 = end < last ? end : last;
        if (r0 < r1) {
            job->core->ops->mul(p->w, (uint32_t)(r0 - first), (uint32_t)(r1 - first), &job->acts[i],
                                NULL, NULL, job->T, p->y, p->w->n_out,
                                job->core->threads[thread].mul);
            rg_timing_lap(job->core->timing, thread, i);
        }
        first = last;
    }
}

void rg_core_mul(rg_core *core, rg_input *in, const rg_product *products, uint32_t n) {
    RG_ASSERT(n <= RG_PRODUCTS_MAX);
    rg_act acts[RG_PRODUCTS_MAX];
    size_t rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        RG_ASSERT(products[i].w->n_in == in->n_in);
        acts[i] = rg_input_as(core, in, products[i].w->type);
        rows += products[i].w->n_out;
    }
    for (uint32_t i = 0; i < n; i++) {
        rg_timing_expect_products(core->timing, products[i].w, 1, in->T, acts[i].form);
    }
    mul_job job = {.core = core, .products = products, .acts = acts, .n = n, .T = in->T};
    rg_core_run(core, RG_KERNEL_PRODUCT, rows, ROW_GRAIN, mul_rows, &job);
    for (uint32_t i = 0; i < n && core->importance; i++) {
        if (products[i].y == core->s.ahead) continue; /* a guess with another layer's router */
        rg_importance_see(core->importance, products[i].w, 0, in->x, in->n_in, NULL, in->T);
    }
}
