/* Products on the device: every weight type against double, one to nine rows and tiles; a row has
 * the same bits whatever is computed beside it.
 */
#include "kernels/gpu/gpu_interleave.h"
#include "kernels/gpu_check.h"
#include "support/released.h"

#define N_OUT  19u
#define ROWS   37u
#define N_SLOT 11u
#define N_EXP  5u
#define BOUND  1e-11 /* of the mean squared error: f32 sums against double */
#define CODES  2e-4  /* the same for activations of 8 bits against their values */

static gpu_check gc;

typedef struct format {
    rg_type type;
    int d_at, m_at; /* f16 scales in a block; -1: none */
} format;

static const format formats[] = {
    {RG_TYPE_F32, -1, -1},   {RG_TYPE_F16, -1, -1},    {RG_TYPE_BF16, -1, -1},
    {RG_TYPE_Q4_0, 0, -1},   {RG_TYPE_Q4_1, 0, 2},     {RG_TYPE_Q5_0, 0, -1},
    {RG_TYPE_Q5_1, 0, 2},    {RG_TYPE_Q8_0, 0, -1},    {RG_TYPE_Q2_K, 80, 82},
    {RG_TYPE_Q3_K, 108, -1}, {RG_TYPE_Q4_K, 0, 2},     {RG_TYPE_Q5_K, 0, 2},
    {RG_TYPE_Q6_K, 208, -1}, {RG_TYPE_IQ2_XXS, 0, -1}, {RG_TYPE_IQ2_XS, 0, -1},
    {RG_TYPE_IQ2_S, 0, -1},  {RG_TYPE_IQ3_XXS, 0, -1}, {RG_TYPE_IQ3_S, 0, -1},
    {RG_TYPE_IQ1_S, 0, -1},  {RG_TYPE_IQ1_M, -1, -1},  {RG_TYPE_IQ4_NL, 0, -1},
    {RG_TYPE_IQ4_XS, 0, -1}, {RG_TYPE_TQ1_0, 52, -1},  {RG_TYPE_TQ2_0, 64, -1},
    {RG_TYPE_MXFP4, -1, -1}, {RG_TYPE_NVFP4, -1, -1},  {RG_TYPE_Q1_0, 0, -1},
    {RG_TYPE_Q2_0, 0, -1},
};

static void put_half(uint8_t *at, draws *d) {
    const uint16_t h =
        (uint16_t)(draw_below(d, 2) << 15 | (8 + draw_below(d, 4)) << 10 | draw_below(d, 1024));
    memcpy(at, &h, sizeof h);
}

/* Random bytes with scales of moderate size. */
static void draw_weights(draws *d, const format *f, uint8_t *w, size_t n) {
    const rg_type_info *info = rg_type_get((uint32_t)f->type);
    for (size_t i = 0; i < n / info->block_elems; i++, w += info->block_bytes) {
        if (info->block_elems == 1) {
            const float x = draw_between(d, -2.0, 2.0);
            const uint16_t h = f->type == RG_TYPE_F16 ? rg_f32_to_f16(x) : rg_f32_to_bf16(x);
            memcpy(w, f->type == RG_TYPE_F32 ? (const void *)&x : &h, info->block_bytes);
            continue;
        }
        draw_bytes(d, w, info->block_bytes);
        if (f->d_at >= 0) put_half(w + f->d_at, d);
        if (f->m_at >= 0) put_half(w + f->m_at, d);
        if (f->type == RG_TYPE_MXFP4) w[0] = (uint8_t)(110 + draw_below(d, 20));
        if (f->type == RG_TYPE_IQ1_M) w[55] = (uint8_t)((w[55] & 15) | 0x20); /* exponent */
    }
}

typedef struct setup {
    const format *f;
    uint32_t n_in;
    size_t row_bytes;
    uint8_t *w;                   /* [N_EXP][N_OUT] rows */
    float *x;                     /* [ROWS][n_in] */
    double *want;                 /* [ROWS][N_EXP][N_OUT] */
    rg_gpu_buffer wb, xb, cb, yb; /* cb: xb as codes */
    rg_gpu_buffer ib;             /* the same experts with interleaved rows, of types that can */
    uint64_t i_stride;
} setup;

/* Replaces x by what its codes stand for; each value is within half a step of its group. */
static void fetch_codes(setup *s) {
    const size_t bytes = rg_gpu_act_bytes(s->n_in);
    uint8_t *rows = test_alloc(bytes * ROWS);
    const rg_gpu_quantize_args a = {
        .x = s->xb.address, .y = s->cb.address, .n = s->n_in, .x_stride = s->n_in};
    rg_gpu_list_begin(gc.list, false);
    rg_gpu_quantize(gc.list, &a, ROWS);
    gpu_run_list(&gc);
    gpu_fetch(&gc, &s->cb, rows, bytes * ROWS);
    for (size_t i = 0; i < (size_t)ROWS * s->n_in; i++) {
        const uint8_t *row = rows + i / s->n_in * bytes;
        const size_t at = i % s->n_in;
        float d;
        int16_t sum;
        memcpy(&d, row + s->n_in + at / 32 * 4, sizeof d);
        memcpy(&sum, row + s->n_in + s->n_in / 8 + at / 16 * 2, sizeof sum);
        const float x = d * (float)(int8_t)row[at];
        if (!(fabsf(x - s->x[i]) <= 0.5001f * d))
            fail_msg("value %zu: %g as %g", i, (double)s->x[i], (double)x);
        for (size_t k = 0; k < 16; k++)
            sum = (int16_t)(sum - (int8_t)row[at / 16 * 16 + k]);
        assert_int_equal(sum, 0);
        s->x[i] = x;
    }
    rg_free(rows);
}

static void want_products(setup *s) {
    const size_t rows = (size_t)N_EXP * N_OUT;
    float *row = test_alloc(sizeof(float) * s->n_in);
    for (size_t r = 0; r < rows; r++) {
        rg_unpack_row(s->f->type, s->w + r * s->row_bytes, row, s->n_in);
        for (size_t t = 0; t < ROWS; t++) {
            double sum = 0.0;
            for (uint32_t i = 0; i < s->n_in; i++)
                sum += (double)row[i] * (double)s->x[t * s->n_in + i];
            s->want[t * rows + r] = sum;
        }
    }
    rg_free(row);
}

/* How far codes take the products from those of the values themselves. */
static void check_codes(setup *s) {
    const size_t n = (size_t)ROWS * N_EXP * N_OUT;
    float *plain = test_alloc(sizeof(float) * n);
    for (size_t i = 0; i < n; i++)
        plain[i] = (float)s->want[i];
    fetch_codes(s);
    want_products(s);
    expect_nmse(plain, s->want, n, CODES, "codes");
    rg_free(plain);
}

/* Pairs in two goes, as threads that share a matrix would. */
static void interleave(setup *s) {
    if (!rg_gpu_can_interleave(s->f->type, s->n_in)) return;
    s->i_stride = rg_gpu_interleaved_of(s->f->type, s->n_in, N_OUT).bytes;
    uint8_t *all = test_alloc(N_EXP * s->i_stride);
    for (uint32_t e = 0; e < N_EXP; e++) {
        const uint8_t *src = s->w + (size_t)e * N_OUT * s->row_bytes;
        uint8_t *dst = all + e * s->i_stride;
        rg_gpu_interleave(s->f->type, s->n_in, N_OUT, src, dst, 3, (N_OUT + 1) / 2);
        rg_gpu_interleave(s->f->type, s->n_in, N_OUT, src, dst, 0, 3);
    }
    s->ib = gpu_filled(&gc, all, N_EXP * s->i_stride);
    rg_free(all);
}

static setup setup_make(draws *d, const format *f, uint32_t n_in) {
    setup s = {.f = f, .n_in = n_in, .row_bytes = rg_row_bytes(f->type, n_in)};
    const size_t rows = (size_t)N_EXP * N_OUT;
    s.w = test_alloc(rows * s.row_bytes);
    s.x = test_alloc(sizeof(float) * ROWS * n_in);
    s.want = test_alloc(sizeof(double) * ROWS * rows);
    draw_weights(d, f, s.w, rows * n_in);
    draw_floats(d, s.x, (size_t)ROWS * n_in, -1.0, 1.0);
    want_products(&s);
    s.wb = gpu_filled(&gc, s.w, rows * s.row_bytes);
    s.xb = gpu_filled(&gc, s.x, sizeof(float) * ROWS * n_in);
    s.yb = gpu_filled(&gc, NULL, sizeof(float) * ROWS * N_OUT);
    s.cb = gpu_filled(&gc, NULL, rg_gpu_act_bytes(n_in) * ROWS);
    if (!rg_gpu_takes_floats(f->type)) check_codes(&s);
    interleave(&s);
    return s;
}

static void setup_free(setup *s) {
    rg_gpu_buffer_destroy(gc.gpu, &s->wb);
    rg_gpu_buffer_destroy(gc.gpu, &s->xb);
    rg_gpu_buffer_destroy(gc.gpu, &s->cb);
    rg_gpu_buffer_destroy(gc.gpu, &s->yb);
    rg_gpu_buffer_destroy(gc.gpu, &s->ib);
    rg_free(s->w);
    rg_free(s->x);
    rg_free(s->want);
}

static rg_gpu_product product_of(const setup *s, uint32_t rows) {
    return (rg_gpu_product){.w = s->wb.address,
                            .x = rg_gpu_takes_floats(s->f->type) ? s->xb.address : s->cb.address,
                            .y = s->yb.address,
                            .tables = gc.tables.address,
                            .n_in = s->n_in,
                            .n_out = N_OUT,
                            .row_bytes = (uint32_t)s->row_bytes,
                            .x_stride = s->n_in,
                            .y_stride = N_OUT,
                            .x_div = 1,
                            .div = 1.0f,
                            .n = rows};
}

/* Rows 0..rows of one product into got [rows][N_OUT]. */
static void multiply(const setup *s, const rg_gpu_product_way *way, uint32_t rows, float *got) {
    rg_gpu_product p = product_of(s, rows);
    if (way->interleaved) p.w = s->ib.address;
    rg_gpu_list_begin(gc.list, false);
    rg_gpu_mul(gc.list, &p, way);
    gpu_run_list(&gc);
    gpu_fetch(&gc, &s->yb, got, sizeof(float) * rows * N_OUT);
}

/* Interleaved rows, in tiles and row by row: the bits of the rows as they are in a file. */
static void check_interleaved(const setup *s, const uint32_t *rows, size_t n, const float *first) {
    float *got = test_alloc(sizeof(float) * ROWS * N_OUT);
    rg_gpu_product_way way = {.type = s->f->type, .interleaved = true, .side = 2};
    for (int matrix = 0; matrix < 2; matrix++) {
        way.no_matrix = !matrix;
        multiply(s, &way, ROWS, got);
        assert_memory_equal(got, first, sizeof(float) * ROWS * N_OUT);
    }
    way.side = 0;
    for (size_t i = 0; i < 3 * n; i++) {
        way.group_rows = (uint32_t)(i % 3) * 2;
        multiply(s, &way, rows[i / 3], got);
        assert_memory_equal(got, first, sizeof(float) * rows[i / 3] * N_OUT);
    }
    rg_free(got);
}

static void check_type(draws *d, const format *f, uint32_t n_in, const uint32_t *rows, size_t n) {
    setup s = setup_make(d, f, n_in);
    float *first = test_alloc(sizeof(float) * ROWS * N_OUT);
    float *got = test_alloc(sizeof(float) * ROWS * N_OUT);
    double *want = test_alloc(sizeof(double) * ROWS * N_OUT);
    const char *name = rg_type_get((uint32_t)f->type)->name;
    for (size_t t = 0; t < ROWS; t++)
        memcpy(want + t * N_OUT, s.want + t * N_EXP * N_OUT, sizeof(double) * N_OUT);
    rg_gpu_product_way way = {.type = f->type, .side = 2};
    multiply(&s, &way, ROWS, first);
    way.no_matrix = true;
    for (way.side = n > 3 ? 4 : 1; way.side; way.side = way.side == 4 ? 1 : 0) {
        multiply(&s, &way, ROWS, got);
        assert_memory_equal(got, first, sizeof(float) * ROWS * N_OUT);
    }
    way.side = 0; /* few rows of weights: blocks of eight rows of x */
    expect_nmse(first, want, (size_t)ROWS * N_OUT, BOUND, name);
    for (size_t i = 0; i < n; i++) {
        multiply(&s, &way, rows[i], got);
        for (size_t j = 0; j < (size_t)rows[i] * N_OUT; j++) {
            if (bits_of(got[j]) != bits_of(first[j]))
                fail_msg("%s n_in %u: %u rows: element %zu is %a, in tiles %a", name, n_in, rows[i],
                         j, (double)got[j], (double)first[j]);
        }
    }
    if (s.i_stride) check_interleaved(&s, rows, n, first);
    rg_free(first);
    rg_free(got);
    rg_free(want);
    setup_free(&s);
}

static void every_type_near_double(void **state) {
    (void)state;
    draws d = draws_start("every_type_near_double", 4242);
    static const uint32_t few[] = {1, 9}, all[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, ROWS};
    for (size_t i = 0; i < RG_ARRAY_LEN(formats); i++) {
        const bool wide = formats[i].type == RG_TYPE_IQ2_XS;
        check_type(&d, &formats[i], 768, wide ? all : few, wide ? 11 : 2);
    }
    check_type(&d, &formats[0], 37, few, 2); /* no multiple of anything */
    check_type(&d, &formats[1], 5, few, 2);
    check_type(&d, &formats[7], 32, few, 2);
    check_type(&d, &formats[20], 640, few, 2);
}

/* Few tiles of long rows, shared among workgroups and added up: the same bits as in one go. */
static void check_parts(draws *d, const format *f, uint32_t rows) {
    setup s = setup_make(d, f, 3584);
    const size_t n_out = (size_t)N_EXP * N_OUT, n = rows * n_out;
    const size_t planes_bytes = rg_gpu_planes_bytes(f->type, s.n_in, (uint32_t)n_out, rows);
    float *whole = test_alloc(sizeof(float) * n), *got = test_alloc(sizeof(float) * n);
    rg_gpu_buffer planes = gpu_filled(&gc, NULL, planes_bytes);
    rg_gpu_buffer y = gpu_filled(&gc, NULL, sizeof(float) * n);
    rg_gpu_product p = product_of(&s, rows);
    assert_true(planes_bytes > 0);
    p.y = y.address;
    p.n_out = p.y_stride = (uint32_t)n_out;
    p.div = 4.0f;
    rg_gpu_product_way way = {.type = f->type, .epilogue = RG_GPU_SILU};
    for (int parts = 0; parts < 2; parts++) {
        way.planes = parts ? planes.address : 0;
        way.planes_bytes = planes_bytes;
        rg_gpu_list_begin(gc.list, true);
        rg_gpu_mul(gc.list, &p, &way);
        gpu_run_list(&gc);
        gpu_fetch(&gc, &y, parts ? got : whole, sizeof(float) * n);
        uint32_t dispatches = 0;
        (void)rg_gpu_list_times(gc.list, &dispatches);
        assert_int_equal(dispatches, parts ? 2 : 1);
    }
    assert_memory_equal(got, whole, sizeof(float) * n);
    rg_gpu_buffer_destroy(gc.gpu, &planes);
    rg_gpu_buffer_destroy(gc.gpu, &y);
    rg_free(whole);
    rg_free(got);
    setup_free(&s);
}

static void parts_change_no_bit(void **state) {
    (void)state;
    draws d = draws_start("parts_change_no_bit", 4246);
    for (size_t i = 0; i < RG_ARRAY_LEN(formats); i++) {
        if (formats[i].type == RG_TYPE_Q8_0) check_parts(&d, &formats[i], ROWS);
        if (formats[i].type == RG_TYPE_Q4_K) check_parts(&d, &formats[i], 9);
    }
    assert_int_equal(rg_gpu_planes_bytes(RG_TYPE_Q8_0, 2560, 320, 64), 0);     /* short rows */
    assert_int_equal(rg_gpu_planes_bytes(RG_TYPE_Q8_0, 10240, 12288, 512), 0); /* many tiles */
}

/* ---- experts --------------------------------------------------------------------------------- */

/* `p`, gate and up of slots fused, once more with interleaved rows. */
static void check_interleaved_slots(const setup *s, rg_gpu_product p, const rg_gpu_buffer *y,
                                    const float *want, size_t bytes) {
    const rg_gpu_product_way way = {.type = s->f->type, .fused = true, .interleaved = true};
    float *got = test_alloc(bytes);
    p.w = p.w2 = s->ib.address;
    p.stride = s->i_stride;
    rg_gpu_list_begin(gc.list, false);
    rg_gpu_mul_slots(gc.list, &p, &way, NULL, 0);
    gpu_run_list(&gc);
    gpu_fetch(&gc, y, got, bytes);
    assert_memory_equal(got, want, bytes);
    rg_free(got);
}

/* Slot (row, k) by slot, by tile, and fused with its twin: the same bits. */
static void check_experts(draws *d, const format *f) {
    setup s = setup_make(d, f, 256);
    uint32_t ids[N_SLOT * 2];
    for (uint32_t i = 0; i < N_SLOT * 2; i++)
        ids[i] = draw_below(d, N_EXP);
    const size_t words = rg_gpu_plan_words(N_SLOT * 2, N_EXP, 16);
    rg_gpu_buffer ib = gpu_filled(&gc, ids, sizeof ids), lb = gpu_filled(&gc, NULL, words * 4);
    rg_gpu_buffer grids = gpu_filled(&gc, NULL, 24);
    rg_gpu_buffer up = gpu_filled(&gc, NULL, sizeof(float) * N_SLOT * 2 * N_OUT);
    rg_gpu_buffer gate = gpu_filled(&gc, NULL, sizeof(float) * N_SLOT * 2 * N_OUT);
    rg_gpu_product p = product_of(&s, N_SLOT * 2);
    const size_t n = (size_t)N_SLOT * 2 * N_OUT;
    float by_slot[N_SLOT * 2 * N_OUT], by_tile[N_SLOT * 2 * N_OUT];
    double want[N_SLOT * 2 * N_OUT];
    p.ids = ib.address;
    p.stride = N_OUT * s.row_bytes;
    p.x_div = 2;
    p.y = gate.address;
    const rg_gpu_product_way way = {.type = f->type, .side = 1};
    for (uint32_t i = 0; i < N_SLOT * 2; i++) {
        for (uint32_t r = 0; r < N_OUT; r++)
            want[i * N_OUT + r] = s.want[((size_t)i / 2 * N_EXP + ids[i]) * N_OUT + r];
    }
    rg_gpu_list_begin(gc.list, false);
    rg_gpu_mul_slots(gc.list, &p, &way, NULL, 0);
    gpu_run_list(&gc);
    gpu_fetch(&gc, &gate, by_slot, sizeof by_slot);
    expect_nmse(by_slot, want, n, BOUND, "slots");
    const rg_gpu_plan_args plan = {.ids = ib.address,
                                   .list = lb.address,
                                   .grids = grids.address,
                                   .n = N_SLOT * 2,
                                   .n_expert = N_EXP,
                                   .cols = 16,
                                   .x_hidden = 1,
                                   .x_out = 1};
    p.list = lb.address;
    p.y = up.address;
    rg_gpu_list_begin(gc.list, false);
    rg_gpu_plan(gc.list, &plan);
    rg_gpu_barrier(gc.list);
    rg_gpu_mul_tiles(gc.list, &p, &way, &grids, 12);
    gpu_run_list(&gc);
    gpu_fetch(&gc, &up, by_tile, sizeof by_tile);
    assert_memory_equal(by_tile, by_slot, sizeof by_slot);
    /* gate = silu(gate) * up in one go, and as two products. */
    const rg_gpu_silu_mul_args act = {.g = gate.address, .u = up.address, .n = N_OUT};
    rg_gpu_list_begin(gc.list, false);
    rg_gpu_silu_mul(gc.list, &act, N_SLOT * 2);
    gpu_run_list(&gc);
    gpu_fetch(&gc, &gate, by_tile, sizeof by_tile);
    const rg_gpu_product_way fused = {.type = f->type, .fused = true};
    p.list = 0;
    p.w2 = p.w;
    rg_gpu_list_begin(gc.list, false);
    rg_gpu_mul_slots(gc.list, &p, &fused, NULL, 0);
    gpu_run_list(&gc);
    gpu_fetch(&gc, &up, by_slot, sizeof by_slot);
    assert_memory_equal(by_tile, by_slot, sizeof by_slot);
    if (s.i_stride) check_interleaved_slots(&s, p, &up, by_tile, sizeof by_tile);
    rg_gpu_buffer_destroy(gc.gpu, &ib);
    rg_gpu_buffer_destroy(gc.gpu, &lb);
    rg_gpu_buffer_destroy(gc.gpu, &grids);
    rg_gpu_buffer_destroy(gc.gpu, &up);
    rg_gpu_buffer_destroy(gc.gpu, &gate);
    setup_free(&s);
}

static void experts_by_slot_and_tile(void **state) {
    (void)state;
    draws d = draws_start("experts_by_slot_and_tile", 515);
    check_experts(&d, &formats[14]);
    check_experts(&d, &formats[7]);
    check_experts(&d, &formats[10]);
}

static void epilogues(void **state) {
    (void)state;
    draws d = draws_start("epilogues", 99);
    setup s = setup_make(&d, &formats[0], 64);
    float plain[ROWS * N_OUT], got[ROWS * N_OUT];
    multiply(&s, &(rg_gpu_product_way){.type = RG_TYPE_F32}, 3, plain);
    for (int e = RG_GPU_SILU; e <= RG_GPU_SIGMOID; e++) {
        rg_gpu_product p = product_of(&s, 3);
        p.div = 4.0f;
        rg_gpu_list_begin(gc.list, false);
        rg_gpu_mul(gc.list, &p,
                   &(rg_gpu_product_way){.type = RG_TYPE_F32, .epilogue = (rg_gpu_epilogue)e});
        gpu_run_list(&gc);
        gpu_fetch(&gc, &s.yb, got, sizeof(float) * 3 * N_OUT);
        double want[3 * N_OUT];
        for (size_t i = 0; i < 3 * N_OUT; i++) {
            const double x = (double)plain[i] / 4.0, y = 1.0 / (1.0 + exp(-x));
            want[i] = e == RG_GPU_SILU ? x * y : e == RG_GPU_SIGMOID ? y : 2.0 * y;
        }
        expect_nmse(got, want, 3 * N_OUT, 1e-12, "epilogue");
    }
    setup_free(&s);
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
        cmocka_unit_test(every_type_near_double),
        cmocka_unit_test(parts_change_no_bit),
        cmocka_unit_test(experts_by_slot_and_tile),
        cmocka_unit_test(epilogues),
    };
    return failed_or_leaked(cmocka_run_group_tests(tests, open_gpu, close_gpu));
}
