#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// y = W x for many rows of x: a workgroup makes a tile of 64 rows of W by 16 * SIDE columns, class
// by class, two groups at a time through shared memory. With experts: the columns of a tile are
// slots of one expert, listed by plan.comp.
#include "product.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 1) const uint SIDE = 4u; // columns of a thread
layout(constant_id = 2) const uint EPI = 0u;
layout(constant_id = 3) const uint PAIR = 0u;
layout(constant_id = 4) const uint STREAMS = 1u;
layout(constant_id = 5) const uint PART = 0u; // classes of this workgroup, a plane each; 0: all

const uint COLS = 16u * SIDE;
shared uvec4 w_tile[2][8][16]; // [group][word][row / 4]: codes; floats: [.][4 * group ..] below
shared uint x_tile[2][8][COLS];
shared vec4 d_tile[2][16], dm_tile[2][16]; // of nvfp4, dm: the second d
shared ivec4 s_tile[2][16];  // s0 | s1 << 16
shared ivec4 ms_tile[2][16]; // m0 | m1 << 16
shared float dx_tile[2][COLS];
shared uint sum_tile[2][COLS];
shared uint slots[COLS];

void find_slots(uint tid, out uint count, out uint64_t w) {
    w = p.w;
    if (PAIR == 0u) {
        uint first = gl_WorkGroupID.y * COLS;
        count = min(p.n - first, COLS);
        if (tid < count) slots[tid] = first + tid;
    } else {
        // Tiles lie behind the sorted slots: p.n words, then {expert, first, count, 0} each.
        uint at = p.n + 4u * gl_WorkGroupID.y;
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

// Groups g and g + 8 into shared memory: half of the threads unpack weights, half load x.
void load_codes(uint tid, uint g, uint n_here, uint row0, uint count, uint64_t w) {
    uint who = tid & 127u, h = who >> 6, at = who & 63u;
    if (h >= n_here) return;
    g += 8u * h;
    if (tid < 128u) {
        uint row = min(row0 + at, p.n_out - 1u);
        Group u = weights_at(w, row, p.n_in / 32u, g);
        [[unroll]] for (uint k = 0u; k < 4u; k++) {
            w_tile[h][k][at >> 2][at & 3u] = u.a[k];
            w_tile[h][4u + k][at >> 2][at & 3u] = u.b[k];
        }
        d_tile[h][at >> 2][at & 3u] = u.d;
        s_tile[h][at >> 2][at & 3u] = pack_16(u.s0, u.s1);
        if (TYPE == T_NVFP4) dm_tile[h][at >> 2][at & 3u] = u.d1;
        if (MINS) {
            dm_tile[h][at >> 2][at & 3u] = u.dm;
            ms_tile[h][at >> 2][at & 3u] = pack_16(u.m0, u.m1);
        }
    } else if (at < COLS) {
        uint64_t x = x_row(slots[min(at, count - 1u)] / p.x_div, FLOATS);
        uvec4 a = U32x4(x + 32u * g).v[0], b = U32x4(x + 32u * g).v[1];
        [[unroll]] for (uint k = 0u; k < 4u; k++) {
            x_tile[h][k][at] = a[k];
            x_tile[h][4u + k][at] = b[k];
        }
        dx_tile[h][at] = F32(x + p.n_in).v[g];
        if (MINS) sum_tile[h][at] = U32(x + p.n_in + p.n_in / 8u).v[g];
    }
}

float acc[4u * SIDE]; // of the class, rows of W fastest

void multiply_codes(uint h, uint tx, uint ty) {
    int t0[4u * SIDE], t1[4u * SIDE];
    [[unroll]] for (uint o = 0u; o < 4u * SIDE; o++)
        t0[o] = t1[o] = 0;
    [[unroll]] for (uint k = 0u; k < 8u; k++) {
        uvec4 q = w_tile[h][k][ty];
        [[unroll]] for (uint j = 0u; j < SIDE; j++) {
            uint x = x_tile[h][k][tx + 16u * j];
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                uint o = 4u * j + i;
                if (k < 4u) t0[o] = dot_4(q[i], x, t0[o]);
                else t1[o] = dot_4(q[i], x, t1[o]);
            }
        }
    }
    vec4 d = d_tile[h][ty], dm = dm_tile[h][ty];
    ivec4 s = s_tile[h][ty], m = ms_tile[h][ty];
    [[unroll]] for (uint j = 0u; j < SIDE; j++) {
        float dx = dx_tile[h][tx + 16u * j];
        uint sums = MINS ? sum_tile[h][tx + 16u * j] : 0u;
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            Group u;
            u.d = d[i];
            u.d1 = u.dm = dm[i];
            u.s0 = bitfieldExtract(s[i], 0, 16);
            u.s1 = s[i] >> 16;
            u.m0 = bitfieldExtract(m[i], 0, 16);
            u.m1 = m[i] >> 16;
            uint o = 4u * j + i;
            acc[o] = add_group(u, t0[o], t1[o], dx, sums, acc[o]);
        }
    }
}

// Four fours of a class of floats, from value `first` on, 32 apart: the tiles hold bits of floats.
void load_floats(uint tid, uint first, uint row0, uint count, uint64_t w) {
    for (uint i = tid; i < 16u * 64u; i += 256u) {
        uint k = i & 15u, at = i >> 4, row = min(row0 + at, p.n_out - 1u);
        uint from = first + 32u * (k >> 2) + (k & 3u);
        float v = from < p.n_in ? float_at(w + uint64_t(row) * p.row_bytes, from) : 0.0;
        w_tile[k >> 3][k & 7u][at >> 2][at & 3u] = floatBitsToUint(v);
    }
    for (uint i = tid; i < 16u * COLS; i += 256u) {
        uint k = i & 15u, at = i >> 4, from = first + 32u * (k >> 2) + (k & 3u);
        uint64_t x = x_row(slots[min(at, count - 1u)] / p.x_div, FLOATS);
        x_tile[k >> 3][k & 7u][at] = floatBitsToUint(from < p.n_in ? F32(x).v[from] : 0.0);
    }
}

void multiply_floats(uint tx, uint ty) {
    for (uint k = 0u; k < 16u; k++) {
        vec4 q = uintBitsToFloat(w_tile[k >> 3][k & 7u][ty]);
        [[unroll]] for (uint j = 0u; j < SIDE; j++) {
            float x = uintBitsToFloat(x_tile[k >> 3][k & 7u][tx + 16u * j]);
            [[unroll]] for (uint i = 0u; i < 4u; i++)
                acc[4u * j + i] = fma(q[i], x, acc[4u * j + i]);
        }
    }
}

// The sums of class l for sum_planes.comp.
void store_plane(uint l, uint row, uint tx, uint count) {
    [[unroll]] for (uint o = 0u; o < 4u * SIDE; o++) {
        uint r = row + o % 4u, col = tx + 16u * (o / 4u);
        if (col < count && r < p.n_out) p.y.v[(l * p.n + slots[col]) * p.n_out + r] = acc[o];
    }
}

void main() {
    uint tid = gl_LocalInvocationIndex, tx = tid & 15u, ty = tid >> 4;
    uint row0 = gl_WorkGroupID.x * 64u, count;
    uint64_t w;
    load_tables(tid, 256u, p.tables);
    find_slots(tid, count, w);
    precise float total[4u * SIDE];
    [[unroll]] for (uint o = 0u; o < 4u * SIDE; o++)
        total[o] = 0.0;
    uint n_group = (p.n_in + 31u) / 32u, n_eight = (n_group + 7u) / 8u;
    uint share_ = (n_eight + STREAMS - 1u) / STREAMS;
    uint l0 = PART * gl_WorkGroupID.z, l1 = PART != 0u ? l0 + PART : 8u * STREAMS;
    for (uint l = l0; l < l1; l++) {
        [[unroll]] for (uint o = 0u; o < 4u * SIDE; o++)
            acc[o] = 0.0;
        uint end = min((l / 8u + 1u) * share_, n_eight);
        uint step_ = FLOATS ? 1u : 2u;
        for (uint n = l / 8u * share_; n < end; n += step_) {
            uint g = 8u * n + l % 8u;
            if (FLOATS) {
                for (uint h = 0u; h < 2u; h++) {
                    barrier(); // the values before are multiplied
                    load_floats(tid, 256u * n + 128u * h + 4u * (l % 8u), row0, count, w);
                    barrier(); // weights and rows of x
                    multiply_floats(tx, ty);
                }
                continue;
            }
            if (g >= n_group) break;
            uint n_here = n + 1u < end && g + 8u < n_group ? 2u : 1u;
            barrier(); // the groups before are multiplied
            load_codes(tid, g, n_here, row0, count, w);
            barrier(); // weights and rows of x
            for (uint h = 0u; h < n_here; h++)
                multiply_codes(h, tx, ty);
        }
        if (PART != 0u) store_plane(l, row0 + 4u * ty, tx, count);
        [[unroll]] for (uint o = 0u; o < 4u * SIDE; o++)
            total[o] += acc[o];
    }
    if (PART != 0u) return;
    [[unroll]] for (uint j = 0u; j < SIDE; j++) {
        uint col = tx + 16u * j;
        if (col >= count) continue;
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            uint row = row0 + 4u * ty + i;
            if (row >= p.n_out) continue;
            p.y.v[slots[col] * p.y_stride + row] = epilogue(EPI, total[4u * j + i]);
        }
    }
}
