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
