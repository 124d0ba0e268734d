#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Attention of one query head over absolute spans of 64 positions (online softmax, Milakov and
// Gimelshein 2018): each span from a fresh maximum, sum and output, merged in ascending order.
// A span without an allowed key leaves the bits unchanged. The gate of the head ends it. Four spans
// are computed side by side, by 64 lanes each.
#include "common.glsl"
#include "cache.glsl"
#define RG_ACT_THREADS 256
#include "act.glsl"

layout(local_size_x = 64, local_size_y = 4) in;
layout(constant_id = 0) const uint F16 = 1u;
layout(constant_id = 1) const uint COLS = 1u; // of a lane: D / 64 rounded up
layout(push_constant, scalar) uniform Push {
    F32 q;      // [rows][n_head][D]
    uint64_t k; // cache [pos][n_kv][D]
    uint64_t v;
    F32 gate;   // [rows][n_head][2 D], the second half of each head
    F32 o;      // [rows][n_head][D]
    U32 bits;   // chosen blocks [rows][cap / 32 rounded up]
    U32 pos0;
    uint64_t codes; // of o, D a multiple of 32; 0: none
    uint D, n_head, n_kv, ratio, cap, keep;
    float scale;
} p;

const uint WIDTH = 64u * COLS;
const uint MERGED = (COLS + 3u) / 4u; // columns of a thread in the merge
const float NONE = -1.0 / 0.0;
shared float q_row[512];
shared vec4 score[4][16];
shared float span_o[4][WIDTH];
shared float span_m[4], span_l[4];

float dot_2(uint pair, uint i, float s) {
    vec2 k = unpackHalf2x16(pair);
    s = fma(q_row[i], k.x, s);
    return fma(q_row[i + 1u], k.y, s);
}

float dot_8(uvec4 k, uint i, float s) {
    s = dot_2(k.x, i, s);
    s = dot_2(k.y, i + 2u, s);
    s = dot_2(k.z, i + 4u, s);
    return dot_2(k.w, i + 6u, s);
}

// The query times the key that begins at element `row` of the cache.
float dot_key(uint row) {
    float s = 0.0;
    uint i = 0u;
    if (F16 != 0u && (p.D & 31u) == 0u) {
        for (; i < p.D; i += 32u) { // loads first
            U32x4 k = U32x4(p.k + 2ul * (row + i));
            uvec4 k0 = k.v[0], k1 = k.v[1], k2 = k.v[2], k3 = k.v[3];
            s = dot_8(k0, i, s);
            s = dot_8(k1, i + 8u, s);
            s = dot_8(k2, i + 16u, s);
            s = dot_8(k3, i + 24u, s);
        }
    }
    for (; i < p.D; i++)
        s = fma(q_row[i], cache_load(p.k, row + i, F16 != 0u), s);
    return s;
}

float os[COLS]; // of this lane and span

// Four values of each column, loaded before they are added.
void add_values(uint part, uint i, uint at, uint stride) {
    float v[4u * COLS];
    [[unroll]] for (uint c = 0u; c < COLS; c++) {
        uint col = min(gl_LocalInvocationID.x + 64u * c, p.D - 1u);
        [[unroll]] for (uint j = 0u; j < 4u; j++)
            v[4u * c + j] = cache_load(p.v, at + j * stride + col, F16 != 0u);
    }
    vec4 e = score[part][i >> 2];
    [[unroll]] for (uint c = 0u; c < COLS; c++) {
        os[c] = fma(e.x, v[4u * c], os[c]);
        os[c] = fma(e.y, v[4u * c + 1u], os[c]);
        os[c] = fma(e.z, v[4u * c + 2u], os[c]);
        os[c] = fma(e.w, v[4u * c + 3u], os[c]);
    }
}

// The n values of a span from `at` on, weighed.
void weigh(uint part, uint n, uint at, uint stride) {
    [[unroll]] for (uint c = 0u; c < COLS; c++)
        os[c] = 0.0;
    uint i = 0u;
    for (; i + 4u <= n; i += 4u)
        add_values(part, i, at + i * stride, stride);
    for (; i < n; i++) {
        float e = score[part][i >> 2][i & 3u];
        [[unroll]] for (uint c = 0u; c < COLS; c++) {
            uint col = min(gl_LocalInvocationID.x + 64u * c, p.D - 1u);
            os[c] = fma(e, cache_load(p.v, at + i * stride + col, F16 != 0u), os[c]);
        }
    }
    [[unroll]] for (uint c = 0u; c < COLS; c++)
        span_o[part][gl_LocalInvocationID.x + 64u * c] = os[c];
}

// The same for all lanes of the span.
float top_of(uint part) {
    vec4 m = score[part][0];
    [[unroll]] for (uint i = 1u; i < 16u; i++)
        m = max(m, score[part][i]);
    return max(max(m.x, m.y), max(m.z, m.w));
}

float sum_of(uint part) {
    precise float s = 0.0;
    [[unroll]] for (uint i = 0u; i < 16u; i++) {
        vec4 e = score[part][i];
        s += e.x;
        s += e.y;
        s += e.z;
        s += e.w;
    }
    return s;
}

float o[MERGED], m_all, l_all;

// Takes the spans in, ascending.
void merge(uint tid) {
    for (uint k = 0u; k < 4u; k++) {
        float ms = span_m[k];
        if (ms == NONE) continue;
        precise float M = max(m_all, ms);
        precise float a = exp_own(m_all - M), b = exp_own(ms - M);
        precise float scaled = span_l[k] * b;
        l_all = fma(l_all, a, scaled);
        m_all = M;
        [[unroll]] for (uint c = 0u; c < MERGED; c++) {
            precise float more = span_o[k][min(tid + 256u * c, WIDTH - 1u)] * b;
            o[c] = fma(o[c], a, more);
        }
    }
}

void main() {
    uint lane = gl_LocalInvocationID.x, part = gl_LocalInvocationID.y;
    uint tid = gl_LocalInvocationIndex, h = gl_WorkGroupID.x, t = gl_WorkGroupID.y;
    uint pos = p.pos0.v[0] + t, kv = h / (p.n_head / p.n_kv), stride = p.n_kv * p.D;
    uint n_block = p.ratio != 0u ? (pos + 1u) / p.ratio : 0u;
    bool dense = p.ratio == 0u || n_block <= p.keep;
    uint words = t * ((p.cap + 31u) / 32u);
    for (uint i = tid; i < p.D; i += 256u)
        q_row[i] = p.q.v[(t * p.n_head + h) * p.D + i];
    [[unroll]] for (uint c = 0u; c < MERGED; c++)
        o[c] = 0.0;
    m_all = NONE;
    l_all = 0.0;
    for (uint first = 0u; first <= pos; first += 256u) {
        uint base = first + 64u * part, at = base + lane;
        bool live = at <= pos;
        if (live && !dense) {
            uint b = at / p.ratio;
            live = b >= n_block || (p.bits.v[words + b / 32u] >> (b & 31u) & 1u) != 0u;
        }
        barrier(); // the spans before are merged; q_row is there
        precise float s = NONE;
        if (live) s = dot_key(at * stride + kv * p.D) * p.scale;
        score[part][lane >> 2][lane & 3u] = s;
        barrier(); // scores
        float ms = top_of(part);
        precise float e = live ? exp_own(s - ms) : 0.0;
        barrier(); // the maximum is taken
        score[part][lane >> 2][lane & 3u] = e;
        barrier(); // parts
        if (lane == 0u) {
            span_m[part] = ms;
            span_l[part] = sum_of(part);
        }
        if (ms != NONE) weigh(part, min(64u, pos + 1u - base), base * stride + kv * p.D, stride);
        barrier(); // all spans
        merge(tid);
    }
    [[unroll]] for (uint c = 0u; c < MERGED; c++) {
        uint col = tid + 256u * c;
        if (col >= p.D) continue;
        uint at = (t * p.n_head + h) * p.D;
        precise float y = o[c] / l_all;
        y = y * sigmoid(p.gate.v[2u * at + p.D + col]);
        p.o.v[at + col] = y;
        q_row[col] = y; // the query was last read before the spans' last barrier
    }
    if (p.codes == 0ul) return;
    barrier(); // the head's output
    uint i = 4u * tid, all = p.n_head * p.D;
    bool live = i < p.D;
    vec4 x = live ? vec4(q_row[i], q_row[i + 1u], q_row[i + 2u], q_row[i + 3u]) : vec4(0.0);
    act_store(tid, live, x, p.codes + uint64_t(t) * act_row_bytes(all), all, h * p.D + i);
}
