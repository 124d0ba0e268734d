#version 460
#extension GL_GOOGLE_include_directive : require
// u = (sum over streams of sigmoid(gate) * normed) / streams.
#include "common.glsl"

layout(local_size_x = 128) in;
layout(push_constant, scalar) uniform Push {
    F32 gate;   // [rows][n_hc][n]
    F32 normed; // the same
    F32 u;      // [rows][n]
    uint n, n_hc;
} p;

void main() {
    uint i = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (i >= p.n) return;
    uint at = t * p.n_hc * p.n + i;
    precise float s = 0.0;
    for (uint h = 0u; h < p.n_hc; h++) {
        s = fma(sigmoid(p.gate.v[at]), p.normed.v[at], s);
        at += p.n;
    }
    precise float y = s / float(p.n_hc);
    p.u.v[t * p.n + i] = y;
}
