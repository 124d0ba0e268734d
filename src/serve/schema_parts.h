/* The schema compiler's parts. Private to schema*.c and guide.c. */
#ifndef RG_SERVE_SCHEMA_PARTS_H
#define RG_SERVE_SCHEMA_PARTS_H

#include "serve/schema.h"

#define RG_SCHEMA_MANY       UINT32_MAX /* no upper count; no rule yet */
#define RG_SCHEMA_PLACES_MAX 65536u     /* characters x states of a pattern with lengths */

/* ---- schema.c ------------------------------------------------------------------------------- */

/* An alternative: what the form says. 't' text (const char *), 's' set (const rg_byte_set *), 'r'
 * rule (uint32_t); they follow as arguments. */
RG_MUST_CHECK rg_code rg_schema_alt(rg_grammar *g, uint32_t rule, rg_status *st, const char *form,
                                    ...);
rg_byte_set rg_schema_set(unsigned first, unsigned last);
/* `unit` from min to max times, with `between` (RG_SCHEMA_MANY: nothing). */
RG_MUST_CHECK rg_code rg_schema_repeat(rg_schema_rules *r, uint32_t unit, uint32_t between,
                                       uint32_t min, uint32_t max, uint32_t *rule, rg_status *st);
/* Keywords that are not understood are INVALID and named, unless the rules are lenient. */
RG_MUST_CHECK rg_code rg_schema_check(const rg_schema_rules *r, const json_t *schema,
                                      rg_status *st);
RG_MUST_CHECK rg_code rg_schema_counts(const json_t *schema, const char *min_key,
                                       const char *max_key, uint32_t *min, uint32_t *max,
                                       rg_status *st);

/* ---- schema_text.c: strings ----------------------------------------------------------------- */

/* Any string of min to max characters. */
RG_MUST_CHECK rg_code rg_schema_string(rg_schema_rules *r, uint32_t min, uint32_t max,
                                       uint32_t *rule, rg_status *st);
/* A string as minLength, maxLength, pattern and format have it. */
RG_MUST_CHECK rg_code rg_schema_text(rg_schema_rules *r, const json_t *schema, uint32_t *rule,
                                     rg_status *st);
/* The same without quotes and escapes, on one line; *bound is false, and no rule is made, when the
 * schema asks for nothing of the kind. */
RG_MUST_CHECK rg_code rg_schema_raw_text(rg_schema_rules *r, const json_t *schema, bool *bound,
                                         uint32_t *rule, rg_status *st);

/* ---- schema_merge.c: schemas as JSON -------------------------------------------------------- */

/* What a schema asks beside one keyword: a fresh object, empty when only titles and the like are.
 */
RG_MUST_CHECK rg_code rg_schema_rest(json_t **out, const json_t *schema, const char *key,
                                     rg_status *st);
/* A fresh schema for the values of both. INVALID and named where that cannot be written. */
RG_MUST_CHECK rg_code rg_schema_merge(json_t **out, const json_t *a, const json_t *b,
                                      rg_status *st);
/* Surely no value fits both. */
bool rg_schema_disjoint(const json_t *root, const json_t *a, const json_t *b);
/* What a pointer "#/a/0/b" points at; NULL: nothing, or no object or boolean. */
const json_t *rg_schema_find(const json_t *root, const char *path);
/* The types that keywords of a schema without 'type' speak of: a fresh array, NULL without memory.
 */
json_t *rg_schema_implied(const json_t *schema);

#endif
