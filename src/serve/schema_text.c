/* Strings of a schema: their characters, lengths, patterns and formats. */
#include <string.h>

#include "serve/pattern.h"
#include "serve/schema_parts.h"

#define NONE RG_SCHEMA_MANY

/* One character of a string: UTF-8 as it stands, or an escape. Surrogates come in pairs. */
static rg_code character(rg_schema_rules *r, uint32_t *rule, rg_status *st) {
    if (r->character != NONE) {
        *rule = r->character;
        return RG_OK;
    }
    rg_grammar *g = r->g;
    const rg_byte_set tail = rg_schema_set(0x80, 0xBF), two = rg_schema_set(0xC2, 0xDF);
    const rg_byte_set e0 = rg_schema_set(0xA0, 0xBF), ed = rg_schema_set(0x80, 0x9F);
    const rg_byte_set f0 = rg_schema_set(0x90, 0xBF), f4 = rg_schema_set(0x80, 0x8F),
                      four = rg_schema_set(0xF1, 0xF3);
    rg_byte_set plain = rg_schema_set(0x20, 0x21), three = rg_schema_set(0xE1, 0xEC),
                escape = rg_schema_set('"', '"');
    rg_byte_set hex = rg_schema_set('0', '9'), low;
    rg_byte_set_add(&plain, 0x23, 0x5B);
    rg_byte_set_add(&plain, 0x5D, 0x7E);
    rg_byte_set_add(&three, 0xEE, 0xEF);
    for (const char *c = "\\/bfnrt"; *c; c++)
        rg_byte_set_add(&escape, (unsigned char)*c, (unsigned char)*c);
    rg_byte_set_add(&hex, 'a', 'f');
    rg_byte_set_add(&hex, 'A', 'F');
    /* Codes that are no surrogates (D8 to DF) and not 0000. */
    const rg_byte_set octal = rg_schema_set('0', '7');
    rg_byte_set some = rg_schema_set('1', '9'), d = rg_schema_set('d', 'd');
    rg_byte_set_add(&d, 'D', 'D');
    rg_byte_set_add(&some, 'a', 'f');
    rg_byte_set_add(&some, 'A', 'F');
    low = rg_schema_set('1', '9');
    rg_byte_set_add(&low, 'a', 'c');
    rg_byte_set_add(&low, 'e', 'f');
    rg_byte_set_add(&low, 'A', 'C');
    rg_byte_set_add(&low, 'E', 'F');
    uint32_t c;
    RG_TRY(rg_grammar_rule(g, &c, st));
    RG_TRY(rg_schema_alt(g, c, st, "s", &plain));
    RG_TRY(rg_schema_alt(g, c, st, "ss", &two, &tail));
    RG_TRY(rg_schema_alt(g, c, st, "tss", "\xE0", &e0, &tail));
    RG_TRY(rg_schema_alt(g, c, st, "sss", &three, &tail, &tail));
    RG_TRY(rg_schema_alt(g, c, st, "tss", "\xED", &ed, &tail));
    RG_TRY(rg_schema_alt(g, c, st, "tsss", "\xF0", &f0, &tail, &tail));
    RG_TRY(rg_schema_alt(g, c, st, "ssss", &four, &tail, &tail, &tail));
    RG_TRY(rg_schema_alt(g, c, st, "tsss", "\xF4", &f4, &tail, &tail));
    RG_TRY(rg_schema_alt(g, c, st, "ts", "\\", &escape));
    RG_TRY(rg_schema_alt(g, c, st, "tssss", "\\u", &low, &hex, &hex, &hex));
    RG_TRY(rg_schema_alt(g, c, st, "tsss", "\\u0", &some, &hex, &hex));
    RG_TRY(rg_schema_alt(g, c, st, "tss", "\\u00", &some, &hex));
    RG_TRY(rg_schema_alt(g, c, st, "ts", "\\u000", &some));
    RG_TRY(rg_schema_alt(g, c, st, "tssss", "\\u", &d, &octal, &hex, &hex));
    *rule = r->character = c;
    return RG_OK;
}

rg_code rg_schema_string(rg_schema_rules *r, uint32_t min, uint32_t max, uint32_t *rule,
                         rg_status *st) {
    const bool plain = min == 0 && max == NONE;
    if (plain && r->string != NONE) {
        *rule = r->string;
        return RG_OK;
    }
    uint32_t one, all;
    RG_TRY(character(r, &one, st));
    RG_TRY(rg_schema_repeat(r, one, NONE, min, max, &all, st));
    RG_TRY(rg_grammar_rule(r->g, rule, st));
    RG_TRY(rg_schema_alt(r->g, *rule, st, "trt", "\"", all, "\""));
    if (plain) r->string = *rule;
    return RG_OK;
}

/* ---- formats -------------------------------------------------------------------------------- */

#define YEAR  "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
#define LEAP  "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([2468][048]|0[48]|[13579][26])00)"
#define MONTH "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
#define DATE  "(" YEAR "-(" MONTH "|02-(0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define HOUR  "([01][0-9]|2[0-3])"
#define TIME  HOUR ":[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]" HOUR ":[0-5][0-9])"
#define LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?"
#define HOST  LABEL "(\\." LABEL "){0,3}"
#define ATOM  "[a-zA-Z0-9_+-]{1,32}"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define HEX   "[0-9a-f]"
#define URI   "[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{2}"

/* Texts that every reader of the format takes: not all that some would. */
static const char *format_pattern(const char *name) {
    static const struct {
        const char *name, *pattern;
    } formats[] = {
        {"date", "^" DATE "$"},
        {"time", "^" TIME "$"},
        {"date-time", "^" DATE "T" TIME "$"},
        {"email", "^" ATOM "(\\." ATOM "){0,2}@" LABEL "(\\." LABEL "){0,2}\\.[a-zA-Z]{2,12}$"},
        {"hostname", "^" HOST "$"},
        {"ipv4", "^(" OCTET "\\.){3}" OCTET "$"},
        {"ipv6", "^(" HEX "{1,4}:){7}" HEX "{1,4}$"},
        {"uuid", "^" HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}$"},
        {"uri", "^(https?|ftp)://" HOST "(:[1-9][0-9]{0,3})?(/(" URI ")*)*(\\?(" URI "|[/?])*)?"
                "(#(" URI "|[/?])*)?$"},
    };
    for (size_t i = 0; i < RG_ARRAY_LEN(formats); i++) {
        if (strcmp(formats[i].name, name) == 0) return formats[i].pattern;
    }
    return NULL;
}

static rg_code one_pattern(rg_pattern **out, const json_t *schema, const char *key, rg_status *st) {
    const json_t *v = json_object_get(schema, key);
    *out = NULL;
    if (!v) return RG_OK;
    const char *text = json_string_value(v);
    if (!text) return rg_fail(st, RG_INVALID, "the schema's '%s' must be a text", key);
    if (strcmp(key, "format") != 0) return rg_pattern_create(out, text, st);
    const char *known = format_pattern(text);
    if (known) return rg_pattern_create(out, known, st);
    return rg_fail(st, RG_INVALID, "the schema's 'format' \"%.40s\" is not supported", text);
}

/* Pattern and format joined; *out is NULL when there is neither. */
static rg_code read_pattern(rg_pattern **out, const json_t *schema, rg_status *st) {
    rg_pattern *format = NULL, *both = NULL;
    RG_TRY(one_pattern(out, schema, "pattern", st));
    rg_code rc = one_pattern(&format, schema, "format", st);
    if (rc == RG_OK && *out && format) {
        rc = rg_pattern_both(&both, *out, format, st);
        rg_pattern_destroy(*out);
        *out = both;
    } else if (rc == RG_OK && format) {
        *out = format;
        return RG_OK;
    }
    rg_pattern_destroy(format);
    if (rc == RG_OK) return RG_OK;
    rg_pattern_destroy(*out);
    *out = NULL;
    return rc;
}

/* ---- characters along a pattern ------------------------------------------------------------- */

/* A place is a count of characters and a state of the pattern. Counts stop at `last`: with an upper
 * length that is it, without one the lower length, where all longer texts are. */
typedef struct walk {
    rg_schema_rules *r;
    const rg_pattern *p;
    uint32_t min, last;
    bool bounded;    /* no character behind `last` */
    bool raw;        /* as it stands: no escapes, no line breaks */
    uint32_t wide;   /* rule of a character beyond ASCII */
    uint8_t *alive;  /* [last + 1][n_state] the text can be completed */
    uint32_t *rules; /* [last + 1][n_state] NONE: not reached */
    uint32_t *work;  /* places to be written */
    uint32_t n_work;
} walk;

static bool may_end(const walk *w, uint32_t count, uint32_t state) {
    return count >= w->min && w->p->accepts[state];
}

/* Control characters that have a short escape; raw text stays on its line. Others are never
 * written, whatever the pattern says. */
static bool is_written(const walk *w, uint32_t symbol) {
    if (symbol >= 0x20) return true;
    return w->raw ? symbol == '\t' : symbol && strchr("\b\t\n\f\r", (int)symbol);
}

/* The place behind a symbol; NONE: there is none. */
static uint32_t step(const walk *w, uint32_t count, uint32_t state, uint32_t symbol) {
    const uint16_t next = w->p->next[(size_t)state * RG_PATTERN_SYMBOLS + symbol];
    if (next == RG_PATTERN_DEAD || !is_written(w, symbol)) return NONE;
    if (count == w->last && w->bounded) return NONE;
    return (count < w->last ? count + 1 : count) * w->p->n_state + next;
}

static void find_alive(walk *w) {
    const uint32_t S = w->p->n_state;
    for (bool more = true; more;) { /* within the last count there are loops */
        more = false;
        for (uint32_t place = (w->last + 1) * S; place-- > 0;) {
            if (w->alive[place]) continue;
            bool alive = may_end(w, place / S, place % S);
            for (uint32_t c = 1; c < RG_PATTERN_SYMBOLS && !alive; c++) {
                const uint32_t to = step(w, place / S, place % S, c);
                alive = to != NONE && w->alive[to];
            }
            w->alive[place] = alive;
            more = more || alive;
        }
    }
}

static rg_code rule_of(walk *w, uint32_t place, uint32_t *rule, rg_status *st) {
    if (w->rules[place] == NONE) {
        RG_TRY(rg_grammar_rule(w->r->g, &w->rules[place], st));
        w->work[w->n_work++] = place;
    }
    *rule = w->rules[place];
    return RG_OK;
}

/* How a control character, a quote or a backslash is written. */
static rg_code escaped(const walk *w, uint32_t symbol, uint32_t from, uint32_t to, rg_status *st) {
    static const char letters[] = "btnfr\"\\", means[] = "\b\t\n\f\r\"\\";
    const char *known = strchr(means, (int)symbol);
    RG_ASSERT(known != NULL);
    const char text[3] = {'\\', letters[known - means], 0};
    return rg_schema_alt(w->r->g, from, st, "tr", text, to);
}

static bool stands_plain(const walk *w, uint32_t symbol) {
    if (w->raw) return symbol < RG_PATTERN_WIDE;
    return symbol >= 0x20 && symbol < RG_PATTERN_WIDE && symbol != '"' && symbol != '\\';
}

/* Alternatives of a place. */
static rg_code write_place(walk *w, uint32_t place, rg_status *st) {
    const uint32_t S = w->p->n_state, from = w->rules[place];
    uint32_t to[RG_PATTERN_SYMBOLS], rule;
    for (uint32_t c = 0; c < RG_PATTERN_SYMBOLS; c++) {
        to[c] = step(w, place / S, place % S, c);
        if (to[c] != NONE && !w->alive[to[c]]) to[c] = NONE;
    }
    if (may_end(w, place / S, place % S)) RG_TRY(rg_schema_alt(w->r->g, from, st, ""));
    for (uint32_t c = 0; c < RG_PATTERN_SYMBOLS; c++) {
        const uint32_t target = to[c];
        if (target == NONE) continue;
        RG_TRY(rule_of(w, target, &rule, st));
        if (c == RG_PATTERN_WIDE) {
            RG_TRY(rg_schema_alt(w->r->g, from, st, "rr", w->wide, rule));
        } else if (!stands_plain(w, c)) {
            RG_TRY(escaped(w, c, from, rule, st));
        } else {
            rg_byte_set set = {{0}};
            for (uint32_t k = c; k < RG_PATTERN_WIDE; k++) {
                if (to[k] != target || !stands_plain(w, k)) continue;
                rg_byte_set_add(&set, k, k);
                to[k] = NONE;
            }
            RG_TRY(rg_schema_alt(w->r->g, from, st, "sr", &set, rule));
        }
    }
    return RG_OK;
}

/* UTF-8 beyond ASCII, without surrogates, U+2028 and U+2029. */
static rg_code wide_rule(rg_schema_rules *r, uint32_t *rule, rg_status *st) {
    rg_grammar *g = r->g;
    const rg_byte_set tail = rg_schema_set(0x80, 0xBF), two = rg_schema_set(0xC2, 0xDF);
    const rg_byte_set e0 = rg_schema_set(0xA0, 0xBF), ed = rg_schema_set(0x80, 0x9F);
    const rg_byte_set f0 = rg_schema_set(0x90, 0xBF), f4 = rg_schema_set(0x80, 0x8F);
    const rg_byte_set four = rg_schema_set(0xF1, 0xF3), e2 = rg_schema_set(0x81, 0xBF);
    rg_byte_set three = rg_schema_set(0xE1, 0xE1), lines = rg_schema_set(0x80, 0xA7);
    rg_byte_set_add(&three, 0xE3, 0xEC);
    rg_byte_set_add(&three, 0xEE, 0xEF);
    rg_byte_set_add(&lines, 0xAA, 0xBF);
    if (r->wide == NONE) {
        uint32_t c;
        RG_TRY(rg_grammar_rule(g, &c, st));
        RG_TRY(rg_schema_alt(g, c, st, "ss", &two, &tail));
        RG_TRY(rg_schema_alt(g, c, st, "tss", "\xE0", &e0, &tail));
        RG_TRY(rg_schema_alt(g, c, st, "sss", &three, &tail, &tail));
        RG_TRY(rg_schema_alt(g, c, st, "tss", "\xE2", &e2, &tail));
        RG_TRY(rg_schema_alt(g, c, st, "ts", "\xE2\x80", &lines));
        RG_TRY(rg_schema_alt(g, c, st, "tss", "\xED", &ed, &tail));
        RG_TRY(rg_schema_alt(g, c, st, "tsss", "\xF0", &f0, &tail, &tail));
        RG_TRY(rg_schema_alt(g, c, st, "ssss", &four, &tail, &tail, &tail));
        RG_TRY(rg_schema_alt(g, c, st, "tsss", "\xF4", &f4, &tail, &tail));
        r->wide = c;
    }
    *rule = r->wide;
    return RG_OK;
}

static rg_code write_all(walk *w, uint32_t *rule, rg_status *st) {
    const uint32_t n = (w->last + 1) * w->p->n_state;
    for (uint32_t i = 0; i < n; i++)
        w->rules[i] = NONE;
    find_alive(w);
    if (!w->alive[0]) {
        return rg_fail(st, RG_INVALID,
                       "no text is what the schema's 'pattern', 'format' and lengths ask for");
    }
    RG_TRY(wide_rule(w->r, &w->wide, st));
    RG_TRY(rule_of(w, 0, rule, st));
    while (w->n_work)
        RG_TRY(write_place(w, w->work[--w->n_work], st));
    return RG_OK;
}

/* Texts of min to max characters that the pattern matches. */
static rg_code pattern_rule(rg_schema_rules *r, const rg_pattern *p, uint32_t min, uint32_t max,
                            bool raw, uint32_t *rule, rg_status *st) {
    walk w = {.r = r, .p = p, .min = min, .raw = raw, .bounded = max != NONE};
    w.last = w.bounded ? max : min;
    const size_t n = (size_t)(w.last + 1) * p->n_state;
    if (n > RG_SCHEMA_PLACES_MAX) {
        return rg_fail(
            st, RG_INVALID,
            "the schema's 'pattern' or 'format' is too large for its lengths: %zu places, "
            "%u are possible",
            n, RG_SCHEMA_PLACES_MAX);
    }
    w.alive = rg_alloc(n, 1, st);
    w.rules = rg_alloc(n, sizeof *w.rules, st);
    w.work = rg_alloc(n, sizeof *w.work, st);
    rg_code rc = w.alive && w.rules && w.work ? RG_OK : RG_NOMEM;
    if (rc == RG_OK) rc = write_all(&w, rule, st);
    rg_free(w.alive);
    rg_free(w.rules);
    rg_free(w.work);
    return rc;
}

/* ---- strings of a schema -------------------------------------------------------------------- */

/* A promise that is not made (lenient) passes over what is not understood. */
static rg_code read_bounds(const rg_schema_rules *r, const json_t *schema, uint32_t *min,
                           uint32_t *max, rg_pattern **p, rg_status *st) {
    *p = NULL;
    rg_code rc =
        rg_schema_counts(schema, "minLength", "maxLength", min, max, r->lenient ? NULL : st);
    if (rc == RG_OK) rc = read_pattern(p, schema, r->lenient ? NULL : st);
    if (rc != RG_INVALID || !r->lenient) return rc;
    *min = 0;
    *max = NONE;
    return RG_OK;
}

rg_code rg_schema_text(rg_schema_rules *r, const json_t *schema, uint32_t *rule, rg_status *st) {
    uint32_t min, max, all = 0;
    rg_pattern *p;
    RG_TRY(read_bounds(r, schema, &min, &max, &p, st));
    if (!p) return rg_schema_string(r, min, max, rule, st);
    const rg_code rc = pattern_rule(r, p, min, max, false, &all, st);
    rg_pattern_destroy(p);
    RG_TRY(rc);
    RG_TRY(rg_grammar_rule(r->g, rule, st));
    return rg_schema_alt(r->g, *rule, st, "trt", "\"", all, "\"");
}

rg_code rg_schema_raw_text(rg_schema_rules *r, const json_t *schema, bool *bound, uint32_t *rule,
                           rg_status *st) {
    uint32_t min, max;
    rg_pattern *p;
    RG_TRY(read_bounds(r, schema, &min, &max, &p, st));
    *bound = p || min || max != NONE;
    if (!*bound) return RG_OK;
    rg_code rc = p ? RG_OK : rg_pattern_any(&p, st);
    if (rc == RG_OK) rc = pattern_rule(r, p, min, max, true, rule, st);
    rg_pattern_destroy(p);
    return rc;
}
