/* The reference sources are compiled once per instruction level; RG_LEVEL (scalar, v3, v4, neon)
 * comes from the build and keeps their symbols apart.
 */
#ifndef RG_KERNELS_LEVELS_H
#define RG_KERNELS_LEVELS_H

#include "kernels/kernels.h"

#define RG_OP_PASTE(name, level)  rg_##name##_##level
#define RG_OP_EXPAND(name, level) RG_OP_PASTE(name, level)
#define RG_OP(name)               RG_OP_EXPAND(name, RG_LEVEL)

#ifdef RG_LEVEL
/* dot.c */
float RG_OP(dot)(const float *a, const float *b, uint32_t n);
void RG_OP(dot_4)(const float *w, const float *const x[4], uint32_t n, float out[4]);
float RG_OP(sum_squares)(const float *x, uint32_t n);
/* convert.c */
void RG_OP(store)(const float *x, void *dst, bool f16, uint32_t n);
void RG_OP(load)(const void *src, bool f16, float *y, uint32_t n);
/* codes.c: one row of quantised weights with sub-scales multiplied in. */
typedef struct rg_codes {
    int16_t *q;    /* [n_in] code * sub-scale, exact */
    float *d;      /* [n_in / span] */
    float *m;      /* [n_in / span] factor of the minima */
    int16_t *mins; /* [n_in / 16] minimum codes */
    uint32_t span; /* values of a scale block */
    bool has_mins;
} rg_codes;
void RG_OP(codes_unpack)(rg_type type, const uint8_t *row, uint32_t n_in, rg_codes *out);
/* mul.c */
void RG_OP(mul)(const rg_mat *w, uint32_t r0, uint32_t r1, const rg_act *x, const uint32_t *x_rows,
                const uint32_t *y_rows, uint32_t n, float *y, size_t y_stride, void *scratch);
/* quantize.c */
void RG_OP(quantize)(rg_act_form form, const float *x, uint32_t n, int8_t *codes, float *scales,
                     int16_t *sums);
/* elementwise.c */
float RG_OP(rms_norm)(const float *x, const float *w, float *y, uint32_t n, float eps);
void RG_OP(l2_norm)(const float *x, float *y, uint32_t n, float eps, float scale);
void RG_OP(silu_div)(const float *x, float *y, uint32_t n, float div);
void RG_OP(silu_mul)(const float *g, const float *u, float *y, uint32_t n);
void RG_OP(sigmoid_mul)(const float *x, const float *g, float *y, uint32_t n);
void RG_OP(sigmoid)(const float *x, float *y, uint32_t n);
void RG_OP(gdn_decay)(const float *x, const float *dt, const float *a, float *decay, uint32_t n);
void RG_OP(hc_mix)(const float *gate, const float *n, float *u, uint32_t n_hc, uint32_t n_embd);
void RG_OP(axpy)(float w, const float *x, float *y, uint32_t n);
void RG_OP(add)(const float *x, float *y, uint32_t n);
void RG_OP(route_weights)(const float *logits, const uint32_t *ids, uint32_t k, float scale,
                          float *w);
void RG_OP(conv_silu)(const float *w, const float *const *tap, uint32_t n_tap, float *y,
                      uint32_t n);
void RG_OP(rope)(float *x, const float *cs, uint32_t n_rot);
/* gdn.c */
void RG_OP(gdn_steps)(float *S, uint32_t D, const float *q, const float *k, size_t qk_stride,
                      const float *v, size_t v_stride, const float *decay, const float *beta,
                      size_t n_head, float *o, size_t o_stride, uint32_t T);
/* attention.c */
void RG_OP(attention)(const float *q, uint32_t n_q, const rg_cache_view *k, const rg_cache_view *v,
                      uint32_t D, float scale, const uint32_t *run_first, const uint32_t *run_count,
                      uint32_t n_run, float *o, float *tmp);
void RG_OP(index_scores)(const float *q, uint32_t n_head, uint32_t D, const rg_cache_view *keys,
                         uint32_t b0, uint32_t b1, float *out, float *tmp);
#endif

/* Faster forms of one level, bit-equal to the reference ones. */
void rg_v3_mul(const rg_mat *w, uint32_t r0, uint32_t r1, const rg_act *x, const uint32_t *x_rows,
               const uint32_t *y_rows, uint32_t n, float *y, size_t y_stride, void *scratch);
void rg_v4_mul(const rg_mat *w, uint32_t r0, uint32_t r1, const rg_act *x, const uint32_t *x_rows,
               const uint32_t *y_rows, uint32_t n, float *y, size_t y_stride, void *scratch);
void rg_v4_attention(const float *q, uint32_t n_q, const rg_cache_view *k, const rg_cache_view *v,
                     uint32_t D, float scale, const uint32_t *run_first, const uint32_t *run_count,
                     uint32_t n_run, float *o, float *tmp);
void rg_v4_gdn_steps(float *S, uint32_t D, const float *q, const float *k, size_t qk_stride,
                     const float *v, size_t v_stride, const float *decay, const float *beta,
                     size_t n_head, float *o, size_t o_stride, uint32_t T);
void rg_neon_mul(const rg_mat *w, uint32_t r0, uint32_t r1, const rg_act *x, const uint32_t *x_rows,
                 const uint32_t *y_rows, uint32_t n, float *y, size_t y_stride, void *scratch);
/* int8_peak of a level. */
uint64_t rg_v3_int8_peak(uint64_t turns, int32_t *sink);
uint64_t rg_v4_int8_peak(uint64_t turns, int32_t *sink);
void rg_v4_index_scores(const float *q, uint32_t n_head, uint32_t D, const rg_cache_view *keys,
                        uint32_t b0, uint32_t b1, float *out, float *tmp);
/* The reference forms that they fall back to. */
void rg_index_scores_v4(const float *q, uint32_t n_head, uint32_t D, const rg_cache_view *keys,
                        uint32_t b0, uint32_t b1, float *out, float *tmp);
void rg_attention_v4(const float *q, uint32_t n_q, const rg_cache_view *k, const rg_cache_view *v,
                     uint32_t D, float scale, const uint32_t *run_first, const uint32_t *run_count,
                     uint32_t n_run, float *o, float *tmp);
void rg_gdn_steps_v4(float *S, uint32_t D, const float *q, const float *k, size_t qk_stride,
                     const float *v, size_t v_stride, const float *decay, const float *beta,
                     size_t n_head, float *o, size_t o_stride, uint32_t T);
void rg_mul_v3(const rg_mat *w, uint32_t r0, uint32_t r1, const rg_act *x, const uint32_t *x_rows,
               const uint32_t *y_rows, uint32_t n, float *y, size_t y_stride, void *scratch);
void rg_mul_v4(const rg_mat *w, uint32_t r0, uint32_t r1, const rg_act *x, const uint32_t *x_rows,
               const uint32_t *y_rows, uint32_t n, float *y, size_t y_stride, void *scratch);
void rg_mul_neon(const rg_mat *w, uint32_t r0, uint32_t r1, const rg_act *x, const uint32_t *x_rows,
                 const uint32_t *y_rows, uint32_t n, float *y, size_t y_stride, void *scratch);

extern const rg_ops rg_ops_table_scalar;
extern const rg_ops rg_ops_table_v3;
extern const rg_ops rg_ops_table_v4;
extern const rg_ops rg_ops_table_neon;

#endif
