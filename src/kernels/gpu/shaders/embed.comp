#version 460
#extension GL_GOOGLE_include_directive : require
// The embedding of each token into all residual streams.
#include "common.glsl"
#include "codes.glsl"

layout(local_size_x = 64) in;
layout(push_constant, scalar) uniform Push {
    uint64_t w;
    U32 tables;
    U32 ids;     // [rows]
    F32 y;       // [rows][n_hc][n]
    uint n, n_hc, row_bytes;
} p;

void store(uint t, uint i, float w) {
    for (uint s = 0u; s < p.n_hc; s++)
        p.y.v[(t * p.n_hc + s) * p.n + i] = w;
}

void main() {
    uint g = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    load_tables(gl_LocalInvocationID.x, 64u, p.tables);
    barrier();
    if (32u * g >= p.n) return;
    uint64_t row = p.w + uint64_t(p.ids.v[t]) * p.row_bytes;
    if (FLOATS) {
        for (uint i = 32u * g; i < min(32u * g + 32u, p.n); i++)
            store(t, i, float_at(row, i));
        return;
    }
    Group u = group_at(row, g);
    for (uint k = 0u; k < 32u; k++) {
        uint word = k < 16u ? u.a[k / 4u] : u.b[k / 4u - 4u];
        int code = bitfieldExtract(int(word), int(8u * (k & 3u)), 8);
        float d = TYPE == T_NVFP4 && k >= 16u ? u.d1 : u.d;
        precise float v = d * float(code * (k < 16u ? u.s0 : u.s1));
        precise float m = u.dm * float(k < 16u ? u.m0 : u.m1);
        precise float w = MINS ? v + m : v;
        store(t, 32u * g + k, w);
    }
}
