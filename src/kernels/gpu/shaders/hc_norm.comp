#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What hc_write.comp and norm.comp compute one after the other, bit for bit, in one go: a workgroup
// takes one residual stream of one row, adds what is owed to it and norms it.
#include "common.glsl"
#include "sums.glsl"
#include "act.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint OWED = 0u; // 0 nothing, 1 a product, 2 the experts
layout(constant_id = 1) const uint FOURS = 1u; // of a thread: n / 1024 rounded up
layout(constant_id = 2) const uint USED = 1u;  // experts of a row
layout(push_constant, scalar) uniform Push {
    F32 residual;   // [rows][n_hc][n]
    F32 inject;     // [rows][n_hc]
    F32 y;          // [rows][n]; with experts the shared one
    F32 experts;    // [rows][USED][n]
    F32 weights;    // [rows][USED]
    F32 sigma;      // [rows]
    F32 w;          // [n_hc][n]
    F32 normed;     // [rows][n_hc][n]
    U32 flag;       // min with `code` when a value is not finite
    uint64_t codes; // of normed, a row of n_hc * n for each row
    uint n, n_hc;   // n: a multiple of 32
    float eps;
    uint code;
} p;

shared float most[FOURS * 256u];
shared int code_sums[FOURS * 256u];

// Groups of 32 values lie with eight neighbouring threads each.
void store_codes(uint tid, vec4 v[FOURS], uint64_t row, uint n_all, uint first) {
    uint lead = tid & ~7u;
    uint word[FOURS];
    float top[FOURS];
    [[unroll]] for (uint k = 0u; k < FOURS; k++)
        most[256u * k + tid] = act_most_of(v[k]);
    barrier(); // all of the groups
    [[unroll]] for (uint k = 0u; k < FOURS; k++) {
        float t = 0.0;
        [[unroll]] for (uint j = 0u; j < 8u; j++)
            t = max(t, most[256u * k + lead + j]);
        int sum = 0;
        word[k] = act_word(v[k], act_inverse(t), sum);
        code_sums[256u * k + tid] = sum;
        top[k] = t;
    }
    barrier(); // all sums of the groups
    [[unroll]] for (uint k = 0u; k < FOURS; k++) {
        uint i = 4u * tid + 1024u * k, at = first + i, s = 256u * k + lead;
        if (i >= p.n) continue;
        U32(row).v[at / 4u] = word[k];
        if (tid != lead) continue;
        int low = code_sums[s] + code_sums[s + 1u] + code_sums[s + 2u] + code_sums[s + 3u];
        int high = code_sums[s + 4u] + code_sums[s + 5u] + code_sums[s + 6u] + code_sums[s + 7u];
        F32(row + n_all).v[at / 32u] = act_scale(top[k]);
        U32(row + n_all + n_all / 8u).v[at / 32u] = uint(low & 0xFFFF) | uint(high) << 16;
    }
}

// The four values from i on of what is owed to row t.
vec4 owed_at(uint t, uint i) {
    precise vec4 y = F32x4(uint64_t(p.y) + 4ul * (t * p.n + i)).v[0];
    if (OWED == 2u) {
        vec4 e[USED];
        [[unroll]] for (uint k = 0u; k < USED; k++) // loads first
            e[k] = F32x4(uint64_t(p.experts) + 4ul * ((t * USED + k) * p.n + i)).v[0];
        precise vec4 c = vec4(0.0);
        [[unroll]] for (uint k = 0u; k < USED; k++)
            c = fma(vec4(p.weights.v[t * USED + k]), e[k], c);
        y = fma(vec4(p.sigma.v[t]), y, c);
    }
    return y;
}

void main() {
    uint tid = gl_LocalInvocationID.x, h = gl_WorkGroupID.x, t = gl_WorkGroupID.y;
    uint64_t stream = 4ul * ((t * p.n_hc + h) * p.n);
    vec4 x[FOURS], w[FOURS];
    [[unroll]] for (uint k = 0u; k < FOURS; k++) {
        uint i = 4u * tid + 1024u * k;
        bool live = i < p.n;
        x[k] = live ? F32x4(uint64_t(p.residual) + stream + 4ul * i).v[0] : vec4(0.0);
        w[k] = live ? F32x4(uint64_t(p.w) + 4ul * (h * p.n + i)).v[0] : vec4(0.0);
    }
    if (OWED != 0u) {
        vec4 inject = vec4(p.inject.v[t * p.n_hc + h]);
        [[unroll]] for (uint k = 0u; k < FOURS; k++) {
            uint i = 4u * tid + 1024u * k;
            if (i >= p.n) continue;
            precise vec4 r = fma(inject, owed_at(t, i), x[k]);
            x[k] = r;
            F32x4(uint64_t(p.residual) + stream + 4ul * i).v[0] = r;
        }
    }
    precise float s = 0.0;
    [[unroll]] for (uint k = 0u; k < FOURS; k++) {
        s = fma(x[k].x, x[k].x, s);
        s = fma(x[k].y, x[k].y, s);
        s = fma(x[k].z, x[k].z, s);
        s = fma(x[k].w, x[k].w, s);
    }
    precise float sum = sum_256(tid, s);
    precise float mean = sum / float(p.n);
    precise float inv = 1.0 / sqrt(mean + p.eps);
    if (tid == 0u && !finite(sum)) atomicMin(p.flag.v[0], p.code);
    vec4 v[FOURS];
    [[unroll]] for (uint k = 0u; k < FOURS; k++) {
        uint i = 4u * tid + 1024u * k;
        precise vec4 y = x[k] * inv;
        y = y * w[k];
        v[k] = y;
        if (i < p.n) F32x4(uint64_t(p.normed) + stream + 4ul * i).v[0] = y;
    }
    uint n_all = p.n_hc * p.n;
    store_codes(tid, v, p.codes + uint64_t(t) * act_row_bytes(n_all), n_all, h * p.n);
}
