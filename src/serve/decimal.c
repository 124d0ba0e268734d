#include "serve/decimal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define D     RG_DECIMAL_DIGITS
#define WHOLE RG_DECIMAL_WHOLE
#define NONE  UINT32_MAX
#define EMPTY (UINT32_MAX - 1) /* a state from which no number can be completed */

/* ---- values --------------------------------------------------------------------------------- */

/* "DIGITS" with the point behind the first `point` of them. */
static rg_code from_digits(rg_decimal *out, const char *digits, int point, rg_status *st) {
    memset(out->digits, 0, sizeof out->digits);
    for (int i = 0; digits[i]; i++) {
        const int at = (int)WHOLE - point + i;
        if (digits[i] == '0') continue;
        if (at < 0 || at >= (int)D) {
            return rg_fail(st, RG_INVALID,
                           "a number of the schema has more than %u digits before or %u behind the "
                           "point",
                           WHOLE, RG_DECIMAL_FRACTION);
        }
        out->digits[at] = (uint8_t)(digits[i] - '0');
    }
    return RG_OK;
}

rg_code rg_decimal_of(rg_decimal *out, double x, rg_status *st) {
    char text[40], digits[24];
    *out = (rg_decimal){.negative = x < 0};
    if (!isfinite(x)) return rg_fail(st, RG_INVALID, "a number of the schema is not finite");
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision - 1, fabs(x));
        const double back = strtod(text, NULL);
        if (!(back < fabs(x)) && !(back > fabs(x))) break;
    }
    size_t n = 0;
    const char *at = text;
    for (; *at && *at != 'e'; at++) {
        if (*at != '.') digits[n++] = *at;
    }
    digits[n] = 0;
    return from_digits(out, digits, 1 + (int)strtol(at + 1, NULL, 10), st);
}

rg_code rg_decimal_of_int(rg_decimal *out, int64_t x, rg_status *st) {
    char digits[24];
    *out = (rg_decimal){.negative = x < 0};
    const uint64_t size = x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
    const int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)size);
    return from_digits(out, digits, n, st);
}

static bool is_zero(const rg_decimal *x) {
    for (size_t i = 0; i < D; i++) {
        if (x->digits[i]) return false;
    }
    return true;
}

int rg_decimal_compare(const rg_decimal *a, const rg_decimal *b) {
    if (is_zero(a) && is_zero(b)) return 0;
    if (a->negative != b->negative) return a->negative ? -1 : 1;
    const int order = memcmp(a->digits, b->digits, sizeof a->digits);
    return (a->negative ? -1 : 1) * (order > 0 ? 1 : order < 0 ? -1 : 0);
}

/* Places behind the point that are in use. */
static uint32_t fraction_of(const rg_decimal *x) {
    uint32_t n = RG_DECIMAL_FRACTION;
    while (n && !x->digits[WHOLE + n - 1])
        n--;
    return n;
}

/* ---- rules ---------------------------------------------------------------------------------- */

/* Numbers from low to high, both not negative, as their digits. */
typedef struct maker {
    rg_grammar *g;
    uint8_t low[D], high[D];
    bool above_low, below_high;
    uint32_t n_fraction;   /* places behind the point that may be written */
    uint32_t step, n_step; /* multiples of step / 10^n_step; 1, 0: of one unit of the last place */
    uint32_t *rules;       /* [D + 1][at low, at high][step] NONE: not made yet */
} maker;

static bool all_zero(const uint8_t *digits, uint32_t from) {
    for (uint32_t i = from; i < D; i++) {
        if (digits[i]) return false;
    }
    return true;
}

/* The number may end in front of place `at`. */
static bool may_end(const maker *m, uint32_t at, bool at_low, bool at_high, uint32_t rest) {
    if (at < WHOLE) return false;
    if (at_low && (!all_zero(m->low, at) || m->above_low)) return false;
    if (at_high && all_zero(m->high, at) && m->below_high) return false;
    uint64_t value = rest;
    for (uint32_t i = at - WHOLE; i < m->n_step; i++)
        value = value * 10 % m->step;
    return value == 0;
}

static uint32_t *slot_of(const maker *m, uint32_t at, bool at_low, bool at_high, uint32_t rest) {
    return &m->rules[((size_t)at * 4 + (at_low ? 2 : 0) + (at_high ? 1 : 0)) * m->step + rest];
}

static rg_code place(maker *m, uint32_t at, bool at_low, bool at_high, uint32_t rest,
                     uint32_t *rule, rg_status *st);

/* Alternatives for digits [from, 9] at a place; those that lead to the same rule are one set. */
static rg_code digits(maker *m, uint32_t at, uint32_t from, bool at_low, bool at_high,
                      uint32_t rest, uint32_t rule, bool *some, rg_status *st) {
    uint32_t to[10];
    for (uint32_t d = 0; d < 10; d++) {
        to[d] = EMPTY;
        if (d < from || (at_low && d < m->low[at]) || (at_high && d > m->high[at])) continue;
        const uint32_t more = (rest * 10 + d) % m->step;
        RG_TRY(place(m, at + 1, at_low && d == m->low[at], at_high && d == m->high[at], more,
                     &to[d], st));
    }
    for (uint32_t d = 0; d < 10; d++) {
        rg_byte_set set = {{0}};
        if (to[d] == EMPTY) continue;
        const uint32_t target = to[d];
        for (uint32_t k = d; k < 10; k++) {
            if (to[k] != target) continue;
            rg_byte_set_add(&set, '0' + k, '0' + k);
            to[k] = EMPTY;
        }
        RG_TRY(rg_grammar_begin(m->g, rule, st));
        RG_TRY(rg_grammar_set(m->g, &set, st));
        RG_TRY(rg_grammar_ref(m->g, target, st));
        RG_TRY(rg_grammar_end(m->g, st));
        *some = true;
    }
    return RG_OK;
}

/* What may follow in front of place `at`: the end, the point, a digit. EMPTY: nothing. */
static rg_code place(maker *m, uint32_t at, bool at_low, bool at_high, uint32_t rest,
                     uint32_t *rule, rg_status *st) {
    uint32_t *kept = slot_of(m, at, at_low, at_high, rest);
    *rule = *kept;
    if (*kept != NONE) return RG_OK;
    uint32_t r, behind_point;
    bool some = may_end(m, at, at_low, at_high, rest);
    RG_TRY(rg_grammar_rule(m->g, &r, st));
    if (some) {
        RG_TRY(rg_grammar_begin(m->g, r, st));
        RG_TRY(rg_grammar_end(m->g, st));
    }
    const bool digit = at < WHOLE + m->n_fraction;
    if (digit && at == WHOLE) {
        bool fraction = false;
        RG_TRY(rg_grammar_rule(m->g, &behind_point, st));
        RG_TRY(digits(m, at, 0, at_low, at_high, rest, behind_point, &fraction, st));
        if (fraction) {
            RG_TRY(rg_grammar_begin(m->g, r, st));
            RG_TRY(rg_grammar_text(m->g, ".", 1, st));
            RG_TRY(rg_grammar_ref(m->g, behind_point, st));
            RG_TRY(rg_grammar_end(m->g, st));
        }
        some = some || fraction;
    } else if (digit) {
        RG_TRY(digits(m, at, 0, at_low, at_high, rest, r, &some, st));
    }
    *slot_of(m, at, at_low, at_high, rest) = *rule = some ? r : EMPTY;
    return RG_OK;
}

/* Alternatives of `rule` for numbers whose first digit stands at place `at`, behind `sign`. */
static rg_code first_at(maker *m, uint32_t at, const char *sign, uint32_t rule, bool *some,
                        rg_status *st) {
    bool at_low = true, at_high = true;
    for (uint32_t i = 0; i < at; i++) {
        if (at_low && m->low[i]) return RG_OK; /* too small */
        if (at_high && m->high[i]) at_high = false;
    }
    uint32_t number;
    bool any = false;
    RG_TRY(rg_grammar_rule(m->g, &number, st));
    RG_TRY(digits(m, at, at + 1 < WHOLE ? 1 : 0, at_low, at_high, 0, number, &any, st));
    if (!any) return RG_OK;
    *some = true;
    RG_TRY(rg_grammar_begin(m->g, rule, st));
    RG_TRY(rg_grammar_text(m->g, sign, strlen(sign), st));
    RG_TRY(rg_grammar_ref(m->g, number, st));
    return rg_grammar_end(m->g, st);
}

/* One sign: low and high are magnitudes, NULL: zero, or as far as digits go. */
static rg_code one_sign(maker *m, const rg_decimal *low, const rg_decimal *high, const char *sign,
                        uint32_t rule, bool *some, rg_status *st) {
    memset(m->low, 0, sizeof m->low);
    memset(m->high, 9, sizeof m->high);
    if (low) memcpy(m->low, low->digits, sizeof m->low);
    if (high) memcpy(m->high, high->digits, sizeof m->high);
    for (size_t i = 0; i < (size_t)(D + 1) * 4 * m->step; i++)
        m->rules[i] = NONE;
    for (uint32_t at = 0; at < WHOLE; at++)
        RG_TRY(first_at(m, at, sign, rule, some, st));
    return RG_OK;
}

static rg_code both_signs(maker *m, const rg_decimal_range *r, uint32_t rule, bool *some,
                          rg_status *st) {
    const rg_decimal *min = r->min, *max = r->max;
    const bool min_negative = !min || (min->negative && !is_zero(min));
    const bool max_negative = max && max->negative && !is_zero(max);
    if (!max_negative) {
        m->above_low = !min_negative && r->above_min;
        m->below_high = max && r->below_max;
        RG_TRY(one_sign(m, min_negative ? NULL : min, max, "", rule, some, st));
    }
    if (min_negative) { /* below zero: "-0" is none of them */
        m->above_low = max_negative ? r->below_max : true;
        m->below_high = min && r->above_min;
        RG_TRY(one_sign(m, max_negative ? max : NULL, min, "-", rule, some, st));
    }
    return RG_OK;
}

static rg_code set_step(maker *m, const rg_decimal *step, rg_status *st) {
    m->step = 1;
    m->n_step = 0;
    if (!step) return RG_OK;
    uint64_t units = 0;
    m->n_step = fraction_of(step);
    for (uint32_t i = 0; i < WHOLE + m->n_step && units <= RG_DECIMAL_STEP_MAX; i++)
        units = units * 10 + step->digits[i];
    if (step->negative || units == 0 || units > RG_DECIMAL_STEP_MAX) {
        return rg_fail(st, RG_INVALID,
                       "the schema's 'multipleOf' must be above 0 and at most %u units of its last "
                       "digit",
                       RG_DECIMAL_STEP_MAX);
    }
    m->step = (uint32_t)units;
    return RG_OK;
}

/* Enough places to lie between bounds that are close together. */
static uint32_t places(const maker *m, const rg_decimal_range *r) {
    if (r->whole) return 0;
    if (r->step) return m->n_step;
    uint32_t n = 6;
    if (r->min && fraction_of(r->min) + 2 > n) n = fraction_of(r->min) + 2;
    if (r->max && fraction_of(r->max) + 2 > n) n = fraction_of(r->max) + 2;
    return n < RG_DECIMAL_FRACTION ? n : RG_DECIMAL_FRACTION;
}

rg_code rg_decimal_rule(rg_grammar *g, const rg_decimal_range *range, uint32_t *rule,
                        rg_status *st) {
    maker m = {.g = g};
    bool some = false;
    RG_TRY(set_step(&m, range->step, st));
    m.n_fraction = places(&m, range);
    RG_TRY(rg_grammar_rule(g, rule, st));
    m.rules = rg_alloc((size_t)(D + 1) * 4 * m.step, sizeof *m.rules, st);
    if (!m.rules) return RG_NOMEM;
    rg_code rc = both_signs(&m, range, *rule, &some, st);
    rg_free(m.rules);
    if (rc == RG_OK && !some) {
        rc = rg_fail(st, RG_INVALID, "no number is in the schema's range");
    }
    return rc;
}
