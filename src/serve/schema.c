#include "serve/schema.h"

#include <stdarg.h>
#include <string.h>

#include "serve/decimal.h"
#include "serve/field.h"
#include "serve/schema_parts.h"

#define NONE       RG_SCHEMA_MANY
#define SPACES_MAX 16u /* indentation of one line */

void rg_schema_init(rg_schema_rules *r, rg_grammar *g) {
    *r = (rg_schema_rules){.g = g,
                           .space = NONE,
                           .string = NONE,
                           .chars = NONE,
                           .character = NONE,
                           .number = NONE,
                           .integer = NONE,
                           .boolean = NONE,
                           .null = NONE,
                           .value = NONE,
                           .object = NONE,
                           .array = NONE,
                           .wide = NONE};
}

/* ---- pieces --------------------------------------------------------------------------------- */

/* An alternative: what the format says. "lit" text follows as an argument: 't' text (const char *),
 * 's' set (const rg_byte_set *), 'r' rule (uint32_t). */
rg_code rg_schema_alt(rg_grammar *g, uint32_t rule, rg_status *st, const char *form, ...) {
    va_list args;
    va_start(args, form);
    rg_code rc = rg_grammar_begin(g, rule, st);
    for (const char *f = form; *f && rc == RG_OK; f++) {
        if (*f == 't') {
            const char *text = va_arg(args, const char *);
            rc = rg_grammar_text(g, text, strlen(text), st);
        } else if (*f == 's') {
            rc = rg_grammar_set(g, va_arg(args, const rg_byte_set *), st);
        } else {
            rc = rg_grammar_ref(g, va_arg(args, uint32_t), st);
        }
    }
    va_end(args);
    return rc == RG_OK ? rg_grammar_end(g, st) : rc;
}

rg_byte_set rg_schema_set(unsigned a, unsigned b) {
    rg_byte_set s = {{0}};
    rg_byte_set_add(&s, a, b);
    return s;
}

/* rule: `unit` from min to max times (max NONE: any number), with `between` (NONE: nothing). */
rg_code rg_schema_repeat(rg_schema_rules *r, uint32_t unit, uint32_t between, uint32_t min,
                         uint32_t max, uint32_t *rule, rg_status *st) {
    rg_grammar *g = r->g;
    uint32_t more = NONE; /* what may follow behind `count` units */
    if (max == NONE) {
        RG_TRY(rg_grammar_rule(g, &more, st));
        RG_TRY(rg_schema_alt(g, more, st, ""));
        if (between == NONE) {
            RG_TRY(rg_schema_alt(g, more, st, "rr", unit, more));
        } else {
            RG_TRY(rg_schema_alt(g, more, st, "rrr", between, unit, more));
        }
    }
    const uint32_t last = max == NONE ? (min ? min : 1) : max;
    /* From the back: a rule for "count units are there". */
    for (uint32_t count = last; count-- > 0;) {
        uint32_t here;
        RG_TRY(rg_grammar_rule(g, &here, st));
        if (count >= min) RG_TRY(rg_schema_alt(g, here, st, ""));
        const bool glue = count > 0 && between != NONE;
        RG_TRY(rg_grammar_begin(g, here, st));
        if (glue) RG_TRY(rg_grammar_ref(g, between, st));
        RG_TRY(rg_grammar_ref(g, unit, st));
        if (more != NONE) RG_TRY(rg_grammar_ref(g, more, st));
        RG_TRY(rg_grammar_end(g, st));
        more = here;
    }
    if (more == NONE) { /* nothing at all */
        RG_TRY(rg_grammar_rule(g, &more, st));
        RG_TRY(rg_schema_alt(g, more, st, ""));
    }
    *rule = more;
    return RG_OK;
}

/* One space, or a line break and its indentation: white space without end would be allowed by JSON
 * and is what a model falls into. */
rg_code rg_schema_space(rg_schema_rules *r, uint32_t *rule, rg_status *st) {
    if (r->space == NONE) {
        uint32_t space, blank, blanks;
        RG_TRY(rg_grammar_rule(r->g, &blank, st));
        RG_TRY(rg_schema_alt(r->g, blank, st, "t", " "));
        RG_TRY(rg_schema_repeat(r, blank, NONE, 0, SPACES_MAX, &blanks, st));
        RG_TRY(rg_grammar_rule(r->g, &space, st));
        RG_TRY(rg_schema_alt(r->g, space, st, ""));
        RG_TRY(rg_schema_alt(r->g, space, st, "t", " "));
        RG_TRY(rg_schema_alt(r->g, space, st, "tr", "\n", blanks));
        r->space = space;
    }
    *rule = r->space;
    return RG_OK;
}

/* Digits are bounded: numbers stay finite and a model cannot count for ever. */
static rg_code integer_rule(rg_schema_rules *r, uint32_t *rule, rg_status *st) {
    if (r->integer == NONE) {
        const rg_byte_set digit = rg_schema_set('0', '9'), lead = rg_schema_set('1', '9');
        uint32_t d, ds, n;
        RG_TRY(rg_grammar_rule(r->g, &d, st));
        RG_TRY(rg_schema_alt(r->g, d, st, "s", &digit));
        RG_TRY(rg_schema_repeat(r, d, NONE, 0, 17, &ds, st));
        RG_TRY(rg_grammar_rule(r->g, &n, st));
        RG_TRY(rg_schema_alt(r->g, n, st, "t", "0"));
        RG_TRY(rg_schema_alt(r->g, n, st, "sr", &lead, ds));
        RG_TRY(rg_schema_alt(r->g, n, st, "tsr", "-", &lead, ds));
        r->integer = n;
    }
    *rule = r->integer;
    return RG_OK;
}

static rg_code number_rule(rg_schema_rules *r, uint32_t *rule, rg_status *st) {
    if (r->number == NONE) {
        const rg_byte_set digit = rg_schema_set('0', '9');
        rg_byte_set sign = rg_schema_set('+', '+');
        rg_byte_set_add(&sign, '-', '-');
        uint32_t d, ds, whole, fraction, power, n, zero;
        RG_TRY(integer_rule(r, &whole, st));
        RG_TRY(rg_grammar_rule(r->g, &d, st));
        RG_TRY(rg_schema_alt(r->g, d, st, "s", &digit));
        RG_TRY(rg_schema_repeat(r, d, NONE, 1, 17, &ds, st));
        RG_TRY(rg_grammar_rule(r->g, &fraction, st));
        RG_TRY(rg_schema_alt(r->g, fraction, st, ""));
        RG_TRY(rg_schema_alt(r->g, fraction, st, "tr", ".", ds));
        RG_TRY(rg_grammar_rule(r->g, &power, st));
        RG_TRY(rg_schema_alt(r->g, power, st, ""));
        RG_TRY(rg_schema_alt(r->g, power, st, "tss", "e", &sign, &digit));
        RG_TRY(rg_schema_alt(r->g, power, st, "ts", "e", &digit));
        RG_TRY(rg_grammar_rule(r->g, &zero, st)); /* -0.5 */
        RG_TRY(rg_schema_alt(r->g, zero, st, "tr", "-0.", ds));
        RG_TRY(rg_grammar_rule(r->g, &n, st));
        RG_TRY(rg_schema_alt(r->g, n, st, "rrr", whole, fraction, power));
        RG_TRY(rg_schema_alt(r->g, n, st, "rr", zero, power));
        r->number = n;
    }
    *rule = r->number;
    return RG_OK;
}

static rg_code word_rule(rg_schema_rules *r, uint32_t *kept, const char *a, const char *b,
                         uint32_t *rule, rg_status *st) {
    if (*kept == NONE) {
        RG_TRY(rg_grammar_rule(r->g, kept, st));
        RG_TRY(rg_schema_alt(r->g, *kept, st, "t", a));
        if (b) RG_TRY(rg_schema_alt(r->g, *kept, st, "t", b));
    }
    *rule = *kept;
    return RG_OK;
}

/* open unit (, unit)* close, with white space. */
static rg_code list_rule(rg_schema_rules *r, const char *open, uint32_t unit, uint32_t min,
                         uint32_t max, const char *close, uint32_t *rule, rg_status *st) {
    uint32_t space, comma, all;
    RG_TRY(rg_schema_space(r, &space, st));
    RG_TRY(rg_grammar_rule(r->g, &comma, st));
    RG_TRY(rg_schema_alt(r->g, comma, st, "tr", ",", space));
    RG_TRY(rg_schema_repeat(r, unit, comma, min, max, &all, st));
    RG_TRY(rg_grammar_rule(r->g, rule, st));
    return rg_schema_alt(r->g, *rule, st, "trrrt", open, space, all, space, close);
}

static rg_code value_rule(rg_schema_rules *r, uint32_t *rule, rg_status *st);

/* "key": value pairs with any keys. */
static rg_code map_rule(rg_schema_rules *r, uint32_t value, uint32_t *rule, rg_status *st) {
    uint32_t key, space, pair;
    RG_TRY(rg_schema_string(r, 0, RG_SCHEMA_MANY, &key, st));
    RG_TRY(rg_schema_space(r, &space, st));
    RG_TRY(rg_grammar_rule(r->g, &pair, st));
    RG_TRY(rg_schema_alt(r->g, pair, st, "rtrr", key, ":", space, value));
    return list_rule(r, "{", pair, 0, NONE, "}", rule, st);
}

/* Any JSON value. */
static rg_code value_rule(rg_schema_rules *r, uint32_t *rule, rg_status *st) {
    if (r->value != NONE) {
        *rule = r->value;
        return RG_OK;
    }
    uint32_t v, part;
    RG_TRY(rg_grammar_rule(r->g, &v, st));
    r->value = v;
    RG_TRY(rg_schema_string(r, 0, RG_SCHEMA_MANY, &part, st));
    RG_TRY(rg_schema_alt(r->g, v, st, "r", part));
    RG_TRY(number_rule(r, &part, st));
    RG_TRY(rg_schema_alt(r->g, v, st, "r", part));
    RG_TRY(word_rule(r, &r->boolean, "true", "false", &part, st));
    RG_TRY(rg_schema_alt(r->g, v, st, "r", part));
    RG_TRY(word_rule(r, &r->null, "null", NULL, &part, st));
    RG_TRY(rg_schema_alt(r->g, v, st, "r", part));
    RG_TRY(map_rule(r, v, &r->object, st));
    RG_TRY(rg_schema_alt(r->g, v, st, "r", r->object));
    RG_TRY(list_rule(r, "[", v, 0, NONE, "]", &r->array, st));
    RG_TRY(rg_schema_alt(r->g, v, st, "r", r->array));
    *rule = v;
    return RG_OK;
}

/* ---- keywords ------------------------------------------------------------------------------- */

static rg_code compile(rg_schema_rules *r, const json_t *schema, uint32_t *rule, rg_status *st);

rg_code rg_schema_check(const rg_schema_rules *r, const json_t *schema, rg_status *st) {
    static const char *const known[] = {
        "type",        "properties",  "required",    "additionalProperties",
        "items",       "prefixItems", "minItems",    "maxItems",
        "enum",        "const",       "minLength",   "maxLength",
        "anyOf",       "allOf",       "$ref",        "$defs",
        "oneOf",       "minimum",     "maximum",     "exclusiveMinimum",
        "multipleOf",  "pattern",     "format",      "exclusiveMaximum",
        "definitions", "title",       "description", "default",
        "examples",    "$schema",     "$id",         "$comment",
        "deprecated",  "readOnly",    "writeOnly",   "strict",
        "nullable"};
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)schema, key, v) {
        bool found = false;
        for (size_t i = 0; i < RG_ARRAY_LEN(known) && !found; i++)
            found = strcmp(key, known[i]) == 0;
        if (!found && !r->lenient) {
            return rg_fail(st, RG_INVALID, "the schema's keyword '%.60s' is not supported", key);
        }
    }
    return RG_OK;
}

static rg_code read_count(const json_t *schema, const char *key, uint32_t otherwise, uint32_t *out,
                          rg_status *st) {
    const json_t *v = json_object_get(schema, key);
    *out = otherwise;
    if (!v) return RG_OK;
    const json_int_t n = json_is_integer(v) ? json_integer_value(v) : -1;
    if (n < 0 || n > (json_int_t)RG_SCHEMA_REPEAT_MAX) {
        return rg_fail(st, RG_INVALID, "the schema's '%s' must be 0 to %u", key,
                       RG_SCHEMA_REPEAT_MAX);
    }
    *out = (uint32_t)n;
    return RG_OK;
}

rg_code rg_schema_counts(const json_t *schema, const char *min_key, const char *max_key,
                         uint32_t *min, uint32_t *max, rg_status *st) {
    RG_TRY(read_count(schema, min_key, 0, min, st));
    RG_TRY(read_count(schema, max_key, NONE, max, st));
    if (*max != NONE && *max < *min) {
        return rg_fail(st, RG_INVALID, "the schema's '%s' %u is below its '%s' %u", max_key, *max,
                       min_key, *min);
    }
    return RG_OK;
}

/* ---- numbers with bounds -------------------------------------------------------------------- */

static rg_code decimal_of(const json_t *v, const char *key, rg_decimal *out, rg_status *st) {
    rg_code rc = RG_OK;
    if (json_is_integer(v)) {
        rc = rg_decimal_of_int(out, json_integer_value(v), st);
    } else if (json_is_real(v)) {
        rc = rg_decimal_of(out, json_real_value(v), st);
    } else {
        return rg_fail(st, RG_INVALID, "the schema's '%s' must be a number", key);
    }
    return rc == RG_OK ? RG_OK : rg_context(st, rc, "the schema's '%s'", key);
}

/* The tighter of a bound and its exclusive form; `side` is 1 for upper bounds. *has: there is one.
 * A boolean beside the bound makes it exclusive (draft 4). */
static rg_code read_bound(const json_t *schema, const char *key, const char *exclusive, int side,
                          rg_decimal *out, bool *has, bool *open, rg_status *st) {
    const json_t *v = json_object_get(schema, key), *x = json_object_get(schema, exclusive);
    rg_decimal other;
    *has = v != NULL;
    *open = v && json_is_true(x);
    if (v) RG_TRY(decimal_of(v, key, out, st));
    if (!x || json_is_boolean(x)) return RG_OK;
    RG_TRY(decimal_of(x, exclusive, &other, st));
    if (*has && side * rg_decimal_compare(&other, out) > 0) return RG_OK;
    *out = other;
    *has = *open = true;
    return RG_OK;
}

/* Formats of numbers: OpenAPI's widths. */
static rg_code number_format(const rg_schema_rules *r, const json_t *schema, bool whole,
                             rg_decimal bounds[2], bool has[2], bool open[2], rg_status *st) {
    const char *format = json_string_value(json_object_get(schema, "format"));
    if (!format || r->lenient) return RG_OK;
    if (strcmp(format, "int32") == 0 && whole) {
        for (int side = 0; side < 2; side++) {
            rg_decimal limit;
            RG_TRY(rg_decimal_of_int(&limit, side ? INT32_MAX : INT32_MIN, st));
            const int order = has[side] ? rg_decimal_compare(&limit, &bounds[side]) : 0;
            if (has[side] && (side ? order >= 0 : order <= 0)) continue;
            bounds[side] = limit;
            has[side] = true;
            open[side] = false;
        }
        return RG_OK;
    }
    if (whole ? strcmp(format, "int64") == 0
              : strcmp(format, "double") == 0 || strcmp(format, "float") == 0) {
        return RG_OK;
    }
    return rg_fail(st, RG_INVALID, "the schema's 'format' \"%.40s\" is not supported for numbers",
                   format);
}

static rg_code bounded_rule(rg_schema_rules *r, const json_t *schema, bool whole, uint32_t *rule,
                            rg_status *st) {
    rg_decimal bounds[2], step;
    bool has[2], open[2];
    RG_TRY(
        read_bound(schema, "minimum", "exclusiveMinimum", -1, &bounds[0], &has[0], &open[0], st));
    RG_TRY(read_bound(schema, "maximum", "exclusiveMaximum", 1, &bounds[1], &has[1], &open[1], st));
    RG_TRY(number_format(r, schema, whole, bounds, has, open, st));
    const json_t *multiple = json_object_get(schema, "multipleOf");
    if (multiple) RG_TRY(decimal_of(multiple, "multipleOf", &step, st));
    if (!has[0] && !has[1] && !multiple) {
        return whole ? integer_rule(r, rule, st) : number_rule(r, rule, st);
    }
    const rg_decimal_range range = {.min = has[0] ? &bounds[0] : NULL,
                                    .max = has[1] ? &bounds[1] : NULL,
                                    .above_min = open[0],
                                    .below_max = open[1],
                                    .whole = whole,
                                    .step = multiple ? &step : NULL};
    return rg_decimal_rule(r->g, &range, rule, st);
}

/* ---- literals and choices ------------------------------------------------------------------- */

static rg_code literal(rg_schema_rules *r, uint32_t rule, const json_t *value, rg_status *st) {
    rg_buf b;
    rg_buf_init(&b, 0);
    rg_code rc = rg_put_json(&b, value, st);
    if (rc == RG_OK) rc = rg_grammar_begin(r->g, rule, st);
    if (rc == RG_OK) rc = rg_grammar_text(r->g, b.data, b.len, st);
    if (rc == RG_OK) rc = rg_grammar_end(r->g, st);
    rg_buf_deinit(&b);
    return rc;
}

static bool is_type(const json_t *v, const char *type) {
    if (strcmp(type, "object") == 0) return json_is_object(v);
    if (strcmp(type, "array") == 0) return json_is_array(v);
    if (strcmp(type, "string") == 0) return json_is_string(v);
    if (strcmp(type, "integer") == 0) return json_is_integer(v);
    if (strcmp(type, "number") == 0) return json_is_number(v);
    if (strcmp(type, "boolean") == 0) return json_is_boolean(v);
    return strcmp(type, "null") == 0 && json_is_null(v);
}

/* Whether the text of a value is one that the rule takes. */
static rg_code takes(rg_schema_rules *r, uint32_t rule, const json_t *value, bool *out,
                     rg_status *st) {
    rg_buf b;
    rg_buf_init(&b, 0);
    rg_code rc = rg_put_json(&b, value, st);
    if (rc == RG_OK) rc = rg_grammar_start(r->g, rule, st);
    if (rc == RG_OK) rc = rg_grammar_feed(r->g, b.data, b.len, out, st);
    *out = rc == RG_OK && *out && rg_grammar_complete(r->g);
    rg_buf_deinit(&b);
    return rc;
}

/* One of `values` (an array), of those that what else the schema says allows. */
static rg_code literals_rule(rg_schema_rules *r, const json_t *schema, const char *key,
                             const json_t *values, uint32_t *rule, rg_status *st) {
    const json_t *type = json_object_get(schema, "type");
    json_t *rest = NULL;
    uint32_t other = 0;
    RG_TRY(rg_schema_rest(&rest, schema, key, st));
    const size_t n_rest = json_object_size(rest);
    const bool by_type = n_rest == 1 && json_is_string(type);
    rg_code rc = RG_OK;
    if (n_rest && !by_type) rc = compile(r, rest, &other, st);
    json_decref(rest);
    RG_TRY(rc);
    RG_TRY(rg_grammar_rule(r->g, rule, st));
    size_t i, n = 0;
    json_t *v;
    json_array_foreach((json_t *)(uintptr_t)values, i, v) {
        bool fits = true;
        if (by_type) {
            fits = is_type(v, json_string_value(type));
        } else if (n_rest) {
            RG_TRY(takes(r, other, v, &fits, st));
        }
        if (!fits) continue;
        RG_TRY(literal(r, *rule, v, st));
        n++;
    }
    if (n) return RG_OK;
    return rg_fail(st, RG_INVALID,
                   "no value of the schema's '%s' is what its other keywords ask for", key);
}

static rg_code enum_rule(rg_schema_rules *r, const json_t *schema, const json_t *values,
                         uint32_t *rule, rg_status *st) {
    if (!json_is_array(values) || json_array_size(values) == 0) {
        return rg_fail(st, RG_INVALID, "the schema's 'enum' must be an array with values");
    }
    return literals_rule(r, schema, "enum", values, rule, st);
}

static rg_code const_rule(rg_schema_rules *r, const json_t *schema, const json_t *value,
                          uint32_t *rule, rg_status *st) {
    json_t *values = json_pack("[O]", value);
    if (!values) return rg_fail(st, RG_NOMEM, "no memory for a schema");
    const rg_code rc = literals_rule(r, schema, "const", values, rule, st);
    json_decref(values);
    return rc;
}

/* A schema and what stands beside the reference or list that it comes from. */
static rg_code compile_with(rg_schema_rules *r, const json_t *schema, const json_t *rest,
                            uint32_t *rule, rg_status *st) {
    json_t *both = NULL;
    if (json_object_size(rest) == 0) return compile(r, schema, rule, st);
    RG_TRY(rg_schema_merge(&both, schema, rest, st));
    const rg_code rc = compile(r, both, rule, st);
    json_decref(both);
    return rc;
}

static rg_code any_rule(rg_schema_rules *r, const json_t *list, const json_t *rest, const char *key,
                        uint32_t *rule, rg_status *st) {
    if (!json_is_array(list) || json_array_size(list) == 0) {
        return rg_fail(st, RG_INVALID, "the schema's '%s' must be an array of schemas", key);
    }
    RG_TRY(rg_grammar_rule(r->g, rule, st));
    size_t i;
    json_t *s;
    json_array_foreach((json_t *)(uintptr_t)list, i, s) {
        uint32_t part = 0;
        for (size_t k = 0; k < i && strcmp(key, "oneOf") == 0 && !r->lenient; k++) {
            if (rg_schema_disjoint(r->root, json_array_get(list, k), s)) continue;
            return rg_fail(
                st, RG_INVALID,
                "the schema's 'oneOf': a value may fit parts %zu and %zu both (tell them "
                "apart by type, or by a required property with a 'const' or 'enum')",
                k, i);
        }
        RG_TRY(compile_with(r, s, rest, &part, st));
        RG_TRY(rg_schema_alt(r->g, *rule, st, "r", part));
    }
    return RG_OK;
}

static rg_code all_rule(rg_schema_rules *r, const json_t *list, const json_t *rest, uint32_t *rule,
                        rg_status *st) {
    const size_t n = json_array_size(list);
    if (n == 0) return rg_fail(st, RG_INVALID, "the schema's 'allOf' must be an array of schemas");
    json_t *all = json_incref(json_array_get(list, 0));
    rg_code rc = RG_OK;
    for (size_t i = 1; i < n && rc == RG_OK; i++) {
        json_t *more = NULL;
        rc = rg_schema_merge(&more, all, json_array_get(list, i), st);
        json_decref(all);
        all = more;
    }
    if (rc == RG_OK) rc = compile_with(r, all, rest, rule, st);
    json_decref(all);
    return rc;
}

/* Only pointers into the schema itself: "#", "#/$defs/NAME", "#/properties/a/items". */
static rg_code ref_rule(rg_schema_rules *r, const json_t *ref, const json_t *rest, uint32_t *rule,
                        rg_status *st) {
    const char *path = json_string_value(ref);
    const json_t *target = rg_schema_find(r->root, path);
    if (!target) {
        return rg_fail(st, RG_INVALID, "the schema's '$ref' \"%.60s\" points at nothing in it",
                       path ? path : "");
    }
    if (json_object_size(rest)) return compile_with(r, target, rest, rule, st);
    for (size_t i = 0; i < r->n_ref; i++) {
        if (r->refs[i].target != target) continue;
        *rule = r->refs[i].rule;
        return RG_OK;
    }
    if (r->n_ref == RG_SCHEMA_REFS_MAX) {
        return rg_fail(st, RG_INVALID, "the schema refers to more than %u parts",
                       RG_SCHEMA_REFS_MAX);
    }
    RG_TRY(rg_grammar_rule(r->g, rule, st));
    const size_t at = r->n_ref++;
    r->refs[at].target = target;
    r->refs[at].rule = *rule;
    uint32_t body;
    RG_TRY(compile(r, target, &body, st));
    if (body == *rule) return rg_fail(st, RG_INVALID, "the schema's '$ref' points at itself");
    return rg_schema_alt(r->g, *rule, st, "r", body);
}

/* ---- objects and arrays --------------------------------------------------------------------- */

static bool is_required(const json_t *schema, const char *key) {
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(schema, "required"), i, v) {
        const char *name = json_string_value(v);
        if (name && strcmp(name, key) == 0) return true;
    }
    return false;
}

static rg_code pair_rule(rg_schema_rules *r, const char *key, const json_t *schema, uint32_t *rule,
                         rg_status *st) {
    uint32_t value, space;
    rg_buf b;
    RG_TRY(compile(r, schema, &value, st));
    RG_TRY(rg_schema_space(r, &space, st));
    RG_TRY(rg_grammar_rule(r->g, rule, st));
    rg_buf_init(&b, 0);
    rg_code rc = rg_put_string(&b, key, strlen(key), st);
    if (rc == RG_OK) rc = rg_buf_puts(&b, ":", st);
    if (rc == RG_OK) rc = rg_schema_alt(r->g, *rule, st, "trr", b.data, space, value);
    rg_buf_deinit(&b);
    return rc;
}

/* From the last property to the first: `first` is what may stand when no pair came yet, `later`
 * when one did. */
static rg_code declared_rule(rg_schema_rules *r, const json_t *schema, json_t *properties,
                             uint32_t *rule, rg_status *st) {
    const size_t n = json_object_size(properties);
    const char **keys = rg_alloc(n + 1, sizeof *keys, st);
    if (!keys) return RG_NOMEM;
    rg_code rc = RG_OK;
    uint32_t space = 0, first = 0, later = 0;
    const char *key;
    json_t *v;
    size_t at = 0;
    json_object_foreach(properties, key, v) keys[at++] = key;
    RG_GO(rg_schema_space(r, &space, st));
    RG_GO(rg_grammar_rule(r->g, &first, st));
    RG_GO(rg_schema_alt(r->g, first, st, ""));
    later = first;
    while (at-- > 0) {
        uint32_t pair, f, l;
        RG_GO(pair_rule(r, keys[at], json_object_get(properties, keys[at]), &pair, st));
        RG_GO(rg_grammar_rule(r->g, &f, st));
        RG_GO(rg_grammar_rule(r->g, &l, st));
        RG_GO(rg_schema_alt(r->g, f, st, "rr", pair, later));
        RG_GO(rg_schema_alt(r->g, l, st, "trrr", ",", space, pair, later));
        if (!is_required(schema, keys[at])) {
            RG_GO(rg_schema_alt(r->g, f, st, "r", first));
            RG_GO(rg_schema_alt(r->g, l, st, "r", later));
        }
        first = f;
        later = l;
    }
    RG_GO(rg_grammar_rule(r->g, rule, st));
    rc = rg_schema_alt(r->g, *rule, st, "trrrt", "{", space, first, space, "}");
cleanup:
    rg_free(keys);
    return rc;
}

/* Declared properties, and required ones that are not declared: those are what others may be. */
static rg_code all_properties(const rg_schema_rules *r, const json_t *schema, json_t **out,
                              rg_status *st) {
    json_t *properties = json_object_get(schema, "properties");
    json_t *others = json_object_get(schema, "additionalProperties");
    *out = properties ? json_copy(properties) : json_object();
    if (!*out) return rg_fail(st, RG_NOMEM, "no memory for a schema");
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(schema, "required"), i, name) {
        const char *key = json_string_value(name);
        if (key && json_object_get(*out, key)) continue;
        if (!key || (json_is_false(others) && !r->lenient)) {
            return rg_fail(st, RG_INVALID,
                           "the schema's 'required' names \"%.60s\", which is no property",
                           key ? key : "");
        }
        json_t *any = json_is_object(others) ? json_incref(others) : json_true();
        if (json_object_set_new(*out, key, any) != 0) {
            return rg_fail(st, RG_NOMEM, "no memory for a schema");
        }
    }
    return RG_OK;
}

static rg_code object_rule(rg_schema_rules *r, const json_t *schema, uint32_t *rule,
                           rg_status *st) {
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *others = json_object_get(schema, "additionalProperties");
    if (properties && !json_is_object(properties)) {
        return rg_fail(st, RG_INVALID, "the schema's 'properties' must be an object");
    }
    json_t *all = NULL;
    rg_code rc = all_properties(r, schema, &all, st);
    const bool declared = rc == RG_OK && (json_object_size(all) || json_is_false(others));
    if (declared) rc = declared_rule(r, schema, all, rule, st);
    json_decref(all);
    if (rc != RG_OK || declared) return rc;
    uint32_t value;
    if (json_is_object(others)) {
        RG_TRY(compile(r, others, &value, st));
        return map_rule(r, value, rule, st);
    }
    RG_TRY(value_rule(r, &value, st));
    *rule = r->object;
    return RG_OK;
}

/* "[" first, then the others, "]". All of the first ones come unless maxItems says less; `unit`
 * NONE: there are no others. */
static rg_code tuple_rule(rg_schema_rules *r, const json_t *list, uint32_t unit, uint32_t min,
                          uint32_t max, uint32_t *rule, rg_status *st) {
    uint32_t space = 0, more = NONE, rules[RG_SCHEMA_NESTING_MAX] = {0};
    size_t n = json_array_size(list);
    if (n == 0 || n > RG_SCHEMA_NESTING_MAX) {
        return rg_fail(st, RG_INVALID, "the schema's 'prefixItems' must have 1 to %u schemas",
                       RG_SCHEMA_NESTING_MAX);
    }
    if (min > n && unit == NONE) {
        return rg_fail(st, RG_INVALID, "the schema's 'prefixItems' and 'minItems' disagree");
    }
    if (max != NONE && max < n) n = max;
    for (size_t i = 0; i < n; i++)
        RG_TRY(compile(r, json_array_get(list, i), &rules[i], st));
    RG_TRY(rg_schema_space(r, &space, st));
    if (unit != NONE) {
        uint32_t another;
        RG_TRY(rg_grammar_rule(r->g, &another, st));
        RG_TRY(rg_schema_alt(r->g, another, st, "trr", ",", space, unit));
        RG_TRY(rg_schema_repeat(r, another, NONE, min > n ? min - (uint32_t)n : 0,
                                max == NONE ? NONE : max - (uint32_t)n, &more, st));
    }
    RG_TRY(rg_grammar_rule(r->g, rule, st));
    RG_TRY(rg_grammar_begin(r->g, *rule, st));
    RG_TRY(rg_grammar_text(r->g, "[", 1, st));
    for (size_t i = 0; i < n; i++) {
        if (i) RG_TRY(rg_grammar_text(r->g, ",", 1, st));
        RG_TRY(rg_grammar_ref(r->g, space, st));
        RG_TRY(rg_grammar_ref(r->g, rules[i], st));
    }
    if (more != NONE && n) RG_TRY(rg_grammar_ref(r->g, more, st));
    RG_TRY(rg_grammar_ref(r->g, space, st));
    RG_TRY(rg_grammar_text(r->g, "]", 1, st));
    return rg_grammar_end(r->g, st);
}

static rg_code array_rule(rg_schema_rules *r, const json_t *schema, uint32_t *rule, rg_status *st) {
    const json_t *items = json_object_get(schema, "items");
    const json_t *tuple = json_object_get(schema, "prefixItems");
    uint32_t min = 0, max = 0, unit = 0;
    RG_TRY(rg_schema_counts(schema, "minItems", "maxItems", &min, &max, st));
    if (tuple && (json_is_false(items) || (!items && min <= json_array_size(tuple)))) {
        return tuple_rule(r, tuple, NONE, min, max, rule, st);
    }
    if (json_is_false(items)) {
        if (min) return rg_fail(st, RG_INVALID, "the schema's 'items' and 'minItems' disagree");
        RG_TRY(rg_schema_space(r, &unit, st));
        RG_TRY(rg_grammar_rule(r->g, rule, st));
        return rg_schema_alt(r->g, *rule, st, "trt", "[", unit, "]");
    }
    if (items && !json_is_true(items)) {
        RG_TRY(compile(r, items, &unit, st));
    } else {
        RG_TRY(value_rule(r, &unit, st));
    }
    if (tuple) return tuple_rule(r, tuple, unit, min, max, rule, st);
    return list_rule(r, "[", unit, min, max, "]", rule, st);
}

static rg_code type_rule(rg_schema_rules *r, const json_t *schema, const char *type, uint32_t *rule,
                         rg_status *st) {
    if (strcmp(type, "object") == 0) return object_rule(r, schema, rule, st);
    if (strcmp(type, "array") == 0) return array_rule(r, schema, rule, st);
    if (strcmp(type, "number") == 0) return bounded_rule(r, schema, false, rule, st);
    if (strcmp(type, "integer") == 0) return bounded_rule(r, schema, true, rule, st);
    if (strcmp(type, "boolean") == 0) return word_rule(r, &r->boolean, "true", "false", rule, st);
    if (strcmp(type, "null") == 0) return word_rule(r, &r->null, "null", NULL, rule, st);
    if (strcmp(type, "string") != 0) {
        return rg_fail(st, RG_INVALID, "the schema's type \"%.40s\" is no JSON type", type);
    }
    return rg_schema_text(r, schema, rule, st);
}

static rg_code types_rule(rg_schema_rules *r, const json_t *schema, const json_t *types,
                          uint32_t *rule, rg_status *st) {
    RG_TRY(rg_grammar_rule(r->g, rule, st));
    size_t i;
    json_t *t;
    json_array_foreach(types, i, t) {
        uint32_t one = 0;
        const char *type = json_string_value(t);
        RG_TRY(type_rule(r, schema, type ? type : "", &one, st));
        RG_TRY(rg_schema_alt(r->g, *rule, st, "r", one));
    }
    return RG_OK;
}

/* What a value must be for the keywords of a schema without 'type' to say anything: it is that. */
static rg_code implied_rule(rg_schema_rules *r, const json_t *schema, uint32_t *rule,
                            rg_status *st) {
    json_t *types = rg_schema_implied(schema);
    if (!types) return rg_fail(st, RG_NOMEM, "no memory for a schema");
    const rg_code rc =
        json_array_size(types) ? types_rule(r, schema, types, rule, st) : value_rule(r, rule, st);
    json_decref(types);
    return rc;
}

static rg_code by_type(rg_schema_rules *r, const json_t *schema, uint32_t *rule, rg_status *st) {
    const json_t *type = json_object_get(schema, "type"), *v;
    if ((v = json_object_get(schema, "const"))) return const_rule(r, schema, v, rule, st);
    if ((v = json_object_get(schema, "enum"))) return enum_rule(r, schema, v, rule, st);
    if (json_is_string(type)) return type_rule(r, schema, json_string_value(type), rule, st);
    if (json_is_array(type) && json_array_size(type)) return types_rule(r, schema, type, rule, st);
    if (type) return rg_fail(st, RG_INVALID, "the schema's 'type' must be a word or words");
    return implied_rule(r, schema, rule, st);
}

/* References and lists first: each is joined with what stands beside it. */
static rg_code by_keyword(rg_schema_rules *r, const json_t *schema, uint32_t *rule, rg_status *st) {
    static const char *const keys[] = {"$ref", "allOf", "anyOf", "oneOf"};
    size_t i = 0;
    while (i < RG_ARRAY_LEN(keys) && !json_object_get(schema, keys[i]))
        i++;
    if (i == RG_ARRAY_LEN(keys)) return by_type(r, schema, rule, st);
    const json_t *v = json_object_get(schema, keys[i]);
    json_t *rest = NULL;
    RG_TRY(rg_schema_rest(&rest, schema, keys[i], st));
    rg_code rc = RG_OK;
    if (i == 0) {
        rc = ref_rule(r, v, rest, rule, st);
    } else if (i == 1) {
        rc = all_rule(r, v, rest, rule, st);
    } else {
        rc = any_rule(r, v, rest, keys[i], rule, st);
    }
    json_decref(rest);
    return rc;
}

static rg_code compile(rg_schema_rules *r, const json_t *schema, uint32_t *rule, rg_status *st) {
    *rule = 0;
    if (json_is_true(schema)) return value_rule(r, rule, st);
    if (!json_is_object(schema)) return rg_fail(st, RG_INVALID, "a schema must be an object");
    if (++r->depth > RG_SCHEMA_NESTING_MAX) {
        return rg_fail(st, RG_INVALID, "the schema nests deeper than %u levels",
                       RG_SCHEMA_NESTING_MAX);
    }
    rg_code rc = rg_schema_check(r, schema, st);
    if (rc == RG_OK) rc = by_keyword(r, schema, rule, st);
    if (rc == RG_OK && json_is_true(json_object_get(schema, "nullable"))) {
        uint32_t null = 0, both = 0;
        RG_TRY(word_rule(r, &r->null, "null", NULL, &null, st));
        RG_TRY(rg_grammar_rule(r->g, &both, st));
        RG_TRY(rg_schema_alt(r->g, both, st, "r", *rule));
        RG_TRY(rg_schema_alt(r->g, both, st, "r", null));
        *rule = both;
    }
    r->depth--;
    return rc;
}

rg_code rg_schema_compile(rg_schema_rules *r, const json_t *root, const json_t *schema,
                          uint32_t *rule, rg_status *st) {
    r->root = root;
    r->n_ref = 0;
    r->depth = 0;
    return compile(r, schema, rule, st);
}
