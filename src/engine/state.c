/* The recurrent part of a sequence's state, and the rows of its caches, copied out and back. One
 * walk each serves counting, saving and loading, so that they cannot disagree. */
#include <string.h>

#include "engine/core.h"

typedef enum walk_mode { WALK_COUNT, WALK_SAVE, WALK_LOAD } walk_mode;

typedef struct walk {
    walk_mode mode;
    uint8_t *out;      /* WALK_SAVE */
    const uint8_t *in; /* WALK_LOAD */
    size_t used;
} walk;

static void visit(walk *w, void *part, size_t bytes) {
    if (w->mode == WALK_SAVE) memcpy(w->out + w->used, part, bytes);
    if (w->mode == WALK_LOAD) memcpy(part, w->in + w->used, bytes);
    w->used += bytes;
}

/* Rows of the draft block that may wait. */
static size_t pending_rows(const rg_seq *seq) {
    return seq->opt.draft_max ? RG_PENDING_MAX : 1;
}

/* Where the draft block stands: in front of the state's floats. */
typedef struct mtp_place {
    uint32_t length, pos, n_pending, zero;
} mtp_place;

static void walk_state(walk *w, const rg_seq *seq) {
    const rg_hparams *hp = seq->core->hp;
    const size_t D = hp->ssm_head_dim, HE = (size_t)hp->n_hc * hp->n_embd;
    const size_t channels = (2 * (size_t)hp->n_k_head + hp->n_v_head) * D;
    for (uint32_t i = 0; i < hp->n_layer; i++) {
        const rg_layer_state *l = &seq->layers[i];
        if (l->S) {
            visit(w, l->S, hp->n_v_head * D * D * sizeof(float));
            visit(w, l->conv, (hp->ssm_conv - 1) * channels * sizeof(float));
        }
        if (l->ple_conv) {
            const size_t rows = (size_t)(hp->ple_conv - 1) * hp->ple_ngram;
            visit(w, l->ple_conv, rows * HE * sizeof(float));
        }
    }
    if (seq->opt.mtp) visit(w, seq->mtp_pending, pending_rows(seq) * HE * sizeof(float));
}

/* Rows [from, to) and the keys of the blocks that end there. */
static void walk_kv(walk *w, const rg_seq *seq, const rg_kv *kv, uint32_t ratio, uint32_t from,
                    uint32_t to) {
    const rg_hparams *hp = seq->core->hp;
    const size_t size = rg_seq_f16(seq) ? 2 : 4, row = (size_t)hp->n_head_kv * hp->head_dim * size;
    const size_t n = to - from;
    visit(w, (uint8_t *)kv->k + from * row, n * row);
    visit(w, (uint8_t *)kv->v + from * row, n * row);
    if (!ratio) return;
    const size_t key = hp->idx_head_dim * size;
    visit(w, (uint8_t *)kv->idx_raw + from * key, n * key);
    visit(w, (uint8_t *)kv->idx_block + from / ratio * key, (to / ratio - from / ratio) * key);
}

static void walk_rows(walk *w, const rg_seq *seq, uint32_t from, uint32_t to) {
    const rg_model *m = seq->core->model;
    for (uint32_t i = 0; i < m->hp.n_layer; i++) {
        if (!m->layers[i].is_attn) continue;
        walk_kv(w, seq, &seq->layers[i].kv, m->layers[i].attn.ratio, from, to);
    }
    visit(w, seq->ids + from, (to - from) * sizeof *seq->ids);
}

/* The draft block lags a row or more behind the trunk; what stands behind its own rows is not
 * read. */
static void walk_draft_rows(walk *w, const rg_seq *seq, uint32_t n) {
    const rg_model *m = seq->core->model;
    if (!seq->opt.mtp || n == 0) return;
    walk_kv(w, seq, &seq->layers[m->hp.n_layer].kv, m->mtp.layer.attn.ratio, 0, n - 1);
}

bool rg_seq_copies(const rg_seq *seq) {
    return !seq->gpu;
}

size_t rg_seq_state_bytes(const rg_seq *seq) {
    walk w = {.mode = WALK_COUNT, .used = sizeof(mtp_place)};
    walk_state(&w, seq);
    return w.used;
}

void rg_seq_state_save(rg_seq *seq, void *dst) {
    RG_ASSERT(!seq->failed);
    RG_ASSERT(!seq->n_open);
    RG_ASSERT(rg_seq_copies(seq));
    rg_seq_settle(seq);
    const mtp_place place = {seq->mtp_length, seq->mtp_pos, seq->n_pending, 0};
    memcpy(dst, &place, sizeof place);
    walk w = {.mode = WALK_SAVE, .out = dst, .used = sizeof place};
    walk_state(&w, seq);
}

bool rg_seq_state_fits(const rg_seq *seq, uint32_t length, const void *src) {
    mtp_place place;
    memcpy(&place, src, sizeof place);
    if (place.zero || length < 1 || length > seq->opt.n_ctx) return false;
    if (!seq->opt.mtp) return !place.length && !place.pos && !place.n_pending;
    return place.n_pending >= 1 && place.n_pending <= pending_rows(seq) && place.pos < length &&
           place.length <= place.pos && place.pos + place.n_pending == length;
}

void rg_seq_state_load(rg_seq *seq, uint32_t length, const void *src) {
    RG_ASSERT(rg_seq_copies(seq));
    RG_ASSERT(rg_seq_state_fits(seq, length, src));
    mtp_place place;
    memcpy(&place, src, sizeof place);
    walk w = {.mode = WALK_LOAD, .in = src, .used = sizeof place};
    walk_state(&w, seq);
    seq->length = length;
    seq->mtp_length = place.length;
    seq->mtp_pos = place.pos;
    seq->n_pending = place.n_pending;
    seq->n_owed = seq->n_open = 0;
    seq->n_draft_true = seq->n_draft_chain = 0;
    seq->failed = false;
    rg_seq_moce_end(seq);
}

size_t rg_seq_rows_bytes(const rg_seq *seq, uint32_t from, uint32_t to) {
    walk w = {.mode = WALK_COUNT};
    walk_rows(&w, seq, from, to);
    return w.used;
}

void rg_seq_rows_save(const rg_seq *seq, uint32_t from, uint32_t to, void *dst) {
    RG_ASSERT(from <= to && to <= seq->opt.n_ctx);
    walk w = {.mode = WALK_SAVE, .out = dst};
    walk_rows(&w, seq, from, to);
}

void rg_seq_rows_load(rg_seq *seq, uint32_t from, uint32_t to, const void *src) {
    RG_ASSERT(from <= to && to <= seq->opt.n_ctx);
    walk w = {.mode = WALK_LOAD, .in = src};
    walk_rows(&w, seq, from, to);
}

size_t rg_seq_draft_rows_bytes(const rg_seq *seq, uint32_t n) {
    walk w = {.mode = WALK_COUNT};
    walk_draft_rows(&w, seq, n);
    return w.used;
}

void rg_seq_draft_rows_save(const rg_seq *seq, uint32_t n, void *dst) {
    RG_ASSERT(n <= seq->opt.n_ctx);
    walk w = {.mode = WALK_SAVE, .out = dst};
    walk_draft_rows(&w, seq, n);
}

void rg_seq_draft_rows_load(rg_seq *seq, uint32_t n, const void *src) {
    RG_ASSERT(n <= seq->opt.n_ctx);
    walk w = {.mode = WALK_LOAD, .in = src};
    walk_draft_rows(&w, seq, n);
}
