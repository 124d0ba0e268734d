// The best of what a workgroup of 256 threads looks at, in order: higher key first, the lower index
// first among equals. Who includes this has key_at(i), the key of index i (order.glsl).
//
// Each thread notes the best key of its indices; the bound found from them leaves few candidates,
// which are then counted against each other.
const uint BINS = 64u;             // so many can be found at most
const uint CANDIDATES_MAX = 4096u; // indices of a workgroup at most: all may be equal
shared uint candidates[CANDIDATES_MAX];
shared uint best[256]; // of each thread's indices
shared uint bins[BINS]; // of four threads
shared uint bound, n_left;

// The bins' maximum with k - 1 others before it: k keys are not below it, so what is below is not
// chosen. 0 where there are fewer bins than that.
void find_bound(uint tid, uint k) {
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
        if (before + 1u == k) bound = own;
    }
    barrier(); // the bound
}

// Behind a barrier all of them are candidates[0 .. n_left).
void note_candidate(uint i) {
    if (key_at(i) >= bound) candidates[atomicAdd(n_left, 1u)] = i;
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
