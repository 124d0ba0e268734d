/* Private pieces of convert. */
#ifndef RG_FORGE_CONVERT_PARTS_H
#define RG_FORGE_CONVERT_PARTS_H

#include <jansson.h>

#include "forge/convert.h"
#include "forge/gguf_write.h"
#include "forge/safetensors.h"
#include "forge/type_mix.h"
#include "quant/quant.h"

/* Numbers of config.json. */
typedef struct rg_hf_config {
    uint32_t n_layer, n_mtp, n_ctx, n_embd, n_vocab, tied;
    uint32_t n_head, n_head_kv, head_dim, n_rot, interval;
    uint32_t conv, d_head, n_k_head, n_v_head;
    uint32_t n_expert, n_used, n_ff, n_ff_shared;
    uint32_t n_hc, n_rank;
    uint32_t idx_heads, idx_dim, idx_budget, idx_ratio;
    uint32_t ple_layer; /* from 0; UINT32_MAX: no n-gram memory */
    uint32_t ngram, ngram_heads, ngram_conv, eos;
    bool has_image;
    uint32_t image;
    double rms_eps, rope_base;
    int32_t sections[4];
    bool is_attn[RG_LAYERS_MAX];
} rg_hf_config;

typedef enum rg_convert_op { RG_OP_NONE, RG_OP_PLUS_ONE, RG_OP_NEG_EXP } rg_convert_op;
typedef enum rg_convert_tile { RG_TILE_NONE, RG_TILE_ROWS, RG_TILE_COLS } rg_convert_tile;

/* How one tensor is made. Output row o comes from source o / per (n_src > 1) or from the one
 * source, row (o / per) * stride + base + o % per. Tiling exchanges [k head][r][unit] for
 * [r][k head][unit] behind `start`. `beside` adds a second source's columns. */
typedef struct rg_convert_item {
    rg_out_tensor out;
    const rg_st_tensor **src; /* [n_src] */
    const rg_st_tensor **scale;
    uint32_t n_src;
    uint64_t per, stride, base;
    const rg_st_tensor *beside, *beside_scale;
    rg_convert_op op;
    rg_convert_tile tile;
    uint64_t tile_start, tile_unit;
    bool vector; /* stays f32 */
} rg_convert_item;

typedef struct rg_convert_plan {
    const rg_convert_options *opt;
    rg_checkpoint *ckpt;
    rg_hf_config cfg;
    char prefix[64];        /* of the names: "model." or "model.language_model." */
    const rg_type_mix *mix; /* NULL: as the checkpoint has it */
    rg_type_rules *rules;
    rg_convert_item *items;
    uint32_t n, cap;
    rg_status *st;
    rg_code rc; /* the first failure; later calls do nothing */
} rg_convert_plan;

/* convert_config.c */
RG_MUST_CHECK rg_code rg_convert_config(rg_hf_config *c, const char *folder, rg_status *st);
/* convert_vocab.c: tokenizer and chat template into the metadata. */
RG_MUST_CHECK rg_code rg_convert_vocab(const char *folder, uint32_t n_vocab, rg_gguf_out *g,
                                       rg_status *st);
/* convert_meta.c */
RG_MUST_CHECK rg_code rg_convert_meta(rg_convert_plan *p, rg_gguf_out *g, rg_status *st);
/* convert_plan.c: every tensor of the model, in file order. */
RG_MUST_CHECK rg_code rg_convert_list(rg_convert_plan *p, rg_status *st);

#endif
