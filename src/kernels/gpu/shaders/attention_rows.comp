#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// What attention.comp computes, bit for bit, for many rows: some heads that share keys and values
// go together, so that every key and value is fetched once for all of them.
#include "common.glsl"
#include "cache.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint F16 = 1u;
layout(constant_id = 1) const uint COLS = 1u;  // of a thread: D / 256 rounded up
layout(constant_id = 2) const uint HEADS = 1u; // of a workgroup, divides n_head / n_kv; 16 at most
layout(constant_id = 3) const uint WIDTH = 1u; // floats of a query in shared memory: D
layout(push_constant, scalar) uniform Push {
    F32 q;      // [rows][n_head][D]
    uint64_t k; // cache [pos][n_kv][D]
    uint64_t v;
    F32 gate;   // [rows][n_head][2 D], the second half of each head
    F32 o;      // [rows][n_head][D]
    U32 bits;   // chosen blocks [rows][cap / 32 rounded up]
    U32 pos0;
    uint64_t codes; // for few rows only
    uint D, n_head, n_kv, ratio, cap, keep;
    float scale;
} p;

const float NONE = -1.0 / 0.0;
const uint MINE = (HEADS + 3u) / 4u; // heads of a thread's scores
shared float q_rows[HEADS * WIDTH];
shared float k_tile[64 * 33]; // [key][dimension], 32 of them at a time
shared vec4 score[HEADS][16];
shared float top[HEADS], old_by[HEADS], new_by[HEADS], sum_of[HEADS];
shared uint alive[HEADS];

float score_at(uint h, uint i) {
    return score[h][i >> 2][i & 3u];
}

// 32 dimensions of the span's keys.
void load_keys(uint tid, uint base, uint pos, uint d0, uint n_dim, uint kv) {
    for (uint i = tid; i < 64u * 32u; i += 256u) {
        uint key = i >> 5, d = i & 31u, row = (min(base + key, pos) * p.n_kv + kv) * p.D;
        k_tile[key * 33u + d] = d < n_dim ? cache_load(p.k, row + d0 + d, F16 != 0u) : 0.0;
    }
}

void main() {
    uint tid = gl_LocalInvocationID.x, key = tid & 63u, quarter = tid >> 6;
    uint h0 = gl_WorkGroupID.x * HEADS, t = gl_WorkGroupID.y, pos = p.pos0.v[0] + t;
    uint kv = h0 / (p.n_head / p.n_kv), stride = p.n_kv * p.D;
    uint n_block = p.ratio != 0u ? (pos + 1u) / p.ratio : 0u;
    bool dense = p.ratio == 0u || n_block <= p.keep;
    uint words = t * ((p.cap + 31u) / 32u);
    for (uint i = tid; i < HEADS * p.D; i += 256u)
        q_rows[i] = p.q.v[(t * p.n_head + h0) * p.D + i];
    precise float o[COLS * HEADS];
    [[unroll]] for (uint i = 0u; i < COLS * HEADS; i++)
        o[i] = 0.0;
    precise float m = NONE, l = 0.0; // of head `tid`
    for (uint base = 0u; base <= pos; base += 64u) {
        uint at = base + key;
        bool live = at <= pos;
        if (live && !dense) {
            uint b = at / p.ratio;
            live = b >= n_block || (p.bits.v[words + b / 32u] >> (b & 31u) & 1u) != 0u;
        }
        precise float s[MINE];
        [[unroll]] for (uint i = 0u; i < MINE; i++)
            s[i] = 0.0;
        for (uint d0 = 0u; d0 < p.D; d0 += 32u) {
            uint n_dim = min(32u, p.D - d0);
            barrier(); // the keys before are read; the queries are there
            load_keys(tid, base, pos, d0, n_dim, kv);
            barrier(); // the keys are there
            for (uint d = 0u; d < n_dim; d++) {
                float k = k_tile[key * 33u + d];
                [[unroll]] for (uint i = 0u; i < MINE; i++) {
                    uint h = min(quarter + 4u * i, HEADS - 1u);
                    s[i] = fma(q_rows[h * p.D + d0 + d], k, s[i]);
                }
            }
        }
        [[unroll]] for (uint i = 0u; i < MINE; i++) {
            uint h = quarter + 4u * i;
            s[i] = live ? s[i] * p.scale : NONE;
            if (h < HEADS) score[h][key >> 2][key & 3u] = s[i];
        }
        barrier(); // scores
        if (tid < HEADS) {
            float ms = score_at(tid, 0u);
            for (uint i = 1u; i < 64u; i++)
                ms = max(ms, score_at(tid, i));
            top[tid] = ms;
            alive[tid] = ms == NONE ? 0u : 1u;
        }
        barrier(); // maxima; the scores are read
        [[unroll]] for (uint i = 0u; i < MINE; i++) {
            uint h = quarter + 4u * i;
            if (h >= HEADS) continue;
            precise float e = live ? exp_own(s[i] - top[h]) : 0.0;
            score[h][key >> 2][key & 3u] = e;
        }
        barrier(); // parts
        if (tid < HEADS && alive[tid] != 0u) {
            precise float ls = 0.0;
            for (uint i = 0u; i < 64u; i++)
                ls += score_at(tid, i);
            precise float M = max(m, top[tid]);
            precise float a = exp_own(m - M), b = exp_own(top[tid] - M);
            l = fma(l, a, ls * b);
            m = M;
            old_by[tid] = a;
            new_by[tid] = b;
        }
        barrier(); // factors
        uint n = min(64u, pos + 1u - base), v0 = base * stride + kv * p.D;
        [[unroll]] for (uint c = 0u; c < COLS; c++) {
            uint col = tid + 256u * c;
            if (col >= p.D) continue;
            precise float os[HEADS];
            [[unroll]] for (uint h = 0u; h < HEADS; h++)
                os[h] = 0.0;
            for (uint i = 0u; i < n; i++) {
                float v = cache_load(p.v, v0 + i * stride + col, F16 != 0u);
                [[unroll]] for (uint h = 0u; h < HEADS; h++)
                    os[h] = fma(score[h][i >> 2][i & 3u], v, os[h]);
            }
            [[unroll]] for (uint h = 0u; h < HEADS; h++) {
                precise float part = os[h] * new_by[h];
                if (alive[h] != 0u) o[c * HEADS + h] = fma(o[c * HEADS + h], old_by[h], part);
            }
        }
    }
    if (tid < HEADS) sum_of[tid] = l;
    barrier(); // sums
    [[unroll]] for (uint c = 0u; c < COLS; c++) {
        uint col = tid + 256u * c;
        if (col >= p.D) continue;
        [[unroll]] for (uint h = 0u; h < HEADS; h++) {
            uint at = (t * p.n_head + h0 + h) * p.D;
            precise float y = o[c * HEADS + h] / sum_of[h];
            y = y * sigmoid(p.gate.v[2u * at + p.D + col]);
            p.o.v[at + col] = y;
        }
    }
}
