/* Compute threads. One owner calls rg_pool_run; the workers have no state of their own.
 *
 * No work stealing: a run hands out [0, n) in fixed contiguous shares, one a thread, so that where
 * a task runs depends on n and the thread count alone. Results must not depend on either (the
 * charter).
 */
#ifndef RG_BASE_POOL_H
#define RG_BASE_POOL_H

#include "base/status.h"

typedef struct rg_pool rg_pool;

/* Works on tasks [begin, end). `thread` is 0 .. n_threads-1 and identifies scratch. */
typedef void rg_pool_fn(void *arg, size_t begin, size_t end, int thread);

/* `n_threads` in 1..RG_POOL_THREADS_MAX includes the caller. */
#define RG_POOL_THREADS_MAX 256
RG_MUST_CHECK rg_code rg_pool_create(rg_pool **out, int n_threads, rg_status *st);
void rg_pool_destroy(rg_pool *pool);
int rg_pool_threads(const rg_pool *pool);

/* Runs fn over [0, n) and returns when all shares are done. `grain` (>= 1): a thread's share is a
 * multiple of it, and fewer threads are used when n is small. Only the owner may call; not nested.
 */
void rg_pool_run(rg_pool *pool, size_t n, size_t grain, rg_pool_fn *fn, void *arg);

#endif
