#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_NV_cooperative_matrix : require
#extension GL_NV_integer_cooperative_matrix : require
// What mul_tile.comp computes, bit for bit, with matrix units that multiply 16 x 32 by 32 x 16
// bytes exactly: a workgroup makes 64 rows of W by 16 * SIDE columns, each of its four subgroups
// (of 32 lanes) 16 rows. Sums of a group are integers below 2^24, so that scales may be applied to
// them as floats without rounding; the float sums keep their order, element by element.
#define RG_DOT
#include "product.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 2) const uint SIDE = 4u; // fragments of 16 columns; 8 at most
layout(constant_id = 3) const uint EPI = 0u;
layout(constant_id = 4) const uint PAIR = 0u;
layout(constant_id = 5) const uint STREAMS = 1u;

#define FLOATS fcoopmatNV<32, gl_ScopeSubgroup, 16, 16>
#define SUMS   icoopmatNV<32, gl_ScopeSubgroup, 16, 16>
#define LEFT   icoopmatNV<8, gl_ScopeSubgroup, 16, 32>
#define RIGHT  icoopmatNV<8, gl_ScopeSubgroup, 32, 16>

const uint DEPTH = 2u;  // groups at a time
const uint PITCH = 12u; // words from row to row of a tile: 8, and 4 against bank conflicts
const uint COLS = 16u * SIDE;
const bool HALVES = TYPE == T_Q2_K || TYPE == T_Q3_K || TYPE == T_Q6_K || TYPE == T_IQ2_XS ||
                    TYPE == T_IQ2_S || TYPE == T_IQ1_M;
const bool MIN = TYPE == T_Q4_1 || TYPE == T_Q5_1 || TYPE == T_Q2_K || TYPE == T_Q4_K ||
                 TYPE == T_Q5_K;
const bool SCALED = !(TYPE == T_Q8_0 || TYPE == T_Q4_0 || TYPE == T_Q4_1 || TYPE == T_Q5_0 ||
                      TYPE == T_Q5_1 || TYPE == T_IQ4_NL || TYPE == T_MXFP4 || TYPE == T_Q1_0 ||
                      TYPE == T_Q2_0 || TYPE == T_TQ1_0 || TYPE == T_TQ2_0);
shared uint w_tile[DEPTH][64 * PITCH];
shared uint x_tile[DEPTH][COLS * PITCH];
shared uint high_tile[DEPTH][HALVES ? COLS * PITCH : 1u]; // the second halves alone
shared float d_tile[DEPTH][64], dx_tile[DEPTH][COLS];
shared float s0_tile[DEPTH][64], s1_tile[DEPTH][64];
shared float dm_tile[DEPTH][64], m0_tile[DEPTH][64], m1_tile[DEPTH][64];
shared float sum0_tile[DEPTH][COLS], sum1_tile[DEPTH][COLS];
shared float out_tile[4][256];
shared uint slots[COLS];

void find_slots(uint tid, out uint count, out uint64_t w) {
    w = p.w;
    if (PAIR == 0u) {
        uint first = gl_WorkGroupID.y * COLS;
        count = min(p.n - first, COLS);
        if (tid < count) slots[tid] = first + tid;
    } else {
        uint at = p.n + 4u * gl_WorkGroupID.y; // as mul_tile.comp
        uint e = p.list.v[at], first = p.list.v[at + 1u];
        count = p.list.v[at + 2u];
        if (tid < count) slots[tid] = p.list.v[first + tid];
        w = uint64_t(p.experts) != 0ul ? p.experts.v[e] : p.w + e * p.stride;
    }
    barrier();
}

void load_weights(uint h, uint at, uint64_t row, uint g) {
    Group u = group_at(row, g);
    [[unroll]] for (uint k = 0u; k < 8u; k++)
        w_tile[h][at * PITCH + k] = u.q[k];
    d_tile[h][at] = u.d;
    if (SCALED) {
        s0_tile[h][at] = float(u.s0);
        s1_tile[h][at] = float(u.s1);
    }
    if (MIN) {
        dm_tile[h][at] = u.dm;
        m0_tile[h][at] = float(u.m0);
        m1_tile[h][at] = float(u.m1);
    }
}

void load_x(uint h, uint at, uint64_t x, uint g) {
    uvec4 a = U32x4(x + 32u * g).v[0], b = U32x4(x + 32u * g).v[1];
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        x_tile[h][at * PITCH + k] = a[k];
        x_tile[h][at * PITCH + 4u + k] = HALVES ? 0u : b[k];
        if (HALVES) {
            high_tile[h][at * PITCH + k] = 0u;
            high_tile[h][at * PITCH + 4u + k] = b[k];
        }
    }
    dx_tile[h][at] = F32(x + p.n_in).v[g];
    if (MIN) {
        int sums = int(U32(x + p.n_in + p.n_in / 8u).v[g]);
        sum0_tile[h][at] = float(bitfieldExtract(sums, 0, 16));
        sum1_tile[h][at] = float(sums >> 16);
    }
}

FLOATS acc[8], total[8];

// One group: each element gets what add_group adds.
void multiply(uint h, uint row) {
    LEFT w;
    FLOATS d, s0, s1, dm, m0, m1;
    coopMatLoadNV(w, w_tile[h], row * PITCH, PITCH, false);
    coopMatLoadNV(d, d_tile[h], row, 0, true);
    if (SCALED) coopMatLoadNV(s0, s0_tile[h], row, 0, true);
    if (HALVES) coopMatLoadNV(s1, s1_tile[h], row, 0, true);
    if (MIN) {
        coopMatLoadNV(dm, dm_tile[h], row, 0, true);
        coopMatLoadNV(m0, m0_tile[h], row, 0, true);
        coopMatLoadNV(m1, m1_tile[h], row, 0, true);
    }
    [[unroll]] for (uint j = 0u; j < 8u; j++) {
        if (j >= SIDE) break;
        RIGHT x;
        FLOATS dx, t0, t1, sum0, sum1;
        coopMatLoadNV(x, x_tile[h], 16u * j * PITCH, PITCH, true);
        t0 = FLOATS(coopMatMulAddNV(w, x, SUMS(0)));
        if (HALVES) {
            coopMatLoadNV(x, high_tile[h], 16u * j * PITCH, PITCH, true);
            t1 = FLOATS(coopMatMulAddNV(w, x, SUMS(0)));
        }
        coopMatLoadNV(dx, dx_tile[h], 16u * j, 0, false);
        if (MIN) {
            coopMatLoadNV(sum0, sum0_tile[h], 16u * j, 0, false);
            coopMatLoadNV(sum1, sum1_tile[h], 16u * j, 0, false);
        }
        [[unroll]] for (int i = 0; i < acc[j].length(); i++) {
            float t = t0[i];
            if (HALVES) t = fma(t, s0[i], t1[i] * s1[i]);
            else if (SCALED) t = t * s0[i];
            precise float f = d[i] * dx[i];
            float a = fma(f, t, acc[j][i]);
            if (MIN) {
                precise float fm = dm[i] * dx[i];
                a = fma(fm, fma(m0[i], sum0[i], m1[i] * sum1[i]), a);
            }
            acc[j][i] = a;
        }
    }
}

void finish(uint j, uint sub, uint lane, uint row0, uint count) {
    coopMatStoreNV(total[j], out_tile[sub], 0, 16, true); // a column's rows side by side
    subgroupBarrier();
    for (uint i = lane; i < 256u; i += 32u) {
        uint col = 16u * j + i / 16u, row = row0 + i % 16u;
        if (col < count && row < p.n_out)
            p.y.v[slots[col] * p.y_stride + row] = epilogue(EPI, out_tile[sub][i]);
    }
    subgroupBarrier();
}

void main() {
    uint tid = gl_LocalInvocationIndex, sub = gl_SubgroupID, lane = gl_SubgroupInvocationID;
    uint row0 = gl_WorkGroupID.x * 64u, count;
    uint64_t w;
    load_tables(tid, 128u, p.tables);
    find_slots(tid, count, w);
    uint h_mine = tid >> 6, at_mine = tid & 63u;
    uint64_t row = w + uint64_t(min(row0 + at_mine, p.n_out - 1u)) * p.row_bytes;
    [[unroll]] for (uint j = 0u; j < 8u; j++)
        total[j] = FLOATS(0.0);
    uint n_group = (p.n_in + 31u) / 32u, n_eight = (n_group + 7u) / 8u;
    uint share_ = (n_eight + STREAMS - 1u) / STREAMS;
    for (uint l = 0u; l < 8u * STREAMS; l++) {
        [[unroll]] for (uint j = 0u; j < 8u; j++)
            acc[j] = FLOATS(0.0);
        uint end = min((l / 8u + 1u) * share_, n_eight);
        for (uint n = l / 8u * share_; n < end; n += DEPTH) {
            uint g = 8u * n + l % 8u;
            if (g >= n_group) break;
            uint n_here = n + 1u < end && g + 8u < n_group ? 2u : 1u;
            barrier();
            if (h_mine < n_here) load_weights(h_mine, at_mine, row, g + 8u * h_mine);
            for (uint i = tid; i < n_here * COLS; i += 128u) {
                uint h = i / COLS, at = i % COLS;
                load_x(h, at, x_row(slots[min(at, count - 1u)] / p.x_div), g + 8u * h);
            }
            barrier();
            for (uint h = 0u; h < n_here; h++)
                multiply(h, 16u * sub);
        }
        [[unroll]] for (uint j = 0u; j < 8u; j++) {
            [[unroll]] for (int i = 0; i < total[j].length(); i++)
                total[j][i] += acc[j][i];
        }
    }
    [[unroll]] for (uint j = 0u; j < 8u; j++) {
        if (j < SIDE) finish(j, sub, lane, row0 + 16u * sub, count);
    }
}
