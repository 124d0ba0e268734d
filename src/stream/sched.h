/* The reads: queues, jobs in flight, retries. See sched.c. */
#ifndef RG_STREAM_SCHED_H
#define RG_STREAM_SCHED_H

#include <pthread.h>
#include <stdatomic.h>

#include "stream/arena.h"
#include "stream/io.h"
#include "stream/items.h"

#define RG_PIECES_MAX 16u /* reads of one item */
#define RG_JOB_NONE   UINT32_MAX

typedef enum rg_read_class { RG_READ_URGENT, RG_READ_AHEAD, RG_READ_WARM } rg_read_class;

/* What the scheduler is doing for the owner of a slot. */
typedef enum rg_read_phase {
    RG_PHASE_IDLE,   /* nothing asked */
    RG_PHASE_QUEUED, /* in a queue, or blocked by limbo */
    RG_PHASE_FLIGHT,
    RG_PHASE_DONE,
    RG_PHASE_FAILED
} rg_read_phase;

typedef enum rg_read_fault {
    RG_FAULT_NONE,
    RG_FAULT_ERRNO,
    RG_FAULT_END, /* the file ends too early */
    RG_FAULT_CHECKSUM,
    RG_FAULT_LOST,   /* no answer within stall_ns */
    RG_FAULT_LANDING /* the device does not copy it to its slot; why: sched.landing_failed */
} rg_read_fault;

typedef struct rg_read_error {
    uint8_t kind; /* rg_read_fault */
    int32_t sys_errno;
    uint32_t file;
    uint64_t offset;
    uint64_t got, want; /* bytes, or checksums */
} rg_read_error;

/* One per slot. Guarded by the lock. */
typedef struct rg_read {
    uint32_t item;
    uint32_t prev, next; /* in the list named by `list` */
    uint32_t job;        /* in flight into this slot, of this owner or of one before; or NONE */
    uint32_t filled;     /* null mode: the item whose bytes lie here, or RG_ITEM_NONE */
    uint64_t fence;      /* readers of the old bytes retire with this number */
    uint64_t ticket;     /* DONE, with a landing: the copy that brings the bytes */
    uint8_t phase;       /* rg_read_phase */
    uint8_t cls;         /* rg_read_class */
    uint8_t list;        /* RG_LIST_... of sched.c */
    bool wanted;         /* a turn waits for it */
    rg_read_error error; /* FAILED */
} rg_read;

typedef struct rg_read_list {
    uint32_t head, tail, count;
} rg_read_list;

typedef struct rg_piece {
    uint32_t file;
    uint32_t bytes; /* aligned */
    uint32_t need;  /* of them before the end of the payload */
    uint32_t done;
    uint64_t offset;
    uint64_t slot_offset;
    uint32_t busy_again; /* transient refusals */
} rg_piece;

typedef struct rg_job {
    uint32_t slot; /* RG_SLOT_NONE: unused */
    uint32_t item;
    uint32_t slab;
    uint32_t n_piece;
    uint32_t unsent;   /* bit per piece */
    uint32_t n_flying; /* pieces at the device */
    uint32_t attempts; /* failures so far */
    uint32_t next_free;
    uint8_t cls;
    bool orphan;  /* its owner left */
    bool old_cut; /* the slab changed class since */
    bool lost;
    bool verifying;  /* or being handed over for its copy: the lock is given up meanwhile */
    bool landing;    /* its copy is under way; the slot is its owner's already */
    uint64_t ticket; /* of that copy */
    rg_read_error error;
    uint64_t alive_ns; /* a piece was sent or answered last */
    char *slot_data;   /* of the slot */
    char *data;        /* where reads go: the same, or the job's place of staging memory */
    rg_piece pieces[RG_PIECES_MAX];
} rg_job;

typedef struct rg_sched_config {
    rg_io *io;
    const rg_arena *arena; /* for slot addresses, called under the lock by the worker only */
    const rg_items *items;
    rg_stream_meters *meters; /* physical counts; guarded by the lock */
    uint32_t depth, reserve, retries_max, read_bytes_max;
    uint64_t stall_ns, look_ns;
    bool null_reads;
    bool threaded;                    /* an I/O thread reaps; else the waiting thread does */
    const rg_stream_landing *landing; /* NULL: reads go to the slots */
} rg_sched_config;

#define RG_READ_LISTS 6u

typedef struct rg_sched {
    rg_sched_config cfg;
    pthread_mutex_t lock;
    pthread_cond_t work;    /* something is in flight, or stop */
    pthread_cond_t arrival; /* the arrived list is not empty */
    pthread_t thread;
    bool has_lock, has_thread;
    atomic_uint n_arrived; /* entries of the arrived list, for those who look without the lock */
    /* All below: the lock. */
    bool stop;
    bool decode;        /* the reserve for urgent reads is in force */
    bool refused;       /* the device took fewer than offered; try again later */
    rg_read *reads;     /* [n_slot] */
    char **address;     /* [n_slot] of the slot, set with each read */
    void *hash_state;   /* XXH3 of parts; whoever finishes jobs, one thread at a time */
    uint32_t *old_jobs; /* [n_slab] jobs in flight from before the slab changed class */
    rg_job *jobs;       /* [job_cap] */
    uint32_t job_cap;
    uint32_t job_free;
    uint32_t n_job;
    uint32_t n_landing;       /* of them, those whose copy is under way */
    rg_status landing_failed; /* why the first copy was refused */
    uint32_t n_unsent;        /* pieces of live jobs not at the device */
    uint32_t n_flying, n_flying_ahead;
    rg_read_list lists[RG_READ_LISTS];
    uint32_t urgent_blocked;
    uint64_t retired_fence;
    uint64_t busy_since_ns;
    uint64_t progress_ns; /* last sign of life of the device, or since when it is asked */
} rg_sched;

RG_MUST_CHECK rg_code rg_sched_init(rg_sched *out, const rg_sched_config *config, rg_status *st);
/* Stops the thread once nothing is in flight, or the device is given up. The device is closed by
 * its owner, after this. */
void rg_sched_deinit(rg_sched *s);

void rg_sched_lock(rg_sched *s);
void rg_sched_unlock(rg_sched *s);

/* ---- under the lock -------------------------------------------------------------------------- */

/* Queues the read of an item into its slot (phase IDLE -> QUEUED; null mode may give DONE). */
void rg_sched_read(rg_sched *s, uint32_t slot, uint32_t item, rg_read_class cls);
/* A turn wants the slot: true when its bytes are there; else it will arrive, as urgent. */
bool rg_sched_want(rg_sched *s, uint32_t slot);
/* The turn gave up; the read goes on. */
void rg_sched_unwant(rg_sched *s, uint32_t slot);
/* The owner leaves (any phase -> IDLE): cancels what has not started, orphans what has. */
void rg_sched_drop(rg_sched *s, uint32_t slot);
/* A slab is about to change class; its slots were dropped. */
void rg_sched_recut(rg_sched *s, uint32_t first_slot, uint32_t n_slot);
/* The slot may not be refilled before the fence retires. */
void rg_sched_fence(rg_sched *s, uint32_t slot, uint64_t fence);
void rg_sched_retire(rg_sched *s, uint64_t fence);
/* A read into the slot never came back (yet). */
bool rg_sched_is_lost(const rg_sched *s, uint32_t slot);
/* Nothing reads into the slot. */
bool rg_sched_is_quiet(const rg_sched *s, uint32_t slot);
/* Hands the device as much as it takes. */
void rg_sched_pump(rg_sched *s);

/* ---- without the lock ------------------------------------------------------------------------ */

/* Blocks until a wanted slot has arrived; false when it failed, then *error. */
bool rg_sched_wait(rg_sched *s, uint32_t *slot, rg_read_error *error);
bool rg_sched_arrived(rg_sched *s);
/* One round of reaping; the I/O thread's loop and the tests' clock. */
void rg_sched_step(rg_sched *s, uint64_t timeout_ns);

/* Walks everything; under the lock. */
bool rg_sched_is_valid(const rg_sched *s);

#endif
