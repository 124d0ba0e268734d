#version 460
#extension GL_GOOGLE_include_directive : require
// The last `keep` rows of history, accepted drafts of the window before and certain rows of this
// one become the history; the other rows of this window, its drafts, become the journal. In place:
// ascending rows read only what is not yet overwritten.
#include "common.glsl"
#include "stand.glsl"

layout(local_size_x = 128) in;
layout(push_constant, scalar) uniform Push {
    F32 past;   // [keep][n], then the journal: [cap][n], alpha and beta [cap][n_head] each
    F32 x;      // [rows][n]
    U32 stand;  // stand.glsl
    F32 alpha;  // [rows][n_head]
    F32 beta;   // [rows][n_head]
    uint n, keep, rows;
    uint n_head; // 0: the journal has no alpha and beta
} p;

void main() {
    uint c = gl_GlobalInvocationID.x;
    uint owed = p.stand.v[OWED], firm = p.stand.v[FIRM];
    if (c < p.n) {
        uint kept = p.keep + owed;
        for (uint j = 0u; j < p.keep; j++) {
            uint from = owed + firm + j;
            p.past.v[j * p.n + c] =
                from < kept ? p.past.v[from * p.n + c] : p.x.v[(from - kept) * p.n + c];
        }
        for (uint i = firm; i < p.rows; i++)
            p.past.v[(p.keep + i - firm) * p.n + c] = p.x.v[i * p.n + c];
        return;
    }
    uint h = c - p.n, cap = p.stand.v[CAP];
    if (h >= p.n_head) return;
    uint to = (p.keep + cap) * p.n + h;
    for (uint i = firm; i < p.rows; i++) {
        uint at = to + (i - firm) * p.n_head;
        p.past.v[at] = p.alpha.v[i * p.n_head + h];
        p.past.v[at + cap * p.n_head] = p.beta.v[i * p.n_head + h];
    }
}
