#include "serve/field.h"

#include <math.h>
#include <string.h>

/* Brackets outside strings; a body that is no JSON is left to the parser. */
static bool nests_too_deep(const char *text, size_t len) {
    unsigned depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < len; i++) {
        const char c = text[i];
        if (quoted) {
            if (c == '\\') i++;
            if (c == '"') quoted = false;
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            if (++depth > RG_BODY_NESTING_MAX) return true;
        } else if ((c == '}' || c == ']') && depth) {
            depth--;
        }
    }
    return false;
}

rg_code rg_body_parse(json_t **out, const char *text, size_t len, rg_status *st) {
    *out = NULL;
    if (len == 0) return rg_fail(st, RG_INVALID, "the body is empty, a JSON object is expected");
    if (nests_too_deep(text, len)) {
        return rg_fail(st, RG_INVALID, "the body nests deeper than %u levels", RG_BODY_NESTING_MAX);
    }
    json_error_t e;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
    if (!root) {
        return rg_fail(st, RG_INVALID, "the body is no JSON: %.120s at line %d, column %d", e.text,
                       e.line, e.column);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return rg_fail(st, RG_INVALID, "the body is no JSON object");
    }
    *out = root;
    return RG_OK;
}

json_t *rg_field(const json_t *o, const char *key) {
    json_t *v = json_object_get(o, key);
    return v && !json_is_null(v) ? v : NULL;
}

static rg_code wrong(const char *key, const char *wanted, rg_status *st) {
    return rg_fail(st, RG_INVALID, "'%.80s': %s expected", key, wanted);
}

rg_code rg_field_bool(const json_t *o, const char *key, bool *out, rg_status *st) {
    const json_t *v = rg_field(o, key);
    if (!v) return RG_OK;
    if (!json_is_boolean(v)) return wrong(key, "true or false", st);
    *out = json_is_true(v);
    return RG_OK;
}

rg_code rg_field_float(const json_t *o, const char *key, double min, double max, float *out,
                       rg_status *st) {
    const json_t *v = rg_field(o, key);
    if (!v) return RG_OK;
    if (!json_is_number(v)) return wrong(key, "a number", st);
    const double x = json_number_value(v);
    if (!(x >= min && x <= max)) {
        return rg_fail(st, RG_INVALID, "'%.80s' is %g, %g to %g is possible", key, x, min, max);
    }
    *out = (float)x;
    return RG_OK;
}

rg_code rg_field_int(const json_t *o, const char *key, int64_t min, int64_t max, int64_t *out,
                     rg_status *st) {
    const json_t *v = rg_field(o, key);
    if (!v) return RG_OK;
    int64_t x = json_is_integer(v) ? json_integer_value(v) : 0;
    if (json_is_real(v)) { /* 16.0 */
        const double d = json_real_value(v);
        if (d != floor(d) || fabs(d) > 9e15) return wrong(key, "a whole number", st);
        x = (int64_t)d;
    } else if (!json_is_integer(v)) {
        return wrong(key, "a whole number", st);
    }
    if (x < min || x > max) {
        return rg_fail(st, RG_INVALID, "'%.80s' is %lld, %lld to %lld is possible", key,
                       (long long)x, (long long)min, (long long)max);
    }
    *out = x;
    return RG_OK;
}

rg_code rg_field_str(const json_t *o, const char *key, rg_str *out, rg_status *st) {
    const json_t *v = rg_field(o, key);
    if (!v) return RG_OK;
    if (!json_is_string(v)) return wrong(key, "a string", st);
    *out = rg_json_str(v);
    return RG_OK;
}

rg_code rg_field_array(const json_t *o, const char *key, json_t **out, rg_status *st) {
    *out = rg_field(o, key);
    return !*out || json_is_array(*out) ? RG_OK : wrong(key, "an array", st);
}

rg_code rg_field_object(const json_t *o, const char *key, json_t **out, rg_status *st) {
    *out = rg_field(o, key);
    return !*out || json_is_object(*out) ? RG_OK : wrong(key, "an object", st);
}

rg_str rg_json_str(const json_t *string) {
    return (rg_str){json_string_value(string), json_string_length(string)};
}

bool rg_str_is(rg_str s, const char *text) {
    return s.len == strlen(text) && memcmp(s.len ? s.data : "", text, s.len) == 0;
}

/* ---- writing -------------------------------------------------------------------------------- */

static char short_escape(unsigned char c) {
    switch (c) {
    case '"':
        return '"';
    case '\\':
        return '\\';
    case '\n':
        return 'n';
    case '\r':
        return 'r';
    case '\t':
        return 't';
    default:
        return 0;
    }
}

rg_code rg_put_escaped(rg_buf *b, const char *text, size_t len, rg_status *st) {
    size_t from = 0;
    for (size_t i = 0; i < len; i++) {
        const unsigned char c = (unsigned char)text[i];
        const char name = short_escape(c);
        if (c >= 0x20 && !name) continue;
        RG_TRY(rg_buf_append(b, text + from, i - from, st));
        from = i + 1;
        if (name) {
            RG_TRY(rg_buf_append(b, (const char[2]){'\\', name}, 2, st));
        } else {
            RG_TRY(rg_buf_printf(b, st, "\\u%04x", c));
        }
    }
    return rg_buf_append(b, text + from, len - from, st);
}

rg_code rg_put_string(rg_buf *b, const char *text, size_t len, rg_status *st) {
    RG_TRY(rg_buf_append(b, "\"", 1, st));
    RG_TRY(rg_put_escaped(b, text, len, st));
    return rg_buf_append(b, "\"", 1, st);
}

static int append_json(const char *text, size_t len, void *buf) {
    return rg_buf_append(buf, text, len, NULL) == RG_OK ? 0 : -1;
}

rg_code rg_put_json(rg_buf *b, const json_t *value, rg_status *st) {
    if (json_dump_callback(value, append_json, b, JSON_ENCODE_ANY) != 0) {
        return rg_fail(st, RG_NOMEM, "no memory for JSON text");
    }
    return RG_OK;
}
