/* The trunk on a GPU: device memory of a core and of its sequences, and the window that runs there.
 *
 * The seam: the core holds an rg_gpu_core (NULL: the CPU computes). rg_window_run, the head, the
 * creation of sequences and the arena of the stream ask for it; everything else of the engine is
 * the same for both.
 *
 * Device addresses wear the types of the host's pointers, so that the scratch plan and the plan of
 * a sequence's state lay out device memory too. They are never read through on the host.
 */
#ifndef RG_ENGINE_GPU_CORE_H
#define RG_ENGINE_GPU_CORE_H

#include "engine/core.h"
#include "kernels/kernels.h"

/* What the host writes for the device, at fixed places of one buffer. */
typedef struct rg_gpu_shared {
    int32_t *ids;         /* [chunk] */
    float *rope;          /* [chunk][n_rot] */
    float *rope_blocks;   /* [chunk + segments][n_rot] */
    rg_gpu_stand *stands; /* [segments], then [segments] of rg_gpu_settle */
    float *ple_in;        /* [chunk][ple heads * row] */
    uint64_t *experts[3]; /* [n_expert] gate, up, down of the turn */
    uint32_t *slots[2];   /* lists of two phases: as rg_gpu_plan makes them */
    uint32_t *grids[2];   /* [2][3] of each phase, hidden and output rows */
    uint32_t *moe_ids;    /* [chunk][n_used] experts that the host chose */
    uint64_t *sources;    /* [chunk] residuals that the draft block's rows are made of */
} rg_gpu_shared;

/* What the device writes for the host. */
typedef struct rg_gpu_seen {
    uint32_t *flag; /* UINT32_MAX: all values were finite */
    uint32_t *ids;  /* [chunk][n_used] */
    float *router;  /* [chunk][n_expert] */
    float *ahead;   /* [chunk][n_expert] */
    float *logits;  /* [RG_HEAD_ROWS][n_vocab] */
    uint32_t *best; /* [RG_GPU_ROWS_MAX][1 + 2 few] of rg_gpu_best, when few were wanted */
} rg_gpu_seen;

/* Codes of activations: rows as rg_gpu_quantize makes them. What may be read at one time has a
 * place of its own. */
typedef struct rg_gpu_codes {
    uint8_t *wide;   /* normed, gdn_o, attn_o, ple_in: one after the other */
    uint8_t *low;    /* of the hyper-connections */
    uint8_t *u;      /* input of mixer, router and experts */
    uint8_t *shared; /* hidden of the shared expert */
    uint8_t *hidden; /* of the experts, slot by slot */
} rg_gpu_codes;

/* A piece of the host's weights and its copy. */
typedef struct rg_gpu_chunk {
    const uint8_t *begin;
    size_t bytes;
    rg_gpu_buffer buffer;
} rg_gpu_chunk;

/* A window recorded as two lists: before and from the first n-gram rows on. */
typedef struct rg_gpu_whole {
    rg_gpu_list *lists[2];
    uint64_t key; /* what they hold; 0: nothing to be used again */
    uint32_t few; /* logits that come back of each row; 0: all */
} rg_gpu_whole;

#define RG_GPU_PROGRAMS_MAX 256u
#define RG_GPU_STEPS        6u /* lists of turns that are recorded anew, but for the last one */

typedef struct rg_gpu_noted rg_gpu_noted;
typedef struct rg_gpu_landing rg_gpu_landing; /* gpu_arena.c */
typedef struct rg_gpu_turns rg_gpu_turns;     /* gpu_turns.c */

/* Copies from staging to slots that are done, and the device's time for them: they run beside its
 * kernels. */
typedef struct rg_gpu_copies {
    uint64_t count, bytes;
    uint64_t ns; /* 0 where the device cannot tell */
} rg_gpu_copies;

struct rg_gpu_core {
    rg_core *core;
    rg_gpu *gpu;
    rg_gpu_chunk *chunks; /* ascending */
    uint32_t n_chunk;
    rg_gpu_buffer tables, scratch, shared, readback, arena;
    uint8_t *arena_host;     /* aligned start of the arena; NULL: the host does not see it */
    rg_gpu_arena arena_is;   /* where it lies: not AUTO once there is one */
    rg_gpu_landing *landing; /* of a staged arena */
    rg_scratch s;            /* device addresses; s.ple_in, rope and ids lie in `shared` */
    rg_gpu_codes codes;      /* device */
    uint32_t *flag;          /* device */
    uint32_t *list, *grids;  /* device: plans of the device itself */
    float *planes;           /* device: parts of products of few tiles */
    size_t planes_bytes;
    uint32_t *best_parts; /* device: of rg_gpu_best */
    rg_gpu_shared to;     /* host addresses */
    rg_gpu_shared at;     /* the same places, device addresses */
    rg_gpu_seen from;     /* host addresses */
    rg_gpu_seen out;      /* device addresses */
    rg_gpu_list *head, *zero, *settle, *rows;
    rg_gpu_list *steps[RG_GPU_STEPS], *last; /* of turns that are recorded anew */
    /* Of windows whose experts are all in memory: of 1, 2, ... rows, then of more. */
    rg_gpu_whole whole[RG_GPU_ROWS_MAX + 1];
    rg_gpu_turns *turns[RG_GPU_ROWS_MAX]; /* windows in turns, by rows; NULL: none yet */
    uint32_t n_head_rows; /* rows of the last window whose logits are there already */
    uint32_t head_few;    /* or of each of them so many of the best; 0: all */
    uint32_t head_whole;  /* bits: rows that are there whole beside the best */
    /* What the rows of the core's s.logits hold, all others being -inf; n = 0: all logits. */
    rg_few few[RG_HEAD_ROWS];
    uint64_t rows_whole, rows_best; /* of logits that came from the device, so far */
    uint32_t dispatches, barriers;  /* of the last window */
    uint32_t n_recorded;            /* windows recorded so far */
    uint32_t timed; /* lists of a turn whose times are to be added: bit i steps[i], then `last` */
    rg_core_gpu_time times[RG_GPU_PROGRAMS_MAX];
    uint32_t n_time;
    rg_gpu_tiles tiles;  /* shapes of products that were measured; empty: the usual ones */
    char *tiles_path;    /* NULL: nowhere */
    uint32_t n_shaped;   /* products recorded with a measured shape */
    rg_gpu_noted *noted; /* NULL: no sweep */
    uint64_t windows_ns, n_window; /* the host's time for windows and heads, since the sums began */
    rg_gpu_copies copies;          /* that were done when the sums began */
};

/* Products that a sweep is to measure: one of each key, and the weights of a few of them, so that
 * caches do not hold what decoding reads from memory. */
#define RG_GPU_NOTED_WEIGHTS 8u
typedef struct rg_gpu_noted_product {
    rg_gpu_tile_key key;
    rg_gpu_product product;
    rg_gpu_product_way way;
    rg_gpu_product up, down; /* of experts in tiles, whose gate the others are */
    rg_gpu_product_way up_way, down_way;
    rg_gpu_ptr w[RG_GPU_NOTED_WEIGHTS], w2[RG_GPU_NOTED_WEIGHTS]; /* w2: of the up rows too */
    rg_gpu_ptr w_down[RG_GPU_NOTED_WEIGHTS];
    uint32_t n_weight;
} rg_gpu_noted_product;
struct rg_gpu_noted {
    rg_gpu_noted_product all[RG_GPU_TILES_MAX];
    uint32_t n;
};
void rg_gpu_note(rg_gpu_core *g, rg_gpu_tile_op op, const rg_gpu_product *p,
                 const rg_gpu_product_way *way);
/* The three products of experts in tiles. */
typedef struct rg_gpu_experts {
    rg_gpu_product gate, up, down;
    rg_gpu_product_way gate_way, up_way, down_way;
    bool fused;                /* gate and up in one; not in tiles */
    uint32_t n_slot, n_matrix; /* that are listed; 0 matrices: not known */
} rg_gpu_experts;
void rg_gpu_note_experts(rg_gpu_core *g, const rg_gpu_experts *e);
/* All products of the core's windows of 1, 2, 4, 8 rows and of a chunk into an empty notebook. */
rg_code rg_gpu_note_products(rg_core *core, rg_gpu_noted *noted, rg_status *st);
/* Reads the table of shapes, if there is one of this device. */
rg_code rg_gpu_tiles_open(rg_gpu_core *g, rg_status *st);

/* State of a sequence on the device. */
typedef struct rg_gpu_seq {
    rg_gpu_buffer memory;
    rg_layer_state *layers; /* [n_layer + n_mtp], device addresses */
    float *pending;         /* [RG_PENDING_MAX or 1][H*E] rows that the draft block lacks */
    float *scores;          /* [chunk][cap] */
    uint32_t *bits;         /* [chunk][cap / 32 rounded up] */
    uint32_t cap;           /* blocks of the smallest ratio */
} rg_gpu_seq;

/* Uploads the weights and takes device memory. The host's copy of the weights is given back. */
rg_code rg_gpu_core_create(rg_core *core, rg_status *st);
void rg_gpu_core_destroy(rg_gpu_core *g);
/* Takes memory for the arena of o->budget_bytes, and says how it can be read into; *landing: what
 * o->landing points to, if it does. */
rg_code rg_gpu_core_arena(rg_gpu_core *g, rg_stream_options *o, rg_stream_landing *landing,
                          rg_status *st);
/* Bytes of the host that a staged arena takes for experts of up to slot_bytes_max on their way. */
uint64_t rg_gpu_staging_bytes(uint64_t slot_bytes_max, uint32_t depth);
/* The stream is gone. */
void rg_gpu_arena_close(rg_gpu_core *g);
/* Where an expert's bytes lie on the device, of rg_experts_at. */
rg_gpu_ptr rg_gpu_expert_at(const rg_gpu_core *g, const void *bytes);
rg_gpu_copies rg_gpu_landing_copies(const rg_gpu_core *g);
/* Where a host address of the weights or of the arena lies on the device. */
rg_gpu_ptr rg_gpu_core_at(const rg_gpu_core *g, const void *host);

rg_code rg_gpu_seq_create(rg_seq *seq, rg_status *st);
void rg_gpu_seq_destroy(rg_seq *seq);

/* What the accepted drafts of the last window owe to the states of these sequences goes there
 * (gpu_draft.c): before windows whose kernels do not do it on their way, and before anyone else
 * looks. */
rg_code rg_gpu_settle(rg_core *core, rg_seq *const *seqs, uint32_t n, rg_status *st);
/* Whether a window of T rows takes in what its sequences are owed by itself. */
bool rg_gpu_window_settles(const rg_core *core, uint32_t T);

/* Builds kernels and records windows of the sequence as its tokens will want them: of one row and
 * of whole chunks, or of every number of rows. */
rg_code rg_gpu_prewarm_run(rg_seq *seq, bool all, rg_status *st);
/* Records windows of T rows behind pos0 whose n_best best logits come back (0: all), which builds
 * their kernels. Longer ones than chunk or context are passed over. */
rg_code rg_gpu_record_rows(rg_seq *seq, uint32_t T, uint32_t pos0, uint32_t n_best, rg_status *st);
/* No recorded window is used again. */
void rg_gpu_forget(rg_gpu_core *g);

/* Adds the times of a list's last run, kernel by kernel, to the core's sums; none without stamps.
 */
void rg_gpu_add_times(rg_gpu_core *g, rg_gpu_list *list);
/* Starts (or ends) timing every kernel; fills the rows of rg_core_kernel_times: kernels of the
 * device, and what the windows took beyond them. */
void rg_gpu_time_kernels(rg_gpu_core *g, bool on);
size_t rg_gpu_kernel_times(const rg_gpu_core *g, rg_kernel_time *out, size_t cap);

rg_code rg_gpu_window_run(const rg_window *win, const rg_eval_call *call, rg_status *st);
/* The draft block over the rows of a window whose ids are the next tokens; residuals stay in
 * s.mtp_residual. Positions of the rotation are told by core->s.rope, those of the cache by the
 * segments; `sources` in the shared buffer says what the rows are made of. */
rg_code rg_gpu_draft_layer(const rg_window *win, rg_status *st);
/* rg_mtp_run on a device: `rest` of the feeds are device addresses. */
rg_code rg_gpu_mtp_run(rg_core *core, const rg_mtp_feed *feeds, uint32_t n_feed, rg_status *st);
/* Logits of a row of the draft block into the core's s.logits; the few best of them, or all (0). */
rg_code rg_gpu_mtp_head(rg_core *core, const float *residual, uint32_t few, rg_status *st);
/* n rows of residuals on the device become pending, from row `at` on. */
rg_code rg_gpu_keep_pending(rg_seq *seq, uint32_t at, const float *rows, uint32_t n, rg_status *st);
/* The first n pending rows go; the others move up. */
rg_code rg_gpu_drop_pending(rg_seq *seq, uint32_t n, rg_status *st);

/* Logits of n residual rows of the last window, from `row` on, into the core's s.logits, from row
 * `to` on: the `few` best of them (of up to RG_GPU_ROWS_MAX rows), or all (0). */
rg_code rg_gpu_head(rg_core *core, uint32_t row, uint32_t n, uint32_t to, uint32_t few,
                    rg_status *st);
/* The core's s.logits are gone. */
void rg_gpu_forget_rows(rg_gpu_core *g);

/* ---- recording ------------------------------------------------------------------------------- */

typedef struct rg_gpu_rec {
    rg_gpu_core *g;
    rg_core *core;
    const rg_window *win;
    rg_gpu_list *list;
    float *residual;  /* device; of the trunk or of the draft block */
    rg_gpu_owed owed; /* what the residual has yet to get */
} rg_gpu_rec;

/* Weights of a layer; behind those of the trunk the draft block's. */
static inline const rg_layer_weights *rg_gpu_layer(const rg_core *core, uint32_t layer) {
    return layer < core->hp->n_layer ? &core->w.layers[layer] : &core->w.mtp.layer;
}
/* How many they are. */
static inline uint32_t rg_gpu_layers(const rg_core *core) {
    return core->hp->n_layer + (core->hp->n_mtp ? 1 : 0);
}

static inline rg_gpu_ptr rg_at(const void *device) {
    return (rg_gpu_ptr)(uintptr_t)device;
}

/* Behind a value that is not finite: which layer, and where in it. */
typedef enum rg_gpu_place_code {
    RG_GPU_BEFORE_MIXER,
    RG_GPU_BEFORE_EXPERTS,
    RG_GPU_IN_ROUTER,
    RG_GPU_IN_INDEX,
    RG_GPU_PLACES
} rg_gpu_place_code;
static inline uint32_t rg_gpu_code(uint32_t layer, rg_gpu_place_code place) {
    return layer * RG_GPU_PLACES + (uint32_t)place;
}

/* Embeddings of the ids that the host told, from w into y [T][H*E]. */
void rg_gpu_rec_embed(rg_gpu_rec *r, const rg_mat *w, float *y);
/* The residual gets what it is owed. */
void rg_gpu_rec_settle(rg_gpu_rec *r);
/* Rows of the draft block: the projection of normed embeddings and residuals into the residual. */
void rg_gpu_rec_draft(rg_gpu_rec *r);
void rg_gpu_rec_hc_read(rg_gpu_rec *r, const rg_hc_weights *w, const float *residual, uint32_t rows,
                        uint32_t code);
/* The delta net of one segment op by op, up to its outputs; the history moves on. */
typedef struct rg_gpu_delta {
    const rg_gdn_weights *w;
    const rg_layer_state *state; /* device addresses, as the others */
    rg_gpu_ptr stand;
    const float *qkv, *alpha, *beta; /* [rows][...] */
    float *conv, *o;                 /* [rows][channels], [rows][n_v_head * D] */
    uint32_t rows;
} rg_gpu_delta;
void rg_gpu_rec_delta(rg_gpu_rec *r, const rg_gpu_delta *d);
/* The half layer before the experts, its write included. */
void rg_gpu_rec_mixer(rg_gpu_rec *r, uint32_t layer);
void rg_gpu_rec_ple(rg_gpu_rec *r, uint32_t layer);
/* Router; with `choose` also the choice of experts on the device. */
void rg_gpu_rec_router(rg_gpu_rec *r, uint32_t layer, bool choose);
/* The shared expert (the device may do it while others go on). */
void rg_gpu_rec_shared(rg_gpu_rec *r, uint32_t layer, const rg_mat *next_router);
/* All of a layer's experts, in memory and chosen by the device: what depends on the same input goes
 * side by side. */
void rg_gpu_rec_moe(rg_gpu_rec *r, uint32_t layer);
/* The experts that the host listed for a phase: so many of them, with so many slots. */
void rg_gpu_rec_phase(rg_gpu_rec *r, uint32_t layer, uint32_t phase, uint32_t n_expert,
                      uint32_t n_slot);
void rg_gpu_rec_combine(rg_gpu_rec *r, uint32_t layer);
/* Logits to where the host sees them; the few best of each row alone, or all (0). */
void rg_gpu_rec_head(rg_gpu_rec *r, const rg_hc_weights *hc, const rg_mat *output, uint32_t row,
                     uint32_t rows, uint32_t few);

/* Workgroups that a slot's hidden rows (k = 0) or output rows (k = 1) take. */
uint32_t rg_gpu_expert_groups(const rg_gpu_rec *r, uint32_t layer, uint32_t k);
/* Columns / 16 of a tile of expert products for a window of T rows, where none was measured. */
uint32_t rg_gpu_usual_side(const rg_core *core, uint32_t T);
/* Shape of the tiles of a layer's three expert products, its side told; whether it was measured. */
bool rg_gpu_expert_tile(const rg_core *core, uint32_t layer, uint32_t T, rg_gpu_tile *out);

#endif
