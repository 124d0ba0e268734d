/* Rows of the n-gram table (PLE), read from the file while other work goes on.
 *
 * A window asks for all its rows at once, does something else, and joins. Rows that a bounded cache
 * holds are not read again; those missing are sorted by their place in the file, so that rows of
 * one page share a read, and read by a few threads that sleep otherwise. A table small enough is
 * simply loaded.
 *
 * Sees rows of bytes only. What a row holds never depends on cache or timing: rows are constants.
 *
 * Threads: one worker owns a reader; rg_ple_reader_meters_get may be called by any thread. The
 * threads that read write into slots of the reader, never into memory of the caller, so a window
 * that breaks off between request and join leaves nothing dangling.
 */
#ifndef RG_ENGINE_PLE_READER_H
#define RG_ENGINE_PLE_READER_H

#include <sys/types.h>

#include "base/base.h"
#include "stream/stream.h"

#define RG_PLE_THREADS_MAX   16u
#define RG_PLE_WANT_MAX      (1u << 24)          /* rows of one request */
#define RG_PLE_CACHE_DEFAULT ((uint64_t)8 << 20) /* bytes */

typedef struct rg_ple_reader rg_ple_reader;

/* As pread. */
typedef ssize_t rg_ple_read(void *user, int fd, void *dst, size_t bytes, off_t offset);

typedef struct rg_ple_reader_options {
    const char *path;
    uint64_t offset; /* of row 0 in the file */
    uint64_t n_row;
    size_t row_bytes;
    uint32_t n_want_max;  /* rows of one request at most, repetitions counted */
    uint64_t cache_bytes; /* slots and their bookkeeping; raised to what one request needs */
    bool resident;        /* the whole table is loaded */
    rg_stream_direct direct;
    uint32_t n_thread;    /* 0: RG_PLE_THREADS_MAX */
    uint32_t retries_max; /* failed reads are repeated this often; 0: 3 */
    bool null_reads; /* a slot is read once; later rows find the bytes of another (wrong answers) */
    const rg_stream_faults *faults; /* NULL: none. Copied. Bits are not flipped: rows have no
                                       checksum that would tell. */
    rg_ple_read *read;              /* tests; NULL: pread */
    void *read_user;
} rg_ple_reader_options;

/* Memory that a reader with these options takes, thread buffers included. */
uint64_t rg_ple_reader_bytes(const rg_ple_reader_options *opt);

/* FORMAT when the file ends before the table does. On failure *out is NULL. */
RG_MUST_CHECK rg_code rg_ple_reader_create(rg_ple_reader **out, const rg_ple_reader_options *opt,
                                           rg_status *st);
/* Waits for reads under way. NULL is allowed. */
void rg_ple_reader_destroy(rg_ple_reader *r);

/* Where the caller writes the row numbers of its next request. [n_want_max] */
uint64_t *rg_ple_reader_wants(rg_ple_reader *r);
/* Starts the reads for wants[0..n). Does not wait, except for what an earlier request that was not
 * joined has under way: it is cancelled. INVALID for a row outside the table. */
RG_MUST_CHECK rg_code rg_ple_reader_request(rg_ple_reader *r, uint32_t n, rg_status *st);
/* Waits until all rows are there. IO or FORMAT, naming file, offset and row, when one cannot be
 * read: none of the request's rows may be looked at then, and the next request starts anew. */
RG_MUST_CHECK rg_code rg_ple_reader_join(rg_ple_reader *r, rg_status *st);
/* Gives up a request that was not joined: reads under way end, those not started do not start. */
void rg_ple_reader_cancel(rg_ple_reader *r);
/* Bytes of the i-th wanted row; valid from join to the next request. Any thread. */
const uint8_t *rg_ple_reader_row(const rg_ple_reader *r, uint32_t i);

typedef struct rg_ple_meters {
    uint64_t wanted;     /* rows, repetitions counted */
    uint64_t hits;       /* of them in the cache before, or loaded */
    uint64_t shared;     /* of them read for another of the same request */
    uint64_t reads;      /* calls that read, repeated ones included */
    uint64_t read_bytes; /* that came from the file */
    uint64_t retries, errors;
    uint64_t wait_ns; /* spent in join */
    uint32_t n_slot;
} rg_ple_meters;
void rg_ple_reader_meters_get(rg_ple_reader *r, rg_ple_meters *out);

bool rg_ple_reader_direct(const rg_ple_reader *r);
uint64_t rg_ple_reader_memory(const rg_ple_reader *r);

#endif
