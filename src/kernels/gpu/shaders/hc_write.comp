#version 460
#extension GL_GOOGLE_include_directive : require
// residual[s] += inject[s] * y; with experts, y is their combination in router order, then the
// shared expert.
#include "common.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint COMBINE = 0u;
layout(push_constant, scalar) uniform Push {
    F32 residual; // [rows][n_hc][n]
    F32 inject;   // [rows][n_hc]
    F32 y;        // [rows][n]; with experts the shared one
    F32 experts;  // [rows][n_used][n]
    F32 weights;  // [rows][n_used]
    F32 sigma;    // [rows]
    uint n, n_hc, n_used;
} p;

void main() {
    uint i = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (i >= p.n) return;
    precise float y = p.y.v[t * p.n + i];
    if (COMBINE != 0u) {
        precise float c = 0.0;
        for (uint k = 0u; k < p.n_used; k++) {
            uint slot = t * p.n_used + k;
            c = fma(p.weights.v[slot], p.experts.v[slot * p.n + i], c);
        }
        y = fma(p.sigma.v[t], y, c);
    }
    uint at = t * p.n_hc * p.n + i;
    for (uint h = 0u; h < p.n_hc; h++) {
        precise float r = fma(p.inject.v[t * p.n_hc + h], y, p.residual.v[at]);
        p.residual.v[at] = r;
        at += p.n;
    }
}
