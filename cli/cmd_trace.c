/* regolith trace record, replay, profile. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "forge/forge.h"
#include "cli/cli.h"

int cli_trace_record(const cli_options *opt) {
    if (opt->n_args != 1) return cli_usage("trace record", "name the trace to write");
    if (opt->trace) return cli_usage("trace record", "the trace is named twice");
    cli_options o = *opt;
    o.trace = opt->args[0];
    return cli_run(&o);
}

/* One word of a list: into choice `at`; false when it is none. */
typedef bool set_choice(rg_replay_options *o, uint32_t at, const char *word);

static bool whole_number(const char *word, long max, long *out) {
    char *end = NULL;
    errno = 0;
    *out = strtol(word, &end, 10);
    return end != word && !*end && errno == 0 && *out >= 0 && *out <= max;
}

static bool set_slots(rg_replay_options *o, uint32_t at, const char *word) {
    long n;
    if (!whole_number(word, 1 << 20, &n)) return false;
    o->slots[at] = (uint32_t)n;
    return true;
}

static bool set_policy(rg_replay_options *o, uint32_t at, const char *word) {
    static const char *const names[] = {"lru", "slru", "lfu"};
    for (uint32_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(word, names[i]) != 0) continue;
        o->policies[at] = (rg_stream_policy)i;
        return true;
    }
    return false;
}

static bool set_lookahead(rg_replay_options *o, uint32_t at, const char *word) {
    long n = strcmp(word, "auto") == 0 ? -1 : 0;
    if (n == 0 && strcmp(word, "off") != 0 && !whole_number(word, 32, &n)) return false;
    o->lookaheads[at] = (int32_t)n;
    return true;
}

static bool set_guard(rg_replay_options *o, uint32_t at, const char *word) {
    o->guards[at] = strcmp(word, "on") == 0;
    return o->guards[at] || strcmp(word, "off") == 0;
}

/* Words between commas; NULL gives none. */
static int parse_list(const char *flag, const char *text, set_choice *set, rg_replay_options *o,
                      uint32_t *n) {
    while (text && *text) {
        char word[32];
        const size_t len = strcspn(text, ",");
        if (*n == RG_REPLAY_CHOICES_MAX) {
            return cli_usage("trace replay", "--%s has more than %u values", flag,
                             RG_REPLAY_CHOICES_MAX);
        }
        snprintf(word, sizeof word, "%.*s", len < sizeof word ? (int)len : 31, text);
        if (!set(o, (*n)++, word)) {
            return cli_usage("trace replay", "--%s: \"%s\" is no choice", flag, word);
        }
        text += len + (text[len] == ',');
    }
    return CLI_OK;
}

static int finish(rg_code rc, const rg_status *st, rg_buf *text) {
    if (text->len) fwrite(text->data, 1, text->len, stdout);
    rg_buf_deinit(text);
    const int code = rc == RG_OK ? CLI_OK : cli_fail(st);
    const int written = cli_finish_output();
    return code == CLI_OK ? written : code;
}

int cli_trace_replay(const cli_options *opt) {
    if (opt->n_args != 1) return cli_usage("trace replay", "name a trace");
    rg_replay_options o = {.latency_us = opt->replay.latency_us,
                           .gb_s = opt->replay.gb_s,
                           .layer_us = opt->replay.layer_us,
                           .row_us = opt->replay.row_us};
    int code = parse_list("arena-experts", opt->replay.slots, set_slots, &o, &o.n_slots);
    if (code == CLI_OK) {
        code = parse_list("policy", opt->replay.policies, set_policy, &o, &o.n_policies);
    }
    if (code == CLI_OK) {
        code = parse_list("lookahead", opt->replay.lookaheads, set_lookahead, &o, &o.n_lookaheads);
    }
    if (code == CLI_OK) {
        code = parse_list("guard", opt->replay.guards, set_guard, &o, &o.n_guards);
    }
    if (code != CLI_OK) return code;
    rg_status st = {0};
    rg_buf text;
    rg_buf_init(&text, 0);
    const rg_code rc = rg_forge_trace_replay(opt->args[0], &o, &text, &st);
    return finish(rc, &st, &text);
}

int cli_trace_profile(const cli_options *opt) {
    if (!opt->n_args) return cli_usage("trace profile", "name one trace or more");
    if (!opt->out) return cli_usage("trace profile", "-o OUT is missing");
    rg_status st = {0};
    rg_buf text;
    rg_buf_init(&text, 0);
    const rg_code rc = rg_forge_trace_profile((const char *const *)opt->args, (uint32_t)opt->n_args,
                                              opt->out, &text, &st);
    return finish(rc, &st, &text);
}
