/* Products of the window's rows with weight matrices, spread over output rows. */
#include "engine/core.h"

#define ROW_GRAIN  16u /* output rows a thread takes at once: one cache line of results */
#define ROW_TILE   64u /* those of a tile of the wide products */
#define UNIT_BYTES ((size_t)4096)

void rg_input_set(rg_input *in, const float *x, uint32_t T, uint32_t n_in, rg_act_buffer *buffer) {
    *in = (rg_input){.x = x, .T = T, .n_in = n_in, .buffer = buffer};
}

void rg_input_mixed(rg_core *core, rg_input *in, uint32_t T) {
    *in = (rg_input){.x = core->s.u, .T = T, .n_in = core->hp->n_embd, .buffer = &core->s.act};
    for (int form = 0; form < RG_ACT_FORMS; form++)
        in->ready[form] = (core->u_forms >> form & 1u) != 0;
}

rg_act rg_act_in(const rg_act_buffer *b, rg_act_form form, const float *f32, uint32_t n_in) {
    rg_act act = {.form = form, .n_in = n_in, .f32 = f32};
    if (form == RG_ACT_F32) return act;
    act.codes = b->codes[form];
    act.scales = b->scales[form];
    act.sums = b->sums[form];
    return act;
}

uint32_t rg_act_span(rg_act_form form) {
    return form == RG_ACT_Q256 ? 256 : form == RG_ACT_Q32 ? 32 : 1;
}

uint32_t rg_forms_that_fit(uint32_t forms, uint32_t n) {
    uint32_t fit = 0;
    for (int form = RG_ACT_Q32; form <= RG_ACT_Q256; form++) {
        if (n % rg_act_span((rg_act_form)form) == 0) fit |= forms & 1u << form;
    }
    return fit;
}

void rg_quantize_part(const rg_core *core, uint32_t forms, const float *x, const rg_act_buffer *b,
                      size_t row, size_t n, size_t from, uint32_t count) {
    for (int form = RG_ACT_Q32; form <= RG_ACT_Q256; form++) {
        const size_t span = rg_act_span((rg_act_form)form);
        if (!(forms >> form & 1u)) continue;
        core->ops->quantize((rg_act_form)form, x + from, count, b->codes[form] + row * n + from,
                            b->scales[form] + (row * n + from) / span,
                            b->sums[form] + (row * n + from) / 16);
    }
}

typedef struct quantize_job {
    const rg_core *core;
    const rg_input *in;
    rg_act_form form;
} quantize_job;

static void quantize_rows(void *arg, size_t begin, size_t end, int thread) {
    const quantize_job *job = arg;
    const rg_input *in = job->in;
    (void)thread;
    for (size_t t = begin; t < end; t++) {
        rg_quantize_part(job->core, 1u << job->form, in->x + t * in->n_in, in->buffer, t, in->n_in,
                         0, in->n_in);
    }
}

rg_act rg_input_as(rg_core *core, rg_input *in, rg_type type) {
    const rg_act_form form = rg_act_form_of(type, core->opt.kernels);
    if (form != RG_ACT_F32 && !in->ready[form]) {
        quantize_job job = {.core = core, .in = in, .form = form};
        rg_core_run(core, RG_KERNEL_QUANTIZE, in->T, 1, quantize_rows, &job);
        in->ready[form] = true;
    }
    return rg_act_in(in->buffer, form, in->x, in->n_in);
}

typedef struct mul_job {
    rg_core *core;
    const rg_product *products;
    const rg_act *acts;
    uint32_t n, T;
} mul_job;

/* What threads divide are units of weight bytes, so that a row of f32 weighs as much as its bytes.
 * A share begins at a row that is a multiple of the grain. */
static size_t units_of(const rg_mat *w) {
    return ((size_t)w->n_out * w->row_bytes + UNIT_BYTES - 1) / UNIT_BYTES;
}

static uint32_t row_at(const rg_mat *w, size_t unit, size_t units, uint32_t grain) {
    if (unit >= units) return w->n_out;
    const uint32_t row = (uint32_t)((uint64_t)w->n_out * unit / units);
    return row - row % grain;
}

/* Tasks are the units of all products in turn. */
static void mul_rows(void *arg, size_t begin, size_t end, int thread) {
    const mul_job *job = arg;
    const uint32_t grain = job->T > RG_DECODE_ROWS ? ROW_TILE : ROW_GRAIN;
    size_t first = 0;
    for (uint32_t i = 0; i < job->n && first < end; i++) {
        const rg_product *p = &job->products[i];
        const size_t units = units_of(p->w), last = first + units;
        const uint32_t r0 = begin > first ? row_at(p->w, begin - first, units, grain) : 0;
        const uint32_t r1 = row_at(p->w, end - first, units, grain);
        if (begin < last && r0 < r1) {
            job->core->ops->mul(p->w, r0, r1, &job->acts[i], NULL, NULL, job->T, p->y, p->w->n_out,
                                job->core->threads[thread].mul);
            rg_timing_lap(job->core->timing, thread, i);
        }
        first = last;
    }
}

void rg_core_mul(rg_core *core, rg_input *in, const rg_product *products, uint32_t n) {
    RG_ASSERT(n <= RG_PRODUCTS_MAX);
    rg_act acts[RG_PRODUCTS_MAX];
    size_t units = 0;
    for (uint32_t i = 0; i < n; i++) {
        RG_ASSERT(products[i].w->n_in == in->n_in);
        acts[i] = rg_input_as(core, in, products[i].w->type);
        units += units_of(products[i].w);
    }
    for (uint32_t i = 0; i < n; i++) {
        rg_timing_expect_products(core->timing, products[i].w, 1, in->T, acts[i].form);
    }
    mul_job job = {.core = core, .products = products, .acts = acts, .n = n, .T = in->T};
    rg_core_run(core, RG_KERNEL_PRODUCT, units, 1, mul_rows, &job);
    for (uint32_t i = 0; i < n && core->importance; i++) {
        if (products[i].y == core->s.ahead) continue; /* a guess with another layer's router */
        rg_importance_see(core->importance, products[i].w, 0, in->x, in->n_in, NULL, in->T);
    }
}
