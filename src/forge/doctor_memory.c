/* Read bandwidth of memory: every thread sums its part of an array several times the last cache. */
#include <string.h>

#include "forge/doctor_parts.h"

#define ARRAY_MIN     ((uint64_t)128 << 20)
#define ARRAY_MAX     ((uint64_t)2 << 30)
#define CACHE_UNKNOWN ((uint64_t)32 << 20)
#define CACHE_TIMES   4u
#define LANES         16u
#define PASSES_MAX    64

typedef struct sum_job {
    const uint64_t *data;
    uint64_t sums[RG_POOL_THREADS_MAX];
} sum_job;

#define WORDS_OF_TASK ((size_t)1 << 17)

static void sum_share(void *arg, size_t begin, size_t end, int thread) {
    sum_job *job = arg;
    uint64_t lane[LANES] = {0};
    const uint64_t *p = job->data + begin * WORDS_OF_TASK;
    const size_t n = (end - begin) * WORDS_OF_TASK;
    for (size_t i = 0; i < n; i += LANES) {
        for (size_t k = 0; k < LANES; k++)
            lane[k] += p[i + k];
    }
    for (size_t k = 0; k < LANES; k++)
        job->sums[thread] += lane[k];
}

static void touch_share(void *arg, size_t begin, size_t end, int thread) {
    uint64_t *data = arg;
    (void)thread;
    for (size_t i = begin * WORDS_OF_TASK; i < end * WORDS_OF_TASK; i++)
        data[i] = i;
}

rg_code rg_doctor_measure_memory(rg_doctor_machine *m, bool quick, int n_threads, rg_status *st) {
    const uint64_t cache = m->cache_bytes ? m->cache_bytes : CACHE_UNKNOWN;
    const uint64_t task_bytes = WORDS_OF_TASK * sizeof(uint64_t);
    uint64_t bytes = CACHE_TIMES * cache;
    if (bytes < ARRAY_MIN) bytes = ARRAY_MIN;
    if (bytes > ARRAY_MAX) bytes = ARRAY_MAX;
    bytes -= bytes % task_bytes;
    if (m->memory_available_bytes && bytes > m->memory_available_bytes / 2) return RG_OK;
    rg_pool *pool = NULL;
    void *memory = NULL;
    rg_code rc = RG_OK;
    sum_job job = {0};
    RG_GO(rg_pool_create(&pool, n_threads > 0 ? n_threads : rg_cpu_count(), st));
    RG_GO(rg_mem_map(&memory, (size_t)bytes, st));
    job.data = memory;
    const size_t n = (size_t)(bytes / task_bytes);
    rg_pool_run(pool, n, 1, touch_share, memory);
    const uint64_t until = rg_now_ns() + (quick ? 300000000u : 1500000000u);
    for (int pass = 0; pass < PASSES_MAX && (pass < 2 || rg_now_ns() < until); pass++) {
        const uint64_t t0 = rg_now_ns();
        rg_pool_run(pool, n, 1, sum_share, &job);
        const double gb_s = (double)bytes / (double)(rg_now_ns() - t0 + 1);
        if (gb_s > m->memory_gb_s) m->memory_gb_s = gb_s;
    }
    /* The sums are looked at, so that the reads cannot be left out. */
    uint64_t sum = 0;
    for (size_t i = 0; i < RG_POOL_THREADS_MAX; i++)
        sum += job.sums[i];
    if (sum == 0) m->memory_gb_s = 0;
cleanup:
    rg_mem_unmap(memory, (size_t)bytes);
    rg_pool_destroy(pool);
    return rc;
}
