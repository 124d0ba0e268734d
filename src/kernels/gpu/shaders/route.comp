#version 460
#extension GL_GOOGLE_include_directive : require
// The k best experts of a row, best first (ties: lower index, NaN last), and their softmax weights
// over the chosen ones. A given list of experts is only weighed.
#include "common.glsl"
#include "order.glsl"

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

shared uint chosen[256];
shared float parts[256];

uint key_at(uint i) {
    return key_of(p.logits.v[gl_WorkGroupID.x * p.n + i]);
}

#include "ranks.glsl"

void main() {
    uint tid = gl_LocalInvocationID.x, t = gl_WorkGroupID.x;
    uint most = 0u;
    for (uint i = tid; i < p.n; i += 256u) {
        float x = p.logits.v[t * p.n + i];
        most = max(most, key_of(x));
        if (!finite(x)) atomicMin(p.flag.v[0], p.code);
    }
    best[tid] = most;
    if (GIVEN == 0u) find_bound(tid, p.k);
    for (uint i = tid; GIVEN == 0u && i < p.n; i += 256u)
        note_candidate(i);
    if (GIVEN != 0u && tid < p.k) chosen[tid] = p.ids.v[t * p.k + tid];
    barrier(); // the candidates
    for (uint c = tid; GIVEN == 0u && c < n_left; c += 256u) {
        uint i = candidates[c], place = place_of(i);
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
