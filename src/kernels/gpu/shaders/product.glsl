// What the products share: which weights, which rows, and what happens to a result.
//
// The canonical dot of the device. A row is cut into groups of 32 values; group g belongs to class
// g mod 8 of the stream that g / 8 falls into: streams of equally many eights, as many as
// streams_of says; of floats, the four values from 4 i on belong to class i mod 8. In a class, from
// acc = 0:
//   quantised: total = exact integer sum of scale * code * code of x,
//              acc = fma(d * dx, total, acc),
//              then, with minima, acc = fma(dm * dx, sum of m * codes of x, acc);
//   nvfp4:     the two halves one after the other, each with its own d;
//   floats:    acc = fma(w, x, acc), values ascending (behind the end of a row: zeros).
// The classes add up ascending, stream by stream. Every program and every number of rows computes
// exactly that. All totals are below 2^24: they are exact as floats too.
#include "common.glsl"
#include "codes.glsl"
#include "dot.glsl"
#include "act.glsl"

#ifndef RG_OWN_PUSH
layout(push_constant, scalar) uniform Push {
    uint64_t w;  // rows of weights; of expert 0 where experts are chosen by `stride`
    uint64_t w2; // the up rows of a fused pair; or the second matrix
    uint64_t x;  // f32, or rows of codes (act.glsl) where weights are quantised
    F32 y;
    U32 tables;
    U64 experts;  // address of each expert; 0: w + expert * stride
    U64 experts2; // of each expert's up rows
    U32 ids;      // expert of each slot; 0: no experts
    U32 list;     // slots or tiles; 0: the workgroup's number
    uint64_t stride;
    uint n_in, n_out, row_bytes;
    uint x_stride, y_stride; // x_stride: of floats
    uint x_div; // row of x = slot / x_div
    float div;  // of the result, before the activation
    uint n;     // columns
    F32 y2;     // of a second matrix of n_out2 rows at w2; n_out2 0: there is none
    uint n_out2, y_stride2;
} p;

// Group g of a row of the matrix at `w`.
Group weights_at(uint64_t w, uint row, uint n_group, uint g) {
    if (!INTERLEAVED) return group_at(w + uint64_t(row) * p.row_bytes, g);
    return planes_row(planes_of(w, (p.n_out + 1u) / 2u, n_group), row, n_group, g);
}

const uint EPI_NONE = 0u, EPI_SILU = 1u, EPI_SIGMOID2 = 2u, EPI_SIGMOID = 3u;

float epilogue(uint kind, float v) {
    if (kind == EPI_NONE) return v;
    precise float d = v / p.div;
    if (kind == EPI_SILU) return silu(d);
    return kind == EPI_SIGMOID ? sigmoid(d) : 2.0 * sigmoid(d);
}

uint64_t x_row(uint row, bool floats) {
    uint bytes = floats ? 4u * p.x_stride : act_row_bytes(p.n_in);
    return p.x + uint64_t(row) * bytes;
}
#endif

// One group and the same group of a row of x, whose halves have the exact dots t0 and t1.
float add_group(Group u, int t0, int t1, float dx, uint sums, float acc) {
    if (TYPE == T_NVFP4) {
        precise float f0 = u.d * dx, f1 = u.d1 * dx;
        acc = fma(f0, float(t0), acc);
        return fma(f1, float(t1), acc);
    }
    precise float f = u.d * dx;
    acc = fma(f, float(u.s0 * t0 + u.s1 * t1), acc);
    if (MINS) {
        precise float fm = u.dm * dx;
        int m = u.m0 * bitfieldExtract(int(sums), 0, 16) + u.m1 * (int(sums) >> 16);
        acc = fma(fm, float(m), acc);
    }
    return acc;
}
