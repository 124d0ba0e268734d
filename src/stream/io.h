/* A device that reads: the boundary below the scheduler. Implementations: io_uring, pread threads,
 * the fault wrapper, and the virtual disk of tests/sim.
 *
 * Threads: submit is called under the scheduler's lock, by any thread; reap by one thread at a
 * time, without the lock, also while another thread submits. close: no other call in flight; after
 * it no byte of the destination memory is written any more.
 */
#ifndef RG_STREAM_IO_H
#define RG_STREAM_IO_H

#include "stream/stream.h"

typedef struct rg_io_op {
    void *dst;       /* aligned to RG_STREAM_ALIGN; valid until the op is reaped */
    uint64_t offset; /* aligned */
    uint64_t tag;    /* comes back in rg_io_done */
    uint32_t bytes;  /* aligned; may reach beyond the end of the file */
    uint32_t file;
} rg_io_op;

typedef struct rg_io_done {
    uint64_t tag;
    int64_t result; /* bytes read, 0 at the end of the file, or -errno */
} rg_io_done;

typedef struct rg_io_vtable {
    /* Starts ops[0..r) and returns r <= n; fewer than n: the device takes no more now. Never blocks
     * on the device. */
    uint32_t (*submit)(rg_io *io, const rg_io_op *ops, uint32_t n);
    /* Up to `max` finished ops; waits for the first one, at most timeout_ns. */
    uint32_t (*reap)(rg_io *io, rg_io_done *out, uint32_t max, uint64_t timeout_ns);
    uint64_t (*now_ns)(rg_io *io);
    void (*close)(rg_io *io);
} rg_io_vtable;

struct rg_io {
    const rg_io_vtable *vtable;
};

/* ---- files ----------------------------------------------------------------------------------- */

typedef struct rg_io_file {
    int fd;
    bool direct; /* opened with O_DIRECT, and a probe read worked */
    uint64_t size_bytes;
} rg_io_file;

typedef struct rg_io_files {
    rg_io_file *files; /* [n] */
    uint32_t n, n_direct;
} rg_io_files;

RG_MUST_CHECK rg_code rg_io_files_open(rg_io_files *out, const char *const *paths, uint32_t n,
                                       rg_stream_direct direct, rg_status *st);
void rg_io_files_close(rg_io_files *f);

/* ---- devices --------------------------------------------------------------------------------- */

typedef struct rg_io_config {
    const rg_io_files *files; /* borrowed until close */
    void *memory;             /* all destinations lie in it; registered where possible */
    uint64_t memory_bytes;
    uint64_t block_bytes; /* a destination never straddles a multiple of this (a slab) */
    uint32_t depth;
    uint64_t look_ns; /* rg_stream_options */
    bool staged;      /* pread: direct reads pass through memory of the readers */
} rg_io_config;

/* *name gets a static text of what was set up. */
RG_MUST_CHECK rg_code rg_io_uring_open(rg_io **out, const rg_io_config *config, const char **name,
                                       rg_status *st);
RG_MUST_CHECK rg_code rg_io_pread_open(rg_io **out, const rg_io_config *config, const char **name,
                                       rg_status *st);
/* Owns `inner` from then on; on failure the caller keeps it. */
RG_MUST_CHECK rg_code rg_io_fault_open(rg_io **out, rg_io *inner, const rg_stream_faults *faults,
                                       uint32_t depth, rg_status *st);
/* NULL is allowed. */
void rg_io_close(rg_io *io);

#endif
