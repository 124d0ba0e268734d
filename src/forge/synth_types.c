/* The type of each tensor: rules of the user, then defaults like those of published files, then the
 * fallback for rows that a type cannot hold.
 *
 * Fallback: a type of at most 4.5 bits a weight becomes iq4_nl, a wider one q8_0; rows that are no
 * multiple of 32 become f16. Vectors and convolution taps are always f32.
 */
#include <regex.h>
#include <string.h>

#include "forge/synth_parts.h"

/* Published mixes: low bits for gate and up, iq4_nl for what has short rows, q8_0 for the trunk. */
static const struct {
    const char *part;
    rg_type type;
} MIX[] = {
    {"ffn_gate_exps", RG_TYPE_IQ2_XS},    {"ffn_up_exps", RG_TYPE_IQ2_XS},
    {"ffn_gate_up_exps", RG_TYPE_IQ2_XS}, {"ffn_down_exps", RG_TYPE_IQ4_NL},
    {"per_layer_token", RG_TYPE_IQ4_NL},  {"token_embd", RG_TYPE_Q4_K},
    {"output.weight", RG_TYPE_Q6_K},
};

typedef struct rule {
    regex_t regex;
    bool compiled;
    rg_type type;
} rule;

static rg_code weight_type(const char *name, rg_type *out, rg_status *st) {
    if (!rg_type_by_name(name, out)) return rg_fail(st, RG_INVALID, "unknown type '%s'", name);
    if (rg_type_get((uint32_t)*out)->use != RG_USE_WEIGHT)
        return rg_fail(st, RG_INVALID, "type '%s' cannot hold weights", name);
    return RG_OK;
}

static rg_code compile(rule *r, const char *text, rg_status *st) {
    const char *eq = strrchr(text, '=');
    if (!eq || eq == text)
        return rg_fail(st, RG_INVALID, "'%s' is not of the form REGEX=TYPE", text);
    if ((size_t)(eq - text) >= RG_SYNTH_PATTERN_MAX) {
        return rg_fail(st, RG_INVALID, "a type rule has a pattern of %zu bytes, the limit is %u",
                       (size_t)(eq - text), RG_SYNTH_PATTERN_MAX - 1);
    }
    char pattern[RG_SYNTH_PATTERN_MAX];
    memcpy(pattern, text, (size_t)(eq - text));
    pattern[eq - text] = '\0';
    rg_code rc = weight_type(eq + 1, &r->type, st);
    if (rc != RG_OK) return rg_context(st, rc, "type rule '%s'", text);
    const int err = regcomp(&r->regex, pattern, REG_EXTENDED | REG_NOSUB);
    if (err) {
        char why[96];
        regerror(err, &r->regex, why, sizeof why);
        return rg_fail(st, err == REG_ESPACE ? RG_NOMEM : RG_INVALID, "type rule '%s': %s", pattern,
                       why);
    }
    r->compiled = true;
    return RG_OK;
}

static rg_type fit(rg_type type, uint64_t cols) {
    const rg_type_info *info = rg_type_get((uint32_t)type);
    if (cols % info->block_elems == 0) return type;
    if (cols % 32 != 0) return RG_TYPE_F16;
    /* bytes / elements <= 4.5 bits */
    return info->block_bytes * 16 <= info->block_elems * 9 ? RG_TYPE_IQ4_NL : RG_TYPE_Q8_0;
}

static rg_type pick(const rg_synth_tensor *t, const rule *rules, uint32_t n, const rg_type *fixed) {
    if (!t->is_matrix) return RG_TYPE_F32;
    for (uint32_t i = 0; i < n; i++) {
        if (regexec(&rules[i].regex, t->name, 0, NULL, 0) == 0) return rules[i].type;
    }
    if (t->is_small) return RG_TYPE_F32;
    if (fixed) return *fixed;
    for (size_t i = 0; i < RG_ARRAY_LEN(MIX); i++) {
        if (strstr(t->name, MIX[i].part)) return MIX[i].type;
    }
    return RG_TYPE_Q8_0;
}

/* What is made of chosen values needs a type that can take them. */
static rg_synth_kind fit_kind(rg_synth_kind kind, rg_type type) {
    const bool takes_values =
        type == RG_TYPE_F32 || type == RG_TYPE_F16 || type == RG_TYPE_BF16 || type == RG_TYPE_Q8_0;
    const bool chosen = kind == RG_SYNTH_BETA || kind == RG_SYNTH_ROUTER;
    return chosen && !takes_values ? RG_SYNTH_RANDOM : kind;
}

static rg_code set_types(rg_synth_plan *p, const rule *rules, uint32_t n, const rg_type *fixed,
                         rg_status *st) {
    for (uint32_t i = 0; i < p->n_tensor; i++) {
        rg_synth_tensor *t = &p->tensors[i];
        t->type = fit(pick(t, rules, n, fixed), t->ne[0]);
        t->kind = fit_kind(t->kind, t->type);
        t->row_bytes = rg_row_bytes(t->type, (size_t)t->ne[0]);
        t->rows = 1;
        for (uint32_t d = 1; d < t->n_dims; d++)
            t->rows *= t->ne[d];
        if (t->row_bytes == 0 || t->rows > INT64_MAX / t->row_bytes) {
            return rg_fail(st, RG_INVALID, "tensor '%s': %llu rows of %llu values are too many",
                           t->name, (unsigned long long)t->rows, (unsigned long long)t->ne[0]);
        }
        if (t->row_bytes > p->row_bytes_max) p->row_bytes_max = t->row_bytes;
    }
    return RG_OK;
}

rg_code rg_synth_pick_types(rg_synth_plan *p, rg_status *st) {
    const rg_synth_options *opt = p->opt;
    rg_code rc = RG_OK;
    rg_type fixed = RG_TYPE_Q8_0;
    if (opt->n_type_rules > RG_SYNTH_RULES_MAX) {
        return rg_fail(st, RG_INVALID, "%u type rules, the limit is %u", opt->n_type_rules,
                       RG_SYNTH_RULES_MAX);
    }
    rule *rules = rg_alloc(opt->n_type_rules, sizeof *rules, st);
    if (!rules) return RG_NOMEM;
    for (uint32_t i = 0; i < opt->n_type_rules; i++)
        RG_GO(compile(&rules[i], opt->type_rules[i], st));
    if (opt->type_default) RG_GO(weight_type(opt->type_default, &fixed, st));
    RG_GO(set_types(p, rules, opt->n_type_rules, opt->type_default ? &fixed : NULL, st));
cleanup:
    for (uint32_t i = 0; i < opt->n_type_rules; i++) {
        if (rules[i].compiled) regfree(&rules[i].regex);
    }
    rg_free(rules);
    return rc;
}
