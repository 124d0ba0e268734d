/* Micro-benchmark of rg_ops.mul: each type against the ceilings of the machine, measured in the
 * same minute. kernel_bench [threads] [type ...] [mib=N] [cols=N]. One TSV line for each type and
 * number of columns. mib: weights to run over; a few stay in the caches and show the cost of
 * unpacking alone.
 *
 * Ceilings: reading = a plain sum over a block larger than the caches; integers = chained byte dots
 * that never leave the registers, on x86 (0 elsewhere).
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

#define N_IN         2560u
#define N_IN_SMALL   640u
#define WEIGHT_BYTES ((size_t)256 << 20)
#define REPEATS      5

typedef struct bench_job {
    const rg_ops *ops;
    rg_mat w;
    rg_act x;
    uint32_t n, turns; /* columns; repetitions inside one measurement */
    float *y;
    uint8_t *scratch;
    size_t scratch_bytes;
    const uint64_t *read;
    atomic_uint_fast64_t sink, macs;
} bench_job;

static void mul_share(void *arg, size_t begin, size_t end, int thread) {
    bench_job *j = arg;
    for (uint32_t t = 0; t < j->turns; t++) {
        j->ops->mul(&j->w, (uint32_t)begin, (uint32_t)end, &j->x, NULL, NULL, j->n, j->y,
                    j->w.n_out, j->scratch + (size_t)thread * j->scratch_bytes);
    }
}

static void read_share(void *arg, size_t begin, size_t end, int thread) {
    bench_job *j = arg;
    uint64_t s[8] = {0};
    (void)thread;
    for (size_t i = begin; i + 8 <= end; i += 8) {
        for (int k = 0; k < 8; k++)
            s[k] += j->read[i + (size_t)k];
    }
    atomic_fetch_add(&j->sink, s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7]);
}

#define PEAK_TURNS 2000000u

static void peak_share(void *arg, size_t begin, size_t end, int thread) {
    bench_job *j = arg;
    int32_t sum = 0;
    (void)begin, (void)end, (void)thread;
    atomic_fetch_add(&j->macs, j->ops->int8_peak(PEAK_TURNS, &sum));
    atomic_fetch_add(&j->sink, (uint64_t)(uint32_t)sum);
}

static double best_s(rg_pool *pool, size_t n, size_t grain, rg_pool_fn *fn, bench_job *j) {
    double best = 1e9;
    for (int r = 0; r < REPEATS; r++) {
        const uint64_t t0 = rg_now_ns();
        rg_pool_run(pool, n, grain, fn, j);
        const double s = (double)(rg_now_ns() - t0) * 1e-9;
        best = s < best ? s : best;
    }
    return best;
}

static void fill_activations(bench_job *j, float *f32, int8_t *codes, float *scales, int16_t *sums,
                             rg_act_form form, uint32_t n_in) {
    const uint32_t span = form == RG_ACT_Q256 ? 256 : 32;
    for (size_t i = 0; i < (size_t)512 * n_in; i++) {
        f32[i] = (float)rg_random_unit(5, i) * 2 - 1;
    }
    j->x = (rg_act){.form = form, .n_in = n_in, .f32 = f32};
    if (form == RG_ACT_F32) return;
    for (size_t t = 0; t < 512; t++) {
        j->ops->quantize(form, f32 + t * n_in, n_in, codes + t * n_in, scales + t * (n_in / span),
                         sums + t * (n_in / 16));
    }
    j->x.codes = codes;
    j->x.scales = scales;
    j->x.sums = sums;
}

static bool wanted(const char *name, int argc, char **argv) {
    if (argc <= 2) return true;
    bool any = false;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], name) == 0) return true;
        any = any || !strchr(argv[i], '=');
    }
    return !any;
}

/* The number after `key`, e.g. "mib=", or `fallback`. */
static size_t option(const char *key, size_t fallback, int argc, char **argv) {
    for (int i = 2; i < argc; i++) {
        if (strncmp(argv[i], key, strlen(key)) == 0) {
            return (size_t)strtoul(argv[i] + strlen(key), NULL, 10);
        }
    }
    return fallback;
}

int main(int argc, char **argv) {
    const int threads = argc > 1 ? (int)strtol(argv[1], NULL, 10) : rg_cpu_count();
    rg_pool *pool = NULL;
    rg_cpu_level level;
    if (rg_cpu_level_pick(&level, getenv("RG_CPU"), NULL) != RG_OK) return 1;
    if (rg_pool_create(&pool, threads, NULL) != RG_OK) return 1;
    bench_job j = {.ops = rg_ops_get(level)};
    void *weights = NULL;
    if (rg_mem_map(&weights, WEIGHT_BYTES, NULL) != RG_OK) return 1;
    for (size_t i = 0; i < WEIGHT_BYTES / 8; i++) {
        /* As f16 and as f32 normal numbers of moderate size. */
        ((uint64_t *)weights)[i] =
            (rg_random_u64(1, i) & 0x03FF03FF03FF03FFu) | 0x3800380038003800u;
    }
    j.read = weights;
    const size_t weight_bytes = option("mib=", WEIGHT_BYTES >> 20, argc, argv) << 20;
    const size_t only = option("cols=", 0, argc, argv);
    if (weight_bytes == 0 || weight_bytes > WEIGHT_BYTES) return 1;
    j.turns = (uint32_t)(WEIGHT_BYTES / weight_bytes);
    float *f32 = malloc((size_t)512 * N_IN * 4), *scales = malloc((size_t)512 * N_IN / 8);
    int8_t *codes = malloc((size_t)512 * N_IN);
    int16_t *sums = malloc((size_t)512 * N_IN / 8);
    j.scratch_bytes = rg_mul_scratch_bytes(N_IN);
    j.scratch = aligned_alloc(4096, (j.scratch_bytes * (size_t)threads + 4095) / 4096 * 4096);
    for (uint32_t id = 0; id < RG_TYPE_COUNT; id++) {
        const rg_type_info *info = rg_type_get(id);
        if (!info || info->use != RG_USE_WEIGHT || !wanted(info->name, argc, argv)) continue;
        const uint32_t n_in = info->block_elems == 32 ? N_IN_SMALL : N_IN;
        const size_t row = rg_row_bytes((rg_type)id, n_in);
        fill_activations(&j, f32, codes, scales, sums, rg_act_form_of((rg_type)id, RG_KERNELS_AUTO),
                         n_in);
        const double read_gb =
            (double)WEIGHT_BYTES / best_s(pool, WEIGHT_BYTES / 8, 8, read_share, &j) * 1e-9;
        double peak = 0;
        if (j.ops->int8_peak) {
            j.macs = 0;
            const double s = best_s(pool, (size_t)threads, 1, peak_share, &j);
            peak = (double)j.macs / REPEATS / s * 1e-9;
        }
        printf("# level %s threads %d read_gb_s %.1f int8_gmac_s %.0f\n", rg_cpu_level_name(level),
               threads, read_gb, peak);
        static const uint32_t columns[] = {1, 2, 4, 8, 32, 128, 512};
        for (size_t c = 0; c < RG_ARRAY_LEN(columns); c++) {
            j.n = columns[c];
            if (only && j.n != only) continue;
            const size_t rows_all = weight_bytes / row;
            const size_t rows_max = (size_t)200000000 / n_in / j.n * 4;
            const size_t rows = (rows_all < rows_max ? rows_all : rows_max) / 64 * 64;
            j.w = (rg_mat){.data = weights,
                           .type = (rg_type)id,
                           .n_out = (uint32_t)rows,
                           .n_in = n_in,
                           .row_bytes = row};
            j.y = malloc(rows * j.n * sizeof(float));
            const double s = best_s(pool, rows, 64, mul_share, &j);
            const double gb = (double)(rows * row) * j.turns / s * 1e-9;
            const double mac = (double)rows * n_in * j.n * j.turns / s * 1e-9;
            printf("%s\t%u\t%u\t%.1f GB/s\t%.0f %%\t%.1f GMAC/s\t%.0f %%\n", info->name, n_in, j.n,
                   gb, 100 * gb / read_gb, mac, peak > 0 ? 100 * mac / peak : 0.0);
            fflush(stdout);
            free(j.y);
        }
    }
    rg_pool_destroy(pool);
    return 0;
}
