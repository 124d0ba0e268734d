#version 460
#extension GL_GOOGLE_include_directive : require
// y += x.
#include "common.glsl"

layout(local_size_x = 128) in;
layout(push_constant, scalar) uniform Push {
    F32 y, x; // [rows][n]
    uint n;
} p;

void main() {
    uint i = gl_GlobalInvocationID.x, at = gl_WorkGroupID.y * p.n + i;
    if (i >= p.n) return;
    precise float s = p.y.v[at] + p.x.v[at];
    p.y.v[at] = s;
}
