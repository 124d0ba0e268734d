/* The GPU interface of a build without a driver: there are no devices. */
#include "kernels/gpu/gpu.h"

const rg_gpu_program rg_gpu_programs[1] = {{0}};
const size_t rg_gpu_program_count = 0;

rg_code rg_gpu_enumerate(rg_gpu_info *out, uint32_t cap, uint32_t *n, rg_status *st) {
    (void)out;
    (void)cap;
    (void)st;
    *n = 0;
    return RG_OK;
}
uint32_t rg_gpu_choose(const rg_gpu_info *info, uint32_t n, int32_t wanted) {
    (void)info;
    (void)wanted;
    return n;
}

rg_code rg_gpu_open(rg_gpu **out, const rg_gpu_options *opt, rg_status *st) {
    (void)opt;
    *out = NULL;
    return rg_fail(st, RG_UNSUPPORTED, "this build has no GPU backend");
}

/* Nothing below can be reached: every call needs a device. */
static rg_code unreachable(rg_status *st) {
    return rg_fail(st, RG_BUG, "a GPU call without a device");
}

void rg_gpu_close(rg_gpu *gpu) {
    (void)gpu;
}
const rg_gpu_info *rg_gpu_get_info(const rg_gpu *gpu) {
    static const rg_gpu_info none = {.kind = "other", .missing = "a driver"};
    (void)gpu;
    return &none;
}
uint64_t rg_gpu_complaints(const rg_gpu *gpu, const char **first) {
    (void)gpu;
    if (first) *first = "";
    return 0;
}
bool rg_gpu_validated(const rg_gpu *gpu) {
    (void)gpu;
    return false;
}
uint64_t rg_gpu_bytes(const rg_gpu *gpu) {
    (void)gpu;
    return 0;
}
rg_code rg_gpu_buffer_create(rg_gpu *gpu, rg_gpu_buffer *out, size_t bytes, rg_gpu_place place,
                             rg_status *st) {
    (void)gpu;
    (void)bytes;
    (void)place;
    *out = (rg_gpu_buffer){0};
    return unreachable(st);
}
void rg_gpu_buffer_destroy(rg_gpu *gpu, rg_gpu_buffer *b) {
    (void)gpu;
    (void)b;
}
rg_code rg_gpu_write(rg_gpu *gpu, const rg_gpu_buffer *b, size_t offset, const void *src,
                     size_t bytes, rg_status *st) {
    (void)gpu;
    (void)b;
    (void)offset;
    (void)src;
    (void)bytes;
    return unreachable(st);
}
rg_code rg_gpu_read(rg_gpu *gpu, const rg_gpu_buffer *b, size_t offset, void *dst, size_t bytes,
                    rg_status *st) {
    (void)gpu;
    (void)b;
    (void)offset;
    (void)dst;
    (void)bytes;
    return unreachable(st);
}
rg_code rg_gpu_list_create(rg_gpu_list **out, rg_gpu *gpu, rg_status *st) {
    (void)gpu;
    *out = NULL;
    return unreachable(st);
}
void rg_gpu_list_destroy(rg_gpu_list *list) {
    (void)list;
}
void rg_gpu_list_begin(rg_gpu_list *list, bool stamps) {
    (void)list;
    (void)stamps;
}
void rg_gpu_dispatch(rg_gpu_list *list, const rg_gpu_kernel *kernel, const void *push,
                     size_t push_bytes, rg_gpu_grid grid) {
    (void)list;
    (void)kernel;
    (void)push;
    (void)push_bytes;
    (void)grid;
}
void rg_gpu_list_moves(rg_gpu_list *list, uint64_t bytes) {
    (void)list;
    (void)bytes;
}
void rg_gpu_list_multiplies(rg_gpu_list *list, uint64_t ops) {
    (void)list;
    (void)ops;
}
void rg_gpu_dispatch_indirect(rg_gpu_list *list, const rg_gpu_kernel *kernel, const void *push,
                              size_t push_bytes, const rg_gpu_buffer *grid, size_t offset) {
    (void)list;
    (void)kernel;
    (void)push;
    (void)push_bytes;
    (void)grid;
    (void)offset;
}
void rg_gpu_barrier(rg_gpu_list *list) {
    (void)list;
}
void rg_gpu_copy(rg_gpu_list *list, const rg_gpu_buffer *dst, size_t dst_offset,
                 const rg_gpu_buffer *src, size_t src_offset, size_t bytes) {
    (void)list;
    (void)dst;
    (void)dst_offset;
    (void)src;
    (void)src_offset;
    (void)bytes;
}
void rg_gpu_fill(rg_gpu_list *list, const rg_gpu_buffer *b, size_t offset, size_t bytes,
                 uint32_t word) {
    (void)list;
    (void)b;
    (void)offset;
    (void)bytes;
    (void)word;
}
rg_code rg_gpu_list_end(rg_gpu_list *list, rg_status *st) {
    (void)list;
    return unreachable(st);
}
const rg_gpu_info *rg_gpu_list_info(const rg_gpu_list *list) {
    (void)list;
    return NULL;
}
uint32_t rg_gpu_list_dispatches(const rg_gpu_list *list) {
    (void)list;
    return 0;
}
uint32_t rg_gpu_list_barriers(const rg_gpu_list *list) {
    (void)list;
    return 0;
}
const rg_gpu_time *rg_gpu_list_times(rg_gpu_list *list, uint32_t *n) {
    (void)list;
    *n = 0;
    return NULL;
}
rg_code rg_gpu_submit(rg_gpu *gpu, const rg_gpu_part *parts, uint32_t n, rg_status *st) {
    (void)gpu;
    (void)parts;
    (void)n;
    return unreachable(st);
}
uint64_t rg_gpu_next(rg_gpu *gpu) {
    (void)gpu;
    return 0;
}
uint64_t rg_gpu_next_host(rg_gpu *gpu) {
    (void)gpu;
    return 0;
}
rg_code rg_gpu_signal(rg_gpu *gpu, uint64_t value, rg_status *st) {
    (void)gpu;
    (void)value;
    return unreachable(st);
}
rg_code rg_gpu_wait(rg_gpu *gpu, uint64_t value, uint64_t timeout_ns, rg_status *st) {
    (void)gpu;
    (void)value;
    (void)timeout_ns;
    return unreachable(st);
}
rg_code rg_gpu_run(rg_gpu *gpu, rg_gpu_list *list, rg_status *st) {
    (void)gpu;
    (void)list;
    return unreachable(st);
}
rg_code rg_gpu_buffer_import(rg_gpu *gpu, rg_gpu_buffer *out, void *memory, size_t bytes,
                             rg_status *st) {
    (void)gpu;
    (void)memory;
    (void)bytes;
    *out = (rg_gpu_buffer){0};
    return unreachable(st);
}
rg_code rg_gpu_transfer_create(rg_gpu_list **out, rg_gpu *gpu, rg_status *st) {
    (void)gpu;
    *out = NULL;
    return unreachable(st);
}
rg_code rg_gpu_transfer_submit(rg_gpu *gpu, rg_gpu_list *list, uint64_t *value, rg_status *st) {
    (void)gpu;
    (void)list;
    *value = 0;
    return unreachable(st);
}
uint64_t rg_gpu_transfer_passed(rg_gpu *gpu) {
    (void)gpu;
    return UINT64_MAX;
}
rg_code rg_gpu_transfer_wait(rg_gpu *gpu, uint64_t value, uint64_t timeout_ns, rg_status *st) {
    (void)gpu;
    (void)value;
    (void)timeout_ns;
    return unreachable(st);
}
uint64_t rg_gpu_transfer_ns(const rg_gpu_list *list) {
    (void)list;
    return 0;
}
bool rg_gpu_transfer_timed(const rg_gpu *gpu) {
    (void)gpu;
    return false;
}
void rg_gpu_drain(rg_gpu *gpu) {
    (void)gpu;
}
void rg_gpu_lose(rg_gpu *gpu) {
    (void)gpu;
}
uint32_t rg_gpu_kernels(const rg_gpu *gpu) {
    (void)gpu;
    return 0;
}
rg_gpu_cache rg_gpu_cache_found(const rg_gpu *gpu) {
    (void)gpu;
    return RG_GPU_CACHE_NONE;
}
void rg_gpu_plan_begin(rg_gpu *gpu) {
    (void)gpu;
}
rg_code rg_gpu_plan_end(rg_gpu *gpu, rg_pool *pool, rg_status *st) {
    (void)gpu;
    (void)pool;
    return unreachable(st);
}
