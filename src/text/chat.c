/* Chat templates: recognises the family of a template text, renders through it.
 *
 * A template inside a model file is a program of somebody else's; it is never run. Each family is
 * written here in C and reads from the text only the sentences and switches that differ between the
 * models of the family.
 */
#include "text/chat.h"

#include <string.h>

#include "text/utf8.h"

static const rg_chat_family *const families[] = {&rg_chat_family_qwen, &rg_chat_family_chatml};
#define KNOWN_NAMES "qwen, chatml"

static bool is_white(uint32_t c) {
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

/* Length of the white space character that ends `s`; 0 if it ends otherwise. */
static size_t white_tail(rg_str s) {
    for (size_t n = 1; n <= 3 && n <= s.len; n++) {
        const uint8_t *p = (const uint8_t *)s.data + s.len - n;
        if ((*p & 0xC0) == 0x80) continue;
        const rg_utf8_step step = rg_utf8_next(p, n);
        return step.kind == RG_UTF8_VALID && step.len == n && is_white(step.code) ? n : 0;
    }
    return 0;
}

rg_str rg_chat_trim(rg_str s) {
    while (s.len > 0) {
        const rg_utf8_step step = rg_utf8_next((const uint8_t *)s.data, s.len);
        if (step.kind != RG_UTF8_VALID || !is_white(step.code)) break;
        s.data += step.len;
        s.len -= step.len;
    }
    for (size_t n = white_tail(s); n > 0; n = white_tail(s)) {
        s.len -= n;
    }
    return s;
}

rg_str rg_chat_trim_newlines(rg_str s, bool left, bool right) {
    while (left && s.len > 0 && s.data[0] == '\n') {
        s.data++;
        s.len--;
    }
    while (right && s.len > 0 && s.data[s.len - 1] == '\n') {
        s.len--;
    }
    return s;
}

rg_code rg_chat_put(rg_buf *out, rg_str s, rg_status *st) {
    return s.len ? rg_buf_append(out, s.data, s.len, st) : RG_OK;
}

static rg_code choose(const rg_jinja *j, const char *name, const rg_chat_family **out,
                      rg_status *st) {
    for (size_t i = 0; i < RG_ARRAY_LEN(families); i++) {
        if (name ? strcmp(name, families[i]->name) == 0 : families[i]->matches(j)) {
            *out = families[i];
            return RG_OK;
        }
    }
    if (name) {
        return rg_fail(st, RG_UNSUPPORTED,
                       "chat template \"%.40s\" is not known; --chat-template takes one of: %s",
                       name, KNOWN_NAMES);
    }
    return rg_fail(st, RG_UNSUPPORTED,
                   "the file's chat template (%zu bytes) is of no known family; choose one with "
                   "--chat-template: %s",
                   j->source.len, KNOWN_NAMES);
}

rg_code rg_chat_template_create(rg_chat_template **out, rg_str template_text, const char *name,
                                rg_status *st) {
    *out = NULL;
    rg_code rc = RG_OK;
    rg_chat_template *c = rg_alloc(1, sizeof *c, st);
    if (!c) return RG_NOMEM;
    RG_GO(rg_jinja_scan(&c->jinja, template_text, st));
    RG_GO(choose(&c->jinja, name, &c->family, st));
    c->family->read(c);
    *out = c;

cleanup:
    if (rc != RG_OK) rg_chat_template_destroy(c);
    return rc;
}

void rg_chat_template_destroy(rg_chat_template *c) {
    if (!c) return;
    rg_jinja_deinit(&c->jinja);
    rg_free(c);
}

const char *rg_chat_template_name(const rg_chat_template *c) {
    return c->family->name;
}

rg_code rg_chat_render(const rg_chat_template *c, const rg_message *messages, size_t n_messages,
                       const rg_str *tools_json, size_t n_tools, const rg_chat_options *options,
                       rg_buf *out, rg_status *st) {
    for (size_t i = 0; i < n_messages; i++) {
        if (messages[i].role < RG_ROLE_SYSTEM || messages[i].role > RG_ROLE_TOOL) {
            return rg_fail(st, RG_INVALID, "chat: message %zu has role %d, known are 0 to 3", i,
                           (int)messages[i].role);
        }
    }
    const rg_conversation conv = {messages, n_messages, tools_json, n_tools, options};
    const size_t len_before = out->len;
    const rg_code rc = c->family->render(c, &conv, out, st);
    if (rc != RG_OK && out->data) {
        out->len = len_before;
        out->data[len_before] = 0;
    }
    return rc;
}
