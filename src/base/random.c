#include "base/random.h"

static uint64_t mix64(uint64_t v) {
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9u;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBu;
    return v ^ (v >> 31);
}

uint64_t rg_random_u64(uint64_t seed, uint64_t counter) {
    const uint64_t key = mix64(seed + 0x9E3779B97F4A7C15u);
    return mix64(key ^ mix64(counter * 0x9E3779B97F4A7C15u + 0x632BE59BD9B4E019u));
}

double rg_random_unit(uint64_t seed, uint64_t counter) {
    return (double)(rg_random_u64(seed, counter) >> 11) * 0x1p-53;
}
