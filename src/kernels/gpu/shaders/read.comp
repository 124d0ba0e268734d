#version 460
#extension GL_GOOGLE_include_directive : require
// Reads a buffer once and keeps a sum: what the memory gives at most.
#include "common.glsl"

layout(local_size_x = 256) in;
layout(push_constant, scalar) uniform Push {
    U32x4 x;
    U32 y;
    uint n;    // of 16 bytes
    uint step; // threads
} p;

void main() {
    uvec4 s = uvec4(0u);
    for (uint i = gl_GlobalInvocationID.x; i < p.n; i += p.step)
        s ^= p.x.v[i];
    if ((s.x ^ s.y ^ s.z ^ s.w) == 0x12345678u) p.y.v[0] = s.x; // almost never
}
