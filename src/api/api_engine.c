#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"

/* Program, libraries and stacks, as measured. */
#define RG_PROGRAM_BYTES ((uint64_t)12 << 20)

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

static uint32_t default_ctx(const rg_model *m, uint32_t asked) {
    if (asked) return asked;
    return m->hp.n_ctx_train < RG_CTX_DEFAULT ? m->hp.n_ctx_train : RG_CTX_DEFAULT;
}

/* Where experts that stream would lie. */
typedef struct source {
    const rg_pack *pack; /* NULL: in the model file */
    rg_gpu_arena arena;  /* AUTO: not on a GPU */
} source;

static rg_code plan_with(rg_plan *plan, const rg_model *m, const rg_engine_options *opt,
                         const source *from, rg_status *st) {
    const rg_plan_request req = {.ram_bytes = opt->ram_bytes,
                                 .arena_bytes = opt->arena_bytes,
                                 .arena_experts = opt->arena_experts,
                                 .host_bytes = rg_alloc_live_bytes() + RG_PROGRAM_BYTES,
                                 .chunk = opt->chunk,
                                 .n_ctx = default_ctx(m, opt->n_ctx),
                                 .n_session = opt->n_session,
                                 .snapshot_bytes = opt->snapshot_bytes,
                                 .kv = opt->kv,
                                 .mtp = opt->plan_mtp && m->hp.n_mtp,
                                 .draft_max = opt->plan_draft_max,
                                 .two_stage_head = opt->two_stage_head && !opt->gpu,
                                 .n_threads = opt->n_threads ? opt->n_threads : rg_cpu_count(),
                                 .pack = from->pack,
                                 .gpu_arena = from->arena,
                                 .io_depth = opt->depth};
    return rg_plan_make(plan, m, &req, st);
}

/* The pack that was named, or the one beside the model. *out is NULL when there is none. */
static rg_code find_pack(rg_pack **out, const rg_gguf *g, const rg_model *m,
                         const rg_engine_options *opt, rg_status *st) {
    *out = NULL;
    if (opt->pack_path && !opt->pack_path[0]) return RG_OK;
    char *beside = NULL;
    rg_code rc = RG_OK;
    if (!opt->pack_path) RG_TRY(rg_pack_default_path(&beside, opt->model_path, st));
    if (opt->pack_path || access(beside, F_OK) == 0) {
        rc = rg_pack_open(out, opt->pack_path ? opt->pack_path : beside, st);
        if (rc == RG_OK) rc = rg_pack_check(*out, g, m, st);
        if (rc != RG_OK && beside) rc = rg_context(st, rc, "remove it or use --pack off");
    }
    rg_free(beside);
    if (rc == RG_OK && *out) rg_log(RG_LOG_INFO, "experts stream from %s", rg_pack_path(*out));
    if (rc == RG_OK) return RG_OK;
    rg_pack_close(*out);
    *out = NULL;
    return rc;
}

/* The plan, and the pack when experts stream: a pack lays them out in slots of its own, a GPU may
 * want memory that they pass. */
static rg_code make_plan(rg_plan *plan, rg_pack **pack, const rg_gguf *g, const rg_model *m,
                         const rg_engine_options *opt, rg_status *st) {
    rg_status why = {0};
    *pack = NULL;
    source from = {0};
    const rg_code rc = plan_with(plan, m, opt, &from, &why);
    if (rc == RG_OK && plan->resident) return RG_OK;
    RG_TRY(find_pack(pack, g, m, opt, st));
    from.pack = *pack;
    if (opt->gpu) from.arena = rg_gpu_arena_likely(opt->gpu_arena, opt->gpu_device, *pack != NULL);
    if (*pack || from.arena != RG_GPU_ARENA_AUTO) return plan_with(plan, m, opt, &from, st);
    if (rc != RG_OK && st && st->code == RG_OK) *st = why;
    return rc;
}

/* "seed=1,eio=2,..." */
static rg_code parse_faults(const char *text, rg_stream_faults *f, uint32_t *poison,
                            rg_status *st) {
    const struct {
        const char *name;
        uint32_t *to;
    } words[] = {{"eio", &f->eio_permille},
                 {"short", &f->short_permille},
                 {"flip", &f->flip_permille},
                 {"stall", &f->stall_permille},
                 {"stall_ms", &f->stall_ms_max},
                 {"burst", &f->eio_burst},
                 {"poison", poison}};
    *f = (rg_stream_faults){.seed = 1, .stall_ms_max = 50};
    for (const char *at = text; *at;) {
        char name[16];
        const size_t len = strspn(at, "abcdefghijklmnopqrstuvwxyz_");
        const char *number = at[len] == '=' ? at + len + 1 : at;
        char *end = NULL;
        const unsigned long long value = strtoull(number, &end, 10);
        if (len == 0 || len >= sizeof name || at[len] != '=' || end == number) {
            return rg_fail(st, RG_INVALID, "faults: \"%s\" is not name=number", at);
        }
        memcpy(name, at, len);
        name[len] = 0;
        bool known = strcmp(name, "seed") == 0;
        if (known) f->seed = value;
        for (size_t i = 0; i < RG_ARRAY_LEN(words); i++) {
            if (strcmp(name, words[i].name) != 0) continue;
            *words[i].to = (uint32_t)value;
            known = true;
        }
        if (!known) return rg_fail(st, RG_INVALID, "faults: unknown name %s", name);
        at = end;
        if (*at == ',') at++;
    }
    return RG_OK;
}

/* The named profile, or the one beside the model; NULL when there is none. `beside` is room. */
static const char *find_profile(const rg_engine_options *opt, char *beside, size_t room) {
    if (opt->profile_path) return strcmp(opt->profile_path, "off") == 0 ? NULL : opt->profile_path;
    const int n = snprintf(beside, room, "%s%s", opt->model_path, RG_PROFILE_SUFFIX);
    if (n < 0 || (size_t)n >= room) return NULL;
    rg_file file;
    if (rg_file_open(&file, beside, NULL) != RG_OK) return NULL;
    rg_file_close(&file);
    return beside;
}

static rg_code attach_drafts(rg_gguf *g, const rg_engine_options *opt, rg_status *st) {
    if (!opt->draft_model_path || opt->no_mtp) return RG_OK;
    return rg_gguf_attach(g, opt->draft_model_path, st);
}

static rg_code open_core(rg_engine *e, const rg_engine_options *opt, rg_status *st) {
    static const rg_stream_backend backends[] = {RG_STREAM_AUTO, RG_STREAM_URING, RG_STREAM_PREAD};
    static const rg_stream_direct directs[] = {RG_DIRECT_AUTO, RG_DIRECT_ON, RG_DIRECT_OFF};
    rg_stream_faults faults;
    uint32_t poison = 0;
    char beside[4096];
    if (opt->faults) RG_TRY(parse_faults(opt->faults, &faults, &poison, st));
    RG_TRY(make_plan(&e->plan, &e->pack, e->vocab.gguf, e->model, opt, st));
    e->planned = (rg_seq_options){.n_ctx = e->plan.n_ctx,
                                  .kv = opt->kv,
                                  .mtp = opt->plan_mtp,
                                  .draft_max = opt->plan_draft_max};
    e->kernels = opt->kernels;
    const int32_t lookahead = opt->lookahead == 0 ? -1 : opt->lookahead < 0 ? 0 : opt->lookahead;
    const rg_core_options core_opt = {.n_threads = opt->n_threads,
                                      .level = e->level,
                                      .kernels = opt->kernels,
                                      .chunk = e->plan.chunk,
                                      .arena_bytes = e->plan.resident ? 0 : e->plan.arena_bytes,
                                      .pack = e->pack,
                                      .split_off = opt->split == RG_OFF,
                                      .spare_cache = opt->ram_bytes > 0,
                                      .lock_memory = opt->lock_memory,
                                      .io = {.backend = backends[opt->io],
                                             .direct = directs[opt->direct],
                                             .depth = opt->depth,
                                             .lookahead = lookahead,
                                             .null_reads = opt->io_null,
                                             .faults = opt->faults ? &faults : NULL,
                                             .poison = poison != 0},
                                      .ple_cache_bytes = e->plan.ngram_cache_bytes,
                                      .ple_resident = e->plan.ngram_resident,
                                      .gpu = opt->gpu,
                                      .gpu_or_cpu = opt->gpu_or_cpu,
                                      .gpu_device = opt->gpu_device,
                                      .gpu_validate = opt->gpu_check,
                                      .gpu_cache_path = opt->gpu_cache_path,
                                      .gpu_arena = opt->gpu_arena,
                                      .mtp_stream_norm = opt->mtp_stream_norm,
                                      .two_stage_head = opt->two_stage_head,
                                      .trace_path = opt->trace_path,
                                      .profile_path = find_profile(opt, beside, sizeof beside),
                                      .profile_found = !opt->profile_path,
                                      .progress = opt->progress,
                                      .progress_user = opt->progress_user};
    const rg_code rc = rg_core_create(&e->core, e->vocab.gguf, e->model, &core_opt, st);
    return rc == RG_OK ? RG_OK : rg_context(st, rc, "%s", opt->model_path);
}

static rg_code open_parts(rg_engine *e, const rg_engine_options *opt, rg_status *st) {
    RG_TRY(rg_cpu_level_pick(&e->level, opt->cpu_level, st));
    RG_TRY(rg_gguf_open(&e->vocab.gguf, opt->model_path, st));
    RG_TRY(attach_drafts(e->vocab.gguf, opt, st));
    const rg_model_options model_opt = {.no_mtp = opt->no_mtp};
    rg_code rc = rg_model_create(&e->model, e->vocab.gguf, &model_opt, st);
    if (rc == RG_OK) rc = rg_tokenizer_create(&e->vocab.tokenizer, e->vocab.gguf, st);
    if (rc != RG_OK) return rg_context(st, rc, "%s", opt->model_path);
    find_template(e, opt->chat_template);
    if (!e->chat && (opt->chat_template || e->chat_status.code == RG_NOMEM)) {
        if (st && st->code == RG_OK) *st = e->chat_status;
        return e->chat_status.code;
    }
    return open_core(e, opt, st);
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
    e->major_faults = rg_major_faults();
    *out = e;
    return RG_OK;
}

void rg_engine_close(rg_engine *e) {
    if (!e) return;
    rg_core_destroy(e->core);
    rg_pack_close(e->pack);
    rg_chat_template_destroy(e->chat);
    rg_tokenizer_destroy(e->vocab.tokenizer);
    rg_model_destroy(e->model);
    rg_gguf_close(e->vocab.gguf);
    rg_free(e);
}

void rg_engine_get_info(const rg_engine *e, rg_engine_info *out) {
    const rg_hparams *hp = &e->model->hp;
    *out = (rg_engine_info){.arch = "qwen4exp",
                            .gpu = rg_core_gpu_name(e->core),
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
                            .budget_bytes = e->plan.budget_bytes,
                            .arena_bytes = e->plan.resident ? 0 : e->plan.arena_bytes,
                            .io_backend = "",
                            .gpu_arena = rg_core_gpu_arena(e->core),
                            .staging_bytes = rg_core_gpu_staging_bytes(e->core),
                            .pack_path = e->pack ? rg_pack_path(e->pack) : "",
                            .expert_bytes = e->plan.slot_bytes,
                            .load_ms = e->load_ms};
    const rg_gguf *g = e->vocab.gguf;
    for (uint32_t i = 0; i < rg_gguf_file_count(g); i++)
        out->file_bytes += rg_gguf_file(g, i)->size_bytes;
    for (size_t i = 0; i < rg_gguf_tensor_count(g); i++) {
        const uint64_t *ne = rg_gguf_tensor_at(g, i)->ne;
        out->n_weight += ne[0] * ne[1] * ne[2] * ne[3];
    }
    const rg_stream *stream = rg_core_stream(e->core);
    if (stream) out->io_backend = rg_stream_backend_name(stream);
}

static rg_code print_plan(const rg_plan *plan, char **text, rg_status *st) {
    *text = NULL;
    rg_buf b;
    rg_buf_init(&b, 0);
    const rg_code rc = rg_plan_print(plan, &b, st);
    if (rc == RG_OK) {
        *text = b.data;
    } else {
        rg_buf_deinit(&b);
    }
    return rc;
}

rg_code rg_engine_print_plan(const rg_engine *e, char **text, rg_status *st) {
    return print_plan(&e->plan, text, st);
}

rg_code rg_plan_for(const rg_engine_options *opt, char **text, rg_status *st) {
    *text = NULL;
    rg_vocab *vocab = NULL;
    rg_model *model = NULL;
    rg_pack *pack = NULL;
    rg_plan plan;
    const rg_model_options model_opt = {.no_mtp = opt->no_mtp};
    rg_code rc = rg_vocab_open(&vocab, opt->model_path, st);
    if (rc == RG_OK) rc = attach_drafts(vocab->gguf, opt, st);
    if (rc == RG_OK) rc = rg_model_create(&model, vocab->gguf, &model_opt, st);
    if (rc == RG_OK) rc = make_plan(&plan, &pack, vocab->gguf, model, opt, st);
    if (rc == RG_OK) rc = print_plan(&plan, text, st);
    rg_pack_close(pack);
    rg_model_destroy(model);
    rg_vocab_close(vocab);
    return rc;
}

static uint64_t sum(const uint64_t *x, size_t n) {
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += x[i];
    return total;
}

void rg_engine_get_meters(const rg_engine *e, rg_engine_meters *out) {
    uint64_t rows_whole = 0, rows_best = 0;
    rg_core_gpu_rows_given(e->core, &rows_whole, &rows_best);
    const rg_core_times t = rg_core_get_times(e->core);
    rg_stream_meters m = {0};
    if (rg_core_stream(e->core)) rg_stream_meters_get(rg_core_stream(e->core), &m);
    rg_ple_meters ple;
    rg_core_ple_meters(e->core, &ple);
    const double wait_ms = (double)(m.wait_ns + t.ple_wait_ns) * 1e-6;
    const double window_ms = (double)t.window_ns * 1e-6;
    *out = (rg_engine_meters){
        .hits = m.hits,
        .misses = m.misses,
        .late = m.late,
        .readahead_useful = sum(m.ahead_useful, RG_STREAM_RANKS) + m.ahead_useful_prefill,
        .readahead_wasted = sum(m.ahead_wasted, RG_STREAM_RANKS) + m.ahead_wasted_prefill,
        .read_bytes = m.read_bytes,
        .wasted_bytes = m.wasted_bytes,
        .copied_bytes = m.copied_bytes,
        .copy_ms = (double)rg_core_gpu_copy_ns(e->core) * 1e-6,
        .drive_gb_s = m.busy_ns ? (double)m.read_bytes / (double)m.busy_ns : 0.0,
        .drive_ms = (double)m.busy_ns * 1e-6,
        .total_ms = e->call_ms,
        .compute_ms = window_ms - wait_ms,
        .wait_ms = wait_ms,
        .host_ms = e->call_ms - window_ms,
        .embed_ms = (double)t.embed_ns * 1e-6,
        .ple_ms = (double)t.ple_ns * 1e-6,
        .ple_wait_ms = (double)t.ple_wait_ns * 1e-6,
        .plan_ms = (double)t.plan_ns * 1e-6,
        .sample_ms = e->host_ms,
        .ngram_rows = ple.wanted,
        .ngram_hits = ple.hits + ple.shared,
        .ngram_reads = ple.reads,
        .ngram_read_bytes = ple.read_bytes,
        .arena_peak_bytes = m.arena_peak_bytes,
        .rss_peak_bytes = rg_rss_peak_bytes(),
        .retries = m.retries,
        .read_errors = m.read_errors,
        .evictions = m.evictions,
        .waves = m.waves,
        .major_faults = rg_major_faults() - e->major_faults,
        .draft_offered = t.draft_offered,
        .draft_accepted = t.draft_accepted,
        .logit_rows_whole = rows_whole,
        .logit_rows_best = rows_best};
}

size_t rg_engine_get_layer_meters(const rg_engine *e, rg_layer_meters *out, size_t cap) {
    uint32_t n = 0;
    const rg_layer_times *t = rg_core_get_layer_times(e->core, &n);
    for (size_t i = 0; i < n && i < cap; i++) {
        out[i] = (rg_layer_meters){.before_router_ns = t[i].before_router_ns,
                                   .phase1_ns = t[i].phase1_ns,
                                   .phase2_ns = t[i].phase2_ns,
                                   .wait_ns = t[i].wait_ns,
                                   .urgent_bytes = t[i].urgent_bytes,
                                   .late_bytes = t[i].late_bytes};
    }
    return n;
}

rg_code rg_engine_time_kernels(rg_engine *e, bool on, rg_status *st) {
    return rg_core_time_kernels(e->core, on, st);
}

size_t rg_engine_get_kernel_meters(const rg_engine *e, rg_kernel_meter *out, size_t cap) {
    rg_kernel_time *t = rg_alloc(cap ? cap : 1, sizeof *t, NULL);
    if (!t) return 0;
    const size_t n = rg_core_kernel_times(e->core, t, cap);
    for (size_t i = 0; i < n && i < cap; i++) {
        const rg_type_info *info = rg_type_get(t[i].type);
        out[i] = (rg_kernel_meter){.part = t[i].part,
                                   .kernel = t[i].kernel,
                                   .type = info ? info->name : "",
                                   .calls = t[i].calls,
                                   .ns = t[i].ns,
                                   .busy_ns = t[i].busy_ns,
                                   .bytes = t[i].bytes,
                                   .ops = t[i].ops,
                                   .beside = t[i].beside};
    }
    rg_free(t);
    return n;
}

typedef struct sweep_call {
    rg_sweep_see *see;
    void *user;
} sweep_call;

static rg_code show_sweep(void *user, const rg_gpu_sweep_row *r, rg_status *st) {
    const sweep_call *call = user;
    const rg_sweep_row row = {.op = r->op,
                              .type = r->type,
                              .n_in = r->n_in,
                              .n_out = r->n_out,
                              .columns = r->columns,
                              .n_out2 = r->n_out2,
                              .fused = r->fused,
                              .coding = r->coding,
                              .group_rows = r->group_rows,
                              .side = r->side,
                              .depth = r->depth,
                              .loop = r->loop,
                              .no_matrix = r->no_matrix,
                              .n_tried = r->n_tried,
                              .usual_us = r->usual_us,
                              .best_us = r->best_us};
    return call->see(call->user, &row, st);
}

rg_code rg_engine_sweep(rg_engine *e, const char *op, rg_sweep_see *see, void *user,
                        rg_status *st) {
    static const char *const ops[] = {"rows", "slots", "tiles", "experts"};
    uint32_t bits = strcmp(op, "all") == 0 ? 15 : 0;
    for (uint32_t i = 0; i < RG_ARRAY_LEN(ops); i++)
        bits |= strcmp(op, ops[i]) == 0 ? 1u << i : 0;
    if (!bits) return rg_fail(st, RG_INVALID, "%s is no kind of product to sweep", op);
    sweep_call call = {.see = see, .user = user};
    return rg_core_gpu_sweep(e->core, bits, see ? show_sweep : NULL, &call, st);
}

const char *rg_engine_sweep_path(const rg_engine *e) {
    return rg_core_gpu_tiles_path(e->core);
}

rg_code rg_engine_drop_caches(rg_engine *e, bool page_cache, rg_status *st) {
    if (rg_core_stream(e->core)) rg_stream_clear(rg_core_stream(e->core));
    if (!page_cache) return RG_OK;
    for (uint32_t i = 0; i < rg_gguf_file_count(e->vocab.gguf); i++) {
        RG_TRY(rg_page_cache_drop(rg_gguf_file_path(e->vocab.gguf, i), st));
    }
    return RG_OK;
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
