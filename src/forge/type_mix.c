#include "forge/type_mix.h"

#include <regex.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "quant/quant.h"

/* ---- roles ----------------------------------------------------------------------------------- */

static const struct {
    const char *part;
    rg_tensor_role role;
} PARTS[] = {
    {"_norm", RG_ROLE_KEEP},
    {"conv1d", RG_ROLE_KEEP},
    {"_inject", RG_ROLE_KEEP},
    {"ffn_gate_inp", RG_ROLE_KEEP},
    {"ssm_alpha", RG_ROLE_KEEP},
    {"ssm_beta", RG_ROLE_KEEP},
    {"ffn_gate_exps", RG_ROLE_EXPERT_IN},
    {"ffn_up_exps", RG_ROLE_EXPERT_IN},
    {"ffn_gate_up_exps", RG_ROLE_EXPERT_IN},
    {"ffn_down_exps", RG_ROLE_EXPERT_OUT},
    {"per_layer_token_embd", RG_ROLE_NGRAM},
    {"token_embd", RG_ROLE_EMBED},
    {"nextn.embed_tokens", RG_ROLE_EMBED},
    {"shared_head_head", RG_ROLE_OUTPUT},
    {"hc_attn_", RG_ROLE_HYPER},
    {"hc_ffn_", RG_ROLE_HYPER},
    {"hc_head_", RG_ROLE_HYPER},
    {"output_hc_", RG_ROLE_HYPER},
};

rg_tensor_role rg_role_of(const char *name, uint32_t n_dims) {
    if (n_dims < 2) return RG_ROLE_KEEP;
    if (strcmp(name, "output.weight") == 0) return RG_ROLE_OUTPUT;
    for (size_t i = 0; i < RG_ARRAY_LEN(PARTS); i++) {
        if (strstr(name, PARTS[i].part)) return PARTS[i].role;
    }
    return RG_ROLE_TRUNK;
}

/* ---- mixes ----------------------------------------------------------------------------------- */

#define T(name) RG_TYPE_##name
/* keep is not used; then gate and up, down, n-gram table, embedding, output, hyper, trunk. */
#define MIX(id, file, in, out, ngram, embed, head, hyper, trunk)                                   \
    {                                                                                              \
        id, file, {                                                                                \
            T(F32), T(in), T(out), T(ngram), T(embed), T(head), T(hyper), T(trunk)                 \
        }                                                                                          \
    }
/* The same type wherever it fits. */
#define ALL(id, file, t) MIX(id, file, t, t, t, t, t, t, t)

static const rg_type_mix MIXES[] = {
    ALL("f32", 0, F32),
    ALL("f16", 1, F16),
    ALL("bf16", 32, BF16),
    ALL("q8_0", 7, Q8_0),
    MIX("q6_K", 18, Q6_K, Q6_K, Q8_0, Q8_0, Q8_0, Q8_0, Q8_0),
    MIX("q5_K", 17, Q5_K, Q5_K, Q5_0, Q6_K, Q6_K, Q8_0, Q6_K),
    MIX("q5_1", 9, Q5_1, Q5_1, Q5_1, Q8_0, Q8_0, Q8_0, Q8_0),
    MIX("q5_0", 8, Q5_0, Q5_0, Q5_0, Q8_0, Q8_0, Q8_0, Q8_0),
    MIX("q4_K", 15, Q4_K, Q4_K, IQ4_NL, Q6_K, Q6_K, Q8_0, Q6_K),
    MIX("q4_0", 2, Q4_0, Q4_0, Q4_0, Q8_0, Q8_0, Q8_0, Q8_0),
    MIX("q4_1", 3, Q4_1, Q4_1, Q4_1, Q8_0, Q8_0, Q8_0, Q8_0),
    MIX("iq4_nl", 25, IQ4_NL, IQ4_NL, IQ4_NL, Q8_0, Q8_0, Q8_0, Q8_0),
    MIX("iq4_xs", 30, IQ4_XS, IQ4_XS, IQ4_NL, Q6_K, Q6_K, Q8_0, Q6_K),
    MIX("mxfp4", 38, MXFP4, MXFP4, IQ4_NL, Q8_0, Q8_0, Q8_0, Q8_0),
    MIX("q3_K", 12, Q3_K, IQ4_NL, IQ4_NL, Q5_K, Q6_K, Q8_0, Q6_K),
    MIX("iq3_s", 26, IQ3_S, IQ4_NL, IQ4_NL, Q5_K, Q6_K, Q8_0, Q6_K),
    MIX("iq3_xxs", 23, IQ3_XXS, IQ4_NL, IQ4_NL, Q5_K, Q6_K, Q8_0, Q6_K),
    MIX("q2_K", 10, Q2_K, IQ4_NL, IQ4_NL, Q5_K, Q6_K, Q8_0, Q6_K),
    MIX("iq2_s", 28, IQ2_S, IQ4_NL, IQ4_NL, Q5_K, Q6_K, Q8_0, Q6_K),
    MIX("iq2_xs", 20, IQ2_XS, Q2_0, IQ4_NL, Q5_K, Q6_K, Q8_0, Q5_K),
    MIX("iq2_xxs", 19, IQ2_XXS, Q2_0, IQ4_NL, Q5_K, Q6_K, Q8_0, Q5_K),
    MIX("q2_0", 20, Q2_0, Q2_0, IQ4_NL, Q5_K, Q6_K, Q8_0, Q5_K),
    MIX("iq1_s", 24, IQ1_S, Q2_0, IQ4_NL, Q5_K, Q6_K, Q8_0, Q5_K),
};

const rg_type_mix *rg_type_mix_find(const char *name) {
    for (size_t i = 0; i < RG_ARRAY_LEN(MIXES); i++) {
        if (strcasecmp(MIXES[i].name, name) == 0) return &MIXES[i];
    }
    return NULL;
}

const rg_type_mix *rg_type_mix_at(uint32_t i) {
    return i < RG_ARRAY_LEN(MIXES) ? &MIXES[i] : NULL;
}

/* ---- fallback -------------------------------------------------------------------------------- */

double rg_type_bits(rg_type type) {
    const rg_type_info *info = rg_type_get((uint32_t)type);
    return 8.0 * info->block_bytes / info->block_elems;
}

rg_type rg_type_fit(rg_type wanted, uint64_t cols) {
    static const struct {
        rg_type type;
        double up_to; /* bits of the wanted type that it stands for */
    } narrow[] = {{RG_TYPE_Q2_0, 2.4},
                  {RG_TYPE_IQ4_NL, 4.5},
                  {RG_TYPE_Q5_0, 5.5},
                  {RG_TYPE_Q5_1, 6.0},
                  {RG_TYPE_Q8_0, 8.5}};
    if (cols % rg_type_get((uint32_t)wanted)->block_elems == 0) return wanted;
    for (size_t i = 0; i < RG_ARRAY_LEN(narrow); i++) {
        if (rg_type_bits(wanted) > narrow[i].up_to) continue;
        if (cols % rg_type_get((uint32_t)narrow[i].type)->block_elems == 0) return narrow[i].type;
    }
    return RG_TYPE_F16;
}

/* ---- rules ----------------------------------------------------------------------------------- */

#define PATTERN_MAX 256u

typedef struct rule {
    regex_t regex;
    bool compiled;
    rg_type type;
} rule;

struct rg_type_rules {
    rule *rules;
    uint32_t n;
};

static rg_code compile(rule *r, const char *text, rg_status *st) {
    const char *eq = strrchr(text, '=');
    char pattern[PATTERN_MAX];
    if (!eq || eq == text || (size_t)(eq - text) >= sizeof pattern) {
        return rg_fail(st, RG_INVALID, "'%.80s' is not of the form REGEX=TYPE", text);
    }
    memcpy(pattern, text, (size_t)(eq - text));
    pattern[eq - text] = 0;
    if (!rg_type_by_name(eq + 1, &r->type) || !rg_pack_can(r->type)) {
        return rg_fail(st, RG_INVALID, "rule '%.80s': no quantizer for type '%.20s'", text, eq + 1);
    }
    const int err = regcomp(&r->regex, pattern, REG_EXTENDED | REG_NOSUB);
    if (err) {
        char why[96];
        regerror(err, &r->regex, why, sizeof why);
        return rg_fail(st, err == REG_ESPACE ? RG_NOMEM : RG_INVALID, "rule '%.80s': %s", text,
                       why);
    }
    r->compiled = true;
    return RG_OK;
}

rg_code rg_type_rules_create(rg_type_rules **out, const char *const *texts, uint32_t n,
                             rg_status *st) {
    *out = NULL;
    rg_type_rules *r = rg_alloc(1, sizeof *r, st);
    if (!r) return RG_NOMEM;
    r->rules = rg_alloc(n, sizeof *r->rules, st);
    rg_code rc = r->rules ? RG_OK : RG_NOMEM;
    for (r->n = 0; r->n < n && rc == RG_OK; r->n++)
        rc = compile(&r->rules[r->n], texts[r->n], st);
    if (rc != RG_OK) {
        rg_type_rules_destroy(r);
        return rc;
    }
    *out = r;
    return RG_OK;
}

bool rg_type_rules_match(const rg_type_rules *r, const char *name, rg_type *out) {
    for (uint32_t i = 0; i < r->n; i++) {
        if (regexec(&r->rules[i].regex, name, 0, NULL, 0) != 0) continue;
        *out = r->rules[i].type;
        return true;
    }
    return false;
}

void rg_type_rules_destroy(rg_type_rules *r) {
    if (!r) return;
    for (uint32_t i = 0; i < r->n; i++) {
        if (r->rules[i].compiled) regfree(&r->rules[i].regex);
    }
    rg_free(r->rules);
    rg_free(r);
}
