/* Verification windows, and the journal from which accepted drafts reach the state.
 *
 * What a window of firm rows and drafts does to each piece of state:
 *     KV, raw index keys, block keys, n-gram context: written by position, read up to the length;
 *         a block key is made again when its block is complete
 *     convolution histories (delta net, n-gram layer): the firm rows are pushed; the drafts' inputs
 *         go to the journal, and the accept pushes the right ones
 *     delta net states S: the firm rows run in place; the drafts run on a copy of one head at a
 *         time that never leaves a core's cache; their q, k, v, decay and beta go to the journal.
 *         The next window replays the accepted ones head by head, just before its own rows, when
 *         the head's state comes into the cache anyway
 *     draft block: its rows are fed when the accepted rows are known
 *     sampler, stop strings: see accepted tokens only
 *     recency of experts: routes of accepted rows
 *
 * The other ways, a copy of all states before a window or a second pass over them behind it, move
 * the whole state through memory once or twice more; the replay costs arithmetic on data that is in
 * the cache (bench/results.tsv, spec-rollback).
 */
#include <string.h>

#include "engine/core.h"
#include "engine/gpu_core.h"

/* ---- histories and states ------------------------------------------------------------------- */

void rg_history_push(float *history, uint32_t keep, size_t width, const float *rows, uint32_t n) {
    if (n >= keep) {
        memcpy(history, rows + (n - keep) * width, keep * width * sizeof *history);
        return;
    }
    memmove(history, history + n * width, (keep - n) * width * sizeof *history);
    memcpy(history + (keep - n) * width, rows, n * width * sizeof *history);
}

void rg_journal_keep_gdn(const rg_core *core, const rg_segment *seg, rg_layer_state *l) {
    const rg_hparams *hp = core->hp;
    const size_t channels = rg_gdn_channels(hp), Hv = hp->n_v_head;
    const size_t row = seg->row0 + seg->n - seg->n_draft, n = seg->n_draft;
    RG_ASSERT(n <= seg->seq->opt.draft_max);
    memcpy(l->draft_qkv, core->s.qkv + row * channels, n * channels * sizeof(float));
    memcpy(l->draft_conv, core->s.conv + row * channels, n * channels * sizeof(float));
    memcpy(l->draft_decay, core->s.decay + row * Hv, n * Hv * sizeof(float));
    memcpy(l->draft_beta, core->s.beta + row * Hv, n * Hv * sizeof(float));
}

void rg_journal_keep_ple(const rg_core *core, const rg_segment *seg, rg_layer_state *l) {
    const size_t HE = (size_t)core->hp->n_hc * core->hp->n_embd;
    const size_t row = seg->row0 + seg->n - seg->n_draft;
    RG_ASSERT(seg->n_draft <= seg->seq->opt.draft_max);
    memcpy(l->draft_ple, core->s.ple_normed + row * HE, seg->n_draft * HE * sizeof(float));
}

/* Any query will do: the output is not used and goes to one scratch row. */
void rg_journal_replay_head(const rg_seq *seq, const rg_layer_state *l, size_t h, int thread) {
    const rg_core *core = seq->core;
    const rg_hparams *hp = core->hp;
    const size_t D = hp->ssm_head_dim, Hk = hp->n_k_head, n = rg_gdn_channels(hp);
    const float *k = l->draft_conv + (Hk + h % Hk) * D, *v = l->draft_conv + (2 * Hk + h) * D;
    float *unused = core->threads[thread].state + D * D;
    core->ops->gdn_steps(l->S + h * D * D, hp->ssm_head_dim, k, k, n, v, n, l->draft_decay + h,
                         l->draft_beta + h, hp->n_v_head, unused, 0, seq->n_owed);
}

static void replay_heads(void *arg, size_t begin, size_t end, int thread) {
    const rg_seq *seq = arg;
    const size_t Hv = seq->core->hp->n_v_head;
    for (size_t i = begin; i < end; i++) { /* one head of one layer */
        const rg_layer_state *l = &seq->layers[i / Hv];
        if (l->S) rg_journal_replay_head(seq, l, i % Hv, thread);
    }
}

void rg_seq_settle(rg_seq *seq) {
    const rg_hparams *hp = seq->core->hp;
    RG_ASSERT(!seq->gpu);
    if (!seq->n_owed) return;
    rg_pool_run(seq->core->pool, (size_t)hp->n_layer * hp->n_v_head, 1, replay_heads, seq);
    seq->n_owed = 0;
}

/* The accepted drafts enter the histories now and the states with the next window; on a device both
 * with the next window. */
static void accept_drafts(rg_seq *seq, uint32_t n) {
    const rg_hparams *hp = seq->core->hp;
    const size_t HE = (size_t)hp->n_hc * hp->n_embd, channels = rg_gdn_channels(hp);
    for (uint32_t i = 0; i < hp->n_layer && n && !seq->gpu; i++) {
        rg_layer_state *l = &seq->layers[i];
        if (l->conv) rg_history_push(l->conv, hp->ssm_conv - 1, channels, l->draft_qkv, n);
        if (l->ple_conv) {
            rg_history_push(l->ple_conv, (hp->ple_conv - 1) * hp->ple_ngram, HE, l->draft_ple, n);
        }
    }
    seq->n_owed = n;
}

/* ---- windows -------------------------------------------------------------------------------- */

void rg_journal_begin(rg_core *core) {
    if (core->stream && core->hp->n_mtp) core->route_rows[core->hp->n_layer] = 0;
}

uint32_t rg_verify_rows(const rg_seq *seq, uint32_t n) {
    const uint32_t left = seq->opt.n_ctx - seq->length;
    if (n > seq->opt.draft_max + 1) n = seq->opt.draft_max + 1;
    if (n > left) n = left;
    if (n > seq->core->chunk) n = seq->core->chunk;
    return seq->moce ? rg_moce_rows(seq->length, n) : n;
}

static rg_code check_part(const rg_core *core, const rg_verify *p, rg_status *st) {
    if (p->seq->failed || p->seq->n_open) {
        return rg_fail(st, RG_INVALID, "the sequence %s",
                       p->seq->failed ? "failed before and was not reset" : "has an open window");
    }
    if (p->n < 1 || p->n > rg_verify_rows(p->seq, p->n)) {
        return rg_fail(st, RG_INVALID,
                       "a window of %u rows behind %u of %u tokens, %u are possible", p->n,
                       p->seq->length, p->seq->opt.n_ctx, rg_verify_rows(p->seq, p->n));
    }
    for (uint32_t i = 0; i < p->n; i++) {
        if (p->ids[i] >= 0 && (uint32_t)p->ids[i] < core->hp->n_vocab) continue;
        return rg_fail(st, RG_INVALID, "token id %d at %u lies outside the vocabulary of %u",
                       p->ids[i], i, core->hp->n_vocab);
    }
    return RG_OK;
}

/* Fills segments and the window's ids. */
static rg_code make_window(rg_window *win, rg_segment *segs, int32_t *ids, const rg_verify *parts,
                           uint32_t n_part, rg_status *st) {
    const rg_core *core = win->core;
    for (uint32_t i = 0; i < n_part; i++) {
        const rg_verify *p = &parts[i];
        RG_TRY(check_part(core, p, st));
        if (i >= RG_SEGMENTS_MAX || win->T + p->n > RG_HEAD_ROWS || win->T + p->n > core->chunk) {
            return rg_fail(st, RG_INVALID, "a window of more than %u rows",
                           core->chunk < RG_HEAD_ROWS ? core->chunk : RG_HEAD_ROWS);
        }
        segs[i] = (rg_segment){.seq = p->seq,
                               .row0 = win->T,
                               .n = p->n,
                               .pos0 = p->seq->length,
                               .n_draft = p->n - 1,
                               .open = true,
                               .n_best = core->n_few};
        memcpy(ids + win->T, p->ids, p->n * sizeof *ids);
        win->T += p->n;
    }
    win->n_seg = n_part;
    return RG_OK;
}

static rg_code fail_parts(rg_core *core, const rg_verify *parts, uint32_t n_part, rg_code rc) {
    rg_status ignored = {0};
    for (uint32_t i = 0; i < n_part; i++)
        parts[i].seq->failed = true;
    if (rg_experts_touch(core, true, &ignored) != RG_OK) {
        rg_log(RG_LOG_WARN, "behind a failed window: %s", ignored.message);
    }
    return rc;
}

static rg_code head(rg_core *core, uint32_t rows, rg_status *st) {
    if (core->gpu)
        return rg_gpu_head(core, 0, rows, 0, core->n_few, st); /* drivers allocate as they like */
    rg_alloc_guard_enter();
    const rg_code rc =
        rg_core_head(core, &core->w.output_hc, &core->w.output, core->s.residual, rows, st);
    rg_alloc_guard_leave();
    return rc;
}

rg_code rg_core_verify(rg_core *core, const rg_verify *parts, uint32_t n_part,
                       const atomic_bool *cancel, const float **logits, rg_status *st) {
    rg_segment segs[RG_SEGMENTS_MAX];
    int32_t ids[RG_HEAD_ROWS];
    rg_window win = {.core = core, .segs = segs, .ids = ids};
    const rg_eval_call call = {.cancel = cancel, .total = 1};
    *logits = NULL;
    RG_TRY(make_window(&win, segs, ids, parts, n_part, st));
    const uint64_t begin = rg_now_ns();
    rg_journal_begin(core);
    rg_code rc = rg_window_run(&win, &call, st);
    rg_ple_abandon(core);
    if (rc == RG_OK) rc = head(core, win.T, st);
    if (rc != RG_OK) return fail_parts(core, parts, n_part, rc);
    for (uint32_t i = 0; i < n_part; i++) {
        parts[i].seq->n_open = parts[i].n;
        parts[i].seq->open_row0 = segs[i].row0;
    }
    core->times.window_ns += rg_now_ns() - begin;
    *logits = core->s.logits;
    return RG_OK;
}

/* ---- accepting ------------------------------------------------------------------------------ */

/* Routes of rows [from, to) move behind the first `at`; returns where they end. */
static uint32_t move_routes(uint32_t *routes, uint32_t K, uint32_t at, uint32_t from, uint32_t to) {
    if (at != from) {
        memmove(routes + (size_t)at * K, routes + (size_t)from * K,
                (size_t)(to - from) * K * sizeof *routes);
    }
    return at + to - from;
}

/* Routes of the accepted rows move together: the others never happened. Rows of sequences that were
 * not open are all kept. */
static void keep_routes(rg_core *core, const rg_verify *parts, uint32_t n_part) {
    const uint32_t K = core->hp->n_expert_used, n_layer = core->hp->n_layer;
    const size_t pairs = (size_t)core->chunk * K;
    for (uint32_t g = 0; g < n_layer; g++) {
        uint32_t *routes = core->routes + g * pairs, from = 0, to = 0;
        for (uint32_t i = 0; i < n_part; i++) {
            const uint32_t row0 = parts[i].seq->open_row0;
            RG_ASSERT(row0 >= from);
            to = move_routes(routes, K, to, from, row0 + parts[i].n_kept);
            from = row0 + parts[i].n;
        }
        core->route_rows[g] = move_routes(routes, K, to, from, core->route_rows[g]);
    }
    if (!core->hp->n_mtp) return;
    /* The draft block: what it did since the last window, for rows whose token is right, behind
     * those with which it followed the window. */
    uint32_t *routes = core->routes + n_layer * pairs, n = core->route_rows[n_layer];
    for (uint32_t i = 0; i < n_part; i++) {
        rg_seq *seq = parts[i].seq;
        const uint32_t chained = parts[i].n_kept - 1;
        uint32_t rows =
            seq->n_draft_true + (chained < seq->n_draft_chain ? chained : seq->n_draft_chain);
        if (n + rows > core->chunk) rows = core->chunk - n;
        if (rows)
            memcpy(routes + (size_t)n * K, seq->draft_items, (size_t)rows * K * sizeof *routes);
        n += rows;
        seq->n_draft_true = seq->n_draft_chain = 0;
    }
    core->route_rows[n_layer] = n;
}

/* The accepted rows wait for the draft block. */
static rg_code keep_residuals(rg_seq *seq, uint32_t row0, uint32_t n, rg_status *st) {
    if (!seq->opt.mtp) return RG_OK;
    RG_ASSERT(seq->n_pending + n <= RG_PENDING_MAX);
    RG_TRY(rg_mtp_keep(seq, seq->n_pending, row0, n, st));
    seq->n_pending += n;
    return RG_OK;
}

rg_code rg_core_accept(rg_core *core, const rg_verify *parts, uint32_t n_part, rg_status *st) {
    const uint64_t begin = rg_now_ns();
    rg_code rc = RG_OK;
    for (uint32_t i = 0; i < n_part; i++) {
        const rg_verify *p = &parts[i];
        RG_ASSERT(p->n == p->seq->n_open);
        RG_ASSERT(p->n_kept >= 1 && p->n_kept <= p->n);
        rg_seq *seq = p->seq;
        accept_drafts(seq, p->n_kept - 1);
        if (rc == RG_OK) rc = keep_residuals(seq, seq->open_row0, p->n_kept, st);
        if (seq->moce) rg_moce_accept(seq->moce, p->n_kept);
        memcpy(seq->ids + seq->length, p->ids, p->n_kept * sizeof *p->ids);
        seq->length += p->n_kept;
        seq->n_open = 0;
    }
    if (core->stream) keep_routes(core, parts, n_part);
    const rg_code touched = rg_experts_touch(core, rc != RG_OK, rc == RG_OK ? st : NULL);
    if (rc == RG_OK) rc = touched;
    for (uint32_t i = 0; i < n_part && rc != RG_OK; i++)
        parts[i].seq->failed = true;
    rg_core_trim(core);
    core->times.window_ns += rg_now_ns() - begin;
    return rc;
}
