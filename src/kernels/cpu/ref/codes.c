/* Quantised weight rows to integers: each code times its sub-scale as int16, exact for every format
 * (the largest product is 32 * 128, of q6_K), so that the block sum of products with 8-bit
 * activations is one plain integer dot. Formats: GGUF block definitions (quant.h, rg_unpack_row);
 * constant factors that are powers of two (1/8 of the IQ2 and IQ1 grids, 1/4 of IQ3_XXS) go into
 * the block scale, exactly.
 */
#include "kernels/cpu/levels.h"
#include "kernels/cpu/ref/math_inline.h"

static uint16_t u16_at(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint32_t u32_at(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static float f16_at(const uint8_t *p) {
    return rg_f16_to_f32(u16_at(p));
}

/* ---- 32-value blocks ---------------------------------------------------------------------------
 */

/* Low nibbles are the first 16 values, high nibbles the rest; `bias` is subtracted. */
static void nibbles_32(const uint8_t *b, int16_t *q, int bias) {
    for (int j = 0; j < 16; j++) {
        q[j] = (int16_t)((b[j] & 15) - bias);
        q[j + 16] = (int16_t)((b[j] >> 4) - bias);
    }
}

static void five_bits_32(const uint8_t *nib, uint32_t high, int16_t *q, int bias) {
    for (int j = 0; j < 16; j++) {
        q[j] = (int16_t)(((nib[j] & 15) | (int)(high >> j & 1) << 4) - bias);
        q[j + 16] = (int16_t)(((nib[j] >> 4) | (int)(high >> (j + 16) & 1) << 4) - bias);
    }
}

static void table_32(const uint8_t *b, const int8_t table[16], int scale, int16_t *q) {
    for (int j = 0; j < 16; j++) {
        q[j] = (int16_t)(table[b[j] & 15] * scale);
        q[j + 16] = (int16_t)(table[b[j] >> 4] * scale);
    }
}

static void mins_32(rg_codes *c, uint32_t block, float m) {
    c->m[block] = m;
    c->mins[2 * block] = 1;
    c->mins[2 * block + 1] = 1;
}

static void row_q4_0(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 32; i++, b += 18) {
        c->d[i] = f16_at(b);
        nibbles_32(b + 2, c->q + 32 * i, 8);
    }
}

static void row_q4_1(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 32; i++, b += 20) {
        c->d[i] = f16_at(b);
        nibbles_32(b + 4, c->q + 32 * i, 0);
        mins_32(c, i, f16_at(b + 2));
    }
}

static void row_q5_0(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 32; i++, b += 22) {
        c->d[i] = f16_at(b);
        five_bits_32(b + 6, u32_at(b + 2), c->q + 32 * i, 16);
    }
}

static void row_q5_1(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 32; i++, b += 24) {
        c->d[i] = f16_at(b);
        five_bits_32(b + 8, u32_at(b + 4), c->q + 32 * i, 0);
        mins_32(c, i, f16_at(b + 2));
    }
}

static void row_q8_0(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 32; i++, b += 34) {
        c->d[i] = f16_at(b);
        int16_t *restrict q = c->q + 32 * i;
        for (int j = 0; j < 32; j++)
            q[j] = (int8_t)b[2 + j];
    }
}

static void row_iq4_nl(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 32; i++, b += 18) {
        c->d[i] = f16_at(b);
        table_32(b + 2, rg_kvalues_iq4nl, 1, c->q + 32 * i);
    }
}

/* 2^(e-128): subnormal for e = 0 and 1. */
static float e8m0_half(uint8_t e) {
    return rg_bits_f32(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

static void row_mxfp4(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 32; i++, b += 17) {
        c->d[i] = e8m0_half(b[0]);
        table_32(b + 1, rg_kvalues_mxfp4, 1, c->q + 32 * i);
    }
}

/* Half of the UE4M3 number; 0 for codes 0 and 0x7F; bit 7 is ignored otherwise. */
static float ue4m3_half(uint8_t b) {
    if (b == 0 || b == 0x7F) return 0.0f;
    const int e = (b >> 3) & 15, m = b & 7;
    if (e == 0) return (float)m * 0x1p-10f;
    return (float)(8 + m) * rg_pow2i((float)(e - 11));
}

static void row_nvfp4(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 16; i += 4, b += 36) {
        for (uint32_t s = 0; s < 4; s++) {
            int16_t *q = c->q + 16 * (i + s);
            c->d[i + s] = ue4m3_half(b[s]);
            for (uint32_t j = 0; j < 8; j++) {
                q[j] = rg_kvalues_mxfp4[b[4 + 8 * s + j] & 15];
                q[j + 8] = rg_kvalues_mxfp4[b[4 + 8 * s + j] >> 4];
            }
        }
    }
}

/* ---- few-bit blocks over several activation blocks ------------------------------------------ */

static void row_q1_0(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n; i += 128, b += 18) {
        for (uint32_t k = 0; k < 4; k++)
            c->d[i / 32 + k] = f16_at(b);
        for (uint32_t j = 0; j < 128; j++)
            c->q[i + j] = b[2 + j / 8] >> j % 8 & 1 ? 1 : -1;
    }
}

static void row_q2_0(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n; i += 64, b += 18) {
        c->d[i / 32] = c->d[i / 32 + 1] = f16_at(b);
        for (uint32_t j = 0; j < 64; j++) {
            c->q[i + j] = (int16_t)((b[2 + j / 4] >> 2 * (j % 4) & 3) - 1);
        }
    }
}

static void row_tq2_0(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n; i += 256, b += 66) {
        c->d[i / 256] = f16_at(b + 64);
        for (uint32_t e = 0; e < 256; e++) {
            c->q[i + e] = (int16_t)((b[32 * (e / 128) + e % 32] >> 2 * (e / 32 % 4) & 3) - 1);
        }
    }
}

/* Digit n of a byte that holds base-3 digits as a fixed-point fraction. */
static int16_t ternary_digit(uint8_t byte, uint32_t n) {
    static const uint8_t pow3[5] = {1, 3, 9, 27, 81};
    const uint8_t t = (uint8_t)(byte * pow3[n]);
    return (int16_t)((3 * t >> 8) - 1);
}

static void row_tq1_0(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n; i += 256, b += 54) {
        int16_t *q = c->q + i;
        c->d[i / 256] = f16_at(b + 52);
        for (uint32_t e = 0; e < 160; e++)
            q[e] = ternary_digit(b[e % 32], e / 32);
        for (uint32_t e = 0; e < 80; e++)
            q[160 + e] = ternary_digit(b[32 + e % 16], e / 16);
        for (uint32_t e = 0; e < 16; e++)
            q[240 + e] = ternary_digit(b[48 + e % 4], e / 4);
    }
}

/* ---- K-quants ------------------------------------------------------------------------------- */

/* Twelve bytes hold eight 6-bit (scale, min) pairs. */
static void pairs_6bit(const uint8_t *s, int sc[8], int mn[8]) {
    for (int i = 0; i < 4; i++) {
        sc[i] = s[i] & 63;
        mn[i] = s[i + 4] & 63;
        sc[i + 4] = (s[i + 8] & 15) | (s[i] >> 6) << 4;
        mn[i + 4] = (s[i + 8] >> 4) | (s[i + 4] >> 6) << 4;
    }
}

static void pair_mins(rg_codes *c, uint32_t block, const int mn[8], float dmin) {
    c->m[block] = -dmin;
    for (uint32_t s = 0; s < 16; s++)
        c->mins[16 * block + s] = (int16_t)mn[s / 2];
}

static void row_q2_K(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 256; i++, b += 84) {
        c->d[i] = f16_at(b + 80);
        c->m[i] = -f16_at(b + 82);
        for (uint32_t s = 0; s < 16; s++)
            c->mins[16 * i + s] = b[s] >> 4;
        for (uint32_t e = 0; e < 256; e++) {
            const int code = b[16 + 32 * (e / 128) + e % 32] >> 2 * (e / 32 % 4) & 3;
            c->q[256 * i + e] = (int16_t)(code * (b[e / 16] & 15));
        }
    }
}

static void row_q3_K(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 256; i++, b += 110) {
        const uint8_t *sb = b + 96;
        int sc[16];
        for (int s = 0; s < 16; s++) {
            const int low = s < 8 ? sb[s] & 15 : sb[s - 8] >> 4;
            sc[s] = (low | (sb[8 + s % 4] >> 2 * (s / 4) & 3) << 4) - 32;
        }
        c->d[i] = f16_at(b + 108);
        for (uint32_t e = 0; e < 256; e++) {
            const int low = b[32 + 32 * (e / 128) + e % 32] >> 2 * (e / 32 % 4) & 3;
            const int high = b[e % 32] >> e / 32 & 1;
            c->q[256 * i + e] = (int16_t)((low + 4 * high - 4) * sc[e / 16]);
        }
    }
}

static void row_q4_K(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 256; i++, b += 144) {
        int sc[8], mn[8];
        pairs_6bit(b + 4, sc, mn);
        c->d[i] = f16_at(b);
        pair_mins(c, i, mn, f16_at(b + 2));
        for (uint32_t g = 0; g < 8; g++) {
            const uint8_t *restrict qs = b + 16 + 32 * (g / 2);
            int16_t *restrict q = c->q + 256 * i + 32 * g;
            for (int l = 0; l < 32; l++)
                q[l] = (int16_t)((qs[l] >> 4 * (g & 1) & 15) * sc[g]);
        }
    }
}

static void row_q5_K(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 256; i++, b += 176) {
        int sc[8], mn[8];
        pairs_6bit(b + 4, sc, mn);
        c->d[i] = f16_at(b);
        pair_mins(c, i, mn, f16_at(b + 2));
        for (uint32_t g = 0; g < 8; g++) {
            const uint8_t *restrict qh = b + 16, *restrict qs = b + 48 + 32 * (g / 2);
            int16_t *restrict q = c->q + 256 * i + 32 * g;
            for (int l = 0; l < 32; l++) {
                const int code = (qs[l] >> 4 * (g & 1) & 15) | (qh[l] >> g & 1) << 4;
                q[l] = (int16_t)(code * sc[g]);
            }
        }
    }
}

static void row_q6_K(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 256; i++, b += 210) {
        const int8_t *sc = (const int8_t *)(b + 192);
        c->d[i] = f16_at(b + 208);
        for (uint32_t g = 0; g < 8; g++) {
            const uint32_t half = g / 4, j = g % 4;
            const uint8_t *restrict ql = b + 64 * half + 32 * (j & 1);
            const uint8_t *restrict qh = b + 128 + 32 * half;
            int16_t *restrict q = c->q + 256 * i + 32 * g;
            for (int l = 0; l < 32; l++) {
                const int low = ql[l] >> 4 * (j >> 1) & 15, top = qh[l] >> 2 * j & 3;
                q[l] = (int16_t)(((low | top << 4) - 32) * sc[2 * g + (uint32_t)l / 16]);
            }
        }
    }
}

/* ---- grids ---------------------------------------------------------------------------------- */

/* Eight values of a grid entry with the signs of mask bits, times s. */
static void grid_8(uint64_t entry, uint32_t mask, int s, int16_t *q) {
    for (int j = 0; j < 8; j++) {
        const int v = (int)(entry >> 8 * j & 255) * s;
        q[j] = (int16_t)(mask >> j & 1 ? -v : v);
    }
}

static void grid_4(uint32_t entry, uint32_t mask, int s, int16_t *q) {
    for (int j = 0; j < 4; j++) {
        const int v = (int)(entry >> 8 * j & 255) * s;
        q[j] = (int16_t)(mask >> j & 1 ? -v : v);
    }
}

/* Nibble k of packed bytes, low first, as 2 * nibble + 1. */
static int odd_scale(const uint8_t *sc, uint32_t k) {
    return 2 * (k & 1 ? sc[k / 2] >> 4 : sc[k / 2] & 15) + 1;
}

static void row_iq2_xxs(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 256; i++, b += 66) {
        c->d[i] = f16_at(b) * 0.125f;
        for (uint32_t g = 0; g < 8; g++) {
            const uint8_t *rec = b + 2 + 8 * g;
            const uint32_t w = u32_at(rec + 4);
            const int s = 2 * (int)(w >> 28) + 1;
            for (uint32_t l = 0; l < 4; l++) {
                grid_8(rg_grid_iq2xxs[rec[l]], rg_ksigns_iq2xs[w >> 7 * l & 127], s,
                       c->q + 256 * i + 32 * g + 8 * l);
            }
        }
    }
}

static void row_iq2_xs(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 256; i++, b += 74) {
        c->d[i] = f16_at(b) * 0.125f;
        for (uint32_t e = 0; e < 32; e++) {
            const uint32_t v = u16_at(b + 2 + 2 * e);
            grid_8(rg_grid_iq2xs[v & 511], rg_ksigns_iq2xs[v >> 9], odd_scale(b + 66, e / 2),
                   c->q + 256 * i + 8 * e);
        }
    }
}

static void row_iq2_s(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 256; i++, b += 82) {
        c->d[i] = f16_at(b) * 0.125f;
        for (uint32_t e = 0; e < 32; e++) {
            const uint32_t index = b[2 + e] | (uint32_t)(b[66 + e / 4] >> 2 * (e % 4) & 3) << 8;
            grid_8(rg_grid_iq2s[index], b[34 + e], odd_scale(b + 74, e / 2),
                   c->q + 256 * i + 8 * e);
        }
    }
}

static void row_iq3_xxs(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 256; i++, b += 98) {
        c->d[i] = f16_at(b) * 0.25f;
        for (uint32_t e = 0; e < 64; e++) {
            const uint32_t w = u32_at(b + 66 + 4 * (e / 8));
            const uint32_t mask = rg_ksigns_iq2xs[w >> 7 * (e / 2 % 4) & 127];
            grid_4(rg_grid_iq3xxs[b[2 + e]], mask >> 4 * (e & 1), 2 * (int)(w >> 28) + 1,
                   c->q + 256 * i + 4 * e);
        }
    }
}

static void row_iq3_s(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 256; i++, b += 110) {
        c->d[i] = f16_at(b);
        for (uint32_t e = 0; e < 64; e++) {
            const uint32_t index = b[2 + e] | (uint32_t)(b[66 + e / 8] >> e % 8 & 1) << 8;
            const uint32_t mask = b[74 + e / 2] >> 4 * (e & 1);
            grid_4(rg_grid_iq3s[index], mask, odd_scale(b + 106, e / 8), c->q + 256 * i + 4 * e);
        }
    }
}

/* Grid -1, 0, +1 with a shift of one eighth: 8 * value +- 1, the eighth in the block scale. */
static void grid_ternary(uint64_t entry, int delta, int s, int16_t *q) {
    for (int j = 0; j < 8; j++) {
        q[j] = (int16_t)((8 * (int8_t)(entry >> 8 * j & 255) + delta) * s);
    }
}

static void row_iq1_s(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 256; i++, b += 50) {
        c->d[i] = f16_at(b) * 0.125f;
        for (uint32_t e = 0; e < 32; e++) {
            const uint32_t w = u16_at(b + 34 + 2 * (e / 4));
            const uint32_t index = b[2 + e] | (w >> 3 * (e % 4) & 7) << 8;
            grid_ternary(rg_grid_iq1s[index], w >> 15 ? -1 : 1, 2 * (int)(w >> 12 & 7) + 1,
                         c->q + 256 * i + 8 * e);
        }
    }
}

static void row_iq1_m(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 256; i++, b += 56) {
        uint32_t v[4], bits = 0;
        for (uint32_t k = 0; k < 4; k++) {
            v[k] = u16_at(b + 48 + 2 * k);
            bits |= (v[k] >> 12) << 4 * k;
        }
        c->d[i] = rg_f16_to_f32((uint16_t)bits) * 0.125f;
        for (uint32_t e = 0; e < 32; e++) {
            const uint32_t s = e / 2;
            const uint32_t nibble = e & 1 ? b[32 + s] >> 4 : b[32 + s] & 15;
            const int scale = 2 * (int)(v[s / 4] >> 3 * (s % 4) & 7) + 1;
            grid_ternary(rg_grid_iq1s[b[e] | (nibble & 7) << 8], nibble & 8 ? -1 : 1, scale,
                         c->q + 256 * i + 8 * e);
        }
    }
}

static void row_iq4_xs(const uint8_t *b, uint32_t n, rg_codes *c) {
    for (uint32_t i = 0; i < n / 256; i++, b += 136) {
        const uint32_t high = u16_at(b + 2);
        c->d[i] = f16_at(b);
        for (uint32_t g = 0; g < 8; g++) {
            const int low = g & 1 ? b[4 + g / 2] >> 4 : b[4 + g / 2] & 15;
            const int sc = (low | (int)(high >> 2 * g & 3) << 4) - 32;
            table_32(b + 8 + 16 * g, rg_kvalues_iq4nl, sc, c->q + 256 * i + 32 * g);
        }
    }
}

/* One flat dispatch over the formats. */
void RG_OP(codes_unpack)(rg_type type, const uint8_t *row, uint32_t n, rg_codes *c) {
    c->span = rg_type_get(type)->block_elems == 256 ? 256 : 32;
    c->has_mins = false;
    switch (type) {
    case RG_TYPE_Q4_0:
        row_q4_0(row, n, c);
        break;
    case RG_TYPE_Q4_1:
        row_q4_1(row, n, c), c->has_mins = true;
        break;
    case RG_TYPE_Q5_0:
        row_q5_0(row, n, c);
        break;
    case RG_TYPE_Q5_1:
        row_q5_1(row, n, c), c->has_mins = true;
        break;
    case RG_TYPE_Q8_0:
        row_q8_0(row, n, c);
        break;
    case RG_TYPE_IQ4_NL:
        row_iq4_nl(row, n, c);
        break;
    case RG_TYPE_MXFP4:
        row_mxfp4(row, n, c);
        break;
    case RG_TYPE_NVFP4:
        row_nvfp4(row, n, c), c->span = 16;
        break;
    case RG_TYPE_Q1_0:
        row_q1_0(row, n, c);
        break;
    case RG_TYPE_Q2_0:
        row_q2_0(row, n, c);
        break;
    case RG_TYPE_TQ1_0:
        row_tq1_0(row, n, c);
        break;
    case RG_TYPE_TQ2_0:
        row_tq2_0(row, n, c);
        break;
    case RG_TYPE_Q2_K:
        row_q2_K(row, n, c), c->has_mins = true;
        break;
    case RG_TYPE_Q3_K:
        row_q3_K(row, n, c);
        break;
    case RG_TYPE_Q4_K:
        row_q4_K(row, n, c), c->has_mins = true;
        break;
    case RG_TYPE_Q5_K:
        row_q5_K(row, n, c), c->has_mins = true;
        break;
    case RG_TYPE_Q6_K:
        row_q6_K(row, n, c);
        break;
    case RG_TYPE_IQ2_XXS:
        row_iq2_xxs(row, n, c);
        break;
    case RG_TYPE_IQ2_XS:
        row_iq2_xs(row, n, c);
        break;
    case RG_TYPE_IQ2_S:
        row_iq2_s(row, n, c);
        break;
    case RG_TYPE_IQ3_XXS:
        row_iq3_xxs(row, n, c);
        break;
    case RG_TYPE_IQ3_S:
        row_iq3_s(row, n, c);
        break;
    case RG_TYPE_IQ1_S:
        row_iq1_s(row, n, c);
        break;
    case RG_TYPE_IQ1_M:
        row_iq1_m(row, n, c);
        break;
    case RG_TYPE_IQ4_XS:
        row_iq4_xs(row, n, c);
        break;
    default:
        RG_ASSERT(!"a type that the model check lets through");
    }
}
