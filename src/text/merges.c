/* The merge table (see merges.h). */
#include "text/merges.h"

rg_code rg_merges_init(rg_merges *m, size_t count, rg_status *st) {
    *m = (rg_merges){.cap = 16};
    while (m->cap / 2 < count) {
        m->cap *= 2;
    }
    m->slots = rg_alloc(m->cap, sizeof *m->slots, st);
    if (!m->slots) return RG_NOMEM;
    for (size_t i = 0; i < m->cap; i++) {
        m->slots[i].left = RG_MERGE_NONE;
    }
    return RG_OK;
}

void rg_merges_deinit(rg_merges *m) {
    rg_free(m->slots);
    *m = (rg_merges){0};
}

static size_t slot_of(const rg_merges *m, uint32_t left, uint32_t right) {
    const uint64_t key = (uint64_t)left << 32 | right;
    size_t i = (size_t)rg_random_u64(key, 0) & (m->cap - 1);
    while (m->slots[i].left != RG_MERGE_NONE &&
           (m->slots[i].left != left || m->slots[i].right != right)) {
        i = (i + 1) & (m->cap - 1);
    }
    return i;
}

void rg_merges_add(rg_merges *m, rg_merge merge) {
    RG_ASSERT(m->count * 2 <= m->cap);
    rg_merge *slot = &m->slots[slot_of(m, merge.left, merge.right)];
    if (slot->left != RG_MERGE_NONE) return;
    *slot = merge;
    m->count++;
}

const rg_merge *rg_merges_find(const rg_merges *m, uint32_t left, uint32_t right) {
    const rg_merge *slot = &m->slots[slot_of(m, left, right)];
    return slot->left == RG_MERGE_NONE ? NULL : slot;
}
