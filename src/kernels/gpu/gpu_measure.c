#include "kernels/gpu/gpu_measure.h"

#include <stdlib.h>

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static rg_code time_once(rg_gpu *gpu, rg_gpu_list *list, double *ns, rg_status *st) {
    const uint64_t begin = rg_now_ns();
    RG_TRY(rg_gpu_run(gpu, list, st));
    uint32_t n = 0;
    uint64_t sum = 0;
    const rg_gpu_time *t = rg_gpu_list_times(list, &n);
    for (uint32_t i = 0; t && i < n; i++)
        sum += t[i].ns;
    *ns = t ? (double)sum : (double)(rg_now_ns() - begin);
    return RG_OK;
}

rg_code rg_gpu_time_lists(rg_gpu *gpu, rg_gpu_list *const *lists, uint32_t n, uint64_t warm_ns,
                          uint32_t reps, double *ns, rg_status *st) {
    RG_ASSERT(n >= 1 && reps >= 1 && reps <= RG_GPU_REPS_MAX);
    double *all = rg_alloc((size_t)n * reps, sizeof *all, st);
    if (!all) return RG_NOMEM;
    rg_code rc = RG_OK;
    const uint64_t begin = rg_now_ns();
    do {
        for (uint32_t i = 0; rc == RG_OK && i < n; i++)
            rc = rg_gpu_run(gpu, lists[i], st);
    } while (rc == RG_OK && rg_now_ns() - begin < warm_ns);
    for (uint32_t rep = 0; rc == RG_OK && rep < reps; rep++) {
        for (uint32_t i = 0; rc == RG_OK && i < n; i++)
            rc = time_once(gpu, lists[i], &all[(size_t)i * reps + rep], st);
    }
    for (uint32_t i = 0; rc == RG_OK && i < n; i++) {
        qsort(all + (size_t)i * reps, reps, sizeof *all, compare);
        ns[i] = all[(size_t)i * reps + reps / 2];
    }
    rg_free(all);
    return rc;
}

rg_code rg_gpu_read_rate(rg_gpu *gpu, rg_gpu_list *list, const rg_gpu_buffer *b, uint64_t warm_ns,
                         uint32_t reps, double *gb_s, rg_status *st) {
    struct {
        uint64_t x, y;
        uint32_t n, step;
    } push = {b->address, b->address, (uint32_t)(b->bytes / 16), 0};
    const rg_gpu_kernel k = {.program = "read"};
    *gb_s = 0;
    for (uint32_t groups = 1024; groups <= 16384; groups *= 4) {
        double ns = 0;
        push.step = groups * 256;
        rg_gpu_list_begin(list, true);
        rg_gpu_dispatch(list, &k, &push, sizeof push, (rg_gpu_grid){groups, 1, 1});
        RG_TRY(rg_gpu_list_end(list, st));
        RG_TRY(rg_gpu_time_lists(gpu, &list, 1, warm_ns, reps, &ns, st));
        const double rate = ns > 0 ? (double)push.n * 16.0 / ns : 0;
        if (rate > *gb_s) *gb_s = rate;
    }
    return RG_OK;
}
