#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// y = W x for 1 to 8 rows of x. A workgroup takes some rows of W: it brings their bytes into shared
// memory in one wide stretch (where they fit), then 8 lanes for each stream take the classes of a
// row, and one lane a result adds them up. With experts: one slot a workgroup.
layout(constant_id = 2) const uint STAGE = 1u;
#define RG_STAGED
#include "product.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 3) const uint COLS = 1u;
layout(constant_id = 4) const uint ROWS = 1u;    // of W for a lane
layout(constant_id = 5) const uint STREAMS = 1u; // of a row
layout(constant_id = 6) const uint EPI = 0u;
layout(constant_id = 7) const uint PAIR = 0u;  // one slot of an expert
layout(constant_id = 8) const uint FUSED = 0u; // y = silu(w x) * (w2 x)

const uint SETS = 1u + FUSED;
const uint LANES = 8u * STREAMS;           // of a row
const uint TILE = 128u / LANES * ROWS;     // rows of the workgroup
const uint N = SETS * ROWS;
shared float part[SETS * TILE * COLS * (LANES + 1u)];

float total(uint at) {
    precise float s = 0.0;
    for (uint l = 0u; l < LANES; l++)
        s += part[at * (LANES + 1u) + l];
    return s;
}

// Brings `bytes` bytes at w to shared memory; returns where they begin there.
uint bring(uint tid, uint64_t w, uint bytes, uint first) {
    uint lead = uint(w) & 15u, n = (lead + bytes + 15u) / 16u;
    U32x4 from = U32x4(w & ~15ul);
    for (uint i = tid; i < n; i += 128u)
        stage[first + i] = from.v[i];
    return 16u * first + lead;
}

// Of this lane: rows of W, rows of x, sums.
uint64_t row[N], x[COLS];
float acc[N * COLS];

void floats_at(uint g) {
    uint last = min(32u * g + 32u, p.n_in);
    for (uint i = 32u * g; i < last; i++) {
        float w[N];
        [[unroll]] for (uint r = 0u; r < N; r++)
            w[r] = float_at(row[r], i);
        [[unroll]] for (uint c = 0u; c < COLS; c++) {
            float v = F32(x[c]).v[i];
            [[unroll]] for (uint r = 0u; r < N; r++)
                acc[r * COLS + c] = fma(w[r], v, acc[r * COLS + c]);
        }
    }
}

void codes_at(uint g) {
    Group u[N];
    [[unroll]] for (uint r = 0u; r < N; r++)
        u[r] = group_at(row[r], g);
    [[unroll]] for (uint c = 0u; c < COLS; c++) {
        uvec4 a = U32x4(x[c] + 32u * g).v[0], b = U32x4(x[c] + 32u * g).v[1];
        float dx = F32(x[c] + p.n_in).v[g];
        uint sums = has_min(TYPE) ? U32(x[c] + p.n_in + p.n_in / 8u).v[g] : 0u;
        [[unroll]] for (uint r = 0u; r < N; r++) {
            int t0 = 0, t1 = 0;
            [[unroll]] for (uint k = 0u; k < 4u; k++) {
                t0 = dot_4(u[r].q[k], a[k], t0);
                t1 = dot_4(u[r].q[4u + k], b[k], t1);
            }
            acc[r * COLS + c] = add_group(u[r], t0, t1, dx, sums, acc[r * COLS + c]);
        }
    }
}

void main() {
    uint tid = gl_LocalInvocationID.x, lane = tid % LANES;
    uint row0 = gl_WorkGroupID.x * TILE, mine = tid / LANES * ROWS, slot = 0u;
    uint64_t w[2];
    w[0] = p.w;
    w[1] = p.w2;
    if (PAIR != 0u) {
        slot = uint64_t(p.list) != 0ul ? p.list.v[gl_WorkGroupID.y] : gl_WorkGroupID.y;
        uint e = p.ids.v[slot];
        if (uint64_t(p.experts) != 0ul) {
            w[0] = p.experts.v[e];
            if (FUSED != 0u) w[1] = p.experts2.v[e];
        } else {
            w[0] += e * p.stride;
            w[1] += e * p.stride;
        }
    }
    load_tables(tid, 128u, p.tables);
    uint64_t base[2]; // of the workgroup's first row
    uint n_row = min(TILE, p.n_out - row0);
    for (uint s = 0u; s < SETS; s++) {
        base[s] = w[s] + uint64_t(row0) * p.row_bytes;
        if (STAGED) base[s] = bring(tid, base[s], n_row * p.row_bytes, s * (STAGE / SETS));
    }
    barrier();
    [[unroll]] for (uint r = 0u; r < N; r++)
        row[r] = base[r / ROWS] + uint64_t(min(mine + r % ROWS, n_row - 1u)) * p.row_bytes;
    [[unroll]] for (uint c = 0u; c < COLS; c++)
        x[c] = x_row(slot / p.x_div + c);
    [[unroll]] for (uint o = 0u; o < N * COLS; o++)
        acc[o] = 0.0;
    uint n_group = (p.n_in + 31u) / 32u, n_eight = (n_group + 7u) / 8u;
    uint share_ = (n_eight + STREAMS - 1u) / STREAMS, first = lane / 8u * share_;
    uint last = min(first + share_, n_eight);
    for (uint n = first; n < last; n++) {
        uint g = 8u * n + lane % 8u;
        if (g >= n_group) break;
        if (is_float(TYPE)) floats_at(g);
        else codes_at(g);
    }
    [[unroll]] for (uint r = 0u; r < N; r++) {
        [[unroll]] for (uint c = 0u; c < COLS; c++) {
            uint at = ((r / ROWS) * TILE + mine + r % ROWS) * COLS + c;
            part[at * (LANES + 1u) + lane] = acc[r * COLS + c];
        }
    }
    barrier();
    for (uint o = tid; o < n_row * COLS; o += 128u) {
        uint c = o % COLS;
        float v = total(o);
        if (FUSED != 0u) {
            precise float h = silu(v) * total(TILE * COLS + o);
            v = h;
        } else {
            v = epilogue(EPI, v);
        }
        p.y.v[(slot + c) * p.y_stride + row0 + o / COLS] = v;
    }
}
