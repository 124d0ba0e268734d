/* cli: flags, messages, progress. The only room that prints to standard output or ends the process.
 *
 * Exit codes: 0 ok, 1 failure, 2 usage, 130 interrupted by Ctrl-C (128 + SIGINT, as shells say).
 * Errors are one line on standard error:
 * "regolith: command: what failed and why".
 */
#ifndef RG_CLI_H
#define RG_CLI_H

#include <stdio.h>

#include "regolith.h"

enum { CLI_OK = 0, CLI_FAILURE = 1, CLI_USAGE = 2, CLI_INTERRUPTED = 130 };

#define CLI_MODELS_MAX    48
#define CLI_TOP_AGREE_MAX 64 /* kld --top-k */
#define CLI_AB_MAX        4
#define CLI_REPS_MAX      1000
/* Room of the memory plan for the state that a chat goes back to under cache-aware routing. */
#define CLI_CHAT_STATE_BYTES ((uint64_t)160 << 20)

/* Everything any command takes; a command reads the fields of the flags it accepts. */
typedef struct cli_options {
    const struct cli_command *command;
    /* model and engine */
    const char *model; /* the last of models[] */
    const char *models[CLI_MODELS_MAX];
    size_t n_models;
    int threads;
    uint32_t ctx;
    uint32_t chunk;
    rg_kernel_set kernels;
    rg_kv_type kv;
    bool gpu;        /* --backend vulkan or auto */
    bool gpu_or_cpu; /* --backend auto */
    int device;      /* -1 = the best */
    bool gpu_check;  /* under the validation layers */
    rg_gpu_arena gpu_arena;
    char gpu_cache[1024]; /* compiled kernels are kept there; empty = nowhere */
    const char *chat_template;
    bool no_mtp;
    int verbose;
    /* memory and reads */
    uint64_t ram, arena;
    uint32_t arena_experts;
    bool mlock;
    bool two_stage_head;
    rg_io_backend io;
    bool io_null;
    rg_toggle direct, split;
    int32_t lookahead;
    uint32_t depth;
    const char *faults;
    const char *trace;   /* record there */
    const char *profile; /* usage profile, or "off" */
    /* drafts */
    rg_draft_mode draft;
    uint32_t draft_max; /* 0 = default */
    bool draft_fixed;
    bool logits_hash; /* of the logits that tokens were chosen from */
    const char *draft_model;
    bool mtp_stream_norm;
    float moce;
    uint32_t moce_slots;
    const char *pack; /* FILE or off */
    /* input */
    const char *prompt; /* -p */
    const char *file;   /* -f */
    const char *ids;    /* --ids */
    bool raw;
    const char *system;
    bool no_think;
    const char *effort;
    /* output */
    bool print_ids;
    bool show_special;
    bool json;
    uint32_t n_predict;
    bool ignore_eos;
    const char *stop[32];
    size_t n_stop;
    rg_sampling_params sampling;
    rg_logit_bias bias[64];
    /* logits */
    const char *out;
    const char *ref;
    uint32_t top;
    bool hash;
    uint32_t decode;
    const char *dump;
    const char *dump_ref;
    double dump_tolerance;
    /* bench */
    uint32_t n_prompt, n_gen, reps;
    const char *ab[CLI_AB_MAX]; /* [n_ab] "flag=a,b" */
    size_t n_ab;
    bool cold, generate, time_kernels;
    const char *sweep;   /* bench: kind of product whose shapes are measured; NULL = none */
    double ceiling_gb_s; /* 0: to be measured */
    /* kld */
    const char *save, *csv;
    uint32_t top_agree; /* tokens whose agreement is counted; 0 = default */
    /* trace replay: as written */
    struct {
        const char *slots, *policies, *lookaheads, *guards;
        double latency_us, gb_s, layer_us, row_us;
    } replay;
    /* tokenize */
    bool decode_ids;
    bool parse_special;
    /* synth */
    const char *preset;
    const char *sets[64]; /* key=value */
    size_t n_sets;
    const char *types[256]; /* REGEX=TYPE */
    size_t n_types;
    const char *type_default;
    double skew, correlation, predictability; /* negative = default */
    uint32_t split_files;
    bool fused, overwrite;
    /* quantize, convert, imatrix, pull */
    struct {
        const char *type, *imatrix, *sensitivity, *dir, *name, *sha256;
        uint64_t target_bytes;
        bool list, dry_run;
        uint32_t max_tokens;
    } tools;
    /* doctor */
    bool quick;
    struct {
        const char *host, *api_key, *cors, *alias, *cache_dir;
        uint32_t port, parallel, queue, grace, heartbeat, time_limit;
        uint64_t snapshots, cache_size;
        bool insecure;
    } serve;
    /* what is left behind the flags */
    char **args;
    int n_args;
} cli_options;

typedef struct cli_command {
    const char *name;    /* one word or two */
    const char *usage;   /* behind "regolith NAME " */
    const char *summary; /* one line */
    const char *flags;   /* letters of the flag groups it accepts, see flags.c */
    int max_args;        /* words behind the flags */
    int (*run)(const cli_options *opt);
} cli_command;

/* flags.c: parses the words behind the command name. Returns CLI_OK, or CLI_USAGE after saying why.
 * `*help` is set when --help was asked for. */
int cli_parse(const cli_command *command, int argc, char **argv, cli_options *out, bool *help);
/* Sets one flag that the command accepts, as if it had been given; switches take "on" and "off".
 * Returns CLI_OK, or CLI_USAGE after saying why. */
int cli_set_flag(cli_options *opt, const char *name, const char *text);
/* Prints the help of one command to standard output. */
void cli_print_help(const cli_command *command);

/* What the flags of a command look like, in the order of its help. help NULL: not shown. */
typedef struct cli_flag_facts {
    char letter; /* 0 = none */
    const char *name, *arg, *help;
} cli_flag_facts;
void cli_each_flag(const cli_command *command, void (*see)(void *user, const cli_flag_facts *f),
                   void *user);
/* main.c: command i; NULL behind the last. */
const cli_command *cli_command_at(size_t i);
/* manual.c: more about a command than its summary; NULL = none. */
const char *cli_details(const char *command);

/* message.c */
/* The command that messages name. */
void cli_name_command(const char *name);
/* Prints "regolith: command: ..." and returns CLI_FAILURE, or CLI_INTERRUPTED for CANCELED. */
int cli_fail(const rg_status *st);
/* Prints "regolith: command: message" and returns CLI_USAGE. */
int cli_usage(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Progress on standard error, only on a terminal; erased when done. */
void cli_progress(void *user, const char *what, uint64_t done, uint64_t total);
void cli_progress_clear(void);
/* Until the next call, "prefill" is shown as part of a longer job: `base` tokens of `total` are
 * done. 0, 0: as it is. */
void cli_progress_span(uint64_t base, uint64_t total);
/* Flushes standard output and tells whether all could be written so far. */
bool cli_flush(void);
/* Flushes standard output; CLI_FAILURE after saying so when something could not be written. */
int cli_finish_output(void);

/* input.c */
/* Reads a whole file ("-" = standard input). Release with rg_release. */
rg_code cli_read_file(const char *path, char **text, size_t *len, rg_status *st);
/* Whitespace-separated decimals. */
rg_code cli_read_ids(const char *path, int32_t **ids, size_t *n, rg_status *st);
rg_code cli_parse_ids(const char *name, const char *text, int32_t **ids, size_t *n, rg_status *st);
/* The engine as the flags want it. */
rg_code cli_open_engine(const cli_options *opt, rg_engine **out, rg_status *st);
/* The engine options that the flags stand for; borrows from them. */
/* Where a user's programs keep such things, in o->gpu_cache. */
void cli_find_gpu_cache(cli_options *o);
rg_engine_options cli_engine_options(const cli_options *opt);
/* Ctrl-C cancels the running call of this session; NULL: it ends the process as usual. */
void cli_cancel_on_interrupt(rg_session *session);

/* cmd_pull.c: names hf:USER/REPO[:QUANT] among the models become paths in the local store. Returns
 * CLI_OK, or CLI_FAILURE after saying why. */
int cli_resolve_models(cli_options *opt);

/* profile.c */
/* The "profile:" line on standard error. */
void cli_print_profile(const rg_engine *engine, const rg_session *session);
/* The session options that the flags stand for. */
rg_session_options cli_session_options(const cli_options *opt, uint32_t n_ctx);
/* The receipt of cache-aware routing on standard error. */
void cli_print_moce(const rg_moce_receipt *m, float lambda);

/* commands */
int cli_run(const cli_options *opt);
int cli_logits(const cli_options *opt);
int cli_tokenize(const cli_options *opt);
int cli_inspect(const cli_options *opt);
int cli_ppl(const cli_options *opt);
int cli_plan(const cli_options *opt);
int cli_synth(const cli_options *opt);
int cli_doctor(const cli_options *opt);
int cli_trace_record(const cli_options *opt);
int cli_trace_replay(const cli_options *opt);
int cli_trace_profile(const cli_options *opt);
int cli_pack(const cli_options *opt);
int cli_bench(const cli_options *opt);
int cli_kld(const cli_options *opt);
int cli_chat(const cli_options *opt);
int cli_serve(const cli_options *opt);
int cli_quantize(const cli_options *opt);
int cli_convert(const cli_options *opt);
int cli_imatrix(const cli_options *opt);
int cli_pull(const cli_options *opt);
int cli_manual(const cli_options *opt);
int cli_completion(const cli_options *opt);

#endif
