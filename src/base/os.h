/* The system below: files, memory, processors. One implementation file per system. */
#ifndef RG_BASE_OS_H
#define RG_BASE_OS_H

#include "base/status.h"

typedef struct rg_file {
    int fd; /* -1 when closed */
    uint64_t size_bytes;
} rg_file;

/* Opens a regular file for reading; anything else (directory, fifo) is INVALID. The size is taken
 * once, here. */
RG_MUST_CHECK rg_code rg_file_open(rg_file *out, const char *path, rg_status *st);
void rg_file_close(rg_file *f);
/* Reads exactly `len` bytes at `offset`; short reads are continued, EINTR retried. A range beyond
 * the end is FORMAT ("file ends at ..."), a system error IO. `name` is used in messages. */
RG_MUST_CHECK rg_code rg_file_read_at(const rg_file *f, void *dst, size_t len, uint64_t offset,
                                      const char *name, rg_status *st);
/* Asks the system to drop its cached pages of a file, so that reads come from the drive. Advice. */
void rg_file_forget(const rg_file *f);
/* Reads a whole file of at most `max_bytes` into a fresh rg_alloc buffer with a NUL behind it.
 * Works on pipes and standard input ("-") too. */
RG_MUST_CHECK rg_code rg_file_slurp(char **out, size_t *len, const char *path, size_t max_bytes,
                                    rg_status *st);

/* Reserves `size` bytes of zeroed anonymous memory, page aligned, asking for huge pages where the
 * system has them. Counted by rg_alloc's torture mode. */
RG_MUST_CHECK rg_code rg_mem_map(void **out, size_t size, rg_status *st);
void rg_mem_unmap(void *p, size_t size);
/* Gives the pages of a mapping back to the system; it reads as zeros afterwards. */
void rg_mem_release(void *p, size_t size);
/* Keeps the pages of a range in memory. The limit that stands in the way is named. */
RG_MUST_CHECK rg_code rg_mem_lock(void *p, size_t size, rg_status *st);

/* Bytes of the block behind a pointer of malloc; not NULL. */
size_t rg_heap_block_bytes(const void *p);

/* Processors this process may run on: physical cores where known, no more than a cgroup's quota
 * pays for; at least 1. */
int rg_cpu_count(void);
/* Bytes of memory that could be taken now without swapping (0 = unknown); respects cgroup limits,
 * page cache counted as free. */
uint64_t rg_mem_available_bytes(void);
/* Peak resident set of this process, bytes. */
uint64_t rg_rss_peak_bytes(void);
/* Page faults of this process that had to read a device. */
uint64_t rg_major_faults(void);

#endif
