#version 460
#extension GL_GOOGLE_include_directive : require
// Input rows of the draft block's projection: for each stream the normed embedding of the next
// token, then the normed stream of a residual. A workgroup takes a row.
#include "common.glsl"
#include "sums.glsl"

layout(local_size_x = 256) in;
layout(push_constant, scalar) uniform Push {
    U64 from;     // [rows] addresses of residuals [n_hc][n]
    F32 e;        // [rows][n_hc][n] embeddings
    F32 w_e, w_h; // [n], [n_hc][n]
    F32 y;        // [rows][n_hc][2 n]
    U32 flag;     // min with `code` when a value is not finite
    uint n, n_hc;
    float eps;
    uint each; // one mean a stream, not one over all
    uint code;
} p;

// 1 / root of the mean square of n values.
float inverse_of(uint tid, F32 x, uint n, out bool whole) {
    precise float s = 0.0;
    for (uint i = tid; i < n; i += 256u)
        s = fma(x.v[i], x.v[i], s);
    precise float sum = sum_256(tid, s);
    precise float inv = 1.0 / sqrt(sum / float(n) + p.eps);
    whole = finite(sum);
    return inv;
}

void main() {
    uint t = gl_WorkGroupID.x, tid = gl_LocalInvocationID.x, all = p.n_hc * p.n;
    F32 h = F32(p.from.v[t]);
    F32 e = F32(uint64_t(p.e) + 4ul * t * all);
    F32 y = F32(uint64_t(p.y) + 8ul * t * all);
    bool whole, ok;
    float inv_e = inverse_of(tid, e, p.n, ok);
    float inv_h = inverse_of(tid, h, all, whole);
    for (uint s = 0u; s < p.n_hc; s++) {
        F32 stream = F32(uint64_t(h) + 4ul * s * p.n);
        float inv = inv_h;
        if (p.each != 0u) inv = inverse_of(tid, stream, p.n, ok);
        for (uint i = tid; i < p.n; i += 256u) {
            precise float a = e.v[i] * inv_e;
            precise float b = stream.v[i] * inv;
            y.v[2u * s * p.n + i] = a * p.w_e.v[i];
            y.v[(2u * s + 1u) * p.n + i] = b * p.w_h.v[s * p.n + i];
        }
    }
    if (tid == 0u && !whole) atomicMin(p.flag.v[0], p.code);
}
