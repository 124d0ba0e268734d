/* What the next layer's experts will be: its router applied to this layer's mixed input.
 *
 * A guess changes no answer, only what is read early, so the router that makes it may be coarse:
 * where experts stream, 8-bit copies (q8_0) of the routers are used. On the full model those of 48
 * layers are 67 MB instead of 252, read for every token.
 */
#include <string.h>

#include "engine/core.h"

#define Q8_BLOCK 32u

/* ---- routers -------------------------------------------------------------------------------- */

static bool is_copied(rg_type type, uint64_t n_in) {
    return n_in % Q8_BLOCK == 0 &&
           (type == RG_TYPE_F32 || type == RG_TYPE_F16 || type == RG_TYPE_BF16);
}

static size_t copied_row_bytes(uint64_t n_in) {
    return (size_t)(n_in / Q8_BLOCK) * sizeof(rg_block_q8_0);
}

uint64_t rg_ahead_bytes(const rg_model *m) {
    uint64_t sum = 0;
    for (uint32_t i = 1; i < m->hp.n_layer; i++) {
        const rg_tensor *t = m->layers[i].moe.router;
        if (is_copied(t->type, t->ne[0])) sum += copied_row_bytes(t->ne[0]) * t->ne[1];
    }
    return sum;
}

/* Describes the copy at *data, fills it and moves *data behind it; other types stay as they are. */
static rg_mat copy_of(const rg_mat *from, uint8_t **data, float *row) {
    if (!is_copied(from->type, from->n_in)) return *from;
    rg_mat to = *from;
    to.data = *data;
    to.type = RG_TYPE_Q8_0;
    to.row_bytes = copied_row_bytes(from->n_in);
    for (uint32_t r = 0; r < from->n_out; r++, *data += to.row_bytes) {
        rg_unpack_row(from->type, from->data + r * from->row_bytes, row, from->n_in);
        rg_quantize_row_q8_0(row, (void *)*data,
                             from->n_in); /* rows are even: aligned for blocks */
    }
    return to;
}

rg_code rg_ahead_open(rg_core *core, rg_status *st) {
    rg_ahead *a = &core->ahead;
    const uint32_t n_layer = core->hp->n_layer;
    a->memory_bytes = (size_t)rg_ahead_bytes(core->model);
    /* A device's command lists name the routers that it holds. */
    if (core->gpu || core->opt.io.lookahead == 0 || !a->memory_bytes) return RG_OK;
    a->routers = rg_alloc(n_layer, sizeof *a->routers, st);
    float *row = rg_alloc(core->hp->n_embd, sizeof *row, st);
    rg_code rc = a->routers && row ? rg_take_memory(&a->memory, a->memory_bytes, st) : RG_NOMEM;
    uint8_t *data = a->memory;
    for (uint32_t i = 1; i < n_layer && rc == RG_OK; i++) {
        RG_ASSERT(core->w.layers[i].moe.router.n_in == core->hp->n_embd);
        a->routers[i] = copy_of(&core->w.layers[i].moe.router, &data, row);
    }
    rg_free(row);
    return rc;
}

void rg_ahead_close(rg_core *core) {
    rg_free(core->ahead.routers);
    if (core->ahead.memory) rg_mem_unmap(core->ahead.memory, core->ahead.memory_bytes);
    core->ahead = (rg_ahead){0};
}

const rg_mat *rg_experts_next_router(const rg_core *core, uint32_t layer) {
    if (!core->stream && !core->trace) return NULL;
    if (core->opt.io.lookahead == 0) return NULL;
    if (layer + 1 >= core->hp->n_layer) return NULL; /* the draft block has another input */
    return core->ahead.routers ? &core->ahead.routers[layer + 1]
                               : &core->w.layers[layer + 1].moe.router;
}

const rg_mat *rg_experts_guess_router(const rg_core *core, uint32_t layer, uint32_t T) {
    const rg_mat *next = rg_experts_next_router(core, layer);
    /* A trace records guesses whether they are of use here or not. */
    if (!next || !core->stream || core->trace) return next;
    const bool wanted = rg_stream_wants_guesses(core->stream, layer + 1, rg_experts_mode(T));
    return wanted ? next : NULL;
}

/* ---- guesses -------------------------------------------------------------------------------- */

/* Rank by rank over the rows, each expert once. */
static uint32_t guess_decode(rg_core *core, uint32_t T) {
    rg_scratch *s = &core->s;
    const uint32_t X = core->hp->n_expert;
    const uint32_t k = X < RG_GUESSES_MAX ? X : RG_GUESSES_MAX;
    uint32_t top[RG_DECODE_ROWS][RG_GUESSES_MAX], n = 0;
    memset(s->guess_count, 0, X * sizeof *s->guess_count);
    for (uint32_t t = 0; t < T; t++)
        rg_top_k(s->ahead + (size_t)t * X, X, k, top[t]);
    for (uint32_t r = 0; r < k; r++) {
        for (uint32_t t = 0; t < T; t++) {
            const uint32_t e = top[t][r];
            if (s->guess_count[e]++ == 0) s->items[n++] = e;
        }
    }
    return n;
}

/* Every expert that a row would choose, most used first, then by index. */
static uint32_t guess_prefill(rg_core *core, uint32_t T) {
    rg_scratch *s = &core->s;
    const uint32_t X = core->hp->n_expert, K = core->hp->n_expert_used;
    uint32_t top[RG_EXPERT_USED_MAX], n = 0;
    memset(s->guess_count, 0, X * sizeof *s->guess_count);
    for (uint32_t t = 0; t < T; t++) {
        rg_top_k(s->ahead + (size_t)t * X, X, K, top);
        for (uint32_t k = 0; k < K; k++)
            s->guess_count[top[k]]++;
    }
    /* Counts as floats rank through the same selection as scores: ties by lower index. */
    for (uint32_t e = 0; e < X; e++) {
        s->ahead[e] = (float)s->guess_count[e];
        n += s->guess_count[e] > 0;
    }
    rg_top_k(s->ahead, X, n, s->items);
    return n;
}

void rg_experts_ahead(rg_core *core, uint32_t next_layer, uint32_t T) {
    const uint64_t begin = rg_timing_begin(core->timing);
    const rg_stream_mode mode = rg_experts_mode(T);
    const uint32_t n = mode == RG_MODE_DECODE ? guess_decode(core, T) : guess_prefill(core, T);
    if (core->trace) rg_trace_ahead(core->trace, next_layer, core->s.items, n, mode);
    if (!core->stream) return; /* a trace is being made: nobody times it */
    const uint32_t base = rg_stream_item(core->stream, next_layer, 0);
    for (uint32_t i = 0; i < n; i++)
        core->s.items[i] += base;
    rg_stream_ahead(core->stream, next_layer, core->s.items, n, UINT32_MAX, mode);
    rg_timing_end(core->timing, RG_KERNEL_PLAN, begin);
}
