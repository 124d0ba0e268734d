/* The policies that the simulator compares. LRU is the default; another one enters only if it wins
 * on recorded traces and in the engine. SLRU after Karedla, Love and Wherry (1994); the use count
 * of LFU decays by halves so that an old favourite leaves.
 */
#include "stream/policy.h"

static uint32_t bottom(uint32_t heat) {
    (void)heat;
    return 0;
}

static uint32_t lru_touch(uint32_t level, uint32_t heat, bool fresh) {
    (void)level;
    (void)heat;
    (void)fresh;
    return 0;
}

static uint32_t slru_touch(uint32_t level, uint32_t heat, bool fresh) {
    (void)heat;
    return fresh ? level : 1;
}

static uint32_t lfu_insert(uint32_t heat) {
    if (heat >= 8 * RG_HEAT_USE) return 3;
    if (heat >= 4 * RG_HEAT_USE) return 2;
    return heat >= 2 * RG_HEAT_USE ? 1 : 0;
}

static uint32_t lfu_touch(uint32_t level, uint32_t heat, bool fresh) {
    (void)level;
    (void)fresh;
    return lfu_insert(heat);
}

const rg_policy *rg_policy_get(rg_stream_policy which) {
    static const rg_policy policies[RG_POLICY_COUNT] = {
        [RG_POLICY_LRU] = {"lru", 1, {1000}, bottom, lru_touch},
        [RG_POLICY_SLRU] = {"slru", 2, {1000, 700}, bottom, slru_touch},
        [RG_POLICY_LFU] = {"lfu", 4, {1000, 300, 250, 250}, lfu_insert, lfu_touch},
    };
    RG_ASSERT((unsigned)which < RG_POLICY_COUNT);
    RG_ASSERT(policies[which].n_level <= RG_LEVELS_MAX);
    return &policies[which];
}
