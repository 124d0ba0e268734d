/* The directory of items and the choice of victims. Owner: the worker thread; no lock.
 *
 * Every held slot is on exactly one list of its group:
 *   cold      guesses, best rank at the head; items read for rejected rows; tail leaves first
 *   level 0.. wanted items by policy level, newest at the head
 *   aside     items used in this window that a search for victims met at the tail of their level;
 *             they go back there, in their order, when the window closes without touching them
 * A victim is the oldest tail among the groups of its class, so a search looks at every group and
 * not at slots: its cost does not grow with the arena. An item is set aside at most once a window,
 * by the turn that used it.
 *
 * Order of victims. For a miss: (1) cold items of other groups, (2) their levels, lowest first,
 * oldest first, (3) their items used in this window, (4) a slab of another class that is older,
 * (5) cold items of the next group, (6) this group's own, finished ones last, (7) the rest of the
 * next group, (8) any slab without pins. For a guess: (1), then (2) under the guess guard: the
 * victim is not warmer than the guess would be after one use. Groups "next" are announced by
 * rg_cache_expect, or remembered from what followed this group the last time.
 *
 * Invariants
 *  1. slot_of[i] = s exactly when slots[s] is GUESS or HELD and names i.
 *  2. A guess is on the cold list; a pinned slot never is.
 *  3. Levels are sorted by stamp, newest at the head; a level above 0 respects its cap.
 *  4. Pinned slots belong to the group of the turn and were used in this window.
 *  5. Nothing here depends on time or on what the drive did: only on the calls.
 */
#include "stream/cache.h"

#include <string.h>

enum { LIST_COLD, LIST_ASIDE, LIST_LEVEL };

typedef enum scope { SCOPE_OTHER, SCOPE_NEXT, SCOPE_OWN } scope;

static rg_slot_list *list_of(const rg_cache *c, uint32_t group, uint32_t list) {
    RG_ASSERT(group < c->items->n_group);
    RG_ASSERT(list < c->n_list);
    return &c->lists[(size_t)group * c->n_list + list];
}

static void list_add(rg_cache *c, uint32_t slot, uint32_t list, bool at_head) {
    rg_slot *s = &c->arena->slots[slot];
    s->list = (uint8_t)list;
    rg_slot_list *l = list_of(c, s->group, list);
    if (at_head)
        rg_slot_push_head(c->arena, l, slot);
    else
        rg_slot_push_tail(c->arena, l, slot);
    if (list >= LIST_LEVEL) c->level_count[list - LIST_LEVEL]++;
}

static void list_remove(rg_cache *c, uint32_t slot) {
    const rg_slot *s = &c->arena->slots[slot];
    rg_slot_unlink(c->arena, list_of(c, s->group, s->list), slot);
    if (s->list < LIST_LEVEL) return;
    RG_ASSERT(c->level_count[s->list - LIST_LEVEL] > 0);
    c->level_count[s->list - LIST_LEVEL]--;
}

/* ---- heat ------------------------------------------------------------------------------------ */

uint32_t rg_cache_heat(const rg_cache *c, uint32_t item) {
    RG_ASSERT(item < c->items->n_item);
    const rg_heat *h = &c->heat[item];
    RG_ASSERT(h->window <= c->window);
    const uint32_t halvings = c->window / RG_HEAT_PERIOD - h->window / RG_HEAT_PERIOD;
    return halvings < 16 ? (uint32_t)h->value >> halvings : 0;
}

static uint32_t heat_add(rg_cache *c, uint32_t item) {
    const uint32_t sum = rg_cache_heat(c, item) + RG_HEAT_USE;
    c->heat[item] =
        (rg_heat){.value = (uint16_t)(sum < UINT16_MAX ? sum : UINT16_MAX), .window = c->window};
    return sum;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void reset(rg_cache *c) {
    for (uint32_t i = 0; i < c->items->n_item; i++)
        c->slot_of[i] = RG_SLOT_NONE;
    for (uint32_t g = 0; g < c->items->n_group; g++) {
        c->successor[g] = RG_GROUP_NONE;
        c->n_held[g] = 0;
        for (uint32_t l = 0; l < c->n_list; l++)
            rg_slot_list_init(list_of(c, g, l));
    }
    memset(c->heat, 0, c->items->n_item * sizeof *c->heat);
    memset(c->pressure, 0, sizeof c->pressure);
    memset(c->level_count, 0, sizeof c->level_count);
    c->group_turn = c->group_next = c->group_last = RG_GROUP_NONE;
    c->window = 1;
}

rg_code rg_cache_init(rg_cache *out, rg_arena *arena, const rg_items *items,
                      rg_stream_policy policy, bool guard, const rg_cache_hooks *hooks,
                      rg_stream_meters *meters, rg_status *st) {
    *out = (rg_cache){.arena = arena,
                      .items = items,
                      .policy = rg_policy_get(policy),
                      .hooks = *hooks,
                      .meters = meters,
                      .guard = guard};
    out->n_list = LIST_LEVEL + out->policy->n_level;
    for (uint32_t l = 0; l < out->policy->n_level; l++)
        out->level_cap[l] =
            (uint32_t)((uint64_t)arena->n_slot * out->policy->cap_permille[l] / 1000);
    out->slot_of = rg_alloc(items->n_item, sizeof *out->slot_of, st);
    out->n_held = rg_alloc(items->n_group, sizeof *out->n_held, st);
    out->heat = rg_alloc(items->n_item, sizeof *out->heat, st);
    out->wanted = rg_alloc(items->n_item, sizeof *out->wanted, st);
    out->lists = rg_alloc((size_t)items->n_group * out->n_list, sizeof *out->lists, st);
    out->successor = rg_alloc(items->n_group, sizeof *out->successor, st);
    out->fresh = rg_alloc(arena->n_slot, sizeof *out->fresh, st);
    if (!out->slot_of || !out->n_held || !out->heat || !out->wanted || !out->lists ||
        !out->successor || !out->fresh) {
        rg_cache_deinit(out);
        return RG_NOMEM;
    }
    reset(out);
    return RG_OK;
}

void rg_cache_deinit(rg_cache *c) {
    rg_free(c->slot_of);
    rg_free(c->n_held);
    rg_free(c->heat);
    rg_free(c->wanted);
    rg_free(c->lists);
    rg_free(c->successor);
    rg_free(c->fresh);
    *c = (rg_cache){0};
}

uint32_t rg_cache_find(const rg_cache *c, uint32_t item) {
    RG_ASSERT(item < c->items->n_item);
    return c->slot_of[item];
}

bool rg_cache_is_whole(const rg_cache *c, uint32_t group) {
    RG_ASSERT(group < c->items->n_group);
    return c->n_held[group] == c->items->groups[group].n_item;
}

/* ---- leaving --------------------------------------------------------------------------------- */

static void count_wasted(rg_cache *c, const rg_slot *s) {
    const uint32_t rank = s->rank < RG_STREAM_RANKS ? s->rank : RG_STREAM_RANKS - 1;
    if (s->prefill)
        c->meters->ahead_wasted_prefill++;
    else
        c->meters->ahead_wasted[rank]++;
}

void rg_cache_drop(rg_cache *c, uint32_t slot, bool lost) {
    const rg_slot *s = &c->arena->slots[slot];
    RG_ASSERT(s->state == RG_SLOT_GUESS || s->state == RG_SLOT_HELD);
    RG_ASSERT(c->slot_of[s->item] == slot);
    if (s->state == RG_SLOT_GUESS) count_wasted(c, s);
    list_remove(c, slot);
    c->slot_of[s->item] = RG_SLOT_NONE;
    c->n_held[rg_items_group(c->items, s->item)]--;
    c->hooks.dropped(c->hooks.user, slot);
    if (lost)
        rg_arena_lose(c->arena, slot);
    else
        rg_arena_free(c->arena, slot);
}

static void evict(rg_cache *c, uint32_t slot) {
    c->meters->evictions++;
    rg_cache_drop(c, slot, false);
}

/* ---- victims --------------------------------------------------------------------------------- */

static bool in_scope(const rg_cache *c, uint32_t group, scope sc) {
    if (group == c->group_turn) return sc == SCOPE_OWN;
    if (group == c->group_next) return sc == SCOPE_NEXT;
    return sc == SCOPE_OTHER;
}

/* The oldest item of a level that was not used in this window; those that were are set aside. */
static uint32_t level_tail(rg_cache *c, uint32_t group, uint32_t list) {
    rg_slot_list *l = list_of(c, group, list);
    while (l->tail != RG_SLOT_NONE && c->arena->slots[l->tail].window == c->window) {
        const uint32_t slot = l->tail;
        list_remove(c, slot);
        list_add(c, slot, LIST_ASIDE, true);
        c->meters->evict_steps++;
    }
    return l->tail;
}

/* The oldest item set aside that is not pinned. Pinned ones are of this turn's own group, which is
 * asked last; there are as many as the wave has. */
static uint32_t aside_tail(rg_cache *c, uint32_t group) {
    uint32_t slot = list_of(c, group, LIST_ASIDE)->tail;
    while (slot != RG_SLOT_NONE && c->arena->slots[slot].pins > 0) {
        RG_ASSERT(group == c->group_turn);
        slot = c->arena->slots[slot].prev;
        c->meters->evict_steps++;
    }
    return slot;
}

/* The oldest first victim of one list of all groups in scope. */
static uint32_t oldest(rg_cache *c, uint32_t class_id, scope sc, uint32_t list) {
    uint32_t best = RG_SLOT_NONE;
    for (uint32_t g = 0; g < c->items->n_group; g++) {
        c->meters->evict_steps++;
        if (c->items->class_of[g] != class_id || !in_scope(c, g, sc)) continue;
        uint32_t slot;
        if (list == LIST_COLD)
            slot = list_of(c, g, list)->tail;
        else if (list == LIST_ASIDE)
            slot = aside_tail(c, g);
        else
            slot = level_tail(c, g, list);
        if (slot == RG_SLOT_NONE) continue;
        RG_ASSERT(c->arena->slots[slot].pins == 0);
        if (best == RG_SLOT_NONE || c->arena->slots[slot].stamp < c->arena->slots[best].stamp)
            best = slot;
    }
    return best;
}

static uint32_t oldest_level(rg_cache *c, uint32_t class_id, scope sc) {
    for (uint32_t l = 0; l < c->policy->n_level; l++) {
        const uint32_t slot = oldest(c, class_id, sc, LIST_LEVEL + l);
        if (slot != RG_SLOT_NONE) return slot;
    }
    return RG_SLOT_NONE;
}

/* ---- slabs ----------------------------------------------------------------------------------- */

/* Empties a slab and gives it to a class. */
static void move_slab(rg_cache *c, uint32_t slab, uint32_t class_id) {
    rg_arena *a = c->arena;
    const uint32_t first = slab * a->slab_slots;
    RG_ASSERT(a->slabs[slab].n_pinned == 0);
    RG_ASSERT(a->slabs[slab].class_id != class_id);
    for (uint32_t i = 0; i < a->slab_slots; i++) {
        const uint8_t state = a->slots[first + i].state;
        if (state == RG_SLOT_GUESS || state == RG_SLOT_HELD) evict(c, first + i);
    }
    c->hooks.recut(c->hooks.user, first, a->slab_slots);
    rg_arena_recut(a, slab, class_id);
    c->pressure[class_id] = 0;
    c->meters->slab_moves++;
}

/* Whether a slab holds nothing that a miss should spare. */
static bool slab_is_idle(const rg_cache *c, uint32_t slab) {
    const rg_arena *a = c->arena;
    if (a->slabs[slab].n_pinned > 0 || a->slabs[slab].n_lost > 0) return false;
    for (uint32_t i = 0; i < a->slab_slots; i++) {
        const rg_slot *s = &a->slots[slab * a->slab_slots + i];
        if (s->state != RG_SLOT_GUESS && s->state != RG_SLOT_HELD) continue;
        if (s->window == c->window || !in_scope(c, s->group, SCOPE_OTHER)) return false;
    }
    return true;
}

/* A slab of another class whose oldest item is the oldest of all: taken at once when this class has
 * no victim (`need`), else only after as many evictions as the slab has slots would have gone
 * there. So the classes share the arena as one global LRU would, a slab at a time. */
static bool take_older_slab(rg_cache *c, uint32_t class_id, uint64_t stamp, bool need) {
    uint32_t best = RG_SLOT_NONE;
    for (uint32_t d = 0; d < c->arena->n_class; d++) {
        if (d == class_id) continue;
        uint32_t slot = oldest(c, d, SCOPE_OTHER, LIST_COLD);
        if (slot == RG_SLOT_NONE) slot = oldest_level(c, d, SCOPE_OTHER);
        if (slot == RG_SLOT_NONE) continue;
        if (best == RG_SLOT_NONE || c->arena->slots[slot].stamp < c->arena->slots[best].stamp)
            best = slot;
    }
    if (best == RG_SLOT_NONE) return false;
    if (!need) {
        if (c->arena->slots[best].stamp >= stamp) return false;
        const uint32_t slots = c->arena->class_slots[rg_arena_class_of(c->arena, best)];
        if (++c->pressure[class_id] < slots) return false;
    }
    const uint32_t slab = rg_arena_slab_of(c->arena, best);
    if (!slab_is_idle(c, slab)) return false;
    move_slab(c, slab, class_id);
    return true;
}

/* Any slab of another class without pins: the last resort, so that a miss always finds a slot. */
static bool take_any_slab(rg_cache *c, uint32_t class_id) {
    const rg_arena *a = c->arena;
    if (a->n_class == 1) return false;
    for (uint32_t b = 0; b < a->n_cut; b++) {
        c->meters->evict_steps++;
        if (a->slabs[b].class_id == class_id) continue;
        if (a->slabs[b].n_pinned > 0 || a->slabs[b].n_lost > 0) continue;
        move_slab(c, b, class_id);
        return true;
    }
    return false;
}

/* ---- claims ---------------------------------------------------------------------------------- */

/* Makes room for a miss; false when every slot is pinned or lost. */
static bool room_for_miss(rg_cache *c, uint32_t class_id) {
    const bool mixed = c->arena->n_class > 1;
    uint32_t slot = oldest(c, class_id, SCOPE_OTHER, LIST_COLD);
    if (slot == RG_SLOT_NONE) {
        slot = oldest_level(c, class_id, SCOPE_OTHER);
        if (mixed && slot != RG_SLOT_NONE &&
            take_older_slab(c, class_id, c->arena->slots[slot].stamp, false))
            return true;
    }
    if (slot == RG_SLOT_NONE) slot = oldest(c, class_id, SCOPE_OTHER, LIST_ASIDE);
    if (slot == RG_SLOT_NONE && mixed && take_older_slab(c, class_id, 0, true)) return true;
    if (slot == RG_SLOT_NONE) slot = oldest(c, class_id, SCOPE_NEXT, LIST_COLD);
    if (slot == RG_SLOT_NONE) slot = oldest(c, class_id, SCOPE_OWN, LIST_COLD);
    if (slot == RG_SLOT_NONE) slot = oldest_level(c, class_id, SCOPE_OWN);
    if (slot == RG_SLOT_NONE) slot = oldest(c, class_id, SCOPE_OWN, LIST_ASIDE);
    if (slot == RG_SLOT_NONE) slot = oldest_level(c, class_id, SCOPE_NEXT);
    if (slot == RG_SLOT_NONE) slot = oldest(c, class_id, SCOPE_NEXT, LIST_ASIDE);
    if (slot == RG_SLOT_NONE) return take_any_slab(c, class_id);
    evict(c, slot);
    return true;
}

/* Makes room for a guess about `item`. */
static bool room_for_guess(rg_cache *c, uint32_t class_id, uint32_t item, bool guard) {
    uint32_t slot = oldest(c, class_id, SCOPE_OTHER, LIST_COLD);
    if (slot == RG_SLOT_NONE) {
        slot = oldest_level(c, class_id, SCOPE_OTHER);
        if (slot == RG_SLOT_NONE) return false;
        const uint32_t victim = c->arena->slots[slot].item;
        if (guard && rg_cache_heat(c, victim) > rg_cache_heat(c, item) + RG_HEAT_USE) return false;
    }
    evict(c, slot);
    return true;
}

static bool make_room(rg_cache *c, uint32_t item, uint32_t class_id, rg_claim_kind kind) {
    if (rg_arena_can_take(c->arena, class_id)) return true;
    switch (kind) {
    case RG_CLAIM_MISS:
        return room_for_miss(c, class_id);
    case RG_CLAIM_GUESS:
        return room_for_guess(c, class_id, item, c->guard);
    case RG_CLAIM_GUESS_TRUSTED:
    case RG_CLAIM_GUESS_PREFILL:
        return room_for_guess(c, class_id, item, false);
    case RG_CLAIM_WARM:
        break;
    }
    return false;
}

static void mark_fresh(rg_cache *c, uint32_t slot) {
    rg_slot *s = &c->arena->slots[slot];
    s->window = c->window;
    if (s->fresh) return; /* listed for an item that has left since */
    RG_ASSERT(c->n_fresh < c->arena->n_slot);
    s->fresh = true;
    c->fresh[c->n_fresh++] = slot;
}

static void sink_oldest(rg_cache *c, uint32_t level);

/* Puts a slot at the young end of a policy level. */
static void place(rg_cache *c, uint32_t slot, uint32_t level) {
    RG_ASSERT(level < c->policy->n_level);
    rg_slot *s = &c->arena->slots[slot];
    s->level = (uint8_t)level;
    s->stamp = ++c->stamp;
    list_add(c, slot, LIST_LEVEL + level, true);
    for (uint32_t l = level; l > 0 && c->level_count[l] > c->level_cap[l]; l--)
        sink_oldest(c, l);
}

/* Moves the oldest item of a level above 0 down by one. */
static void sink_oldest(rg_cache *c, uint32_t level) {
    uint32_t best = RG_SLOT_NONE;
    RG_ASSERT(level > 0);
    for (uint32_t g = 0; g < c->items->n_group; g++) {
        const uint32_t slot = list_of(c, g, LIST_LEVEL + level)->tail;
        if (slot == RG_SLOT_NONE) continue;
        if (best == RG_SLOT_NONE || c->arena->slots[slot].stamp < c->arena->slots[best].stamp)
            best = slot;
    }
    RG_ASSERT(best != RG_SLOT_NONE);
    list_remove(c, best);
    c->arena->slots[best].level = (uint8_t)(level - 1);
    c->arena->slots[best].stamp = ++c->stamp;
    list_add(c, best, LIST_LEVEL + level - 1, true);
}

uint32_t rg_cache_claim(rg_cache *c, uint32_t item, rg_claim_kind kind, uint32_t rank) {
    RG_ASSERT(item < c->items->n_item);
    RG_ASSERT(c->slot_of[item] == RG_SLOT_NONE);
    const uint32_t group = rg_items_group(c->items, item), class_id = c->items->class_of[group];
    if (!make_room(c, item, class_id, kind)) return RG_SLOT_NONE;
    const uint32_t slot = rg_arena_take(c->arena, class_id);
    RG_ASSERT(slot != RG_SLOT_NONE);
    const bool guess = kind != RG_CLAIM_MISS && kind != RG_CLAIM_WARM;
    rg_arena_claim(c->arena, slot, item, group, guess ? RG_SLOT_GUESS : RG_SLOT_HELD);
    c->slot_of[item] = slot;
    c->n_held[group]++;
    rg_slot *s = &c->arena->slots[slot];
    if (guess) {
        s->rank = rank;
        s->prefill = kind == RG_CLAIM_GUESS_PREFILL;
        s->stamp = ++c->stamp;
        list_add(c, slot, LIST_COLD, false);
    } else if (kind == RG_CLAIM_WARM) {
        /* Warmest first: each is older than the ones before and than anything used. */
        s->level = 0;
        list_add(c, slot, LIST_LEVEL, false);
    } else {
        mark_fresh(c, slot);
        place(c, slot, c->policy->insert_level(rg_cache_heat(c, item)));
        rg_arena_pin(c->arena, slot);
    }
    return slot;
}

/* ---- turns ----------------------------------------------------------------------------------- */

void rg_cache_expect(rg_cache *c, uint32_t group) {
    RG_ASSERT(group < c->items->n_group);
    c->group_next = group;
}

void rg_cache_begin(rg_cache *c, uint32_t group, const uint32_t *items, uint32_t n) {
    RG_ASSERT(c->group_turn == RG_GROUP_NONE);
    RG_ASSERT(group < c->items->n_group);
    if (c->group_last != RG_GROUP_NONE) c->successor[c->group_last] = group;
    c->group_turn = c->group_last = group;
    c->group_next = c->successor[group];
    c->turn++;
    for (uint32_t i = 0; i < n; i++)
        c->wanted[items[i]] = c->turn;
    rg_slot_list *cold = list_of(c, group, LIST_COLD);
    for (uint32_t slot = cold->head, next; slot != RG_SLOT_NONE; slot = next) {
        const rg_slot *s = &c->arena->slots[slot];
        next = s->next;
        if (s->state == RG_SLOT_GUESS && c->wanted[s->item] != c->turn)
            rg_cache_drop(c, slot, false);
    }
}

void rg_cache_end(rg_cache *c) {
    RG_ASSERT(c->group_turn != RG_GROUP_NONE);
    RG_DASSERT(rg_cache_is_valid(c));
    c->group_turn = RG_GROUP_NONE;
}

void rg_cache_use(rg_cache *c, uint32_t slot) {
    rg_slot *s = &c->arena->slots[slot];
    RG_ASSERT(s->group == c->group_turn);
    RG_ASSERT(s->state == RG_SLOT_GUESS || s->state == RG_SLOT_HELD);
    if (s->state == RG_SLOT_GUESS) {
        const uint32_t rank = s->rank < RG_STREAM_RANKS ? s->rank : RG_STREAM_RANKS - 1;
        if (s->prefill)
            c->meters->ahead_useful_prefill++;
        else
            c->meters->ahead_useful[rank]++;
        rg_arena_hold(c->arena, slot);
    }
    if (s->list == LIST_COLD) { /* a guess, or read for rejected rows: as if read now */
        list_remove(c, slot);
        mark_fresh(c, slot);
        place(c, slot, c->policy->insert_level(rg_cache_heat(c, s->item)));
    }
    s->window = c->window;
    rg_arena_pin(c->arena, slot);
}

/* ---- windows --------------------------------------------------------------------------------- */

static void touch_one(rg_cache *c, uint32_t item) {
    RG_ASSERT(item < c->items->n_item);
    const bool first = c->heat[item].window != c->window;
    const uint32_t heat = first ? heat_add(c, item) : rg_cache_heat(c, item);
    const uint32_t slot = c->slot_of[item];
    if (slot == RG_SLOT_NONE || c->arena->slots[slot].state != RG_SLOT_HELD) return;
    rg_slot *s = &c->arena->slots[slot];
    uint32_t level = s->level;
    if (s->touched != c->window)
        level = c->policy->touch_level(level, heat, s->fresh && s->window == c->window);
    s->touched = c->window;
    list_remove(c, slot);
    place(c, slot, level);
}

/* Items read in this window for rows that were rejected. */
static void demote_untouched(rg_cache *c) {
    for (uint32_t i = 0; i < c->n_fresh; i++) {
        const uint32_t slot = c->fresh[i];
        rg_slot *s = &c->arena->slots[slot];
        RG_ASSERT(s->fresh);
        s->fresh = false;
        if (s->state != RG_SLOT_HELD || s->window != c->window) continue;
        if (s->touched == c->window) continue;
        list_remove(c, slot);
        list_add(c, slot, LIST_COLD, false);
    }
    c->n_fresh = 0;
}

/* What was set aside and not touched goes back to the old end, the oldest last. */
static void put_back(rg_cache *c, uint32_t group) {
    rg_slot_list *l = list_of(c, group, LIST_ASIDE);
    while (l->head != RG_SLOT_NONE) {
        const uint32_t slot = l->head;
        rg_slot *s = &c->arena->slots[slot];
        list_remove(c, slot);
        const uint32_t tail = list_of(c, group, LIST_LEVEL + s->level)->tail;
        if (tail != RG_SLOT_NONE && c->arena->slots[tail].stamp < s->stamp)
            s->stamp = c->arena->slots[tail].stamp; /* warmed since: those have no age */
        list_add(c, slot, LIST_LEVEL + s->level, false);
    }
}

void rg_cache_touch(rg_cache *c, const uint32_t *items, uint32_t n) {
    RG_ASSERT(c->group_turn == RG_GROUP_NONE);
    RG_ASSERT(n == 0 || items);
    for (uint32_t i = 0; i < n; i++)
        touch_one(c, items[i]);
    demote_untouched(c);
    for (uint32_t g = 0; g < c->items->n_group; g++)
        put_back(c, g);
    for (uint32_t l = c->policy->n_level - 1; l > 0; l--)
        while (c->level_count[l] > c->level_cap[l])
            sink_oldest(c, l);
    c->window++;
    RG_DASSERT(rg_cache_is_valid(c));
}

void rg_cache_clear(rg_cache *c) {
    RG_ASSERT(c->group_turn == RG_GROUP_NONE);
    for (uint32_t i = 0; i < c->items->n_item; i++)
        if (c->slot_of[i] != RG_SLOT_NONE) rg_cache_drop(c, c->slot_of[i], false);
    for (uint32_t i = 0; i < c->n_fresh; i++)
        c->arena->slots[c->fresh[i]].fresh = false;
    c->n_fresh = 0;
    reset(c);
    RG_DASSERT(rg_cache_is_valid(c));
}

/* ---- validity -------------------------------------------------------------------------------- */

static bool slot_is_valid(const rg_cache *c, uint32_t slot, uint32_t group, uint32_t list) {
    const rg_slot *s = &c->arena->slots[slot];
    if (s->group != group || s->list != list) return false;
    if (s->state != RG_SLOT_GUESS && s->state != RG_SLOT_HELD) return false;
    if (c->slot_of[s->item] != slot || rg_items_group(c->items, s->item) != group) return false;
    if (s->state == RG_SLOT_GUESS && list != LIST_COLD) return false;
    if (list >= LIST_LEVEL && s->level != list - LIST_LEVEL) return false;
    if (s->pins == 0) return true;
    return list != LIST_COLD && group == c->group_turn && s->window == c->window;
}

static bool list_is_valid(const rg_cache *c, uint32_t group, uint32_t list, uint32_t *n_all) {
    const rg_slot_list *l = list_of(c, group, list);
    uint32_t n = 0;
    uint64_t stamp = UINT64_MAX;
    for (uint32_t i = l->head; i != RG_SLOT_NONE; i = c->arena->slots[i].next) {
        if (i >= c->arena->n_slot || n++ >= l->count) return false;
        if (!slot_is_valid(c, i, group, list)) return false;
        if (list >= LIST_LEVEL && c->arena->slots[i].stamp > stamp) return false;
        stamp = c->arena->slots[i].stamp;
    }
    *n_all += n;
    return n == l->count;
}

bool rg_cache_is_valid(const rg_cache *c) {
    uint32_t listed = 0, held = 0, mapped = 0;
    uint32_t levels[RG_LEVELS_MAX] = {0};
    if (!rg_arena_is_valid(c->arena)) return false;
    for (uint32_t g = 0; g < c->items->n_group; g++) {
        for (uint32_t l = 0; l < c->n_list; l++) {
            const uint32_t before = listed;
            if (!list_is_valid(c, g, l, &listed)) return false;
            if (l >= LIST_LEVEL) levels[l - LIST_LEVEL] += listed - before;
        }
    }
    for (uint32_t l = 0; l < c->policy->n_level; l++) {
        if (levels[l] != c->level_count[l]) return false;
        if (l > 0 && levels[l] > c->level_cap[l]) return false;
    }
    for (uint32_t b = 0; b < c->arena->n_slab; b++)
        held += c->arena->slabs[b].n_held;
    for (uint32_t g = 0; g < c->items->n_group; g++) {
        const uint32_t before = mapped;
        for (uint32_t i = c->items->first_item[g]; i < c->items->first_item[g + 1]; i++)
            if (c->slot_of[i] != RG_SLOT_NONE) mapped++;
        if (mapped - before != c->n_held[g]) return false;
    }
    return listed == held && mapped == held;
}
