/* Sequence state: one block of memory, laid out by one function that counts and places. */
#include <string.h>

#include "engine/core.h"
#include "engine/gpu_core.h"
#include "engine/layout.h"

static void place_kv(rg_layout *p, rg_kv *kv, const rg_hparams *hp, const rg_seq_options *opt,
                     uint32_t ratio) {
    const size_t size = opt->kv == RG_KV_F16 ? 2 : 4, n = opt->n_ctx;
    kv->k = rg_layout_take(p, n * hp->n_head_kv * hp->head_dim, size);
    kv->v = rg_layout_take(p, n * hp->n_head_kv * hp->head_dim, size);
    if (!ratio) return;
    kv->idx_raw = rg_layout_take(p, n * hp->idx_head_dim, size);
    kv->idx_block = rg_layout_take(p, n / ratio * hp->idx_head_dim, size);
}

/* NULL while counting. */
static float *behind(float *at, size_t n) {
    return at ? at + n : NULL;
}

/* A journal stands right behind its history: a device finds both by one address. */
static void place_gdn(rg_layout *p, rg_layer_state *l, const rg_hparams *hp, size_t n_draft) {
    const size_t D = hp->ssm_head_dim, channels = rg_gdn_channels(hp), Hv = hp->n_v_head;
    const size_t keep = hp->ssm_conv - 1;
    l->S = rg_layout_take(p, Hv * D * D, sizeof(float));
    l->conv = rg_layout_take(p, (keep + n_draft) * channels + 2 * n_draft * Hv, sizeof(float));
    if (!n_draft) return;
    l->draft_qkv = behind(l->conv, keep * channels);
    l->draft_decay = behind(l->draft_qkv, n_draft * channels);
    l->draft_beta = behind(l->draft_decay, n_draft * Hv);
    l->draft_conv = rg_layout_take(p, n_draft * channels, sizeof(float));
}

static void place_ple(rg_layout *p, rg_layer_state *l, const rg_hparams *hp, size_t n_draft) {
    const size_t HE = (size_t)hp->n_hc * hp->n_embd;
    const size_t keep = (size_t)(hp->ple_conv - 1) * hp->ple_ngram;
    l->ple_conv = rg_layout_take(p, (keep + n_draft) * HE, sizeof(float));
    if (n_draft) l->draft_ple = behind(l->ple_conv, keep * HE);
}

size_t rg_seq_layout(rg_seq *seq, const rg_model *m, size_t n_threads, uint8_t *base) {
    rg_layout p = {.base = base};
    const rg_hparams *hp = &m->hp;
    const size_t HE = (size_t)hp->n_hc * hp->n_embd, n_draft = seq->opt.draft_max;
    rg_layer_state none = {0};
    for (uint32_t i = 0; i < hp->n_layer; i++) {
        const rg_layer_desc *d = &m->layers[i];
        rg_layer_state *l = seq->layers ? &seq->layers[i] : &none;
        if (d->is_attn) {
            place_kv(&p, &l->kv, hp, &seq->opt, d->attn.ratio);
        } else {
            place_gdn(&p, l, hp, n_draft);
        }
        if (d->has_ple) place_ple(&p, l, hp, n_draft);
    }
    if (seq->opt.mtp) {
        rg_layer_state *l = seq->layers ? &seq->layers[hp->n_layer] : &none;
        place_kv(&p, &l->kv, hp, &seq->opt, m->mtp.layer.attn.ratio);
        seq->mtp_pending = rg_layout_take(&p, (n_draft ? RG_PENDING_MAX : 1) * HE, sizeof(float));
        seq->draft_items = rg_layout_take(
            &p, n_draft ? (size_t)2 * RG_VERIFY_ROWS * hp->n_expert_used : 0, sizeof(uint32_t));
    }
    seq->ids = rg_layout_take(&p, seq->opt.n_ctx, sizeof(int32_t));
    seq->idx_scores = rg_layout_take(&p, n_threads * seq->opt.n_ctx, sizeof(float));
    seq->idx_top = rg_layout_take(&p, n_threads * hp->idx_budget, sizeof(uint32_t));
    return p.used;
}

uint64_t rg_seq_bytes_for(const rg_model *m, const rg_seq_options *opt, int n_threads) {
    rg_seq seq = {.opt = *opt};
    return rg_seq_layout(&seq, m, (size_t)n_threads, NULL);
}

static rg_code check_options(const rg_core *core, const rg_seq_options *opt, rg_status *st) {
    if (opt->n_ctx < 1 || opt->n_ctx > core->hp->n_ctx_train) {
        return rg_fail(st, RG_INVALID, "a context of %u tokens is wanted, the model allows 1..%u",
                       opt->n_ctx, core->hp->n_ctx_train);
    }
    if (opt->mtp && !core->hp->n_mtp) {
        return rg_fail(st, RG_INVALID, "drafts are wanted, the model has no draft block");
    }
    if (opt->draft_max > RG_DRAFT_MAX) {
        return rg_fail(st, RG_INVALID, "windows of %u drafts are wanted, %u are possible",
                       opt->draft_max, RG_DRAFT_MAX);
    }
    return RG_OK;
}

rg_code rg_seq_create(rg_seq **out, rg_core *core, const rg_seq_options *opt, rg_status *st) {
    *out = NULL;
    RG_TRY(check_options(core, opt, st));
    rg_code rc = RG_OK;
    rg_seq *seq = rg_alloc(1, sizeof *seq, st);
    if (!seq) return RG_NOMEM;
    seq->core = core;
    seq->opt = *opt;
    seq->layers = rg_alloc(core->hp->n_layer + core->hp->n_mtp, sizeof *seq->layers, st);
    if (!seq->layers) {
        rc = RG_NOMEM;
        goto cleanup;
    }
    const size_t n_threads = (size_t)rg_pool_threads(core->pool);
    seq->memory_bytes = rg_seq_layout(seq, core->model, n_threads, NULL);
    rc = rg_take_memory(&seq->memory, seq->memory_bytes, st);
    if (rc != RG_OK) {
        rg_context(st, rc, "state for %u tokens", opt->n_ctx);
        goto cleanup;
    }
    const size_t placed = rg_seq_layout(seq, core->model, n_threads, seq->memory);
    RG_ASSERT(placed == seq->memory_bytes);
    if (core->gpu) {
        rc = rg_gpu_seq_create(seq, st);
        if (rc != RG_OK) goto cleanup;
    }
    *out = seq;
    return RG_OK;
cleanup:
    rg_seq_destroy(seq);
    return rc;
}

void rg_seq_destroy(rg_seq *seq) {
    if (!seq) return;
    rg_moce_destroy(seq->moce);
    rg_gpu_seq_destroy(seq);
    rg_mem_unmap(seq->memory, seq->memory_bytes);
    rg_free(seq->layers);
    rg_free(seq);
}

void rg_seq_reset(rg_seq *seq) {
    const rg_hparams *hp = seq->core->hp;
    const size_t D = hp->ssm_head_dim;
    for (uint32_t i = 0; i < hp->n_layer; i++) {
        /* Only the recurrent states need zeros: caches and histories are read up to the length. */
        float *S = seq->layers[i].S;
        if (S && !seq->gpu) memset(S, 0, hp->n_v_head * D * D * sizeof *S);
    }
    seq->length = 0;
    seq->n_owed = 0;
    seq->n_open = 0;
    seq->mtp_length = seq->mtp_pos = seq->n_pending = 0;
    seq->n_draft_true = seq->n_draft_chain = 0;
    seq->failed = false;
    rg_seq_moce_end(seq);
}

rg_code rg_seq_moce_begin(rg_seq *seq, float lambda, uint32_t n_slot, rg_status *st) {
    const rg_hparams *hp = seq->core->hp;
    const rg_moce_shape shape = {.n_layer = hp->n_layer,
                                 .n_expert = hp->n_expert,
                                 .n_used = hp->n_expert_used,
                                 .lambda = lambda,
                                 .n_slot = n_slot};
    rg_seq_moce_end(seq);
    return rg_moce_create(&seq->moce, &shape, st);
}

void rg_seq_moce_end(rg_seq *seq) {
    rg_moce_destroy(seq->moce);
    seq->moce = NULL;
}

rg_moce_receipt rg_seq_moce_receipt(const rg_seq *seq) {
    return seq->moce ? rg_moce_get_receipt(seq->moce) : (rg_moce_receipt){0};
}

bool rg_seq_failed(const rg_seq *seq) {
    return seq->failed;
}
uint32_t rg_seq_length(const rg_seq *seq) {
    return seq->length;
}
uint32_t rg_seq_capacity(const rg_seq *seq) {
    return seq->opt.n_ctx;
}
uint64_t rg_seq_bytes(const rg_seq *seq) {
    return seq->memory_bytes;
}
const int32_t *rg_seq_ids(const rg_seq *seq) {
    return seq->ids;
}
