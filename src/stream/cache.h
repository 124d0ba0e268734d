/* The directory: which item owns which slot, and who leaves next. See cache.c. */
#ifndef RG_STREAM_CACHE_H
#define RG_STREAM_CACHE_H

#include "stream/arena.h"
#include "stream/items.h"
#include "stream/policy.h"

#define RG_GROUP_NONE UINT32_MAX

typedef enum rg_claim_kind {
    RG_CLAIM_MISS,          /* wanted; finds a victim while one slot is not pinned or lost */
    RG_CLAIM_GUESS,         /* read ahead, under the guess guard */
    RG_CLAIM_GUESS_TRUSTED, /* the same without the guard: its rank nearly always comes true */
    RG_CLAIM_GUESS_PREFILL, /* read ahead, no guard: nearly all of them are wanted */
    RG_CLAIM_WARM           /* free slots only */
} rg_claim_kind;

/* What the cache tells the owner of the reads. */
typedef struct rg_cache_hooks {
    void *user;
    void (*dropped)(void *user, uint32_t slot); /* before the slot is freed */
    void (*recut)(void *user, uint32_t first_slot,
                  uint32_t n_slot); /* before a slab changes class */
} rg_cache_hooks;

typedef struct rg_heat {
    uint16_t value;
    uint32_t window; /* of the last change */
} rg_heat;

typedef struct rg_cache {
    rg_arena *arena;
    const rg_items *items;
    const rg_policy *policy;
    rg_cache_hooks hooks;
    rg_stream_meters *meters; /* logical counts only */
    uint32_t *slot_of;        /* [n_item] */
    uint32_t *n_held;         /* [n_group] items with a slot */
    rg_heat *heat;            /* [n_item] kept after the item left */
    uint32_t *wanted;         /* [n_item] number of the turn that wanted it last */
    rg_slot_list *lists;      /* [n_group][n_list] */
    uint32_t *successor;      /* [n_group] the group that began after this one last time */
    uint32_t *fresh;          /* [n_slot] slots read, or first wanted, in this window */
    uint32_t n_fresh;
    uint32_t n_list; /* lists of a group: cold, aside, levels */
    uint32_t level_count[RG_LEVELS_MAX];
    uint32_t level_cap[RG_LEVELS_MAX];
    uint32_t pressure[RG_STREAM_CLASSES_MAX];
    uint32_t group_turn, group_next; /* or RG_GROUP_NONE */
    uint32_t group_last;             /* began last */
    uint32_t turn;                   /* number of the turn */
    uint32_t window;
    uint64_t stamp;
    bool guard;
} rg_cache;

RG_MUST_CHECK rg_code rg_cache_init(rg_cache *out, rg_arena *arena, const rg_items *items,
                                    rg_stream_policy policy, bool guard,
                                    const rg_cache_hooks *hooks, rg_stream_meters *meters,
                                    rg_status *st);
void rg_cache_deinit(rg_cache *c);

/* The slot of an item or RG_SLOT_NONE. */
uint32_t rg_cache_find(const rg_cache *c, uint32_t item);
/* Whether every item of a group has a slot, so that nothing of it need be read. */
bool rg_cache_is_whole(const rg_cache *c, uint32_t group);
/* Opens a turn: remembers what is wanted and drops the guesses of the group that are not. */
void rg_cache_begin(rg_cache *c, uint32_t group, const uint32_t *items, uint32_t n);
void rg_cache_end(rg_cache *c);
/* A wanted item that the directory holds: marks it used in this window and pins it. */
void rg_cache_use(rg_cache *c, uint32_t slot);
/* A slot for an item that the directory does not hold, or RG_SLOT_NONE. A miss comes pinned.
 * `rank` is for guesses. */
uint32_t rg_cache_claim(rg_cache *c, uint32_t item, rg_claim_kind kind, uint32_t rank);
/* An unpinned item leaves; `lost`: its slot is not to be used. */
void rg_cache_drop(rg_cache *c, uint32_t slot, bool lost);
/* Which group is read ahead next. */
void rg_cache_expect(rg_cache *c, uint32_t group);
/* See rg_stream_touch. */
void rg_cache_touch(rg_cache *c, const uint32_t *items, uint32_t n);
/* Drops everything and forgets all history. */
void rg_cache_clear(rg_cache *c);
/* Use count of an item, decayed to the current window. */
uint32_t rg_cache_heat(const rg_cache *c, uint32_t item);

bool rg_cache_is_valid(const rg_cache *c);

#endif
