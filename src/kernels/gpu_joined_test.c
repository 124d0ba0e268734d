/* Ops that the device computes in one kernel: the same bits as one op after the other, for one to
 * eight rows.
 */
#include "kernels/gpu_check.h"
#include "support/released.h"

#define ROWS    8u
#define HC      4u
#define BUFFERS 40u

static gpu_check gc;

/* Buffers of a test, destroyed together. */
static rg_gpu_buffer bufs[BUFFERS];
static uint32_t n_buf;

static rg_gpu_buffer *keep(rg_gpu_buffer b) {
    assert_true(n_buf < BUFFERS);
    bufs[n_buf] = b;
    return &bufs[n_buf++];
}

static rg_gpu_buffer *zeros(size_t bytes) {
    return keep(gpu_filled(&gc, NULL, bytes));
}

static rg_gpu_buffer *floats(draws *d, size_t n, double lo, double hi) {
    float *x = test_alloc(n * sizeof *x);
    draw_floats(d, x, n, lo, hi);
    rg_gpu_buffer *b = keep(gpu_filled(&gc, x, n * sizeof *x));
    rg_free(x);
    return b;
}

/* Rows of q8_0, q4_0 or iq4_nl (a half, then codes), or of floats. */
static rg_gpu_buffer *weights(draws *d, rg_type type, size_t n) {
    const rg_type_info *info = rg_type_get((uint32_t)type);
    if (info->block_elems == 1) return floats(d, n, -1, 1);
    const size_t bytes = n / info->block_elems * info->block_bytes;
    uint8_t *w = test_alloc(bytes);
    draw_bytes(d, w, bytes);
    for (size_t at = 0; at < bytes; at += info->block_bytes) {
        const uint16_t h = rg_f32_to_f16(draw_between(d, -0.01, 0.01));
        memcpy(w + at, &h, sizeof h);
    }
    rg_gpu_buffer *b = keep(gpu_filled(&gc, w, bytes));
    rg_free(w);
    return b;
}

static void done(void) {
    while (n_buf)
        rg_gpu_buffer_destroy(gc.gpu, &bufs[--n_buf]);
}

static void expect_equal(const rg_gpu_buffer *got, const rg_gpu_buffer *want, size_t bytes,
                         const char *what, uint32_t rows) {
    uint8_t *g = test_alloc(bytes), *w = test_alloc(bytes);
    gpu_fetch(&gc, got, g, bytes);
    gpu_fetch(&gc, want, w, bytes);
    bool any = false; /* a comparison of nothing but zeros shows nothing */
    for (size_t i = 0; i < bytes; i++) {
        any = any || w[i];
        if (g[i] != w[i]) fail_msg("%s, %u rows: byte %zu of %zu differs", what, rows, i, bytes);
    }
    if (!any) fail_msg("%s, %u rows: all zeros", what, rows);
    rg_free(g);
    rg_free(w);
}

/* ---- hyper-connections ----------------------------------------------------------------------- */

typedef struct stream_set {
    rg_gpu_buffer *residual[2], *normed[2], *codes[2], *inject, *y, *experts, *weights, *sigma, *w;
    rg_gpu_buffer *flag;
} stream_set;

static void write_and_norm(uint32_t n, uint32_t n_used, rg_gpu_owed owed, uint32_t rows) {
    draws d = draws_start("write_and_norm", 21 + n + rows);
    stream_set s;
    const size_t HE = (size_t)HC * n;
    const uint32_t clear = UINT32_MAX;
    s.residual[0] = floats(&d, rows * HE, -2, 2);
    s.residual[1] = zeros(rows * HE * 4);
    for (int i = 0; i < 2; i++) {
        s.normed[i] = zeros(rows * HE * 4);
        s.codes[i] = zeros(rows * rg_gpu_act_bytes(HC * n));
    }
    s.inject = floats(&d, rows * HC, -1, 1);
    s.y = floats(&d, (size_t)rows * n, -1, 1);
    s.experts = floats(&d, (size_t)rows * n_used * n, -1, 1);
    s.weights = floats(&d, (size_t)rows * n_used, 0, 1);
    s.sigma = floats(&d, rows, 0, 1);
    s.w = floats(&d, HE, -1, 1);
    s.flag = keep(gpu_filled(&gc, &clear, sizeof clear));
    const rg_gpu_hc_write_args write = {.residual = s.residual[0]->address,
                                        .inject = s.inject->address,
                                        .y = s.y->address,
                                        .experts =
                                            owed == RG_GPU_OWED_EXPERTS ? s.experts->address : 0,
                                        .weights = s.weights->address,
                                        .sigma = s.sigma->address,
                                        .n = n,
                                        .n_hc = HC,
                                        .n_used = n_used};
    const rg_gpu_norm_args norm = {.x = s.residual[0]->address,
                                   .w = s.w->address,
                                   .y = s.normed[0]->address,
                                   .flag = s.flag->address,
                                   .codes = s.codes[0]->address,
                                   .n = n,
                                   .n_w = HC,
                                   .per = HC,
                                   .x_stride = HC * n,
                                   .y_stride = HC * n,
                                   .eps = 1e-6f};
    const rg_gpu_hc_norm_args both = {.residual = s.residual[1]->address,
                                      .inject = s.inject->address,
                                      .y = s.y->address,
                                      .experts = s.experts->address,
                                      .weights = s.weights->address,
                                      .sigma = s.sigma->address,
                                      .w = s.w->address,
                                      .normed = s.normed[1]->address,
                                      .flag = s.flag->address,
                                      .codes = s.codes[1]->address,
                                      .n = n,
                                      .n_hc = HC,
                                      .eps = 1e-6f};
    assert_true(rg_gpu_hc_norm_takes(n, n_used));
    rg_gpu_list_begin(gc.list, false);
    rg_gpu_copy(gc.list, s.residual[1], 0, s.residual[0], 0, rows * HE * 4);
    rg_gpu_barrier(gc.list);
    rg_gpu_hc_norm(gc.list, &both, owed, n_used, rows);
    if (owed != RG_GPU_OWED_NOTHING) rg_gpu_hc_write(gc.list, &write, rows);
    rg_gpu_barrier(gc.list);
    rg_gpu_norm(gc.list, &norm, RG_GPU_RMS, rows * HC);
    gpu_run_list(&gc);
    expect_equal(s.residual[1], s.residual[0], rows * HE * 4, "residual", rows);
    expect_equal(s.normed[1], s.normed[0], rows * HE * 4, "normed", rows);
    expect_equal(s.codes[1], s.codes[0], rows * rg_gpu_act_bytes(HC * n), "codes", rows);
    done();
}

static void writes_and_norms(void **state) {
    (void)state;
    for (uint32_t rows = 1; rows <= ROWS; rows++) {
        write_and_norm(96, 3, (rg_gpu_owed)(rows % 3), rows);
        write_and_norm(2560, 10, RG_GPU_OWED_EXPERTS, rows);
    }
    write_and_norm(1056, 2, RG_GPU_OWED_NOTHING, 2);
    write_and_norm(1056, 2, RG_GPU_OWED_Y, 3);
}

static void up_and_mix(rg_type type, uint32_t n, uint32_t n_in, uint32_t rows) {
    draws d = draws_start("up_and_mix", 31 + n_in + rows);
    const size_t row_bytes = rg_row_bytes(type, n_in);
    rg_gpu_buffer *w = weights(&d, type, (size_t)HC * n * n_in);
    rg_gpu_buffer *low = floats(&d, (size_t)rows * n_in, -1, 1);
    rg_gpu_buffer *low_codes = zeros(rows * rg_gpu_act_bytes(n_in));
    rg_gpu_buffer *normed = floats(&d, (size_t)rows * HC * n, -1, 1);
    rg_gpu_buffer *gate = zeros((size_t)rows * HC * n * 4), *u[2], *codes[2];
    for (int i = 0; i < 2; i++) {
        u[i] = zeros((size_t)rows * n * 4);
        codes[i] = zeros(rows * rg_gpu_act_bytes(n));
    }
    const bool plain = rg_gpu_takes_floats(type);
    const rg_gpu_quantize_args q = {low->address, low_codes->address, n_in, n_in};
    const rg_gpu_product p = {.w = w->address,
                              .x = plain ? low->address : low_codes->address,
                              .y = gate->address,
                              .tables = gc.tables.address,
                              .n_in = n_in,
                              .n_out = HC * n,
                              .row_bytes = (uint32_t)row_bytes,
                              .x_stride = n_in,
                              .y_stride = HC * n,
                              .x_div = 1,
                              .div = 1.0f,
                              .n = rows};
    const rg_gpu_hc_mix_args mix = {.gate = gate->address,
                                    .normed = normed->address,
                                    .u = u[0]->address,
                                    .codes = codes[0]->address,
                                    .n = n,
                                    .n_hc = HC};
    const rg_gpu_hc_up_args all = {.w = w->address,
                                   .low = low->address,
                                   .normed = normed->address,
                                   .u = u[1]->address,
                                   .codes = codes[1]->address,
                                   .tables = gc.tables.address,
                                   .n = n,
                                   .row_bytes = (uint32_t)row_bytes};
    assert_true(rg_gpu_hc_up_takes(type, n, HC, n_in));
    rg_gpu_list_begin(gc.list, false);
    rg_gpu_hc_up(gc.list, &all, type, HC, n_in, rows);
    if (!plain) rg_gpu_quantize(gc.list, &q, rows);
    rg_gpu_barrier(gc.list);
    rg_gpu_mul(gc.list, &p, &(rg_gpu_product_way){.type = type});
    rg_gpu_barrier(gc.list);
    rg_gpu_hc_mix(gc.list, &mix, rows);
    gpu_run_list(&gc);
    expect_equal(u[1], u[0], (size_t)rows * n * 4, "u", rows);
    expect_equal(codes[1], codes[0], rows * rg_gpu_act_bytes(n), "codes of u", rows);
    done();
}

static void ups_and_mixes(void **state) {
    (void)state;
    for (uint32_t rows = 1; rows <= ROWS; rows++)
        up_and_mix(RG_TYPE_Q8_0, 96, 320, rows);
    up_and_mix(RG_TYPE_IQ4_NL, 64, 32, 3);
    up_and_mix(RG_TYPE_F32, 64, 100, 2);
    assert_false(rg_gpu_hc_up_takes(RG_TYPE_Q8_0, 100, HC, 320));
    assert_false(rg_gpu_hc_up_takes(RG_TYPE_Q8_0, 96, HC, 330));
}

/* ---- products -------------------------------------------------------------------------------- */

/* Codes made beforehand, and by the product itself; slots and rows. */
static void product_coding(rg_type type, uint32_t n_in, uint32_t rows, bool slots) {
    enum { N_OUT = 70 };
    draws d = draws_start("product_coding", 41 + n_in + rows);
    const size_t row_bytes = rg_row_bytes(type, n_in);
    uint32_t ids[ROWS];
    for (uint32_t i = 0; i < ROWS; i++)
        ids[i] = draw_below(&d, 2);
    rg_gpu_buffer *w = weights(&d, type, (size_t)2 * N_OUT * n_in);
    rg_gpu_buffer *x = floats(&d, (size_t)rows * n_in, -1, 1);
    rg_gpu_buffer *codes = zeros(rows * rg_gpu_act_bytes(n_in)), *y[2];
    rg_gpu_buffer *who = keep(gpu_filled(&gc, ids, sizeof ids));
    y[0] = zeros((size_t)rows * N_OUT * 4);
    y[1] = zeros((size_t)rows * N_OUT * 4);
    const rg_gpu_quantize_args q = {x->address, codes->address, n_in, n_in};
    rg_gpu_product p = {.w = w->address,
                        .x = codes->address,
                        .y = y[0]->address,
                        .tables = gc.tables.address,
                        .ids = slots ? who->address : 0,
                        .stride = N_OUT * row_bytes,
                        .n_in = n_in,
                        .n_out = N_OUT,
                        .row_bytes = (uint32_t)row_bytes,
                        .x_stride = n_in,
                        .y_stride = N_OUT,
                        .x_div = 1,
                        .div = 1.0f,
                        .n = rows};
    rg_gpu_product_way way = {.type = type, .loop = true};
    assert_true(rg_gpu_mul_codes(type, n_in));
    rg_gpu_list_begin(gc.list, false);
    rg_gpu_quantize(gc.list, &q, rows);
    rg_gpu_barrier(gc.list);
    if (slots) {
        rg_gpu_mul_slots(gc.list, &p, &way, NULL, 0);
    } else {
        rg_gpu_mul(gc.list, &p, &way);
    }
    p.x = x->address;
    p.y = y[1]->address;
    way = (rg_gpu_product_way){.type = type, .coding = true, .group_rows = slots ? 1 : 0};
    if (slots) {
        rg_gpu_mul_slots(gc.list, &p, &way, NULL, 0);
    } else {
        rg_gpu_mul(gc.list, &p, &way);
    }
    gpu_run_list(&gc);
    expect_equal(y[1], y[0], (size_t)rows * N_OUT * 4, "product", rows);
    done();
}

static void products_make_codes(void **state) {
    (void)state;
    for (uint32_t rows = 1; rows <= ROWS; rows++)
        product_coding(RG_TYPE_Q8_0, 640, rows, false);
    product_coding(RG_TYPE_IQ4_NL, 640, 7, true);
    product_coding(RG_TYPE_Q4_0, 1024, 3, true);
    assert_false(rg_gpu_mul_codes(RG_TYPE_F32, 640));
    assert_false(rg_gpu_mul_codes(RG_TYPE_Q8_0, 2048));
}

/* silu(gate) * up of a shared expert in one product. */
static void gate_and_up(uint32_t rows) {
    enum { N_IN = 256, N_OUT = 40 };
    draws d = draws_start("gate_and_up", 51 + rows);
    const size_t row_bytes = rg_row_bytes(RG_TYPE_Q8_0, N_IN);
    rg_gpu_buffer *gate = weights(&d, RG_TYPE_Q8_0, N_OUT * N_IN);
    rg_gpu_buffer *up = weights(&d, RG_TYPE_Q8_0, N_OUT * N_IN);
    rg_gpu_buffer *x = floats(&d, (size_t)rows * N_IN, -1, 1);
    rg_gpu_buffer *codes = zeros(rows * rg_gpu_act_bytes(N_IN)), *y[3];
    for (int i = 0; i < 3; i++)
        y[i] = zeros((size_t)rows * N_OUT * 4);
    const rg_gpu_quantize_args q = {x->address, codes->address, N_IN, N_IN};
    rg_gpu_product p = {.w = gate->address,
                        .w2 = up->address,
                        .x = codes->address,
                        .y = y[0]->address,
                        .tables = gc.tables.address,
                        .n_in = N_IN,
                        .n_out = N_OUT,
                        .row_bytes = (uint32_t)row_bytes,
                        .x_stride = N_IN,
                        .y_stride = N_OUT,
                        .x_div = 1,
                        .div = 1.0f,
                        .n = rows};
    const rg_gpu_silu_mul_args act = {.g = y[0]->address, .u = y[1]->address, .n = N_OUT};
    rg_gpu_list_begin(gc.list, false);
    rg_gpu_quantize(gc.list, &q, rows);
    rg_gpu_barrier(gc.list);
    rg_gpu_mul(gc.list, &p, &(rg_gpu_product_way){.type = RG_TYPE_Q8_0});
    p.y = y[2]->address;
    rg_gpu_mul(gc.list, &p, &(rg_gpu_product_way){.type = RG_TYPE_Q8_0, .fused = true});
    p.w = up->address;
    p.y = y[1]->address;
    rg_gpu_mul(gc.list, &p, &(rg_gpu_product_way){.type = RG_TYPE_Q8_0});
    rg_gpu_barrier(gc.list);
    rg_gpu_silu_mul(gc.list, &act, rows);
    gpu_run_list(&gc);
    expect_equal(y[2], y[0], (size_t)rows * N_OUT * 4, "gate and up", rows);
    done();
}

static void gates_and_ups(void **state) {
    (void)state;
    for (uint32_t rows = 1; rows <= ROWS; rows++)
        gate_and_up(rows);
}

/* Two products of the same rows in one dispatch, and in two; the ends of the first matrix and of
 * the second are no ends of a workgroup's rows. */
static void pair_of_products(rg_type type, uint32_t n_in, uint32_t n_out, uint32_t n_out2,
                             uint32_t rows) {
    draws d = draws_start("pair_of_products", 57 + n_in + n_out + rows);
    const uint32_t outs[2] = {n_out, n_out2};
    const rg_gpu_epilogue ends[2] = {rows % 2 ? RG_GPU_PLAIN : RG_GPU_SILU, RG_GPU_SIGMOID};
    const bool plain = rg_gpu_takes_floats(type);
    rg_gpu_buffer *x = floats(&d, (size_t)rows * n_in, -1, 1);
    rg_gpu_buffer *codes = zeros(rows * rg_gpu_act_bytes(n_in)), *w[2], *y[2][2];
    rg_gpu_product p[2];
    for (int i = 0; i < 2; i++) {
        w[i] = weights(&d, type, (size_t)outs[i] * n_in);
        y[0][i] = zeros((size_t)rows * outs[i] * 4);
        y[1][i] = zeros((size_t)rows * outs[i] * 4);
        p[i] = (rg_gpu_product){.w = w[i]->address,
                                .x = plain ? x->address : codes->address,
                                .y = y[0][i]->address,
                                .tables = gc.tables.address,
                                .n_in = n_in,
                                .n_out = outs[i],
                                .row_bytes = (uint32_t)rg_row_bytes(type, n_in),
                                .x_stride = n_in,
                                .y_stride = outs[i],
                                .x_div = 1,
                                .div = 2.0f,
                                .n = rows};
    }
    const rg_gpu_quantize_args q = {x->address, codes->address, n_in, n_in};
    rg_gpu_list_begin(gc.list, false);
    if (!plain) rg_gpu_quantize(gc.list, &q, rows);
    rg_gpu_barrier(gc.list);
    for (int i = 0; i < 2; i++)
        rg_gpu_mul(gc.list, &p[i], &(rg_gpu_product_way){.type = type, .epilogue = ends[i]});
    const uint32_t before = rg_gpu_list_dispatches(gc.list);
    p[0].y = y[1][0]->address;
    p[0].w2 = w[1]->address;
    p[0].y2 = y[1][1]->address;
    p[0].n_out2 = p[0].y_stride2 = n_out2;
    const rg_gpu_product_way way = {
        .type = type, .epilogue = ends[0], .epilogue2 = ends[1], .loop = true};
    rg_gpu_mul(gc.list, &p[0], &way);
    assert_int_equal(rg_gpu_list_dispatches(gc.list), before + 1);
    gpu_run_list(&gc);
    expect_equal(y[1][0], y[0][0], (size_t)rows * n_out * 4, "first of a pair", rows);
    expect_equal(y[1][1], y[0][1], (size_t)rows * n_out2 * 4, "second of a pair", rows);
    done();
}

static void pairs_of_products(void **state) {
    (void)state;
    for (uint32_t rows = 1; rows <= ROWS; rows++) {
        pair_of_products(RG_TYPE_F32, 100, 48, 48, rows);
        pair_of_products(RG_TYPE_Q8_0, 256, 70, 9, rows);
    }
    pair_of_products(RG_TYPE_IQ4_NL, 640, 5, 130, 3);
    pair_of_products(RG_TYPE_F32, 2560, 1, 6, 1);
}

/* ---- delta net ------------------------------------------------------------------------------- */

typedef struct net {
    uint32_t D, n_k, n_head, n_tap, channels, rows;
    rg_gpu_stand stand;
    rg_gpu_buffer *S[2], *x, *w, *past[2], *stands, *conv, *alpha, *beta, *dt, *a, *w_out, *z,
        *o[2];
    rg_gpu_buffer *codes[2];
} net;

static size_t net_past_floats(const net *n) {
    return (size_t)(n->n_tap - 1 + n->stand.cap) * n->channels + 2 * n->stand.cap * n->n_head;
}

static net net_make(draws *d, uint32_t D, uint32_t rows, const rg_gpu_stand *stand) {
    net n = {.D = D, .n_k = 2, .n_head = 4, .n_tap = 4, .rows = rows, .stand = *stand};
    const size_t inner = (size_t)n.n_head * D;
    /* What is owed at once, or first by itself; then the window without what is owed. */
    const rg_gpu_stand stands[] = {*stand,
                                   {stand->pos0 - stand->owed, 0, stand->owed, stand->cap},
                                   {stand->pos0, 0, stand->firm, stand->cap}};
    n.channels = (2 * n.n_k + n.n_head) * D;
    n.S[0] = floats(d, inner * D, -0.5, 0.5);
    n.S[1] = zeros(inner * D * 4);
    n.x = floats(d, (size_t)rows * n.channels, -1, 1);
    n.w = floats(d, (size_t)n.channels * n.n_tap, -1, 1);
    n.past[0] = floats(d, net_past_floats(&n), 0, 1);
    n.past[1] = zeros(net_past_floats(&n) * 4);
    n.stands = keep(gpu_filled(&gc, stands, sizeof stands));
    const size_t most = rows > stand->cap ? rows : stand->cap;
    n.conv = zeros(most * n.channels * 4);
    n.alpha = floats(d, (size_t)rows * n.n_head, -2, 2);
    n.beta = floats(d, (size_t)rows * n.n_head, 0, 1);
    n.dt = floats(d, n.n_head, -1, 1);
    n.a = floats(d, n.n_head, -1, -0.1);
    n.w_out = floats(d, D, -1, 1);
    n.z = floats(d, most * inner, -2, 2);
    for (int i = 0; i < 2; i++) {
        n.o[i] = zeros(most * inner * 4);
        n.codes[i] = zeros(most * rg_gpu_act_bytes((uint32_t)inner));
    }
    return n;
}

typedef struct net_rows {
    rg_gpu_ptr x, alpha, beta, stand;
    uint32_t n;
} net_rows;

static net_rows net_window(const net *n, uint32_t stand) {
    return (net_rows){n->x->address, n->alpha->address, n->beta->address,
                      n->stands->address + stand * sizeof(rg_gpu_stand), n->rows};
}

static void net_history(const net *n, int which, const net_rows *r) {
    const rg_gpu_history_args h = {.past = n->past[which]->address,
                                   .x = r->x,
                                   .stand = r->stand,
                                   .alpha = r->alpha,
                                   .beta = r->beta,
                                   .n = n->channels,
                                   .keep = n->n_tap - 1,
                                   .rows = r->n,
                                   .n_head = n->n_head};
    rg_gpu_barrier(gc.list);
    rg_gpu_history(gc.list, &h);
}

static void net_apart(const net *n, const net_rows *r) {
    const uint32_t D = n->D, inner = n->n_head * D;
    const rg_gpu_conv_args conv = {.w = n->w->address,
                                   .x = r->x,
                                   .past = n->past[0]->address,
                                   .y = n->conv->address,
                                   .stand = r->stand,
                                   .n = n->channels,
                                   .n_tap = n->n_tap,
                                   .dilation = 1};
    const rg_gpu_norm_args qk = {.x = n->conv->address,
                                 .y = n->conv->address,
                                 .n = D,
                                 .n_w = 1,
                                 .per = 2 * n->n_k,
                                 .x_stride = n->channels,
                                 .y_stride = n->channels,
                                 .eps = 1e-6f,
                                 .scale = 0.125f,
                                 .n_scaled = n->n_k};
    const rg_gpu_gdn_args rule = {.S = n->S[0]->address,
                                  .c = n->conv->address,
                                  .alpha = r->alpha,
                                  .beta = r->beta,
                                  .dt = n->dt->address,
                                  .a = n->a->address,
                                  .o = n->o[0]->address,
                                  .stand = r->stand,
                                  .D = D,
                                  .n_head = n->n_head,
                                  .n_k = n->n_k,
                                  .rows = r->n};
    const rg_gpu_norm_args out = {.x = n->o[0]->address,
                                  .w = n->w_out->address,
                                  .y = n->o[0]->address,
                                  .gate = n->z->address,
                                  .codes = n->codes[0]->address,
                                  .n = D,
                                  .n_w = 1,
                                  .per = n->n_head,
                                  .x_stride = inner,
                                  .y_stride = inner,
                                  .eps = 1e-5f};
    rg_gpu_barrier(gc.list);
    rg_gpu_conv(gc.list, &conv, r->n);
    rg_gpu_barrier(gc.list);
    rg_gpu_norm(gc.list, &qk, RG_GPU_L2, r->n * 2 * n->n_k);
    rg_gpu_barrier(gc.list);
    rg_gpu_gdn(gc.list, &rule);
    rg_gpu_barrier(gc.list);
    rg_gpu_norm(gc.list, &out, RG_GPU_RMS_GATED, r->n * n->n_head);
    net_history(n, 0, r);
}

/* Accepted drafts from the journal first, then the window. */
static void net_in_parts(const net *n) {
    const rg_gpu_ptr journal = n->past[0]->address + (uint64_t)(n->n_tap - 1) * n->channels * 4;
    const rg_gpu_ptr alpha = journal + (uint64_t)n->stand.cap * n->channels * 4;
    const net_rows owed = {journal, alpha, alpha + (uint64_t)n->stand.cap * n->n_head * 4,
                           n->stands->address + sizeof(rg_gpu_stand), n->stand.owed};
    const net_rows all = net_window(n, 2);
    if (owed.n) net_apart(n, &owed);
    net_apart(n, &all);
}

static void net_joined(const net *n) {
    const rg_gpu_gdn_whole_args all = {.S = n->S[1]->address,
                                       .x = n->x->address,
                                       .w = n->w->address,
                                       .past = n->past[1]->address,
                                       .stand = n->stands->address,
                                       .alpha = n->alpha->address,
                                       .beta = n->beta->address,
                                       .dt = n->dt->address,
                                       .a = n->a->address,
                                       .w_out = n->w_out->address,
                                       .z = n->z->address,
                                       .o = n->o[1]->address,
                                       .codes = n->codes[1]->address,
                                       .n_head = n->n_head,
                                       .n_k = n->n_k,
                                       .rows = n->rows,
                                       .eps_qk = 1e-6f,
                                       .eps = 1e-5f,
                                       .scale = 0.125f};
    const net_rows r = net_window(n, 0);
    rg_gpu_gdn_whole(gc.list, &all, n->D, n->n_tap);
    net_history(n, 1, &r);
}

static void delta_net(uint32_t D, uint32_t rows, const rg_gpu_stand *stand) {
    draws d = draws_start("delta_net", 61 + D + rows + 100 * stand->owed + 1000 * stand->firm);
    const net n = net_make(&d, D, rows, stand);
    const size_t inner = (size_t)n.n_head * D;
    assert_true(rg_gpu_gdn_whole_takes(rg_gpu_get_info(gc.gpu), D));
    rg_gpu_list_begin(gc.list, false);
    rg_gpu_copy(gc.list, n.S[1], 0, n.S[0], 0, inner * D * 4);
    rg_gpu_copy(gc.list, n.past[1], 0, n.past[0], 0, net_past_floats(&n) * 4);
    rg_gpu_barrier(gc.list);
    net_joined(&n);
    net_in_parts(&n);
    gpu_run_list(&gc);
    expect_equal(n.S[1], n.S[0], inner * D * 4, "states", rows);
    expect_equal(n.o[1], n.o[0], rows * inner * 4, "outputs", rows);
    expect_equal(n.codes[1], n.codes[0], rows * rg_gpu_act_bytes((uint32_t)inner), "codes", rows);
    expect_equal(n.past[1], n.past[0], net_past_floats(&n) * 4, "history, journal", rows);
    done();
}

static void delta_nets(void **state) {
    (void)state;
    for (uint32_t rows = 1; rows <= ROWS; rows++)
        delta_net(128, rows, &(rg_gpu_stand){.pos0 = rows % 4, .firm = rows});
    delta_net(32, 5, &(rg_gpu_stand){.firm = 5});
    delta_net(64, 2, &(rg_gpu_stand){.pos0 = 77, .firm = 2});
    assert_false(rg_gpu_gdn_whole_takes(rg_gpu_get_info(gc.gpu), 48));
}

/* The state in memory is the one behind the firm rows, with what the window before owed it. */
static void delta_nets_with_drafts(void **state) {
    (void)state;
    for (uint32_t rows = 1; rows <= ROWS; rows++) {
        for (uint32_t owed = 0; owed < ROWS; owed += 1 + rows % 3) {
            const rg_gpu_stand stand = {
                .pos0 = owed + rows % 4, .owed = owed, .firm = 1 + (3 * owed + 1) % rows, .cap = 7};
            delta_net(owed % 2 ? 32 : 64, rows, &stand);
        }
    }
    delta_net(128, ROWS, &(rg_gpu_stand){.pos0 = 300, .owed = 3, .firm = 1, .cap = 7});
}

/* ---- attention ------------------------------------------------------------------------------- */

static void attention_and_codes(uint32_t rows) {
    enum { D = 64, HEADS = 4, KV = 2, POS = 300 };
    draws d = draws_start("attention_and_codes", 71 + rows);
    const uint32_t pos0 = POS - rows;
    rg_gpu_buffer *q = floats(&d, (size_t)rows * HEADS * D, -1, 1);
    rg_gpu_buffer *k = floats(&d, (size_t)POS * KV * D, -1, 1);
    rg_gpu_buffer *v = floats(&d, (size_t)POS * KV * D, -1, 1);
    rg_gpu_buffer *gate = floats(&d, (size_t)rows * HEADS * 2 * D, -2, 2);
    rg_gpu_buffer *at = keep(gpu_filled(&gc, &pos0, sizeof pos0));
    rg_gpu_buffer *o = zeros((size_t)rows * HEADS * D * 4), *codes[2];
    for (int i = 0; i < 2; i++)
        codes[i] = zeros(rows * rg_gpu_act_bytes(HEADS * D));
    const rg_gpu_attention_args a = {.q = q->address,
                                     .k = k->address,
                                     .v = v->address,
                                     .gate = gate->address,
                                     .o = o->address,
                                     .pos0 = at->address,
                                     .codes = codes[1]->address,
                                     .D = D,
                                     .n_head = HEADS,
                                     .n_kv = KV,
                                     .scale = 0.125f};
    const rg_gpu_quantize_args quantize = {o->address, codes[0]->address, HEADS * D, HEADS * D};
    rg_gpu_list_begin(gc.list, false);
    rg_gpu_attention(gc.list, &a, false, rows);
    rg_gpu_barrier(gc.list);
    rg_gpu_quantize(gc.list, &quantize, rows);
    gpu_run_list(&gc);
    expect_equal(codes[1], codes[0], rows * rg_gpu_act_bytes(HEADS * D), "codes", rows);
    done();
}

static void attentions_and_codes(void **state) {
    (void)state;
    for (uint32_t rows = 1; rows <= ROWS; rows++)
        attention_and_codes(rows);
}

static int open_gpu(void **state) {
    (void)state;
    gc = gpu_check_open();
    return 0;
}

static int close_gpu(void **state) {
    (void)state;
    gpu_check_close(&gc);
    return 0;
}

int main(void) {
    if (!gpu_check_here()) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_and_norms),       cmocka_unit_test(ups_and_mixes),
        cmocka_unit_test(products_make_codes),    cmocka_unit_test(gates_and_ups),
        cmocka_unit_test(pairs_of_products),      cmocka_unit_test(delta_nets),
        cmocka_unit_test(delta_nets_with_drafts), cmocka_unit_test(attentions_and_codes),
    };
    return failed_or_leaked(cmocka_run_group_tests(tests, open_gpu, close_gpu));
}
