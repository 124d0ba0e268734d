/* Shapes: presets, fields by name, and what must agree before a file can be valid. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "forge/synth_parts.h"

typedef struct field {
    const char *name, *meaning;
    size_t offset;
    uint32_t min, max;
} field;

#define F(name, member, min, max, meaning)                                                         \
    { name, meaning, offsetof(rg_synth_shape, member), min, max }

// clang-format off
static const field FIELDS[] = {
    F("layers",        n_layer,       1, RG_LAYERS_MAX - 1,    "trunk layers"),
    F("mtp",           mtp,           0, 1,                    "draft blocks"),
    F("mtp_halves",    mtp_halves,    0, 1,                    "their projection in two tensors"),
    F("interval",      interval,      1, RG_LAYERS_MAX,        "every n-th layer is attention"),
    F("ctx",           n_ctx,         1, RG_CTX_MAX,           "context length"),
    F("hidden",        n_embd,        8, RG_EMBD_MAX,          "width of a residual stream"),
    F("vocab",         n_vocab,       RG_SYNTH_VOCAB_MIN, RG_VOCAB_MAX, "tokens"),
    F("tied",          tied,          0, 1,                    "output shares the embedding"),
    F("heads",         n_head,        1, RG_HEADS_MAX,         "query heads"),
    F("kv_heads",      n_head_kv,     1, RG_HEADS_MAX,         "key and value heads"),
    F("head_dim",      head_dim,      2, RG_HEAD_DIM_MAX,      "size of an attention head"),
    F("rot",           n_rot,         2, RG_HEAD_DIM_MAX,      "rotated values of a head"),
    F("rope_base",     rope_base,     2, 1000000000,           "base of the rotation"),
    F("ssm_conv",      ssm_conv,      1, RG_CONV_MAX,          "taps of the delta net"),
    F("ssm_dim",       ssm_dim,       1, RG_HEAD_DIM_MAX,      "size of a delta net head (D)"),
    F("k_heads",       n_k_head,      1, RG_HEADS_MAX,         "delta net key heads (Hk)"),
    F("v_heads",       n_v_head,      1, RG_HEADS_MAX,         "delta net value heads (Hv)"),
    F("experts",       n_expert,      1, RG_EXPERT_MAX,        "experts of a layer"),
    F("used",          n_used,        1, RG_EXPERT_USED_MAX,   "experts a token uses"),
    F("ff",            n_ff,          1, RG_FF_MAX,            "rows of an expert's gate"),
    F("ff_shared",     n_ff_shared,   1, RG_FF_MAX,            "rows of the shared expert's gate"),
    F("fused",         fused,         0, 1,                    "gate and up in one tensor"),
    F("hc",            n_hc,          2, RG_HC_MAX,            "residual streams"),
    F("rank",          n_hc_rank,     1, RG_HC_RANK_MAX,       "rank of the stream gates"),
    F("idx_heads",     idx_heads,     1, RG_HEADS_MAX,         "indexer heads"),
    F("idx_dim",       idx_dim,       2, RG_HEAD_DIM_MAX,      "size of an indexer head"),
    F("idx_budget",    idx_budget,    1, RG_IDX_BUDGET_MAX,    "tokens the indexer keeps"),
    F("idx_ratio",     idx_ratio,     0, RG_IDX_RATIO_MAX,     "tokens of a block, 0 = dense"),
    F("ngram",         ngram,         0, RG_NGRAM_MAX,         "n of the n-gram memory, 0 = none"),
    F("ngram_heads",   ngram_heads,   1, RG_NGRAM_HEADS_MAX,   "heads of each n"),
    F("ngram_base",    ngram_base,    2, RG_PLE_ROWS_MAX,      "least rows of a head"),
    F("ngram_divisor", ngram_divisor, 1, 1u << 20,             "rows are padded to a multiple"),
    F("ngram_seed",    ngram_seed,    0, UINT32_MAX,           "seed of the hash"),
    F("ngram_conv",    ngram_conv,    1, RG_CONV_MAX,          "taps of the memory"),
    F("ngram_layer",   ngram_layer,   0, RG_LAYERS_MAX - 1,    "layer that adds it, from 0"),
};

static const rg_synth_shape RELEASE = {
    .n_layer = 48, .interval = 4, .n_ctx = 262144, .n_embd = 2560, .n_vocab = 248320,
    .n_head = 24, .n_head_kv = 2, .head_dim = 256, .n_rot = 64, .rope_base = 10000000,
    .ssm_conv = 4, .ssm_dim = 128, .n_k_head = 16, .n_v_head = 48,
    .n_expert = 512, .n_used = 10, .n_ff = 640, .n_ff_shared = 640, .n_hc = 4, .n_hc_rank = 320,
    .idx_heads = 4, .idx_dim = 128, .idx_budget = 2048, .idx_ratio = 4,
    .ngram = 3, .ngram_heads = 8, .ngram_base = 20000000, .ngram_divisor = 128, .ngram_seed = 1234,
    .ngram_conv = 4, .ngram_layer = 1,
};

static const rg_synth_shape TINY = {
    .n_layer = 4, .interval = 4, .n_ctx = 4096, .n_embd = 64, .n_vocab = 512,
    .n_head = 4, .n_head_kv = 2, .head_dim = 32, .n_rot = 8, .rope_base = 10000,
    .ssm_conv = 4, .ssm_dim = 32, .n_k_head = 2, .n_v_head = 6,
    .n_expert = 8, .n_used = 3, .n_ff = 32, .n_ff_shared = 32, .n_hc = 4, .n_hc_rank = 16,
    .idx_heads = 8, .idx_dim = 32, .idx_budget = 2048, .idx_ratio = 4,
    .ngram = 3, .ngram_heads = 4, .ngram_base = 101, .ngram_divisor = 16, .ngram_seed = 1234,
    .ngram_conv = 4, .ngram_layer = 1,
};

static const rg_synth_shape DEMO = {
    .n_layer = 8, .mtp = 1, .interval = 4, .n_ctx = 4096, .n_embd = 256, .n_vocab = 4096,
    .n_head = 4, .n_head_kv = 2, .head_dim = 64, .n_rot = 16, .rope_base = 100000,
    .ssm_conv = 4, .ssm_dim = 64, .n_k_head = 2, .n_v_head = 4,
    .n_expert = 64, .n_used = 6, .n_ff = 64, .n_ff_shared = 64, .n_hc = 4, .n_hc_rank = 32,
    .idx_heads = 8, .idx_dim = 32, .idx_budget = 128, .idx_ratio = 4,
    .ngram = 3, .ngram_heads = 4, .ngram_base = 8209, .ngram_divisor = 128, .ngram_seed = 1234,
    .ngram_conv = 4, .ngram_layer = 1,
};
// clang-format on

rg_code rg_synth_preset(rg_synth_shape *out, const char *name, rg_status *st) {
    static const struct {
        const char *name;
        const rg_synth_shape *shape;
    } known[] = {{"release", &RELEASE}, {"tiny", &TINY}, {"demo", &DEMO}};
    for (size_t i = 0; i < RG_ARRAY_LEN(known); i++) {
        if (strcmp(name, known[i].name) != 0) continue;
        *out = *known[i].shape;
        return RG_OK;
    }
    return rg_fail(st, RG_INVALID, "unknown preset '%s', known: release, tiny, demo", name);
}

static uint32_t *member(rg_synth_shape *s, const field *f) {
    return (uint32_t *)(void *)((char *)s + f->offset);
}

static uint32_t value_of(const rg_synth_shape *s, const field *f) {
    uint32_t v;
    memcpy(&v, (const char *)s + f->offset, sizeof v);
    return v;
}

rg_code rg_synth_set(rg_synth_shape *shape, const char *assignment, rg_status *st) {
    const char *eq = strchr(assignment, '=');
    if (!eq) return rg_fail(st, RG_INVALID, "'%s' is not of the form key=value", assignment);
    const size_t len = (size_t)(eq - assignment);
    for (size_t i = 0; i < RG_ARRAY_LEN(FIELDS); i++) {
        const field *f = &FIELDS[i];
        if (strlen(f->name) != len || memcmp(f->name, assignment, len) != 0) continue;
        char *end = NULL;
        errno = 0;
        const unsigned long long v = strtoull(eq + 1, &end, 10);
        if (eq[1] < '0' || eq[1] > '9' || *end || errno || v < f->min || v > f->max) {
            return rg_fail(st, RG_INVALID, "%s: '%s' is not a number from %u to %u", f->name,
                           eq + 1, f->min, f->max);
        }
        *member(shape, f) = (uint32_t)v;
        return RG_OK;
    }
    return rg_fail(st, RG_INVALID, "unknown field '%.*s'", (int)(len < 64 ? len : 64), assignment);
}

const char *rg_synth_field_name(uint32_t i, const char **meaning) {
    if (i >= RG_ARRAY_LEN(FIELDS)) return NULL;
    if (meaning) *meaning = FIELDS[i].meaning;
    return FIELDS[i].name;
}

bool rg_synth_is_attn(const rg_synth_shape *s, uint32_t layer) {
    return layer >= s->n_layer || (layer + 1) % s->interval == 0;
}

/* Fields that must divide or bound each other. */
static rg_code check_pairs(const rg_synth_shape *s, rg_status *st) {
    const struct {
        bool bad;
        const char *text;
        uint32_t a, b;
    } rules[] = {
        {s->n_used > s->n_expert, "used=%u exceeds experts=%u", s->n_used, s->n_expert},
        {s->n_head % s->n_head_kv != 0, "heads=%u is no multiple of kv_heads=%u", s->n_head,
         s->n_head_kv},
        {s->n_v_head % s->n_k_head != 0, "v_heads=%u is no multiple of k_heads=%u", s->n_v_head,
         s->n_k_head},
        {s->n_rot % 2 != 0, "rot=%u is odd (head_dim=%u)", s->n_rot, s->head_dim},
        {s->n_rot > s->head_dim, "rot=%u exceeds head_dim=%u", s->n_rot, s->head_dim},
        {s->n_rot > s->idx_dim, "rot=%u exceeds idx_dim=%u", s->n_rot, s->idx_dim},
        {s->idx_ratio && s->idx_budget % s->idx_ratio != 0,
         "idx_budget=%u is no multiple of idx_ratio=%u", s->idx_budget, s->idx_ratio},
        {(uint64_t)s->n_head * s->head_dim > RG_WIDTH_MAX, "heads=%u x head_dim=%u is too wide",
         s->n_head, s->head_dim},
        {(uint64_t)s->n_v_head * s->ssm_dim > RG_WIDTH_MAX, "v_heads=%u x ssm_dim=%u is too wide",
         s->n_v_head, s->ssm_dim},
        {(uint64_t)s->idx_heads * s->idx_dim > RG_WIDTH_MAX,
         "idx_heads=%u x idx_dim=%u is too wide", s->idx_heads, s->idx_dim},
    };
    for (size_t i = 0; i < RG_ARRAY_LEN(rules); i++) {
        if (!rules[i].bad) continue;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        return rg_fail(st, RG_INVALID, rules[i].text, rules[i].a, rules[i].b);
#pragma GCC diagnostic pop
    }
    return RG_OK;
}

static rg_code check_ngram(const rg_synth_shape *s, rg_status *st) {
    if (s->ngram == 0) return RG_OK;
    if (s->ngram == 1) return rg_fail(st, RG_INVALID, "ngram=1: 0 or at least 2");
    const uint32_t heads = s->ngram_heads * (s->ngram - 1);
    if (heads > RG_NGRAM_HEADS_MAX) {
        return rg_fail(st, RG_INVALID, "ngram_heads=%u x %u exceeds %d heads", s->ngram_heads,
                       s->ngram - 1, RG_NGRAM_HEADS_MAX);
    }
    if (s->n_embd % heads != 0) {
        return rg_fail(st, RG_INVALID, "hidden=%u is no multiple of the %u n-gram heads", s->n_embd,
                       heads);
    }
    if (s->ngram_layer >= s->n_layer) {
        return rg_fail(st, RG_INVALID, "ngram_layer=%u lies outside the %u layers", s->ngram_layer,
                       s->n_layer);
    }
    return RG_OK;
}

rg_code rg_synth_check_shape(const rg_synth_shape *s, rg_status *st) {
    for (size_t i = 0; i < RG_ARRAY_LEN(FIELDS); i++) {
        const uint32_t v = value_of(s, &FIELDS[i]);
        if (v >= FIELDS[i].min && v <= FIELDS[i].max) continue;
        return rg_fail(st, RG_INVALID, "%s=%u lies outside %u to %u", FIELDS[i].name, v,
                       FIELDS[i].min, FIELDS[i].max);
    }
    RG_TRY(check_pairs(s, st));
    return check_ngram(s, st);
}
