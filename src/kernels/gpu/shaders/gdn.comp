#version 460
#extension GL_GOOGLE_include_directive : require
// The gated delta rule token by token (Yang et al. 2024): S *= decay; m = S^T k; d = beta (v - m);
// S += k d^T; o = S^T q. A workgroup holds 32 columns of one head's state in registers, the keys
// cut into four quarters that add up ascending.
#include "common.glsl"
#include "decay.glsl"

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
    uint D, n_head, n_k, rows;
} p;

shared float q_row[4u * KEYS], k_row[4u * KEYS];
shared float part[4][32];

float quarters(uint lane) {
    precise float s = part[0][lane] + part[1][lane];
    s = s + part[2][lane];
    s = s + part[3][lane];
    return s;
}

void main() {
    uint lane = gl_LocalInvocationID.x, quarter = gl_LocalInvocationID.y;
    uint tid = gl_LocalInvocationIndex, head = gl_WorkGroupID.y;
    uint col = gl_WorkGroupID.x * 32u + lane, key = head % p.n_k;
    uint channels = (2u * p.n_k + p.n_head) * p.D;
    bool live = col < p.D;
    precise float S[KEYS];
    for (uint i = 0u; i < KEYS; i++) {
        uint k = quarter * KEYS + i;
        S[i] = live && k < p.D ? p.S.v[(head * p.D + k) * p.D + col] : 0.0;
    }
    for (uint t = 0u; t < p.rows; t++) {
        uint row = t * channels;
        barrier(); // the sums of the token before are read
        for (uint i = tid; i < 4u * KEYS; i += 128u) {
            q_row[i] = i < p.D ? p.c.v[row + key * p.D + i] : 0.0;
            k_row[i] = i < p.D ? p.c.v[row + (p.n_k + key) * p.D + i] : 0.0;
        }
        uint at = t * p.n_head + head;
        float v = live ? p.c.v[row + (2u * p.n_k + head) * p.D + col] : 0.0;
        float decay = decay_of(p.a.v[head], p.alpha.v[at], p.dt.v[head]);
        barrier(); // q and k are there
        precise float m = 0.0;
        for (uint i = 0u; i < KEYS; i++) {
            S[i] = S[i] * decay;
            m = fma(S[i], k_row[quarter * KEYS + i], m);
        }
        part[quarter][lane] = m;
        barrier(); // all quarters of m
        precise float d = v - quarters(lane);
        d = p.beta.v[at] * d;
        barrier(); // m is read
        precise float o = 0.0;
        for (uint i = 0u; i < KEYS; i++) {
            S[i] = fma(k_row[quarter * KEYS + i], d, S[i]);
            o = fma(S[i], q_row[quarter * KEYS + i], o);
        }
        part[quarter][lane] = o;
        barrier(); // all quarters of o
        if (quarter == 0u && live) p.o.v[at * p.D + col] = quarters(lane);
    }
    for (uint i = 0u; i < KEYS; i++) {
        uint k = quarter * KEYS + i;
        if (live && k < p.D) p.S.v[(head * p.D + k) * p.D + col] = S[i];
    }
}
