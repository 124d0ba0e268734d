/* engine: a loaded model and the mutable state of sequences. Graph, prefill chunk, decode window,
 * KV cache, draft block, sampler.
 *
 * One worker thread owns a core and all its sequences; compute threads see leaves only. Everything
 * large is taken when a core or a sequence is created; a window allocates nothing.
 *
 * Charter: the logits of a position depend on the tokens before it alone, never on how they were
 * cut into windows, on the number of threads or on other rows (kernels.h).
 */
#ifndef RG_ENGINE_H
#define RG_ENGINE_H

#include <stdatomic.h>

#include "base/base.h"
#include "engine/batch.h"
#include "engine/draft.h"
#include "engine/drafter.h"
#include "engine/dump.h"
#include "engine/head_two_stage.h"
#include "engine/importance.h"
#include "engine/moce.h"
#include "engine/plan.h"
#include "engine/ple_reader.h"
#include "engine/sampler.h"
#include "engine/stop.h"
#include "engine/tap.h"
#include "engine/trace.h"
#include "engine/usage.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "stream/stream.h"

#define RG_CHUNK_DEFAULT 512u
#define RG_CHUNK_MAX     8192u

/* Something in progress: `done` of `total` bytes or tokens. Called on the thread of the caller. */
typedef void rg_core_progress(void *user, const char *what, uint64_t done, uint64_t total);

/* Steps of a layer that run as one phase of the compute threads; the parts they are made of stay
 * beside them. Both give the same bits: the flags in rg_core_options.unfused are for tests and
 * measurements. */
enum {
    RG_FUSE_NORM = 1u << 0,    /* hyper-connection norm, and its rows as codes */
    RG_FUSE_MIX = 1u << 1,     /* low rank, up product, gates, mix, and the mixed rows as codes */
    RG_FUSE_WRITE = 1u << 2,   /* combination, write, and the norm of the next read */
    RG_FUSE_GDN = 1u << 3,     /* convolution, delta rule, gate and codes of a key head */
    RG_FUSE_ATTN = 1u << 4,    /* query norm and rotation, attention, gate and codes */
    RG_FUSE_EXPERTS = 1u << 5, /* gate, up, activation, codes; the shared expert with the others */
    RG_FUSE_ALL = (1u << 6) - 1
};

/* Ops of windows of few rows that the GPU computes in one kernel instead of some. */
enum {
    RG_GPU_FUSE_WRITE_NORM = 1, /* write of a half layer or of the experts, norm of the next */
    RG_GPU_FUSE_UP_MIX = 2,     /* codes, up product and mix of a hyper-connection */
    RG_GPU_FUSE_CODES = 4,      /* codes of short rows inside the product that reads them */
    RG_GPU_FUSE_DELTA = 8,      /* convolution, norms, delta rule, gated norm */
    RG_GPU_FUSE_ATTENTION = 16, /* codes of the output of attention */
    RG_GPU_FUSE_SHARED = 32,    /* gate and up of the shared expert */
    RG_GPU_LOOP = 64,           /* loops over rows of weights stay loops */
    RG_GPU_FEW = 128,           /* the few best logits are found there (rg_core_want_few) */
    RG_GPU_FUSE_PAIRS = 256,    /* two products of one input, of weights of one type */
    RG_GPU_FUSE_ALL = 511
};

/* Kernels and windows are built when a sequence is created, not at its first tokens. AUTO: on
 * hardware those of one row, of as many as drafts may make it, and of whole chunks (compiling all
 * of them anew takes up to half a minute); on a software device none. ON: of every number of rows.
 */
typedef enum rg_gpu_prewarm {
    RG_GPU_PREWARM_AUTO,
    RG_GPU_PREWARM_ON,
    RG_GPU_PREWARM_OFF
} rg_gpu_prewarm;

typedef struct rg_core_options {
    uint32_t unfused; /* RG_FUSE_... that run part by part */
    int n_threads;    /* 0 = physical cores */
    rg_cpu_level level;
    rg_kernel_set kernels;
    uint32_t chunk; /* rows of a window at most; 0 = RG_CHUNK_DEFAULT */
    /* Experts stream through an arena of this many bytes; 0: all experts are loaded. */
    uint64_t arena_bytes;
    const rg_pack *pack; /* where they are read from, checked, borrowed; NULL: the model file */
    bool split_off;      /* wait for every expert before computing any */
    bool spare_cache;    /* memory is promised: loading leaves nothing in the page cache */
    bool lock_memory;    /* keep weights and arena from being paged out */
    /* Backend, direct, depth, lookahead, null_reads, faults, poison, policy; the rest is set. */
    rg_stream_options io;
    /* The trunk on a GPU: the device as rg_gpu_enumerate lists it (< 0: the best), under the
     * validation layers or not, compiled kernels kept in a file (NULL: not). */
    bool gpu;
    bool gpu_or_cpu; /* without a device that will do the CPU computes, after a warning */
    int32_t gpu_device;
    bool gpu_validate;
    bool gpu_stamps; /* time every kernel */
    rg_gpu_arena gpu_arena;
    const char *gpu_cache_path;
    /* Heads that only the best token is wanted of go through head_two_stage.h. Not on a GPU. */
    bool two_stage_head;

    uint32_t gpu_unfused;   /* RG_GPU_FUSE_* that are left out: same bits, for tests and timing */
    uint32_t gpu_slot_rows; /* rows of an expert that a lane takes: 1, 2, 4; 0: a choice */
    rg_gpu_prewarm gpu_prewarm;
    uint64_t ple_cache_bytes; /* of the n-gram rows' cache; 0 = RG_PLE_CACHE_DEFAULT */
    bool ple_resident;        /* load the n-gram table */
    bool mtp_stream_norm; /* the draft block's hidden norm: one mean a stream, not one over all */
    /* Paths are borrowed while the core is created. */
    const char *trace_path; /* records the routes there; NULL = no */
    /* Usage profile to start warm from when experts stream; NULL = none. One that is only `found`
     * is passed over, with a warning, when it does not fit the model. */
    const char *profile_path;
    bool profile_found;
    rg_core_progress *progress; /* NULL = none */
    void *progress_user;
} rg_core_options;

/* Loads the weights. gguf and model are borrowed and must outlive the core (rows of the n-gram
 * table are read from the file as tokens come, unless it is loaded). Memory that is not there is
 * refused with the sum.
 */
RG_MUST_CHECK rg_code rg_core_create(rg_core **out, const rg_gguf *gguf, const rg_model *model,
                                     const rg_core_options *opt, rg_status *st);
void rg_core_destroy(rg_core *core);

/* From here on rows of logits that a window of one sequence gives need hold the n best logits
 * alone, the lowest ids among equals: others may be -INFINITY. 0: all are wanted, as in the
 * beginning. A core on a GPU takes it up for up to 8 rows at a time and n up to RG_FEW_MAX (the
 * device finds them, nothing else comes back), one with a two-stage head for windows of one row and
 * n = 1. Windows of several sequences say it part by part (batch.h). */
void rg_core_want_few(rg_core *core, uint32_t n);
/* What a row of logits that the core gave holds when the others stayed on the device; NULL: all are
 * there. Valid as long as the row. */
const rg_few *rg_core_few(const rg_core *core, const float *logits);
/* NULL without one. */
rg_two_stage *rg_core_two_stage(const rg_core *core);

int rg_core_threads(const rg_core *core);
const char *rg_core_gpu_name(const rg_core *core); /* "" = the CPU computes */
/* How the experts that stream lie there: "mapped", "staged", "host"; "" when none do. Static. */
const char *rg_core_gpu_arena(const rg_core *core);
/* The same before there is a core, as far as it can be told: STAGED where there may be a staged
 * one; AUTO without a device. `packed`: experts stream from a pack. */
rg_gpu_arena rg_gpu_arena_likely(rg_gpu_arena wanted, int32_t device, bool packed);
/* Memory of the host that experts pass on their way there, 0 but for a staged arena. */
uint64_t rg_core_gpu_staging_bytes(const rg_core *core);
/* The device's time for copies of a staged arena, ns; 0 where it cannot tell. */
uint64_t rg_core_gpu_copy_ns(const rg_core *core);
/* Device time of the kernels, one line for a program, its first constant (of products the type of
 * the weights) and its workgroups in x (0: the device decides), since the core was created: filled
 * when `gpu_stamps` was asked for. The times add up to those of the windows' command lists. Returns
 * how many there are; out[cap]. */
typedef struct rg_core_gpu_time {
    const char *program; /* static */
    uint32_t first, groups;
    uint64_t ns, count;
    uint64_t bytes, ops; /* read and written, multiply-adds, of dispatches that know */
} rg_core_gpu_time;
uint32_t rg_core_gpu_times(const rg_core *core, rg_core_gpu_time *out, uint32_t cap);
/* The same by kernel and type of the weights ("" where there are none), most time first. bytes, ops
 * 0: not known. */
typedef struct rg_core_gpu_row {
    const char *name, *type; /* static */
    uint64_t calls, ns, bytes, ops;
} rg_core_gpu_row;
uint32_t rg_core_gpu_rows(const rg_core *core, rg_core_gpu_row *out, uint32_t cap);
/* Starts all sums anew. */
void rg_core_gpu_rows_reset(rg_core *core);
/* Other RG_GPU_FUSE_* to leave out, rows of an expert for a lane, time stamps or none: from the
 * next window on. For tests and timing; without a GPU nothing happens. */
void rg_core_gpu_switch(rg_core *core, uint32_t unfused, uint32_t slot_rows, bool stamps);
/* Times every shape of the products of the model's windows on the device, writes the best to the
 * table beside the file of compiled kernels (kernels/gpu/gpu_tiles.h), which is read when a core is
 * created, and takes them from here on. They change no bit. `ops`: bits 1 rows, 2 slots of experts,
 * 4 tiles, 8 tiles of experts; entries of other ops and other products stay. `see` (NULL: not) gets
 * each; what it returns ends the sweep. No sequence may exist. INVALID without a path for kernels.
 */
typedef struct rg_gpu_sweep_row {
    const char *op, *type; /* static */
    uint32_t n_in, n_out, columns;
    uint32_t n_out2;                  /* rows of a second matrix in the same dispatch; 0: none */
    bool fused, coding;               /* gate and up in one; makes codes itself */
    uint32_t group_rows, side, depth; /* the best shape; 0: the usual choice */
    bool loop, no_matrix;
    uint32_t n_tried;
    double usual_us, best_us;
} rg_gpu_sweep_row;
typedef rg_code rg_gpu_sweep_see(void *user, const rg_gpu_sweep_row *row, rg_status *st);
RG_MUST_CHECK rg_code rg_core_gpu_sweep(rg_core *core, uint32_t ops, rg_gpu_sweep_see *see,
                                        void *user, rg_status *st);
const char *rg_core_gpu_tiles_path(const rg_core *core); /* "" = nowhere */
/* Rows of logits that came from the device whole, and those of which the best came alone, so far:
 * drafts included, 0 without a GPU. */
void rg_core_gpu_rows_given(const rg_core *core, uint64_t *whole, uint64_t *best);
/* Dispatches and barriers of the last window. */
void rg_core_gpu_counts(const rg_core *core, uint32_t *dispatches, uint32_t *barriers);
/* Complaints of the validation layers so far; 0 without them. */
uint64_t rg_core_gpu_complaints(const rg_core *core);
uint32_t rg_core_chunk(const rg_core *core);
/* Bytes held: weights (with experts), scratch. */
uint64_t rg_core_weight_bytes(const rg_core *core);
uint64_t rg_core_scratch_bytes(const rg_core *core);

/* ---- taps ----------------------------------------------------------------------------------- */

/* NULL switches the tap off. */
void rg_core_set_tap(rg_core *core, const rg_tap *tap);

/* Starts summing what is multiplied with every matrix; NULL before. */
RG_MUST_CHECK rg_code rg_core_collect_importance(rg_core *core, rg_status *st);
const rg_importance *rg_core_importance(const rg_core *core);

/* The stream of the experts, for its meters; NULL when all experts are loaded. */
rg_stream *rg_core_stream(const rg_core *core);

/* Host time inside windows, part by part, since the core was created. */
typedef struct rg_core_times {
    uint64_t window_ns; /* all of it, waits included */
    uint64_t embed_ns;
    uint64_t ple_ns; /* asking for rows of the n-gram table and unpacking them, without waits */
    uint64_t ple_wait_ns; /* waiting for them */
    uint64_t plan_ns;     /* grouping, turns, guesses */
    uint64_t n_distinct;  /* experts of each turn, summed over all turns */
    uint64_t draft_offered, draft_accepted;
} rg_core_times;
rg_core_times rg_core_get_times(const rg_core *core);
/* Meters of the n-gram rows; all 0 without a table. Any thread. */
void rg_core_ple_meters(const rg_core *core, rg_ple_meters *out);

/* The same layer by layer, since the core was created, and what bounds it from below: a turn takes
 * at least before_router + max(phase1, urgent_bytes / rate of the drive) + phase2. */
typedef struct rg_layer_times {
    uint64_t
        before_router_ns;  /* from the end of the layer before it until the reads are asked for */
    uint64_t phase1_ns;    /* shared expert, guesses, experts that are there */
    uint64_t phase2_ns;    /* experts as they arrive, combination */
    uint64_t wait_ns;      /* for them to arrive */
    uint64_t urgent_bytes; /* of experts that nobody had asked for before */
    uint64_t late_bytes;   /* of experts whose read-ahead was still under way */
} rg_layer_times;
/* [n_layer], behind the trunk layers the draft block where there is one. */
const rg_layer_times *rg_core_get_layer_times(const rg_core *core, uint32_t *n_layer);

/* Times kernel by kernel (engine/timing.h) from here on, or no longer; starting again forgets what
 * was counted. On a GPU by its time stamps: part "device", and what the windows took beyond the
 * kernels as part "host". */
RG_MUST_CHECK rg_code rg_core_time_kernels(rg_core *core, bool on, rg_status *st);
/* What one kernel did in one part of the model with one type of weights. */
typedef struct rg_kernel_time {
    const char *part, *kernel; /* static */
    uint32_t type;             /* rg_type; RG_TYPE_COUNT = reads no weights of a block format */
    uint64_t calls;            /* phases, or sections of one thread */
    uint64_t ns;               /* wall time */
    uint64_t busy_ns;          /* of all threads together */
    uint64_t bytes;            /* that must be read and written at least; 0 = not stated */
    uint64_t ops;              /* multiply-adds; 0 = not stated */
    bool beside;               /* it ran beside the others: not a part of their sum */
} rg_kernel_time;
/* Fills the first `cap` that were called, in the order of the model, and returns how many there
 * are: none while nothing is timed. */
size_t rg_core_kernel_times(const rg_core *core, rg_kernel_time *out, size_t cap);

/* ---- sequences ------------------------------------------------------------------------------ */

typedef struct rg_seq_options {
    uint32_t n_ctx; /* positions at most; 1 .. the context the model was made for */
    rg_kv_type kv;
    bool mtp;           /* keep the draft block's state in step (needs a model with one) */
    uint32_t draft_max; /* drafts that a window may hold (draft.h), up to RG_DRAFT_MAX; 0: none */
} rg_seq_options;

RG_MUST_CHECK rg_code rg_seq_create(rg_seq **out, rg_core *core, const rg_seq_options *opt,
                                    rg_status *st);
void rg_seq_destroy(rg_seq *seq);
/* Back to the empty sequence; also mends a sequence that failed. */
void rg_seq_reset(rg_seq *seq);
/* A call broke off in the middle: only rg_seq_reset helps. */
bool rg_seq_failed(const rg_seq *seq);
uint32_t rg_seq_length(const rg_seq *seq); /* tokens so far */
uint32_t rg_seq_capacity(const rg_seq *seq);
uint64_t rg_seq_bytes(const rg_seq *seq);
/* What a sequence of a model takes, without one. */
uint64_t rg_seq_bytes_for(const rg_model *m, const rg_seq_options *opt, int n_threads);
const int32_t *rg_seq_ids(const rg_seq *seq); /* [length] */

/* Cache-aware routing (moce.h) for every token that is evaluated from here on, until end or reset.
 * Starts anew when it is on. */
RG_MUST_CHECK rg_code rg_seq_moce_begin(rg_seq *seq, float lambda, uint32_t n_slot, rg_status *st);
void rg_seq_moce_end(rg_seq *seq);
rg_moce_receipt rg_seq_moce_receipt(const rg_seq *seq); /* zeros when it is off */

typedef enum rg_want { RG_WANT_NONE, RG_WANT_LAST, RG_WANT_ALL } rg_want;

/* Receives logits [n_vocab] of the token at `position`, valid during the call. */
typedef struct rg_logits_sink {
    rg_code (*row)(void *user, uint32_t position, const float *logits, rg_status *st);
    void *user;
} rg_logits_sink;

/* Appends n tokens, in windows of at most `chunk` rows (0 = the core's). The wanted logits go to
 * the sink in ascending position. `cancel` (may be NULL) is looked at between layers. An id outside
 * the vocabulary or a full context is INVALID and changes nothing; any other failure leaves the
 * sequence unusable until rg_seq_reset. Values that are not finite are FORMAT and the layer is
 * named. */
RG_MUST_CHECK rg_code rg_core_eval(rg_core *core, rg_seq *seq, const int32_t *ids, uint32_t n,
                                   uint32_t chunk, rg_want want, const rg_logits_sink *sink,
                                   const atomic_bool *cancel, rg_status *st);

#endif
