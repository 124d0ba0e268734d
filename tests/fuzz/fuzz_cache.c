/* A byte string read as cache operations, against a model that keeps no lists: it finds victims by
 * looking at every item. Hits, victims and the whole directory must agree after each operation; the
 * structures must be valid. With several classes or another policy only validity and the budget are
 * checked. The worker's rules hold (one turn at a time, unique items): bytes choose among legal
 * operations.
 */
#include "fuzz_target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stream/cache.h"

#define GROUPS      4u
#define GROUP_ITEMS 12u
#define ITEMS       (GROUPS * GROUP_ITEMS)
#define OPS_MAX     4000u

/* One item as the model sees it. */
typedef struct model_item {
    bool held, guess, cold, pinned, fresh;
    uint32_t window, touched;
    uint64_t stamp;
    uint64_t cold_order;
    uint32_t heat, heat_window;
} model_item;

typedef struct model {
    model_item items[ITEMS];
    uint32_t n_slot, n_held;
    uint32_t turn, next, last;
    uint32_t successor[GROUPS];
    uint32_t window;
    uint64_t stamp, cold_order;
    bool guard;
} model;

typedef struct fuzz {
    const uint8_t *data;
    size_t size, pos;
    rg_items items;
    rg_arena arena;
    rg_cache cache;
    rg_stream_meters meters;
    model m;
    bool exact;
    uint32_t dropped; /* told by the hook in this operation */
    uint32_t pinned[ITEMS];
    uint32_t n_pinned;
} fuzz;

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "fuzz_cache: line %d: %s\n", __LINE__, #cond);                         \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static uint32_t next_byte(fuzz *f) {
    return f->pos < f->size ? f->data[f->pos++] : 0;
}

static uint32_t group_of(uint32_t item) {
    return item / GROUP_ITEMS;
}

/* ---- model ----------------------------------------------------------------------------------- */

enum { OTHER, NEXT, OWN };

static int scope_of(const model *m, uint32_t group) {
    if (group == m->turn) return OWN;
    return group == m->next ? NEXT : OTHER;
}

static void model_drop(model *m, uint32_t item) {
    model_item *x = &m->items[item];
    x->held = x->guess = x->cold = x->fresh = false;
    m->n_held--;
}

/* Of every group in scope its worst cold item; of those the oldest. */
static uint32_t model_cold(const model *m, int scope) {
    uint32_t best = RG_ITEM_NONE;
    for (uint32_t g = 0; g < GROUPS; g++) {
        uint32_t worst = RG_ITEM_NONE;
        if (scope_of(m, g) != scope) continue;
        for (uint32_t i = g * GROUP_ITEMS; i < (g + 1) * GROUP_ITEMS; i++) {
            if (!m->items[i].held || !m->items[i].cold) continue;
            if (worst == RG_ITEM_NONE || m->items[i].cold_order > m->items[worst].cold_order)
                worst = i;
        }
        if (worst == RG_ITEM_NONE) continue;
        if (best == RG_ITEM_NONE || m->items[worst].stamp < m->items[best].stamp) best = worst;
    }
    return best;
}

static uint32_t model_oldest(const model *m, int scope, bool used_now) {
    uint32_t best = RG_ITEM_NONE;
    for (uint32_t i = 0; i < ITEMS; i++) {
        const model_item *x = &m->items[i];
        if (!x->held || x->cold || x->pinned || scope_of(m, group_of(i)) != scope) continue;
        if ((x->window == m->window) != used_now) continue;
        if (best == RG_ITEM_NONE || x->stamp < m->items[best].stamp) best = i;
    }
    return best;
}

static uint32_t model_heat(const model *m, uint32_t item) {
    const model_item *x = &m->items[item];
    uint32_t heat = x->heat;
    for (uint32_t p = x->heat_window / RG_HEAT_PERIOD; p < m->window / RG_HEAT_PERIOD; p++)
        heat /= 2;
    return heat;
}

static uint32_t model_victim_miss(const model *m) {
    uint32_t v = model_cold(m, OTHER);
    if (v == RG_ITEM_NONE) v = model_oldest(m, OTHER, false);
    if (v == RG_ITEM_NONE) v = model_oldest(m, OTHER, true);
    if (v == RG_ITEM_NONE) v = model_cold(m, NEXT);
    if (v == RG_ITEM_NONE) v = model_cold(m, OWN);
    if (v == RG_ITEM_NONE) v = model_oldest(m, OWN, false);
    if (v == RG_ITEM_NONE) v = model_oldest(m, OWN, true);
    if (v == RG_ITEM_NONE) v = model_oldest(m, NEXT, false);
    if (v == RG_ITEM_NONE) v = model_oldest(m, NEXT, true);
    return v;
}

static uint32_t model_victim_guess(const model *m, uint32_t item, bool guard) {
    uint32_t v = model_cold(m, OTHER);
    if (v != RG_ITEM_NONE) return v;
    v = model_oldest(m, OTHER, false);
    if (v == RG_ITEM_NONE || !guard) return v;
    return model_heat(m, v) > model_heat(m, item) + RG_HEAT_USE ? RG_ITEM_NONE : v;
}

/* The item gets a slot; false when there is none. */
static bool model_claim(model *m, uint32_t item, rg_claim_kind kind) {
    if (m->n_held == m->n_slot) {
        uint32_t v = RG_ITEM_NONE;
        if (kind == RG_CLAIM_MISS)
            v = model_victim_miss(m);
        else if (kind != RG_CLAIM_WARM)
            v = model_victim_guess(m, item, m->guard && kind == RG_CLAIM_GUESS);
        if (v == RG_ITEM_NONE) return false;
        model_drop(m, v);
    }
    model_item *x = &m->items[item];
    x->held = true;
    x->window = x->touched = 0;
    m->n_held++;
    if (kind == RG_CLAIM_MISS) {
        x->stamp = ++m->stamp;
        x->window = m->window;
        x->pinned = x->fresh = true;
    } else {
        x->guess = x->cold = true;
        x->stamp = ++m->stamp;
        x->cold_order = ++m->cold_order;
    }
    return true;
}

static void model_touch(model *m, const uint32_t *items, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        model_item *x = &m->items[items[i]];
        if (x->heat_window != m->window) {
            x->heat = model_heat(m, items[i]) + RG_HEAT_USE;
            x->heat_window = m->window;
        }
        if (!x->held || x->guess) continue;
        x->touched = m->window;
        x->cold = false;
        x->stamp = ++m->stamp;
    }
    for (uint32_t i = 0; i < ITEMS; i++)
        m->items[i].guess = m->items[i].guess && m->items[i].held;
}

/* Items read in this window and not touched become cold, in the order in which they were read. */
static void model_demote(fuzz *f, const uint32_t *fresh, uint32_t n) {
    model *m = &f->m;
    for (uint32_t i = 0; i < n; i++) {
        model_item *x = &m->items[fresh[i]];
        if (!x->held || !x->fresh) continue;
        x->fresh = false;
        if (x->touched == m->window) continue;
        x->cold = true;
        x->cold_order = ++m->cold_order;
    }
    m->window++;
}

/* ---- operations ------------------------------------------------------------------------------ */

static void compare(fuzz *f) {
    CHECK(rg_cache_is_valid(&f->cache));
    CHECK(f->arena.used_bytes <= f->arena.n_slab * f->arena.slab_bytes);
    for (uint32_t i = 0; i < ITEMS && f->exact; i++) {
        CHECK((rg_cache_find(&f->cache, i) != RG_SLOT_NONE) == f->m.items[i].held);
        CHECK(rg_cache_heat(&f->cache, i) == model_heat(&f->m, i));
    }
}

static uint32_t choose_items(fuzz *f, uint32_t group, uint32_t *items, uint32_t most) {
    bool seen[GROUP_ITEMS] = {false};
    const uint32_t n = 1 + next_byte(f) % most;
    uint32_t n_item = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t index = next_byte(f) % GROUP_ITEMS;
        if (seen[index]) continue;
        seen[index] = true;
        items[n_item++] = group * GROUP_ITEMS + index;
    }
    return n_item;
}

static void op_begin(fuzz *f) {
    uint32_t items[GROUP_ITEMS];
    const uint32_t g = next_byte(f) % GROUPS, n = choose_items(f, g, items, GROUP_ITEMS);
    model *m = &f->m;
    rg_cache_begin(&f->cache, g, items, n);
    if (m->last != RG_GROUP_NONE) m->successor[m->last] = g;
    m->turn = m->last = g;
    m->next = m->successor[g];
    for (uint32_t i = g * GROUP_ITEMS; i < (g + 1) * GROUP_ITEMS; i++) {
        bool wanted = false;
        for (uint32_t k = 0; k < n; k++)
            wanted = wanted || items[k] == i;
        if (m->items[i].held && m->items[i].guess && !wanted) model_drop(m, i);
    }
    for (uint32_t i = 0; i < n; i++) { /* all residents first */
        const uint32_t slot = rg_cache_find(&f->cache, items[i]);
        if (slot == RG_SLOT_NONE) continue;
        rg_cache_use(&f->cache, slot);
        f->pinned[f->n_pinned++] = items[i];
        model_item *x = &m->items[items[i]];
        if (x->cold) {
            x->stamp = ++m->stamp;
            x->fresh = true;
        }
        x->cold = x->guess = false;
        x->pinned = true;
        x->window = m->window;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (rg_cache_find(&f->cache, items[i]) != RG_SLOT_NONE) continue;
        const uint32_t slot = rg_cache_claim(&f->cache, items[i], RG_CLAIM_MISS, 0);
        if (f->exact) CHECK((slot != RG_SLOT_NONE) == model_claim(m, items[i], RG_CLAIM_MISS));
        if (slot == RG_SLOT_NONE) break;
        CHECK(f->arena.slots[slot].pins == 1);
        f->pinned[f->n_pinned++] = items[i];
    }
    CHECK(f->n_pinned > 0 || f->arena.lost.count > 0);
}

static void op_end(fuzz *f) {
    for (uint32_t i = 0; i < f->n_pinned; i++) {
        rg_arena_unpin(&f->arena, rg_cache_find(&f->cache, f->pinned[i]));
        f->m.items[f->pinned[i]].pinned = false;
    }
    if (f->n_pinned > 0 && next_byte(f) % 16 == 0) { /* a failed read */
        const uint32_t item = f->pinned[next_byte(f) % f->n_pinned];
        rg_cache_drop(&f->cache, rg_cache_find(&f->cache, item), false);
        model_drop(&f->m, item);
    }
    f->n_pinned = 0;
    rg_cache_end(&f->cache);
    f->m.turn = RG_GROUP_NONE;
}

static void op_ahead(fuzz *f) {
    uint32_t items[GROUP_ITEMS] = {0};
    const uint32_t g = next_byte(f) % GROUPS, n = choose_items(f, g, items, 8);
    if (g == f->cache.group_turn) return;
    const rg_claim_kind kind = next_byte(f) % 2 ? RG_CLAIM_GUESS : RG_CLAIM_GUESS_PREFILL;
    rg_cache_expect(&f->cache, g);
    f->m.next = g;
    for (uint32_t i = 0; i < n; i++) {
        if (rg_cache_find(&f->cache, items[i]) != RG_SLOT_NONE) continue;
        const uint32_t slot = rg_cache_claim(&f->cache, items[i], kind, i);
        if (f->exact) CHECK((slot != RG_SLOT_NONE) == model_claim(&f->m, items[i], kind));
    }
}

static void op_touch(fuzz *f) {
    uint32_t items[64] = {0}, n = next_byte(f) % 64, fresh[ITEMS * 4], n_fresh = 0;
    for (uint32_t i = 0; i < n; i++)
        items[i] = next_byte(f) % ITEMS;
    /* The order in which this window's items were read; only the cache keeps it. */
    for (uint32_t i = 0; i < f->cache.n_fresh && n_fresh < ITEMS * 4; i++) {
        const rg_slot *s = &f->arena.slots[f->cache.fresh[i]];
        if (s->state == RG_SLOT_HELD) fresh[n_fresh++] = s->item;
    }
    rg_cache_touch(&f->cache, items, n);
    model_touch(&f->m, items, n);
    model_demote(f, fresh, n_fresh);
}

static void on_dropped(void *user, uint32_t slot) {
    fuzz *f = user;
    CHECK(f->arena.slots[slot].pins == 0);
    f->dropped++;
}

static void on_recut(void *user, uint32_t first_slot, uint32_t n_slot) {
    fuzz *f = user;
    for (uint32_t i = first_slot; i < first_slot + n_slot; i++)
        CHECK(f->arena.slots[i].pins == 0);
}

static bool open_fuzz(fuzz *f, void *memory) {
    rg_stream_group groups[GROUPS];
    const uint32_t head = next_byte(f), slots = 2 + next_byte(f) % 60;
    const bool mixed = head % 4 == 0;
    const rg_stream_policy policy = (rg_stream_policy)((head / 4) % RG_POLICY_COUNT);
    for (uint32_t g = 0; g < GROUPS; g++) {
        const uint32_t bytes = mixed ? 4096 * (1 + g % 3) : 4096;
        groups[g] = (rg_stream_group){.n_item = GROUP_ITEMS, .n_extent = 1};
        groups[g].extents[0] =
            (rg_stream_extent){.bytes = bytes, .stride = bytes, .offset = g * (1u << 20)};
    }
    f->exact = !mixed && policy == RG_POLICY_LRU;
    f->m = (model){.n_slot = slots, .window = 1, .guard = head / 16 % 2};
    f->m.turn = f->m.next = f->m.last = RG_GROUP_NONE;
    for (uint32_t g = 0; g < GROUPS; g++)
        f->m.successor[g] = RG_GROUP_NONE;
    const rg_cache_hooks hooks = {f, on_dropped, on_recut};
    if (rg_items_init(&f->items, groups, GROUPS, NULL) != RG_OK) return false;
    const uint64_t budget = f->items.layout.slot_bytes_max * slots;
    if (rg_arena_init(&f->arena, &f->items.layout, budget, memory, false, NULL) != RG_OK)
        return false;
    return rg_cache_init(&f->cache, &f->arena, &f->items, policy, f->m.guard, &hooks, &f->meters,
                         NULL) == RG_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char memory[64 * 3 * 4096] __attribute__((aligned(4096)));
    fuzz *f = rg_alloc(1, sizeof *f, NULL);
    if (!f) return 0;
    f->data = data;
    f->size = size;
    if (open_fuzz(f, memory)) {
        for (uint32_t i = 0; i < OPS_MAX && f->pos < f->size; i++) {
            const uint32_t op = next_byte(f) % 8;
            const bool in_turn = f->cache.group_turn != RG_GROUP_NONE;
            if (op < 3)
                op_ahead(f);
            else if (in_turn)
                op_end(f);
            else if (op < 7)
                op_begin(f);
            else
                op_touch(f);
            compare(f);
        }
        if (f->cache.group_turn != RG_GROUP_NONE) op_end(f);
        rg_cache_clear(&f->cache);
        CHECK(f->arena.used_bytes == 0 && rg_cache_is_valid(&f->cache));
    }
    if (f->cache.arena) rg_cache_deinit(&f->cache);
    rg_arena_deinit(&f->arena);
    rg_items_deinit(&f->items);
    rg_free(f);
    return 0;
}
