#version 460
#extension GL_GOOGLE_include_directive : require
// The k best experts of a row, best first (ties: lower index, NaN last), and their softmax weights
// over the chosen ones. A given list of experts is only weighed.
#include "common.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint GIVEN = 0u;
layout(push_constant, scalar) uniform Push {
    F32 logits; // [rows][n]
    U32 ids;    // [rows][k]
    F32 w;      // [rows][k]
    U32 flag;
    uint n, k, code;
    float scale;
} p;

shared float values[4096];
shared uint best[256];

bool better(uint a, uint b) {
    float x = values[a], y = values[b];
    if (isnan(y) && !isnan(x)) return true;
    if (isnan(x)) return isnan(y) && a < b;
    return x > y || (x == y && a < b);
}

void main() {
    uint tid = gl_LocalInvocationID.x, t = gl_WorkGroupID.x;
    uint taken = 0u; // own elements that are gone, as bits: n / 256 <= 16
    for (uint i = tid; i < p.n; i += 256u) {
        values[i] = p.logits.v[t * p.n + i];
        if (!finite(values[i])) atomicMin(p.flag.v[0], p.code);
    }
    barrier();
    for (uint k = 0u; GIVEN == 0u && k < p.k; k++) {
        uint mine = 0xFFFFFFFFu, j = 0u;
        for (uint i = tid; i < p.n; i += 256u, j++) {
            if ((taken >> j & 1u) != 0u) continue;
            if (mine == 0xFFFFFFFFu || better(i, mine)) mine = i;
        }
        barrier(); // the choice before is read
        best[tid] = mine;
        for (uint h = 128u; h > 0u; h >>= 1) {
            barrier();
            if (tid >= h) continue;
            uint b = best[tid + h];
            if (b == 0xFFFFFFFFu) continue;
            if (best[tid] == 0xFFFFFFFFu || better(b, best[tid])) best[tid] = b;
        }
        barrier();
        uint e = best[0];
        if (e % 256u == tid) taken |= 1u << (e / 256u);
        if (tid == 0u) p.ids.v[t * p.k + k] = e;
    }
    if (tid != 0u) return;
    float top = values[p.ids.v[t * p.k]];
    precise float sum = 0.0;
    for (uint k = 0u; k < p.k; k++) {
        precise float w = exp_own(values[p.ids.v[t * p.k + k]] - top);
        p.w.v[t * p.k + k] = w;
        sum += w;
    }
    for (uint k = 0u; k < p.k; k++) {
        precise float w = p.w.v[t * p.k + k] / sum * p.scale;
        p.w.v[t * p.k + k] = w;
    }
}
