/* Device time of a core's kernels: sums of the lists' time stamps, and their rows in the table of
 * kernel times. What a window took beyond its kernels is a row too, so that the rows add up to the
 * time of the windows.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/gpu_core.h"

static bool same_work(const rg_core_gpu_time *a, const rg_gpu_time *b) {
    return a->first == b->first && a->groups == b->groups && strcmp(a->program, b->program) == 0;
}

void rg_gpu_add_times(rg_gpu_core *g, rg_gpu_list *list) {
    uint32_t n = 0;
    const rg_gpu_time *t = rg_gpu_list_times(list, &n);
    for (uint32_t i = 0; t && i < n; i++) {
        uint32_t k = 0;
        while (k < g->n_time && !same_work(&g->times[k], &t[i]))
            k++;
        if (k == RG_GPU_PROGRAMS_MAX) return;
        if (k == g->n_time) {
            g->times[g->n_time++] = (rg_core_gpu_time){
                .program = t[i].program, .first = t[i].first, .groups = t[i].groups};
        }
        g->times[k].ns += t[i].ns;
        g->times[k].bytes += t[i].bytes;
        g->times[k].ops += t[i].ops;
        g->times[k].count++;
    }
}

uint32_t rg_core_gpu_times(const rg_core *core, rg_core_gpu_time *out, uint32_t cap) {
    if (!core->gpu) return 0;
    const uint32_t n = core->gpu->n_time < cap ? core->gpu->n_time : cap;
    memcpy(out, core->gpu->times, n * sizeof *out);
    return n;
}

/* Type of the weights that a kernel reads; RG_TIMING_NO_TYPE: none of a block format. */
static uint32_t type_of(const rg_core_gpu_time *t) {
    const bool typed = strncmp(t->program, "mul_", 4) == 0 || strcmp(t->program, "hc_up") == 0 ||
                       strcmp(t->program, "embed") == 0 || strcmp(t->program, "draft_rows") == 0;
    return typed && rg_type_get(t->first) ? t->first : RG_TIMING_NO_TYPE;
}

static const char *type_name(uint32_t type) {
    const rg_type_info *info = rg_type_get(type);
    return info ? info->name : "";
}

static int by_time(const void *a, const void *b) {
    const rg_core_gpu_row *x = a, *y = b;
    return (x->ns < y->ns) - (x->ns > y->ns);
}

uint32_t rg_core_gpu_rows(const rg_core *core, rg_core_gpu_row *out, uint32_t cap) {
    uint32_t n = 0;
    for (uint32_t i = 0; core->gpu && i < core->gpu->n_time; i++) {
        const rg_core_gpu_time *t = &core->gpu->times[i];
        const char *type = type_name(type_of(t));
        uint32_t k = 0;
        while (k < n && (strcmp(out[k].name, t->program) != 0 || strcmp(out[k].type, type) != 0))
            k++;
        if (k == cap) break;
        if (k == n) out[n++] = (rg_core_gpu_row){.name = t->program, .type = type};
        out[k].calls += t->count;
        out[k].ns += t->ns;
        out[k].bytes += t->bytes;
        out[k].ops += t->ops;
    }
    if (n) qsort(out, n, sizeof *out, by_time);
    return n;
}

void rg_core_gpu_rows_reset(rg_core *core) {
    rg_gpu_core *g = core->gpu;
    if (!g) return;
    g->n_time = 0;
    g->windows_ns = g->n_window = 0;
    g->copies = rg_gpu_landing_copies(g);
}

/* ---- the table of kernel times --------------------------------------------------------------- */

void rg_gpu_time_kernels(rg_gpu_core *g, bool on) {
    const rg_core_options *opt = &g->core->opt;
    rg_core_gpu_rows_reset(g->core);
    rg_core_gpu_switch(g->core, opt->gpu_unfused, opt->gpu_slot_rows, on);
}

static bool in_row(const rg_kernel_time *row, const char *part, const char *kernel, uint32_t type) {
    return row->type == type && strcmp(row->kernel, kernel) == 0 && strcmp(row->part, part) == 0;
}

/* Of a staged arena. They were queued one by one and ran one after another. */
static size_t add_copies(const rg_gpu_core *g, rg_kernel_time *out, size_t n, size_t cap) {
    const rg_gpu_copies now = rg_gpu_landing_copies(g);
    if (n == cap || now.count == g->copies.count || !rg_gpu_transfer_timed(g->gpu)) return n;
    out[n] = (rg_kernel_time){.part = "copies beside",
                              .kernel = "staging to slot",
                              .type = RG_TIMING_NO_TYPE,
                              .calls = now.count - g->copies.count,
                              .ns = now.ns - g->copies.ns,
                              .bytes = now.bytes - g->copies.bytes,
                              .beside = true};
    return n + 1;
}

size_t rg_gpu_kernel_times(const rg_gpu_core *g, rg_kernel_time *out, size_t cap) {
    size_t n = 0;
    uint64_t device_ns = 0;
    if (!g->core->opt.gpu_stamps || !g->n_window || cap == 0) return 0;
    for (uint32_t i = 0; i < g->n_time; i++) {
        const rg_core_gpu_time *t = &g->times[i];
        const uint32_t type = type_of(t);
        /* Of what the device lists itself the bytes are not known: rows of their own keep the
         * others' rates. */
        const char *part = t->groups ? "device" : "device, listed experts";
        size_t k = 0;
        while (k < n && !in_row(&out[k], part, t->program, type))
            k++;
        device_ns += t->ns;
        if (k == cap) continue;
        if (k == n) out[n++] = (rg_kernel_time){.part = part, .kernel = t->program, .type = type};
        out[k].calls += t->count;
        out[k].ns += t->ns;
        out[k].bytes += t->bytes;
        out[k].ops += t->ops;
    }
    if (n == cap) return n;
    const uint64_t rest = g->windows_ns > device_ns ? g->windows_ns - device_ns : 0;
    out[n++] = (rg_kernel_time){.part = "host",
                                .kernel = "device has no work",
                                .type = RG_TIMING_NO_TYPE,
                                .calls = g->n_window,
                                .ns = rest};
    return add_copies(g, out, n, cap);
}
