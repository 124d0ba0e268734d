#version 460
#extension GL_GOOGLE_include_directive : require
// The embedding of each token into all residual streams.
#include "common.glsl"
#include "codes.glsl"
#include "values.glsl"

layout(local_size_x = 64) in;
layout(push_constant, scalar) uniform Push {
    uint64_t w;
    U32 tables;
    U32 ids;     // [rows]
    F32 y;       // [rows][n_hc][n]
    uint n, n_hc, row_bytes;
} p;

// The eight threads of a group store four of its values each.
void main() {
    uint i = 4u * gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    load_tables(gl_LocalInvocationID.x, 64u, p.tables);
    barrier(); // tables
    if (i >= p.n) return;
    vec4 w = values_at(p.w + uint64_t(p.ids.v[t]) * p.row_bytes, i, p.n);
    for (uint s = 0u; s < p.n_hc; s++)
        store_4(p.y, (t * p.n_hc + s) * p.n + i, p.n - i, (p.n & 3u) == 0u, w);
}
