#include "serve/guide.h"

#include <string.h>

#include "serve/schema_parts.h"
#include "serve/split.h"

#define TAIL_MAX  16u
#define CACHE_MAX 16u /* masks remembered: inside a string one is wanted again and again */

static const char THINK_END[] = "</think>";
static const char CALL_BEGIN[] = "<tool_call>";
static const char VALUE_END[] = "\n</parameter>";

typedef enum phase { PHASE_THINK, PHASE_FREE, PHASE_BOUND } phase;

typedef struct cached_mask {
    uint64_t state;
    bool full;
    uint8_t *allowed; /* NULL: not used yet */
} cached_mask;

struct rg_guide {
    const rg_lexicon *lexicon; /* borrowed */
    rg_grammar *grammar;
    rg_schema_rules rules;
    phase phase;
    bool has_calls;      /* a call may begin in free text */
    bool bound_answer;   /* the answer is bound from its beginning */
    uint32_t answer;     /* root of a bound answer */
    uint32_t call;       /* root behind "<tool_call>" */
    char tail[TAIL_MAX]; /* latest bytes of free text */
    size_t n_tail;
    uint8_t *allowed; /* while it thinks */
    cached_mask cache[CACHE_MAX];
    uint32_t next_cached;
};

/* ---- the form of calls ---------------------------------------------------------------------- */

static rg_code put(rg_grammar *g, const char *text, rg_status *st) {
    return rg_grammar_text(g, text, strlen(text), st);
}

/* Any text up to and with VALUE_END: the automaton of Knuth, Morris and Pratt, a rule a state. */
static rg_code until_rule(rg_grammar *g, uint32_t *rule, rg_status *st) {
    enum { M = sizeof VALUE_END - 1 };
    uint32_t states[M + 1];
    for (size_t i = 0; i <= M; i++)
        RG_TRY(rg_grammar_rule(g, &states[i], st));
    for (size_t i = 0; i < M; i++) {
        rg_byte_set to[M + 1] = {{{0}}};
        for (unsigned b = 0; b < 256; b++) {
            size_t next = (unsigned char)VALUE_END[i] == b ? i + 1 : 0;
            /* The longest beginning of the tag that the text then ends in. */
            for (size_t k = i; next == 0 && k > 0; k--) {
                const bool fits = memcmp(VALUE_END, VALUE_END + i - k + 1, k - 1) == 0 &&
                                  (unsigned char)VALUE_END[k - 1] == b;
                if (fits) next = k;
            }
            rg_byte_set_add(&to[next], b, b);
        }
        for (size_t k = 0; k <= M; k++) {
            const uint64_t *w = to[k].bits;
            if (!(w[0] | w[1] | w[2] | w[3])) continue;
            RG_TRY(rg_grammar_begin(g, states[i], st));
            RG_TRY(rg_grammar_set(g, &to[k], st));
            RG_TRY(rg_grammar_ref(g, states[k], st));
            RG_TRY(rg_grammar_end(g, st));
        }
    }
    RG_TRY(rg_grammar_begin(g, states[M], st));
    RG_TRY(rg_grammar_end(g, st));
    *rule = states[0];
    return RG_OK;
}

/* A text with lengths, a pattern or a format; any text where it has none. */
static rg_code bound_text(rg_guide *o, const json_t *schema, uint32_t *rule, rg_status *st) {
    uint32_t text;
    bool bound;
    RG_TRY(rg_schema_check(&o->rules, schema, st));
    RG_TRY(rg_schema_raw_text(&o->rules, schema, &bound, &text, st));
    if (!bound) return until_rule(o->grammar, rule, st);
    RG_TRY(rg_grammar_rule(o->grammar, rule, st));
    return rg_schema_alt(o->grammar, *rule, st, "rt", text, VALUE_END);
}

/* A string parameter stands as it is; of an enumeration one of its texts. */
static rg_code text_value(rg_guide *o, const json_t *schema, uint32_t *rule, rg_status *st) {
    const json_t *values = json_object_get(schema, "enum");
    const json_t *one = json_object_get(schema, "const");
    if (!json_array_size(values) && !json_is_string(one)) return bound_text(o, schema, rule, st);
    RG_TRY(rg_grammar_rule(o->grammar, rule, st));
    if (json_is_string(one)) {
        RG_TRY(rg_grammar_begin(o->grammar, *rule, st));
        RG_TRY(rg_grammar_text(o->grammar, json_string_value(one), json_string_length(one), st));
        RG_TRY(put(o->grammar, VALUE_END, st));
        return rg_grammar_end(o->grammar, st);
    }
    size_t i;
    json_t *v;
    json_array_foreach(values, i, v) {
        if (!json_is_string(v)) continue;
        RG_TRY(rg_grammar_begin(o->grammar, *rule, st));
        RG_TRY(rg_grammar_text(o->grammar, json_string_value(v), json_string_length(v), st));
        RG_TRY(put(o->grammar, VALUE_END, st));
        RG_TRY(rg_grammar_end(o->grammar, st));
    }
    return RG_OK;
}

/* "<parameter=KEY>\nVALUE\n</parameter>\n" */
static rg_code param_rule(rg_guide *o, const json_t *tool, const char *key, const json_t *schema,
                          uint32_t *rule, rg_status *st) {
    const json_t *params = json_object_get(tool, "parameters");
    json_t *list = json_pack("[O]", tool);
    if (!list) return rg_fail(st, RG_NOMEM, "no memory for a tool");
    const bool text =
        rg_tool_param_is_string(list, json_string_value(json_object_get(tool, "name")), key);
    json_decref(list);
    uint32_t value;
    if (text) {
        RG_TRY(text_value(o, schema, &value, st));
    } else {
        RG_TRY(rg_schema_compile(&o->rules, params, schema, &value, st));
    }
    rg_grammar *g = o->grammar;
    RG_TRY(rg_grammar_rule(g, rule, st));
    RG_TRY(rg_grammar_begin(g, *rule, st));
    RG_TRY(put(g, "<parameter=", st));
    RG_TRY(put(g, key, st));
    RG_TRY(put(g, ">\n", st));
    RG_TRY(rg_grammar_ref(g, value, st));
    RG_TRY(put(g, text ? "\n" : "\n</parameter>\n", st));
    return rg_grammar_end(g, st);
}

static bool is_required(const json_t *params, const char *key) {
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(params, "required"), i, v) {
        const char *name = json_string_value(v);
        if (name && strcmp(name, key) == 0) return true;
    }
    return false;
}

/* Parameters in their declared order, each of those that are not required or left out. */
static rg_code params_rule(rg_guide *o, const json_t *tool, uint32_t *rule, rg_status *st) {
    const json_t *params = json_object_get(tool, "parameters");
    json_t *properties = json_object_get(params, "properties");
    RG_TRY(rg_grammar_rule(o->grammar, rule, st));
    const size_t n = json_object_size(properties);
    uint32_t *parts = rg_alloc(2 * n + 1, sizeof *parts, st);
    if (!parts) return RG_NOMEM;
    rg_code rc = RG_OK;
    const char *key;
    json_t *schema;
    size_t at = 0;
    json_object_foreach(properties, key, schema) {
        uint32_t param = 0, maybe = 0;
        RG_GO(param_rule(o, tool, key, schema, &param, st));
        RG_GO(rg_grammar_rule(o->grammar, &maybe, st));
        RG_GO(rg_grammar_begin(o->grammar, maybe, st));
        RG_GO(rg_grammar_ref(o->grammar, param, st));
        RG_GO(rg_grammar_end(o->grammar, st));
        if (!is_required(params, key)) {
            RG_GO(rg_grammar_begin(o->grammar, maybe, st));
            RG_GO(rg_grammar_end(o->grammar, st));
        }
        parts[at++] = maybe;
    }
    RG_GO(rg_grammar_begin(o->grammar, *rule, st));
    for (size_t i = 0; i < at; i++)
        RG_GO(rg_grammar_ref(o->grammar, parts[i], st));
    rc = rg_grammar_end(o->grammar, st);
cleanup:
    rg_free(parts);
    return rc;
}

/* Behind "<tool_call>": the call, and further ones. */
static rg_code call_rule(rg_guide *o, const rg_guide_options *opt, rg_status *st) {
    rg_grammar *g = o->grammar;
    uint32_t call, more;
    RG_TRY(rg_grammar_rule(g, &call, st));
    RG_TRY(rg_grammar_rule(g, &more, st));
    RG_TRY(rg_grammar_begin(g, more, st));
    RG_TRY(rg_grammar_end(g, st));
    if (!opt->one_call) {
        RG_TRY(rg_grammar_begin(g, more, st));
        RG_TRY(put(g, "\n<tool_call>", st));
        RG_TRY(rg_grammar_ref(g, call, st));
        RG_TRY(rg_grammar_end(g, st));
    }
    size_t i;
    json_t *tool;
    json_array_foreach(opt->tools, i, tool) {
        const char *name = json_string_value(json_object_get(tool, "name"));
        if (opt->only && strcmp(opt->only, name) != 0) continue;
        uint32_t params;
        o->rules.lenient = !json_is_true(json_object_get(tool, "strict"));
        const rg_code rc = params_rule(o, tool, &params, st);
        if (rc != RG_OK) return rg_context(st, rc, "tool %.80s", name);
        RG_TRY(rg_grammar_begin(g, call, st));
        RG_TRY(put(g, "\n<function=", st));
        RG_TRY(put(g, name, st));
        RG_TRY(put(g, ">\n", st));
        RG_TRY(rg_grammar_ref(g, params, st));
        RG_TRY(put(g, "</function>\n</tool_call>", st));
        RG_TRY(rg_grammar_ref(g, more, st));
        RG_TRY(rg_grammar_end(g, st));
    }
    o->call = call;
    return RG_OK;
}

/* The answer as a whole: up to two line breaks behind the thinking, then JSON or calls. */
static rg_code answer_rule(rg_guide *o, const rg_guide_options *opt, rg_status *st) {
    rg_grammar *g = o->grammar;
    uint32_t breaks, value = 0;
    if (opt->schema && !opt->must_call) {
        o->rules.lenient = false;
        RG_TRY(rg_schema_compile(&o->rules, opt->schema, opt->schema, &value, st));
    }
    RG_TRY(rg_grammar_rule(g, &breaks, st));
    static const char *const lines[] = {"", "\n", "\n\n"};
    for (size_t i = 0; i < (opt->thinking ? RG_ARRAY_LEN(lines) : 1); i++) {
        RG_TRY(rg_grammar_begin(g, breaks, st));
        RG_TRY(put(g, lines[i], st));
        RG_TRY(rg_grammar_end(g, st));
    }
    RG_TRY(rg_grammar_rule(g, &o->answer, st));
    if (opt->schema && !opt->must_call) {
        RG_TRY(rg_grammar_begin(g, o->answer, st));
        RG_TRY(rg_grammar_ref(g, breaks, st));
        RG_TRY(rg_grammar_ref(g, value, st));
        RG_TRY(rg_grammar_end(g, st));
    }
    if (o->has_calls) {
        RG_TRY(rg_grammar_begin(g, o->answer, st));
        RG_TRY(rg_grammar_ref(g, breaks, st));
        RG_TRY(put(g, CALL_BEGIN, st));
        RG_TRY(rg_grammar_ref(g, o->call, st));
        RG_TRY(rg_grammar_end(g, st));
    }
    return RG_OK;
}

/* ---- creation ------------------------------------------------------------------------------- */

static rg_code create_parts(rg_guide *o, const rg_guide_options *opt, rg_status *st) {
    RG_TRY(rg_grammar_create(&o->grammar, st));
    rg_schema_init(&o->rules, o->grammar);
    o->allowed = rg_alloc((o->lexicon->n + 7) / 8, 1, st);
    if (!o->allowed) return RG_NOMEM;
    if (o->has_calls) {
        RG_TRY(call_rule(o, opt, st));
        RG_TRY(rg_grammar_prune(o->grammar, o->call, st));
        RG_TRY(rg_grammar_start(o->grammar, o->call, st)); /* tells what is too large */
    }
    if (!o->bound_answer) return RG_OK;
    RG_TRY(answer_rule(o, opt, st));
    RG_TRY(rg_grammar_prune(o->grammar, o->answer, st));
    return rg_grammar_start(o->grammar, o->answer, st);
}

rg_code rg_guide_create(rg_guide **out, const rg_lexicon *lexicon, const rg_guide_options *opt,
                        rg_status *st) {
    *out = NULL;
    rg_guide *o = rg_alloc(1, sizeof *o, st);
    if (!o) return RG_NOMEM;
    o->lexicon = lexicon;
    o->has_calls = json_array_size(opt->tools) > 0;
    o->bound_answer = opt->schema || opt->must_call;
    o->phase = opt->thinking ? PHASE_THINK : o->bound_answer ? PHASE_BOUND : PHASE_FREE;
    const rg_code rc = create_parts(o, opt, st);
    if (rc != RG_OK) {
        rg_guide_destroy(o);
        return rc;
    }
    *out = o;
    return RG_OK;
}

void rg_guide_destroy(rg_guide *o) {
    if (!o) return;
    rg_grammar_destroy(o->grammar);
    for (size_t i = 0; i < CACHE_MAX; i++)
        rg_free(o->cache[i].allowed);
    rg_free(o->allowed);
    rg_free(o);
}

/* ---- following ------------------------------------------------------------------------------ */

/* A promise about the answer forbids the reply to end while it thinks. */
static void allow_all_but_ends(rg_guide *o) {
    const rg_lexicon *l = o->lexicon;
    memset(o->allowed, 0xFF, (l->n + 7) / 8);
    for (size_t i = 0; i < l->n; i++) {
        if (l->kinds[i] == 2) o->allowed[i / 8] &= (uint8_t) ~(1u << (i % 8));
    }
}

/* The mask of the grammar's state, remembered: walking a large vocabulary takes its time. */
static rg_code bound_mask(rg_guide *o, const uint8_t **out, rg_status *st) {
    const uint64_t state = rg_grammar_state(o->grammar);
    for (size_t i = 0; i < CACHE_MAX; i++) {
        if (!o->cache[i].full || o->cache[i].state != state) continue;
        *out = o->cache[i].allowed;
        return RG_OK;
    }
    cached_mask *c = &o->cache[o->next_cached++ % CACHE_MAX];
    c->full = false;
    if (!c->allowed) c->allowed = rg_alloc((o->lexicon->n + 7) / 8, 1, st);
    if (!c->allowed) return RG_NOMEM;
    RG_TRY(rg_grammar_mask(o->grammar, o->lexicon, c->allowed, st));
    c->state = state;
    c->full = true;
    *out = c->allowed;
    return RG_OK;
}

rg_code rg_guide_allowed(rg_guide *o, const uint8_t **out, rg_status *st) {
    *out = NULL;
    if (o->phase == PHASE_BOUND) return bound_mask(o, out, st);
    if (o->phase == PHASE_THINK && o->bound_answer) {
        allow_all_but_ends(o);
        *out = o->allowed;
    }
    return RG_OK;
}

static bool tail_ends_in(const rg_guide *o, const char *tag) {
    const size_t len = strlen(tag);
    return o->n_tail >= len && memcmp(o->tail + o->n_tail - len, tag, len) == 0;
}

static void push_tail(rg_guide *o, char c) {
    if (o->n_tail == TAIL_MAX) memmove(o->tail, o->tail + 1, --o->n_tail);
    o->tail[o->n_tail++] = c;
}

static rg_code accept_free(rg_guide *o, const char *text, size_t len, rg_status *st);

static rg_code accept_text(rg_guide *o, const char *text, size_t len, rg_status *st) {
    if (len == 0) return RG_OK;
    if (o->phase != PHASE_BOUND) return accept_free(o, text, len, st);
    bool fits = false;
    RG_TRY(rg_grammar_feed(o->grammar, text, len, &fits, st));
    /* Only what stood in one token with a tag can fail to fit: then it was no call. */
    if (!fits) o->phase = PHASE_FREE;
    return RG_OK;
}

static rg_code accept_free(rg_guide *o, const char *text, size_t len, rg_status *st) {
    for (size_t i = 0; i < len; i++) {
        push_tail(o, text[i]);
        if (o->phase == PHASE_THINK && tail_ends_in(o, THINK_END)) {
            o->n_tail = 0;
            o->phase = o->bound_answer ? PHASE_BOUND : PHASE_FREE;
            if (o->bound_answer) RG_TRY(rg_grammar_start(o->grammar, o->answer, st));
        } else if (o->phase == PHASE_FREE && o->has_calls && tail_ends_in(o, CALL_BEGIN)) {
            o->n_tail = 0;
            o->phase = PHASE_BOUND;
            RG_TRY(rg_grammar_start(o->grammar, o->call, st));
        }
        if (o->phase == PHASE_BOUND) return accept_text(o, text + i + 1, len - i - 1, st);
    }
    return RG_OK;
}

rg_code rg_guide_accept(rg_guide *o, int32_t id, rg_status *st) {
    if (id < 0 || (size_t)id >= o->lexicon->n || o->lexicon->kinds[id]) return RG_OK;
    const rg_str t = rg_lexicon_token(o->lexicon, id);
    return accept_text(o, t.data, t.len, st);
}
