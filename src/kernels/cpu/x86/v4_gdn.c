/* AVX-512 gated delta rule: bit-equal to the canonical form (cpu/ref/gdn.c). A panel of 64 columns
 * of the state passes twice a token, its sums in registers; left to a compiler they are written
 * back at every key, and the next key waits for them.
 */
#include "kernels/cpu/levels.h"
#include "kernels/cpu/x86/v4_types.h"

#define PANEL 64u /* columns */
#define LANES 16u
#define PARTS (PANEL / LANES)

/* One token on the panel at S. */
RG_INLINE void step(float *S, uint32_t D, const float *q, const float *k, const float *v,
                    float decay, float beta, float *o) {
    const __m512 keep = _mm512_set1_ps(decay), gain = _mm512_set1_ps(beta);
    __m512 m[PARTS], acc[PARTS], d[PARTS];
    for (uint32_t p = 0; p < PARTS; p++)
        m[p] = acc[p] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < D; i++) {
        float *row = S + (size_t)i * D;
        const __m512 key = _mm512_set1_ps(k[i]);
        for (uint32_t p = 0; p < PARTS; p++) {
            const __m512 s = _mm512_mul_ps(_mm512_loadu_ps(row + p * LANES), keep);
            _mm512_storeu_ps(row + p * LANES, s);
            m[p] = _mm512_fmadd_ps(s, key, m[p]);
        }
    }
    for (uint32_t p = 0; p < PARTS; p++)
        d[p] = _mm512_mul_ps(gain, _mm512_sub_ps(_mm512_loadu_ps(v + p * LANES), m[p]));
    for (uint32_t i = 0; i < D; i++) {
        float *row = S + (size_t)i * D;
        const __m512 key = _mm512_set1_ps(k[i]), query = _mm512_set1_ps(q[i]);
        for (uint32_t p = 0; p < PARTS; p++) {
            const __m512 s = _mm512_fmadd_ps(key, d[p], _mm512_loadu_ps(row + p * LANES));
            _mm512_storeu_ps(row + p * LANES, s);
            acc[p] = _mm512_fmadd_ps(s, query, acc[p]);
        }
    }
    for (uint32_t p = 0; p < PARTS; p++)
        _mm512_storeu_ps(o + p * LANES, acc[p]);
}

void rg_v4_gdn_steps(float *S, uint32_t D, const float *q, const float *k, size_t qk_stride,
                     const float *v, size_t v_stride, const float *decay, const float *beta,
                     size_t n_head, float *o, size_t o_stride, uint32_t T) {
    if (D % PANEL != 0) {
        rg_gdn_steps_v4(S, D, q, k, qk_stride, v, v_stride, decay, beta, n_head, o, o_stride, T);
        return;
    }
    for (uint32_t c = 0; c < D; c += PANEL) {
        for (size_t t = 0; t < T; t++) {
            step(S + c, D, q + t * qk_stride, k + t * qk_stride, v + t * v_stride + c,
                 decay[t * n_head], beta[t * n_head], o + t * o_stride + c);
        }
    }
}
