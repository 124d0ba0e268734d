/* Test support of the GPU ops: a device under the validation layers, buffers with contents, errors
 * against double. Private to the tests of this room.
 */
#ifndef RG_KERNELS_GPU_CHECK_H
#define RG_KERNELS_GPU_CHECK_H

#include "kernels/gpu/gpu_ops.h"
#include "kernels/level_check.h"

typedef struct gpu_check {
    rg_gpu *gpu;
    rg_gpu_list *list;
    rg_gpu_buffer tables;
} gpu_check;

/* Whether there is a device; without one a test program returns 77. */
static inline bool gpu_check_here(void) {
    rg_gpu_info info[RG_GPU_DEVICES_MAX];
    uint32_t n = 0;
    if (rg_gpu_enumerate(info, RG_GPU_DEVICES_MAX, &n, NULL) != RG_OK) return false;
    for (uint32_t i = 0; i < n; i++) {
        if (info[i].usable) return true;
    }
    print_message("skipped: no usable GPU\n");
    return false;
}

static inline gpu_check gpu_check_open(void) {
    gpu_check c = {0};
    rg_status st = {0};
    const rg_gpu_options opt = {.device = -1, .validate = true};
    if (rg_gpu_open(&c.gpu, &opt, &st) != RG_OK ||
        rg_gpu_list_create(&c.list, c.gpu, &st) != RG_OK ||
        rg_gpu_tables_create(c.gpu, &c.tables, &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
    print_message("on %s%s\n", rg_gpu_get_info(c.gpu)->name,
                  rg_gpu_validated(c.gpu) ? ", validated" : "");
    return c;
}

/* The validation layers had nothing to say. */
static inline void gpu_check_close(gpu_check *c) {
    const char *first = NULL;
    const uint64_t n = rg_gpu_complaints(c->gpu, &first);
    if (n) fail_msg("%llu complaints, first: %s", (unsigned long long)n, first);
    rg_gpu_list_destroy(c->list);
    rg_gpu_buffer_destroy(c->gpu, &c->tables);
    rg_gpu_close(c->gpu);
}

static inline rg_gpu_buffer gpu_filled(gpu_check *c, const void *data, size_t bytes) {
    rg_gpu_buffer b;
    rg_status st = {0};
    if (rg_gpu_buffer_create(c->gpu, &b, bytes, RG_GPU_DEVICE, &st) != RG_OK ||
        (data && rg_gpu_write(c->gpu, &b, 0, data, bytes, &st) != RG_OK)) {
        fail_msg("%s", st.message);
    }
    return b;
}

static inline void gpu_fetch(gpu_check *c, const rg_gpu_buffer *b, void *data, size_t bytes) {
    rg_status st = {0};
    if (rg_gpu_read(c->gpu, b, 0, data, bytes, &st) != RG_OK) fail_msg("%s", st.message);
}

static inline void gpu_run_list(gpu_check *c) {
    rg_status st = {0};
    if (rg_gpu_list_end(c->list, &st) != RG_OK || rg_gpu_run(c->gpu, c->list, &st) != RG_OK)
        fail_msg("%s", st.message);
}

/* Normalised mean squared error. */
static inline double nmse(const float *got, const double *want, size_t n) {
    double err = 0.0, power = 0.0;
    for (size_t i = 0; i < n; i++) {
        const double d = (double)got[i] - want[i];
        err += d * d;
        power += want[i] * want[i];
    }
    return power > 0.0 ? err / power : err;
}

static inline void expect_nmse(const float *got, const double *want, size_t n, double bound,
                               const char *what) {
    const double e = nmse(got, want, n);
    if (!(e <= bound)) fail_msg("%s: error %.3g, bound %.3g", what, e, bound);
}

#endif
