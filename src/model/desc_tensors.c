/* The tensors of a qwen4exp model by name, each with the shape and the kinds of type that the
 * hyperparameters demand (spec section 2).
 */
#include "model/desc_parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define DIMS_TEXT_BYTES 96

typedef unsigned long long ull;

typedef enum rg_tensor_kind {
    RG_KIND_VECTOR, /* F32, F16, BF16 */
    RG_KIND_MATRIX  /* any computable type */
} rg_tensor_kind;

/* Expected dims; trailing ones may be absent in the file. */
typedef struct rg_dims {
    uint64_t ne[3];
    rg_tensor_kind kind;
} rg_dims;

static rg_dims vec(uint64_t n) {
    return (rg_dims){.ne = {n, 1, 1}, .kind = RG_KIND_VECTOR};
}

static rg_dims mat(uint64_t cols, uint64_t rows) {
    return (rg_dims){.ne = {cols, rows, 1}, .kind = RG_KIND_MATRIX};
}

static rg_dims stack(uint64_t cols, uint64_t rows, uint64_t count) {
    return (rg_dims){.ne = {cols, rows, count}, .kind = RG_KIND_MATRIX};
}

/* Taps of a depthwise convolution: small, read as floats. */
static rg_dims taps(uint64_t n_tap, uint64_t channels) {
    return (rg_dims){.ne = {n_tap, channels, 1}, .kind = RG_KIND_VECTOR};
}

static const char *dims_text(char out[DIMS_TEXT_BYTES], const uint64_t *ne, uint32_t n) {
    while (n > 1 && ne[n - 1] == 1)
        n--;
    int at = 0;
    for (uint32_t i = 0; i < n; i++) {
        at +=
            snprintf(out + at, (size_t)(DIMS_TEXT_BYTES - at), "%s%llu", i ? "," : "[", (ull)ne[i]);
        RG_ASSERT(at > 0 && at < DIMS_TEXT_BYTES - 1);
    }
    snprintf(out + at, (size_t)(DIMS_TEXT_BYTES - at), "]");
    return out;
}

static rg_code check_type(const rg_tensor *t, rg_tensor_kind kind, rg_status *st) {
    const rg_type_info *info = rg_type_get((uint32_t)t->type);
    RG_ASSERT(info != NULL);
    if (kind == RG_KIND_MATRIX) {
        if (info->use == RG_USE_WEIGHT) return RG_OK;
        return rg_fail(st, RG_UNSUPPORTED, "tensor '%s' has type %s, which no kernel computes with",
                       t->name, info->name);
    }
    if (t->type == RG_TYPE_F32 || t->type == RG_TYPE_F16 || t->type == RG_TYPE_BF16) return RG_OK;
    return rg_fail(st, RG_UNSUPPORTED, "tensor '%s' has type %s, expected f32, f16 or bf16",
                   t->name, info->name);
}

static rg_code check_dims(const rg_tensor *t, const rg_dims *want, rg_status *st) {
    bool same = t->ne[3] == 1;
    for (uint32_t i = 0; i < 3; i++) {
        same = same && t->ne[i] == want->ne[i];
    }
    if (same) return RG_OK;
    char found[DIMS_TEXT_BYTES], expected[DIMS_TEXT_BYTES];
    return rg_fail(st, RG_FORMAT, "tensor '%s' has dims %s, expected %s", t->name,
                   dims_text(found, t->ne, 4), dims_text(expected, want->ne, 3));
}

/* NULL if absent; else checked and marked as used. */
static rg_code take_optional(rg_desc_reader *r, const char *name, rg_dims want,
                             const rg_tensor **out, rg_status *st) {
    *out = rg_gguf_tensor(r->g, name);
    if (!*out) return RG_OK;
    r->used[*out - rg_gguf_tensor_at(r->g, 0)] = true;
    RG_TRY(check_dims(*out, &want, st));
    return check_type(*out, want.kind, st);
}

static rg_code take(rg_desc_reader *r, const char *name, rg_dims want, const rg_tensor **out,
                    rg_status *st) {
    RG_TRY(take_optional(r, name, want, out, st));
    if (*out) return RG_OK;
    char expected[DIMS_TEXT_BYTES];
    return rg_fail(st, RG_FORMAT, "tensor '%s' is missing, expected dims %s", name,
                   dims_text(expected, want.ne, 3));
}

/* ---- names in a block ----------------------------------------------------------------------- */

/* "blk.BLOCK.NAME"; all names of the architecture are shorter than RG_GGUF_NAME_MAX. */
static const char *block_name(const rg_desc_reader *r, char out[RG_GGUF_NAME_MAX], uint32_t block,
                              const char *name) {
    const bool other = r->attached && block == r->m->hp.n_layer;
    const int n = snprintf(out, RG_GGUF_NAME_MAX, "%sblk.%u.%s", other ? RG_GGUF_DRAFT_PREFIX : "",
                           other ? r->draft_number : block, name);
    RG_ASSERT(n > 0 && n < (int)RG_GGUF_NAME_MAX);
    return out;
}

static rg_code take_in(rg_desc_reader *r, uint32_t block, const char *name, rg_dims want,
                       const rg_tensor **out, rg_status *st) {
    char full[RG_GGUF_NAME_MAX];
    return take(r, block_name(r, full, block, name), want, out, st);
}

static bool has_in(const rg_desc_reader *r, uint32_t block, const char *name) {
    char full[RG_GGUF_NAME_MAX];
    return rg_gguf_tensor(r->g, block_name(r, full, block, name)) != NULL;
}

/* `prefix` is all of the name up to _norm, _down, _up and _inject. */
static rg_code take_hc(rg_desc_reader *r, const char *prefix, bool inject, rg_hc_desc *out,
                       rg_status *st) {
    const rg_hparams *hp = &r->m->hp;
    const uint64_t wide = (uint64_t)hp->n_hc * hp->n_embd;
    char name[RG_GGUF_NAME_MAX];
    snprintf(name, sizeof name, "%s_norm.weight", prefix);
    RG_TRY(take(r, name, vec(wide), &out->norm, st));
    snprintf(name, sizeof name, "%s_down.weight", prefix);
    RG_TRY(take(r, name, mat(wide, hp->n_hc_rank), &out->down, st));
    snprintf(name, sizeof name, "%s_up.weight", prefix);
    RG_TRY(take(r, name, mat(hp->n_hc_rank, wide), &out->up, st));
    if (!inject) return RG_OK;
    snprintf(name, sizeof name, "%s_inject.weight", prefix);
    return take(r, name, mat(wide, hp->n_hc), &out->inject, st);
}

static rg_code take_hc_in(rg_desc_reader *r, uint32_t block, const char *name, bool inject,
                          rg_hc_desc *out, rg_status *st) {
    char prefix[RG_GGUF_NAME_MAX];
    return take_hc(r, block_name(r, prefix, block, name), inject, out, st);
}

static rg_code take_gdn(rg_desc_reader *r, uint32_t b, rg_gdn_desc *out, rg_status *st) {
    const rg_hparams *hp = &r->m->hp;
    const uint64_t n_embd = hp->n_embd;
    const uint64_t inner = (uint64_t)hp->n_v_head * hp->ssm_head_dim;
    const uint64_t channels = inner + 2 * (uint64_t)hp->n_k_head * hp->ssm_head_dim;
    RG_TRY(take_in(r, b, "attn_qkv.weight", mat(n_embd, channels), &out->qkv, st));
    RG_TRY(take_in(r, b, "attn_gate.weight", mat(n_embd, inner), &out->gate, st));
    RG_TRY(take_in(r, b, "ssm_alpha.weight", mat(n_embd, hp->n_v_head), &out->alpha, st));
    RG_TRY(take_in(r, b, "ssm_beta.weight", mat(n_embd, hp->n_v_head), &out->beta, st));
    RG_TRY(take_in(r, b, "ssm_conv1d.weight", taps(hp->ssm_conv, channels), &out->conv, st));
    RG_TRY(take_in(r, b, "ssm_dt.bias", vec(hp->n_v_head), &out->dt, st));
    RG_TRY(take_in(r, b, "ssm_a", vec(hp->n_v_head), &out->a, st));
    RG_TRY(take_in(r, b, "ssm_norm.weight", vec(hp->ssm_head_dim), &out->norm, st));
    return take_in(r, b, "ssm_out.weight", mat(inner, n_embd), &out->out, st);
}

static rg_code take_attn(rg_desc_reader *r, uint32_t b, rg_attn_desc *out, rg_status *st) {
    const rg_hparams *hp = &r->m->hp;
    const uint64_t n_embd = hp->n_embd;
    const uint64_t q_width = (uint64_t)hp->n_head * hp->head_dim;
    const uint64_t kv_width = (uint64_t)hp->n_head_kv * hp->head_dim;
    const uint64_t idx_width = (uint64_t)hp->idx_n_head * hp->idx_head_dim;
    out->ratio = r->plan[b].ratio;
    /* Each head has its query rows, then its gate rows. */
    RG_TRY(take_in(r, b, "attn_q.weight", mat(n_embd, 2 * q_width), &out->q, st));
    RG_TRY(take_in(r, b, "attn_k.weight", mat(n_embd, kv_width), &out->k, st));
    RG_TRY(take_in(r, b, "attn_v.weight", mat(n_embd, kv_width), &out->v, st));
    RG_TRY(take_in(r, b, "attn_output.weight", mat(q_width, n_embd), &out->out, st));
    RG_TRY(take_in(r, b, "attn_q_norm.weight", vec(hp->head_dim), &out->q_norm, st));
    RG_TRY(take_in(r, b, "attn_k_norm.weight", vec(hp->head_dim), &out->k_norm, st));
    RG_TRY(take_in(r, b, "indexer.q_proj.weight", mat(n_embd, idx_width), &out->idx_q, st));
    RG_TRY(take_in(r, b, "indexer.k_proj.weight", mat(n_embd, hp->idx_head_dim), &out->idx_k, st));
    RG_TRY(take_in(r, b, "indexer.q_norm.weight", vec(hp->idx_head_dim), &out->idx_q_norm, st));
    return take_in(r, b, "indexer.k_norm.weight", vec(hp->idx_head_dim), &out->idx_k_norm, st);
}

static rg_code take_moe(rg_desc_reader *r, uint32_t b, rg_moe_desc *out, rg_status *st) {
    const rg_hparams *hp = &r->m->hp;
    const uint64_t n_embd = hp->n_embd, n_expert = hp->n_expert, n_sh = hp->n_ff_shared;
    const uint64_t n_ff = r->plan[b].n_ff;
    out->n_ff = r->plan[b].n_ff;
    RG_TRY(take_in(r, b, "ffn_gate_inp.weight", mat(n_embd, n_expert), &out->router, st));
    if (has_in(r, b, "ffn_gate_up_exps.weight")) {
        RG_TRY(take_in(r, b, "ffn_gate_up_exps.weight", stack(n_embd, 2 * n_ff, n_expert),
                       &out->gate_up, st));
    } else {
        RG_TRY(
            take_in(r, b, "ffn_gate_exps.weight", stack(n_embd, n_ff, n_expert), &out->gate, st));
        RG_TRY(take_in(r, b, "ffn_up_exps.weight", stack(n_embd, n_ff, n_expert), &out->up, st));
    }
    RG_TRY(take_in(r, b, "ffn_down_exps.weight", stack(n_ff, n_embd, n_expert), &out->down, st));
    RG_TRY(take_in(r, b, "ffn_gate_inp_shexp.weight", mat(n_embd, 1), &out->shared_gate_inp, st));
    RG_TRY(take_in(r, b, "ffn_gate_shexp.weight", mat(n_embd, n_sh), &out->shared_gate, st));
    RG_TRY(take_in(r, b, "ffn_up_shexp.weight", mat(n_embd, n_sh), &out->shared_up, st));
    return take_in(r, b, "ffn_down_shexp.weight", mat(n_sh, n_embd), &out->shared_down, st);
}

static rg_code take_ple(rg_desc_reader *r, uint32_t b, rg_ple_desc *out, rg_status *st) {
    const rg_hparams *hp = &r->m->hp;
    const uint64_t wide = (uint64_t)hp->n_hc * hp->n_embd;
    const uint64_t cols = (uint64_t)hp->ple_n_head * hp->ple_row;
    RG_TRY(take_in(r, b, "ple_key.weight", mat(cols, wide), &out->key, st));
    RG_TRY(take_in(r, b, "ple_value.weight", mat(cols, hp->n_embd), &out->value, st));
    RG_TRY(take_in(r, b, "ple_norm_key.weight", vec(wide), &out->norm_key, st));
    RG_TRY(take_in(r, b, "ple_norm_query.weight", vec(wide), &out->norm_query, st));
    RG_TRY(take_in(r, b, "ple_norm_conv.weight", vec(wide), &out->norm_conv, st));
    return take_in(r, b, "ple_conv1d.weight", taps(hp->ple_conv, wide), &out->conv, st);
}

static rg_code take_layer(rg_desc_reader *r, uint32_t b, rg_layer_desc *out, rg_status *st) {
    out->is_attn = r->plan[b].is_attn;
    out->has_ple = r->plan[b].has_ple;
    RG_TRY(take_hc_in(r, b, "hc_attn", true, &out->hc_attn, st));
    RG_TRY(take_hc_in(r, b, "hc_ffn", true, &out->hc_ffn, st));
    if (out->is_attn) {
        RG_TRY(take_attn(r, b, &out->attn, st));
    } else {
        RG_TRY(take_gdn(r, b, &out->gdn, st));
    }
    RG_TRY(take_moe(r, b, &out->moe, st));
    return out->has_ple ? take_ple(r, b, &out->ple, st) : RG_OK;
}

/* ---- whole model ---------------------------------------------------------------------------- */

/* The draft head's own mixer; a draft-only file may call it as a model calls its own. */
static rg_code take_mtp_mixer(rg_desc_reader *r, uint32_t b, rg_hc_desc *out, rg_status *st) {
    const bool newer = has_in(r, b, "nextn.hc_head_norm.weight");
    if (!newer && has_in(r, b, "nextn.hc_norm.weight")) {
        return take_hc_in(r, b, "nextn.hc", false, out, st);
    }
    if (!newer && r->attached &&
        rg_gguf_tensor(r->g, RG_GGUF_DRAFT_PREFIX "output_hc_norm.weight")) {
        return take_hc(r, RG_GGUF_DRAFT_PREFIX "output_hc", false, out, st);
    }
    return take_hc_in(r, b, "nextn.hc_head", false, out, st);
}

/* Also under the names that older files use (spec 5.2). */
static rg_code take_mtp(rg_desc_reader *r, uint32_t b, rg_mtp_desc *out, rg_status *st) {
    const rg_hparams *hp = &r->m->hp;
    const uint64_t n_embd = hp->n_embd;
    char name[RG_GGUF_NAME_MAX];
    RG_TRY(take_layer(r, b, &out->layer, st));
    RG_TRY(take_in(r, b, "nextn.enorm.weight", vec(n_embd), &out->enorm, st));
    RG_TRY(take_in(r, b, "nextn.hnorm.weight", vec(hp->n_hc * n_embd), &out->hnorm, st));
    if (has_in(r, b, "nextn.fc_embd.weight") && !has_in(r, b, "nextn.eh_proj.weight")) {
        RG_TRY(take_in(r, b, "nextn.fc_embd.weight", mat(n_embd, n_embd), &out->fc_embd, st));
        RG_TRY(take_in(r, b, "nextn.fc_hidden.weight", mat(n_embd, n_embd), &out->fc_hidden, st));
    } else {
        RG_TRY(take_in(r, b, "nextn.eh_proj.weight", mat(2 * n_embd, n_embd), &out->eh_proj, st));
    }
    RG_TRY(take_mtp_mixer(r, b, &out->head, st));
    RG_TRY(take_optional(r, block_name(r, name, b, "nextn.embed_tokens.weight"),
                         mat(n_embd, hp->n_vocab), &out->embed_tokens, st));
    return take_optional(r, block_name(r, name, b, "nextn.shared_head_head.weight"),
                         mat(n_embd, hp->n_vocab), &out->shared_head, st);
}

/* The table's rows are its own; each head's share must lie inside. */
static rg_code take_ple_table(rg_desc_reader *r, rg_status *st) {
    static const char name[] = "per_layer_token_embd.weight";
    const rg_hparams *hp = &r->m->hp;
    const rg_tensor *t = rg_gguf_tensor(r->g, name);
    const uint64_t rows = t ? t->ne[1] : 0;
    if (rows > RG_PLE_ROWS_MAX) {
        return rg_fail(st, RG_FORMAT, "tensor '%s' has %llu rows, the limit is %u", name, (ull)rows,
                       RG_PLE_ROWS_MAX);
    }
    RG_TRY(take(r, name, mat(hp->ple_row, rows), &r->m->ple_table, st));
    for (uint32_t h = 0; h < hp->ple_n_head; h++) {
        const uint64_t end = hp->ple_offset[h] + hp->ple_size[h]; /* each at most 2^31 */
        if (end > rows) {
            return rg_fail(st, RG_FORMAT,
                           "tensor '%s' has %llu rows, hash head %u ends at row %llu", name,
                           (ull)rows, h, (ull)end);
        }
    }
    return RG_OK;
}

/* Tensors that the text model does not use (a vision tower, a skipped draft block) are no error. */
static void log_unused(const rg_desc_reader *r) {
    const size_t n = rg_gguf_tensor_count(r->g);
    size_t unused = 0;
    for (size_t i = n; i-- > 0;) {
        if (r->used[i]) continue;
        unused++;
        rg_log(RG_LOG_DEBUG, "tensor '%s' is not used", rg_gguf_tensor_at(r->g, i)->name);
    }
    if (unused) rg_log(RG_LOG_INFO, "%zu of %zu tensors are not used", unused, n);
}

rg_code rg_desc_find_tensors(rg_desc_reader *r, rg_status *st) {
    rg_model *m = r->m;
    const rg_hparams *hp = &m->hp;
    const size_t n_tensor = rg_gguf_tensor_count(r->g);
    r->used = rg_alloc(n_tensor, sizeof *r->used, st);
    m->layers = rg_alloc(hp->n_layer, sizeof *m->layers, st);
    if (!r->used || !m->layers) return RG_NOMEM;
    RG_TRY(take(r, "token_embd.weight", mat(hp->n_embd, hp->n_vocab), &m->token_embd, st));
    RG_TRY(take_optional(r, "output.weight", mat(hp->n_embd, hp->n_vocab), &m->output, st));
    if (!m->output) m->output = m->token_embd;
    RG_TRY(take_hc(r, "output_hc", false, &m->output_hc, st));
    if (hp->ple_ngram) RG_TRY(take_ple_table(r, st));
    for (uint32_t i = 0; i < hp->n_layer; i++) {
        RG_TRY(take_layer(r, i, &m->layers[i], st));
    }
    if (hp->n_mtp) RG_TRY(take_mtp(r, hp->n_layer, &m->mtp, st));
    log_unused(r);
    return RG_OK;
}
