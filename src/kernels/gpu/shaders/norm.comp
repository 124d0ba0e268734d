#version 460
#extension GL_GOOGLE_include_directive : require
// Norms of rows: root mean square with weight, the same with a gate, or the Euclidean norm.
#include "common.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint MODE = 0u; // 0 rms, 1 rms then * sigmoid(gate), 2 Euclidean
layout(push_constant, scalar) uniform Push {
    F32 x;
    F32 w; // [n_w][n]: row i takes i mod n_w
    F32 y;
    F32 gate;   // [rows][n]
    U32 flag;   // min with `code` when a value is not finite; 0: none
    uint n, n_w;
    uint per;   // rows in a stretch of x and y
    uint x_stride, y_stride; // from one stretch to the next
    float eps;
    float scale; // of the first n_scaled rows of each stretch (Euclidean)
    uint n_scaled;
    uint code;
} p;

shared float part[128];

void main() {
    uint row = gl_WorkGroupID.x, tid = gl_LocalInvocationID.x;
    uint x0 = (row / p.per) * p.x_stride + (row % p.per) * p.n;
    uint y0 = (row / p.per) * p.y_stride + (row % p.per) * p.n;
    precise float s = 0.0;
    for (uint i = tid; i < p.n; i += 128u)
        s = fma(p.x.v[x0 + i], p.x.v[x0 + i], s);
    part[tid] = s;
    for (uint h = 64u; h > 0u; h >>= 1) {
        barrier();
        if (tid < h) {
            precise float t = part[tid] + part[tid + h];
            part[tid] = t;
        }
    }
    barrier();
    precise float sum = part[0];
    precise float mean = MODE == 2u ? sum : sum / float(p.n);
    precise float inv = 1.0 / sqrt(mean + p.eps);
    if (tid == 0u && !finite(sum) && uint64_t(p.flag) != 0ul) atomicMin(p.flag.v[0], p.code);
    float scale = row % p.per < p.n_scaled ? p.scale : 1.0;
    uint w0 = (row % p.n_w) * p.n;
    for (uint i = tid; i < p.n; i += 128u) {
        precise float v = p.x.v[x0 + i] * inv;
        if (MODE == 2u) v = v * scale;
        else v = v * p.w.v[w0 + i];
        if (MODE == 1u) v = v * sigmoid(p.gate.v[row * p.n + i]);
        p.y.v[y0 + i] = v;
    }
}
