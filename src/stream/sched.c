/* The I/O scheduler: reads of items into slots, urgent ones first.
 *
 * A read is asked for a slot (rg_sched_read) and waits in one of three queues: urgent, ahead, warm.
 * When the device has room it becomes a job of 1..16 pieces (one per part of the item, or smaller);
 * a job has pieces unsent and pieces flying, and ends when it has neither. Then the checksum is
 * verified, without the lock, and the slot is DONE or FAILED.
 *
 *   IDLE --read--> QUEUED --start--> FLIGHT --finish--> DONE
 *    ^               |  ^ |             |  `--fail----> FAILED --want--> QUEUED (urgent)
 *    `----- drop ----'  | `--- lost ----|---------------^
 *    ^       blocked: a job of an earlier owner is in flight, or readers have not retired
 *    `-------------- drop: the job becomes an orphan, the slot is in limbo until it ends
 *
 * With a landing (stream.h) job j reads into place j of the staging memory, and finish queues the
 * copy to the slot. The slot is DONE then, with the ticket of the copy, while the job stays until
 * the copy is done, as an orphan: so neither the place nor the slot is written before.
 *
 * Threads: every field is guarded by s->lock. The worker queues and pumps; the I/O thread reaps,
 * finishes and pumps; in tests one thread does both (cfg.threaded = false). The device's submit is
 * called under the lock (it does not block), its reap without. No callback runs.
 *
 * Invariants
 *  1. At most one job per slot, and one asked read; so no two reads fill one slot.
 *  2. A read starts only into a quiet slot: no job, no old job of the slab, fence retired.
 *  3. No read-ahead piece is handed to the device while an urgent read waits, blocked or not; in
 *     decode read-aheads hold at most depth - reserve places.
 *  4. Pieces flying never exceed the depth. There are twice as many jobs, and a read-ahead becomes
 *     one only while fewer than the depth exist: an urgent read never waits for the job of a
 *     read-ahead whose own pieces wait behind it. Jobs that are landing do not count; should they
 *     hold all places, an urgent read waits for the oldest copy.
 *  5. A slot is on the arrived list at most once, and only while wanted.
 *  6. Every wanted read arrives: done, failed after retries_max repetitions, or lost after
 * stall_ns.
 */
#include "stream/sched.h"

#include <errno.h>
#include <string.h>
#include <xxhash.h>

enum { LIST_NONE, LIST_URGENT, LIST_AHEAD, LIST_WARM, LIST_BLOCKED, LIST_ARRIVED };

#define TRANSIENT_MAX                                                                              \
    1000u              /* EINTR, EAGAIN and short answers of one piece before it counts as failed */
#define BATCH      64u /* ops handed over in one call */
#define REAP_MAX   64u
#define REFUSED_NS 1000000u  /* try again after a refusal */
#define CHECK_NS   50000000u /* look for lost reads this often */
#define LANDING_NS 100000u   /* look for the end of copies that something waits for */

/* ---- lists ----------------------------------------------------------------------------------- */

static void list_push(rg_sched *s, uint32_t slot, uint32_t list, bool at_head) {
    rg_read *r = &s->reads[slot];
    rg_read_list *l = &s->lists[list];
    RG_ASSERT(r->list == LIST_NONE);
    RG_ASSERT(list != LIST_NONE);
    r->list = (uint8_t)list;
    r->prev = at_head ? RG_SLOT_NONE : l->tail;
    r->next = at_head ? l->head : RG_SLOT_NONE;
    if (r->prev != RG_SLOT_NONE)
        s->reads[r->prev].next = slot;
    else
        l->head = slot;
    if (r->next != RG_SLOT_NONE)
        s->reads[r->next].prev = slot;
    else
        l->tail = slot;
    l->count++;
    if (list == LIST_ARRIVED) atomic_store_explicit(&s->n_arrived, l->count, memory_order_release);
    if (list == LIST_BLOCKED && r->cls == RG_READ_URGENT) s->urgent_blocked++;
}

static void list_remove(rg_sched *s, uint32_t slot) {
    rg_read *r = &s->reads[slot];
    if (r->list == LIST_NONE) return;
    rg_read_list *l = &s->lists[r->list];
    RG_ASSERT(l->count > 0);
    if (r->prev != RG_SLOT_NONE)
        s->reads[r->prev].next = r->next;
    else
        l->head = r->next;
    if (r->next != RG_SLOT_NONE)
        s->reads[r->next].prev = r->prev;
    else
        l->tail = r->prev;
    l->count--;
    if (r->list == LIST_ARRIVED)
        atomic_store_explicit(&s->n_arrived, l->count, memory_order_release);
    if (r->list == LIST_BLOCKED && r->cls == RG_READ_URGENT) s->urgent_blocked--;
    r->list = LIST_NONE;
}

static uint32_t queue_of(const rg_read *r) {
    if (r->cls == RG_READ_URGENT) return LIST_URGENT;
    return r->cls == RG_READ_AHEAD ? LIST_AHEAD : LIST_WARM;
}

/* Limbo may have ended for some: back to the front of their queues, in order. */
static void unblock(rg_sched *s) {
    while (s->lists[LIST_BLOCKED].count > 0) {
        const uint32_t slot = s->lists[LIST_BLOCKED].tail;
        list_remove(s, slot);
        list_push(s, slot, queue_of(&s->reads[slot]), true);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

static void *io_thread(void *arg);

static rg_code start(rg_sched *s, rg_status *st) {
    if (pthread_mutex_init(&s->lock, NULL) != 0) {
        return rg_fail(st, RG_NOMEM, "cannot make the lock of the scheduler");
    }
    s->has_lock = true;
    pthread_cond_init(&s->work, NULL); /* without attributes these cannot fail here */
    pthread_cond_init(&s->arrival, NULL);
    if (!s->cfg.threaded) return RG_OK;
    const int err = pthread_create(&s->thread, NULL, io_thread, s);
    if (err != 0) return rg_fail_errno(st, RG_NOMEM, err, "cannot start the I/O thread");
    s->has_thread = true;
    return RG_OK;
}

rg_code rg_sched_init(rg_sched *out, const rg_sched_config *config, rg_status *st) {
    *out = (rg_sched){.cfg = *config};
    const uint32_t n_slot = config->arena->n_slot;
    RG_ASSERT(config->depth > 0 && config->depth <= RG_STREAM_DEPTH_MAX);
    RG_ASSERT(config->reserve < config->depth);
    out->job_cap = rg_stream_places(config->depth);
    const rg_stream_landing *to = config->landing;
    RG_ASSERT(!to || to->n_place >= out->job_cap);
    RG_ASSERT(!to || to->place_bytes >= config->items->layout.slot_bytes_max);
    out->reads = rg_alloc(n_slot, sizeof *out->reads, st);
    out->address = rg_alloc(n_slot, sizeof *out->address, st);
    out->old_jobs = rg_alloc(config->arena->n_slab, sizeof *out->old_jobs, st);
    out->jobs = rg_alloc(out->job_cap, sizeof *out->jobs, st);
    out->hash_state = XXH3_createState();
    rg_code rc = RG_NOMEM;
    if (!out->hash_state) rg_fail(st, RG_NOMEM, "cannot make the state of a checksum");
    if (out->reads && out->address && out->old_jobs && out->jobs && out->hash_state) {
        for (uint32_t i = 0; i < n_slot; i++) {
            out->reads[i].prev = out->reads[i].next = RG_SLOT_NONE;
            out->reads[i].job = RG_JOB_NONE;
            out->reads[i].filled = RG_ITEM_NONE;
        }
        for (uint32_t j = 0; j < out->job_cap; j++) {
            out->jobs[j].slot = RG_SLOT_NONE;
            out->jobs[j].next_free = j + 1 < out->job_cap ? j + 1 : RG_JOB_NONE;
        }
        for (uint32_t l = 0; l < RG_READ_LISTS; l++)
            out->lists[l].head = out->lists[l].tail = RG_SLOT_NONE;
        rc = start(out, st);
    }
    if (rc != RG_OK) rg_sched_deinit(out);
    return rc;
}

static void cancel_queued(rg_sched *s) {
    static const uint8_t queues[] = {LIST_URGENT, LIST_AHEAD, LIST_WARM, LIST_BLOCKED};
    for (size_t q = 0; q < RG_ARRAY_LEN(queues); q++)
        while (s->lists[queues[q]].count > 0)
            rg_sched_drop(s, s->lists[queues[q]].head);
    for (uint32_t j = 0; j < s->job_cap; j++)
        if (s->jobs[j].slot != RG_SLOT_NONE && !s->jobs[j].orphan)
            rg_sched_drop(s, s->jobs[j].slot);
}

void rg_sched_deinit(rg_sched *s) {
    if (s->has_thread) {
        rg_sched_lock(s);
        s->stop = true;
        cancel_queued(s);
        pthread_cond_signal(&s->work);
        rg_sched_unlock(s);
        pthread_join(s->thread, NULL);
    }
    if (s->has_lock) {
        pthread_cond_destroy(&s->arrival);
        pthread_cond_destroy(&s->work);
        pthread_mutex_destroy(&s->lock);
    }
    XXH3_freeState(s->hash_state);
    rg_free(s->reads);
    rg_free(s->address);
    rg_free(s->old_jobs);
    rg_free(s->jobs);
    *s = (rg_sched){0};
}

void rg_sched_lock(rg_sched *s) {
    const int err = pthread_mutex_lock(&s->lock);
    RG_ASSERT(err == 0);
}

void rg_sched_unlock(rg_sched *s) {
    const int err = pthread_mutex_unlock(&s->lock);
    RG_ASSERT(err == 0);
}

static uint64_t now_ns(const rg_sched *s) {
    return s->cfg.io->vtable->now_ns(s->cfg.io);
}

/* ---- asking ---------------------------------------------------------------------------------- */

bool rg_sched_is_lost(const rg_sched *s, uint32_t slot) {
    const uint32_t job = s->reads[slot].job;
    return job != RG_JOB_NONE && s->jobs[job].lost;
}

static bool slot_is_open(const rg_sched *s, uint32_t slot) {
    const rg_read *r = &s->reads[slot];
    if (r->job != RG_JOB_NONE || r->fence > s->retired_fence) return false;
    return s->old_jobs[rg_arena_slab_of(s->cfg.arena, slot)] == 0;
}

bool rg_sched_is_quiet(const rg_sched *s, uint32_t slot) {
    RG_ASSERT(slot < s->cfg.arena->n_slot);
    return slot_is_open(s, slot);
}

/* Whether the bytes of s->reads[slot].filled lie in the slot, or are copied there. */
static bool slot_is_filled(const rg_sched *s, uint32_t slot) {
    const rg_read *r = &s->reads[slot];
    if (r->filled == RG_ITEM_NONE) return false;
    if (r->job != RG_JOB_NONE && s->jobs[r->job].landing) return r->fence <= s->retired_fence;
    return slot_is_open(s, slot);
}

/* The slot enters a queue; the device's clock of silence starts when it had nothing to do. */
static void enqueue(rg_sched *s, uint32_t slot, rg_read_class cls) {
    rg_read *r = &s->reads[slot];
    RG_ASSERT(r->list == LIST_NONE);
    const uint32_t waiting =
        s->lists[LIST_URGENT].count + s->lists[LIST_AHEAD].count + s->lists[LIST_WARM].count;
    if (waiting == 0 && s->n_job == 0) s->progress_ns = now_ns(s);
    r->phase = RG_PHASE_QUEUED;
    r->cls = (uint8_t)cls;
    list_push(s, slot, queue_of(r), false);
}

void rg_sched_read(rg_sched *s, uint32_t slot, uint32_t item, rg_read_class cls) {
    rg_read *r = &s->reads[slot];
    RG_ASSERT(r->phase == RG_PHASE_IDLE);
    RG_ASSERT(!r->wanted);
    r->item = item;
    s->address[slot] = rg_arena_data(s->cfg.arena, slot);
    if (s->cfg.null_reads && slot_is_filled(s, slot)) {
        const rg_items *items = s->cfg.items;
        if (items->shape_of[rg_items_group(items, r->filled)] ==
            items->shape_of[rg_items_group(items, item)]) {
            r->phase = RG_PHASE_DONE;
            return;
        }
    }
    enqueue(s, slot, cls);
}

static void count_flying(rg_sched *s, const rg_job *job, bool add, uint32_t n) {
    if (add) {
        s->n_flying += n;
        if (job->cls != RG_READ_URGENT) s->n_flying_ahead += n;
    } else {
        RG_ASSERT(s->n_flying >= n);
        s->n_flying -= n;
        if (job->cls != RG_READ_URGENT) s->n_flying_ahead -= n;
    }
}

bool rg_sched_want(rg_sched *s, uint32_t slot) {
    rg_read *r = &s->reads[slot];
    RG_ASSERT(!r->wanted);
    RG_ASSERT(r->phase != RG_PHASE_IDLE);
    if (r->phase == RG_PHASE_DONE) return true;
    r->wanted = true;
    if (r->phase == RG_PHASE_FAILED) { /* nobody was told: read again, now that somebody asks */
        enqueue(s, slot, RG_READ_URGENT);
    } else if (r->phase == RG_PHASE_QUEUED && r->cls != RG_READ_URGENT) {
        list_remove(s, slot);
        r->cls = RG_READ_URGENT;
        list_push(s, slot, LIST_URGENT, false);
    } else if (r->phase == RG_PHASE_FLIGHT && r->cls != RG_READ_URGENT) {
        rg_job *job = &s->jobs[r->job];
        count_flying(s, job, false, job->n_flying);
        job->cls = r->cls = RG_READ_URGENT;
        count_flying(s, job, true, job->n_flying);
    }
    return false;
}

void rg_sched_unwant(rg_sched *s, uint32_t slot) {
    rg_read *r = &s->reads[slot];
    if (!r->wanted) return;
    r->wanted = false;
    if (r->list == LIST_ARRIVED) list_remove(s, slot);
}

static void abandon_unsent(rg_sched *s, rg_job *job) {
    s->n_unsent -= (uint32_t)__builtin_popcount(job->unsent);
    job->unsent = 0;
}

static void release_job(rg_sched *s, uint32_t index) {
    rg_job *job = &s->jobs[index];
    RG_ASSERT(job->n_flying == 0 && job->unsent == 0);
    RG_ASSERT(s->n_job > 0);
    if (job->old_cut) s->old_jobs[job->slab]--;
    if (s->reads[job->slot].job == index) s->reads[job->slot].job = RG_JOB_NONE;
    job->slot = RG_SLOT_NONE;
    job->next_free = s->job_free;
    s->job_free = index;
    s->n_job--;
    unblock(s);
}

void rg_sched_drop(rg_sched *s, uint32_t slot) {
    rg_read *r = &s->reads[slot];
    rg_sched_unwant(s, slot);
    if (r->phase == RG_PHASE_QUEUED) {
        list_remove(s, slot);
        s->cfg.meters->cancels++;
    } else if (r->phase == RG_PHASE_FLIGHT) {
        rg_job *job = &s->jobs[r->job];
        RG_ASSERT(!job->orphan);
        job->orphan = true;
        s->cfg.meters->orphans++;
        abandon_unsent(s, job);
        if (job->n_flying == 0 && !job->verifying) release_job(s, r->job);
    }
    r->phase = RG_PHASE_IDLE;
    r->item = RG_ITEM_NONE;
    RG_ASSERT(r->list == LIST_NONE);
}

void rg_sched_recut(rg_sched *s, uint32_t first_slot, uint32_t n_slot) {
    const uint32_t slab = rg_arena_slab_of(s->cfg.arena, first_slot);
    uint64_t fence = 0;
    for (uint32_t i = first_slot; i < first_slot + n_slot; i++) {
        rg_read *r = &s->reads[i];
        RG_ASSERT(r->phase == RG_PHASE_IDLE);
        if (r->fence > fence) fence = r->fence;
        r->filled = RG_ITEM_NONE;
        if (r->job == RG_JOB_NONE) continue;
        RG_ASSERT(s->jobs[r->job].orphan || s->jobs[r->job].lost);
        s->jobs[r->job].old_cut = true;
        s->old_jobs[slab]++;
        r->job = RG_JOB_NONE; /* the slab's count holds the new slots back now */
    }
    for (uint32_t i = first_slot; i < first_slot + n_slot; i++)
        s->reads[i].fence = fence;
}

void rg_sched_fence(rg_sched *s, uint32_t slot, uint64_t fence) {
    RG_ASSERT(slot < s->cfg.arena->n_slot);
    if (fence > s->reads[slot].fence) s->reads[slot].fence = fence;
}

void rg_sched_retire(rg_sched *s, uint64_t fence) {
    if (fence <= s->retired_fence) return;
    s->retired_fence = fence;
    if (s->n_job == 0) s->progress_ns = now_ns(s); /* it was not the device that kept us waiting */
    unblock(s);
    rg_sched_pump(s);
}

/* ---- handing over ---------------------------------------------------------------------------- */

/* The reads of an item; parts longer than read_bytes_max are split. */
static void make_pieces(const rg_sched *s, rg_job *job) {
    rg_item_part parts[RG_STREAM_EXTENTS_MAX];
    const uint32_t n = rg_items_parts(s->cfg.items, job->item, parts);
    uint64_t total = 0;
    for (uint32_t p = 0; p < n; p++)
        total += parts[p].read_bytes;
    /* Each part ends in one shorter piece at most, so this many bytes a piece always fit. */
    const uint64_t least =
        (total / (RG_PIECES_MAX - n) + RG_STREAM_ALIGN) & ~(uint64_t)(RG_STREAM_ALIGN - 1);
    uint64_t most = s->cfg.read_bytes_max & ~(RG_STREAM_ALIGN - 1);
    if (most == 0) most = total;
    if (most < least) most = least;
    job->n_piece = 0;
    for (uint32_t p = 0; p < n; p++) {
        const uint64_t payload_end = parts[p].payload_skip + parts[p].payload_bytes;
        for (uint64_t at = 0; at < parts[p].read_bytes; at += most) {
            const uint64_t left = parts[p].read_bytes - at, bytes = left < most ? left : most;
            const uint64_t need = payload_end - at < bytes ? payload_end - at : bytes;
            RG_ASSERT(job->n_piece < RG_PIECES_MAX);
            job->pieces[job->n_piece++] = (rg_piece){.file = parts[p].file,
                                                     .bytes = (uint32_t)bytes,
                                                     .need = (uint32_t)need,
                                                     .offset = parts[p].read_offset + at,
                                                     .slot_offset = parts[p].slot_offset + at};
        }
    }
}

static void send_all_again(rg_sched *s, rg_job *job) {
    RG_ASSERT(job->n_flying == 0);
    abandon_unsent(s, job);
    for (uint32_t p = 0; p < job->n_piece; p++)
        job->pieces[p].done = 0;
    job->unsent = (1u << job->n_piece) - 1;
    s->n_unsent += job->n_piece;
}

/* QUEUED -> FLIGHT: the head of a queue gets a job. False when its slot is in limbo: it is blocked.
 */
static bool start_job(rg_sched *s, uint32_t slot) {
    rg_read *r = &s->reads[slot];
    RG_ASSERT(r->phase == RG_PHASE_QUEUED);
    list_remove(s, slot);
    if (!slot_is_open(s, slot)) {
        list_push(s, slot, LIST_BLOCKED, false);
        return false;
    }
    const uint32_t index = s->job_free;
    RG_ASSERT(index != RG_JOB_NONE);
    rg_job *job = &s->jobs[index];
    s->job_free = job->next_free;
    s->n_job++;
    *job = (rg_job){.slot = slot,
                    .item = r->item,
                    .slab = rg_arena_slab_of(s->cfg.arena, slot),
                    .cls = r->cls,
                    .slot_data = s->address[slot],
                    .data = s->address[slot]};
    const rg_stream_landing *l = s->cfg.landing;
    if (l) job->data = (char *)l->staging + index * l->place_bytes;
    make_pieces(s, job);
    send_all_again(s, job);
    r->job = index;
    r->phase = RG_PHASE_FLIGHT;
    r->filled = RG_ITEM_NONE;
    return true;
}

/* An unsent piece of a started job, urgent or not; false when there is none. */
static bool find_unsent(const rg_sched *s, bool urgent, uint32_t *job, uint32_t *piece) {
    if (s->n_unsent == 0) return false;
    for (uint32_t j = 0; j < s->job_cap; j++) {
        const rg_job *b = &s->jobs[j];
        if (b->slot == RG_SLOT_NONE || b->unsent == 0) continue;
        if ((b->cls == RG_READ_URGENT) != urgent) continue;
        *job = j;
        *piece = (uint32_t)__builtin_ctz(b->unsent);
        return true;
    }
    return false;
}

/* The next piece for the device: urgent before ahead before warm. */
static bool next_piece(rg_sched *s, uint32_t *job, uint32_t *piece) {
    if (s->n_flying >= s->cfg.depth) return false;
    if (find_unsent(s, true, job, piece)) return true;
    while (s->lists[LIST_URGENT].count > 0 && s->job_free != RG_JOB_NONE)
        if (start_job(s, s->lists[LIST_URGENT].head)) return find_unsent(s, true, job, piece);
    if (s->lists[LIST_URGENT].count > 0 || s->urgent_blocked > 0) return false;
    if (s->n_flying_ahead >= s->cfg.depth - (s->decode ? s->cfg.reserve : 0)) return false;
    if (find_unsent(s, false, job, piece)) return true;
    for (uint32_t q = LIST_AHEAD; q <= LIST_WARM; q++)
        while (s->lists[q].count > 0 && s->n_job - s->n_landing < s->cfg.depth &&
               s->job_free != RG_JOB_NONE)
            if (start_job(s, s->lists[q].head)) return find_unsent(s, false, job, piece);
    return false;
}

static void mark_flying(rg_sched *s, rg_job *job, uint32_t piece) {
    RG_ASSERT(job->unsent >> piece & 1);
    job->unsent &= ~(1u << piece);
    s->n_unsent--;
    job->n_flying++;
    job->alive_ns = now_ns(s);
    if (s->n_flying == 0) {
        s->busy_since_ns = job->alive_ns;
        if (s->cfg.threaded) pthread_cond_signal(&s->work);
    }
    count_flying(s, job, true, 1);
    if (s->n_flying > s->cfg.meters->in_flight_peak) s->cfg.meters->in_flight_peak = s->n_flying;
    RG_ASSERT(s->n_flying <= s->cfg.depth);
}

static void mark_unsent(rg_sched *s, rg_job *job, uint32_t piece) {
    RG_ASSERT(job->n_flying > 0);
    job->n_flying--;
    count_flying(s, job, false, 1);
    if (s->n_flying == 0) s->cfg.meters->busy_ns += now_ns(s) - s->busy_since_ns;
    if (job->orphan) return;
    RG_ASSERT(!(job->unsent >> piece & 1));
    job->unsent |= 1u << piece;
    s->n_unsent++;
}

/* Copies that are done give place and slot free. */
static void end_landings(rg_sched *s) {
    if (s->n_landing == 0) return;
    const uint64_t done = s->cfg.landing->done(s->cfg.landing->user);
    for (uint32_t j = 0; j < s->job_cap && s->n_landing > 0; j++) {
        rg_job *job = &s->jobs[j];
        if (job->slot == RG_SLOT_NONE || !job->landing || job->ticket > done) continue;
        job->landing = false;
        s->n_landing--;
        release_job(s, j);
    }
}

/* Something may be waiting for the place or the slot of a copy. */
static bool landing_is_awaited(const rg_sched *s) {
    if (s->n_landing == 0) return false;
    for (uint32_t list = LIST_URGENT; list <= LIST_BLOCKED; list++)
        if (s->lists[list].count > 0) return true;
    return s->stop;
}

void rg_sched_pump(rg_sched *s) {
    rg_io_op ops[BATCH];
    end_landings(s);
    for (bool more = true; more;) {
        uint32_t n = 0, job, piece;
        while (n < BATCH && next_piece(s, &job, &piece)) {
            rg_job *b = &s->jobs[job];
            const rg_piece *p = &b->pieces[piece];
            /* A short answer goes on at the last aligned byte. */
            const uint32_t from = p->done & ~(RG_STREAM_ALIGN - 1);
            ops[n++] = (rg_io_op){.dst = b->data + p->slot_offset + from,
                                  .offset = p->offset + from,
                                  .tag = (uint64_t)job << 8 | piece,
                                  .bytes = p->bytes - from,
                                  .file = p->file};
            mark_flying(s, b, piece);
        }
        const uint32_t took = n ? s->cfg.io->vtable->submit(s->cfg.io, ops, n) : 0;
        RG_ASSERT(took <= n);
        if (took > 0) s->progress_ns = now_ns(s);
        s->refused = took < n;
        for (uint32_t i = n; i > took; i--) /* refused ones wait, first come first */
            mark_unsent(s, &s->jobs[ops[i - 1].tag >> 8], (uint32_t)(ops[i - 1].tag & 0xFF));
        more = n == BATCH && took == n;
    }
    if ((s->refused || landing_is_awaited(s)) && s->cfg.threaded) pthread_cond_signal(&s->work);
}

/* ---- finishing ------------------------------------------------------------------------------- */

static void arrive(rg_sched *s, uint32_t slot, rg_read_phase phase) {
    rg_read *r = &s->reads[slot];
    RG_ASSERT(r->list == LIST_NONE);
    r->phase = (uint8_t)phase;
    if (!r->wanted) return;
    list_push(s, slot, LIST_ARRIVED, false);
    if (s->cfg.threaded) pthread_cond_signal(&s->arrival);
}

/* FLIGHT -> FAILED; the job may still have pieces flying (lost). */
static void fail_read(rg_sched *s, rg_job *job) {
    rg_read *r = &s->reads[job->slot];
    if (job->orphan) return;
    RG_ASSERT(r->phase == RG_PHASE_FLIGHT);
    r->error = job->error;
    job->orphan = true; /* nobody owns it from here on */
    abandon_unsent(s, job);
    if (job->error.kind != RG_FAULT_LOST) s->cfg.meters->read_errors++;
    arrive(s, job->slot, RG_PHASE_FAILED);
}

/* A failure of the job as a whole: again from the start, or the end. */
static void retry_or_fail(rg_sched *s, rg_job *job, const rg_read_error *error) {
    job->error = *error;
    if (job->orphan) return;
    if (job->attempts++ < s->cfg.retries_max) {
        s->cfg.meters->retries++;
        return;
    }
    fail_read(s, job);
}

static void set_error(rg_read_error *e, rg_read_fault kind, int err, const rg_piece *p) {
    *e = (rg_read_error){.kind = (uint8_t)kind,
                         .sys_errno = err,
                         .file = p->file,
                         .offset = p->offset,
                         .got = p->done,
                         .want = p->need};
}

static bool is_transient(int64_t result) {
    return result == -EINTR || result == -EAGAIN || result == -ENOMEM || result == -EBUSY;
}

/* What the device said about one piece. The piece was taken out of flight before; it is sent again
 * unless it is complete or the job failed. */
static void judge_piece(rg_sched *s, rg_job *job, uint32_t piece, int64_t result) {
    rg_piece *p = &job->pieces[piece];
    rg_read_error error;
    if (job->orphan) return;
    if (result > 0) {
        const uint32_t from = p->done & ~(RG_STREAM_ALIGN - 1);
        RG_ASSERT(result <= p->bytes - from);
        p->done = from + (uint32_t)result;
        if (p->done >= p->need) return;
    }
    const bool again = result > 0 || is_transient(result);
    if (!again || ++p->busy_again > TRANSIENT_MAX) {
        if (result < 0)
            set_error(&error, RG_FAULT_ERRNO, (int)-result, p);
        else
            set_error(&error, RG_FAULT_END, 0, p);
        p->done = 0;
        p->busy_again = 0;
        retry_or_fail(s, job, &error);
        if (job->orphan) return;
    }
    job->unsent |= 1u << piece;
    s->n_unsent++;
}

/* XXH3-64 over the payload, its parts in order; without the lock. */
static bool checksum_is_right(const rg_sched *s, const rg_job *job, rg_read_error *error) {
    uint64_t want, sum;
    if (!rg_items_checksum(s->cfg.items, job->item, &want)) return true;
    rg_item_part parts[RG_STREAM_EXTENTS_MAX];
    const uint32_t n = rg_items_parts(s->cfg.items, job->item, parts);
    if (n == 1) {
        sum = XXH3_64bits(job->data + parts[0].payload_skip, parts[0].payload_bytes);
    } else {
        XXH3_state_t *state = s->hash_state;
        XXH3_64bits_reset(state);
        for (uint32_t p = 0; p < n; p++)
            XXH3_64bits_update(state, job->data + parts[p].slot_offset + parts[p].payload_skip,
                               parts[p].payload_bytes);
        sum = XXH3_64bits_digest(state);
    }
    *error = (rg_read_error){.kind = RG_FAULT_CHECKSUM,
                             .file = parts[0].file,
                             .offset = parts[0].read_offset + parts[0].payload_skip,
                             .got = sum,
                             .want = want};
    return sum == want;
}

/* Queues the copy of a place to its slot; without the lock. False: *st says why there is none. */
static bool land(const rg_sched *s, rg_job *job, uint32_t index, rg_status *st) {
    const rg_stream_landing *l = s->cfg.landing;
    if (!l) return true;
    const rg_piece *last = &job->pieces[job->n_piece - 1];
    const uint64_t offset = (uint64_t)(job->slot_data - s->cfg.arena->memory);
    return l->copy(l->user, index, offset, last->slot_offset + last->bytes, &job->ticket, st) ==
           RG_OK;
}

/* The copy is under way. The job stays, and with it the place: nobody's, whoever owned it. */
static void start_landing(rg_sched *s, rg_job *job) {
    job->landing = true;
    job->alive_ns = now_ns(s);
    s->n_landing++;
    s->cfg.meters->copies++;
    s->cfg.meters->copied_bytes +=
        job->pieces[job->n_piece - 1].slot_offset + job->pieces[job->n_piece - 1].bytes;
    s->reads[job->slot].ticket = job->ticket;
}

/* What the device refuses to copy fails at once: it will not take the next one either. */
static void fail_landing(rg_sched *s, rg_job *job, const rg_status *why) {
    if (s->landing_failed.code == RG_OK) s->landing_failed = *why;
    set_error(&job->error, RG_FAULT_LANDING, 0, &job->pieces[0]);
    fail_read(s, job);
}

/* Sums, then hands the copy over if there is to be one: both without the lock. True when all is
 * well; else the job goes on, or has failed. */
static bool verify_job(rg_sched *s, uint32_t index) {
    rg_job *job = &s->jobs[index];
    rg_read_error error;
    rg_status why = {0};
    job->verifying = true;
    rg_sched_unlock(s);
    const bool right = checksum_is_right(s, job, &error);
    const bool landed = right && land(s, job, index, &why);
    rg_sched_lock(s);
    job->verifying = false;
    if (!right) {
        s->cfg.meters->checksum_errors++;
        retry_or_fail(s, job, &error);
        if (!job->orphan) send_all_again(s, job);
    } else if (!landed) {
        fail_landing(s, job, &why);
    } else if (s->cfg.landing) {
        start_landing(s, job);
    }
    return landed;
}

/* All pieces are in. Gives the lock up meanwhile. */
static void finish_job(rg_sched *s, uint32_t index) {
    rg_job *job = &s->jobs[index];
    RG_ASSERT(job->n_flying == 0 && job->unsent == 0);
    const bool good = !job->orphan && verify_job(s, index);
    if (job->unsent) return; /* once more */
    const uint32_t slot = job->slot;
    const bool owned = good && !job->orphan;
    if (owned) {
        s->reads[slot].filled = job->item;
        s->cfg.meters->reads++;
    }
    if (job->landing)
        job->orphan = true;
    else
        release_job(s, index);
    if (owned) arrive(s, slot, RG_PHASE_DONE);
}

static void complete(rg_sched *s, const rg_io_done *done) {
    const uint32_t index = (uint32_t)(done->tag >> 8), piece = (uint32_t)(done->tag & 0xFF);
    RG_ASSERT(index < s->job_cap);
    rg_job *job = &s->jobs[index];
    RG_ASSERT(job->slot != RG_SLOT_NONE && piece < job->n_piece);
    RG_ASSERT(job->n_flying > 0);
    s->progress_ns = job->alive_ns = now_ns(s);
    job->n_flying--;
    count_flying(s, job, false, 1);
    if (s->n_flying == 0) s->cfg.meters->busy_ns += s->progress_ns - s->busy_since_ns;
    if (done->result > 0) {
        s->cfg.meters->read_bytes += (uint64_t)done->result;
        if (job->orphan) s->cfg.meters->wasted_bytes += (uint64_t)done->result;
    }
    judge_piece(s, job, piece, done->result);
    if (job->n_flying == 0 && job->unsent == 0) finish_job(s, index);
}

/* ---- lost reads ------------------------------------------------------------------------------ */

static void lose_job(rg_sched *s, rg_job *job) {
    job->lost = true;
    s->cfg.meters->lost_reads++;
    uint32_t p = 0; /* names the first piece that is not there */
    while (p + 1 < job->n_piece && job->pieces[p].done >= job->pieces[p].need)
        p++;
    set_error(&job->error, RG_FAULT_LOST, 0, &job->pieces[p]);
    fail_read(s, job);
}

/* QUEUED -> FAILED: what waits for a device that is silent, or for a slot that is lost. */
static void fail_waiting(rg_sched *s, uint32_t list, bool all) {
    for (uint32_t slot = s->lists[list].head, next; slot != RG_SLOT_NONE; slot = next) {
        rg_read *r = &s->reads[slot];
        next = r->next;
        const bool lost =
            rg_sched_is_lost(s, slot) || s->old_jobs[rg_arena_slab_of(s->cfg.arena, slot)] > 0;
        if (!all && !lost) continue;
        if (r->fence > s->retired_fence) continue; /* waits for a reader, not for the device */
        rg_item_part parts[RG_STREAM_EXTENTS_MAX];
        rg_items_parts(s->cfg.items, r->item, parts);
        r->error = (rg_read_error){.kind = RG_FAULT_LOST,
                                   .file = parts[0].file,
                                   .offset = parts[0].read_offset,
                                   .want = parts[0].payload_bytes};
        list_remove(s, slot);
        arrive(s, slot, RG_PHASE_FAILED);
    }
}

static void check_lost(rg_sched *s) {
    const uint64_t now = now_ns(s);
    const bool silent = now - s->progress_ns >= s->cfg.stall_ns;
    bool any = false;
    for (uint32_t j = 0; j < s->job_cap && s->n_job > 0; j++) {
        rg_job *job = &s->jobs[j];
        if (job->slot == RG_SLOT_NONE) continue;
        any = any || job->lost;
        if (job->lost || job->verifying) continue;
        if (job->landing) { /* what waits for its slot or place is told; the copy may end yet */
            if (now - job->alive_ns < s->cfg.stall_ns) continue;
            job->lost = any = true;
            continue;
        }
        if (job->n_flying == 0 ? !silent : now - job->alive_ns < s->cfg.stall_ns) continue;
        any = true;
        lose_job(s, job);
        if (job->n_flying == 0) release_job(s, j);
    }
    if (any) fail_waiting(s, LIST_BLOCKED, false);
    if (!silent) return;
    for (uint32_t list = LIST_URGENT; list <= LIST_BLOCKED; list++)
        fail_waiting(s, list, true);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

void rg_sched_step(rg_sched *s, uint64_t timeout_ns) {
    rg_io_done done[REAP_MAX];
    const uint32_t n = s->cfg.io->vtable->reap(s->cfg.io, done, REAP_MAX, timeout_ns);
    RG_ASSERT(n <= REAP_MAX);
    rg_sched_lock(s);
    for (uint32_t i = 0; i < n; i++)
        complete(s, &done[i]);
    check_lost(s);
    rg_sched_pump(s);
    rg_sched_unlock(s);
}

/* ---- validity -------------------------------------------------------------------------------- */

static bool job_is_valid(const rg_sched *s, uint32_t index, uint32_t *flying, uint32_t *ahead,
                         uint32_t *unsent) {
    const rg_job *job = &s->jobs[index];
    if (job->slot == RG_SLOT_NONE) return true;
    const rg_read *r = &s->reads[job->slot];
    if (!job->old_cut && r->job != index) return false;
    if (!job->orphan && (r->phase != RG_PHASE_FLIGHT || r->item != job->item)) return false;
    if (job->orphan && job->unsent) return false;
    if (job->n_flying + (uint32_t)__builtin_popcount(job->unsent) > job->n_piece) return false;
    *flying += job->n_flying;
    if (job->cls != RG_READ_URGENT) *ahead += job->n_flying;
    *unsent += (uint32_t)__builtin_popcount(job->unsent);
    return true;
}

bool rg_sched_is_valid(const rg_sched *s) {
    uint32_t flying = 0, ahead = 0, unsent = 0, in_flight = 0, n_job = 0;
    uint32_t listed[RG_READ_LISTS] = {0};
    for (uint32_t j = 0; j < s->job_cap; j++) {
        if (!job_is_valid(s, j, &flying, &ahead, &unsent)) return false;
        if (s->jobs[j].slot == RG_SLOT_NONE) continue;
        n_job++;
        if (!s->jobs[j].orphan) in_flight++;
    }
    if (flying != s->n_flying || ahead != s->n_flying_ahead || unsent != s->n_unsent) return false;
    if (n_job != s->n_job || flying > s->cfg.depth) return false;
    for (uint32_t i = 0; i < s->cfg.arena->n_slot; i++) {
        const rg_read *r = &s->reads[i];
        listed[r->list]++;
        if (r->phase == RG_PHASE_FLIGHT) {
            if (r->job == RG_JOB_NONE || s->jobs[r->job].orphan) return false;
            in_flight--;
        }
        const bool queued = r->list >= LIST_URGENT && r->list <= LIST_BLOCKED;
        if (queued != (r->phase == RG_PHASE_QUEUED)) return false;
        if (r->list == LIST_ARRIVED && !r->wanted) return false;
    }
    for (uint32_t l = LIST_URGENT; l < RG_READ_LISTS; l++)
        if (listed[l] != s->lists[l].count) return false;
    return in_flight == 0;
}

/* ---- thread ---------------------------------------------------------------------------------- */

/* Whether the thread may leave: nothing flies, or only what will never land. */
static bool may_stop(const rg_sched *s) {
    for (uint32_t j = 0; j < s->job_cap; j++)
        if (s->jobs[j].slot != RG_SLOT_NONE && !s->jobs[j].lost) return false;
    return true;
}

static void *io_thread(void *arg) {
    rg_sched *s = arg;
    rg_sched_lock(s);
    for (;;) {
        while (!s->stop && s->n_flying == 0 && !s->refused && !landing_is_awaited(s))
            pthread_cond_wait(&s->work, &s->lock);
        if (s->stop && may_stop(s)) break;
        const uint64_t timeout_ns = landing_is_awaited(s) ? LANDING_NS
                                    : s->refused          ? REFUSED_NS
                                                          : CHECK_NS;
        rg_sched_unlock(s);
        rg_sched_step(s, timeout_ns);
        rg_sched_lock(s);
    }
    rg_sched_unlock(s);
    return NULL;
}

bool rg_sched_arrived(rg_sched *s) {
    rg_sched_lock(s);
    const bool any = s->lists[LIST_ARRIVED].count > 0;
    rg_sched_unlock(s);
    return any;
}

bool rg_sched_wait(rg_sched *s, uint32_t *slot, rg_read_error *error) {
    rg_sched_lock(s);
    const uint64_t begin = now_ns(s);
    if (s->cfg.threaded && s->cfg.look_ns && s->lists[LIST_ARRIVED].count == 0) {
        rg_sched_unlock(s);
        rg_look(&s->n_arrived, s->cfg.look_ns);
        rg_sched_lock(s);
    }
    while (s->lists[LIST_ARRIVED].count == 0) {
        if (s->cfg.threaded) {
            pthread_cond_wait(&s->arrival, &s->lock);
        } else {
            rg_sched_unlock(s);
            rg_sched_step(s, REFUSED_NS);
            rg_sched_lock(s);
        }
    }
    *slot = s->lists[LIST_ARRIVED].head;
    rg_read *r = &s->reads[*slot];
    list_remove(s, *slot);
    RG_ASSERT(r->wanted);
    RG_ASSERT(r->phase == RG_PHASE_DONE || r->phase == RG_PHASE_FAILED);
    r->wanted = false;
    if (r->phase == RG_PHASE_FAILED) *error = r->error;
    const bool good = r->phase == RG_PHASE_DONE;
    s->cfg.meters->wait_ns += now_ns(s) - begin;
    rg_sched_unlock(s);
    return good;
}
