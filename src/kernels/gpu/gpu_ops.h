/* gpu_ops: what the device computes. One function an op records it into a command list; the
 * argument structs are the push constants of the programs, field for field.
 *
 * An address is a rg_gpu_buffer's address plus an offset in bytes; arrays of f32 and u32 are
 * aligned to 16 bytes, rows of weights to their type. Shapes are the callers' to check; the limits
 * are below. Arithmetic: the canonical forms of the shaders' heads, the same bits for a row
 * whatever is computed beside it.
 */
#ifndef RG_GPU_OPS_H
#define RG_GPU_OPS_H

#include "kernels/gpu/gpu.h"
#include "quant/quant.h"

#define RG_GPU_HEAD_DIM_MAX 512u  /* of attention and index heads */
#define RG_GPU_EXPERT_MAX   4096u /* of a layer */
#define RG_GPU_ROWS_MAX     8u    /* a product of more rows takes tiles */
#define RG_GPU_TILE_ROWS    64u   /* weight rows of a tile */
#define RG_GPU_SIDE_MAX     4u    /* columns / 16 of a tile that matrix units do not make */

typedef uint64_t rg_gpu_ptr; /* a device address; 0 = none */

/* The grids of the i-quants, for every product. */
RG_MUST_CHECK rg_code rg_gpu_tables_create(rg_gpu *gpu, rg_gpu_buffer *out, rg_status *st);
/* Whether products and embeddings take weights of this type. */
bool rg_gpu_computes(rg_type type);
/* Whether matrix units of such a device make tiles of such weights. */
bool rg_gpu_has_matrix(const rg_gpu_info *info, rg_type type);

typedef enum rg_gpu_epilogue {
    RG_GPU_PLAIN,
    RG_GPU_SILU,     /* silu(y / div) */
    RG_GPU_SIGMOID2, /* 2 sigmoid(y / div) */
    RG_GPU_SIGMOID   /* sigmoid(y / div) */
} rg_gpu_epilogue;

/* y[row][r] = row r of w . x[row]. */
typedef struct rg_gpu_product {
    rg_gpu_ptr w, w2;             /* w2: the up rows of a fused gate and up; or n_out2 rows */
    rg_gpu_ptr x, y;              /* x: f32 [n][x_stride] for float weights, else rows of codes
                                     (rg_gpu_quantize); y: f32 [n][y_stride] */
    rg_gpu_ptr tables;            /* rg_gpu_tables_create */
    rg_gpu_ptr experts, experts2; /* [n_expert] addresses of w and w2; 0: w + expert * stride */
    rg_gpu_ptr ids;               /* [slots] expert of a slot; 0: one matrix for all rows */
    rg_gpu_ptr list;              /* which slots (or tiles of them, see rg_gpu_plan) */
    uint64_t stride;              /* bytes of an expert */
    uint32_t n_in, n_out, row_bytes;
    uint32_t x_stride, y_stride; /* floats; x_stride: of f32 rows */
    uint32_t x_div;              /* row of x = slot / x_div; 1 without experts */
    float div;
    uint32_t n; /* rows; slots with experts */
    /* A second matrix of as long rows over the same x, in the same dispatch: y2[row][r] = row r of
     * w2 . x[row]. Only of up to RG_GPU_ROWS_MAX rows of one matrix. n_out2 0: there is none. */
    rg_gpu_ptr y2;
    uint32_t n_out2, y_stride2;
} rg_gpu_product;

typedef struct rg_gpu_product_way {
    rg_type type;
    rg_gpu_epilogue epilogue, epilogue2; /* the other one of y2 */
    bool fused;                          /* y = silu(w x) * (w2 x); rows of slots only */
    uint32_t group_rows; /* rows a lane takes: 1, 2, 4; 0: a choice by shape. Changes no bit */
    uint32_t side;       /* columns of a tile / 16: 1, 2, 4; 0: a choice. Changes no bit */
    uint32_t depth;      /* groups between two barriers of a tile by matrix units; 0: a choice.
                            Changes no bit */
    bool no_matrix;      /* leaves matrix units alone. Changes no bit */
    bool coding;         /* x are f32 rows of x_stride, which every workgroup turns into codes for
                            itself: for short rows. Not in tiles. Changes no bit */
    bool loop;           /* leaves the loop over a row a loop. Changes no bit */
    bool interleaved;    /* the weights lie as gpu_interleave.h says; row_bytes is not used. Changes
                            no bit */
    rg_gpu_ptr planes;   /* room where few tiles of long rows are computed in parts, then added up:
                            8 floats for each stream and result. 0: never. Changes no bit */
    size_t planes_bytes;
} rg_gpu_product_way;

/* Bytes of `planes` that let a product of n rows be computed in parts; 0 where it never is. */
size_t rg_gpu_planes_bytes(rg_type type, uint32_t n_in, uint32_t n_out, uint32_t n);

/* Whether products with such weights take f32 rows of x. */
bool rg_gpu_takes_floats(rg_type type);
/* Bytes of a row of codes for n values. */
size_t rg_gpu_act_bytes(uint32_t n);

typedef struct rg_gpu_quantize_args {
    rg_gpu_ptr x, y; /* f32 [rows][x_stride]; rows of codes */
    uint32_t n;      /* a multiple of 32 */
    uint32_t x_stride;
} rg_gpu_quantize_args;
/* Activations as 8-bit codes with a scale for 32 values. */
void rg_gpu_quantize(rg_gpu_list *list, const rg_gpu_quantize_args *a, uint32_t rows);

/* Whether a product with such weights and rows of n_in values can make codes itself. */
bool rg_gpu_mul_codes(rg_type type, uint32_t n_in);
/* What the next dispatch of the list computes, for its time: a product of `matrices` of n rows in
 * all. The ops below that know it say so themselves; those whose grid is in a buffer do not. 0
 * matrices: not known. */
void rg_gpu_product_counts(rg_gpu_list *list, const rg_gpu_product *p,
                           const rg_gpu_product_way *way, uint32_t matrices, uint32_t n);
/* One matrix, p->n rows. */
void rg_gpu_mul(rg_gpu_list *list, const rg_gpu_product *p, const rg_gpu_product_way *way);
/* Experts, slot by slot: p->n slots, or as many as `grid` says ({rg_gpu_slot_groups, slots, 1} at
 * `offset`). */
void rg_gpu_mul_slots(rg_gpu_list *list, const rg_gpu_product *p, const rg_gpu_product_way *way,
                      const rg_gpu_buffer *grid, size_t offset);
/* Workgroups that n_out rows of n_in values take in rg_gpu_mul_slots. A grid may have more. */
uint32_t rg_gpu_slot_groups(uint32_t n_in, uint32_t n_out, const rg_gpu_product_way *way);
/* Experts, tile by tile as rg_gpu_plan listed them; `side` is the plan's. */
void rg_gpu_mul_tiles(rg_gpu_list *list, const rg_gpu_product *p, const rg_gpu_product_way *way,
                      const rg_gpu_buffer *grid, size_t offset);

typedef struct rg_gpu_embed_args {
    rg_gpu_ptr w, tables, ids, y; /* y [rows][n_hc][n] */
    uint32_t n, n_hc, row_bytes;
} rg_gpu_embed_args;
void rg_gpu_embed(rg_gpu_list *list, const rg_gpu_embed_args *a, rg_type type, uint32_t rows);

typedef enum rg_gpu_norm_mode { RG_GPU_RMS, RG_GPU_RMS_GATED, RG_GPU_L2 } rg_gpu_norm_mode;

typedef struct rg_gpu_norm_args {
    rg_gpu_ptr x, w, y, gate, flag;
    rg_gpu_ptr codes; /* the same as codes, a row for each stretch, n % 32 == 0; 0: none */
    uint32_t n, n_w;
    uint32_t per; /* n_w divides it: rows lie `per` together, x_stride and y_stride floats from
                     stretch to stretch */
    uint32_t x_stride, y_stride;
    float eps, scale;
    uint32_t n_scaled;
    uint32_t code; /* lowers *flag where a value is not finite */
} rg_gpu_norm_args;
void rg_gpu_norm(rg_gpu_list *list, const rg_gpu_norm_args *a, rg_gpu_norm_mode mode,
                 uint32_t rows);

typedef struct rg_gpu_hc_mix_args {
    rg_gpu_ptr gate, normed, u;
    rg_gpu_ptr codes; /* of u, n % 32 == 0; 0: none */
    uint32_t n, n_hc;
} rg_gpu_hc_mix_args;
void rg_gpu_hc_mix(rg_gpu_list *list, const rg_gpu_hc_mix_args *a, uint32_t rows);

/* residual += inject * y; `experts` != 0: y = combination of the experts, then the shared y. */
typedef struct rg_gpu_hc_write_args {
    rg_gpu_ptr residual, inject, y, experts, weights, sigma;
    uint32_t n, n_hc, n_used;
} rg_gpu_hc_write_args;
void rg_gpu_hc_write(rg_gpu_list *list, const rg_gpu_hc_write_args *a, uint32_t rows);

/* rg_gpu_hc_write of what is owed, then rg_gpu_norm of each stream, in one go: the same bits. */
typedef enum rg_gpu_owed { RG_GPU_OWED_NOTHING, RG_GPU_OWED_Y, RG_GPU_OWED_EXPERTS } rg_gpu_owed;
typedef struct rg_gpu_hc_norm_args {
    rg_gpu_ptr residual, inject, y, experts, weights, sigma;
    rg_gpu_ptr w, normed, flag, codes;
    uint32_t n, n_hc;
    float eps;
    uint32_t code;
} rg_gpu_hc_norm_args;
/* Whether rg_gpu_hc_norm takes streams of n values. */
bool rg_gpu_hc_norm_takes(uint32_t n, uint32_t n_used);
void rg_gpu_hc_norm(rg_gpu_list *list, const rg_gpu_hc_norm_args *a, rg_gpu_owed owed,
                    uint32_t n_used, uint32_t rows);

/* Codes of the low rows (where weights are quantised), their product with the up rows, and
 * rg_gpu_hc_mix, in one go: the same bits. */
typedef struct rg_gpu_hc_up_args {
    rg_gpu_ptr w, low, normed, u, codes, tables;
    uint32_t n, row_bytes;
} rg_gpu_hc_up_args;
/* Whether rg_gpu_hc_up takes this shape: u of n values, low rows of n_in. */
bool rg_gpu_hc_up_takes(rg_type type, uint32_t n, uint32_t n_hc, uint32_t n_in);
void rg_gpu_hc_up(rg_gpu_list *list, const rg_gpu_hc_up_args *a, rg_type type, uint32_t n_hc,
                  uint32_t n_in, uint32_t rows);

typedef struct rg_gpu_silu_mul_args {
    rg_gpu_ptr g, u;  /* g = silu(g) * u */
    rg_gpu_ptr codes; /* of g, n % 32 == 0; 0: none */
    uint32_t n;
    uint32_t pad;
} rg_gpu_silu_mul_args;
void rg_gpu_silu_mul(rg_gpu_list *list, const rg_gpu_silu_mul_args *a, uint32_t rows);

/* Where a segment of a window stands in its sequence: read from a buffer, so that a recorded list
 * serves every window. The last rows of a window may be drafts, which leave the states alone and
 * enter the journal; those accepted later are taken in from there by the next window. An op that
 * only wants a position reads the first word. */
typedef struct rg_gpu_stand {
    uint32_t pos0; /* position of the first row */
    uint32_t owed; /* accepted drafts of the window before, which are in the journal only */
    uint32_t firm; /* rows that are certain, 1 .. rows; drafts behind them */
    uint32_t cap;  /* rows of the journal */
} rg_gpu_stand;

typedef struct rg_gpu_conv_args {
    rg_gpu_ptr w, x, past, y, gated; /* gated != 0: y += gated + silu(conv) */
    rg_gpu_ptr stand;
    uint32_t n, n_tap, dilation;
} rg_gpu_conv_args;
void rg_gpu_conv(rg_gpu_list *list, const rg_gpu_conv_args *a, uint32_t rows);

/* Moves the history on by what is owed and the firm rows; the drafts become the journal. */
typedef struct rg_gpu_history_args {
    rg_gpu_ptr past, x, stand, alpha, beta;
    uint32_t n, keep, rows;
    uint32_t n_head; /* 0: a journal of x alone */
} rg_gpu_history_args;
void rg_gpu_history(rg_gpu_list *list, const rg_gpu_history_args *a);

/* What is owed must be in S already. */
typedef struct rg_gpu_gdn_args {
    rg_gpu_ptr S, c, alpha, beta, dt, a, o, stand;
    uint32_t D, n_head, n_k, rows;
} rg_gpu_gdn_args;
void rg_gpu_gdn(rg_gpu_list *list, const rg_gpu_gdn_args *a);

/* Convolution, norms of q and k, rg_gpu_gdn, the gated norm and its codes, in one go, for up to
 * RG_GPU_ROWS_MAX rows: the same bits. What is owed goes into S first. The history is not moved on.
 */
typedef struct rg_gpu_gdn_whole_args {
    rg_gpu_ptr S, x, w, past, stand, alpha, beta, dt, a, w_out, z, o, codes;
    uint32_t n_head, n_k, rows;
    float eps_qk, eps, scale;
} rg_gpu_gdn_whole_args;
/* Whether a device takes heads of D in it. */
bool rg_gpu_gdn_whole_takes(const rg_gpu_info *info, uint32_t D);
void rg_gpu_gdn_whole(rg_gpu_list *list, const rg_gpu_gdn_whole_args *a, uint32_t D,
                      uint32_t n_tap);

typedef struct rg_gpu_prepare_args {
    rg_gpu_ptr from, w, rope, to, pos0, flag;
    uint32_t D, n_rot, from_stride, from_step;
    float eps;
    uint32_t code;
} rg_gpu_prepare_args;
void rg_gpu_prepare(rg_gpu_list *list, const rg_gpu_prepare_args *a, bool f16, uint32_t heads,
                    uint32_t rows);

typedef struct rg_gpu_block_keys_args {
    rg_gpu_ptr raw, blocks, w, rope, pos0, flag;
    uint32_t D, n_rot, ratio, rows;
    float eps;
    uint32_t code;
} rg_gpu_block_keys_args;
void rg_gpu_block_keys(rg_gpu_list *list, const rg_gpu_block_keys_args *a, bool f16);

typedef struct rg_gpu_scores_args {
    rg_gpu_ptr q, keys, scores, pos0, flag;
    uint32_t D, n_head, ratio, cap, keep, code;
} rg_gpu_scores_args;
void rg_gpu_scores(rg_gpu_list *list, const rg_gpu_scores_args *a, bool f16, uint32_t rows);

typedef struct rg_gpu_select_args {
    rg_gpu_ptr scores, bits, pos0;
    uint32_t ratio, cap, keep;
} rg_gpu_select_args;
void rg_gpu_select(rg_gpu_list *list, const rg_gpu_select_args *a, uint32_t rows);

typedef struct rg_gpu_attention_args {
    rg_gpu_ptr q, k, v, gate, o, bits, pos0;
    rg_gpu_ptr codes; /* of o, up to RG_GPU_ROWS_MAX rows and D % 32 == 0; 0: none */
    uint32_t D, n_head, n_kv, ratio, cap, keep;
    float scale;
} rg_gpu_attention_args;
void rg_gpu_attention(rg_gpu_list *list, const rg_gpu_attention_args *a, bool f16, uint32_t rows);

typedef struct rg_gpu_route_args {
    rg_gpu_ptr logits, ids, w, flag;
    uint32_t n, k, code;
    float scale;
} rg_gpu_route_args;
/* given: ids are there, only the weights are made. */
void rg_gpu_route(rg_gpu_list *list, const rg_gpu_route_args *a, bool given, uint32_t rows);

/* The k best of each row's n logits, best first, the lowest id first among equals. result: u32
 * [rows][1 + 2 k], the lowest id whose logit is not finite or UINT32_MAX (what follows means
 * nothing then), ids, the bits of their logits; an id of UINT32_MAX: there are fewer than k. The
 * barrier between its two parts is its own. */
#define RG_GPU_BEST_MAX   64u   /* k at most */
#define RG_GPU_BEST_WORDS 8192u /* of parts for a row */
typedef struct rg_gpu_best_args {
    rg_gpu_ptr logits, parts, result; /* parts: u32 [rows][RG_GPU_BEST_WORDS], scratch */
    uint32_t n;
    uint32_t n_part; /* the op's own */
    uint32_t k;
} rg_gpu_best_args;
/* Whether it does so many of so many. */
bool rg_gpu_best_takes(uint32_t n, uint32_t k);
void rg_gpu_best(rg_gpu_list *list, const rg_gpu_best_args *a, uint32_t rows);

/* Tiles of slots by expert: list [n] slots, then {expert, first, count, 0}; grids {x, y, z} twice.
 */
typedef struct rg_gpu_plan_args {
    rg_gpu_ptr ids, list, grids;
    uint32_t n, n_expert, cols, x_hidden, x_out;
} rg_gpu_plan_args;
void rg_gpu_plan(rg_gpu_list *list, const rg_gpu_plan_args *a);
/* Words of `list` for n slots. */
size_t rg_gpu_plan_words(uint32_t n, uint32_t n_expert, uint32_t cols);

typedef struct rg_gpu_ple_gate_args {
    rg_gpu_ptr key, residual, value, w_key, w_query, w_conv, gated, normed;
    uint32_t n, n_hc;
    float eps;
} rg_gpu_ple_gate_args;
void rg_gpu_ple_gate(rg_gpu_list *list, const rg_gpu_ple_gate_args *a, uint32_t rows);

/* Input rows of the draft block's projection, the normed embeddings of tokens and the normed
 * residuals, side by side: y [rows][n_hc][2 n] for one matrix over both; with `apart` y [rows][n],
 * then [rows][n_hc][n], for a matrix of each. */
typedef struct rg_gpu_draft_rows_args {
    rg_gpu_ptr from;           /* [rows] addresses of residuals [n_hc][n] */
    rg_gpu_ptr w, tables, ids; /* embeddings, of the type told; [rows] */
    rg_gpu_ptr w_e, w_h;       /* of the norms */
    rg_gpu_ptr y, codes;       /* codes: rows as those of y, n % 32 == 0; 0: none */
    rg_gpu_ptr flag;
    uint32_t n, n_hc, row_bytes;
    float eps;
    uint32_t each; /* one mean a stream, not one over all */
    uint32_t code;
} rg_gpu_draft_rows_args;
void rg_gpu_draft_rows(rg_gpu_list *list, const rg_gpu_draft_rows_args *a, rg_type type, bool apart,
                       uint32_t rows);

/* y += x, a row of x for `per` rows of y. */
typedef struct rg_gpu_add_args {
    rg_gpu_ptr y, x; /* [rows][n], [rows / per][n] */
    uint32_t n, per;
} rg_gpu_add_args;
void rg_gpu_add(rg_gpu_list *list, const rg_gpu_add_args *a, uint32_t rows);

#endif
