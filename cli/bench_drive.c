/* What the drive gives at best: random reads of expert size from the model file, many at once. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/bench.h"

#ifndef O_DIRECT
#define O_DIRECT 0 /* the system has another way; nothing is measured then */
#endif

#define READERS    16u
#define ALIGN      4096u
#define SPAN_NS    400000000u
#define READ_MAX   ((uint64_t)64 << 20)
#define BUFFER_MAX ((uint64_t)256 << 20) /* of all readers */

typedef struct reader {
    int fd;
    uint64_t n_place, read_bytes; /* whole blocks that a read may start at */
    uint64_t seed, end_ns;
    _Atomic uint64_t *total;
    uint8_t *buffer;
    pthread_t thread;
    bool started;
} reader;

static void *read_on(void *arg) {
    const reader *r = arg;
    for (uint64_t i = 0; rg_now_ns() < r->end_ns; i++) {
        const uint64_t at = rg_random_u64(r->seed, i) % r->n_place * ALIGN;
        const ssize_t n = pread(r->fd, r->buffer, r->read_bytes, (off_t)at);
        if (n <= 0) break;
        atomic_fetch_add_explicit(r->total, (uint64_t)n, memory_order_relaxed);
    }
    return NULL;
}

static double measure(int fd, uint64_t read_bytes, uint64_t n_place) {
    static const uint64_t least = 2;
    uint64_t n_reader = BUFFER_MAX / read_bytes;
    n_reader = n_reader > READERS ? READERS : n_reader < least ? least : n_reader;
    reader readers[READERS] = {{0}};
    _Atomic uint64_t total = 0;
    const uint64_t begin = rg_now_ns();
    for (uint64_t i = 0; i < n_reader; i++) {
        reader *r = &readers[i];
        *r = (reader){.fd = fd,
                      .n_place = n_place,
                      .read_bytes = read_bytes,
                      .seed = begin + i,
                      .end_ns = begin + SPAN_NS,
                      .total = &total,
                      .buffer = rg_alloc_aligned(ALIGN, read_bytes, NULL)};
        r->started = r->buffer && pthread_create(&r->thread, NULL, read_on, r) == 0;
    }
    for (uint64_t i = 0; i < n_reader; i++) {
        if (readers[i].started) pthread_join(readers[i].thread, NULL);
        rg_free(readers[i].buffer);
    }
    const uint64_t spent = rg_now_ns() - begin;
    return spent ? (double)atomic_load(&total) / (double)spent : 0;
}

double bench_drive_gb_s(const char *path, uint64_t read_bytes) {
    if (O_DIRECT == 0) return 0;
    read_bytes = (read_bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (read_bytes == 0 || read_bytes > READ_MAX) return 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (fd < 0) return 0;
    struct stat facts;
    double rate = 0;
    if (fstat(fd, &facts) == 0 && (uint64_t)facts.st_size >= read_bytes) {
        rate = measure(fd, read_bytes, ((uint64_t)facts.st_size - read_bytes) / ALIGN + 1);
    }
    close(fd);
    return rate;
}
