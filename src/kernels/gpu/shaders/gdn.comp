#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// The gated delta rule token by token (Yang et al. 2024): S *= decay; m = S^T k; d = beta (v - m);
// S += k d^T; o = S^T q. A workgroup holds 32 columns of one head's state in registers, the keys
// cut into four quarters that add up ascending. Rows that may be taken back, the last ones, run on
// the registers alone: the state in memory is the one before them.
#include "common.glsl"
#include "decay.glsl"
#include "stand.glsl"

layout(local_size_x = 32, local_size_y = 4) in;
layout(constant_id = 0) const uint KEYS = 32u; // of a quarter, rounded up
layout(push_constant, scalar) uniform Push {
    F32 S;     // [n_head][D][D]
    F32 c;     // [rows][channels]: q [n_k], k [n_k], v [n_head] heads of D
    F32 alpha; // [rows][n_head]
    F32 beta;  // [rows][n_head], after the sigmoid
    F32 dt;    // [n_head]
    F32 a;     // [n_head]
    F32 o;     // [rows][n_head][D]
    U32 stand; // stand.glsl; accepted drafts of the window before are in S already
    uint D, n_head, n_k, rows;
} p;

const uint FOURS = (KEYS + 3u) / 4u;
shared vec4 q_row[4][FOURS], k_row[4][FOURS]; // of a quarter; zeros behind its last key
shared float part[4][32];

float quarters(uint lane) {
    precise float s = part[0][lane] + part[1][lane];
    s = s + part[2][lane];
    s = s + part[3][lane];
    return s;
}

const uint MINE = (16u * FOURS + 127u) / 128u; // keys that a thread fetches

// What a row brings: fetched while the row before is computed.
float next_q[MINE], next_k[MINE], next_v, next_alpha, next_beta;

void fetch(uint t, uint tid, uint head, uint key, uint col) {
    uint row = t * (2u * p.n_k + p.n_head) * p.D, at = t * p.n_head + head;
    [[unroll]] for (uint j = 0u; j < MINE; j++) {
        uint i = tid + 128u * j, quarter = i / (4u * FOURS), own = i % (4u * FOURS);
        uint k = quarter * KEYS + own;
        bool live = quarter < 4u && own < KEYS && k < p.D;
        next_q[j] = live ? p.c.v[row + key * p.D + k] : 0.0;
        next_k[j] = live ? p.c.v[row + (p.n_k + key) * p.D + k] : 0.0;
    }
    next_v = col < p.D ? p.c.v[row + (2u * p.n_k + head) * p.D + col] : 0.0;
    next_alpha = p.alpha.v[at];
    next_beta = p.beta.v[at];
}

void main() {
    uint lane = gl_LocalInvocationID.x, quarter = gl_LocalInvocationID.y;
    uint tid = gl_LocalInvocationIndex, head = gl_WorkGroupID.y;
    uint col = gl_WorkGroupID.x * 32u + lane, key = head % p.n_k;
    bool live = col < p.D;
    precise float S[4u * FOURS];
    [[unroll]] for (uint i = 0u; i < 4u * FOURS; i++) {
        uint k = quarter * KEYS + i;
        S[i] = live && i < KEYS && k < p.D ? p.S.v[(head * p.D + k) * p.D + col] : 0.0;
    }
    fetch(0u, tid, head, key, col);
    float dt = p.dt.v[head], a = p.a.v[head];
    uint firm = p.stand.v[FIRM];
    for (uint t = 0u; t < p.rows; t++) {
        [[unroll]] for (uint j = 0u; j < MINE; j++) {
            uint i = tid + 128u * j, own = i % (4u * FOURS);
            if (i >= 16u * FOURS) break;
            q_row[i / (4u * FOURS)][own >> 2][own & 3u] = next_q[j];
            k_row[i / (4u * FOURS)][own >> 2][own & 3u] = next_k[j];
        }
        float v = next_v, beta = next_beta, decay = decay_of(a, next_alpha, dt);
        fetch(min(t + 1u, p.rows - 1u), tid, head, key, col);
        barrier(); // q and k are there; the outputs of the row before are read
        precise float m = 0.0;
        [[unroll]] for (uint f = 0u; f < FOURS; f++) {
            vec4 k = k_row[quarter][f];
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                if (4u * f + i >= KEYS) break;
                S[4u * f + i] = S[4u * f + i] * decay;
                m = fma(S[4u * f + i], k[i], m);
            }
        }
        part[quarter][lane] = m;
        barrier(); // all quarters of m
        precise float d = v - quarters(lane);
        d = beta * d;
        barrier(); // m is read
        precise float o = 0.0;
        [[unroll]] for (uint f = 0u; f < FOURS; f++) {
            vec4 k = k_row[quarter][f], q = q_row[quarter][f];
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                if (4u * f + i >= KEYS) break;
                S[4u * f + i] = fma(k[i], d, S[4u * f + i]);
                o = fma(S[4u * f + i], q[i], o);
            }
        }
        part[quarter][lane] = o;
        barrier(); // all quarters of o; q and k are read
        if (quarter == 0u && live) p.o.v[(t * p.n_head + head) * p.D + col] = quarters(lane);
        if (t + 1u != firm) continue;
        [[unroll]] for (uint i = 0u; i < KEYS; i++) {
            uint k = quarter * KEYS + i;
            if (live && k < p.D) p.S.v[(head * p.D + k) * p.D + col] = S[i];
        }
    }
}
