/* The one door to the heap. Every allocation of the program goes through here, so that tests can
 * fail the n-th one (torture) and a debug guard can forbid allocation in the token loop.
 */
#ifndef RG_BASE_ALLOC_H
#define RG_BASE_ALLOC_H

#include "base/status.h"

/* count * size bytes, zeroed; NULL and a NOMEM status when the product overflows or memory is out.
 * A product of zero bytes gives a valid pointer. Release with rg_free. */
void *rg_alloc(size_t count, size_t size, rg_status *st);

/* Grows or shrinks an array made by rg_alloc (or NULL) to count * size bytes; new bytes are not
 * zeroed. On failure returns NULL and the old array stays valid. */
void *rg_realloc(void *old, size_t count, size_t size, rg_status *st);

/* As rg_alloc, aligned to `align` (a power of two, at least sizeof(void *)). Release with rg_free.
 */
void *rg_alloc_aligned(size_t align, size_t size, rg_status *st);

/* A NUL-terminated copy of `len` bytes. Release with rg_free. */
char *rg_strndup(const char *s, size_t len, rg_status *st);

/* NULL is allowed. */
void rg_free(void *p);

/* Torture: the n-th allocation from now on (1 = the next one) fails, and each one after it too when
 * `sticky`. 0 switches the mode off. Process-wide, for tests. */
void rg_alloc_fail_at(uint64_t n, bool sticky);

/* Number of allocations since the start of the process. */
uint64_t rg_alloc_count(void);

/* Heap bytes held now, and the most held at once since the last reset, as the system's allocator
 * rounds them. Process-wide; exact while one thread allocates. */
uint64_t rg_alloc_live_bytes(void);
uint64_t rg_alloc_peak_bytes(void);
/* The peak becomes what is live now. */
void rg_alloc_peak_reset(void);

/* Between enter and leave the calling thread must not allocate: an attempt is a failed assertion in
 * debug builds and is ignored in release builds. Nests. */
void rg_alloc_guard_enter(void);
void rg_alloc_guard_leave(void);

#endif
