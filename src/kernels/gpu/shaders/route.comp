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

shared uvec4 keys[1024]; // zeros behind the end: what is no number, and later
shared uint chosen[256];
shared float parts[256];

// Rises with x; both zeros are one value, what is not a number comes last.
uint key_of(float x) {
    if (isnan(x)) return 0u;
    uint bits = x == 0.0 ? 0u : floatBitsToUint(x);
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

// How many elements come before element i: its place in the order.
uint place_of(uint i) {
    uvec4 n = uvec4(0u), own = uvec4(keys[i >> 2][i & 3u]), at = uvec4(0u, 1u, 2u, 3u);
    for (uint j = 0u; j < (p.n + 3u) / 4u; j++, at += 4u) {
        uvec4 k = keys[j];
        n += uvec4(greaterThan(k + uvec4(lessThan(at, uvec4(i))), own));
    }
    return n.x + n.y + n.z + n.w;
}

void main() {
    uint tid = gl_LocalInvocationID.x, t = gl_WorkGroupID.x;
    if (tid < 4u) keys[(p.n + 3u) / 4u - 1u][tid] = 0u;
    barrier(); // the end is clean
    for (uint i = tid; i < p.n; i += 256u) {
        float x = p.logits.v[t * p.n + i];
        keys[i >> 2][i & 3u] = key_of(x);
        if (!finite(x)) atomicMin(p.flag.v[0], p.code);
    }
    if (GIVEN != 0u && tid < p.k) chosen[tid] = p.ids.v[t * p.k + tid];
    barrier();
    for (uint i = tid; GIVEN == 0u && i < p.n; i += 256u) {
        uint place = place_of(i);
        if (place >= p.k) continue;
        chosen[place] = i;
        p.ids.v[t * p.k + place] = i;
    }
    barrier(); // the choice
    if (tid < p.k) {
        float own = p.logits.v[t * p.n + chosen[tid]], top = p.logits.v[t * p.n + chosen[0]];
        precise float w = exp_own(own - top);
        parts[tid] = w;
    }
    barrier(); // all parts
    if (tid >= p.k) return;
    precise float sum = 0.0;
    for (uint k = 0u; k < p.k; k++)
        sum += parts[k];
    precise float w = parts[tid] / sum * p.scale;
    p.w.v[t * p.k + tid] = w;
}
