/* Private to model: the description while it is read. */
#ifndef RG_DESC_PARTS_H
#define RG_DESC_PARTS_H

#include "model/desc.h"

#define RG_ARCH_NAME "qwen4exp"

/* Per block, the draft block included. */
typedef struct rg_block_plan {
    bool is_attn;
    bool has_ple;
    uint32_t ratio; /* attention only */
    uint32_t n_ff;
} rg_block_plan;

typedef struct rg_desc_reader {
    const rg_gguf *g;
    rg_model *m;
    uint32_t n_block;      /* block_count of the file: trunk and draft blocks */
    uint32_t n_draft;      /* nextn_predict_layers of the file; hp.n_mtp may be less */
    bool attached;         /* the draft block comes from a file of its own ... */
    uint32_t draft_number; /* ... where it is this block */
    rg_block_plan *plan;   /* [n_block + 1] */
    bool *used;            /* [tensors of g] */
} rg_desc_reader;

/* Hyperparameters and the plan of every block, from metadata (spec section 1). */
RG_MUST_CHECK rg_code rg_desc_read_hparams(rg_desc_reader *r, rg_status *st);
/* The n-gram memory's share of them (spec 4.3). */
RG_MUST_CHECK rg_code rg_desc_read_ple(rg_desc_reader *r, rg_status *st);
/* The plan of a draft block in a file of its own, behind rg_desc_read_hparams. */
RG_MUST_CHECK rg_code rg_desc_read_attached(rg_desc_reader *r, rg_status *st);
/* All tensors, from the hyperparameters (spec section 2). */
RG_MUST_CHECK rg_code rg_desc_find_tensors(rg_desc_reader *r, rg_status *st);

/* Getters with the architecture's prefix: `key` is "block_count" for "qwen4exp.block_count". */
bool rg_desc_has(const rg_desc_reader *r, const char *key);
RG_MUST_CHECK rg_code rg_desc_u32(const rg_desc_reader *r, const char *key, uint32_t min,
                                  uint32_t max, uint32_t *out, rg_status *st);
RG_MUST_CHECK rg_code rg_desc_array(const rg_desc_reader *r, const char *key, uint64_t count_min,
                                    uint64_t count_max, const rg_gguf_kv **out, rg_status *st);

#endif
