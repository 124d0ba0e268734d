#version 460
#extension GL_GOOGLE_include_directive : require
// Rows of activations as 8-bit codes (act.glsl). A thread takes four values, eight threads a group.
#include "common.glsl"
#include "act.glsl"

layout(local_size_x = 128) in;
layout(push_constant, scalar) uniform Push {
    F32 x;      // [rows][x_stride]
    uint64_t y; // rows of codes
    uint n;     // a multiple of 32
    uint x_stride;
} p;

shared float most[128];
shared int sums[128];

void main() {
    uint tid = gl_LocalInvocationID.x, first = tid & ~7u;
    uint i = 4u * gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
    bool live = i < p.n;
    uint64_t at = uint64_t(p.x) + 4ul * (uint64_t(row) * p.x_stride + i);
    vec4 x = live ? F32x4(at).v[0] : vec4(0.0);
    most[tid] = max(max(abs(x.x), abs(x.y)), max(abs(x.z), abs(x.w)));
    barrier();
    float top = 0.0;
    for (uint k = 0u; k < 8u; k++)
        top = max(top, most[first + k]);
    float inverse = act_inverse(top);
    ivec4 c;
    for (uint k = 0u; k < 4u; k++)
        c[k] = act_code(x[k], inverse);
    sums[tid] = c.x + c.y + c.z + c.w;
    barrier();
    if (!live) return;
    uint64_t y = p.y + uint64_t(row) * act_row_bytes(p.n);
    U32(y).v[i / 4u] = act_pack(c);
    if (tid != first) return;
    uint g = i / 32u;
    int low = sums[tid] + sums[tid + 1u] + sums[tid + 2u] + sums[tid + 3u];
    int high = sums[tid + 4u] + sums[tid + 5u] + sums[tid + 6u] + sums[tid + 7u];
    F32(y + p.n).v[g] = act_scale(top);
    U32(y + p.n + p.n / 8u).v[g] = uint(low & 0xFFFF) | uint(high) << 16;
}
