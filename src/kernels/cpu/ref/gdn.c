/* The gated delta rule token by token (spec 4.2; Yang et al. 2024): two passes over the head's
 * state a token, columns in lanes, keys ascending.
 */
#include <math.h>

#include "kernels/cpu/levels.h"

#define COLUMNS 64u /* columns held in registers through both passes */

/* One token, columns [c0, c0 + n) of the state, n <= COLUMNS. */
static void step_columns(float *restrict S, uint32_t D, uint32_t n, const float *restrict q,
                         const float *restrict k, const float *restrict v, float decay, float beta,
                         float *restrict o) {
    float m[COLUMNS] = {0}, d[COLUMNS], acc[COLUMNS] = {0};
    for (uint32_t i = 0; i < D; i++) {
        float *restrict row = S + (size_t)i * D;
        for (uint32_t c = 0; c < n; c++) {
            row[c] *= decay;
            m[c] = fmaf(row[c], k[i], m[c]);
        }
    }
    for (uint32_t c = 0; c < n; c++)
        d[c] = beta * (v[c] - m[c]);
    for (uint32_t i = 0; i < D; i++) {
        float *restrict row = S + (size_t)i * D;
        for (uint32_t c = 0; c < n; c++) {
            row[c] = fmaf(k[i], d[c], row[c]);
            acc[c] = fmaf(row[c], q[i], acc[c]);
        }
    }
    for (uint32_t c = 0; c < n; c++)
        o[c] = acc[c];
}

void RG_OP(gdn_steps)(float *S, uint32_t D, const float *q, const float *k, size_t qk_stride,
                      const float *v, size_t v_stride, const float *decay, const float *beta,
                      size_t n_head, float *o, size_t o_stride, uint32_t T) {
    for (uint32_t c0 = 0; c0 < D; c0 += COLUMNS) {
        const uint32_t n = D - c0 < COLUMNS ? D - c0 : COLUMNS;
        for (uint32_t t = 0; t < T; t++) {
            const float *qt = q + t * qk_stride, *kt = k + t * qk_stride;
            const float *vt = v + t * v_stride + c0;
            float *ot = o + t * o_stride + c0;
            /* The full width as a constant lets the compiler keep the lanes in registers. */
            if (n == COLUMNS) {
                step_columns(S + c0, D, COLUMNS, qt, kt, vt, decay[t * n_head], beta[t * n_head],
                             ot);
            } else {
                step_columns(S + c0, D, n, qt, kt, vt, decay[t * n_head], beta[t * n_head], ot);
            }
        }
    }
}
