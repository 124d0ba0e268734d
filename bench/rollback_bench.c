/* What it costs to be able to take drafts back from the delta net's states, at the release's shape:
 * 36 layers of 48 heads of 128 x 128 floats, 108 MiB. rollback_bench [threads]. One TSV line for
 * each number of drafts and of accepted ones, milliseconds a window, medians of interleaved rounds:
 *
 *     plain     the accepted rows alone, in place: what cannot be saved
 *     journal   last window's accepted rows replayed, one row in place, drafts on a copy of the
 * head pass      the same, but the accepted rows are replayed in a pass of their own behind the
 * window snapshot  the states copied before the window, all rows in place; when some are wrong, the
 *               copy comes back and the accepted rows run again
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

#define HEADS   (36u * 48u)
#define D       128u
#define ROWS    8u
#define REPEATS 7

typedef enum method { PLAIN, JOURNAL, PASS, SNAPSHOT, METHODS } method;

typedef struct job {
    const rg_ops *ops;
    float *S, *saved; /* [HEADS][D][D] */
    float *rows;      /* [ROWS][3][D] q, k, v of every head */
    float *copy;      /* [threads][D*D + ROWS*D] */
    float decay[ROWS], beta[ROWS];
    method how;
    uint32_t n_draft, right;
} job;

static void steps(const job *j, float *S, uint32_t row, uint32_t n, float *o) {
    const float *q = j->rows + (size_t)row * 3 * D;
    if (n) {
        j->ops->gdn_steps(S, D, q, q + D, 3 * D, q + 2 * D, 3 * D, j->decay, j->beta, 1, o, D, n);
    }
}

static void window_share(void *arg, size_t begin, size_t end, int thread) {
    const job *j = arg;
    float *copy = j->copy + (size_t)thread * (D * D + ROWS * D), *o = copy + D * D;
    for (size_t h = begin; h < end; h++) {
        float *S = j->S + h * D * D;
        if (j->how == PLAIN) {
            steps(j, S, 0, 1 + j->right, o);
            continue;
        }
        if (j->how == SNAPSHOT) {
            memcpy(j->saved + h * D * D, S, D * D * sizeof *S);
            steps(j, S, 0, 1 + j->n_draft, o);
            continue;
        }
        if (j->how == JOURNAL) steps(j, S, 1, j->right, o);
        steps(j, S, 0, 1, o);
        memcpy(copy, S, D * D * sizeof *S);
        steps(j, copy, 1, j->n_draft, o);
    }
}

static void behind_share(void *arg, size_t begin, size_t end, int thread) {
    const job *j = arg;
    float *o = j->copy + (size_t)thread * (D * D + ROWS * D) + D * D;
    for (size_t h = begin; h < end; h++) {
        float *S = j->S + h * D * D;
        if (j->how == SNAPSHOT) memcpy(S, j->saved + h * D * D, D * D * sizeof *S);
        steps(j, S, j->how == SNAPSHOT ? 0 : 1, j->right + (j->how == SNAPSHOT), o);
    }
}

static double window_ms(rg_pool *pool, job *j) {
    const uint64_t begin = rg_now_ns();
    rg_pool_run(pool, HEADS, 1, window_share, j);
    const bool second =
        (j->how == PASS && j->right) || (j->how == SNAPSHOT && j->right < j->n_draft);
    if (second) rg_pool_run(pool, HEADS, 1, behind_share, j);
    return (double)(rg_now_ns() - begin) * 1e-6;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void measure(rg_pool *pool, job *j, uint32_t n_draft, uint32_t right) {
    double ms[METHODS][REPEATS];
    j->n_draft = n_draft;
    j->right = right;
    for (int r = 0; r < REPEATS; r++) {
        for (int m = 0; m < METHODS; m++) {
            j->how = (method)m;
            ms[m][r] = window_ms(pool, j);
        }
    }
    printf("%u\t%u", n_draft, right);
    for (int m = 0; m < METHODS; m++) {
        qsort(ms[m], REPEATS, sizeof ms[m][0], by_value);
        printf("\t%.2f", ms[m][REPEATS / 2]);
    }
    putchar('\n');
}

int main(int argc, char **argv) {
    rg_status st = {0};
    rg_pool *pool = NULL;
    const int threads = argc > 1 ? (int)strtol(argv[1], NULL, 10) : rg_cpu_count();
    rg_cpu_level level = RG_CPU_SCALAR;
    job j = {0};
    void *S = NULL, *saved = NULL;
    const size_t bytes = (size_t)HEADS * D * D * sizeof(float);
    j.rows = rg_alloc((size_t)ROWS * 3 * D, sizeof *j.rows, &st);
    j.copy =
        rg_alloc((size_t)(threads < 1 ? 1 : threads) * (D * D + ROWS * D), sizeof *j.copy, &st);
    if (!j.rows || !j.copy || rg_pool_create(&pool, threads, &st) != RG_OK ||
        rg_cpu_level_pick(&level, NULL, &st) != RG_OK || rg_mem_map(&S, bytes, &st) != RG_OK ||
        rg_mem_map(&saved, bytes, &st) != RG_OK) {
        fprintf(stderr, "rollback_bench: %s\n", st.message);
        return 1;
    }
    j.ops = rg_ops_get(level);
    j.S = S;
    j.saved = saved;
    for (uint32_t i = 0; i < ROWS * 3 * D; i++)
        j.rows[i] = (float)(rg_random_unit(1, i) - 0.5) * 0.2f;
    for (uint32_t i = 0; i < ROWS; i++) {
        j.decay[i] = 0.95f;
        j.beta[i] = 0.5f;
    }
    j.how = SNAPSHOT; /* touches every page */
    window_ms(pool, &j);
    printf("drafts\tright\tplain\tjournal\tpass\tsnapshot\n");
    for (uint32_t n = 1; n < ROWS; n += 2) {
        for (uint32_t right = 0; right <= n; right += n > 1 ? n / 2 + (right > 0) : 1)
            measure(pool, &j, n, right);
    }
    rg_pool_destroy(pool);
    rg_mem_unmap(S, bytes);
    rg_mem_unmap(saved, bytes);
    rg_free(j.rows);
    rg_free(j.copy);
    return 0;
}
