#version 460
#extension GL_GOOGLE_include_directive : require
// Slots sorted by expert, tiles of them, and the grids of the products over the tiles. The order of
// slots in an expert is free: every slot is computed by itself.
#include "common.glsl"

layout(local_size_x = 256) in;
layout(push_constant, scalar) uniform Push {
    U32 ids;   // [n] expert of each slot
    U32 list;  // [n] slots, then tiles {expert, first, count, 0}
    U32 grids; // {x, y, z} twice: hidden rows, output rows
    uint n, n_expert, cols; // columns of a tile
    uint x_hidden, x_out;   // tiles of 64 weight rows
} p;

shared uint counts[4096];
shared uint sums[256];
shared uint n_tile;

// Exclusive sums over 256 threads.
uint before_me(uint tid, uint x) {
    barrier(); // earlier readers are done
    sums[tid] = x;
    barrier(); // all sums
    uint s = 0u;
    for (uint i = 0u; i < tid; i++)
        s += sums[i];
    return s;
}

void main() {
    uint tid = gl_LocalInvocationID.x;
    for (uint e = tid; e < p.n_expert; e += 256u)
        counts[e] = 0u;
    if (tid == 0u) n_tile = 0u;
    barrier(); // zeros
    for (uint i = tid; i < p.n; i += 256u)
        atomicAdd(counts[p.ids.v[i]], 1u);
    barrier(); // counts
    uint share_ = (p.n_expert + 255u) / 256u, e0 = min(tid * share_, p.n_expert);
    uint e1 = min(e0 + share_, p.n_expert), slots = 0u, tiles = 0u;
    for (uint e = e0; e < e1; e++) {
        slots += counts[e];
        tiles += (counts[e] + p.cols - 1u) / p.cols;
    }
    uint slot = before_me(tid, slots), tile = before_me(tid, tiles);
    if (tid == 255u) n_tile = tile + tiles;
    for (uint e = e0; e < e1; e++) {
        uint n = counts[e];
        for (uint first = 0u; first < n; first += p.cols, tile++) {
            p.list.v[p.n + 4u * tile] = e;
            p.list.v[p.n + 4u * tile + 1u] = slot + first;
            p.list.v[p.n + 4u * tile + 2u] = min(p.cols, n - first);
            p.list.v[p.n + 4u * tile + 3u] = 0u;
        }
        counts[e] = slot; // where its slots begin
        slot += n;
    }
    barrier(); // where slots begin; the number of tiles
    for (uint i = tid; i < p.n; i += 256u)
        p.list.v[atomicAdd(counts[p.ids.v[i]], 1u)] = i;
    if (tid != 0u) return;
    p.grids.v[0] = p.x_hidden;
    p.grids.v[1] = n_tile;
    p.grids.v[2] = 1u;
    p.grids.v[3] = p.x_out;
    p.grids.v[4] = n_tile;
    p.grids.v[5] = 1u;
}
