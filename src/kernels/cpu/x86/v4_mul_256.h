/* AVX-512 products with 256-value blocks (K-quants, grids, iq4_xs): direct for few columns, by tile
 * for many. Block totals are exact integers, so the order inside a block is free. Each source lists
 * its formats and uses V4_DEFINE and V4_CASE.
 */
#ifndef RG_KERNELS_V4_MUL_256_H
#define RG_KERNELS_V4_MUL_256_H

#include "kernels/cpu/x86/v4_rows.h"

typedef v4_block v4_head_fn(const uint8_t *block);
typedef v4_codes v4_codes_fn(const uint8_t *block);
/* Signed codes of 16 blocks, a block a lane: codes[q][i] = codes 4 q ... 4 q + 3 of block i. */
typedef void v4_lanes_fn(const uint8_t *const blocks[16], int32_t (*codes)[V4_ROWS]);

/* What the templates need to know of a format; constant in every instance. */
typedef struct v4_format {
    uint32_t block_bytes;
    v4_head_fn *head;
    v4_codes_fn *codes;
    v4_lanes_fn *lanes; /* NULL: by `codes` and a transposition */
    uint32_t group;     /* values of a sub-scale: 16 or 32 */
    int offset;         /* code = u - offset */
    bool grid;          /* code = -u where the sign bit is set */
    bool mins;
    bool pairs; /* the head of q4_K */
    bool wide;  /* u above 129: no 16-bit pair sums */
} v4_format;

/* ---- direct ---------------------------------------------------------------------------------- */

/* Heads of four rows. Sixteen words a row, rows 0 and 1, then 2 and 3. */
typedef struct v4_heads {
    __m512i scales[2]; /* groups of 32: eight scales, then eight minima or nothing */
    __m512i low[2];    /* what is multiplied with the sums: minima, or scales for an offset */
    __m128 d, m;
} v4_heads;

RG_INLINE v4_heads heads_pairs(const uint8_t *const b[4]) {
    v4_heads h;
    __m512i x = _mm512_castsi128_si512(v4_load128(b[0]));
    x = _mm512_inserti32x4(x, v4_load128(b[1]), 1);
    x = _mm512_inserti32x4(x, v4_load128(b[2]), 2);
    x = _mm512_inserti32x4(x, v4_load128(b[3]), 3);
    const __m512i lanes = _mm512_castsi128_si512(_mm_set_epi32(12, 8, 4, 0));
    const __m128i dm = _mm512_castsi512_si128(_mm512_permutexvar_epi32(lanes, x));
    h.d = _mm_cvtph_ps(_mm_cvtepi32_epi16(dm));
    h.m = _mm_xor_ps(_mm_cvtph_ps(_mm_cvtepi32_epi16(_mm_srli_epi32(dm, 16))), _mm_set1_ps(-0.0f));
    const __m512i s = v4_pairs(x);
    h.scales[0] = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(s));
    h.scales[1] = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(s, 1));
    h.low[0] = h.scales[0];
    h.low[1] = h.scales[1];
    return h;
}

RG_INLINE v4_heads heads(const v4_format *f, const uint8_t *const b[4]) {
    if (f->pairs) return heads_pairs(b);
    v4_heads h;
    v4_block one[4];
    for (int r = 0; r < 4; r++)
        one[r] = f->head(b[r]);
    h.d = _mm_set_ps(one[3].d, one[2].d, one[1].d, one[0].d);
    h.m = _mm_set_ps(one[3].m, one[2].m, one[1].m, one[0].m);
    for (int i = 0; i < 2; i++) {
        h.scales[i] = v4_join(one[2 * i].scales, one[2 * i + 1].scales);
        h.low[i] = f->mins ? v4_join(one[2 * i].mins, one[2 * i + 1].mins) : h.scales[i];
    }
    return h;
}

/* Word i of part p: the scale of codes 2 i and 2 i + 1 of row 0 or 1 of its register. */
RG_INLINE __m512i part_scales(const v4_format *f, __m512i scales, uint32_t row, int p) {
    const short at = (short)(16 * row + 64 / f->group * (uint32_t)p);
    const __m512i group = f->group == 32
                              ? _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(1), 1)
                              : _mm512_set_epi16(3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2, 1,
                                                 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_permutexvar_epi16(_mm512_add_epi16(group, _mm512_set1_epi16(at)), scales);
}

/* Sums of the 16 lanes of four registers, one lane each. */
RG_INLINE __m128i sum_rows(const __m512i s[4]) {
    const __m512i ab =
        _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]));
    const __m512i cd =
        _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3]));
    const __m512i all =
        _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    const __m256i h =
        _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
}

/* Sums of codes as `low` wants them. */
RG_INLINE __m512i low_operand(const v4_format *f, const int16_t *sums) {
    const __m256i s = _mm256_loadu_si256((const void *)sums);
    if (f->group == 16) return _mm512_broadcast_i64x4(s);
    const __m128i s32 = _mm256_cvtepi32_epi16(_mm256_madd_epi16(s, _mm256_set1_epi16(1)));
    return _mm512_maskz_broadcast_i32x4(f->mins ? 0xF0F0 : 0x0F0F, s32);
}

/* For each of four rows the sum over groups of low * sum of codes. */
RG_INLINE __m128i low_totals(const v4_heads *h, __m512i y) {
    const __m512i a = _mm512_madd_epi16(h->low[0], y), b = _mm512_madd_epi16(h->low[1], y);
    __m512i t =
        _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
    t = _mm512_add_epi32(t, _mm512_shuffle_epi32(t, 0xB1));
    t = _mm512_add_epi32(t, _mm512_shuffle_epi32(t, 0x4E));
    const __m512i lanes = _mm512_castsi128_si512(_mm_set_epi32(12, 8, 4, 0));
    return _mm512_castsi512_si128(_mm512_permutexvar_epi32(lanes, t));
}

/* Part p of one row against C columns. */
RG_INLINE void direct_part(const v4_format *f, const v4_codes *codes, int p, __m512i sc,
                           const int8_t *const x[V4_DIRECT_MAX], uint32_t k, uint32_t C,
                           __m512i sum[V4_DIRECT_MAX]) {
    for (uint32_t c = 0; c < C; c++) {
        __m512i y = _mm512_loadu_si512(x[c] + k);
        if (f->grid) y = _mm512_mask_sub_epi8(y, codes->sign[p], _mm512_setzero_si512(), y);
        if (f->wide) {
            const __m512i dot = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes->u[p], y);
            /* Both halves of a lane of sc hold the scale of its four values. */
            const __m512i sc32 = _mm512_srai_epi32(sc, 16);
            sum[c] = _mm512_add_epi32(sum[c], _mm512_mullo_epi32(dot, sc32));
        } else {
            sum[c] = _mm512_dpwssd_epi32(sum[c], _mm512_maddubs_epi16(codes->u[p], y), sc);
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
        __m512i sum[V4_DIRECT_MAX][4];
        const uint8_t *blocks[4];
        v4_stream(rows[0] + (size_t)4 * b * f->block_bytes, (size_t)4 * f->block_bytes,
                  j->w->row_bytes);
        for (uint32_t r = 0; r < 4; r++)
            blocks[r] = rows[r] + (size_t)b * f->block_bytes;
        const v4_heads h = heads(f, blocks);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < 4; r++) {
            const v4_codes codes = f->codes(blocks[r]);
            __m512i s[V4_DIRECT_MAX];
            for (uint32_t c = 0; c < C; c++)
                s[c] = _mm512_setzero_si512();
            for (int p = 0; p < 4; p++) {
                const __m512i sc = part_scales(f, h.scales[r / 2], r % 2, p);
                direct_part(f, &codes, p, sc, x, 256 * b + 64 * (uint32_t)p, C, s);
            }
            for (uint32_t c = 0; c < C; c++)
                sum[c][r] = s[c];
        }
        for (uint32_t c = 0; c < C; c++) {
            const __m128 dx = _mm_set1_ps(scales[c][b]);
            __m128i total = sum_rows(sum[c]), low = _mm_setzero_si128();
            if (f->offset || f->mins) {
                low = low_totals(&h, low_operand(f, sums[c] + (size_t)16 * b));
            }
            if (f->offset) {
                total = _mm_sub_epi32(total, _mm_mullo_epi32(low, _mm_set1_epi32(f->offset)));
            }
            acc[c] = _mm_fmadd_ps(_mm_mul_ps(h.d, dx), _mm_cvtepi32_ps(total), acc[c]);
            if (!f->mins) continue;
            acc[c] = _mm_fmadd_ps(_mm_mul_ps(h.m, dx), _mm_cvtepi32_ps(low), acc[c]);
        }
    }
}

RG_INLINE void direct(const void *format, const v4_job *j, uint32_t r0, uint32_t r1, uint32_t C) {
    for (uint32_t r = r0; r < r1; r += 4) {
        const uint8_t *rows[4];
        __m128 acc[V4_DIRECT_MAX];
        v4_four_rows(j, r, r1, rows);
        direct_rows(format, j, rows, C, acc);
        for (uint32_t c = 0; c < C; c++)
            v4_store_four(j, c, r, r1, acc[c]);
    }
}

/* ---- tile ------------------------------------------------------------------------------------ */

/* What 16 rows have at one block. Not v4_block itself: copied as a whole it is read back in wider
 * words than it was written in, and waits for the cache at every row. */
typedef struct heads16 {
    __m256i scales[16], mins[16];
    const uint8_t *blocks[16];
} heads16;

/* Scales and minima of 16 rows from i on, a row a register, to a lane a row. */
RG_INLINE void fill_scales(const v4_format *f, v4_tile *t, uint32_t i, const heads16 *h) {
    __m512i v[16];
    for (uint32_t k = 0; k < 16; k++) {
        v[k] = _mm512_cvtepi16_epi32(h->scales[k]);
        if (f->group == 32 && f->mins) v[k] = _mm512_inserti64x4(v[k], h->mins[k], 1);
    }
    v4_transpose(v);
    for (uint32_t k = 0; k < 256 / f->group; k++)
        _mm512_store_si512(&t->scales[k][i], v[k]);
    if (!f->mins) return;
    if (f->group == 32) {
        for (uint32_t k = 0; k < 4; k++)
            _mm512_store_si512(&t->mins[k][i], v[8 + k]);
        return;
    }
    for (uint32_t k = 0; k < 16; k++)
        v[k] = _mm512_zextsi256_si512(h->mins[k]);
    v4_transpose(v);
    for (uint32_t k = 0; k < 8; k++)
        _mm512_store_si512(&t->mins[k][i], v[k]);
}

/* The signed codes of one block. */
RG_INLINE void fill_row(const v4_format *f, const uint8_t *block, int8_t *row) {
    const v4_codes codes = f->codes(block);
    for (int p = 0; p < 4; p++) {
        __m512i code = codes.u[p];
        if (f->grid) {
            code = _mm512_mask_sub_epi8(code, codes.sign[p], _mm512_setzero_si512(), code);
        } else if (f->offset) {
            code = _mm512_sub_epi8(code, _mm512_set1_epi8((char)f->offset));
        }
        _mm512_store_si512(row + 64 * p, code);
    }
}

/* Unpacks block b of `n` rows; rows beyond repeat the last one. */
RG_INLINE void fill_tile(const v4_format *f, const v4_job *j, v4_tile *t, uint32_t r, uint32_t n,
                         uint32_t b) {
    const uint32_t rows = (n + 15) / 16 * 16;
    const uint8_t *strip = j->w->data + r * j->w->row_bytes;
    heads16 sixteen;
    for (uint32_t i = 0; i < rows; i++) {
        const size_t row = i < n ? i : n - 1;
        const uint8_t *block = strip + row * j->w->row_bytes + (size_t)b * f->block_bytes;
        /* The next strip, in memory order. */
        v4_fetch(strip + ((size_t)b * V4_ROWS + i) * f->block_bytes, f->block_bytes,
                 V4_ROWS * j->w->row_bytes);
        const v4_block h = f->head(block);
        t->d[0][i] = h.d;
        t->m[0][i] = h.m;
        sixteen.scales[i % 16] = h.scales;
        if (f->mins) sixteen.mins[i % 16] = h.mins;
        sixteen.blocks[i % 16] = block;
        if (!f->lanes) fill_row(f, block, t->rows[i]);
        if (i % 16 < 15) continue;
        fill_scales(f, t, i - 15, &sixteen);
        if (f->lanes) f->lanes(sixteen.blocks, (int32_t(*)[V4_ROWS])(void *)&t->codes[0][i - 15]);
    }
    if (!f->lanes) v4_tile_transpose(t, rows, 256);
}

/* Exact totals of V x 16 rows and C columns of code + 128, on top of `total`. */
RG_INLINE void tile_totals(const v4_format *f, const v4_tile *t, const uint8_t *const x[3],
                           uint32_t V, uint32_t C, __m512i total[4][3]) {
    const uint32_t steps = f->group / 4;
    for (uint32_t g = 0; g < 256 / f->group; g++) {
        __m512i dot[4][3];
        for (uint32_t v = 0; v < V; v++) {
            for (uint32_t c = 0; c < C; c++)
                dot[v][c] = _mm512_setzero_si512();
        }
        v4_tile_dots(t, x, steps * g, steps, 0, V, C, dot);
        for (uint32_t v = 0; v < V; v++) {
            const __m512i sc = _mm512_load_si512(&t->scales[g][16 * v]);
            for (uint32_t c = 0; c < C; c++) {
                total[v][c] = _mm512_add_epi32(total[v][c], _mm512_mullo_epi32(dot[v][c], sc));
            }
        }
    }
}

/* What the 128 on every activation adds to a row's total. */
RG_INLINE void tile_minus(const v4_format *f, v4_tile *t, uint32_t V) {
    __m512i total[4][3];
    memset(t->columns[0], 128, sizeof t->columns[0]);
    const uint8_t *const x[3] = {t->columns[0]};
    for (uint32_t v = 0; v < V; v++)
        total[v][0] = _mm512_setzero_si512();
    tile_totals(f, t, x, V, 1, total);
    for (uint32_t v = 0; v < V; v++) {
        _mm512_store_si512(&t->minus[0][16 * v],
                           _mm512_sub_epi32(_mm512_setzero_si512(), total[v][0]));
    }
}

/* Block b of C columns: y += totals. `first`: columns [first, first + C) of the job. */
RG_INLINE void tile_block(const v4_format *f, const v4_job *j, const v4_tile *t, uint32_t r,
                          uint32_t n, uint32_t V, uint32_t b, uint32_t first, uint32_t at,
                          uint32_t C) {
    const uint8_t *x[3];
    __m512i total[4][3];
    for (uint32_t c = 0; c < C; c++) {
        x[c] = t->columns[at + c];
        for (uint32_t v = 0; v < V; v++)
            total[v][c] = _mm512_load_si512(&t->minus[0][16 * v]);
    }
    tile_totals(f, t, x, V, C, total);
    for (uint32_t c = 0; c < C; c++) {
        const size_t row = v4_x_row(j, first + c);
        const __m512 dx = _mm512_set1_ps(j->x->scales[row * (j->x->n_in / 256) + b]);
        float *y = v4_y_row(j, first + c) + r;
        for (uint32_t v = 0; v < V; v++) {
            const __mmask16 live = v4_live(n, v);
            __m512 acc = b ? _mm512_maskz_loadu_ps(live, y + 16 * v) : _mm512_setzero_ps();
            const __m512 d = _mm512_load_ps(&t->d[0][16 * v]);
            acc = _mm512_fmadd_ps(_mm512_mul_ps(d, dx), _mm512_cvtepi32_ps(total[v][c]), acc);
            if (f->mins) {
                __m512i low = _mm512_setzero_si512();
                for (uint32_t k = 0; k < 128 / f->group; k++) {
                    int32_t pair;
                    memcpy(&pair, &t->sums[at + c][2 * k], sizeof pair);
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

/* Sums of the codes of block b, of 16 or 32 codes each. */
RG_INLINE void tile_sums(const v4_format *f, const v4_job *j, v4_tile *t, uint32_t first,
                         uint32_t C, uint32_t b) {
    for (uint32_t c = 0; c < C; c++) {
        const size_t row = v4_x_row(j, first + c);
        const int16_t *sums = j->x->sums + row * (j->x->n_in / 16) + (size_t)16 * b;
        __m256i s = _mm256_loadu_si256((const void *)sums);
        if (f->group == 32) {
            const __m256i s32 = _mm256_madd_epi16(s, _mm256_set1_epi16(1));
            s = _mm256_castsi128_si256(_mm256_cvtepi32_epi16(s32));
        }
        _mm256_storeu_si256((void *)t->sums[c], s);
    }
}

RG_INLINE void strip(const void *format, const v4_job *j, uint32_t r, uint32_t n, uint32_t V) {
    const v4_format *f = format;
    v4_tile *t = (v4_tile *)(void *)j->scratch;
    for (uint32_t b = 0; b < j->x->n_in / 256; b++) {
        fill_tile(f, j, t, r, n, b);
        tile_minus(f, t, V);
        for (uint32_t first = 0; first < j->n; first += V4_COLUMNS) {
            const uint32_t C = j->n - first < V4_COLUMNS ? j->n - first : V4_COLUMNS;
            v4_tile_columns(j, t, first, C, 256 * b, 256);
            if (f->mins) tile_sums(f, j, t, first, C, b);
            uint32_t c = 0;
            for (; c + 3 <= C; c += 3)
                tile_block(f, j, t, r, n, V, b, first + c, c, 3);
            if (C - c == 2) tile_block(f, j, t, r, n, V, b, first + c, c, 2);
            if (C - c == 1) tile_block(f, j, t, r, n, V, b, first + c, c, 1);
        }
    }
}

#define V4_DEFINE(name, id, bytes_, group_, offset_, ...)                                          \
    static void mul_##name(const v4_job *j, uint32_t r0, uint32_t r1) {                            \
        static const v4_format f = {.block_bytes = (bytes_),                                       \
                                    .head = v4_head_##name,                                        \
                                    .codes = v4_codes_##name,                                      \
                                    .group = (group_),                                             \
                                    .offset = (offset_),                                           \
                                    __VA_ARGS__};                                                  \
        v4_rows(direct, strip, &f, j, r0, r1);                                                     \
    }

#define V4_CASE(name, id, ...)                                                                     \
    case RG_TYPE_##id:                                                                             \
        mul_##name(j, r0, r1);                                                                     \
        return true;

#endif
