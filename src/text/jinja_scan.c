/* Finds the strings of a Jinja template (see jinja_scan.h). One pass over the source: comments are
 * skipped, tags are searched for quoted strings, text between tags is cut as Jinja's lexer would.
 */
#include "text/jinja_scan.h"

#include <string.h>

bool rg_str_equal(rg_str a, const char *b) {
    const size_t len = strlen(b);
    return a.len == len && (len == 0 || memcmp(a.data, b, len) == 0);
}

bool rg_str_starts(rg_str a, const char *prefix) {
    const size_t len = strlen(prefix);
    return a.len >= len && (len == 0 || memcmp(a.data, prefix, len) == 0);
}

size_t rg_str_find(rg_str a, const char *needle, size_t from) {
    if (from >= a.len) return SIZE_MAX;
    const char *at = memmem(a.data + from, a.len - from, needle, strlen(needle));
    return at ? (size_t)(at - a.data) : SIZE_MAX;
}

typedef struct scanner {
    rg_jinja *j;
    size_t pos;
    char *out;           /* where the next literal's text goes */
    bool strip_next;     /* the tag before ended in "-" */
    bool trim_next_line; /* the tag before was a block or a comment */
} scanner;

static rg_code add(scanner *s, rg_jinja_kind kind, size_t len, size_t begin, size_t end,
                   rg_status *st) {
    rg_jinja *j = s->j;
    if (j->n_literals == RG_JINJA_LITERALS_MAX) {
        return rg_fail(st, RG_UNSUPPORTED, "chat template with more than %u strings",
                       RG_JINJA_LITERALS_MAX);
    }
    j->literals[j->n_literals++] = (rg_jinja_literal){kind, {s->out, len}, begin, end};
    s->out += len;
    return RG_OK;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f';
}

/* Text between tags, cut by the white space rules of both neighbours. `next` is the position of the
 * tag behind it, or the end of the source. */
static rg_code add_data(scanner *s, size_t next, rg_status *st) {
    const rg_str src = s->j->source;
    size_t begin = s->pos;
    size_t end = next;
    if (s->strip_next) {
        while (begin < end && is_blank(src.data[begin])) {
            begin++;
        }
    } else if (s->trim_next_line && begin < end && src.data[begin] == '\n') {
        begin++;
    }
    if (next == src.len) {
        if (end > begin && src.data[end - 1] == '\n') end--;
    } else if (next + 2 < src.len && src.data[next + 2] == '-') {
        while (end > begin && is_blank(src.data[end - 1])) {
            end--;
        }
    } else if (src.data[next + 1] != '{' && !(next + 2 < src.len && src.data[next + 2] == '+')) {
        size_t line = end; /* lstrip_blocks: only blanks between line start and tag */
        while (line > begin && (src.data[line - 1] == ' ' || src.data[line - 1] == '\t')) {
            line--;
        }
        if (line == 0 || (line > 0 && src.data[line - 1] == '\n')) end = line;
    }
    if (begin == end) return RG_OK;
    memcpy(s->out, src.data + begin, end - begin);
    return add(s, RG_JINJA_DATA, end - begin, begin, end, st);
}

/* Reads the escape behind a backslash at `*pos`; writes at most two bytes (as many as it reads). */
static size_t read_escape(rg_str src, size_t *pos, char *out) {
    static const char from[] = "nrtabfv\\'\"";
    static const char to[] = "\n\r\t\a\b\f\v\\'\"";
    const char c = src.data[*pos];
    const char *known = c ? strchr(from, c) : NULL;
    if (known) {
        out[0] = to[known - from];
        (*pos)++;
        return 1;
    }
    /* Others (\u, octal) do not occur in the families known here; kept as they are written, the
     * template is then not recognised by its text. */
    out[0] = '\\';
    out[1] = c;
    (*pos)++;
    return 2;
}

static rg_code add_string(scanner *s, size_t end, rg_status *st) {
    const rg_str src = s->j->source;
    const size_t begin = s->pos;
    const char quote = src.data[begin];
    size_t pos = begin + 1;
    size_t len = 0;
    while (pos < end && src.data[pos] != quote) {
        if (src.data[pos] == '\\' && pos + 1 < end) {
            pos++;
            len += read_escape(src, &pos, s->out + len);
        } else {
            s->out[len++] = src.data[pos++];
        }
    }
    s->pos = pos < end ? pos + 1 : end;
    return add(s, RG_JINJA_STRING, len, begin, s->pos, st);
}

/* From the "{%" or "{{" at s->pos to behind its end. */
static rg_code scan_tag(scanner *s, rg_status *st) {
    const rg_str src = s->j->source;
    const bool block = src.data[s->pos + 1] == '%';
    const char close = block ? '%' : '}';
    s->pos += 2;
    while (s->pos < src.len) {
        const char c = src.data[s->pos];
        if (c == '\'' || c == '"') {
            RG_TRY(add_string(s, src.len, st));
        } else if (c == close && s->pos + 1 < src.len && src.data[s->pos + 1] == '}') {
            s->strip_next = src.data[s->pos - 1] == '-';
            s->trim_next_line = block && src.data[s->pos - 1] != '+';
            s->pos += 2;
            return RG_OK;
        } else {
            s->pos++;
        }
    }
    return RG_OK;
}

static void skip_comment(scanner *s) {
    const rg_str src = s->j->source;
    const size_t end = rg_str_find(src, "#}", s->pos + 2);
    s->strip_next = end != SIZE_MAX && src.data[end - 1] == '-';
    s->trim_next_line = true;
    s->pos = end == SIZE_MAX ? src.len : end + 2;
}

static size_t find_tag(rg_str src, size_t from) {
    for (size_t i = from; i + 1 < src.len; i++) {
        const char c = src.data[i + 1];
        if (src.data[i] == '{' && (c == '{' || c == '%' || c == '#')) return i;
    }
    return src.len;
}

rg_code rg_jinja_scan(rg_jinja *j, rg_str source, rg_status *st) {
    *j = (rg_jinja){0};
    if (source.len > RG_JINJA_TEXT_MAX) {
        return rg_fail(st, RG_UNSUPPORTED, "chat template of %zu bytes, at most %u are read",
                       source.len, RG_JINJA_TEXT_MAX);
    }
    /* The source, then the literals' texts, which together are no longer. */
    rg_code rc = RG_NOMEM;
    j->memory = rg_alloc(2 * source.len + 2, 1, st);
    j->literals = j->memory ? rg_alloc(RG_JINJA_LITERALS_MAX, sizeof *j->literals, st) : NULL;
    if (!j->literals) goto cleanup;
    if (source.len) memcpy(j->memory, source.data, source.len);
    j->source = (rg_str){j->memory, source.len};
    scanner s = {.j = j, .out = j->memory + source.len + 1};
    while (s.pos < source.len) {
        const size_t next = find_tag(j->source, s.pos);
        RG_GO(add_data(&s, next, st));
        s.pos = next;
        if (next == source.len) break;
        if (j->source.data[next + 1] == '#') {
            skip_comment(&s);
        } else {
            RG_GO(scan_tag(&s, st));
        }
    }
    return RG_OK;

cleanup:
    rg_jinja_deinit(j);
    return rc;
}

void rg_jinja_deinit(rg_jinja *j) {
    rg_free(j->literals);
    rg_free(j->memory);
    *j = (rg_jinja){0};
}

const rg_jinja_literal *rg_jinja_find(const rg_jinja *j, const char *text) {
    for (size_t i = 0; i < j->n_literals; i++) {
        if (rg_str_equal(j->literals[i].text, text)) return &j->literals[i];
    }
    return NULL;
}

bool rg_jinja_preceded(const rg_jinja *j, size_t pos, const char *code) {
    size_t k = strlen(code);
    while (k > 0) {
        if (code[k - 1] == ' ') {
            k--;
            continue;
        }
        while (pos > 0 && is_blank(j->source.data[pos - 1])) {
            pos--;
        }
        if (pos == 0 || j->source.data[pos - 1] != code[k - 1]) return false;
        pos--;
        k--;
    }
    return true;
}
