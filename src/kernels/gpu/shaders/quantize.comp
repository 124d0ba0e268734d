#version 460
#extension GL_GOOGLE_include_directive : require
// Rows of activations as 8-bit codes (act.glsl). A thread takes four values.
#include "common.glsl"
#define RG_ACT_THREADS 128
#include "act.glsl"

layout(local_size_x = 128) in;
layout(push_constant, scalar) uniform Push {
    F32 x;      // [rows][x_stride]
    uint64_t y; // rows of codes
    uint n;     // a multiple of 32
    uint x_stride;
} p;

void main() {
    uint i = 4u * gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
    bool live = i < p.n;
    uint64_t at = uint64_t(p.x) + 4ul * (uint64_t(row) * p.x_stride + i);
    vec4 x = live ? F32x4(at).v[0] : vec4(0.0);
    act_store(gl_LocalInvocationID.x, live, x, p.y + uint64_t(row) * act_row_bytes(p.n), p.n, i);
}
