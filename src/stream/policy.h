/* Replacement policies: rules for which level of the cache an item sits on. The lists, the order
 * inside a level and the protection of groups are the cache's (cache.c).
 */
#ifndef RG_STREAM_POLICY_H
#define RG_STREAM_POLICY_H

#include "stream/stream.h"

#define RG_LEVELS_MAX 4u
/* A use adds this much heat; heat halves every RG_HEAT_PERIOD windows. */
#define RG_HEAT_USE    16u
#define RG_HEAT_PERIOD 16u

/* Level 0 is evicted first. Each rule is pure. */
typedef struct rg_policy {
    const char *name;
    uint32_t n_level; /* 1 .. RG_LEVELS_MAX */
    /* At most this share of the slots sits on a level above 0; the oldest above it sink by one. */
    uint32_t cap_permille[RG_LEVELS_MAX];
    uint32_t (*insert_level)(uint32_t heat);
    /* Level after the first use in a window; `fresh`: the item was read in this window. */
    uint32_t (*touch_level)(uint32_t level, uint32_t heat, bool fresh);
} rg_policy;

const rg_policy *rg_policy_get(rg_stream_policy which);

#endif
