/* The merge table: (left id, right id) -> rank and merged id. Private to the room. Immutable after
 * load. Open addressing over integers, probe length bounded by the load factor of one half.
 */
#ifndef RG_TEXT_MERGES_H
#define RG_TEXT_MERGES_H

#include "base/base.h"

typedef struct rg_merge {
    uint32_t left, right;
    uint32_t rank;
    uint32_t merged;
} rg_merge;

typedef struct rg_merges {
    rg_merge *slots; /* left == RG_MERGE_NONE: empty */
    size_t cap;      /* power of two */
    size_t count;
} rg_merges;

#define RG_MERGE_NONE UINT32_MAX

/* Room for `count` merges. */
RG_MUST_CHECK rg_code rg_merges_init(rg_merges *m, size_t count, rg_status *st);
void rg_merges_deinit(rg_merges *m);
/* The first rank of a pair stays. At most as many as rg_merges_init was told. */
void rg_merges_add(rg_merges *m, rg_merge merge);
/* NULL if the pair does not merge. */
const rg_merge *rg_merges_find(const rg_merges *m, uint32_t left, uint32_t right);

#endif
