/* Device memory: weights in chunks, scratch, what host and device tell each other, states of
 * sequences.
 */
#include "engine/gpu_pass.h"

#include <stdlib.h>
#include <string.h>

#include "engine/layout.h"

#define CHUNK_BYTES ((size_t)1 << 30)

/* ---- weights -------------------------------------------------------------------------------- */

/* Starts of what lies in the block of weights. */
typedef struct starts {
    const uint8_t **at;
    size_t n, cap;
} starts;

static void note(starts *s, const void *at) {
    if (!at) return;
    if (s->at && s->n < s->cap) s->at[s->n] = at;
    s->n++;
}

static void note_hc(starts *s, const rg_hc_weights *w) {
    note(s, w->norm);
    note(s, w->down.data);
    note(s, w->up.data);
    note(s, w->inject.data);
}

static void note_moe(starts *s, const rg_moe_weights *w) {
    note(s, w->router.data);
    note(s, w->shared_gate_inp.data);
    note(s, w->shared_gate.data);
    note(s, w->shared_up.data);
    note(s, w->shared_down.data);
    note(s, w->gate.mat.data);
    if (!w->up_offset) note(s, w->up.mat.data); /* else inside the gate's part */
    note(s, w->down.mat.data);
}

static void note_layer(starts *s, const rg_layer_weights *w) {
    const void *all[] = {
        w->gdn.qkv.data,    w->gdn.gate.data,   w->gdn.alpha.data,  w->gdn.beta.data,
        w->gdn.out.data,    w->gdn.conv,        w->gdn.dt,          w->gdn.a,
        w->gdn.norm,        w->attn.q.data,     w->attn.k.data,     w->attn.v.data,
        w->attn.out.data,   w->attn.idx_q.data, w->attn.q_norm,     w->attn.k_norm,
        w->attn.idx_k.data, w->attn.idx_q_norm, w->attn.idx_k_norm, w->ple.key.data,
        w->ple.value.data,  w->ple.norm_key,    w->ple.conv,        w->ple.norm_query,
        w->ple.norm_conv};
    for (size_t i = 0; i < RG_ARRAY_LEN(all); i++)
        note(s, all[i]);
    note_hc(s, &w->hc_attn);
    note_hc(s, &w->hc_ffn);
    note_moe(s, &w->moe);
}

static void note_all(starts *s, const rg_core *core) {
    s->n = 0;
    note(s, core->w.token_embd.data);
    note(s, core->w.output.data);
    note_hc(s, &core->w.output_hc);
    for (uint32_t i = 0; i < rg_gpu_layers(core); i++)
        note_layer(s, rg_gpu_layer(core, i));
    const rg_mtp_weights *mtp = &core->w.mtp;
    if (!core->hp->n_mtp) return;
    note(s, mtp->enorm);
    note(s, mtp->hnorm);
    note(s, mtp->eh_proj.data);
    note(s, mtp->fc_embd.data);
    note(s, mtp->fc_hidden.data);
    note_hc(s, &mtp->head);
    note(s, mtp->embd.data);
    note(s, mtp->output.data);
}

static int by_address(const void *a, const void *b) {
    const uint8_t *x = *(const uint8_t *const *)a, *y = *(const uint8_t *const *)b;
    return (x > y) - (x < y);
}

/* Cuts the block into chunks between tensors; each is copied, then given back to the host. */
static rg_code upload_chunk(rg_gpu_core *g, const uint8_t *begin, const uint8_t *end,
                            rg_status *st) {
    rg_gpu_chunk *c = &g->chunks[g->n_chunk];
    *c = (rg_gpu_chunk){.begin = begin, .bytes = (size_t)(end - begin)};
    RG_TRY(rg_gpu_buffer_create(g->gpu, &c->buffer, c->bytes, RG_GPU_DEVICE, st));
    g->n_chunk++;
    return rg_gpu_write(g->gpu, &c->buffer, 0, begin, c->bytes, st);
}

static rg_code upload(rg_gpu_core *g, const starts *s, rg_status *st) {
    const rg_weights *w = &g->core->w;
    const uint8_t *memory_end = (const uint8_t *)w->memory + w->memory_bytes;
    const uint64_t most = rg_gpu_get_info(g->gpu)->alloc_bytes;
    const size_t limit = most && most < CHUNK_BYTES ? (size_t)most : CHUNK_BYTES;
    g->chunks = rg_alloc(s->n, sizeof *g->chunks, st);
    if (!g->chunks) return RG_NOMEM;
    for (size_t i = 0; i < s->n;) {
        const uint8_t *begin = s->at[i];
        const uint8_t *end = begin;
        for (; i < s->n; i++) {
            const uint8_t *next = i + 1 < s->n ? s->at[i + 1] : memory_end;
            if (end > begin && (size_t)(next - begin) > limit) break;
            end = next;
        }
        RG_TRY(upload_chunk(g, begin, end, st));
    }
    return RG_OK;
}

static rg_code upload_weights(rg_gpu_core *g, rg_status *st) {
    starts s = {0};
    note_all(&s, g->core);
    s.cap = s.n;
    s.at = rg_alloc(s.cap, sizeof *s.at, st);
    if (!s.at) return RG_NOMEM;
    note_all(&s, g->core);
    qsort(s.at, s.n, sizeof *s.at, by_address);
    rg_code rc = upload(g, &s, st);
    rg_free(s.at);
    if (rc != RG_OK) return rg_context(st, rc, "weights on the device");
    rg_mem_release(g->core->w.memory, g->core->w.memory_bytes);
    return RG_OK;
}

rg_gpu_ptr rg_gpu_core_at(const rg_gpu_core *g, const void *host) {
    const uint8_t *p = host;
    if (!p) return 0;
    if (g->arena_host && p >= g->arena_host && p < (uint8_t *)g->arena.mapped + g->arena.bytes)
        return g->arena.address + (uint64_t)(p - (uint8_t *)g->arena.mapped);
    uint32_t lo = 0, hi = g->n_chunk; /* the last chunk that begins at or before p */
    while (hi - lo > 1) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if (g->chunks[mid].begin <= p) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    const rg_gpu_chunk *c = &g->chunks[lo];
    RG_ASSERT(p >= c->begin && p < c->begin + c->bytes);
    return c->buffer.address + (uint64_t)(p - c->begin);
}

/* ---- scratch -------------------------------------------------------------------------------- */

uint32_t rg_gpu_usual_side(const rg_core *core, uint32_t T) {
    const uint64_t each = (uint64_t)T * core->hp->n_expert_used / core->hp->n_expert;
    return each > 32 ? 4 : each > 16 ? 2 : 1;
}

bool rg_gpu_expert_tile(const rg_core *core, uint32_t layer, uint32_t T, rg_gpu_tile *out) {
    const rg_moe_weights *w = &rg_gpu_layer(core, layer)->moe;
    const rg_gpu_info *info = rg_gpu_get_info(core->gpu->gpu);
    const rg_mat *gate = &w->gate.mat;
    const rg_gpu_tile_key key = {.op = RG_GPU_OP_EXPERTS,
                                 .type = gate->type,
                                 .n_in = gate->n_in,
                                 .n_out = gate->n_out,
                                 .n = T * core->hp->n_expert_used};
    const rg_gpu_tile *found = rg_gpu_tiles_find(&core->gpu->tiles, &key);
    *out = found ? *found : (rg_gpu_tile){.key = key};
    if (!out->side) out->side = rg_gpu_usual_side(core, T);
    /* They share a list of tiles: what one of them cannot take none gets. */
    const bool matrix = !out->no_matrix && rg_gpu_has_matrix(info, gate->type) &&
                        rg_gpu_has_matrix(info, w->up.mat.type) &&
                        rg_gpu_has_matrix(info, w->down.mat.type);
    if (!matrix && out->side > RG_GPU_SIDE_MAX) out->side = RG_GPU_SIDE_MAX;
    return found != NULL;
}

/* Words of a list of slots or tiles, whatever the side. */
static size_t list_words(const rg_core *core) {
    return rg_gpu_plan_words(core->chunk * core->hp->n_expert_used, core->hp->n_expert, 16);
}

static size_t layout_shared(const rg_core *core, rg_gpu_shared *s, uint8_t *base) {
    rg_layout p = {.base = base};
    const rg_hparams *hp = core->hp;
    const size_t T = core->chunk;
    s->ids = rg_layout_take(&p, T, sizeof *s->ids);
    s->rope = rg_layout_take(&p, T * hp->n_rot, sizeof(float));
    s->rope_blocks = rg_layout_take(&p, (T + RG_SEGMENTS_MAX) * hp->n_rot, sizeof(float));
    s->stands = rg_layout_take(&p, (size_t)2 * RG_SEGMENTS_MAX, sizeof *s->stands);
    s->ple_in = rg_layout_take(&p, T * hp->ple_n_head * hp->ple_row, sizeof(float));
    for (int i = 0; i < 3; i++)
        s->experts[i] = rg_layout_take(&p, hp->n_expert, sizeof *s->experts[i]);
    for (int i = 0; i < 2; i++) {
        s->slots[i] = rg_layout_take(&p, list_words(core), sizeof(uint32_t));
        s->grids[i] = rg_layout_take(&p, 6, sizeof(uint32_t));
    }
    s->moe_ids = rg_layout_take(&p, T * hp->n_expert_used, sizeof(uint32_t));
    s->sources = rg_layout_take(&p, T, sizeof *s->sources);
    return p.used;
}

static size_t layout_seen(const rg_core *core, rg_gpu_seen *s, uint8_t *base) {
    rg_layout p = {.base = base};
    const rg_hparams *hp = core->hp;
    const size_t T = core->chunk;
    s->flag = rg_layout_take(&p, 1, sizeof *s->flag);
    s->ids = rg_layout_take(&p, T * hp->n_expert_used, sizeof *s->ids);
    s->router = rg_layout_take(&p, T * hp->n_expert, sizeof(float));
    s->ahead = rg_layout_take(&p, T * hp->n_expert, sizeof(float));
    s->logits = rg_layout_take(&p, (size_t)RG_HEAD_ROWS * hp->n_vocab, sizeof(float));
    s->best =
        rg_layout_take(&p, (size_t)RG_GPU_ROWS_MAX * (1 + 2 * RG_GPU_BEST_MAX), sizeof *s->best);
    return p.used;
}

static uint8_t *device_base(const rg_gpu_buffer *b) {
    return (uint8_t *)(uintptr_t)b->address;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static void layout_codes(const rg_core *core, rg_gpu_codes *c, rg_layout *p) {
    const rg_hparams *hp = core->hp;
    const size_t T = core->chunk;
    uint32_t n_ff = 0;
    for (uint32_t i = 0; i < rg_gpu_layers(core); i++) {
        const uint32_t own = rg_gpu_layer(core, i)->moe.n_ff;
        n_ff = own > n_ff ? own : n_ff;
    }
    size_t wide = rg_gpu_act_bytes(hp->n_hc * hp->n_embd);
    wide = larger(wide, rg_gpu_act_bytes(hp->n_v_head * hp->ssm_head_dim));
    wide = larger(wide, rg_gpu_act_bytes(hp->n_head * hp->head_dim));
    wide = larger(wide, rg_gpu_act_bytes(hp->ple_n_head * hp->ple_row));
    /* Rows of the draft block's projection, whole or in halves. */
    if (hp->n_mtp) wide = larger(wide, (size_t)2 * hp->n_hc * rg_gpu_act_bytes(hp->n_embd));
    c->wide = rg_layout_take(p, T * wide, 1);
    c->low = rg_layout_take(p, T * rg_gpu_act_bytes(hp->n_hc_rank), 1);
    c->u = rg_layout_take(p, T * rg_gpu_act_bytes(hp->n_embd), 1);
    c->shared = rg_layout_take(p, T * rg_gpu_act_bytes(hp->n_ff_shared), 1);
    c->hidden = rg_layout_take(p, T * hp->n_expert_used * rg_gpu_act_bytes(n_ff), 1);
}

/* What the read of a hyper-connection takes in parts, for the most rows that it is done for. */
static size_t planes_bytes(const rg_core *core) {
    const rg_mat *w = &core->w.layers[0].hc_attn.down;
    for (uint32_t n = core->chunk; n; n--) {
        const size_t bytes = rg_gpu_planes_bytes(w->type, w->n_in, w->n_out, n);
        if (bytes) return bytes;
    }
    return 0;
}

/* The scratch plan of the CPU without its threads, and the device's own lists behind it. */
static size_t layout_scratch(rg_gpu_core *g, uint8_t *base) {
    const rg_scratch_shape shape = {.model = g->core->model, .chunk = g->core->chunk};
    rg_layout p = {.base = base};
    p.used = rg_scratch_layout(&shape, &g->s, NULL, base);
    layout_codes(g->core, &g->codes, &p);
    g->flag = rg_layout_take(&p, 1, sizeof *g->flag);
    g->list = rg_layout_take(&p, list_words(g->core), sizeof *g->list);
    g->grids = rg_layout_take(&p, 6, sizeof *g->grids);
    g->planes_bytes = planes_bytes(g->core);
    g->planes = rg_layout_take(&p, g->planes_bytes, 1);
    g->best_parts =
        rg_layout_take(&p, (size_t)RG_GPU_ROWS_MAX * RG_GPU_BEST_WORDS, sizeof *g->best_parts);
    return p.used;
}

static rg_code make_scratch(rg_gpu_core *g, rg_status *st) {
    rg_code rc =
        rg_gpu_buffer_create(g->gpu, &g->scratch, layout_scratch(g, NULL), RG_GPU_DEVICE, st);
    if (rc == RG_OK)
        rc = rg_gpu_buffer_create(g->gpu, &g->shared, layout_shared(g->core, &g->to, NULL),
                                  RG_GPU_SHARED, st);
    if (rc == RG_OK)
        rc = rg_gpu_buffer_create(g->gpu, &g->readback, layout_seen(g->core, &g->from, NULL),
                                  RG_GPU_READBACK, st);
    if (rc != RG_OK) return rg_context(st, rc, "scratch for chunks of %u tokens", g->core->chunk);
    layout_scratch(g, device_base(&g->scratch));
    layout_shared(g->core, &g->to, g->shared.mapped);
    layout_shared(g->core, &g->at, device_base(&g->shared));
    layout_seen(g->core, &g->from, g->readback.mapped);
    layout_seen(g->core, &g->out, device_base(&g->readback));
    return RG_OK;
}

/* ---- core ----------------------------------------------------------------------------------- */

static rg_code check_shapes(const rg_core *core, rg_status *st) {
    const rg_hparams *hp = core->hp;
    if (hp->head_dim > RG_GPU_HEAD_DIM_MAX || hp->idx_head_dim > RG_GPU_HEAD_DIM_MAX) {
        return rg_fail(st, RG_UNSUPPORTED, "heads of %u are wanted, the GPU kernels take %u",
                       hp->head_dim, RG_GPU_HEAD_DIM_MAX);
    }
    uint32_t ratio = 0;
    for (uint32_t i = 0; i < rg_gpu_layers(core); i++) {
        const rg_layer_weights *w = rg_gpu_layer(core, i);
        const uint32_t own = w->is_attn ? w->attn.ratio : 0;
        if (own && ratio && own != ratio) {
            return rg_fail(st, RG_UNSUPPORTED,
                           "blocks of %u and of %u tokens: the GPU takes one size for all layers",
                           ratio, own);
        }
        if (own) ratio = own;
    }
    if (hp->n_expert > RG_GPU_EXPERT_MAX) {
        return rg_fail(st, RG_UNSUPPORTED, "%u experts a layer, the GPU kernels take %u",
                       hp->n_expert, RG_GPU_EXPERT_MAX);
    }
    return RG_OK;
}

static rg_code open_lists(rg_gpu_core *g, rg_status *st) {
    for (uint32_t i = 0; i <= RG_GPU_ROWS_MAX; i++) {
        RG_TRY(rg_gpu_list_create(&g->whole[i].lists[0], g->gpu, st));
        RG_TRY(rg_gpu_list_create(&g->whole[i].lists[1], g->gpu, st));
    }
    RG_TRY(rg_gpu_list_create(&g->last, g->gpu, st));
    RG_TRY(rg_gpu_list_create(&g->head, g->gpu, st));
    RG_TRY(rg_gpu_list_create(&g->zero, g->gpu, st));
    RG_TRY(rg_gpu_list_create(&g->settle, g->gpu, st));
    RG_TRY(rg_gpu_list_create(&g->rows, g->gpu, st));
    for (uint32_t i = 0; i < RG_GPU_STEPS; i++)
        RG_TRY(rg_gpu_list_create(&g->steps[i], g->gpu, st));
    return RG_OK;
}

rg_code rg_gpu_core_create(rg_core *core, rg_status *st) {
    rg_code rc = check_shapes(core, st);
    if (rc != RG_OK) return rc;
    rg_gpu_core *g = rg_alloc(1, sizeof *g, st);
    if (!g) return RG_NOMEM;
    g->core = core;
    const rg_gpu_options opt = {.device = core->opt.gpu_device,
                                .validate = core->opt.gpu_validate,
                                .cache_path = core->opt.gpu_cache_path};
    RG_GO(rg_gpu_open(&g->gpu, &opt, st));
    RG_GO(rg_gpu_tiles_open(g, st));
    RG_GO(rg_gpu_tables_create(g->gpu, &g->tables, st));
    RG_GO(make_scratch(g, st));
    RG_GO(open_lists(g, st));
    RG_GO(upload_weights(g, st)); /* last: it gives the host's copy back */
    rg_log(RG_LOG_INFO, "%s computes, %llu MiB of its memory", rg_gpu_get_info(g->gpu)->name,
           (unsigned long long)(rg_gpu_bytes(g->gpu) >> 20));
    core->gpu = g;
    return RG_OK;
cleanup:
    rg_gpu_core_destroy(g);
    return rc;
}

void rg_gpu_core_destroy(rg_gpu_core *g) {
    if (!g) return;
    if (g->gpu) {
        const char *first = NULL;
        rg_gpu_drain(g->gpu); /* after a failure lists may run yet */
        const uint64_t n = rg_gpu_complaints(g->gpu, &first);
        if (n) {
            rg_log(RG_LOG_ERROR, "the validation layers complained %llu times, first: %s",
                   (unsigned long long)n, first);
        }
        for (uint32_t i = 0; i <= RG_GPU_ROWS_MAX; i++) {
            rg_gpu_list_destroy(g->whole[i].lists[0]);
            rg_gpu_list_destroy(g->whole[i].lists[1]);
        }
        rg_gpu_turns_destroy(g);
        rg_gpu_list_destroy(g->last);
        rg_gpu_list_destroy(g->head);
        rg_gpu_list_destroy(g->zero);
        rg_gpu_list_destroy(g->settle);
        rg_gpu_list_destroy(g->rows);
        for (uint32_t i = 0; i < RG_GPU_STEPS; i++)
            rg_gpu_list_destroy(g->steps[i]);
        rg_gpu_buffer_destroy(g->gpu, &g->tables);
        rg_gpu_buffer_destroy(g->gpu, &g->scratch);
        rg_gpu_buffer_destroy(g->gpu, &g->shared);
        rg_gpu_buffer_destroy(g->gpu, &g->readback);
        rg_gpu_arena_close(g);
        for (uint32_t i = 0; i < g->n_chunk; i++)
            rg_gpu_buffer_destroy(g->gpu, &g->chunks[i].buffer);
    }
    rg_gpu_close(g->gpu);
    rg_gpu_tiles_deinit(&g->tiles);
    rg_free(g->tiles_path);
    rg_free(g->chunks);
    rg_free(g);
}

const char *rg_core_gpu_name(const rg_core *core) {
    return core->gpu ? rg_gpu_get_info(core->gpu->gpu)->name : "";
}

void rg_gpu_forget(rg_gpu_core *g) {
    for (uint32_t i = 0; i <= RG_GPU_ROWS_MAX; i++)
        g->whole[i].key = 0;
    rg_gpu_turns_forget(g);
}

void rg_core_gpu_switch(rg_core *core, uint32_t unfused, uint32_t slot_rows, bool stamps) {
    core->opt.gpu_unfused = unfused;
    core->opt.gpu_slot_rows = slot_rows;
    core->opt.gpu_stamps = stamps;
    if (core->gpu) rg_gpu_forget(core->gpu);
}

void rg_core_gpu_counts(const rg_core *core, uint32_t *dispatches, uint32_t *barriers) {
    *dispatches = core->gpu ? core->gpu->dispatches : 0;
    *barriers = core->gpu ? core->gpu->barriers : 0;
}

uint64_t rg_core_gpu_complaints(const rg_core *core) {
    return core->gpu ? rg_gpu_complaints(core->gpu->gpu, NULL) : 0;
}

/* ---- sequences ------------------------------------------------------------------------------ */

static uint32_t block_cap(const rg_core *core, uint32_t n_ctx) {
    uint32_t cap = 0;
    for (uint32_t i = 0; i < rg_gpu_layers(core); i++) {
        const rg_layer_weights *w = rg_gpu_layer(core, i);
        const uint32_t ratio = w->is_attn ? w->attn.ratio : 0;
        if (ratio && n_ctx / ratio > cap) cap = n_ctx / ratio;
    }
    return cap;
}

static size_t layout_seq(const rg_seq *seq, rg_gpu_seq *d, uint8_t *base) {
    const rg_core *core = seq->core;
    rg_seq shape = {.opt = seq->opt, .layers = d->layers};
    rg_layout p = {.base = base};
    p.used = rg_seq_layout(&shape, core->model, 1, base);
    d->pending = shape.mtp_pending;
    d->cap = block_cap(core, seq->opt.n_ctx);
    d->scores = rg_layout_take(&p, (size_t)core->chunk * d->cap, sizeof(float));
    d->bits = rg_layout_take(&p, (size_t)core->chunk * ((d->cap + 31) / 32), sizeof(uint32_t));
    return p.used;
}

rg_code rg_gpu_seq_create(rg_seq *seq, rg_status *st) {
    rg_core *core = seq->core;
    rg_gpu_seq *d = rg_alloc(1, sizeof *d, st);
    seq->gpu = d;
    if (!d) return RG_NOMEM;
    d->layers = rg_alloc(core->hp->n_layer + core->hp->n_mtp, sizeof *d->layers, st);
    if (!d->layers) return RG_NOMEM;
    const rg_code rc = rg_gpu_buffer_create(core->gpu->gpu, &d->memory, layout_seq(seq, d, NULL),
                                            RG_GPU_DEVICE, st);
    if (rc != RG_OK) return rg_context(st, rc, "state for %u tokens", seq->opt.n_ctx);
    layout_seq(seq, d, device_base(&d->memory));
    const bool hardware = strcmp(rg_gpu_get_info(core->gpu->gpu)->kind, "software") != 0;
    const rg_gpu_prewarm want = core->opt.gpu_prewarm;
    if (want == RG_GPU_PREWARM_ON || (want == RG_GPU_PREWARM_AUTO && hardware))
        return rg_gpu_prewarm_run(seq, want == RG_GPU_PREWARM_ON, st);
    return RG_OK;
}

void rg_gpu_seq_destroy(rg_seq *seq) {
    rg_gpu_seq *d = seq->gpu;
    if (!d) return;
    rg_gpu_core *g = seq->core->gpu;
    rg_gpu_drain(g->gpu); /* after a failure lists may run yet */
    rg_gpu_forget(g);     /* they may name this sequence */
    rg_gpu_buffer_destroy(g->gpu, &d->memory);
    rg_free(d->layers);
    rg_free(d);
    seq->gpu = NULL;
}
