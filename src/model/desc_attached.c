/* The plan of a draft block that comes from a file of its own (spec 5.2). */
#include "model/desc_parts.h"

#include <stdio.h>
#include <string.h>

/* The number of the block in its own file. */
static rg_code find_number(rg_desc_reader *r, rg_status *st) {
    char name[RG_GGUF_NAME_MAX];
    for (uint32_t b = 0; b < RG_LAYERS_MAX; b++) {
        snprintf(name, sizeof name, RG_GGUF_DRAFT_PREFIX "blk.%u.nextn.enorm.weight", b);
        if (!rg_gguf_tensor(r->g, name)) continue;
        r->draft_number = b;
        return RG_OK;
    }
    return rg_fail(st, RG_FORMAT,
                   "the draft file has no draft block (no blk.N.nextn.enorm.weight)");
}

/* Numbers that no tensor's shape shows must not contradict the model's. */
static rg_code check_same(const rg_desc_reader *r, const char *key, uint32_t want, rg_status *st) {
    char full[96];
    uint64_t v = 0;
    snprintf(full, sizeof full, RG_ARCH_NAME ".%s", key);
    const rg_gguf_kv *kv = rg_gguf_find_attached(r->g, full);
    if (!kv) return RG_OK;
    RG_TRY(rg_gguf_elem_u64(kv, 0, UINT32_MAX, &v, st));
    if (v == want) return RG_OK;
    return rg_fail(st, RG_FORMAT, "%s is %llu in the draft file, %u in the model", full,
                   (unsigned long long)v, want);
}

/* Width of the experts, from their tensor; tokens of an indexer block, from the metadata. */
static rg_code read_plan(rg_desc_reader *r, rg_block_plan *plan, rg_status *st) {
    char name[RG_GGUF_NAME_MAX];
    snprintf(name, sizeof name, RG_GGUF_DRAFT_PREFIX "blk.%u.ffn_down_exps.weight",
             r->draft_number);
    const rg_tensor *down = rg_gguf_tensor(r->g, name);
    if (!down || down->ne[0] < 1 || down->ne[0] > RG_FF_MAX) {
        return rg_fail(st, RG_FORMAT, "tensor '%s' is missing or has no rows", name);
    }
    plan->n_ff = (uint32_t)down->ne[0];
    plan->is_attn = true;
    const rg_gguf_kv *kv = rg_gguf_find_attached(r->g, RG_ARCH_NAME ".attention.compress_ratios");
    uint64_t ratio = 0;
    if (kv && kv->type == RG_GGUF_ARRAY && r->draft_number < kv->count) {
        RG_TRY(rg_gguf_elem_u64(kv, r->draft_number, RG_IDX_RATIO_MAX, &ratio, st));
    }
    if (ratio && r->m->hp.idx_budget % ratio != 0) {
        return rg_fail(st, RG_FORMAT, "indexer blocks of %llu tokens in the draft file, budget %u",
                       (unsigned long long)ratio, r->m->hp.idx_budget);
    }
    plan->ratio = (uint32_t)ratio;
    return RG_OK;
}

rg_code rg_desc_read_attached(rg_desc_reader *r, rg_status *st) {
    rg_hparams *hp = &r->m->hp;
    r->attached = true;
    RG_TRY(find_number(r, st));
    RG_TRY(check_same(r, "expert_used_count", hp->n_expert_used, st));
    RG_TRY(check_same(r, "expert_count", hp->n_expert, st));
    RG_TRY(check_same(r, "attention.head_count", hp->n_head, st));
    RG_TRY(check_same(r, "attention.head_count_kv", hp->n_head_kv, st));
    RG_TRY(check_same(r, "embedding_length", hp->n_embd, st));
    RG_TRY(check_same(r, "hyper_connection.count", hp->n_hc, st));
    hp->n_mtp = 1;
    r->plan[hp->n_layer] = (rg_block_plan){0};
    return read_plan(r, &r->plan[hp->n_layer], st);
}
