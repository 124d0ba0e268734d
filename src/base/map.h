/* Hash map from byte strings to 64-bit numbers: open addressing, keys borrowed. Insertion only.
 * Keys must outlive the map and not be NULL. At most half of the entries are in use; each map
 * hashes with a seed of its own, so a file cannot choose keys that collide. No order can be
 * observed, so the seed changes no result.
 */
#ifndef RG_BASE_MAP_H
#define RG_BASE_MAP_H

#include "base/status.h"

typedef struct rg_map_entry {
    const char *key; /* borrowed; NULL = empty */
    size_t len;
    uint64_t hash;
    uint64_t value;
} rg_map_entry;

typedef struct rg_map {
    rg_map_entry *entries;
    size_t cap; /* power of two or 0 */
    size_t count;
    uint64_t seed;
} rg_map;

void rg_map_init(rg_map *m);
void rg_map_deinit(rg_map *m);
/* Adds key -> value. `*existed` (may be NULL) tells whether the key was there; then the old value
 * is kept. */
RG_MUST_CHECK rg_code rg_map_add(rg_map *m, const char *key, size_t len, uint64_t value,
                                 bool *existed, rg_status *st);
/* false if absent; `out` may be NULL. */
bool rg_map_get(const rg_map *m, const char *key, size_t len, uint64_t *out);

#endif
