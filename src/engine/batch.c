/* Windows over several sequences. */
#include <string.h>

#include "engine/core.h"
#include "engine/gpu_core.h"

static bool wants_last(const rg_batch_rows *p) {
    return p->logits && !p->open;
}

/* How many of the best logits of a row are enough; 0: all are wanted. */
static uint32_t best_of(const rg_batch_rows *p) {
    if (!p->logits && !p->open) return 1; /* nobody looks */
    return p->n_best <= RG_FEW_MAX ? p->n_best : 0;
}

static rg_code check_part(const rg_core *core, const rg_batch_rows *p, const int32_t *ids,
                          rg_status *st) {
    const rg_seq *seq = p->seq;
    if (seq->failed || seq->n_open) {
        return rg_fail(st, RG_INVALID, "a sequence %s",
                       seq->failed ? "failed before and was not reset" : "has an open window");
    }
    if (p->n < 1 || p->n > seq->opt.n_ctx - seq->length) {
        return rg_fail(st, RG_INVALID, "%u tokens do not fit behind %u in a context of %u", p->n,
                       seq->length, seq->opt.n_ctx);
    }
    if (p->open && p->n > rg_verify_rows(seq, p->n)) {
        return rg_fail(st, RG_INVALID,
                       "a window of %u rows behind %u of %u tokens, %u are possible", p->n,
                       seq->length, seq->opt.n_ctx, rg_verify_rows(seq, p->n));
    }
    if (seq->moce && p->n > rg_moce_rows(seq->length, p->n)) {
        return rg_fail(st, RG_INVALID, "%u rows at %u cross a multiple of %u", p->n, seq->length,
                       RG_MOCE_PERIOD);
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
    uint32_t n_open = 0;
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
        RG_ASSERT(!parts[i].n_best || parts[i].best || !wants_last(&parts[i]));
        segs[i] = (rg_segment){.seq = parts[i].seq,
                               .row0 = *T,
                               .n = parts[i].n,
                               .pos0 = parts[i].seq->length,
                               .n_draft = parts[i].open ? parts[i].n - 1 : 0,
                               .open = parts[i].open,
                               .n_best = best_of(&parts[i])};
        *T += parts[i].n;
        n_open += parts[i].open ? parts[i].n : 0;
    }
    if (n_open > RG_OPEN_ROWS_MAX) {
        return rg_fail(st, RG_INVALID, "%u rows wait to be accepted, %u can", n_open,
                       RG_OPEN_ROWS_MAX);
    }
    return RG_OK;
}

static void to_head(rg_core *core, uint32_t at, uint32_t row) {
    const size_t HE = (size_t)core->hp->n_hc * core->hp->n_embd;
    memcpy(core->s.head_rows + at * HE, core->s.residual + row * HE, HE * sizeof(float));
}

/* Rows of the open parts, all of them, behind all other uses of the head. */
static rg_code give_open_logits(rg_core *core, const rg_segment *segs, uint32_t n_seg,
                                const float **logits, rg_status *st) {
    _Static_assert(RG_OPEN_ROWS_MAX == RG_HEAD_ROWS, "they go through the head at once");
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_seg; i++) {
        if (!segs[i].open) continue;
        if (core->gpu) RG_TRY(rg_gpu_head(core, segs[i].row0, segs[i].n, n, segs[i].n_best, st));
        for (uint32_t k = 0; !core->gpu && k < segs[i].n; k++)
            to_head(core, n + k, segs[i].row0 + k);
        n += segs[i].n;
    }
    if (n == 0) return RG_OK;
    if (!core->gpu)
        RG_TRY(rg_core_head(core, &core->w.output_hc, &core->w.output, core->s.head_rows, n, st));
    *logits = core->s.logits;
    return RG_OK;
}

/* How many of p[n], from the first on, have their last rows side by side and want the same kind of
 * logits: they go through the head together. */
static uint32_t neighbours(const rg_batch_rows *p, uint32_t n) {
    const bool best = best_of(p) > 0;
    const uint32_t most = best ? RG_GPU_ROWS_MAX : RG_HEAD_ROWS;
    uint32_t i = 1;
    while (i < n && i < most && wants_last(&p[i]) && p[i].n == 1 && (best_of(&p[i]) > 0) == best)
        i++;
    return i;
}

/* The last rows of p[n], from `row` on. */
static rg_code give_neighbours(rg_core *core, const rg_batch_rows *p, uint32_t n, uint32_t row,
                               rg_status *st) {
    const size_t V = core->hp->n_vocab;
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = best_of(&p[i]) > most ? best_of(&p[i]) : most;
    RG_TRY(rg_gpu_head(core, row, n, 0, most, st));
    for (uint32_t i = 0; i < n; i++) {
        const float *logits = core->s.logits + i * V;
        const rg_few *few = rg_core_few(core, logits);
        if (few) {
            RG_ASSERT(p[i].best);
            *p[i].best = *few;
        } else {
            memcpy(p[i].logits, logits, V * sizeof *logits);
        }
    }
    return RG_OK;
}

/* A device reads its rows where they are. */
static rg_code give_device_logits(rg_core *core, const rg_batch_rows *parts, uint32_t n_part,
                                  const rg_segment *segs, rg_status *st) {
    for (uint32_t i = 0, n = 1; i < n_part; i += n) {
        n = 1;
        if (!wants_last(&parts[i])) continue;
        n = neighbours(parts + i, n_part - i);
        RG_TRY(give_neighbours(core, parts + i, n, segs[i].row0 + segs[i].n - 1, st));
    }
    return RG_OK;
}

/* The last rows of the parts that want logits go through the head together. */
static rg_code give_last_logits(rg_core *core, const rg_batch_rows *parts, uint32_t n_part,
                                const rg_segment *segs, rg_status *st) {
    const size_t V = core->hp->n_vocab;
    float *to[RG_HEAD_ROWS];
    uint32_t n = 0;
    if (core->gpu) return give_device_logits(core, parts, n_part, segs, st);
    for (uint32_t i = 0; i < n_part; i++) {
        if (parts[i].logits && !parts[i].open) {
            to_head(core, n, segs[i].row0 + segs[i].n - 1);
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

/* What the draft blocks of parts that go on without drafts lack, but for one row. */
static rg_code settle_parts(const rg_window *win, rg_status *st) {
    for (uint32_t i = 0; i < win->n_seg; i++) {
        if (!win->segs[i].open) RG_TRY(rg_mtp_settle(win->core, win->segs[i].seq, st));
    }
    return RG_OK;
}

/* Rows that are certain are part of their sequences now; the others wait. */
static void move_on(const rg_window *win) {
    for (uint32_t i = 0; i < win->n_seg; i++) {
        const rg_segment *seg = &win->segs[i];
        rg_seq *seq = seg->seq;
        if (seg->open) {
            seq->n_open = seg->n;
            seq->open_row0 = seg->row0;
            continue;
        }
        if (seq->moce) rg_moce_accept(seq->moce, seg->n);
        memcpy(seq->ids + seg->pos0, win->ids + seg->row0, seg->n * sizeof *win->ids);
        seq->length += seg->n;
    }
}

static bool is_open(const rg_window *win) {
    for (uint32_t i = 0; i < win->n_seg; i++) {
        if (win->segs[i].open) return true;
    }
    return false;
}

/* The cache learns of the window's routes at its end: that of an open one is the accept. */
static rg_code run_batch(const rg_window *win, const rg_batch_rows *parts, const rg_eval_call *call,
                         const float **open_logits, rg_status *st) {
    rg_core *core = win->core;
    const bool open = is_open(win);
    const uint64_t begin = rg_now_ns();
    rg_code rc = settle_parts(win, st);
    rg_journal_begin(core);
    if (rc == RG_OK) rc = rg_window_run(win, call, st);
    rg_ple_abandon(core);
    if (rc == RG_OK) rc = give_last_logits(core, parts, win->n_seg, win->segs, st);
    if (rc == RG_OK) rc = give_open_logits(core, win->segs, win->n_seg, open_logits, st);
    const rg_code ended = rc == RG_OK && open ? RG_OK : rg_experts_touch(core, rc != RG_OK, st);
    RG_TRY(rc);
    RG_TRY(ended);
    move_on(win);
    core->times.window_ns += rg_now_ns() - begin;
    return RG_OK;
}

rg_code rg_core_eval_batch(rg_core *core, const rg_batch_rows *parts, uint32_t n_part,
                           const int32_t *ids, const atomic_bool *cancel, const float **open_logits,
                           rg_status *st) {
    rg_segment segs[RG_BATCH_PARTS_MAX] = {{0}};
    uint32_t T = 0;
    const float *waiting = NULL;
    if (open_logits) *open_logits = NULL;
    RG_TRY(make_segments(core, parts, n_part, ids, segs, &T, st));
    const rg_window win = {.core = core, .segs = segs, .n_seg = n_part, .T = T, .ids = ids};
    const rg_eval_call call = {.cancel = cancel};
    RG_ASSERT(open_logits || !is_open(&win));
    for (uint32_t i = 0; i < n_part; i++) {
        if (parts[i].best) parts[i].best->n = 0;
    }
    const rg_code rc = run_batch(&win, parts, &call, &waiting, st);
    if (open_logits) *open_logits = waiting;
    if (rc != RG_OK) {
        for (uint32_t i = 0; i < n_part; i++)
            parts[i].seq->failed = true;
    }
    core->scratch_due = T > RG_SCRATCH_KEPT_ROWS;
    if (rc != RG_OK || !is_open(&win)) rg_core_trim(core);
    return rc;
}

uint32_t rg_seq_window_rows(const rg_seq *seq, uint32_t n) {
    return seq->moce ? rg_moce_rows(seq->length, n) : n;
}

const uint32_t *rg_core_expert_uses(const rg_core *core) {
    return core->expert_uses;
}
