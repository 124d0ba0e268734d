#version 460
#extension GL_GOOGLE_include_directive : require
// The last `keep` rows of history and window become the history. In place: ascending rows read only
// what is not yet overwritten.
#include "common.glsl"

layout(local_size_x = 128) in;
layout(push_constant, scalar) uniform Push {
    F32 past; // [keep][n]
    F32 x;    // [rows][n]
    uint n, keep, rows;
} p;

void main() {
    uint c = gl_GlobalInvocationID.x;
    if (c >= p.n) return;
    for (uint j = 0u; j < p.keep; j++) {
        uint from = p.rows + j;
        p.past.v[j * p.n + c] = from < p.keep ? p.past.v[from * p.n + c]
                                                        : p.x.v[(from - p.keep) * p.n + c];
    }
}
