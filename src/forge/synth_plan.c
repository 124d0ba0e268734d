/* What a synthetic model consists of: its tensors in file order, their statistics, its metadata
 * (spec sections 1, 2, 9).
 *
 * Deviations: a matrix has about 1/sqrt(columns); what is written into the residual is scaled so
 * that all half layers together add DRIFT of the start's energy, at any depth (synth_routing.c).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "forge/synth_parts.h"

/* Root mean square of silu(a) * b for normal a and b, and what a token's experts and the shared one
 * give for down weights of deviation 1/sqrt(columns). */
#define MOE_OUT 0.38
/* Of a delta net: the norm's output times the gate's mean. */
#define GDN_OUT 0.45

typedef enum flag { PLAIN = 0, SMALL = 1, EXPERT = 2, VECTOR = 4 } flag;

typedef struct lister {
    rg_synth_plan *p;
    uint32_t layer; /* n_layer + mtp = global */
    rg_status *st;
    rg_code rc; /* the first failure; later calls do nothing */
} lister;

static void add(lister *l, const char *name, rg_synth_kind kind, double sigma, int flags,
                uint64_t cols, uint64_t rows, uint64_t count) {
    rg_synth_plan *p = l->p;
    if (l->rc != RG_OK) return;
    if (p->n_tensor == p->cap) {
        const uint32_t cap = p->cap ? 2 * p->cap : 256;
        rg_synth_tensor *grown = rg_realloc(p->tensors, cap, sizeof *grown, l->st);
        if (!grown) {
            l->rc = RG_NOMEM;
            return;
        }
        p->tensors = grown;
        p->cap = cap;
    }
    rg_synth_tensor *t = &p->tensors[p->n_tensor++];
    *t = (rg_synth_tensor){.ne = {cols, rows, count},
                           .n_dims = count  ? 3
                                     : rows ? 2
                                            : 1,
                           .layer = l->layer,
                           .kind = kind,
                           .is_matrix = !(flags & VECTOR),
                           .is_small = (flags & SMALL) != 0,
                           .is_expert = (flags & EXPERT) != 0,
                           .sigma = sigma};
    const bool global = l->layer == UINT32_MAX;
    const int n = global ? snprintf(t->name, sizeof t->name, "%s", name)
                         : snprintf(t->name, sizeof t->name, "blk.%u.%s", l->layer, name);
    RG_ASSERT(n > 0 && n < (int)sizeof t->name);
}

/* sigma given in units of 1/sqrt(cols) */
static void mat(lister *l, const char *name, double scale, int flags, uint64_t cols,
                uint64_t rows) {
    add(l, name, RG_SYNTH_RANDOM, scale / sqrt((double)cols), flags, cols, rows, 0);
}

static void norm(lister *l, const char *name, uint64_t n) {
    add(l, name, RG_SYNTH_NORM, 0.2, VECTOR, n, 0, 0);
}

static void hyper(lister *l, const char *prefix, bool inject, bool flipped) {
    const rg_synth_shape *s = l->p->shape;
    const uint64_t wide = (uint64_t)s->n_hc * s->n_embd;
    char name[RG_GGUF_NAME_MAX];
    snprintf(name, sizeof name, "%s_norm.weight", prefix);
    add(l, name, flipped ? RG_SYNTH_NORM_FFN : RG_SYNTH_NORM, 0.2, VECTOR, wide, 0, 0);
    snprintf(name, sizeof name, "%s_down.weight", prefix);
    mat(l, name, s->n_hc, PLAIN, wide, s->n_hc_rank);
    snprintf(name, sizeof name, "%s_up.weight", prefix);
    mat(l, name, 0.5, PLAIN, s->n_hc_rank, wide);
    if (!inject) return;
    snprintf(name, sizeof name, "%s_inject.weight", prefix);
    mat(l, name, 2, SMALL, wide, s->n_hc);
}

static void delta_net(lister *l) {
    const rg_synth_shape *s = l->p->shape;
    const rg_synth_routing *r = &l->p->routing;
    const uint64_t E = s->n_embd, inner = (uint64_t)s->n_v_head * s->ssm_dim;
    const uint64_t channels = inner + 2 * (uint64_t)s->n_k_head * s->ssm_dim;
    const double y = l->layer == r->slow_layer ? r->slow : r->step;
    add(l, "attn_qkv.weight", RG_SYNTH_QKV, 1 / sqrt((double)E), PLAIN, E, channels, 0);
    mat(l, "attn_gate.weight", 1, PLAIN, E, inner);
    add(l, "ssm_conv1d.weight", RG_SYNTH_TAPS_GDN, 0.2, VECTOR, s->ssm_conv, channels, 0);
    add(l, "ssm_dt.bias", RG_SYNTH_DT, 0, VECTOR, s->n_v_head, 0, 0);
    add(l, "ssm_a", RG_SYNTH_A, 0, VECTOR, s->n_v_head, 0, 0);
    mat(l, "ssm_alpha.weight", 0.3, SMALL, E, s->n_v_head);
    add(l, "ssm_beta.weight", RG_SYNTH_BETA, 0.3 / sqrt((double)E), SMALL, E, s->n_v_head, 0);
    norm(l, "ssm_norm.weight", s->ssm_dim);
    mat(l, "ssm_out.weight", y / GDN_OUT, PLAIN, inner, E);
}

static void attention(lister *l) {
    const rg_synth_shape *s = l->p->shape;
    const uint64_t E = s->n_embd, q = (uint64_t)s->n_head * s->head_dim;
    const uint64_t kv = (uint64_t)s->n_head_kv * s->head_dim;
    mat(l, "attn_q.weight", 1, PLAIN, E, 2 * q);
    mat(l, "attn_k.weight", 1, PLAIN, E, kv);
    mat(l, "attn_v.weight", 2, PLAIN, E, kv);
    /* Values of deviation 1, halved by the gate; an average over many tokens is smaller. */
    mat(l, "attn_output.weight", 4 * l->p->routing.step, PLAIN, q, E);
    norm(l, "attn_q_norm.weight", s->head_dim);
    norm(l, "attn_k_norm.weight", s->head_dim);
    mat(l, "indexer.q_proj.weight", 1, PLAIN, E, (uint64_t)s->idx_heads * s->idx_dim);
    mat(l, "indexer.k_proj.weight", 1, PLAIN, E, s->idx_dim);
    norm(l, "indexer.q_norm.weight", s->idx_dim);
    norm(l, "indexer.k_norm.weight", s->idx_dim);
}

static void ngram_memory(lister *l) {
    const rg_synth_shape *s = l->p->shape;
    const uint64_t E = s->n_embd, wide = (uint64_t)s->n_hc * E;
    mat(l, "ple_key.weight", 1, PLAIN, E, wide);
    mat(l, "ple_value.weight", l->p->routing.token / 4, PLAIN, E, E);
    norm(l, "ple_norm_key.weight", wide);
    norm(l, "ple_norm_query.weight", wide);
    norm(l, "ple_norm_conv.weight", wide);
    add(l, "ple_conv1d.weight", RG_SYNTH_TAPS_PLE, l->p->routing.token / 40, VECTOR, s->ngram_conv,
        wide, 0);
}

static void experts(lister *l) {
    const rg_synth_shape *s = l->p->shape;
    const uint64_t E = s->n_embd, X = s->n_expert, ff = s->n_ff, sh = s->n_ff_shared;
    const double in = 2 / sqrt((double)E), out = l->p->routing.step / MOE_OUT;
    add(l, "ffn_gate_inp.weight", RG_SYNTH_ROUTER, 1 / sqrt((double)E), SMALL, E, X, 0);
    if (s->fused) {
        add(l, "ffn_gate_up_exps.weight", RG_SYNTH_RANDOM, in, EXPERT, E, 2 * ff, X);
    } else {
        add(l, "ffn_gate_exps.weight", RG_SYNTH_RANDOM, in, EXPERT, E, ff, X);
        add(l, "ffn_up_exps.weight", RG_SYNTH_RANDOM, in, EXPERT, E, ff, X);
    }
    add(l, "ffn_down_exps.weight", RG_SYNTH_RANDOM, out / sqrt((double)ff), EXPERT, ff, E, X);
    add(l, "ffn_gate_inp_shexp.weight", RG_SYNTH_RANDOM, 1 / sqrt((double)E), VECTOR, E, 0, 0);
    mat(l, "ffn_gate_shexp.weight", 2, PLAIN, E, sh);
    mat(l, "ffn_up_shexp.weight", 2, PLAIN, E, sh);
    mat(l, "ffn_down_shexp.weight", out, PLAIN, sh, E);
}

static void draft(lister *l) {
    const rg_synth_shape *s = l->p->shape;
    const uint64_t E = s->n_embd;
    const double half = 1 / sqrt(2.0 * (double)E);
    norm(l, "nextn.enorm.weight", E);
    norm(l, "nextn.hnorm.weight", (uint64_t)s->n_hc * E);
    if (s->mtp_halves) { /* together of the deviation that one matrix has */
        add(l, "nextn.fc_embd.weight", RG_SYNTH_RANDOM, half, PLAIN, E, E, 0);
        add(l, "nextn.fc_hidden.weight", RG_SYNTH_RANDOM, half, PLAIN, E, E, 0);
    } else {
        mat(l, "nextn.eh_proj.weight", 1, PLAIN, 2 * E, E);
    }
    hyper(l, "nextn.hc_head", false, false);
}

static void list(lister *l) {
    const rg_synth_shape *s = l->p->shape;
    const uint64_t E = s->n_embd;
    l->layer = UINT32_MAX;
    add(l, "token_embd.weight", RG_SYNTH_EMBED, l->p->routing.token, PLAIN, E, s->n_vocab, 0);
    if (!s->tied) mat(l, "output.weight", 2, PLAIN, E, s->n_vocab);
    hyper(l, "output_hc", false, false);
    if (s->ngram) {
        add(l, "per_layer_token_embd.weight", RG_SYNTH_RANDOM, 1, PLAIN, E / l->p->ple.n_head,
            l->p->ple.rows, 0);
    }
    for (uint32_t i = 0; i < s->n_layer + s->mtp; i++) {
        l->layer = i;
        hyper(l, "hc_attn", true, false);
        if (rg_synth_is_attn(s, i)) {
            attention(l);
        } else {
            delta_net(l);
        }
        if (s->ngram && i == s->ngram_layer) ngram_memory(l);
        hyper(l, "hc_ffn", true, true);
        experts(l);
        if (i >= s->n_layer) draft(l);
    }
}

rg_code rg_synth_plan_init(rg_synth_plan *p, const rg_synth_options *opt, rg_status *st) {
    *p = (rg_synth_plan){.opt = opt, .shape = &opt->shape};
    const rg_synth_shape *s = p->shape;
    RG_TRY(rg_synth_check_shape(s, st));
    if (s->ngram) {
        RG_TRY(rg_ple_constants_derive(&p->ple, s->n_vocab, s->ngram, s->ngram_heads, s->ngram_base,
                                       s->ngram_divisor, s->ngram_seed, st));
    }
    rg_synth_routing_energies(p);
    lister l = {.p = p, .st = st};
    list(&l);
    RG_TRY(l.rc);
    RG_TRY(rg_synth_pick_types(p, st));
    return rg_synth_routing_init(p, st);
}

void rg_synth_plan_deinit(rg_synth_plan *p) {
    rg_synth_routing_deinit(&p->routing);
    rg_free(p->tensors);
    *p = (rg_synth_plan){0};
}

/* ---- metadata -------------------------------------------------------------------------------- */

#define A "qwen4exp."

static rg_code meta_attention(const rg_synth_shape *s, rg_gguf_out *g, rg_status *st) {
    const int32_t pairs = (int32_t)(s->n_rot / 2);
    const int32_t sections[4] = {(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0};
    const uint32_t n_block = s->n_layer + s->mtp;
    int32_t ratios[RG_LAYERS_MAX + 1];
    for (uint32_t i = 0; i < n_block; i++) {
        ratios[i] = i < s->n_layer && rg_synth_is_attn(s, i) ? (int32_t)s->idx_ratio : 0;
    }
    RG_TRY(rg_gguf_out_u32(g, A "attention.head_count", s->n_head, st));
    RG_TRY(rg_gguf_out_u32(g, A "attention.head_count_kv", s->n_head_kv, st));
    RG_TRY(rg_gguf_out_u32(g, A "attention.key_length", s->head_dim, st));
    RG_TRY(rg_gguf_out_u32(g, A "attention.value_length", s->head_dim, st));
    RG_TRY(rg_gguf_out_f32(g, A "attention.layer_norm_rms_epsilon", 1e-6f, st));
    RG_TRY(rg_gguf_out_f32(g, A "rope.freq_base", (float)s->rope_base, st));
    RG_TRY(rg_gguf_out_u32(g, A "rope.dimension_count", s->n_rot, st));
    RG_TRY(rg_gguf_out_i32s(g, A "rope.dimension_sections", sections, 4, st));
    RG_TRY(rg_gguf_out_u32(g, A "full_attention_interval", s->interval, st));
    RG_TRY(rg_gguf_out_u32(g, A "attention.indexer.head_count", s->idx_heads, st));
    RG_TRY(rg_gguf_out_u32(g, A "attention.indexer.key_length", s->idx_dim, st));
    RG_TRY(rg_gguf_out_u32(g, A "attention.indexer.top_k", s->idx_budget, st));
    return rg_gguf_out_i32s(g, A "attention.compress_ratios", ratios, n_block, st);
}

static rg_code meta_ngram(const rg_synth_plan *p, rg_gguf_out *g, rg_status *st) {
    const rg_synth_shape *s = p->shape;
    const int32_t layer = (int32_t)s->ngram_layer;
    if (!s->ngram) return RG_OK;
    RG_TRY(rg_gguf_out_i32s(g, A "ple.layers", &layer, 1, st));
    RG_TRY(rg_gguf_out_u32(g, A "ple.ngram_size", s->ngram, st));
    RG_TRY(rg_gguf_out_u32(g, A "ple.heads_per_ngram", s->ngram_heads, st));
    RG_TRY(rg_gguf_out_u32(g, A "ple.conv_kernel", s->ngram_conv, st));
    RG_TRY(rg_gguf_out_u32(g, A "ple.eos_token_id", rg_synth_special_id(RG_SYNTH_ENDOFTEXT), st));
    RG_TRY(rg_gguf_out_u64s(g, A "ple.layer_multipliers", p->ple.mult, s->ngram, st));
    RG_TRY(rg_gguf_out_u64s(g, A "ple.head_offsets", p->ple.offset, p->ple.n_head, st));
    RG_TRY(rg_gguf_out_u64s(g, A "ple.head_vocab_sizes", p->ple.size, p->ple.n_head, st));
    return rg_gguf_out_u32(g, A "embedding_length_per_layer_input", s->n_embd / p->ple.n_head, st);
}

rg_code rg_synth_plan_meta(const rg_synth_plan *p, rg_gguf_out *g, rg_status *st) {
    const rg_synth_shape *s = p->shape;
    const char *name = p->opt->name ? p->opt->name : "regolith synth";
    RG_TRY(rg_gguf_out_str(g, "general.architecture", "qwen4exp", st));
    RG_TRY(rg_gguf_out_str(g, "general.type", "model", st));
    RG_TRY(rg_gguf_out_str(g, "general.name", name, st));
    RG_TRY(rg_gguf_out_u32(g, "general.quantization_version", 2, st));
    RG_TRY(rg_gguf_out_u32(g, A "block_count", s->n_layer + s->mtp, st));
    RG_TRY(rg_gguf_out_u32(g, A "context_length", s->n_ctx, st));
    RG_TRY(rg_gguf_out_u32(g, A "embedding_length", s->n_embd, st));
    RG_TRY(meta_attention(s, g, st));
    RG_TRY(rg_gguf_out_u32(g, A "ssm.conv_kernel", s->ssm_conv, st));
    RG_TRY(rg_gguf_out_u32(g, A "ssm.state_size", s->ssm_dim, st));
    RG_TRY(rg_gguf_out_u32(g, A "ssm.group_count", s->n_k_head, st));
    RG_TRY(rg_gguf_out_u32(g, A "ssm.time_step_rank", s->n_v_head, st));
    RG_TRY(rg_gguf_out_u32(g, A "ssm.inner_size", s->n_v_head * s->ssm_dim, st));
    RG_TRY(rg_gguf_out_u32(g, A "expert_count", s->n_expert, st));
    RG_TRY(rg_gguf_out_u32(g, A "expert_used_count", s->n_used, st));
    RG_TRY(rg_gguf_out_u32(g, A "expert_feed_forward_length", s->n_ff, st));
    RG_TRY(rg_gguf_out_u32(g, A "expert_shared_feed_forward_length", s->n_ff_shared, st));
    RG_TRY(rg_gguf_out_u32(g, A "hyper_connection.count", s->n_hc, st));
    RG_TRY(rg_gguf_out_u32(g, A "hyper_connection.low_rank", s->n_hc_rank, st));
    if (s->mtp) RG_TRY(rg_gguf_out_u32(g, A "nextn_predict_layers", s->mtp, st));
    RG_TRY(meta_ngram(p, g, st));
    return rg_synth_vocab(s, g, st);
}
