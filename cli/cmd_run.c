/* regolith run: one generation. */
#include <jansson.h>
#include <string.h>
#include <xxhash.h>

#include "forge/forge.h"
#include "cli/draft_print.h"

typedef struct run_output {
    const cli_options *opt;
    rg_buf text; /* for --json */
    int32_t *ids;
    size_t n_ids, cap;
    bool failed;        /* no memory for the JSON */
    bool shown;         /* something went to standard output */
    XXH3_state_t *hash; /* of the logits; NULL: not wanted */
    size_t n_vocab;
} run_output;

static rg_str str_of(const char *s) {
    return (rg_str){.data = s ? s : "", .len = s ? strlen(s) : 0};
}

static bool on_text(void *user, const char *text, size_t len) {
    run_output *o = user;
    if (o->opt->json) {
        o->failed = o->failed || rg_buf_append(&o->text, text, len, NULL) != RG_OK;
        return !o->failed;
    }
    if (o->opt->print_ids) return true;
    fwrite(text, 1, len, stdout);
    o->shown = true;
    return cli_flush();
}

static bool on_token(void *user, int32_t id) {
    run_output *o = user;
    if (o->opt->json) {
        if (o->n_ids == o->cap) {
            const size_t cap = o->cap ? o->cap * 2 : 256;
            int32_t *ids = rg_realloc(o->ids, cap, sizeof *ids, NULL);
            if (!ids) {
                o->failed = true;
                return false;
            }
            o->ids = ids;
            o->cap = cap;
        }
        o->ids[o->n_ids++] = id;
    } else if (o->opt->print_ids) {
        printf("%s%d", o->n_ids++ ? " " : "", id);
        o->shown = true;
        return cli_flush();
    }
    return true;
}

static rg_code on_logits(void *user, uint32_t position, const float *logits, rg_status *st) {
    const run_output *o = user;
    (void)position, (void)st;
    XXH3_128bits_update(o->hash, logits, o->n_vocab * sizeof *logits);
    return RG_OK;
}

/* The prompt text: raw, or one user turn under the chat template. */
static rg_code render(const rg_engine *engine, const cli_options *opt, const char *text, size_t len,
                      char **out, size_t *out_len, rg_status *st) {
    const rg_message messages[2] = {{.role = RG_ROLE_SYSTEM, .content = str_of(opt->system)},
                                    {.role = RG_ROLE_USER, .content = {text, len}}};
    const rg_chat_options chat = {.add_generation_prompt = true,
                                  .enable_thinking = !opt->no_think,
                                  .preserve_thinking = true,
                                  .reasoning_effort = str_of(opt->effort)};
    const size_t skip = opt->system ? 0 : 1;
    return rg_engine_render_chat(engine, messages + skip, 2 - skip, NULL, 0, &chat, out, out_len,
                                 st);
}

static rg_code prompt_ids(const rg_engine *engine, const cli_options *opt, int32_t **ids, size_t *n,
                          rg_status *st) {
    if (opt->ids) return cli_read_ids(opt->ids, ids, n, st);
    char *file = NULL, *chat = NULL;
    size_t len = opt->prompt ? strlen(opt->prompt) : 0;
    rg_code rc = RG_OK;
    if (opt->file) rc = cli_read_file(opt->file, &file, &len, st);
    const char *text = file ? file : opt->prompt;
    if (rc == RG_OK && !opt->raw) {
        size_t chat_len = 0;
        rc = render(engine, opt, text, len, &chat, &chat_len, st);
        text = chat;
        len = chat_len;
    }
    if (rc == RG_OK) rc = rg_engine_tokenize(engine, text, len, true, ids, n, st);
    if (rc == RG_OK && *n == 0) rc = rg_fail(st, RG_INVALID, "the prompt is empty");
    rg_release(file);
    rg_release(chat);
    return rc;
}

/* The asked context, or as much as prompt and reply need. */
static uint32_t context_for(const rg_engine *engine, const cli_options *opt, size_t n_prompt) {
    if (opt->ctx) return opt->ctx;
    rg_engine_info info;
    rg_engine_get_info(engine, &info);
    const uint64_t reply = opt->n_predict ? opt->n_predict : 4096;
    const uint64_t want = n_prompt + reply + 1;
    return want < info.n_ctx_train ? (uint32_t)want : info.n_ctx_train;
}

static int print_json(const rg_session *session, const run_output *o, const rg_generate_result *r) {
    rg_session_stats s;
    rg_session_get_stats(session, &s);
    json_t *ids = json_array();
    for (size_t i = 0; i < o->n_ids; i++)
        json_array_append_new(ids, json_integer(o->ids[i]));
    json_t *root = json_pack(
        "{s:s%, s:o, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:I}", "text",
        o->text.data ? o->text.data : "", o->text.len, "ids", ids, "finish",
        rg_finish_text(r->finish), "prefill_tokens", (json_int_t)s.prefill_tokens, "decode_tokens",
        (json_int_t)s.decode_tokens, "prefill_tok_s",
        s.prefill_ms > 0 ? 1e3 * (double)s.prefill_tokens / s.prefill_ms : 0.0, "decode_tok_s",
        s.decode_ms > 0 ? 1e3 * (double)s.decode_tokens / s.decode_ms : 0.0, "ttft_ms", s.ttft_ms,
        "compute_ms", s.compute_ms, "host_ms", s.host_ms, "rss_peak_bytes",
        (json_int_t)s.rss_peak_bytes);
    if (root && o->opt->moce > 0) {
        json_object_set_new(root, "moce_routes", json_integer((json_int_t)r->moce.routes));
        json_object_set_new(root, "moce_changed", json_integer((json_int_t)r->moce.routes_changed));
        json_object_set_new(root, "moce_mass_moved", json_real(r->moce.mass_moved));
    }
    if (root && o->hash) {
        const XXH128_hash_t h = XXH3_128bits_digest(o->hash);
        char text[33];
        snprintf(text, sizeof text, "%016llx%016llx", (unsigned long long)h.high64,
                 (unsigned long long)h.low64);
        json_object_set_new(root, "logits_hash", json_string(text));
    }
    rg_draft_stats d;
    rg_session_get_draft_stats(session, &d);
    if (root && o->opt->draft != RG_DRAFT_OFF) {
        json_object_set_new(root, "draft_offered", json_integer((json_int_t)d.offered));
        json_object_set_new(root, "draft_accepted", json_integer((json_int_t)d.accepted));
        json_object_set_new(root, "draft", cli_draft_json(&d));
    }
    if (!root || json_dumpf(root, stdout, JSON_INDENT(2)) != 0) {
        json_decref(root);
        const rg_status st = {.code = RG_NOMEM, .message = "cannot write JSON"};
        return cli_fail(&st);
    }
    putchar('\n');
    json_decref(root);
    return CLI_OK;
}

static int generate(rg_session *session, const cli_options *opt, const int32_t *ids, size_t n,
                    size_t n_vocab, rg_status *st) {
    run_output o = {.opt = opt, .n_vocab = n_vocab};
    if (opt->logits_hash && (o.hash = XXH3_createState())) XXH3_128bits_reset(o.hash);
    const rg_generate_options g = {.sampling = opt->sampling,
                                   .moce = opt->moce,
                                   .moce_slots = opt->moce_slots,
                                   .n_predict = opt->n_predict,
                                   .ignore_eos = opt->ignore_eos,
                                   .show_special = opt->show_special,
                                   .stop = opt->stop,
                                   .n_stop = opt->n_stop,
                                   .on_token = on_token,
                                   .on_text = on_text,
                                   .on_logits = o.hash ? on_logits : NULL,
                                   .user = &o};
    rg_generate_result result = {0};
    rg_code rc = rg_session_eval(session, ids, n, 0, NULL, NULL, st);
    cli_progress_clear();
    if (rc == RG_OK) rc = rg_session_generate(session, &g, &result, st);
    if (rc == RG_OK && o.failed) rc = rg_fail(st, RG_NOMEM, "no memory for the reply");
    if (!opt->json && (rc == RG_OK || o.shown)) putchar('\n');
    int code = rc == RG_OK ? CLI_OK : cli_fail(st);
    if (opt->json && (rc == RG_OK || (rc == RG_CANCELED && result.n_tokens))) {
        const int printed = print_json(session, &o, &result);
        code = code == CLI_OK ? printed : code;
    }
    if (rc == RG_OK && opt->moce > 0) cli_print_moce(&result.moce, opt->moce);
    rg_buf_deinit(&o.text);
    rg_free(o.ids);
    XXH3_freeState(o.hash);
    return code;
}

int cli_run(const cli_options *opt) {
    const int inputs = !!opt->prompt + !!opt->file + !!opt->ids;
    if (inputs != 1) return cli_usage("run", "give one of -p TEXT, -f FILE, --ids FILE");
    rg_status st = {0};
    rg_engine *engine = NULL;
    rg_session *session = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    int code = CLI_FAILURE;
    if (cli_open_engine(opt, &engine, &st) == RG_OK &&
        prompt_ids(engine, opt, &ids, &n, &st) == RG_OK) {
        const rg_session_options so = cli_session_options(opt, context_for(engine, opt, n));
        if (rg_session_create(&session, engine, &so, &st) == RG_OK) {
            cli_cancel_on_interrupt(session);
            rg_engine_info info;
            rg_engine_get_info(engine, &info);
            code = generate(session, opt, ids, n, info.n_vocab, &st);
            cli_cancel_on_interrupt(NULL);
            cli_print_profile(engine, session);
        }
    }
    if (!session) code = cli_fail(&st);
    rg_release(ids);
    rg_session_destroy(session);
    rg_engine_close(engine);
    const int written = cli_finish_output();
    return code == CLI_OK ? written : code;
}
