/* Lines from the terminal through libedit, or from a pipe as they are. */
#include <histedit.h>
#include <locale.h>
#include <string.h>
#include <unistd.h>

#include "cli/chat_parts.h"
#include "forge/forge.h"

#define HISTORY_LINES 1000

struct chat_input {
    EditLine *el; /* NULL: no terminal */
    History *history;
    rg_buf message;
    char line[CHAT_LINE_MAX];
    bool inside; /* lines of one message go on */
};

static const char *prompt(EditLine *el) {
    const chat_input *in = NULL;
    el_get(el, EL_CLIENTDATA, &in);
    return in && in->inside ? "... " : "> ";
}

rg_code chat_input_open(chat_input **out, rg_status *st) {
    *out = NULL;
    chat_input *in = rg_alloc(1, sizeof *in, st);
    if (!in) return RG_NOMEM;
    rg_buf_init(&in->message, (size_t)16 << 20);
    if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) {
        setlocale(LC_CTYPE, "");
        HistEvent e;
        in->history = history_init();
        in->el = el_init("regolith", stdin, stdout, stderr);
        if (!in->history || !in->el) {
            chat_input_close(in);
            return rg_fail(st, RG_NOMEM, "no line editor");
        }
        history(in->history, &e, H_SETSIZE, HISTORY_LINES);
        el_set(in->el, EL_CLIENTDATA, in);
        el_set(in->el, EL_PROMPT, prompt);
        el_set(in->el, EL_EDITOR, "emacs");
        el_set(in->el, EL_HIST, history, in->history);
        el_set(in->el, EL_SIGNAL, 1);
        el_source(in->el, NULL);
    }
    *out = in;
    return RG_OK;
}

void chat_input_close(chat_input *in) {
    if (!in) return;
    if (in->el) el_end(in->el);
    if (in->history) history_end(in->history);
    rg_buf_deinit(&in->message);
    rg_free(in);
}

/* The next line without its end; NULL: there is none. */
static const char *next_line(chat_input *in) {
    const char *text = NULL;
    int n = 0;
    if (in->el) {
        text = el_gets(in->el, &n);
        if (!text || n <= 0) return NULL;
    } else {
        text = fgets(in->line, sizeof in->line, stdin);
        if (!text) return NULL;
    }
    const size_t len = strcspn(text, "\n");
    const size_t keep = len < sizeof in->line - 1 ? len : sizeof in->line - 1;
    memmove(in->line, text, keep);
    in->line[keep] = 0;
    return in->line;
}

static void remember(chat_input *in) {
    HistEvent e;
    if (in->el && in->message.len) history(in->history, &e, H_ENTER, in->message.data);
}

const char *chat_input_next(chat_input *in) {
    bool quoted = false, more = true;
    rg_buf_clear(&in->message);
    in->inside = false;
    while (more) {
        const char *line = next_line(in);
        if (!line) {
            if (!in->message.len) return NULL;
            break;
        }
        const size_t len = strlen(line);
        if (strcmp(line, "\"\"\"") == 0) {
            quoted = !quoted;
            more = quoted;
        } else {
            more = quoted || (len && line[len - 1] == '\\');
            const size_t keep = more && !quoted ? len - 1 : len;
            if (rg_buf_append(&in->message, line, keep, NULL) != RG_OK) return NULL;
            if (more && rg_buf_puts(&in->message, "\n", NULL) != RG_OK) return NULL;
        }
        in->inside = more;
    }
    remember(in);
    return in->message.data ? in->message.data : "";
}
