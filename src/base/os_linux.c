#include "base/os.h"

#include <errno.h>
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
    return cores > 0 ? cores : 1;
}

static bool read_u64(const char *path, uint64_t *out) {
    FILE *f = fopen(path, "re");
    if (!f) return false;
    unsigned long long v = 0;
    const bool ok = fscanf(f, "%llu", &v) == 1;
    fclose(f);
    *out = v;
    return ok;
}

/* What a memory cgroup (v2, then v1) of this process leaves; UINT64_MAX without a limit. */
static uint64_t cgroup_left(void) {
    static const char *const files[][2] = {
        {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
         "/sys/fs/cgroup/memory/memory.usage_in_bytes"},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        uint64_t max = 0, used = 0;
        if (read_u64(files[i][0], &max) && read_u64(files[i][1], &used)) {
            return max > used ? max - used : 0;
        }
    }
    return UINT64_MAX;
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
    const uint64_t left = cgroup_left();
    return left < bytes ? left : bytes;
}

uint64_t rg_rss_peak_bytes(void) {
    struct rusage use;
    if (getrusage(RUSAGE_SELF, &use) != 0) return 0;
    return (uint64_t)use.ru_maxrss * 1024u;
}
