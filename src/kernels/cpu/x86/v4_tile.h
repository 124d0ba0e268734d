/* The tile: 64 weight rows by 256 columns of codes, transposed so that a lane is a row. */
#ifndef RG_KERNELS_V4_TILE_H
#define RG_KERNELS_V4_TILE_H

#include "kernels/cpu/x86/v4_mul.h"
#include "kernels/cpu/x86/v4_types.h"

#define V4_ROWS    64u /* of a tile */
#define V4_COLUMNS 96u /* activation rows converted at once */

typedef struct v4_tile {
    int8_t rows[V4_ROWS][256];   /* signed codes, row by row */
    int32_t codes[64][V4_ROWS];  /* four codes of consecutive k of each row */
    int32_t scales[16][V4_ROWS]; /* of 16 or 32 values each */
    int32_t mins[8][V4_ROWS];    /* pairs of int16 minima */
    int32_t minus[8][V4_ROWS];   /* what code + 128 adds: of the block, or of each 32 */
    float d[8][V4_ROWS], m[8][V4_ROWS];
    uint8_t columns[V4_COLUMNS][256]; /* activation codes + 128 */
    int16_t sums[V4_COLUMNS][16];     /* of 16 or 32 codes each, beside the minima */
} v4_tile;
_Static_assert(sizeof(v4_tile) <= V4_TILE_SCRATCH, "the tile fits its scratch");

/* 16 x 16 dwords: out[j] lane i = in[i] lane j. */
RG_INLINE void v4_transpose(__m512i r[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xDD);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xDD);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xDD);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xDD);
    }
}

/* rows -> codes, for `n` rows rounded up to 16 and k in [0, width). */
RG_INLINE void v4_tile_transpose(v4_tile *t, uint32_t n, uint32_t width) {
    for (uint32_t v = 0; v < n; v += 16) {
        for (uint32_t k = 0; k < width; k += 64) {
            __m512i r[16];
            for (uint32_t i = 0; i < 16; i++)
                r[i] = _mm512_load_si512(&t->rows[v + i][k]);
            v4_transpose(r);
            for (uint32_t i = 0; i < 16; i++)
                _mm512_store_si512(&t->codes[k / 4 + i][v], r[i]);
        }
    }
}

/* dot[v][c] += products of Q steps of four codes, from step q0 on, for V x 16 rows and C columns. A
 * loop left in place makes gcc copy every sum at each turn, and weights read once from memory for
 * each column cost more loads than there are slots. */
RG_INLINE void v4_tile_dots(const v4_tile *t, const uint8_t *const x[3], uint32_t q0, uint32_t Q,
                            uint32_t v0, uint32_t V, uint32_t C, __m512i dot[4][3]) {
#pragma GCC unroll 8
    for (uint32_t q = q0; q < q0 + Q; q++) {
        __m512i y[3];
        for (uint32_t c = 0; c < C; c++) {
            int32_t four;
            memcpy(&four, x[c] + 4 * q, sizeof four);
            y[c] = _mm512_set1_epi32(four);
        }
        for (uint32_t v = 0; v < V; v++) {
            __m512i w = _mm512_load_si512(&t->codes[q][16 * (v0 + v)]);
            __asm__("" : "+v"(w));
            for (uint32_t c = 0; c < C; c++)
                dot[v][c] = _mm512_dpbusd_epi32(dot[v][c], y[c], w);
        }
    }
}

/* Columns [first, first + C) of the job, `width` codes from k on, with 128 added. */
RG_INLINE void v4_tile_columns(const v4_job *j, v4_tile *t, uint32_t first, uint32_t C, uint32_t k,
                               uint32_t width) {
    const __m256i half = _mm256_set1_epi8((char)0x80);
    for (uint32_t c = 0; c < C; c++) {
        const int8_t *x = j->x->codes + (size_t)v4_x_row(j, first + c) * j->x->n_in + k;
        for (uint32_t i = 0; i < width; i += 32) {
            const __m256i y = v4_load256((const uint8_t *)x + i);
            _mm256_store_si256((__m256i *)(void *)&t->columns[c][i], _mm256_xor_si256(y, half));
        }
    }
}

#endif
