#version 460
#extension GL_GOOGLE_include_directive : require
// The `keep` best blocks of a row as bits; ties go to the lower block. Scores are not negative, so
// their bits order as they do: the last one kept is found by bisection over the bits.
#include "common.glsl"

layout(local_size_x = 256) in;
layout(push_constant, scalar) uniform Push {
    F32 scores; // [rows][cap]
    U32 bits;   // [rows][cap / 32 rounded up]
    U32 pos0;
    uint ratio, cap, keep;
} p;

shared uint counts[256];

uint key(uint t, uint b) {
    uint k = floatBitsToUint(p.scores.v[t * p.cap + b]);
    return k > 0x7F800000u ? 0u : k;
}

uint sum_256(uint tid, uint x) {
    barrier(); // earlier readers are done
    counts[tid] = x;
    for (uint h = 128u; h > 0u; h >>= 1) {
        barrier(); // the level before
        if (tid < h) counts[tid] += counts[tid + h];
    }
    barrier(); // the sum
    return counts[0];
}

uint count_from(uint tid, uint t, uint n, uint least) {
    uint c = 0u;
    for (uint b = tid; b < n; b += 256u)
        c += key(t, b) >= least ? 1u : 0u;
    return sum_256(tid, c);
}

void main() {
    uint tid = gl_LocalInvocationID.x, t = gl_WorkGroupID.x;
    uint n = (p.pos0.v[0] + t + 1u) / p.ratio;
    if (n <= p.keep) return;
    uint least = 0u; // largest value that at least `keep` keys reach
    for (int bit = 30; bit >= 0; bit--) {
        uint probe = least | 1u << bit;
        if (count_from(tid, t, n, probe) >= p.keep) least = probe;
    }
    uint ties = p.keep - count_from(tid, t, n, least + 1u);
    // Words of 32 blocks, a stretch of them for each thread, so that ties count in order.
    uint n_word = (n + 31u) / 32u, share_ = (n_word + 255u) / 256u;
    uint w0 = min(tid * share_, n_word), w1 = min(w0 + share_, n_word);
    uint mine = 0u;
    for (uint b = 32u * w0; b < min(32u * w1, n); b++)
        mine += key(t, b) == least ? 1u : 0u;
    barrier(); // earlier readers are done
    counts[tid] = mine;
    barrier(); // all counts
    uint before = 0u;
    for (uint i = 0u; i < tid; i++)
        before += counts[i];
    for (uint w = w0; w < w1; w++) {
        uint word = 0u;
        for (uint j = 0u; j < 32u && 32u * w + j < n; j++) {
            uint k = key(t, 32u * w + j);
            bool chosen = k > least || (k == least && before < ties);
            if (k == least) before++;
            word |= (chosen ? 1u : 0u) << j;
        }
        p.bits.v[t * ((p.cap + 31u) / 32u) + w] = word;
    }
}
