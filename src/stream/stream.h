/* stream: expert slots, cache, reads and read-ahead. Sees items (experts), groups (layers), extents
 * of files and slots of memory; never a tensor. Includes base only.
 *
 * The promise of this room: which wanted items are hits, and which items the directory holds, is a
 * pure function of the sequence of calls below (begin, wave_next, end, ahead, touch, warm) and of
 * the options. The speed of the drive, retries, backends and threads change how long a wait takes
 * and nothing else. (The one exception is a read that failed or never came back: its item leaves.)
 *
 * Threads: every function here belongs to one thread, the engine's worker, except
 * rg_stream_meters_get and rg_stream_retire, which any thread may call. The stream owns the threads
 * that read. No function but wait blocks; none but create allocates.
 *
 * A window of the engine (a decode step or a prefill chunk) drives it like this:
 *
 *     for each layer:
 *         rg_stream_begin(s, layer, unique items of all rows, n, mode, &turn)
 *         loop over waves:
 *             compute turn->ready[], rg_stream_release each (optional, see release)
 *             rg_stream_ahead(s, next layer, guesses ranked, n, cap, mode)      (once, any time)
 *             turn->n_pending times: rg_stream_wait(s, &item), compute it
 *             until rg_stream_wave_next(s) says there is none
 *         rg_stream_end(s, fence)
 *     rg_stream_touch(s, items of the accepted rows in (layer, row, k) order, n)
 */
#ifndef RG_STREAM_H
#define RG_STREAM_H

#include "base/base.h"

#define RG_STREAM_EXTENTS_MAX 3u
#define RG_STREAM_GROUPS_MAX  1024u
#define RG_STREAM_ITEMS_MAX   (1u << 20)
#define RG_STREAM_FILES_MAX   256u
#define RG_STREAM_DEPTH_MAX   256u
#define RG_STREAM_CLASSES_MAX 8u
#define RG_STREAM_RANKS       32u   /* read-ahead is metered by rank below this; the rest as last */
#define RG_STREAM_ALIGN       4096u /* of direct reads: file offset, length and memory */

typedef struct rg_stream rg_stream;
typedef struct rg_io rg_io; /* stream/io.h, private */

/* ---- what can be read ------------------------------------------------------------------------ */

/* Where one part of every item of a group lies: item i's part is
 * [offset + i * stride, offset + i * stride + bytes) of the file. */
typedef struct rg_stream_extent {
    uint32_t file; /* index into rg_stream_options.paths */
    uint32_t bytes;
    uint64_t offset;
    uint64_t stride;
} rg_stream_extent;

/* A group of equal items. Both containers of experts are regular: a GGUF tensor holds the experts
 * of a layer back to back, and a pack gives every expert of a layer the same aligned length. So a
 * base and a stride per part describe 512 experts exactly, the whole table of a 48 x 512 model is
 * 49 of these (5 KB), and no callback runs on the I/O path. Only checksums need an array. */
typedef struct rg_stream_group {
    uint32_t n_item;
    uint32_t n_extent; /* 1 (pack) .. RG_STREAM_EXTENTS_MAX (plain GGUF: gate, up, down) */
    rg_stream_extent extents[RG_STREAM_EXTENTS_MAX];
    /* [n_item] XXH3-64 of an item's payload bytes, its extents in order; NULL: none. Borrowed for
     * the life of the stream. */
    const uint64_t *checksums;
} rg_stream_group;

/* Items have dense ids: those of group 0 first, then those of group 1, and so on. So expert e of
 * group g is rg_stream_item(s, g, e). */

/* ---- options --------------------------------------------------------------------------------- */

typedef enum rg_stream_backend {
    RG_STREAM_AUTO,  /* io_uring, or pread where io_uring is refused (the log says why) */
    RG_STREAM_URING, /* UNSUPPORTED where it is refused */
    RG_STREAM_PREAD,
} rg_stream_backend;

typedef enum rg_stream_direct {
    RG_DIRECT_AUTO, /* O_DIRECT on every file whose file system takes it, else buffered */
    RG_DIRECT_ON,   /* UNSUPPORTED when a file cannot */
    RG_DIRECT_OFF,
} rg_stream_direct;

typedef enum rg_stream_policy {
    RG_POLICY_LRU,  /* global least recently used: the default */
    RG_POLICY_SLRU, /* segmented: a second use moves an item to the protected level */
    RG_POLICY_LFU,  /* levels by decayed use count, least recently used within a level */
    RG_POLICY_COUNT
} rg_stream_policy;

/* Faults injected between the scheduler and the backend, for tests and for a hidden option. Each
 * read draws from (seed, its number); chances are per thousand reads. */
typedef struct rg_stream_faults {
    uint64_t seed;
    uint32_t eio_permille;
    uint32_t short_permille;
    uint32_t flip_permille; /* one bit of the bytes read is flipped */
    uint32_t stall_permille;
    uint32_t stall_ms_max; /* a stalled read comes back 1..this many ms late */
    uint32_t eio_burst;    /* after an EIO this many further reads fail too; beats the retries */
} rg_stream_faults;

/* A drive that holds no data, with a clock of its own, for simulations: the same calls give the
 * same hits as on a real drive, and times follow this model. A read takes the bus for bytes /
 * bytes_per_s after the reads before it, then latency_ns, and for tail_permille of the reads up to
 * tail_ns more. */
typedef struct rg_stream_virtual {
    uint64_t seed;
    uint64_t latency_ns;
    uint64_t bytes_per_s; /* 0: infinite */
    uint64_t tail_ns;
    uint32_t tail_permille;
} rg_stream_virtual;

/* Slots that no processor and no drive can write to: memory of a device. A read lands in one of
 * n_place places of staging memory; when it is complete, and its checksum right, the device is told
 * to copy the place to the slot, and the item counts as there. So its readers, on the same device,
 * wait for the copy: rg_stream_ticket. A place is taken again when its copy is done.
 *
 * With it `memory` of the options only names the slots: nothing here reads or writes it, slots are
 * not poisoned, and rg_stream_payload gives addresses of the device. */
typedef struct rg_stream_landing {
    void *user;
    void *staging;    /* [n_place][place_bytes], aligned to RG_STREAM_ALIGN, outlives the stream */
    uint32_t n_place; /* rg_stream_places */
    uint64_t place_bytes; /* slot_bytes_max of the layout */
    /* Queues the copy of the first `bytes` of a place to byte `offset` of the arena. *ticket: 1 or
     * more, larger each time; copies end in that order. On failure nothing was queued. Called by
     * one thread at a time. */
    rg_code (*copy)(void *user, uint32_t place, uint64_t offset, uint64_t bytes, uint64_t *ticket,
                    rg_status *st);
    /* Up to which ticket copies are done; UINT64_MAX: none is under way any more. Called under a
     * lock, does not block. */
    uint64_t (*done)(void *user);
} rg_stream_landing;

/* Places that a stream with `depth` reads in flight (0: the default) asks for. */
uint32_t rg_stream_places(uint32_t depth);

typedef struct rg_stream_options {
    const char *const *paths; /* [n_file]; also the names in messages. Copied. */
    uint32_t n_file;
    const rg_stream_group *groups; /* [n_group]. Copied, except the checksums. */
    uint32_t n_group;
    /* What a group and an item are called in messages; NULL: "group", "item". Static strings. */
    const char *group_noun, *item_noun;

    /* The arena: bytes of slots, never exceeded. Taken with rg_mem_map, or handed in: `memory` is
     * then at least budget_bytes long, aligned to RG_STREAM_ALIGN, zeroed, and outlives the stream.
     */
    uint64_t budget_bytes;
    void *memory;
    const rg_stream_landing *landing; /* NULL: reads land in the slots. Copied. */

    rg_stream_backend backend;
    rg_stream_direct direct;
    /* No drive can write to `memory`, a processor can: reads by pread, direct ones through memory
     * of the readers. */
    bool staged;
    uint32_t depth; /* reads in flight; 0: 32 */
    /* So long threads look for what they wait for before they sleep: that saves their waking, tens
     * of microseconds a miss, for three busy cores while a device computes; 0: they sleep. */
    uint64_t look_ns;
    uint32_t urgent_reserve; /* of them kept for urgent reads in decode; 0: a quarter of depth */
    uint32_t read_bytes_max; /* longer parts are split into reads of this size; 0: never split */
    uint32_t retries_max;    /* failed, empty or mis-summed reads are repeated this often; 0: 3 */
    uint32_t stall_ms_max;   /* a read longer in flight than this counts as lost; 0: 30,000 */
    bool null_reads; /* `--io null`: everything wanted is a hit. The first read into a slot is made
                        (then it is pending), so that its bytes are plausible; later ones are
                        skipped and the slot keeps the bytes of another item of the same shape.
                        No read-ahead. Answers are wrong. */
    const rg_stream_faults *faults; /* NULL: none. Copied. */

    rg_stream_policy policy;
    bool guard_off; /* without the guess guard: a guess may evict any item it may reach */
    /* Read-ahead depth in decode: >= 0 fixed, < 0: the governor moves it, starting at 6. */
    int32_t lookahead;
    uint32_t ahead_cost_permille; /* a rank pays when this share of its guesses is wanted; 0: 300 */
    bool poison; /* fill evicted slots with NaN patterns; always on in debug builds */

    /* Simulation: this instead of the files, which are not opened; slots are never written, their
     * memory is only reserved. Time passes in rg_stream_wait and rg_stream_advance. Copied. */
    const rg_stream_virtual *virtual_drive;
    /* Tests: a device of their own, borrowed, driven by the calling thread. */
    rg_io *io;
} rg_stream_options;

/* What the groups ask of an arena. */
typedef struct rg_stream_layout {
    uint32_t n_class;
    uint64_t class_bytes[RG_STREAM_CLASSES_MAX]; /* a slot of each class, ascending */
    uint64_t slot_bytes_max;                     /* of the largest class */
    uint64_t slot_bytes_all;                     /* every item in a slot: nothing is ever evicted */
} rg_stream_layout;

/* Pure; INVALID when a group is malformed. A slot holds an item's parts one after another, each as
 * the aligned superset of its extent. Group sizes within 1/32 share a class. */
RG_MUST_CHECK rg_code rg_stream_layout_of(rg_stream_layout *out, const rg_stream_group *groups,
                                          uint32_t n_group, rg_status *st);
/* The legal minimum: n_used + 1 slots of the largest class. The caller refuses less; create itself
 * asks for two slots only. */
uint64_t rg_stream_min_bytes(const rg_stream_layout *layout, uint32_t n_used);

/* ---- life ------------------------------------------------------------------------------------ */

/* Opens the files, takes the arena, starts the I/O threads. Checks every extent against its file's
 * length (FORMAT: file, group, item and both numbers). On failure *out is NULL. */
RG_MUST_CHECK rg_code rg_stream_create(rg_stream **out, const rg_stream_options *options,
                                       rg_status *st);
/* Waits for the reads in flight. NULL is allowed. */
void rg_stream_destroy(rg_stream *s);

uint32_t rg_stream_item(const rg_stream *s, uint32_t group, uint32_t index);
uint32_t rg_stream_group_of(const rg_stream *s, uint32_t item);
/* What was chosen: "io_uring, direct, registered buffers", "pread, buffered", ... Static string. */
const char *rg_stream_backend_name(const rg_stream *s);
bool rg_stream_direct_all(const rg_stream *s); /* every file is read with O_DIRECT */
/* Slots if the whole arena were of the largest class. */
uint32_t rg_stream_slots(const rg_stream *s);

/* ---- a turn ---------------------------------------------------------------------------------- */

typedef enum rg_stream_mode { RG_MODE_DECODE, RG_MODE_PREFILL } rg_stream_mode;

/* The items of the current wave; every one of them is in exactly one of the lists and pinned. Lists
 * are in wanted order, borrowed until the next wave_next or end. */
typedef struct rg_turn {
    const uint32_t *ready; /* bytes are there */
    uint32_t n_ready;
    const uint32_t *pending; /* bytes still come: misses, and read-aheads that are late */
    uint32_t n_pending;
    uint32_t n_hit;  /* of this wave, late ones included; n_ready + n_pending - n_hit are misses */
    uint32_t wave;   /* from 0 */
    uint32_t n_left; /* items that later waves will bring */
} rg_turn;

/* Starts the turn of `group`: drops every read-ahead of this group that is not in items[] (started
 * or not), pins the wanted residents, claims slots for the misses and queues their reads as urgent.
 * Never waits. items[n] are unique and of this group, n >= 1, most urgent first. When the union
 * exceeds the arena the turn has waves: the first holds the wanted residents and as many misses as
 * fit. IO when so many slots are lost to reads that never came back that not one item fits; then no
 * turn is open. One turn at a time. */
RG_MUST_CHECK rg_code rg_stream_begin(rg_stream *s, uint32_t group, const uint32_t *items,
                                      uint32_t n, rg_stream_mode mode, const rg_turn **turn,
                                      rg_status *st);
/* Blocks until the next pending item of the wave has arrived and gives it in *item, in order of
 * arrival; call it n_pending times a wave at most. A failed item is given with its error (IO,
 * FORMAT for a truncated file or a wrong checksum, TIMEOUT; the message names file, offset, group
 * and item); it has no payload and leaves the directory at end. Others of the wave still arrive. */
RG_MUST_CHECK rg_code rg_stream_wait(rg_stream *s, uint32_t *item, rg_status *st);
/* Whether wait would return at once. */
bool rg_stream_arrived(rg_stream *s);
/* Part `extent` of a pinned, arrived item. Valid until the wave ends. Aligned as the part's offset
 * in its file is, modulo RG_STREAM_ALIGN: a pack's payload is page aligned, a GGUF tensor's expert
 * i is aligned like tensor offset + i * expert bytes (32 for whole tensors, as little as 2 inside).
 */
const void *rg_stream_payload(const rg_stream *s, uint32_t item, uint32_t extent);
/* With a landing: the copy that brings the bytes of a pinned, arrived item; it may be done long
 * since. 0 without one. */
uint64_t rg_stream_ticket(rg_stream *s, uint32_t item);
/* Next wave of the turn; false when there is none, or when it cannot be made (then *st holds IO,
 * the wave is empty and the turn wants its end). Every pending item of the wave should have been
 * waited for: those that were not are given up, as at end. Readers of the old wave's slots have
 * finished, or `fence` names them (see end). */
bool rg_stream_wave_next(rg_stream *s, uint64_t fence, rg_status *st);
/* Ends the turn, also early (a failure, a client that left): unpins; failed items are dropped;
 * reads nobody waited for finish in the background and stay. `fence`: 0 when all readers of the
 * slots are done (a CPU engine). Otherwise the slots stay in limbo, never refilled, until
 * rg_stream_retire of that number: a device's timeline. Fences never decrease. */
void rg_stream_end(rg_stream *s, uint64_t fence);
void rg_stream_retire(rg_stream *s, uint64_t fence);

/* ---- between turns --------------------------------------------------------------------------- */

/* Reads ahead for `group`, the next to begin: items[n] ranked, best guess first, rank = index.
 * Those not in the directory get a slot and are queued behind all urgent reads. Only the first
 * `cap` ranks are read (UINT32_MAX: no cap); in decode also no more than the governor's depth; but
 * all n are counted, read or not, so that the governor knows what each rank is worth. Victims:
 * never an item of the group in flight or of `group`, never an item used in this window, and
 * (decode, unless guard_off) never one warmer than the guess. Returns how many were queued. May be
 * called inside a turn or between turns. */
uint32_t rg_stream_ahead(rg_stream *s, uint32_t group, const uint32_t *items, uint32_t n,
                         uint32_t cap, rg_stream_mode mode);

/* Whether guesses for `group` could bring anything now: not when the directory holds all of it,
 * nor, in decode, while the governor reads nothing ahead, but for one window in eight, by which it
 * learns when that changes. For callers to whom a guess costs work; rg_stream_ahead need not be
 * called when this is false. */
bool rg_stream_wants_guesses(const rg_stream *s, uint32_t group, rg_stream_mode mode);

/* Closes a window, after verification: items of the accepted rows in (layer, row, k) order,
 * repetitions welcome. Refreshes recency and use counts in that order; items that were read in this
 * window and are not named rank as unused read-aheads (the next victims); then, after decode turns,
 * the governor moves the depth. Prefill may close a window after every turn. A window that failed
 * is closed with n = 0. Not inside a turn. */
void rg_stream_touch(rg_stream *s, const uint32_t *items, uint32_t n);
/* Read-ahead depth now in force (for the trace); changes inside touch only. */
uint32_t rg_stream_lookahead(const rg_stream *s);

/* Fills free slots with items[n], warmest first, in the background, behind everything else. Evicts
 * nothing. Returns how many were taken. */
uint32_t rg_stream_warm(rg_stream *s, const uint32_t *items, uint32_t n);
/* Whether the directory holds the item (ready or not). For tests and traces; routers must not ask.
 */
bool rg_stream_holds(const rg_stream *s, uint32_t item);
/* Forgets every item and its history; a cold start. Not inside a turn. */
void rg_stream_clear(rg_stream *s);

/* Simulation: lets time pass (computing) while reads go on; and the time. */
void rg_stream_advance(rg_stream *s, uint64_t ns);
uint64_t rg_stream_now_ns(const rg_stream *s);

/* ---- meters ---------------------------------------------------------------------------------- */

typedef struct rg_stream_meters {
    /* Logical: functions of the calls alone. */
    uint64_t hits, misses; /* of wanted items */
    uint64_t evictions;    /* slots taken from an item for another; dropped guesses not counted */
    uint64_t waves;        /* beyond the first of a turn */
    uint64_t slab_moves;   /* slabs given to another class */
    uint64_t ahead_useful[RG_STREAM_RANKS]; /* read ahead and wanted, by rank (decode) */
    uint64_t ahead_wasted[RG_STREAM_RANKS]; /* read ahead and not */
    uint64_t ahead_useful_prefill, ahead_wasted_prefill;
    uint64_t guess_wanted[RG_STREAM_RANKS]; /* guesses not held when made, read or not, by rank */
    uint64_t guess_total[RG_STREAM_RANKS];
    uint64_t ahead_refused; /* guesses without a slot: guard, avoided groups */
    uint64_t evict_steps;   /* list nodes and groups looked at to find victims */
    /* Physical: depend on time. */
    uint64_t late;         /* hits whose bytes were still on their way */
    uint64_t cancels;      /* reads dropped before they started */
    uint64_t orphans;      /* reads dropped after they started */
    uint64_t reads;        /* items read completely */
    uint64_t read_bytes;   /* that came from the drive, wasted and repeated ones included */
    uint64_t wasted_bytes; /* of them for items nobody wanted */
    uint64_t retries, read_errors, checksum_errors, lost_reads;
    uint64_t wait_ns; /* spent in rg_stream_wait */
    uint64_t busy_ns; /* with at least one read in flight: read_bytes / busy_ns is the rate */
    uint64_t in_flight_peak;
    uint64_t copies, copied_bytes; /* from staging to slots; with a landing */
    /* Sizes. */
    uint64_t arena_bytes;      /* the budget as cut into slabs */
    uint64_t arena_peak_bytes; /* of slots held at once */
    uint64_t slots_used, slots_lost;
} rg_stream_meters;

void rg_stream_meters_get(const rg_stream *s, rg_stream_meters *out);
/* Counts from zero again; sizes stay. Worker only. */
void rg_stream_meters_reset(rg_stream *s);

#endif
