/* The door of the room: joins items, arena, cache, read-ahead, scheduler and device.
 *
 * Threads: the worker calls everything here. The logical half (cache, arena, readahead) is its own;
 * it holds the scheduler's lock while it changes who owns a slot, because each such change is told
 * to the scheduler, and because the meters are read from any thread under that lock.
 *
 * Invariants
 *  1. A turn's wave is a set of pinned slots; each is ready or pending, never both.
 *  2. Directory changes happen in begin, wave_next, end, ahead, touch, warm and clear only.
 *  3. After end nothing is pinned and nothing is wanted.
 */
#include "stream/stream.h"

#include <stdio.h>
#include <string.h>

#include "stream/io_virtual.h"
#include "stream/stream_state.h"

#define DEPTH_DEFAULT    32u
#define RETRIES_DEFAULT  3u
#define STALL_MS_DEFAULT 30000u
#define COST_DEFAULT     300u
#define NS_PER_MS        1000000u
#define GUESS_PERIOD     8u /* windows; see rg_stream_wants_guesses */

/* ---- hooks ----------------------------------------------------------------------------------- */

static void on_dropped(void *user, uint32_t slot) {
    rg_stream *s = user;
    rg_sched_drop(&s->sched, slot);
    if (s->poison && rg_sched_is_quiet(&s->sched, slot)) rg_arena_poison(&s->arena, slot);
}

static void on_recut(void *user, uint32_t first_slot, uint32_t n_slot) {
    rg_stream *s = user;
    rg_sched_recut(&s->sched, first_slot, n_slot);
}

/* ---- life ------------------------------------------------------------------------------------ */

static rg_code copy_paths(rg_stream *s, const rg_stream_options *o, rg_status *st) {
    if (o->n_file == 0 || o->n_file > RG_STREAM_FILES_MAX) {
        return rg_fail(st, RG_INVALID, "%u files, 1 to %u can be", o->n_file, RG_STREAM_FILES_MAX);
    }
    s->paths = rg_alloc(o->n_file, sizeof *s->paths, st);
    if (!s->paths) return RG_NOMEM;
    s->n_path = o->n_file;
    for (uint32_t i = 0; i < o->n_file; i++) {
        s->paths[i] = rg_strndup(o->paths[i], strlen(o->paths[i]), st);
        if (!s->paths[i]) return RG_NOMEM;
    }
    return RG_OK;
}

uint32_t rg_stream_places(uint32_t depth) {
    return 2 * (depth ? depth : DEPTH_DEFAULT);
}

static rg_code check_landing(const rg_stream_options *o, rg_status *st) {
    const rg_stream_landing *l = o->landing;
    if (!l) return RG_OK;
    if (!o->memory || !l->staging || (uintptr_t)l->staging % RG_STREAM_ALIGN != 0)
        return rg_fail(st, RG_INVALID, "a landing without memory, or aligned to less than %u",
                       RG_STREAM_ALIGN);
    if (l->n_place < rg_stream_places(o->depth) || l->place_bytes % RG_STREAM_ALIGN != 0)
        return rg_fail(st, RG_INVALID, "%u places of %llu bytes, at least %u are wanted",
                       l->n_place, (unsigned long long)l->place_bytes, rg_stream_places(o->depth));
    return RG_OK;
}

static rg_code check_options(const rg_stream_options *o, rg_status *st) {
    if (o->depth > RG_STREAM_DEPTH_MAX) {
        return rg_fail(st, RG_INVALID, "depth %u, the limit is %u", o->depth, RG_STREAM_DEPTH_MAX);
    }
    const uint32_t depth = o->depth ? o->depth : DEPTH_DEFAULT;
    if (o->urgent_reserve >= depth) {
        return rg_fail(st, RG_INVALID, "%u of %u reads reserved for urgent ones", o->urgent_reserve,
                       depth);
    }
    if ((unsigned)o->policy >= RG_POLICY_COUNT) {
        return rg_fail(st, RG_INVALID, "policy %u of %u", (unsigned)o->policy, RG_POLICY_COUNT);
    }
    if (o->memory && (uintptr_t)o->memory % RG_STREAM_ALIGN != 0) {
        return rg_fail(st, RG_INVALID, "memory for the arena is aligned to %u, not to %u",
                       (unsigned)((uintptr_t)o->memory & -(uintptr_t)o->memory), RG_STREAM_ALIGN);
    }
    return check_landing(o, st);
}

static rg_code open_backend(rg_stream *s, const rg_stream_options *o, const rg_io_config *config,
                            rg_status *st) {
    if (o->backend != RG_STREAM_PREAD && !o->staged) {
        rg_status why = {0};
        const rg_code rc = rg_io_uring_open(&s->io, config, &s->backend_name, &why);
        if (rc == RG_OK) return RG_OK;
        if (o->backend == RG_STREAM_URING || rc == RG_NOMEM) {
            if (st && st->code == RG_OK) *st = why;
            return rc;
        }
        rg_log(RG_LOG_INFO, "reads by pread threads: %s", why.message);
    }
    return rg_io_pread_open(&s->io, config, &s->backend_name, st);
}

static rg_code open_device(rg_stream *s, const rg_stream_options *o, uint32_t depth,
                           rg_status *st) {
    if (o->io) {
        s->backend_name = "borrowed device";
        return RG_OK;
    }
    if (o->virtual_drive) {
        s->backend_name = "virtual drive";
        const rg_virtual_config drive = {.drive = *o->virtual_drive, .depth = depth};
        return rg_io_virtual_open(&s->io, &drive, st);
    }
    RG_TRY(rg_io_files_open(&s->files, o->paths, o->n_file, o->direct, st));
    uint64_t sizes[RG_STREAM_FILES_MAX];
    for (uint32_t i = 0; i < o->n_file; i++)
        sizes[i] = s->files.files[i].size_bytes;
    RG_TRY(rg_items_check_files(&s->items, sizes, o->paths, o->n_file, st));
    rg_io_config config = {.files = &s->files,
                           .memory = s->arena.memory,
                           .memory_bytes = s->arena.n_slab * s->arena.slab_bytes,
                           .block_bytes = s->arena.slab_bytes,
                           .depth = depth,
                           .look_ns = o->look_ns,
                           .staged = o->staged};
    if (o->landing) {
        config.memory = s->landing.staging;
        config.memory_bytes = s->landing.n_place * s->landing.place_bytes;
        config.block_bytes = s->landing.place_bytes;
    }
    RG_TRY(open_backend(s, o, &config, st));
    if (!o->faults) return RG_OK;
    rg_io *wrapped;
    RG_TRY(rg_io_fault_open(&wrapped, s->io, o->faults, depth, st));
    s->io = wrapped;
    return RG_OK;
}

static rg_code alloc_turn(rg_stream *s, rg_status *st) {
    uint32_t **arrays[] = {&s->wave, &s->left, &s->ready, &s->pending, &s->failed};
    for (size_t i = 0; i < RG_ARRAY_LEN(arrays); i++) {
        *arrays[i] = rg_alloc(s->items.group_items_max, sizeof **arrays[i], st);
        if (!*arrays[i]) return RG_NOMEM;
    }
    return RG_OK;
}

static rg_code build(rg_stream *s, const rg_stream_options *o, rg_status *st) {
    const uint32_t depth = o->depth ? o->depth : DEPTH_DEFAULT;
    RG_TRY(check_options(o, st));
    RG_TRY(copy_paths(s, o, st));
    RG_TRY(rg_items_init(&s->items, o->groups, o->n_group, st));
    RG_TRY(alloc_turn(s, st));
    s->group_noun = o->group_noun ? o->group_noun : "group";
    s->item_noun = o->item_noun ? o->item_noun : "item";
    s->null_reads = o->null_reads;
    s->poison = o->poison && !o->null_reads;
#ifdef RG_DEBUG
    s->poison = !o->null_reads;
#endif
    if (o->virtual_drive) s->poison = false; /* memory that is only reserved */
    if (o->landing) {
        s->landing = *o->landing;
        s->poison = false; /* memory of a device */
    }
    RG_TRY(rg_arena_init(&s->arena, &s->items.layout, o->budget_bytes, o->memory, s->poison, st));
    const rg_cache_hooks hooks = {.user = s, .dropped = on_dropped, .recut = on_recut};
    RG_TRY(rg_cache_init(&s->cache, &s->arena, &s->items, o->policy, !o->guard_off, &hooks,
                         &s->meters, st));
    rg_readahead_init(&s->ahead, o->lookahead,
                      o->ahead_cost_permille ? o->ahead_cost_permille : COST_DEFAULT, &s->meters);
    RG_TRY(open_device(s, o, depth, st));
    const uint32_t stall_ms = o->stall_ms_max ? o->stall_ms_max : STALL_MS_DEFAULT;
    const rg_sched_config config = {
        .io = o->io ? o->io : s->io,
        .arena = &s->arena,
        .items = &s->items,
        .meters = &s->meters,
        .depth = depth,
        .reserve = o->urgent_reserve ? o->urgent_reserve : depth / 4,
        .retries_max = o->retries_max ? o->retries_max : RETRIES_DEFAULT,
        .read_bytes_max = o->read_bytes_max,
        .stall_ns = (uint64_t)stall_ms * NS_PER_MS,
        .look_ns = o->look_ns,
        .null_reads = o->null_reads,
        .threaded = !o->io && !o->virtual_drive,
        .landing = o->landing ? &s->landing : NULL,
    };
    RG_TRY(rg_sched_init(&s->sched, &config, st));
    s->has_sched = true;
    return RG_OK;
}

rg_code rg_stream_create(rg_stream **out, const rg_stream_options *options, rg_status *st) {
    *out = NULL;
    rg_stream *s = rg_alloc(1, sizeof *s, st);
    if (!s) return RG_NOMEM;
    const rg_code rc = build(s, options, st);
    if (rc != RG_OK) {
        rg_stream_destroy(s);
        return rc;
    }
    *out = s;
    return RG_OK;
}

void rg_stream_destroy(rg_stream *s) {
    if (!s) return;
    if (s->has_sched) rg_sched_deinit(&s->sched);
    rg_io_close(s->io); /* after this nothing writes into the arena */
    rg_io_files_close(&s->files);
    if (s->cache.arena) rg_cache_deinit(&s->cache);
    rg_arena_deinit(&s->arena);
    rg_items_deinit(&s->items);
    for (uint32_t i = 0; i < s->n_path; i++)
        rg_free(s->paths[i]);
    rg_free(s->paths);
    rg_free(s->wave);
    rg_free(s->left);
    rg_free(s->ready);
    rg_free(s->pending);
    rg_free(s->failed);
    rg_free(s);
}

uint32_t rg_stream_item(const rg_stream *s, uint32_t group, uint32_t index) {
    RG_ASSERT(group < s->items.n_group);
    RG_ASSERT(index < s->items.groups[group].n_item);
    return s->items.first_item[group] + index;
}

uint32_t rg_stream_group_of(const rg_stream *s, uint32_t item) {
    RG_ASSERT(item < s->items.n_item);
    return rg_items_group(&s->items, item);
}

const char *rg_stream_backend_name(const rg_stream *s) {
    return s->backend_name;
}

bool rg_stream_direct_all(const rg_stream *s) {
    return s->files.n > 0 && s->files.n_direct == s->files.n;
}

uint32_t rg_stream_slots(const rg_stream *s) {
    return s->arena.n_slab * s->arena.class_slots[s->arena.n_class - 1];
}

/* ---- waves ----------------------------------------------------------------------------------- */

/* Sorts the wave into ready and pending, in wanted order. */
static void sort_wave(rg_stream *s) {
    s->turn.n_ready = s->turn.n_pending = 0;
    for (uint32_t i = 0; i < s->n_wave; i++) {
        const uint32_t slot = rg_cache_find(&s->cache, s->wave[i]);
        RG_ASSERT(slot != RG_SLOT_NONE);
        RG_ASSERT(s->arena.slots[slot].pins > 0);
        if (rg_sched_want(&s->sched, slot))
            s->ready[s->turn.n_ready++] = s->wave[i];
        else
            s->pending[s->turn.n_pending++] = s->wave[i];
    }
    s->turn.ready = s->ready;
    s->turn.pending = s->pending;
    s->turn.n_left = s->n_left;
}

/* Pins what the directory holds of items[n]; then claims slots for the others while there are any.
 * The wave keeps the wanted order: held[i] tells the two kinds apart by their slots. */
static void fill_wave(rg_stream *s, const uint32_t *items, uint32_t n) {
    uint32_t hits = 0, misses = 0;
    bool full = false;
    s->n_wave = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t slot = rg_cache_find(&s->cache, items[i]);
        if (slot == RG_SLOT_NONE) continue;
        rg_cache_use(&s->cache, slot);
        hits++;
    }
    uint32_t n_left = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t item = items[i]; /* read before left[] is written: they may be one array */
        uint32_t slot = rg_cache_find(&s->cache, item);
        if (slot == RG_SLOT_NONE && !full) {
            slot = rg_cache_claim(&s->cache, item, RG_CLAIM_MISS, 0);
            full = slot == RG_SLOT_NONE;
            if (!full) {
                rg_sched_read(&s->sched, slot, item, RG_READ_URGENT);
                misses++;
            }
        }
        if (slot != RG_SLOT_NONE)
            s->wave[s->n_wave++] = item;
        else
            s->left[n_left++] = item;
    }
    s->n_left = n_left;
    if (s->null_reads) { /* everything wanted counts as resident */
        hits += misses;
        misses = 0;
    }
    s->turn.n_hit = hits;
    s->meters.hits += hits;
    s->meters.misses += misses;
    sort_wave(s);
    if (s->turn.n_pending > misses) s->meters.late += s->turn.n_pending - misses;
    RG_DASSERT(rg_cache_is_valid(&s->cache));
    RG_DASSERT(rg_sched_is_valid(&s->sched));
}

/* Unpins the wave. Slots get the fence of their readers. */
static void close_wave(rg_stream *s, uint64_t fence) {
    for (uint32_t i = 0; i < s->n_wave; i++) {
        const uint32_t slot = rg_cache_find(&s->cache, s->wave[i]);
        RG_ASSERT(slot != RG_SLOT_NONE);
        rg_sched_unwant(&s->sched, slot);
        if (fence) rg_sched_fence(&s->sched, slot, fence);
        rg_arena_unpin(&s->arena, slot);
    }
    s->n_wave = 0;
}

/* Failed items leave; a slot whose read is still out stays away from everyone. */
static void drop_failed(rg_stream *s) {
    for (uint32_t i = 0; i < s->n_failed; i++) {
        const uint32_t slot = rg_cache_find(&s->cache, s->failed[i]);
        RG_ASSERT(slot != RG_SLOT_NONE);
        rg_cache_drop(&s->cache, slot, rg_sched_is_lost(&s->sched, slot));
    }
    s->n_failed = 0;
}

/* Slots whose lost reads came back after all. */
static void find_lost(rg_stream *s) {
    for (uint32_t slot = s->arena.lost.head, next; slot != RG_SLOT_NONE; slot = next) {
        next = s->arena.slots[slot].next;
        if (!rg_sched_is_lost(&s->sched, slot)) rg_arena_find(&s->arena, slot);
    }
}

static rg_code no_slot(const rg_stream *s, uint32_t group, rg_status *st) {
    return rg_fail(st, RG_IO,
                   "%s %u: no slot for its %ss, %u of %u are lost to reads without answer",
                   s->group_noun, group, s->item_noun, s->arena.lost.count, s->arena.n_slot);
}

/* ---- turns ----------------------------------------------------------------------------------- */

rg_code rg_stream_begin(rg_stream *s, uint32_t group, const uint32_t *items, uint32_t n,
                        rg_stream_mode mode, const rg_turn **turn, rg_status *st) {
    RG_ASSERT(!s->in_turn);
    RG_ASSERT(group < s->items.n_group);
    RG_ASSERT(n > 0 && n <= s->items.groups[group].n_item);
    *turn = NULL;
    rg_sched_lock(&s->sched);
    find_lost(s);
    s->sched.decode = mode == RG_MODE_DECODE;
    rg_cache_begin(&s->cache, group, items, n);
    if (mode == RG_MODE_DECODE) rg_readahead_judge(&s->ahead, &s->cache, group);
    s->turn = (rg_turn){0};
    fill_wave(s, items, n);
    rg_sched_pump(&s->sched);
    if (s->n_wave == 0) rg_cache_end(&s->cache);
    rg_sched_unlock(&s->sched);
    if (s->n_wave == 0) return no_slot(s, group, st);
    s->in_turn = true;
    *turn = &s->turn;
    return RG_OK;
}

bool rg_stream_wave_next(rg_stream *s, uint64_t fence, rg_status *st) {
    RG_ASSERT(s->in_turn);
    if (s->n_left == 0) return false;
    rg_sched_lock(&s->sched);
    close_wave(s, fence);
    drop_failed(s);
    s->turn.wave++;
    s->meters.waves++;
    fill_wave(s, s->left, s->n_left);
    rg_sched_pump(&s->sched);
    rg_sched_unlock(&s->sched);
    if (s->n_wave > 0) return true;
    (void)no_slot(s, s->cache.group_turn, st);
    return false;
}

void rg_stream_end(rg_stream *s, uint64_t fence) {
    RG_ASSERT(s->in_turn);
    rg_sched_lock(&s->sched);
    close_wave(s, fence);
    drop_failed(s);
    rg_cache_end(&s->cache);
    rg_sched_pump(&s->sched);
    rg_sched_unlock(&s->sched);
    s->n_left = 0;
    s->in_turn = false;
}

void rg_stream_retire(rg_stream *s, uint64_t fence) {
    rg_sched_lock(&s->sched);
    rg_sched_retire(&s->sched, fence);
    rg_sched_unlock(&s->sched);
}

/* One line: file, where, whose, and the numbers that disagree. */
static rg_code read_failed(const rg_stream *s, uint32_t item, const rg_read_error *e,
                           rg_status *st) {
    const uint32_t group = rg_items_group(&s->items, item);
    const char *path = e->file < s->n_path ? s->paths[e->file] : "?";
    char who[96];
    snprintf(who, sizeof who, "%s %u %s %u", s->group_noun, group, s->item_noun,
             rg_items_index(&s->items, item));
    const unsigned long long at = e->offset, got = e->got, want = e->want;
    switch ((rg_read_fault)e->kind) {
    case RG_FAULT_ERRNO:
        return rg_fail_errno(st, RG_IO, e->sys_errno, "%s: %s: reading %llu bytes at %llu", path,
                             who, want, at);
    case RG_FAULT_END:
        return rg_fail(st, RG_FORMAT, "%s: %s: the file ends %llu bytes after %llu, %llu wanted",
                       path, who, got, at, want);
    case RG_FAULT_CHECKSUM:
        return rg_fail(st, RG_FORMAT, "%s: %s at %llu: checksum %016llx, should be %016llx", path,
                       who, at, got, want);
    case RG_FAULT_LOST:
        return rg_fail(st, RG_TIMEOUT, "%s: %s: no answer for %llu bytes at %llu in %llu ms", path,
                       who, want, at, (unsigned long long)(s->sched.cfg.stall_ns / NS_PER_MS));
    case RG_FAULT_LANDING: /* the reason is written once, before the first read fails of it */
        return rg_fail(st, s->sched.landing_failed.code, "%s cannot be copied to its slot: %s", who,
                       s->sched.landing_failed.message);
    case RG_FAULT_NONE:
        break;
    }
    return rg_fail(st, RG_BUG, "%s: %s failed without a reason", path, who);
}

rg_code rg_stream_wait(rg_stream *s, uint32_t *item, rg_status *st) {
    RG_ASSERT(s->in_turn);
    RG_ASSERT(s->turn.n_pending > 0);
    uint32_t slot;
    rg_read_error error = {0};
    const bool good = rg_sched_wait(&s->sched, &slot, &error);
    *item = s->arena.slots[slot].item;
    RG_ASSERT(s->arena.slots[slot].pins > 0);
    if (good) return RG_OK;
    RG_ASSERT(s->n_failed < s->items.group_items_max);
    s->failed[s->n_failed++] = *item;
    return read_failed(s, *item, &error, st);
}

bool rg_stream_arrived(rg_stream *s) {
    RG_ASSERT(s->in_turn);
    return rg_sched_arrived(&s->sched);
}

const void *rg_stream_payload(const rg_stream *s, uint32_t item, uint32_t extent) {
    const uint32_t slot = rg_cache_find(&s->cache, item);
    RG_ASSERT(slot != RG_SLOT_NONE);
    RG_ASSERT(s->arena.slots[slot].pins > 0);
    /* Without reads the bytes are those of an item of the same shape, where that one has them. */
    const uint32_t filled = s->null_reads ? s->sched.reads[slot].filled : item;
    rg_item_part parts[RG_STREAM_EXTENTS_MAX];
    const uint32_t n = rg_items_parts(&s->items, filled, parts);
    RG_ASSERT(extent < n);
    return (const char *)rg_arena_data(&s->arena, slot) + parts[extent].slot_offset +
           parts[extent].payload_skip;
}

uint64_t rg_stream_ticket(rg_stream *s, uint32_t item) {
    const uint32_t slot = rg_cache_find(&s->cache, item);
    RG_ASSERT(slot != RG_SLOT_NONE);
    RG_ASSERT(s->arena.slots[slot].pins > 0);
    rg_sched_lock(&s->sched);
    RG_ASSERT(s->sched.reads[slot].phase == RG_PHASE_DONE);
    const uint64_t ticket = s->sched.reads[slot].ticket;
    rg_sched_unlock(&s->sched);
    return ticket;
}

/* ---- between turns --------------------------------------------------------------------------- */

/* Claims and queues one guess; false when there was no slot for it. */
static bool guess(rg_stream *s, uint32_t item, uint32_t rank, rg_stream_mode mode) {
    const rg_claim_kind kind = mode != RG_MODE_DECODE                 ? RG_CLAIM_GUESS_PREFILL
                               : rg_readahead_trusts(&s->ahead, rank) ? RG_CLAIM_GUESS_TRUSTED
                                                                      : RG_CLAIM_GUESS;
    const uint32_t slot = rg_cache_claim(&s->cache, item, kind, rank);
    if (slot == RG_SLOT_NONE) {
        s->meters.ahead_refused++;
        return false;
    }
    rg_sched_read(&s->sched, slot, item, RG_READ_AHEAD);
    return true;
}

uint32_t rg_stream_ahead(rg_stream *s, uint32_t group, const uint32_t *items, uint32_t n,
                         uint32_t cap, rg_stream_mode mode) {
    RG_ASSERT(group < s->items.n_group);
    RG_ASSERT(n == 0 || items);
    if (s->in_turn && group == s->cache.group_turn) return 0; /* a model of one layer */
    rg_sched_lock(&s->sched);
    rg_cache_expect(&s->cache, group);
    uint32_t most = cap < n ? cap : n, queued = 0;
    if (mode == RG_MODE_DECODE) {
        rg_readahead_note(&s->ahead, &s->cache, group, items, n);
        if (s->ahead.depth < most) most = s->ahead.depth;
    }
    for (uint32_t i = 0; i < most && !s->null_reads; i++) {
        RG_ASSERT(rg_items_group(&s->items, items[i]) == group);
        if (rg_cache_find(&s->cache, items[i]) == RG_SLOT_NONE && guess(s, items[i], i, mode))
            queued++;
    }
    rg_sched_pump(&s->sched);
    rg_sched_unlock(&s->sched);
    return queued;
}

bool rg_stream_wants_guesses(const rg_stream *s, uint32_t group, rg_stream_mode mode) {
    if (rg_cache_is_whole(&s->cache, group)) return false;
    if (mode != RG_MODE_DECODE || s->ahead.depth > 0) return true;
    return !s->ahead.fixed && s->cache.window % GUESS_PERIOD == 0;
}

void rg_stream_touch(rg_stream *s, const uint32_t *items, uint32_t n) {
    RG_ASSERT(!s->in_turn);
    RG_ASSERT(n == 0 || items);
    rg_cache_touch(&s->cache, items, n);
    rg_readahead_token(&s->ahead);
}

uint32_t rg_stream_lookahead(const rg_stream *s) {
    return s->ahead.depth;
}

uint32_t rg_stream_warm(rg_stream *s, const uint32_t *items, uint32_t n) {
    RG_ASSERT(n == 0 || items);
    uint32_t taken = 0;
    rg_sched_lock(&s->sched);
    for (uint32_t i = 0; i < n; i++) {
        if (rg_cache_find(&s->cache, items[i]) != RG_SLOT_NONE) continue;
        const uint32_t slot = rg_cache_claim(&s->cache, items[i], RG_CLAIM_WARM, 0);
        if (slot == RG_SLOT_NONE) continue; /* another class may have room */
        rg_sched_read(&s->sched, slot, items[i], RG_READ_WARM);
        taken++;
    }
    rg_sched_pump(&s->sched);
    rg_sched_unlock(&s->sched);
    return taken;
}

bool rg_stream_holds(const rg_stream *s, uint32_t item) {
    return rg_cache_find(&s->cache, item) != RG_SLOT_NONE;
}

void rg_stream_clear(rg_stream *s) {
    RG_ASSERT(!s->in_turn);
    rg_sched_lock(&s->sched);
    rg_cache_clear(&s->cache);
    rg_sched_unlock(&s->sched);
}

void rg_stream_advance(rg_stream *s, uint64_t ns) {
    RG_ASSERT(!s->sched.cfg.threaded);
    const uint64_t until = rg_stream_now_ns(s) + ns;
    for (uint64_t now = until - ns; now < until; now = rg_stream_now_ns(s))
        rg_sched_step(&s->sched, until - now);
}

uint64_t rg_stream_now_ns(const rg_stream *s) {
    return s->sched.cfg.io->vtable->now_ns(s->sched.cfg.io);
}

/* ---- meters ---------------------------------------------------------------------------------- */

void rg_stream_meters_get(const rg_stream *s, rg_stream_meters *out) {
    rg_sched *sched = (rg_sched *)(uintptr_t)&s->sched; /* the lock is not part of what is const */
    rg_sched_lock(sched);
    *out = s->meters;
    if (s->sched.n_flying) { /* the stretch that is still going on */
        out->busy_ns += s->sched.cfg.io->vtable->now_ns(s->sched.cfg.io) - s->sched.busy_since_ns;
    }
    out->arena_bytes = s->arena.n_slab * s->arena.slab_bytes;
    out->arena_peak_bytes = s->arena.peak_bytes;
    out->slots_lost = s->arena.lost.count;
    out->slots_used = 0;
    for (uint32_t b = 0; b < s->arena.n_cut; b++)
        out->slots_used += s->arena.slabs[b].n_held;
    rg_sched_unlock(sched);
}

void rg_stream_meters_reset(rg_stream *s) {
    rg_sched_lock(&s->sched);
    s->meters = (rg_stream_meters){0};
    s->arena.peak_bytes = s->arena.used_bytes;
    s->sched.busy_since_ns = s->sched.cfg.io->vtable->now_ns(s->sched.cfg.io);
    rg_sched_unlock(&s->sched);
}
