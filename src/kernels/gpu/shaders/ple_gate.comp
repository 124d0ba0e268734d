#version 460
#extension GL_GOOGLE_include_directive : require
// N-gram memory, one stream of one row: norms of key and query, the gate from their product, the
// gated value and its norm.
#include "common.glsl"
#include "sums.glsl"

layout(local_size_x = 256) in;
layout(push_constant, scalar) uniform Push {
    F32 key;      // [rows][n_hc][n]
    F32 residual; // the same
    F32 value;    // [rows][n]
    F32 w_key;    // [n_hc][n]
    F32 w_query;
    F32 w_conv;
    F32 gated;  // [rows][n_hc][n]
    F32 normed; // the same
    uint n, n_hc;
    float eps;
} p;

float inverse_rms(float sum) {
    precise float mean = sum / float(p.n);
    precise float inv = 1.0 / sqrt(mean + p.eps);
    return inv;
}

void main() {
    uint tid = gl_LocalInvocationID.x, row = gl_WorkGroupID.x;
    uint at = row * p.n, stream = row % p.n_hc * p.n, value = row / p.n_hc * p.n;
    precise float sk = 0.0, sq = 0.0;
    for (uint i = tid; i < p.n; i += 256u) {
        sk = fma(p.key.v[at + i], p.key.v[at + i], sk);
        sq = fma(p.residual.v[at + i], p.residual.v[at + i], sq);
    }
    float ik = inverse_rms(sum_256(tid, sk)), iq = inverse_rms(sum_256(tid, sq));
    precise float dot_ = 0.0;
    for (uint i = tid; i < p.n; i += 256u) {
        precise float k = p.key.v[at + i] * ik * p.w_key.v[stream + i];
        precise float q = p.residual.v[at + i] * iq * p.w_query.v[stream + i];
        dot_ = fma(k, q, dot_);
    }
    precise float s = sum_256(tid, dot_) / sqrt(float(p.n));
    precise float size = sqrt(max(abs(s), 1e-6));
    float a = sigmoid(s > 0.0 ? size : s < 0.0 ? -size : s);
    precise float sv = 0.0;
    for (uint i = tid; i < p.n; i += 256u) {
        precise float g = a * p.value.v[value + i];
        p.gated.v[at + i] = g;
        sv = fma(g, g, sv);
    }
    float iv = inverse_rms(sum_256(tid, sv));
    for (uint i = tid; i < p.n; i += 256u) {
        precise float g = a * p.value.v[value + i];
        precise float y = g * iv * p.w_conv.v[stream + i];
        p.normed.v[at + i] = y;
    }
}
