/* Norms, activations, hyper-connection mix, convolution, rotation: loops over independent lanes. */
#include <math.h>

#include "kernels/cpu/levels.h"
#include "kernels/cpu/ref/math_inline.h"

float RG_OP(rms_norm)(const float *x, const float *w, float *y, uint32_t n, float eps) {
    const float mean = RG_OP(sum_squares)(x, n) / (float)n;
    const float inv = 1.0f / sqrtf(mean + eps);
    if (w) {
        for (uint32_t i = 0; i < n; i++)
            y[i] = x[i] * inv * w[i];
    } else {
        for (uint32_t i = 0; i < n; i++)
            y[i] = x[i] * inv;
    }
    return mean;
}

void RG_OP(l2_norm)(const float *x, float *y, uint32_t n, float eps, float scale) {
    const float inv = 1.0f / sqrtf(RG_OP(sum_squares)(x, n) + eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * inv * scale;
}

void RG_OP(silu_div)(const float *x, float *y, uint32_t n, float div) {
    for (uint32_t i = 0; i < n; i++)
        y[i] = rg_siluf(x[i] / div);
}

void RG_OP(silu_mul)(const float *g, const float *u, float *y, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        y[i] = rg_siluf(g[i]) * u[i];
}

void RG_OP(sigmoid_mul)(const float *x, const float *g, float *y, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * rg_sigmoidf(g[i]);
}

void RG_OP(sigmoid)(const float *x, float *y, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        y[i] = rg_sigmoidf(x[i]);
}

void RG_OP(gdn_decay)(const float *x, const float *dt, const float *a, float *decay, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        decay[i] = rg_expf(a[i] * rg_softplusf(x[i] + dt[i]));
}

void RG_OP(hc_mix)(const float *gate, size_t gate_stride, const float *n, size_t n_stride, float *u,
                   uint32_t n_hc, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        u[i] = rg_sigmoidf(gate[i]) * n[i];
    for (uint32_t s = 1; s < n_hc; s++) {
        const float *restrict g = gate + s * gate_stride;
        const float *restrict v = n + s * n_stride;
        for (uint32_t i = 0; i < count; i++)
            u[i] = fmaf(rg_sigmoidf(g[i]), v[i], u[i]);
    }
    const float div = (float)n_hc;
    for (uint32_t i = 0; i < count; i++)
        u[i] /= div;
}

void RG_OP(axpy)(float w, const float *restrict x, float *restrict y, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        y[i] = fmaf(w, x[i], y[i]);
}

void RG_OP(add)(const float *restrict x, float *restrict y, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        y[i] += x[i];
}

void RG_OP(route_weights)(const float *logits, const uint32_t *ids, uint32_t k, float scale,
                          float *w) {
    float sum = 0.0f;
    for (uint32_t i = 0; i < k; i++) {
        w[i] = rg_expf(logits[ids[i]] - logits[ids[0]]);
        sum += w[i];
    }
    for (uint32_t i = 0; i < k; i++)
        w[i] = w[i] / sum * scale;
}

void RG_OP(conv_silu)(const float *w, const float *const *tap, uint32_t n_tap, float *y,
                      uint32_t n) {
    /* The first tap that exists starts the sum; taps before the first token are skipped, which a
     * longer prompt never changes for the same position. */
    bool started = false;
    for (uint32_t k = 0; k < n_tap; k++) {
        const float *restrict x = tap[k];
        if (!x) continue;
        if (!started) {
            for (uint32_t c = 0; c < n; c++)
                y[c] = w[(size_t)c * n_tap + k] * x[c];
        } else {
            for (uint32_t c = 0; c < n; c++)
                y[c] = fmaf(w[(size_t)c * n_tap + k], x[c], y[c]);
        }
        started = true;
    }
    if (!started) memset(y, 0, n * sizeof *y);
    for (uint32_t c = 0; c < n; c++)
        y[c] = rg_siluf(y[c]);
}

void RG_OP(rope)(float *x, const float *cs, uint32_t n_rot) {
    const uint32_t half = n_rot / 2;
    for (uint32_t i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half];
        const float c = cs[i], s = cs[i + half];
        x[i] = fmaf(a, c, -(b * s));
        x[i + half] = fmaf(b, c, a * s);
    }
}
