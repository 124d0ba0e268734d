/* The canonical f32 dot: 16 accumulators by element index, then a fixed tree. */
#include <math.h>

#include "kernels/cpu/levels.h"

#define LANES 16u

static float tree(float acc[LANES]) {
    for (uint32_t half = LANES / 2; half > 0; half /= 2) {
        for (uint32_t l = 0; l < half; l++)
            acc[l] += acc[l + half];
    }
    return acc[0];
}

float RG_OP(dot)(const float *restrict a, const float *restrict b, uint32_t n) {
    float acc[LANES] = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (uint32_t l = 0; l < LANES; l++)
            acc[l] = fmaf(a[i + l], b[i + l], acc[l]);
    }
    for (uint32_t l = 0; i < n; i++, l++)
        acc[l] = fmaf(a[i], b[i], acc[l]);
    return tree(acc);
}

/* Four dots that share w: the same sums, with the loads of w and the fma latency shared. */
void RG_OP(dot_4)(const float *restrict w, const float *const x[4], uint32_t n, float out[4]) {
    float a0[LANES] = {0}, a1[LANES] = {0}, a2[LANES] = {0}, a3[LANES] = {0};
    const float *restrict x0 = x[0], *restrict x1 = x[1];
    const float *restrict x2 = x[2], *restrict x3 = x[3];
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (uint32_t l = 0; l < LANES; l++) {
            a0[l] = fmaf(w[i + l], x0[i + l], a0[l]);
            a1[l] = fmaf(w[i + l], x1[i + l], a1[l]);
            a2[l] = fmaf(w[i + l], x2[i + l], a2[l]);
            a3[l] = fmaf(w[i + l], x3[i + l], a3[l]);
        }
    }
    for (uint32_t l = 0; i < n; i++, l++) {
        a0[l] = fmaf(w[i], x0[i], a0[l]);
        a1[l] = fmaf(w[i], x1[i], a1[l]);
        a2[l] = fmaf(w[i], x2[i], a2[l]);
        a3[l] = fmaf(w[i], x3[i], a3[l]);
    }
    out[0] = tree(a0);
    out[1] = tree(a1);
    out[2] = tree(a2);
    out[3] = tree(a3);
}

float RG_OP(sum_squares)(const float *x, uint32_t n) {
    float acc[LANES] = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (uint32_t l = 0; l < LANES; l++)
            acc[l] = fmaf(x[i + l], x[i + l], acc[l]);
    }
    for (uint32_t l = 0; i < n; i++, l++)
        acc[l] = fmaf(x[i], x[i], acc[l]);
    return tree(acc);
}
