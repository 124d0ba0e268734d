/* Which tensors of the checkpoint make which tensor of the file (architecture notes, section 9).
 *
 * Every RMS norm but the delta net's own is stored as 1 + w. V heads are tiled where there are more
 * of them than K heads. Experts come one by one or fused, the n-gram table whole or in shards.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "forge/convert_parts.h"

typedef unsigned long long ull;

/* ---- sources --------------------------------------------------------------------------------- */

static const rg_st_tensor *find(rg_convert_plan *p, const char *fmt, ...) RG_PRINTF(2, 3);
static const rg_st_tensor *find(rg_convert_plan *p, const char *fmt, ...) {
    char name[RG_ST_NAME_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    return rg_checkpoint_find(p->ckpt, name);
}

static void fail(rg_convert_plan *p, rg_code code, const char *what, const char *name) {
    if (p->rc == RG_OK) p->rc = rg_fail(p->st, code, "tensor '%.150s' %s", name, what);
}

/* Room for n sources and their scales. */
static bool take_sources(rg_convert_plan *p, rg_convert_item *it, uint32_t n) {
    it->n_src = n;
    it->src = rg_alloc(n, sizeof *it->src, p->st);
    it->scale = rg_alloc(n, sizeof *it->scale, p->st);
    if (it->src && it->scale) return true;
    p->rc = RG_NOMEM;
    return false;
}

static bool put_source(rg_convert_plan *p, rg_convert_item *it, uint32_t i, const char *name) {
    const rg_st_tensor *t = rg_checkpoint_find(p->ckpt, name);
    if (p->rc != RG_OK) return false;
    if (!t) {
        fail(p, RG_FORMAT, "is missing", name);
        return false;
    }
    if (t->type == RG_ST_I64) {
        fail(p, RG_FORMAT, "holds integers", name);
        return false;
    }
    it->src[i] = t;
    p->rc = rg_checkpoint_scale(p->ckpt, t, &it->scale[i], p->st);
    return p->rc == RG_OK;
}

/* ---- items ----------------------------------------------------------------------------------- */

static rg_convert_item *add(rg_convert_plan *p, const char *name, uint64_t cols, uint64_t rows,
                            uint64_t count) {
    if (p->rc != RG_OK) return NULL;
    if (p->n == p->cap) {
        const uint32_t cap = p->cap ? 2 * p->cap : 256;
        rg_convert_item *grown = rg_realloc(p->items, cap, sizeof *grown, p->st);
        if (!grown) {
            p->rc = RG_NOMEM;
            return NULL;
        }
        p->items = grown;
        p->cap = cap;
    }
    rg_convert_item *it = &p->items[p->n++];
    *it = (rg_convert_item){.per = rows ? rows : 1, .stride = rows ? rows : 1};
    const size_t len = strnlen(name, sizeof it->out.name);
    if (len == sizeof it->out.name) {
        p->rc = rg_fail(p->st, RG_UNSUPPORTED, "the tensor name '%.80s' is too long", name);
        return NULL;
    }
    memcpy(it->out.name, name, len + 1);
    it->out.ne[0] = cols;
    it->out.ne[1] = rows ? rows : 1;
    it->out.ne[2] = count ? count : 1;
    it->out.ne[3] = 1;
    it->out.n_dims = count ? 3 : rows ? 2 : 1;
    return it;
}

static void check_shape(rg_convert_plan *p, const rg_st_tensor *t, uint64_t rows, uint64_t cols) {
    if (p->rc != RG_OK || (t->cols == cols && t->rows == rows)) return;
    p->rc = rg_fail(p->st, RG_FORMAT, "tensor '%.120s' is %llu x %llu, not %llu x %llu", t->name,
                    (ull)t->rows, (ull)t->cols, (ull)rows, (ull)cols);
}

/* A matrix or vector (rows 0) as it is. */
static rg_convert_item *plain(rg_convert_plan *p, const char *to, const char *from, uint64_t cols,
                              uint64_t rows) {
    rg_convert_item *it = add(p, to, cols, rows, 0);
    if (!it || !take_sources(p, it, 1) || !put_source(p, it, 0, from)) return NULL;
    it->vector = rows == 0;
    check_shape(p, it->src[0], rows ? rows : 1, cols);
    return it;
}

static void norm(rg_convert_plan *p, const char *to, const char *from, uint64_t n) {
    rg_convert_item *it = plain(p, to, from, n, 0);
    if (it) it->op = RG_OP_PLUS_ONE;
}

/* Names of one layer: "blk.N.x" and PREFIX"layers.N.y". */
typedef struct scope {
    rg_convert_plan *p;
    char to[32], from[96];
    char to_name[128], from_name[RG_ST_NAME_MAX];
} scope;

static const char *to(scope *s, const char *name) {
    snprintf(s->to_name, sizeof s->to_name, "%s%s", s->to, name);
    return s->to_name;
}

static const char *from(scope *s, const char *name) {
    snprintf(s->from_name, sizeof s->from_name, "%s%s", s->from, name);
    return s->from_name;
}

static rg_convert_item *mat(scope *s, const char *t, const char *f, uint64_t cols, uint64_t rows) {
    return plain(s->p, to(s, t), from(s, f), cols, rows);
}

static void hyper(scope *s, const char *t, const char *f, bool inject) {
    const rg_hf_config *c = &s->p->cfg;
    const uint64_t wide = (uint64_t)c->n_hc * c->n_embd;
    char a[96], b[128];
    snprintf(a, sizeof a, "%s_norm.weight", t);
    snprintf(b, sizeof b, "%s.hc_norm.weight", f);
    norm(s->p, to(s, a), from(s, b), wide);
    snprintf(a, sizeof a, "%s_down.weight", t);
    snprintf(b, sizeof b, "%s.input_mix_weight_down.weight", f);
    mat(s, a, b, wide, c->n_rank);
    snprintf(a, sizeof a, "%s_up.weight", t);
    snprintf(b, sizeof b, "%s.input_mix_weight_up.weight", f);
    mat(s, a, b, c->n_rank, wide);
    if (!inject) return;
    snprintf(a, sizeof a, "%s_inject.weight", t);
    snprintf(b, sizeof b, "%s.block_inject_weight.weight", f);
    mat(s, a, b, wide, c->n_hc);
}

static void tiled(rg_convert_item *it, rg_convert_tile how, uint64_t start, uint64_t unit) {
    if (!it) return;
    it->tile = how;
    it->tile_start = start;
    it->tile_unit = unit;
}

static void delta_net(scope *s) {
    const rg_hf_config *c = &s->p->cfg;
    const uint64_t E = c->n_embd, D = c->d_head, keys = 2 * (uint64_t)c->n_k_head * D;
    const uint64_t inner = (uint64_t)c->n_v_head * D, channels = keys + inner;
    tiled(mat(s, "attn_qkv.weight", "linear_attn.in_proj_qkv.weight", E, channels), RG_TILE_ROWS,
          keys, D);
    tiled(mat(s, "attn_gate.weight", "linear_attn.in_proj_z.weight", E, inner), RG_TILE_ROWS, 0, D);
    tiled(mat(s, "ssm_alpha.weight", "linear_attn.in_proj_a.weight", E, c->n_v_head), RG_TILE_ROWS,
          0, 1);
    tiled(mat(s, "ssm_beta.weight", "linear_attn.in_proj_b.weight", E, c->n_v_head), RG_TILE_ROWS,
          0, 1);
    rg_convert_item *a = mat(s, "ssm_a", "linear_attn.A_log", c->n_v_head, 0);
    tiled(a, RG_TILE_COLS, 0, 1);
    if (a) a->op = RG_OP_NEG_EXP;
    tiled(mat(s, "ssm_dt.bias", "linear_attn.dt_bias", c->n_v_head, 0), RG_TILE_COLS, 0, 1);
    rg_convert_item *conv =
        mat(s, "ssm_conv1d.weight", "linear_attn.conv1d.weight", c->conv, channels);
    tiled(conv, RG_TILE_ROWS, keys, D);
    if (conv) conv->vector = true;
    mat(s, "ssm_norm.weight", "linear_attn.norm.weight", D, 0);
    tiled(mat(s, "ssm_out.weight", "linear_attn.out_proj.weight", inner, E), RG_TILE_COLS, 0, D);
}

static void attention(scope *s) {
    const rg_hf_config *c = &s->p->cfg;
    const uint64_t E = c->n_embd, q = (uint64_t)c->n_head * c->head_dim;
    const uint64_t kv = (uint64_t)c->n_head_kv * c->head_dim;
    const uint64_t idx_q = (uint64_t)c->idx_heads * c->idx_dim;
    mat(s, "attn_q.weight", "self_attn.q_proj.weight", E, 2 * q);
    mat(s, "attn_k.weight", "self_attn.k_proj.weight", E, kv);
    mat(s, "attn_v.weight", "self_attn.v_proj.weight", E, kv);
    mat(s, "attn_output.weight", "self_attn.o_proj.weight", q, E);
    norm(s->p, to(s, "attn_q_norm.weight"), from(s, "self_attn.q_norm.weight"), c->head_dim);
    norm(s->p, to(s, "attn_k_norm.weight"), from(s, "self_attn.k_norm.weight"), c->head_dim);
    static const char both[] = "self_attn.indexer.index_qk_proj.weight";
    for (unsigned half = 0; half < 2; half++) {
        const uint64_t rows = half ? c->idx_dim : idx_q;
        rg_convert_item *it =
            add(s->p, to(s, half ? "indexer.k_proj.weight" : "indexer.q_proj.weight"), E, rows, 0);
        if (!it || !take_sources(s->p, it, 1) || !put_source(s->p, it, 0, from(s, both))) return;
        check_shape(s->p, it->src[0], idx_q + c->idx_dim, E);
        it->base = half ? idx_q : 0;
    }
    norm(s->p, to(s, "indexer.q_norm.weight"), from(s, "self_attn.indexer.q_layernorm.weight"),
         c->idx_dim);
    norm(s->p, to(s, "indexer.k_norm.weight"), from(s, "self_attn.indexer.k_layernorm.weight"),
         c->idx_dim);
}

/* One of gate, up and down of all experts. */
static void experts(scope *s, const char *t, const char *part, uint64_t cols, uint64_t rows) {
    rg_convert_plan *p = s->p;
    const uint32_t X = p->cfg.n_expert;
    const bool down = strcmp(part, "down_proj") == 0, up = strcmp(part, "up_proj") == 0;
    char name[96];
    rg_convert_item *it = add(p, to(s, t), cols, rows, X);
    if (!it) return;
    for (unsigned suffix = 0; suffix < 2; suffix++) { /* fused */
        snprintf(name, sizeof name, "mlp.experts.%s%s", down ? "down_proj" : "gate_up_proj",
                 suffix ? ".weight" : "");
        const rg_st_tensor *fused = find(p, "%s", from(s, name));
        if (!fused) continue;
        if (!take_sources(p, it, 1) || !put_source(p, it, 0, fused->name)) return;
        it->stride = down ? rows : 2 * rows;
        it->base = up ? rows : 0;
        check_shape(p, fused, X * it->stride, cols);
        return;
    }
    if (!take_sources(p, it, X)) return;
    for (uint32_t e = 0; e < X; e++) {
        snprintf(name, sizeof name, "mlp.experts.%u.%s.weight", e, part);
        if (!put_source(p, it, e, from(s, name))) return;
        check_shape(p, it->src[e], rows, cols);
    }
}

static void moe(scope *s) {
    const rg_hf_config *c = &s->p->cfg;
    const uint64_t E = c->n_embd, sh = c->n_ff_shared;
    mat(s, "ffn_gate_inp.weight", "mlp.gate.weight", E, c->n_expert);
    rg_convert_item *gate =
        mat(s, "ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", E, 0);
    if (gate) gate->vector = true;
    experts(s, "ffn_gate_exps.weight", "gate_proj", E, c->n_ff);
    experts(s, "ffn_up_exps.weight", "up_proj", E, c->n_ff);
    experts(s, "ffn_down_exps.weight", "down_proj", c->n_ff, E);
    mat(s, "ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight", E, sh);
    mat(s, "ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight", E, sh);
    mat(s, "ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight", sh, E);
}

static void ngram_layer(scope *s) {
    const rg_hf_config *c = &s->p->cfg;
    const uint64_t E = c->n_embd, wide = (uint64_t)c->n_hc * E;
    mat(s, "ple_key.weight", "ple.key_proj.weight", E, wide);
    mat(s, "ple_value.weight", "ple.value_proj.weight", E, E);
    norm(s->p, to(s, "ple_norm_key.weight"), from(s, "ple.norm_key.weight"), wide);
    norm(s->p, to(s, "ple_norm_query.weight"), from(s, "ple.norm_query.weight"), wide);
    norm(s->p, to(s, "ple_norm_conv.weight"), from(s, "ple.norm_conv.weight"), wide);
    rg_convert_item *it = mat(s, "ple_conv1d.weight", "ple.conv1d.weight", c->ngram_conv, wide);
    if (it) it->vector = true;
}

/* The n-gram table: whole, or shards in numeric order. */
static void ngram_table(rg_convert_plan *p) {
    const rg_hf_config *c = &p->cfg;
    const uint64_t cols = c->n_embd / (c->ngram_heads * (c->ngram - 1));
    char base[RG_ST_NAME_MAX], name[RG_ST_NAME_MAX + 32];
    snprintf(base, sizeof base, "%slayers.%u.ple.ple_embedding.ngram_embedding", p->prefix,
             c->ple_layer);
    snprintf(name, sizeof name, "%s.weight", base);
    const rg_st_tensor *whole = find(p, "%s", name);
    uint32_t n = 0;
    uint64_t rows = whole ? whole->rows : 0, per = rows;
    for (; !whole; n++) {
        const rg_st_tensor *shard = find(p, "%s.shard_%u.weight", base, n);
        if (!shard) break;
        if (n == 0) per = shard->rows;
        check_shape(p, shard, per, cols);
        rows += shard->rows;
    }
    rg_convert_item *it = add(p, "per_layer_token_embd.weight", cols, rows, 0);
    if (!it) return;
    if (!whole && n == 0) {
        fail(p, RG_FORMAT, "is missing, whole and in shards", name);
        return;
    }
    it->per = it->stride = per;
    if (!take_sources(p, it, whole ? 1 : n)) return;
    if (whole) {
        if (put_source(p, it, 0, name)) check_shape(p, whole, rows, cols);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s.shard_%u.weight", base, i);
        if (!put_source(p, it, i, name)) return;
    }
}

static void draft(scope *s, const char *prefix) {
    rg_convert_plan *p = s->p;
    const uint64_t E = p->cfg.n_embd;
    char name[RG_ST_NAME_MAX];
    snprintf(name, sizeof name, "%spre_fc_norm_embedding.weight", prefix);
    norm(p, to(s, "nextn.enorm.weight"), name, E);
    snprintf(name, sizeof name, "%spre_fc_norm_hidden.weight", prefix);
    norm(p, to(s, "nextn.hnorm.weight"), name, (uint64_t)p->cfg.n_hc * E);
    rg_convert_item *it = add(p, to(s, "nextn.eh_proj.weight"), 2 * E, E, 0);
    snprintf(name, sizeof name, "%sfc_embedding.weight", prefix);
    if (!it || !take_sources(p, it, 1) || !put_source(p, it, 0, name)) return;
    check_shape(p, it->src[0], E, E);
    it->beside = find(p, "%sfc_hidden.weight", prefix);
    if (!it->beside) {
        fail(p, RG_FORMAT, "is missing", "mtp.fc_hidden.weight");
        return;
    }
    check_shape(p, it->beside, E, E);
    if (p->rc == RG_OK) p->rc = rg_checkpoint_scale(p->ckpt, it->beside, &it->beside_scale, p->st);
    snprintf(s->from, sizeof s->from, "%s", prefix);
    hyper(s, "nextn.hc_head", "hyper_connection_mixer", false);
}

static void layer(rg_convert_plan *p, uint32_t i, const char *source_prefix, bool attn, bool ple) {
    scope s = {.p = p};
    snprintf(s.to, sizeof s.to, "blk.%u.", i);
    snprintf(s.from, sizeof s.from, "%s", source_prefix);
    hyper(&s, "hc_attn", "attn_hyper_connection", true);
    hyper(&s, "hc_ffn", "mlp_hyper_connection", true);
    if (attn) {
        attention(&s);
    } else {
        delta_net(&s);
    }
    if (ple) ngram_layer(&s);
    moe(&s);
}

static void list_all(rg_convert_plan *p) {
    const rg_hf_config *c = &p->cfg;
    scope s = {.p = p};
    char prefix[96];
    snprintf(s.from, sizeof s.from, "%s", p->prefix);
    mat(&s, "token_embd.weight", "embed_tokens.weight", c->n_embd, c->n_vocab);
    if (!c->tied) plain(p, "output.weight", "lm_head.weight", c->n_embd, c->n_vocab);
    hyper(&s, "output_hc", "hyper_connection_mixer", false);
    if (c->ple_layer != UINT32_MAX) ngram_table(p);
    for (uint32_t i = 0; i < c->n_layer && p->rc == RG_OK; i++) {
        snprintf(prefix, sizeof prefix, "%slayers.%u.", p->prefix, i);
        layer(p, i, prefix, c->is_attn[i], i == c->ple_layer);
    }
    if (c->n_mtp) {
        layer(p, c->n_layer, "mtp.layers.0.", true, false);
        scope d = {.p = p};
        snprintf(d.to, sizeof d.to, "blk.%u.", c->n_layer);
        draft(&d, "mtp.");
    }
}

/* ---- types ----------------------------------------------------------------------------------- */

static rg_type source_type(const rg_convert_item *it) {
    switch (it->src[0]->type) {
    case RG_ST_F32:
        return RG_TYPE_F32;
    case RG_ST_F16:
        return RG_TYPE_F16;
    default:
        return RG_TYPE_BF16;
    }
}

static void pick_type(rg_convert_plan *p, rg_convert_item *it) {
    const rg_tensor_role role = rg_role_of(it->out.name, it->out.n_dims);
    rg_type type = role == RG_ROLE_KEEP ? RG_TYPE_F32
                   : p->mix             ? p->mix->types[role]
                                        : source_type(it);
    (void)rg_type_rules_match(p->rules, it->out.name, &type);
    if (it->vector) type = RG_TYPE_F32;
    it->out.type = rg_type_fit(type, it->out.ne[0]);
    it->out.size_bytes = rg_out_tensor_bytes(&it->out);
}

rg_code rg_convert_list(rg_convert_plan *p, rg_status *st) {
    p->st = st;
    p->rc = RG_OK;
    list_all(p);
    for (uint32_t i = 0; i < p->n && p->rc == RG_OK; i++) {
        pick_type(p, &p->items[i]);
        if (!p->items[i].out.size_bytes) fail(p, RG_FORMAT, "is too large", p->items[i].out.name);
    }
    return p->rc;
}
