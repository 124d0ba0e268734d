#version 460
#extension GL_GOOGLE_include_directive : require
// The best logit of a row, the lowest id among equals, and the lowest id whose logit is not finite:
// first of a stretch for each workgroup, then of the stretches.
#include "common.glsl"
#include "order.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint LAST = 0u; // the stretches' results are there
layout(push_constant, scalar) uniform Push {
    F32 logits; // [n]
    U32 parts;  // [n_part][2]: id, lowest id that is not finite
    U32 result; // id, bits of its logit, lowest id that is not finite (or all ones)
    uint n, n_part;
} p;

const uint NONE = 0xFFFFFFFFu;
shared uint keys[256], ids[256], bad[256];

void take(uint tid, uint key, uint id) {
    if (key < keys[tid] || (key == keys[tid] && id >= ids[tid])) return;
    keys[tid] = key;
    ids[tid] = id;
}

void look(uint tid, uint id) {
    float x = p.logits.v[id];
    take(tid, key_of(x), id);
    if (!finite(x)) bad[tid] = min(bad[tid], id);
}

void main() {
    uint tid = gl_LocalInvocationID.x, part = gl_WorkGroupID.x;
    keys[tid] = 0u;
    ids[tid] = bad[tid] = NONE;
    if (LAST == 0u) {
        uint stretch = (p.n + p.n_part - 1u) / p.n_part;
        uint end = min((part + 1u) * stretch, p.n);
        for (uint i = part * stretch + tid; i < end; i += 256u)
            look(tid, i);
    } else {
        for (uint i = tid; i < p.n_part; i += 256u) {
            uint id = p.parts.v[2u * i];
            if (id != NONE) take(tid, key_of(p.logits.v[id]), id);
            bad[tid] = min(bad[tid], p.parts.v[2u * i + 1u]);
        }
    }
    for (uint h = 128u; h > 0u; h >>= 1) {
        barrier(); // the halves
        if (tid < h) {
            take(tid, keys[tid + h], ids[tid + h]);
            bad[tid] = min(bad[tid], bad[tid + h]);
        }
    }
    if (tid != 0u) return;
    if (LAST == 0u) {
        p.parts.v[2u * part] = ids[0];
        p.parts.v[2u * part + 1u] = bad[0];
        return;
    }
    p.result.v[0] = ids[0];
    p.result.v[1] = ids[0] == NONE ? 0u : floatBitsToUint(p.logits.v[ids[0]]);
    p.result.v[2] = bad[0];
}
