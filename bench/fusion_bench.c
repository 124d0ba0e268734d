/* Fused steps against their parts on one loaded model: windows of T rows, the arms in turn.
 *
 *   fusion_bench MODEL [THREADS [ROWS [ROUNDS [WINDOWS]]]]
 *
 * Each round runs every arm, in an order of its own, for some windows at the same positions.
 * Printed are the median and the lower quartile of the time of a window, and the median over the
 * rounds of its ratio to that of the fused arm beside it. The head is left out. All experts are
 * loaded.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core.h"

#define ROUNDS_MAX 400
#define PROMPT     64u

typedef struct arm {
    const char *name;
    uint32_t unfused;
    double ms[ROUNDS_MAX];
} arm;

static arm arms[] = {
    {"fused", 0, {0}},
    {"norm in parts", RG_FUSE_NORM, {0}},
    {"mix in parts", RG_FUSE_MIX, {0}},
    {"write in parts", RG_FUSE_WRITE, {0}},
    {"gdn in parts", RG_FUSE_GDN, {0}},
    {"attention in parts", RG_FUSE_ATTN, {0}},
    {"experts in parts", RG_FUSE_EXPERTS, {0}},
    {"all in parts", RG_FUSE_ALL, {0}},
};

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *v, int n, double q) {
    double sorted[ROUNDS_MAX];
    memcpy(sorted, v, (size_t)n * sizeof *v);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return sorted[(int)(q * (n - 1) + 0.5)];
}

typedef struct subject {
    rg_gguf *gguf;
    rg_model *model;
    rg_core *core;
    rg_seq *seq;
    void *state; /* behind the prompt */
    uint64_t draw;
} subject;

static rg_code open_subject(subject *s, const char *path, int threads, rg_status *st) {
    const rg_model_options mo = {0};
    rg_core_options co = {.n_threads = threads};
    const rg_seq_options so = {.n_ctx = 2048, .kv = RG_KV_F16};
    RG_TRY(rg_cpu_level_pick(&co.level, getenv("RG_CPU"), st));
    RG_TRY(rg_gguf_open(&s->gguf, path, st));
    RG_TRY(rg_model_create(&s->model, s->gguf, &mo, st));
    RG_TRY(rg_core_create(&s->core, s->gguf, s->model, &co, st));
    return rg_seq_create(&s->seq, s->core, &so, st);
}

static void close_subject(subject *s) {
    rg_free(s->state);
    rg_seq_destroy(s->seq);
    rg_core_destroy(s->core);
    rg_model_destroy(s->model);
    rg_gguf_close(s->gguf);
}

static rg_code eval(subject *s, uint32_t n, rg_status *st) {
    int32_t ids[RG_CHUNK_DEFAULT];
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)(rg_random_u64(7, s->draw++) % s->model->hp.n_vocab);
    return rg_core_eval(s->core, s->seq, ids, n, n, RG_WANT_NONE, NULL, NULL, st);
}

/* `windows` windows of T rows behind the prompt; all arms see the same tokens. */
static rg_code run_arm(subject *s, arm *a, int round, uint32_t T, uint32_t windows, rg_status *st) {
    rg_seq_state_load(s->seq, PROMPT, s->state);
    s->draw = 1000u + (uint64_t)round * 1000u;
    s->core->opt.unfused = a->unfused;
    const uint64_t begin = rg_now_ns();
    for (uint32_t w = 0; w < windows; w++)
        RG_TRY(eval(s, T, st));
    a->ms[round] = (double)(rg_now_ns() - begin) / 1e6 / windows;
    return RG_OK;
}

static void shuffle(uint32_t *order, int round) {
    for (uint32_t i = 0; i < RG_ARRAY_LEN(arms); i++) {
        const uint64_t at = rg_random_u64(3, (uint64_t)(round + 1) * 64 + i) % (i + 1);
        order[i] = order[at];
        order[at] = i;
    }
}

static void print_arms(int rounds) {
    for (size_t i = 0; i < RG_ARRAY_LEN(arms); i++) {
        double ratio[ROUNDS_MAX];
        for (int r = 0; r < rounds; r++)
            ratio[r] = arms[i].ms[r] / arms[0].ms[r];
        const double ms = quantile(arms[i].ms, rounds, 0.5);
        const double quiet = quantile(arms[i].ms, rounds, 0.25);
        printf("%-20s median %9.4f ms a window, quarter %9.4f (%.4f x fused), ratio %.4f\n",
               arms[i].name, ms, quiet, quiet / quantile(arms[0].ms, rounds, 0.25),
               quantile(ratio, rounds, 0.5));
    }
}

int main(int argc, char **argv) {
    const int threads = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 2;
    const int rows = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 1,
              rounds = argc > 4 ? (int)strtol(argv[4], NULL, 10) : 20;
    const int windows = argc > 5 ? (int)strtol(argv[5], NULL, 10) : 8;
    if (argc < 2 || rows < 1 || rows > (int)RG_CHUNK_DEFAULT || rounds < 1 || rounds > ROUNDS_MAX ||
        windows < 1 || windows > 100) {
        fprintf(stderr, "usage: fusion_bench MODEL [THREADS [ROWS [ROUNDS [WINDOWS]]]]\n");
        return 2;
    }
    subject s = {.draw = 1};
    rg_status st = {0};
    rg_code rc = open_subject(&s, argv[1], threads, &st);
    if (rc == RG_OK) rc = eval(&s, PROMPT, &st);
    if (rc == RG_OK) {
        s.state = rg_alloc(1, rg_seq_state_bytes(s.seq), &st);
        rc = s.state ? RG_OK : RG_NOMEM;
    }
    if (rc == RG_OK) rg_seq_state_save(s.seq, s.state);
    for (int r = -1; r < rounds && rc == RG_OK; r++) { /* the first is to get warm */
        uint32_t order[RG_ARRAY_LEN(arms)];
        shuffle(order, r);
        for (size_t i = 0; i < RG_ARRAY_LEN(arms) && rc == RG_OK; i++) {
            rc =
                run_arm(&s, &arms[order[i]], r < 0 ? 0 : r, (uint32_t)rows, (uint32_t)windows, &st);
        }
    }
    if (rc == RG_OK) {
        printf("%s, %d threads, %d rows, %d rounds of %d windows\n", argv[1], threads, rows, rounds,
               windows);
        print_arms(rounds);
    } else {
        fprintf(stderr, "fusion_bench: %s\n", st.message);
    }
    close_subject(&s);
    return rc == RG_OK ? 0 : 1;
}
