#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// A head of the delta net for a few rows: what conv.comp, norm.comp (of q and k), gdn.comp and
// norm.comp (of the output, gated, as codes) compute one after the other, bit for bit. The
// history is left as it was. A workgroup holds a head's whole state in registers.
//
// Drafts: accepted ones of the window before run first, from the journal, now that the state is
// here anyway; the state goes back to memory behind the rows that are certain, and the drafts of
// this window run on what is in the registers. So taking rows back moves no state at all.
#include "common.glsl"
#include "act.glsl"
#include "decay.glsl"
#include "stand.glsl"

layout(local_size_x_id = 2, local_size_y = 4) in;
layout(constant_id = 0) const uint KEYS = 32u; // of a quarter: D / 4
layout(constant_id = 1) const uint TAPS = 4u;
layout(constant_id = 2) const uint D = 128u; // a multiple of 32, 128 at most
layout(push_constant, scalar) uniform Push {
    F32 S;     // [n_head][D][D]
    F32 x;     // [rows][channels]: q [n_k], k [n_k], v [n_head] heads of D
    F32 w;     // [channels][TAPS]
    F32 past;  // [TAPS - 1][channels], oldest first, then the journal (history.comp)
    U32 stand; // stand.glsl
    F32 alpha; // [rows][n_head]
    F32 beta;  // [rows][n_head], after the sigmoid
    F32 dt;    // [n_head]
    F32 a;     // [n_head]
    F32 w_out; // [D]
    F32 z;     // [rows][n_head][D]
    F32 o;     // the same
    uint64_t codes; // of o, a row of n_head * D for each row
    uint n_head, n_k, rows;
    float eps_qk, eps, scale;
} p;

const uint LEAVES = D / 4u; // partial sums of a norm
shared float q_row[D], k_row[D], v_row[D];
shared float part[4][D];
shared vec4 q_leaf[8], k_leaf[8]; // 32 values, zeros behind the last

// The tree of sums.glsl over at most 32 values.
float tree(vec4 x0, vec4 x1, vec4 x2, vec4 x3, vec4 x4, vec4 x5, vec4 x6, vec4 x7) {
    precise vec4 a0 = x0 + x4, a1 = x1 + x5, a2 = x2 + x6, a3 = x3 + x7;
    precise vec4 b0 = a0 + a2, b1 = a1 + a3;
    precise vec4 c = b0 + b1;
    precise vec2 d = c.xy + c.zw;
    precise float s = d.x + d.y;
    return s;
}

float q_sum() {
    return tree(q_leaf[0], q_leaf[1], q_leaf[2], q_leaf[3], q_leaf[4], q_leaf[5], q_leaf[6],
                q_leaf[7]);
}

float k_sum() {
    return tree(k_leaf[0], k_leaf[1], k_leaf[2], k_leaf[3], k_leaf[4], k_leaf[5], k_leaf[6],
                k_leaf[7]);
}

float four_squares(float x0, float x1, float x2, float x3) {
    precise float s = fma(x0, x0, 0.0);
    s = fma(x1, x1, s);
    s = fma(x2, x2, s);
    s = fma(x3, x3, s);
    return s;
}

// Channel c of row t behind the convolution; rows count from the first accepted draft.
float convolved(uint c, uint t, uint owed, uint channels) {
    uint pos = p.stand.v[POS0] - owed + t;
    float x[TAPS], w[TAPS];
    [[unroll]] for (uint k = 0u; k < TAPS; k++) { // loads first
        uint back = TAPS - 1u - k;
        w[k] = p.w.v[c * TAPS + k];
        x[k] = 0.0;
        if (back <= pos)
            x[k] = back + owed > t ? p.past.v[(TAPS - 1u + t - back) * channels + c]
                                   : p.x.v[(t - back - owed) * channels + c];
    }
    precise float s = 0.0;
    [[unroll]] for (uint k = 0u; k < TAPS; k++)
        if (TAPS - 1u - k <= pos) s = fma(w[k], x[k], s);
    return silu(s);
}

float quarters(uint col) {
    precise float s = part[0][col] + part[1][col];
    s = s + part[2][col];
    s = s + part[3][col];
    return s;
}

// Norms of q and k, in place.
void norm_heads(uint tid) {
    if (tid < 32u) {
        uint i = 4u * min(tid, LEAVES - 1u);
        bool live = tid < LEAVES;
        float q = four_squares(q_row[i], q_row[i + 1u], q_row[i + 2u], q_row[i + 3u]);
        float k = four_squares(k_row[i], k_row[i + 1u], k_row[i + 2u], k_row[i + 3u]);
        q_leaf[tid >> 2][tid & 3u] = live ? q : 0.0;
        k_leaf[tid >> 2][tid & 3u] = live ? k : 0.0;
    }
    barrier(); // leaves
    if (tid < D) {
        precise float inv = 1.0 / sqrt(q_sum() + p.eps_qk);
        precise float y = q_row[tid] * inv;
        y = y * p.scale;
        q_row[tid] = y;
    } else if (tid < 2u * D) {
        precise float inv = 1.0 / sqrt(k_sum() + p.eps_qk);
        precise float y = k_row[tid - D] * inv;
        k_row[tid - D] = y;
    }
    barrier(); // q and k
}

// The output of the head, in v_row: norm, gate, codes.
void finish(uint tid, uint t, uint head, float z) {
    if (tid < 32u) {
        uint i = 4u * min(tid, LEAVES - 1u);
        float s = four_squares(v_row[i], v_row[i + 1u], v_row[i + 2u], v_row[i + 3u]);
        q_leaf[tid >> 2][tid & 3u] = tid < LEAVES ? s : 0.0;
    }
    barrier(); // leaves
    uint at = (t * p.n_head + head) * D;
    if (tid < D) {
        precise float mean = q_sum() / float(D);
        precise float inv = 1.0 / sqrt(mean + p.eps);
        precise float y = v_row[tid] * inv;
        y = y * p.w_out.v[tid];
        y = y * sigmoid(z);
        p.o.v[at + tid] = y;
        k_row[tid] = y;
    }
    barrier(); // normed
    if (tid >= D / 32u) return;
    uint first = 32u * tid, all = p.n_head * D, group = head * (D / 32u) + tid;
    float most = 0.0;
    for (uint i = 0u; i < 32u; i++)
        most = max(most, abs(k_row[first + i]));
    float inverse = act_inverse(most);
    int sums[2];
    sums[0] = sums[1] = 0;
    uint64_t y = p.codes + uint64_t(t) * act_row_bytes(all);
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        uint j = first + 4u * i;
        U32(y).v[8u * group + i] =
            act_word(vec4(k_row[j], k_row[j + 1u], k_row[j + 2u], k_row[j + 3u]), inverse,
                     sums[i / 4u]);
    }
    F32(y + all).v[group] = act_scale(most);
    U32(y + all + all / 8u).v[group] = uint(sums[0] & 0xFFFF) | uint(sums[1]) << 16;
}

void main() {
    uint col = gl_LocalInvocationID.x, quarter = gl_LocalInvocationID.y;
    uint tid = gl_LocalInvocationIndex, head = gl_WorkGroupID.x, key = head % p.n_k;
    uint channels = (2u * p.n_k + p.n_head) * D, k0 = quarter * KEYS;
    precise float S[KEYS];
    [[unroll]] for (uint i = 0u; i < KEYS; i++)
        S[i] = p.S.v[(head * D + k0 + i) * D + col];
    uint owed = p.stand.v[OWED], firm = p.stand.v[FIRM], cap = p.stand.v[CAP];
    F32 old_alpha = F32(uint64_t(p.past) + 4ul * (TAPS - 1u + cap) * channels);
    F32 old_beta = F32(uint64_t(old_alpha) + 4ul * cap * p.n_head);
    for (uint t = 0u; t < owed + p.rows; t++) {
        bool old = t < owed;
        uint at = (old ? t : t - owed) * p.n_head + head;
        float alpha = old ? old_alpha.v[at] : p.alpha.v[at];
        float beta = old ? old_beta.v[at] : p.beta.v[at];
        float z = tid < D && !old ? p.z.v[at * D + tid] : 0.0;
        barrier(); // what the row before left is read
        if (quarter == 0u) q_row[col] = convolved(key * D + col, t, owed, channels);
        if (quarter == 1u) k_row[col] = convolved((p.n_k + key) * D + col, t, owed, channels);
        if (quarter == 2u) v_row[col] = convolved((2u * p.n_k + head) * D + col, t, owed, channels);
        float decay = decay_of(p.a.v[head], alpha, p.dt.v[head]);
        barrier(); // q, k, v
        norm_heads(tid);
        precise float m = 0.0;
        [[unroll]] for (uint i = 0u; i < KEYS; i++) {
            S[i] = S[i] * decay;
            m = fma(S[i], k_row[k0 + i], m);
        }
        part[quarter][col] = m;
        barrier(); // all quarters of m
        precise float d = v_row[col] - quarters(col);
        d = beta * d;
        barrier(); // m and v are read
        precise float o = 0.0;
        [[unroll]] for (uint i = 0u; i < KEYS; i++) {
            S[i] = fma(k_row[k0 + i], d, S[i]);
            o = fma(S[i], q_row[k0 + i], o);
        }
        part[quarter][col] = o;
        barrier(); // all quarters of o
        if (old) continue; // its output was used when it was a draft
        if (t + 1u == owed + firm) {
            [[unroll]] for (uint i = 0u; i < KEYS; i++)
                p.S.v[(head * D + k0 + i) * D + col] = S[i];
        }
        if (quarter == 0u) v_row[col] = quarters(col);
        barrier(); // the output; keys are read
        finish(tid, t - owed, head, z);
    }
}
