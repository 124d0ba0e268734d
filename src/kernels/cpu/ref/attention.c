/* Attention over absolute spans of RG_SPAN positions (online softmax, Milakov and Gimelshein 2018),
 * and the block scores of the sparse selection.
 */
#include <math.h>

#include "kernels/cpu/levels.h"
#include "kernels/cpu/ref/math_inline.h"

/* Running maximum, sum and output of the spans so far, merged in ascending order. */
typedef struct span_state {
    float m, l;
} span_state;

static const void *cache_row(const rg_cache_view *c, uint32_t pos) {
    const size_t index = (size_t)pos * c->stride;
    if (c->f16) return (const uint16_t *)c->data + index;
    return (const float *)c->data + index;
}

/* f32 values of a cached row: the row itself, or converted into tmp. */
static const float *cache_f32(const rg_cache_view *c, uint32_t pos, uint32_t n, float *tmp) {
    if (!c->f16) return cache_row(c, pos);
    RG_OP(load)(cache_row(c, pos), true, tmp, n);
    return tmp;
}

static float sum_lanes(const float p[RG_SPAN]) {
    float acc[16];
    for (uint32_t l = 0; l < 16; l++)
        acc[l] = p[l];
    for (uint32_t i = 16; i < RG_SPAN; i += 16) {
        for (uint32_t l = 0; l < 16; l++)
            acc[l] += p[i + l];
    }
    for (uint32_t half = 8; half > 0; half /= 2) {
        for (uint32_t l = 0; l < half; l++)
            acc[l] += acc[l + half];
    }
    return acc[0];
}

/* An open span: scores, -inf where masked, and the allowed positions as bits. */
typedef struct span_scores {
    float *s; /* [RG_SPAN] */
    uint64_t live;
    uint32_t base; /* first position */
} span_scores;

/* Folds a finished span into the state and the output o. os, row: scratch [D]. */
static void merge_span(span_state *st, const span_scores *span, const rg_cache_view *v, uint32_t D,
                       float *restrict o, float *restrict os, float *row) {
    float *s = span->s;
    float ms = -INFINITY;
    for (uint32_t i = 0; i < RG_SPAN; i++)
        ms = s[i] > ms ? s[i] : ms;
    for (uint32_t i = 0; i < RG_SPAN; i++)
        s[i] = rg_expf(s[i] - ms);
    for (uint32_t c = 0; c < D; c++)
        os[c] = 0.0f;
    for (uint32_t i = 0; i < RG_SPAN; i++) {
        if (span->live >> i & 1) {
            RG_OP(axpy)(s[i], cache_f32(v, span->base + i, D, row), os, D);
        } else {
            s[i] = 0.0f;
        }
    }
    const float ls = sum_lanes(s);
    const float M = st->m > ms ? st->m : ms;
    const float a = rg_expf(st->m - M), b = rg_expf(ms - M);
    st->l = fmaf(st->l, a, ls * b);
    for (uint32_t c = 0; c < D; c++)
        o[c] = fmaf(o[c], a, os[c] * b);
    st->m = M;
}

/* tmp: scores [RG_SPAN], span output [D], row [D]. */
static void attend_head(const float *q, const rg_cache_view *k, const rg_cache_view *v, uint32_t D,
                        float scale, const uint32_t *run_first, const uint32_t *run_count,
                        uint32_t n_run, float *o, float *tmp) {
    float *os = tmp + RG_SPAN, *row = os + D;
    span_scores span = {.s = tmp, .base = UINT32_MAX};
    span_state st = {.m = -INFINITY, .l = 0.0f};
    for (uint32_t c = 0; c < D; c++)
        o[c] = 0.0f;
    for (uint32_t r = 0; r < n_run; r++) {
        for (uint32_t j = 0; j < run_count[r]; j++) {
            const uint32_t pos = run_first[r] + j;
            const uint32_t base = pos - pos % RG_SPAN;
            if (base != span.base) {
                if (span.live) merge_span(&st, &span, v, D, o, os, row);
                for (uint32_t i = 0; i < RG_SPAN; i++)
                    span.s[i] = -INFINITY;
                span.live = 0;
                span.base = base;
            }
            span.s[pos - base] = RG_OP(dot)(q, cache_f32(k, pos, D, row), D) * scale;
            span.live |= (uint64_t)1 << (pos - base);
        }
    }
    if (span.live) merge_span(&st, &span, v, D, o, os, row);
    for (uint32_t c = 0; c < D; c++)
        o[c] /= st.l;
}

void RG_OP(attention)(const float *q, uint32_t n_q, const rg_cache_view *k, const rg_cache_view *v,
                      uint32_t D, float scale, const uint32_t *run_first, const uint32_t *run_count,
                      uint32_t n_run, float *o, float *tmp) {
    for (uint32_t h = 0; h < n_q; h++) {
        attend_head(q + (size_t)h * D, k, v, D, scale, run_first, run_count, n_run,
                    o + (size_t)h * D, tmp);
    }
}

void RG_OP(index_scores)(const float *q, uint32_t n_head, uint32_t D, const rg_cache_view *keys,
                         uint32_t b0, uint32_t b1, float *out, float *tmp) {
    for (uint32_t b = b0; b < b1; b++) {
        const float *key = cache_f32(keys, b, D, tmp);
        float sum = 0.0f;
        for (uint32_t h = 0; h < n_head; h++) {
            const float s = RG_OP(dot)(q + (size_t)h * D, key, D);
            sum += s > 0.0f ? s : 0.0f;
        }
        out[b] = sum;
    }
}
