#version 460
#extension GL_GOOGLE_include_directive : require
// Index keys of the blocks that the window completes: mean of the raw keys, norm, rotation at the
// position of the block's first token.
#include "common.glsl"
#include "cache.glsl"

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint F16 = 1u;
layout(push_constant, scalar) uniform Push {
    uint64_t raw;    // cache [pos][D]
    uint64_t blocks; // cache [block][D]
    F32 w;           // [D]
    F32 rope;        // [blocks of the window][n_rot]
    U32 pos0;
    U32 flag;
    uint D, n_rot, ratio, rows;
    float eps;
    uint code;
} p;

shared float mean_row[512];

void main() {
    uint tid = gl_LocalInvocationID.x, i_block = gl_WorkGroupID.x;
    uint block = p.pos0.v[0] / p.ratio + i_block;
    if (block >= (p.pos0.v[0] + p.rows) / p.ratio) return;
    precise float s = 0.0;
    for (uint i = tid; i < p.D; i += 64u) {
        precise float m = 0.0;
        for (uint j = 0u; j < p.ratio; j++)
            m += cache_load(p.raw, (block * p.ratio + j) * p.D + i, F16 != 0u);
        m = m / float(p.ratio);
        mean_row[i] = m;
        s = fma(m, m, s);
    }
    float sum = sum_64(tid, s);
    if (tid == 0u && !finite(sum)) atomicMin(p.flag.v[0], p.code);
    precise float mean = sum / float(p.D);
    precise float inv = 1.0 / sqrt(mean + p.eps);
    uint half_rot = p.n_rot / 2u;
    for (uint i = tid; i < p.D; i += 64u) {
        precise float y = mean_row[i] * inv * p.w.v[i];
        if (i < p.n_rot) {
            uint pair = i < half_rot ? i : i - half_rot;
            uint other = i < half_rot ? i + half_rot : pair;
            precise float z = mean_row[other] * inv * p.w.v[other];
            float c = p.rope.v[i_block * p.n_rot + pair];
            precise float zs = z * p.rope.v[i_block * p.n_rot + half_rot + pair];
            y = i < half_rot ? fma(y, c, -zs) : fma(y, c, zs);
        }
        cache_store(p.blocks, block * p.D + i, F16 != 0u, y);
    }
}
