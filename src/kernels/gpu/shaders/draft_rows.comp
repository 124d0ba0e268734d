#version 460
#extension GL_GOOGLE_include_directive : require
// Input rows of the draft block's projection, f32 and as codes: the normed embedding of the next
// token, and the normed streams of a residual. They depend on nothing of each other: a workgroup
// takes one of the two for a row. For one matrix over both, the embedding stands in front of each
// stream; for a matrix of each (APART) all embeddings stand in front of all streams.
#include "common.glsl"
#include "codes.glsl"
#include "values.glsl"
#include "sums.glsl"
#define RG_ACT_THREADS 256
#include "act.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 1) const uint APART = 0u;
layout(push_constant, scalar) uniform Push {
    U64 from;       // [rows] addresses of residuals [n_hc][n]
    uint64_t w;     // embeddings
    U32 tables;
    U32 ids;        // [rows]
    F32 w_e, w_h;   // [n], [n_hc][n]
    F32 y;          // [rows][n_hc][2 n]; APART [rows][n], then [rows][n_hc][n]
    uint64_t codes; // rows as those of y; 0: none
    U32 flag;       // min with `code` when a value is not finite
    uint n, n_hc, row_bytes;
    float eps;
    uint each; // one mean a stream, not one over all
    uint code;
} p;

float add_squares(float s, vec4 x) {
    precise float t = fma(x.x, x.x, s);
    t = fma(x.y, x.y, t);
    t = fma(x.z, x.z, t);
    return fma(x.w, x.w, t);
}

float inverse_of(float sum, uint n) {
    precise float inv = 1.0 / sqrt(sum / float(n) + p.eps);
    return inv;
}

// Sum of the squares of n values.
float squares_of(uint tid, F32 x, uint n) {
    float s = 0.0;
    for (uint i = 4u * tid; i < n; i += 1024u)
        s = add_squares(s, load_4(x, i, n - i, (p.n & 3u) == 0u));
    return sum_256(tid, s);
}

// Values i .. i + 3 of the half that begins at `at` of a row of n_row. All threads call it at once.
void put(uint tid, vec4 v, uint row, uint n_row, uint at, uint i) {
    uint left = i < p.n ? p.n - i : 0u;
    store_4(p.y, row * n_row + at + i, left, (p.n & 3u) == 0u, v);
    if (p.codes == 0ul) return;
    act_store(tid, left != 0u, v, p.codes + uint64_t(row) * act_row_bytes(n_row), n_row, at + i);
}

void embedding(uint tid, uint t) {
    uint64_t row = p.w + uint64_t(p.ids.v[t]) * p.row_bytes;
    load_tables(tid, 256u, p.tables);
    barrier(); // tables
    float s = 0.0;
    for (uint i = 4u * tid; i < p.n; i += 1024u)
        s = add_squares(s, values_at(row, i, p.n));
    float inv = inverse_of(sum_256(tid, s), p.n);
    for (uint first = 0u; first < p.n; first += 1024u) {
        uint i = first + 4u * tid, left = i < p.n ? p.n - i : 0u;
        precise vec4 v = vec4(0.0);
        if (left != 0u) v = values_at(row, i, p.n) * inv * load_4(p.w_e, i, left, (p.n & 3u) == 0u);
        if (APART != 0u) {
            put(tid, v, t, p.n, 0u, i);
        } else {
            for (uint h = 0u; h < p.n_hc; h++)
                put(tid, v, t * p.n_hc + h, 2u * p.n, 0u, i);
        }
    }
}

void streams(uint tid, uint t) {
    uint64_t from = p.from.v[t];
    float sum = squares_of(tid, F32(from), p.n_hc * p.n);
    if (tid == 0u && !finite(sum)) atomicMin(p.flag.v[0], p.code);
    float inv = inverse_of(sum, p.n_hc * p.n);
    for (uint h = 0u; h < p.n_hc; h++) {
        F32 x = F32(from + 4ul * h * p.n);
        if (p.each != 0u) inv = inverse_of(squares_of(tid, x, p.n), p.n);
        for (uint first = 0u; first < p.n; first += 1024u) {
            uint i = first + 4u * tid, left = i < p.n ? p.n - i : 0u;
            bool whole = (p.n & 3u) == 0u;
            precise vec4 v = load_4(x, i, left, whole) * inv;
            v = v * load_4(p.w_h, h * p.n + i, left, whole);
            uint row = t * p.n_hc + h;
            if (APART != 0u) put(tid, v, gl_NumWorkGroups.x + row, p.n, 0u, i);
            else put(tid, v, row, 2u * p.n, p.n, i);
        }
    }
}

void main() {
    uint t = gl_WorkGroupID.x, tid = gl_LocalInvocationID.x;
    if (gl_WorkGroupID.y == 0u) embedding(tid, t);
    else streams(tid, t);
}
