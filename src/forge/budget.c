/* quantize --target-bytes: which tensor gets which type when the file may have B bytes.
 *
 * Cost of a choice = factor x relative error, where the relative error is that of what the matrix
 * gives: sum w (x - xhat)^2 / sum w x^2 with the importance as w, measured on a sample of rows with
 * the real packers; the factor is the sensitivity of the group of tensors (divergence of the whole
 * model for each unit of relative error), 1 without a table. Costs are taken to add up. The choice
 * minimises their sum under the limit: for each tensor only the lower convex hull of (bytes, cost)
 * is looked at; from the smallest types on, the step of the steepest descent a byte is taken again
 * and again, as long as it fits. That is the Lagrangian optimum up to the last step.
 */
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "forge/quantize_parts.h"

#define CHOICES_MAX 24u
#define FACTORS_MAX 4096u
#define PATTERN_MAX 256u
#define TABLE_MAX   ((size_t)4 << 20)

typedef struct option {
    rg_type type;
    uint64_t bytes;
    double cost;
} option;

typedef struct unit {
    option hull[CHOICES_MAX]; /* ascending bytes, descending cost, convex */
    uint32_t n, at;
} unit;

typedef struct factor {
    regex_t regex;
    double value;
} factor;

typedef struct factors {
    factor *list;
    uint32_t n;
} factors;

/* Narrow to wide; those that the rows do not fit are left out. */
static const rg_type MATRIX_TYPES[] = {
    RG_TYPE_IQ1_S, RG_TYPE_IQ2_XXS, RG_TYPE_Q2_0,  RG_TYPE_IQ2_XS, RG_TYPE_IQ2_S, RG_TYPE_IQ3_XXS,
    RG_TYPE_IQ3_S, RG_TYPE_IQ4_XS,  RG_TYPE_MXFP4, RG_TYPE_IQ4_NL, RG_TYPE_Q4_K,  RG_TYPE_Q5_K,
    RG_TYPE_Q5_0,  RG_TYPE_Q5_1,    RG_TYPE_Q6_K,  RG_TYPE_Q8_0,   RG_TYPE_BF16};

/* ---- table of factors ------------------------------------------------------------------------ */

static rg_code add_factor(factors *f, const char *path, char *line, unsigned number,
                          rg_status *st) {
    char *tab = strchr(line, '\t'), *end = NULL;
    if (!tab || tab == line || f->n == FACTORS_MAX) {
        return rg_fail(st, RG_FORMAT, "%s: line %u is not REGEX<tab>FACTOR", path, number);
    }
    *tab = 0;
    factor *x = &f->list[f->n];
    x->value = strtod(tab + 1, &end);
    if (end == tab + 1 || !(x->value >= 0 && x->value < 1e12)) {
        return rg_fail(st, RG_FORMAT, "%s: line %u: '%.40s' is no factor", path, number, tab + 1);
    }
    if (regcomp(&x->regex, line, REG_EXTENDED | REG_NOSUB) != 0) {
        return rg_fail(st, RG_FORMAT, "%s: line %u: '%.80s' is no regular expression", path, number,
                       line);
    }
    f->n++;
    return RG_OK;
}

static rg_code read_factors(factors *f, const char *path, rg_status *st) {
    char *text = NULL;
    size_t len = 0;
    unsigned number = 0;
    rg_code rc = RG_OK;
    if (!path) return RG_OK;
    RG_TRY(rg_file_slurp(&text, &len, path, TABLE_MAX, st));
    f->list = rg_alloc(FACTORS_MAX, sizeof *f->list, st);
    if (!f->list) rc = RG_NOMEM;
    for (char *at = text; rc == RG_OK && at && *at;) {
        char *next = strchr(at, '\n');
        if (next) *next++ = 0;
        number++;
        if (*at && *at != '#') rc = add_factor(f, path, at, number, st);
        at = next;
    }
    rg_free(text);
    return rc;
}

static double factor_of(const factors *f, const char *name) {
    for (uint32_t i = 0; i < f->n; i++) {
        if (regexec(&f->list[i].regex, name, 0, NULL, 0) == 0) return f->list[i].value;
    }
    return 1;
}

static void free_factors(factors *f) {
    for (uint32_t i = 0; i < f->n; i++)
        regfree(&f->list[i].regex);
    rg_free(f->list);
}

/* ---- one tensor ------------------------------------------------------------------------------ */

static int by_bytes(const void *a, const void *b) {
    const option *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return x->cost < y->cost ? -1 : x->cost > y->cost;
}

static double slope(const option *a, const option *b) {
    return (a->cost - b->cost) / (double)(b->bytes - a->bytes);
}

/* The lower convex hull of the options. */
static void keep_hull(unit *u, option *all, uint32_t n) {
    qsort(all, n, sizeof *all, by_bytes);
    u->n = u->at = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (u->n &&
            (all[i].bytes == u->hull[u->n - 1].bytes || !(all[i].cost < u->hull[u->n - 1].cost))) {
            continue;
        }
        while (u->n >= 2 && slope(&u->hull[u->n - 2], &u->hull[u->n - 1]) <=
                                slope(&u->hull[u->n - 1], &all[i])) {
            u->n--;
        }
        u->hull[u->n++] = all[i];
    }
}

static uint64_t bytes_as(const rg_quantize_job *j, uint32_t i, rg_type type) {
    rg_out_tensor t = j->out[i];
    t.type = type;
    return (rg_out_tensor_bytes(&t) + RG_GGUF_OUT_ALIGN - 1) / RG_GGUF_OUT_ALIGN *
           RG_GGUF_OUT_ALIGN;
}

static rg_code list_options(rg_quantize_job *j, uint32_t i, double weight, unit *u, rg_status *st) {
    const rg_tensor *in = rg_gguf_tensor_at(j->gguf, i);
    const rg_tensor_role role = rg_role_of(in->name, in->n_dims);
    const double own_bits = rg_type_bits(in->type);
    option all[CHOICES_MAX];
    uint32_t n = 0;
    rg_type ruled = in->type;
    const bool keep = role == RG_ROLE_KEEP;
    const bool fixed = rg_quantize_ruled(j, i, &ruled) || in->n_dims < 2 ||
                       strstr(in->name, "conv1d") || rg_type_bits(in->type) < 16;
    if (fixed) { /* the rule's type or the source's, as the mix would have it */
        u->hull[0] = (option){j->out[i].type, bytes_as(j, i, j->out[i].type), 0};
        u->n = 1;
        u->at = 0;
        return RG_OK;
    }
    all[n++] = (option){in->type, bytes_as(j, i, in->type), 0};
    for (size_t k = 0; k < RG_ARRAY_LEN(MATRIX_TYPES); k++) {
        const rg_type type = MATRIX_TYPES[k];
        double error = 0;
        if (type == in->type || rg_type_bits(type) >= own_bits) continue;
        if (keep && type != RG_TYPE_BF16) continue; /* small operands stay floats */
        if (in->ne[0] % rg_type_get((uint32_t)type)->block_elems != 0) continue;
        RG_TRY(rg_quantize_measure(j, i, type, &error, st));
        all[n++] = (option){type, bytes_as(j, i, type), weight * error};
    }
    keep_hull(u, all, n);
    return RG_OK;
}

/* ---- all tensors ----------------------------------------------------------------------------- */

/* The unit whose next step gains most a byte and fits; n when there is none. */
static uint32_t best_step(const unit *units, uint32_t n, uint64_t room) {
    uint32_t best = n;
    double steepest = 0;
    for (uint32_t i = 0; i < n; i++) {
        const unit *u = &units[i];
        if (u->at + 1 >= u->n) continue;
        const option *a = &u->hull[u->at], *b = &u->hull[u->at + 1];
        if (b->bytes - a->bytes > room) continue;
        const double s = slope(a, b);
        if (best < n && s <= steepest) continue;
        best = i;
        steepest = s;
    }
    return best;
}

static rg_code fill_budget(rg_quantize_job *j, unit *units, uint64_t fixed, rg_buf *report,
                           rg_status *st) {
    uint64_t used = fixed, limit = j->opt->target_bytes;
    double cost = 0;
    for (uint32_t i = 0; i < j->n; i++)
        used += units[i].hull[0].bytes;
    if (used > limit) {
        return rg_fail(st, RG_INVALID, "%llu bytes cannot be reached: the smallest file has %llu",
                       (unsigned long long)limit, (unsigned long long)used);
    }
    for (;;) {
        const uint32_t i = best_step(units, j->n, limit - used);
        if (i == j->n) break;
        unit *u = &units[i];
        used += u->hull[u->at + 1].bytes - u->hull[u->at].bytes;
        u->at++;
    }
    for (uint32_t i = 0; i < j->n; i++) {
        const option *o = &units[i].hull[units[i].at];
        rg_quantize_set_type(j, i, o->type);
        cost += o->cost;
    }
    return rg_buf_printf(report, st, "budget    %llu of %llu bytes, sum of costs %.6g\n",
                         (unsigned long long)used, (unsigned long long)limit, cost);
}

rg_code rg_quantize_budget(rg_quantize_job *j, uint64_t fixed_bytes, rg_buf *report,
                           rg_status *st) {
    factors f = {0};
    rg_code rc = RG_OK;
    unit *units = rg_alloc(j->n, sizeof *units, st);
    if (!units) RG_GO(RG_NOMEM);
    RG_GO(read_factors(&f, j->opt->weights_path, st));
    for (uint32_t i = 0; i < j->n; i++) {
        RG_GO(list_options(j, i, factor_of(&f, j->out[i].name), &units[i], st));
        if (j->opt->progress) {
            j->opt->progress(j->opt->progress_user, "measure", i + 1, j->n);
        }
    }
    RG_GO(fill_budget(j, units, fixed_bytes, report, st));
cleanup:
    free_factors(&f);
    rg_free(units);
    return rc;
}
