#version 460
#extension GL_GOOGLE_include_directive : require
// y += x, a row of x for `per` rows of y.
#include "common.glsl"

layout(local_size_x = 128) in;
layout(push_constant, scalar) uniform Push {
    F32 y, x; // [rows][n], [rows / per][n]
    uint n, per;
} p;

void main() {
    uint i = gl_GlobalInvocationID.x, row = gl_WorkGroupID.y, at = row * p.n + i;
    if (i >= p.n) return;
    precise float s = p.y.v[at] + p.x.v[row / p.per * p.n + i];
    p.y.v[at] = s;
}
