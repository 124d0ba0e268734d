/* config.json of a qwen4_exp checkpoint. Saved by different versions of the same library it lacks
 * keys, so what can be derived is derived: the attention interval from layer_types (whatever the
 * name of the attention type), the rotary share from rope_parameters.
 */
#include <stdio.h>
#include <string.h>

#include "forge/convert_parts.h"

typedef struct reader {
    const json_t *root; /* of the text model */
    rg_status *st;
    rg_code rc;
} reader;

static uint32_t number(reader *r, const char *key, uint32_t min, uint32_t max, int64_t fallback) {
    const json_t *v = json_object_get(r->root, key);
    if (r->rc != RG_OK) return 0;
    if ((!v || json_is_null(v)) && fallback >= 0) return (uint32_t)fallback;
    const json_int_t n = json_integer_value(v);
    if (json_is_integer(v) && n >= (json_int_t)min && n <= (json_int_t)max) return (uint32_t)n;
    r->rc = v ? rg_fail(r->st, RG_FORMAT, "config.json: \"%s\" is no whole number in %u..%u", key,
                        min, max)
              : rg_fail(r->st, RG_FORMAT, "config.json: \"%s\" is missing", key);
    return 0;
}

static double real(const reader *r, const json_t *from, const char *key, double fallback) {
    const json_t *v = from ? json_object_get(from, key) : NULL;
    if (!json_is_number(v)) v = json_object_get(r->root, key);
    return json_is_number(v) ? json_number_value(v) : fallback;
}

static void read_layers(reader *r, rg_hf_config *c) {
    const json_t *types = json_object_get(r->root, "layer_types");
    c->interval = number(r, "full_attention_interval", 1, RG_LAYERS_MAX, 0);
    if (r->rc != RG_OK) return;
    if (!json_is_array(types)) {
        if (!c->interval) c->interval = 4;
        for (uint32_t i = 0; i < c->n_layer; i++)
            c->is_attn[i] = i % c->interval == c->interval - 1;
        return;
    }
    if (json_array_size(types) != c->n_layer) {
        r->rc = rg_fail(r->st, RG_FORMAT, "config.json: %zu layer_types for %u layers",
                        json_array_size(types), c->n_layer);
        return;
    }
    uint32_t first = 0;
    for (uint32_t i = 0; i < c->n_layer; i++) {
        const char *name = json_string_value(json_array_get(types, i));
        c->is_attn[i] = name && strcmp(name, "linear_attention") != 0;
        if (c->is_attn[i] && !first) first = i + 1;
    }
    c->interval = first ? first : c->n_layer + 1;
    for (uint32_t i = 0; i < c->n_layer; i++) {
        if (c->is_attn[i] == (i % c->interval == c->interval - 1)) continue;
        r->rc = rg_fail(r->st, RG_UNSUPPORTED,
                        "config.json: layer_types are not one attention layer in every %u",
                        c->interval);
        return;
    }
}

static void read_rope(reader *r, rg_hf_config *c) {
    const json_t *rope = json_object_get(r->root, "rope_parameters");
    if (!rope) rope = json_object_get(r->root, "rope_scaling");
    const json_t *list = json_object_get(rope, "mrope_section");
    const double share = real(r, rope, "partial_rotary_factor", 0.25);
    c->rope_base = real(r, rope, "rope_theta", 0);
    c->rms_eps = real(r, NULL, "rms_norm_eps", 1e-6);
    c->n_rot = (uint32_t)((double)c->head_dim * share + 0.5);
    if (r->rc != RG_OK) return;
    if (!(c->rope_base > 0) || !(share > 0 && share <= 1)) {
        r->rc = rg_fail(r->st, RG_FORMAT, "config.json: rope_theta or its share is wrong");
        return;
    }
    if (!json_is_array(list) || json_array_size(list) < 3 || json_array_size(list) > 4) {
        r->rc = rg_fail(r->st, RG_FORMAT, "config.json: \"mrope_section\" is missing");
        return;
    }
    int64_t sum = 0;
    for (size_t i = 0; i < 4; i++) {
        const json_int_t n = json_integer_value(json_array_get(list, i));
        c->sections[i] = n >= 0 && n < 4096 ? (int32_t)n : 4096;
        sum += c->sections[i];
    }
    if (sum * 2 != c->n_rot) {
        r->rc = rg_fail(r->st, RG_FORMAT, "config.json: mrope_section sums to %lld, not %u",
                        (long long)sum, c->n_rot / 2);
    }
}

static void read_ngram(reader *r, rg_hf_config *c) {
    const json_t *ids = json_object_get(r->root, "ple_layer_ids");
    const json_t *eos = json_object_get(r->root, "eos_token_id");
    c->ple_layer = UINT32_MAX;
    if (r->rc != RG_OK || json_array_size(ids) == 0) return;
    const json_int_t at = json_integer_value(json_array_get(ids, 0));
    if (json_array_size(ids) != 1 || at < 1 || at > (json_int_t)c->n_layer) {
        r->rc = rg_fail(r->st, RG_UNSUPPORTED, "config.json: %zu ple_layer_ids, the first is %lld",
                        json_array_size(ids), (long long)at);
        return;
    }
    c->ple_layer = (uint32_t)at - 1; /* counted from 1 there */
    c->ngram = number(r, "ngram_size", 2, RG_NGRAM_MAX, -1);
    c->ngram_heads = number(r, "heads_per_ngram", 1, RG_NGRAM_HEADS_MAX, -1);
    c->ngram_conv = number(r, "ple_conv_kernel_size", 1, RG_CONV_MAX, -1);
    if (r->rc != RG_OK) return;
    if (c->ngram_heads * (c->ngram - 1) > RG_NGRAM_HEADS_MAX ||
        c->n_embd % (c->ngram_heads * (c->ngram - 1)) != 0) {
        r->rc = rg_fail(r->st, RG_FORMAT, "config.json: %u hash heads for %u values",
                        c->ngram_heads * (c->ngram - 1), c->n_embd);
    }
    /* A list: the memory uses its first element. */
    if (json_is_array(eos)) eos = json_array_get(eos, 0);
    const json_int_t id = json_integer_value(eos);
    if (!json_is_integer(eos) || id < 0 || id >= (json_int_t)c->n_vocab) {
        r->rc = rg_fail(r->st, RG_FORMAT, "config.json: \"eos_token_id\" is no token");
        return;
    }
    c->eos = (uint32_t)id;
}

static void read_numbers(reader *r, rg_hf_config *c) {
    c->n_layer = number(r, "num_hidden_layers", 1, RG_LAYERS_MAX - 1, -1);
    c->n_mtp = number(r, "mtp_num_hidden_layers", 0, 1, 0);
    c->n_ctx = number(r, "max_position_embeddings", 1, RG_CTX_MAX, -1);
    c->n_embd = number(r, "hidden_size", 1, RG_EMBD_MAX, -1);
    c->n_vocab = number(r, "vocab_size", 1, RG_VOCAB_MAX, -1);
    c->tied = json_is_true(json_object_get(r->root, "tie_word_embeddings"));
    c->n_head = number(r, "num_attention_heads", 1, RG_HEADS_MAX, -1);
    c->n_head_kv = number(r, "num_key_value_heads", 1, RG_HEADS_MAX, -1);
    c->head_dim = number(r, "head_dim", 1, RG_HEAD_DIM_MAX, -1);
    c->conv = number(r, "linear_conv_kernel_dim", 1, RG_CONV_MAX, -1);
    c->d_head = number(r, "linear_key_head_dim", 1, RG_HEAD_DIM_MAX, -1);
    c->n_k_head = number(r, "linear_num_key_heads", 1, RG_HEADS_MAX, -1);
    c->n_v_head = number(r, "linear_num_value_heads", 1, RG_HEADS_MAX, -1);
    c->n_expert = number(r, "num_experts", 1, RG_EXPERT_MAX, -1);
    c->n_used = number(r, "num_experts_per_tok", 1, RG_EXPERT_USED_MAX, -1);
    c->n_ff = number(r, "moe_intermediate_size", 1, RG_FF_MAX, -1);
    c->n_ff_shared = number(r, "shared_expert_intermediate_size", 1, RG_FF_MAX, -1);
    c->n_hc = number(r, "hc_count", 2, RG_HC_MAX, -1);
    c->n_rank = number(r, "hc_lowrank", 1, RG_HC_RANK_MAX, -1);
    c->idx_heads = number(r, "indexer_n_heads", 1, RG_HEADS_MAX, -1);
    c->idx_dim = number(r, "indexer_head_dim", 1, RG_HEAD_DIM_MAX, -1);
    c->idx_budget = number(r, "indexer_budget", 1, RG_IDX_BUDGET_MAX, -1);
    c->idx_ratio = number(r, "indexer_compress_ratio", 0, RG_IDX_RATIO_MAX, -1);
    const uint32_t d_value = number(r, "linear_value_head_dim", 1, RG_HEAD_DIM_MAX, -1);
    if (r->rc != RG_OK) return;
    if (d_value != c->d_head || c->n_k_head == 0 || c->n_v_head % c->n_k_head != 0) {
        r->rc = rg_fail(r->st, RG_UNSUPPORTED, "config.json: %u V heads of %u on %u K heads of %u",
                        c->n_v_head, d_value, c->n_k_head, c->d_head);
    }
}

/* What is fixed in the format must be so in the model. */
static void check_fixed(reader *r) {
    static const struct {
        const char *key, *value;
    } fixed[] = {{"hidden_act", "silu"}, {"output_gate_type", "sigmoid"}};
    for (size_t i = 0; i < RG_ARRAY_LEN(fixed) && r->rc == RG_OK; i++) {
        const char *v = json_string_value(json_object_get(r->root, fixed[i].key));
        if (!v || strcmp(v, fixed[i].value) == 0) continue;
        r->rc = rg_fail(r->st, RG_UNSUPPORTED, "config.json: \"%s\" is \"%.40s\", not \"%s\"",
                        fixed[i].key, v, fixed[i].value);
    }
    const json_t *block =
        json_object_get(json_object_get(r->root, "quantization_config"), "weight_block_size");
    if (r->rc != RG_OK || !json_is_array(block)) return;
    for (size_t i = 0; i < 2; i++) {
        if (json_integer_value(json_array_get(block, i)) == RG_ST_BLOCK) continue;
        r->rc = rg_fail(r->st, RG_UNSUPPORTED, "config.json: fp8 blocks are not %u x %u",
                        RG_ST_BLOCK, RG_ST_BLOCK);
        return;
    }
}

rg_code rg_convert_config(rg_hf_config *c, const char *folder, rg_status *st) {
    char path[RG_WRITE_PATH_MAX + 32];
    json_error_t why;
    snprintf(path, sizeof path, "%.4090s/config.json", folder);
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
    if (!root) return rg_fail(st, RG_IO, "%s: %.100s", path, why.text);
    *c = (rg_hf_config){0};
    const json_t *text = json_object_get(root, "text_config");
    reader r = {.root = text ? text : root, .st = st, .rc = RG_OK};
    const char *type = json_string_value(json_object_get(r.root, "model_type"));
    const json_t *image = json_object_get(root, "image_token_id");
    if (!type || strncmp(type, "qwen4_exp", 9) != 0) {
        r.rc = rg_fail(st, RG_UNSUPPORTED, "config.json: model_type \"%.40s\", not qwen4_exp",
                       type ? type : "");
    }
    read_numbers(&r, c);
    read_layers(&r, c);
    read_rope(&r, c);
    read_ngram(&r, c);
    check_fixed(&r);
    if (json_is_integer(image) && json_integer_value(image) >= 0) {
        c->has_image = true;
        c->image = (uint32_t)json_integer_value(image);
    }
    json_decref(root);
    return r.rc;
}
