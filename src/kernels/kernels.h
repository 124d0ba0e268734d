/* kernels: the arithmetic of the model on the CPU, one op contract for every instruction level; and
 * on a GPU (kernels/gpu/gpu_ops.h, part of this door).
 *
 * Canonical arithmetic (the exactness charter). Each op below fixes every rounding: which products
 * are exact integers, which operations are fused, in which order sums run. Every level computes
 * exactly that, so results are equal bit for bit on all levels, for any number of rows and threads.
 *
 *  - Dot, quantised weights: per scale block (256 or 32 values; 16 for nvfp4) the exact integer sum
 *    `total` of code * sub-scale * activation code, then acc = fma(d_w * d_x, (float)total, acc),
 *    blocks in ascending order from acc = 0. Formats with minima follow each block with
 *    acc = fma(m_w * d_x, (float)mtotal, acc), mtotal = sum of min code * activation code.
 *  - Dot, f32/f16/bf16 weights: 16 accumulators, acc[i % 16] = fma(w[i], x[i], acc[i % 16]), then
 *    the tree acc[l] += acc[l + 8], + 4, + 2, + 1. All sums of squares and score dots use it too.
 *  - exp, sigmoid, softplus: own polynomials (math_inline.h), the same operations in every lane.
 *  - fma means one rounding; nothing else is contracted (-ffp-contract=off).
 *
 * CPU kernels return nothing: their callers checked the shapes. They allocate nothing and may run
 * on several threads at once on disjoint outputs.
 */
#ifndef RG_KERNELS_H
#define RG_KERNELS_H

#include "base/base.h"
#include "kernels/gpu/gpu_measure.h"
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/gpu_tiles.h"
#include "quant/quant.h"

/* A weight matrix in memory: n_out rows of n_in values. */
typedef struct rg_mat {
    const uint8_t *data; /* borrowed; NULL = absent */
    rg_type type;
    uint32_t n_out, n_in;
    size_t row_bytes;
} rg_mat;

/* How the activations of a product are stored. */
typedef enum rg_act_form {
    RG_ACT_F32,  /* as they are */
    RG_ACT_Q32,  /* 8-bit codes, one scale per 32 (the q8_0 rule) */
    RG_ACT_Q256, /* 8-bit codes, one scale per 256 (the q8_K rule) */
    RG_ACT_FORMS
} rg_act_form;

/* Rows of activations in one form. Borrowed. */
typedef struct rg_act {
    rg_act_form form;
    uint32_t n_in;
    const float *f32;    /* [n_row][n_in], RG_ACT_F32 */
    const int8_t *codes; /* [n_row][n_in] */
    const float *scales; /* [n_row][n_in / 32 or / 256] */
    const int16_t *sums; /* [n_row][n_in / 16], sums of 16 codes */
} rg_act;

/* The form a product with weights of this type takes: RG_ACT_F32 for every type in the float
 * reference, else by the block size of the type. */
rg_act_form rg_act_form_of(rg_type type, rg_kernel_set set);

/* Bytes of scratch one thread needs for rg_ops.mul with rows of up to `n_in` values. */
size_t rg_mul_scratch_bytes(uint32_t n_in);

/* Query heads of one call of attention. */
#define RG_ATTENTION_HEADS 16u
/* Positions of one attention span (charter clause 4). */
#define RG_SPAN 64u

/* Cached rows of keys or values: f16 (uint16_t) or f32, row-major. */
typedef struct rg_cache_view {
    const void *data; /* [n_pos][stride] */
    bool f16;
    size_t stride; /* elements from one position to the next */
} rg_cache_view;

/* One level's implementation. Tensor letters: T rows (tokens), E n_embd, S streams, D head size. */
typedef struct rg_ops {
    rg_cpu_level level;

    /* y[out][r] = row r of w . activation row in, for r in [r0, r1) and i in [0, n): in = x_rows[i]
     * (i when NULL), out = y_rows[i] (i when NULL). y has `y_stride` floats a row. `scratch` as
     * rg_mul_scratch_bytes says, 64-byte aligned. */
    void (*mul)(const rg_mat *w, uint32_t r0, uint32_t r1, const rg_act *x, const uint32_t *x_rows,
                const uint32_t *y_rows, uint32_t n, float *y, size_t y_stride, void *scratch);

    /* Quantises one row of n values (a multiple of 32 or 256): codes [n], scales, sums [n / 16]. */
    void (*quantize)(rg_act_form form, const float *x, uint32_t n, int8_t *codes, float *scales,
                     int16_t *sums);

    /* Sum of products in the canonical order. */
    float (*dot)(const float *a, const float *b, uint32_t n);

    /* y[i] = x[i] * (1 / sqrt(sum(x^2) / n + eps)) * w[i]; w NULL: without weight. Returns the mean
     * square, which is not finite when an input is not. */
    float (*rms_norm)(const float *x, const float *w, float *y, uint32_t n, float eps);
    /* y = x / sqrt(sum(x^2) + eps), then times `scale`. */
    void (*l2_norm)(const float *x, float *y, uint32_t n, float eps, float scale);

    /* y[i] = silu(x[i] / div). */
    void (*silu_div)(const float *x, float *y, uint32_t n, float div);
    /* y[i] = silu(g[i]) * u[i]. */
    void (*silu_mul)(const float *g, const float *u, float *y, uint32_t n);
    /* y[i] = x[i] * sigmoid(g[i]). */
    void (*sigmoid_mul)(const float *x, const float *g, float *y, uint32_t n);
    /* y[i] = sigmoid(x[i]). */
    void (*sigmoid)(const float *x, float *y, uint32_t n);
    /* decay[i] = exp(a[i] * softplus(x[i] + dt[i])). */
    void (*gdn_decay)(const float *x, const float *dt, const float *a, float *decay, uint32_t n);

    /* Hyper-connection mix: u[i] = (sum over s ascending of sigmoid(gate[s][i]) * n[s][i]) / S, the
     * first term a product, each further one fused, for `count` columns. Streams are `gate_stride`
     * and `n_stride` floats apart. */
    void (*hc_mix)(const float *gate, size_t gate_stride, const float *n, size_t n_stride, float *u,
                   uint32_t n_hc, uint32_t count);
    /* y[i] = fma(w, x[i], y[i]). */
    void (*axpy)(float w, const float *x, float *y, uint32_t n);
    /* y[i] += x[i]. */
    void (*add)(const float *x, float *y, uint32_t n);

    /* Softmax weights of the chosen experts: p = exp(l - l of ids[0]), w = p / (sum of p, ascending
     * k) * scale. */
    void (*route_weights)(const float *logits, const uint32_t *ids, uint32_t k, float scale,
                          float *w);

    /* One step of a causal depthwise convolution over channels [0, n), then silu: y[c] = silu(sum
     * over k ascending of w[c * n_tap + k] * tap[k][c]), first term a product, the rest fused.
     * tap[k]: the input row k (oldest first), NULL = zeros (term skipped). */
    void (*conv_silu)(const float *w, const float *const *tap, uint32_t n_tap, float *y,
                      uint32_t n);

    /* Gated delta rule (spec 4.2, 6), one value head, T tokens in order. State S[D key][D value]:
     *   S *= decay; m = S^T k; d = beta * (v - m); S += k d^T; o = S^T q
     * m and o: one accumulator a column, keys ascending, fused; S: fma(k, d, S). Rows of q, k, v, o
     * are `qk_stride`, `v_stride`, `o_stride` floats apart, decay and beta `n_head`. */
    void (*gdn_steps)(float *S, uint32_t D, const float *q, const float *k, size_t qk_stride,
                      const float *v, size_t v_stride, const float *decay, const float *beta,
                      size_t n_head, float *o, size_t o_stride, uint32_t T);

    /* Rotates the first n_rot values of x: pairs (i, i + n_rot/2), cs = cos[n_rot/2], sin[n_rot/2]:
     * x' = fma(x, cos, -(y * sin)), y' = fma(y, cos, x * sin). */
    void (*rope)(float *x, const float *cs, uint32_t n_rot);

    /* Attention of n_q <= RG_ATTENTION_HEADS query heads on the same keys, over absolute spans
     * (charter clause 4). q, o: [n_q][D]. The allowed keys are runs in ascending position: run b
     * covers [first, first + count). Each head for itself, for each span: score = dot * scale, m =
     * max, p = exp(score - m), l = lane sums of p by position mod 16 then the tree, o = fma(p, v,
     * o) ascending. Spans merge ascending: M = max(m, ms), a = exp(m - M), b = exp(ms - M), l =
     * fma(l, a, ls * b), o = fma(o, a, os * b). Result o / l.
     */
    void (*attention)(const float *q, uint32_t n_q, const rg_cache_view *k, const rg_cache_view *v,
                      uint32_t D, float scale, const uint32_t *run_first, const uint32_t *run_count,
                      uint32_t n_run, float *o, float *tmp);

    /* Scores of indexer blocks [b0, b1): out[b] = sum over heads ascending of max(0, q_h . key_b)
     * (plain additions). q: [n_head][D]. */
    void (*index_scores)(const float *q, uint32_t n_head, uint32_t D, const rg_cache_view *keys,
                         uint32_t b0, uint32_t b1, float *out, float *tmp);

    /* To and from the cache type. */
    void (*store)(const float *x, void *dst, bool f16, uint32_t n);
    void (*load)(const void *src, bool f16, float *y, uint32_t n);

    /* A measuring stick: `turns` rounds of int8 multiply-adds into int32 that touch no memory, as
     * fast as the level can. Returns how many there were; *sink holds a sum of them. NULL where a
     * level has none. */
    uint64_t (*int8_peak)(uint64_t turns, int32_t *sink);
} rg_ops;

/* Floats of `tmp` that attention and index_scores need for head size D. */
#define RG_ATTENTION_TMP(D) ((size_t)3 * (D) + (size_t)RG_ATTENTION_HEADS * RG_SPAN + 64u)

/* The table of a level that this machine runs (rg_cpu_level_pick). A level without own kernels
 * gives the nearest weaker one. */
const rg_ops *rg_ops_get(rg_cpu_level level);

/* cos and sin of pos * inv_freq[i], i < n_pair, into cs[0..n_pair) and cs[n_pair..2*n_pair). Angles
 * and series in double; the same on every level. */
void rg_rope_table(float *cs, const double *inv_freq, uint32_t n_pair, uint64_t pos);

/* Indices of the k largest of n scores into out[k], best first: higher score, then lower index. NaN
 * ranks below everything. 0 < k <= n. */
void rg_top_k(const float *scores, uint32_t n, uint32_t k, uint32_t *out);
/* The same indices in ascending order, in time that does not depend on k. */
void rg_top_k_ascending(const float *scores, uint32_t n, uint32_t k, uint32_t *out);

#endif
