/* field: typed values out of a request's JSON, and JSON text into a buffer. A value of the wrong
 * type or range is INVALID with a message that names the field.
 */
#ifndef RG_SERVE_FIELD_H
#define RG_SERVE_FIELD_H

#include <jansson.h>

#include "base/base.h"

#define RG_BODY_BYTES_MAX   ((size_t)32 << 20)
#define RG_BODY_NESTING_MAX 96u

/* Parses a body: one JSON object, no duplicate keys, nesting within the limit. */
RG_MUST_CHECK rg_code rg_body_parse(json_t **out, const char *text, size_t len, rg_status *st);

/* An absent or null field leaves *out as it is. */
RG_MUST_CHECK rg_code rg_field_bool(const json_t *o, const char *key, bool *out, rg_status *st);
RG_MUST_CHECK rg_code rg_field_float(const json_t *o, const char *key, double min, double max,
                                     float *out, rg_status *st);
RG_MUST_CHECK rg_code rg_field_int(const json_t *o, const char *key, int64_t min, int64_t max,
                                   int64_t *out, rg_status *st);
/* Borrowed from the object. */
RG_MUST_CHECK rg_code rg_field_str(const json_t *o, const char *key, rg_str *out, rg_status *st);
/* NULL when absent or null. */
RG_MUST_CHECK rg_code rg_field_array(const json_t *o, const char *key, json_t **out, rg_status *st);
RG_MUST_CHECK rg_code rg_field_object(const json_t *o, const char *key, json_t **out,
                                      rg_status *st);
/* A present field that is not null. */
json_t *rg_field(const json_t *o, const char *key);
rg_str rg_json_str(const json_t *string);
bool rg_str_is(rg_str s, const char *text);

/* The escaped text without quotes; bytes must be UTF-8. */
RG_MUST_CHECK rg_code rg_put_escaped(rg_buf *b, const char *text, size_t len, rg_status *st);
/* With quotes. */
RG_MUST_CHECK rg_code rg_put_string(rg_buf *b, const char *text, size_t len, rg_status *st);
/* As the chat templates write JSON: ", " and ": ", characters as they are, order kept. */
RG_MUST_CHECK rg_code rg_put_json(rg_buf *b, const json_t *value, rg_status *st);

#endif
