/* The metadata of a converted model (architecture notes, sections 1 and 9). */
#include <stdio.h>
#include <string.h>

#include "forge/convert_parts.h"

#define A "qwen4exp."

static rg_code meta_attention(const rg_hf_config *c, rg_gguf_out *g, rg_status *st) {
    int32_t ratios[RG_LAYERS_MAX] = {0};
    for (uint32_t i = 0; i < c->n_layer; i++)
        ratios[i] = c->is_attn[i] ? (int32_t)c->idx_ratio : 0;
    RG_TRY(rg_gguf_out_u32(g, A "attention.head_count", c->n_head, st));
    RG_TRY(rg_gguf_out_u32(g, A "attention.head_count_kv", c->n_head_kv, st));
    RG_TRY(rg_gguf_out_u32(g, A "attention.key_length", c->head_dim, st));
    RG_TRY(rg_gguf_out_u32(g, A "attention.value_length", c->head_dim, st));
    RG_TRY(rg_gguf_out_f32(g, A "attention.layer_norm_rms_epsilon", (float)c->rms_eps, st));
    RG_TRY(rg_gguf_out_f32(g, A "rope.freq_base", (float)c->rope_base, st));
    RG_TRY(rg_gguf_out_u32(g, A "rope.dimension_count", c->n_rot, st));
    RG_TRY(rg_gguf_out_i32s(g, A "rope.dimension_sections", c->sections, 4, st));
    RG_TRY(rg_gguf_out_u32(g, A "full_attention_interval", c->interval, st));
    RG_TRY(rg_gguf_out_u32(g, A "attention.indexer.head_count", c->idx_heads, st));
    RG_TRY(rg_gguf_out_u32(g, A "attention.indexer.key_length", c->idx_dim, st));
    RG_TRY(rg_gguf_out_u32(g, A "attention.indexer.top_k", c->idx_budget, st));
    return rg_gguf_out_i32s(g, A "attention.compress_ratios", ratios, c->n_layer + c->n_mtp, st);
}

/* Integers of the checkpoint, never through floating point. */
static rg_code meta_list(rg_convert_plan *p, rg_gguf_out *g, const char *from, const char *to,
                         size_t n, rg_status *st) {
    char name[RG_ST_NAME_MAX];
    uint64_t v[RG_NGRAM_HEADS_MAX];
    snprintf(name, sizeof name, "%slayers.%u.ple.ple_embedding.%s", p->prefix, p->cfg.ple_layer,
             from);
    const rg_st_tensor *t = rg_checkpoint_find(p->ckpt, name);
    if (!t) return rg_fail(st, RG_FORMAT, "tensor '%.150s' is missing", name);
    RG_TRY(rg_checkpoint_i64(p->ckpt, t, v, n, st));
    return rg_gguf_out_u64s(g, to, v, n, st);
}

static rg_code meta_ngram(rg_convert_plan *p, rg_gguf_out *g, rg_status *st) {
    const rg_hf_config *c = &p->cfg;
    if (c->ple_layer == UINT32_MAX) return RG_OK;
    const uint32_t heads = c->ngram_heads * (c->ngram - 1);
    const int32_t layer = (int32_t)c->ple_layer;
    RG_TRY(rg_gguf_out_i32s(g, A "ple.layers", &layer, 1, st));
    RG_TRY(rg_gguf_out_u32(g, A "ple.ngram_size", c->ngram, st));
    RG_TRY(rg_gguf_out_u32(g, A "ple.heads_per_ngram", c->ngram_heads, st));
    RG_TRY(rg_gguf_out_u32(g, A "ple.conv_kernel", c->ngram_conv, st));
    RG_TRY(rg_gguf_out_u32(g, A "ple.eos_token_id", c->eos, st));
    if (c->has_image) RG_TRY(rg_gguf_out_u32(g, A "ple.image_token_id", c->image, st));
    RG_TRY(meta_list(p, g, "layer_multipliers", A "ple.layer_multipliers", c->ngram, st));
    RG_TRY(meta_list(p, g, "ngram_heads_offsets", A "ple.head_offsets", heads, st));
    RG_TRY(meta_list(p, g, "ngram_heads_vocab_sizes", A "ple.head_vocab_sizes", heads, st));
    return rg_gguf_out_u32(g, A "embedding_length_per_layer_input", c->n_embd / heads, st);
}

/* general.name: the last part of the folder's path. */
static rg_code meta_name(const rg_convert_plan *p, rg_gguf_out *g, rg_status *st) {
    char name[256];
    const char *text = p->opt->name;
    if (!text) {
        size_t end = strlen(p->opt->folder);
        while (end > 1 && p->opt->folder[end - 1] == '/')
            end--;
        size_t begin = end;
        while (begin > 0 && p->opt->folder[begin - 1] != '/')
            begin--;
        const size_t n = end - begin < sizeof name ? end - begin : sizeof name - 1;
        memcpy(name, p->opt->folder + begin, n);
        name[n] = 0;
        text = name;
    }
    return rg_gguf_out_str(g, "general.name", text, st);
}

rg_code rg_convert_meta(rg_convert_plan *p, rg_gguf_out *g, rg_status *st) {
    const rg_hf_config *c = &p->cfg;
    RG_TRY(rg_gguf_out_str(g, "general.architecture", "qwen4exp", st));
    RG_TRY(rg_gguf_out_str(g, "general.type", "model", st));
    RG_TRY(meta_name(p, g, st));
    RG_TRY(rg_gguf_out_u32(g, "general.quantization_version", 2, st));
    if (p->mix) RG_TRY(rg_gguf_out_u32(g, "general.file_type", p->mix->file_type, st));
    RG_TRY(rg_gguf_out_u32(g, A "block_count", c->n_layer + c->n_mtp, st));
    RG_TRY(rg_gguf_out_u32(g, A "context_length", c->n_ctx, st));
    RG_TRY(rg_gguf_out_u32(g, A "embedding_length", c->n_embd, st));
    RG_TRY(meta_attention(c, g, st));
    RG_TRY(rg_gguf_out_u32(g, A "ssm.conv_kernel", c->conv, st));
    RG_TRY(rg_gguf_out_u32(g, A "ssm.state_size", c->d_head, st));
    RG_TRY(rg_gguf_out_u32(g, A "ssm.group_count", c->n_k_head, st));
    RG_TRY(rg_gguf_out_u32(g, A "ssm.time_step_rank", c->n_v_head, st));
    RG_TRY(rg_gguf_out_u32(g, A "ssm.inner_size", c->n_v_head * c->d_head, st));
    RG_TRY(rg_gguf_out_u32(g, A "expert_count", c->n_expert, st));
    RG_TRY(rg_gguf_out_u32(g, A "expert_used_count", c->n_used, st));
    RG_TRY(rg_gguf_out_u32(g, A "expert_feed_forward_length", c->n_ff, st));
    RG_TRY(rg_gguf_out_u32(g, A "expert_shared_feed_forward_length", c->n_ff_shared, st));
    RG_TRY(rg_gguf_out_u32(g, A "hyper_connection.count", c->n_hc, st));
    RG_TRY(rg_gguf_out_u32(g, A "hyper_connection.low_rank", c->n_rank, st));
    if (c->n_mtp) RG_TRY(rg_gguf_out_u32(g, A "nextn_predict_layers", c->n_mtp, st));
    RG_TRY(meta_ngram(p, g, st));
    return rg_convert_vocab(p->opt->folder, c->n_vocab, g, st);
}
