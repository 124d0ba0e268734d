/* The world of the simulator. Production code: everything in src/stream. Ours: the data (a byte is
 * a function of file and offset), the workload, and the checks, which look inside.
 *
 * Checked: every read is answered once and lands in a slot nobody reads and no other read fills; a
 * pinned item stays where it is; no read-ahead is handed over while an urgent read waits; reads in
 * flight within the depth; a wait ends within a number of ticks; bytes equal the data wherever the
 * data's checksum, or the absence of flips, promises it; an error only for an item that a fault
 * hit; the structures' own validity at every tick.
 */
#include "sim/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "stream/io_virtual.h"
#include "stream/stream_state.h"

#define FILES      3u
#define GROUPS_MAX 6u
#define ITEMS_MAX  48u /* of a group */
#define BLOB_BYTES (1u << 20)
#define RANGES_MAX 2048u
#define TICKS_MAX  400000u /* of one wait */
#define STALL_NS   50000000u
#define FENCES_MAX 64u

typedef struct range {
    const char *begin, *end;
    uint64_t fence; /* 0: pinned */
} range;

typedef struct world {
    uint64_t seed, draws;
    rg_sim_drive drive;
    rg_sim_report *report;
    rg_stream *stream;
    rg_io *io;
    rg_stream_group groups[GROUPS_MAX];
    uint64_t *checksums; /* [GROUPS_MAX][ITEMS_MAX] */
    uint64_t file_bytes[FILES];
    uint32_t n_group, n_used, depth;
    bool flips, fences;
    bool hit_by_fault[GROUPS_MAX * ITEMS_MAX];
    bool stalled; /* a read stalled or vanished */
    range ranges[RANGES_MAX];
    uint32_t n_range;
    uint64_t fence, retired;
    uint64_t ticks_wait;
    /* The window. */
    uint32_t wanted[GROUPS_MAX][ITEMS_MAX];
    uint32_t n_wanted[GROUPS_MAX];
    uint32_t touched[GROUPS_MAX * ITEMS_MAX * 2];
    uint32_t n_touched;
} world;

static unsigned char *blob; /* [BLOB_BYTES + 64 KiB], made once */

#define CHECK(w, cond)                                                                             \
    do {                                                                                           \
        if (!(cond)) broken((w), #cond, __LINE__);                                                 \
    } while (0)

static _Noreturn void broken(const world *w, const char *what, int line) {
    fprintf(stderr, "sim: seed %llu drive %d: line %d: %s\n", (unsigned long long)w->seed,
            (int)w->drive, line, what);
    exit(1);
}

/* The workload's draws never depend on the drive. */
static uint32_t pick(world *w, uint32_t bound) {
    return (uint32_t)(rg_random_u64(w->seed, w->draws++) % bound);
}

static bool once_in(world *w, uint32_t n) {
    return pick(w, n) == 0;
}

/* ---- data ------------------------------------------------------------------------------------ */

static void make_blob(void) {
    if (blob) return;
    blob = rg_alloc(BLOB_BYTES, 1, NULL);
    if (!blob) exit(1);
    for (uint32_t i = 0; i < BLOB_BYTES; i += 8) {
        const uint64_t x = rg_random_u64(4711, i);
        memcpy(blob + i, &x, sizeof x);
    }
}

static void data_at(uint32_t file, uint64_t offset, void *dst, uint64_t bytes) {
    char *out = dst;
    while (bytes > 0) {
        const uint64_t at = (offset + file * 77773u) % BLOB_BYTES;
        const uint64_t n = bytes < BLOB_BYTES - at ? bytes : BLOB_BYTES - at;
        memcpy(out, blob + at, (size_t)n);
        out += n;
        offset += n;
        bytes -= n;
    }
}

static bool data_equals(uint32_t file, uint64_t offset, const void *got, uint64_t bytes) {
    const char *p = got;
    while (bytes > 0) {
        const uint64_t at = (offset + file * 77773u) % BLOB_BYTES;
        const uint64_t n = bytes < BLOB_BYTES - at ? bytes : BLOB_BYTES - at;
        if (memcmp(p, blob + at, (size_t)n) != 0) return false;
        p += n;
        offset += n;
        bytes -= n;
    }
    return true;
}

static void sum_group(world *w, uint32_t g) {
    rg_stream_group *group = &w->groups[g];
    XXH3_state_t *state = XXH3_createState();
    char buffer[16384];
    if (!state) exit(1);
    for (uint32_t i = 0; i < group->n_item; i++) {
        XXH3_64bits_reset(state);
        for (uint32_t e = 0; e < group->n_extent; e++) {
            const rg_stream_extent *x = &group->extents[e];
            CHECK(w, x->bytes <= sizeof buffer);
            data_at(x->file, x->offset + i * x->stride, buffer, x->bytes);
            XXH3_64bits_update(state, buffer, x->bytes);
        }
        w->checksums[g * ITEMS_MAX + i] = XXH3_64bits_digest(state);
    }
    XXH3_freeState(state);
    group->checksums = w->checksums + g * ITEMS_MAX;
}

static void make_group(world *w, uint32_t g, bool pack, uint32_t bytes) {
    rg_stream_group *group = &w->groups[g];
    *group = (rg_stream_group){.n_item = 4 + pick(w, ITEMS_MAX - 4)};
    group->n_extent = pack ? 1 : 1 + pick(w, RG_STREAM_EXTENTS_MAX);
    for (uint32_t e = 0; e < group->n_extent; e++) {
        rg_stream_extent *x = &group->extents[e];
        x->file = pick(w, FILES);
        x->bytes = bytes + pick(w, 3) * 7;
        x->stride = pack ? (x->bytes + 4095u) & ~4095u : x->bytes + (once_in(w, 2) ? 0 : 32u);
        uint64_t at = w->file_bytes[x->file] + pick(w, 5000);
        if (pack) at = (at + 4095) & ~(uint64_t)4095;
        x->offset = at;
        w->file_bytes[x->file] = at + x->stride * (group->n_item - 1) + x->bytes;
    }
}

static void make_model(world *w) {
    w->n_group = 1 + pick(w, GROUPS_MAX);
    w->n_used = 1 + pick(w, 4);
    const bool pack = once_in(w, 3), mixed = once_in(w, 2);
    uint32_t bytes = 300 + pick(w, 9000);
    for (uint32_t f = 0; f < FILES; f++)
        w->file_bytes[f] = pick(w, 9000);
    for (uint32_t g = 0; g < w->n_group; g++) {
        make_group(w, g, pack, bytes);
        if (mixed && once_in(w, 2)) bytes = 300 + pick(w, 12000);
    }
    w->flips = w->drive == RG_SIM_HARD && once_in(w, 2);
    if (w->flips || once_in(w, 2))
        for (uint32_t g = 0; g < w->n_group; g++)
            sum_group(w, g);
}

/* ---- checks ---------------------------------------------------------------------------------- */

static const rg_job *job_of(const world *w, const rg_io_op *op) {
    const rg_job *job = &w->stream->sched.jobs[op->tag >> 8];
    CHECK(w, op->tag >> 8 < w->stream->sched.job_cap && job->slot != RG_SLOT_NONE);
    return job;
}

static void on_submitting(void *user, const rg_io_op *ops, uint32_t n) {
    world *w = user;
    const rg_sched *s = &w->stream->sched;
    const bool urgent_waits = s->urgent_blocked > 0 || s->lists[1].count > 0;
    CHECK(w, s->n_flying <= w->depth);
    for (uint32_t i = 0; i < n; i++) {
        const rg_job *job = job_of(w, &ops[i]);
        const char *begin = ops[i].dst, *end = begin + ops[i].bytes;
        CHECK(w, job->cls == RG_READ_URGENT || !urgent_waits);
        CHECK(w, !job->orphan);
        CHECK(w, begin >= w->stream->arena.memory);
        CHECK(w, (uint64_t)(end - w->stream->arena.memory) <=
                     w->stream->arena.n_slab * w->stream->arena.slab_bytes);
        CHECK(w, (uintptr_t)begin % RG_STREAM_ALIGN == 0 && ops[i].offset % RG_STREAM_ALIGN == 0);
        for (uint32_t r = 0; r < w->n_range; r++) {
            const range *x = &w->ranges[r];
            const bool read_now = x->fence == 0 || x->fence > w->retired;
            CHECK(w, !read_now || end <= x->begin || begin >= x->end);
        }
        /* No two reads fill one slot. */
        for (uint32_t j = 0; j < s->job_cap; j++) {
            const rg_job *other = &s->jobs[j];
            if (other == job || other->slot == RG_SLOT_NONE || other->n_flying == 0) continue;
            for (uint32_t p = 0; p < other->n_piece; p++) {
                const char *b = other->data + other->pieces[p].slot_offset;
                CHECK(w, end <= b || begin >= b + other->pieces[p].bytes);
            }
        }
    }
}

static void on_fill(void *user, const rg_io_op *op, uint64_t bytes) {
    (void)user;
    data_at(op->file, op->offset, op->dst, bytes);
}

static void on_fault(void *user, const rg_io_op *op, rg_virtual_fault fault) {
    world *w = user;
    if (fault == RG_VIRTUAL_STALL || fault == RG_VIRTUAL_VANISH) w->stalled = true;
    if (fault == RG_VIRTUAL_EIO || fault == RG_VIRTUAL_FLIP)
        w->hit_by_fault[job_of(w, op)->item] = true;
}

static void retire_one(world *w) {
    if (w->retired >= w->fence) return;
    w->retired++;
    rg_stream_retire(w->stream, w->retired);
    uint32_t n = 0;
    for (uint32_t r = 0; r < w->n_range; r++)
        if (w->ranges[r].fence == 0 || w->ranges[r].fence > w->retired)
            w->ranges[n++] = w->ranges[r];
    w->n_range = n;
}

static void on_tick(void *user) {
    world *w = user;
    w->report->n_tick++;
    CHECK(w, ++w->ticks_wait < TICKS_MAX);
    CHECK(w, rg_cache_is_valid(&w->stream->cache));
    CHECK(w, rg_sched_is_valid(&w->stream->sched));
    /* Device readers finish at their own time; no draw, so that the workload's draws stay. */
    if (w->report->n_tick % 3 == 0) retire_one(w);
}

static void note_logic(world *w, uint64_t x) {
    w->report->logic_hash = rg_random_u64(w->report->logic_hash, x);
}

/* What the directory holds. */
static void note_directory(world *w) {
    for (uint32_t i = 0; i < w->stream->items.n_item; i++)
        note_logic(w, (uint64_t)i << 1 | rg_stream_holds(w->stream, i));
    note_logic(w, rg_stream_lookahead(w->stream));
    CHECK(w, rg_cache_is_valid(&w->stream->cache));
    CHECK(w, rg_sched_is_valid(&w->stream->sched));
}

static void check_bytes(world *w, uint32_t item) {
    const uint32_t g = rg_stream_group_of(w->stream, item);
    const uint32_t index = item - rg_stream_item(w->stream, g, 0);
    for (uint32_t e = 0; e < w->groups[g].n_extent; e++) {
        const rg_stream_extent *x = &w->groups[g].extents[e];
        const char *p = rg_stream_payload(w->stream, item, e);
        CHECK(w, (uintptr_t)p % 4096 == (x->offset + index * x->stride) % 4096);
        CHECK(w, data_equals(x->file, x->offset + index * x->stride, p, x->bytes));
        CHECK(w, w->n_range < RANGES_MAX);
        w->ranges[w->n_range++] = (range){p, p + x->bytes, 0};
    }
}

/* ---- workload -------------------------------------------------------------------------------- */

static bool contains(const uint32_t *list, uint32_t n, uint32_t item) {
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == item) return true;
    return false;
}

/* Skewed towards low items, and towards what was wanted last. */
static void choose_wanted(world *w, uint32_t g, bool prefill) {
    const uint32_t n_item = w->groups[g].n_item;
    uint32_t old[ITEMS_MAX];
    const uint32_t n_old = w->n_wanted[g];
    memcpy(old, w->wanted[g], sizeof old);
    uint32_t n = prefill ? 1 + pick(w, n_item) : w->n_used * (1 + pick(w, 3));
    if (n > n_item) n = n_item;
    w->n_wanted[g] = 0;
    for (uint32_t tries = 0; w->n_wanted[g] < n && tries < 400; tries++) {
        uint32_t index = pick(w, 1 + pick(w, n_item));
        uint32_t item = rg_stream_item(w->stream, g, index);
        if (n_old > 0 && once_in(w, 2)) item = old[pick(w, n_old)];
        if (!contains(w->wanted[g], w->n_wanted[g], item)) w->wanted[g][w->n_wanted[g]++] = item;
    }
}

static void read_ahead(world *w, uint32_t g, bool prefill) {
    uint32_t guesses[ITEMS_MAX], n = 0;
    const uint32_t most = 1 + pick(w, w->groups[g].n_item);
    for (uint32_t tries = 0; n < most && tries < 100; tries++) {
        uint32_t item = rg_stream_item(w->stream, g, pick(w, w->groups[g].n_item));
        if (!once_in(w, 3)) item = w->wanted[g][pick(w, w->n_wanted[g])];
        if (!contains(guesses, n, item)) guesses[n++] = item;
    }
    const uint32_t cap = once_in(w, 2) ? UINT32_MAX : pick(w, 12);
    note_logic(w, rg_stream_ahead(w->stream, g, guesses, n, cap,
                                  prefill ? RG_MODE_PREFILL : RG_MODE_DECODE));
    note_directory(w);
}

static void take_error(world *w, uint32_t item, const rg_status *st) {
    const uint32_t g = rg_stream_group_of(w->stream, item);
    char name[64];
    snprintf(name, sizeof name, "layer %u expert %u", g, item - rg_stream_item(w->stream, g, 0));
    if (w->drive != RG_SIM_HARD) fprintf(stderr, "%s\n", st->message);
    CHECK(w, w->drive == RG_SIM_HARD);
    CHECK(w, strstr(st->message, name) && strstr(st->message, "file"));
    if (st->code == RG_TIMEOUT)
        CHECK(w, w->stalled);
    else
        CHECK(w, w->hit_by_fault[item]);
    CHECK(w, st->code != RG_BUG);
    w->report->n_error++;
}

/* One wave; false when the engine gives the turn up. */
static bool run_wave(world *w, const rg_turn *turn, uint32_t ahead_group, bool prefill) {
    uint64_t members = 0; /* a sum: which of them are ready depends on time */
    for (uint32_t i = 0; i < turn->n_ready; i++) {
        members += rg_random_u64(1, turn->ready[i]);
        check_bytes(w, turn->ready[i]);
    }
    for (uint32_t i = 0; i < turn->n_pending; i++)
        members += rg_random_u64(1, turn->pending[i]);
    note_logic(w, members);
    note_logic(w, turn->n_hit);
    note_logic(w, turn->n_left);
    if (ahead_group != RG_GROUP_NONE) read_ahead(w, ahead_group, prefill);
    const bool give_up = once_in(w, 40);
    const uint32_t stop = give_up ? pick(w, turn->n_ready + turn->n_pending + 1) : UINT32_MAX;
    bool seen[GROUPS_MAX * ITEMS_MAX] = {false};
    for (uint32_t i = 0; i < turn->n_pending; i++) {
        rg_status st = {0};
        uint32_t item;
        if (i >= stop) break;
        w->ticks_wait = 0;
        const rg_code rc = rg_stream_wait(w->stream, &item, &st);
        CHECK(w, contains(turn->pending, turn->n_pending, item) && !seen[item]);
        seen[item] = true;
        if (rc == RG_OK)
            check_bytes(w, item);
        else
            take_error(w, item, &st);
    }
    CHECK(w, give_up || !rg_stream_arrived(w->stream));
    if (give_up) w->report->n_abandoned++;
    return !give_up;
}

/* What the wave read is free to be refilled, now or when the fence retires. */
static void leave_wave(world *w, uint64_t fence) {
    uint32_t n = 0;
    for (uint32_t r = 0; r < w->n_range; r++) {
        if (w->ranges[r].fence == 0) {
            if (!fence) continue;
            w->ranges[r].fence = fence;
        }
        w->ranges[n++] = w->ranges[r];
    }
    w->n_range = n;
}

static uint64_t next_fence(world *w) {
    if (!w->fences || w->n_range > RANGES_MAX - 4 * ITEMS_MAX) return 0;
    while (w->fence - w->retired >= FENCES_MAX)
        retire_one(w);
    return ++w->fence;
}

static void run_turn(world *w, uint32_t g, bool prefill) {
    const rg_turn *turn;
    rg_status st = {0};
    const uint32_t next = (g + 1) % w->n_group;
    uint32_t ahead = once_in(w, 4) ? RG_GROUP_NONE : next;
    w->report->n_turn++;
    if (rg_stream_begin(w->stream, g, w->wanted[g], w->n_wanted[g],
                        prefill ? RG_MODE_PREFILL : RG_MODE_DECODE, &turn, &st) != RG_OK) {
        CHECK(w, w->drive == RG_SIM_HARD && w->stalled && st.code == RG_IO);
        w->report->n_error++;
        return;
    }
    for (bool more = true; more;) {
        more = run_wave(w, turn, ahead, prefill);
        ahead = RG_GROUP_NONE;
        if (!more || turn->n_left == 0) break;
        const uint64_t fence = next_fence(w);
        leave_wave(w, fence);
        more = rg_stream_wave_next(w->stream, fence, &st);
        CHECK(w, more || (w->drive == RG_SIM_HARD && st.code == RG_IO));
        w->report->n_wave++;
        note_directory(w);
    }
    const uint64_t fence = next_fence(w);
    leave_wave(w, fence);
    rg_stream_end(w->stream, fence);
    note_directory(w);
}

static void close_window(world *w) {
    const uint32_t rejected = once_in(w, 2) ? 0 : pick(w, 4);
    w->n_touched = 0;
    for (uint32_t g = 0; g < w->n_group; g++) {
        for (uint32_t i = 0; i < w->n_wanted[g]; i++) {
            if (rejected && pick(w, 4) < rejected) continue;
            w->touched[w->n_touched++] = w->wanted[g][i];
            if (once_in(w, 4)) w->touched[w->n_touched++] = w->wanted[g][i];
        }
    }
    rg_stream_touch(w->stream, w->touched, once_in(w, 30) ? 0 : w->n_touched);
    note_directory(w);
}

static void run_window(world *w) {
    const bool prefill = once_in(w, 4);
    for (uint32_t g = 0; g < w->n_group; g++)
        choose_wanted(w, g, prefill);
    for (uint32_t g = 0; g < w->n_group; g++) {
        w->ticks_wait = 0;
        if (once_in(w, 2)) rg_stream_advance(w->stream, pick(w, 2000000));
        run_turn(w, g, prefill);
    }
    close_window(w);
    if (once_in(w, 20)) rg_stream_clear(w->stream);
    if (once_in(w, 10)) {
        uint32_t items[ITEMS_MAX];
        const uint32_t n = 1 + pick(w, ITEMS_MAX);
        for (uint32_t i = 0; i < n; i++)
            items[i] = pick(w, w->stream->items.n_item);
        note_logic(w, rg_stream_warm(w->stream, items, n));
    }
    note_directory(w);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void set_faults(world *w, rg_virtual_config *c) {
    if (w->drive == RG_SIM_INSTANT) return;
    c->drive.latency_ns = 1000 + pick(w, 300000);
    c->drive.bytes_per_s = once_in(w, 4) ? 0 : 100000000u + pick(w, 2000000000u);
    c->drive.tail_permille = once_in(w, 2) ? pick(w, 500) : 0;
    c->drive.tail_ns = pick(w, 10000000);
    c->stall_ns = pick(w, 5000000);
    uint32_t *permille = c->fault_permille;
    if (once_in(w, 2)) permille[RG_VIRTUAL_SHORT] = pick(w, 300);
    if (once_in(w, 2)) permille[RG_VIRTUAL_TRANSIENT] = pick(w, 300);
    if (once_in(w, 2)) permille[RG_VIRTUAL_REFUSE] = pick(w, 500);
    if (once_in(w, 2)) permille[RG_VIRTUAL_STALL] = pick(w, 100);
    if (w->drive != RG_SIM_HARD) return;
    if (once_in(w, 2)) permille[RG_VIRTUAL_EIO] = pick(w, 600);
    if (w->flips) permille[RG_VIRTUAL_FLIP] = pick(w, 600);
    if (once_in(w, 2)) c->stall_ns = STALL_NS / 2 + pick(w, 2 * STALL_NS);
    if (once_in(w, 3)) permille[RG_VIRTUAL_VANISH] = 1 + pick(w, 15);
}

static void open_stream(world *w) {
    static const char *const paths[FILES] = {"file-a", "file-b", "file-c"};
    rg_stream_layout layout;
    rg_status st = {0};
    CHECK(w, rg_stream_layout_of(&layout, w->groups, w->n_group, &st) == RG_OK);
    const uint64_t least = rg_stream_min_bytes(&layout, w->n_used);
    uint64_t budget = least;
    if (!once_in(w, 4)) budget += (layout.slot_bytes_all * pick(w, 1100)) / 1000;
    rg_stream_options o = {.paths = paths,
                           .n_file = FILES,
                           .groups = w->groups,
                           .n_group = w->n_group,
                           .group_noun = "layer",
                           .item_noun = "expert",
                           .budget_bytes = budget,
                           .poison = true,
                           .stall_ms_max = STALL_NS / 1000000};
    o.depth = w->depth = 1 + pick(w, 24);
    o.urgent_reserve = w->depth > 2 ? 1 + pick(w, w->depth / 2) : 0;
    o.read_bytes_max = once_in(w, 2) ? 0 : 4096 * (1 + pick(w, 4));
    o.retries_max = 1 + pick(w, 4);
    o.policy = (rg_stream_policy)pick(w, RG_POLICY_COUNT);
    o.guard_off = once_in(w, 3);
    o.lookahead = once_in(w, 2) ? -1 : (int32_t)pick(w, 12);
    w->fences = once_in(w, 3);
    /* The drive's own draws come last, so that all drives see one workload. */
    const uint64_t draws = w->draws;
    rg_virtual_config c = {.drive = {.seed = w->seed ^ 0xD215E},
                           .depth = w->depth,
                           .file_bytes = w->file_bytes,
                           .hooks = {w, on_submitting, on_fill, on_fault, on_tick}};
    w->draws = 1u << 30;
    set_faults(w, &c);
    w->draws = draws;
    CHECK(w, rg_io_virtual_open(&w->io, &c, &st) == RG_OK);
    o.io = w->io;
    CHECK(w, rg_stream_create(&w->stream, &o, &st) == RG_OK);
}

/* Everything that is not lost lands. */
static void drain(world *w) {
    while (w->retired < w->fence)
        retire_one(w);
    for (uint32_t i = 0; i < 64; i++) {
        w->ticks_wait = 0;
        rg_stream_advance(w->stream, 4u * STALL_NS);
    }
    w->report->backlog = rg_io_virtual_in_flight(w->io);
    CHECK(w, w->report->backlog == 0 || w->stalled);
    if (w->report->backlog == 0) CHECK(w, w->stream->sched.n_job == 0);
    rg_stream_meters_get(w->stream, &w->report->meters);
    CHECK(w, w->report->meters.arena_peak_bytes <= w->report->meters.arena_bytes);
    CHECK(w, w->report->meters.in_flight_peak <= w->depth);
}

void rg_sim_run(uint64_t seed, rg_sim_drive drive, rg_sim_report *report) {
    make_blob();
    world *w = rg_alloc(1, sizeof *w, NULL);
    if (!w) exit(1);
    *report = (rg_sim_report){0};
    *w = (world){.seed = seed, .drive = drive, .report = report};
    w->checksums = rg_alloc(GROUPS_MAX * ITEMS_MAX, sizeof *w->checksums, NULL);
    if (!w->checksums) exit(1);
    make_model(w);
    open_stream(w);
    const uint32_t n_window = 4 + pick(w, 12);
    for (uint32_t i = 0; i < n_window; i++)
        run_window(w);
    drain(w);
    rg_stream_destroy(w->stream);
    rg_io_close(w->io);
    rg_free(w->checksums);
    rg_free(w);
}
