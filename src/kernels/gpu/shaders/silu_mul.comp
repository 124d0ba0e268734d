#version 460
#extension GL_GOOGLE_include_directive : require
// g = silu(g) * u, element by element.
#include "common.glsl"
#define RG_ACT_THREADS 128
#include "act.glsl"

layout(local_size_x = 128) in;
layout(push_constant, scalar) uniform Push {
    F32 g; // [rows][n]
    F32 u;
    uint64_t codes; // of the result; 0: none
    uint n;
} p;

void main() {
    uint tid = gl_LocalInvocationID.x, i = 4u * gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
    uint left = i < p.n ? p.n - i : 0u, at = row * p.n + i;
    bool whole = (p.n & 3u) == 0u;
    vec4 g = load_4(p.g, at, left, whole);
    precise vec4 v =
        vec4(silu(g.x), silu(g.y), silu(g.z), silu(g.w)) * load_4(p.u, at, left, whole);
    store_4(p.g, at, left, whole, v);
    if (p.codes != 0ul)
        act_store(tid, left != 0u, v, p.codes + uint64_t(row) * act_row_bytes(p.n), p.n, i);
}
