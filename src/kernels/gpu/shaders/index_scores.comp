#version 460
#extension GL_GOOGLE_include_directive : require
// Score of every complete block a row sees: sum over index heads of max(0, q . key).
#include "common.glsl"
#include "cache.glsl"

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint F16 = 1u;
layout(push_constant, scalar) uniform Push {
    F32 q;         // [rows][n_head][D]
    uint64_t keys; // cache [block][D]
    F32 scores;    // [rows][cap]
    U32 pos0;
    U32 flag;
    uint D, n_head, ratio, cap, keep, code;
} p;

void main() {
    uint b = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    uint n = (p.pos0.v[0] + t + 1u) / p.ratio;
    if (n <= p.keep || b >= n) return;
    precise float sum = 0.0;
    for (uint h = 0u; h < p.n_head; h++) {
        uint q0 = (t * p.n_head + h) * p.D;
        precise float s = 0.0;
        for (uint i = 0u; i < p.D; i++)
            s = fma(p.q.v[q0 + i], cache_load(p.keys, b * p.D + i, F16 != 0u), s);
        if (!finite(s)) atomicMin(p.flag.v[0], p.code);
        sum += max(s, 0.0);
    }
    p.scores.v[t * p.cap + b] = sum;
}
