/* AVX-512 products with 32-value blocks: direct for few columns, by tile for many. One fma a block,
 * blocks in ascending order; formats with minima follow each with a second fma.
 */
#include "kernels/cpu/x86/v4_rows.h"

/* Codes of blocks i and i + 1 of a row, i even, as u = code + offset; without `two` the first only,
 * and nothing behind it is read. */
typedef __m512i v4_pair_fn(const uint8_t *row, uint32_t i, bool two);

typedef struct v4_small_format {
    v4_pair_fn *pair;
    size_t bytes;    /* of 32 values */
    uint32_t blocks; /* of 32 values under one scale */
    int offset;
    bool mins; /* f16 behind the scale */
    bool e8m0; /* the scale is a power of two in one byte, otherwise f16 */
} v4_small_format;

/* ---- formats --------------------------------------------------------------------------------- */

/* Nibbles of 16 bytes `at` in each of two blocks, low ones first; bits above them are arbitrary. */
RG_INLINE __m512i nibbles(const uint8_t *b, int bytes, int at, bool two) {
    const __mmask64 live = two ? (1ull << 2 * bytes) - 1 : (1ull << bytes) - 1;
    const __m512i raw = _mm512_maskz_loadu_epi8(live, b);
    const __m128i byte = _mm_set_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m256i first = _mm256_broadcastsi128_si256(_mm_add_epi8(byte, _mm_set1_epi8((char)at)));
    const __m256i second =
        _mm256_broadcastsi128_si256(_mm_add_epi8(byte, _mm_set1_epi8((char)(at + bytes))));
    const __m512i q = _mm512_permutexvar_epi8(v4_join(first, second), raw);
    const __m512i shift = _mm512_set_epi64(
        0x3C342C241C140C04, 0x3C342C241C140C04, 0x3830282018100800, 0x3830282018100800,
        0x3C342C241C140C04, 0x3C342C241C140C04, 0x3830282018100800, 0x3830282018100800);
    return _mm512_multishift_epi64_epi8(shift, q);
}

RG_INLINE __m512i low_four(__m512i v) {
    return _mm512_and_si512(v, _mm512_set1_epi8(15));
}

/* Five bits: nibbles behind a word of fifth bits. */
RG_INLINE __m512i five_bits(const uint8_t *b, int bytes, int at, bool two) {
    const __m512i low = low_four(nibbles(b, bytes, at + 4, two));
    const uint64_t second = two ? (uint64_t)v4_u32(b + bytes + at) << 32 : 0;
    return _mm512_mask_add_epi8(low, v4_u32(b + at) | second, low, _mm512_set1_epi8(16));
}

RG_INLINE __m512i pair_q4_0(const uint8_t *row, uint32_t i, bool two) {
    return low_four(nibbles(row + (size_t)18 * i, 18, 2, two));
}

RG_INLINE __m512i pair_q4_1(const uint8_t *row, uint32_t i, bool two) {
    return low_four(nibbles(row + (size_t)20 * i, 20, 4, two));
}

RG_INLINE __m512i pair_q5_0(const uint8_t *row, uint32_t i, bool two) {
    return five_bits(row + (size_t)22 * i, 22, 2, two);
}

RG_INLINE __m512i pair_q5_1(const uint8_t *row, uint32_t i, bool two) {
    return five_bits(row + (size_t)24 * i, 24, 4, two);
}

RG_INLINE __m512i pair_q8_0(const uint8_t *row, uint32_t i, bool two) {
    const uint8_t *b = row + (size_t)34 * i;
    const __m256i second = two ? v4_load256(b + 36) : _mm256_setzero_si256();
    return _mm512_xor_si512(v4_join(v4_load256(b + 2), second), _mm512_set1_epi8((char)0x80));
}

RG_INLINE __m512i pair_iq4_nl(const uint8_t *row, uint32_t i, bool two) {
    const __m512i q = nibbles(row + (size_t)18 * i, 18, 2, two);
    return _mm512_permutexvar_epi8(q, v4_table_iq4());
}

RG_INLINE __m512i pair_mxfp4(const uint8_t *row, uint32_t i, bool two) {
    const __m512i q = nibbles(row + (size_t)17 * i, 17, 1, two);
    const __m128i t =
        _mm_add_epi8(v4_load128((const uint8_t *)rg_kvalues_mxfp4), _mm_set1_epi8(12));
    return _mm512_permutexvar_epi8(q, _mm512_broadcast_i32x4(t));
}

/* One block of 64: sixteen bytes, four codes each, in order. */
RG_INLINE __m512i pair_q2_0(const uint8_t *row, uint32_t i, bool two) {
    const __m512i words = _mm512_cvtepu16_epi64(v4_load128(row + (size_t)9 * i + 2));
    const __m512i shift = _mm512_set1_epi64(0x0E0C0A0806040200);
    (void)two; /* always */
    return _mm512_and_si512(_mm512_multishift_epi64_epi8(shift, words), _mm512_set1_epi8(3));
}

/* Scales as stored, 16 bits each: f16, or the e8m0 byte. */
RG_INLINE uint16_t raw_scale(const v4_small_format *f, const uint8_t *row, uint32_t block) {
    const uint8_t *b = row + f->bytes * f->blocks * (block / f->blocks);
    uint16_t h;
    if (f->e8m0) return b[0];
    memcpy(&h, b, sizeof h);
    return h;
}

RG_INLINE uint16_t raw_min(const v4_small_format *f, const uint8_t *row, uint32_t block) {
    uint16_t h = 0;
    if (f->mins) memcpy(&h, row + f->bytes * block + 2, sizeof h);
    return h;
}

/* Half of 2^(e - 127): subnormal for e = 0 and 1. */
RG_INLINE __m512 scales_f32(const v4_small_format *f, __m256i raw) {
    if (!f->e8m0) return _mm512_cvtph_ps(raw);
    const __m512i e = _mm512_cvtepu16_epi32(raw);
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    const __mmask16 small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_blend_epi32(small, normal, tiny));
}

/* ---- direct ---------------------------------------------------------------------------------- */

/* Four rows by up to four blocks: lane 4 k + r is block k of row r. */
typedef struct v4_quad {
    __m512i u[4][2]; /* of each row, two blocks a register */
    __m512 d, m;
} v4_quad;

RG_INLINE v4_quad load_quad(const v4_small_format *f, const uint8_t *const rows[4], uint32_t b,
                            uint32_t count) {
    v4_quad q;
    uint16_t d[4][4], m[4][4];
    for (uint32_t r = 0; r < 4; r++) {
        q.u[r][0] = f->pair(rows[r], b, count > 1);
        q.u[r][1] = count > 2 ? f->pair(rows[r], b + 2, count > 3) : _mm512_setzero_si512();
    }
    for (uint32_t k = 0; k < 4; k++) {
        for (uint32_t r = 0; r < 4; r++) {
            d[k][r] = raw_scale(f, rows[r], b + (k < count ? k : 0));
            m[k][r] = raw_min(f, rows[r], b + (k < count ? k : 0));
        }
    }
#define FOUR(x, k) (short)(x)[k][3], (short)(x)[k][2], (short)(x)[k][1], (short)(x)[k][0]
    q.d = scales_f32(f, _mm256_set_epi16(FOUR(d, 3), FOUR(d, 2), FOUR(d, 1), FOUR(d, 0)));
    q.m = _mm512_cvtph_ps(_mm256_set_epi16(FOUR(m, 3), FOUR(m, 2), FOUR(m, 1), FOUR(m, 0)));
#undef FOUR
    return q;
}

/* Sums of four registers within 128-bit lanes: lane element r is register r. */
RG_INLINE __m512i sum_lanes(const __m512i s[4]) {
    const __m512i ab =
        _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]));
    const __m512i cd =
        _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

/* Lane 4 k + r: element k of four. */
RG_INLINE __m512i each_four(__m128i v) {
    const __m512i at = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    return _mm512_permutexvar_epi32(at, _mm512_castsi128_si512(v));
}

#define PART(v, k) _mm512_extractf32x4_ps(v, k)
/* One fma a block and, with minima, a second. */
#define ADD_BLOCK(k)                                                                               \
    if ((k) < count) {                                                                             \
        acc = _mm_fmadd_ps(PART(d, k), PART(total, k), acc);                                       \
        if (f->mins) acc = _mm_fmadd_ps(PART(m, k), PART(sum, k), acc);                            \
    }

/* `count` blocks from the one that x, scales and sums point to. */
RG_INLINE __m128 add_quad(const v4_small_format *f, const v4_quad *q, const int8_t *x,
                          const float *scales, const int16_t *sums, uint32_t count, __m128 acc) {
    const __mmask8 four = (__mmask8)((1u << count) - 1);
    const __mmask16 low = count > 1 ? 0xFFFF : 0x00FF;
    const __mmask16 high = count > 3 ? 0xFFFF : count > 2 ? 0x00FF : 0;
    const __m512i y0 = _mm512_maskz_loadu_epi32(low, x);
    const __m512i y1 = _mm512_maskz_loadu_epi32(high, x + 64);
    __m512i s0[4], s1[4];
    for (uint32_t r = 0; r < 4; r++) {
        s0[r] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), q->u[r][0], y0);
        s1[r] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), q->u[r][1], y1);
    }
    const __m512i a = sum_lanes(s0), b = sum_lanes(s1);
    __m512i dot =
        _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
    __m512 sum = _mm512_setzero_ps();
    if (f->offset || f->mins) {
        const __m128i pairs = _mm_maskz_loadu_epi32(four, sums);
        const __m512i s = each_four(_mm_madd_epi16(pairs, _mm_set1_epi16(1)));
        if (f->offset) {
            dot = _mm512_sub_epi32(dot, _mm512_mullo_epi32(s, _mm512_set1_epi32(f->offset)));
        }
        sum = _mm512_cvtepi32_ps(s);
    }
    const __m512 total = _mm512_cvtepi32_ps(dot);
    const __m128i four_scales = _mm_maskz_loadu_epi32(four, scales);
    const __m512 dx = _mm512_castsi512_ps(each_four(four_scales));
    const __m512 d = _mm512_mul_ps(q->d, dx), m = _mm512_mul_ps(q->m, dx);
    (void)m, (void)sum;
    ADD_BLOCK(0)
    ADD_BLOCK(1)
    ADD_BLOCK(2)
    ADD_BLOCK(3)
    return acc;
}

RG_INLINE void direct(const void *format, const v4_job *j, uint32_t r0, uint32_t r1, uint32_t C) {
    const v4_small_format *f = format;
    const uint32_t n = j->x->n_in, n_block = n / 32;
    const int8_t *x[V4_DIRECT_MAX];
    const int16_t *sums[V4_DIRECT_MAX];
    const float *scales[V4_DIRECT_MAX];
    for (uint32_t c = 0; c < C; c++) {
        const size_t row = v4_x_row(j, c);
        x[c] = j->x->codes + row * n;
        sums[c] = j->x->sums + row * (n / 16);
        scales[c] = j->x->scales + row * n_block;
    }
    for (uint32_t r = r0; r < r1; r += 4) {
        const uint8_t *rows[4];
        __m128 acc[V4_DIRECT_MAX];
        v4_four_rows(j, r, r1, rows);
        for (uint32_t c = 0; c < C; c++)
            acc[c] = _mm_setzero_ps();
        uint32_t b = 0;
        for (; b + 4 <= n_block; b += 4) {
            v4_stream(rows[0] + 4 * b * f->bytes, 16 * f->bytes, j->w->row_bytes);
            const v4_quad q = load_quad(f, rows, b, 4);
            for (uint32_t c = 0; c < C; c++) {
                acc[c] = add_quad(f, &q, x[c] + (size_t)32 * b, scales[c] + b,
                                  sums[c] + (size_t)2 * b, 4, acc[c]);
            }
        }
        if (b < n_block) {
            const uint32_t count = n_block - b;
            const v4_quad q = load_quad(f, rows, b, count);
            for (uint32_t c = 0; c < C; c++) {
                acc[c] = add_quad(f, &q, x[c] + (size_t)32 * b, scales[c] + b,
                                  sums[c] + (size_t)2 * b, count, acc[c]);
            }
        }
        for (uint32_t c = 0; c < C; c++)
            v4_store_four(j, c, r, r1, acc[c]);
    }
}

/* ---- tile ------------------------------------------------------------------------------------ */

/* Unpacks blocks [b, b + blocks) of `n` rows; rows beyond repeat the last one. */
RG_INLINE void fill_tile(const v4_small_format *f, const v4_job *j, v4_tile *t, uint32_t r,
                         uint32_t n, uint32_t b, uint32_t blocks) {
    const uint32_t rows = (n + 15) / 16 * 16;
    const uint8_t *strip = j->w->data + r * j->w->row_bytes;
    const __m512i offset = _mm512_set1_epi8((char)f->offset);
    uint16_t d[8][V4_ROWS], m[8][V4_ROWS];
    for (uint32_t i = 0; i < rows; i++) {
        const uint8_t *row = strip + (size_t)(i < n ? i : n - 1) * j->w->row_bytes;
        /* The next strip, in memory order. */
        v4_fetch(strip + ((size_t)b * V4_ROWS + (size_t)i * blocks) * f->bytes, blocks * f->bytes,
                 V4_ROWS * j->w->row_bytes);
        for (uint32_t k = 0; k < blocks; k += 2) {
            const __m512i u = f->pair(row, b + k, k + 1 < blocks);
            _mm512_store_si512(&t->rows[i][32 * k], _mm512_sub_epi8(u, offset));
        }
        for (uint32_t k = 0; k < blocks; k++) {
            d[k][i] = raw_scale(f, row, b + k);
            m[k][i] = raw_min(f, row, b + k);
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
            _mm512_store_ps(&t->d[k][v], scales_f32(f, v4_load256((const uint8_t *)&d[k][v])));
            if (!f->mins) continue;
            _mm512_store_ps(&t->m[k][v], _mm512_cvtph_ps(v4_load256((const uint8_t *)&m[k][v])));
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
RG_INLINE void tile_blocks(const v4_small_format *f, const v4_job *j, const v4_tile *t, uint32_t r,
                           uint32_t n, uint32_t V, uint32_t b, uint32_t blocks, uint32_t first,
                           uint32_t at, uint32_t C) {
    const uint8_t *x[3];
    const float *scales[3];
    const int16_t *sums[3];
    float *y[3];
    __m512 acc[4][3];
    for (uint32_t c = 0; c < C; c++) {
        const size_t row = v4_x_row(j, first + c);
        x[c] = t->columns[at + c];
        scales[c] = j->x->scales + row * (j->x->n_in / 32) + b;
        sums[c] = j->x->sums + row * (j->x->n_in / 16) + (size_t)2 * b;
        y[c] = v4_y_row(j, first + c) + r;
        for (uint32_t v = 0; v < V; v++) {
            acc[v][c] =
                b ? _mm512_maskz_loadu_ps(v4_live(n, v), y[c] + 16 * v) : _mm512_setzero_ps();
        }
    }
    for (uint32_t k = 0; k < blocks; k++) {
        __m512i dot[4][3];
        for (uint32_t v = 0; v < V; v++) {
            const __m512i start = _mm512_load_si512(&t->minus[k][16 * v]);
            for (uint32_t c = 0; c < C; c++)
                dot[v][c] = start;
        }
        v4_tile_dots(t, x, 8 * k, 8, 0, V, C, dot);
        for (uint32_t c = 0; c < C; c++) {
            const float sum = (float)((int32_t)sums[c][2 * k] + sums[c][2 * k + 1]);
            for (uint32_t v = 0; v < V; v++) {
                acc[v][c] = tile_add(f, t, k, v, scales[c][k], sum, dot[v][c], acc[v][c]);
            }
        }
    }
    for (uint32_t c = 0; c < C; c++) {
        for (uint32_t v = 0; v < V; v++) {
            _mm512_mask_storeu_ps(y[c] + 16 * v, v4_live(n, v), acc[v][c]);
        }
    }
}

RG_INLINE void strip(const void *format, const v4_job *j, uint32_t r, uint32_t n, uint32_t V) {
    const v4_small_format *f = format;
    v4_tile *t = (v4_tile *)(void *)j->scratch;
    const uint32_t n_block = j->x->n_in / 32;
    for (uint32_t b = 0; b < n_block; b += 8) {
        const uint32_t blocks = n_block - b < 8 ? n_block - b : 8;
        fill_tile(f, j, t, r, n, b, blocks);
        for (uint32_t first = 0; first < j->n; first += V4_COLUMNS) {
            const uint32_t C = j->n - first < V4_COLUMNS ? j->n - first : V4_COLUMNS;
            v4_tile_columns(j, t, first, C, 32 * b, 32 * blocks);
            uint32_t c = 0;
            for (; c + 3 <= C; c += 3)
                tile_blocks(f, j, t, r, n, V, b, blocks, first + c, c, 3);
            if (C - c == 2) tile_blocks(f, j, t, r, n, V, b, blocks, first + c, c, 2);
            if (C - c == 1) tile_blocks(f, j, t, r, n, V, b, blocks, first + c, c, 1);
        }
    }
}

/* name, bytes of 32 values, blocks under one scale, offset, minima, e8m0 */
#define FORMATS(X)                                                                                 \
    X(q4_0, Q4_0, 18, 1, 8, false, false)                                                          \
    X(q4_1, Q4_1, 20, 1, 0, true, false)                                                           \
    X(q5_0, Q5_0, 22, 1, 16, false, false)                                                         \
    X(q5_1, Q5_1, 24, 1, 0, true, false)                                                           \
    X(q8_0, Q8_0, 34, 1, 128, false, false)                                                        \
    X(iq4_nl, IQ4_NL, 18, 1, 128, false, false)                                                    \
    X(mxfp4, MXFP4, 17, 1, 12, false, true)                                                        \
    X(q2_0, Q2_0, 9, 2, 1, false, false)

#define DEFINE(name, id, bytes_, blocks_, offset_, mins_, e8m0_)                                   \
    static void mul_##name(const v4_job *j, uint32_t r0, uint32_t r1) {                            \
        static const v4_small_format f = {.pair = pair_##name,                                     \
                                          .bytes = (bytes_),                                       \
                                          .blocks = (blocks_),                                     \
                                          .offset = (offset_),                                     \
                                          .mins = (mins_),                                         \
                                          .e8m0 = (e8m0_)};                                        \
        v4_rows(direct, strip, &f, j, r0, r1);                                                     \
    }
FORMATS(DEFINE)

bool rg_v4_mul_32(const v4_job *j, uint32_t r0, uint32_t r1) {
    switch (j->w->type) {
#define CASE(name, id, ...)                                                                        \
    case RG_TYPE_##id:                                                                             \
        mul_##name(j, r0, r1);                                                                     \
        return true;
        FORMATS(CASE)
    default:
        return false;
    }
}
