/* regolith chat: a conversation in the terminal. */
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "cli/chat_parts.h"
#include "cli/draft_print.h"
#include "forge/forge.h"

static const char HELP[] =
    "/help              this list\n"
    "/system TEXT       system message (no text: none), starts over\n"
    "/think on|off|LEVEL  whether and how much to think\n"
    "/regen             the last reply again, with another seed\n"
    "/save FILE         write the conversation\n"
    "/load FILE         read one\n"
    "/stats             figures of this session\n"
    "/clear             start over\n"
    "/quit              end (also Ctrl-D)\n"
    "A line that ends in \\ goes on in the next; so do those between two lines of \"\"\".\n"
    "Ctrl-C stops a reply.\n";

/* Set by the handler on the main thread. */
static atomic_bool interrupted;
static _Atomic(rg_session *) prefilling;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    atomic_store(&interrupted, true);
    rg_session *s = atomic_load(&prefilling);
    if (s) rg_session_cancel(s);
}

typedef struct chat {
    const cli_options *opt;
    rg_engine *engine;
    rg_session *session;
    rg_snapshot *at_prompt; /* of the last reply; NULL = none */
    rg_engine_info info;
    chat_talk talk;
    uint64_t seed;
    bool colour;
    /* of the reply under way */
    rg_buf reasoning, answer, held;
    bool thinking; /* the text is not behind </think> yet */
    uint32_t n_reply;
    double reply_ms;
    rg_moce_receipt receipt;
} chat;

/* ---- showing -------------------------------------------------------------------------------- */

static void paint(const chat *c, const char *code) {
    if (c->colour) fputs(code, stdout);
}

static rg_code show(chat *c, const char *text, size_t len, rg_status *st) {
    rg_buf *to = c->thinking ? &c->reasoning : &c->answer;
    /* Line breaks in front of a part belong to the template. */
    while (to->len == 0 && len && *text == '\n') {
        text++;
        len--;
    }
    if (len == 0) return RG_OK;
    fwrite(text, 1, len, stdout);
    if (!cli_flush()) return rg_fail(st, RG_IO, "the output cannot be written");
    return rg_buf_append(to, text, len, st);
}

/* Text of the reply; what may be the beginning of the tag waits. */
static rg_code take_text(chat *c, rg_str text, bool last, rg_status *st) {
    static const char tag[] = "</think>";
    if (!c->thinking) return show(c, text.data, text.len, st);
    RG_TRY(rg_buf_append(&c->held, text.data, text.len, st));
    const char *at = c->held.len ? strstr(c->held.data, tag) : NULL;
    if (at) {
        RG_TRY(show(c, c->held.data, (size_t)(at - c->held.data), st));
        c->thinking = false;
        paint(c, "\033[0m");
        if (c->reasoning.len) fputs("\n\n", stdout);
        const size_t used = (size_t)(at - c->held.data) + sizeof tag - 1;
        return show(c, c->held.data + used, c->held.len - used, st);
    }
    size_t keep = 0;
    for (size_t n = sizeof tag - 2; n > 0 && !keep && !last; n--) {
        if (c->held.len >= n && memcmp(c->held.data + c->held.len - n, tag, n) == 0) keep = n;
    }
    RG_TRY(show(c, c->held.data ? c->held.data : "", c->held.len - keep, st));
    if (c->held.len) memmove(c->held.data, c->held.data + c->held.len - keep, keep);
    c->held.len = keep;
    if (c->held.data) c->held.data[keep] = 0;
    return RG_OK;
}

/* ---- a reply -------------------------------------------------------------------------------- */

/* Puts the session to tokens that ids [n] begin with, fewer than n; returns how many. Behind the
 * last prompt nothing is used that cache-aware routing has made. */
static size_t find_place(chat *c, const int32_t *ids, size_t n) {
    size_t same = 0;
    const int32_t *own = rg_session_ids(c->session);
    const uint32_t length = rg_session_length(c->session);
    while (same < length && same < n && own[same] == ids[same])
        same++;
    if (same == length && same < n && !(c->opt->moce > 0)) return same;
    if (c->at_prompt && rg_snapshot_length(c->at_prompt) <= same &&
        rg_snapshot_length(c->at_prompt) <= n &&
        rg_session_rewind(c->session, c->at_prompt, NULL) == RG_OK) {
        return rg_snapshot_length(c->at_prompt);
    }
    rg_session_reset(c->session);
    return 0;
}

/* Evaluates what the session does not hold yet. */
static rg_code prefill(chat *c, const int32_t *ids, size_t n, rg_status *st) {
    const size_t same = find_place(c, ids, n);
    atomic_store(&prefilling, c->session);
    rg_code rc = RG_OK;
    for (size_t at = same; at < n && rc == RG_OK;) {
        const size_t rows = n - at < c->info.chunk ? n - at : c->info.chunk;
        const rg_batch_part part = {
            .session = c->session, .n_ids = (uint32_t)rows, .want_logits = at + rows == n};
        cli_progress(NULL, "prefill", at - same, n - same);
        rc = rg_session_eval_batch(c->engine, &part, 1, ids + at, c->session, st);
        at += rows;
    }
    atomic_store(&prefilling, NULL);
    cli_progress_clear();
    if (rc != RG_OK || !(c->opt->moce > 0)) return rc;
    rg_snapshot_destroy(c->at_prompt);
    c->at_prompt = NULL;
    /* The plan has room for one state; without it the next turn reads all of the conversation. */
    if (rg_session_snapshot_bytes(c->session) > CLI_CHAT_STATE_BYTES) return RG_OK;
    return rg_session_snapshot(&c->at_prompt, c->session, st);
}

/* Picks from the window's rows while they are what was guessed. *end: the reply is complete. */
static rg_code pick(chat *c, rg_reply *reply, uint32_t most, rg_reply_step *step, bool *end,
                    rg_status *st) {
    do {
        RG_TRY(rg_reply_pick(reply, c->session, NULL, step, st));
        c->n_reply++;
        RG_TRY(take_text(c, step->text, false, st));
        *end = step->end || step->stopped || c->n_reply >= most || atomic_load(&interrupted);
    } while (!*end && rg_session_follow(c->session, step->id));
    return RG_OK;
}

static rg_code decode(chat *c, rg_reply *reply, rg_status *st) {
    const uint32_t most = c->opt->n_predict ? c->opt->n_predict : UINT32_MAX;
    rg_reply_step step;
    rg_batch_part part = {.session = c->session, .n_ids = 1, .want_logits = true, .reply = reply};
    bool end = false;
    if (c->opt->moce > 0) {
        RG_TRY(rg_session_moce(c->session, c->opt->moce, c->opt->moce_slots, st));
    }
    RG_TRY(pick(c, reply, most, &step, &end, st));
    while (!end && rg_session_length(c->session) < rg_session_capacity(c->session)) {
        part.n_more = most - c->n_reply - 1;
        RG_TRY(rg_session_eval_batch(c->engine, &part, 1, &step.id, NULL, st));
        const rg_code rc = pick(c, reply, most, &step, &end, st);
        RG_TRY(rg_session_close_batch(c->engine, &part, 1, st));
        RG_TRY(rc);
    }
    rg_session_moce_receipt(c->session, &c->receipt);
    rg_str rest;
    RG_TRY(rg_reply_finish(reply, &rest, st));
    return take_text(c, rest, true, st);
}

static rg_code make_reply(chat *c, const int32_t *ids, size_t n, rg_status *st) {
    rg_reply *reply = NULL;
    rg_reply_options o = {.sampling = c->opt->sampling,
                          .ignore_eos = c->opt->ignore_eos,
                          .stop = c->opt->stop,
                          .n_stop = c->opt->n_stop};
    o.sampling.seed = c->seed;
    const uint32_t room = rg_session_capacity(c->session);
    if (n >= room) {
        return rg_fail(st, RG_INVALID,
                       "the conversation has %zu tokens, the context holds %u: /clear starts over",
                       n, room);
    }
    RG_TRY(rg_reply_create(&reply, c->engine, &o, ids, n, room - n + 1, st));
    rg_code rc = prefill(c, ids, n, st);
    if (rc == RG_OK) rc = decode(c, reply, st);
    rg_reply_destroy(reply);
    return rc;
}

static void begin_reply(chat *c) {
    atomic_store(&interrupted, false);
    rg_buf_clear(&c->reasoning);
    rg_buf_clear(&c->answer);
    rg_buf_clear(&c->held);
    c->thinking = c->talk.thinking;
    c->n_reply = 0;
    if (c->thinking) paint(c, "\033[2m");
}

static void say(const rg_status *st) {
    fprintf(stderr, "regolith: chat: %s\n", st->message);
}

/* False: the conversation cannot go on. */
static bool reply(chat *c) {
    rg_status st = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    begin_reply(c);
    const uint64_t begin = rg_now_ns();
    rg_code rc = chat_prompt(&c->talk, c->engine, &ids, &n, &st);
    if (rc == RG_OK) rc = make_reply(c, ids, n, &st);
    c->reply_ms = (double)(rg_now_ns() - begin) * 1e-6;
    rg_release(ids);
    paint(c, "\033[0m");
    putchar('\n');
    cli_flush();
    if (rc == RG_CANCELED || (rc != RG_OK && rc != RG_INVALID)) rg_session_reset(c->session);
    if (rc == RG_OK) {
        rg_status add = {0};
        rc = chat_add(&c->talk, RG_ROLE_ASSISTANT, c->answer.data ? c->answer.data : "",
                      c->reasoning.data, &add);
        if (rc != RG_OK) say(&add);
        return true;
    }
    /* The message stays out of the conversation: it had no answer. */
    if (c->talk.n && c->talk.turns[c->talk.n - 1].role == RG_ROLE_USER) {
        chat_cut(&c->talk, c->talk.n - 1);
    }
    if (rc == RG_CANCELED) {
        fputs("stopped\n", stderr);
        return true;
    }
    say(&st);
    return rc != RG_IO;
}

/* ---- commands ------------------------------------------------------------------------------- */

static void set_think(chat *c, const char *word) {
    if (strcmp(word, "off") == 0) {
        c->talk.thinking = false;
    } else if (strcmp(word, "on") == 0 || !word[0]) {
        c->talk.thinking = true;
        c->talk.effort[0] = 0;
    } else {
        c->talk.thinking = true;
        snprintf(c->talk.effort, sizeof c->talk.effort, "%s", word);
    }
    printf("thinking is %s%s%s\n", c->talk.thinking ? "on" : "off", c->talk.effort[0] ? ", " : "",
           c->talk.thinking ? c->talk.effort : "");
}

static void show_stats(const chat *c) {
    rg_session_stats s;
    rg_session_get_stats(c->session, &s);
    printf("%u of %u tokens of context in %zu turns; last reply %u tokens in %.1f s; %.1f tok/s "
           "read, %.1f tok/s written; %.0f MiB at most\n",
           rg_session_length(c->session), rg_session_capacity(c->session), c->talk.n, c->n_reply,
           c->reply_ms * 1e-3,
           s.prefill_ms > 0 ? 1e3 * (double)s.prefill_tokens / s.prefill_ms : 0.0,
           s.decode_ms > 0 ? 1e3 * (double)s.decode_tokens / s.decode_ms : 0.0,
           (double)s.rss_peak_bytes / 0x1p20);
    cli_print_drafts(c->session);
    if (c->opt->moce > 0) cli_print_moce(&c->receipt, c->opt->moce);
}

static bool regenerate(chat *c) {
    if (c->talk.n == 0 || c->talk.turns[c->talk.n - 1].role != RG_ROLE_ASSISTANT) {
        puts("there is no reply yet");
        return true;
    }
    chat_cut(&c->talk, c->talk.n - 1);
    c->seed++;
    return reply(c);
}

/* *quit ends the chat; false: it cannot go on. */
static bool command(chat *c, const char *line, bool *quit) {
    const size_t len = strcspn(line, " \n");
    const char *rest = line + len + strspn(line + len, " \n");
    rg_status st = {0};
    rg_code rc = RG_OK;
    const struct {
        const char *name;
        char act;
    } names[] = {{"/help", 'h'}, {"/system", 's'}, {"/think", 't'}, {"/regen", 'r'},
                 {"/save", 'w'}, {"/load", 'l'},   {"/stats", 'f'}, {"/clear", 'c'},
                 {"/quit", 'q'}, {"/exit", 'q'}};
    char act = 0;
    for (size_t i = 0; i < RG_ARRAY_LEN(names); i++) {
        if (strlen(names[i].name) == len && strncmp(line, names[i].name, len) == 0) {
            act = names[i].act;
        }
    }
    if (act == 'h') fputs(HELP, stdout);
    if (act == 's') rc = chat_set_system(&c->talk, rest, &st);
    if (act == 's' || act == 'c') chat_cut(&c->talk, 0);
    if (act == 't') set_think(c, rest);
    if (act == 'w') rc = chat_save(&c->talk, rest[0] ? rest : "chat.json", &st);
    if (act == 'l') rc = chat_load(&c->talk, rest[0] ? rest : "chat.json", &st);
    if (act == 'f') show_stats(c);
    if (act == 'r') return regenerate(c);
    if (!act) printf("unknown command %.*s (see /help)\n", (int)len, line);
    *quit = act == 'q';
    if (rc != RG_OK) say(&st);
    return cli_flush();
}

/* ---- the loop ------------------------------------------------------------------------------- */

static int converse(chat *c, chat_input *in) {
    for (bool quit = false; !quit;) {
        const char *line = chat_input_next(in);
        if (!line) break;
        if (line[strspn(line, " \n\t")] == 0) continue;
        rg_status st = {0};
        bool alive = true;
        if (line[0] == '/') {
            alive = command(c, line, &quit);
        } else if (chat_add(&c->talk, RG_ROLE_USER, line, NULL, &st) == RG_OK) {
            alive = reply(c);
        } else {
            say(&st);
        }
        if (!alive) return CLI_FAILURE;
    }
    return cli_finish_output();
}

static rg_code open_chat(chat *c, rg_status *st) {
    RG_TRY(cli_open_engine(c->opt, &c->engine, st));
    rg_engine_get_info(c->engine, &c->info);
    const rg_session_options so = cli_session_options(c->opt, c->opt->ctx);
    RG_TRY(rg_session_create(&c->session, c->engine, &so, st));
    RG_TRY(chat_talk_init(&c->talk, st));
    c->talk.thinking = !c->opt->no_think;
    if (c->opt->effort) snprintf(c->talk.effort, sizeof c->talk.effort, "%s", c->opt->effort);
    return c->opt->system ? chat_set_system(&c->talk, c->opt->system, st) : RG_OK;
}

int cli_chat(const cli_options *opt) {
    rg_status st = {0};
    chat_input *in = NULL;
    chat c = {.opt = opt, .seed = opt->sampling.seed, .colour = isatty(STDOUT_FILENO)};
    int code = CLI_FAILURE;
    rg_code rc = open_chat(&c, &st);
    if (rc == RG_OK) rc = chat_input_open(&in, &st);
    if (rc == RG_OK) {
        const struct sigaction action = {.sa_handler = on_interrupt};
        sigaction(SIGINT, &action, NULL);
        if (c.colour) puts("/help lists the commands, Ctrl-D ends.");
        code = converse(&c, in);
    } else {
        code = cli_fail(&st);
    }
    chat_input_close(in);
    rg_buf_deinit(&c.reasoning);
    rg_buf_deinit(&c.answer);
    rg_buf_deinit(&c.held);
    chat_talk_deinit(&c.talk);
    rg_snapshot_destroy(c.at_prompt);
    rg_session_destroy(c.session);
    rg_engine_close(c.engine);
    return code;
}
