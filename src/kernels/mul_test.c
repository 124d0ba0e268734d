/* The product of every storable type: its canonical formula restated from the unpacked values of
 * quant, equality of all levels for any number of rows and any cut of the row range, and the error
 * against double.
 */
#include "kernels/level_check.h"

#define ROWS_MAX  17u /* activation rows */
#define N_IN_MAX  2560u
#define N_OUT_MAX 7u
#define Y_STRIDE  (N_OUT_MAX + 2u)
#define Y_ROWS    (ROWS_MAX + 6u)
#define GUARD     12345.0f

/* How a block is taken apart. With d = `unit` (an f16) and no minimum the format unpacks to the
 * integers code * sub-scale; d then stands for `factor` * d. */
typedef struct format {
    rg_type type;
    int d_at, m_at; /* offsets of d and of dmin or m, -1: none */
    uint16_t unit;
    float factor;
    uint32_t span;  /* values of one integer sum, 0: float type */
    float m_factor; /* sign of the minimum in x = d * code + m_factor * m * mincode */
} format;

enum { ONE = 0x3c00, FOUR = 0x4400, EIGHT = 0x4800 };

static const format formats[] = {
    {RG_TYPE_F32, -1, -1, 0, 0, 0, 0},
    {RG_TYPE_F16, -1, -1, 0, 0, 0, 0},
    {RG_TYPE_BF16, -1, -1, 0, 0, 0, 0},
    {RG_TYPE_Q4_0, 0, -1, ONE, 1.0f, 32, 0},
    {RG_TYPE_Q4_1, 0, 2, ONE, 1.0f, 32, 1.0f},
    {RG_TYPE_Q5_0, 0, -1, ONE, 1.0f, 32, 0},
    {RG_TYPE_Q5_1, 0, 2, ONE, 1.0f, 32, 1.0f},
    {RG_TYPE_Q8_0, 0, -1, ONE, 1.0f, 32, 0},
    {RG_TYPE_Q2_K, 80, 82, ONE, 1.0f, 256, -1.0f},
    {RG_TYPE_Q3_K, 108, -1, ONE, 1.0f, 256, 0},
    {RG_TYPE_Q4_K, 0, 2, ONE, 1.0f, 256, -1.0f},
    {RG_TYPE_Q5_K, 0, 2, ONE, 1.0f, 256, -1.0f},
    {RG_TYPE_Q6_K, 208, -1, ONE, 1.0f, 256, 0},
    {RG_TYPE_IQ2_XXS, 0, -1, EIGHT, 0.125f, 256, 0},
    {RG_TYPE_IQ2_XS, 0, -1, EIGHT, 0.125f, 256, 0},
    {RG_TYPE_IQ2_S, 0, -1, EIGHT, 0.125f, 256, 0},
    {RG_TYPE_IQ3_XXS, 0, -1, FOUR, 0.25f, 256, 0},
    {RG_TYPE_IQ3_S, 0, -1, ONE, 1.0f, 256, 0},
    {RG_TYPE_IQ1_S, 0, -1, EIGHT, 0.125f, 256, 0},
    {RG_TYPE_IQ1_M, -1, -1, EIGHT, 0.125f, 256, 0}, /* d lies in four nibbles */
    {RG_TYPE_IQ4_NL, 0, -1, ONE, 1.0f, 32, 0},
    {RG_TYPE_IQ4_XS, 0, -1, ONE, 1.0f, 256, 0},
    {RG_TYPE_TQ1_0, 52, -1, ONE, 1.0f, 256, 0},
    {RG_TYPE_TQ2_0, 64, -1, ONE, 1.0f, 256, 0},
    {RG_TYPE_MXFP4, -1, -1, 0, 1.0f, 32, 0}, /* one E8M0 byte */
    {RG_TYPE_NVFP4, -1, -1, 0, 1.0f, 16, 0}, /* four UE4M3 bytes */
    {RG_TYPE_Q1_0, 0, -1, ONE, 1.0f, 32, 0},
    {RG_TYPE_Q2_0, 0, -1, ONE, 1.0f, 32, 0},
};

/* ---- blocks ---------------------------------------------------------------------------------- */

static uint16_t get_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static void put_u16(uint8_t *p, uint16_t v) {
    memcpy(p, &v, sizeof v);
}

/* The scales of one block replaced; `d` is an f16 except for the fp4 formats, which get ones. */
static void set_scales(const format *f, uint8_t *block, uint16_t d, uint16_t m) {
    if (f->d_at >= 0) put_u16(block + f->d_at, d);
    if (f->m_at >= 0) put_u16(block + f->m_at, m);
    if (f->type == RG_TYPE_IQ1_M) {
        for (int k = 0; k < 4; k++) {
            const unsigned nibble = (unsigned)d >> 4 * k & 15u;
            uint8_t *at = block + 48 + 2 * k;
            put_u16(at, (uint16_t)((get_u16(at) & 0x0fffu) | nibble << 12));
        }
    }
    if (f->type == RG_TYPE_MXFP4) block[0] = 128;         /* 2^(128 - 128) */
    if (f->type == RG_TYPE_NVFP4) memset(block, 0x40, 4); /* half of 2 */
}

/* A finite f16 of either sign; `wide`: also subnormals and the largest. */
static uint16_t draw_scale(draws *d, bool wide) {
    const uint32_t exponent = wide ? draw_below(d, 31) : 5 + draw_below(d, 12);
    return (uint16_t)(draw_below(d, 2) << 15 | exponent << 10 | draw_below(d, 1024));
}

static const uint8_t fills[] = {0x00, 0x55, 0x7f, 0x80, 0xaa, 0xff};

/* One valid block: random bytes, or (fill >= 0) one byte throughout, with random scales. */
static void draw_block(draws *d, const format *f, uint8_t *block, int fill, bool wide) {
    const size_t bytes = rg_type_get(f->type)->block_bytes;
    if (f->span == 0) {
        const float x = draw_between(d, -2.0, 2.0);
        const uint16_t h = f->type == RG_TYPE_F16 ? rg_f32_to_f16(x) : rg_f32_to_bf16(x);
        memcpy(block, f->type == RG_TYPE_F32 ? (const void *)&x : &h, bytes);
        return;
    }
    draw_bytes(d, block, bytes);
    if (fill >= 0) memset(block, fill, bytes);
    if (f->type == RG_TYPE_MXFP4) {
        block[0] = (uint8_t)(wide ? 20 + draw_below(d, 160) : 118 + draw_below(d, 16));
    } else if (f->type != RG_TYPE_NVFP4) { /* every scale byte of NVFP4 is valid */
        set_scales(f, block, draw_scale(d, wide), draw_scale(d, wide));
    }
    if (f->type == RG_TYPE_Q6_K && fill >= 0) {
        static const int8_t ends[] = {127, -127, -128};
        for (int s = 0; s < 16; s++)
            block[192 + s] = (uint8_t)ends[draw_below(d, 3)];
    }
}

/* A matrix, rows of activations in the form that the set wants, and what a level needs to run. */
typedef struct setup {
    uint32_t rows, n_out_max, n_in_max; /* room */
    const format *f;
    rg_mat w;
    uint8_t *data;
    rg_act act;
    float *x; /* [ROWS_MAX][n_in] */
    int8_t *codes;
    float *scales;
    int16_t *sums;
    float *y, *want; /* [Y_ROWS][Y_STRIDE] */
    void *scratch;
} setup;

static setup setup_of(uint32_t rows, uint32_t n_out_max, uint32_t n_in_max, size_t y_floats) {
    setup s = {.rows = rows, .n_out_max = n_out_max, .n_in_max = n_in_max};
    s.data = test_alloc(sizeof(float) * n_out_max * n_in_max);
    s.x = test_alloc(sizeof(float) * rows * n_in_max);
    s.codes = test_alloc((size_t)rows * n_in_max);
    s.scales = test_alloc(sizeof(float) * rows * n_in_max / 32);
    s.sums = test_alloc(sizeof(int16_t) * rows * n_in_max / 16);
    s.y = test_alloc(sizeof(float) * y_floats);
    s.want = test_alloc(sizeof(float) * y_floats);
    s.scratch = test_alloc(rg_mul_scratch_bytes(n_in_max));
    return s;
}

static setup setup_create(void) {
    return setup_of(ROWS_MAX, N_OUT_MAX, N_IN_MAX, Y_ROWS * Y_STRIDE);
}

static void setup_destroy(setup *s) {
    rg_free(s->data);
    rg_free(s->x);
    rg_free(s->codes);
    rg_free(s->scales);
    rg_free(s->sums);
    rg_free(s->y);
    rg_free(s->want);
    rg_free(s->scratch);
}

static void setup_weights(setup *s, draws *d, const format *f, uint32_t n_out, uint32_t n_in,
                          int fill, bool wide) {
    const rg_type_info *info = rg_type_get(f->type);
    s->f = f;
    s->w = (rg_mat){.data = s->data, .type = f->type, .n_out = n_out, .n_in = n_in};
    s->w.row_bytes = rg_row_bytes(f->type, n_in);
    assert_true(n_out <= s->n_out_max && n_in <= s->n_in_max && s->w.row_bytes > 0);
    for (size_t b = 0; b < (size_t)n_out * n_in / info->block_elems; b++)
        draw_block(d, f, s->data + b * info->block_bytes, fill, wide);
}

/* x in the form for `set` (quantize_test.c holds the codes to the rules of quant). */
static void setup_act(setup *s, rg_kernel_set set) {
    const uint32_t n = s->w.n_in;
    s->act = (rg_act){.form = rg_act_form_of(s->w.type, set), .n_in = n, .f32 = s->x};
    s->act.codes = s->codes, s->act.scales = s->scales, s->act.sums = s->sums;
    if (s->act.form == RG_ACT_F32) return;
    const uint32_t span = s->act.form == RG_ACT_Q256 ? 256 : 32;
    for (uint32_t i = 0; i < s->rows; i++) {
        rg_ops_get(RG_CPU_SCALAR)
            ->quantize(s->act.form, s->x + i * n, n, s->codes + i * n, s->scales + i * (n / span),
                       s->sums + i * (n / 16));
    }
}

/* ---- the formula, restated ------------------------------------------------------------------- */

/* Block `b` of a row with its scales replaced, unpacked. */
static void unpack_as(const format *f, const uint8_t *block, uint16_t d, uint16_t m, float *x) {
    const rg_type_info *info = rg_type_get(f->type);
    uint8_t copy[292];
    assert_true(info->block_bytes <= sizeof copy);
    memcpy(copy, block, info->block_bytes);
    set_scales(f, copy, d, m);
    rg_unpack_row(f->type, copy, x, info->block_elems);
}

/* Scale of the span that starts at element `at` of a block. */
static float span_scale(const format *f, const uint8_t *block, uint32_t at) {
    if (f->d_at >= 0) return rg_f16_to_f32(get_u16(block + f->d_at)) * f->factor;
    if (f->type == RG_TYPE_IQ1_M) {
        return rg_f16_to_f32(rg_iq1_m_d((const rg_block_iq1_m *)(const void *)block)) * f->factor;
    }
    /* fp4: code 1 stands for 1, so a block of that code unpacks to its scales. */
    const rg_type_info *info = rg_type_get(f->type);
    const uint32_t head = f->type == RG_TYPE_NVFP4 ? 4 : 1;
    uint8_t copy[36];
    float x[64];
    memcpy(copy, block, head);
    memset(copy + head, 0x11, info->block_bytes - head);
    rg_unpack_row(f->type, copy, x, info->block_elems);
    return x[at];
}

/* acc = fma(d_w * d_x, total, acc) per span in ascending order, the minimum after it. */
static float canonical_quantised(const setup *s, const uint8_t *row, uint32_t act_row) {
    const format *f = s->f;
    const rg_type_info *info = rg_type_get(f->type);
    const uint32_t x_span = s->act.form == RG_ACT_Q256 ? 256 : 32;
    const int8_t *codes = s->codes + act_row * s->w.n_in;
    const float *scales = s->scales + act_row * (s->w.n_in / x_span);
    float q[256], mins[256] = {0}, acc = 0.0f;
    for (uint32_t i = 0; i < s->w.n_in; i += info->block_elems, row += info->block_bytes) {
        unpack_as(f, row, f->unit, 0, q);
        if (f->m_at >= 0) unpack_as(f, row, 0, ONE, mins);
        for (uint32_t at = 0; at < info->block_elems; at += f->span) {
            const float dx = scales[(i + at) / x_span];
            int64_t total = 0, mtotal = 0;
            for (uint32_t e = at; e < at + f->span; e++) {
                assert_true(q[e] == rintf(q[e]) && mins[e] == rintf(mins[e]));
                total += (int64_t)q[e] * codes[i + e];
                mtotal += (int64_t)(mins[e] * f->m_factor) * codes[i + e];
            }
            assert_true(llabs(total) <= INT32_MAX && llabs(mtotal) <= INT32_MAX);
            acc = fmaf(span_scale(f, row, at) * dx, (float)total, acc);
            if (f->m_at < 0) continue;
            const float m = rg_f16_to_f32(get_u16(row + f->m_at)) * f->m_factor;
            acc = fmaf(m * dx, (float)mtotal, acc);
        }
    }
    return acc;
}

/* Sixteen accumulators by element index, then halves folded onto each other. */
static float canonical_float(const float *w, const float *x, uint32_t n) {
    float acc[16] = {0};
    for (uint32_t i = 0; i < n; i++)
        acc[i % 16] = fmaf(w[i], x[i], acc[i % 16]);
    for (uint32_t half = 8; half > 0; half /= 2) {
        for (uint32_t l = 0; l < half; l++)
            acc[l] = acc[l] + acc[l + half];
    }
    return acc[0];
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Fills s->want with the restated formula; `exact`: also holds it to double, |error| <= 1e-5 of the
 * sum of magnitudes. */
static void expect_canonical(setup *s, bool exact) {
    const uint32_t n = s->w.n_in;
    float w[N_IN_MAX];
    for (uint32_t r = 0; r < s->w.n_out; r++) {
        const uint8_t *row = s->data + r * s->w.row_bytes;
        rg_unpack_row(s->w.type, row, w, n);
        for (uint32_t i = 0; i < ROWS_MAX; i++) {
            const float *x = s->x + i * n;
            const bool f32 = s->act.form == RG_ACT_F32;
            const float got = f32 ? canonical_float(w, x, n) : canonical_quantised(s, row, i);
            s->want[i * Y_STRIDE + r] = got;
            if (!exact) continue;
            const uint32_t span = s->act.form == RG_ACT_Q256 ? 256 : 32;
            double sum = 0.0, magnitude = 0.0;
            for (uint32_t e = 0; e < n; e++) {
                const double xe =
                    f32 ? (double)x[e]
                        : (double)s->scales[i * (n / span) + e / span] * s->codes[i * n + e];
                sum += (double)w[e] * xe;
                magnitude += fabs((double)w[e] * xe);
            }
            if (fabs((double)got - sum) > 1e-5 * magnitude) {
                fail_msg("%s n_in %u row %u: %a, in double %a", rg_type_get(s->w.type)->name, n, r,
                         (double)got, sum);
            }
        }
    }
}

static void clear_y(setup *s) {
    for (uint32_t i = 0; i < Y_ROWS * Y_STRIDE; i++)
        s->y[i] = GUARD;
}

/* The row range in two calls, in the order last part first. */
static void run_cut(const setup *s, const rg_ops *ops, uint32_t cut, const uint32_t *x_rows,
                    const uint32_t *y_rows, uint32_t n) {
    ops->mul(&s->w, cut, s->w.n_out, &s->act, x_rows, y_rows, n, s->y, Y_STRIDE, s->scratch);
    ops->mul(&s->w, 0, cut, &s->act, x_rows, y_rows, n, s->y, Y_STRIDE, s->scratch);
}

/* y row `at` must be activation row `from`; from = UINT32_MAX: untouched. */
static void expect_row(const setup *s, const rg_ops *ops, uint32_t at, uint32_t from) {
    const float *y = s->y + at * Y_STRIDE;
    for (uint32_t r = 0; r < Y_STRIDE; r++) {
        const bool written = from != UINT32_MAX && r < s->w.n_out;
        const float want = written ? s->want[from * Y_STRIDE + r] : GUARD;
        if (same_bits(y[r], want)) continue;
        fail_msg("%s level %s n_in %u: y[%u][%u] = %a, expected %a of row %d",
                 rg_type_get(s->w.type)->name, rg_cpu_level_name(ops->level), s->w.n_in, at, r,
                 (double)y[r], (double)want, (int)from);
    }
}

/* Every level, 1..17 rows, cut anywhere, plain and through index lists. */
static void expect_all_levels(setup *s, draws *d, const level_list *levels) {
    for (uint32_t l = 0; l < levels->n; l++) {
        const rg_ops *ops = levels->ops[l];
        for (uint32_t n = 1; n <= ROWS_MAX; n++) {
            clear_y(s);
            run_cut(s, ops, n % (s->w.n_out + 1), NULL, NULL, n);
            for (uint32_t i = 0; i < Y_ROWS; i++)
                expect_row(s, ops, i, i < n ? i : UINT32_MAX);
        }
        /* Repeated activation rows to scattered places. */
        const uint32_t n = 1 + draw_below(d, ROWS_MAX), first = draw_below(d, Y_ROWS);
        uint32_t x_rows[ROWS_MAX], y_rows[ROWS_MAX], from[Y_ROWS];
        memset(from, 0xff, sizeof from);
        for (uint32_t i = 0; i < n; i++) {
            x_rows[i] = draw_below(d, ROWS_MAX / 2);
            y_rows[i] = (first + 5 * i) % Y_ROWS; /* 5 and 23 have no common factor */
            from[y_rows[i]] = x_rows[i];
        }
        clear_y(s);
        run_cut(s, ops, draw_below(d, s->w.n_out + 1), x_rows, y_rows, n);
        for (uint32_t i = 0; i < Y_ROWS; i++)
            expect_row(s, ops, i, from[i]);
    }
}

static void every_type_is_listed(void **state) {
    (void)state;
    for (uint32_t id = 0; id < RG_TYPE_COUNT; id++) {
        const rg_type_info *info = rg_type_get(id);
        size_t count = 0;
        for (size_t i = 0; i < RG_ARRAY_LEN(formats); i++)
            count += formats[i].type == (rg_type)id;
        assert_int_equal(count, info && info->use == RG_USE_WEIGHT);
    }
}

static void random_blocks(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("random_blocks", 20261);
    setup s = setup_create();
    for (size_t i = 0; i < RG_ARRAY_LEN(formats); i++) {
        const uint32_t block = rg_type_get(formats[i].type)->block_elems;
        const uint32_t one = block == 1 ? 5 : block;
        const struct {
            uint32_t n_in, n_out;
        } shapes[] = {{one, 7}, {3 * one, 5}, {640, 3}, {2560, 1}};
        for (size_t k = 0; k < RG_ARRAY_LEN(shapes); k++) {
            if (shapes[k].n_in % block != 0) continue;
            for (int set = 0; set < 2; set++) {
                if (set == 1 && formats[i].span == 0) continue; /* both sets are the same */
                setup_weights(&s, &d, &formats[i], shapes[k].n_out, shapes[k].n_in, -1, false);
                draw_floats(&d, s.x, ROWS_MAX * s.w.n_in, -3.0, 3.0);
                setup_act(&s, set == 0 ? RG_KERNELS_AUTO : RG_KERNELS_REF);
                expect_canonical(&s, true);
                expect_all_levels(&s, &d, &levels);
            }
        }
    }
    setup_destroy(&s);
}

/* Blocks of one byte throughout under activations at the ends of their range: what would saturate
 * a narrow sum. */
static void extreme_blocks(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("extreme_blocks", 20262);
    setup s = setup_create();
    for (size_t i = 0; i < RG_ARRAY_LEN(formats); i++) {
        const uint32_t block = rg_type_get(formats[i].type)->block_elems;
        if (block == 1) continue;
        for (size_t k = 0; k < RG_ARRAY_LEN(fills); k++) {
            setup_weights(&s, &d, &formats[i], 3, 2 * block, fills[k], false);
            for (uint32_t e = 0; e < ROWS_MAX * s.w.n_in; e++) {
                const uint32_t kind = e / s.w.n_in % 4;
                const bool minus =
                    kind == 1 || (kind == 2 && e % 2) || (kind == 3 && draw_below(&d, 2));
                s.x[e] = minus ? -127.0f : 127.0f;
            }
            setup_act(&s, RG_KERNELS_AUTO);
            for (uint32_t e = 0; e < ROWS_MAX * s.w.n_in; e++)
                assert_int_equal(abs(s.codes[e]), 127);
            expect_canonical(&s, true);
            expect_all_levels(&s, &d, &levels);
        }
    }
    setup_destroy(&s);
}

/* Scales over the whole range of f16, activations over that of f32: results overflow and vanish,
 * on every level alike. */
static void wide_scales(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("wide_scales", 20263);
    setup s = setup_create();
    for (size_t i = 0; i < RG_ARRAY_LEN(formats); i++) {
        const uint32_t block = rg_type_get(formats[i].type)->block_elems;
        setup_weights(&s, &d, &formats[i], 5, 2 * (block == 1 ? 33 : block), -1, true);
        for (uint32_t row = 0; row < ROWS_MAX; row++) {
            const double reach = ldexp(1.0, (int)draw_below(&d, 200) - 100);
            draw_floats(&d, s.x + row * s.w.n_in, s.w.n_in, -reach, reach);
        }
        setup_act(&s, RG_KERNELS_AUTO);
        expect_canonical(&s, false);
        expect_all_levels(&s, &d, &levels);
    }
    setup_destroy(&s);
}

/* The fp4 formats carry a byte of its own kind: each value of it, subnormal scales included. */
static void every_fp4_scale(void **state) {
    (void)state;
    const level_list levels = levels_here();
    draws d = draws_start("every_fp4_scale", 20265);
    setup s = setup_create();
    for (size_t i = 0; i < RG_ARRAY_LEN(formats); i++) {
        const format *f = &formats[i];
        if (f->type != RG_TYPE_MXFP4 && f->type != RG_TYPE_NVFP4) continue;
        const rg_type_info *info = rg_type_get(f->type);
        for (unsigned byte = 0; byte < 255u + (f->type == RG_TYPE_NVFP4); byte++) {
            setup_weights(&s, &d, f, 1, info->block_elems, -1, false);
            s.data[f->type == RG_TYPE_NVFP4 ? byte % 4 : 0] = (uint8_t)byte;
            draw_floats(&d, s.x, ROWS_MAX * s.w.n_in, -3.0, 3.0);
            setup_act(&s, RG_KERNELS_AUTO);
            expect_canonical(&s, false);
            expect_all_levels(&s, &d, &levels);
        }
    }
    setup_destroy(&s);
}

enum { BIG_OUT = 131, BIG_ROWS = 101 };

/* The last `outs` weight rows by the first `rows` activation rows equal s->want, the rest of y is
 * left alone. */
static void expect_part(setup *s, const rg_ops *ops, uint32_t outs, uint32_t rows) {
    const uint32_t r0 = BIG_OUT - outs;
    for (uint32_t e = 0; e < BIG_OUT * BIG_ROWS; e++)
        s->y[e] = GUARD;
    ops->mul(&s->w, r0, BIG_OUT, &s->act, NULL, NULL, rows, s->y, BIG_OUT, s->scratch);
    for (uint32_t e = 0; e < BIG_OUT * BIG_ROWS; e++) {
        const bool written = e / BIG_OUT < rows && e % BIG_OUT >= r0;
        const float want = written ? s->want[e] : GUARD;
        if (same_bits(s->y[e], want)) continue;
        fail_msg("%s level %s, %u rows by %u columns: y[%u][%u] = %a, expected %a",
                 rg_type_get(s->w.type)->name, rg_cpu_level_name(ops->level), outs, rows,
                 e / BIG_OUT, e % BIG_OUT, (double)s->y[e], (double)want);
    }
}

/* Several tiles of 64 rows with every kind of rest, and more columns than a tile takes at once,
 * against the scalar level, which the tests above hold to the formula. */
static void tiles_and_rests(void **state) {
    (void)state;
    static const uint32_t outs[] = {64, 131, 113, 80}, rows[] = {5, 8, 9, BIG_ROWS};
    const level_list levels = levels_here();
    draws d = draws_start("tiles_and_rests", 20266);
    setup s = setup_of(BIG_ROWS, BIG_OUT, 512, BIG_OUT * BIG_ROWS);
    for (size_t i = 0; i < RG_ARRAY_LEN(formats); i++) {
        const uint32_t block = rg_type_get(formats[i].type)->block_elems;
        /* A full tile of 256 and a rest, one block of 32 where the format allows. */
        const uint32_t n_in = block == 1 ? 37 : block == 256 ? 512 : (287 + block) / block * block;
        setup_weights(&s, &d, &formats[i], BIG_OUT, n_in, -1, false);
        draw_floats(&d, s.x, (size_t)BIG_ROWS * n_in, -3.0, 3.0);
        setup_act(&s, RG_KERNELS_AUTO);
        levels.ops[0]->mul(&s.w, 0, BIG_OUT, &s.act, NULL, NULL, BIG_ROWS, s.want, BIG_OUT,
                           s.scratch);
        for (uint32_t l = 1; l < levels.n; l++) {
            for (size_t k = 0; k < RG_ARRAY_LEN(outs); k++)
                expect_part(&s, levels.ops[l], outs[k], rows[k]);
        }
    }
    setup_destroy(&s);
}

/* One broken activation breaks its whole row, and no other. */
static void broken_activations_show(void **state) {
    (void)state;
    const level_list levels = levels_here();
    const float broken[] = {NAN, -NAN, INFINITY, -INFINITY};
    draws d = draws_start("broken_activations_show", 20264);
    setup s = setup_create();
    for (size_t i = 0; i < RG_ARRAY_LEN(formats) * RG_ARRAY_LEN(broken); i++) {
        const format *f = &formats[i / RG_ARRAY_LEN(broken)];
        const uint32_t block = rg_type_get(f->type)->block_elems;
        const uint32_t n_in = 2 * (block == 1 ? 33 : block);
        for (int set = 0; set < 2; set++) {
            setup_weights(&s, &d, f, 3, n_in, -1, false);
            draw_floats(&d, s.x, ROWS_MAX * n_in, -3.0, 3.0);
            s.x[1 * n_in + draw_below(&d, n_in)] = broken[i % RG_ARRAY_LEN(broken)];
            setup_act(&s, set == 0 ? RG_KERNELS_AUTO : RG_KERNELS_REF);
            for (uint32_t l = 0; l < levels.n; l++) {
                levels.ops[l]->mul(&s.w, 0, 3, &s.act, NULL, NULL, ROWS_MAX, s.y, Y_STRIDE,
                                   s.scratch);
                for (uint32_t k = 0; k < 3 * ROWS_MAX; k++) {
                    const float y = s.y[k / 3 * Y_STRIDE + k % 3];
                    if (k / 3 != 1) {
                        assert_true(isfinite(y));
                    } else if (s.act.form == RG_ACT_F32) {
                        assert_false(isfinite(y));
                    } else {
                        assert_true(isnan(y));
                    }
                }
            }
        }
    }
    setup_destroy(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_is_listed), cmocka_unit_test(random_blocks),
        cmocka_unit_test(extreme_blocks),       cmocka_unit_test(wide_scales),
        cmocka_unit_test(every_fp4_scale),      cmocka_unit_test(broken_activations_show),
        cmocka_unit_test(tiles_and_rests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
