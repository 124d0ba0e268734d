#version 460
#extension GL_GOOGLE_include_directive : require
// The embedding of each token into all residual streams.
#include "common.glsl"
#include "decode.glsl"

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint TYPE = 0u;
layout(push_constant, scalar) uniform Push {
    uint64_t w;
    U32 tables;
    U32 ids;     // [rows]
    F32 y;       // [rows][n_hc][n]
    uint n, n_hc, row_bytes;
} p;

void main() {
    uint u_index = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (u_index * 16u >= p.n) return;
    Unit u = decode(TYPE, p.w + uint64_t(p.ids.v[t]) * p.row_bytes, u_index, p.n, p.tables);
    for (uint k = 0u; k < 16u && 16u * u_index + k < p.n; k++) {
        precise float v = u.d * u.q[k];
        precise float w = v + u.m;
        for (uint s = 0u; s < p.n_hc; s++)
            p.y.v[(t * p.n_hc + s) * p.n + 16u * u_index + k] = w;
    }
}
