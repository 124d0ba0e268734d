#version 460
#extension GL_GOOGLE_include_directive : require
// One head of one row: norm and rotation of queries, of keys into the cache, of index queries;
// values and raw index keys into their caches.
#include "common.glsl"
#include "cache.glsl"

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint F16 = 1u;
layout(push_constant, scalar) uniform Push {
    F32 from;   // [rows][from_stride], heads `from_step` apart
    F32 w;      // [D] norm; 0: neither norm nor rotation
    F32 rope;   // [rows][n_rot] cos then sin
    uint64_t to;  // f32 rows [rows][heads][D], or a cache [pos][heads][D]
    U32 pos0;   // of a cache; 0: `to` is no cache
    U32 flag;
    uint D, n_rot, from_stride, from_step;
    float eps;
    uint code;
} p;

shared float head_row[512];

void main() {
    uint tid = gl_LocalInvocationID.x, h = gl_WorkGroupID.x, t = gl_WorkGroupID.y;
    uint n_head = gl_NumWorkGroups.x;
    bool cached = uint64_t(p.pos0) != 0ul;
    uint at = t * p.from_stride + h * p.from_step;
    uint to = ((cached ? p.pos0.v[0] : 0u) + t) * n_head * p.D + h * p.D;
    bool normed = uint64_t(p.w) != 0ul;
    precise float s = 0.0;
    for (uint i = tid; i < p.D; i += 64u) {
        float x = p.from.v[at + i];
        head_row[i] = x;
        s = fma(x, x, s);
    }
    float sum = sum_64(tid, s);
    if (tid == 0u && !finite(sum)) atomicMin(p.flag.v[0], p.code);
    precise float mean = sum / float(p.D);
    precise float inv = 1.0 / sqrt(mean + p.eps);
    uint half_rot = p.n_rot / 2u;
    for (uint i = tid; i < p.D; i += 64u) {
        precise float y = head_row[i];
        if (normed) {
            y = y * inv * p.w.v[i];
            if (i < p.n_rot) {
                uint pair = i < half_rot ? i : i - half_rot;
                uint other = i < half_rot ? i + half_rot : pair;
                precise float z = head_row[other] * inv * p.w.v[other];
                uint cs = t * p.n_rot + pair;
                float c = p.rope.v[cs];
                precise float zs = z * p.rope.v[cs + half_rot];
                y = i < half_rot ? fma(y, c, -zs) : fma(y, c, zs);
            }
        }
        if (cached) cache_store(p.to, to + i, F16 != 0u, y);
        else F32(p.to).v[to + i] = y;
    }
}
