/* Super-blocks of 256 elements with integer sub-scales: q2_K to q6_K (GGUF block formats). Pure
 * functions, any thread.
 *
 * Element order: i = 128 n + 32 j + l where 2-bit codes are cut from bytes, j choosing the bits;
 * i = 64 c + 32 p + l where nibbles are, p choosing the half.
 */
#include "quant/unpack.h"

void rg_unpack_q2_K(const void *block, float *x) {
    const rg_block_q2_K *b = block;
    const float d = load_f16(b->d);
    const float dmin = load_f16(b->dmin);
    for (unsigned s = 0; s < 16; s++) {
        const float scale = d * (float)(b->scales[s] & 15);
        const float min = dmin * (float)(b->scales[s] >> 4);
        const uint8_t *qs = b->qs + 32 * (s / 8) + 16 * (s % 2);
        const unsigned shift = 2 * (s / 2 % 4);
        for (unsigned l = 0; l < 16; l++) {
            x[16 * s + l] = scale * (float)((qs[l] >> shift) & 3) - min;
        }
    }
}

void rg_unpack_q3_K(const void *block, float *x) {
    const rg_block_q3_K *b = block;
    const float d = load_f16(b->d);
    int8_t sc[16];
    rg_unpack_scales_q3_K(b->scales, sc);
    for (unsigned s = 0; s < 16; s++) {
        const float scale = d * (float)sc[s];
        const uint8_t *qs = b->qs + 32 * (s / 8) + 16 * (s % 2);
        const uint8_t *hmask = b->hmask + 16 * (s % 2);
        const unsigned shift = 2 * (s / 2 % 4);
        for (unsigned l = 0; l < 16; l++) {
            const int low = (qs[l] >> shift) & 3;
            const int high = (hmask[l] >> (s / 2)) & 1;
            x[16 * s + l] = scale * (float)(low + 4 * high - 4);
        }
    }
}

void rg_unpack_q4_K(const void *block, float *x) {
    const rg_block_q4_K *b = block;
    const float d = load_f16(b->d);
    const float dmin = load_f16(b->dmin);
    uint8_t sc[8], mn[8];
    rg_unpack_scales_q4_K(b->scales, sc, mn);
    for (unsigned g = 0; g < 8; g++) {
        const float scale = d * (float)sc[g];
        const float min = dmin * (float)mn[g];
        const uint8_t *qs = b->qs + 32 * (g / 2);
        const unsigned shift = 4 * (g % 2);
        for (unsigned l = 0; l < 32; l++) {
            x[32 * g + l] = scale * (float)((qs[l] >> shift) & 15) - min;
        }
    }
}

void rg_unpack_q5_K(const void *block, float *x) {
    const rg_block_q5_K *b = block;
    const float d = load_f16(b->d);
    const float dmin = load_f16(b->dmin);
    uint8_t sc[8], mn[8];
    rg_unpack_scales_q4_K(b->scales, sc, mn);
    for (unsigned g = 0; g < 8; g++) {
        const float scale = d * (float)sc[g];
        const float min = dmin * (float)mn[g];
        const uint8_t *qs = b->qs + 32 * (g / 2);
        const unsigned shift = 4 * (g % 2);
        for (unsigned l = 0; l < 32; l++) {
            const int q = ((qs[l] >> shift) & 15) | ((b->qh[l] >> g) & 1) << 4;
            x[32 * g + l] = scale * (float)q - min;
        }
    }
}

void rg_unpack_q6_K(const void *block, float *x) {
    const rg_block_q6_K *b = block;
    const float d = load_f16(b->d);
    for (unsigned g = 0; g < 8; g++) {
        const unsigned n = g / 4, j = g % 4;
        const uint8_t *ql = b->ql + 64 * n + 32 * (j & 1);
        const uint8_t *qh = b->qh + 32 * n;
        for (unsigned l = 0; l < 32; l++) {
            const int low = (ql[l] >> (4 * (j >> 1))) & 15;
            const int top = (qh[l] >> (2 * j)) & 3;
            const float scale = d * (float)b->scales[2 * g + l / 16];
            x[32 * g + l] = scale * (float)((low | top << 4) - 32);
        }
    }
}
