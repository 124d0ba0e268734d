#version 460
#extension GL_GOOGLE_include_directive : require
// Norms of rows: root mean square with weight, the same with a gate, or the Euclidean norm.
#include "common.glsl"
#include "sums.glsl"
#define RG_ACT_THREADS 256
#include "act.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint MODE = 0u; // 0 rms, 1 rms then * sigmoid(gate), 2 Euclidean
layout(push_constant, scalar) uniform Push {
    F32 x;
    F32 w; // [n_w][n]: row i takes i mod n_w
    F32 y;
    F32 gate;       // [rows][n]
    U32 flag;       // min with `code` when a value is not finite; 0: none
    uint64_t codes; // a row for each stretch; 0: none
    uint n, n_w;
    uint per;   // rows in a stretch of x and y
    uint x_stride, y_stride; // from one stretch to the next
    float eps;
    float scale; // of the first n_scaled rows of each stretch (Euclidean)
    uint n_scaled;
    uint code;
} p;

void main() {
    uint row = gl_WorkGroupID.x, tid = gl_LocalInvocationID.x;
    uint x0 = (row / p.per) * p.x_stride + (row % p.per) * p.n;
    uint y0 = (row / p.per) * p.y_stride + (row % p.per) * p.n;
    bool whole = ((p.n | p.x_stride | p.y_stride) & 3u) == 0u;
    precise float s = 0.0;
    for (uint i = 4u * tid; i < p.n; i += 1024u) {
        vec4 x = load_4(p.x, x0 + i, p.n - i, whole);
        s = fma(x.x, x.x, s);
        s = fma(x.y, x.y, s);
        s = fma(x.z, x.z, s);
        s = fma(x.w, x.w, s);
    }
    precise float sum = sum_256(tid, s);
    precise float mean = MODE == 2u ? sum : sum / float(p.n);
    precise float inv = 1.0 / sqrt(mean + p.eps);
    if (tid == 0u && !finite(sum) && uint64_t(p.flag) != 0ul) atomicMin(p.flag.v[0], p.code);
    float scale = row % p.per < p.n_scaled ? p.scale : 1.0;
    uint w0 = (row % p.n_w) * p.n, n_all = p.per * p.n;
    for (uint first = 0u; first < p.n; first += 1024u) {
        uint i = first + 4u * tid, left = i < p.n ? p.n - i : 0u;
        precise vec4 v = load_4(p.x, x0 + i, left, whole) * inv;
        if (MODE == 2u) v = v * scale;
        else v = v * load_4(p.w, w0 + i, left, whole);
        if (MODE == 1u) {
            vec4 g = load_4(p.gate, row * p.n + i, left, whole);
            v = v * vec4(sigmoid(g.x), sigmoid(g.y), sigmoid(g.z), sigmoid(g.w));
        }
        store_4(p.y, y0 + i, left, whole, v);
        if (p.codes != 0ul) {
            uint64_t at = p.codes + uint64_t(row / p.per) * act_row_bytes(n_all);
            act_store(tid, left != 0u, v, at, n_all, (row % p.per) * p.n + i);
        }
    }
}
