#version 460
#extension GL_GOOGLE_include_directive : require
// The k best experts of a row, best first (ties: lower index, NaN last), and their softmax weights
// over the chosen ones. A given list of experts is only weighed.
#include "common.glsl"
#include "order.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint GIVEN = 0u;
layout(push_constant, scalar) uniform Push {
    F32 logits; // [rows][n]
    U32 ids;    // [rows][k]
    F32 w;      // [rows][k]
    U32 flag;
    uint n, k, code;
    float scale;
} p;

const uint BINS = 64u;
shared uint candidates[4096];
shared uint best[256];     // of each thread's logits
shared uint bins[BINS];    // of four threads
shared uint bound, n_left;
shared uint chosen[256];
shared float parts[256];

uint key_at(uint i) {
    return key_of(p.logits.v[gl_WorkGroupID.x * p.n + i]);
}

// The bins' maximum with k - 1 others before it: k logits are not below it, so what is below is
// not chosen. 0 where there are fewer bins than that.
void find_bound(uint tid) {
    if (tid == 0u) {
        bound = 0u;
        n_left = 0u;
    }
    barrier(); // all of best
    if (tid < BINS)
        bins[tid] = max(max(best[4u * tid], best[4u * tid + 1u]),
                        max(best[4u * tid + 2u], best[4u * tid + 3u]));
    barrier(); // bins
    if (tid < BINS) {
        uint own = bins[tid], before = 0u;
        for (uint j = 0u; j < BINS; j++)
            before += uint(bins[j] > own || (bins[j] == own && j < tid));
        if (before + 1u == p.k) bound = own;
    }
    barrier(); // the bound
}

// How many candidates come before the one with this index: its place in the order.
uint place_of(uint index) {
    uint own = key_at(index), n = 0u;
    for (uint c = 0u; c < n_left; c++) {
        uint i = candidates[c], key = key_at(i);
        n += uint(key > own || (key == own && i < index));
    }
    return n;
}

void main() {
    uint tid = gl_LocalInvocationID.x, t = gl_WorkGroupID.x;
    uint most = 0u;
    for (uint i = tid; i < p.n; i += 256u) {
        float x = p.logits.v[t * p.n + i];
        most = max(most, key_of(x));
        if (!finite(x)) atomicMin(p.flag.v[0], p.code);
    }
    best[tid] = most;
    if (GIVEN == 0u) find_bound(tid);
    for (uint i = tid; GIVEN == 0u && i < p.n; i += 256u) {
        if (key_at(i) >= bound) candidates[atomicAdd(n_left, 1u)] = i;
    }
    if (GIVEN != 0u && tid < p.k) chosen[tid] = p.ids.v[t * p.k + tid];
    barrier(); // the candidates
    for (uint c = tid; GIVEN == 0u && c < n_left; c += 256u) {
        uint i = candidates[c], place = place_of(i);
        if (place >= p.k) continue;
        chosen[place] = i;
        p.ids.v[t * p.k + place] = i;
    }
    barrier(); // the choice
    if (tid < p.k) {
        float own = p.logits.v[t * p.n + chosen[tid]], top = p.logits.v[t * p.n + chosen[0]];
        precise float w = exp_own(own - top);
        parts[tid] = w;
    }
    barrier(); // all parts
    if (tid >= p.k) return;
    precise float sum = 0.0;
    for (uint k = 0u; k < p.k; k++)
        sum += parts[k];
    precise float w = parts[tid] / sum * p.scale;
    p.w.v[t * p.k + tid] = w;
}
