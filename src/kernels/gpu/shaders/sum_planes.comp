#version 460
#extension GL_GOOGLE_include_directive : require
// y = sum of the planes that a product in parts left behind (mul_mat.comp, mul_tile.comp): one for
// each class of each stream, added up as the product does that makes all of them itself.
#include "product.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 1) const uint EPI = 0u;
layout(constant_id = 2) const uint PLANES = 8u;

void main() {
    uint i = gl_GlobalInvocationID.x, size = p.n * p.n_out;
    if (i >= size) return;
    F32 plane = F32(p.w);
    precise float s = 0.0;
    for (uint k = 0u; k < PLANES; k++)
        s += plane.v[k * size + i];
    p.y.v[i / p.n_out * p.y_stride + i % p.n_out] = epilogue(EPI, s);
}
