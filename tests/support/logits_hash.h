/* A hash of rows of logits: equal only when every bit, and the order of the rows, is. */
#ifndef RG_SUPPORT_LOGITS_HASH_H
#define RG_SUPPORT_LOGITS_HASH_H

#include <stdint.h>
#include <string.h>

/* The hash with one more row of n logits, those of `position`. */
static inline uint64_t hash_logits(uint64_t hash, uint32_t position, const float *logits,
                                   uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        hash = (hash ^ bits ^ position) * 1099511628211u;
    }
    return hash;
}

#endif
