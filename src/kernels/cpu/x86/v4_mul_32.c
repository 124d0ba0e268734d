/* AVX-512 products with 32-value blocks: direct for few columns, by tile for many. One fma a block,
 * blocks in ascending order; formats with minima follow each with a second fma.
 */
#include "kernels/cpu/x86/v4_mul.h"
#include "kernels/cpu/x86/v4_tile.h"

/* A block of 32: u - offset, scale, minimum. */
typedef struct v4_small {
    __m256i u;
    float d, m;
} v4_small;

typedef v4_small v4_small_fn(const uint8_t *row, uint32_t block);

typedef struct v4_small_format {
    v4_small_fn *block;
    size_t bytes; /* of 32 values */
    int offset;
    bool mins;
} v4_small_format;

/* Low nibbles of 16 bytes, then the high ones. */
RG_INLINE __m256i nibbles(const uint8_t *q) {
    const __m128i v = v4_load128(q);
    const __m256i both = _mm256_set_m128i(_mm_srli_epi16(v, 4), v);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

RG_INLINE __m256i fifth_bit(__m256i low, uint32_t high) {
    return _mm256_mask_add_epi8(low, (__mmask32)high, low, _mm256_set1_epi8(16));
}

RG_INLINE v4_small small_q4_0(const uint8_t *row, uint32_t i) {
    const uint8_t *b = row + (size_t)18 * i;
    return (v4_small){.u = nibbles(b + 2), .d = v4_f16(b)};
}

RG_INLINE v4_small small_q4_1(const uint8_t *row, uint32_t i) {
    const uint8_t *b = row + (size_t)20 * i;
    return (v4_small){.u = nibbles(b + 4), .d = v4_f16(b), .m = v4_f16(b + 2)};
}

RG_INLINE v4_small small_q5_0(const uint8_t *row, uint32_t i) {
    const uint8_t *b = row + (size_t)22 * i;
    return (v4_small){.u = fifth_bit(nibbles(b + 6), v4_u32(b + 2)), .d = v4_f16(b)};
}

RG_INLINE v4_small small_q5_1(const uint8_t *row, uint32_t i) {
    const uint8_t *b = row + (size_t)24 * i;
    return (v4_small){
        .u = fifth_bit(nibbles(b + 8), v4_u32(b + 4)), .d = v4_f16(b), .m = v4_f16(b + 2)};
}

RG_INLINE v4_small small_q8_0(const uint8_t *row, uint32_t i) {
    const uint8_t *b = row + (size_t)34 * i;
    return (v4_small){.u = _mm256_xor_si256(v4_load256(b + 2), _mm256_set1_epi8((char)0x80)),
                      .d = v4_f16(b)};
}

RG_INLINE v4_small small_iq4_nl(const uint8_t *row, uint32_t i) {
    const uint8_t *b = row + (size_t)18 * i;
    const __m256i table = _mm512_castsi512_si256(v4_table_iq4());
    return (v4_small){.u = _mm256_shuffle_epi8(table, nibbles(b + 2)), .d = v4_f16(b)};
}

RG_INLINE v4_small small_mxfp4(const uint8_t *row, uint32_t i) {
    const uint8_t *b = row + (size_t)17 * i;
    const __m128i t =
        _mm_add_epi8(v4_load128((const uint8_t *)rg_kvalues_mxfp4), _mm_set1_epi8(12));
    const uint32_t bits = b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23;
    v4_small s = {.u = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), nibbles(b + 1))};
    memcpy(&s.d, &bits, sizeof s.d);
    return s;
}

/* Half a block of 64: eight bytes, four codes each, in order. */
RG_INLINE v4_small small_q2_0(const uint8_t *row, uint32_t i) {
    const uint8_t *b = row + (size_t)18 * (i / 2);
    const uint64_t q = v4_u64(b + 2 + 8 * (i & 1));
    const uint64_t w[4] = {
        _pdep_u64(q, 0x0303030303030303u), _pdep_u64(q >> 16, 0x0303030303030303u),
        _pdep_u64(q >> 32, 0x0303030303030303u), _pdep_u64(q >> 48, 0x0303030303030303u)};
    return (v4_small){.u = v4_load256((const uint8_t *)w), .d = v4_f16(b)};
}

/* ---- direct ---------------------------------------------------------------------------------- */

/* Sums of four rows for the low and the high 256 bits apart. */
RG_INLINE void sum_rows_halves(const __m512i r[4], __m128i *low, __m128i *high) {
    const __m512i ab =
        _mm512_add_epi32(_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpackhi_epi32(r[0], r[1]));
    const __m512i cd =
        _mm512_add_epi32(_mm512_unpacklo_epi32(r[2], r[3]), _mm512_unpackhi_epi32(r[2], r[3]));
    const __m512i s =
        _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    const __m256i lo = _mm512_castsi512_si256(s), hi = _mm512_extracti64x4_epi64(s, 1);
    *low = _mm_add_epi32(_mm256_castsi256_si128(lo), _mm256_extracti128_si256(lo, 1));
    *high = _mm_add_epi32(_mm256_castsi256_si128(hi), _mm256_extracti128_si256(hi, 1));
}

RG_INLINE __m128 add_block(const v4_small_format *f, __m128 acc, const float d[4], const float m[4],
                           float dx, __m128i total, const int16_t *sums) {
    const __m128 x = _mm_set1_ps(dx);
    acc = _mm_fmadd_ps(_mm_mul_ps(_mm_loadu_ps(d), x), _mm_cvtepi32_ps(total), acc);
    if (!f->mins) return acc;
    const __m128 sum = _mm_set1_ps((float)((int32_t)sums[0] + sums[1]));
    return _mm_fmadd_ps(_mm_mul_ps(_mm_loadu_ps(m), x), sum, acc);
}

/* Blocks b and (when `two`) b + 1 of four rows against C columns. */
RG_INLINE void direct_blocks(const v4_small_format *f, const uint8_t *const rows[4],
                             const int8_t *const x[], const float *const scales[],
                             const int16_t *const sums[], uint32_t b, bool two, uint32_t C,
                             __m128 acc[]) {
    __m512i u[4];
    float d[2][4], m[2][4];
    for (uint32_t r = 0; r < 4; r++) {
        const v4_small s0 = f->block(rows[r], b);
        const v4_small s1 = two ? f->block(rows[r], b + 1) : s0;
        u[r] = v4_join(s0.u, s1.u);
        d[0][r] = s0.d;
        m[0][r] = s0.m;
        d[1][r] = s1.d;
        m[1][r] = s1.m;
    }
    const __mmask16 live = two ? 0xFFFF : 0x00FF;
    for (uint32_t c = 0; c < C; c++) {
        const __m512i y = _mm512_maskz_loadu_epi32(live, x[c] + (size_t)32 * b);
        __m512i start = _mm512_setzero_si512();
        if (f->offset) {
            const __m512i ones = _mm512_dpbusd_epi32(start, _mm512_set1_epi8(1), y);
            start = _mm512_mullo_epi32(ones, _mm512_set1_epi32(-f->offset));
        }
        __m512i dot[4];
        for (uint32_t r = 0; r < 4; r++)
            dot[r] = _mm512_dpbusd_epi32(start, u[r], y);
        __m128i low, high;
        sum_rows_halves(dot, &low, &high);
        acc[c] = add_block(f, acc[c], d[0], m[0], scales[c][b], low, sums[c] + (size_t)2 * b);
        if (!two) continue;
        acc[c] =
            add_block(f, acc[c], d[1], m[1], scales[c][b + 1], high, sums[c] + (size_t)2 * b + 2);
    }
}

RG_INLINE void direct(const v4_small_format *f, const v4_job *j, uint32_t r0, uint32_t r1,
                      uint32_t C) {
    const uint32_t n = j->x->n_in;
    const int8_t *x[V4_DIRECT_MAX];
    const int16_t *sums[V4_DIRECT_MAX];
    const float *scales[V4_DIRECT_MAX];
    for (uint32_t c = 0; c < C; c++) {
        const size_t row = v4_x_row(j, c);
        x[c] = j->x->codes + row * n;
        sums[c] = j->x->sums + row * (n / 16);
        scales[c] = j->x->scales + row * (n / 32);
    }
    for (uint32_t r = r0; r < r1; r += 4) {
        const uint32_t left = r1 - r < 4 ? r1 - r : 4;
        const uint8_t *rows[4];
        __m128 acc[V4_DIRECT_MAX];
        for (uint32_t i = 0; i < 4; i++) {
            rows[i] = j->w->data + (r + (i < left ? i : left - 1)) * j->w->row_bytes;
        }
        for (uint32_t c = 0; c < C; c++)
            acc[c] = _mm_setzero_ps();
        uint32_t b = 0;
        for (; b + 2 <= n / 32; b += 2) {
            v4_fetch(rows[0] + 4 * b * f->bytes, 8 * f->bytes);
            direct_blocks(f, rows, x, scales, sums, b, true, C, acc);
        }
        if (b < n / 32) direct_blocks(f, rows, x, scales, sums, b, false, C, acc);
        for (uint32_t c = 0; c < C; c++) {
            _mm_mask_storeu_ps(v4_y_row(j, c) + r, (__mmask8)((1u << left) - 1), acc[c]);
        }
    }
}

/* ---- tile ------------------------------------------------------------------------------------ */

/* Unpacks blocks [b, b + blocks) of `n` rows; rows beyond repeat the last one. */
RG_INLINE void fill_tile(const v4_small_format *f, const v4_job *j, v4_tile *t, uint32_t r,
                         uint32_t n, uint32_t b, uint32_t blocks) {
    const uint32_t rows = (n + 15) / 16 * 16;
    const __m256i offset = _mm256_set1_epi8((char)f->offset);
    for (uint32_t i = 0; i < rows; i++) {
        const uint8_t *row = j->w->data + (r + (i < n ? i : n - 1)) * j->w->row_bytes;
        for (uint32_t k = 0; k < blocks; k++) {
            const v4_small s = f->block(row, b + k);
            _mm256_store_si256((__m256i *)(void *)&t->rows[i][32 * k],
                               _mm256_sub_epi8(s.u, offset));
            t->d[k][i] = s.d;
            t->m[k][i] = s.m;
        }
    }
    v4_tile_transpose(t, rows, (32 * blocks + 63) / 64 * 64);
    const __m512i half = _mm512_set1_epi8((char)0x80);
    for (uint32_t k = 0; k < blocks; k++) {
        for (uint32_t v = 0; v < rows; v += 16) {
            __m512i sum = _mm512_setzero_si512();
            for (uint32_t q = 8 * k; q < 8 * k + 8; q++) {
                sum = _mm512_dpbusd_epi32(sum, half, _mm512_load_si512(&t->codes[q][v]));
            }
            _mm512_store_si512(&t->minus[k][v], _mm512_sub_epi32(_mm512_setzero_si512(), sum));
        }
    }
}

RG_INLINE __m512 tile_add(const v4_small_format *f, const v4_tile *t, uint32_t k, uint32_t v,
                          float dx, float sum, __m512i dot, __m512 acc) {
    const __m512 x = _mm512_set1_ps(dx);
    const __m512 d = _mm512_load_ps(&t->d[k][16 * v]);
    acc = _mm512_fmadd_ps(_mm512_mul_ps(d, x), _mm512_cvtepi32_ps(dot), acc);
    if (!f->mins) return acc;
    const __m512 m = _mm512_load_ps(&t->m[k][16 * v]);
    return _mm512_fmadd_ps(_mm512_mul_ps(m, x), _mm512_set1_ps(sum), acc);
}

/* Blocks of one tile against C columns; y holds what earlier tiles gave. */
RG_INLINE void tile_columns(const v4_small_format *f, const v4_job *j, const v4_tile *t, uint32_t r,
                            uint32_t n, uint32_t V, uint32_t b, uint32_t blocks, uint32_t first,
                            uint32_t at, uint32_t C) {
    const uint8_t *x[3];
    const float *scales[3];
    const int16_t *sums[3];
    float *y[3];
    __m512 acc[4][3];
    __mmask16 live[4];
    for (uint32_t v = 0; v < V; v++) {
        live[v] = n >= 16 * v + 16 ? (__mmask16)0xFFFF : (__mmask16)((1u << (n - 16 * v)) - 1);
    }
    for (uint32_t c = 0; c < C; c++) {
        const size_t row = v4_x_row(j, first + c);
        x[c] = t->columns[at + c];
        scales[c] = j->x->scales + row * (j->x->n_in / 32) + b;
        sums[c] = j->x->sums + row * (j->x->n_in / 16) + (size_t)2 * b;
        y[c] = v4_y_row(j, first + c) + r;
        for (uint32_t v = 0; v < V; v++) {
            acc[v][c] = b ? _mm512_maskz_loadu_ps(live[v], y[c] + 16 * v) : _mm512_setzero_ps();
        }
    }
    for (uint32_t k = 0; k < blocks; k++) {
        __m512i dot[4][3];
        for (uint32_t v = 0; v < V; v++) {
            const __m512i start = _mm512_load_si512(&t->minus[k][16 * v]);
            for (uint32_t c = 0; c < C; c++)
                dot[v][c] = start;
        }
        for (uint32_t q = 8 * k; q < 8 * k + 8; q++) {
            __m512i w[4];
            for (uint32_t v = 0; v < V; v++)
                w[v] = _mm512_load_si512(&t->codes[q][16 * v]);
            for (uint32_t c = 0; c < C; c++) {
                int32_t four;
                memcpy(&four, x[c] + 4 * q, sizeof four);
                const __m512i a = _mm512_set1_epi32(four);
                for (uint32_t v = 0; v < V; v++) {
                    dot[v][c] = _mm512_dpbusd_epi32(dot[v][c], a, w[v]);
                }
            }
        }
        for (uint32_t c = 0; c < C; c++) {
            const float sum = (float)((int32_t)sums[c][2 * k] + sums[c][2 * k + 1]);
            for (uint32_t v = 0; v < V; v++) {
                acc[v][c] = tile_add(f, t, k, v, scales[c][k], sum, dot[v][c], acc[v][c]);
            }
        }
    }
    for (uint32_t c = 0; c < C; c++) {
        for (uint32_t v = 0; v < V; v++) {
            _mm512_mask_storeu_ps(y[c] + 16 * v, live[v], acc[v][c]);
        }
    }
}

RG_INLINE void tile_strip(const v4_small_format *f, const v4_job *j, uint32_t r, uint32_t n,
                          const uint32_t V) {
    v4_tile *t = (v4_tile *)(void *)j->scratch;
    const uint32_t n_in = j->x->n_in, n_block = n_in / 32;
    for (uint32_t b = 0; b < n_block; b += 8) {
        const uint32_t blocks = n_block - b < 8 ? n_block - b : 8;
        fill_tile(f, j, t, r, n, b, blocks);
        for (uint32_t first = 0; first < j->n; first += V4_COLUMNS) {
            const uint32_t C = j->n - first < V4_COLUMNS ? j->n - first : V4_COLUMNS;
            for (uint32_t c = 0; c < C; c++) {
                const int8_t *x = j->x->codes + (size_t)v4_x_row(j, first + c) * n_in + 32 * b;
                for (uint32_t k = 0; k < blocks; k++) {
                    const __m256i y = v4_load256((const uint8_t *)x + 32 * k);
                    _mm256_store_si256((__m256i *)(void *)&t->columns[c][32 * k],
                                       _mm256_xor_si256(y, _mm256_set1_epi8((char)0x80)));
                }
            }
            uint32_t c = 0;
            for (; c + 3 <= C; c += 3) {
                tile_columns(f, j, t, r, n, V, b, blocks, first + c, c, 3);
            }
            if (C - c == 2) tile_columns(f, j, t, r, n, V, b, blocks, first + c, c, 2);
            if (C - c == 1) tile_columns(f, j, t, r, n, V, b, blocks, first + c, c, 1);
        }
    }
}

RG_INLINE void mul_format(const v4_small_format *f, const v4_job *j, uint32_t r0, uint32_t r1) {
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

/* name, bytes of 32 values, offset, mins */
#define FORMATS(X)                                                                                 \
    X(q4_0, Q4_0, 18, 8, false)                                                                    \
    X(q4_1, Q4_1, 20, 0, true)                                                                     \
    X(q5_0, Q5_0, 22, 16, false)                                                                   \
    X(q5_1, Q5_1, 24, 0, true)                                                                     \
    X(q8_0, Q8_0, 34, 128, false)                                                                  \
    X(iq4_nl, IQ4_NL, 18, 128, false)                                                              \
    X(mxfp4, MXFP4, 17, 12, false)                                                                 \
    X(q2_0, Q2_0, 9, 1, false)

#define DEFINE(name, id, bytes_, offset_, mins_)                                                   \
    static void mul_##name(const v4_job *j, uint32_t r0, uint32_t r1) {                            \
        static const v4_small_format f = {                                                         \
            .block = small_##name, .bytes = (bytes_), .offset = (offset_), .mins = (mins_)};       \
        mul_format(&f, j, r0, r1);                                                                 \
    }
FORMATS(DEFINE)

bool rg_v4_mul_32(const v4_job *j, uint32_t r0, uint32_t r1) {
    switch (j->w->type) {
#define CASE(name, id, bytes, offset, mins)                                                        \
    case RG_TYPE_##id:                                                                             \
        mul_##name(j, r0, r1);                                                                     \
        return true;
        FORMATS(CASE)
    default:
        return false;
    }
}
