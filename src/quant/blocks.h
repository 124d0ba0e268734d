/* Layouts of the stored block formats, field for field as they lie in a file.
 *
 * Every member is a byte array, so a block has alignment 1 and no padding: any address may be read
 * as a block. Multi-byte fields go through rg_load_u16/rg_load_u32. Included by quant/quant.h.
 */
#ifndef RG_QUANT_BLOCKS_H
#define RG_QUANT_BLOCKS_H

#include <stdint.h>
#include <string.h>

/* Little-endian fields of a block; only little-endian machines are supported. */
static inline uint16_t rg_load_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint32_t rg_load_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Fields named `d`, `dmin` and `m` are f16 unless said otherwise. q8_0 is in quant.h. */

/* ---- 32 elements: low nibbles are the first half of a block, high nibbles the second ----------
 */

typedef struct rg_block_q4_0 {
    uint8_t d[2];
    uint8_t qs[16];
} rg_block_q4_0;
_Static_assert(sizeof(rg_block_q4_0) == 18, "q4_0 block");

typedef struct rg_block_q4_1 {
    uint8_t d[2];
    uint8_t m[2];
    uint8_t qs[16];
} rg_block_q4_1;
_Static_assert(sizeof(rg_block_q4_1) == 20, "q4_1 block");

typedef struct rg_block_q5_0 {
    uint8_t d[2];
    uint8_t qh[4]; /* u32, bit i is the fifth bit of element i */
    uint8_t qs[16];
} rg_block_q5_0;
_Static_assert(sizeof(rg_block_q5_0) == 22, "q5_0 block");

typedef struct rg_block_q5_1 {
    uint8_t d[2];
    uint8_t m[2];
    uint8_t qh[4];
    uint8_t qs[16];
} rg_block_q5_1;
_Static_assert(sizeof(rg_block_q5_1) == 24, "q5_1 block");

typedef struct rg_block_iq4_nl {
    uint8_t d[2];
    uint8_t qs[16];
} rg_block_iq4_nl;
_Static_assert(sizeof(rg_block_iq4_nl) == 18, "iq4_nl block");

typedef struct rg_block_mxfp4 {
    uint8_t e; /* E8M0 */
    uint8_t qs[16];
} rg_block_mxfp4;
_Static_assert(sizeof(rg_block_mxfp4) == 17, "mxfp4 block");

/* ---- 64 and 128 elements -----------------------------------------------------------------------
 */

typedef struct rg_block_nvfp4 {
    uint8_t d[4]; /* UE4M3, one per 16 elements */
    uint8_t qs[32];
} rg_block_nvfp4;
_Static_assert(sizeof(rg_block_nvfp4) == 36, "nvfp4 block");

typedef struct rg_block_q2_0 {
    uint8_t d[2];
    uint8_t qs[16];
} rg_block_q2_0;
_Static_assert(sizeof(rg_block_q2_0) == 18, "q2_0 block");

typedef struct rg_block_q1_0 {
    uint8_t d[2];
    uint8_t qs[16];
} rg_block_q1_0;
_Static_assert(sizeof(rg_block_q1_0) == 18, "q1_0 block");

/* ---- 256 elements ------------------------------------------------------------------------------
 */

typedef struct rg_block_q2_K {
    uint8_t scales[16]; /* low nibble scale, high nibble min, one per 16 elements */
    uint8_t qs[64];
    uint8_t d[2];
    uint8_t dmin[2];
} rg_block_q2_K;
_Static_assert(sizeof(rg_block_q2_K) == 84, "q2_K block");

typedef struct rg_block_q3_K {
    uint8_t hmask[32]; /* third bit of the codes */
    uint8_t qs[64];
    uint8_t scales[12]; /* sixteen packed 6-bit scales */
    uint8_t d[2];
} rg_block_q3_K;
_Static_assert(sizeof(rg_block_q3_K) == 110, "q3_K block");

typedef struct rg_block_q4_K {
    uint8_t d[2];
    uint8_t dmin[2];
    uint8_t scales[12]; /* eight packed 6-bit pairs (scale, min) */
    uint8_t qs[128];
} rg_block_q4_K;
_Static_assert(sizeof(rg_block_q4_K) == 144, "q4_K block");

typedef struct rg_block_q5_K {
    uint8_t d[2];
    uint8_t dmin[2];
    uint8_t scales[12];
    uint8_t qh[32]; /* bit g of byte l: fifth bit of element 32g + l */
    uint8_t qs[128];
} rg_block_q5_K;
_Static_assert(sizeof(rg_block_q5_K) == 176, "q5_K block");

typedef struct rg_block_q6_K {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint8_t d[2];
} rg_block_q6_K;
_Static_assert(sizeof(rg_block_q6_K) == 210, "q6_K block");

typedef struct rg_block_iq2_xxs {
    uint8_t d[2];
    uint8_t qs[64]; /* eight records of 4 grid indices and a u32: 4 x 7-bit signs, 4-bit scale */
} rg_block_iq2_xxs;
_Static_assert(sizeof(rg_block_iq2_xxs) == 66, "iq2_xxs block");

typedef struct rg_block_iq2_xs {
    uint8_t d[2];
    uint8_t qs[64]; /* 32 x u16: 9-bit grid index, 7-bit signs */
    uint8_t scales[8];
} rg_block_iq2_xs;
_Static_assert(sizeof(rg_block_iq2_xs) == 74, "iq2_xs block");

typedef struct rg_block_iq2_s {
    uint8_t d[2];
    uint8_t qs[32]; /* low 8 bits of the grid indices */
    uint8_t signs[32];
    uint8_t qh[8]; /* upper 2 bits */
    uint8_t scales[8];
} rg_block_iq2_s;
_Static_assert(sizeof(rg_block_iq2_s) == 82, "iq2_s block");

typedef struct rg_block_iq3_xxs {
    uint8_t d[2];
    uint8_t qs[64];
    uint8_t signs_scales[32]; /* 8 x u32: 4 x 7-bit signs, 4-bit scale */
} rg_block_iq3_xxs;
_Static_assert(sizeof(rg_block_iq3_xxs) == 98, "iq3_xxs block");

typedef struct rg_block_iq3_s {
    uint8_t d[2];
    uint8_t qs[64];
    uint8_t qh[8]; /* ninth bit of the grid indices */
    uint8_t signs[32];
    uint8_t scales[4];
} rg_block_iq3_s;
_Static_assert(sizeof(rg_block_iq3_s) == 110, "iq3_s block");

typedef struct rg_block_iq1_s {
    uint8_t d[2];
    uint8_t qs[32];
    uint8_t qh[16]; /* 8 x u16: 4 x 3 upper index bits, 3-bit scale, sign of delta */
} rg_block_iq1_s;
_Static_assert(sizeof(rg_block_iq1_s) == 50, "iq1_s block");

typedef struct rg_block_iq1_m {
    uint8_t qs[32];
    uint8_t qh[16];    /* nibbles: 3 upper index bits, sign of delta */
    uint8_t scales[8]; /* 4 x u16: 4 x 3-bit scale, one nibble of the f16 d */
} rg_block_iq1_m;
_Static_assert(sizeof(rg_block_iq1_m) == 56, "iq1_m block");

typedef struct rg_block_iq4_xs {
    uint8_t d[2];
    uint8_t scales_h[2]; /* u16 */
    uint8_t scales_l[4];
    uint8_t qs[128];
} rg_block_iq4_xs;
_Static_assert(sizeof(rg_block_iq4_xs) == 136, "iq4_xs block");

typedef struct rg_block_tq1_0 {
    uint8_t qs[48]; /* five base-3 digits a byte */
    uint8_t qh[4];  /* four */
    uint8_t d[2];
} rg_block_tq1_0;
_Static_assert(sizeof(rg_block_tq1_0) == 54, "tq1_0 block");

typedef struct rg_block_tq2_0 {
    uint8_t qs[64];
    uint8_t d[2];
} rg_block_tq2_0;
_Static_assert(sizeof(rg_block_tq2_0) == 66, "tq2_0 block");

/* The f16 scale bits of iq1_m, scattered over the top nibbles of its four scale words. */
static inline uint16_t rg_iq1_m_d(const rg_block_iq1_m *b) {
    unsigned bits = 0;
    for (unsigned k = 0; k < 4; k++) {
        bits |= (unsigned)(rg_load_u16(b->scales + (size_t)2 * k) >> 12) << (4 * k);
    }
    return (uint16_t)bits;
}

/* Eight 6-bit pairs (scale, min) of q4_K and q5_K, packed in 12 bytes. */
static inline void rg_unpack_scales_q4_K(const uint8_t packed[12], uint8_t sc[8], uint8_t mn[8]) {
    for (unsigned s = 0; s < 4; s++) {
        sc[s] = packed[s] & 63;
        mn[s] = packed[s + 4] & 63;
        sc[s + 4] = (uint8_t)((packed[s + 8] & 15) | (packed[s] >> 6) << 4);
        mn[s + 4] = (uint8_t)((packed[s + 8] >> 4) | (packed[s + 4] >> 6) << 4);
    }
}

/* Sixteen signed 6-bit scales of q3_K, packed in 12 bytes. */
static inline void rg_unpack_scales_q3_K(const uint8_t packed[12], int8_t sc[16]) {
    for (unsigned s = 0; s < 16; s++) {
        const unsigned pair = packed[s % 8];
        const unsigned low = s < 8 ? pair & 15 : pair >> 4;
        const unsigned top = ((unsigned)packed[8 + s % 4] >> (2 * (s / 4))) & 3u;
        sc[s] = (int8_t)((int)(low | top << 4) - 32);
    }
}

#endif
