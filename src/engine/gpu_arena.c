/* The arena of experts that stream, for a GPU. One of three:
 *
 * Mapped: memory of the device that the host sees too, reads land in the slots. Unified machines,
 * and cards whose whole memory can be mapped.
 *
 * Staged: memory of the device that the host need not see. Reads land in places of staging memory;
 * as soon as one is complete, and its checksum right, the thread that reaps queues its copy to the
 * slot (rg_gpu_transfer_submit), on the device's own queue for copies. The item counts as there:
 * the list that reads it waits for the transfers' timeline. A place is used again when its copy is
 * done.
 *
 * Host: memory of the host, read across the bus at each use. A card that the arena does not fit.
 *
 * Who may write what, when. A place: the drive, from the start of a read to its end; then its copy
 * reads it, up to the copy's value of the transfers' timeline; both are one job of the scheduler
 * (stream/sched.c), which has one place. A slot: its copy, up to that value; the lists behind it,
 * up to the fence of their turn. The scheduler starts no read for a slot before the fence has
 * retired and the copy before is done, so that a copy into a slot never meets another, nor a
 * reader.
 *
 * Nobody on the host reads a staged arena: checksums are taken in the places, and the CPU has no
 * part in experts that a GPU computes.
 *
 * Threads: `copy` belongs to the thread that reaps, `done` is called by any under the scheduler's
 * lock; `lock` guards the times.
 */
#include <pthread.h>
#include <string.h>

#include "engine/gpu_core.h"

#define ARENA_ALIGN  ((size_t)4096)
#define IMPORT_ALIGN ((size_t)65536) /* of rg_gpu_buffer_import */
#define LOAD_ALIGN   16u
#define ROOM_PART    8u /* of a card's memory is left to sequences and to others */
#define ANSWER_NS    ((uint64_t)120 * 1000000000u)

struct rg_gpu_landing {
    rg_gpu *gpu;
    const rg_gpu_buffer *arena;
    size_t skip; /* from the start of the buffer to the first slot */
    rg_gpu_buffer staging;
    void *memory; /* of the staging, where it is ours; else the driver's */
    size_t bytes; /* of it */
    uint32_t n_place;
    size_t place_bytes;
    rg_gpu_list **lists; /* [n_place] */
    uint64_t ticket;     /* of the last copy */
    bool has_lock;
    pthread_mutex_t lock;
    uint64_t *running; /* [n_place] ticket of a copy that is not in the sums yet, or 0 */
    uint64_t *moved;   /* [n_place] its bytes */
    rg_gpu_copies sums;
};

/* ---- copies --------------------------------------------------------------------------------- */

/* Adds the time of a place's last copy, which is done. Under the lock. */
static void add_time(rg_gpu_landing *l, uint32_t place) {
    if (!l->running[place]) return;
    l->running[place] = 0;
    l->sums.count++;
    l->sums.bytes += l->moved[place];
    l->sums.ns += rg_gpu_transfer_ns(l->lists[place]);
}

static rg_code copy(void *user, uint32_t place, uint64_t offset, uint64_t bytes, uint64_t *ticket,
                    rg_status *st) {
    rg_gpu_landing *l = user;
    RG_ASSERT(place < l->n_place && bytes <= l->place_bytes);
    RG_ASSERT(l->skip + offset + bytes <= l->arena->bytes);
    rg_gpu_list *list = l->lists[place];
    pthread_mutex_lock(&l->lock);
    add_time(l, place);
    rg_gpu_list_begin(list, true);
    rg_gpu_copy(list, l->arena, l->skip + (size_t)offset, &l->staging, place * l->place_bytes,
                (size_t)bytes);
    rg_code rc = rg_gpu_list_end(list, st);
    if (rc == RG_OK) rc = rg_gpu_transfer_submit(l->gpu, list, ticket, st);
    if (rc == RG_OK) l->running[place] = l->ticket = *ticket;
    l->moved[place] = bytes;
    pthread_mutex_unlock(&l->lock);
    return rc;
}

static uint64_t done(void *user) {
    const rg_gpu_landing *l = user;
    return rg_gpu_transfer_passed(l->gpu);
}

rg_gpu_copies rg_gpu_landing_copies(const rg_gpu_core *g) {
    rg_gpu_landing *l = g->landing;
    if (!l) return (rg_gpu_copies){0};
    const uint64_t passed = rg_gpu_transfer_passed(l->gpu);
    pthread_mutex_lock(&l->lock);
    for (uint32_t i = 0; i < l->n_place && passed < UINT64_MAX; i++) {
        if (l->running[i] <= passed) add_time(l, i);
    }
    const rg_gpu_copies sums = l->sums;
    pthread_mutex_unlock(&l->lock);
    return sums;
}

/* ---- staging -------------------------------------------------------------------------------- */

static void landing_destroy(rg_gpu_landing *l) {
    if (!l) return;
    /* After a failure copies may be under way yet; a device that is lost does none. */
    rg_status why = {0};
    if (l->ticket && rg_gpu_transfer_wait(l->gpu, l->ticket, ANSWER_NS, &why) != RG_OK)
        rg_log(RG_LOG_WARN, "copies into the arena have not ended: %s", why.message);
    for (uint32_t i = 0; l->lists && i < l->n_place; i++)
        rg_gpu_list_destroy(l->lists[i]);
    rg_gpu_buffer_destroy(l->gpu, &l->staging);
    if (l->memory) rg_mem_unmap(l->memory, l->bytes);
    if (l->has_lock) pthread_mutex_destroy(&l->lock);
    rg_free(l->lists);
    rg_free(l->running);
    rg_free(l->moved);
    rg_free(l);
}

/* Our own pages, where the device takes them: a drive can write there. Else the driver's. */
static rg_code take_staging(rg_gpu_landing *l, rg_status *st) {
    rg_status why = {0};
    RG_TRY(rg_mem_map(&l->memory, l->bytes, st));
    if (rg_gpu_buffer_import(l->gpu, &l->staging, l->memory, l->bytes, &why) == RG_OK) return RG_OK;
    rg_mem_unmap(l->memory, l->bytes);
    l->memory = NULL;
    rg_log(RG_LOG_INFO, "staging in memory of the driver: %s", why.message);
    return rg_gpu_buffer_create(l->gpu, &l->staging, l->bytes, RG_GPU_STAGING, st);
}

uint64_t rg_gpu_staging_bytes(uint64_t slot_bytes_max, uint32_t depth) {
    const uint64_t bytes = rg_stream_places(depth) * slot_bytes_max;
    return (bytes + IMPORT_ALIGN - 1) / IMPORT_ALIGN * IMPORT_ALIGN;
}

static rg_code landing_create(rg_gpu_core *g, const rg_stream_options *o, rg_status *st) {
    rg_stream_layout layout;
    RG_TRY(rg_stream_layout_of(&layout, o->groups, o->n_group, st));
    rg_gpu_landing *l = rg_alloc(1, sizeof *l, st);
    if (!l) return RG_NOMEM;
    g->landing = l; /* closed with the arena, whatever comes */
    l->gpu = g->gpu;
    l->arena = &g->arena;
    l->n_place = rg_stream_places(o->depth);
    l->place_bytes = (size_t)layout.slot_bytes_max;
    l->bytes = (size_t)rg_gpu_staging_bytes(l->place_bytes, o->depth);
    if (pthread_mutex_init(&l->lock, NULL) != 0)
        return rg_fail(st, RG_NOMEM, "cannot make the lock of the copies");
    l->has_lock = true;
    l->lists = rg_alloc(l->n_place, sizeof *l->lists, st);
    l->running = rg_alloc(l->n_place, sizeof *l->running, st);
    l->moved = rg_alloc(l->n_place, sizeof *l->moved, st);
    if (!l->lists || !l->running || !l->moved) return RG_NOMEM;
    for (uint32_t i = 0; i < l->n_place; i++)
        RG_TRY(rg_gpu_transfer_create(&l->lists[i], g->gpu, st));
    const rg_code rc = take_staging(l, st);
    return rc == RG_OK ? RG_OK : rg_context(st, rc, "staging for %u reads", l->n_place);
}

/* ---- choice --------------------------------------------------------------------------------- */

/* Of all experts: where they fit the free memory of the host, the page cache is a second arena that
 * is faster than any drive. */
static uint64_t experts_bytes(const rg_stream_options *o) {
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < o->n_group; g++) {
        for (uint32_t p = 0; p < o->groups[g].n_extent; p++)
            bytes += (uint64_t)o->groups[g].extents[p].bytes * o->groups[g].n_item;
    }
    return bytes;
}

/* In its slot an expert lies as it does in its file; kernels read sixteen bytes at a time where the
 * blocks of a type allow that. */
static rg_code check_aligned(const rg_stream_options *o, rg_status *st) {
    for (uint32_t g = 0; g < o->n_group; g++) {
        const rg_stream_extent *e = o->groups[g].extents;
        for (uint32_t p = 0; p < o->groups[g].n_extent; p++) {
            if (e[p].offset % LOAD_ALIGN)
                return rg_fail(st, RG_UNSUPPORTED,
                               "experts begin at byte %llu of the file, the GPU needs multiples "
                               "of %u (general.alignment)",
                               (unsigned long long)e[p].offset, LOAD_ALIGN);
        }
    }
    return RG_OK;
}

static bool is_discrete(const rg_gpu_info *info) {
    return strcmp(info->kind, "discrete") == 0;
}

/* Beside what is there already, with room for the states of sequences and for others. */
static bool fits_device(const rg_gpu_core *g, uint64_t bytes) {
    const uint64_t all = rg_gpu_get_info(g->gpu)->device_bytes;
    return rg_gpu_bytes(g->gpu) + bytes <= all - all / ROOM_PART;
}

/* Without regard to sizes. Checksums read what was read: slow from memory of a card, so that packs
 * are staged. */
static rg_gpu_arena choose_for(const rg_gpu_info *info, rg_gpu_arena wanted, bool packed) {
    if (wanted != RG_GPU_ARENA_AUTO) return wanted;
    const bool mapped = info->mappable && !(is_discrete(info) && packed);
    return mapped ? RG_GPU_ARENA_MAPPED : RG_GPU_ARENA_STAGED;
}

static rg_gpu_arena choose(const rg_gpu_core *g, uint64_t bytes) {
    const rg_core_options *opt = &g->core->opt;
    const rg_gpu_arena is = choose_for(rg_gpu_get_info(g->gpu), opt->gpu_arena, opt->pack != NULL);
    const bool asked = opt->gpu_arena != RG_GPU_ARENA_AUTO;
    if (is != RG_GPU_ARENA_STAGED || asked || fits_device(g, bytes)) return is;
    return RG_GPU_ARENA_HOST;
}

rg_gpu_arena rg_gpu_arena_likely(rg_gpu_arena wanted, int32_t device, bool packed) {
    rg_gpu_info info[RG_GPU_DEVICES_MAX];
    uint32_t n = 0;
    rg_status why = {0}; /* whoever opens the device says it */
    if (rg_gpu_enumerate(info, RG_GPU_DEVICES_MAX, &n, &why) != RG_OK) return RG_GPU_ARENA_AUTO;
    const uint32_t at = rg_gpu_choose(info, n, device);
    return at < n ? choose_for(&info[at], wanted, packed) : RG_GPU_ARENA_AUTO;
}

static size_t to_aligned(uint64_t at) {
    return (ARENA_ALIGN - (size_t)at % ARENA_ALIGN) % ARENA_ALIGN;
}

/* The slots are named by their device addresses, which nothing on the host reads through. */
static rg_code open_staged(rg_gpu_core *g, rg_stream_options *o, rg_stream_landing *out,
                           rg_status *st) {
    const size_t bytes = (size_t)o->budget_bytes + ARENA_ALIGN;
    RG_TRY(rg_gpu_buffer_create(g->gpu, &g->arena, bytes, RG_GPU_UNSEEN, st));
    RG_TRY(landing_create(g, o, st));
    rg_gpu_landing *l = g->landing;
    l->skip = to_aligned(g->arena.address);
    *out = (rg_stream_landing){.user = l,
                               .staging = l->staging.mapped,
                               .n_place = l->n_place,
                               .place_bytes = l->place_bytes,
                               .copy = copy,
                               .done = done};
    RG_ASSERT((uintptr_t)l->staging.mapped % RG_STREAM_ALIGN == 0);
    o->memory = (void *)(uintptr_t)(g->arena.address + l->skip);
    o->landing = out;
    return RG_OK;
}

static rg_code open_seen(rg_gpu_core *g, rg_stream_options *o, rg_gpu_place place, rg_status *st) {
    const size_t bytes = (size_t)o->budget_bytes + ARENA_ALIGN;
    RG_TRY(rg_gpu_buffer_create(g->gpu, &g->arena, bytes, place, st));
    if (!g->arena.mapped)
        return rg_fail(st, RG_UNSUPPORTED, "%s: the host does not see memory of the device",
                       rg_gpu_get_info(g->gpu)->name);
    g->arena_host = (uint8_t *)g->arena.mapped + to_aligned((uintptr_t)g->arena.mapped);
    o->memory = g->arena_host;
    return RG_OK;
}

static rg_code open_arena(rg_gpu_core *g, rg_stream_options *o, rg_stream_landing *landing,
                          rg_status *st) {
    g->arena_is = choose(g, o->budget_bytes);
    if (g->arena_is == RG_GPU_ARENA_STAGED) {
        rg_status why = {0};
        const rg_code rc = open_staged(g, o, landing, &why);
        if (rc == RG_OK) return RG_OK;
        if (g->core->opt.gpu_arena != RG_GPU_ARENA_AUTO) return rg_fail(st, rc, "%s", why.message);
        rg_log(RG_LOG_WARN, "experts stay in memory of the host: %s", why.message);
        rg_gpu_arena_close(g);
        g->arena_is = RG_GPU_ARENA_HOST;
    }
    const bool host = g->arena_is == RG_GPU_ARENA_HOST;
    return open_seen(g, o, host ? RG_GPU_READBACK : RG_GPU_DEVICE, st);
}

#define LOOK_NS    200000u
#define LOOK_CORES 6 /* three look, and the host has work too */

rg_code rg_gpu_core_arena(rg_gpu_core *g, rg_stream_options *o, rg_stream_landing *landing,
                          rg_status *st) {
    RG_TRY(check_aligned(o, st));
    const rg_code rc = open_arena(g, o, landing, st);
    if (rc != RG_OK) return rg_context(st, rc, "the arena");
    const bool ours = g->landing && g->landing->memory;
    const bool idle = strcmp(rg_gpu_get_info(g->gpu)->kind, "software") != 0;
    if (idle && !o->look_ns && rg_cpu_count() >= LOOK_CORES) o->look_ns = LOOK_NS;
    if (is_discrete(rg_gpu_get_info(g->gpu))) {
        /* Memory that the driver mapped has no pages a drive could write to: a processor copies. */
        o->staged = !ours;
        if (o->direct == RG_DIRECT_AUTO && experts_bytes(o) < rg_mem_available_bytes() / 4 * 3)
            o->direct = RG_DIRECT_OFF;
    }
    rg_log(RG_LOG_INFO, "arena %s, reads are %s%s", rg_core_gpu_arena(g->core),
           o->direct == RG_DIRECT_OFF ? "buffered" : "direct where they can be",
           o->staged ? ", through memory of their threads" : "");
    return RG_OK;
}

void rg_gpu_arena_close(rg_gpu_core *g) {
    landing_destroy(g->landing);
    g->landing = NULL;
    rg_gpu_buffer_destroy(g->gpu, &g->arena);
    g->arena_host = NULL;
    g->arena_is = RG_GPU_ARENA_AUTO;
}

rg_gpu_ptr rg_gpu_expert_at(const rg_gpu_core *g, const void *bytes) {
    return g->landing ? rg_at(bytes) : rg_gpu_core_at(g, bytes);
}

const char *rg_core_gpu_arena(const rg_core *core) {
    static const char *const names[RG_GPU_ARENA_COUNT] = {"", "mapped", "staged", "host"};
    return core->gpu ? names[core->gpu->arena_is] : "";
}

uint64_t rg_core_gpu_staging_bytes(const rg_core *core) {
    return core->gpu && core->gpu->landing ? core->gpu->landing->bytes : 0;
}

uint64_t rg_core_gpu_copy_ns(const rg_core *core) {
    return core->gpu ? rg_gpu_landing_copies(core->gpu).ns : 0;
}
