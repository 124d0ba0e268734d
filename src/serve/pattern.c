/* Thompson's construction, then subsets (Aho, Sethi, Ullman: Compilers, 3.7). A counted piece is
 * read again for each of its copies. */
#include "serve/pattern.h"

#include <string.h>

#define NONE  UINT32_MAX
#define WORDS (RG_PATTERN_PARTS / 64)

typedef struct symbols {
    uint64_t bits[3];
} symbols;

/* Either takes a symbol to `a`, or goes to `a` and `b` (NONE: nowhere) for nothing. */
typedef struct part {
    bool takes;
    symbols set;
    uint32_t a, b;
} part;

/* From a first to a last part; the last goes nowhere yet. */
typedef struct piece {
    uint32_t first, last;
} piece;

typedef struct reader {
    const char *text, *at;
    part *parts; /* [RG_PATTERN_PARTS] */
    uint32_t n;
    unsigned depth;
    rg_status *st;
} reader;

/* ---- sets ----------------------------------------------------------------------------------- */

static void put(symbols *s, unsigned first, unsigned last) {
    for (unsigned i = first; i <= last; i++)
        s->bits[i / 64] |= (uint64_t)1 << (i % 64);
}

static bool has(const symbols *s, unsigned i) {
    return s->bits[i / 64] >> (i % 64) & 1;
}

static void join(symbols *s, const symbols *other) {
    for (unsigned i = 0; i < 3; i++)
        s->bits[i] |= other->bits[i];
}

static symbols others(const symbols *s, bool wide) {
    symbols o = {{~s->bits[0], ~s->bits[1], 0}};
    if (wide && !has(s, RG_PATTERN_WIDE)) put(&o, RG_PATTERN_WIDE, RG_PATTERN_WIDE);
    return o;
}

static symbols one(unsigned c) {
    symbols s = {{0}};
    put(&s, c, c);
    return s;
}

/* \d \w \s and what they leave; false for another letter. */
static bool known_set(char c, symbols *out) {
    symbols s = {{0}};
    const char low = (char)(c | 0x20);
    if (low == 'd' || low == 'w') put(&s, '0', '9');
    if (low == 'w') {
        put(&s, 'a', 'z');
        put(&s, 'A', 'Z');
        put(&s, '_', '_');
    } else if (low == 's') {
        put(&s, '\t', '\r');
        put(&s, ' ', ' ');
    } else if (low != 'd') {
        return false;
    }
    *out = c == low ? s : others(&s, false);
    return true;
}

/* ---- parts ---------------------------------------------------------------------------------- */

static rg_code refuse(const reader *r, const char *what) {
    return rg_fail(r->st, RG_INVALID,
                   "the schema's 'pattern' \"%.60s\" is not supported: %s at %zu", r->text, what,
                   (size_t)(r->at - r->text));
}

static rg_code add(reader *r, const part *p, uint32_t *at) {
    if (r->n == RG_PATTERN_PARTS) return refuse(r, "too large");
    r->parts[r->n] = *p;
    *at = r->n++;
    return RG_OK;
}

static rg_code nothing(reader *r, piece *out) {
    RG_TRY(add(r, &(part){.a = NONE, .b = NONE}, &out->first));
    out->last = out->first;
    return RG_OK;
}

static rg_code take(reader *r, const symbols *set, piece *out) {
    RG_TRY(add(r, &(part){.a = NONE, .b = NONE}, &out->last));
    return add(r, &(part){.takes = true, .set = *set, .a = out->last, .b = NONE}, &out->first);
}

static void follow(reader *r, piece *p, const piece *next) {
    r->parts[p->last].a = next->first;
    p->last = next->last;
}

/* p, any number of times. */
static rg_code loop(reader *r, piece *p) {
    uint32_t end = 0, begin = 0;
    RG_TRY(add(r, &(part){.a = NONE, .b = NONE}, &end));
    RG_TRY(add(r, &(part){.a = p->first, .b = end}, &begin));
    r->parts[p->last].a = begin;
    *p = (piece){begin, end};
    return RG_OK;
}

static rg_code any_text(reader *r, piece *out) {
    symbols all = {{0}};
    put(&all, 0, RG_PATTERN_WIDE);
    RG_TRY(take(r, &all, out));
    return loop(r, out);
}

/* ---- atoms ---------------------------------------------------------------------------------- */

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Behind a backslash: one character. */
static rg_code escape(reader *r, unsigned *c) {
    static const char letters[] = "tnrfv0", means[] = "\t\n\r\f\v";
    const char e = *r->at;
    const char *known = e ? strchr(letters, e) : NULL;
    if (e == 'x' || e == 'u') {
        const unsigned n = e == 'x' ? 2 : 4;
        *c = 0;
        for (unsigned i = 1; i <= n; i++) {
            const int d = hex_digit(r->at[i]);
            if (d < 0) return refuse(r, "an escape that is not complete");
            *c = *c * 16 + (unsigned)d;
        }
        if (*c > 127) return refuse(r, "a character that is not ASCII");
        r->at += n + 1;
        return RG_OK;
    }
    if (known && e != '0') {
        *c = (unsigned char)means[known - letters];
    } else if (e && strchr("^$\\.*+?()[]{}|/-\"'`~!@#%&_=:;,<> ", e)) {
        *c = (unsigned char)e;
    } else {
        return refuse(r, "this escape");
    }
    r->at++;
    return RG_OK;
}

static rg_code plain(reader *r, unsigned *c) {
    if ((unsigned char)*r->at > 127) return refuse(r, "a character that is not ASCII");
    if (*r->at == '\\') {
        r->at++;
        return escape(r, c);
    }
    *c = (unsigned char)*r->at++;
    return RG_OK;
}

/* Behind "[". */
static rg_code read_class(reader *r, symbols *out) {
    symbols s = {{0}}, known;
    bool engines_differ = false;
    const bool negated = *r->at == '^';
    r->at += negated;
    while (*r->at != ']') {
        unsigned first = 0, last = 0;
        if (!*r->at) return refuse(r, "a class that does not end");
        if (*r->at == '\\' && known_set(r->at[1], &known)) {
            r->at += 2;
            join(&s, &known);
            engines_differ = true;
            if (*r->at == '-' && r->at[1] != ']') return refuse(r, "a range from a class");
            continue;
        }
        RG_TRY(plain(r, &first));
        last = first;
        if (*r->at == '-' && r->at[1] && r->at[1] != ']') {
            r->at++;
            if (*r->at == '\\' && known_set(r->at[1], &known))
                return refuse(r, "a range to a class");
            RG_TRY(plain(r, &last));
            if (last < first) return refuse(r, "a range that runs backwards");
        }
        put(&s, first, last);
    }
    r->at++;
    *out = negated ? others(&s, !engines_differ) : s;
    return RG_OK;
}

static rg_code alternatives(reader *r, bool top, piece *out);

static rg_code group(reader *r, piece *out) {
    if (*r->at == '?') {
        if (r->at[1] != ':') return refuse(r, "looking around and named groups");
        r->at += 2;
    }
    if (++r->depth > RG_PATTERN_NESTING) return refuse(r, "groups that nest too deep");
    RG_TRY(alternatives(r, false, out));
    r->depth--;
    if (*r->at != ')') return refuse(r, "a group that does not end");
    r->at++;
    return RG_OK;
}

static rg_code atom(reader *r, piece *out) {
    symbols s = {{0}};
    const char c = *r->at;
    if (c == '(') {
        r->at++;
        return group(r, out);
    }
    if (c == '[') {
        r->at++;
        RG_TRY(read_class(r, &s));
    } else if (c == '.') {
        r->at++;
        put(&s, '\n', '\n');
        put(&s, '\r', '\r');
        s = others(&s, true);
    } else if (c == '\\' && known_set(r->at[1], &s)) {
        r->at += 2;
    } else if (c && strchr("*+?{}]^$", c)) {
        return refuse(r, "this character here");
    } else {
        unsigned plain_c = 0;
        RG_TRY(plain(r, &plain_c));
        s = one(plain_c);
    }
    return take(r, &s, out);
}

/* ---- repetition ----------------------------------------------------------------------------- */

static bool number(reader *r, uint32_t *out) {
    const char *begin = r->at;
    *out = 0;
    while (*r->at >= '0' && *r->at <= '9' && r->at - begin < 5)
        *out = *out * 10 + (uint32_t)(*r->at++ - '0');
    return r->at > begin;
}

/* What stands behind an atom; 1, 1 when nothing does. max NONE: no end. */
static rg_code quantifier(reader *r, uint32_t *min, uint32_t *max) {
    const char c = *r->at;
    *min = *max = 1;
    if (!c || !strchr("*+?{", c)) return RG_OK;
    r->at++;
    *min = c == '+';
    *max = c == '?' ? 1 : NONE;
    if (c == '{') {
        if (!number(r, min)) return refuse(r, "this count");
        *max = *min;
        if (*r->at == ',') {
            r->at++;
            if (!number(r, max)) *max = NONE;
        }
        if (*r->at != '}') return refuse(r, "this count");
        r->at++;
    }
    if (*min > RG_PATTERN_REPEATS || (*max != NONE && *max > RG_PATTERN_REPEATS)) {
        return refuse(r, "a count above 512");
    }
    if (*max < *min) return refuse(r, "a count that runs backwards");
    if (*r->at == '?') r->at++; /* the same texts match */
    return RG_OK;
}

/* From min to max copies of the atom at `from`. */
static rg_code copies(reader *r, const char *from, uint32_t min, uint32_t max, piece *out) {
    piece end = {0}, p = {0};
    RG_TRY(nothing(r, out));
    for (uint32_t i = 0; i < min; i++) {
        r->at = from;
        RG_TRY(atom(r, &p));
        follow(r, out, &p);
    }
    if (max == NONE) {
        r->at = from;
        RG_TRY(atom(r, &p));
        RG_TRY(loop(r, &p));
        follow(r, out, &p);
        return RG_OK;
    }
    RG_TRY(nothing(r, &end));
    for (uint32_t i = min; i < max; i++) {
        piece maybe = {0};
        r->at = from;
        RG_TRY(atom(r, &p));
        RG_TRY(add(r, &(part){.a = p.first, .b = end.first}, &maybe.first));
        maybe.last = p.last;
        follow(r, out, &maybe);
    }
    follow(r, out, &end);
    return RG_OK;
}

static rg_code repeated(reader *r, piece *out) {
    const char *from = r->at;
    const uint32_t n = r->n;
    uint32_t min, max;
    RG_TRY(atom(r, out));
    RG_TRY(quantifier(r, &min, &max));
    if (min == 1 && max == 1) return RG_OK;
    const char *behind = r->at;
    r->n = n; /* it is read again */
    RG_TRY(copies(r, from, min, max, out));
    r->at = behind;
    return RG_OK;
}

/* ---- the whole ------------------------------------------------------------------------------ */

static rg_code sequence(reader *r, bool top, piece *out) {
    piece p = {0};
    RG_TRY(nothing(r, out));
    const bool from_begin = top && *r->at == '^';
    r->at += from_begin;
    if (top && !from_begin) {
        RG_TRY(any_text(r, &p));
        follow(r, out, &p);
    }
    while (*r->at && *r->at != '|' && *r->at != ')') {
        if (top && *r->at == '$' && (!r->at[1] || r->at[1] == '|')) {
            r->at++;
            return RG_OK;
        }
        RG_TRY(repeated(r, &p));
        follow(r, out, &p);
    }
    if (!top) return RG_OK;
    RG_TRY(any_text(r, &p));
    follow(r, out, &p);
    return RG_OK;
}

static rg_code alternatives(reader *r, bool top, piece *out) {
    RG_TRY(sequence(r, top, out));
    while (*r->at == '|') {
        piece other = {0};
        uint32_t fork = 0;
        r->at++;
        RG_TRY(sequence(r, top, &other));
        RG_TRY(add(r, &(part){.a = out->first, .b = other.first}, &fork));
        r->parts[other.last].a = out->last;
        out->first = fork;
    }
    return RG_OK;
}

/* ---- subsets -------------------------------------------------------------------------------- */

typedef struct subset {
    uint64_t bits[WORDS];
} subset;

typedef struct maker {
    const part *parts;
    uint32_t last; /* part: the match is complete */
    rg_pattern *p;
    subset *sets;   /* [RG_PATTERN_PARTS] of each state */
    uint32_t *work; /* [RG_PATTERN_PARTS] */
    uint64_t steps;
} maker;

/* Adds a part and all that it leads to for nothing. */
static void enter(maker *m, subset *s, uint32_t at) {
    uint32_t n = 0;
    if (s->bits[at / 64] >> (at % 64) & 1) return;
    m->work[n++] = at;
    s->bits[at / 64] |= (uint64_t)1 << (at % 64);
    while (n) {
        const part *p = &m->parts[m->work[--n]];
        m->steps++;
        const uint32_t to[2] = {p->a, p->b};
        for (unsigned i = 0; i < 2 && !p->takes; i++) {
            if (to[i] == NONE || s->bits[to[i] / 64] >> (to[i] % 64) & 1) continue;
            s->bits[to[i] / 64] |= (uint64_t)1 << (to[i] % 64);
            m->work[n++] = to[i];
        }
    }
}

static rg_code state_of(maker *m, const subset *s, uint16_t *out, rg_status *st) {
    uint32_t at = 0;
    while (at < m->p->n_state && memcmp(&m->sets[at], s, sizeof *s) != 0)
        at++;
    *out = (uint16_t)at;
    if (at < m->p->n_state) return RG_OK;
    if (at == RG_PATTERN_PARTS) {
        return rg_fail(st, RG_INVALID,
                       "the schema's 'pattern' is not supported: it has more than %u "
                       "states",
                       RG_PATTERN_PARTS);
    }
    m->sets[at] = *s;
    m->p->accepts[at] = s->bits[m->last / 64] >> (m->last % 64) & 1;
    m->p->n_state++;
    return RG_OK;
}

/* The symbols that lead to the same parts from a state go together. */
static rg_code fill_state(maker *m, uint32_t state, rg_status *st) {
    uint16_t *next = m->p->next + (size_t)state * RG_PATTERN_SYMBOLS;
    for (uint32_t c = 0; c < RG_PATTERN_SYMBOLS; c++) {
        subset to = {{0}};
        bool some = false;
        m->steps += WORDS;
        for (uint32_t w = 0; w < WORDS; w++) {
            for (uint64_t left = m->sets[state].bits[w]; left; left &= left - 1) {
                const part *p = &m->parts[w * 64 + (uint32_t)__builtin_ctzll(left)];
                if (!p->takes || !has(&p->set, c)) continue;
                enter(m, &to, p->a);
                some = true;
            }
        }
        next[c] = RG_PATTERN_DEAD;
        if (m->steps > RG_PATTERN_STEPS) {
            return rg_fail(st, RG_INVALID, "the schema's 'pattern' is not supported: too large");
        }
        if (some) RG_TRY(state_of(m, &to, &next[c], st));
    }
    return RG_OK;
}

/* What cannot come to an end any more is dead. */
static void bury(rg_pattern *p) {
    uint8_t alive[RG_PATTERN_PARTS];
    memcpy(alive, p->accepts, p->n_state);
    for (bool more = true; more;) {
        more = false;
        for (uint32_t s = p->n_state; s-- > 0;) {
            const uint16_t *next = p->next + (size_t)s * RG_PATTERN_SYMBOLS;
            for (uint32_t c = 0; c < RG_PATTERN_SYMBOLS && !alive[s]; c++) {
                if (next[c] == RG_PATTERN_DEAD || !alive[next[c]]) continue;
                alive[s] = 1;
                more = true;
            }
        }
    }
    for (size_t i = 0; i < (size_t)p->n_state * RG_PATTERN_SYMBOLS; i++) {
        if (p->next[i] != RG_PATTERN_DEAD && !alive[p->next[i]]) p->next[i] = RG_PATTERN_DEAD;
    }
}

static rg_code make(rg_pattern *p, const part *parts, const piece *whole, rg_status *st) {
    maker m = {.parts = parts, .last = whole->last, .p = p};
    m.sets = rg_alloc(RG_PATTERN_PARTS, sizeof *m.sets, st);
    m.work = rg_alloc(RG_PATTERN_PARTS, sizeof *m.work, st);
    rg_code rc = m.sets && m.work ? RG_OK : RG_NOMEM;
    if (rc == RG_OK) {
        subset begin = {{0}};
        uint16_t first;
        enter(&m, &begin, whole->first);
        rc = state_of(&m, &begin, &first, st);
    }
    for (uint32_t s = 0; rc == RG_OK && s < p->n_state; s++)
        rc = fill_state(&m, s, st);
    if (rc == RG_OK) bury(p);
    rg_free(m.sets);
    rg_free(m.work);
    return rc;
}

/* ---- life ----------------------------------------------------------------------------------- */

static rg_code create(rg_pattern **out, rg_status *st) {
    rg_pattern *p = rg_alloc(1, sizeof *p, st);
    *out = p;
    if (!p) return RG_NOMEM;
    p->next = rg_alloc((size_t)RG_PATTERN_PARTS * RG_PATTERN_SYMBOLS, sizeof *p->next, st);
    p->accepts = rg_alloc(RG_PATTERN_PARTS, 1, st);
    return p->next && p->accepts ? RG_OK : RG_NOMEM;
}

rg_code rg_pattern_create(rg_pattern **out, const char *text, rg_status *st) {
    reader r = {.text = text, .at = text, .st = st};
    rg_pattern *p = NULL;
    piece whole = {0};
    *out = NULL;
    r.parts = rg_alloc(RG_PATTERN_PARTS, sizeof *r.parts, st);
    rg_code rc = r.parts ? create(&p, st) : RG_NOMEM;
    if (rc == RG_OK) rc = alternatives(&r, true, &whole);
    if (rc == RG_OK && *r.at) rc = refuse(&r, "a \")\" without a group");
    if (rc == RG_OK) rc = make(p, r.parts, &whole, st);
    rg_free(r.parts);
    if (rc == RG_OK) {
        *out = p;
    } else {
        rg_pattern_destroy(p);
    }
    return rc;
}

/* Pairs of states, as they are reached. */
static rg_code pair_states(rg_pattern *p, const rg_pattern *a, const rg_pattern *b, uint32_t *pairs,
                           rg_status *st) {
    p->n_state = 1;
    pairs[0] = 0;
    for (uint32_t s = 0; s < p->n_state; s++) {
        const uint32_t i = pairs[s] / b->n_state, k = pairs[s] % b->n_state;
        p->accepts[s] = a->accepts[i] && b->accepts[k];
        for (uint32_t c = 0; c < RG_PATTERN_SYMBOLS; c++) {
            const uint16_t x = a->next[(size_t)i * RG_PATTERN_SYMBOLS + c];
            const uint16_t y = b->next[(size_t)k * RG_PATTERN_SYMBOLS + c];
            uint16_t *next = &p->next[(size_t)s * RG_PATTERN_SYMBOLS + c];
            *next = RG_PATTERN_DEAD;
            if (x == RG_PATTERN_DEAD || y == RG_PATTERN_DEAD) continue;
            uint32_t at = 0;
            while (at < p->n_state && pairs[at] != x * b->n_state + y)
                at++;
            if (at == RG_PATTERN_PARTS) {
                return rg_fail(st, RG_INVALID,
                               "the schema's 'pattern' and 'format' are too large together");
            }
            if (at == p->n_state) pairs[p->n_state++] = x * b->n_state + y;
            *next = (uint16_t)at;
        }
    }
    return RG_OK;
}

rg_code rg_pattern_both(rg_pattern **out, const rg_pattern *a, const rg_pattern *b, rg_status *st) {
    rg_pattern *p = NULL;
    *out = NULL;
    uint32_t *pairs = rg_alloc(RG_PATTERN_PARTS, sizeof *pairs, st);
    rg_code rc = pairs ? create(&p, st) : RG_NOMEM;
    if (rc == RG_OK) rc = pair_states(p, a, b, pairs, st);
    if (rc == RG_OK) bury(p);
    rg_free(pairs);
    if (rc == RG_OK) {
        *out = p;
    } else {
        rg_pattern_destroy(p);
    }
    return rc;
}

rg_code rg_pattern_any(rg_pattern **out, rg_status *st) {
    return rg_pattern_create(out, "", st);
}

void rg_pattern_destroy(rg_pattern *p) {
    if (!p) return;
    rg_free(p->next);
    rg_free(p->accepts);
    rg_free(p);
}
