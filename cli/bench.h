/* bench: figures of a model, arm by arm. Private to the bench_*.c and cmd_bench.c files. */
#ifndef RG_CLI_BENCH_H
#define RG_CLI_BENCH_H

#include <jansson.h>

#include "cli/cli.h"
#include "forge/forge.h"

/* Stable names; scripts depend on them. */
#define BENCH_KEYS(X)                                                                              \
    X(PREFILL_TOK_S, "prefill_tok_s")                                                              \
    X(DECODE_TOK_S, "decode_tok_s")                                                                \
    X(TTFT_MS, "ttft_ms")                                                                          \
    X(HITS, "hits")                                                                                \
    X(MISSES, "misses")                                                                            \
    X(LATE, "late")                                                                                \
    X(READAHEAD_USEFUL, "readahead_useful")                                                        \
    X(READAHEAD_WASTED, "readahead_wasted")                                                        \
    X(READ_BYTES, "read_bytes")                                                                    \
    X(WASTED_BYTES, "wasted_bytes")                                                                \
    X(COPIED_BYTES, "copied_bytes")                                                                \
    X(COPY_MS, "copy_ms")                                                                          \
    X(DRIVE_GB_S, "drive_gb_s")                                                                    \
    X(DRIVE_CEILING_GB_S, "drive_ceiling_gb_s")                                                    \
    X(COMPUTE_MS, "compute_ms")                                                                    \
    X(WAIT_MS, "wait_ms")                                                                          \
    X(HANDSHAKE_MS, "handshake_ms")                                                                \
    X(HOST_MS, "host_ms")                                                                          \
    X(EMBED_MS, "embed_ms")                                                                        \
    X(PLE_MS, "ple_ms")                                                                            \
    X(PLAN_MS, "plan_ms")                                                                          \
    X(SAMPLE_MS, "sample_ms")                                                                      \
    X(WALL_MS, "wall_ms")                                                                          \
    X(ACCOUNTED_SHARE, "accounted_share")                                                          \
    X(MAJOR_FAULTS, "major_faults")                                                                \
    X(ARENA_PEAK_BYTES, "arena_peak_bytes")                                                        \
    X(RSS_PEAK_BYTES, "rss_peak_bytes")                                                            \
    X(DRAFT_ACCEPTED, "draft_accepted")                                                            \
    X(DRAFT_OFFERED, "draft_offered")                                                              \
    X(LOGIT_ROWS_WHOLE, "logit_rows_whole")                                                        \
    X(LOGIT_ROWS_BEST, "logit_rows_best")
typedef enum bench_key {
#define BENCH_ENUM(name, text) BENCH_##name,
    BENCH_KEYS(BENCH_ENUM)
#undef BENCH_ENUM
        BENCH_N_KEYS
} bench_key;

typedef enum bench_phase { BENCH_ALL, BENCH_PREFILL, BENCH_DECODE, BENCH_N_PHASES } bench_phase;

/* One prompt and what was decoded behind it. */
typedef struct bench_run {
    double v[BENCH_N_PHASES][BENCH_N_KEYS];
    rg_layer_meters *layers; /* [n_layer] of the decode phase; owned by the arm */
} bench_run;

#define BENCH_ARMS_MAX 16u

/* A setting that is measured. */
typedef struct bench_arm {
    cli_options opt;
    char name[160]; /* "lookahead=off split=on"; "" when there is nothing to compare */
    rg_engine *engine;
    rg_session *session;
    rg_engine_info info; /* of the last opening */
    size_t n_layer;
    bench_run *cold, *warm;       /* [reps] */
    rg_layer_meters *layer_store; /* of all of them */
    size_t choice[CLI_AB_MAX];    /* of each --ab */
    char *texts[CLI_AB_MAX];      /* [n_text] values that opt borrows */
    size_t n_text;
} bench_arm;

typedef struct bench_watch {
    double begin_s, busy_s, own_s; /* at the last look */
    double others_cores;           /* most seen between two looks; negative: unknown */
    double mhz_min, mhz_max;       /* 0: unknown */
    double celsius_min, celsius_max;
} bench_watch;

typedef struct bench_job {
    const cli_options *opt;
    bench_arm arms[BENCH_ARMS_MAX];
    size_t n_arm;
    bool keep_open; /* every arm's engine fits beside the others */
    int32_t *ids;   /* [n_prompt + n_gen] */
    size_t n_ids;
    double ceiling_gb_s; /* 0: unknown */
    bench_watch watch;
    uint8_t *order; /* [reps * n_arm] arms as they ran */
    size_t n_order;
    char warnings[4][160];
    size_t n_warning;
} bench_job;

/* cmd_bench.c */
/* The prompt and what is decoded behind it, into job->ids: of the text, or random. */
rg_code bench_take_ids(bench_job *job, const rg_engine *engine, uint32_t n_vocab, rg_status *st);
const char *bench_key_name(size_t key);

/* bench_draft.c: the table of drafts. `opt` has a context. */
int bench_drafts(const cli_options *opt);

/* bench_kernels.c: where the time of prefill and decode goes, kernel by kernel. `opt` has a
 * context. */
int bench_kernels(const cli_options *opt);
/* bench_kernels.c: a flag's figures as JSON; takes the object, which may be NULL: no memory.
 * Returns an exit code. */
int bench_print_object(json_t *o, const char *flag);
/* bench_sweep.c: the shapes of the GPU's products, timed; the best are kept for the next starts. */
int bench_sweep(const cli_options *opt);

/* bench_arms.c: the settings that --ab asks for. Returns an exit code. */
int bench_make_arms(bench_job *job);
rg_code bench_take_room(bench_arm *arm, uint32_t reps, rg_status *st);
void bench_free_arms(bench_job *job);

/* bench_run.c: a cold and a warm run of an open arm into slot `rep`. */
rg_code bench_run_arm(bench_job *job, bench_arm *arm, uint32_t rep, rg_status *st);

/* bench_watch.c: what else the machine did. */
void bench_watch_begin(bench_watch *w);
void bench_watch_look(bench_watch *w);
/* Adds a line for each disturbance to job->warnings; at most three. */
void bench_watch_judge(bench_job *job);

/* bench_print.c */
typedef struct bench_stat {
    double median, min, max;
} bench_stat;
/* values[n] keep their order. */
bench_stat bench_stat_of(const double *values, size_t n);
int bench_print_json(const bench_job *job);
void bench_print_table(const bench_job *job);

#endif
