/* Finds the strings of a Jinja template without running it. Private to the room. */
#ifndef RG_TEXT_JINJA_SCAN_H
#define RG_TEXT_JINJA_SCAN_H

#include "text/text.h"

#define RG_JINJA_TEXT_MAX     (1u << 20)
#define RG_JINJA_LITERALS_MAX 4096u

typedef enum rg_jinja_kind {
    RG_JINJA_STRING, /* a quoted string inside a tag, escapes resolved */
    RG_JINJA_DATA    /* text outside tags that would be printed */
} rg_jinja_kind;

typedef struct rg_jinja_literal {
    rg_jinja_kind kind;
    rg_str text;
    size_t begin, end; /* of the source, quotes included */
} rg_jinja_literal;

/* A template's source and its strings, in order. Owns copies of both. */
typedef struct rg_jinja {
    rg_str source;
    rg_jinja_literal *literals;
    size_t n_literals;
    char *memory;
} rg_jinja;

/* White space control as chat templates are rendered everywhere: trim_blocks, lstrip_blocks, no
 * trailing newline. Never fails on strange text: what is no template has no tags. Too large a
 * template is UNSUPPORTED. */
RG_MUST_CHECK rg_code rg_jinja_scan(rg_jinja *j, rg_str source, rg_status *st);
void rg_jinja_deinit(rg_jinja *j);

bool rg_str_equal(rg_str a, const char *b);
bool rg_str_starts(rg_str a, const char *prefix);
/* Position of the first `needle` at or behind `from`; SIZE_MAX if there is none. */
size_t rg_str_find(rg_str a, const char *needle, size_t from);

/* First literal whose text is `text`; NULL if there is none. */
const rg_jinja_literal *rg_jinja_find(const rg_jinja *j, const char *text);
/* Whether the source just before `pos`, blanks skipped, ends in `code` (matched without blanks). */
bool rg_jinja_preceded(const rg_jinja *j, size_t pos, const char *code);

#endif
