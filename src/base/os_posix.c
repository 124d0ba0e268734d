#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"

uint64_t rg_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

rg_code rg_file_open(rg_file *out, const char *path, rg_status *st) {
    *out = (rg_file){.fd = -1};
    /* O_NONBLOCK: a fifo must not hang the open; it changes nothing for regular files. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return rg_fail_errno(st, RG_IO, errno, "cannot open %s", path);
    struct stat info;
    if (fstat(fd, &info) != 0) {
        const int err = errno;
        close(fd);
        return rg_fail_errno(st, RG_IO, err, "cannot stat %s", path);
    }
    if (!S_ISREG(info.st_mode)) {
        close(fd);
        return rg_fail(st, RG_INVALID, "%s is %s, not a regular file", path,
                       S_ISDIR(info.st_mode) ? "a directory" : "a special file");
    }
    *out = (rg_file){.fd = fd, .size_bytes = (uint64_t)info.st_size};
    return RG_OK;
}

void rg_file_close(rg_file *f) {
    if (f->fd >= 0) close(f->fd);
    *f = (rg_file){.fd = -1};
}

rg_code rg_file_read_at(const rg_file *f, void *dst, size_t len, uint64_t offset, const char *name,
                        rg_status *st) {
    if (offset > f->size_bytes || len > f->size_bytes - offset) {
        return rg_fail(st, RG_FORMAT, "%s: %zu bytes wanted at %llu, the file has %llu", name, len,
                       (unsigned long long)offset, (unsigned long long)f->size_bytes);
    }
    size_t done = 0;
    while (done < len) {
        /* One call moves at most 1 GiB: some systems refuse more than INT_MAX. */
        const size_t want = len - done < ((size_t)1 << 30) ? len - done : (size_t)1 << 30;
        const ssize_t n = pread(f->fd, (char *)dst + done, want, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            return rg_fail_errno(st, RG_IO, errno, "%s: reading %zu bytes at %llu", name, len,
                                 (unsigned long long)offset);
        }
        if (n == 0) {
            return rg_fail(st, RG_FORMAT, "%s shrank: %zu bytes wanted at %llu, %zu came", name,
                           len, (unsigned long long)offset, done);
        }
        done += (size_t)n;
    }
    return RG_OK;
}

static rg_code read_all(char **out, size_t *len, int fd, const char *path, size_t max_bytes,
                        rg_status *st) {
    size_t cap = 65536, used = 0;
    char *data = rg_realloc(NULL, cap + 1, 1, st);
    if (!data) return RG_NOMEM;
    for (;;) {
        if (used == cap) {
            char *more = rg_realloc(data, cap * 2 + 1, 1, st);
            if (!more) break;
            data = more;
            cap *= 2;
        }
        const ssize_t n = read(fd, data + used, cap - used);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            rg_fail_errno(st, RG_IO, errno, "cannot read %s", path);
            rg_free(data);
            return RG_IO;
        }
        used += (size_t)n;
        if (used > max_bytes) {
            rg_free(data);
            return rg_fail(st, RG_INVALID, "%s is larger than %zu bytes", path, max_bytes);
        }
        if (n == 0) {
            data[used] = 0;
            *out = data;
            *len = used;
            return RG_OK;
        }
    }
    rg_free(data);
    return RG_NOMEM;
}

rg_code rg_file_slurp(char **out, size_t *len, const char *path, size_t max_bytes, rg_status *st) {
    *out = NULL;
    *len = 0;
    const bool is_stdin = strcmp(path, "-") == 0;
    const int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return rg_fail_errno(st, RG_IO, errno, "cannot open %s", path);
    const rg_code rc = read_all(out, len, fd, path, max_bytes, st);
    if (!is_stdin) close(fd);
    return rc;
}

rg_code rg_mem_lock(void *p, size_t size, rg_status *st) {
    if (mlock(p, size) == 0) return RG_OK;
    const int err = errno;
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) limit.rlim_cur = 0;
    return rg_fail_errno(st, RG_NOMEM, err, "cannot lock %zu MiB in memory (limit %llu MiB)",
                         size >> 20, (unsigned long long)limit.rlim_cur >> 20);
}

uint64_t rg_major_faults(void) {
    struct rusage use;
    if (getrusage(RUSAGE_SELF, &use) != 0) return 0;
    return (uint64_t)use.ru_majflt;
}
