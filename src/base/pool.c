/* The pool: a sequence number starts a run, a counter ends it.
 *
 * Hand-over: the owner writes the job, then bumps `epoch` (release) and wakes sleepers. A worker
 * that sees the new epoch (acquire) reads the job, does its share, then decrements `left`
 * (release). The owner does share 0 itself and waits for `left` to be zero (acquire). Both sides
 * spin a bounded number of turns before they sleep on the condition variable.
 *
 * Fields by guard: `epoch`, `left` atomic; `job` written by the owner between runs only; `stop`,
 * `sleepers` under `lock`.
 */
#include "base/pool.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/look.h"

#define SPIN_TURNS 2000

typedef struct pool_job {
    rg_pool_fn *fn;
    void *arg;
    size_t n, share; /* thread t works on [t*share, min(n, (t+1)*share)) */
} pool_job;

typedef struct pool_worker {
    rg_pool *pool;
    pthread_t thread;
    int index;
} pool_worker;

struct rg_pool {
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    atomic_uint_fast64_t epoch;
    atomic_int left;
    pool_job job;
    bool stop;
    int n_threads;
    int n_started; /* workers whose thread exists */
    pool_worker workers[RG_POOL_THREADS_MAX];
};

static void run_share(const pool_job *job, int thread) {
    const size_t begin = (size_t)thread * job->share;
    if (begin >= job->n) return;
    const size_t end = begin + job->share < job->n ? begin + job->share : job->n;
    job->fn(job->arg, begin, end, thread);
}

/* Returns false when the pool stops. */
static bool wait_epoch(rg_pool *pool, uint64_t seen) {
    for (int i = 0; i < SPIN_TURNS; i++) {
        if (atomic_load_explicit(&pool->epoch, memory_order_acquire) != seen) return true;
        rg_look_pause();
    }
    pthread_mutex_lock(&pool->lock);
    while (!pool->stop && atomic_load_explicit(&pool->epoch, memory_order_acquire) == seen) {
        pthread_cond_wait(&pool->wake, &pool->lock);
    }
    const bool go = !pool->stop;
    pthread_mutex_unlock(&pool->lock);
    return go;
}

static void *worker_main(void *arg) {
    const pool_worker *w = arg;
    rg_pool *pool = w->pool;
    uint64_t seen = 0;
    while (wait_epoch(pool, seen)) {
        seen++;
        run_share(&pool->job, w->index);
        if (atomic_fetch_sub_explicit(&pool->left, 1, memory_order_acq_rel) == 1) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->lock);
        }
    }
    return NULL;
}

rg_code rg_pool_create(rg_pool **out, int n_threads, rg_status *st) {
    *out = NULL;
    if (n_threads < 1 || n_threads > RG_POOL_THREADS_MAX) {
        return rg_fail(st, RG_INVALID, "%d threads wanted, 1..%d are possible", n_threads,
                       RG_POOL_THREADS_MAX);
    }
    rg_pool *pool = rg_alloc(1, sizeof *pool, st);
    if (!pool) return RG_NOMEM;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->n_threads = n_threads;
    for (int i = 1; i < n_threads; i++) {
        pool_worker *w = &pool->workers[i];
        *w = (pool_worker){.pool = pool, .index = i};
        const int err = pthread_create(&w->thread, NULL, worker_main, w);
        if (err != 0) {
            rg_fail_errno(st, RG_NOMEM, err, "cannot start compute thread %d", i);
            rg_pool_destroy(pool);
            return RG_NOMEM;
        }
        pool->n_started++;
    }
    *out = pool;
    return RG_OK;
}

void rg_pool_destroy(rg_pool *pool) {
    if (!pool) return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 1; i <= pool->n_started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    rg_free(pool);
}

int rg_pool_threads(const rg_pool *pool) {
    return pool->n_threads;
}

static void wait_done(rg_pool *pool) {
    for (int i = 0; i < SPIN_TURNS; i++) {
        if (atomic_load_explicit(&pool->left, memory_order_acquire) == 0) return;
        rg_look_pause();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load_explicit(&pool->left, memory_order_acquire) != 0) {
        pthread_cond_wait(&pool->done, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
}

void rg_pool_run(rg_pool *pool, size_t n, size_t grain, rg_pool_fn *fn, void *arg) {
    RG_ASSERT(grain >= 1);
    if (n == 0) return;
    /* A grain beyond n means one share; unclamped, the sums below could wrap. */
    if (grain > n) grain = n;
    const size_t grains = n / grain + (n % grain != 0);
    const size_t threads = (size_t)pool->n_threads;
    const size_t share = (grains + threads - 1) / threads * grain;
    if (share >= n || threads == 1) {
        fn(arg, 0, n, 0);
        return;
    }
    pool->job = (pool_job){.fn = fn, .arg = arg, .n = n, .share = share};
    atomic_store_explicit(&pool->left, pool->n_threads - 1, memory_order_relaxed);
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add_explicit(&pool->epoch, 1, memory_order_release); /* partner: wait_epoch */
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    run_share(&pool->job, 0);
    wait_done(pool);
}
