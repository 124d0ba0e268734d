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

// The eight threads of a group store four of its values each.
void store(uint t, uint i, vec4 w) {
    uint left = i < p.n ? p.n - i : 0u;
    for (uint s = 0u; s < p.n_hc; s++)
        store_4(p.y, (t * p.n_hc + s) * p.n + i, left, (p.n & 3u) == 0u, w);
}

void main() {
    uint i = 4u * gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    load_tables(gl_LocalInvocationID.x, 64u, p.tables);
    barrier();
    if (i >= p.n) return;
    uint64_t row = p.w + uint64_t(p.ids.v[t]) * p.row_bytes;
    vec4 w = vec4(0.0);
    if (FLOATS) {
        for (uint k = 0u; k < min(4u, p.n - i); k++)
            w[k] = float_at(row, i + k);
        store(t, i, w);
        return;
    }
    Group u = group_at(row, i / 32u);
    uint part = i / 4u & 7u;
    bool low = part < 4u;
    uint word = low ? u.a[part] : u.b[part - 4u];
    float d = TYPE == T_NVFP4 && !low ? u.d1 : u.d;
    precise float m = u.dm * float(low ? u.m0 : u.m1);
    for (uint k = 0u; k < 4u; k++) {
        int code = bitfieldExtract(int(word), int(8u * k), 8);
        precise float v = d * float(code * (low ? u.s0 : u.s1));
        precise float x = MINS ? v + m : v;
        w[k] = x;
    }
    store(t, i, w);
}
