/* Windows over several sequences. */
#include <string.h>

#include "engine/core.h"

static rg_code check_part(const rg_core *core, const rg_batch_rows *p, const int32_t *ids,
                          rg_status *st) {
    const rg_seq *seq = p->seq;
    if (seq->failed) return rg_fail(st, RG_INVALID, "a sequence failed before and was not reset");
    if (seq->moce) {
        return rg_fail(st, RG_UNSUPPORTED, "cache-aware routing does not share windows");
    }
    if (seq->opt.draft_max) return rg_fail(st, RG_UNSUPPORTED, "drafts do not share windows");
    if (p->n < 1 || p->n > seq->opt.n_ctx - seq->length) {
        return rg_fail(st, RG_INVALID, "%u tokens do not fit behind %u in a context of %u", p->n,
                       seq->length, seq->opt.n_ctx);
    }
    for (uint32_t i = 0; i < p->n; i++) {
        if (ids[i] >= 0 && (uint32_t)ids[i] < core->hp->n_vocab) continue;
        return rg_fail(st, RG_INVALID, "token id %d at %u lies outside the vocabulary of %u",
                       ids[i], i, core->hp->n_vocab);
    }
    return RG_OK;
}

/* Segments of the parts; *T gets the rows of all. */
static rg_code make_segments(const rg_core *core, const rg_batch_rows *parts, uint32_t n_part,
                             const int32_t *ids, rg_segment *segs, uint32_t *T, rg_status *st) {
    *T = 0;
    if (n_part < 1 || n_part > RG_BATCH_PARTS_MAX) {
        return rg_fail(st, RG_INVALID, "%u sequences for one window, 1..%u are possible", n_part,
                       RG_BATCH_PARTS_MAX);
    }
    for (uint32_t i = 0; i < n_part; i++) {
        for (uint32_t k = 0; k < i; k++) {
            if (parts[k].seq == parts[i].seq) {
                return rg_fail(st, RG_INVALID, "a sequence is in the window twice");
            }
        }
        if (parts[i].n > core->chunk || *T + parts[i].n > core->chunk) {
            return rg_fail(st, RG_INVALID, "more rows for one window than its %u", core->chunk);
        }
        RG_TRY(check_part(core, &parts[i], ids + *T, st));
        segs[i] = (rg_segment){
            .seq = parts[i].seq, .row0 = *T, .n = parts[i].n, .pos0 = parts[i].seq->length};
        *T += parts[i].n;
    }
    return RG_OK;
}

/* The last rows of the parts that want logits go through the head together. */
static rg_code give_last_logits(rg_core *core, const rg_batch_rows *parts, uint32_t n_part,
                                const rg_segment *segs, rg_status *st) {
    const size_t HE = (size_t)core->hp->n_hc * core->hp->n_embd;
    const size_t V = core->hp->n_vocab;
    float *to[RG_HEAD_ROWS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_part; i++) {
        if (parts[i].logits) {
            memcpy(core->s.head_rows + n * HE,
                   core->s.residual + (size_t)(segs[i].row0 + segs[i].n - 1) * HE,
                   HE * sizeof(float));
            to[n++] = parts[i].logits;
        }
        if (n == 0 || (n < RG_HEAD_ROWS && i + 1 < n_part)) continue;
        RG_TRY(rg_core_head(core, &core->w.output_hc, &core->w.output, core->s.head_rows, n, st));
        for (uint32_t k = 0; k < n; k++)
            memcpy(to[k], core->s.logits + k * V, V * sizeof(float));
        n = 0;
    }
    return RG_OK;
}

static rg_code run_batch(const rg_window *win, const rg_batch_rows *parts, const rg_eval_call *call,
                         rg_status *st) {
    rg_core *core = win->core;
    const uint64_t begin = rg_now_ns();
    const rg_code rc = rg_window_run(win, call, st);
    rg_ple_abandon(core);
    const rg_code ended = rg_experts_touch(core, rc != RG_OK, st);
    RG_TRY(rc);
    RG_TRY(ended);
    RG_TRY(give_last_logits(core, parts, win->n_seg, win->segs, st));
    for (uint32_t i = 0; i < win->n_seg; i++) {
        const rg_segment *seg = &win->segs[i];
        memcpy(seg->seq->ids + seg->pos0, win->ids + seg->row0, seg->n * sizeof *win->ids);
        seg->seq->length += seg->n;
    }
    core->times.window_ns += rg_now_ns() - begin;
    return RG_OK;
}

rg_code rg_core_eval_batch(rg_core *core, const rg_batch_rows *parts, uint32_t n_part,
                           const int32_t *ids, const atomic_bool *cancel, rg_status *st) {
    rg_segment segs[RG_BATCH_PARTS_MAX];
    uint32_t T = 0;
    RG_TRY(make_segments(core, parts, n_part, ids, segs, &T, st));
    const rg_window win = {.core = core, .segs = segs, .n_seg = n_part, .T = T, .ids = ids};
    const rg_eval_call call = {.cancel = cancel};
    const rg_code rc = run_batch(&win, parts, &call, st);
    if (rc != RG_OK) {
        for (uint32_t i = 0; i < n_part; i++)
            parts[i].seq->failed = true;
    }
    if (T > RG_SCRATCH_KEPT_ROWS) rg_mem_release(core->scratch_memory, core->scratch_bytes);
    return rc;
}

const uint32_t *rg_core_expert_uses(const rg_core *core) {
    return core->expert_uses;
}
