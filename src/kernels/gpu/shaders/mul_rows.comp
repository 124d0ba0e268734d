#version 460
#extension GL_GOOGLE_include_directive : require
// y = W x for 1 to 8 rows of x: a group of 32 lanes takes ROWS rows of W, each lane the units of
// one class; then one lane a result adds the classes up. With experts: one slot a workgroup.
#include "product.glsl"

layout(local_size_x = 32, local_size_y = 4) in;
layout(constant_id = 0) const uint TYPE = 0u;
layout(constant_id = 1) const uint COLS = 1u;
layout(constant_id = 2) const uint ROWS = 1u;
layout(constant_id = 3) const uint EPI = 0u;
layout(constant_id = 4) const uint PAIR = 0u;  // one slot of an expert
layout(constant_id = 5) const uint FUSED = 0u; // y = silu(w x) * (w2 x)

const uint SETS = 1u + FUSED;
const uint OUTS = ROWS * COLS;
shared float part[4u * SETS * OUTS * 33u];

float total(uint group, uint o) {
    precise float s = 0.0;
    uint at = (group * SETS * OUTS + o) * 33u;
    for (uint l = 0u; l < CLASSES; l++)
        s += part[at + l];
    return s;
}

void main() {
    uint lane = gl_LocalInvocationID.x, group = gl_LocalInvocationID.y;
    uint row0 = (gl_WorkGroupID.x * 4u + group) * ROWS;
    uint slot = 0u;
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
    uint64_t x_base = uint64_t(p.x) + 4ul * (uint64_t(slot / p.x_div) * p.x_stride);
    precise float acc[SETS * OUTS];
    for (uint o = 0u; o < SETS * OUTS; o++)
        acc[o] = 0.0;
    uint n_unit = (p.n_in + 15u) / 16u;
    for (uint n = lane; row0 < p.n_out && n < n_unit; n += CLASSES) {
        for (uint set = 0u; set < SETS; set++) {
            for (uint r = 0u; r < ROWS; r++) {
                uint row = min(row0 + r, p.n_out - 1u);
                Unit u = decode(TYPE, w[set] + uint64_t(row) * p.row_bytes, n, p.n_in, p.tables);
                for (uint c = 0u; c < COLS; c++) {
                    float x[16];
                    load_x(x_base + 4ul * (uint64_t(c) * p.x_stride), n, x);
                    precise float s = 0.0;
                    for (uint k = 0u; k < 16u; k++)
                        s = fma(u.q[k], x[k], s);
                    uint o = set * OUTS + r * COLS + c;
                    acc[o] = fma(u.d, s, acc[o]);
                    if (has_min(TYPE)) acc[o] = fma(u.m, sum_x(x), acc[o]);
                }
            }
        }
    }
    for (uint o = 0u; o < SETS * OUTS; o++)
        part[(group * SETS * OUTS + o) * 33u + lane] = acc[o];
    barrier();
    for (uint o = lane; o < OUTS; o += 32u) {
        uint row = row0 + o / COLS, c = o % COLS;
        if (row >= p.n_out) continue;
        float v = total(group, o);
        if (FUSED != 0u) {
            precise float h = silu(v) * total(group, OUTS + o);
            v = h;
        } else {
            v = epilogue(EPI, v);
        }
        p.y.v[(slot + c) * p.y_stride + row] = v;
    }
}
