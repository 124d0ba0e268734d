#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <mach/mach.h>
#include <malloc/malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysctl.h>

#include "base/alloc.h"

void rg_file_forget(const rg_file *f) {
    (void)fcntl(f->fd, F_NOCACHE, 1);
}

rg_code rg_mem_map(void **out, size_t size, rg_status *st) {
    *out = NULL;
    void *token = rg_alloc(1, 1, st);
    if (!token) return RG_NOMEM;
    rg_free(token);
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (p == MAP_FAILED) {
        return rg_fail_errno(st, RG_NOMEM, errno, "cannot reserve %zu bytes of memory", size);
    }
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
    return malloc_size(p);
}

int rg_cpu_count(void) {
    int n = 0;
    size_t len = sizeof n;
    if (sysctlbyname("hw.physicalcpu", &n, &len, NULL, 0) != 0 || n < 1) return 1;
    return n;
}

uint64_t rg_mem_available_bytes(void) {
    vm_statistics64_data_t vm = {0};
    mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
    const mach_port_t host = mach_host_self();
    if (host_statistics64(host, HOST_VM_INFO64, (host_info64_t)&vm, &count) != KERN_SUCCESS) {
        return 0;
    }
    return (uint64_t)(vm.free_count + vm.inactive_count) * vm_kernel_page_size;
}

uint64_t rg_rss_peak_bytes(void) {
    struct rusage use;
    if (getrusage(RUSAGE_SELF, &use) != 0) return 0;
    return (uint64_t)use.ru_maxrss; /* bytes here, KiB elsewhere */
}
