// What both products share: which weights, which rows, and what happens to a result.
//
// The canonical dot of the device: units of 16 values belong to 32 classes (unit mod 32); in a unit
// s = fma(q, x, s) ascending, then class = fma(d, s, class), then fma(m, sum of x, class); the
// classes add up ascending. Both programs and every number of rows compute exactly that.
#include "common.glsl"
#include "decode.glsl"

const uint CLASSES = 32u;

layout(push_constant, scalar) uniform Push {
    uint64_t w;  // rows of weights; of expert 0 where experts are chosen by `stride`
    uint64_t w2; // the up rows of a fused pair
    F32 x;
    F32 y;
    U32 tables;
    U64 experts;  // address of each expert; 0: w + expert * stride
    U64 experts2; // of each expert's up rows
    U32 ids;      // expert of each slot; 0: no experts
    U32 list;     // slots or tiles; 0: the workgroup's number
    uint64_t stride;
    uint n_in, n_out, row_bytes;
    uint x_stride, y_stride;
    uint x_div; // row of x = slot / x_div
    float div;  // of the result, before the activation
    uint n;     // columns
} p;

const uint EPI_NONE = 0u, EPI_SILU = 1u, EPI_SIGMOID2 = 2u, EPI_SIGMOID = 3u;

float epilogue(uint kind, float v) {
    if (kind == EPI_NONE) return v;
    precise float d = v / p.div;
    if (kind == EPI_SILU) return silu(d);
    return kind == EPI_SIGMOID ? sigmoid(d) : 2.0 * sigmoid(d);
}

// Sixteen activations of unit u, zeros behind the end.
void load_x(uint64_t row, uint u, out float x[16]) {
    if ((p.n_in & 15u) == 0u) {
        F32x4 v = F32x4(row + 64u * u);
        for (uint k = 0u; k < 4u; k++) {
            vec4 f = v.v[k];
            x[4u * k] = f.x;
            x[4u * k + 1u] = f.y;
            x[4u * k + 2u] = f.z;
            x[4u * k + 3u] = f.w;
        }
        return;
    }
    for (uint k = 0u; k < 16u; k++) {
        uint i = 16u * u + k;
        x[k] = i < p.n_in ? F32(row).v[i] : 0.0;
    }
}

float sum_x(float x[16]) {
    precise float s = 0.0;
    for (uint k = 0u; k < 16u; k++)
        s += x[k];
    return s;
}
