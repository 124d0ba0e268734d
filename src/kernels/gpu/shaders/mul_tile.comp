#version 460
#extension GL_GOOGLE_include_directive : require
// y = W x for many rows of x: a workgroup makes a tile of 64 rows of W by 16 * SIDE columns, class
// by class, two units at a time through shared memory. With experts: the columns of a tile are
// slots of one expert, listed by plan.comp.
#include "product.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint TYPE = 0u;
layout(constant_id = 1) const uint SIDE = 4u; // columns of a thread
layout(constant_id = 2) const uint EPI = 0u;
layout(constant_id = 3) const uint PAIR = 0u;

const uint COLS = 16u * SIDE;
shared vec4 q_tile[32][16]; // [k][rows / 4]
shared float x_tile[32][COLS];
shared float d_tile[2][64], m_tile[2][64], sum_tile[2][COLS];
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
    barrier();
}

// Two units of the class into shared memory: half of the threads unpack weights, half load x.
void load_tiles(uint tid, uint n, uint n_here, uint row0, uint count, uint64_t w) {
    uint who = tid & 127u, unit = who >> 6, at = who & 63u;
    if (unit >= n_here) return;
    uint u_index = n + unit * CLASSES;
    if (tid < 128u) {
        uint row = min(row0 + at, p.n_out - 1u);
        Unit u = decode(TYPE, w + uint64_t(row) * p.row_bytes, u_index, p.n_in, p.tables);
        for (uint k = 0u; k < 16u; k++)
            q_tile[16u * unit + k][at >> 2][at & 3u] = u.q[k];
        d_tile[unit][at] = u.d;
        if (has_min(TYPE)) m_tile[unit][at] = u.m;
    } else if (at < COLS) {
        float x[16];
        uint slot = slots[min(at, count - 1u)];
        load_x(uint64_t(p.x) + 4ul * (uint64_t(slot / p.x_div) * p.x_stride), u_index, x);
        for (uint k = 0u; k < 16u; k++)
            x_tile[16u * unit + k][at] = x[k];
        if (has_min(TYPE)) sum_tile[unit][at] = sum_x(x);
    }
}

void main() {
    uint tid = gl_LocalInvocationIndex, tx = tid & 15u, ty = tid >> 4;
    uint row0 = gl_WorkGroupID.x * 64u, count;
    uint64_t w;
    find_slots(tid, count, w);
    precise float total[4u * SIDE], acc[4u * SIDE];
    for (uint o = 0u; o < 4u * SIDE; o++)
        total[o] = 0.0;
    uint n_unit = (p.n_in + 15u) / 16u;
    for (uint l = 0u; l < CLASSES; l++) {
        for (uint o = 0u; o < 4u * SIDE; o++)
            acc[o] = 0.0;
        for (uint n = l; n < n_unit; n += 2u * CLASSES) {
            uint n_here = n + CLASSES < n_unit ? 2u : 1u;
            barrier();
            load_tiles(tid, n, n_here, row0, count, w);
            barrier();
            for (uint h = 0u; h < n_here; h++) {
                precise float s[4u * SIDE];
                for (uint o = 0u; o < 4u * SIDE; o++)
                    s[o] = 0.0;
                for (uint k = 0u; k < 16u; k++) {
                    vec4 q = q_tile[16u * h + k][ty];
                    for (uint j = 0u; j < SIDE; j++) {
                        float x = x_tile[16u * h + k][tx + 16u * j];
                        for (uint i = 0u; i < 4u; i++)
                            s[4u * j + i] = fma(q[i], x, s[4u * j + i]);
                    }
                }
                for (uint j = 0u; j < SIDE; j++) {
                    for (uint i = 0u; i < 4u; i++) {
                        uint o = 4u * j + i, row = 4u * ty + i;
                        acc[o] = fma(d_tile[h][row], s[o], acc[o]);
                        if (has_min(TYPE))
                            acc[o] = fma(m_tile[h][row], sum_tile[h][tx + 16u * j], acc[o]);
                    }
                }
            }
        }
        for (uint o = 0u; o < 4u * SIDE; o++)
            total[o] += acc[o];
    }
    for (uint j = 0u; j < SIDE; j++) {
        uint col = tx + 16u * j;
        if (col >= count) continue;
        for (uint i = 0u; i < 4u; i++) {
            uint row = row0 + 4u * ty + i;
            if (row >= p.n_out) continue;
            p.y.v[slots[col] * p.y_stride + row] = epilogue(EPI, total[4u * j + i]);
        }
    }
}
