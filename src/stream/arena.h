/* Slots of memory, cut from one reservation. See arena.c for states and invariants. */
#ifndef RG_STREAM_ARENA_H
#define RG_STREAM_ARENA_H

#include "stream/stream.h"

#define RG_SLOT_NONE UINT32_MAX
#define RG_SLAB_NONE UINT32_MAX

typedef enum rg_slot_state {
    RG_SLOT_UNCUT, /* its slab has no class yet, or a class with fewer slots */
    RG_SLOT_FREE,
    RG_SLOT_GUESS, /* belongs to an item that was read ahead and that nobody wanted yet */
    RG_SLOT_HELD,  /* belongs to an item that was wanted, or warmed */
    RG_SLOT_LOST,  /* belongs to nobody; a read into it never came back */
} rg_slot_state;

typedef struct rg_slot {
    uint32_t item;       /* GUESS and HELD */
    uint32_t prev, next; /* in a list: the free list of its class, the lost list, or the cache's */
    uint32_t pins;       /* HELD only */
    uint32_t rank;       /* GUESS: place in its ranking */
    uint32_t window;     /* wanted last in this window of the cache */
    uint32_t touched;    /* touched last in this window */
    uint64_t stamp;      /* order of recency; the larger the newer */
    uint16_t group;
    uint8_t state; /* rg_slot_state */
    uint8_t list;  /* cache: which list of the group */
    uint8_t level; /* cache: policy level */
    bool fresh;    /* cache: on the list of slots read in this window */
    bool prefill;  /* GUESS: made in prefill */
} rg_slot;

/* Doubly linked through rg_slot.prev/next. */
typedef struct rg_slot_list {
    uint32_t head, tail;
    uint32_t count;
} rg_slot_list;

typedef struct rg_slab {
    uint32_t n_pinned; /* slots with pins */
    uint32_t n_held;   /* slots GUESS or HELD */
    uint32_t n_lost;
    uint8_t class_id; /* or RG_CLASS_NONE */
} rg_slab;

#define RG_CLASS_NONE UINT8_MAX

typedef struct rg_arena {
    char *memory;
    uint64_t map_bytes; /* of memory when it is ours, else 0 */
    rg_slot *slots;     /* [n_slot]; slab b owns [b * slab_slots, (b + 1) * slab_slots) */
    rg_slab *slabs;     /* [n_slab] */
    uint32_t n_slot, n_slab;
    uint32_t slab_slots; /* of the smallest class: ids per slab */
    uint32_t n_cut;      /* slabs below have a class */
    uint64_t slab_bytes;
    uint32_t n_class;
    uint64_t class_bytes[RG_STREAM_CLASSES_MAX];
    uint32_t class_slots[RG_STREAM_CLASSES_MAX]; /* per slab */
    rg_slot_list free[RG_STREAM_CLASSES_MAX];    /* oldest first */
    rg_slot_list lost;
    uint64_t used_bytes, peak_bytes; /* of slots GUESS or HELD */
    bool poison;
} rg_arena;

RG_MUST_CHECK rg_code rg_arena_init(rg_arena *out, const rg_stream_layout *layout,
                                    uint64_t budget_bytes, void *memory, bool poison,
                                    rg_status *st);
void rg_arena_deinit(rg_arena *a);

void *rg_arena_data(const rg_arena *a, uint32_t slot);
static inline uint32_t rg_arena_slab_of(const rg_arena *a, uint32_t slot) {
    return slot / a->slab_slots;
}
uint32_t rg_arena_class_of(const rg_arena *a, uint32_t slot);

/* A free slot of the class, cutting a new slab if need be; RG_SLOT_NONE when there is none. */
uint32_t rg_arena_take(rg_arena *a, uint32_t class_id);
/* Whether take would find one. */
bool rg_arena_can_take(const rg_arena *a, uint32_t class_id);
/* FREE (taken) -> GUESS or HELD. */
void rg_arena_claim(rg_arena *a, uint32_t slot, uint32_t item, uint32_t group, rg_slot_state state);
/* GUESS -> HELD. */
void rg_arena_hold(rg_arena *a, uint32_t slot);
void rg_arena_pin(rg_arena *a, uint32_t slot);
void rg_arena_unpin(rg_arena *a, uint32_t slot);
/* GUESS or unpinned HELD -> FREE. */
void rg_arena_free(rg_arena *a, uint32_t slot);
/* As free, but the slot waits on the lost list. */
void rg_arena_lose(rg_arena *a, uint32_t slot);
/* LOST -> FREE. */
void rg_arena_find(rg_arena *a, uint32_t slot);
/* Gives an empty slab (nothing held, pinned or lost) to another class. */
void rg_arena_recut(rg_arena *a, uint32_t slab, uint32_t class_id);
/* Everything back to the start; nothing may be pinned. Lost slots stay lost. */
void rg_arena_poison(const rg_arena *a, uint32_t slot);

void rg_slot_list_init(rg_slot_list *l);
void rg_slot_push_head(rg_arena *a, rg_slot_list *l, uint32_t slot);
void rg_slot_push_tail(rg_arena *a, rg_slot_list *l, uint32_t slot);
void rg_slot_unlink(rg_arena *a, rg_slot_list *l, uint32_t slot);

/* Walks everything; debug and tests. */
bool rg_arena_is_valid(const rg_arena *a);

#endif
