/* The qwen4exp description: hyperparameters from metadata, tensors found and their shapes checked
 * (spec sections 1, 2). Borrowed pointers live as long as the rg_gguf.
 */
#ifndef RG_MODEL_DESC_H
#define RG_MODEL_DESC_H

#include "model/gguf.h"

#define RG_LAYERS_MAX      1024 /* trunk and draft blocks */
#define RG_HC_MAX          8    /* residual streams */
#define RG_NGRAM_MAX       8    /* n of the n-gram memory */
#define RG_NGRAM_HEADS_MAX 64   /* hash heads, all n together */
#define RG_EXPERT_MAX      4096
#define RG_EXPERT_USED_MAX 64
/* Products of two of these, times a few, stay below 2^40; head count times head size is bounded on
 * top (RG_WIDTH_MAX), so widths of activations fit 32 bits. */
#define RG_CTX_MAX        (1u << 30)
#define RG_EMBD_MAX       65536u
#define RG_VOCAB_MAX      (1u << 24)
#define RG_HEADS_MAX      1024u /* query heads, key/value heads, delta net heads, indexer heads */
#define RG_HEAD_DIM_MAX   4096u
#define RG_WIDTH_MAX      (1u << 20) /* heads times head size */
#define RG_FF_MAX         (1u << 20)
#define RG_HC_RANK_MAX    65536u
#define RG_CONV_MAX       32u /* taps of a convolution */
#define RG_IDX_RATIO_MAX  1024u
#define RG_IDX_BUDGET_MAX RG_CTX_MAX
#define RG_PLE_ROW_MAX    65536u
#define RG_PLE_ROWS_MAX   (1u << 31) /* row numbers fit int32 */

/* Types: matrices may have any RG_USE_WEIGHT type. Norms and other vectors, and the taps of
 * convolutions, are F32, F16 or BF16. ffn_gate_inp_shexp, stored as [E] or [E,1], counts as a
 * matrix of one row. Every matrix has dims ne = {columns, rows}, stacked experts ne[2]. */

/* Hyper-connection read weights (spec 4.1). */
typedef struct rg_hc_desc {
    const rg_tensor *norm;   /* [n_hc * n_embd] f32, 1+w */
    const rg_tensor *down;   /* n_hc_rank rows of n_hc*n_embd */
    const rg_tensor *up;     /* n_hc*n_embd rows of n_hc_rank */
    const rg_tensor *inject; /* n_hc rows of n_hc*n_embd; NULL for a final mixer */
} rg_hc_desc;

typedef struct rg_gdn_desc {
    const rg_tensor *qkv, *gate, *alpha, *beta, *conv, *dt, *a, *norm, *out;
} rg_gdn_desc;

typedef struct rg_attn_desc {
    const rg_tensor *q, *k, *v, *out, *q_norm, *k_norm;
    const rg_tensor *idx_q, *idx_k, *idx_q_norm, *idx_k_norm;
    uint32_t ratio; /* tokens of an indexer block; 0 = dense attention */
} rg_attn_desc;

typedef struct rg_moe_desc {
    const rg_tensor *router;
    /* Either gate and up, or gate_up (gate rows first); the others are NULL. */
    const rg_tensor *gate, *up, *gate_up, *down;
    const rg_tensor *shared_gate_inp, *shared_gate, *shared_up, *shared_down;
    uint32_t n_ff; /* rows of gate and of up in each expert */
} rg_moe_desc;

typedef struct rg_ple_desc {
    const rg_tensor *key, *value, *norm_key, *norm_query, *norm_conv, *conv;
} rg_ple_desc;

typedef struct rg_layer_desc {
    bool is_attn; /* attention with QSA, else gated delta net */
    bool has_ple;
    rg_hc_desc hc_attn, hc_ffn;
    rg_gdn_desc gdn;   /* !is_attn */
    rg_attn_desc attn; /* is_attn */
    rg_moe_desc moe;
    rg_ple_desc ple; /* has_ple */
} rg_layer_desc;

typedef struct rg_mtp_desc {
    rg_layer_desc layer; /* attention type */
    const rg_tensor *enorm, *hnorm;
    /* Either eh_proj (columns: embedding, hidden) or the two halves. */
    const rg_tensor *eh_proj, *fc_embd, *fc_hidden;
    rg_hc_desc head;
    const rg_tensor *embed_tokens, *shared_head; /* NULL: shared with the trunk */
} rg_mtp_desc;

typedef struct rg_hparams {
    uint32_t n_layer; /* trunk */
    uint32_t n_mtp;   /* 0 or 1 */
    uint32_t n_ctx_train;
    uint32_t n_embd, n_vocab;
    uint32_t n_head, n_head_kv, head_dim, n_rot;
    float rms_eps, rope_base;
    uint32_t ssm_conv, ssm_head_dim, n_k_head, n_v_head; /* gated delta net */
    uint32_t n_expert, n_expert_used, n_ff_shared;
    float expert_scale; /* expert_weights_scale, 1 if absent */
    uint32_t n_hc, n_hc_rank;
    uint32_t idx_n_head, idx_head_dim, idx_budget; /* budget in tokens */
    /* n-gram memory; ple_ngram = 0 without one */
    uint32_t ple_ngram, ple_heads_per_ngram, ple_n_head, ple_conv, ple_row;
    int32_t ple_eos, ple_image; /* image: -1 if absent */
    uint64_t ple_mult[RG_NGRAM_MAX];
    uint64_t ple_offset[RG_NGRAM_HEADS_MAX], ple_size[RG_NGRAM_HEADS_MAX];
} rg_hparams;

typedef struct rg_model {
    rg_hparams hp;
    const rg_tensor *token_embd, *output; /* output == token_embd when tied */
    rg_hc_desc output_hc;
    const rg_tensor *ple_table; /* NULL without n-gram memory */
    rg_layer_desc *layers;      /* [n_layer] */
    rg_mtp_desc mtp;            /* valid if hp.n_mtp */
} rg_model;

typedef struct rg_model_options {
    bool no_mtp; /* ignore the draft block */
} rg_model_options;

/* Reads and checks the description. The gguf must outlive the model. A missing key or tensor, a
 * wrong shape, an unknown architecture, a type no kernel computes: one line naming it. */
RG_MUST_CHECK rg_code rg_model_create(rg_model **out, const rg_gguf *g, const rg_model_options *opt,
                                      rg_status *st);
void rg_model_destroy(rg_model *m);

#endif
