/* Drafts on a device: what a window of firm rows and drafts does to the state there.
 *
 * As in draft_journal.c, with one difference: the journal holds the raw inputs of a delta net layer
 * (before the convolution), alpha and beta, and stands right behind the convolution's history. The
 * next window's kernel (gdn_whole.comp) has a head's state in registers anyway: it runs the
 * accepted drafts first, then its own firm rows, writes the state back, and runs its drafts on the
 * registers. So a window with drafts moves the state through memory once, as one without; a copy of
 * the states (108 MiB of the reference model) would move it twice more, a pass of its own behind
 * the accept once more and cost a submission. Histories and journals are a few rows a layer.
 *
 * Windows whose delta net goes op by op (prompts, many sequences) find their states settled by the
 * list that is made here: rare, as a sequence decodes in windows of few rows.
 */
#include "engine/gpu_core.h"

#include <string.h>

static void settle_ple(rg_gpu_rec *r, const rg_seq *seq, const rg_layer_state *host,
                       rg_gpu_ptr stand) {
    const rg_hparams *hp = r->core->hp;
    const rg_gpu_history_args h = {.past = rg_at(host->ple_conv),
                                   .x = rg_at(host->draft_ple),
                                   .stand = stand,
                                   .n = hp->n_hc * hp->n_embd,
                                   .keep = (hp->ple_conv - 1) * hp->ple_ngram,
                                   .rows = seq->n_owed};
    rg_gpu_history(r->list, &h);
}

/* All layers of one sequence. Outputs go to scratch and are not used. */
static void settle_seq(rg_gpu_rec *r, const rg_seq *seq, uint32_t slot) {
    rg_gpu_core *g = r->g;
    const rg_hparams *hp = r->core->hp;
    const rg_gpu_ptr stand = rg_at(g->at.stands + slot);
    g->to.stands[slot] = (rg_gpu_stand){
        .pos0 = seq->length - seq->n_owed, .firm = seq->n_owed, .cap = seq->opt.draft_max};
    for (uint32_t i = 0; i < hp->n_layer; i++) {
        const rg_layer_state *l = &seq->gpu->layers[i];
        if (l->ple_conv) settle_ple(r, seq, l, stand);
        if (!l->S) continue;
        const rg_gpu_delta d = {.w = &r->core->w.layers[i].gdn,
                                .state = l,
                                .stand = stand,
                                .qkv = l->draft_qkv,
                                .alpha = l->draft_decay,
                                .beta = l->draft_beta,
                                .conv = g->s.conv,
                                .o = g->s.gdn_o,
                                .rows = seq->n_owed};
        rg_gpu_rec_delta(r, &d);
        rg_gpu_barrier(r->list); /* the scratch is used again */
    }
}

rg_code rg_gpu_settle(rg_core *core, rg_seq *const *seqs, uint32_t n, rg_status *st) {
    rg_gpu_core *g = core->gpu;
    rg_gpu_rec r = {.g = g, .core = core, .list = g->settle};
    bool any = false;
    for (uint32_t i = 0; i < n; i++)
        any = any || seqs[i]->n_owed;
    if (!any) return RG_OK;
    RG_ASSERT(n <= RG_SEGMENTS_MAX);
    rg_gpu_list_begin(r.list, false);
    for (uint32_t i = 0; i < n; i++)
        if (seqs[i]->n_owed) settle_seq(&r, seqs[i], RG_SEGMENTS_MAX + i);
    RG_TRY(rg_gpu_list_end(r.list, st));
    RG_TRY(rg_gpu_run(g->gpu, r.list, st));
    for (uint32_t i = 0; i < n; i++)
        seqs[i]->n_owed = 0;
    return RG_OK;
}

/* ---- the draft block ------------------------------------------------------------------------ */

static size_t row_floats(const rg_core *core) {
    return (size_t)core->hp->n_hc * core->hp->n_embd;
}

/* Where the rows of a feed come from; a gap between two segments of the window has none. */
static void tell_sources(rg_gpu_core *g, const rg_mtp_feed *f, uint32_t row0) {
    const size_t HE = row_floats(g->core);
    for (uint32_t i = 0; i < f->n; i++) {
        const float *from =
            i < f->n_old ? f->seq->gpu->pending + i * HE : f->rest + (size_t)(i - f->n_old) * HE;
        g->to.sources[row0 + i] = rg_at(from);
    }
}

rg_code rg_gpu_mtp_run(rg_core *core, const rg_mtp_feed *feeds, uint32_t n_feed, rg_status *st) {
    rg_segment segs[RG_SEGMENTS_MAX];
    int32_t *ids = core->s.mtp_ids;
    rg_window win = {.core = core, .segs = segs, .n_seg = n_feed, .ids = ids};
    RG_ASSERT(n_feed <= RG_SEGMENTS_MAX);
    win.n_seg = 0;
    for (uint32_t s = 0; s < n_feed; s++) {
        const rg_mtp_feed *f = &feeds[s];
        if (!f->n) continue;
        segs[win.n_seg++] = (rg_segment){.seq = f->seq, .row0 = win.T, .n = f->n, .pos0 = f->pos0};
        tell_sources(core->gpu, f, win.T);
        memcpy(ids + win.T, f->next, f->n * sizeof *ids);
        win.T += f->n;
    }
    if (!win.T) return RG_OK;
    RG_ASSERT(win.T <= core->chunk);
    rg_window_rope(&win);
    uint32_t seg = 0; /* from here on the place in the cache counts */
    for (uint32_t s = 0; s < n_feed; s++)
        if (feeds[s].n) segs[seg++].pos0 = feeds[s].kv0;
    return rg_gpu_draft_layer(&win, st);
}

/* Rows of residuals from the scratch, or of the pending ones among themselves. */
static void record_rows(const rg_seq *seq, const float *dst, const rg_gpu_buffer *from,
                        const float *src, uint32_t n) {
    rg_gpu_core *g = seq->core->gpu;
    const bool here = rg_at(dst) >= seq->gpu->memory.address &&
                      rg_at(dst) < seq->gpu->memory.address + seq->gpu->memory.bytes;
    const rg_gpu_buffer *to = here ? &seq->gpu->memory : &g->scratch;
    rg_gpu_copy(g->rows, to, rg_at(dst) - to->address, from, rg_at(src) - from->address,
                n * row_floats(seq->core) * sizeof(float));
}

rg_code rg_gpu_keep_pending(rg_seq *seq, uint32_t at, const float *rows, uint32_t n,
                            rg_status *st) {
    rg_gpu_core *g = seq->core->gpu;
    rg_gpu_list_begin(g->rows, false);
    record_rows(seq, seq->gpu->pending + at * row_floats(seq->core), &g->scratch, rows, n);
    RG_TRY(rg_gpu_list_end(g->rows, st));
    return rg_gpu_run(g->gpu, g->rows, st);
}

/* By way of the scratch: the places overlap. */
rg_code rg_gpu_drop_pending(rg_seq *seq, uint32_t n, rg_status *st) {
    rg_gpu_core *g = seq->core->gpu;
    const float *pending = seq->gpu->pending;
    const uint32_t left = seq->n_pending - n;
    if (!left || !n) return RG_OK;
    rg_gpu_list_begin(g->rows, false);
    record_rows(seq, g->s.mtp_in, &seq->gpu->memory, pending + n * row_floats(seq->core), left);
    rg_gpu_barrier(g->rows); /* the rows are out of the way */
    record_rows(seq, pending, &g->scratch, g->s.mtp_in, left);
    RG_TRY(rg_gpu_list_end(g->rows, st));
    return rg_gpu_run(g->gpu, g->rows, st);
}
