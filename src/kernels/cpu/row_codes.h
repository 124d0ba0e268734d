/* A quantised row unpacked to signed bytes by 16-byte vectors, for levels with narrow registers:
 * codes apart from their sub-scales, so that byte products stay exact integers. Gives the integers
 * that ref/codes.c defines. Formats: GGUF block definitions (quant.h).
 */
#ifndef RG_KERNELS_ROW_CODES_H
#define RG_KERNELS_ROW_CODES_H

#include <string.h>

#include "kernels/cpu/row_vec.h"
#include "kernels/kernels.h"

/* One row. Formats of 256-value blocks have a scale for each 16 values, others none. */
typedef struct row_codes {
    int8_t *q;      /* [n_in] */
    int16_t *scale; /* [n_in / 16], span 256 */
    int16_t *mins;  /* [n_in / 16], span 256 with minima; those of span 32 are 1 */
    float *d, *m;   /* [n_in / span] */
    uint32_t span;  /* 256 or 32 */
    bool has_mins;
} row_codes;

static inline uint16_t row_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint32_t row_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t row_u64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float row_f16(const uint8_t *p) {
    return row_half(row_u16(p));
}

static inline row_vec row_load(const void *p) {
    row_vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Two words of eight bytes; by way of memory the load would wait for both stores. */
static inline row_vec row_of(uint64_t low, uint64_t high) {
    return (row_vec)(row_words){low, high};
}

static inline void row_store(int8_t *q, row_vec v) {
    memcpy(q, &v, sizeof v);
}

/* 0xFF where one of 16 bits is set: the low eight in bytes 0..7. */
static inline row_vec row_bits(uint32_t low, uint32_t high) {
    const uint64_t one = 0x0101010101010101u;
    const row_vec bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    return (row_vec)((row_of((low & 255) * one, (high & 255) * one) & bit) == bit);
}

/* Two words of eight magnitudes, negative where a bit of the sign bytes is set. */
static inline void row_signed(int8_t *q, uint64_t g0, uint64_t g1, uint32_t s0, uint32_t s1) {
    const row_vec minus = row_bits(s0, s1);
    row_store(q, (row_of(g0, g1) ^ minus) - minus);
}

/* ---- 32-value blocks ------------------------------------------------------------------------- */

/* Low nibbles of 16 bytes, then the high ones, less `bias`. */
static inline void row_nibbles(const uint8_t *b, int8_t *q, uint8_t bias) {
    const row_vec v = row_load(b);
    row_store(q, (v & 15) - bias);
    row_store(q + 16, (v >> 4) - bias);
}

static inline void row_nibbles_of(const uint8_t *b, const int8_t table[16], int8_t *q) {
    const row_vec v = row_load(b), t = row_load(table);
    row_store(q, row_table(t, v & 15));
    row_store(q + 16, row_table(t, v >> 4));
}

static inline void row_five_bits(const uint8_t *b, uint32_t high, int8_t *q, uint8_t bias) {
    const row_vec v = row_load(b);
    row_store(q, ((v & 15) | (row_bits(high, high >> 8) & 16)) - bias);
    row_store(q + 16, ((v >> 4) | (row_bits(high >> 16, high >> 24) & 16)) - bias);
}

/* Half of 2^(e - 127): subnormal for e = 0 and 1. */
static inline float row_e8m0(uint8_t e) {
    const uint32_t u = e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* One block of 64: four 2-bit codes a byte, in order, less one. */
static inline void row_q2_0(const uint8_t *b, int8_t *q) {
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t v = b[i];
        const uint32_t four = (v | v << 6 | v << 12 | v << 18) & 0x03030303u;
        const uint32_t less = ((four | 0x80808080u) - 0x01010101u) ^ 0x80808080u;
        memcpy(q + 4 * i, &less, sizeof less);
    }
}

/* One flat list of formats. */
static inline bool row_unpack_32(rg_type type, const uint8_t *b, uint32_t n, row_codes *c) {
    int8_t *q = c->q;
    c->span = 32;
    c->has_mins = type == RG_TYPE_Q4_1 || type == RG_TYPE_Q5_1;
    for (uint32_t i = 0; i < n / 32; i++, q += 32) {
        switch (type) {
        case RG_TYPE_Q4_0:
            c->d[i] = row_f16(b), row_nibbles(b + 2, q, 8), b += 18;
            break;
        case RG_TYPE_Q4_1:
            c->d[i] = row_f16(b), c->m[i] = row_f16(b + 2), row_nibbles(b + 4, q, 0), b += 20;
            break;
        case RG_TYPE_Q5_0:
            c->d[i] = row_f16(b), row_five_bits(b + 6, row_u32(b + 2), q, 16), b += 22;
            break;
        case RG_TYPE_Q5_1:
            c->d[i] = row_f16(b), c->m[i] = row_f16(b + 2);
            row_five_bits(b + 8, row_u32(b + 4), q, 0), b += 24;
            break;
        case RG_TYPE_Q8_0:
            c->d[i] = row_f16(b), memcpy(q, b + 2, 32), b += 34;
            break;
        case RG_TYPE_IQ4_NL:
            c->d[i] = row_f16(b), row_nibbles_of(b + 2, rg_kvalues_iq4nl, q), b += 18;
            break;
        case RG_TYPE_MXFP4:
            c->d[i] = row_e8m0(b[0]), row_nibbles_of(b + 1, rg_kvalues_mxfp4, q), b += 17;
            break;
        case RG_TYPE_Q2_0:
            c->d[i] = row_f16(b);
            if (i % 2) {
                b += 18;
            } else {
                row_q2_0(b + 2, q);
            }
            break;
        default:
            return false;
        }
    }
    return true;
}

/* ---- K-quants -------------------------------------------------------------------------------- */

/* The head of q4_K and q5_K: eight 6-bit pairs, each for two groups of 16. */
static inline void row_pairs(const uint8_t *b, float *d, float *m, int16_t *scale, int16_t *mins) {
    const uint32_t a0 = row_u32(b + 4), a1 = row_u32(b + 8), a2 = row_u32(b + 12);
    const uint32_t sc[2] = {a0 & 0x3F3F3F3Fu, (a2 & 0x0F0F0F0Fu) | (a0 >> 2 & 0x30303030u)};
    const uint32_t mn[2] = {a1 & 0x3F3F3F3Fu, (a2 >> 4 & 0x0F0F0F0Fu) | (a1 >> 2 & 0x30303030u)};
    *d = row_f16(b);
    *m = -row_f16(b + 2);
    for (uint32_t s = 0; s < 16; s++) {
        scale[s] = (int16_t)(sc[s / 8] >> 8 * (s / 2 % 4) & 255);
        mins[s] = (int16_t)(mn[s / 8] >> 8 * (s / 2 % 4) & 255);
    }
}

static inline void row_q4_K(const uint8_t *b, int8_t *q) {
    for (uint32_t i = 0; i < 8; i++) {
        const row_vec v = row_load(b + 16 + 16 * i);
        int8_t *at = q + 64 * (i / 2) + 16 * (i % 2);
        row_store(at, v & 15);
        row_store(at + 32, v >> 4);
    }
}

static inline void row_q5_K(const uint8_t *b, int8_t *q) {
    for (uint32_t i = 0; i < 8; i++) {
        const row_vec v = row_load(b + 48 + 16 * i), h = row_load(b + 16 + 16 * (i % 2));
        const int p = (int)(i / 2);
        int8_t *at = q + 64 * p + 16 * (i % 2);
        row_store(at, (v & 15) | ((h >> 2 * p & 1) << 4));
        row_store(at + 32, (v >> 4) | ((h >> (2 * p + 1) & 1) << 4));
    }
}

static inline void row_q6_K(const uint8_t *b, int8_t *q) {
    for (uint32_t i = 0; i < 8; i++) { /* 16 bytes: half i / 4, byte column i % 4 */
        const uint32_t half = i / 4, part = i % 4;
        const row_vec v = row_load(b + 64 * half + 16 * part);
        const row_vec h = row_load(b + 128 + 32 * half + 16 * (part % 2));
        const int j = (int)(part / 2);
        int8_t *at = q + 128 * half + 16 * part;
        row_store(at, ((v & 15) | ((h >> 2 * j & 3) << 4)) - 32);
        row_store(at + 64, ((v >> 4) | ((h >> (2 * j + 4) & 3) << 4)) - 32);
    }
}

/* Two bits a value, 128 values in 32 bytes; with `third` a bit more and 4 less. */
static inline void row_two_bits(const uint8_t *b, const uint8_t *third, int8_t *q) {
    for (uint32_t i = 0; i < 4; i++) {
        const row_vec v = row_load(b + 16 * i);
        const row_vec h = third ? row_load(third + 16 * (i % 2)) : v;
        int8_t *at = q + 128 * (i / 2) + 16 * (i % 2);
        for (int j = 0; j < 4; j++) {
            const row_vec low = v >> 2 * j & 3;
            const int bit = 4 * (int)(i / 2) + j;
            row_store(at + 32 * j, third ? (low | ((h >> bit & 1) << 2)) - 4 : low);
        }
    }
}

static inline void row_q2_K_head(const uint8_t *b, int16_t *scale, int16_t *mins) {
    for (uint32_t s = 0; s < 16; s++) {
        scale[s] = b[s] & 15;
        mins[s] = b[s] >> 4;
    }
}

static inline void row_q3_K_head(const uint8_t *b, int16_t *scale) {
    for (uint32_t s = 0; s < 16; s++) {
        const int low = s < 8 ? b[s] & 15 : b[s - 8] >> 4;
        scale[s] = (int16_t)((low | (b[8 + s % 4] >> 2 * (s / 4) & 3) << 4) - 32);
    }
}

/* ---- grids ----------------------------------------------------------------------------------- */

/* Nibble k of packed bytes, low first, as 2 * nibble + 1. */
static inline int16_t row_odd(const uint8_t *b, uint32_t k) {
    return (int16_t)(2 * (k & 1 ? b[k / 2] >> 4 : b[k / 2] & 15) + 1);
}

static inline void row_iq2_xxs(const uint8_t *b, int8_t *q, int16_t *scale) {
    for (uint32_t g = 0; g < 8; g++) {
        const uint8_t *r = b + 2 + 8 * g, *s = rg_ksigns_iq2xs;
        const uint64_t *grid = rg_grid_iq2xxs;
        const uint32_t w = row_u32(r + 4);
        scale[2 * g] = scale[2 * g + 1] = (int16_t)(2 * (w >> 28) + 1);
        row_signed(q + 32 * g, grid[r[0]], grid[r[1]], s[w & 127], s[w >> 7 & 127]);
        row_signed(q + 32 * g + 16, grid[r[2]], grid[r[3]], s[w >> 14 & 127], s[w >> 21 & 127]);
    }
}

static inline void row_iq2_xs(const uint8_t *b, int8_t *q, int16_t *scale) {
    for (uint32_t s = 0; s < 16; s++) {
        const uint32_t w = row_u32(b + 2 + 4 * s), a = w & 0xFFFF, c = w >> 16;
        scale[s] = row_odd(b + 66, s);
        row_signed(q + 16 * s, rg_grid_iq2xs[a & 511], rg_grid_iq2xs[c & 511],
                   rg_ksigns_iq2xs[a >> 9], rg_ksigns_iq2xs[c >> 9]);
    }
}

static inline void row_iq2_s(const uint8_t *b, int8_t *q, int16_t *scale) {
    for (uint32_t s = 0; s < 16; s++) {
        const uint32_t high = (uint32_t)b[66 + s / 2] >> 4 * (s & 1);
        const uint32_t i0 = b[2 + 2 * s] | (high & 3) << 8;
        const uint32_t i1 = b[3 + 2 * s] | (high >> 2 & 3) << 8;
        scale[s] = row_odd(b + 74, s);
        row_signed(q + 16 * s, rg_grid_iq2s[i0], rg_grid_iq2s[i1], b[34 + 2 * s], b[35 + 2 * s]);
    }
}

static inline void row_iq3_xxs(const uint8_t *b, int8_t *q, int16_t *scale) {
    const uint32_t *grid = rg_grid_iq3xxs;
    for (uint32_t s = 0; s < 16; s++) {
        const uint8_t *i = b + 2 + 4 * s;
        const uint32_t w = row_u32(b + 66 + 4 * (s / 2)), codes = w >> 14 * (s & 1);
        scale[s] = (int16_t)(2 * (w >> 28) + 1);
        row_signed(q + 16 * s, grid[i[0]] | (uint64_t)grid[i[1]] << 32,
                   grid[i[2]] | (uint64_t)grid[i[3]] << 32, rg_ksigns_iq2xs[codes & 127],
                   rg_ksigns_iq2xs[codes >> 7 & 127]);
    }
}

static inline void row_iq3_s(const uint8_t *b, int8_t *q, int16_t *scale) {
    for (uint32_t s = 0; s < 16; s++) {
        const uint8_t *i = b + 2 + 4 * s;
        const uint32_t high = (uint32_t)b[66 + s / 2] >> 4 * (s & 1);
        uint64_t g[4];
        for (uint32_t k = 0; k < 4; k++)
            g[k] = rg_grid_iq3s[i[k] | (high >> k & 1) << 8];
        scale[s] = row_odd(b + 106, s / 2);
        row_signed(q + 16 * s, g[0] | g[1] << 32, g[2] | g[3] << 32, b[74 + 2 * s], b[75 + 2 * s]);
    }
}

/* Two ternary entries as 8 * value + shift. */
static inline void row_ternary(int8_t *q, uint32_t i0, uint32_t i1, int shift0, int shift1) {
    const uint64_t one = 0x0101010101010101u;
    const row_vec shift = row_of((uint8_t)shift0 * one, (uint8_t)shift1 * one);
    row_store(q, (row_of(rg_grid_iq1s[i0], rg_grid_iq1s[i1]) << 3) + shift);
}

static inline void row_iq1_s(const uint8_t *b, int8_t *q, int16_t *scale) {
    for (uint32_t s = 0; s < 16; s++) {
        const uint32_t w = row_u16(b + 34 + 2 * (s / 2)), high = w >> 6 * (s & 1);
        const int shift = w >> 15 ? -1 : 1;
        scale[s] = (int16_t)(2 * (w >> 12 & 7) + 1);
        row_ternary(q + 16 * s, b[2 + 2 * s] | (high & 7) << 8, b[3 + 2 * s] | (high >> 3 & 7) << 8,
                    shift, shift);
    }
}

static inline float row_iq1_m(const uint8_t *b, int8_t *q, int16_t *scale) {
    uint32_t bits = 0;
    for (uint32_t k = 0; k < 4; k++)
        bits |= (uint32_t)(row_u16(b + 48 + 2 * k) >> 12) << 4 * k;
    for (uint32_t s = 0; s < 16; s++) {
        const uint32_t h = b[32 + s];
        scale[s] = (int16_t)(2 * (row_u16(b + 48 + 2 * (s / 4)) >> 3 * (s % 4) & 7) + 1);
        row_ternary(q + 16 * s, b[2 * s] | (h & 7) << 8, b[2 * s + 1] | (h >> 4 & 7) << 8,
                    h & 8 ? -1 : 1, h & 128 ? -1 : 1);
    }
    return row_half((uint16_t)bits) * 0.125f;
}

static inline void row_iq4_xs(const uint8_t *b, int8_t *q, int16_t *scale) {
    const uint32_t high = row_u16(b + 2);
    for (uint32_t g = 0; g < 8; g++) {
        const int low = g & 1 ? b[4 + g / 2] >> 4 : b[4 + g / 2] & 15;
        scale[2 * g] = scale[2 * g + 1] = (int16_t)((low | (int)(high >> 2 * g & 3) << 4) - 32);
        row_nibbles_of(b + 8 + 16 * g, rg_kvalues_iq4nl, q + 32 * g);
    }
}

/* One flat list of formats. */
static inline bool row_unpack_256(rg_type type, const uint8_t *b, uint32_t n, row_codes *c) {
    const size_t bytes = rg_type_get(type)->block_bytes;
    c->span = 256;
    c->has_mins = type == RG_TYPE_Q2_K || type == RG_TYPE_Q4_K || type == RG_TYPE_Q5_K;
    for (uint32_t i = 0; i < n / 256; i++, b += bytes) {
        int8_t *q = c->q + 256 * (size_t)i;
        int16_t *scale = c->scale + 16 * (size_t)i, *mins = c->mins + 16 * (size_t)i;
        switch (type) {
        case RG_TYPE_Q2_K:
            c->d[i] = row_f16(b + 80), c->m[i] = -row_f16(b + 82);
            row_q2_K_head(b, scale, mins), row_two_bits(b + 16, NULL, q);
            break;
        case RG_TYPE_Q3_K:
            c->d[i] = row_f16(b + 108);
            row_q3_K_head(b + 96, scale), row_two_bits(b + 32, b, q);
            break;
        case RG_TYPE_Q4_K:
            row_pairs(b, c->d + i, c->m + i, scale, mins), row_q4_K(b, q);
            break;
        case RG_TYPE_Q5_K:
            row_pairs(b, c->d + i, c->m + i, scale, mins), row_q5_K(b, q);
            break;
        case RG_TYPE_Q6_K:
            c->d[i] = row_f16(b + 208), row_q6_K(b, q);
            for (uint32_t s = 0; s < 16; s++)
                scale[s] = (int8_t)b[192 + s];
            break;
        case RG_TYPE_IQ1_S:
            c->d[i] = row_f16(b) * 0.125f, row_iq1_s(b, q, scale);
            break;
        case RG_TYPE_IQ1_M:
            c->d[i] = row_iq1_m(b, q, scale);
            break;
        case RG_TYPE_IQ2_XXS:
            c->d[i] = row_f16(b) * 0.125f, row_iq2_xxs(b, q, scale);
            break;
        case RG_TYPE_IQ2_XS:
            c->d[i] = row_f16(b) * 0.125f, row_iq2_xs(b, q, scale);
            break;
        case RG_TYPE_IQ2_S:
            c->d[i] = row_f16(b) * 0.125f, row_iq2_s(b, q, scale);
            break;
        case RG_TYPE_IQ3_XXS:
            c->d[i] = row_f16(b) * 0.25f, row_iq3_xxs(b, q, scale);
            break;
        case RG_TYPE_IQ3_S:
            c->d[i] = row_f16(b), row_iq3_s(b, q, scale);
            break;
        case RG_TYPE_IQ4_XS:
            c->d[i] = row_f16(b), row_iq4_xs(b, q, scale);
            break;
        default:
            return false;
        }
    }
    return true;
}

/* A row of any format that has a form here; false: none. */
static inline bool row_unpack(rg_type type, const uint8_t *row, uint32_t n, row_codes *c) {
    return rg_type_get(type)->block_elems == 256 ? row_unpack_256(type, row, n, c)
                                                 : row_unpack_32(type, row, n, c);
}

/* Arrays of a row of n values in scratch as rg_mul_scratch_bytes sizes it. */
static inline row_codes row_codes_in(void *scratch, uint32_t n) {
    row_codes c = {.q = scratch};
    c.scale = (int16_t *)(void *)(c.q + (n + 63) / 64 * 64);
    c.mins = c.scale + n / 16;
    c.d = (float *)(void *)(c.mins + n / 16);
    c.m = c.d + n / 32;
    return c;
}

#endif
