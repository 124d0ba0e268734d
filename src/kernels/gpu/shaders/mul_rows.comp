#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// y = W x, up to 8 rows of x a workgroup (the second dimension of the grid goes on to the next).
// 8 lanes for each stream take the classes of a row of W, and one lane a result adds them up. With
// experts: one slot a workgroup. A second W of its own y may follow the first in the same grid.
#define RG_BIASED
#include "product.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 1) const uint COLS = 1u;
layout(constant_id = 2) const uint ROWS = 1u;    // of W for a lane
layout(constant_id = 3) const uint STREAMS = 1u; // of a row
layout(constant_id = 4) const uint EPI = 0u;
layout(constant_id = 5) const uint PAIR = 0u;  // one slot of an expert
layout(constant_id = 6) const uint FUSED = 0u; // y = silu(w x) * (w2 x)
layout(constant_id = 7) const uint N_IN = 0u;   // values of a row
layout(constant_id = 8) const uint CODING = 0u; // x are f32 rows that become codes here
layout(constant_id = 9) const uint UNROLL = 0u; // the loop over a row written out
layout(constant_id = 10) const uint SECOND = 0u; // 1 + epilogue of a second W; 0: there is none

const uint SETS = 1u + FUSED;
const uint LANES = 8u * STREAMS;           // of a row
const uint TILE = 128u / LANES * ROWS;     // rows of the workgroup
const uint N = SETS * ROWS;
const uint N_GROUP = (N_IN + 31u) / 32u, N_EIGHT = (N_GROUP + 7u) / 8u;
const uint SHARE = (N_EIGHT + STREAMS - 1u) / STREAMS; // eights of a stream
const uint CODED = CODING != 0u ? COLS * N_GROUP : 1u; // groups
shared float part[SETS * TILE * COLS * (LANES + 1u)];
shared uvec4 x_codes[2u * CODED];
shared float x_scale[CODED];
shared uint x_sums[CODED];

float total(uint at) {
    precise float s = 0.0;
    [[unroll]] for (uint l = 0u; l < LANES; l++)
        s += part[at * (LANES + 1u) + l];
    return s;
}

// Of this lane: rows of W, rows of x, sums.
uint64_t row[N], x[COLS];
Planes planes[SETS]; // instead of `row`, whose rows are pairs from `pair` on
uint pair[N];
float acc[N * COLS];

void add_floats(float w[N], uint i) {
    [[unroll]] for (uint c = 0u; c < COLS; c++) {
        float v = F32(x[c]).v[i];
        [[unroll]] for (uint r = 0u; r < N; r++)
            acc[r * COLS + c] = fma(w[r], v, acc[r * COLS + c]);
    }
}

vec4 four_of(uint64_t at, uint i) {
    return i < N_IN ? F32x4(at).v[i / 4u] : vec4(0.0);
}

float add_four(vec4 w, vec4 v, float sum) {
    sum = fma(w.x, v.x, sum);
    sum = fma(w.y, v.y, sum);
    sum = fma(w.z, v.z, sum);
    return fma(w.w, v.w, sum);
}

void add_fours(vec4 w[N], uint i) {
    [[unroll]] for (uint c = 0u; c < COLS; c++) {
        vec4 v = four_of(x[c], i);
        [[unroll]] for (uint r = 0u; r < N; r++)
            acc[r * COLS + c] = add_four(w[r], v, acc[r * COLS + c]);
    }
}

// Half of the class's fours of a whole eight. All loads come first and without a condition: each
// that depends on one would wait for the one before.
void whole_fours(uint i) {
    vec4 w0[N], w1[N], w2[N], w3[N];
    [[unroll]] for (uint r = 0u; r < N; r++) {
        F32x4 at = F32x4(row[r]);
        w0[r] = at.v[i / 4u];
        w1[r] = at.v[i / 4u + 8u];
        w2[r] = at.v[i / 4u + 16u];
        w3[r] = at.v[i / 4u + 24u];
    }
    [[unroll]] for (uint c = 0u; c < COLS; c++) {
        F32x4 at = F32x4(x[c]);
        vec4 v0 = at.v[i / 4u], v1 = at.v[i / 4u + 8u];
        vec4 v2 = at.v[i / 4u + 16u], v3 = at.v[i / 4u + 24u];
        [[unroll]] for (uint r = 0u; r < N; r++) {
            uint o = r * COLS + c;
            acc[o] = add_four(w0[r], v0, acc[o]);
            acc[o] = add_four(w1[r], v1, acc[o]);
            acc[o] = add_four(w2[r], v2, acc[o]);
            acc[o] = add_four(w3[r], v3, acc[o]);
        }
    }
}

// The class's fours of an eight of groups.
void floats_at(uint n, uint l) {
    uint i = 256u * n + 4u * l;
    if (TYPE == T_F32 && (N_IN & 3u) == 0u) {
        if (256u * (n + 1u) <= N_IN) {
            whole_fours(i);
            whole_fours(i + 128u);
            return;
        }
        for (uint m = 0u; m < 8u; m++, i += 32u) {
            vec4 w[N];
            [[unroll]] for (uint r = 0u; r < N; r++)
                w[r] = four_of(row[r], i);
            add_fours(w, i);
        }
        return;
    }
    for (uint m = 0u; m < 8u; m++, i += 32u) {
        for (uint k = i; k < min(i + 4u, N_IN); k++) {
            float w[N];
            [[unroll]] for (uint r = 0u; r < N; r++)
                w[r] = float_at(row[r], k);
            add_floats(w, k);
        }
    }
}

// The rows of x as codes into shared memory, a group a thread.
void code_rows(uint tid) {
    for (uint i = tid; i < CODED; i += 128u) {
        uvec4 a, b;
        uint s;
        x_scale[i] = act_group(F32x4(x[i / N_GROUP] + 128u * (i % N_GROUP)), a, b, s);
        x_codes[2u * i] = a;
        x_codes[2u * i + 1u] = b;
        x_sums[i] = s;
    }
}

void codes_at(uint g) {
    Group u[N];
    if (INTERLEAVED) {
        [[unroll]] for (uint r = 0u; r + 1u < N; r += 2u)
            planes_pair(planes[r / ROWS], pair[r], N_GROUP, g, u[r], u[r + 1u]);
    } else {
        [[unroll]] for (uint r = 0u; r < N; r++)
            u[r] = group_at(row[r], g);
    }
    [[unroll]] for (uint c = 0u; c < COLS; c++) {
        uvec4 a, b;
        float dx;
        uint sums = 0u;
        if (CODING != 0u) {
            uint at = c * N_GROUP + g;
            a = x_codes[2u * at];
            b = x_codes[2u * at + 1u];
            dx = x_scale[at];
            if (MINS || BIAS != 0) sums = x_sums[at];
        } else {
            a = U32x4(x[c] + 32u * g).v[0];
            b = U32x4(x[c] + 32u * g).v[1];
            dx = F32(x[c] + N_IN).v[g];
            if (MINS || BIAS != 0) sums = U32(x[c] + N_IN + N_IN / 8u).v[g];
        }
        [[unroll]] for (uint r = 0u; r < N; r++) {
            int t0 = dot_16(u[r].a, a), t1 = dot_16(u[r].b, b);
            if (BIAS != 0) {
                t0 -= BIAS * bitfieldExtract(int(sums), 0, 16);
                t1 -= BIAS * (int(sums) >> 16);
            }
            acc[r * COLS + c] = add_group(u[r], t0, t1, dx, sums, acc[r * COLS + c]);
        }
    }
}

void eight_at(uint n, uint own) {
    uint g = 8u * n + own;
    if (FLOATS) floats_at(n, own);
    else if (N_GROUP % 8u == 0u || g < N_GROUP) codes_at(g);
}

void main() {
    uint tid = gl_LocalInvocationID.x, lane = tid % LANES;
    uint row0 = gl_WorkGroupID.x * TILE, mine = tid / LANES * ROWS, slot = 0u, n_out = p.n_out;
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
    bool second = SECOND != 0u && row0 >= n_out;
    if (second) {
        row0 -= (n_out + TILE - 1u) / TILE * TILE;
        n_out = p.n_out2;
        w[0] = p.w2;
    }
    if (row0 >= n_out) return; // of a grid for more rows
    load_tables(tid, 128u, p.tables);
    uint n_row = min(TILE, n_out - row0), col0 = PAIR != 0u ? 0u : gl_WorkGroupID.y * COLS;
    uint n_col = PAIR != 0u ? 1u : min(COLS, p.n - col0);
    uint n_pair = (n_out + 1u) / 2u;
    if (INTERLEAVED) {
        [[unroll]] for (uint s = 0u; s < SETS; s++)
            planes[s] = planes_of(w[s], n_pair, N_GROUP);
    }
    [[unroll]] for (uint r = 0u; r < N; r++) {
        if (INTERLEAVED) pair[r] = min((row0 + mine + r % ROWS) / 2u, n_pair - 1u);
        row[r] = w[r / ROWS] + uint64_t(row0 + min(mine + r % ROWS, n_row - 1u)) * p.row_bytes;
    }
    [[unroll]] for (uint c = 0u; c < COLS; c++)
        x[c] = x_row(slot / p.x_div + col0 + min(c, n_col - 1u), FLOATS || CODING != 0u);
    [[unroll]] for (uint o = 0u; o < N * COLS; o++)
        acc[o] = 0.0;
    if (CODING != 0u) code_rows(tid);
    barrier(); // tables, codes
    uint first = lane / 8u * SHARE, last = min(first + SHARE, N_EIGHT);
    if (UNROLL != 0u) {
        [[unroll]] for (uint k = 0u; k < SHARE; k++)
            if (SHARE * STREAMS == N_EIGHT || first + k < last) eight_at(first + k, lane % 8u);
    } else {
        for (uint n = first; n < last; n++)
            eight_at(n, lane % 8u);
    }
    [[unroll]] for (uint r = 0u; r < N; r++) {
        [[unroll]] for (uint c = 0u; c < COLS; c++) {
            uint at = ((r / ROWS) * TILE + mine + r % ROWS) * COLS + c;
            part[at * (LANES + 1u) + lane] = acc[r * COLS + c];
        }
    }
    barrier(); // parts of all lanes
    for (uint o = tid; o < n_row * COLS; o += 128u) {
        uint c = o % COLS;
        if (c >= n_col) continue;
        float v = total(o);
        if (FUSED != 0u) {
            precise float h = silu(v) * total(TILE * COLS + o);
            v = h;
        } else if (second) {
            p.y2.v[(col0 + c) * p.y_stride2 + row0 + o / COLS] = epilogue(SECOND - 1u, v);
            continue;
        } else {
            v = epilogue(EPI, v);
        }
        p.y.v[(slot + col0 + c) * p.y_stride + row0 + o / COLS] = v;
    }
}
