/* Device time of every kernel in a model's windows: gpu_profile MODEL [tokens] [windows] [device].
 *
 * Evaluates windows of one token, then a prompt of random tokens in one chunk, and prints for both
 * what each program took on the device, its share, and the host's time for the whole window. At the
 * end, without time stamps: what a window of one token takes with each of the joined kernels taken
 * apart, and with other shapes of the experts' products, interleaved.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

#define LINES 128u

static rg_code see(void *user, uint32_t position, const float *logits, rg_status *st) {
    (void)position;
    (void)st;
    *(float *)user = logits[0];
    return RG_OK;
}

#define REPS 5u

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Milliseconds of the host for each of n windows of one token. */
static rg_code time_windows(rg_core *core, rg_seq *seq, uint32_t n, uint32_t n_vocab, double *ms,
                            rg_status *st) {
    float first = 0.0f;
    const rg_logits_sink sink = {.row = see, .user = &first};
    const uint64_t begin = rg_now_ns();
    for (uint32_t i = 0; i < n; i++) {
        const int32_t id = (int32_t)(rg_random_u64(n, i) % n_vocab);
        RG_TRY(rg_core_eval(core, seq, &id, 1, 1, RG_WANT_LAST, &sink, NULL, st));
    }
    *ms = (double)(rg_now_ns() - begin) * 1e-6 / n;
    return RG_OK;
}

static const struct {
    const char *name;
    uint32_t unfused, slot_rows;
} ways[] = {{"all joined", 0, 0},
            {"write, norm", RG_GPU_FUSE_WRITE_NORM, 0},
            {"up, mix", RG_GPU_FUSE_UP_MIX, 0},
            {"codes of short rows", RG_GPU_FUSE_CODES, 0},
            {"delta net", RG_GPU_FUSE_DELTA, 0},
            {"codes of attention", RG_GPU_FUSE_ATTENTION, 0},
            {"shared expert", RG_GPU_FUSE_SHARED, 0},
            {"loops unrolled", RG_GPU_LOOP, 0},
            {"best logit", RG_GPU_FEW, 0},
            {"pairs of products", RG_GPU_FUSE_PAIRS, 0},
            {"all apart", RG_GPU_FUSE_ALL, 0},
            {"expert rows 1", 0, 1},
            {"expert rows 2", 0, 2}};

static rg_code compare_ways(rg_core *core, rg_seq *seq, uint32_t n, uint32_t n_vocab,
                            rg_status *st) {
    double ms[RG_ARRAY_LEN(ways)][REPS];
    uint32_t dispatches[RG_ARRAY_LEN(ways)], barriers[RG_ARRAY_LEN(ways)];
    rg_core_want_few(core, 1);
    for (uint32_t rep = 0; rep < REPS; rep++) {
        for (size_t k = 0; k < RG_ARRAY_LEN(ways); k++) {
            double warm = 0;
            rg_core_gpu_switch(core, ways[k].unfused, ways[k].slot_rows, false);
            RG_TRY(time_windows(core, seq, 2, n_vocab, &warm, st)); /* recorded, compiled */
            RG_TRY(time_windows(core, seq, n, n_vocab, &ms[k][rep], st));
            rg_core_gpu_counts(core, &dispatches[k], &barriers[k]);
            rg_seq_reset(seq);
        }
    }
    rg_core_want_few(core, 0);
    rg_core_gpu_switch(core, 0, 0, true);
    for (size_t k = 0; k < RG_ARRAY_LEN(ways); k++) {
        qsort(ms[k], REPS, sizeof ms[k][0], compare);
        printf("%s%-24s %8.3f ms (%.3f-%.3f) a window, %u dispatches, %u barriers\n",
               ways[k].unfused ? "apart: " : "       ", ways[k].name, ms[k][REPS / 2], ms[k][0],
               ms[k][REPS - 1], dispatches[k], barriers[k]);
    }
    return RG_OK;
}

/* Evaluates n windows of T tokens and prints the difference of the sums. */
static rg_code profile(rg_core *core, rg_seq *seq, uint32_t T, uint32_t n, uint32_t n_vocab,
                       rg_status *st) {
    rg_core_gpu_time before[LINES] = {{0}}, after[LINES] = {{0}};
    float first = 0.0f;
    const rg_logits_sink sink = {.row = see, .user = &first};
    int32_t *ids = rg_alloc(T, sizeof *ids, st);
    if (!ids) return RG_NOMEM;
    rg_core_gpu_times(core, before, LINES);
    uint64_t host_ns = 0;
    rg_code rc = RG_OK;
    for (uint32_t i = 0; i < n && rc == RG_OK; i++) {
        for (uint32_t t = 0; t < T; t++)
            ids[t] = (int32_t)(rg_random_u64(i + 1, t) % n_vocab);
        const uint64_t begin = rg_now_ns();
        rc = rg_core_eval(core, seq, ids, T, T, RG_WANT_LAST, &sink, NULL, st);
        host_ns += rg_now_ns() - begin;
    }
    rg_free(ids);
    if (rc != RG_OK) return rc;
    const uint32_t lines = rg_core_gpu_times(core, after, LINES);
    uint64_t total = 0;
    for (uint32_t k = 0; k < lines; k++)
        total += after[k].ns - before[k].ns;
    uint32_t dispatches = 0, barriers = 0;
    rg_core_gpu_counts(core, &dispatches, &barriers);
    printf("window of %u: host %.3f ms, device kernels %.3f ms, %u dispatches, %u barriers\n", T,
           (double)host_ns * 1e-6 / n, (double)total * 1e-6 / n, dispatches, barriers);
    for (uint32_t k = 0; k < lines && total; k++) {
        const uint64_t ns = after[k].ns - before[k].ns;
        const uint64_t count = after[k].count - before[k].count;
        if (!count) continue;
        const bool product = strncmp(after[k].program, "mul_", 4) == 0;
        const rg_type_info *type = product ? rg_type_get(after[k].first) : NULL;
        printf("  %-14s %-8s %6u\t%8.3f ms\t%5.1f %%\t%llu\t%8.2f us\n", after[k].program,
               type ? type->name : "", after[k].groups, (double)ns * 1e-6 / n,
               100.0 * (double)ns / (double)total, (unsigned long long)(count / n),
               (double)ns * 1e-3 / (double)count);
    }
    return RG_OK;
}

static rg_code run(const char *path, uint32_t prompt, uint32_t windows, int32_t device,
                   rg_status *st) {
    rg_gguf *gguf = NULL;
    rg_model *model = NULL;
    rg_core *core = NULL;
    rg_seq *seq = NULL;
    rg_core_options opt = {.chunk = prompt, .gpu = true, .gpu_device = device};
    const rg_model_options model_opt = {.no_mtp = true};
    const rg_seq_options seq_opt = {.n_ctx = prompt + 4 * windows + 16};
    rg_code rc = rg_cpu_level_pick(&opt.level, NULL, st);
    if (rc == RG_OK) rc = rg_gguf_open(&gguf, path, st);
    if (rc == RG_OK) rc = rg_model_create(&model, gguf, &model_opt, st);
    if (rc == RG_OK) rc = rg_core_create(&core, gguf, model, &opt, st);
    if (rc == RG_OK) rc = rg_seq_create(&seq, core, &seq_opt, st);
    if (rc == RG_OK) {
        const uint32_t n_vocab = model->hp.n_vocab;
        printf("%s on %s\n", path, rg_core_gpu_name(core));
        double ms = 0;
        rc = time_windows(core, seq, 2, n_vocab, &ms, st);
        if (rc == RG_OK) printf("first windows %.3f ms\n", ms);
        if (rc == RG_OK) rc = time_windows(core, seq, windows, n_vocab, &ms, st);
        if (rc == RG_OK) printf("windows of 1 without time stamps %.3f ms\n", ms);
        rg_seq_reset(seq);
        rg_core_gpu_switch(core, 0, 0, true);
        if (rc == RG_OK) rc = profile(core, seq, 1, 2, n_vocab, st);
        if (rc == RG_OK) rc = profile(core, seq, 1, windows, n_vocab, st);
        if (rc == RG_OK) rc = profile(core, seq, 3, 2, n_vocab, st);
        rg_seq_reset(seq);
        if (rc == RG_OK) rc = profile(core, seq, prompt, 1, n_vocab, st); /* warms up */
        rg_seq_reset(seq);
        if (rc == RG_OK) rc = profile(core, seq, prompt, 1, n_vocab, st);
        rg_seq_reset(seq);
        if (rc == RG_OK) rc = compare_ways(core, seq, windows, n_vocab, st);
    }
    rg_seq_destroy(seq);
    rg_core_destroy(core);
    rg_model_destroy(model);
    rg_gguf_close(gguf);
    return rc;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "gpu_profile MODEL [tokens] [windows] [device]\n");
        return 2;
    }
    rg_status st = {0};
    setvbuf(stdout, NULL, _IOLBF, 0); /* what was measured is seen whatever comes after it */
    const uint32_t prompt = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 512;
    const uint32_t windows = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 32;
    const int32_t device = argc > 4 ? (int32_t)strtol(argv[4], NULL, 10) : -1;
    if (run(argv[1], prompt ? prompt : 1, windows ? windows : 1, device, &st) == RG_OK) return 0;
    fprintf(stderr, "gpu_profile: %s\n", st.message);
    return 1;
}
