#version 460
#extension GL_GOOGLE_include_directive : require
// g = silu(g) * u, element by element.
#include "common.glsl"

layout(local_size_x = 128) in;
layout(push_constant, scalar) uniform Push {
    F32 g;
    F32 u;
    uint n; // of a row of workgroups
} p;

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= p.n) return;
    uint at = (gl_WorkGroupID.y) * p.n + i;
    precise float v = silu(p.g.v[at]) * p.u.v[at];
    p.g.v[at] = v;
}
