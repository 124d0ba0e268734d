#include "serve/schema.h"

#include <stdarg.h>
#include <string.h>

#include "serve/field.h"

#define NONE       UINT32_MAX
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
                           .array = NONE};
}

/* ---- pieces --------------------------------------------------------------------------------- */

/* An alternative: what the format says. "lit" text follows as an argument: 't' text (const char *),
 * 's' set (const rg_byte_set *), 'r' rule (uint32_t). */
static rg_code alt(rg_grammar *g, uint32_t rule, rg_status *st, const char *form, ...) {
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

static rg_byte_set set_of(unsigned a, unsigned b) {
    rg_byte_set s = {{0}};
    rg_byte_set_add(&s, a, b);
    return s;
}

/* rule: `unit` from min to max times (max NONE: any number), with `between` (NONE: nothing). */
static rg_code repeat(rg_schema_rules *r, uint32_t unit, uint32_t between, uint32_t min,
                      uint32_t max, uint32_t *rule, rg_status *st) {
    rg_grammar *g = r->g;
    uint32_t more = NONE; /* what may follow behind `count` units */
    if (max == NONE) {
        RG_TRY(rg_grammar_rule(g, &more, st));
        RG_TRY(alt(g, more, st, ""));
        if (between == NONE) {
            RG_TRY(alt(g, more, st, "rr", unit, more));
        } else {
            RG_TRY(alt(g, more, st, "rrr", between, unit, more));
        }
    }
    const uint32_t last = max == NONE ? (min ? min : 1) : max;
    /* From the back: a rule for "count units are there". */
    for (uint32_t count = last; count-- > 0;) {
        uint32_t here;
        RG_TRY(rg_grammar_rule(g, &here, st));
        if (count >= min) RG_TRY(alt(g, here, st, ""));
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
        RG_TRY(alt(g, more, st, ""));
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
        RG_TRY(alt(r->g, blank, st, "t", " "));
        RG_TRY(repeat(r, blank, NONE, 0, SPACES_MAX, &blanks, st));
        RG_TRY(rg_grammar_rule(r->g, &space, st));
        RG_TRY(alt(r->g, space, st, ""));
        RG_TRY(alt(r->g, space, st, "t", " "));
        RG_TRY(alt(r->g, space, st, "tr", "\n", blanks));
        r->space = space;
    }
    *rule = r->space;
    return RG_OK;
}

/* One character of a string: UTF-8 as it stands, or an escape. Surrogates come in pairs. */
static rg_code character(rg_schema_rules *r, uint32_t *rule, rg_status *st) {
    if (r->character != NONE) {
        *rule = r->character;
        return RG_OK;
    }
    rg_grammar *g = r->g;
    const rg_byte_set tail = set_of(0x80, 0xBF), two = set_of(0xC2, 0xDF);
    const rg_byte_set e0 = set_of(0xA0, 0xBF), ed = set_of(0x80, 0x9F);
    const rg_byte_set f0 = set_of(0x90, 0xBF), f4 = set_of(0x80, 0x8F), four = set_of(0xF1, 0xF3);
    rg_byte_set plain = set_of(0x20, 0x21), three = set_of(0xE1, 0xEC), escape = set_of('"', '"');
    rg_byte_set hex = set_of('0', '9'), low;
    rg_byte_set_add(&plain, 0x23, 0x5B);
    rg_byte_set_add(&plain, 0x5D, 0x7E);
    rg_byte_set_add(&three, 0xEE, 0xEF);
    for (const char *c = "\\/bfnrt"; *c; c++)
        rg_byte_set_add(&escape, (unsigned char)*c, (unsigned char)*c);
    rg_byte_set_add(&hex, 'a', 'f');
    rg_byte_set_add(&hex, 'A', 'F');
    /* Codes that are no surrogates (D8 to DF) and not 0000. */
    const rg_byte_set octal = set_of('0', '7');
    rg_byte_set some = set_of('1', '9'), d = set_of('d', 'd');
    rg_byte_set_add(&d, 'D', 'D');
    rg_byte_set_add(&some, 'a', 'f');
    rg_byte_set_add(&some, 'A', 'F');
    low = set_of('1', '9');
    rg_byte_set_add(&low, 'a', 'c');
    rg_byte_set_add(&low, 'e', 'f');
    rg_byte_set_add(&low, 'A', 'C');
    rg_byte_set_add(&low, 'E', 'F');
    uint32_t c;
    RG_TRY(rg_grammar_rule(g, &c, st));
    RG_TRY(alt(g, c, st, "s", &plain));
    RG_TRY(alt(g, c, st, "ss", &two, &tail));
    RG_TRY(alt(g, c, st, "tss", "\xE0", &e0, &tail));
    RG_TRY(alt(g, c, st, "sss", &three, &tail, &tail));
    RG_TRY(alt(g, c, st, "tss", "\xED", &ed, &tail));
    RG_TRY(alt(g, c, st, "tsss", "\xF0", &f0, &tail, &tail));
    RG_TRY(alt(g, c, st, "ssss", &four, &tail, &tail, &tail));
    RG_TRY(alt(g, c, st, "tsss", "\xF4", &f4, &tail, &tail));
    RG_TRY(alt(g, c, st, "ts", "\\", &escape));
    RG_TRY(alt(g, c, st, "tssss", "\\u", &low, &hex, &hex, &hex));
    RG_TRY(alt(g, c, st, "tsss", "\\u0", &some, &hex, &hex));
    RG_TRY(alt(g, c, st, "tss", "\\u00", &some, &hex));
    RG_TRY(alt(g, c, st, "ts", "\\u000", &some));
    RG_TRY(alt(g, c, st, "tssss", "\\u", &d, &octal, &hex, &hex));
    *rule = r->character = c;
    return RG_OK;
}

static rg_code string_rule(rg_schema_rules *r, uint32_t min, uint32_t max, uint32_t *rule,
                           rg_status *st) {
    const bool plain = min == 0 && max == NONE;
    if (plain && r->string != NONE) {
        *rule = r->string;
        return RG_OK;
    }
    uint32_t one, all;
    RG_TRY(character(r, &one, st));
    RG_TRY(repeat(r, one, NONE, min, max, &all, st));
    RG_TRY(rg_grammar_rule(r->g, rule, st));
    RG_TRY(alt(r->g, *rule, st, "trt", "\"", all, "\""));
    if (plain) r->string = *rule;
    return RG_OK;
}

/* Digits are bounded: numbers stay finite and a model cannot count for ever. */
static rg_code integer_rule(rg_schema_rules *r, uint32_t *rule, rg_status *st) {
    if (r->integer == NONE) {
        const rg_byte_set digit = set_of('0', '9'), lead = set_of('1', '9');
        uint32_t d, ds, n;
        RG_TRY(rg_grammar_rule(r->g, &d, st));
        RG_TRY(alt(r->g, d, st, "s", &digit));
        RG_TRY(repeat(r, d, NONE, 0, 17, &ds, st));
        RG_TRY(rg_grammar_rule(r->g, &n, st));
        RG_TRY(alt(r->g, n, st, "t", "0"));
        RG_TRY(alt(r->g, n, st, "sr", &lead, ds));
        RG_TRY(alt(r->g, n, st, "tsr", "-", &lead, ds));
        r->integer = n;
    }
    *rule = r->integer;
    return RG_OK;
}

static rg_code number_rule(rg_schema_rules *r, uint32_t *rule, rg_status *st) {
    if (r->number == NONE) {
        const rg_byte_set digit = set_of('0', '9');
        rg_byte_set sign = set_of('+', '+');
        rg_byte_set_add(&sign, '-', '-');
        uint32_t d, ds, whole, fraction, power, n, zero;
        RG_TRY(integer_rule(r, &whole, st));
        RG_TRY(rg_grammar_rule(r->g, &d, st));
        RG_TRY(alt(r->g, d, st, "s", &digit));
        RG_TRY(repeat(r, d, NONE, 1, 17, &ds, st));
        RG_TRY(rg_grammar_rule(r->g, &fraction, st));
        RG_TRY(alt(r->g, fraction, st, ""));
        RG_TRY(alt(r->g, fraction, st, "tr", ".", ds));
        RG_TRY(rg_grammar_rule(r->g, &power, st));
        RG_TRY(alt(r->g, power, st, ""));
        RG_TRY(alt(r->g, power, st, "tss", "e", &sign, &digit));
        RG_TRY(alt(r->g, power, st, "ts", "e", &digit));
        RG_TRY(rg_grammar_rule(r->g, &zero, st)); /* -0.5 */
        RG_TRY(alt(r->g, zero, st, "tr", "-0.", ds));
        RG_TRY(rg_grammar_rule(r->g, &n, st));
        RG_TRY(alt(r->g, n, st, "rrr", whole, fraction, power));
        RG_TRY(alt(r->g, n, st, "rr", zero, power));
        r->number = n;
    }
    *rule = r->number;
    return RG_OK;
}

static rg_code word_rule(rg_schema_rules *r, uint32_t *kept, const char *a, const char *b,
                         uint32_t *rule, rg_status *st) {
    if (*kept == NONE) {
        RG_TRY(rg_grammar_rule(r->g, kept, st));
        RG_TRY(alt(r->g, *kept, st, "t", a));
        if (b) RG_TRY(alt(r->g, *kept, st, "t", b));
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
    RG_TRY(alt(r->g, comma, st, "tr", ",", space));
    RG_TRY(repeat(r, unit, comma, min, max, &all, st));
    RG_TRY(rg_grammar_rule(r->g, rule, st));
    return alt(r->g, *rule, st, "trrrt", open, space, all, space, close);
}

static rg_code value_rule(rg_schema_rules *r, uint32_t *rule, rg_status *st);

/* "key": value pairs with any keys. */
static rg_code map_rule(rg_schema_rules *r, uint32_t value, uint32_t *rule, rg_status *st) {
    uint32_t key, space, pair;
    RG_TRY(string_rule(r, 0, NONE, &key, st));
    RG_TRY(rg_schema_space(r, &space, st));
    RG_TRY(rg_grammar_rule(r->g, &pair, st));
    RG_TRY(alt(r->g, pair, st, "rtrr", key, ":", space, value));
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
    RG_TRY(string_rule(r, 0, NONE, &part, st));
    RG_TRY(alt(r->g, v, st, "r", part));
    RG_TRY(number_rule(r, &part, st));
    RG_TRY(alt(r->g, v, st, "r", part));
    RG_TRY(word_rule(r, &r->boolean, "true", "false", &part, st));
    RG_TRY(alt(r->g, v, st, "r", part));
    RG_TRY(word_rule(r, &r->null, "null", NULL, &part, st));
    RG_TRY(alt(r->g, v, st, "r", part));
    RG_TRY(map_rule(r, v, &r->object, st));
    RG_TRY(alt(r->g, v, st, "r", r->object));
    RG_TRY(list_rule(r, "[", v, 0, NONE, "]", &r->array, st));
    RG_TRY(alt(r->g, v, st, "r", r->array));
    *rule = v;
    return RG_OK;
}

/* ---- keywords ------------------------------------------------------------------------------- */

static rg_code compile(rg_schema_rules *r, const json_t *schema, uint32_t *rule, rg_status *st);

static rg_code check_keywords(const rg_schema_rules *r, const json_t *schema, rg_status *st) {
    static const char *const known[] = {
        "type",        "properties",  "required",    "additionalProperties",
        "items",       "prefixItems", "minItems",    "maxItems",
        "enum",        "const",       "minLength",   "maxLength",
        "anyOf",       "allOf",       "$ref",        "$defs",
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

static rg_code read_counts(const json_t *schema, const char *min_key, const char *max_key,
                           uint32_t *min, uint32_t *max, rg_status *st) {
    RG_TRY(read_count(schema, min_key, 0, min, st));
    RG_TRY(read_count(schema, max_key, NONE, max, st));
    if (*max != NONE && *max < *min) {
        return rg_fail(st, RG_INVALID, "the schema's '%s' %u is below its '%s' %u", max_key, *max,
                       min_key, *min);
    }
    return RG_OK;
}

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

static rg_code enum_rule(rg_schema_rules *r, const json_t *values, uint32_t *rule, rg_status *st) {
    if (!json_is_array(values) || json_array_size(values) == 0) {
        return rg_fail(st, RG_INVALID, "the schema's 'enum' must be an array with values");
    }
    RG_TRY(rg_grammar_rule(r->g, rule, st));
    size_t i;
    json_t *v;
    json_array_foreach(values, i, v) {
        RG_TRY(literal(r, *rule, v, st));
    }
    return RG_OK;
}

static rg_code any_rule(rg_schema_rules *r, const json_t *list, const char *key, uint32_t *rule,
                        rg_status *st) {
    if (!json_is_array(list) || json_array_size(list) == 0) {
        return rg_fail(st, RG_INVALID, "the schema's '%s' must be an array of schemas", key);
    }
    RG_TRY(rg_grammar_rule(r->g, rule, st));
    size_t i;
    json_t *s;
    json_array_foreach(list, i, s) {
        uint32_t one = 0;
        RG_TRY(compile(r, s, &one, st));
        RG_TRY(alt(r->g, *rule, st, "r", one));
    }
    return RG_OK;
}

/* Only pointers into the schema's own definitions, "#/$defs/NAME", or "#". */
static rg_code ref_rule(rg_schema_rules *r, const json_t *ref, uint32_t *rule, rg_status *st) {
    const char *path = json_string_value(ref);
    const json_t *target = NULL;
    if (path && strcmp(path, "#") == 0) target = r->root;
    static const char *const folders[] = {"$defs", "definitions"};
    for (size_t i = 0; path && i < RG_ARRAY_LEN(folders); i++) {
        const size_t len = strlen(folders[i]);
        if (strncmp(path, "#/", 2) == 0 && strncmp(path + 2, folders[i], len) == 0 &&
            path[2 + len] == '/') {
            target = json_object_get(json_object_get(r->root, folders[i]), path + 3 + len);
        }
    }
    if (!target) {
        return rg_fail(st, RG_INVALID, "the schema's '$ref' \"%.60s\" points nowhere in its $defs",
                       path ? path : "");
    }
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
    return alt(r->g, *rule, st, "r", body);
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
    if (rc == RG_OK) rc = alt(r->g, *rule, st, "trr", b.data, space, value);
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
    RG_GO(alt(r->g, first, st, ""));
    later = first;
    while (at-- > 0) {
        uint32_t pair, f, l;
        RG_GO(pair_rule(r, keys[at], json_object_get(properties, keys[at]), &pair, st));
        RG_GO(rg_grammar_rule(r->g, &f, st));
        RG_GO(rg_grammar_rule(r->g, &l, st));
        RG_GO(alt(r->g, f, st, "rr", pair, later));
        RG_GO(alt(r->g, l, st, "trrr", ",", space, pair, later));
        if (!is_required(schema, keys[at])) {
            RG_GO(alt(r->g, f, st, "r", first));
            RG_GO(alt(r->g, l, st, "r", later));
        }
        first = f;
        later = l;
    }
    RG_GO(rg_grammar_rule(r->g, rule, st));
    rc = alt(r->g, *rule, st, "trrrt", "{", space, first, space, "}");
cleanup:
    rg_free(keys);
    return rc;
}

static rg_code object_rule(rg_schema_rules *r, const json_t *schema, uint32_t *rule,
                           rg_status *st) {
    json_t *properties = json_object_get(schema, "properties");
    const json_t *others = json_object_get(schema, "additionalProperties");
    if (properties && !json_is_object(properties)) {
        return rg_fail(st, RG_INVALID, "the schema's 'properties' must be an object");
    }
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(schema, "required"), i, name) {
        const char *key = json_string_value(name);
        if (r->lenient || (key && json_object_get(properties, key))) continue;
        return rg_fail(st, RG_INVALID,
                       "the schema's 'required' names \"%.60s\", which is no "
                       "property",
                       key ? key : "");
    }
    if (json_object_size(properties) || json_is_false(others)) {
        return declared_rule(r, schema, properties, rule, st);
    }
    uint32_t value;
    if (json_is_object(others)) {
        RG_TRY(compile(r, others, &value, st));
        return map_rule(r, value, rule, st);
    }
    RG_TRY(value_rule(r, &value, st));
    *rule = r->object;
    return RG_OK;
}

static rg_code tuple_rule(rg_schema_rules *r, const json_t *list, uint32_t *rule, rg_status *st) {
    uint32_t space = 0, rules[RG_SCHEMA_NESTING_MAX] = {0};
    const size_t n = json_array_size(list);
    if (n == 0 || n > RG_SCHEMA_NESTING_MAX) {
        return rg_fail(st, RG_INVALID, "the schema's 'prefixItems' must have 1 to %u schemas",
                       RG_SCHEMA_NESTING_MAX);
    }
    for (size_t i = 0; i < n; i++)
        RG_TRY(compile(r, json_array_get(list, i), &rules[i], st));
    RG_TRY(rg_schema_space(r, &space, st));
    RG_TRY(rg_grammar_rule(r->g, rule, st));
    RG_TRY(rg_grammar_begin(r->g, *rule, st));
    for (size_t i = 0; i < n; i++) {
        RG_TRY(rg_grammar_text(r->g, i ? "," : "[", 1, st));
        RG_TRY(rg_grammar_ref(r->g, space, st));
        RG_TRY(rg_grammar_ref(r->g, rules[i], st));
    }
    RG_TRY(rg_grammar_ref(r->g, space, st));
    RG_TRY(rg_grammar_text(r->g, "]", 1, st));
    return rg_grammar_end(r->g, st);
}

static rg_code array_rule(rg_schema_rules *r, const json_t *schema, uint32_t *rule, rg_status *st) {
    const json_t *items = json_object_get(schema, "items");
    const json_t *tuple = json_object_get(schema, "prefixItems");
    uint32_t min = 0, max = 0, unit = 0;
    RG_TRY(read_counts(schema, "minItems", "maxItems", &min, &max, st));
    if (tuple) {
        const size_t n = json_array_size(tuple);
        if (min > n || (max != NONE && max < n)) {
            return rg_fail(st, RG_INVALID, "the schema's 'prefixItems' and item counts disagree");
        }
        return tuple_rule(r, tuple, rule, st);
    }
    if (items && !json_is_true(items)) {
        RG_TRY(compile(r, items, &unit, st));
    } else {
        RG_TRY(value_rule(r, &unit, st));
    }
    return list_rule(r, "[", unit, min, max, "]", rule, st);
}

static rg_code type_rule(rg_schema_rules *r, const json_t *schema, const char *type, uint32_t *rule,
                         rg_status *st) {
    uint32_t min, max;
    if (strcmp(type, "object") == 0) return object_rule(r, schema, rule, st);
    if (strcmp(type, "array") == 0) return array_rule(r, schema, rule, st);
    if (strcmp(type, "number") == 0) return number_rule(r, rule, st);
    if (strcmp(type, "integer") == 0) return integer_rule(r, rule, st);
    if (strcmp(type, "boolean") == 0) return word_rule(r, &r->boolean, "true", "false", rule, st);
    if (strcmp(type, "null") == 0) return word_rule(r, &r->null, "null", NULL, rule, st);
    if (strcmp(type, "string") != 0) {
        return rg_fail(st, RG_INVALID, "the schema's type \"%.40s\" is no JSON type", type);
    }
    RG_TRY(read_counts(schema, "minLength", "maxLength", &min, &max, st));
    return string_rule(r, min, max, rule, st);
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
        RG_TRY(alt(r->g, *rule, st, "r", one));
    }
    return RG_OK;
}

static rg_code by_keyword(rg_schema_rules *r, const json_t *schema, uint32_t *rule, rg_status *st) {
    const json_t *type = json_object_get(schema, "type"), *v;
    if ((v = json_object_get(schema, "$ref"))) return ref_rule(r, v, rule, st);
    if ((v = json_object_get(schema, "const"))) {
        RG_TRY(rg_grammar_rule(r->g, rule, st));
        return literal(r, *rule, v, st);
    }
    if ((v = json_object_get(schema, "enum"))) return enum_rule(r, v, rule, st);
    if ((v = json_object_get(schema, "anyOf"))) return any_rule(r, v, "anyOf", rule, st);
    if ((v = json_object_get(schema, "oneOf"))) return any_rule(r, v, "oneOf", rule, st);
    if ((v = json_object_get(schema, "allOf"))) {
        if (json_array_size(v) == 1 || r->lenient)
            return compile(r, json_array_get(v, 0), rule, st);
        return rg_fail(st, RG_INVALID, "the schema's keyword 'allOf' is supported for one schema");
    }
    if (json_is_string(type)) return type_rule(r, schema, json_string_value(type), rule, st);
    if (json_is_array(type) && json_array_size(type)) return types_rule(r, schema, type, rule, st);
    if (type) return rg_fail(st, RG_INVALID, "the schema's 'type' must be a word or words");
    if (json_object_get(schema, "properties")) return object_rule(r, schema, rule, st);
    if (json_object_get(schema, "items")) return array_rule(r, schema, rule, st);
    return value_rule(r, rule, st);
}

static rg_code compile(rg_schema_rules *r, const json_t *schema, uint32_t *rule, rg_status *st) {
    *rule = 0;
    if (json_is_true(schema)) return value_rule(r, rule, st);
    if (!json_is_object(schema)) return rg_fail(st, RG_INVALID, "a schema must be an object");
    if (++r->depth > RG_SCHEMA_NESTING_MAX) {
        return rg_fail(st, RG_INVALID, "the schema nests deeper than %u levels",
                       RG_SCHEMA_NESTING_MAX);
    }
    rg_code rc = check_keywords(r, schema, st);
    if (rc == RG_OK) rc = by_keyword(r, schema, rule, st);
    if (rc == RG_OK && json_is_true(json_object_get(schema, "nullable"))) {
        uint32_t null = 0, both = 0;
        RG_TRY(word_rule(r, &r->null, "null", NULL, &null, st));
        RG_TRY(rg_grammar_rule(r->g, &both, st));
        RG_TRY(alt(r->g, both, st, "r", *rule));
        RG_TRY(alt(r->g, both, st, "r", null));
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
