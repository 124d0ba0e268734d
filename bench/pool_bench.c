/* What a phase of the compute threads costs beyond its work: the hand-over.
 *
 *   pool_bench [THREADS [MILLISECONDS]]
 *
 * One run of the pool over as many empty tasks as threads: right behind the one before, when the
 * others still spin, and behind a pause in which they went to sleep. The pause is spent computing,
 * as the owner of the pool does between phases.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"

#define SAMPLES_MAX 200000

static uint64_t samples[SAMPLES_MAX];

static void nothing(void *arg, size_t begin, size_t end, int thread) {
    (void)arg, (void)begin, (void)end, (void)thread;
}

static int by_value(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void busy(uint64_t ns) {
    const uint64_t begin = rg_now_ns();
    while (rg_now_ns() - begin < ns)
        continue;
}

/* Hand-overs for `ms` milliseconds, `pause_ns` apart. */
static void measure(rg_pool *pool, uint64_t pause_ns, int ms) {
    const size_t threads = (size_t)rg_pool_threads(pool);
    const uint64_t end = rg_now_ns() + (uint64_t)ms * 1000000u;
    size_t n = 0;
    while (n < SAMPLES_MAX && rg_now_ns() < end) {
        if (pause_ns) busy(pause_ns);
        const uint64_t begin = rg_now_ns();
        rg_pool_run(pool, threads, 1, nothing, NULL);
        samples[n++] = rg_now_ns() - begin;
    }
    qsort(samples, n, sizeof *samples, by_value);
    printf("%3zu threads, %6.0f us apart: median %6llu ns, 10 %% below %6llu, 10 %% above %6llu "
           "(%zu)\n",
           threads, (double)pause_ns / 1000.0, (unsigned long long)samples[n / 2],
           (unsigned long long)samples[n / 10], (unsigned long long)samples[n - 1 - n / 10], n);
}

int main(int argc, char **argv) {
    const int threads = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2,
              ms = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 1000;
    static const uint64_t pauses_us[] = {0, 2, 10, 30, 100, 300, 1000};
    rg_pool *pool = NULL;
    rg_status st = {0};
    if (rg_pool_create(&pool, threads, &st) != RG_OK) {
        fprintf(stderr, "pool_bench: %s\n", st.message);
        return 1;
    }
    for (size_t i = 0; i < RG_ARRAY_LEN(pauses_us); i++)
        measure(pool, pauses_us[i] * 1000u, ms);
    rg_pool_destroy(pool);
    return 0;
}
