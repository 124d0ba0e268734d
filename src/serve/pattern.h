/* pattern: regular expressions of JSON schemas as automata over characters.
 *
 * A symbol is an ASCII character, or WIDE: any other one (U+2028 and U+2029, which "." does not
 * mean, are never written). An expression finds a text that contains a match, as the schema
 * language has it; "^" and "$" bind it to the ends. Understood, with the meaning of ECMA 262:
 * characters, ".", classes, \d \w \s \D \W \S, escapes, groups, "|", "*" "+" "?" "{m,n}" and their
 * lazy forms. "\W",
 * "\D", "\S" and classes that exclude such a set mean ASCII characters only: engines differ beyond.
 * Anything else (back references, looking around, \b, anchors in the middle, characters that are
 * not ASCII) is INVALID and named.
 *
 * Owner: whoever holds it; immutable after creation.
 */
#ifndef RG_SERVE_PATTERN_H
#define RG_SERVE_PATTERN_H

#include "base/base.h"

#define RG_PATTERN_WIDE    128u
#define RG_PATTERN_SYMBOLS 129u
#define RG_PATTERN_DEAD    UINT16_MAX
#define RG_PATTERN_REPEATS 512u  /* of one piece */
#define RG_PATTERN_PARTS   2048u /* states, before and behind making the automaton certain */
#define RG_PATTERN_NESTING 32u
#define RG_PATTERN_STEPS   (16u << 20) /* of making it certain */

typedef struct rg_pattern {
    uint32_t n_state; /* 0 is where a text begins */
    uint16_t *next;   /* [n_state][RG_PATTERN_SYMBOLS]; a text that meets DEAD does not match */
    uint8_t *accepts; /* [n_state] the text may end */
} rg_pattern;

RG_MUST_CHECK rg_code rg_pattern_create(rg_pattern **out, const char *text, rg_status *st);
/* Takes the texts that both take. */
RG_MUST_CHECK rg_code rg_pattern_both(rg_pattern **out, const rg_pattern *a, const rg_pattern *b,
                                      rg_status *st);
/* Takes every text. */
RG_MUST_CHECK rg_code rg_pattern_any(rg_pattern **out, rg_status *st);
void rg_pattern_destroy(rg_pattern *p); /* NULL is allowed */

#endif
