// Rows of a key or value cache, rounded to the cache type before their first use.
float cache_load(uint64_t base, uint i, bool f16) {
    return f16 ? half_at(U16(base), i) : F32(base).v[i];
}

void cache_store(uint64_t base, uint i, bool f16, float x) {
    if (f16) U16(base).v[i] = to_half(x);
    else F32(base).v[i] = x;
}

shared float row_sum[64];

// Sum over 64 lanes in a fixed tree; all lanes get it.
float sum_64(uint tid, float x) {
    barrier(); // earlier readers are done
    row_sum[tid] = x;
    for (uint h = 32u; h > 0u; h >>= 1) {
        barrier(); // the level before
        if (tid < h) {
            precise float t = row_sum[tid] + row_sum[tid + h];
            row_sum[tid] = t;
        }
    }
    barrier(); // the sum
    return row_sum[0];
}
