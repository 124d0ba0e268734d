#version 460
#extension GL_GOOGLE_include_directive : require
// One causal depthwise convolution and silu; rows before the window come from the history and the
// accepted drafts behind it, rows before the first token are skipped. ADD: into the residual,
// behind the gated values.
#include "common.glsl"
#include "stand.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint ADD = 0u;
layout(push_constant, scalar) uniform Push {
    F32 w;     // [n][n_tap]
    F32 x;     // [rows][n]
    F32 past;  // [(n_tap - 1) * dilation][n], oldest first, then the journal [.][n]
    F32 y;     // [rows][n]
    F32 gated; // [rows][n], ADD
    U32 stand; // stand.glsl
    uint n, n_tap, dilation;
} p;

void main() {
    uint c = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (c >= p.n) return;
    uint keep = (p.n_tap - 1u) * p.dilation + p.stand.v[OWED], pos = p.stand.v[POS0] + t;
    precise float s = 0.0;
    for (uint k = 0u; k < p.n_tap; k++) {
        uint back = (p.n_tap - 1u - k) * p.dilation;
        if (back > pos) continue;
        float x = back > t ? p.past.v[(keep - (back - t)) * p.n + c]
                           : p.x.v[(t - back) * p.n + c];
        s = fma(p.w.v[c * p.n_tap + k], x, s);
    }
    uint at = t * p.n + c;
    if (ADD == 0u) {
        p.y.v[at] = silu(s);
        return;
    }
    precise float r = p.y.v[at] + p.gated.v[at];
    r = r + silu(s);
    p.y.v[at] = r;
}
