/* What the processor gives: reading memory (every thread sums its part of an array several times
 * the last cache), and int8 multiply-adds.
 */
#include <stdatomic.h>
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

/* ---- integers ------------------------------------------------------------------------------- */

#define PEAK_TURNS  1000000u
#define PEAK_PASSES 5

typedef struct peak_job {
    const rg_ops *ops;
    atomic_uint_fast64_t done; /* multiply-adds */
    atomic_uint_fast64_t sink;
} peak_job;

static void peak_share(void *arg, size_t begin, size_t end, int thread) {
    peak_job *job = arg;
    int32_t sum = 0;
    (void)begin, (void)end, (void)thread;
    atomic_fetch_add(&job->done, job->ops->int8_peak(PEAK_TURNS, &sum));
    atomic_fetch_add(&job->sink, (uint32_t)sum);
}

static rg_code measure_int8(double *gmac_s, rg_cpu_level level, int n_threads, rg_status *st) {
    peak_job job = {.ops = rg_ops_get(level)};
    rg_pool *pool = NULL;
    if (!job.ops->int8_peak) return RG_OK;
    RG_TRY(rg_pool_create(&pool, n_threads, st));
    for (int pass = 0; pass < PEAK_PASSES; pass++) {
        atomic_store(&job.done, 0);
        const uint64_t t0 = rg_now_ns();
        rg_pool_run(pool, (size_t)n_threads, 1, peak_share, &job);
        const double rate = (double)atomic_load(&job.done) / (double)(rg_now_ns() - t0 + 1);
        if (rate > *gmac_s) *gmac_s = rate;
    }
    rg_pool_destroy(pool);
    return RG_OK;
}

rg_code rg_doctor_compute_ceilings(double *read_gb_s, double *int8_gmac_s, const char *cpu_level,
                                   int n_threads, rg_status *st) {
    rg_doctor_machine m = {.memory_available_bytes = rg_mem_available_bytes()};
    rg_cpu_level level = RG_CPU_SCALAR;
    const int n = n_threads > 0 ? n_threads : rg_cpu_count();
    *read_gb_s = *int8_gmac_s = 0;
    RG_TRY(rg_cpu_level_pick(&level, cpu_level, st));
    RG_TRY(rg_doctor_measure_memory(&m, true, n, st));
    *read_gb_s = m.memory_gb_s;
    return measure_int8(int8_gmac_s, level, n, st);
}
