/* Comparing the state of two sequences, for tests. Included behind cmocka.h. */
#ifndef RG_TEST_SEQ_STATE_H
#define RG_TEST_SEQ_STATE_H

#include "engine/core.h"

static inline void same_kv(const rg_seq *a, const rg_kv *x, const rg_kv *y, uint32_t n,
                           uint32_t ratio) {
    const rg_hparams *hp = a->core->hp;
    const size_t size = rg_seq_f16(a) ? 2 : 4;
    const size_t row = (size_t)hp->n_head_kv * hp->head_dim * size;
    assert_memory_equal(x->k, y->k, n * row);
    assert_memory_equal(x->v, y->v, n * row);
    if (!ratio) return;
    assert_memory_equal(x->idx_raw, y->idx_raw, (size_t)n * hp->idx_head_dim * size);
    assert_memory_equal(x->idx_block, y->idx_block, (size_t)(n / ratio) * hp->idx_head_dim * size);
}

/* Everything of two sequences that later tokens can see. Histories longer than the sequence are
 * compared only where it has written. */
static inline void same_state(const rg_seq *a, const rg_seq *b) {
    const rg_hparams *hp = a->core->hp;
    const size_t D = hp->ssm_head_dim, HE = (size_t)hp->n_hc * hp->n_embd;
    const size_t channels = (2 * (size_t)hp->n_k_head + hp->n_v_head) * D;
    assert_int_equal(a->length, b->length);
    assert_memory_equal(a->ids, b->ids, a->length * sizeof *a->ids);
    for (uint32_t i = 0; i < hp->n_layer; i++) {
        const rg_layer_weights *w = &a->core->w.layers[i];
        const rg_layer_state *x = &a->layers[i], *y = &b->layers[i];
        if (w->is_attn) {
            same_kv(a, &x->kv, &y->kv, a->length, w->attn.ratio);
        } else {
            assert_memory_equal(x->S, y->S, hp->n_v_head * D * D * sizeof(float));
            if (a->length >= hp->ssm_conv - 1) {
                assert_memory_equal(x->conv, y->conv,
                                    (hp->ssm_conv - 1) * channels * sizeof(float));
            }
        }
        const size_t history = (size_t)(hp->ple_conv - 1) * hp->ple_ngram;
        if (w->has_ple && a->length >= history) {
            assert_memory_equal(x->ple_conv, y->ple_conv, history * HE * sizeof(float));
        }
    }
    if (!a->opt.mtp) return;
    assert_int_equal(a->mtp_length, b->mtp_length);
    assert_int_equal(a->mtp_pos, b->mtp_pos);
    assert_int_equal(a->n_pending, b->n_pending);
    assert_memory_equal(a->mtp_pending, b->mtp_pending, HE * sizeof(float));
    same_kv(a, &a->layers[hp->n_layer].kv, &b->layers[hp->n_layer].kv, a->mtp_length,
            a->core->w.mtp.layer.attn.ratio);
}

#endif
