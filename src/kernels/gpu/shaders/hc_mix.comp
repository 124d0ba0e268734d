#version 460
#extension GL_GOOGLE_include_directive : require
// u = (sum over streams of sigmoid(gate) * normed) / streams.
#include "common.glsl"
#define RG_ACT_THREADS 128
#include "act.glsl"

layout(local_size_x = 128) in;
layout(push_constant, scalar) uniform Push {
    F32 gate;       // [rows][n_hc][n]
    F32 normed;     // the same
    F32 u;          // [rows][n]
    uint64_t codes; // of u; 0: none
    uint n, n_hc;
} p;

void main() {
    uint tid = gl_LocalInvocationID.x, i = 4u * gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    uint left = i < p.n ? p.n - i : 0u, at = t * p.n_hc * p.n + i;
    bool whole = (p.n & 3u) == 0u;
    precise vec4 s = vec4(0.0);
    for (uint h = 0u; h < p.n_hc; h++) {
        vec4 g = load_4(p.gate, at, left, whole), x = load_4(p.normed, at, left, whole);
        s = fma(vec4(sigmoid(g.x), sigmoid(g.y), sigmoid(g.z), sigmoid(g.w)), x, s);
        at += p.n;
    }
    precise vec4 y = s / float(p.n_hc);
    store_4(p.u, t * p.n + i, left, whole, y);
    if (p.codes != 0ul)
        act_store(tid, left != 0u, y, p.codes + uint64_t(t) * act_row_bytes(p.n), p.n, i);
}
