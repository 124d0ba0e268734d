/* The scratch plan: one function both counts and places, so the two cannot disagree. */
#include "engine/core.h"
#include "engine/layout.h"

static float *floats(rg_layout *p, size_t count) {
    return rg_layout_take(p, count, sizeof(float));
}
static uint32_t *words(rg_layout *p, size_t count) {
    return rg_layout_take(p, count, sizeof(uint32_t));
}

static size_t max_size(size_t a, size_t b) {
    return a > b ? a : b;
}

static void act_buffer(rg_layout *p, rg_act_buffer *b, size_t values) {
    for (int form = RG_ACT_Q32; form <= RG_ACT_Q256; form++) {
        b->codes[form] = rg_layout_take(p, values, 1);
        b->scales[form] = floats(p, values / 32 + 1);
        b->sums[form] = rg_layout_take(p, values / 16 + 1, sizeof(int16_t));
    }
}

static uint32_t max_n_ff(const rg_model *m) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->hp.n_layer; i++) {
        if (m->layers[i].moe.n_ff > n) n = m->layers[i].moe.n_ff;
    }
    if (m->hp.n_mtp && m->mtp.layer.moe.n_ff > n) n = m->mtp.layer.moe.n_ff;
    return n;
}

static uint32_t min_ratio(const rg_model *m) {
    uint32_t r = 0;
    for (uint32_t i = 0; i < m->hp.n_layer; i++) {
        const uint32_t ratio = m->layers[i].is_attn ? m->layers[i].attn.ratio : 0;
        if (ratio && (!r || ratio < r)) r = ratio;
    }
    if (m->hp.n_mtp) {
        const uint32_t ratio = m->mtp.layer.attn.ratio;
        if (ratio && (!r || ratio < r)) r = ratio;
    }
    return r;
}

static void place_gdn(rg_layout *p, rg_scratch *s, const rg_hparams *hp, size_t T) {
    const size_t channels = (size_t)(2 * hp->n_k_head + hp->n_v_head) * hp->ssm_head_dim;
    const size_t inner = (size_t)hp->n_v_head * hp->ssm_head_dim;
    s->qkv = floats(p, T * channels);
    s->conv = floats(p, T * channels);
    s->z = floats(p, T * inner);
    s->gdn_o = floats(p, T * inner);
    s->alpha = floats(p, T * hp->n_v_head);
    s->beta = floats(p, T * hp->n_v_head);
    s->decay = floats(p, T * hp->n_v_head);
}

static void place_attn(rg_layout *p, rg_scratch *s, const rg_model *m, size_t T) {
    const rg_hparams *hp = &m->hp;
    const size_t heads = (size_t)hp->n_head * hp->head_dim;
    const size_t kv = (size_t)hp->n_head_kv * hp->head_dim;
    const uint32_t ratio = min_ratio(m);
    s->run_cap = ratio ? hp->idx_budget / ratio + 1 : 1;
    s->qg = floats(p, T * heads * 2);
    s->q = floats(p, T * heads);
    s->attn_o = floats(p, T * heads);
    s->k = floats(p, T * kv);
    s->v = floats(p, T * kv);
    s->idx_q = floats(p, T * hp->idx_n_head * hp->idx_head_dim);
    s->idx_k = floats(p, T * hp->idx_head_dim);
    s->run_first = words(p, T * s->run_cap);
    s->run_count = words(p, T * s->run_cap);
    s->n_run = words(p, T);
}

static void place_moe(rg_layout *p, rg_scratch *s, const rg_model *m, size_t T) {
    const rg_hparams *hp = &m->hp;
    const size_t pairs = T * hp->n_expert_used;
    const size_t n_ff = max_n_ff(m);
    s->router = floats(p, T * hp->n_expert);
    s->expert_ids = words(p, pairs);
    s->expert_w = floats(p, pairs);
    s->pair_row = words(p, pairs);
    s->pair_slot = words(p, pairs);
    s->expert_begin = words(p, (size_t)hp->n_expert + 1);
    s->active = words(p, hp->n_expert);
    s->batch = rg_layout_take(p, hp->n_expert, sizeof *s->batch);
    s->ahead = floats(p, T * hp->n_expert);
    s->items = words(p, hp->n_expert);
    s->guess_count = words(p, hp->n_expert);
    s->gate = floats(p, pairs * n_ff);
    s->up = floats(p, pairs * n_ff);
    s->expert_out = floats(p, pairs * hp->n_embd);
    s->shared_hidden = floats(p, T * hp->n_ff_shared);
    s->shared_up = floats(p, T * hp->n_ff_shared);
    s->shared_out = floats(p, T * hp->n_embd);
    s->shared_sigma = floats(p, T);
    act_buffer(p, &s->act_hidden, max_size(pairs * n_ff, T * hp->n_ff_shared));
    act_buffer(p, &s->act_shared, T * hp->n_ff_shared);
}

static void place_threads(rg_layout *p, rg_thread_scratch *threads, const rg_scratch_shape *shape) {
    const rg_hparams *hp = &shape->model->hp;
    size_t n_in = max_size((size_t)hp->n_hc * hp->n_embd, 2 * (size_t)hp->n_embd);
    n_in = max_size(n_in, (size_t)hp->n_v_head * hp->ssm_head_dim);
    n_in = max_size(n_in, (size_t)hp->n_head * hp->head_dim);
    n_in = max_size(n_in, (size_t)hp->ple_n_head * hp->ple_row);
    n_in = max_size(n_in, max_size(max_n_ff(shape->model), hp->n_ff_shared));
    n_in = max_size(n_in, hp->n_hc_rank);
    const size_t d = max_size(hp->head_dim, hp->idx_head_dim);
    for (int i = 0; i < shape->n_threads; i++) {
        threads[i].mul = rg_layout_take(p, rg_mul_scratch_bytes((uint32_t)n_in), 1);
        threads[i].attn = floats(p, RG_ATTENTION_TMP(d));
        threads[i].row = floats(p, 2 * n_in);
        threads[i].low = floats(p, (size_t)RG_DECODE_ROWS * hp->n_hc_rank);
        act_buffer(p, &threads[i].low_act, (size_t)RG_DECODE_ROWS * hp->n_hc_rank);
        threads[i].state = floats(p, (size_t)(hp->ssm_head_dim + 1) * hp->ssm_head_dim);
    }
}

size_t rg_scratch_layout(const rg_scratch_shape *shape, rg_scratch *s, rg_thread_scratch *threads,
                         uint8_t *base) {
    rg_layout p = {.base = base};
    const rg_hparams *hp = &shape->model->hp;
    const size_t T = shape->chunk;
    const size_t HE = (size_t)hp->n_hc * hp->n_embd;
    const size_t ple_in = (size_t)hp->ple_n_head * hp->ple_row;
    s->residual = floats(&p, T * HE);
    s->rope = floats(&p, T * hp->n_rot);
    s->ple_in = floats(&p, T * ple_in);
    s->normed = floats(&p, T * HE);
    s->mix = floats(&p, T * HE);
    s->low = floats(&p, T * hp->n_hc_rank);
    s->u = floats(&p, T * hp->n_embd);
    s->inject = floats(&p, T * hp->n_hc);
    s->y = floats(&p, T * hp->n_embd);
    size_t act = max_size(
        HE, max_size((size_t)hp->n_v_head * hp->ssm_head_dim, (size_t)hp->n_head * hp->head_dim));
    act = max_size(act, max_size(ple_in, hp->n_hc_rank));
    if (hp->n_mtp) act = max_size(act, (size_t)hp->n_hc * 2 * hp->n_embd);
    act_buffer(&p, &s->act, T * act);
    place_threads(&p, threads, shape);
    s->head_rows = floats(&p, RG_HEAD_ROWS * HE);
    s->logits = floats(&p, (size_t)RG_HEAD_ROWS * hp->n_vocab);
    if (hp->n_mtp) {
        s->mtp_in = floats(&p, T * HE * 2);
        s->mtp_residual = floats(&p, T * HE);
        s->mtp_ids = rg_layout_take(&p, T, sizeof(int32_t));
    }
    /* The half layers never live at once: they share one stretch. */
    const size_t begin = p.used;
    size_t end = begin;
    place_gdn(&p, s, hp, T);
    end = max_size(end, p.used);
    p.used = begin;
    place_attn(&p, s, shape->model, T);
    end = max_size(end, p.used);
    p.used = begin;
    place_moe(&p, s, shape->model, T);
    end = max_size(end, p.used);
    p.used = begin;
    s->ple_value = floats(&p, T * hp->n_embd);
    s->ple_gated = floats(&p, T * HE);
    s->ple_normed = floats(&p, T * HE);
    end = max_size(end, p.used);
    return end;
}
