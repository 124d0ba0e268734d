/* usage: how often each expert was used, over some runs; kept beside a model to start warm.
 *
 * Layout (little-endian): "RGPROF01", identity of the model, u32 groups, then for each group u32
 * items and u32 uses [items].
 */
#ifndef RG_ENGINE_USAGE_H
#define RG_ENGINE_USAGE_H

#include "engine/trace.h"

#define RG_PROFILE_SUFFIX ".rgprofile"

typedef struct rg_profile {
    uint8_t identity[RG_IDENTITY_BYTES];
    uint32_t n_group, n_total;
    uint32_t *n_item; /* [n_group] */
    uint32_t *uses;   /* [n_total] by item number */
} rg_profile;

/* All uses 0. */
RG_MUST_CHECK rg_code rg_profile_init(rg_profile *out, const uint8_t identity[RG_IDENTITY_BYTES],
                                      uint32_t n_group, const uint32_t *n_item, rg_status *st);
RG_MUST_CHECK rg_code rg_profile_read(rg_profile *out, const char *path, rg_status *st);
RG_MUST_CHECK rg_code rg_profile_parse(rg_profile *out, const void *data, size_t size,
                                       const char *name, rg_status *st);
RG_MUST_CHECK rg_code rg_profile_write(const rg_profile *p, const char *path, rg_status *st);
void rg_profile_deinit(rg_profile *p);

/* Items [first, first + n) that were used, most used first, then by number: items[] [n]. Returns
 * how many. */
uint32_t rg_profile_rank(const rg_profile *p, uint32_t first, uint32_t n, uint32_t *items);

#endif
