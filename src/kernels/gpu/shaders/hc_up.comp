#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// The gates of the residual streams and their mix, for a few rows: what quantize.comp,
// mul_rows.comp and hc_mix.comp compute one after the other, bit for bit. A workgroup makes 32
// values of u: eight lanes take the classes of the rows of all streams of one value. The low rows
// are short: one stream of sums (product.glsl).
#define RG_OWN_PUSH
#include "product.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 1) const uint COLS = 1u;  // rows of u
layout(constant_id = 2) const uint HC = 1u;    // residual streams
layout(constant_id = 3) const uint N_IN = 32u; // of the low rows; quantised: a multiple of 32
layout(push_constant, scalar) uniform Push {
    uint64_t w;     // [HC][n] rows of weights
    uint64_t low;   // f32 [COLS][N_IN]
    F32 normed;     // [COLS][HC][n]
    F32 u;          // [COLS][n]
    uint64_t codes; // of u
    U32 tables;
    uint n, row_bytes; // n: a multiple of 32
} p;

const uint GROUPS = (N_IN + 31u) / 32u;
const uint EIGHTS = (GROUPS + 7u) / 8u;
shared uvec4 x_codes[FLOATS ? 1u : COLS * GROUPS * 2u];
shared float x_scale[FLOATS ? 1u : COLS * GROUPS];
shared uint x_sums[FLOATS ? 1u : COLS * GROUPS];
shared float part[32u * HC * 9u];
shared float gate[32u * HC], stream[32u * HC];
shared float mixed[32];
shared int sums[8];

void code_rows(uint tid) {
    for (uint g = tid; g < COLS * GROUPS; g += 256u) {
        uvec4 a, b;
        uint s;
        x_scale[g] = act_group(F32x4(p.low + 128ul * g), a, b, s);
        x_codes[2u * g] = a;
        x_codes[2u * g + 1u] = b;
        x_sums[g] = s;
    }
}

float acc[COLS * HC];
uint64_t row[HC];

void add_codes(uint g) {
    Group u[HC];
    [[unroll]] for (uint h = 0u; h < HC; h++)
        u[h] = group_at(row[h], g);
    [[unroll]] for (uint c = 0u; c < COLS; c++) {
        uint at = c * GROUPS + g;
        uvec4 a = x_codes[2u * at], b = x_codes[2u * at + 1u];
        float dx = x_scale[at];
        uint s = MINS ? x_sums[at] : 0u;
        [[unroll]] for (uint h = 0u; h < HC; h++) {
            int t0 = dot_16(u[h].a, a), t1 = dot_16(u[h].b, b);
            acc[c * HC + h] = add_group(u[h], t0, t1, dx, s, acc[c * HC + h]);
        }
    }
}

// The class's fours of an eight of groups of float weights.
void add_floats(uint n, uint l) {
    for (uint m = 0u; m < 8u; m++) {
        uint i = 256u * n + 4u * l + 32u * m;
        for (uint k = i; k < min(i + 4u, N_IN); k++) {
            [[unroll]] for (uint h = 0u; h < HC; h++) {
                float w = float_at(row[h], k);
                [[unroll]] for (uint c = 0u; c < COLS; c++)
                    acc[c * HC + h] = fma(w, F32(p.low).v[c * N_IN + k], acc[c * HC + h]);
            }
        }
    }
}

// 32 values of u as one group of codes, four values a thread.
void store_codes(uint tid, uint c, uint i0) {
    vec4 x = vec4(0.0);
    float top = 0.0;
    uint word = 0u;
    if (tid < 8u) {
        [[unroll]] for (uint k = 0u; k < 32u; k++)
            top = max(top, abs(mixed[k]));
        x = vec4(mixed[4u * tid], mixed[4u * tid + 1u], mixed[4u * tid + 2u], mixed[4u * tid + 3u]);
        int sum = 0;
        word = act_word(x, act_inverse(top), sum);
        sums[tid] = sum;
    }
    barrier(); // sums
    if (tid >= 8u) return;
    uint64_t y = p.codes + uint64_t(c) * act_row_bytes(p.n);
    U32(y).v[i0 / 4u + tid] = word;
    if (tid != 0u) return;
    int low = sums[0] + sums[1] + sums[2] + sums[3], high = sums[4] + sums[5] + sums[6] + sums[7];
    F32(y + p.n).v[i0 / 32u] = act_scale(top);
    U32(y + p.n + p.n / 8u).v[i0 / 32u] = uint(low & 0xFFFF) | uint(high) << 16;
}

void main() {
    uint tid = gl_LocalInvocationID.x, lane = tid & 7u, mine = tid >> 3;
    uint i0 = 32u * gl_WorkGroupID.x;
    load_tables(tid, 256u, p.tables);
    if (!FLOATS) code_rows(tid);
    [[unroll]] for (uint h = 0u; h < HC; h++)
        row[h] = p.w + uint64_t(h * p.n + i0 + mine) * p.row_bytes;
    [[unroll]] for (uint o = 0u; o < COLS * HC; o++)
        acc[o] = 0.0;
    barrier(); // tables; codes of the low rows
    for (uint n = 0u; n < EIGHTS; n++) {
        uint g = 8u * n + lane;
        if (FLOATS) add_floats(n, lane);
        else if (g < GROUPS) add_codes(g);
    }
    for (uint c = 0u; c < COLS; c++) {
        [[unroll]] for (uint h = 0u; h < HC; h++)
            part[(mine * HC + h) * 9u + lane] = acc[c * HC + h];
        barrier(); // parts
        for (uint o = tid; o < 32u * HC; o += 256u) {
            precise float s = 0.0;
            [[unroll]] for (uint l = 0u; l < 8u; l++)
                s += part[o * 9u + l];
            gate[o] = sigmoid(s);
            stream[o] = p.normed.v[(c * HC + o % HC) * p.n + i0 + o / HC];
        }
        barrier(); // gates and streams
        if (tid < 32u) {
            precise float s = 0.0;
            [[unroll]] for (uint h = 0u; h < HC; h++)
                s = fma(gate[tid * HC + h], stream[tid * HC + h], s);
            precise float y = s / float(HC);
            mixed[tid] = y;
            p.u.v[c * p.n + i0 + tid] = y;
        }
        barrier(); // values
        store_codes(tid, c, i0);
    }
}
