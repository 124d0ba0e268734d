/* AVX-512 products with 256-value blocks (K-quants, grids, iq4_xs): direct for few columns, by tile
 * for many. Block totals are exact integers, so the order inside a block is free.
 */
#include "kernels/cpu/x86/v4_mul.h"
#include "kernels/cpu/x86/v4_tile.h"

typedef v4_block v4_head_fn(const uint8_t *block);
typedef v4_part v4_part_fn(const uint8_t *block, int part);

/* What the templates need to know of a format; constant in every instance. */
typedef struct v4_format {
    uint32_t block_bytes;
    v4_head_fn *head;
    v4_part_fn *part;
    int offset; /* code = u - offset */
    bool grid;  /* code = -u where the sign bit is set */
    bool mins;
    bool wide; /* u above 129: no 16-bit pair sums */
} v4_format;

/* ---- direct ---------------------------------------------------------------------------------- */

/* Lanes of int16 scales for part p: each of four groups of 16 values is 8 pairs. */
RG_INLINE __m512i part_scales(__m256i scales, int p) {
    const __m512i group = _mm512_set_epi16(3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1,
                                           1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512i index = _mm512_add_epi16(group, _mm512_set1_epi16((short)(4 * p)));
    return _mm512_permutexvar_epi16(index, _mm512_castsi256_si512(scales));
}

/* Sums of the 16 lanes of four registers, one lane each. */
RG_INLINE __m128i sum_rows(__m512i a, __m512i b, __m512i c, __m512i d) {
    const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    const __m512i s =
        _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    const __m256i h = _mm256_add_epi32(_mm512_castsi512_si256(s), _mm512_extracti64x4_epi64(s, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
}

/* One part of one row against C columns. */
RG_INLINE void direct_part(const v4_format *f, v4_part part, __m512i sc,
                           const int8_t *const x[V4_DIRECT_MAX], uint32_t k, uint32_t C,
                           __m512i sum[V4_DIRECT_MAX]) {
    for (uint32_t c = 0; c < C; c++) {
        __m512i y = _mm512_loadu_si512(x[c] + k);
        if (f->grid) y = _mm512_mask_sub_epi8(y, part.sign, _mm512_setzero_si512(), y);
        if (f->wide) {
            const __m512i dot = _mm512_dpbusd_epi32(_mm512_setzero_si512(), part.u, y);
            /* Both halves of a lane of sc hold the scale of its four values. */
            const __m512i sc32 = _mm512_srai_epi32(sc, 16);
            sum[c] = _mm512_add_epi32(sum[c], _mm512_mullo_epi32(dot, sc32));
        } else {
            sum[c] = _mm512_dpwssd_epi32(sum[c], _mm512_maddubs_epi16(part.u, y), sc);
        }
    }
}

/* Four rows (the last ones repeated when fewer are left) against C <= 4 columns. */
RG_INLINE void direct_rows(const v4_format *f, const v4_job *j, const uint8_t *const rows[4],
                           uint32_t C, __m128 acc[V4_DIRECT_MAX]) {
    const uint32_t n = j->x->n_in;
    const int8_t *x[V4_DIRECT_MAX];
    const int16_t *sums[V4_DIRECT_MAX];
    const float *scales[V4_DIRECT_MAX];
    for (uint32_t c = 0; c < C; c++) {
        const size_t row = v4_x_row(j, c);
        x[c] = j->x->codes + row * n;
        sums[c] = j->x->sums + row * (n / 16);
        scales[c] = j->x->scales + row * (n / 256);
        acc[c] = _mm_setzero_ps();
    }
    for (uint32_t b = 0; b < n / 256; b++) {
        __m512i sum[4][V4_DIRECT_MAX];
        __m512i minimum[4][V4_DIRECT_MAX];
        float d[4], m[4];
        v4_fetch(rows[0] + (size_t)4 * b * f->block_bytes, (size_t)4 * f->block_bytes);
        for (uint32_t r = 0; r < 4; r++) {
            const uint8_t *block = rows[r] + (size_t)b * f->block_bytes;
            const v4_block h = f->head(block);
            d[r] = h.d;
            m[r] = h.m;
            for (uint32_t c = 0; c < C; c++)
                sum[r][c] = _mm512_setzero_si512();
            for (int p = 0; p < 4; p++) {
                direct_part(f, f->part(block, p), part_scales(h.scales, p), x,
                            256 * b + 64 * (uint32_t)p, C, sum[r]);
            }
            for (uint32_t c = 0; c < C; c++) {
                const __m256i s = _mm256_loadu_si256((const void *)(sums[c] + (size_t)16 * b));
                if (f->offset) {
                    const __m256i t = _mm256_mullo_epi32(_mm256_madd_epi16(h.scales, s),
                                                         _mm256_set1_epi32(f->offset));
                    sum[r][c] = _mm512_sub_epi32(sum[r][c], _mm512_zextsi256_si512(t));
                }
                if (f->mins) {
                    minimum[r][c] = _mm512_zextsi256_si512(_mm256_madd_epi16(h.mins, s));
                }
            }
        }
        for (uint32_t c = 0; c < C; c++) {
            const __m128 dx = _mm_set1_ps(scales[c][b]);
            const __m128i total = sum_rows(sum[0][c], sum[1][c], sum[2][c], sum[3][c]);
            acc[c] = _mm_fmadd_ps(_mm_mul_ps(_mm_loadu_ps(d), dx), _mm_cvtepi32_ps(total), acc[c]);
            if (!f->mins) continue;
            const __m128i low =
                sum_rows(minimum[0][c], minimum[1][c], minimum[2][c], minimum[3][c]);
            acc[c] = _mm_fmadd_ps(_mm_mul_ps(_mm_loadu_ps(m), dx), _mm_cvtepi32_ps(low), acc[c]);
        }
    }
}

RG_INLINE void direct(const v4_format *f, const v4_job *j, uint32_t r0, uint32_t r1, uint32_t C) {
    for (uint32_t r = r0; r < r1; r += 4) {
        const uint32_t left = r1 - r < 4 ? r1 - r : 4;
        const uint8_t *rows[4];
        for (uint32_t i = 0; i < 4; i++) {
            rows[i] = j->w->data + (r + (i < left ? i : left - 1)) * j->w->row_bytes;
        }
        __m128 acc[V4_DIRECT_MAX];
        direct_rows(f, j, rows, C, acc);
        for (uint32_t c = 0; c < C; c++) {
            _mm_mask_storeu_ps(v4_y_row(j, c) + r, (__mmask8)((1u << left) - 1), acc[c]);
        }
    }
}

/* ---- tile ------------------------------------------------------------------------------------ */

/* Unpacks block b of `n` rows; rows beyond repeat the last one. */
RG_INLINE void fill_tile(const v4_format *f, const v4_job *j, v4_tile *t, uint32_t r, uint32_t n,
                         uint32_t b) {
    const uint32_t rows = (n + 15) / 16 * 16;
    int32_t scales[16][16] __attribute__((aligned(64)));
    int32_t mins[16][16] __attribute__((aligned(64)));
    for (uint32_t i = 0; i < rows; i++) {
        const uint32_t row = r + (i < n ? i : n - 1);
        const uint8_t *block = j->w->data + row * j->w->row_bytes + (size_t)b * f->block_bytes;
        _mm_prefetch((const char *)block + j->w->row_bytes, _MM_HINT_T1);
        const v4_block h = f->head(block);
        t->d[0][i] = h.d;
        t->m[0][i] = h.m;
        for (int p = 0; p < 4; p++) {
            const v4_part part = f->part(block, p);
            __m512i code = part.u;
            if (f->grid) {
                code = _mm512_mask_sub_epi8(code, part.sign, _mm512_setzero_si512(), code);
            } else if (f->offset) {
                code = _mm512_sub_epi8(code, _mm512_set1_epi8((char)f->offset));
            }
            _mm512_store_si512(&t->rows[i][64 * p], code);
        }
        _mm512_store_si512(scales[i % 16], _mm512_cvtepi16_epi32(h.scales));
        if (f->mins) {
            _mm512_store_si512(mins[i % 16], _mm512_zextsi256_si512(h.mins));
        }
        if (i % 16 != 15) continue;
        __m512i v[16];
        for (uint32_t k = 0; k < 16; k++)
            v[k] = _mm512_load_si512(scales[k]);
        v4_transpose(v);
        for (uint32_t k = 0; k < 16; k++)
            _mm512_store_si512(&t->scales[k][i - 15], v[k]);
        if (!f->mins) continue;
        for (uint32_t k = 0; k < 16; k++)
            v[k] = _mm512_load_si512(mins[k]);
        v4_transpose(v);
        for (uint32_t k = 0; k < 8; k++)
            _mm512_store_si512(&t->mins[k][i - 15], v[k]);
    }
    v4_tile_transpose(t, rows, 256);
}

/* Exact totals of V x 16 rows and C columns of code + 128, on top of `total`. */
RG_INLINE void tile_totals(const v4_tile *t, const uint8_t *const x[3], uint32_t v0, uint32_t V,
                           uint32_t C, __m512i total[4][3]) {
    for (uint32_t g = 0; g < 16; g++) {
        __m512i dot[4][3];
        for (uint32_t v = 0; v < V; v++) {
            for (uint32_t c = 0; c < C; c++)
                dot[v][c] = _mm512_setzero_si512();
        }
        for (uint32_t q = 4 * g; q < 4 * g + 4; q++) {
            __m512i w[4];
            for (uint32_t v = 0; v < V; v++)
                w[v] = _mm512_load_si512(&t->codes[q][16 * (v0 + v)]);
            for (uint32_t c = 0; c < C; c++) {
                int32_t four;
                memcpy(&four, x[c] + 4 * q, sizeof four);
                const __m512i y = _mm512_set1_epi32(four);
                for (uint32_t v = 0; v < V; v++) {
                    dot[v][c] = _mm512_dpbusd_epi32(dot[v][c], y, w[v]);
                }
            }
        }
        for (uint32_t v = 0; v < V; v++) {
            const __m512i sc = _mm512_load_si512(&t->scales[g][16 * (v0 + v)]);
            for (uint32_t c = 0; c < C; c++) {
                total[v][c] = _mm512_add_epi32(total[v][c], _mm512_mullo_epi32(dot[v][c], sc));
            }
        }
    }
}

/* What the 128 on every activation adds to a row's total. */
RG_INLINE void tile_minus(v4_tile *t, uint32_t V) {
    uint8_t half[256];
    memset(half, 128, sizeof half);
    const uint8_t *const x[3] = {half, half, half};
    for (uint32_t v = 0; v < V; v++) {
        __m512i total[4][3];
        total[0][0] = _mm512_setzero_si512();
        tile_totals(t, x, v, 1, 1, total);
        _mm512_store_si512(&t->minus[0][16 * v],
                           _mm512_sub_epi32(_mm512_setzero_si512(), total[0][0]));
    }
}

/* Block b of C columns: y += totals. `first`: columns [first, first + C) of the job. */
RG_INLINE void tile_columns(const v4_format *f, const v4_job *j, const v4_tile *t, uint32_t r,
                            uint32_t n, uint32_t V, uint32_t b, uint32_t first, uint32_t at,
                            uint32_t C) {
    const uint8_t *x[3];
    __m512i total[4][3];
    for (uint32_t c = 0; c < C; c++) {
        x[c] = t->columns[at + c];
        for (uint32_t v = 0; v < V; v++)
            total[v][c] = _mm512_load_si512(&t->minus[0][16 * v]);
    }
    tile_totals(t, x, 0, V, C, total);
    for (uint32_t c = 0; c < C; c++) {
        const size_t row = v4_x_row(j, first + c);
        const __m512 dx = _mm512_set1_ps(j->x->scales[row * (j->x->n_in / 256) + b]);
        const int16_t *sums = j->x->sums + row * (j->x->n_in / 16) + (size_t)16 * b;
        float *y = v4_y_row(j, first + c) + r;
        for (uint32_t v = 0; v < V; v++) {
            const __mmask16 live =
                n >= 16 * v + 16 ? (__mmask16)0xFFFF : (__mmask16)((1u << (n - 16 * v)) - 1);
            __m512 acc = b ? _mm512_maskz_loadu_ps(live, y + 16 * v) : _mm512_setzero_ps();
            const __m512 d = _mm512_load_ps(&t->d[0][16 * v]);
            acc = _mm512_fmadd_ps(_mm512_mul_ps(d, dx), _mm512_cvtepi32_ps(total[v][c]), acc);
            if (f->mins) {
                __m512i low = _mm512_setzero_si512();
                for (uint32_t k = 0; k < 8; k++) {
                    int32_t pair;
                    memcpy(&pair, sums + 2 * k, sizeof pair);
                    low = _mm512_dpwssd_epi32(low, _mm512_load_si512(&t->mins[k][16 * v]),
                                              _mm512_set1_epi32(pair));
                }
                const __m512 m = _mm512_load_ps(&t->m[0][16 * v]);
                acc = _mm512_fmadd_ps(_mm512_mul_ps(m, dx), _mm512_cvtepi32_ps(low), acc);
            }
            _mm512_mask_storeu_ps(y + 16 * v, live, acc);
        }
    }
}

RG_INLINE void tile_strip(const v4_format *f, const v4_job *j, uint32_t r, uint32_t n,
                          const uint32_t V) {
    v4_tile *t = (v4_tile *)(void *)j->scratch;
    const uint32_t n_in = j->x->n_in;
    for (uint32_t b = 0; b < n_in / 256; b++) {
        fill_tile(f, j, t, r, n, b);
        tile_minus(t, V);
        for (uint32_t first = 0; first < j->n; first += V4_COLUMNS) {
            const uint32_t C = j->n - first < V4_COLUMNS ? j->n - first : V4_COLUMNS;
            for (uint32_t c = 0; c < C; c++) {
                const int8_t *x = j->x->codes + (size_t)v4_x_row(j, first + c) * n_in + 256 * b;
                for (int p = 0; p < 4; p++) {
                    const __m512i y = _mm512_loadu_si512(x + 64 * p);
                    _mm512_store_si512(&t->columns[c][64 * p],
                                       _mm512_xor_si512(y, _mm512_set1_epi8((char)0x80)));
                }
            }
            uint32_t c = 0;
            for (; c + 3 <= C; c += 3)
                tile_columns(f, j, t, r, n, V, b, first + c, c, 3);
            if (C - c == 2) tile_columns(f, j, t, r, n, V, b, first + c, c, 2);
            if (C - c == 1) tile_columns(f, j, t, r, n, V, b, first + c, c, 1);
        }
    }
}

RG_INLINE void mul_format(const v4_format *f, const v4_job *j, uint32_t r0, uint32_t r1) {
    switch (j->n) { /* constant counts let the loops unroll */
    case 1:
        direct(f, j, r0, r1, 1);
        return;
    case 2:
        direct(f, j, r0, r1, 2);
        return;
    case 3:
        direct(f, j, r0, r1, 3);
        return;
    case 4:
        direct(f, j, r0, r1, 4);
        return;
    default:
        break;
    }
    uint32_t r = r0;
    for (; r + V4_ROWS <= r1; r += V4_ROWS)
        tile_strip(f, j, r, V4_ROWS, 4);
    const uint32_t n = r1 - r;
    if (n > 48) tile_strip(f, j, r, n, 4);
    if (n > 32 && n <= 48) tile_strip(f, j, r, n, 3);
    if (n > 16 && n <= 32) tile_strip(f, j, r, n, 2);
    if (n > 0 && n <= 16) tile_strip(f, j, r, n, 1);
}

/* name, block bytes, offset, grid, mins, wide */
#define FORMATS(X)                                                                                 \
    X(q2_K, Q2_K, 84, 0, false, true, false)                                                       \
    X(q3_K, Q3_K, 110, 4, false, false, false)                                                     \
    X(q4_K, Q4_K, 144, 0, false, true, false)                                                      \
    X(q5_K, Q5_K, 176, 0, false, true, false)                                                      \
    X(q6_K, Q6_K, 210, 32, false, false, false)                                                    \
    X(iq2_xxs, IQ2_XXS, 66, 0, true, false, false)                                                 \
    X(iq2_xs, IQ2_XS, 74, 0, true, false, false)                                                   \
    X(iq2_s, IQ2_S, 82, 0, true, false, false)                                                     \
    X(iq3_xxs, IQ3_XXS, 98, 0, true, false, false)                                                 \
    X(iq3_s, IQ3_S, 110, 0, true, false, false)                                                    \
    X(iq4_xs, IQ4_XS, 136, 128, false, false, true)

#define DEFINE(name, id, bytes, offset_, grid_, mins_, wide_)                                      \
    static void mul_##name(const v4_job *j, uint32_t r0, uint32_t r1) {                            \
        static const v4_format f = {.block_bytes = (bytes),                                        \
                                    .head = v4_head_##name,                                        \
                                    .part = v4_part_##name,                                        \
                                    .offset = (offset_),                                           \
                                    .grid = (grid_),                                               \
                                    .mins = (mins_),                                               \
                                    .wide = (wide_)};                                              \
        mul_format(&f, j, r0, r1);                                                                 \
    }
RG_INLINE v4_block v4_head_q5_K(const uint8_t *b) {
    return v4_head_q4_K(b);
}
FORMATS(DEFINE)

bool rg_v4_mul_256(const v4_job *j, uint32_t r0, uint32_t r1) {
    _Static_assert(sizeof(v4_tile) <= V4_TILE_SCRATCH, "the tile fits its scratch");
    switch (j->w->type) {
#define CASE(name, id, bytes, offset, grid, mins, wide)                                            \
    case RG_TYPE_##id:                                                                             \
        mul_##name(j, r0, r1);                                                                     \
        return true;
        FORMATS(CASE)
    default:
        return false;
    }
}
