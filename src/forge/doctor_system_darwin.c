#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/param.h>
#include <sys/sysctl.h>

#include "forge/doctor_parts.h"

uint64_t rg_doctor_cache_bytes(void) {
    uint64_t v = 0;
    size_t n = sizeof v;
    return sysctlbyname("hw.l2cachesize", &v, &n, NULL, 0) == 0 ? v : 0;
}

void rg_doctor_huge_pages(char out[16]) {
    snprintf(out, 16, "unknown");
}

void rg_doctor_cgroup(int *version, uint64_t *memory_bytes) {
    *version = 0;
    *memory_bytes = RG_DOCTOR_UNLIMITED;
}

void rg_doctor_file_system(int fd, char out[24], bool *is_memory) {
    struct statfs fs;
    *is_memory = false;
    if (fstatfs(fd, &fs) == 0) {
        snprintf(out, 24, "%.23s", fs.f_fstypename);
    } else {
        snprintf(out, 24, "unknown");
    }
}

bool rg_doctor_set_direct(int fd, bool direct) {
    return fcntl(fd, F_NOCACHE, direct ? 1 : 0) == 0;
}

void rg_doctor_drop_cache(int fd) {
    (void)fd;
}
