/* Hyperparameters of a qwen4exp model from its metadata (spec section 1). Each number has a named
 * limit, and numbers that must agree with each other are compared here, so that no later product
 * overflows and no kernel meets a shape it cannot run.
 */
#include "model/desc_parts.h"

#include <stdio.h>
#include <string.h>

#define KEY_BYTES_MAX 96

/* Limits of real-valued keys: wide, but nothing that turns activations into NaN. */
#define EPS_MIN   1e-12
#define EPS_MAX   1e-1
#define BASE_MIN  1.0
#define BASE_MAX  1e12
#define SCALE_MIN 1e-6
#define SCALE_MAX 1e6

typedef unsigned long long ull;

static const char *full_key(char out[KEY_BYTES_MAX], const char *key) {
    const int n = snprintf(out, KEY_BYTES_MAX, RG_ARCH_NAME ".%s", key);
    RG_ASSERT(n > 0 && n < KEY_BYTES_MAX);
    return out;
}

bool rg_desc_has(const rg_desc_reader *r, const char *key) {
    char full[KEY_BYTES_MAX];
    return rg_gguf_find(r->g, full_key(full, key)) != NULL;
}

rg_code rg_desc_u32(const rg_desc_reader *r, const char *key, uint32_t min, uint32_t max,
                    uint32_t *out, rg_status *st) {
    char full[KEY_BYTES_MAX];
    uint64_t v = 0;
    RG_TRY(rg_gguf_get_u64(r->g, full_key(full, key), min, max, &v, st));
    *out = (uint32_t)v;
    return RG_OK;
}

rg_code rg_desc_array(const rg_desc_reader *r, const char *key, uint64_t count_min,
                      uint64_t count_max, const rg_gguf_kv **out, rg_status *st) {
    char full[KEY_BYTES_MAX];
    return rg_gguf_get_array(r->g, full_key(full, key), count_min, count_max, out, st);
}

static rg_code read_f32(const rg_desc_reader *r, const char *key, double min, double max,
                        float *out, rg_status *st) {
    char full[KEY_BYTES_MAX];
    double v = 0;
    RG_TRY(rg_gguf_get_f64(r->g, full_key(full, key), min, max, &v, st));
    *out = (float)v;
    return RG_OK;
}

/* heads * size of one, below the limit of a width. */
static rg_code check_width(const char *what, uint32_t heads, uint32_t size, rg_status *st) {
    if ((uint64_t)heads * size <= RG_WIDTH_MAX) return RG_OK;
    return rg_fail(st, RG_FORMAT, "%s: %u heads of %u exceed the limit of %u", what, heads, size,
                   RG_WIDTH_MAX);
}

static rg_code read_trunk(rg_desc_reader *r, rg_status *st) {
    rg_hparams *hp = &r->m->hp;
    RG_TRY(rg_desc_u32(r, "block_count", 1, RG_LAYERS_MAX, &r->n_block, st));
    if (rg_desc_has(r, "nextn_predict_layers")) {
        RG_TRY(rg_desc_u32(r, "nextn_predict_layers", 0, RG_LAYERS_MAX, &r->n_draft, st));
    }
    if (r->n_draft > 1) {
        return rg_fail(st, RG_UNSUPPORTED, "nextn_predict_layers is %u, this build drafts with 1",
                       r->n_draft);
    }
    if (r->n_block <= r->n_draft) {
        return rg_fail(st, RG_FORMAT, "block_count is %u with %u draft blocks, no trunk is left",
                       r->n_block, r->n_draft);
    }
    hp->n_layer = r->n_block - r->n_draft;
    hp->n_mtp = r->n_draft;
    RG_TRY(rg_desc_u32(r, "context_length", 1, RG_CTX_MAX, &hp->n_ctx_train, st));
    RG_TRY(rg_desc_u32(r, "embedding_length", 1, RG_EMBD_MAX, &hp->n_embd, st));
    const rg_gguf_kv *tokens = NULL;
    RG_TRY(rg_gguf_get_array(r->g, "tokenizer.ggml.tokens", 1, RG_VOCAB_MAX, &tokens, st));
    if (tokens->elem_type != RG_GGUF_STRING) {
        return rg_fail(st, RG_FORMAT, "key 'tokenizer.ggml.tokens' is no array of strings");
    }
    hp->n_vocab = (uint32_t)tokens->count;
    RG_TRY(rg_desc_u32(r, "hyper_connection.count", 2, RG_HC_MAX, &hp->n_hc, st));
    return rg_desc_u32(r, "hyper_connection.low_rank", 1, RG_HC_RANK_MAX, &hp->n_hc_rank, st);
}

/* The sections of the multimodal rotation must share out all pairs; text uses plain rotation. */
static rg_code check_rope_sections(const rg_desc_reader *r, rg_status *st) {
    const rg_hparams *hp = &r->m->hp;
    const rg_gguf_kv *kv = NULL;
    RG_TRY(rg_desc_array(r, "rope.dimension_sections", 3, 4, &kv, st));
    uint64_t sum = 0;
    for (uint64_t i = 0; i < kv->count; i++) {
        uint64_t v = 0;
        RG_TRY(rg_gguf_elem_u64(kv, i, RG_HEAD_DIM_MAX, &v, st));
        sum += v;
    }
    if (sum == hp->n_rot / 2) return RG_OK;
    return rg_fail(st, RG_FORMAT, "rope.dimension_sections add up to %llu pairs, %u dims have %u",
                   (ull)sum, hp->n_rot, hp->n_rot / 2);
}

static rg_code read_attention(rg_desc_reader *r, rg_status *st) {
    rg_hparams *hp = &r->m->hp;
    uint32_t value_length = 0;
    RG_TRY(rg_desc_u32(r, "attention.head_count", 1, RG_HEADS_MAX, &hp->n_head, st));
    RG_TRY(rg_desc_u32(r, "attention.head_count_kv", 1, RG_HEADS_MAX, &hp->n_head_kv, st));
    RG_TRY(rg_desc_u32(r, "attention.key_length", 1, RG_HEAD_DIM_MAX, &hp->head_dim, st));
    RG_TRY(rg_desc_u32(r, "attention.value_length", 1, RG_HEAD_DIM_MAX, &value_length, st));
    RG_TRY(read_f32(r, "attention.layer_norm_rms_epsilon", EPS_MIN, EPS_MAX, &hp->rms_eps, st));
    RG_TRY(read_f32(r, "rope.freq_base", BASE_MIN, BASE_MAX, &hp->rope_base, st));
    RG_TRY(rg_desc_u32(r, "rope.dimension_count", 2, RG_HEAD_DIM_MAX, &hp->n_rot, st));
    if (hp->n_head % hp->n_head_kv != 0) {
        return rg_fail(st, RG_FORMAT, "attention.head_count %u is no multiple of head_count_kv %u",
                       hp->n_head, hp->n_head_kv);
    }
    if (value_length != hp->head_dim) {
        return rg_fail(st, RG_UNSUPPORTED, "attention.value_length is %u, key_length is %u",
                       value_length, hp->head_dim);
    }
    if (hp->n_rot % 2 != 0 || hp->n_rot > hp->head_dim) {
        return rg_fail(st, RG_FORMAT,
                       "rope.dimension_count is %u, it must be even and at most key_length %u",
                       hp->n_rot, hp->head_dim);
    }
    RG_TRY(check_width("attention", hp->n_head, hp->head_dim, st));
    return check_rope_sections(r, st);
}

static rg_code read_indexer(rg_desc_reader *r, rg_status *st) {
    rg_hparams *hp = &r->m->hp;
    RG_TRY(rg_desc_u32(r, "attention.indexer.head_count", 1, RG_HEADS_MAX, &hp->idx_n_head, st));
    RG_TRY(
        rg_desc_u32(r, "attention.indexer.key_length", 1, RG_HEAD_DIM_MAX, &hp->idx_head_dim, st));
    RG_TRY(rg_desc_u32(r, "attention.indexer.top_k", 1, RG_IDX_BUDGET_MAX, &hp->idx_budget, st));
    if (hp->n_rot > hp->idx_head_dim) {
        return rg_fail(st, RG_FORMAT,
                       "attention.indexer.key_length is %u, less than rope.dimension_count %u",
                       hp->idx_head_dim, hp->n_rot);
    }
    return check_width("attention.indexer", hp->idx_n_head, hp->idx_head_dim, st);
}

static rg_code read_delta_net(rg_desc_reader *r, rg_status *st) {
    rg_hparams *hp = &r->m->hp;
    uint32_t inner = 0;
    RG_TRY(rg_desc_u32(r, "ssm.conv_kernel", 1, RG_CONV_MAX, &hp->ssm_conv, st));
    RG_TRY(rg_desc_u32(r, "ssm.state_size", 1, RG_HEAD_DIM_MAX, &hp->ssm_head_dim, st));
    RG_TRY(rg_desc_u32(r, "ssm.group_count", 1, RG_HEADS_MAX, &hp->n_k_head, st));
    RG_TRY(rg_desc_u32(r, "ssm.time_step_rank", 1, RG_HEADS_MAX, &hp->n_v_head, st));
    RG_TRY(rg_desc_u32(r, "ssm.inner_size", 1, RG_WIDTH_MAX, &inner, st));
    if (hp->n_v_head % hp->n_k_head != 0) {
        return rg_fail(st, RG_FORMAT, "ssm.time_step_rank %u is no multiple of ssm.group_count %u",
                       hp->n_v_head, hp->n_k_head);
    }
    RG_TRY(check_width("ssm", hp->n_v_head, hp->ssm_head_dim, st));
    if (inner != hp->n_v_head * hp->ssm_head_dim) {
        return rg_fail(st, RG_FORMAT, "ssm.inner_size is %u, %u heads of %u make %u", inner,
                       hp->n_v_head, hp->ssm_head_dim, hp->n_v_head * hp->ssm_head_dim);
    }
    return RG_OK;
}

static rg_code read_experts(rg_desc_reader *r, rg_status *st) {
    rg_hparams *hp = &r->m->hp;
    RG_TRY(rg_desc_u32(r, "expert_count", 1, RG_EXPERT_MAX, &hp->n_expert, st));
    RG_TRY(rg_desc_u32(r, "expert_used_count", 1, RG_EXPERT_USED_MAX, &hp->n_expert_used, st));
    RG_TRY(rg_desc_u32(r, "expert_shared_feed_forward_length", 1, RG_FF_MAX, &hp->n_ff_shared, st));
    hp->expert_scale = 1;
    if (rg_desc_has(r, "expert_weights_scale")) {
        RG_TRY(read_f32(r, "expert_weights_scale", SCALE_MIN, SCALE_MAX, &hp->expert_scale, st));
    }
    if (hp->n_expert_used > hp->n_expert) {
        return rg_fail(st, RG_FORMAT, "expert_used_count is %u, expert_count is %u",
                       hp->n_expert_used, hp->n_expert);
    }
    return RG_OK;
}

/* ---- per block ------------------------------------------------------------------------------ */

/* Expert widths: one number, or one per block. */
static rg_code plan_widths(rg_desc_reader *r, rg_status *st) {
    static const char key[] = "expert_feed_forward_length";
    char full[KEY_BYTES_MAX];
    const rg_gguf_kv *kv = rg_gguf_find(r->g, full_key(full, key));
    uint32_t width = 0;
    if (!kv || kv->type != RG_GGUF_ARRAY) {
        RG_TRY(rg_desc_u32(r, key, 1, RG_FF_MAX, &width, st));
        for (uint32_t i = 0; i < r->n_block; i++) {
            r->plan[i].n_ff = width;
        }
        return RG_OK;
    }
    RG_TRY(rg_desc_array(r, key, r->n_block, r->n_block, &kv, st));
    for (uint32_t i = 0; i < r->n_block; i++) {
        uint64_t v = 0;
        RG_TRY(rg_gguf_elem_u64(kv, i, RG_FF_MAX, &v, st));
        if (v == 0) {
            return rg_fail(st, RG_FORMAT, "key '%s': block %u is 0, allowed are 1..%u", full, i,
                           RG_FF_MAX);
        }
        r->plan[i].n_ff = (uint32_t)v;
    }
    return RG_OK;
}

/* A list of flags, one per block (or per trunk block): 1 = delta net. */
static rg_code plan_kinds_listed(rg_desc_reader *r, rg_status *st) {
    static const char key[] = "attention.recurrent_layers";
    const rg_gguf_kv *kv = NULL;
    RG_TRY(rg_desc_array(r, key, r->m->hp.n_layer, r->n_block, &kv, st));
    for (uint32_t i = 0; i < r->m->hp.n_layer; i++) {
        uint64_t recurrent = 0;
        if (kv->elem_type == RG_GGUF_BOOL) {
            recurrent = kv->data[i];
        } else {
            RG_TRY(rg_gguf_elem_u64(kv, i, 1, &recurrent, st));
        }
        r->plan[i].is_attn = recurrent == 0;
    }
    return RG_OK;
}

/* Which blocks attend. The draft block always does (spec 5.1). */
static rg_code plan_kinds(rg_desc_reader *r, rg_status *st) {
    const uint32_t n_layer = r->m->hp.n_layer;
    for (uint32_t i = n_layer; i < r->n_block; i++) {
        r->plan[i].is_attn = true;
    }
    if (rg_desc_has(r, "attention.recurrent_layers")) return plan_kinds_listed(r, st);
    uint32_t interval = 4;
    if (rg_desc_has(r, "full_attention_interval")) {
        RG_TRY(rg_desc_u32(r, "full_attention_interval", 1, RG_LAYERS_MAX, &interval, st));
    }
    for (uint32_t i = 0; i < n_layer; i++) {
        r->plan[i].is_attn = i % interval == interval - 1;
    }
    return RG_OK;
}

static rg_code plan_ratios(rg_desc_reader *r, rg_status *st) {
    static const char key[] = "attention.compress_ratios";
    if (!rg_desc_has(r, key)) return RG_OK; /* dense everywhere */
    const rg_gguf_kv *kv = NULL;
    RG_TRY(rg_desc_array(r, key, r->n_block, r->n_block, &kv, st));
    const uint32_t budget = r->m->hp.idx_budget;
    for (uint32_t i = 0; i < r->n_block; i++) {
        uint64_t ratio = 0;
        RG_TRY(rg_gguf_elem_u64(kv, i, RG_IDX_RATIO_MAX, &ratio, st));
        if (!r->plan[i].is_attn || ratio == 0) continue;
        if (budget % ratio != 0) {
            return rg_fail(st, RG_FORMAT,
                           "attention.indexer.top_k is %u, no multiple of ratio %llu of block %u",
                           budget, (ull)ratio, i);
        }
        r->plan[i].ratio = (uint32_t)ratio;
    }
    return RG_OK;
}

rg_code rg_desc_read_hparams(rg_desc_reader *r, rg_status *st) {
    RG_TRY(read_trunk(r, st));
    RG_TRY(read_attention(r, st));
    RG_TRY(read_indexer(r, st));
    RG_TRY(read_delta_net(r, st));
    RG_TRY(read_experts(r, st));
    r->plan = rg_alloc((size_t)r->n_block + 1, sizeof *r->plan, st);
    if (!r->plan) return RG_NOMEM;
    RG_TRY(plan_widths(r, st));
    RG_TRY(plan_kinds(r, st));
    RG_TRY(plan_ratios(r, st));
    return rg_desc_read_ple(r, st);
}
