/* Laying a block of memory out: one function both counts and places, so the two cannot disagree. */
#ifndef RG_ENGINE_LAYOUT_H
#define RG_ENGINE_LAYOUT_H

#include "base/base.h"

#define RG_LAYOUT_ALIGN 64u

typedef struct rg_layout {
    uint8_t *base; /* NULL while counting */
    size_t used;
} rg_layout;

/* Room for `count` things of `size` bytes; NULL while counting. */
static inline void *rg_layout_take(rg_layout *l, size_t count, size_t size) {
    void *at = l->base ? l->base + l->used : NULL;
    l->used += (count * size + RG_LAYOUT_ALIGN - 1) / RG_LAYOUT_ALIGN * RG_LAYOUT_ALIGN;
    return at;
}

#endif
