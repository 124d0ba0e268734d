#version 460
#extension GL_GOOGLE_include_directive : require
// The k best logits of each row, best first and the lowest id first among equals, and the lowest id
// whose logit is not finite: first of a stretch for each workgroup, then of the stretches' best.
#include "common.glsl"
#include "order.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint LAST = 0u; // the stretches' results are there
layout(push_constant, scalar) uniform Push {
    F32 logits; // [rows][n]
    U32 parts;  // [rows][n_part][k + 1]: ids, then the lowest id that is not finite
    U32 result; // [rows][1 + 2 k]: that, ids, the bits of their logits
    uint n, n_part, k;
} p;

const uint NONE = 0xFFFFFFFFu;
shared uint bad;

uint at_part(uint part) {
    return (gl_WorkGroupID.y * p.n_part + part) * (p.k + 1u);
}

uint stretch() {
    return (p.n + p.n_part - 1u) / p.n_part;
}

// What index i of the workgroup stands for; NONE: nothing.
uint id_of(uint i) {
    if (LAST == 0u) return gl_WorkGroupID.x * stretch() + i;
    return p.parts.v[at_part(i / p.k) + i % p.k];
}

float logit_of(uint id) {
    return p.logits.v[gl_WorkGroupID.y * p.n + id];
}

// Indices rise with ids where keys are equal: within a stretch, and from one to the next.
uint key_at(uint i) {
    uint id = id_of(i);
    return id == NONE ? 0u : key_of(logit_of(id));
}

#include "ranks.glsl"

// How many indices the workgroup has.
uint count() {
    if (LAST != 0u) return p.n_part * p.k;
    uint begin = min(gl_WorkGroupID.x * stretch(), p.n);
    return min(begin + stretch(), p.n) - begin;
}

void look(uint tid, uint n) {
    uint most = 0u;
    for (uint i = tid; i < n; i += 256u) {
        most = max(most, key_at(i));
        if (LAST == 0u && !finite(logit_of(id_of(i)))) atomicMin(bad, id_of(i));
    }
    for (uint i = tid; LAST != 0u && i < p.n_part; i += 256u)
        atomicMin(bad, p.parts.v[at_part(i) + p.k]);
    best[tid] = most;
}

void put(uint place, uint id) {
    if (LAST == 0u) {
        p.parts.v[at_part(gl_WorkGroupID.x) + place] = id;
        return;
    }
    uint row = gl_WorkGroupID.y * (1u + 2u * p.k);
    p.result.v[row + 1u + place] = id;
    p.result.v[row + 1u + p.k + place] = id == NONE ? 0u : floatBitsToUint(logit_of(id));
}

void main() {
    uint tid = gl_LocalInvocationID.x, n = count();
    if (tid == 0u) bad = NONE;
    barrier(); // bad
    look(tid, n);
    find_bound(tid, p.k);
    for (uint i = tid; i < n; i += 256u)
        note_candidate(i);
    barrier(); // the candidates
    for (uint c = tid; c < n_left; c += 256u) {
        uint i = candidates[c], place = place_of(i);
        if (place < p.k) put(place, id_of(i));
    }
    // Fewer than k are there.
    if (tid < p.k && tid >= n_left) put(tid, NONE);
    if (tid != 0u) return;
    if (LAST == 0u) {
        p.parts.v[at_part(gl_WorkGroupID.x) + p.k] = bad;
    } else {
        p.result.v[gl_WorkGroupID.y * (1u + 2u * p.k)] = bad;
    }
}
