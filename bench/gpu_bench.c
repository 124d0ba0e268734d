/* Micro-benchmark of the GPU ops: gpu_bench [--device N] [--mib N] [--reps N] [--sweep] [TYPE...].
 *
 * Tab-separated lines: what, type, rows, milliseconds (median), GB/s or GFLOP/s, share of the
 * reading ceiling measured in the same run. Products over interleaved rows count the bytes that the
 * weights take in a file, and say how many more they read. Then copies, a hand-shake between host
 * and device, and what a submission costs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/gpu/gpu_interleave.h"
#include "kernels/gpu/gpu_measure.h"
#include "kernels/gpu/gpu_ops.h"

#define N_IN       2560u
#define N_IN_SMALL 640u /* rows that 256 does not divide lie in experts' down */
#define COLS_MAX   512u
#define SHAKES     48u
#define REPS_MAX   RG_GPU_REPS_MAX

typedef struct bench {
    rg_gpu *gpu;
    rg_gpu_list *list, *lists[SHAKES];
    rg_gpu_buffer w, x, y, tables;
    size_t bytes;
    uint32_t reps;
    bool sweep;
    double ceiling; /* bytes a nanosecond */
    rg_status st;
} bench;

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, uint32_t n) {
    qsort(x, n, sizeof *x, compare);
    return x[n / 2];
}

/* Device nanoseconds of what is in the list. */
static rg_code time_list(bench *b, double *ns) {
    RG_TRY(rg_gpu_list_end(b->list, &b->st));
    return rg_gpu_time_lists(b->gpu, &b->list, 1, RG_GPU_WARM_NS, b->reps, ns, &b->st);
}

static rg_code bench_read(bench *b) {
    RG_TRY(rg_gpu_read_rate(b->gpu, b->list, &b->w, RG_GPU_WARM_NS, b->reps, &b->ceiling, &b->st));
    printf("read\tu32\t\t%.4f\t%.1f GB/s\t\n", (double)b->bytes / b->ceiling * 1e-6, b->ceiling);
    return RG_OK;
}

static rg_code bench_product(bench *b, rg_type type, uint32_t cols, const rg_gpu_product_way *how) {
    const rg_type_info *info = rg_type_get((uint32_t)type);
    const uint32_t n_in = info->block_elems == 256 ? N_IN : N_IN_SMALL * 4;
    const size_t row = rg_row_bytes(type, n_in);
    const double more =
        how->interleaved ? (double)rg_gpu_interleaved_of(type, n_in, 2).bytes / (2.0 * (double)row)
                         : 1.0;
    size_t n_out = (size_t)((double)b->bytes / ((double)row * more));
    if (n_out > 16384u * 16) n_out = 16384u * 16;
    if (cols > RG_GPU_ROWS_MAX && n_out > 8192) n_out = 8192;
    const rg_gpu_product p = {.w = b->w.address,
                              .x = b->x.address,
                              .y = b->y.address,
                              .tables = b->tables.address,
                              .n_in = n_in,
                              .n_out = (uint32_t)n_out,
                              .row_bytes = (uint32_t)row,
                              .x_stride = n_in,
                              .y_stride = (uint32_t)n_out,
                              .x_div = 1,
                              .div = 1.0f,
                              .n = cols};
    rg_gpu_product_way way = *how;
    way.type = type;
    double ns = 0;
    rg_gpu_list_begin(b->list, true);
    rg_gpu_mul(b->list, &p, &way);
    RG_TRY(time_list(b, &ns));
    const double bytes = (double)n_out * (double)row;
    if (cols <= RG_GPU_ROWS_MAX) {
        printf("mul\t%s\t%u\t%.4f\t%.1f GB/s\t%.1f %%\tgroup %u%s", info->name, cols, ns * 1e-6,
               bytes / ns, 100.0 * bytes / ns / b->ceiling, way.group_rows,
               way.loop ? " loop" : "");
        if (way.interleaved) printf(" interleaved, %.2f times the bytes", more);
        printf("\n");
    } else {
        const double flop = 2.0 * (double)n_out * n_in * cols;
        printf("tile\t%s\t%u\t%.4f\t%.1f GFLOP/s\t\tside %u depth %u%s%s\n", info->name, cols,
               ns * 1e-6, flop / ns, way.side, way.depth,
               way.no_matrix ? " without matrix units" : "", way.interleaved ? " interleaved" : "");
    }
    fflush(stdout);
    return RG_OK;
}

static rg_code bench_interleaved(bench *b, rg_type type) {
    rg_gpu_product_way way = {.interleaved = true};
    if (!rg_gpu_can_interleave(type, N_IN)) return RG_OK;
    for (uint32_t cols = 1; cols <= 8; cols *= 2) {
        RG_TRY(bench_product(b, type, cols, &way));
        for (way.group_rows = 2; b->sweep && way.group_rows * cols <= 32; way.group_rows *= 2)
            RG_TRY(bench_product(b, type, cols, &way));
        way.group_rows = 0;
    }
    return bench_product(b, type, COLS_MAX, &way);
}

static rg_code bench_type(bench *b, rg_type type) {
    static const uint32_t cols[] = {1, 2, 4, 8};
    for (size_t i = 0; i < RG_ARRAY_LEN(cols); i++) {
        RG_TRY(bench_product(b, type, cols[i], &(rg_gpu_product_way){0}));
        for (uint32_t group = 1; b->sweep && group <= 4; group *= 2) {
            rg_gpu_product_way way = {.group_rows = group};
            if (group * cols[i] > 32) continue;
            RG_TRY(bench_product(b, type, cols[i], &way));
            way.loop = true;
            RG_TRY(bench_product(b, type, cols[i], &way));
        }
    }
    RG_TRY(bench_product(b, type, COLS_MAX, &(rg_gpu_product_way){0}));
    for (uint32_t side = 1; b->sweep && side <= 8; side *= 2) {
        rg_gpu_product_way way = {.side = side};
        RG_TRY(bench_product(b, type, COLS_MAX, &way));
        for (way.depth = 2; way.depth <= 4 && !way.no_matrix; way.depth += 2)
            RG_TRY(bench_product(b, type, COLS_MAX, &way));
        way.depth = 0;
        way.no_matrix = true;
        if (side <= 4) RG_TRY(bench_product(b, type, COLS_MAX, &way));
    }
    return RG_OK;
}

/* ---- copies, hand-shakes --------------------------------------------------------------------- */

static rg_code bench_copies(bench *b) {
    const size_t n = b->bytes < ((size_t)64 << 20) ? b->bytes : (size_t)64 << 20;
    void *host = rg_alloc(1, n, &b->st);
    if (!host) return RG_NOMEM;
    memset(host, 1, n);
    for (int down = 0; down < 2; down++) {
        double all[REPS_MAX];
        for (uint32_t i = 0; i <= b->reps; i++) {
            const uint64_t begin = rg_now_ns();
            const rg_code rc = down ? rg_gpu_read(b->gpu, &b->w, 0, host, n, &b->st)
                                    : rg_gpu_write(b->gpu, &b->w, 0, host, n, &b->st);
            if (rc != RG_OK) {
                rg_free(host);
                return rc;
            }
            if (i) all[i - 1] = (double)(rg_now_ns() - begin);
        }
        const double ns = median(all, b->reps);
        printf("%s\t%s\t%zu MiB\t%.4f\t%.2f GB/s\t\n", down ? "copy from device" : "copy to device",
               b->w.mapped ? "mapped" : "staged", n >> 20, ns * 1e-6, (double)n / ns);
    }
    rg_free(host);
    return RG_OK;
}

/* SHAKES lists in one submission: each waits for the host and answers it. */
static rg_code shake(bench *b, double *ns) {
    rg_gpu_part parts[SHAKES];
    for (uint32_t i = 0; i < SHAKES; i++) {
        parts[i] = (rg_gpu_part){.list = b->lists[i],
                                 .wait_host = rg_gpu_next_host(b->gpu),
                                 .signal = rg_gpu_next(b->gpu)};
    }
    RG_TRY(rg_gpu_submit(b->gpu, parts, SHAKES, &b->st));
    const uint64_t begin = rg_now_ns();
    for (uint32_t i = 0; i < SHAKES; i++) {
        RG_TRY(rg_gpu_signal(b->gpu, parts[i].wait_host, &b->st));
        RG_TRY(rg_gpu_wait(b->gpu, parts[i].signal, (uint64_t)10 * 1000000000u, &b->st));
    }
    *ns = (double)(rg_now_ns() - begin) / SHAKES;
    return RG_OK;
}

static rg_code bench_shakes(bench *b) {
    double all[REPS_MAX], alone[REPS_MAX];
    const rg_gpu_silu_mul_args act = {.g = b->x.address, .u = b->x.address, .n = 128};
    for (uint32_t i = 0; i < SHAKES; i++) {
        RG_TRY(rg_gpu_list_create(&b->lists[i], b->gpu, &b->st));
        rg_gpu_list_begin(b->lists[i], false);
        rg_gpu_silu_mul(b->lists[i], &act, 1);
        RG_TRY(rg_gpu_list_end(b->lists[i], &b->st));
    }
    for (uint32_t r = 0; r <= b->reps; r++) {
        double ns = 0;
        RG_TRY(shake(b, &ns));
        const uint64_t begin = rg_now_ns();
        RG_TRY(rg_gpu_run(b->gpu, b->lists[0], &b->st));
        if (!r) continue;
        all[r - 1] = ns;
        alone[r - 1] = (double)(rg_now_ns() - begin);
    }
    printf("hand-shake\t\t%u\t%.4f\t\t\n", SHAKES, median(all, b->reps) * 1e-6);
    printf("submit and wait\t\t1\t%.4f\t\t\n", median(alone, b->reps) * 1e-6);
    return RG_OK;
}

/* ---- main ------------------------------------------------------------------------------------ */

static rg_code open_bench(bench *b, int32_t device) {
    const rg_gpu_options opt = {.device = device};
    RG_TRY(rg_gpu_open(&b->gpu, &opt, &b->st));
    RG_TRY(rg_gpu_list_create(&b->list, b->gpu, &b->st));
    RG_TRY(rg_gpu_tables_create(b->gpu, &b->tables, &b->st));
    RG_TRY(rg_gpu_buffer_create(b->gpu, &b->w, b->bytes, RG_GPU_DEVICE, &b->st));
    RG_TRY(rg_gpu_buffer_create(b->gpu, &b->x, sizeof(float) * COLS_MAX * N_IN, RG_GPU_DEVICE,
                                &b->st));
    RG_TRY(rg_gpu_buffer_create(b->gpu, &b->y, sizeof(float) * COLS_MAX * 8192u, RG_GPU_DEVICE,
                                &b->st));
    /* Any bytes: which entries of a grid lie together decides how long look-ups take, while scales
     * that are no numbers take no longer than others. */
    const size_t n = (size_t)1 << 20;
    uint8_t *bytes = rg_alloc(1, n, &b->st);
    if (!bytes) return RG_NOMEM;
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)rg_random_u64(7, i);
    rg_code rc = RG_OK;
    for (size_t at = 0; rc == RG_OK && at < b->bytes; at += n)
        rc = rg_gpu_write(b->gpu, &b->w, at, bytes, b->bytes - at < n ? b->bytes - at : n, &b->st);
    rg_free(bytes);
    return rc;
}

static void close_bench(bench *b) {
    for (uint32_t i = 0; i < SHAKES; i++)
        rg_gpu_list_destroy(b->lists[i]);
    rg_gpu_list_destroy(b->list);
    rg_gpu_buffer_destroy(b->gpu, &b->w);
    rg_gpu_buffer_destroy(b->gpu, &b->x);
    rg_gpu_buffer_destroy(b->gpu, &b->y);
    rg_gpu_buffer_destroy(b->gpu, &b->tables);
    rg_gpu_close(b->gpu);
}

static rg_code run_bench(bench *b, int32_t device, char **types, int n_type) {
    RG_TRY(open_bench(b, device));
    const rg_gpu_info *info = rg_gpu_get_info(b->gpu);
    printf("device\t%s\t%s\tVulkan %u.%u\tsubgroup %u\tshared %u\t%s\n", info->name, info->kind,
           info->api_major, info->api_minor, info->subgroup_size, info->shared_bytes,
           b->w.mapped ? "mapped" : "not mapped");
    RG_TRY(bench_read(b));
    for (uint32_t t = 0; t < RG_TYPE_COUNT; t++) {
        const rg_type_info *type = rg_type_get(t);
        bool wanted = n_type == 0;
        for (int i = 0; i < n_type; i++)
            wanted = wanted || (type && strcmp(types[i], type->name) == 0);
        if (!type || !wanted || !rg_gpu_computes((rg_type)t)) continue;
        RG_TRY(bench_type(b, (rg_type)t));
        RG_TRY(bench_interleaved(b, (rg_type)t));
    }
    RG_TRY(bench_copies(b));
    return bench_shakes(b);
}

int main(int argc, char **argv) {
    static bench b = {.bytes = (size_t)512 << 20, .reps = 9};
    int32_t device = -1;
    int i = 1;
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
        if (strcmp(argv[i], "--sweep") == 0) {
            b.sweep = true;
        } else if (i + 1 < argc && strcmp(argv[i], "--device") == 0) {
            device = (int32_t)strtol(argv[++i], NULL, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--mib") == 0) {
            b.bytes = (size_t)strtoul(argv[++i], NULL, 10) << 20;
        } else if (i + 1 < argc && strcmp(argv[i], "--reps") == 0) {
            b.reps = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else {
            fprintf(stderr, "gpu_bench [--device N] [--mib N] [--reps N] [--sweep] [TYPE...]\n");
            return 2;
        }
    }
    if (b.reps < 1 || b.reps > REPS_MAX) b.reps = 9;
    if (b.bytes < ((size_t)4 << 20)) b.bytes = (size_t)4 << 20;
    const rg_code rc = run_bench(&b, device, argv + i, argc - i);
    if (rc != RG_OK) fprintf(stderr, "gpu_bench: %s\n", b.st.message);
    close_bench(&b);
    return rc == RG_OK ? 0 : 1;
}
