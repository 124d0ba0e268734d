/* The packers of quant on raw rows, and how good somebody's blocks of the same rows are.
 *
 *     quant_bench pack TYPE ROWS.f32 COLUMNS BLOCKS [WEIGHTS.f32 | -] [LEVEL]
 *     quant_bench rate TYPE ROWS.f32 COLUMNS BLOCKS [WEIGHTS.f32 | -]
 *
 * `pack` writes blocks, row after row, and prints its rate; `rate` prints the root mean square
 * error relative to that of the data, plain and weighted by WEIGHTS (one a column). bench/
 * quantizers.py compares with another program's.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/packer.h"

static void *slurp(const char *path, size_t *bytes) {
    FILE *f = fopen(path, "rbe");
    if (!f || fseek(f, 0, SEEK_END) != 0) {
        fprintf(stderr, "quant_bench: cannot read %s\n", path);
        exit(1);
    }
    *bytes = (size_t)ftell(f);
    rewind(f);
    void *data = malloc(*bytes + 1);
    if (!data || fread(data, 1, *bytes, f) != *bytes) exit(1);
    fclose(f);
    return data;
}

typedef struct job {
    rg_type type;
    const float *x, *w; /* w NULL: all ones */
    size_t rows, cols, row_bytes;
} job;

static int pack(const job *j, const char *out, const char *level) {
    rg_cpu_level best = RG_CPU_SCALAR;
    if (rg_cpu_level_pick(&best, level, NULL) != RG_OK) return 1;
    const size_t scratch = (rg_pack_scratch_bytes(j->type) + 63) / 64 * 64;
    const rg_packer p = {j->type, best, aligned_alloc(64, scratch)};
    uint8_t *blocks = malloc(j->rows * j->row_bytes + 1);
    if (!p.scratch || !blocks) return 1;
    const uint64_t begin = rg_now_ns();
    for (size_t r = 0; r < j->rows; r++)
        rg_pack_row(&p, j->x + r * j->cols, j->w, blocks + r * j->row_bytes, j->cols);
    const double ms = (double)(rg_now_ns() - begin) * 1e-6;
    FILE *f = fopen(out, "wbe");
    if (!f || fwrite(blocks, j->row_bytes, j->rows, f) != j->rows || fclose(f) != 0) return 1;
    printf("%.3f Mweights/s\n", (double)(j->rows * j->cols) / (ms * 1e3));
    free(blocks);
    free(p.scratch);
    return 0;
}

static int rate(const job *j, const char *path) {
    size_t bytes = 0;
    uint8_t *blocks = slurp(path, &bytes);
    float *y = malloc(j->cols * sizeof *y);
    double error = 0, power = 0, werror = 0, wpower = 0;
    if (!y || bytes != j->rows * j->row_bytes) {
        fprintf(stderr, "quant_bench: %s has %zu bytes, not %zu\n", path, bytes,
                j->rows * j->row_bytes);
        return 1;
    }
    for (size_t r = 0; r < j->rows; r++) {
        rg_unpack_row(j->type, blocks + r * j->row_bytes, y, j->cols);
        for (size_t i = 0; i < j->cols; i++) {
            const double x = (double)j->x[r * j->cols + i], d = (double)y[i] - x;
            const double w = j->w ? (double)j->w[i] : 1;
            error += d * d;
            power += x * x;
            werror += w * d * d;
            wpower += w * x * x;
        }
    }
    printf("%.6f %.6f\n", sqrt(error / power), sqrt(werror / wpower));
    free(y);
    free(blocks);
    return 0;
}

int main(int argc, char **argv) {
    job j = {0};
    size_t bytes = 0, w_bytes = 0;
    if (argc < 6 || !rg_type_by_name(argv[2], &j.type) || !rg_pack_can(j.type)) {
        fprintf(stderr,
                "usage: quant_bench pack|rate TYPE ROWS.f32 COLUMNS BLOCKS [WEIGHTS.f32]\n");
        return 2;
    }
    float *x = slurp(argv[3], &bytes), *w = NULL;
    j.cols = strtoull(argv[4], NULL, 10);
    j.row_bytes = rg_row_bytes(j.type, j.cols);
    if (j.row_bytes == 0) return 2;
    j.x = x;
    j.rows = bytes / sizeof(float) / j.cols;
    if (argc > 6 && strcmp(argv[6], "-") != 0) {
        w = slurp(argv[6], &w_bytes);
        if (w_bytes != j.cols * sizeof(float)) return 2;
    }
    j.w = w;
    const int rc = strcmp(argv[1], "pack") == 0 ? pack(&j, argv[5], argc > 7 ? argv[7] : NULL)
                                                : rate(&j, argv[5]);
    free(x);
    free(w);
    return rc;
}
