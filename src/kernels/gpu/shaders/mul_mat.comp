#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_NV_cooperative_matrix : require
#extension GL_NV_integer_cooperative_matrix : require
// What mul_tile.comp computes, bit for bit, with matrix units that multiply 16 x 32 by 32 x 16
// bytes exactly: a workgroup makes 64 rows of W by 16 * SIDE columns, each of its four subgroups
// (of 32 lanes) 16 rows. The units give the integer sums of a group; scales are applied to them
// element by element, in the canonical order. Which elements a lane holds is up to the device: it
// reads their numbers as a matrix.
#ifndef RG_DOT // devices with matrix units have the instruction
#define RG_DOT
#endif
#include "product.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 1) const uint SIDE = 4u; // fragments of 16 columns; 8 at most
layout(constant_id = 2) const uint EPI = 0u;
layout(constant_id = 3) const uint PAIR = 0u;
layout(constant_id = 4) const uint STREAMS = 1u;
layout(constant_id = 5) const uint DEPTH = 2u; // groups of a class between two barriers
layout(constant_id = 6) const uint N_IN = 32u;
layout(constant_id = 7) const uint PART = 0u; // classes of this workgroup, a plane each; 0: all

#define SUMS  icoopmatNV<32, gl_ScopeSubgroup, 16, 16>
#define LEFT  icoopmatNV<8, gl_ScopeSubgroup, 16, 32>
#define RIGHT icoopmatNV<8, gl_ScopeSubgroup, 32, 16>

const uint N_GROUP = (N_IN + 31u) / 32u, N_EIGHT = (N_GROUP + 7u) / 8u;
const uint SHARE = (N_EIGHT + STREAMS - 1u) / STREAMS; // eights of a stream
const uint MINE = (DEPTH + 1u) / 2u;                   // groups that a thread unpacks
const uint PITCH = 3u; // vectors from row to row of a tile: 2, and 1 against bank conflicts
const uint COLS = 16u * SIDE;
const uint LOADED = 8u; // elements of a 16 x 16 matrix in a lane
// Matrices are loaded from whole vectors: their addresses must be multiples of 16.
shared uvec4 w_tile[DEPTH][64u * PITCH];
shared uvec4 x_tile[DEPTH][COLS * PITCH];
shared uvec4 high_tile[DEPTH][HALVES ? COLS * PITCH : 1u]; // the second halves alone
shared ivec4 numbers[64];
shared float d_tile[DEPTH][64], dm_tile[DEPTH][64];
shared int s_tile[DEPTH][64];  // s0 | s1 << 16
shared int ms_tile[DEPTH][64]; // m0 | m1 << 16
shared float dx_tile[DEPTH][COLS];
shared uint sum_tile[DEPTH][COLS];
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
    barrier(); // slots; tables
}

int pack_16(int low, int high) {
    return (low & 0xFFFF) | high << 16;
}

void store_weights(uint h, uint at, Group u) {
    w_tile[h][at * PITCH] = u.a;
    w_tile[h][at * PITCH + 1u] = u.b;
    d_tile[h][at] = u.d;
    s_tile[h][at] = pack_16(u.s0, u.s1);
    if (MINS) {
        dm_tile[h][at] = u.dm;
        ms_tile[h][at] = pack_16(u.m0, u.m1);
    }
}

// Groups g, g + 8, ... of a row of W: this thread those from h on, every other one.
void load_weights(uint h, uint at, uint64_t w, uint row, uint g, uint n_here) {
    Group u[MINE];
    [[unroll]] for (uint k = 0u; k < MINE; k++) // loads first
        u[k] = weights_at(w, row, N_IN / 32u, g + 8u * min(h + 2u * k, n_here - 1u));
    [[unroll]] for (uint k = 0u; k < MINE; k++)
        if (h + 2u * k < n_here) store_weights(h + 2u * k, at, u[k]);
}

void load_x(uint h, uint at, uint64_t x, uint g) {
    uvec4 a = U32x4(x + 32u * g).v[0], b = U32x4(x + 32u * g).v[1];
    x_tile[h][at * PITCH] = a;
    x_tile[h][at * PITCH + 1u] = HALVES ? uvec4(0u) : b;
    if (HALVES) {
        high_tile[h][at * PITCH] = uvec4(0u);
        high_tile[h][at * PITCH + 1u] = b;
    }
    dx_tile[h][at] = F32(x + N_IN).v[g];
    if (MINS) sum_tile[h][at] = U32(x + N_IN + N_IN / 8u).v[g];
}

float acc[8u * LOADED]; // element by element of the fragments
uint row_at[LOADED], col_at[LOADED]; // of a lane's elements

void find_elements(uint tid) {
    if (tid < 64u) numbers[tid] = ivec4(4u * tid) + ivec4(0, 1, 2, 3);
    barrier(); // numbers
    SUMS n;
    coopMatLoadNV(n, numbers, 0, 4, false);
    [[unroll]] for (uint i = 0u; i < LOADED; i++) {
        row_at[i] = uint(n[i]) / 16u;
        col_at[i] = uint(n[i]) % 16u;
    }
}

// One group of all fragments of a subgroup, whose rows of W start at `row`.
void multiply(uint h, uint row) {
    LEFT w;
    coopMatLoadNV(w, w_tile[h], row * PITCH, PITCH, false);
    [[unroll]] for (uint j = 0u; j < 8u; j++) {
        if (j >= SIDE) break;
        RIGHT x;
        coopMatLoadNV(x, x_tile[h], 16u * j * PITCH, PITCH, true);
        SUMS t0 = coopMatMulAddNV(w, x, SUMS(0)), t1 = SUMS(0);
        if (HALVES) {
            coopMatLoadNV(x, high_tile[h], 16u * j * PITCH, PITCH, true);
            t1 = coopMatMulAddNV(w, x, t1);
        }
        [[unroll]] for (uint i = 0u; i < LOADED; i++) {
            uint r = row + row_at[i], c = 16u * j + col_at[i];
            Group u;
            u.d = d_tile[h][r];
            u.s0 = bitfieldExtract(s_tile[h][r], 0, 16);
            u.s1 = HALVES ? s_tile[h][r] >> 16 : 0;
            uint sums = 0u;
            if (MINS) {
                u.dm = dm_tile[h][r];
                u.m0 = bitfieldExtract(ms_tile[h][r], 0, 16);
                u.m1 = ms_tile[h][r] >> 16;
                sums = sum_tile[h][c];
            }
            uint o = LOADED * j + i;
            acc[o] = add_group(u, t0[i], t1[i], dx_tile[h][c], sums, acc[o]);
        }
    }
}

// The sums of class l for sum_planes.comp.
void store_plane(uint l, uint row, uint count) {
    [[unroll]] for (uint o = 0u; o < LOADED * SIDE; o++) {
        uint r = row + row_at[o % LOADED];
        uint col = 16u * (o / LOADED) + col_at[o % LOADED];
        if (col < count && r < p.n_out) p.y.v[(l * p.n + slots[col]) * p.n_out + r] = acc[o];
    }
}

void main() {
    uint tid = gl_LocalInvocationIndex, sub = gl_SubgroupID;
    uint row0 = gl_WorkGroupID.x * 64u, count;
    uint64_t w;
    load_tables(tid, 128u, p.tables);
    find_slots(tid, count, w);
    uint h_mine = tid >> 6, at_mine = tid & 63u;
    uint row = min(row0 + at_mine, p.n_out - 1u);
    precise float total[8u * LOADED];
    find_elements(tid);
    [[unroll]] for (uint o = 0u; o < LOADED * SIDE; o++)
        total[o] = 0.0;
    uint l0 = PART * gl_WorkGroupID.z, l1 = PART != 0u ? l0 + PART : 8u * STREAMS;
    for (uint l = l0; l < l1; l++) {
        [[unroll]] for (uint o = 0u; o < LOADED * SIDE; o++)
            acc[o] = 0.0;
        uint end = min((l / 8u + 1u) * SHARE, N_EIGHT);
        for (uint n = l / 8u * SHARE; n < end; n += DEPTH) {
            uint g = 8u * n + l % 8u;
            if (g >= N_GROUP) break;
            uint n_here = min(min(DEPTH, end - n), (N_GROUP - g + 7u) / 8u);
            barrier(); // the groups before are multiplied
            load_weights(h_mine, at_mine, w, row, g, n_here);
            for (uint i = tid; i < n_here * COLS; i += 128u) {
                uint h = i / COLS, at = i % COLS;
                load_x(h, at, x_row(slots[min(at, count - 1u)] / p.x_div, FLOATS), g + 8u * h);
            }
            barrier(); // weights and rows of x
            for (uint h = 0u; h < n_here; h++)
                multiply(h, 16u * sub);
        }
        if (PART != 0u) store_plane(l, row0 + 16u * sub, count);
        [[unroll]] for (uint o = 0u; o < LOADED * SIDE; o++)
            total[o] += acc[o];
    }
    if (PART != 0u) return;
    [[unroll]] for (uint o = 0u; o < LOADED * SIDE; o++) {
        uint r = row0 + 16u * sub + row_at[o % LOADED];
        uint col = 16u * (o / LOADED) + col_at[o % LOADED];
        if (col < count && r < p.n_out)
            p.y.v[slots[col] * p.y_stride + r] = epilogue(EPI, total[o]);
    }
}
