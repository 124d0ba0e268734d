/* GPUs: what they are, and what talking to them costs. A GPU that fails is a finding. */
#include <inttypes.h>
#include <string.h>

#include "forge/doctor_parts.h"

#define COPY_BYTES ((size_t)32 << 20)
#define SHAKES     16u
#define ANSWER_NS  ((uint64_t)5 * 1000000000u)

static rg_code copies(rg_gpu *gpu, rg_doctor_gpu *out, rg_gpu_buffer *b, rg_status *st) {
    RG_TRY(rg_gpu_buffer_create(gpu, b, COPY_BYTES, RG_GPU_DEVICE, st));
    void *host = rg_alloc(1, COPY_BYTES, st);
    if (!host) return RG_NOMEM;
    rg_code rc = RG_OK;
    for (int turn = 0; rc == RG_OK && turn < 3; turn++) { /* the best of three */
        const uint64_t t0 = rg_now_ns();
        rc = rg_gpu_write(gpu, b, 0, host, COPY_BYTES, st);
        const uint64_t t1 = rg_now_ns();
        if (rc == RG_OK) rc = rg_gpu_read(gpu, b, 0, host, COPY_BYTES, st);
        const double up = (double)COPY_BYTES / (double)(t1 - t0 + 1);
        const double down = (double)COPY_BYTES / (double)(rg_now_ns() - t1 + 1);
        if (up > out->to_device_gb_s) out->to_device_gb_s = up;
        if (down > out->from_device_gb_s) out->from_device_gb_s = down;
    }
    rg_free(host);
    return rc;
}

/* Lists that each wait for the host and answer it, handed over together. */
static rg_code shake(rg_gpu *gpu, rg_gpu_list *const *lists, rg_doctor_gpu *out, rg_status *st) {
    rg_gpu_part parts[SHAKES];
    for (uint32_t i = 0; i < SHAKES; i++) {
        rg_gpu_list_begin(lists[i], false);
        RG_TRY(rg_gpu_list_end(lists[i], st));
        parts[i] = (rg_gpu_part){
            .list = lists[i], .wait_host = rg_gpu_next_host(gpu), .signal = rg_gpu_next(gpu)};
    }
    RG_TRY(rg_gpu_submit(gpu, parts, SHAKES, st));
    const uint64_t begin = rg_now_ns();
    for (uint32_t i = 0; i < SHAKES; i++) {
        RG_TRY(rg_gpu_signal(gpu, parts[i].wait_host, st));
        RG_TRY(rg_gpu_wait(gpu, parts[i].signal, ANSWER_NS, st));
    }
    out->handshake_us = (double)(rg_now_ns() - begin) * 1e-3 / SHAKES;
    return RG_OK;
}

static rg_code measure(rg_doctor_gpu *out, int32_t device, rg_status *st) {
    rg_gpu *gpu = NULL;
    rg_gpu_buffer b = {0};
    rg_gpu_list *lists[SHAKES] = {NULL};
    const rg_gpu_options opt = {.device = device};
    RG_TRY(rg_gpu_open(&gpu, &opt, st));
    rg_code rc = copies(gpu, out, &b, st);
    for (uint32_t i = 0; rc == RG_OK && i < SHAKES; i++)
        rc = rg_gpu_list_create(&lists[i], gpu, st);
    if (rc == RG_OK) rc = shake(gpu, lists, out, st);
    for (uint32_t i = 0; i < SHAKES; i++)
        rg_gpu_list_destroy(lists[i]);
    rg_gpu_buffer_destroy(gpu, &b);
    rg_gpu_close(gpu);
    return rc;
}

#define READ_BYTES ((size_t)256 << 20)
#define READ_REPS  7u

rg_code rg_doctor_gpu_ceiling(double *read_gb_s, int32_t device, rg_status *st) {
    rg_gpu *gpu = NULL;
    rg_gpu_buffer b = {0};
    rg_gpu_list *list = NULL;
    const rg_gpu_options opt = {.device = device};
    *read_gb_s = 0;
    RG_TRY(rg_gpu_open(&gpu, &opt, st));
    /* More than its caches hold; processors' memory needs no large piece for that. */
    const bool software = strcmp(rg_gpu_get_info(gpu)->kind, "software") == 0;
    rg_code rc =
        rg_gpu_buffer_create(gpu, &b, software ? READ_BYTES / 4 : READ_BYTES, RG_GPU_DEVICE, st);
    if (rc == RG_OK) rc = rg_gpu_list_create(&list, gpu, st);
    if (rc == RG_OK)
        rc = rg_gpu_read_rate(gpu, list, &b, software ? 0 : RG_GPU_WARM_NS, READ_REPS, read_gb_s,
                              st);
    rg_gpu_list_destroy(list);
    rg_gpu_buffer_destroy(gpu, &b);
    rg_gpu_close(gpu);
    return rc;
}

rg_code rg_doctor_measure_gpus(rg_doctor_report *out, rg_status *st) {
    rg_gpu_info info[RG_GPU_DEVICES_MAX];
    rg_status why = {0};
    out->n_gpu = 0;
    uint32_t n = 0;
    if (rg_gpu_enumerate(info, RG_GPU_DEVICES_MAX, &n, &why) != RG_OK) return RG_OK;
    for (uint32_t i = 0; i < n; i++) {
        rg_doctor_gpu *g = &out->gpus[i];
        *g = (rg_doctor_gpu){.info = info[i]};
        if (!info[i].usable) continue;
        rg_status_clear(&why);
        const rg_code rc = measure(g, (int32_t)i, &why);
        g->measured = rc == RG_OK;
        if (rc != RG_OK) memcpy(g->error, why.message, sizeof g->error);
    }
    out->n_gpu = n;
    (void)st;
    return RG_OK;
}

rg_code rg_doctor_gpus_text(const rg_doctor_report *r, rg_buf *out, rg_status *st) {
    RG_TRY(rg_buf_printf(out, st, "graphics processors\n"));
    if (r->n_gpu == 0)
        return rg_buf_printf(out, st, "  none: no Vulkan driver, or none that sees a device\n");
    for (uint32_t i = 0; i < r->n_gpu; i++) {
        const rg_doctor_gpu *g = &r->gpus[i];
        RG_TRY(rg_buf_printf(out, st, "  device %-15u %s, %s, Vulkan %u.%u\n", i, g->info.name,
                             g->info.kind, g->info.api_major, g->info.api_minor));
        if (!g->info.usable) {
            RG_TRY(rg_buf_printf(out, st, "  %-22s lacks %s\n", "", g->info.missing));
            continue;
        }
        RG_TRY(rg_buf_printf(
            out, st, "  %-22s %" PRIu64 " MiB%s, %" PRIu64 " MiB in one piece; subgroups of %u\n",
            "", g->info.device_bytes >> 20, g->info.mappable ? " the host can map" : "",
            g->info.alloc_bytes >> 20, g->info.subgroup_size));
        RG_TRY(rg_buf_printf(
            out, st, "  %-22s experts that stream %s; copies %s\n", "",
            g->info.mappable ? "are read into its memory" : "are staged and copied into its memory",
            g->info.transfer ? "have a queue of their own" : "share the queue that computes"));
        if (!g->measured) {
            RG_TRY(rg_buf_printf(out, st, "  %-22s not measured: %s\n", "", g->error));
            continue;
        }
        RG_TRY(rg_buf_printf(out, st,
                             "  %-22s copies %.1f GB/s up, %.1f down; hand-shake %.0f us\n", "",
                             g->to_device_gb_s, g->from_device_gb_s, g->handshake_us));
    }
    return RG_OK;
}
