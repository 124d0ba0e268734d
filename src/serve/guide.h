/* guide: which tokens may come next, so that an answer keeps to its schema and a tool call to its
 * form. It follows the reply token by token.
 *
 *   FREE --"</think>"--> FREE or BOUND     (thinking is never constrained)
 *   FREE --"<tool_call>"--> BOUND          (tools that may be called)
 *   BOUND --grammar complete--> only the end of the reply
 *
 * Owner: whoever holds it; the grammar inside is its own.
 */
#ifndef RG_SERVE_GUIDE_H
#define RG_SERVE_GUIDE_H

#include <jansson.h>

#include "serve/lexicon.h"

typedef struct rg_guide rg_guide;

typedef struct rg_guide_options {
    const json_t *schema; /* of the answer; NULL: free text */
    const json_t *tools;  /* array of {name, parameters}; NULL: none */
    const char *only;     /* the one tool that may be called; NULL: any */
    bool must_call;       /* the answer is a call */
    bool one_call;
    bool thinking; /* the reply begins inside the thinking part */
} rg_guide_options;

/* INVALID or UNSUPPORTED with a message that names the keyword of the schema. */
RG_MUST_CHECK rg_code rg_guide_create(rg_guide **out, const rg_lexicon *lexicon,
                                      const rg_guide_options *opt, rg_status *st);
void rg_guide_destroy(rg_guide *g); /* NULL is allowed */
/* A bit for each token, borrowed until the next call; *out is NULL when all are allowed. */
RG_MUST_CHECK rg_code rg_guide_allowed(rg_guide *g, const uint8_t **out, rg_status *st);
RG_MUST_CHECK rg_code rg_guide_accept(rg_guide *g, int32_t id, rg_status *st);

#endif
