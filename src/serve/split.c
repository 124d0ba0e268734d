#include "serve/split.h"

#include <ctype.h>
#include <string.h>

#include "serve/field.h"

void rg_split_init(rg_split *s, bool thinking, const json_t *tools, rg_part_fn *fn, void *user) {
    *s = (rg_split){.state = thinking ? RG_SPLIT_THINK : RG_SPLIT_ANSWER,
                    .tools = tools,
                    .fn = fn,
                    .user = user};
    rg_buf_init(&s->held, 0);
    rg_buf_init(&s->value, 0);
}

void rg_split_deinit(rg_split *s) {
    rg_buf_deinit(&s->held);
    rg_buf_deinit(&s->value);
}

/* ---- schema look-ups ------------------------------------------------------------------------ */

static const json_t *tool_named(const json_t *tools, const char *name) {
    size_t i;
    json_t *t;
    json_array_foreach(tools, i, t) {
        const char *n = json_string_value(json_object_get(t, "name"));
        if (n && strcmp(n, name) == 0) return t;
    }
    return NULL;
}

/* All its values are strings, so plain text is meant. */
static bool schema_is_string(const json_t *schema) {
    const json_t *type = json_object_get(schema, "type");
    if (json_is_string(type)) return strcmp(json_string_value(type), "string") == 0;
    const json_t *values = json_object_get(schema, "enum");
    if (type || !json_is_array(values) || json_array_size(values) == 0) return false;
    size_t i;
    json_t *v;
    json_array_foreach(values, i, v) {
        if (!json_is_string(v)) return false;
    }
    return true;
}

bool rg_tool_param_is_string(const json_t *tools, const char *function, const char *key) {
    const json_t *tool = tool_named(tools, function);
    const json_t *params = json_object_get(tool, "parameters");
    const json_t *schema = json_object_get(json_object_get(params, "properties"), key);
    return !schema || schema_is_string(schema);
}

/* ---- giving --------------------------------------------------------------------------------- */

static rg_code give(rg_split *s, rg_part_kind kind, const char *text, size_t len, rg_status *st) {
    const rg_part part = {kind, s->n_call, {text, len}};
    if (kind == RG_PART_ANSWER || kind == RG_PART_REASONING) {
        /* White space between the parts belongs to the template. */
        size_t skip = 0;
        while (!s->answer_begun && skip < len && isspace((unsigned char)text[skip]))
            skip++;
        if (skip == len) return RG_OK;
        s->answer_begun = true;
        const rg_part trimmed = {kind, s->n_call, {text + skip, len - skip}};
        return s->fn(s->user, &trimmed, st);
    }
    return s->fn(s->user, &part, st);
}

static rg_code give_args(rg_split *s, const char *text, rg_status *st) {
    return give(s, RG_PART_CALL_ARGS, text, strlen(text), st);
}

static rg_code give_escaped(rg_split *s, const char *text, size_t len, rg_status *st) {
    rg_buf b;
    rg_buf_init(&b, 0);
    rg_code rc = rg_put_escaped(&b, text, len, st);
    if (rc == RG_OK && b.len) rc = give(s, RG_PART_CALL_ARGS, b.data, b.len, st);
    rg_buf_deinit(&b);
    return rc;
}

/* `"key": ` behind the brace or comma. */
static rg_code begin_value(rg_split *s, rg_status *st) {
    RG_TRY(give_args(s, s->n_param++ ? ", \"" : "{\"", st));
    RG_TRY(give_escaped(s, s->key, strlen(s->key), st));
    RG_TRY(give_args(s, s->value_is_string ? "\": \"" : "\": ", st));
    s->value_begun = true;
    rg_buf_clear(&s->value);
    return RG_OK;
}

/* A value that is written as JSON; text that is none becomes a string. */
static rg_code end_value(rg_split *s, rg_status *st) {
    if (s->value_is_string) return give_args(s, "\"", st);
    const char *text = s->value.data ? s->value.data : "";
    json_error_t e;
    json_t *v = json_loadb(text, s->value.len, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &e);
    if (v) {
        json_decref(v);
        return give(s, RG_PART_CALL_ARGS, text, s->value.len, st);
    }
    RG_TRY(give_args(s, "\"", st));
    RG_TRY(give_escaped(s, text, s->value.len, st));
    return give_args(s, "\"", st);
}

static rg_code end_call(rg_split *s, rg_status *st) {
    RG_TRY(give_args(s, s->n_param ? "}" : "{}", st));
    RG_TRY(give(s, RG_PART_CALL_END, "", 0, st));
    s->n_call++;
    return RG_OK;
}

/* ---- tags ----------------------------------------------------------------------------------- */

static void drop_front(rg_buf *b, size_t n) {
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
    b->data[b->len] = 0;
}

static size_t find(const rg_buf *b, const char *tag) {
    const char *at = b->len ? memmem(b->data, b->len, tag, strlen(tag)) : NULL;
    return at ? (size_t)(at - b->data) : SIZE_MAX;
}

/* Bytes at the end that may be the beginning of the tag. */
static size_t partial(const rg_buf *b, const char *tag) {
    const size_t len = strlen(tag);
    for (size_t n = len - 1 < b->len ? len - 1 : b->len; n > 0; n--) {
        if (memcmp(b->data + b->len - n, tag, n) == 0) return n;
    }
    return 0;
}

/* Text up to `tag` is given; *found when the tag was there, which is dropped. */
static rg_code until(rg_split *s, const char *tag, rg_part_kind kind, bool *found, rg_status *st) {
    const size_t at = find(&s->held, tag);
    *found = at != SIZE_MAX;
    size_t n = *found ? at : s->held.len - partial(&s->held, tag);
    /* White space in front of a tag belongs to the template. */
    size_t shown = n;
    while (shown > 0 && isspace((unsigned char)s->held.data[shown - 1]))
        shown--;
    if (!*found) n = shown;
    if (shown) RG_TRY(give(s, kind, s->held.data, shown, st));
    if (n + (*found ? strlen(tag) : 0)) drop_front(&s->held, n + (*found ? strlen(tag) : 0));
    return RG_OK;
}

/* "<word=NAME>" at the front, white space before it skipped. 1: read, 0: more is needed, -1: it is
 * something else. */
static int read_open(rg_split *s, const char *word, char *name) {
    size_t skip = 0;
    while (skip < s->held.len && isspace((unsigned char)s->held.data[skip]))
        skip++;
    const char *at = s->held.data + skip;
    const size_t rest = s->held.len - skip, len = strlen(word);
    if (memcmp(at, word, rest < len ? rest : len) != 0) return -1;
    if (rest <= len) return 0;
    const char *end = memchr(at + len, '>', rest - len);
    if (!end) return rest - len < RG_SPLIT_NAME_MAX ? 0 : -1;
    const size_t n = (size_t)(end - at) - len;
    if (n == 0 || n >= RG_SPLIT_NAME_MAX) return -1;
    memcpy(name, at + len, n);
    name[n] = 0;
    drop_front(&s->held, skip + len + n + 1);
    return 1;
}

/* The word itself at the front, likewise. */
static int read_word(rg_split *s, const char *word) {
    size_t skip = 0;
    while (skip < s->held.len && isspace((unsigned char)s->held.data[skip]))
        skip++;
    const size_t rest = s->held.len - skip, len = strlen(word);
    if (rest && memcmp(s->held.data + skip, word, rest < len ? rest : len) != 0) return -1;
    if (rest < len) return 0;
    drop_front(&s->held, skip + len);
    return 1;
}

/* ---- states --------------------------------------------------------------------------------- */

/* Each step returns whether another one may be taken on what is held. */

static rg_code step_think(rg_split *s, bool *more, rg_status *st) {
    RG_TRY(until(s, "</think>", RG_PART_REASONING, more, st));
    if (*more) {
        s->state = RG_SPLIT_ANSWER;
        s->answer_begun = false;
    }
    return RG_OK;
}

static rg_code step_answer(rg_split *s, bool *more, rg_status *st) {
    if (!s->tools || s->n_call >= RG_SPLIT_CALLS_MAX) {
        RG_TRY(give(s, RG_PART_ANSWER, s->held.data, s->held.len, st));
        rg_buf_clear(&s->held);
        return RG_OK;
    }
    RG_TRY(until(s, "<tool_call>", RG_PART_ANSWER, more, st));
    if (*more) s->state = RG_SPLIT_CALL;
    return RG_OK;
}

static rg_code step_call(rg_split *s, bool *more, rg_status *st) {
    const int got = read_open(s, "<function=", s->name);
    *more = got != 0;
    if (got < 0) { /* no call after all */
        s->state = RG_SPLIT_ANSWER;
        return give(s, RG_PART_ANSWER, "<tool_call>", 11, st);
    }
    if (got == 0) return RG_OK;
    s->state = RG_SPLIT_PARAMS;
    s->n_param = 0;
    return give(s, RG_PART_CALL_BEGIN, s->name, strlen(s->name), st);
}

static rg_code step_params(rg_split *s, bool *more, rg_status *st) {
    const int param = read_open(s, "<parameter=", s->key);
    if (param == 1) {
        s->value_is_string = rg_tool_param_is_string(s->tools, s->name, s->key);
        s->value_begun = false;
        s->state = RG_SPLIT_VALUE;
        *more = true;
        return RG_OK;
    }
    const int end = read_word(s, "</function>");
    *more = end == 1 || (param < 0 && end < 0);
    if (end == 1 || *more) { /* or something unknown, which ends the call */
        RG_TRY(end_call(s, st));
        s->state = RG_SPLIT_AFTER;
    }
    return RG_OK;
}

/* The newline in front of a value belongs to the form, and so does the one behind it. */
static rg_code step_value(rg_split *s, bool *more, rg_status *st) {
    static const char tag[] = "\n</parameter>";
    *more = false;
    if (!s->value_begun) {
        if (s->held.len == 0) return RG_OK;
        /* Of an empty value the two newlines are one. */
        if (s->held.data[0] == '\n' && s->held.len < sizeof tag - 1 &&
            partial(&s->held, tag) == s->held.len) {
            return RG_OK;
        }
        const bool empty =
            s->held.len >= sizeof tag - 1 && memcmp(s->held.data, tag, sizeof tag - 1) == 0;
        if (s->held.data[0] == '\n' && !empty) drop_front(&s->held, 1);
        RG_TRY(begin_value(s, st));
    }
    const size_t at = find(&s->held, tag);
    const size_t n = at != SIZE_MAX ? at : s->held.len - partial(&s->held, tag);
    if (n) {
        if (s->value_is_string) {
            RG_TRY(give_escaped(s, s->held.data, n, st));
        } else {
            RG_TRY(rg_buf_append(&s->value, s->held.data, n, st));
        }
        drop_front(&s->held, n);
    }
    if (at == SIZE_MAX) return RG_OK;
    drop_front(&s->held, sizeof tag - 1);
    s->state = RG_SPLIT_PARAMS;
    *more = true;
    return end_value(s, st);
}

static rg_code step_after(rg_split *s, bool *more, rg_status *st) {
    (void)st;
    const int got = read_word(s, "</tool_call>");
    *more = got != 0;
    if (got) {
        s->state = RG_SPLIT_ANSWER;
        s->answer_begun = false;
    }
    return RG_OK;
}

rg_code rg_split_push(rg_split *s, const char *text, size_t len, rg_status *st) {
    if (len) RG_TRY(rg_buf_append(&s->held, text, len, st));
    bool more = s->held.len > 0;
    while (more) {
        more = false;
        if (s->held.len == 0) break;
        switch (s->state) {
        case RG_SPLIT_THINK:
            RG_TRY(step_think(s, &more, st));
            break;
        case RG_SPLIT_ANSWER:
            RG_TRY(step_answer(s, &more, st));
            break;
        case RG_SPLIT_CALL:
            RG_TRY(step_call(s, &more, st));
            break;
        case RG_SPLIT_PARAMS:
            RG_TRY(step_params(s, &more, st));
            break;
        case RG_SPLIT_VALUE:
            RG_TRY(step_value(s, &more, st));
            break;
        case RG_SPLIT_AFTER:
            RG_TRY(step_after(s, &more, st));
            break;
        }
    }
    return RG_OK;
}

rg_code rg_split_finish(rg_split *s, rg_status *st) {
    const char *held = s->held.data ? s->held.data : "";
    switch (s->state) {
    case RG_SPLIT_THINK:
        return give(s, RG_PART_REASONING, held, s->held.len, st);
    case RG_SPLIT_ANSWER:
        return give(s, RG_PART_ANSWER, held, s->held.len, st);
    case RG_SPLIT_CALL:
        return give(s, RG_PART_ANSWER, "<tool_call>", 11, st);
    case RG_SPLIT_VALUE:
        if (!s->value_begun) RG_TRY(begin_value(s, st));
        RG_TRY(end_value(s, st));
        return end_call(s, st);
    case RG_SPLIT_PARAMS:
        return end_call(s, st);
    case RG_SPLIT_AFTER:
        break;
    }
    return RG_OK;
}
