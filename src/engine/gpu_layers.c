/* The layers as command lists: the operations of layer_*.c in the same order. Each barrier stands
 * before the first op that reads what was just written; ops between two barriers are independent.
 */
#include "engine/gpu_core.h"

#include <math.h>

static void sync(const rg_gpu_rec *r) {
    rg_gpu_barrier(r->list); /* for what its callers say */
}

/* Whether ops of a window of `rows` go together. */
static bool fused(const rg_gpu_rec *r, uint32_t what, uint32_t rows) {
    return rows <= RG_GPU_ROWS_MAX && !(r->core->opt.gpu_unfused & what);
}

static rg_gpu_ptr weight(const rg_gpu_rec *r, const void *host) {
    return rg_gpu_core_at(r->g, host);
}

static rg_gpu_ptr stand_of(const rg_gpu_rec *r, uint32_t seg) {
    return rg_at(r->g->at.stands + seg);
}

/* Rows that products read: f32, and as codes. */
typedef struct input {
    const float *x;
    const uint8_t *codes;
} input;

static input u_of(const rg_gpu_rec *r) {
    return (input){r->g->s.u, r->g->codes.u};
}

static input wide(const rg_gpu_rec *r, const float *x) {
    return (input){x, r->g->codes.wide};
}

/* Only rows of whole groups are read by quantised weights. */
static rg_gpu_ptr codes_at(const uint8_t *codes, uint32_t n) {
    return n % 32 ? 0 : rg_at(codes);
}

/* Makes the codes. */
static void quantize(rg_gpu_rec *r, input in, uint32_t n, uint32_t rows) {
    if (n % 32) return;
    const rg_gpu_quantize_args a = {.x = rg_at(in.x), .y = rg_at(in.codes), .n = n, .x_stride = n};
    rg_gpu_quantize(r->list, &a, rows);
    sync(r); /* codes */
}

static rg_gpu_product product_of(const rg_gpu_rec *r, const rg_mat *w, input in, float *y,
                                 uint32_t n) {
    return (rg_gpu_product){.w = w->data ? weight(r, w->data) : 0,
                            .x = rg_gpu_takes_floats(w->type) ? rg_at(in.x) : rg_at(in.codes),
                            .y = rg_at(y),
                            .tables = r->g->tables.address,
                            .n_in = w->n_in,
                            .n_out = w->n_out,
                            .row_bytes = (uint32_t)w->row_bytes,
                            .x_stride = w->n_in,
                            .y_stride = w->n_out,
                            .x_div = 1,
                            .div = 1.0f,
                            .n = n};
}

/* A kernel that runs once in a window is fetched anew each time: there short code beats loops that
 * are written out, which win where a product is measured alone. */
static bool loops(const rg_gpu_rec *r) {
    return !(r->core->opt.gpu_unfused & RG_GPU_LOOP);
}

static rg_gpu_product_way way_of(const rg_gpu_rec *r, const rg_mat *w, rg_gpu_epilogue epilogue) {
    return (rg_gpu_product_way){.type = w->type, .epilogue = epilogue, .loop = loops(r)};
}

/* The shape that was measured to be the best, if any; a sweep writes down what asks instead. */
static void shape(const rg_gpu_rec *r, rg_gpu_tile_op op, const rg_gpu_product *p,
                  rg_gpu_product_way *way) {
    if (r->g->noted) {
        rg_gpu_note(r->g, op, p, way);
    } else if (rg_gpu_tiles_choose(&r->g->tiles, op, p, way)) {
        r->g->n_shaped++;
    }
}

/* One matrix. */
static void mul(const rg_gpu_rec *r, const rg_gpu_product *p, rg_gpu_product_way *way) {
    shape(r, p->n <= RG_GPU_ROWS_MAX ? RG_GPU_OP_ROWS : RG_GPU_OP_TILES, p, way);
    rg_gpu_mul(r->list, p, way);
}

/* Whether the product makes the codes of its rows itself. */
static bool codes_itself(const rg_gpu_rec *r, const rg_mat *w, uint32_t rows) {
    return fused(r, RG_GPU_FUSE_CODES, rows) && rg_gpu_mul_codes(w->type, w->n_in);
}

/* The product of short rows of x, which have no codes yet. */
static void multiply_coding(rg_gpu_rec *r, const rg_mat *w, input in, float *y, uint32_t rows) {
    rg_gpu_product p = product_of(r, w, in, y, rows);
    rg_gpu_product_way way = way_of(r, w, RG_GPU_PLAIN);
    way.coding = codes_itself(r, w, rows);
    if (way.coding) {
        p.x = rg_at(in.x);
    } else {
        quantize(r, in, w->n_in, rows);
    }
    mul(r, &p, &way);
}

static void multiply(rg_gpu_rec *r, const rg_mat *w, input in, float *y, uint32_t rows,
                     rg_gpu_epilogue epilogue, float div) {
    rg_gpu_product p = product_of(r, w, in, y, rows);
    p.div = div;
    rg_gpu_product_way way = way_of(r, w, epilogue);
    mul(r, &p, &way);
}

/* The wide read of a hyper-connection: few tiles of long rows. */
static void low_product(rg_gpu_rec *r, const rg_mat *down, uint32_t rows) {
    rg_gpu_product p = product_of(r, down, wide(r, r->g->s.normed), r->g->s.low, rows);
    rg_gpu_product_way way = way_of(r, down, RG_GPU_SILU);
    p.div = (float)r->core->hp->n_hc;
    way.planes = rg_at(r->g->planes);
    way.planes_bytes = r->g->planes_bytes;
    mul(r, &p, &way);
}

static void plain(rg_gpu_rec *r, const rg_mat *w, input in, float *y, uint32_t rows) {
    multiply(r, w, in, y, rows, RG_GPU_PLAIN, 1.0f);
}

/* A product and where its results go. */
typedef struct target {
    const rg_mat *w;
    float *y;
    rg_gpu_epilogue epilogue;
} target;

/* Two products of one input that depend on nothing else of each other: in one dispatch where their
 * rows are of one kind. */
static void multiply_both(rg_gpu_rec *r, input in, uint32_t rows, target a, target b) {
    RG_ASSERT(a.w->n_in == b.w->n_in);
    if (!fused(r, RG_GPU_FUSE_PAIRS, rows) || a.w->type != b.w->type) {
        multiply(r, a.w, in, a.y, rows, a.epilogue, 1.0f);
        multiply(r, b.w, in, b.y, rows, b.epilogue, 1.0f);
        return;
    }
    rg_gpu_product p = product_of(r, a.w, in, a.y, rows);
    rg_gpu_product_way way = way_of(r, a.w, a.epilogue);
    p.w2 = weight(r, b.w->data);
    p.y2 = rg_at(b.y);
    p.n_out2 = p.y_stride2 = b.w->n_out;
    way.epilogue2 = b.epilogue;
    mul(r, &p, &way);
}

void rg_gpu_rec_embed(rg_gpu_rec *r, const rg_mat *w, float *y) {
    const rg_gpu_embed_args a = {.w = weight(r, w->data),
                                 .tables = r->g->tables.address,
                                 .ids = rg_at(r->g->at.ids),
                                 .y = rg_at(y),
                                 .n = r->core->hp->n_embd,
                                 .n_hc = r->core->hp->n_hc,
                                 .row_bytes = (uint32_t)w->row_bytes};
    rg_gpu_embed(r->list, &a, w->type, r->win->T);
    sync(r); /* embeddings */
}

/* ---- hyper-connections ---------------------------------------------------------------------- */

/* By an op of its own. */
void rg_gpu_rec_settle(rg_gpu_rec *r) {
    const rg_hparams *hp = r->core->hp;
    const rg_scratch *s = &r->g->s;
    const bool experts = r->owed == RG_GPU_OWED_EXPERTS;
    if (r->owed == RG_GPU_OWED_NOTHING) return;
    const rg_gpu_hc_write_args a = {.residual = rg_at(r->residual),
                                    .inject = rg_at(s->inject),
                                    .y = rg_at(experts ? s->shared_out : s->y),
                                    .experts = experts ? rg_at(s->expert_out) : 0,
                                    .weights = rg_at(s->expert_w),
                                    .sigma = rg_at(s->shared_sigma),
                                    .n = hp->n_embd,
                                    .n_hc = hp->n_hc,
                                    .n_used = hp->n_expert_used};
    rg_gpu_hc_write(r->list, &a, r->win->T);
    r->owed = RG_GPU_OWED_NOTHING;
    sync(r); /* residual */
}

static bool joins_norm(const rg_gpu_rec *r, uint32_t rows) {
    return fused(r, RG_GPU_FUSE_WRITE_NORM, rows) &&
           rg_gpu_hc_norm_takes(r->core->hp->n_embd, r->core->hp->n_expert_used);
}

/* What a half layer or the experts made goes into the residual: by the next norm if that can. */
static void write_back(rg_gpu_rec *r, rg_gpu_owed what) {
    RG_ASSERT(r->owed == RG_GPU_OWED_NOTHING);
    r->owed = what;
    if (!joins_norm(r, r->win->T)) rg_gpu_rec_settle(r);
}

static void hc_norm_joined(rg_gpu_rec *r, const rg_hc_weights *w, const float *residual,
                           uint32_t rows, uint32_t code) {
    const rg_hparams *hp = r->core->hp;
    const rg_scratch *s = &r->g->s;
    const bool experts = r->owed == RG_GPU_OWED_EXPERTS;
    RG_ASSERT(r->owed == RG_GPU_OWED_NOTHING || residual == r->residual);
    const rg_gpu_hc_norm_args a = {.residual = rg_at(residual),
                                   .inject = rg_at(s->inject),
                                   .y = rg_at(experts ? s->shared_out : s->y),
                                   .experts = rg_at(s->expert_out),
                                   .weights = rg_at(s->expert_w),
                                   .sigma = rg_at(s->shared_sigma),
                                   .w = weight(r, w->norm),
                                   .normed = rg_at(s->normed),
                                   .flag = rg_at(r->g->flag),
                                   .codes = rg_at(r->g->codes.wide),
                                   .n = hp->n_embd,
                                   .n_hc = hp->n_hc,
                                   .eps = hp->rms_eps,
                                   .code = code};
    rg_gpu_hc_norm(r->list, &a, r->owed, hp->n_expert_used, rows);
    r->owed = RG_GPU_OWED_NOTHING;
}

static void hc_norm(rg_gpu_rec *r, const rg_hc_weights *w, const float *residual, uint32_t rows,
                    uint32_t code) {
    const rg_hparams *hp = r->core->hp;
    const rg_gpu_norm_args norm = {.x = rg_at(residual),
                                   .w = weight(r, w->norm),
                                   .y = rg_at(r->g->s.normed),
                                   .flag = rg_at(r->g->flag),
                                   .n = hp->n_embd,
                                   .n_w = hp->n_hc,
                                   .per = hp->n_hc,
                                   .x_stride = hp->n_hc * hp->n_embd,
                                   .y_stride = hp->n_hc * hp->n_embd,
                                   .eps = hp->rms_eps,
                                   .codes = codes_at(r->g->codes.wide, hp->n_embd),
                                   .code = code};
    rg_gpu_rec_settle(r);
    rg_gpu_norm(r->list, &norm, RG_GPU_RMS, rows * hp->n_hc);
}

static void hc_up_joined(rg_gpu_rec *r, const rg_mat *up, uint32_t rows) {
    const rg_hparams *hp = r->core->hp;
    const rg_scratch *s = &r->g->s;
    const rg_gpu_hc_up_args a = {.w = weight(r, up->data),
                                 .low = rg_at(s->low),
                                 .normed = rg_at(s->normed),
                                 .u = rg_at(s->u),
                                 .codes = rg_at(r->g->codes.u),
                                 .tables = r->g->tables.address,
                                 .n = hp->n_embd,
                                 .row_bytes = (uint32_t)up->row_bytes};
    rg_gpu_hc_up(r->list, &a, up->type, hp->n_hc, up->n_in, rows);
}

static void hc_up(rg_gpu_rec *r, const rg_mat *up, uint32_t rows) {
    const rg_hparams *hp = r->core->hp;
    const rg_scratch *s = &r->g->s;
    const input low = {s->low, r->g->codes.low};
    multiply_coding(r, up, low, s->mix, rows);
    sync(r); /* mix */
    const rg_gpu_hc_mix_args mix = {.gate = rg_at(s->mix),
                                    .normed = rg_at(s->normed),
                                    .u = rg_at(s->u),
                                    .codes = codes_at(r->g->codes.u, hp->n_embd),
                                    .n = hp->n_embd,
                                    .n_hc = hp->n_hc};
    rg_gpu_hc_mix(r->list, &mix, rows);
}

void rg_gpu_rec_hc_read(rg_gpu_rec *r, const rg_hc_weights *w, const float *residual, uint32_t rows,
                        uint32_t code) {
    const rg_hparams *hp = r->core->hp;
    const rg_scratch *s = &r->g->s;
    const float H = (float)hp->n_hc;
    if (joins_norm(r, rows)) {
        hc_norm_joined(r, w, residual, rows, code);
    } else {
        hc_norm(r, w, residual, rows, code);
    }
    sync(r); /* normed; what was owed is read */
    low_product(r, &w->down, rows);
    if (w->inject.data)
        multiply(r, &w->inject, wide(r, s->normed), s->inject, rows, RG_GPU_SIGMOID2, H);
    sync(r); /* low */
    if (fused(r, RG_GPU_FUSE_UP_MIX, rows) &&
        rg_gpu_hc_up_takes(w->up.type, hp->n_embd, hp->n_hc, w->up.n_in)) {
        hc_up_joined(r, &w->up, rows);
    } else {
        hc_up(r, &w->up, rows);
    }
    sync(r); /* u */
}

/* ---- gated delta net ------------------------------------------------------------------------ */

bool rg_gpu_window_settles(const rg_core *core, uint32_t T) {
    return T <= RG_GPU_ROWS_MAX && !(core->opt.gpu_unfused & RG_GPU_FUSE_DELTA) &&
           rg_gpu_gdn_whole_takes(rg_gpu_get_info(core->gpu->gpu), core->hp->ssm_head_dim);
}

static rg_gpu_delta delta_of(const rg_gpu_rec *r, uint32_t layer, uint32_t index) {
    const rg_hparams *hp = r->core->hp;
    const rg_scratch *s = &r->g->s;
    const rg_segment *seg = &r->win->segs[index];
    const size_t row0 = seg->row0, n = rg_gdn_channels(hp), Hv = hp->n_v_head;
    return (rg_gpu_delta){.w = &rg_gpu_layer(r->core, layer)->gdn,
                          .state = &seg->seq->gpu->layers[layer],
                          .stand = stand_of(r, index),
                          .qkv = s->qkv + row0 * n,
                          .alpha = s->alpha + row0 * Hv,
                          .beta = s->beta + row0 * Hv,
                          .conv = s->conv + row0 * n,
                          .o = s->gdn_o + row0 * Hv * hp->ssm_head_dim,
                          .rows = seg->n};
}

static void delta_history(rg_gpu_rec *r, const rg_gpu_delta *d) {
    const rg_hparams *hp = r->core->hp;
    const rg_gpu_history_args h = {.past = rg_at(d->state->conv),
                                   .x = rg_at(d->qkv),
                                   .stand = d->stand,
                                   .alpha = rg_at(d->alpha),
                                   .beta = rg_at(d->beta),
                                   .n = (uint32_t)rg_gdn_channels(hp),
                                   .keep = hp->ssm_conv - 1,
                                   .rows = d->rows,
                                   .n_head = hp->n_v_head};
    rg_gpu_history(r->list, &h);
}

void rg_gpu_rec_delta(rg_gpu_rec *r, const rg_gpu_delta *d) {
    const rg_hparams *hp = r->core->hp;
    const rg_gdn_weights *w = d->w;
    const uint32_t D = hp->ssm_head_dim, Hk = hp->n_k_head, Hv = hp->n_v_head;
    const uint32_t n = (uint32_t)rg_gdn_channels(hp);
    const rg_gpu_conv_args c = {.w = weight(r, w->conv),
                                .x = rg_at(d->qkv),
                                .past = rg_at(d->state->conv),
                                .y = rg_at(d->conv),
                                .stand = d->stand,
                                .n = n,
                                .n_tap = hp->ssm_conv,
                                .dilation = 1};
    rg_gpu_conv(r->list, &c, d->rows);
    sync(r); /* conv; the history is read */
    delta_history(r, d);
    const rg_gpu_norm_args norm = {.x = rg_at(d->conv),
                                   .y = rg_at(d->conv),
                                   .n = D,
                                   .n_w = 1,
                                   .per = 2 * Hk,
                                   .x_stride = n,
                                   .y_stride = n,
                                   .eps = 1e-6f,
                                   .scale = 1.0f / sqrtf((float)D),
                                   .n_scaled = Hk};
    rg_gpu_norm(r->list, &norm, RG_GPU_L2, d->rows * 2 * Hk);
    sync(r); /* q and k */
    const rg_gpu_gdn_args g = {.S = rg_at(d->state->S),
                               .c = rg_at(d->conv),
                               .alpha = rg_at(d->alpha),
                               .beta = rg_at(d->beta),
                               .dt = weight(r, w->dt),
                               .a = weight(r, w->a),
                               .o = rg_at(d->o),
                               .stand = d->stand,
                               .D = D,
                               .n_head = Hv,
                               .n_k = Hk,
                               .rows = d->rows};
    rg_gpu_gdn(r->list, &g);
}

/* Up to the codes of the heads' outputs, op by op. */
static void gdn_by_ops(rg_gpu_rec *r, uint32_t layer) {
    const rg_hparams *hp = r->core->hp;
    const rg_scratch *s = &r->g->s;
    const rg_gdn_weights *w = &rg_gpu_layer(r->core, layer)->gdn;
    const uint32_t D = hp->ssm_head_dim, Hv = hp->n_v_head;
    for (uint32_t i = 0; i < r->win->n_seg; i++) {
        const rg_gpu_delta d = delta_of(r, layer, i);
        rg_gpu_rec_delta(r, &d);
    }
    sync(r); /* gdn_o */
    const rg_gpu_norm_args norm = {.x = rg_at(s->gdn_o),
                                   .w = weight(r, w->norm),
                                   .y = rg_at(s->gdn_o),
                                   .gate = rg_at(s->z),
                                   .n = D,
                                   .n_w = 1,
                                   .per = Hv,
                                   .x_stride = Hv * D,
                                   .y_stride = Hv * D,
                                   .eps = hp->rms_eps,
                                   .codes = codes_at(r->g->codes.wide, D)};
    rg_gpu_norm(r->list, &norm, RG_GPU_RMS_GATED, r->win->T * Hv);
    sync(r); /* gdn_o */
}

/* The same in one kernel a segment; the histories are yet to move on. */
static void gdn_at_once(rg_gpu_rec *r, uint32_t layer) {
    const rg_hparams *hp = r->core->hp;
    const rg_scratch *s = &r->g->s;
    const rg_gdn_weights *w = &rg_gpu_layer(r->core, layer)->gdn;
    const uint32_t D = hp->ssm_head_dim, Hv = hp->n_v_head;
    for (uint32_t i = 0; i < r->win->n_seg; i++) {
        const size_t row0 = r->win->segs[i].row0;
        const rg_gpu_delta d = delta_of(r, layer, i);
        const rg_gpu_gdn_whole_args a = {.S = rg_at(d.state->S),
                                         .x = rg_at(d.qkv),
                                         .w = weight(r, w->conv),
                                         .past = rg_at(d.state->conv),
                                         .stand = d.stand,
                                         .alpha = rg_at(d.alpha),
                                         .beta = rg_at(d.beta),
                                         .dt = weight(r, w->dt),
                                         .a = weight(r, w->a),
                                         .w_out = weight(r, w->norm),
                                         .z = rg_at(s->z + row0 * Hv * D),
                                         .o = rg_at(d.o),
                                         .codes = rg_at(r->g->codes.wide) +
                                                  row0 * rg_gpu_act_bytes(Hv * D),
                                         .n_head = Hv,
                                         .n_k = hp->n_k_head,
                                         .rows = d.rows,
                                         .eps_qk = 1e-6f,
                                         .eps = hp->rms_eps,
                                         .scale = 1.0f / sqrtf((float)D)};
        rg_gpu_gdn_whole(r->list, &a, D, hp->ssm_conv);
    }
    sync(r); /* gdn_o, its codes; the histories are read */
    for (uint32_t i = 0; i < r->win->n_seg; i++) {
        const rg_gpu_delta d = delta_of(r, layer, i);
        delta_history(r, &d);
    }
}

static void gdn_layer(rg_gpu_rec *r, uint32_t layer) {
    const rg_scratch *s = &r->g->s;
    const rg_gdn_weights *w = &rg_gpu_layer(r->core, layer)->gdn;
    const uint32_t T = r->win->T;
    multiply_both(r, u_of(r), T, (target){&w->qkv, s->qkv, RG_GPU_PLAIN},
                  (target){&w->gate, s->z, RG_GPU_PLAIN});
    multiply_both(r, u_of(r), T, (target){&w->alpha, s->alpha, RG_GPU_PLAIN},
                  (target){&w->beta, s->beta, RG_GPU_SIGMOID});
    sync(r); /* qkv, alpha, beta, z */
    if (rg_gpu_window_settles(r->core, T)) {
        gdn_at_once(r, layer);
    } else {
        gdn_by_ops(r, layer);
    }
    plain(r, &w->out, wide(r, s->gdn_o), s->y, T);
    sync(r); /* y, histories */
}

/* ---- attention ------------------------------------------------------------------------------ */

typedef struct attn {
    rg_gpu_rec *r;
    const rg_attn_weights *w;
    const rg_segment *seg;
    const rg_kv *kv;
    uint32_t index, layer, keep;
    bool f16, indexed, codes;
} attn;

/* One kind of head: norm, rotation, and where to. */
static void prepare(const attn *a, const float *from, const float *norm, const void *to,
                    bool cached, uint32_t D, uint32_t heads, uint32_t stride, uint32_t step) {
    const rg_hparams *hp = a->r->core->hp;
    const size_t row0 = a->seg->row0;
    const rg_gpu_prepare_args p = {.from = rg_at(from + row0 * stride),
                                   .w = norm ? weight(a->r, norm) : 0,
                                   .rope = rg_at(a->r->g->at.rope + row0 * hp->n_rot),
                                   .to = cached ? rg_at(to)
                                                : rg_at((const float *)to + row0 * heads * D),
                                   .pos0 = cached ? stand_of(a->r, a->index) : 0,
                                   .flag = rg_at(a->r->g->flag),
                                   .D = D,
                                   .n_rot = hp->n_rot,
                                   .from_stride = stride,
                                   .from_step = step,
                                   .eps = hp->rms_eps,
                                   .code = rg_gpu_code(a->layer, RG_GPU_IN_INDEX)};
    rg_gpu_prepare(a->r->list, &p, a->f16, heads, a->seg->n);
}

static void prepare_heads(const attn *a) {
    const rg_hparams *hp = a->r->core->hp;
    const rg_scratch *s = &a->r->g->s;
    const uint32_t D = hp->head_dim, iD = hp->idx_head_dim, n_kv = hp->n_head_kv;
    prepare(a, s->qg, a->w->q_norm, s->q, false, D, hp->n_head, hp->n_head * 2 * D, 2 * D);
    prepare(a, s->k, a->w->k_norm, a->kv->k, true, D, n_kv, n_kv * D, D);
    prepare(a, s->v, NULL, a->kv->v, true, D, n_kv, n_kv * D, D);
    if (!a->w->ratio) return;
    prepare(a, s->idx_k, NULL, a->kv->idx_raw, true, iD, 1, iD, iD);
    if (a->indexed)
        prepare(a, s->idx_q, a->w->idx_q_norm, s->idx_q, false, iD, hp->idx_n_head,
                hp->idx_n_head * iD, iD);
}

static void select_blocks(const attn *a) {
    const rg_hparams *hp = a->r->core->hp;
    const rg_gpu_seq *d = a->seg->seq->gpu;
    const size_t row0 = a->seg->row0;
    const rg_gpu_ptr pos0 = stand_of(a->r, a->index);
    const rg_gpu_block_keys_args keys = {
        .raw = rg_at(a->kv->idx_raw),
        .blocks = rg_at(a->kv->idx_block),
        .w = weight(a->r, a->w->idx_k_norm),
        .rope = rg_at(a->r->g->at.rope_blocks + (row0 + a->index) * hp->n_rot),
        .pos0 = pos0,
        .flag = rg_at(a->r->g->flag),
        .D = hp->idx_head_dim,
        .n_rot = hp->n_rot,
        .ratio = a->w->ratio,
        .rows = a->seg->n,
        .eps = hp->rms_eps,
        .code = rg_gpu_code(a->layer, RG_GPU_IN_INDEX)};
    rg_gpu_block_keys(a->r->list, &keys, a->f16);
    if (!a->indexed) return;
    sync(a->r); /* block keys */
    const rg_gpu_scores_args scores = {
        .q = rg_at(a->r->g->s.idx_q + row0 * hp->idx_n_head * hp->idx_head_dim),
        .keys = rg_at(a->kv->idx_block),
        .scores = rg_at(d->scores),
        .pos0 = pos0,
        .flag = rg_at(a->r->g->flag),
        .D = hp->idx_head_dim,
        .n_head = hp->idx_n_head,
        .ratio = a->w->ratio,
        .cap = d->cap,
        .keep = a->keep,
        .code = rg_gpu_code(a->layer, RG_GPU_IN_INDEX)};
    rg_gpu_scores(a->r->list, &scores, a->f16, a->seg->n);
    sync(a->r); /* scores */
    const rg_gpu_select_args select = {.scores = rg_at(d->scores),
                                       .bits = rg_at(d->bits),
                                       .pos0 = pos0,
                                       .ratio = a->w->ratio,
                                       .cap = d->cap,
                                       .keep = a->keep};
    rg_gpu_select(a->r->list, &select, a->seg->n);
}

static void attend(const attn *a) {
    const rg_hparams *hp = a->r->core->hp;
    const rg_scratch *s = &a->r->g->s;
    const rg_gpu_seq *d = a->seg->seq->gpu;
    const size_t wide = (size_t)a->seg->row0 * hp->n_head * hp->head_dim;
    const rg_gpu_ptr codes =
        rg_at(a->r->g->codes.wide) + a->seg->row0 * rg_gpu_act_bytes(hp->n_head * hp->head_dim);
    const rg_gpu_attention_args p = {.q = rg_at(s->q + wide),
                                     .k = rg_at(a->kv->k),
                                     .v = rg_at(a->kv->v),
                                     .gate = rg_at(s->qg + 2 * wide),
                                     .o = rg_at(s->attn_o + wide),
                                     .bits = rg_at(d->bits),
                                     .pos0 = stand_of(a->r, a->index),
                                     .codes = a->codes ? codes : 0,
                                     .D = hp->head_dim,
                                     .n_head = hp->n_head,
                                     .n_kv = hp->n_head_kv,
                                     .ratio = a->w->ratio,
                                     .cap = d->cap,
                                     .keep = a->keep,
                                     .scale = 1.0f / sqrtf((float)hp->head_dim)};
    rg_gpu_attention(a->r->list, &p, a->f16, a->seg->n);
}

/* Whether attention itself makes the codes of its output. */
static bool attention_codes(const rg_gpu_rec *r) {
    return fused(r, RG_GPU_FUSE_ATTENTION, r->win->T) && r->core->hp->head_dim % 32 == 0;
}

static void attn_segment(rg_gpu_rec *r, uint32_t layer, uint32_t index) {
    const rg_attn_weights *w = &rg_gpu_layer(r->core, layer)->attn;
    const rg_segment *seg = &r->win->segs[index];
    const uint32_t keep = w->ratio ? r->core->hp->idx_budget / w->ratio : 0;
    const attn a = {.r = r,
                    .w = w,
                    .seg = seg,
                    .kv = &seg->seq->gpu->layers[layer].kv,
                    .index = index,
                    .layer = layer,
                    .keep = keep,
                    .f16 = rg_seq_f16(seg->seq),
                    .codes = attention_codes(r),
                    .indexed = w->ratio && (seg->pos0 + seg->n) / w->ratio > keep};
    prepare_heads(&a);
    sync(r); /* q, caches */
    if (w->ratio) {
        select_blocks(&a);
        if (a.indexed) sync(r); /* bits */
    }
    attend(&a);
}

static void attn_layer(rg_gpu_rec *r, uint32_t layer) {
    const rg_scratch *s = &r->g->s;
    const rg_attn_weights *w = &rg_gpu_layer(r->core, layer)->attn;
    const uint32_t T = r->win->T;
    plain(r, &w->q, u_of(r), s->qg, T);
    multiply_both(r, u_of(r), T, (target){&w->k, s->k, RG_GPU_PLAIN},
                  (target){&w->v, s->v, RG_GPU_PLAIN});
    if (w->ratio)
        multiply_both(r, u_of(r), T, (target){&w->idx_k, s->idx_k, RG_GPU_PLAIN},
                      (target){&w->idx_q, s->idx_q, RG_GPU_PLAIN});
    sync(r); /* qg, k, v, index */
    for (uint32_t i = 0; i < r->win->n_seg; i++)
        attn_segment(r, layer, i);
    sync(r); /* attn_o */
    if (!attention_codes(r)) quantize(r, wide(r, s->attn_o), w->out.n_in, T);
    plain(r, &w->out, wide(r, s->attn_o), s->y, T);
    sync(r); /* y */
}

void rg_gpu_rec_mixer(rg_gpu_rec *r, uint32_t layer) {
    const rg_layer_weights *w = rg_gpu_layer(r->core, layer);
    rg_gpu_rec_hc_read(r, &w->hc_attn, r->residual, r->win->T,
                       rg_gpu_code(layer, RG_GPU_BEFORE_MIXER));
    if (w->is_attn) {
        attn_layer(r, layer);
    } else {
        gdn_layer(r, layer);
    }
    write_back(r, RG_GPU_OWED_Y);
    rg_gpu_rec_hc_read(r, &w->hc_ffn, r->residual, r->win->T,
                       rg_gpu_code(layer, RG_GPU_BEFORE_EXPERTS));
}

/* ---- n-gram memory -------------------------------------------------------------------------- */

static void ple_segment(rg_gpu_rec *r, uint32_t layer, uint32_t index) {
    const rg_hparams *hp = r->core->hp;
    const rg_scratch *s = &r->g->s;
    const rg_segment *seg = &r->win->segs[index];
    const rg_layer_state *state = &seg->seq->gpu->layers[layer];
    const uint32_t HE = hp->n_hc * hp->n_embd;
    const size_t at = (size_t)seg->row0 * HE;
    const rg_gpu_conv_args c = {.w = weight(r, rg_gpu_layer(r->core, layer)->ple.conv),
                                .x = rg_at(s->ple_normed + at),
                                .past = rg_at(state->ple_conv),
                                .y = rg_at(s->residual + at),
                                .gated = rg_at(s->ple_gated + at),
                                .stand = stand_of(r, index),
                                .n = HE,
                                .n_tap = hp->ple_conv,
                                .dilation = hp->ple_ngram};
    rg_gpu_conv(r->list, &c, seg->n);
    sync(r); /* the history is read */
    const rg_gpu_history_args h = {.past = rg_at(state->ple_conv),
                                   .x = rg_at(s->ple_normed + at),
                                   .stand = stand_of(r, index),
                                   .n = HE,
                                   .keep = (hp->ple_conv - 1) * hp->ple_ngram,
                                   .rows = seg->n};
    rg_gpu_history(r->list, &h);
}

void rg_gpu_rec_ple(rg_gpu_rec *r, uint32_t layer) {
    const rg_hparams *hp = r->core->hp;
    const rg_scratch *s = &r->g->s;
    const rg_ple_weights *w = &rg_gpu_layer(r->core, layer)->ple;
    const uint32_t T = r->win->T;
    const input ple = wide(r, r->g->at.ple_in);
    rg_gpu_rec_settle(r);
    quantize(r, ple, w->key.n_in, T);
    plain(r, &w->key, ple, s->mix, T);
    plain(r, &w->value, ple, s->ple_value, T);
    sync(r); /* keys, values */
    const rg_gpu_ple_gate_args gate = {.key = rg_at(s->mix),
                                       .residual = rg_at(s->residual),
                                       .value = rg_at(s->ple_value),
                                       .w_key = weight(r, w->norm_key),
                                       .w_query = weight(r, w->norm_query),
                                       .w_conv = weight(r, w->norm_conv),
                                       .gated = rg_at(s->ple_gated),
                                       .normed = rg_at(s->ple_normed),
                                       .n = hp->n_embd,
                                       .n_hc = hp->n_hc,
                                       .eps = hp->rms_eps};
    rg_gpu_ple_gate(r->list, &gate, T * hp->n_hc);
    sync(r); /* gated, normed */
    for (uint32_t i = 0; i < r->win->n_seg; i++)
        ple_segment(r, layer, i);
    sync(r); /* residual, history */
}

/* ---- experts -------------------------------------------------------------------------------- */

static void route(rg_gpu_rec *r, uint32_t layer, bool choose) {
    const rg_hparams *hp = r->core->hp;
    const rg_scratch *s = &r->g->s;
    const rg_gpu_route_args a = {.logits = rg_at(s->router),
                                 .ids = choose ? rg_at(s->expert_ids) : rg_at(r->g->at.moe_ids),
                                 .w = rg_at(s->expert_w),
                                 .flag = rg_at(r->g->flag),
                                 .n = hp->n_expert,
                                 .k = hp->n_expert_used,
                                 .code = rg_gpu_code(layer, RG_GPU_IN_ROUTER),
                                 .scale = hp->expert_scale};
    rg_gpu_route(r->list, &a, !choose, r->win->T);
}

void rg_gpu_rec_router(rg_gpu_rec *r, uint32_t layer, bool choose) {
    if (choose) {
        plain(r, &rg_gpu_layer(r->core, layer)->moe.router, u_of(r), r->g->s.router, r->win->T);
        sync(r); /* router */
    }
    route(r, layer, choose);
}

/* Gate and up of the shared expert in one product; its output then makes its own codes. */
static bool shared_fused(const rg_gpu_rec *r, uint32_t layer) {
    const rg_moe_weights *w = &rg_gpu_layer(r->core, layer)->moe;
    const bool floats = rg_gpu_takes_floats(w->shared_down.type);
    return fused(r, RG_GPU_FUSE_SHARED, r->win->T) && w->shared_gate.type == w->shared_up.type &&
           (floats || codes_itself(r, &w->shared_down, r->win->T));
}

/* The shared expert in three steps: products of u, activation (if they were two), output. The rows
 * of a router that reads u too (logits NULL: of none) go with its gate. */
static void shared_products(rg_gpu_rec *r, uint32_t layer, const rg_mat *router, float *logits) {
    const rg_scratch *s = &r->g->s;
    const rg_moe_weights *w = &rg_gpu_layer(r->core, layer)->moe;
    const uint32_t T = r->win->T;
    const target sigma = {&w->shared_gate_inp, s->shared_sigma, RG_GPU_SIGMOID};
    if (logits) {
        multiply_both(r, u_of(r), T, (target){router, logits, RG_GPU_PLAIN}, sigma);
    } else {
        multiply(r, sigma.w, u_of(r), sigma.y, T, sigma.epilogue, 1.0f);
    }
    if (shared_fused(r, layer)) {
        rg_gpu_product p = product_of(r, &w->shared_gate, u_of(r), s->shared_hidden, T);
        rg_gpu_product_way way = way_of(r, &w->shared_gate, RG_GPU_PLAIN);
        p.w2 = weight(r, w->shared_up.data);
        way.fused = true;
        mul(r, &p, &way);
        return;
    }
    plain(r, &w->shared_gate, u_of(r), s->shared_hidden, T);
    plain(r, &w->shared_up, u_of(r), s->shared_up, T);
}

static void shared_activation(rg_gpu_rec *r) {
    const rg_scratch *s = &r->g->s;
    const uint32_t n = r->core->hp->n_ff_shared;
    const rg_gpu_silu_mul_args act = {.g = rg_at(s->shared_hidden),
                                      .u = rg_at(s->shared_up),
                                      .codes = codes_at(r->g->codes.shared, n),
                                      .n = n};
    rg_gpu_silu_mul(r->list, &act, r->win->T);
}

static void shared_output(rg_gpu_rec *r, uint32_t layer) {
    const rg_scratch *s = &r->g->s;
    const rg_mat *down = &rg_gpu_layer(r->core, layer)->moe.shared_down;
    const input hidden = {s->shared_hidden, r->g->codes.shared};
    if (shared_fused(r, layer)) {
        multiply_coding(r, down, hidden, s->shared_out, r->win->T);
    } else {
        plain(r, down, hidden, s->shared_out, r->win->T);
    }
}

void rg_gpu_rec_shared(rg_gpu_rec *r, uint32_t layer, const rg_mat *next_router) {
    shared_products(r, layer, next_router, next_router ? r->g->s.ahead : NULL);
    sync(r); /* hidden and up of the shared expert */
    if (!shared_fused(r, layer)) {
        shared_activation(r);
        sync(r); /* shared hidden */
    }
    shared_output(r, layer);
}

static input hidden_of(const rg_gpu_rec *r) {
    return (input){r->g->s.gate, r->g->codes.hidden};
}

static rg_gpu_product_way expert_way(const rg_gpu_rec *r, const rg_mat *w,
                                     const rg_gpu_tile *tile) {
    return (rg_gpu_product_way){.type = w->type,
                                .group_rows = r->core->opt.gpu_slot_rows,
                                .side = tile->side,
                                .depth = tile->depth,
                                .no_matrix = tile->no_matrix,
                                .loop = loops(r)};
}

/* The measured shapes, if any; a sweep writes down what asks instead. */
static void shape_experts(const rg_gpu_rec *r, rg_gpu_experts *e, bool tiles, bool measured) {
    if (!tiles) {
        shape(r, RG_GPU_OP_SLOTS, &e->gate, &e->gate_way);
        if (!e->fused) shape(r, RG_GPU_OP_SLOTS, &e->up, &e->up_way);
        shape(r, RG_GPU_OP_SLOTS, &e->down, &e->down_way);
    } else if (r->g->noted) {
        rg_gpu_note_experts(r->g, e);
    } else {
        r->g->n_shaped += measured;
    }
}

static rg_gpu_experts experts_of(const rg_gpu_rec *r, uint32_t layer, bool tiles) {
    const rg_hparams *hp = r->core->hp;
    const rg_scratch *s = &r->g->s;
    const rg_moe_weights *w = &rg_gpu_layer(r->core, layer)->moe;
    const uint32_t n = r->win->T * hp->n_expert_used;
    rg_gpu_tile tile = {0};
    const bool measured = tiles && rg_gpu_expert_tile(r->core, layer, r->win->T, &tile);
    rg_gpu_experts e = {.gate = product_of(r, &w->gate.mat, u_of(r), s->gate, n),
                        .up = product_of(r, &w->up.mat, u_of(r), s->up, n),
                        .down = product_of(r, &w->down.mat, hidden_of(r), s->expert_out, n),
                        .gate_way = expert_way(r, &w->gate.mat, &tile),
                        .up_way = expert_way(r, &w->up.mat, &tile),
                        .down_way = expert_way(r, &w->down.mat, &tile)};
    e.gate.stride = w->gate.stride;
    e.up.stride = w->up.stride;
    e.down.stride = w->down.stride;
    e.gate.ids = e.up.ids = e.down.ids = rg_at(s->expert_ids);
    e.gate.x_div = e.up.x_div = hp->n_expert_used;
    e.fused = !tiles && w->gate.mat.type == w->up.mat.type;
    e.gate_way.fused = e.fused;
    e.gate.w2 = e.up.w;
    e.down_way.coding = e.fused && codes_itself(r, &w->down.mat, r->win->T);
    if (e.down_way.coding) e.down.x = rg_at(s->gate);
    shape_experts(r, &e, tiles, measured);
    return e;
}

static void activate(rg_gpu_rec *r, uint32_t layer) {
    const uint32_t n_ff = rg_gpu_layer(r->core, layer)->moe.n_ff;
    const rg_gpu_silu_mul_args act = {.g = rg_at(r->g->s.gate),
                                      .u = rg_at(r->g->s.up),
                                      .codes = codes_at(r->g->codes.hidden, n_ff),
                                      .n = n_ff};
    rg_gpu_silu_mul(r->list, &act, r->win->T * r->core->hp->n_expert_used);
}

/* A product of experts whose grid is in a buffer, if any; lists say how much it is. */
static void mul_slots(rg_gpu_rec *r, const rg_gpu_experts *e, const rg_gpu_product *p,
                      const rg_gpu_product_way *way, const rg_gpu_buffer *grids, size_t offset) {
    /* Each slot reads its expert: no two of a row's are one. */
    if (grids) rg_gpu_product_counts(r->list, p, way, e->n_slot, e->n_slot);
    rg_gpu_mul_slots(r->list, p, way, grids, offset);
}

static void mul_tiles(rg_gpu_rec *r, const rg_gpu_experts *e, const rg_gpu_product *p,
                      const rg_gpu_product_way *way, const rg_gpu_buffer *grids, size_t offset) {
    rg_gpu_product_counts(r->list, p, way, e->n_matrix, e->n_slot);
    rg_gpu_mul_tiles(r->list, p, way, grids, offset);
}

static void run_slots(rg_gpu_rec *r, uint32_t layer, const rg_gpu_experts *e,
                      const rg_gpu_buffer *grids, size_t offset) {
    mul_slots(r, e, &e->gate, &e->gate_way, grids, offset);
    if (!e->fused) {
        mul_slots(r, e, &e->up, &e->up_way, grids, offset);
        sync(r); /* gate, up */
        activate(r, layer);
    }
    sync(r); /* hidden */
    if (e->fused && !e->down_way.coding) quantize(r, hidden_of(r), e->down.n_in, e->down.n);
    mul_slots(r, e, &e->down, &e->down_way, grids, grids ? offset + 12 : 0);
}

static void run_tiles(rg_gpu_rec *r, uint32_t layer, const rg_gpu_experts *e,
                      const rg_gpu_buffer *grids, size_t offset) {
    mul_tiles(r, e, &e->gate, &e->gate_way, grids, offset);
    mul_tiles(r, e, &e->up, &e->up_way, grids, offset);
    sync(r); /* gate, up */
    activate(r, layer);
    sync(r); /* hidden */
    mul_tiles(r, e, &e->down, &e->down_way, grids, offset + 12);
}

static void resident_experts(rg_gpu_rec *r, uint32_t layer) {
    const rg_hparams *hp = r->core->hp;
    const bool tiles = r->win->T > RG_GPU_ROWS_MAX;
    rg_gpu_experts e = experts_of(r, layer, tiles);
    if (!tiles) {
        run_slots(r, layer, &e, NULL, 0);
        return;
    }
    const uint32_t n_ff = rg_gpu_layer(r->core, layer)->moe.n_ff;
    /* All three have the same side. */
    const rg_gpu_plan_args plan = {.ids = rg_at(r->g->s.expert_ids),
                                   .list = rg_at(r->g->list),
                                   .grids = rg_at(r->g->grids),
                                   .n = r->win->T * hp->n_expert_used,
                                   .n_expert = hp->n_expert,
                                   .cols = 16 * e.gate_way.side,
                                   .x_hidden = (n_ff + RG_GPU_TILE_ROWS - 1) / RG_GPU_TILE_ROWS,
                                   .x_out = (hp->n_embd + RG_GPU_TILE_ROWS - 1) / RG_GPU_TILE_ROWS};
    rg_gpu_plan(r->list, &plan);
    sync(r); /* list, grids */
    e.gate.list = e.up.list = e.down.list = rg_at(r->g->list);
    e.n_slot = plan.n; /* of how many experts the device decides */
    run_tiles(r, layer, &e, &r->g->scratch, rg_at(r->g->grids) - r->g->scratch.address);
}

uint32_t rg_gpu_expert_groups(const rg_gpu_rec *r, uint32_t layer, uint32_t k) {
    const rg_gpu_experts e = experts_of(r, layer, false);
    if (k == 1) return rg_gpu_slot_groups(e.down.n_in, e.down.n_out, &e.down_way);
    const uint32_t g = rg_gpu_slot_groups(e.gate.n_in, e.gate.n_out, &e.gate_way);
    const uint32_t u = e.fused ? 0 : rg_gpu_slot_groups(e.up.n_in, e.up.n_out, &e.up_way);
    return g > u ? g : u;
}

void rg_gpu_rec_phase(rg_gpu_rec *r, uint32_t layer, uint32_t phase, uint32_t n_expert,
                      uint32_t n_slot) {
    const rg_gpu_shared *at = &r->g->at;
    const bool tiles = r->win->T > RG_GPU_ROWS_MAX;
    rg_gpu_experts e = experts_of(r, layer, tiles);
    e.gate.ids = e.up.ids = e.down.ids = rg_at(at->moe_ids);
    e.gate.list = e.up.list = e.down.list = rg_at(at->slots[phase]);
    e.gate.experts = rg_at(at->experts[0]);
    e.gate.experts2 = e.up.experts = rg_at(at->experts[1]);
    e.down.experts = rg_at(at->experts[2]);
    e.n_slot = n_slot;
    e.n_matrix = n_expert;
    const size_t offset = rg_at(at->grids[phase]) - r->g->shared.address;
    if (tiles) {
        run_tiles(r, layer, &e, &r->g->shared, offset);
    } else {
        run_slots(r, layer, &e, &r->g->shared, offset);
    }
}

void rg_gpu_rec_combine(rg_gpu_rec *r, uint32_t layer) {
    (void)layer;
    sync(r); /* outputs of the experts, shared one included */
    write_back(r, RG_GPU_OWED_EXPERTS);
}

void rg_gpu_rec_moe(rg_gpu_rec *r, uint32_t layer) {
    shared_products(r, layer, &rg_gpu_layer(r->core, layer)->moe.router, r->g->s.router);
    sync(r); /* router; hidden and up of the shared expert */
    route(r, layer, true);
    const bool whole = shared_fused(r, layer);
    if (whole) {
        shared_output(r, layer);
    } else {
        shared_activation(r);
    }
    sync(r); /* the choice of experts; shared hidden */
    if (!whole) shared_output(r, layer);
    resident_experts(r, layer);
    rg_gpu_rec_combine(r, layer);
}

/* ---- draft block ---------------------------------------------------------------------------- */

/* Embeddings and residuals go side by side: norms of both, products of both; then their sum. */
static void project_apart(rg_gpu_rec *r) {
    const rg_hparams *hp = r->core->hp;
    const rg_scratch *s = &r->g->s;
    const rg_mtp_weights *w = &r->core->w.mtp;
    const uint32_t T = r->win->T, H = hp->n_hc, E = hp->n_embd;
    const input e = wide(r, s->mtp_in);
    const input h = {e.x + (size_t)T * E, e.codes + T * rg_gpu_act_bytes(E)};
    plain(r, &w->fc_embd, e, s->mix, T);
    plain(r, &w->fc_hidden, h, r->residual, T * H);
    sync(r); /* both */
    const rg_gpu_add_args a = {.y = rg_at(r->residual), .x = rg_at(s->mix), .n = E, .per = H};
    rg_gpu_add(r->list, &a, T * H);
}

void rg_gpu_rec_draft(rg_gpu_rec *r) {
    const rg_hparams *hp = r->core->hp;
    const rg_scratch *s = &r->g->s;
    const rg_mtp_weights *w = &r->core->w.mtp;
    const bool apart = !w->eh_proj.data;
    const rg_gpu_draft_rows_args a = {.from = rg_at(r->g->at.sources),
                                      .w = weight(r, w->embd.data),
                                      .tables = r->g->tables.address,
                                      .ids = rg_at(r->g->at.ids),
                                      .w_e = weight(r, w->enorm),
                                      .w_h = weight(r, w->hnorm),
                                      .y = rg_at(s->mtp_in),
                                      .codes = codes_at(r->g->codes.wide, hp->n_embd),
                                      .flag = rg_at(r->g->flag),
                                      .n = hp->n_embd,
                                      .n_hc = hp->n_hc,
                                      .row_bytes = (uint32_t)w->embd.row_bytes,
                                      .eps = hp->rms_eps,
                                      .each = r->core->opt.mtp_stream_norm,
                                      .code = rg_gpu_code(hp->n_layer, RG_GPU_BEFORE_MIXER)};
    rg_gpu_draft_rows(r->list, &a, w->embd.type, apart, r->win->T);
    sync(r); /* input rows; the sources are read */
    if (apart) {
        project_apart(r);
    } else {
        plain(r, &w->eh_proj, wide(r, s->mtp_in), r->residual, r->win->T * hp->n_hc);
    }
    sync(r); /* residual */
}

/* ---- head ----------------------------------------------------------------------------------- */

void rg_gpu_rec_head(rg_gpu_rec *r, const rg_hc_weights *hc, const rg_mat *output, uint32_t row,
                     uint32_t rows, uint32_t few) {
    const rg_hparams *hp = r->core->hp;
    const float *residual = r->residual + (size_t)row * hp->n_hc * hp->n_embd;
    rg_gpu_rec_hc_read(r, hc, residual, rows, rg_gpu_code(hp->n_layer, RG_GPU_BEFORE_MIXER));
    float *logits = few ? r->g->s.logits : r->g->out.logits;
    plain(r, output, u_of(r), logits, rows);
    if (!few) return;
    RG_ASSERT(rows <= RG_GPU_ROWS_MAX);
    sync(r); /* logits */
    const rg_gpu_best_args a = {.logits = rg_at(logits),
                                .parts = rg_at(r->g->best_parts),
                                .result = rg_at(r->g->out.best),
                                .n = hp->n_vocab,
                                .k = few};
    rg_gpu_best(r->list, &a, rows);
}
