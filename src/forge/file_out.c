/* Threads: the caller owns `fill`, `at`, `n_out`; `lock` guards the hand-over (`busy_bytes`,
 * `failed_errno`, `stop`). At any time at most one buffer is being written.
 *
 * Invariants: 1. every write but the last is RG_FILE_OUT_BUFFER bytes at a multiple of it, so
 * direct writes stay aligned. 2. after a failure no byte is written any more.
 */
#include "forge/file_out.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define DIRECT_ALIGN ((size_t)4096)
#ifndef O_DIRECT /* systems without it write through the page cache */
#define O_DIRECT 0
#endif

struct rg_file_out {
    char *path, *temp;
    int fd;
    bool on_disk;   /* the temporary file exists */
    bool committed; /* ... under its final name */
    size_t slack;
    uint8_t *buffer[2];
    int at;      /* buffer being filled */
    size_t fill; /* bytes in it */
    uint64_t n_out;
    bool thread_runs;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* guarded by lock */
    const uint8_t *busy; /* buffer on its way to the drive; NULL = none */
    size_t busy_bytes;
    uint64_t busy_offset;
    int failed_errno;
    uint64_t failed_offset;
    bool stop;
};

/* ---- writer thread --------------------------------------------------------------------------- */

static int write_all(int fd, const uint8_t *p, size_t n, uint64_t offset) {
    while (n > 0) {
        const ssize_t w = pwrite(fd, p, n, (off_t)offset);
        if (w < 0 && errno == EINTR) continue;
        if (w < 0 && errno == EINVAL) {
            /* The file system takes no direct writes of this kind: go on through the cache. */
            const int flags = fcntl(fd, F_GETFL);
            if (flags < 0 || !(flags & O_DIRECT)) return EINVAL;
            if (fcntl(fd, F_SETFL, flags & ~O_DIRECT) != 0) return errno;
            continue;
        }
        if (w < 0) return errno;
        if (w == 0) return EIO;
        p += w;
        n -= (size_t)w;
        offset += (uint64_t)w;
    }
    return 0;
}

static void *writer(void *arg) {
    rg_file_out *f = arg;
    pthread_mutex_lock(&f->lock);
    for (;;) {
        while (!f->busy && !f->stop)
            pthread_cond_wait(&f->wake, &f->lock);
        if (!f->busy) break;
        const uint8_t *p = f->busy;
        const size_t n = f->busy_bytes;
        const uint64_t offset = f->busy_offset;
        const bool skip = f->failed_errno != 0;
        pthread_mutex_unlock(&f->lock);
        const int err = skip ? 0 : write_all(f->fd, p, n, offset);
        pthread_mutex_lock(&f->lock);
        if (err) {
            f->failed_errno = err;
            f->failed_offset = offset;
        }
        f->busy = NULL;
        pthread_cond_broadcast(&f->wake);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* Waits until no write is under way; the failure so far. */
static rg_code settle(rg_file_out *f, rg_status *st) {
    pthread_mutex_lock(&f->lock);
    while (f->busy)
        pthread_cond_wait(&f->wake, &f->lock);
    const int err = f->failed_errno;
    const uint64_t offset = f->failed_offset;
    pthread_mutex_unlock(&f->lock);
    if (!err) return RG_OK;
    return rg_fail_errno(st, RG_IO, err, "cannot write '%s' behind byte %llu", f->path,
                         (unsigned long long)offset);
}

/* ---- life ------------------------------------------------------------------------------------ */

static rg_code start(rg_file_out *f, rg_status *st) {
    for (int i = 0; i < 2; i++) {
        f->buffer[i] =
            rg_alloc_aligned(DIRECT_ALIGN, RG_FILE_OUT_BUFFER + DIRECT_ALIGN + f->slack, st);
        if (!f->buffer[i]) return RG_NOMEM;
    }
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    f->fd = open(f->temp, flags | O_DIRECT, 0666);
    if (f->fd < 0 && errno == EINVAL) {
        (void)unlink(f->temp); /* some systems create the file before they refuse the flag */
        f->fd = open(f->temp, flags, 0666);
    }
    if (f->fd < 0) return rg_fail_errno(st, RG_IO, errno, "cannot create '%s'", f->temp);
    f->on_disk = true;
    const int err = pthread_create(&f->thread, NULL, writer, f);
    if (err) return rg_fail_errno(st, RG_NOMEM, err, "cannot start a writer for '%s'", f->path);
    f->thread_runs = true;
    return RG_OK;
}

rg_code rg_file_out_create(rg_file_out **out, const char *path, size_t slack, rg_status *st) {
    *out = NULL;
    rg_file_out *f = rg_alloc(1, sizeof *f, st);
    if (!f) return RG_NOMEM;
    f->fd = -1;
    f->slack = slack;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->wake, NULL);
    const size_t len = strlen(path);
    const size_t temp_bytes = len + 32;
    f->path = rg_strndup(path, len, st);
    f->temp = f->path ? rg_alloc(1, temp_bytes, st) : NULL;
    rg_code rc = f->temp ? RG_OK : RG_NOMEM;
    if (rc == RG_OK) {
        snprintf(f->temp, temp_bytes, "%s.part-%ld", path, (long)getpid());
        rc = start(f, st);
    }
    if (rc != RG_OK) {
        rg_file_out_destroy(f);
        return rc;
    }
    *out = f;
    return RG_OK;
}

static void end_thread(rg_file_out *f) {
    if (!f->thread_runs) return;
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    pthread_cond_broadcast(&f->wake);
    pthread_mutex_unlock(&f->lock);
    pthread_join(f->thread, NULL);
    f->thread_runs = false;
}

void rg_file_out_discard(rg_file_out *f) {
    end_thread(f);
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
    if (f->on_disk) {
        const char *name = f->committed ? f->path : f->temp;
        RG_ASSERT(name); /* a file on disk was created under it */
        (void)unlink(name);
    }
    f->on_disk = false;
}

void rg_file_out_destroy(rg_file_out *f) {
    if (!f) return;
    if (f->committed) f->on_disk = false; /* it stays */
    rg_file_out_discard(f);
    pthread_cond_destroy(&f->wake);
    pthread_mutex_destroy(&f->lock);
    rg_free(f->buffer[0]);
    rg_free(f->buffer[1]);
    rg_free(f->path);
    rg_free(f->temp);
    rg_free(f);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

uint8_t *rg_file_out_room(rg_file_out *f, size_t *room) {
    RG_ASSERT(f->fill < RG_FILE_OUT_BUFFER);
    *room = RG_FILE_OUT_BUFFER - f->fill;
    return f->buffer[f->at] + f->fill;
}

static void hand_over(rg_file_out *f, size_t bytes) {
    pthread_mutex_lock(&f->lock);
    RG_ASSERT(f->busy == NULL);
    f->busy = f->buffer[f->at];
    f->busy_bytes = bytes;
    f->busy_offset = f->n_out - f->fill;
    pthread_cond_broadcast(&f->wake);
    pthread_mutex_unlock(&f->lock);
}

rg_code rg_file_out_advance(rg_file_out *f, size_t n, rg_status *st) {
    f->fill += n;
    f->n_out += n;
    RG_ASSERT(f->fill <= RG_FILE_OUT_BUFFER + f->slack);
    while (f->fill >= RG_FILE_OUT_BUFFER) {
        RG_TRY(settle(f, st));
        const size_t over = f->fill - RG_FILE_OUT_BUFFER;
        memcpy(f->buffer[1 - f->at], f->buffer[f->at] + RG_FILE_OUT_BUFFER, over);
        hand_over(f, RG_FILE_OUT_BUFFER);
        f->at = 1 - f->at;
        f->fill = over;
    }
    return RG_OK;
}

rg_code rg_file_out_write(rg_file_out *f, const void *data, size_t n, rg_status *st) {
    const uint8_t *p = data;
    while (n > 0) {
        size_t room = 0;
        uint8_t *dst = rg_file_out_room(f, &room);
        const size_t step = n < room ? n : room;
        memcpy(dst, p, step);
        RG_TRY(rg_file_out_advance(f, step, st));
        p += step;
        n -= step;
    }
    return RG_OK;
}

rg_code rg_file_out_zeros(rg_file_out *f, size_t n, rg_status *st) {
    while (n > 0) {
        size_t room = 0;
        uint8_t *dst = rg_file_out_room(f, &room);
        const size_t step = n < room ? n : room;
        memset(dst, 0, step);
        RG_TRY(rg_file_out_advance(f, step, st));
        n -= step;
    }
    return RG_OK;
}

uint64_t rg_file_out_size(const rg_file_out *f) {
    return f->n_out;
}

/* ---- end ------------------------------------------------------------------------------------- */

rg_code rg_file_out_finish(rg_file_out *f, rg_status *st) {
    const uint64_t size = f->n_out;
    RG_TRY(settle(f, st));
    if (f->fill > 0) { /* padded for a direct write, then cut */
        const size_t padded = (f->fill + DIRECT_ALIGN - 1) / DIRECT_ALIGN * DIRECT_ALIGN;
        memset(f->buffer[f->at] + f->fill, 0, padded - f->fill);
        hand_over(f, padded);
        RG_TRY(settle(f, st));
    }
    end_thread(f);
    if (ftruncate(f->fd, (off_t)size) != 0 || fsync(f->fd) != 0) {
        return rg_fail_errno(st, RG_IO, errno, "cannot finish '%s'", f->path);
    }
    const int closed = close(f->fd);
    f->fd = -1;
    if (closed != 0) return rg_fail_errno(st, RG_IO, errno, "cannot close '%s'", f->path);
    return RG_OK;
}

rg_code rg_file_out_commit(rg_file_out *f, rg_status *st) {
    RG_ASSERT(f->fd < 0);
    RG_ASSERT(f->on_disk);
    if (rename(f->temp, f->path) != 0) {
        return rg_fail_errno(st, RG_IO, errno, "cannot rename '%s' to '%s'", f->temp, f->path);
    }
    f->committed = true;
    return RG_OK;
}

rg_code rg_file_out_check_space(const char *path, uint64_t bytes, rg_status *st) {
    const char *slash = strrchr(path, '/');
    char *folder = slash ? rg_strndup(path, slash == path ? 1 : (size_t)(slash - path), st)
                         : rg_strndup(".", 1, st);
    if (!folder) return RG_NOMEM;
    struct statvfs fs;
    const int failed = statvfs(folder, &fs) == 0 ? 0 : errno;
    rg_code rc = RG_OK;
    if (failed) {
        rc = rg_fail_errno(st, RG_IO, failed, "cannot look at the folder of '%s'", path);
    } else if ((uint64_t)fs.f_bavail * fs.f_frsize < bytes) {
        rc = rg_fail(st, RG_IO, "'%s' needs %llu MiB, the file system has %llu MiB free", path,
                     (unsigned long long)(bytes >> 20),
                     (unsigned long long)((uint64_t)fs.f_bavail * fs.f_frsize >> 20));
    }
    rg_free(folder);
    return rc;
}
