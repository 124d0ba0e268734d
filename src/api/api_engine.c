#include "api/api.h"

/* A file without a template, or with an unknown one, still completes raw text: the reason waits
 * until a conversation is to be rendered. */
static void find_template(rg_engine *e, const char *name) {
    rg_str text = {0};
    if (rg_gguf_find(e->vocab.gguf, "tokenizer.chat_template")) {
        if (rg_gguf_get_str(e->vocab.gguf, "tokenizer.chat_template", &text, &e->chat_status) !=
            RG_OK) {
            return;
        }
    } else if (!name) {
        rg_fail(&e->chat_status, RG_UNSUPPORTED,
                "the model file has no chat template; name one with --chat-template");
        return;
    }
    if (rg_chat_template_create(&e->chat, text, name, &e->chat_status) != RG_OK) e->chat = NULL;
}

static rg_code open_parts(rg_engine *e, const rg_engine_options *opt, rg_status *st) {
    RG_TRY(rg_cpu_level_pick(&e->level, opt->cpu_level, st));
    RG_TRY(rg_gguf_open(&e->vocab.gguf, opt->model_path, st));
    const rg_model_options model_opt = {.no_mtp = opt->no_mtp};
    rg_code rc = rg_model_create(&e->model, e->vocab.gguf, &model_opt, st);
    if (rc == RG_OK) rc = rg_tokenizer_create(&e->vocab.tokenizer, e->vocab.gguf, st);
    if (rc != RG_OK) return rg_context(st, rc, "%s", opt->model_path);
    find_template(e, opt->chat_template);
    if (!e->chat && (opt->chat_template || e->chat_status.code == RG_NOMEM)) {
        if (st && st->code == RG_OK) *st = e->chat_status;
        return e->chat_status.code;
    }
    const rg_core_options core_opt = {.n_threads = opt->n_threads,
                                      .level = e->level,
                                      .kernels = opt->kernels,
                                      .chunk = opt->chunk,
                                      .progress = opt->progress,
                                      .progress_user = opt->progress_user};
    rc = rg_core_create(&e->core, e->vocab.gguf, e->model, &core_opt, st);
    return rc == RG_OK ? RG_OK : rg_context(st, rc, "%s", opt->model_path);
}

rg_code rg_engine_open(rg_engine **out, const rg_engine_options *opt, rg_status *st) {
    *out = NULL;
    if (!opt->model_path || !opt->model_path[0]) {
        return rg_fail(st, RG_INVALID, "no model file was named");
    }
    const uint64_t begin = rg_now_ns();
    rg_engine *e = rg_alloc(1, sizeof *e, st);
    if (!e) return RG_NOMEM;
    const rg_code rc = open_parts(e, opt, st);
    if (rc != RG_OK) {
        rg_engine_close(e);
        return rc;
    }
    e->load_ms = (double)(rg_now_ns() - begin) * 1e-6;
    *out = e;
    return RG_OK;
}

void rg_engine_close(rg_engine *e) {
    if (!e) return;
    rg_core_destroy(e->core);
    rg_chat_template_destroy(e->chat);
    rg_tokenizer_destroy(e->vocab.tokenizer);
    rg_model_destroy(e->model);
    rg_gguf_close(e->vocab.gguf);
    rg_free(e);
}

void rg_engine_get_info(const rg_engine *e, rg_engine_info *out) {
    const rg_hparams *hp = &e->model->hp;
    *out = (rg_engine_info){.arch = "qwen4exp",
                            .cpu_level = rg_cpu_level_name(e->level),
                            .n_vocab = hp->n_vocab,
                            .n_ctx_train = hp->n_ctx_train,
                            .n_layer = hp->n_layer,
                            .n_embd = hp->n_embd,
                            .n_expert = hp->n_expert,
                            .n_expert_used = hp->n_expert_used,
                            .has_mtp = hp->n_mtp > 0,
                            .n_threads = rg_core_threads(e->core),
                            .chunk = rg_core_chunk(e->core),
                            .weight_bytes = rg_core_weight_bytes(e->core),
                            .scratch_bytes = rg_core_scratch_bytes(e->core),
                            .load_ms = e->load_ms};
}

const rg_vocab *rg_engine_vocab(const rg_engine *e) {
    return &e->vocab;
}

rg_code rg_engine_tokenize(const rg_engine *e, const char *text, size_t len, bool parse_special,
                           int32_t **ids, size_t *n_ids, rg_status *st) {
    return rg_vocab_tokenize(&e->vocab, text, len, parse_special, ids, n_ids, st);
}

rg_code rg_engine_render_chat(const rg_engine *e, const rg_message *messages, size_t n_messages,
                              const rg_str *tools_json, size_t n_tools,
                              const rg_chat_options *options, char **text, size_t *len,
                              rg_status *st) {
    *text = NULL;
    *len = 0;
    if (!e->chat) {
        if (st && st->code == RG_OK) *st = e->chat_status;
        return e->chat_status.code;
    }
    rg_buf b;
    rg_buf_init(&b, RG_TEXT_INPUT_MAX);
    rg_code rc = rg_buf_append(&b, "", 0, st);
    if (rc == RG_OK) {
        rc = rg_chat_render(e->chat, messages, n_messages, tools_json, n_tools, options, &b, st);
    }
    if (rc != RG_OK) {
        rg_buf_deinit(&b);
        return rc;
    }
    *text = b.data;
    *len = b.len;
    return RG_OK;
}
