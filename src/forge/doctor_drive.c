/* The drive's ceiling: random reads by size and depth, direct and through the page cache, with
 * io_uring and with threads. Reads a model file, or a scratch file without a name.
 *
 * Threads: readers own their slice of the buffers and meet at two atomic counters.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "forge/doctor_parts.h"

#define ALIGN          4096u
#define DEPTH_MAX      64u
#define BUFFERS_MAX    ((size_t)128 << 20) /* bytes in flight at most */
#define EXPERT_DEFAULT ((uint32_t)1 << 20)
#define EXPERT_MAX     ((uint32_t)16 << 20)
#define SCRATCH_QUICK  ((uint64_t)256 << 20)
#define SCRATCH_FULL   ((uint64_t)1 << 30)
#define SCRATCH_PIECE  ((size_t)4 << 20)
#define POINT_NS_QUICK 120000000u
#define POINT_NS_FULL  250000000u

const char *rg_doctor_io_name(rg_doctor_io io) {
    return io == RG_DOCTOR_URING ? "uring" : "pread";
}

uint64_t rg_doctor_offset(const rg_doctor_reads *r, uint64_t i) {
    const uint64_t places = (r->file_bytes - r->read_bytes) / ALIGN + 1;
    return rg_random_u64(r->seed, i) % places * ALIGN;
}

/* ---- threads --------------------------------------------------------------------------------- */

typedef struct crew {
    rg_doctor_reads *r;
    atomic_uint_fast64_t next, reads, latency_ns;
    atomic_int failed;
} crew;

typedef struct reader {
    crew *c;
    uint8_t *buffer;
} reader;

static void *read_loop(void *arg) {
    const reader *me = arg;
    crew *c = me->c;
    const rg_doctor_reads *r = c->r;
    while (rg_now_ns() < r->deadline_ns &&
           !atomic_load_explicit(&c->failed, memory_order_relaxed)) {
        const uint64_t i = atomic_fetch_add_explicit(&c->next, 1, memory_order_relaxed);
        const uint64_t t0 = rg_now_ns();
        const ssize_t n = pread(r->fd, me->buffer, r->read_bytes, (off_t)rg_doctor_offset(r, i));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) atomic_store_explicit(&c->failed, errno, memory_order_relaxed);
        atomic_fetch_add_explicit(&c->latency_ns, rg_now_ns() - t0, memory_order_relaxed);
        atomic_fetch_add_explicit(&c->reads, 1, memory_order_relaxed);
    }
    return NULL;
}

void rg_doctor_read_pread(rg_doctor_reads *r) {
    RG_ASSERT(r->depth >= 1 && r->depth <= DEPTH_MAX);
    crew c = {.r = r};
    pthread_t threads[DEPTH_MAX];
    reader readers[DEPTH_MAX];
    uint32_t n = 0;
    for (; n < r->depth; n++) {
        readers[n] = (reader){.c = &c, .buffer = r->buffers + (size_t)n * r->read_bytes};
        const int err = pthread_create(&threads[n], NULL, read_loop, &readers[n]);
        if (err) {
            atomic_store(&c.failed, err);
            break;
        }
    }
    for (uint32_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    r->reads = atomic_load(&c.reads);
    r->latency_ns = atomic_load(&c.latency_ns);
    r->sys_errno = atomic_load(&c.failed);
}

/* ---- what is read ---------------------------------------------------------------------------- */

static void give_up(rg_doctor_drive *d, const char *what, const char *path, int err) {
    char why[96];
    snprintf(d->error, sizeof d->error, "%s '%.120s': %s", what, path,
             strerror_r(err, why, sizeof why));
}

static int fill_scratch(int fd, uint64_t bytes, uint8_t *buffer) {
    for (uint64_t at = 0; at < bytes;) {
        if (at % SCRATCH_PIECE == 0) { /* content that no drive can squeeze */
            for (size_t i = 0; i < SCRATCH_PIECE; i += 8) {
                const uint64_t w = rg_random_u64(at, i);
                memcpy(buffer + i, &w, 8);
            }
        }
        const size_t begin = (size_t)(at % SCRATCH_PIECE);
        const ssize_t n = pwrite(fd, buffer + begin, SCRATCH_PIECE - begin, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        at += (uint64_t)n;
    }
    return fsync(fd) == 0 ? 0 : errno;
}

/* A file that has no name any more: it goes away with the descriptor, whatever happens. */
static rg_code open_scratch(rg_doctor_drive *d, const char *folder, bool quick, int *fd,
                            rg_status *st) {
    char path[PATH_MAX];
    struct statvfs fs;
    *fd = -1;
    const int n = snprintf(path, sizeof path, "%s/.regolith-doctor-XXXXXX", folder);
    if (n < 0 || (size_t)n >= sizeof path || statvfs(folder, &fs) != 0) {
        give_up(d, "cannot look at the folder", folder, n < 0 ? EINVAL : errno);
        return RG_OK;
    }
    const uint64_t want = quick ? SCRATCH_QUICK : SCRATCH_FULL;
    const uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (free_bytes < 4 * want) {
        snprintf(d->error, sizeof d->error,
                 "the scratch file of %llu MiB should leave most of the drive free, %llu MiB are",
                 (unsigned long long)(want >> 20), (unsigned long long)(free_bytes >> 20));
        return RG_OK;
    }
    uint8_t *buffer = rg_alloc_aligned(ALIGN, SCRATCH_PIECE, st);
    if (!buffer) return RG_NOMEM;
    *fd = mkstemp(path);
    int err = *fd < 0 ? errno : 0;
    if (*fd >= 0) {
        (void)unlink(path);
        (void)fcntl(*fd, F_SETFD, FD_CLOEXEC);
        err = fill_scratch(*fd, want, buffer);
    }
    rg_free(buffer);
    d->file_bytes = want;
    if (err) {
        give_up(d, "cannot write a scratch file in", folder, err);
        if (*fd >= 0) close(*fd);
        *fd = -1;
    }
    return RG_OK;
}

static void open_model(rg_doctor_drive *d, const char *path, int *fd) {
    struct stat s;
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0 || fstat(*fd, &s) != 0) {
        give_up(d, "cannot open", path, errno);
        if (*fd >= 0) close(*fd);
        *fd = -1;
        return;
    }
    d->file_bytes = (uint64_t)s.st_size;
}

/* ---- points ---------------------------------------------------------------------------------- */

typedef struct bench {
    rg_doctor_drive *d;
    rg_doctor_steps *steps;
    int fd;
    bool quick, uring;
    uint8_t *buffers;
} bench;

static rg_code measure_point(bench *b, rg_doctor_io io, bool direct, uint32_t size, uint32_t depth,
                             rg_status *st) {
    rg_doctor_drive *d = b->d;
    RG_TRY(rg_doctor_step(b->steps, "drive", st));
    const bool fits = (size_t)size * depth <= BUFFERS_MAX && size <= d->file_bytes;
    if (!fits || d->n_point == RG_DOCTOR_POINTS_MAX) return RG_OK;
    if ((io == RG_DOCTOR_URING && !b->uring) || (direct && !d->direct)) return RG_OK;
    if (!rg_doctor_set_direct(b->fd, direct)) return RG_OK;
    rg_doctor_drop_cache(b->fd);
    const uint64_t t0 = rg_now_ns();
    rg_doctor_reads r = {.fd = b->fd,
                         .file_bytes = d->file_bytes,
                         .read_bytes = size,
                         .depth = depth,
                         .seed = 0xD0C + d->n_point,
                         .deadline_ns = t0 + (b->quick ? POINT_NS_QUICK : POINT_NS_FULL),
                         .buffers = b->buffers};
    if (io == RG_DOCTOR_URING) {
        rg_doctor_read_uring(&r);
    } else {
        rg_doctor_read_pread(&r);
    }
    const double ns = (double)(rg_now_ns() - t0);
    if (r.sys_errno || r.reads == 0) {
        char why[96];
        snprintf(d->error, sizeof d->error, "reads of %u bytes at depth %u (%s%s) failed: %s", size,
                 depth, rg_doctor_io_name(io), direct ? ", direct" : "",
                 strerror_r(r.sys_errno, why, sizeof why));
        return RG_OK;
    }
    d->points[d->n_point++] =
        (rg_doctor_point){.io = io,
                          .direct = direct,
                          .read_bytes = size,
                          .depth = depth,
                          .reads = r.reads,
                          .gb_s = (double)r.reads * size / ns,
                          .latency_us = (double)r.latency_ns / (double)r.reads * 1e-3};
    return RG_OK;
}

static const uint32_t SIZES_FULL[] = {64u << 10,   128u << 10,  256u << 10, 512u << 10,
                                      1024u << 10, 2048u << 10, 4096u << 10};
static const uint32_t DEPTHS_FULL[] = {1, 2, 4, 8, 16, 32, 64};
static const uint32_t SIZES_QUICK[] = {64u << 10, 256u << 10, 4096u << 10};
static const uint32_t DEPTHS_QUICK[] = {1, 4, 16, 64};

uint32_t rg_doctor_drive_steps(bool quick) {
    const size_t sizes = quick ? RG_ARRAY_LEN(SIZES_QUICK) : RG_ARRAY_LEN(SIZES_FULL);
    const size_t depths = quick ? RG_ARRAY_LEN(DEPTHS_QUICK) : RG_ARRAY_LEN(DEPTHS_FULL);
    /* the expert size: both ways direct, buffered; the others: quick at one depth */
    const size_t others = quick ? sizes : 2 * sizes * depths;
    return (uint32_t)(3 * depths + others);
}

static rg_code measure_points(bench *b, rg_status *st) {
    const uint32_t *sizes = b->quick ? SIZES_QUICK : SIZES_FULL;
    const uint32_t *depths = b->quick ? DEPTHS_QUICK : DEPTHS_FULL;
    const size_t n_size = b->quick ? RG_ARRAY_LEN(SIZES_QUICK) : RG_ARRAY_LEN(SIZES_FULL);
    const size_t n_depth = b->quick ? RG_ARRAY_LEN(DEPTHS_QUICK) : RG_ARRAY_LEN(DEPTHS_FULL);
    const uint32_t expert = b->d->expert_bytes;
    for (size_t k = 0; k < n_depth; k++) {
        RG_TRY(measure_point(b, RG_DOCTOR_URING, true, expert, depths[k], st));
        RG_TRY(measure_point(b, RG_DOCTOR_PREAD, true, expert, depths[k], st));
        RG_TRY(measure_point(b, RG_DOCTOR_PREAD, false, expert, depths[k], st));
    }
    for (size_t i = 0; i < n_size; i++) {
        for (size_t k = 0; k < n_depth; k++) {
            if (b->quick) {
                if (depths[k] != 16) continue;
                const rg_doctor_io io = b->uring ? RG_DOCTOR_URING : RG_DOCTOR_PREAD;
                RG_TRY(measure_point(b, io, true, sizes[i], depths[k], st));
                continue;
            }
            RG_TRY(measure_point(b, RG_DOCTOR_URING, true, sizes[i], depths[k], st));
            RG_TRY(measure_point(b, RG_DOCTOR_PREAD, true, sizes[i], depths[k], st));
        }
    }
    return RG_OK;
}

static void find_ceilings(rg_doctor_drive *d) {
    const rg_doctor_point *best = NULL;
    for (uint32_t i = 0; i < d->n_point; i++) {
        const rg_doctor_point *p = &d->points[i];
        if (p->direct != d->direct) continue;
        if (p->gb_s > d->ceiling_gb_s) d->ceiling_gb_s = p->gb_s;
        if (p->read_bytes == d->expert_bytes && (!best || p->gb_s > best->gb_s)) best = p;
    }
    d->measured = d->n_point > 0;
    if (!best) return;
    d->expert_ceiling_gb_s = best->gb_s;
    d->best_io = best->io;
    d->best_depth = best->depth;
    for (uint32_t i = 0; i < d->n_point; i++) {
        const rg_doctor_point *p = &d->points[i];
        if (p->direct == d->direct && p->io == best->io && p->read_bytes == d->expert_bytes &&
            p->depth < d->best_depth && p->gb_s >= 0.95 * best->gb_s)
            d->best_depth = p->depth;
    }
}

/* Whether direct reads work at all. */
static bool direct_works(int fd, uint8_t *buffer) {
    if (!rg_doctor_set_direct(fd, true)) return false;
    return pread(fd, buffer, ALIGN, 0) > 0;
}

rg_code rg_doctor_measure_drive(rg_doctor_drive *d, const char *path, const char *folder,
                                bool uring, rg_doctor_steps *steps, rg_status *st) {
    rg_code rc = RG_OK;
    bench b = {.d = d, .steps = steps, .fd = -1, .quick = steps->opt->quick, .uring = uring};
    if (d->expert_bytes == 0) d->expert_bytes = EXPERT_DEFAULT;
    if (d->expert_bytes > EXPERT_MAX) d->expert_bytes = EXPERT_MAX;
    d->expert_bytes = (d->expert_bytes + ALIGN - 1) / ALIGN * ALIGN;
    RG_GO(rg_doctor_step(steps, "scratch file", st));
    if (path) {
        open_model(d, path, &b.fd);
    } else {
        RG_GO(open_scratch(d, folder, b.quick, &b.fd, st));
    }
    if (b.fd < 0) goto cleanup;
    b.buffers = rg_alloc_aligned(ALIGN, BUFFERS_MAX, st);
    if (!b.buffers) {
        rc = RG_NOMEM;
        goto cleanup;
    }
    rg_doctor_file_system(b.fd, d->file_system, &d->is_memory);
    d->direct = direct_works(b.fd, b.buffers);
    RG_GO(measure_points(&b, st));
    find_ceilings(d);
cleanup:
    if (b.fd >= 0) close(b.fd);
    rg_free(b.buffers);
    return rc;
}

/* ---- one figure ------------------------------------------------------------------------------ */

rg_code rg_doctor_measure_expert(rg_doctor_drive *d, const char *path, bool uring, rg_status *st) {
    static const uint32_t depths[] = {8, 16, 32}; /* few: the buffers come on top of a plan */
    const rg_doctor_options opt = {.quick = false};
    rg_doctor_steps steps = {.opt = &opt, .total = 2 * RG_ARRAY_LEN(depths)};
    rg_code rc = RG_OK;
    bench b = {.d = d, .steps = &steps, .fd = -1, .uring = uring};
    if (d->expert_bytes > EXPERT_MAX) d->expert_bytes = EXPERT_MAX;
    d->expert_bytes = (d->expert_bytes + ALIGN - 1) / ALIGN * ALIGN;
    open_model(d, path, &b.fd);
    if (b.fd < 0) return RG_OK;
    const size_t want = (size_t)d->expert_bytes * depths[RG_ARRAY_LEN(depths) - 1];
    b.buffers = rg_alloc_aligned(ALIGN, want < BUFFERS_MAX ? want : BUFFERS_MAX, st);
    if (!b.buffers) {
        rc = RG_NOMEM;
        goto cleanup;
    }
    d->direct = direct_works(b.fd, b.buffers);
    for (size_t k = 0; k < RG_ARRAY_LEN(depths); k++) {
        RG_GO(measure_point(&b, RG_DOCTOR_URING, d->direct, d->expert_bytes, depths[k], st));
        RG_GO(measure_point(&b, RG_DOCTOR_PREAD, d->direct, d->expert_bytes, depths[k], st));
    }
    find_ceilings(d);
cleanup:
    close(b.fd);
    rg_free(b.buffers);
    return rc;
}
