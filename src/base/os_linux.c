#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"

rg_code rg_mem_map(void **out, size_t size, rg_status *st) {
    *out = NULL;
    /* One small allocation so that torture reaches this door too. */
    void *token = rg_alloc(1, 1, st);
    if (!token) return RG_NOMEM;
    rg_free(token);
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        return rg_fail_errno(st, RG_NOMEM, errno, "cannot reserve %zu bytes of memory", size);
    }
    /* Advice only: a kernel without huge pages serves small ones. */
    (void)madvise(p, size, MADV_HUGEPAGE);
    *out = p;
    return RG_OK;
}

void rg_mem_release(void *p, size_t size) {
    if (p && size) (void)madvise(p, size, MADV_DONTNEED);
}

void rg_mem_unmap(void *p, size_t size) {
    if (p) munmap(p, size);
}

size_t rg_heap_block_bytes(const void *p) {
    return malloc_usable_size((void *)(uintptr_t)p);
}

/* ---- past the page cache -------------------------------------------------------------------- */

/* Some file systems take the flag and refuse the reads: only a read tells. */
static bool direct_read_works(int fd) {
    _Alignas(RG_DIRECT_ALIGN) char page[RG_DIRECT_ALIGN];
    ssize_t n;
    do {
        n = pread(fd, page, sizeof page, 0);
    } while (n < 0 && errno == EINTR);
    return n >= 0;
}

rg_code rg_file_open_direct(rg_file *out, const char *path, rg_status *st) {
    RG_TRY(rg_file_open(out, path, st));
    const int flags = fcntl(out->fd, F_GETFL);
    if (flags >= 0 && fcntl(out->fd, F_SETFL, flags | O_DIRECT) == 0 && direct_read_works(out->fd))
        return RG_OK;
    const int err = errno;
    rg_file_close(out);
    return rg_fail_errno(st, RG_UNSUPPORTED, err, "%s: no direct reads", path);
}

void rg_file_expect_random(const rg_file *f) {
    (void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_RANDOM);
}

void rg_file_forget(const rg_file *f, uint64_t offset, uint64_t len) {
    /* The kernel drops whole pages only. */
    const uint64_t begin = offset - offset % RG_DIRECT_ALIGN;
    const uint64_t end = offset + len + RG_DIRECT_ALIGN - 1;
    (void)posix_fadvise(f->fd, (off_t)begin, (off_t)(end - end % RG_DIRECT_ALIGN - begin),
                        POSIX_FADV_DONTNEED);
}

/* ---- files of the kernel -------------------------------------------------------------------- */

#define KERNEL_FILE_MAX 8192 /* bytes; what we look for stands in the first few lines */

/* The first bytes of a file under /proc or /sys as text; false when it cannot be read. */
static bool read_kernel_file(char text[KERNEL_FILE_MAX], const char *path) {
    text[0] = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    size_t len = 0;
    for (;;) {
        const ssize_t n = read(fd, text + len, KERNEL_FILE_MAX - 1 - len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        len += (size_t)n;
    }
    close(fd);
    text[len] = 0;
    return len > 0;
}

/* A decimal number at `*text`, which moves behind it. A number beyond 64 bits reads as the largest,
 * "max" and other words are no number. */
static bool parse_u64(const char **text, uint64_t *out) {
    char *end = NULL;
    const unsigned long long v = strtoull(*text, &end, 10);
    if (end == *text) return false;
    *text = end;
    *out = v;
    return true;
}

static bool read_u64(const char *path, uint64_t *out) {
    char text[KERNEL_FILE_MAX];
    const char *at = text;
    return read_kernel_file(text, path) && parse_u64(&at, out);
}

/* The number behind `key` at the start of a line of `text`; 0 when there is none. */
static uint64_t line_value(const char *text, const char *key) {
    const size_t len = strlen(key);
    while (text && *text) {
        uint64_t v = 0;
        const char *at = text + len;
        if (strncmp(text, key, len) == 0 && parse_u64(&at, &v)) return v;
        text = strchr(text, '\n');
        if (text) text++;
    }
    return 0;
}

/* ---- cgroups -------------------------------------------------------------------------------- */

#define CGROUP_PATH_MAX  1024
#define CGROUP_DEPTH_MAX 32

/* What the cgroups seen so far allow; UINT64_MAX and INT_MAX without a limit. */
typedef struct cgroup_limits {
    uint64_t left_bytes;
    int cpus;
} cgroup_limits;

/* Page cache is charged to a cgroup, and the kernel gives it back when memory is wanted: the bytes
 * of a model file that was just read do not count as used. */
static void limit_memory(cgroup_limits *l, uint64_t max, uint64_t used, uint64_t cache) {
    used -= cache < used ? cache : used;
    const uint64_t left = max > used ? max - used : 0;
    if (left < l->left_bytes) l->left_bytes = left;
}

static void limit_cpus(cgroup_limits *l, uint64_t quota, uint64_t period) {
    if (period == 0 || quota == 0 || quota / period >= INT_MAX) return;
    const int cpus = (int)(quota / period) + (quota % period != 0);
    if (cpus < l->cpus) l->cpus = cpus;
}

/* Limits of the version 2 cgroup in directory `dir`. */
static void limits_v2(cgroup_limits *l, const char *dir) {
    char path[CGROUP_PATH_MAX + 32], text[KERNEL_FILE_MAX];
    uint64_t max = 0, used = 0, quota = 0, period = 0;
    snprintf(path, sizeof path, "%s/memory.max", dir);
    const bool has_max = read_u64(path, &max);
    snprintf(path, sizeof path, "%s/memory.current", dir);
    if (has_max && read_u64(path, &used)) {
        snprintf(path, sizeof path, "%s/memory.stat", dir);
        (void)read_kernel_file(text, path); /* empty text: no cache known */
        limit_memory(l, max, used,
                     line_value(text, "inactive_file ") + line_value(text, "active_file "));
    }
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    const char *at = text;
    if (read_kernel_file(text, path) && parse_u64(&at, &quota) && parse_u64(&at, &period))
        limit_cpus(l, quota, period);
}

/* Memory limit of the version 1 cgroup in directory `dir`. */
static void limit_memory_v1(cgroup_limits *l, const char *dir) {
    char path[CGROUP_PATH_MAX + 64], text[KERNEL_FILE_MAX];
    uint64_t max = 0, used = 0;
    snprintf(path, sizeof path, "%s/memory.limit_in_bytes", dir);
    const bool has_max = read_u64(path, &max);
    snprintf(path, sizeof path, "%s/memory.usage_in_bytes", dir);
    if (!has_max || !read_u64(path, &used)) return;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    (void)read_kernel_file(text, path);
    limit_memory(l, max, used,
                 line_value(text, "total_inactive_file ") + line_value(text, "total_active_file "));
}

/* A quota of -1 reads as a huge number: no limit. */
static void limit_cpus_v1(cgroup_limits *l, const char *dir) {
    char path[CGROUP_PATH_MAX + 64];
    uint64_t quota = 0, period = 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir);
    const bool has_quota = read_u64(path, &quota);
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
    if (has_quota && read_u64(path, &period)) limit_cpus(l, quota, period);
}

/* Whether the comma-separated `names` of `len` bytes hold `name`. */
static bool has_name(const char *names, size_t len, const char *name) {
    const size_t want = strlen(name);
    for (size_t at = 0; at < len;) {
        const char *comma = memchr(names + at, ',', len - at);
        const size_t n = comma ? (size_t)(comma - names) - at : len - at;
        if (n == want && memcmp(names + at, name, n) == 0) return true;
        at += n + 1;
    }
    return false;
}

/* Path of this process's cgroup below the mount of `controller` ("" is version 2); "" for the root
 * or when unknown. A line is "number:names:/path", see cgroups(7). */
static void own_cgroup(char path[CGROUP_PATH_MAX], const char *controller) {
    path[0] = 0;
    char text[KERNEL_FILE_MAX];
    (void)read_kernel_file(text, "/proc/self/cgroup");
    for (const char *line = text; *line;) {
        const size_t len = strcspn(line, "\n");
        const char *names = memchr(line, ':', len);
        const char *end = names ? memchr(names + 1, ':', len - (size_t)(names + 1 - line)) : NULL;
        const size_t at = end ? (size_t)(end + 1 - line) : len;
        const bool ours =
            end && (controller[0] ? has_name(names + 1, (size_t)(end - names - 1), controller)
                                  : end == names + 1);
        if (ours && len - at > 1 && len - at < CGROUP_PATH_MAX) {
            memcpy(path, line + at, len - at);
            path[len - at] = 0;
            /* "/.." climbs out of a namespace that hides the real directory. */
            if (strstr(path, "/..")) path[0] = 0;
            return;
        }
        line += len + (line[len] == '\n');
    }
}

/* Applies `look` to this process's cgroup of a controller and to those above it. Where a namespace
 * or a bind mount hides them, only the root is found. */
static void climb(cgroup_limits *l, const char *controller, const char *mount,
                  void (*look)(cgroup_limits *l, const char *dir)) {
    char path[CGROUP_PATH_MAX], dir[CGROUP_PATH_MAX + 32];
    own_cgroup(path, controller);
    for (int i = 0; i < CGROUP_DEPTH_MAX; i++) {
        snprintf(dir, sizeof dir, "%s%s", mount, path);
        look(l, dir);
        char *slash = strrchr(path, '/');
        if (!slash) break;
        *slash = 0;
    }
}

/* The tightest limits of this process's cgroups, of either version, and those above them. */
static cgroup_limits cgroup_tightest(void) {
    cgroup_limits l = {.left_bytes = UINT64_MAX, .cpus = INT_MAX};
    climb(&l, "", "/sys/fs/cgroup", limits_v2);
    climb(&l, "memory", "/sys/fs/cgroup/memory", limit_memory_v1);
    climb(&l, "cpu", "/sys/fs/cgroup/cpu", limit_cpus_v1);
    return l;
}

/* ---- processors and memory ------------------------------------------------------------------ */

/* Physical cores among the allowed processors: those that are the first of their sibling list. */
int rg_cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int cores = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET((size_t)cpu, &set)) continue;
        char path[96];
        uint64_t first = 0;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
                 cpu);
        if (!read_u64(path, &first)) first = (uint64_t)cpu;
        /* A sibling that this process may not use does not stand for the core. */
        if (first == (uint64_t)cpu || first >= CPU_SETSIZE || !CPU_ISSET((size_t)first, &set))
            cores++;
    }
    const int quota = cgroup_tightest().cpus;
    if (quota < cores) cores = quota;
    return cores > 0 ? cores : 1;
}

uint64_t rg_mem_available_bytes(void) {
    char text[KERNEL_FILE_MAX];
    (void)read_kernel_file(text, "/proc/meminfo");
    const uint64_t bytes = line_value(text, "MemAvailable:") * 1024u;
    const uint64_t left = cgroup_tightest().left_bytes;
    return left < bytes ? left : bytes;
}

uint64_t rg_rss_peak_bytes(void) {
    struct rusage use;
    if (getrusage(RUSAGE_SELF, &use) != 0) return 0;
    return (uint64_t)use.ru_maxrss * 1024u;
}

/* Dirty pages would stay, so they are written first. */
rg_code rg_page_cache_drop(const char *path, rg_status *st) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return rg_fail_errno(st, RG_IO, errno, "cannot open %s", path);
    (void)fdatasync(fd);
    const int err = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return err ? rg_fail_errno(st, RG_IO, err, "cannot drop cached pages of %s", path) : RG_OK;
}
