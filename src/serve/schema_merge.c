/* Schemas as JSON: joined, told apart, pointed into. */
#include <stdlib.h>
#include <string.h>

#include "serve/schema_parts.h"

#define DEPTH_MAX 8u

static json_t *plain(const json_t *v) { /* jansson takes no const pointers */
    return (json_t *)(uintptr_t)v;
}

/* Keywords that ask nothing of a value, and "nullable", which its own schema answers. */
static bool is_note(const char *key) {
    static const char *const notes[] = {
        "title",      "description", "default",  "examples",  "$schema", "$id",      "$comment",
        "deprecated", "strict",      "readOnly", "writeOnly", "$defs",   "nullable", "definitions"};
    for (size_t i = 0; i < RG_ARRAY_LEN(notes); i++) {
        if (strcmp(notes[i], key) == 0) return true;
    }
    return false;
}

static rg_code no_memory(rg_status *st) {
    return rg_fail(st, RG_NOMEM, "no memory for a schema");
}

rg_code rg_schema_rest(json_t **out, const json_t *schema, const char *key, rg_status *st) {
    const char *name;
    json_t *v;
    *out = json_object();
    if (!*out) return no_memory(st);
    json_object_foreach(plain(schema), name, v) {
        if (strcmp(name, key) == 0 || is_note(name)) continue;
        if (json_object_set(*out, name, v) == 0) continue;
        json_decref(*out);
        *out = NULL;
        return no_memory(st);
    }
    return RG_OK;
}

/* ---- joining -------------------------------------------------------------------------------- */

static rg_code merge_schemas(json_t **out, const json_t *a, const json_t *b, unsigned depth,
                             rg_status *st);

/* Values of both lists. */
static json_t *common_values(const json_t *a, const json_t *b) {
    json_t *out = json_array();
    size_t i, k;
    json_t *x, *y;
    json_array_foreach(plain(a), i, x) {
        json_array_foreach(plain(b), k, y) {
            if (!json_equal(x, y)) continue;
            json_array_append(out, x);
            break;
        }
    }
    return out;
}

static json_t *words(const json_t *v) {
    return json_is_string(v) ? json_pack("[O]", v) : json_incref(plain(v));
}

/* Types of both; an integer is a number. */
static json_t *common_types(const json_t *a, const json_t *b) {
    json_t *x = words(a), *y = words(b), *out = common_values(x, y);
    json_t *pair[2] = {x, y};
    for (unsigned i = 0; i < 2; i++) {
        size_t k, l;
        json_t *u, *v;
        json_array_foreach(pair[i], k, u) {
            json_array_foreach(pair[1 - i], l, v) {
                const char *one = json_string_value(u), *other = json_string_value(v);
                if (!one || !other || strcmp(one, "integer") != 0 || strcmp(other, "number") != 0) {
                    continue;
                }
                json_array_append(out, u);
            }
        }
    }
    json_decref(x);
    json_decref(y);
    return out;
}

static json_t *all_names(const json_t *a, const json_t *b) {
    json_t *out = json_copy(plain(a));
    size_t i, k;
    json_t *x, *y;
    json_array_foreach(plain(b), i, x) {
        bool found = false;
        json_array_foreach(plain(a), k, y) {
            found = found || json_equal(x, y);
        }
        if (!found) json_array_append(out, x);
    }
    return out;
}

static rg_code merge_properties(json_t **out, const json_t *a, const json_t *b, unsigned depth,
                                rg_status *st) {
    const char *key;
    json_t *v;
    *out = json_copy(plain(a));
    if (!*out) return no_memory(st);
    json_object_foreach(plain(b), key, v) {
        const json_t *own = json_object_get(a, key);
        json_t *both = json_incref(v);
        if (own) {
            json_decref(both);
            RG_TRY(merge_schemas(&both, own, v, depth, st));
        }
        if (json_object_set_new(*out, key, both) != 0) return no_memory(st);
    }
    return RG_OK;
}

/* The tighter of two numbers: the greater for lower bounds. */
static json_t *tighter(const char *key, const json_t *a, const json_t *b) {
    const bool lower = strncmp(key, "min", 3) == 0 || strcmp(key, "exclusiveMinimum") == 0;
    const double x = json_number_value(a), y = json_number_value(b);
    return json_incref(plain((x > y) == lower ? a : b));
}

static bool is_bound(const char *key) {
    static const char *const bounds[] = {"minimum",          "maximum",         "minLength",
                                         "maxLength",        "minItems",        "maxItems",
                                         "exclusiveMinimum", "exclusiveMaximum"};
    for (size_t i = 0; i < RG_ARRAY_LEN(bounds); i++) {
        if (strcmp(bounds[i], key) == 0) return true;
    }
    return false;
}

/* One keyword that both have, with other values. */
static rg_code merge_keyword(json_t **out, const char *key, const json_t *a, const json_t *b,
                             unsigned depth, rg_status *st) {
    *out = NULL;
    if (strcmp(key, "type") == 0) *out = common_types(a, b);
    if (strcmp(key, "enum") == 0) *out = common_values(a, b);
    if (*out && json_array_size(*out) == 0) {
        json_decref(*out);
        return rg_fail(st, RG_INVALID, "the schema's '%s' contradict each other", key);
    }
    if (strcmp(key, "required") == 0) *out = all_names(a, b);
    if (is_bound(key) && json_is_number(a) && json_is_number(b)) *out = tighter(key, a, b);
    if (*out) return RG_OK;
    if (strcmp(key, "properties") == 0) return merge_properties(out, a, b, depth, st);
    if (strcmp(key, "items") == 0) return merge_schemas(out, a, b, depth, st);
    return rg_fail(st, RG_INVALID, "the schema's '%s' is given twice (beside a reference or list)",
                   key);
}

/* Properties that only one knows do not go with the other's "no others". */
static bool closed_apart(const json_t *a, const json_t *b) {
    const json_t *others = json_object_get(a, "additionalProperties");
    const json_t *own = json_object_get(a, "properties");
    const char *key;
    json_t *v;
    if (!others || json_is_true(others)) return false;
    json_object_foreach(json_object_get(b, "properties"), key, v) {
        if (!json_object_get(own, key)) return true;
    }
    return false;
}

static rg_code merge_into(json_t *out, const json_t *a, const json_t *b, unsigned depth,
                          rg_status *st) {
    const char *key;
    json_t *v;
    json_object_foreach(plain(b), key, v) {
        const json_t *own = json_object_get(a, key);
        json_t *both = json_incref(v);
        if (is_note(key) && own) {
            json_decref(both);
            continue;
        }
        if (own && !json_equal(own, v)) {
            json_decref(both);
            RG_TRY(merge_keyword(&both, key, own, v, depth, st));
        }
        if (json_object_set_new(out, key, both) != 0) return no_memory(st);
    }
    return RG_OK;
}

static rg_code merge_schemas(json_t **out, const json_t *a, const json_t *b, unsigned depth,
                             rg_status *st) {
    *out = NULL;
    if (json_is_true(a) || json_is_true(b)) {
        *out = json_incref(plain(json_is_true(a) ? b : a));
        return RG_OK;
    }
    if (!json_is_object(a) || !json_is_object(b)) {
        return rg_fail(st, RG_INVALID, "a schema must be an object");
    }
    if (depth > DEPTH_MAX) return rg_fail(st, RG_INVALID, "schemas are joined too deep");
    if (closed_apart(a, b) || closed_apart(b, a)) {
        return rg_fail(st, RG_INVALID,
                       "the schema's 'additionalProperties' beside a reference or list rules "
                       "properties of the other out");
    }
    *out = json_copy(plain(a));
    rg_code rc = *out ? merge_into(*out, a, b, depth + 1, st) : no_memory(st);
    if (rc == RG_OK) return RG_OK;
    json_decref(*out);
    *out = NULL;
    return rc;
}

rg_code rg_schema_merge(json_t **out, const json_t *a, const json_t *b, rg_status *st) {
    return merge_schemas(out, a, b, 0, st);
}

/* ---- pointers ------------------------------------------------------------------------------- */

/* One name of a pointer: "~1" is "/", "~0" is "~". False when it is too long. */
static bool read_name(const char **path, char *name, size_t cap) {
    size_t n = 0;
    const char *at = *path;
    for (; *at && *at != '/'; at++) {
        char c = *at;
        if (c == '~' && (at[1] == '0' || at[1] == '1')) c = *++at == '0' ? '~' : '/';
        if (n + 1 == cap) return false;
        name[n++] = c;
    }
    name[n] = 0;
    *path = at;
    return true;
}

const json_t *rg_schema_find(const json_t *root, const char *path) {
    const json_t *at = root;
    if (!path || path[0] != '#') return NULL;
    path++;
    while (at && *path == '/') {
        char name[256], *end = NULL;
        path++;
        if (!read_name(&path, name, sizeof name)) return NULL;
        if (json_is_array(at)) {
            const unsigned long i = strtoul(name, &end, 10);
            at = *name && !*end ? json_array_get(at, i) : NULL;
        } else {
            at = json_object_get(at, name);
        }
    }
    return at && !*path && (json_is_object(at) || json_is_boolean(at)) ? at : NULL;
}

/* ---- telling apart -------------------------------------------------------------------------- */

static const json_t *resolve(const json_t *root, const json_t *schema) {
    for (unsigned i = 0; i < DEPTH_MAX && schema; i++) {
        const json_t *ref = json_object_get(schema, "$ref");
        if (!ref) return schema;
        schema = rg_schema_find(root, json_string_value(ref));
    }
    return NULL;
}

/* The values a schema lists: a fresh array; NULL: it lists none. */
static json_t *listed(const json_t *schema) {
    const json_t *one = json_object_get(schema, "const"), *many = json_object_get(schema, "enum");
    if (one) return json_pack("[O]", one);
    return json_is_array(many) ? json_incref(plain(many)) : NULL;
}

static bool values_disjoint(const json_t *a, const json_t *b) {
    json_t *x = listed(a), *y = listed(b);
    bool apart = false;
    if (x && y) {
        json_t *both = common_values(x, y);
        size_t i;
        json_t *v;
        bool numbers = false; /* 1 and 1.0 are one value */
        json_array_foreach(x, i, v) {
            numbers = numbers || json_is_real(v);
        }
        json_array_foreach(y, i, v) {
            numbers = numbers || json_is_real(v);
        }
        apart = both && json_array_size(both) == 0 && !numbers;
        json_decref(both);
    }
    json_decref(x);
    json_decref(y);
    return apart;
}

static const char *type_of_value(const json_t *v) {
    static const char *const names[] = {"object", "array",   "string",  "integer",
                                        "number", "boolean", "boolean", "null"};
    return names[json_typeof(v)];
}

/* The types a schema leaves: a fresh array; NULL: any. */
static json_t *types_of(const json_t *schema) {
    const json_t *type = json_object_get(schema, "type");
    if (json_is_true(json_object_get(schema, "nullable"))) return NULL;
    if (type) return words(type);
    json_t *values = listed(schema);
    if (!values) return NULL;
    json_t *out = json_array();
    size_t i;
    json_t *v;
    json_array_foreach(values, i, v) {
        json_array_append_new(out, json_string(type_of_value(v)));
    }
    json_decref(values);
    return out;
}

static bool types_disjoint(const json_t *a, const json_t *b) {
    json_t *x = types_of(a), *y = types_of(b);
    bool apart = false;
    if (x && y) {
        json_t *both = common_types(x, y);
        apart = json_array_size(both) == 0;
        json_decref(both);
    }
    json_decref(x);
    json_decref(y);
    return apart;
}

static bool requires(const json_t *schema, const char *key) {
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(schema, "required"), i, v) {
        if (json_is_string(v) && strcmp(json_string_value(v), key) == 0) return true;
    }
    return false;
}

static bool disjoint(const json_t *root, const json_t *a, const json_t *b, unsigned depth) {
    a = resolve(root, a);
    b = resolve(root, b);
    if (!json_is_object(a) || !json_is_object(b) || depth > DEPTH_MAX) return false;
    if (types_disjoint(a, b) || values_disjoint(a, b)) return true;
    const char *key;
    json_t *v;
    const json_t *others = json_object_get(b, "properties");
    json_object_foreach(json_object_get(a, "properties"), key, v) {
        const json_t *other = json_object_get(others, key);
        if (!other || !requires(a, key) || !requires(b, key)) continue;
        if (disjoint(root, v, other, depth + 1)) return true;
    }
    return false;
}

bool rg_schema_disjoint(const json_t *root, const json_t *a, const json_t *b) {
    return disjoint(root, a, b, 0);
}

json_t *rg_schema_implied(const json_t *schema) {
    static const struct {
        const char *key, *type;
    } keys[] = {{"properties", "object"},
                {"required", "object"},
                {"additionalProperties", "object"},
                {"items", "array"},
                {"prefixItems", "array"},
                {"minItems", "array"},
                {"maxItems", "array"},
                {"minLength", "string"},
                {"maxLength", "string"},
                {"pattern", "string"},
                {"format", "string"},
                {"minimum", "number"},
                {"maximum", "number"},
                {"exclusiveMinimum", "number"},
                {"exclusiveMaximum", "number"},
                {"multipleOf", "number"}};
    json_t *out = json_array();
    const char *last = "";
    for (size_t i = 0; out && i < RG_ARRAY_LEN(keys); i++) {
        if (!json_object_get(schema, keys[i].key) || strcmp(last, keys[i].type) == 0) continue;
        last = keys[i].type;
        json_array_append_new(out, json_string(last));
    }
    return out;
}
