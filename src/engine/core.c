/* The core: weights, scratch, compute threads; windows of rows through the layers. */
#include "engine/core.h"
#include "engine/gpu_core.h"

#include <math.h>
#include <string.h>

/* ---- creation ------------------------------------------------------------------------------- */

static rg_code make_frequencies(rg_core *core, rg_status *st) {
    const rg_hparams *hp = core->hp;
    core->inv_freq = rg_alloc(hp->n_rot / 2, sizeof *core->inv_freq, st);
    if (!core->inv_freq) return RG_NOMEM;
    for (uint32_t i = 0; i < hp->n_rot / 2; i++) {
        core->inv_freq[i] = pow((double)hp->rope_base, -2.0 * i / hp->n_rot);
    }
    return RG_OK;
}

rg_code rg_take_memory(void **out, size_t bytes, rg_status *st) {
    *out = NULL;
    const uint64_t free_bytes = rg_mem_available_bytes();
    if (free_bytes && bytes > free_bytes) {
        return rg_fail(st, RG_NOMEM, "%zu MiB are needed, %llu MiB of memory are free", bytes >> 20,
                       (unsigned long long)(free_bytes >> 20));
    }
    return rg_mem_map(out, bytes, st);
}

static rg_code make_scratch(rg_core *core, rg_status *st) {
    const rg_scratch_shape shape = {
        .model = core->model, .chunk = core->chunk, .n_threads = rg_pool_threads(core->pool)};
    core->scratch_bytes = rg_scratch_layout(&shape, &core->s, core->threads, NULL);
    const rg_code rc = rg_take_memory(&core->scratch_memory, core->scratch_bytes, st);
    if (rc != RG_OK) return rg_context(st, rc, "scratch for chunks of %u tokens", core->chunk);
    const size_t placed = rg_scratch_layout(&shape, &core->s, core->threads, core->scratch_memory);
    RG_ASSERT(placed == core->scratch_bytes);
    return RG_OK;
}

/* A device that cannot be had is a failure, unless the caller allowed for the CPU. */
static rg_code open_gpu(rg_core *core, rg_status *st) {
    rg_status why = {0};
    const rg_code rc = rg_gpu_core_create(core, &why);
    if (rc == RG_OK) return RG_OK;
    if (!core->opt.gpu_or_cpu) return rg_fail(st, rc, "%s", why.message);
    rg_log(RG_LOG_WARN, "the CPU computes: %s", why.message);
    return RG_OK;
}

rg_code rg_core_create(rg_core **out, const rg_gguf *gguf, const rg_model *model,
                       const rg_core_options *opt, rg_status *st) {
    *out = NULL;
    if (opt->chunk > RG_CHUNK_MAX) {
        return rg_fail(st, RG_INVALID, "chunks of %u tokens are wanted, %u are possible",
                       opt->chunk, RG_CHUNK_MAX);
    }
    rg_code rc = RG_OK;
    rg_core *core = rg_alloc(1, sizeof *core, st);
    if (!core) return RG_NOMEM;
    core->gguf = gguf;
    core->model = model;
    core->hp = &model->hp;
    core->ops = rg_ops_get(opt->level);
    core->opt = *opt;
    rg_governor_memory_init(&core->drafts);
    core->chunk = opt->chunk ? opt->chunk : RG_CHUNK_DEFAULT;
    const int n_threads = opt->n_threads ? opt->n_threads : rg_cpu_count();
    RG_GO(rg_pool_create(&core->pool, n_threads, st));
    RG_GO(make_frequencies(core, st));
    core->layer_times =
        rg_alloc(core->hp->n_layer + core->hp->n_mtp, sizeof *core->layer_times, st);
    if (!core->layer_times) RG_GO(RG_NOMEM);
    core->expert_uses = rg_alloc((size_t)(core->hp->n_layer + core->hp->n_mtp) * core->hp->n_expert,
                                 sizeof *core->expert_uses, st);
    if (!core->expert_uses) RG_GO(RG_NOMEM);
    RG_GO(rg_weights_load(core, st));
    rg_hc_link(core);
    RG_GO(make_scratch(core, st));
    RG_GO(rg_ple_open(core, st));
    if (opt->gpu) RG_GO(open_gpu(core, st));
    if (opt->arena_bytes) RG_GO(rg_experts_open(core, st));
    RG_GO(rg_experts_start(core, st));
    if (opt->two_stage_head && !core->gpu) {
        RG_GO(rg_two_stage_create(&core->two_stage, core, &core->w.output, st));
    }
    if (opt->lock_memory && !core->gpu)
        RG_GO(rg_mem_lock(core->w.memory, core->w.memory_bytes, st));
    *out = core;
    return RG_OK;
cleanup:
    rg_core_destroy(core);
    return rc;
}

void rg_core_destroy(rg_core *core) {
    if (!core) return;
    rg_experts_close(core);
    rg_gpu_core_destroy(core->gpu);
    rg_ple_reader_destroy(core->ple);
    rg_pool_destroy(core->pool);
    rg_two_stage_destroy(core->two_stage);
    rg_weights_unload(&core->w);
    rg_mem_unmap(core->scratch_memory, core->scratch_bytes);
    rg_timing_destroy(core->timing);
    rg_free(core->inv_freq);
    rg_free(core->layer_times);
    rg_free(core->expert_uses);
    rg_importance_destroy(core->importance);
    rg_free(core->mats);
    rg_free(core);
}

void rg_core_want_few(rg_core *core, uint32_t n) {
    core->n_few = n;
}

rg_two_stage *rg_core_two_stage(const rg_core *core) {
    return core->two_stage;
}

int rg_core_threads(const rg_core *core) {
    return rg_pool_threads(core->pool);
}
uint32_t rg_core_chunk(const rg_core *core) {
    return core->chunk;
}
uint64_t rg_core_weight_bytes(const rg_core *core) {
    return core->w.memory_bytes;
}
uint64_t rg_core_scratch_bytes(const rg_core *core) {
    return core->scratch_bytes;
}

rg_core_times rg_core_get_times(const rg_core *core) {
    return core->times;
}

void rg_core_ple_meters(const rg_core *core, rg_ple_meters *out) {
    *out = (rg_ple_meters){0};
    if (core->ple) rg_ple_reader_meters_get(core->ple, out);
}

const rg_layer_times *rg_core_get_layer_times(const rg_core *core, uint32_t *n_layer) {
    *n_layer = core->hp->n_layer + core->hp->n_mtp;
    return core->layer_times;
}

rg_code rg_core_time_kernels(rg_core *core, bool on, rg_status *st) {
    if (core->gpu) {
        rg_gpu_time_kernels(core->gpu, on);
        return RG_OK;
    }
    rg_timing_destroy(core->timing);
    core->timing = NULL;
    return on ? rg_timing_create(&core->timing, rg_pool_threads(core->pool), st) : RG_OK;
}

rg_stream *rg_core_stream(const rg_core *core) {
    return core->stream;
}

void rg_core_set_tap(rg_core *core, const rg_tap *tap) {
    core->tap = tap ? *tap : (rg_tap){0};
}

rg_code rg_core_collect_importance(rg_core *core, rg_status *st) {
    if (core->importance) return RG_OK;
    return rg_importance_create(&core->importance, core->mats, core->n_mat, st);
}

const rg_importance *rg_core_importance(const rg_core *core) {
    return core->importance;
}

/* ---- window --------------------------------------------------------------------------------- */

rg_code rg_window_tap(const rg_window *win, const char *name, uint32_t layer, uint32_t cols,
                      const float *data, rg_status *st) {
    for (uint32_t i = 0; i < win->n_seg; i++) {
        const rg_segment *seg = &win->segs[i];
        RG_TRY(win->core->tap.see(win->core->tap.user, name, layer, seg->pos0, seg->n, cols,
                                  data + (size_t)seg->row0 * cols, st));
    }
    return RG_OK;
}

static void rope_rows(void *arg, size_t begin, size_t end, int thread) {
    const rg_window *win = arg;
    const uint32_t n_rot = win->core->hp->n_rot;
    (void)thread;
    for (uint32_t s = 0; s < win->n_seg; s++) {
        const rg_segment *seg = &win->segs[s];
        for (uint32_t i = 0; i < seg->n; i++) {
            const size_t row = seg->row0 + i;
            if (row < begin || row >= end) continue;
            rg_rope_table(win->core->s.rope + row * n_rot, win->core->inv_freq, n_rot / 2,
                          seg->pos0 + i);
        }
    }
}

void rg_window_rope(const rg_window *win) {
    rg_window copy = *win;
    rg_core_run(win->core, RG_KERNEL_ROPE, win->T, 1, rope_rows, &copy);
}

/* Every stream starts as the token's embedding. */
static void embed_rows(void *arg, size_t begin, size_t end, int thread) {
    const rg_window *win = arg;
    const rg_core *core = win->core;
    const rg_mat *m = &core->w.token_embd;
    const size_t E = core->hp->n_embd, H = core->hp->n_hc;
    (void)thread;
    for (size_t t = begin; t < end; t++) {
        float *row = core->s.residual + t * H * E;
        rg_unpack_row(m->type, m->data + (size_t)win->ids[t] * m->row_bytes, row, E);
        for (size_t s = 1; s < H; s++)
            memcpy(row + s * E, row, E * sizeof *row);
    }
}

static rg_code tap_half(const rg_window *win, uint32_t layer, bool ffn, rg_status *st) {
    const rg_scratch *s = &win->core->s;
    const rg_hparams *hp = win->core->hp;
    if (!rg_tapped(win->core)) return RG_OK;
    RG_TRY(rg_window_tap(win, ffn ? "mixed_ffn" : "mixed_attn", layer, hp->n_embd, s->u, st));
    return rg_window_tap(win, ffn ? "inject_ffn" : "inject_attn", layer, hp->n_hc, s->inject, st);
}

static rg_code tap_layer(const rg_window *win, uint32_t layer, rg_status *st) {
    const rg_core *core = win->core;
    const rg_hparams *hp = core->hp;
    if (!rg_tapped(core)) return RG_OK;
    RG_TRY(rg_window_tap(win, "residual", layer, hp->n_hc * hp->n_embd, core->s.residual, st));
    if (core->w.layers[layer].is_attn) return RG_OK;
    const uint32_t D = hp->ssm_head_dim;
    for (uint32_t i = 0; i < win->n_seg; i++) {
        RG_TRY(core->tap.see(core->tap.user, "gdn_state", layer, 0, hp->n_v_head * D, D,
                             win->segs[i].seq->layers[layer].S, st));
    }
    return RG_OK;
}

static rg_code run_layer(const rg_window *win, uint32_t layer, rg_status *st) {
    rg_core *core = win->core;
    const rg_layer_weights *w = &core->w.layers[layer];
    float *residual = core->s.residual;
    if (w->has_ple) RG_TRY(rg_layer_ple(win, layer, st));
    RG_TRY(rg_hc_read(core, &w->hc_attn, residual, win->T, layer,
                      w->is_attn ? "attention" : "delta net", st));
    RG_TRY(tap_half(win, layer, false, st));
    if (w->is_attn) {
        RG_TRY(rg_layer_attn(win, &w->attn, layer, st));
    } else {
        rg_layer_gdn(win, layer);
    }
    rg_hc_write(core, residual, win->T);
    RG_TRY(rg_hc_read(core, &w->hc_ffn, residual, win->T, layer, "experts", st));
    RG_TRY(tap_half(win, layer, true, st));
    RG_TRY(rg_layer_moe(win, &w->moe, layer, st));
    rg_hc_write(core, residual, win->T);
    return tap_layer(win, layer, st);
}

/* Evaluation allocates nothing. Callbacks of the caller may: they run outside the guard. A tap and
 * a trace grow their buffers. */
static void guard(const rg_core *core, bool on) {
    if (rg_tapped(core) || core->trace || core->gpu) return; /* drivers allocate as they like */
    if (on) {
        rg_alloc_guard_enter();
    } else {
        rg_alloc_guard_leave();
    }
}

/* Layers done count as their share of the window's tokens: one window of a large model takes long
 * enough to want a sign of life. */
static void show_progress(const rg_window *win, const rg_eval_call *call, uint32_t layers) {
    const rg_core_options *opt = &win->core->opt;
    if (!opt->progress || call->total < 2) return;
    const uint64_t part = (uint64_t)win->T * layers / win->core->hp->n_layer;
    opt->progress(opt->progress_user, "prefill", call->done + part, call->total);
}

/* The draft blocks behind the rows that are certain. */
static rg_code follow(const rg_window *win, rg_status *st) {
    for (uint32_t i = 0; i < win->n_seg; i++) {
        if (!win->segs[i].seq->opt.mtp || win->segs[i].open) continue;
        guard(win->core, true);
        const rg_code rc = rg_mtp_follow(win, st);
        guard(win->core, false);
        return rc;
    }
    return RG_OK;
}

rg_code rg_window_run(const rg_window *win, const rg_eval_call *call, rg_status *st) {
    rg_core *core = win->core;
    if (core->gpu) {
        RG_TRY(rg_gpu_window_run(win, call, st));
        return follow(win, st);
    }
    rg_window rows = *win;
    core->due = (rg_due){0}; /* of a window that broke off */
    rg_timing_window(core->timing);
    RG_TRY(rg_ple_request(win, st));
    const uint64_t begin = rg_now_ns();
    for (uint32_t i = 0; i < win->n_seg; i++) {
        const rg_segment *seg = &win->segs[i];
        if (seg->seq->moce) rg_moce_begin(seg->seq->moce, seg->pos0, seg->n);
        RG_ASSERT(seg->n_draft < seg->n);
    }
    rg_timing_part(core->timing, RG_PART_EMBED);
    rg_core_run(core, RG_KERNEL_UNPACK, win->T, 1, embed_rows, &rows);
    rg_window_rope(win);
    core->lap_ns = rg_now_ns();
    core->times.embed_ns += core->lap_ns - begin;
    for (uint32_t i = 0; i < core->hp->n_layer; i++) {
        if (call->cancel && atomic_load_explicit(call->cancel, memory_order_relaxed)) {
            return rg_fail(st, RG_CANCELED, "canceled at layer %u", i);
        }
        guard(core, true);
        const rg_code rc = run_layer(win, i, st);
        guard(core, false);
        RG_TRY(rc);
        if (i + 1 < core->hp->n_layer) show_progress(win, call, i + 1);
    }
    rg_hc_settle(core);
    for (uint32_t i = 0; i < win->n_seg; i++)
        win->segs[i].seq->n_owed = 0;
    return follow(win, st);
}

/* ---- head ----------------------------------------------------------------------------------- */

rg_code rg_core_head(rg_core *core, const rg_hc_weights *hc, const rg_mat *output,
                     const float *residual, uint32_t n, rg_status *st) {
    RG_ASSERT(n >= 1 && n <= RG_HEAD_ROWS);
    const rg_hparams *hp = core->hp;
    RG_TRY(rg_hc_read(core, hc, residual, n, hp->n_layer, "final mixer", st));
    rg_timing_part(core->timing, RG_PART_HEAD);
    rg_input in;
    rg_input_mixed(core, &in, n);
    if (core->two_stage && core->n_few == 1 && n == 1 && output == &core->w.output &&
        !core->importance) {
        const rg_act act = rg_input_as(core, &in, output->type);
        if (rg_two_stage_run(core->two_stage, core, core->s.u, &act, core->s.logits)) return RG_OK;
    }
    rg_core_mul(core, &in, &(rg_product){output, core->s.logits}, 1);
    const uint64_t begin = rg_timing_begin(core->timing);
    for (size_t i = 0; i < (size_t)n * hp->n_vocab; i++) {
        if (isfinite(core->s.logits[i])) continue;
        return rg_fail(st, RG_FORMAT,
                       "logit %zu is not finite behind layer %u: the output weights are damaged",
                       i % hp->n_vocab, hp->n_layer - 1);
    }
    rg_timing_end(core->timing, RG_KERNEL_CHECK, begin);
    return RG_OK;
}

/* Logits of rows [row, T) of one segment's window to the sink. */
static rg_code give_logits(rg_core *core, const rg_segment *seg, uint32_t row,
                           const rg_logits_sink *sink, rg_status *st) {
    const rg_hparams *hp = core->hp;
    const size_t HE = (size_t)hp->n_hc * hp->n_embd;
    while (row < seg->n) {
        const uint32_t n = seg->n - row < RG_HEAD_ROWS ? seg->n - row : RG_HEAD_ROWS;
        guard(core, true);
        const rg_code rc = core->gpu
                               ? rg_gpu_head(core, seg->row0 + row, n, 0, seg->n_best, st)
                               : rg_core_head(core, &core->w.output_hc, &core->w.output,
                                              core->s.residual + (seg->row0 + row) * HE, n, st);
        guard(core, false);
        RG_TRY(rc);
        for (uint32_t i = 0; i < n; i++) {
            RG_TRY(sink->row(sink->user, seg->pos0 + row + i,
                             core->s.logits + (size_t)i * hp->n_vocab, st));
        }
        row += n;
    }
    return RG_OK;
}

static void release_scratch(rg_core *core) {
    rg_mem_release(core->scratch_memory, core->scratch_bytes);
    if (core->gpu) rg_gpu_forget_rows(core->gpu);
}

void rg_core_trim(rg_core *core) {
    if (core->scratch_due) release_scratch(core);
    core->scratch_due = false;
}

/* ---- eval ----------------------------------------------------------------------------------- */

static rg_code check_request(const rg_core *core, const rg_seq *seq, const int32_t *ids, uint32_t n,
                             rg_status *st) {
    if (seq->failed) {
        return rg_fail(st, RG_INVALID, "the sequence failed before and was not reset");
    }
    if (n > seq->opt.n_ctx - seq->length) {
        return rg_fail(st, RG_INVALID, "%u tokens do not fit behind %u in a context of %u", n,
                       seq->length, seq->opt.n_ctx);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= core->hp->n_vocab) {
            return rg_fail(st, RG_INVALID, "token id %d at %u lies outside the vocabulary of %u",
                           ids[i], i, core->hp->n_vocab);
        }
    }
    return RG_OK;
}

static rg_code eval_window(rg_core *core, rg_seq *seq, const int32_t *ids, uint32_t T,
                           uint32_t first_logits, const rg_logits_sink *sink,
                           const rg_eval_call *call, rg_status *st) {
    const rg_segment seg = {.seq = seq, .n = T, .pos0 = seq->length, .n_best = core->n_few};
    const rg_window win = {.core = core, .segs = &seg, .n_seg = 1, .T = T, .ids = ids};
    const uint64_t begin = rg_now_ns();
    const rg_code rc = rg_window_run(&win, call, st);
    rg_ple_abandon(core);
    const rg_code ended = rg_experts_touch(core, rc != RG_OK, st);
    RG_TRY(rc);
    RG_TRY(ended);
    if (seq->moce) rg_moce_accept(seq->moce, T);
    memcpy(seq->ids + seq->length, ids, T * sizeof *ids);
    RG_TRY(give_logits(core, &seg, first_logits, sink, st));
    core->times.window_ns += rg_now_ns() - begin;
    seq->length += T;
    return RG_OK;
}

rg_code rg_core_eval(rg_core *core, rg_seq *seq, const int32_t *ids, uint32_t n, uint32_t chunk,
                     rg_want want, const rg_logits_sink *sink, const atomic_bool *cancel,
                     rg_status *st) {
    RG_TRY(check_request(core, seq, ids, n, st));
    if (seq->n_pending > 1 && rg_mtp_settle(core, seq, st) != RG_OK) {
        seq->failed = true;
        return st ? st->code : RG_IO;
    }
    if (chunk == 0 || chunk > core->chunk) chunk = core->chunk;
    const rg_core_options *opt = &core->opt;
    rg_eval_call call = {.cancel = cancel, .total = n};
    while (call.done < n) {
        uint32_t T = n - call.done < chunk ? n - call.done : chunk;
        if (seq->moce) T = rg_moce_rows(seq->length, T);
        uint32_t first = want == RG_WANT_ALL ? 0 : T;
        if (want == RG_WANT_LAST && call.done + T == n) first = T - 1;
        const rg_code rc = eval_window(core, seq, ids + call.done, T, first, sink, &call, st);
        if (rc != RG_OK) {
            seq->failed = true;
            return rc;
        }
        call.done += T;
        /* Prefill gives its scratch back; a decode window touches a few pages of it again. */
        if (call.done == n && T > RG_SCRATCH_KEPT_ROWS) {
            release_scratch(core);
        }
        if (opt->progress && n > 1) opt->progress(opt->progress_user, "prefill", call.done, n);
    }
    return RG_OK;
}
