/* Private face of the engine: weights in memory, scratch, sequence state, and the layer functions.
 *
 * Letters: T rows of the window, H residual streams (n_hc), E n_embd, D head size.
 */
#ifndef RG_ENGINE_CORE_H
#define RG_ENGINE_CORE_H

#include "engine/timing.h"

/* ---- weights -------------------------------------------------------------------------------- */

typedef struct rg_hc_weights {
    const float *norm;       /* [H*E] */
    rg_mat down, up, inject; /* inject.data NULL for a final mixer */
    uint32_t forms;          /* bits 1 << rg_act_form: what the next products take the rows as */
} rg_hc_weights;

typedef struct rg_gdn_weights {
    rg_mat qkv, gate, alpha, beta, out;
    const float *conv; /* [channels][n_tap] */
    const float *dt, *a, *norm;
} rg_gdn_weights;

typedef struct rg_attn_weights {
    rg_mat q, k, v, out, idx_q, idx_k;
    const float *q_norm, *k_norm, *idx_q_norm, *idx_k_norm;
    uint32_t ratio;
} rg_attn_weights;

/* All experts of one layer in one block: expert e starts at mat.data + e * stride. */
typedef struct rg_expert_mat {
    rg_mat mat; /* of expert 0 */
    size_t stride;
} rg_expert_mat;

typedef struct rg_moe_weights {
    rg_mat router, shared_gate_inp, shared_gate, shared_up, shared_down;
    rg_expert_mat gate, up, down; /* of a fused gate_up: two views of it */
    size_t up_offset;             /* of the up rows in a fused part; 0: parts of their own */
    uint32_t n_ff;
} rg_moe_weights;

typedef struct rg_ple_weights {
    rg_mat key, value;
    const float *norm_key, *norm_query, *norm_conv; /* [H*E] */
    const float *conv;                              /* [H*E][n_tap] */
} rg_ple_weights;

typedef struct rg_layer_weights {
    bool is_attn, has_ple;
    rg_hc_weights hc_attn, hc_ffn;
    rg_gdn_weights gdn;
    rg_attn_weights attn;
    rg_moe_weights moe;
    rg_ple_weights ple;
} rg_layer_weights;

typedef struct rg_mtp_weights {
    rg_layer_weights layer;
    const float *enorm, *hnorm; /* [E], [H*E] */
    rg_mat eh_proj;             /* [2E] -> [E]; or the halves: */
    rg_mat fc_embd, fc_hidden;
    rg_hc_weights head;
    rg_mat embd, output;
} rg_mtp_weights;

typedef struct rg_weights {
    rg_mat token_embd, output;
    rg_hc_weights output_hc;
    rg_layer_weights *layers; /* [n_layer] */
    rg_mtp_weights mtp;
    void *memory; /* everything above points into it */
    size_t memory_bytes;
} rg_weights;

/* Reads every tensor the model names into one block of memory. */
rg_code rg_weights_load(rg_core *core, rg_status *st);
/* Bytes that loading takes: everything but the experts, and the experts. */
rg_code rg_weights_count(uint64_t *trunk, uint64_t *experts, const rg_model *m, rg_status *st);
void rg_weights_unload(rg_weights *w);

/* ---- scratch -------------------------------------------------------------------------------- */

/* Quantised copies of up to `rows` activation rows, one form each. */
typedef struct rg_act_buffer {
    int8_t *codes[RG_ACT_FORMS];
    float *scales[RG_ACT_FORMS];
    int16_t *sums[RG_ACT_FORMS];
} rg_act_buffer;

/* Rows that feed products; quantised on first use of a form. */
typedef struct rg_input {
    const float *x; /* [T][n_in] */
    uint32_t T, n_in;
    rg_act_buffer *buffer;
    bool ready[RG_ACT_FORMS];
} rg_input;

/* An expert whose bytes are at hand. */
typedef struct rg_expert_bytes {
    uint32_t expert;
    const uint8_t *gate, *up, *down;
} rg_expert_bytes;

typedef struct rg_scratch {
    /* Live through the window. */
    float *residual; /* [T][H*E] */
    float *rope;     /* [T][n_rot] cos then sin */
    float *ple_in;   /* [T][ple heads * row] */
    /* Live through one half layer. */
    float *normed;                             /* [T][H*E] */
    float *mix;                                /* [T][H*E] gates; PLE keys */
    float *low;                                /* [T][rank] */
    float *u;                                  /* [T][E] mixed input */
    float *inject;                             /* [T][H] */
    float *y;                                  /* [T][E] output of the half layer */
    rg_act_buffer act, act_hidden, act_shared; /* [T][widest], [T*n_used][n_ff], [T][n_ff_shared] */
    /* Gated delta net. */
    float *qkv, *conv;           /* [T][channels] */
    float *z, *gdn_o;            /* [T][Hv*D] */
    float *alpha, *beta, *decay; /* [T][Hv] */
    /* Attention. */
    float *qg;                       /* [T][n_head*2*D] */
    float *q, *attn_o;               /* [T][n_head*D] */
    float *k, *v;                    /* [T][n_head_kv*D] */
    float *idx_q, *idx_k;            /* [T][idx_n_head*idx_D], [T][idx_D] */
    uint32_t *run_first, *run_count; /* [T][run_cap] */
    uint32_t *n_run;                 /* [T] */
    uint32_t run_cap;
    /* Experts. A pair is (row, k): slot = row * n_used + k. */
    float *router;                    /* [T][n_expert] */
    uint32_t *expert_ids;             /* [T][n_used] best first */
    float *expert_w;                  /* [T][n_used] */
    uint32_t *pair_row, *pair_slot;   /* [T*n_used] sorted by expert, then row */
    uint32_t *expert_begin;           /* [n_expert + 1] */
    uint32_t *active;                 /* [n_expert] experts with rows, ascending */
    rg_expert_bytes *batch;           /* [n_expert] experts computed together */
    float *ahead;                     /* [T][n_expert] the next layer's router */
    uint32_t *items;                  /* [n_expert] wanted or guessed items of the stream */
    uint32_t *guess_count;            /* [n_expert] */
    float *gate, *up;                 /* [T*n_used][n_ff] */
    float *expert_out;                /* [T*n_used][E] */
    float *shared_hidden, *shared_up; /* [T][n_ff_shared] */
    float *shared_out;                /* [T][E] */
    float *shared_sigma;              /* [T] */
    /* PLE. */
    float *ple_value;  /* [T][E] */
    float *ple_gated;  /* [T][H*E] */
    float *ple_normed; /* [T][H*E] */
    /* Head. */
    float *head_rows; /* [RG_HEAD_ROWS][H*E] */
    float *logits;    /* [RG_HEAD_ROWS][n_vocab] */
    /* Draft block. */
    float *mtp_in;       /* [T*H][2E] */
    float *mtp_residual; /* [T][H*E] */
    int32_t *mtp_ids;    /* [T] */
} rg_scratch;

/* Rows of the head computed at once when logits of every position are wanted. */
#define RG_HEAD_ROWS 32u

/* Scratch of windows wider than this is given back to the system behind a prefill. */
#define RG_SCRATCH_KEPT_ROWS 16u

#define RG_DECODE_ROWS 8u /* windows of up to this many rows are decode windows */

typedef struct rg_thread_scratch {
    void *mul;   /* rg_mul_scratch_bytes */
    float *attn; /* RG_ATTENTION_TMP */
    float *row;  /* [max(head sizes) * heads] small temporaries */
    float
        *state; /* [D*D + D] a delta net head's state for rows that may be taken back, an output */
    float *low; /* [RG_DECODE_ROWS][rank] a thread's own copy, and as codes */
    rg_act_buffer low_act;
} rg_thread_scratch;

typedef struct rg_scratch_shape {
    const rg_model *model;
    uint32_t chunk;
    int n_threads;
} rg_scratch_shape;

/* Lays the scratch for windows of `chunk` rows out from `base` (NULL: only counts). Returns its
 * bytes. threads: [n_threads]. */
size_t rg_scratch_layout(const rg_scratch_shape *shape, rg_scratch *s, rg_thread_scratch *threads,
                         uint8_t *base);

#define RG_GUESSES_MAX 16u /* ranks guessed in a decode window */

/* 8-bit copies of the layers' routers, to guess the next layer's experts with. */
typedef struct rg_ahead {
    rg_mat *routers; /* [n_layer], the first is unused; NULL: guesses take the routers themselves */
    void *memory;
    size_t memory_bytes;
} rg_ahead;

/* ---- core and sequence ---------------------------------------------------------------------- */

typedef struct rg_gpu_core rg_gpu_core; /* engine/gpu_core.h */
typedef struct rg_gpu_seq rg_gpu_seq;

/* A write that the residual still lacks: the next read does it on its way (RG_FUSE_WRITE). */
typedef struct rg_due {
    float *residual; /* [T][H*E]; NULL: none */
    uint32_t T;
    bool combine; /* y is not there yet, but the experts' outputs that it is made of */
} rg_due;

struct rg_core {
    rg_gpu_core *gpu;      /* NULL: the CPU computes */
    const rg_gguf *gguf;   /* borrowed */
    const rg_model *model; /* borrowed */
    const rg_hparams *hp;  /* &model->hp */
    const rg_ops *ops;
    rg_core_options opt;
    uint32_t chunk;
    rg_pool *pool;
    rg_weights w;
    double *inv_freq; /* [n_rot / 2] */
    rg_scratch s;
    rg_two_stage *two_stage; /* NULL: the full product always */
    uint32_t n_few;          /* rg_core_want_few */
    rg_due due;
    uint32_t u_forms; /* bits 1 << rg_act_form: codes of s.u that s.act holds */
    rg_thread_scratch threads[RG_POOL_THREADS_MAX];
    void *scratch_memory;
    size_t scratch_bytes;
    bool scratch_due;  /* the last window was wide: rg_core_trim */
    rg_tap tap;        /* see == NULL: off */
    rg_mat_name *mats; /* [n_mat] matrices of the weights and their tensors */
    uint32_t n_mat, mat_cap;
    rg_importance *importance; /* NULL: nothing is collected */
    rg_timing *timing;         /* NULL: kernels are not timed */
    rg_core_times times;
    rg_ple_reader *ple;          /* NULL: no n-gram table */
    rg_layer_times *layer_times; /* [n_layer + n_mtp] */
    uint32_t *expert_uses;       /* [n_layer + n_mtp][n_expert] times chosen */
    uint64_t lap_ns;             /* when the layers' time was last charged to one of its parts */
    rg_stream *stream;           /* NULL: the experts are in the weights */
    uint32_t *routes; /* [n_layer + n_mtp][chunk * n_used] items of the window, (row, k) order */
    uint32_t *route_rows; /* [n_layer + n_mtp] rows recorded there */
    uint32_t *touched;    /* the same items in one list */
    rg_trace *trace;      /* NULL: nothing is recorded */
    rg_governor_memory drafts;
    /* First layer's experts by the usage profile, best first. */
    uint32_t first_guess[RG_GUESSES_MAX];
    uint32_t n_first_guess;
    rg_ahead ahead;
};

/* State of one attention layer (trunk or draft). */
typedef struct rg_kv {
    void *k, *v;     /* [n_ctx][n_head_kv*D] of the cache type */
    void *idx_raw;   /* [n_ctx][idx_D]; NULL when dense */
    void *idx_block; /* [n_ctx / ratio][idx_D] finished block keys */
} rg_kv;

typedef struct rg_layer_state {
    rg_kv kv;        /* attention */
    float *S;        /* [Hv][D key][D value] */
    float *conv;     /* [n_tap - 1][channels] latest rows, oldest first */
    float *ple_conv; /* [(n_tap - 1) * ngram][H*E] */
    /* The last window's drafts, [draft_max] rows each (draft_journal.c); NULL without drafts. */
    float *draft_qkv, *draft_conv;   /* [channels] before and behind the convolution */
    float *draft_decay, *draft_beta; /* [Hv]; on a device alpha in the decay's place */
    float *draft_ple;                /* [H*E] */
} rg_layer_state;

/* Rows of a window behind the one whose next token was not known. */
#define RG_PENDING_MAX (RG_VERIFY_ROWS + 1)

struct rg_seq {
    rg_core *core;
    rg_seq_options opt;
    uint32_t length;
    bool failed;            /* a window broke off: the layers disagree */
    int32_t *ids;           /* [n_ctx] */
    rg_layer_state *layers; /* [n_layer + n_mtp] */
    float *idx_scores;      /* [n_threads][n_ctx] */
    uint32_t *idx_top;      /* [n_threads][budget] */
    uint32_t n_owed;        /* accepted drafts whose journal is not in S yet */
    uint32_t n_open;        /* rows of a window that waits for rg_core_accept ... */
    uint32_t open_row0;     /* ... and where they stand in it */
    /* Draft block: rows in its cache, the position of the first pending row, and the pending rows:
     * residuals of trunk rows that it has not been fed, the last ones of the sequence. Behind a
     * gap in the rows mtp_pos is more than mtp_length. */
    uint32_t mtp_length, mtp_pos, n_pending;
    float *mtp_pending; /* [1, or RG_PENDING_MAX with drafts][H*E] */
    /* Items that the draft block used since the last window: of n_draft_true rows of the text, then
     * of chained drafts. */
    uint32_t n_draft_true, n_draft_chain;
    uint32_t *draft_items; /* [2 * RG_VERIFY_ROWS][n_used] */
    rg_moce *moce;         /* NULL: plain routing */
    rg_gpu_seq *gpu;       /* state on the device; NULL: in `layers` */
    void *memory;
    size_t memory_bytes;
};

#define RG_SEGMENTS_MAX 64u /* sequences that may share a window */

/* Rows [row0, row0 + n) of a window belong to one sequence and start at position pos0. Rows of
 * several sequences may share a window: they are independent. */
typedef struct rg_segment {
    rg_seq *seq;
    uint32_t row0, n, pos0;
    uint32_t n_draft; /* of the n, the last ones: rows that may be taken back */
    bool open;        /* the draft block follows later, when the accepted rows are known */
    uint32_t n_best;  /* so many of the best logits of a row are enough; 0: all are wanted */
} rg_segment;

typedef struct rg_window {
    rg_core *core;
    const rg_segment *segs;
    uint32_t n_seg;
    uint32_t T;
    const int32_t *ids; /* [T] */
} rg_window;

/* What a window knows of the call it belongs to. Zeroed = nothing. */
typedef struct rg_eval_call {
    const atomic_bool *cancel;
    uint32_t done, total; /* tokens before this window, and of the whole call */
} rg_eval_call;

/* Runs the rows through the trunk and their draft blocks; the residual of the last layer stays in
 * the scratch. The caller moves the lengths and ids of the sequences on. */
rg_code rg_window_run(const rg_window *win, const rg_eval_call *call, rg_status *st);

/* Lays the state out from `base` (NULL: only counts; then seq->layers may be NULL). seq->opt is
 * set. Returns its bytes. */
size_t rg_seq_layout(rg_seq *seq, const rg_model *m, size_t n_threads, uint8_t *base);

static inline bool rg_seq_f16(const rg_seq *seq) {
    return seq->opt.kv == RG_KV_F16;
}

/* Gives the scratch back to the system behind a wide window; logits in it are gone then. */
void rg_core_trim(rg_core *core);

/* rg_mem_map, refused with the sum when the machine has less memory free. */
rg_code rg_take_memory(void **out, size_t bytes, rg_status *st);

/* Rotation tables of the window's rows into s.rope. */
void rg_window_rope(const rg_window *win);

/* Runs fn over [0, n) on the compute threads, as rg_pool_run does; `kernel` is what the timing
 * calls it where no slots were announced. */
static inline void rg_core_run(rg_core *core, rg_kernel kernel, size_t n, size_t grain,
                               rg_pool_fn *fn, void *arg) {
    if (core->timing) {
        rg_timing_run(core->timing, core->pool, kernel, n, grain, fn, arg);
    } else {
        rg_pool_run(core->pool, n, grain, fn, arg);
    }
}

/* ---- products ------------------------------------------------------------------------------- */

void rg_input_set(rg_input *in, const float *x, uint32_t T, uint32_t n_in, rg_act_buffer *buffer);
/* The rows in the form a weight type takes, quantising them if needed (parallel). */
rg_act rg_input_as(rg_core *core, rg_input *in, rg_type type);

typedef struct rg_product {
    const rg_mat *w;
    float *y; /* [T][w->n_out] */
} rg_product;

/* The mixed input s.u behind a read: what that read left as codes is not quantised again. */
void rg_input_mixed(rg_core *core, rg_input *in, uint32_t T);
/* One row of n values in the forms of a mask, row `row` of the buffer. Values [from, from + count)
 * of the row; from and count are multiples of the forms' spans. */
void rg_quantize_part(const rg_core *core, uint32_t forms, const float *x, const rg_act_buffer *b,
                      size_t row, size_t n, size_t from, uint32_t count);
/* Rows in one form: the floats, or what the buffer holds of them. */
rg_act rg_act_in(const rg_act_buffer *b, rg_act_form form, const float *f32, uint32_t n_in);
/* Values under one scale of a form; 1 of floats. */
uint32_t rg_act_span(rg_act_form form);
/* The forms of a mask whose spans divide n. */
uint32_t rg_forms_that_fit(uint32_t forms, uint32_t n);

#define RG_PRODUCTS_MAX 8u
/* y = w x for several matrices over the same rows, in one parallel phase. */
void rg_core_mul(rg_core *core, rg_input *in, const rg_product *products, uint32_t n);

/* ---- layers --------------------------------------------------------------------------------- */

/* Residual -> mixed input u and inject weights (spec 4.1). `residual` [T][H*E]. FORMAT naming
 * `layer` and `where` when a value is not finite. */
rg_code rg_hc_read(rg_core *core, const rg_hc_weights *w, const float *residual, uint32_t T,
                   uint32_t layer, const char *where, rg_status *st);
/* residual_s += inject_s * y, now or with the next read. */
void rg_hc_write(rg_core *core, float *residual, uint32_t T);
/* Does the write that is due: before anyone but rg_hc_read looks at the residual. */
void rg_hc_settle(rg_core *core);
/* Which forms follow each read; once, behind the loading. */
void rg_hc_link(rg_core *core);

/* Whether a step runs in its fused form. Taps and statistics want the parts. */
static inline bool rg_fused(const rg_core *core, uint32_t step) {
    return !(core->opt.unfused & step) && !core->tap.see && !core->importance;
}

/* Fused forms (hc_fused.c): the write that is due with the norm of `residual`, whose codes are left
 * in s.act for `in`; everything behind the down product. */
void rg_hc_enter(rg_core *core, const rg_hc_weights *w, const float *residual, uint32_t T,
                 rg_input *in, atomic_bool *broken);
void rg_hc_mix_fused(rg_core *core, const rg_hc_weights *w, uint32_t T);
/* Inject weights of rows [begin, end) from what their product gave, in place (layer_hc.c). */
void rg_hc_inject(rg_core *core, uint32_t begin, uint32_t end);

/* Nanoseconds since the last lap of this window; starts the next. */
static inline uint64_t rg_core_lap(rg_core *core) {
    const uint64_t now = rg_now_ns(), lap = now - core->lap_ns;
    core->lap_ns = now;
    return lap;
}

void rg_layer_gdn(const rg_window *win, uint32_t layer);
/* `kv_layer` indexes seq->layers; positions start at seg.pos0. */
rg_code rg_layer_attn(const rg_window *win, const rg_attn_weights *w, uint32_t kv_layer,
                      rg_status *st);
/* Pairs sorted by expert, rows ascending within one, from s.expert_ids; how many are in use. */
uint32_t rg_moe_group(rg_core *core, uint32_t T);
rg_code rg_layer_moe(const rg_window *win, const rg_moe_weights *w, uint32_t layer, rg_status *st);
/* y = the experts' outputs of row t in the order of the router, then the shared expert. */
void rg_moe_combine_row(const rg_core *core, size_t t, float *y);

/* What the n-gram table of a model asks of its reader; false without a table. */
bool rg_ple_describe(rg_ple_reader_options *out, const rg_model *m, uint32_t chunk);
rg_code rg_ple_open(rg_core *core, rg_status *st);
/* Asks for the rows of all tokens of the window; rg_layer_ple waits for them. */
rg_code rg_ple_request(const rg_window *win, rg_status *st);
/* Waits for the rows of the window and unpacks them into s.ple_in. */
rg_code rg_ple_join(const rg_window *win, rg_status *st);
rg_code rg_layer_ple(const rg_window *win, uint32_t layer, rg_status *st);
/* Gives up rows that were asked for and not waited for: to be called when a window breaks off. */
void rg_ple_abandon(rg_core *core);

/* Final mixer and output of `n` <= RG_HEAD_ROWS residual rows -> s.logits [n][n_vocab]. */
rg_code rg_core_head(rg_core *core, const rg_hc_weights *hc, const rg_mat *output,
                     const float *residual, uint32_t n, rg_status *st);

/* ---- draft block ---------------------------------------------------------------------------- */

/* Rows to feed to the draft block of one sequence: residuals of the trunk, or its own. */
typedef struct rg_mtp_feed {
    rg_seq *seq;
    uint32_t n;
    uint32_t kv0, pos0;  /* where they go in the cache; position of the first */
    uint32_t n_old;      /* the first of them are pending rows */
    const float *rest;   /* [n - n_old][H*E] the others */
    const int32_t *next; /* [n] the token behind each row */
} rg_mtp_feed;

/* Runs the rows of all feeds; their residuals stay in s.mtp_residual, in order. */
rg_code rg_mtp_run(rg_core *core, const rg_mtp_feed *feeds, uint32_t n_feed, rg_status *st);
/* Feeds the draft block the rows (R_p, token p+1) that became known with the window (spec 5.2): the
 * pending row, then all rows but the last, which becomes pending. */
rg_code rg_mtp_follow(const rg_window *win, rg_status *st);
/* n rows of the trunk's last window, from row0 on, become pending rows from `at` on. */
rg_code rg_mtp_keep(rg_seq *seq, uint32_t at, uint32_t row0, uint32_t n, rg_status *st);
/* Feeds all pending rows but the last, whose next token is not known. */
rg_code rg_mtp_settle(rg_core *core, rg_seq *seq, rg_status *st);

/* ---- rows that may be taken back (draft_journal.c) ------------------------------------------ */

/* Floats of the inputs of a delta net layer's convolution. */
static inline size_t rg_gdn_channels(const rg_hparams *hp) {
    return (2 * (size_t)hp->n_k_head + hp->n_v_head) * hp->ssm_head_dim;
}
/* A window begins whose routes rg_core_accept will sort: passes of the draft block that made the
 * drafts are remembered elsewhere. */
void rg_journal_begin(rg_core *core);
/* Brings head h of a layer's state up to the accepted drafts. */
void rg_journal_replay_head(const rg_seq *seq, const rg_layer_state *l, size_t h, int thread);
/* Keeps what the drafts of a segment would do to a delta net layer, and to the n-gram layer. */
void rg_journal_keep_gdn(const rg_core *core, const rg_segment *seg, rg_layer_state *l);
void rg_journal_keep_ple(const rg_core *core, const rg_segment *seg, rg_layer_state *l);
/* Appends n rows of `width` floats to a history of `keep` rows, oldest first. */
void rg_history_push(float *history, uint32_t keep, size_t width, const float *rows, uint32_t n);

/* ---- expert streaming ----------------------------------------------------------------------- */

/* The groups of a model, [n_layer + n_mtp], in its own file or in a pack of it (NULL: none), and
 * what they ask of an arena. */
void rg_experts_groups(const rg_model *m, const rg_pack *pack, rg_stream_group *groups);
rg_code rg_experts_layout(rg_stream_layout *out, const rg_model *m, const rg_pack *pack,
                          rg_status *st);
rg_stream_mode rg_experts_mode(uint32_t T);

/* Opens the stream over the model's experts with the arena of the options. */
rg_code rg_experts_open(rg_core *core, rg_status *st);
void rg_experts_close(rg_core *core);
/* Starts recording, and starts warm, as the options ask. */
rg_code rg_experts_start(rg_core *core, rg_status *st);
/* Where the parts of a pinned, arrived expert lie. */
rg_expert_bytes rg_experts_at(const rg_core *core, const rg_moe_weights *w, uint32_t layer,
                              uint32_t expert);
/* Counts what the layer's turn waits for: misses of the wave are read from now on, other pending
 * ones were asked for by a guess. */
void rg_experts_count_pending(rg_core *core, const rg_moe_weights *w, uint32_t layer,
                              const rg_turn *turn);
/* Remembers the window's routes of a layer, for the recency at its end. */
void rg_experts_record(rg_core *core, uint32_t layer, uint32_t T);
/* Ends the window for the cache: routes in (layer, row, k) order; none when it failed. Fails when
 * the window cannot be recorded. */
rg_code rg_experts_touch(rg_core *core, bool failed, rg_status *st);
/* Routers to guess with: see ahead.c. Bytes of the copies of all layers; open makes the copies
 * where experts stream. */
uint64_t rg_ahead_bytes(const rg_model *m);
RG_MUST_CHECK rg_code rg_ahead_open(rg_core *core, rg_status *st);
void rg_ahead_close(rg_core *core);
/* Reads ahead for the next layer from s.ahead, the next router's logits of the window's rows. */
void rg_experts_ahead(rg_core *core, uint32_t next_layer, uint32_t T);
/* The router to guess with behind this layer; NULL when nothing is to be read ahead. */
const rg_mat *rg_experts_next_router(const rg_core *core, uint32_t layer);
/* The same for a window of T rows: also NULL while guesses could not bring anything. */
const rg_mat *rg_experts_guess_router(const rg_core *core, uint32_t layer, uint32_t T);

/* ---- taps ----------------------------------------------------------------------------------- */

static inline bool rg_tapped(const rg_core *core) {
    return core->tap.see != NULL;
}
/* Shows rows of each segment; per_row rows of the data belong to one token row. */
rg_code rg_window_tap(const rg_window *win, const char *name, uint32_t layer, uint32_t cols,
                      const float *data, rg_status *st);

#endif
