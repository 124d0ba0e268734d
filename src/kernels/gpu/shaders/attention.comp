#version 460
#extension GL_GOOGLE_include_directive : require
// Attention of one query head over absolute spans of 64 positions (online softmax, Milakov and
// Gimelshein 2018): each span from a fresh maximum, sum and output, merged in ascending order.
// A span without an allowed key leaves the bits unchanged. The gate of the head ends it.
#include "common.glsl"
#include "cache.glsl"

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint F16 = 1u;
layout(constant_id = 1) const uint COLS = 1u; // of a lane: D / 64 rounded up
layout(push_constant, scalar) uniform Push {
    F32 q;      // [rows][n_head][D]
    uint64_t k; // cache [pos][n_kv][D]
    uint64_t v;
    F32 gate;   // [rows][n_head][2 D], the second half of each head
    F32 o;      // [rows][n_head][D]
    U32 bits;   // chosen blocks [rows][cap / 32 rounded up]
    U32 pos0;
    uint D, n_head, n_kv, ratio, cap, keep;
    float scale;
} p;

shared float q_row[512];
shared float score[64];

void main() {
    uint lane = gl_LocalInvocationID.x, h = gl_WorkGroupID.x, t = gl_WorkGroupID.y;
    uint pos = p.pos0.v[0] + t, kv = h / (p.n_head / p.n_kv), stride = p.n_kv * p.D;
    uint n_block = p.ratio != 0u ? (pos + 1u) / p.ratio : 0u;
    bool dense = p.ratio == 0u || n_block <= p.keep;
    uint words = t * ((p.cap + 31u) / 32u);
    for (uint i = lane; i < p.D; i += 64u)
        q_row[i] = p.q.v[(t * p.n_head + h) * p.D + i];
    precise float o[COLS];
    for (uint c = 0u; c < COLS; c++)
        o[c] = 0.0;
    precise float m = uintBitsToFloat(0xFF800000u), l = 0.0;
    for (uint base = 0u; base <= pos; base += 64u) {
        uint at = base + lane;
        bool live = at <= pos;
        if (live && !dense) {
            uint b = at / p.ratio;
            live = b >= n_block || (p.bits.v[words + b / 32u] >> (b & 31u) & 1u) != 0u;
        }
        barrier(); // the span before is read; q_row is there
        precise float s = uintBitsToFloat(0xFF800000u);
        if (live) {
            s = 0.0;
            uint row = at * stride + kv * p.D;
            for (uint i = 0u; i < p.D; i++)
                s = fma(q_row[i], cache_load(p.k, row + i, F16 != 0u), s);
            s = s * p.scale;
        }
        score[lane] = s;
        barrier();
        float ms = score[0];
        for (uint i = 1u; i < 64u; i++)
            ms = max(ms, score[i]);
        if (ms == uintBitsToFloat(0xFF800000u)) continue; // the same for all lanes
        precise float e = live ? exp_own(s - ms) : 0.0;
        barrier(); // the maximum is taken
        score[lane] = e;
        barrier();
        precise float ls = 0.0;
        for (uint i = 0u; i < 64u; i++)
            ls += score[i];
        precise float M = max(m, ms);
        precise float a = exp_own(m - M), b = exp_own(ms - M);
        l = fma(l, a, ls * b);
        m = M;
        uint n = min(64u, pos + 1u - base), v0 = base * stride + kv * p.D;
        for (uint c = 0u; c < COLS; c++) {
            uint col = lane + 64u * c;
            if (col >= p.D) continue;
            precise float os = 0.0;
            for (uint i = 0u; i < n; i++)
                os = fma(score[i], cache_load(p.v, v0 + i * stride + col, F16 != 0u), os);
            precise float part = os * b;
            o[c] = fma(o[c], a, part);
        }
    }
    for (uint c = 0u; c < COLS; c++) {
        uint col = lane + 64u * c;
        if (col >= p.D) continue;
        uint at = (t * p.n_head + h) * p.D;
        precise float y = o[c] / l;
        y = y * sigmoid(p.gate.v[2u * at + p.D + col]);
        p.o.v[at + col] = y;
    }
}
