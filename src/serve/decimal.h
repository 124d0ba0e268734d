/* decimal: the numbers of a range as grammar rules, digit by digit.
 *
 * Numbers are written without exponents, with at most RG_DECIMAL_WHOLE digits before the point and
 * `n_fraction` behind it, never as "-0". Each rule stands for a place and what is known there:
 * whether the digits so far are those of the lower or of the upper bound, and the remainder for a
 * multiple. A digit behind which no number could be completed is never let through.
 */
#ifndef RG_SERVE_DECIMAL_H
#define RG_SERVE_DECIMAL_H

#include "serve/grammar.h"

#define RG_DECIMAL_WHOLE    18u
#define RG_DECIMAL_FRACTION 15u
#define RG_DECIMAL_DIGITS   (RG_DECIMAL_WHOLE + RG_DECIMAL_FRACTION)
#define RG_DECIMAL_STEP_MAX 1000u

/* digits[i] counts 10 to the (RG_DECIMAL_WHOLE - 1 - i). */
typedef struct rg_decimal {
    bool negative;
    uint8_t digits[RG_DECIMAL_DIGITS];
} rg_decimal;

/* Exactly the value that the shortest text of x has. INVALID when it has more digits. */
RG_MUST_CHECK rg_code rg_decimal_of(rg_decimal *out, double x, rg_status *st);
/* The same of a whole number; INVALID beyond 18 digits. */
RG_MUST_CHECK rg_code rg_decimal_of_int(rg_decimal *out, int64_t x, rg_status *st);
int rg_decimal_compare(const rg_decimal *a, const rg_decimal *b);

typedef struct rg_decimal_range {
    const rg_decimal *min, *max; /* NULL: no bound but the digits */
    bool above_min, below_max;   /* the bound itself does not count */
    bool whole;                  /* no point */
    const rg_decimal *step; /* multiples of it only, at most RG_DECIMAL_STEP_MAX of its last digit's
                               units; NULL: all */
} rg_decimal_range;

/* *rule takes the numbers of the range. INVALID when there are none. */
RG_MUST_CHECK rg_code rg_decimal_rule(rg_grammar *g, const rg_decimal_range *range, uint32_t *rule,
                                      rg_status *st);

#endif
