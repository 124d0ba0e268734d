/* Matrix product, one weight row at a time: unpack once, then a dot for each activation row. The
 * definition of the canonical dot; faster forms must equal it bit for bit.
 */
#include <math.h>

#include "kernels/cpu/levels.h"
#include "kernels/cpu/ref/math_inline.h"

/* Where one call writes; row i goes to y + y_row(i) * stride + r. */
typedef struct mul_rows {
    const uint32_t *x_rows, *y_rows;
    uint32_t n;
    float *y;
    size_t y_stride;
} mul_rows;

static inline uint32_t x_row(const mul_rows *m, uint32_t i) {
    return m->x_rows ? m->x_rows[i] : i;
}

static inline float *y_at(const mul_rows *m, uint32_t i, uint32_t r) {
    return m->y + (m->y_rows ? m->y_rows[i] : i) * m->y_stride + r;
}

static int32_t dot_codes(const int16_t *restrict q, const int8_t *restrict x, uint32_t n) {
    int32_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (int32_t)q[i] * x[i];
    return sum;
}

static float dot_quantised(const rg_codes *c, const rg_act *x, uint32_t row) {
    const uint32_t n = x->n_in;
    const uint32_t x_span = x->form == RG_ACT_Q256 ? 256 : 32;
    const int8_t *codes = x->codes + (size_t)row * n;
    const float *scales = x->scales + (size_t)row * (n / x_span);
    const int16_t *sums = x->sums + (size_t)row * (n / 16);
    float acc = 0.0f;
    for (uint32_t b = 0; b < n / c->span; b++) {
        const uint32_t i = b * c->span;
        const float dx = scales[i / x_span];
        int32_t total;
        /* Constant lengths let the compiler unroll. */
        switch (c->span) {
        case 256:
            total = dot_codes(c->q + i, codes + i, 256);
            break;
        case 32:
            total = dot_codes(c->q + i, codes + i, 32);
            break;
        default:
            total = dot_codes(c->q + i, codes + i, 16);
            break;
        }
        acc = fmaf(c->d[b] * dx, (float)total, acc);
        if (!c->has_mins) continue;
        int32_t mtotal = 0;
        for (uint32_t s = i / 16; s < (i + c->span) / 16; s++)
            mtotal += c->mins[s] * sums[s];
        acc = fmaf(c->m[b] * dx, (float)mtotal, acc);
    }
    return acc;
}

static void row_quantised(const rg_codes *c, const rg_act *x, const mul_rows *m, uint32_t r) {
    for (uint32_t i = 0; i < m->n; i++)
        *y_at(m, i, r) = dot_quantised(c, x, x_row(m, i));
}

static void row_f32(const float *w, const rg_act *x, const mul_rows *m, uint32_t r) {
    const uint32_t n = x->n_in;
    uint32_t i = 0;
    for (; i + 4 <= m->n; i += 4) {
        const float *rows[4];
        float out[4];
        for (uint32_t j = 0; j < 4; j++)
            rows[j] = x->f32 + (size_t)x_row(m, i + j) * n;
        RG_OP(dot_4)(w, rows, n, out);
        for (uint32_t j = 0; j < 4; j++)
            *y_at(m, i + j, r) = out[j];
    }
    for (; i < m->n; i++) {
        *y_at(m, i, r) = RG_OP(dot)(w, x->f32 + (size_t)x_row(m, i) * n, n);
    }
}

/* A weight row as f32: itself, or unpacked into tmp. */
static const float *weights_f32(const rg_mat *w, const uint8_t *row, float *restrict tmp) {
    if (w->type == RG_TYPE_F32) return (const float *)(const void *)row;
    if (w->type == RG_TYPE_BF16) {
        for (uint32_t i = 0; i < w->n_in; i++) {
            uint16_t h;
            memcpy(&h, row + 2 * (size_t)i, sizeof h);
            tmp[i] = rg_bits_f32((uint32_t)h << 16);
        }
        return tmp;
    }
    if (w->type == RG_TYPE_F16) {
        RG_OP(load)(row, true, tmp, w->n_in);
        return tmp;
    }
    rg_unpack_row(w->type, row, tmp, w->n_in);
    return tmp;
}

void RG_OP(mul)(const rg_mat *w, uint32_t r0, uint32_t r1, const rg_act *x, const uint32_t *x_rows,
                const uint32_t *y_rows, uint32_t n, float *y, size_t y_stride, void *scratch) {
    const mul_rows m = {.x_rows = x_rows, .y_rows = y_rows, .n = n, .y = y, .y_stride = y_stride};
    for (uint32_t r = r0; r < r1; r++) {
        const uint8_t *row = w->data + r * w->row_bytes;
        if (x->form == RG_ACT_F32) {
            row_f32(weights_f32(w, row, scratch), x, &m, r);
            continue;
        }
        float *f = scratch;
        rg_codes c = {.d = f, .m = f + w->n_in / 16};
        c.q = (int16_t *)(void *)(f + 2 * (w->n_in / 16));
        c.mins = c.q + w->n_in;
        RG_OP(codes_unpack)(w->type, row, w->n_in, &c);
        row_quantised(&c, x, &m, r);
    }
}
