#include "base/os.h"

#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

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

void rg_mem_unmap(void *p, size_t size) {
    if (p) munmap(p, size);
}

size_t rg_heap_block_bytes(const void *p) {
    return malloc_usable_size((void *)(uintptr_t)p);
}

/* ---- cgroups --------------------------------------------------------------------------------- */

#define CGROUP_PATH_MAX  1024
#define CGROUP_DEPTH_MAX 32

/* What one cgroup allows; UINT64_MAX and INT_MAX where it sets no limit. */
typedef struct cgroup_limits {
    uint64_t left_bytes;
    int cpus;
} cgroup_limits;

static bool read_u64(const char *path, uint64_t *out) {
    FILE *f = fopen(path, "re");
    if (!f) return false;
    unsigned long long v = 0;
    const bool ok = fscanf(f, "%llu", &v) == 1;
    fclose(f);
    *out = v;
    return ok;
}

/* Page cache charged to a cgroup: the kernel gives it back when memory is wanted, so bytes of a
 * model file that was just read do not count as used. 0 when the file cannot be read. */
static uint64_t cgroup_cache_bytes(const char *stat_path, const char *prefix) {
    FILE *f = fopen(stat_path, "re");
    if (!f) return 0;
    char line[128], key[64];
    unsigned long long v = 0;
    uint64_t sum = 0;
    const size_t skip = strlen(prefix);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%63s %llu", key, &v) != 2 || strncmp(key, prefix, skip) != 0) continue;
        if (strcmp(key + skip, "inactive_file") == 0 || strcmp(key + skip, "active_file") == 0)
            sum += v;
    }
    fclose(f);
    return sum;
}

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
    char max_path[CGROUP_PATH_MAX + 32], path[CGROUP_PATH_MAX + 32];
    uint64_t max = 0, used = 0;
    snprintf(max_path, sizeof max_path, "%s/memory.max", dir);
    snprintf(path, sizeof path, "%s/memory.current", dir);
    if (read_u64(max_path, &max) && read_u64(path, &used)) {
        snprintf(path, sizeof path, "%s/memory.stat", dir);
        limit_memory(l, max, used, cgroup_cache_bytes(path, ""));
    }
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    FILE *f = fopen(path, "re");
    if (!f) return;
    unsigned long long quota = 0, period = 0;
    if (fscanf(f, "%llu %llu", &quota, &period) == 2) limit_cpus(l, quota, period);
    fclose(f);
}

static void limits_v1(cgroup_limits *l) {
    uint64_t max = 0, used = 0, quota = 0, period = 0;
    if (read_u64("/sys/fs/cgroup/memory/memory.limit_in_bytes", &max) &&
        read_u64("/sys/fs/cgroup/memory/memory.usage_in_bytes", &used)) {
        limit_memory(l, max, used,
                     cgroup_cache_bytes("/sys/fs/cgroup/memory/memory.stat", "total_"));
    }
    /* A quota of -1 reads as a huge number: no limit. */
    if (read_u64("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", &quota) &&
        read_u64("/sys/fs/cgroup/cpu/cpu.cfs_period_us", &period)) {
        limit_cpus(l, quota, period);
    }
}

/* Path of this process's version 2 cgroup below the mount; "" for the root or when unknown. */
static void own_cgroup(char path[CGROUP_PATH_MAX]) {
    path[0] = 0;
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f) return;
    char line[CGROUP_PATH_MAX];
    for (int i = 0; i < CGROUP_DEPTH_MAX && fgets(line, sizeof line, f); i++) {
        if (strncmp(line, "0::/", 4) != 0) continue;
        line[strcspn(line, "\n")] = 0;
        /* "/.." climbs out of a namespace that hides the real directory. */
        if (!strstr(line, "/..")) memcpy(path, line + 3, strlen(line + 3) + 1);
        break;
    }
    fclose(f);
}

/* The tightest limits of this process's cgroup and those above it. */
static cgroup_limits cgroup_tightest(void) {
    cgroup_limits l = {.left_bytes = UINT64_MAX, .cpus = INT_MAX};
    char path[CGROUP_PATH_MAX], dir[CGROUP_PATH_MAX + 16];
    own_cgroup(path);
    for (int i = 0; i < CGROUP_DEPTH_MAX; i++) {
        snprintf(dir, sizeof dir, "/sys/fs/cgroup%s", path);
        limits_v2(&l, dir);
        char *slash = strrchr(path, '/');
        if (!slash) break;
        *slash = 0;
    }
    limits_v1(&l);
    return l;
}

/* ---- processors and memory ------------------------------------------------------------------- */

/* Physical cores among the allowed processors: those that are the first of their sibling list. */
int rg_cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int cores = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET((size_t)cpu, &set)) continue;
        char path[96];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
                 cpu);
        int first = cpu;
        FILE *f = fopen(path, "re");
        if (f) {
            if (fscanf(f, "%d", &first) != 1) first = cpu;
            fclose(f);
        }
        /* A sibling that this process may not use does not stand for the core. */
        if (first == cpu || first >= CPU_SETSIZE || first < 0 || !CPU_ISSET((size_t)first, &set))
            cores++;
    }
    const int quota = cgroup_tightest().cpus;
    if (quota < cores) cores = quota;
    return cores > 0 ? cores : 1;
}

uint64_t rg_mem_available_bytes(void) {
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f) return 0;
    char line[128];
    unsigned long long kib = 0;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1) break;
    }
    fclose(f);
    const uint64_t bytes = kib * 1024u;
    const uint64_t left = cgroup_tightest().left_bytes;
    return left < bytes ? left : bytes;
}

uint64_t rg_rss_peak_bytes(void) {
    struct rusage use;
    if (getrusage(RUSAGE_SELF, &use) != 0) return 0;
    return (uint64_t)use.ru_maxrss * 1024u;
}
