/* FNV-1a, 64 bits (Fowler, Noll, Vo): tells a damaged file of the GPU's from a whole one. */
#ifndef RG_GPU_HASH_H
#define RG_GPU_HASH_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t rg_gpu_hash(const void *data, size_t n) {
    const uint8_t *p = data;
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001B3u;
    return h;
}

#endif
