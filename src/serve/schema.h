/* schema: a JSON schema as grammar rules.
 *
 * Every text the grammar lets through is JSON that the schema accepts; not every such text is let
 * through (properties come in their declared order, undeclared ones never beside declared ones).
 * Understood: type, properties, required, additionalProperties, items, prefixItems, minItems,
 * maxItems, enum, const, minLength, maxLength, pattern (pattern.h), format (schema_text.c),
 * minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf (decimal.h), anyOf, oneOf whose
 * parts can be told apart, allOf, $ref into the schema itself; lists and references are joined with
 * what stands beside them. Titles and the like are passed over. Any other keyword is INVALID and
 * named: a promise that cannot be kept is refused.
 */
#ifndef RG_SERVE_SCHEMA_H
#define RG_SERVE_SCHEMA_H

#include <jansson.h>

#include "serve/grammar.h"

#define RG_SCHEMA_NESTING_MAX 64u
#define RG_SCHEMA_REPEAT_MAX  512u /* minItems, maxItems, minLength, maxLength */
#define RG_SCHEMA_REFS_MAX    256u

typedef struct rg_schema_rules {
    rg_grammar *g;
    /* Rules that are made once: UINT32_MAX = not yet. */
    uint32_t space, string, chars, character, number, integer, boolean, null, value, object, array;
    uint32_t wide;      /* a character beyond ASCII in a pattern */
    const json_t *root; /* of the schema being compiled, for $ref */
    struct {
        const json_t *target;
        uint32_t rule;
    } refs[RG_SCHEMA_REFS_MAX];
    size_t n_ref;
    unsigned depth;
    bool lenient; /* keywords that are not understood are passed over */
} rg_schema_rules;

void rg_schema_init(rg_schema_rules *r, rg_grammar *g);
/* A rule for values of `schema`; `root` is where its references point into. */
RG_MUST_CHECK rg_code rg_schema_compile(rg_schema_rules *r, const json_t *root,
                                        const json_t *schema, uint32_t *rule, rg_status *st);
/* Optional white space of JSON, bounded. */
RG_MUST_CHECK rg_code rg_schema_space(rg_schema_rules *r, uint32_t *rule, rg_status *st);

#endif
