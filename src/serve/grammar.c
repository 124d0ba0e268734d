#include "serve/grammar.h"

#include <string.h>

typedef enum kind { ELEMENT_END, ELEMENT_SET, ELEMENT_BYTE, ELEMENT_RULE } kind;

typedef struct element {
    uint32_t kind;
    uint32_t value; /* byte, index of a set, or rule */
} element;

typedef struct alternative {
    uint32_t first; /* element */
    uint32_t next;  /* alternative of the same rule; 0: none */
} alternative;

/* What a stack wants: the element, then what its parent wants. Shared by stacks, never changed. */
typedef struct node {
    uint32_t element;
    uint32_t parent; /* 0: nothing below */
} node;

/* Tops of the stacks; 0 is the empty stack: the text is whole. */
typedef struct stacks {
    uint32_t n;
    uint32_t tops[RG_GRAMMAR_STACKS_MAX];
} stacks;

struct rg_grammar {
    element *elements;
    uint32_t n_element, cap_element;
    alternative *alternatives; /* [0] unused */
    uint32_t n_alternative, cap_alternative;
    uint32_t *rules; /* first alternative; 0: none yet */
    uint32_t n_rule, cap_rule;
    rg_byte_set *sets;
    uint32_t n_set, cap_set;
    node *nodes; /* [0] unused */
    uint32_t n_node, cap_node;
    stacks now;
    stacks *depths; /* [RG_LEXICON_TOKEN_MAX + 1] of the walk over the tokens */
};

/* ---- building ------------------------------------------------------------------------------- */

static rg_code room(void **list, uint32_t n, uint32_t *cap, size_t size, uint32_t max,
                    rg_status *st) {
    if (n < *cap) return RG_OK;
    if (n >= max)
        return rg_fail(st, RG_INVALID, "the schema is too large: more than %u parts", max);
    const uint32_t want = *cap ? *cap * 2 : 64;
    void *more = rg_realloc(*list, want, size, st);
    if (!more) return RG_NOMEM;
    *list = more;
    *cap = want;
    return RG_OK;
}

rg_code rg_grammar_create(rg_grammar **out, rg_status *st) {
    *out = NULL;
    rg_grammar *g = rg_alloc(1, sizeof *g, st);
    if (!g) return RG_NOMEM;
    g->n_alternative = g->n_node = 1;
    *out = g;
    return RG_OK;
}

void rg_grammar_destroy(rg_grammar *g) {
    if (!g) return;
    rg_free(g->elements);
    rg_free(g->alternatives);
    rg_free(g->rules);
    rg_free(g->sets);
    rg_free(g->nodes);
    rg_free(g->depths);
    rg_free(g);
}

rg_code rg_grammar_rule(rg_grammar *g, uint32_t *rule, rg_status *st) {
    void *list = g->rules;
    RG_TRY(room(&list, g->n_rule, &g->cap_rule, sizeof *g->rules, RG_GRAMMAR_ELEMENTS_MAX, st));
    g->rules = list;
    *rule = g->n_rule;
    g->rules[g->n_rule++] = 0;
    return RG_OK;
}

static rg_code add(rg_grammar *g, kind k, uint32_t value, rg_status *st) {
    void *list = g->elements;
    RG_TRY(room(&list, g->n_element, &g->cap_element, sizeof *g->elements, RG_GRAMMAR_ELEMENTS_MAX,
                st));
    g->elements = list;
    g->elements[g->n_element++] = (element){(uint32_t)k, value};
    return RG_OK;
}

rg_code rg_grammar_begin(rg_grammar *g, uint32_t rule, rg_status *st) {
    RG_ASSERT(rule < g->n_rule);
    void *list = g->alternatives;
    RG_TRY(room(&list, g->n_alternative, &g->cap_alternative, sizeof *g->alternatives,
                RG_GRAMMAR_ELEMENTS_MAX, st));
    g->alternatives = list;
    g->alternatives[g->n_alternative] = (alternative){g->n_element, g->rules[rule]};
    g->rules[rule] = g->n_alternative++;
    return RG_OK;
}

rg_code rg_grammar_text(rg_grammar *g, const char *text, size_t len, rg_status *st) {
    for (size_t i = 0; i < len; i++)
        RG_TRY(add(g, ELEMENT_BYTE, (unsigned char)text[i], st));
    return RG_OK;
}

rg_code rg_grammar_set(rg_grammar *g, const rg_byte_set *set, rg_status *st) {
    uint32_t at = 0;
    while (at < g->n_set && memcmp(&g->sets[at], set, sizeof *set) != 0)
        at++;
    if (at == g->n_set) {
        void *list = g->sets;
        RG_TRY(room(&list, g->n_set, &g->cap_set, sizeof *g->sets, 65536, st));
        g->sets = list;
        g->sets[g->n_set++] = *set;
    }
    return add(g, ELEMENT_SET, at, st);
}

rg_code rg_grammar_ref(rg_grammar *g, uint32_t rule, rg_status *st) {
    RG_ASSERT(rule < g->n_rule);
    return add(g, ELEMENT_RULE, rule, st);
}

rg_code rg_grammar_end(rg_grammar *g, rg_status *st) {
    return add(g, ELEMENT_END, 0, st);
}

/* Whether all rules of an alternative can end. */
static bool ends(const rg_grammar *g, const uint8_t *can_end, uint32_t a) {
    for (uint32_t e = g->alternatives[a].first; g->elements[e].kind != ELEMENT_END; e++) {
        if (g->elements[e].kind == ELEMENT_RULE && !can_end[g->elements[e].value]) return false;
    }
    return true;
}

rg_code rg_grammar_prune(rg_grammar *g, uint32_t root, rg_status *st) {
    uint8_t *can_end = rg_alloc(g->n_rule + 1, 1, st);
    if (!can_end) return RG_NOMEM;
    for (bool more = true; more;) {
        more = false;
        for (uint32_t r = 0; r < g->n_rule; r++) {
            for (uint32_t a = g->rules[r]; a && !can_end[r]; a = g->alternatives[a].next) {
                if (!ends(g, can_end, a)) continue;
                can_end[r] = 1;
                more = true;
            }
        }
    }
    for (uint32_t r = 0; r < g->n_rule; r++) {
        for (uint32_t *at = &g->rules[r]; *at;) {
            if (ends(g, can_end, *at)) {
                at = &g->alternatives[*at].next;
            } else {
                *at = g->alternatives[*at].next;
            }
        }
    }
    const bool left = can_end[root];
    rg_free(can_end);
    if (left) return RG_OK;
    return rg_fail(st, RG_INVALID, "no finite value is what the schema asks for");
}

void rg_byte_set_add(rg_byte_set *s, unsigned first, unsigned last) {
    for (unsigned b = first; b <= last && b < 256; b++)
        s->bits[b / 64] |= (uint64_t)1 << (b % 64);
}

/* ---- running -------------------------------------------------------------------------------- */

static rg_code push_node(rg_grammar *g, uint32_t elem, uint32_t parent, uint32_t *out,
                         rg_status *st) {
    void *list = g->nodes;
    RG_TRY(room(&list, g->n_node, &g->cap_node, sizeof *g->nodes, RG_GRAMMAR_NODES_MAX, st));
    g->nodes = list;
    g->nodes[g->n_node] = (node){elem, parent};
    *out = g->n_node++;
    return RG_OK;
}

static rg_code add_stack(const rg_grammar *g, stacks *to, uint32_t top, rg_status *st) {
    for (uint32_t i = 0; i < to->n; i++) {
        const uint32_t t = to->tops[i];
        if (t == top) return RG_OK;
        if (t && top && g->nodes[t].element == g->nodes[top].element &&
            g->nodes[t].parent == g->nodes[top].parent) {
            return RG_OK;
        }
    }
    if (to->n == RG_GRAMMAR_STACKS_MAX) {
        return rg_fail(st, RG_INVALID, "the schema can be read in more than %u ways at once",
                       RG_GRAMMAR_STACKS_MAX);
    }
    to->tops[to->n++] = top;
    return RG_OK;
}

/* Ways that open at an element, until each stands before a byte. The work list is on the stack of
 * the machine: (element, parent) pairs. */
#define WORK_MAX  4096u
#define OPENS_MAX 65536u /* a rule that begins with itself would open for ever */

typedef struct work {
    uint32_t elem, parent;
} work;

static rg_code add_work(work *list, uint32_t *n, uint32_t elem, uint32_t parent, rg_status *st) {
    if (*n == WORK_MAX) return rg_fail(st, RG_INVALID, "the schema nests too deep");
    list[(*n)++] = (work){elem, parent};
    return RG_OK;
}

static rg_code open_ways(rg_grammar *g, uint32_t elem, uint32_t parent, stacks *to, rg_status *st) {
    work list[WORK_MAX];
    uint32_t n = 0, top = 0, opened = 0;
    RG_TRY(add_work(list, &n, elem, parent, st));
    while (n) {
        if (++opened > OPENS_MAX) {
            return rg_fail(st, RG_INVALID, "the schema refers to itself without end");
        }
        const work w = list[--n];
        const element e = g->elements[w.elem];
        if (e.kind == ELEMENT_END) {
            /* The parent wants what is behind the rule that ended here. */
            if (w.parent == 0) {
                RG_TRY(add_stack(g, to, 0, st));
            } else {
                const node p = g->nodes[w.parent];
                RG_TRY(add_work(list, &n, p.element, p.parent, st));
            }
        } else if (e.kind == ELEMENT_RULE) {
            uint32_t below = w.parent;
            /* A rule at the end of another needs no way back to it: lists stay flat. */
            if (g->elements[w.elem + 1].kind != ELEMENT_END) {
                RG_TRY(push_node(g, w.elem + 1, w.parent, &below, st));
            }
            for (uint32_t a = g->rules[e.value]; a; a = g->alternatives[a].next)
                RG_TRY(add_work(list, &n, g->alternatives[a].first, below, st));
        } else {
            RG_TRY(push_node(g, w.elem, w.parent, &top, st));
            RG_TRY(add_stack(g, to, top, st));
        }
    }
    return RG_OK;
}

static bool takes(const rg_grammar *g, uint32_t elem, unsigned char byte) {
    const element e = g->elements[elem];
    if (e.kind == ELEMENT_BYTE) return e.value == byte;
    return g->sets[e.value].bits[byte / 64] >> (byte % 64) & 1;
}

static rg_code step(rg_grammar *g, const stacks *from, unsigned char byte, stacks *to,
                    rg_status *st) {
    to->n = 0;
    for (uint32_t i = 0; i < from->n; i++) {
        const uint32_t top = from->tops[i];
        if (top == 0 || !takes(g, g->nodes[top].element, byte)) continue;
        RG_TRY(open_ways(g, g->nodes[top].element + 1, g->nodes[top].parent, to, st));
    }
    return RG_OK;
}

/* Nodes that no stack reaches any more go: the live ones are copied, parents first. */
static rg_code collect(rg_grammar *g, rg_status *st) {
    if (g->n_node < 4096) return RG_OK;
    node *old = g->nodes;
    const uint32_t n_old = g->n_node;
    uint32_t *moved = rg_alloc(n_old, sizeof *moved, st);
    if (!moved) return RG_NOMEM;
    /* Parents are older than their children, so one pass down marks and one up copies. */
    for (uint32_t i = 0; i < g->now.n; i++)
        moved[g->now.tops[i]] = 1;
    for (uint32_t i = n_old; i-- > 1;) {
        if (moved[i]) moved[old[i].parent] = 1;
    }
    uint32_t n = 1;
    for (uint32_t i = 1; i < n_old; i++) {
        if (!moved[i]) continue;
        old[n] = (node){old[i].element, old[i].parent ? moved[old[i].parent] : 0};
        moved[i] = n++;
    }
    for (uint32_t i = 0; i < g->now.n; i++) {
        if (g->now.tops[i]) g->now.tops[i] = moved[g->now.tops[i]];
    }
    g->n_node = n;
    rg_free(moved);
    return RG_OK;
}

rg_code rg_grammar_start(rg_grammar *g, uint32_t root, rg_status *st) {
    g->n_node = 1;
    g->now.n = 0;
    for (uint32_t a = g->rules[root]; a; a = g->alternatives[a].next)
        RG_TRY(open_ways(g, g->alternatives[a].first, 0, &g->now, st));
    return RG_OK;
}

rg_code rg_grammar_feed(rg_grammar *g, const char *bytes, size_t len, bool *fits, rg_status *st) {
    stacks next;
    for (size_t i = 0; i < len; i++) {
        RG_TRY(step(g, &g->now, (unsigned char)bytes[i], &next, st));
        g->now = next;
    }
    *fits = g->now.n > 0;
    return collect(g, st);
}

bool rg_grammar_complete(const rg_grammar *g) {
    for (uint32_t i = 0; i < g->now.n; i++) {
        if (g->now.tops[i] == 0) return true;
    }
    return false;
}

bool rg_grammar_closed(const rg_grammar *g) {
    return g->now.n == 0 || (g->now.n == 1 && g->now.tops[0] == 0);
}

static uint64_t mix(uint64_t h, uint64_t x) {
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

/* Stacks in their order, each as the elements from its top down. */
uint64_t rg_grammar_state(const rg_grammar *g) {
    uint64_t h = g->now.n;
    for (uint32_t i = 0; i < g->now.n; i++) {
        for (uint32_t at = g->now.tops[i]; at; at = g->nodes[at].parent)
            h = mix(h, g->nodes[at].element + 1u);
        h = mix(h, 0);
    }
    return h;
}

/* ---- mask ----------------------------------------------------------------------------------- */

/* Walks the tokens in byte order: depths[d] is the run behind the first d bytes of the token, kept
 * for the tokens that share them; a prefix that cannot follow skips all of those. */
static rg_code walk(rg_grammar *g, const rg_lexicon *l, uint8_t *allowed, rg_status *st) {
    uint32_t marks[RG_LEXICON_TOKEN_MAX + 1] = {g->n_node};
    size_t good = 0; /* depths[0..good] are right for the token before */
    for (size_t i = 0; i < l->n_sorted; i++) {
        const rg_str t = rg_lexicon_token(l, (int32_t)l->order[i]);
        if (i && l->shared[i] < good) good = l->shared[i];
        if (i == 0) good = 0;
        g->n_node = marks[good];
        while (good < t.len) {
            RG_TRY(
                step(g, &g->depths[good], (unsigned char)t.data[good], &g->depths[good + 1], st));
            if (g->depths[good + 1].n == 0) break;
            good++;
            marks[good] = g->n_node;
        }
        if (good == t.len) {
            allowed[l->order[i] / 8] |= (uint8_t)(1u << (l->order[i] % 8));
            continue;
        }
        while (i + 1 < l->n_sorted && l->shared[i + 1] > good)
            i++;
    }
    return RG_OK;
}

rg_code rg_grammar_mask(rg_grammar *g, const rg_lexicon *l, uint8_t *allowed, rg_status *st) {
    memset(allowed, 0, (l->n + 7) / 8);
    if (!g->depths) {
        g->depths = rg_alloc(RG_LEXICON_TOKEN_MAX + 1, sizeof *g->depths, st);
        if (!g->depths) return RG_NOMEM;
    }
    const uint32_t n_node = g->n_node;
    g->depths[0] = g->now;
    const rg_code rc = walk(g, l, allowed, st);
    g->n_node = n_node;
    if (rc != RG_OK || !rg_grammar_complete(g)) return rc;
    for (size_t i = 0; i < l->n; i++) {
        if (l->kinds[i] == 2) allowed[i / 8] |= (uint8_t)(1u << (i % 8));
    }
    return RG_OK;
}
