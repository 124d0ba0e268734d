/* Metadata of the hashed n-gram memory (spec 4.3): one layer may add it. After success no product
 * of a multiplier and a token id reaches 2^63, and row numbers fit 31 bits; that they lie inside
 * the table is checked where the table is found.
 */
#include "model/desc_parts.h"

typedef unsigned long long ull;

static rg_code read_layers(rg_desc_reader *r, const rg_gguf_kv *kv, rg_status *st) {
    if (kv->count > 1) {
        return rg_fail(st, RG_UNSUPPORTED, "ple.layers names %llu layers, this build supports 1",
                       (ull)kv->count);
    }
    uint64_t layer = 0;
    RG_TRY(rg_gguf_elem_u64(kv, 0, r->m->hp.n_layer - 1, &layer, st));
    r->plan[layer].has_ple = true;
    return RG_OK;
}

static rg_code read_multipliers(rg_desc_reader *r, rg_status *st) {
    rg_hparams *hp = &r->m->hp;
    const rg_gguf_kv *kv = NULL;
    const uint64_t token_max = hp->n_vocab > 1 ? hp->n_vocab - 1 : 1;
    RG_TRY(rg_desc_array(r, "ple.layer_multipliers", hp->ple_ngram, hp->ple_ngram, &kv, st));
    for (uint32_t i = 0; i < hp->ple_ngram; i++) {
        RG_TRY(rg_gguf_elem_u64(kv, i, INT64_MAX / token_max, &hp->ple_mult[i], st));
    }
    return RG_OK;
}

static rg_code read_heads(rg_desc_reader *r, rg_status *st) {
    rg_hparams *hp = &r->m->hp;
    const rg_gguf_kv *offsets = NULL, *sizes = NULL;
    RG_TRY(rg_desc_array(r, "ple.head_offsets", hp->ple_n_head, hp->ple_n_head, &offsets, st));
    RG_TRY(rg_desc_array(r, "ple.head_vocab_sizes", hp->ple_n_head, hp->ple_n_head, &sizes, st));
    for (uint32_t h = 0; h < hp->ple_n_head; h++) {
        RG_TRY(rg_gguf_elem_u64(offsets, h, RG_PLE_ROWS_MAX, &hp->ple_offset[h], st));
        RG_TRY(rg_gguf_elem_u64(sizes, h, RG_PLE_ROWS_MAX, &hp->ple_size[h], st));
        if (hp->ple_size[h] == 0) {
            return rg_fail(st, RG_FORMAT, "ple.head_vocab_sizes: head %u of %u has 0 rows", h,
                           hp->ple_n_head);
        }
    }
    return RG_OK;
}

rg_code rg_desc_read_ple(rg_desc_reader *r, rg_status *st) {
    rg_hparams *hp = &r->m->hp;
    const rg_gguf_kv *layers = NULL;
    uint32_t id = 0;
    hp->ple_image = -1;
    if (!rg_desc_has(r, "ple.layers")) return RG_OK;
    RG_TRY(rg_desc_array(r, "ple.layers", 0, RG_LAYERS_MAX, &layers, st));
    if (layers->count == 0) return RG_OK;
    RG_TRY(read_layers(r, layers, st));
    RG_TRY(rg_desc_u32(r, "ple.ngram_size", 2, RG_NGRAM_MAX, &hp->ple_ngram, st));
    RG_TRY(
        rg_desc_u32(r, "ple.heads_per_ngram", 1, RG_NGRAM_HEADS_MAX, &hp->ple_heads_per_ngram, st));
    hp->ple_n_head = (hp->ple_ngram - 1) * hp->ple_heads_per_ngram;
    if (hp->ple_n_head > RG_NGRAM_HEADS_MAX) {
        return rg_fail(st, RG_FORMAT, "ple: %u heads for each of %u n-grams exceed the limit of %d",
                       hp->ple_heads_per_ngram, hp->ple_ngram - 1, RG_NGRAM_HEADS_MAX);
    }
    RG_TRY(rg_desc_u32(r, "ple.conv_kernel", 1, RG_CONV_MAX, &hp->ple_conv, st));
    RG_TRY(rg_desc_u32(r, "embedding_length_per_layer_input", 1, RG_PLE_ROW_MAX, &hp->ple_row, st));
    RG_TRY(rg_desc_u32(r, "ple.eos_token_id", 0, hp->n_vocab - 1, &id, st));
    hp->ple_eos = (int32_t)id;
    if (rg_desc_has(r, "ple.image_token_id")) {
        RG_TRY(rg_desc_u32(r, "ple.image_token_id", 0, hp->n_vocab - 1, &id, st));
        hp->ple_image = (int32_t)id;
    }
    RG_TRY(read_multipliers(r, st));
    return read_heads(r, st);
}
