/* The plain family: every message as a turn, content as it is. Knows neither tools nor thinking;
 * like its templates it leaves them out.
 */
#include "text/chat.h"

static const char *const role_names[] = {"system", "user", "assistant", "tool"};

/* The next "{%" behind `from`; SIZE_MAX at the end. */
static size_t next_block(const rg_jinja *j, size_t from) {
    return rg_str_find(j->source, "{%", from);
}

/* One loop over the messages, all conditions about add_generation_prompt, no filter but trim. */
static bool code_is_plain(const rg_jinja *j) {
    size_t n_loops = 0;
    for (size_t at = next_block(j, 0); at != SIZE_MAX; at = next_block(j, at + 2)) {
        const size_t end = rg_str_find(j->source, "%}", at);
        if (end == SIZE_MAX) return false;
        rg_str body = {j->source.data + at + 2, end - at - 2};
        if (body.len && body.data[0] == '-') body = (rg_str){body.data + 1, body.len - 1};
        body = rg_chat_trim(body);
        if (rg_str_starts(body, "for ")) {
            if (rg_str_find(body, " in messages", 0) == SIZE_MAX) return false;
            n_loops++;
        } else if (!rg_str_starts(body, "end") &&
                   rg_str_find(body, "add_generation_prompt", 0) == SIZE_MAX) {
            return false;
        }
    }
    if (n_loops != 1) return false;
    for (size_t at = rg_str_find(j->source, "|", 0); at != SIZE_MAX;
         at = rg_str_find(j->source, "|", at + 1)) {
        bool in_string = false;
        for (size_t i = 0; i < j->n_literals; i++) {
            in_string |= at >= j->literals[i].begin && at < j->literals[i].end;
        }
        rg_str behind = {j->source.data + at + 1, j->source.len - at - 1};
        if (!in_string && !rg_str_starts(rg_chat_trim(behind), "trim")) return false;
    }
    return true;
}

/* The strings, apart from keys of a message, spell exactly one turn and the prompt's head. */
static bool matches(const rg_jinja *j) {
    static const char spelt[] = "<|im_start|>\n<|im_end|>\n<|im_start|>assistant\n";
    size_t n = 0;
    for (size_t i = 0; i < j->n_literals; i++) {
        const rg_jinja_literal *l = &j->literals[i];
        if (l->kind == RG_JINJA_DATA) return false;
        if (rg_str_equal(l->text, "role") || rg_str_equal(l->text, "content")) continue;
        for (size_t k = 0; k < l->text.len; k++, n++) {
            if (n + 1 >= sizeof spelt || l->text.data[k] != spelt[n]) return false;
        }
    }
    return n + 1 == sizeof spelt && code_is_plain(j);
}

static void read_template(rg_chat_template *c) {
    const size_t bar = rg_str_find(c->jinja.source, "trim", 0);
    c->chatml.trim = bar != SIZE_MAX;
}

static rg_code render(const rg_chat_template *c, const rg_conversation *conv, rg_buf *out,
                      rg_status *st) {
    for (size_t i = 0; i < conv->n_messages; i++) {
        const rg_message *m = &conv->messages[i];
        RG_TRY(rg_buf_puts(out, "<|im_start|>", st));
        RG_TRY(rg_buf_puts(out, role_names[m->role], st));
        RG_TRY(rg_buf_puts(out, "\n", st));
        RG_TRY(rg_chat_put(out, c->chatml.trim ? rg_chat_trim(m->content) : m->content, st));
        RG_TRY(rg_buf_puts(out, "<|im_end|>\n", st));
    }
    if (!conv->options->add_generation_prompt) return RG_OK;
    return rg_buf_puts(out, "<|im_start|>assistant\n", st);
}

const rg_chat_family rg_chat_family_chatml = {"chatml", matches, read_template, render};
