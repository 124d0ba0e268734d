/* Slots of memory for items. Owner: the worker thread alone; no lock. What a read is doing to a
 * slot's bytes is the scheduler's business (sched.c); this file says to whom a slot belongs. The
 * two together are the life of a slot:
 *
 *                    claim (guess)
 *        +------+ ------------------> +---------+   drop: rg_arena_free
 *        | FREE |                     |  GUESS  | ----------------+
 *        +------+ <-----------------  +---------+                 |
 *         ^  |  ^      evict               | hold (wanted)        v
 *    find |  |  | evict: rg_arena_free     v                    FREE
 *         |  |  +--------------------- +--------+  pin   +----------+
 *         |  |   claim (wanted, warm)  |  HELD  | -----> | HELD,    |
 *         |  +-----------------------> |        | <----- | pins > 0 |
 *       +------+    lose (failed and   +--------+ unpin  +----------+
 *       | LOST | <-- still in flight)-----+
 *       +------+
 *
 * In the words of the blueprint: reading (ahead) is GUESS, reading (urgent) is HELD, both with a
 * read queued or in flight at the scheduler; resident is HELD or GUESS with the read done;
 * pinned(n) is HELD with pins = n. Limbo is a slot of any state into which the scheduler may not
 * read yet, because a dropped read is still in flight or a reader of the old bytes has not retired:
 * the slot may belong to a new item already, whose read waits. So ownership never depends on time.
 *
 * Invariants
 *  1. Slabs are equal, page aligned and inside the reservation; slots of a slab lie back to back
 * and inside it. The sum never exceeds the budget; nothing grows.
 *  2. A slab has one class or none; slots beyond what the class fits are UNCUT.
 *  3. A slot is on the free list of its class exactly when FREE, on the lost list exactly when
 * LOST. (Between take and claim it is on none; both happen in one call of the owner.)
 *  4. pins > 0 only in state HELD; slab.n_pinned counts such slots.
 *  5. Free slots are taken in the order in which they were freed, so that a slot whose dropped read
 *     is still in flight is refilled as late as possible.
 *  6. A slab changes class only when it holds nothing.
 *  7. used_bytes is the sum of the class sizes of slots GUESS and HELD; it never exceeds the
 * budget.
 */
#include "stream/arena.h"

#include <string.h>

#define SLAB_LARGEST_MAX 16u /* a slab is 1..this many slots of the largest class */
#define SLABS_WANTED     64u /* fewer slabs than this would make class changes coarse */

/* ---- lists ----------------------------------------------------------------------------------- */

void rg_slot_list_init(rg_slot_list *l) {
    *l = (rg_slot_list){.head = RG_SLOT_NONE, .tail = RG_SLOT_NONE};
}

void rg_slot_push_head(rg_arena *a, rg_slot_list *l, uint32_t slot) {
    RG_ASSERT(slot < a->n_slot);
    rg_slot *s = &a->slots[slot];
    s->prev = RG_SLOT_NONE;
    s->next = l->head;
    if (l->head != RG_SLOT_NONE)
        a->slots[l->head].prev = slot;
    else
        l->tail = slot;
    l->head = slot;
    l->count++;
}

void rg_slot_push_tail(rg_arena *a, rg_slot_list *l, uint32_t slot) {
    RG_ASSERT(slot < a->n_slot);
    rg_slot *s = &a->slots[slot];
    s->next = RG_SLOT_NONE;
    s->prev = l->tail;
    if (l->tail != RG_SLOT_NONE)
        a->slots[l->tail].next = slot;
    else
        l->head = slot;
    l->tail = slot;
    l->count++;
}

void rg_slot_unlink(rg_arena *a, rg_slot_list *l, uint32_t slot) {
    RG_ASSERT(slot < a->n_slot);
    RG_ASSERT(l->count > 0);
    rg_slot *s = &a->slots[slot];
    if (s->prev != RG_SLOT_NONE)
        a->slots[s->prev].next = s->next;
    else
        l->head = s->next;
    if (s->next != RG_SLOT_NONE)
        a->slots[s->next].prev = s->prev;
    else
        l->tail = s->prev;
    s->prev = s->next = RG_SLOT_NONE;
    l->count--;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Slots of the largest class per slab: the number that leaves the least room unused at the ends of
 * slabs and of the budget, among those that give enough slabs. One class needs no slabs larger than
 * a slot. */
static uint32_t choose_slab(const rg_stream_layout *layout, uint64_t budget_bytes) {
    uint32_t best = 1;
    uint64_t best_waste = UINT64_MAX;
    if (layout->n_class == 1) return 1;
    for (uint32_t m = 1; m <= SLAB_LARGEST_MAX; m++) {
        const uint64_t slab = m * layout->slot_bytes_max, n = budget_bytes / slab;
        if (m > 1 && n < SLABS_WANTED) break;
        uint64_t waste = budget_bytes - n * slab;
        for (uint32_t c = 0; c < layout->n_class; c++)
            waste += n * (slab % layout->class_bytes[c]) / layout->n_class;
        if (waste < best_waste) {
            best = m;
            best_waste = waste;
        }
    }
    return best;
}

static rg_code take_memory(rg_arena *a, void *memory, rg_status *st) {
    const uint64_t bytes = a->n_slab * a->slab_bytes;
    a->memory = memory;
    if (memory) {
        RG_ASSERT((uintptr_t)memory % RG_STREAM_ALIGN == 0);
        return RG_OK;
    }
    void *map;
    RG_TRY(rg_mem_map(&map, (size_t)bytes, st));
    a->memory = map;
    a->map_bytes = bytes;
    return RG_OK;
}

rg_code rg_arena_init(rg_arena *out, const rg_stream_layout *layout, uint64_t budget_bytes,
                      void *memory, bool poison, rg_status *st) {
    *out = (rg_arena){.n_class = layout->n_class, .poison = poison};
    out->slab_bytes = layout->slot_bytes_max * choose_slab(layout, budget_bytes);
    const uint64_t n_slab = budget_bytes / out->slab_bytes;
    if (n_slab < 2) {
        return rg_fail(st, RG_INVALID, "an arena of %llu bytes, two slots take %llu",
                       (unsigned long long)budget_bytes,
                       (unsigned long long)(2 * layout->slot_bytes_max));
    }
    out->slab_slots = (uint32_t)(out->slab_bytes / layout->class_bytes[0]);
    if (n_slab > UINT32_MAX / 2 / out->slab_slots) {
        return rg_fail(st, RG_INVALID, "an arena of %llu slabs, the limit is %u",
                       (unsigned long long)n_slab, UINT32_MAX / 2 / out->slab_slots);
    }
    out->n_slab = (uint32_t)n_slab;
    out->n_slot = out->n_slab * out->slab_slots;
    for (uint32_t c = 0; c < layout->n_class; c++) {
        out->class_bytes[c] = layout->class_bytes[c];
        out->class_slots[c] = (uint32_t)(out->slab_bytes / layout->class_bytes[c]);
        rg_slot_list_init(&out->free[c]);
    }
    rg_slot_list_init(&out->lost);
    out->slots = rg_alloc(out->n_slot, sizeof *out->slots, st);
    out->slabs = rg_alloc(out->n_slab, sizeof *out->slabs, st);
    const rg_code rc = out->slots && out->slabs ? take_memory(out, memory, st) : RG_NOMEM;
    if (rc != RG_OK) {
        rg_arena_deinit(out);
        return rc;
    }
    for (uint32_t b = 0; b < out->n_slab; b++)
        out->slabs[b].class_id = RG_CLASS_NONE;
    for (uint32_t i = 0; i < out->n_slot; i++)
        out->slots[i].prev = out->slots[i].next = RG_SLOT_NONE;
    return RG_OK;
}

void rg_arena_deinit(rg_arena *a) {
    if (a->map_bytes) rg_mem_unmap(a->memory, (size_t)a->map_bytes);
    rg_free(a->slots);
    rg_free(a->slabs);
    *a = (rg_arena){0};
}

uint32_t rg_arena_class_of(const rg_arena *a, uint32_t slot) {
    RG_ASSERT(slot < a->n_slot);
    const uint32_t c = a->slabs[rg_arena_slab_of(a, slot)].class_id;
    RG_ASSERT(c < a->n_class);
    return c;
}

void *rg_arena_data(const rg_arena *a, uint32_t slot) {
    const uint32_t slab = rg_arena_slab_of(a, slot), index = slot % a->slab_slots;
    const uint64_t bytes = a->class_bytes[rg_arena_class_of(a, slot)];
    RG_ASSERT((index + 1) * bytes <= a->slab_bytes);
    return a->memory + slab * a->slab_bytes + index * bytes;
}

/* ---- transitions ----------------------------------------------------------------------------- */

/* Slots of a slab without class become FREE slots of one. */
static void cut(rg_arena *a, uint32_t slab, uint32_t class_id) {
    RG_ASSERT(slab < a->n_slab);
    RG_ASSERT(class_id < a->n_class);
    a->slabs[slab].class_id = (uint8_t)class_id;
    for (uint32_t i = 0; i < a->class_slots[class_id]; i++) {
        const uint32_t slot = slab * a->slab_slots + i;
        RG_ASSERT(a->slots[slot].state == RG_SLOT_UNCUT);
        a->slots[slot].state = RG_SLOT_FREE;
        rg_slot_push_tail(a, &a->free[class_id], slot);
    }
}

bool rg_arena_can_take(const rg_arena *a, uint32_t class_id) {
    RG_ASSERT(class_id < a->n_class);
    return a->free[class_id].count > 0 || a->n_cut < a->n_slab;
}

uint32_t rg_arena_take(rg_arena *a, uint32_t class_id) {
    RG_ASSERT(class_id < a->n_class);
    rg_slot_list *l = &a->free[class_id];
    if (l->count == 0 && a->n_cut < a->n_slab) cut(a, a->n_cut++, class_id);
    if (l->count == 0) return RG_SLOT_NONE;
    const uint32_t slot = l->head;
    RG_ASSERT(a->slots[slot].state == RG_SLOT_FREE);
    rg_slot_unlink(a, l, slot);
    return slot;
}

void rg_arena_claim(rg_arena *a, uint32_t slot, uint32_t item, uint32_t group,
                    rg_slot_state state) {
    RG_ASSERT(slot < a->n_slot);
    rg_slot *s = &a->slots[slot];
    RG_ASSERT(s->state == RG_SLOT_FREE);
    RG_ASSERT(state == RG_SLOT_GUESS || state == RG_SLOT_HELD);
    const uint64_t bytes = a->class_bytes[rg_arena_class_of(a, slot)];
    const bool fresh = s->fresh; /* the cache's list of fresh slots may still name it */
    *s = (rg_slot){.item = item, .prev = RG_SLOT_NONE, .next = RG_SLOT_NONE, .fresh = fresh};
    s->group = (uint16_t)group;
    s->state = (uint8_t)state;
    a->slabs[rg_arena_slab_of(a, slot)].n_held++;
    a->used_bytes += bytes;
    if (a->used_bytes > a->peak_bytes) a->peak_bytes = a->used_bytes;
    RG_ASSERT(a->used_bytes <= a->n_slab * a->slab_bytes);
}

void rg_arena_hold(rg_arena *a, uint32_t slot) {
    RG_ASSERT(slot < a->n_slot);
    RG_ASSERT(a->slots[slot].state == RG_SLOT_GUESS);
    a->slots[slot].state = RG_SLOT_HELD;
}

void rg_arena_pin(rg_arena *a, uint32_t slot) {
    RG_ASSERT(slot < a->n_slot);
    RG_ASSERT(a->slots[slot].state == RG_SLOT_HELD);
    if (a->slots[slot].pins++ == 0) a->slabs[rg_arena_slab_of(a, slot)].n_pinned++;
}

void rg_arena_unpin(rg_arena *a, uint32_t slot) {
    RG_ASSERT(slot < a->n_slot);
    RG_ASSERT(a->slots[slot].pins > 0);
    if (--a->slots[slot].pins == 0) a->slabs[rg_arena_slab_of(a, slot)].n_pinned--;
}

/* The item leaves its slot. */
static void leave(rg_arena *a, uint32_t slot) {
    rg_slot *s = &a->slots[slot];
    RG_ASSERT(s->state == RG_SLOT_GUESS || s->state == RG_SLOT_HELD);
    RG_ASSERT(s->pins == 0);
    const uint64_t bytes = a->class_bytes[rg_arena_class_of(a, slot)];
    RG_ASSERT(a->used_bytes >= bytes);
    a->used_bytes -= bytes;
    a->slabs[rg_arena_slab_of(a, slot)].n_held--;
    s->item = UINT32_MAX;
}

void rg_arena_free(rg_arena *a, uint32_t slot) {
    RG_ASSERT(slot < a->n_slot);
    leave(a, slot);
    a->slots[slot].state = RG_SLOT_FREE;
    rg_slot_push_tail(a, &a->free[rg_arena_class_of(a, slot)], slot);
}

void rg_arena_lose(rg_arena *a, uint32_t slot) {
    RG_ASSERT(slot < a->n_slot);
    leave(a, slot);
    a->slots[slot].state = RG_SLOT_LOST;
    a->slabs[rg_arena_slab_of(a, slot)].n_lost++;
    rg_slot_push_tail(a, &a->lost, slot);
}

void rg_arena_find(rg_arena *a, uint32_t slot) {
    RG_ASSERT(slot < a->n_slot);
    RG_ASSERT(a->slots[slot].state == RG_SLOT_LOST);
    rg_slot_unlink(a, &a->lost, slot);
    a->slabs[rg_arena_slab_of(a, slot)].n_lost--;
    a->slots[slot].state = RG_SLOT_FREE;
    rg_slot_push_tail(a, &a->free[rg_arena_class_of(a, slot)], slot);
}

void rg_arena_recut(rg_arena *a, uint32_t slab, uint32_t class_id) {
    RG_ASSERT(slab < a->n_cut);
    rg_slab *b = &a->slabs[slab];
    RG_ASSERT(b->n_held == 0);
    RG_ASSERT(b->n_pinned == 0 && b->n_lost == 0);
    for (uint32_t i = 0; i < a->class_slots[b->class_id]; i++) {
        const uint32_t slot = slab * a->slab_slots + i;
        RG_ASSERT(a->slots[slot].state == RG_SLOT_FREE);
        rg_slot_unlink(a, &a->free[b->class_id], slot);
        a->slots[slot].state = RG_SLOT_UNCUT;
    }
    cut(a, slab, class_id);
}

void rg_arena_poison(const rg_arena *a, uint32_t slot) {
    RG_ASSERT(slot < a->n_slot);
    /* All ones: NaN as f32, f16 and bf16, and NaN scales in every quantised block. */
    memset(rg_arena_data(a, slot), 0xFF, (size_t)a->class_bytes[rg_arena_class_of(a, slot)]);
}

/* ---- validity -------------------------------------------------------------------------------- */

static bool list_is_valid(const rg_arena *a, const rg_slot_list *l, rg_slot_state state) {
    uint32_t n = 0, prev = RG_SLOT_NONE;
    for (uint32_t i = l->head; i != RG_SLOT_NONE; i = a->slots[i].next) {
        if (i >= a->n_slot || n++ >= l->count) return false;
        if (a->slots[i].prev != prev || a->slots[i].state != state) return false;
        prev = i;
    }
    return n == l->count && l->tail == prev;
}

/* Counts of one slab against its slots; adds to the totals. */
static bool slab_is_valid(const rg_arena *a, uint32_t slab, uint32_t *n_free, uint32_t *n_lost,
                          uint64_t *used_bytes) {
    const rg_slab *b = &a->slabs[slab];
    uint32_t held = 0, pinned = 0, lost = 0;
    const uint32_t n = b->class_id == RG_CLASS_NONE ? 0 : a->class_slots[b->class_id];
    if ((b->class_id == RG_CLASS_NONE) != (slab >= a->n_cut)) return false;
    for (uint32_t i = 0; i < a->slab_slots; i++) {
        const rg_slot *s = &a->slots[slab * a->slab_slots + i];
        if ((s->state == RG_SLOT_UNCUT) != (i >= n)) return false;
        if (s->pins > 0 && s->state != RG_SLOT_HELD) return false;
        if (s->state == RG_SLOT_FREE) n_free[b->class_id]++;
        if (s->state == RG_SLOT_LOST) lost++;
        if (s->state == RG_SLOT_GUESS || s->state == RG_SLOT_HELD) held++;
        if (s->pins > 0) pinned++;
    }
    *n_lost += lost;
    if (n) *used_bytes += held * a->class_bytes[b->class_id];
    return held == b->n_held && pinned == b->n_pinned && lost == b->n_lost;
}

bool rg_arena_is_valid(const rg_arena *a) {
    uint32_t n_free[RG_STREAM_CLASSES_MAX] = {0}, n_lost = 0;
    uint64_t used_bytes = 0;
    for (uint32_t b = 0; b < a->n_slab; b++)
        if (!slab_is_valid(a, b, n_free, &n_lost, &used_bytes)) return false;
    for (uint32_t c = 0; c < a->n_class; c++) {
        if (!list_is_valid(a, &a->free[c], RG_SLOT_FREE)) return false;
        if (n_free[c] != a->free[c].count) return false;
    }
    if (!list_is_valid(a, &a->lost, RG_SLOT_LOST) || n_lost != a->lost.count) return false;
    return used_bytes == a->used_bytes && a->used_bytes <= a->peak_bytes &&
           a->peak_bytes <= a->n_slab * a->slab_bytes;
}
