#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "forge/doctor_parts.h"

#define PATH_BYTES   1024
#define CGROUP_DEPTH 64
#define V1_NO_LIMIT  ((uint64_t)1 << 60) /* v1 writes a huge number for none */

uint64_t rg_doctor_cache_bytes(void) {
    const long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (l3 > 0) return (uint64_t)l3;
    const long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return l2 > 0 ? (uint64_t)l2 : 0;
}

void rg_doctor_huge_pages(char out[16]) {
    char line[128];
    snprintf(out, 16, "unknown");
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    if (!f) return;
    if (fgets(line, sizeof line, f)) { /* "always [madvise] never" */
        const char *open = strchr(line, '[');
        const char *close = open ? strchr(open, ']') : NULL;
        if (close) snprintf(out, 16, "%.*s", (int)(close - open - 1), open + 1);
    }
    fclose(f);
}

/* Least limit of a group and those above it. */
static uint64_t least_limit(const char *root, char *group, const char *file) {
    uint64_t least = RG_DOCTOR_UNLIMITED;
    for (int depth = 0; depth < CGROUP_DEPTH; depth++) {
        char path[2 * PATH_BYTES], text[32];
        snprintf(path, sizeof path, "%s%s/%s", root, group, file);
        FILE *f = fopen(path, "re");
        if (f) {
            if (fgets(text, sizeof text, f)) {
                char *end = text;
                const unsigned long long v = strtoull(text, &end, 10);
                if (end != text && v < V1_NO_LIMIT && v < least) least = v;
            }
            fclose(f);
        }
        char *slash = strrchr(group, '/');
        if (!slash) break;
        *slash = '\0';
    }
    return least;
}

void rg_doctor_cgroup(int *version, uint64_t *memory_bytes) {
    char line[PATH_BYTES];
    *version = 0;
    *memory_bytes = RG_DOCTOR_UNLIMITED;
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f) return;
    for (int i = 0; i < CGROUP_DEPTH && fgets(line, sizeof line, f); i++) {
        line[strcspn(line, "\n")] = '\0';
        char *memory = strstr(line, ":memory:");
        if (memory) {
            *version = 1;
            *memory_bytes =
                least_limit("/sys/fs/cgroup/memory", memory + 8, "memory.limit_in_bytes");
            break;
        }
        if (strncmp(line, "0::", 3) == 0 && *version == 0) {
            const bool mounted = access("/sys/fs/cgroup/cgroup.controllers", F_OK) == 0;
            if (!mounted) continue;
            *version = 2;
            *memory_bytes = least_limit("/sys/fs/cgroup", line + 3, "memory.max");
        }
    }
    fclose(f);
}

void rg_doctor_file_system(int fd, char out[24], bool *is_memory) {
    static const struct {
        long magic;
        const char *name;
        bool memory;
    } known[] = {
        {0xEF53, "ext4", false},     {0x58465342, "xfs", false},  {0x9123683E, "btrfs", false},
        {0x01021994, "tmpfs", true}, {0x858458F6, "ramfs", true}, {0x794C7630, "overlay", false},
        {0x6969, "nfs", false},      {0x2FC12FC1, "zfs", false},  {0xF2F52010, "f2fs", false},
        {0x65735546, "fuse", false}, {0x5346544E, "ntfs", false}, {0x4D44, "fat", false}};
    struct statfs fs;
    snprintf(out, 24, "unknown");
    *is_memory = false;
    if (fstatfs(fd, &fs) != 0) return;
    snprintf(out, 24, "0x%lx", (unsigned long)fs.f_type);
    for (size_t i = 0; i < RG_ARRAY_LEN(known); i++) {
        if ((unsigned long)fs.f_type != (unsigned long)known[i].magic) continue;
        snprintf(out, 24, "%s", known[i].name);
        *is_memory = known[i].memory;
    }
}

bool rg_doctor_set_direct(int fd, bool direct) {
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0) return false;
    return fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

void rg_doctor_drop_cache(int fd) {
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}
