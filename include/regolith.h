/* regolith: run Mixture-of-Experts language models far larger than memory.
 *
 * The one public header. An engine is an opened model; a session is one conversation's state on
 * it. No tensor leaks through this interface.
 *
 * Errors: every fallible function returns an rg_code and takes the status last (NULL is allowed).
 * On failure an `*out` argument is NULL, nothing is leaked and the engine stays usable.
 * Threads: an engine and its sessions belong to one thread at a time. Only rg_session_cancel and
 * the functions under "text", which look at nothing that changes, may be called from others.
 */
#ifndef REGOLITH_H
#define REGOLITH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RG_API        __attribute__((visibility("default")))
#define RG_MUST_CHECK __attribute__((warn_unused_result))

/* ---- status --------------------------------------------------------------------------------- */

/* Codes are appended, never reused. */
#define RG_CODES(X)                                                                                \
    X(OK, "ok")                                                                                    \
    X(INVALID, "invalid argument")                                                                 \
    X(FORMAT, "malformed file")                                                                    \
    X(UNSUPPORTED, "not supported")                                                                \
    X(NOMEM, "out of memory")                                                                      \
    X(IO, "i/o error")                                                                             \
    X(BUSY, "busy")                                                                                \
    X(CANCELED, "canceled")                                                                        \
    X(TIMEOUT, "timed out")                                                                        \
    X(BUG, "internal error")

typedef enum rg_code {
#define RG_CODE_ENUM(name, text) RG_##name,
    RG_CODES(RG_CODE_ENUM)
#undef RG_CODE_ENUM
        RG_CODE_COUNT
} rg_code;

typedef struct rg_status {
    rg_code code;
    int sys_errno;     /* 0 if the system was not involved */
    char message[232]; /* what failed, on which object, with the two numbers that disagree */
} rg_status;

/* Static text of a code, never NULL. */
RG_API const char *rg_code_text(rg_code code);

/* ---- choices -------------------------------------------------------------------------------- */

/* AUTO: 8-bit activations against quantised weights, the canonical arithmetic. REF: the float
 * reference, activations never quantised. */
typedef enum rg_kernel_set { RG_KERNELS_AUTO, RG_KERNELS_REF } rg_kernel_set;

/* Element type of the KV cache. */
typedef enum rg_kv_type { RG_KV_F16, RG_KV_F32 } rg_kv_type;

typedef enum rg_io_backend { RG_IO_AUTO, RG_IO_URING, RG_IO_PREAD } rg_io_backend;
typedef enum rg_toggle { RG_AUTO, RG_ON, RG_OFF } rg_toggle;
/* Where experts that stream lie for a GPU. */
typedef enum rg_gpu_arena {
    RG_GPU_ARENA_AUTO,   /* the first of these that will do */
    RG_GPU_ARENA_MAPPED, /* memory of the device that the host sees: reads land in it */
    RG_GPU_ARENA_STAGED, /* memory of the device; reads land beside it and are copied there */
    RG_GPU_ARENA_HOST,   /* memory of the host, read by the device at each use */
    RG_GPU_ARENA_COUNT
} rg_gpu_arena;

/* ---- engine --------------------------------------------------------------------------------- */

typedef struct rg_engine rg_engine;
typedef struct rg_session rg_session;

/* A byte string, not NUL-terminated, may hold NUL bytes. Borrowed. */
typedef struct rg_str {
    const char *data;
    size_t len;
} rg_str;

/* Something in progress: `what` is "load" (bytes) or "prefill" (tokens). */
typedef void rg_progress_fn(void *user, const char *what, uint64_t done, uint64_t total);

/* Log lines of the library; process-wide. */
typedef enum rg_log_level { RG_LOG_ERROR, RG_LOG_WARN, RG_LOG_INFO, RG_LOG_DEBUG } rg_log_level;
typedef void rg_log_sink(void *user, rg_log_level level, const char *line);
/* Set before the first engine is opened. NULL drops all lines. Lines above `max` are not made. */
RG_API void rg_log_set(rg_log_sink *sink, void *user, rg_log_level max);

/* Zeroed = defaults. Strings are borrowed during the call. */
typedef struct rg_engine_options {
    const char *model_path;    /* GGUF; any shard of a split model */
    const char *chat_template; /* family name; NULL = recognise the file's own template */
    const char *cpu_level; /* caps the instruction level (scalar, x86-64-v3, ...); NULL = best */
    int n_threads;         /* 0 = physical cores */
    rg_kernel_set kernels;
    uint32_t chunk; /* tokens of a prefill chunk; 0 = default */
    bool no_mtp;    /* leave the draft block out */
    /* A file that holds the draft block alone, for a model without one; NULL = none. */
    const char *draft_model_path;
    bool mtp_stream_norm; /* the draft block's hidden norm: a mean for each stream, not one */

    /* The trunk on a GPU through Vulkan: the device as `regolith doctor` lists them (-1 = the
     * best); gpu_check: under the validation layers, for tests. Compiled kernels are kept in
     * gpu_cache_path (NULL = not). */
    bool gpu;
    bool gpu_or_cpu; /* without such a device the CPU computes, after a warning */
    int gpu_device;
    bool gpu_check;
    const char *gpu_cache_path;
    rg_gpu_arena gpu_arena; /* the results are the same */

    /* A 3-bit copy of the output matrix finds the few tokens that can be the best, exact rows
     * decide (greedy picks without penalties; the full product where that is not enough). The
     * tokens stay the same. Not on a GPU. */
    bool two_stage_head;

    /* Memory. ram_bytes is the whole budget: trunk, state, scratch, staging and experts stay below
     * it, those on a GPU included; 0 = what is free. Experts that do not fit stream from the drive
     * through an arena. arena_bytes or arena_experts ask for an arena of that size; then experts
     * stream even if all would fit. */
    uint64_t ram_bytes;
    uint64_t arena_bytes;
    uint32_t arena_experts;
    uint32_t n_ctx;          /* of the session the plan makes room for; 0 = as rg_session_options */
    rg_kv_type kv;           /* likewise */
    bool plan_mtp;           /* likewise */
    uint32_t plan_draft_max; /* likewise */
    uint32_t n_session;      /* sessions at once; 0 = 1 */
    uint64_t snapshot_bytes; /* of all snapshots at once */
    bool lock_memory;

    /* Reads. */
    rg_io_backend io;
    rg_toggle direct;  /* O_DIRECT */
    uint32_t depth;    /* reads in flight; 0 = default */
    int32_t lookahead; /* experts read ahead a layer in decode: 0 = as it pays, -1 = off */
    rg_toggle split;   /* compute what is there while the rest is read */
    /* Expert pack of `regolith pack`, used when experts stream. NULL = the one beside the model, if
     * there is one; "" = none. One that does not belong to the model is refused. */
    const char *pack_path;
    bool io_null;           /* skip reads: figures without the drive, wrong answers */
    const char *trace_path; /* record what is asked of the experts there; NULL = no */
    /* Usage profile to fill the arena from at the start; NULL = the model's path with ".rgprofile"
     * behind it, where there is one; "off" = none. */
    const char *profile_path;
    const char *faults; /* injected, "seed=1,eio=2,short=3,flip=0,stall=5,stall_ms=50" per mille;
                           poison=1 */
    rg_progress_fn *progress; /* NULL = none */
    void *progress_user;
} rg_engine_options;

/* Facts about an opened model. */
typedef struct rg_engine_info {
    const char *arch;      /* general.architecture */
    const char *gpu;       /* name of the device that computes; "" = the CPU */
    const char *cpu_level; /* chosen */
    uint32_t n_vocab, n_ctx_train, n_layer, n_embd, n_expert, n_expert_used;
    bool has_mtp;
    int n_threads;
    uint32_t chunk;
    uint64_t weight_bytes, scratch_bytes;
    uint64_t budget_bytes, arena_bytes; /* arena 0: all experts are loaded */
    const char *io_backend;             /* "" when nothing streams */
    const char *gpu_arena; /* mapped, staged or host: as rg_gpu_arena; "" when none streams there */
    uint64_t staging_bytes; /* of the host, that experts pass on their way to a staged arena */
    const char *pack_path;  /* "" when no pack is used; lives as long as the engine */
    uint64_t expert_bytes;  /* of the largest expert */
    uint64_t file_bytes;    /* of all parts of the model file */
    uint64_t n_weight;      /* elements of all its tensors */
    double load_ms;
} rg_engine_info;

/* Loads a model. What the machine's memory cannot hold is refused with the sum. */
RG_API RG_MUST_CHECK rg_code rg_engine_open(rg_engine **out, const rg_engine_options *opt,
                                            rg_status *st);
/* All sessions must be destroyed before. NULL is allowed. */
RG_API void rg_engine_close(rg_engine *engine);
RG_API void rg_engine_get_info(const rg_engine *engine, rg_engine_info *out);
/* The memory plan as a table. Release *text with rg_release. */
RG_API RG_MUST_CHECK rg_code rg_engine_print_plan(const rg_engine *engine, char **text,
                                                  rg_status *st);
/* The plan alone: reads the header of the file, loads nothing. */
RG_API RG_MUST_CHECK rg_code rg_plan_for(const rg_engine_options *opt, char **text, rg_status *st);

/* Counters of the whole engine since it was opened. The parts of time (compute, wait, handshake,
 * host) add up to total_ms. */
typedef struct rg_engine_meters {
    uint64_t hits, misses, late;
    uint64_t readahead_useful, readahead_wasted;
    uint64_t read_bytes, wasted_bytes;
    uint64_t copied_bytes; /* from staging into a GPU's arena */
    double copy_ms;        /* of the device, for them; 0 where it cannot tell */
    double drive_gb_s;     /* while reads were in flight */
    double drive_ms;       /* with reads in flight */
    double total_ms;       /* of all evaluations and generations */
    double compute_ms, wait_ms, handshake_ms, host_ms;
    double embed_ms, ple_ms, plan_ms, sample_ms; /* parts of compute_ms and host_ms */
    double ple_wait_ms;                          /* part of wait_ms: rows of the n-gram table */
    uint64_t ngram_rows, ngram_hits;             /* rows wanted, and those that took no read */
    uint64_t ngram_reads, ngram_read_bytes;      /* not in read_bytes */
    uint64_t arena_peak_bytes, rss_peak_bytes;
    uint64_t retries, read_errors, evictions, waves;
    uint64_t major_faults;
    uint64_t draft_offered, draft_accepted;
    /* Rows of logits that a GPU gave whole, and those of which it gave the best alone. */
    uint64_t logit_rows_whole, logit_rows_best;
} rg_engine_meters;
RG_API void rg_engine_get_meters(const rg_engine *engine, rg_engine_meters *out);

/* One layer's part of that. A token takes at least the sum over the layers of before_router +
 * max(phase1, urgent_bytes / the drive's rate) + phase2, and what lies outside the layers. */
typedef struct rg_layer_meters {
    uint64_t
        before_router_ns;  /* from the end of the layer before it until the reads are asked for */
    uint64_t phase1_ns;    /* shared expert, guesses, experts that are in memory */
    uint64_t phase2_ns;    /* experts as they arrive, combination */
    uint64_t wait_ns;      /* for them to arrive */
    uint64_t urgent_bytes; /* of experts that nobody had asked for before */
    uint64_t late_bytes;   /* of experts whose read-ahead was still under way */
} rg_layer_meters;
/* Fills the first `cap` layers and returns how many there are: the model's, and behind them the
 * draft block. */
RG_API size_t rg_engine_get_layer_meters(const rg_engine *engine, rg_layer_meters *out, size_t cap);

/* Times every kernel from here on, or no longer. Starting again forgets what was counted; costs a
 * few per cent of a small model's time. On a GPU the device's time stamps: rows of the part
 * "device" by program, and one of "host": what the windows took while the device had no work. */
RG_API RG_MUST_CHECK rg_code rg_engine_time_kernels(rg_engine *engine, bool on, rg_status *st);
/* What one kernel did in one part of the model, with one type of weights. */
typedef struct rg_kernel_meter {
    const char *part, *kernel; /* static */
    const char *type;          /* static; "" = reads no weights of a block format */
    uint64_t calls;            /* parallel phases, or sections of one thread */
    uint64_t ns;               /* wall time; the meters add up to the time in kernels */
    uint64_t busy_ns;          /* of all threads together */
    uint64_t bytes;            /* that must be read and written at least; 0 = not stated */
    uint64_t ops;              /* multiply-adds; 0 = not stated */
    /* Copies of experts into a GPU's arena: they run beside the others, their time is not a part of
     * the sum. No row where the device's queue for copies has no time stamps. */
    bool beside;
} rg_kernel_meter;
/* Fills the first `cap`, in the order of the model, and returns how many there are; 0 also when no
 * memory is left for it. */
RG_API size_t rg_engine_get_kernel_meters(const rg_engine *engine, rg_kernel_meter *out,
                                          size_t cap);

/* One product of the model's windows, and the shape of its kernel that was the fastest. */
typedef struct rg_sweep_row {
    const char *op, *type; /* static: rows, slots, tiles, experts; the weights' type */
    uint32_t n_in, n_out, columns;
    uint32_t n_out2;      /* rows of a second matrix in the same dispatch; 0: none */
    bool fused, coding;   /* gate and up in one; makes its codes itself */
    uint32_t group_rows;  /* rows of a lane; 0: the usual */
    uint32_t side, depth; /* columns / 16 and depth of a tile; 0: the usual */
    bool loop, no_matrix; /* a loop that is not written out; no matrix units */
    uint32_t n_tried;
    double usual_us, best_us;
} rg_sweep_row;
typedef rg_code rg_sweep_see(void *user, const rg_sweep_row *row, rg_status *st);
/* Measures every shape of the GPU's products of one kind ("rows", "slots" of experts, "tiles",
 * tiles of "experts", or "all"), writes the best to a table beside gpu_cache_path that engines read
 * when they are opened, and takes them from here on. Shapes change no bit of a result. No session
 * may exist; INVALID without a gpu_cache_path, UNSUPPORTED without a GPU. */
RG_API RG_MUST_CHECK rg_code rg_engine_sweep(rg_engine *engine, const char *op, rg_sweep_see *see,
                                             void *user, rg_status *st);
RG_API const char *rg_engine_sweep_path(const rg_engine *engine); /* "" = no table is kept */

/* Forgets the cached experts, as if the engine had just been opened; with `page_cache` the system
 * is asked to forget the model's files too. */
RG_API RG_MUST_CHECK rg_code rg_engine_drop_caches(rg_engine *engine, bool page_cache,
                                                   rg_status *st);

/* ---- importance ------------------------------------------------------------------------------ */

/* From here on the squares of what is multiplied with each matrix are summed, column by column, and
 * expert by expert, in all sessions of the engine. Costs some time; changes no result. */
RG_API RG_MUST_CHECK rg_code rg_engine_collect_importance(rg_engine *engine, rg_status *st);
/* What was seen of one weight: sums [n][cols] of squares and counts [n] of rows, for each of its n
 * matrices. Valid until the next evaluation. Anything but OK ends the visit. */
typedef rg_code rg_importance_fn(void *user, const char *tensor, uint64_t cols, uint64_t n,
                                 const float *sums, const float *counts, rg_status *st);
RG_API RG_MUST_CHECK rg_code rg_engine_visit_importance(const rg_engine *engine,
                                                        rg_importance_fn *fn, void *user,
                                                        rg_status *st);

/* ---- text ----------------------------------------------------------------------------------- */

/* Ids of `len` bytes of text; control tokens written in the text are recognised only when
 * `parse_special`. Release *ids with rg_release. */
RG_API RG_MUST_CHECK rg_code rg_engine_tokenize(const rg_engine *engine, const char *text,
                                                size_t len, bool parse_special, int32_t **ids,
                                                size_t *n_ids, rg_status *st);
/* The same without loading weights: opens the file's vocabulary only. */
typedef struct rg_vocab rg_vocab;
RG_API RG_MUST_CHECK rg_code rg_vocab_open(rg_vocab **out, const char *model_path, rg_status *st);
RG_API void rg_vocab_close(rg_vocab *vocab);
RG_API RG_MUST_CHECK rg_code rg_vocab_tokenize(const rg_vocab *vocab, const char *text, size_t len,
                                               bool parse_special, int32_t **ids, size_t *n_ids,
                                               rg_status *st);
/* Bytes of the ids in turn, control tokens as their text; not cut at characters. Release *text with
 * rg_release; a NUL stands behind it. */
RG_API RG_MUST_CHECK rg_code rg_vocab_detokenize(const rg_vocab *vocab, const int32_t *ids,
                                                 size_t n_ids, char **text, size_t *len,
                                                 rg_status *st);
RG_API const rg_vocab *rg_engine_vocab(const rg_engine *engine);

/* Frees what this interface handed out. NULL is allowed. */
RG_API void rg_release(void *p);

typedef enum rg_role { RG_ROLE_SYSTEM, RG_ROLE_USER, RG_ROLE_ASSISTANT, RG_ROLE_TOOL } rg_role;

typedef struct rg_tool_arg {
    rg_str name;
    rg_str value; /* raw text for strings, JSON text otherwise */
    bool is_string;
} rg_tool_arg;

typedef struct rg_tool_call {
    rg_str name;
    const rg_tool_arg *args;
    size_t n_args;
} rg_tool_call;

typedef struct rg_message {
    rg_role role;
    rg_str content;
    rg_str reasoning; /* assistant; empty = none */
    bool has_reasoning;
    const rg_tool_call *calls; /* assistant */
    size_t n_calls;
} rg_message;

typedef struct rg_chat_options {
    bool add_generation_prompt;
    bool enable_thinking;    /* default true */
    bool preserve_thinking;  /* default true */
    rg_str reasoning_effort; /* empty = the template's default */
} rg_chat_options;

/* The prompt text of a conversation under the model's chat template. `tools_json`: one JSON object
 * text for each tool, as it shall appear. Release *text with rg_release. */
RG_API RG_MUST_CHECK rg_code rg_engine_render_chat(const rg_engine *engine,
                                                   const rg_message *messages, size_t n_messages,
                                                   const rg_str *tools_json, size_t n_tools,
                                                   const rg_chat_options *options, char **text,
                                                   size_t *len, rg_status *st);

/* ---- sampling ------------------------------------------------------------------------------- */

#define RG_SAMPLING_BIAS_MAX     65536 /* logit_bias pairs of one request */
#define RG_SAMPLING_LOGPROBS_MAX 128   /* alternatives of one position */

typedef struct rg_logit_bias {
    int32_t id;
    float bias; /* added to the logit; -INFINITY bans the token */
} rg_logit_bias;

typedef struct rg_sampling_params {
    float temperature;       /* 0 or less = greedy */
    int32_t top_k;           /* 0 = off */
    float top_p;             /* 1 = off; at least one token is kept */
    float min_p;             /* 0 = off */
    float repeat_penalty;    /* 1 = off */
    float presence_penalty;  /* 0 = off */
    float frequency_penalty; /* 0 = off */
    int32_t penalty_last_n;  /* accepted tokens that count; 0 = none, -1 = the whole context */
    uint64_t seed;
    const rg_logit_bias *logit_bias; /* [n_logit_bias]; borrowed, copied by rg_sampler_create */
    size_t n_logit_bias;
} rg_sampling_params;

/* temperature 0.8, top_k 40, top_p 0.95, min_p 0.05, no penalty (window 64), seed 0, no bias. */
RG_API rg_sampling_params rg_sampling_defaults(void);

/* ---- drafts --------------------------------------------------------------------------------- */

/* Speculation: several guessed tokens are evaluated in one window and the wrong ones are taken
 * back. The tokens chosen and their logits are the same, bit by bit, as without. */

#define RG_DRAFTS_MAX    7u /* guesses in a window */
#define RG_DRAFT_DEFAULT 4u

typedef enum rg_draft_mode {
    RG_DRAFT_OFF,
    RG_DRAFT_MTP,    /* of the model's draft block */
    RG_DRAFT_SUFFIX, /* what followed the last time the text ended like this */
    RG_DRAFT_AUTO    /* for each window the better of both, or none */
} rg_draft_mode;

#define RG_DRAFT_SOURCES(X)                                                                        \
    X(NONE, "none")                                                                                \
    X(MTP, "mtp")                                                                                  \
    X(SUFFIX, "suffix")                                                                            \
    X(CALLER, "caller")

typedef enum rg_draft_source {
#define RG_SOURCE_ENUM(name, text) RG_SOURCE_##name,
    RG_DRAFT_SOURCES(RG_SOURCE_ENUM)
#undef RG_SOURCE_ENUM
        RG_SOURCE_COUNT
} rg_draft_source;
RG_API const char *rg_draft_source_text(rg_draft_source source);

/* Windows of one source with one number of drafts. */
typedef struct rg_draft_windows {
    uint64_t n;
    uint64_t tokens;     /* chosen from their rows */
    uint64_t window_ns;  /* evaluating them */
    uint64_t draft_ns;   /* making the drafts */
    uint64_t experts;    /* distinct ones, summed over the layers */
    uint64_t read_bytes; /* that came from the drive meanwhile */
    uint64_t waves;      /* turns whose experts did not fit the arena at once */
} rg_draft_windows;

/* Since the session was created. */
typedef struct rg_draft_stats {
    rg_draft_windows windows[RG_SOURCE_COUNT][RG_DRAFTS_MAX + 1]; /* by number of drafts */
    /* By position in the window: drafts whose predecessors were right, and those right themselves.
     */
    uint64_t tried[RG_SOURCE_COUNT][RG_DRAFTS_MAX], right[RG_SOURCE_COUNT][RG_DRAFTS_MAX];
    uint64_t offered, accepted; /* all drafts */
    /* What the next choice is made from: expected time of a window of [rows], 0 = not known; chance
     * that a draft is right when those before it are. */
    double window_ns[RG_DRAFTS_MAX + 2];
    double chance[RG_SOURCE_COUNT][RG_DRAFTS_MAX];
    uint32_t rows_max; /* rows that the arena has room for, as far as is known */
} rg_draft_stats;

/* ---- sessions ------------------------------------------------------------------------------- */

/* Zeroed = defaults. */
typedef struct rg_session_options {
    uint32_t n_ctx; /* tokens it can hold; 0 = 4096 or the model's context, whichever is less */
    rg_kv_type kv;
    bool mtp; /* keep the draft block in step */
    rg_draft_mode draft;
    uint32_t draft_max; /* guesses in a window; 0 = RG_DRAFT_DEFAULT, or none with RG_DRAFT_OFF */
    bool draft_fixed;   /* always that many, paying or not: for measurements and tests */
    /* Folder for raw intermediate values of every evaluated token (layout: engine/dump.h); NULL =
     * none. It must exist and hold no dump. */
    const char *dump_dir;
    const char *dump_ref_dir; /* compare with the dump there instead; NULL = no */
    double dump_tolerance;    /* of the comparison, relative to each tensor's largest value */
} rg_session_options;

RG_API RG_MUST_CHECK rg_code rg_session_create(rg_session **out, rg_engine *engine,
                                               const rg_session_options *opt, rg_status *st);
RG_API void rg_session_destroy(rg_session *session);
/* Back to no tokens; mends a session whose call failed. */
RG_API void rg_session_reset(rg_session *session);
RG_API uint32_t rg_session_length(const rg_session *session);
RG_API uint32_t rg_session_capacity(const rg_session *session);
/* Ends a running call of this session with CANCELED at the next layer, or the next call where none
 * runs; rg_session_reset takes it back. From any thread and from a signal handler. */
RG_API void rg_session_cancel(rg_session *session);

/* Receives the logits [n_vocab] of the token at `position`; valid during the call. Anything but OK
 * ends the evaluation with that code. */
typedef rg_code rg_logits_fn(void *user, uint32_t position, const float *logits, rg_status *st);

/* Appends tokens and gives the logits of each to `fn` (NULL: none is computed but the last, which
 * rg_session_generate starts from). `chunk`: rows at once, 0 = the engine's. */
RG_API RG_MUST_CHECK rg_code rg_session_eval(rg_session *session, const int32_t *ids, size_t n_ids,
                                             uint32_t chunk, rg_logits_fn *fn, void *user,
                                             rg_status *st);

/* Completes the dump. `report` [cap] gets one line: what was written, or the first layer and tensor
 * that differ from the reference. */
RG_API RG_MUST_CHECK rg_code rg_session_finish_dump(rg_session *session, char *report, size_t cap,
                                                    rg_status *st);

#define RG_FINISH(X)                                                                               \
    X(LENGTH, "length")                                                                            \
    X(EOS, "eos")                                                                                  \
    X(STOP, "stop")                                                                                \
    X(CONTEXT, "context")                                                                          \
    X(CALLER, "caller")                                                                            \
    X(CANCELED, "canceled")
typedef enum rg_finish {
#define RG_FINISH_ENUM(name, text) RG_FINISH_##name,
    RG_FINISH(RG_FINISH_ENUM)
#undef RG_FINISH_ENUM
} rg_finish;
RG_API const char *rg_finish_text(rg_finish finish);

/* What cache-aware routing changed. A route is one expert of one layer for one token. */
typedef struct rg_moce_receipt {
    uint64_t tokens;         /* evaluated under it */
    uint64_t routes;         /* of these tokens */
    uint64_t routes_changed; /* to an expert that the plain router would not have chosen */
    double mass_moved; /* weight that the plain routes gave to experts that were left out: 1 is
                          all the weight of one layer for one token */
} rg_moce_receipt;

/* Cache-aware routing of the tokens evaluated from here on: experts that the arena would hold are
 * preferred by `lambda` (0..1) of the mean range of the router's logits. Text changes, repeatably:
 * it depends on the tokens, lambda and the number of slots alone, not on what the arena really
 * holds. `slots`: 0 = those of the plan. lambda 0 ends it, as reset does. */
RG_API RG_MUST_CHECK rg_code rg_session_moce(rg_session *session, float lambda, uint32_t slots,
                                             rg_status *st);
/* Since it was switched on; zeros when it is off. */
RG_API void rg_session_moce_receipt(const rg_session *session, rg_moce_receipt *out);

/* Zeroed = defaults, but for `sampling`. */
typedef struct rg_generate_options {
    rg_sampling_params sampling;
    float moce; /* as rg_session_moce, for this call's tokens; 0 = leave it as it is */
    uint32_t moce_slots;
    uint32_t n_predict;      /* tokens at most; 0 = until the context is full */
    bool ignore_eos;         /* end-of-generation tokens are ordinary */
    bool show_special;       /* control tokens appear in the text */
    const char *const *stop; /* [n_stop] stop strings; their text is not given */
    size_t n_stop;
    /* Each token as it is chosen, then the whole characters it completed (may be none). false ends
     * the generation. NULL = not wanted. */
    bool (*on_token)(void *user, int32_t id);
    bool (*on_text)(void *user, const char *text, size_t len);
    /* The logits [n_vocab] that the token at `position` is chosen from, before on_token. */
    rg_logits_fn *on_logits;
    /* The caller's own guess of the tokens behind the last one given: fills ids [n_max], returns
     * how many. 0: the session's drafts are used. Needs a session with draft_max. */
    uint32_t (*on_draft)(void *user, int32_t *ids, uint32_t n_max);
    void *user;
} rg_generate_options;

typedef struct rg_generate_result {
    rg_finish finish;
    uint32_t n_tokens;    /* chosen, with the token that ended it */
    rg_moce_receipt moce; /* zeros without */
} rg_generate_result;

/* Continues behind the last evaluated token. The last chosen token has not been evaluated yet when
 * this returns; the next eval or generate does it first. `out` may be NULL. A generation that is
 * canceled gives all text it has and fills `out` before it returns CANCELED. */
RG_API RG_MUST_CHECK rg_code rg_session_generate(rg_session *session,
                                                 const rg_generate_options *opt,
                                                 rg_generate_result *out, rg_status *st);

/* Counters since the session was created. */
typedef struct rg_session_stats {
    uint64_t prefill_tokens, decode_tokens;
    double prefill_ms, decode_ms;
    double compute_ms; /* inside windows */
    double host_ms;    /* sampling, text, callbacks */
    double ttft_ms;    /* from the first eval to the first chosen token */
    uint64_t state_bytes;
    uint64_t rss_peak_bytes; /* of the process */
} rg_session_stats;
RG_API void rg_session_get_stats(const rg_session *session, rg_session_stats *out);
/* All zero without drafts. */
RG_API void rg_session_get_draft_stats(const rg_session *session, rg_draft_stats *out);

/* ---- several sessions at once --------------------------------------------------------------- */

#define RG_BATCH_MAX 64 /* sessions that may share a window */

typedef struct rg_reply rg_reply;

/* Rows of one session in a shared window. */
typedef struct rg_batch_part {
    rg_session *session; /* each at most once */
    uint32_t n_ids;
    bool want_logits; /* of the last row, to pick from */
    /* The one row is the token that this reply picked last: a session with drafts guesses on behind
     * it, n_more tokens at most. NULL, or a session without drafts: nothing is guessed. */
    rg_reply *reply;
    uint32_t n_more;
    /* Picks look at so many of the best logits and at nothing else (rg_reply_best); 0: at all. A
     * GPU then gives no more than it must. */
    uint32_t n_best;
} rg_batch_part;

/* Appends ids[sum of n_ids], part after part, in one window: one read of an expert then serves all
 * sessions, and each gets the bits that it would have got alone. At most the engine's chunk of rows
 * in all. INVALID changes nothing; after any other failure all these sessions want a reset or a
 * rewind. `cancel` (may be NULL) ends the window at the next layer.
 *
 * Parts with a reply and drafts stay open: pick, then as long as rg_session_follow finds the picked
 * token among the guesses pick again; then rg_session_close_batch with the same parts, before any
 * other call with these sessions. It is allowed, and does nothing, when no part is open. */
RG_API RG_MUST_CHECK rg_code rg_session_eval_batch(rg_engine *engine, const rg_batch_part *parts,
                                                   size_t n_parts, const int32_t *ids,
                                                   const rg_session *cancel, rg_status *st);

/* Whether a window of this session waits for rg_session_close_batch. */
RG_API bool rg_session_is_open(const rg_session *session);
/* Whether the token just picked of an open session was guessed: the next pick is the one behind it,
 * without another window. */
RG_API bool rg_session_follow(rg_session *session, int32_t id);
/* What was picked stays, guesses that were wrong never were. A failure is as one of the window. */
RG_API RG_MUST_CHECK rg_code rg_session_close_batch(rg_engine *engine, const rg_batch_part *parts,
                                                    size_t n_parts, rg_status *st);
/* How many of n rows the next window may hold of this session: under cache-aware routing windows
 * end at fixed positions. */
RG_API uint32_t rg_session_window_rows(const rg_session *session, uint32_t n);

/* A reply that is made step by step, by the caller's loop: evaluate, pick, evaluate the picked
 * token, ... It holds sampler, stop strings and the unfinished character. */

/* Zeroed = defaults, but for `sampling`. */
typedef struct rg_reply_options {
    rg_sampling_params sampling;
    bool ignore_eos;         /* end-of-generation tokens are ordinary */
    const char *const *stop; /* [n_stop] stop strings; their text is not given */
    size_t n_stop;
    bool logprobs;  /* log probabilities under the model, before bias, penalties and masks */
    uint32_t n_top; /* and of the best alternatives, RG_SAMPLING_LOGPROBS_MAX at most */
} rg_reply_options;

/* How many of the best logits a reply's picks without a mask look at; 0: at all of them. */
RG_API uint32_t rg_reply_best(const rg_reply *reply);
/* Whether the session has the logits for a pick that looks at the n_best best; 0: at all. */
RG_API bool rg_session_can_pick(const rg_session *session, uint32_t n_best);

/* What a step chose. Pointers are borrowed until the next call on the reply. */
typedef struct rg_reply_step {
    int32_t id;
    bool end;     /* an end-of-generation token; adds no text */
    bool stopped; /* a stop string is complete */
    int32_t stop; /* its index, -1 */
    rg_str text;  /* whole characters that it completed; may be empty */
    float logprob;
    size_t n_top;
    const int32_t *top_ids; /* best first */
    const float *top_logprobs;
} rg_reply_step;

/* `history` [n_history] are the tokens that penalties see from the start, `n_more` how many steps
 * may follow. Takes all its memory here. */
RG_API RG_MUST_CHECK rg_code rg_reply_create(rg_reply **out, const rg_engine *engine,
                                             const rg_reply_options *opt, const int32_t *history,
                                             size_t n_history, size_t n_more, rg_status *st);
RG_API void rg_reply_destroy(rg_reply *reply); /* NULL is allowed */
/* Picks the token behind the session's last one. `allowed`: bit i % 8 of byte i / 8 lets token i
 * pass; NULL = all. The session is not moved on: evaluate the token. INVALID when nothing is
 * allowed. */
RG_API RG_MUST_CHECK rg_code rg_reply_pick(rg_reply *reply, rg_session *session,
                                           const uint8_t *allowed, rg_reply_step *out,
                                           rg_status *st);
/* The end: text that was held back, empty when a stop string ended it. */
RG_API RG_MUST_CHECK rg_code rg_reply_finish(rg_reply *reply, rg_str *text, rg_status *st);

/* A session's way back to an earlier length: the part of the state that moves on with every token,
 * and the logits there. Keys and values stay in the session. */
typedef struct rg_snapshot rg_snapshot;
RG_API RG_MUST_CHECK rg_code rg_session_snapshot(rg_snapshot **out, rg_session *session,
                                                 rg_status *st);
RG_API void rg_snapshot_destroy(rg_snapshot *snapshot); /* NULL is allowed */
RG_API uint32_t rg_snapshot_length(const rg_snapshot *snapshot);
RG_API bool rg_snapshot_has_logits(const rg_snapshot *snapshot);
/* What one takes; the same for every length. */
RG_API uint64_t rg_session_snapshot_bytes(const rg_session *session);
/* Back to the snapshot's length, also after a failure. INVALID unless the session's first tokens
 * are those of the snapshot; then nothing changes. The bits are those of a fresh evaluation. */
RG_API RG_MUST_CHECK rg_code rg_session_rewind(rg_session *session, const rg_snapshot *snapshot,
                                               rg_status *st);
/* Makes `to` what `from` was at the snapshot's length; both have the same options. */
RG_API RG_MUST_CHECK rg_code rg_session_copy(rg_session *to, const rg_session *from,
                                             const rg_snapshot *snapshot, rg_status *st);
/* The tokens of a session, [rg_session_length]; borrowed until the next call that changes it. */
RG_API const int32_t *rg_session_ids(const rg_session *session);
/* Whether the last row's logits are there to pick from. */
RG_API bool rg_session_has_logits(const rg_session *session);

/* The first n tokens and all a session needs to go on behind them, as bytes: the rows of tokens
 * [0, from), which sessions that begin with the same tokens can share, and an export of the
 * snapshot of n tokens with the rows from there on (from = 0: everything). They fit sessions of the
 * same model, kernel set, context type and draft choice alone, on this kind of machine.
 * from <= to <= the session's length; from <= the snapshot's. */
RG_API uint64_t rg_session_rows_bytes(const rg_session *session, uint32_t from, uint32_t to);
RG_API void rg_session_export_rows(const rg_session *session, uint32_t from, uint32_t to,
                                   void *dst);
RG_API uint64_t rg_session_export_bytes(const rg_session *session, const rg_snapshot *snapshot,
                                        uint32_t from);
RG_API void rg_session_export(const rg_session *session, const rg_snapshot *snapshot, uint32_t from,
                              void *dst);
/* Back: first the rows below `from`, in pieces if need be, then the export. Each resets the session
 * first, and until the export is in it has no tokens. INVALID when the bytes are not as many as the
 * tokens take or do not fit. */
RG_API RG_MUST_CHECK rg_code rg_session_import_rows(rg_session *session, uint32_t from, uint32_t to,
                                                    const void *src, uint64_t n_bytes,
                                                    rg_status *st);
RG_API RG_MUST_CHECK rg_code rg_session_import(rg_session *session, uint32_t n, uint32_t from,
                                               const void *src, uint64_t n_bytes, rg_status *st);
/* 16 bytes that tell models apart, with kernel set, cache type and draft choice of a session. */
RG_API RG_MUST_CHECK rg_code rg_session_identity(const rg_session *session, uint8_t out[16],
                                                 rg_status *st);

/* ---- watching ------------------------------------------------------------------------------- */

/* One byte an expert, layer after layer, the draft block last: bit 0, its bytes are in memory. And
 * how often each was chosen. Returns how many experts there are and fills the first `cap`. */
RG_API size_t rg_engine_get_experts(const rg_engine *engine, uint8_t *resident, uint32_t *uses,
                                    size_t cap);
/* Whether generation ends at a token. */
RG_API bool rg_vocab_is_end(const rg_vocab *vocab, int32_t id);
RG_API size_t rg_vocab_size(const rg_vocab *vocab);
/* Bytes of one token, control tokens as their text; is_control tells them. Release with rg_release.
 */
RG_API RG_MUST_CHECK rg_code rg_vocab_token(const rg_vocab *vocab, int32_t id, char **text,
                                            size_t *len, bool *is_control, rg_status *st);

#endif
