/* Codebook formats of 256 elements: a grid index stands for 8 (or 4) magnitudes, signs lie beside
 * it (GGUF block formats iq1_s, iq1_m, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s). Pure functions, any
 * thread.
 *
 * Every index is as wide as its grid is long, so no bytes of a block can reach beyond a table.
 */
#include "quant/unpack.h"

/* Eight elements of an 8-byte grid entry; bit j of `signs` negates element j. */
static void put_grid8(float *x, float scale, uint64_t entry, unsigned signs) {
    for (unsigned j = 0; j < 8; j++) {
        const int magnitude = (int)((entry >> (8 * j)) & 255);
        x[j] = scale * (float)((signs >> j) & 1 ? -magnitude : magnitude);
    }
}

/* The same from two 4-byte entries, the first one for elements 0..3. */
static void put_grid4x2(float *x, float scale, uint32_t first, uint32_t second, unsigned signs) {
    put_grid8(x, scale, first | (uint64_t)second << 32, signs);
}

/* Eight elements of the ternary grid (signed bytes -1, 0, 1), shifted by `delta`. */
static void put_ternary8(float *x, float scale, uint64_t entry, float delta) {
    for (unsigned j = 0; j < 8; j++) {
        const int level = (int8_t)((entry >> (8 * j)) & 255);
        x[j] = scale * ((float)level + delta);
    }
}

/* Nibble `i` of an array, low nibble of each byte first. */
static unsigned nibble(const uint8_t *p, unsigned i) {
    return ((unsigned)p[i / 2] >> (4 * (i % 2))) & 15u;
}

/* Scale of the iq2 formats from a 4-bit code. */
static float scale_iq2(float d, unsigned code) {
    return d * ((float)code + 0.5f) * 0.25f;
}

void rg_unpack_iq2_xxs(const void *block, float *x) {
    const rg_block_iq2_xxs *b = block;
    const float d = load_f16(b->d);
    for (unsigned g = 0; g < 8; g++) {
        const uint8_t *index = b->qs + 8 * g;
        const uint32_t word = rg_load_u32(index + 4);
        const float scale = scale_iq2(d, word >> 28);
        for (unsigned l = 0; l < 4; l++) {
            const unsigned signs = rg_ksigns_iq2xs[(word >> (7 * l)) & 127];
            put_grid8(x + 32 * g + 8 * l, scale, rg_grid_iq2xxs[index[l]], signs);
        }
    }
}

void rg_unpack_iq2_xs(const void *block, float *x) {
    const rg_block_iq2_xs *b = block;
    const float d = load_f16(b->d);
    for (unsigned e = 0; e < 32; e++) {
        const unsigned code = rg_load_u16(b->qs + 2 * e);
        const float scale = scale_iq2(d, nibble(b->scales, e / 2));
        put_grid8(x + 8 * e, scale, rg_grid_iq2xs[code & 511], rg_ksigns_iq2xs[code >> 9]);
    }
}

void rg_unpack_iq2_s(const void *block, float *x) {
    const rg_block_iq2_s *b = block;
    const float d = load_f16(b->d);
    for (unsigned e = 0; e < 32; e++) {
        const unsigned high = ((unsigned)b->qh[e / 4] >> (2 * (e % 4))) & 3u;
        const float scale = scale_iq2(d, nibble(b->scales, e / 2));
        put_grid8(x + 8 * e, scale, rg_grid_iq2s[b->qs[e] | high << 8], b->signs[e]);
    }
}

void rg_unpack_iq3_xxs(const void *block, float *x) {
    const rg_block_iq3_xxs *b = block;
    const float d = load_f16(b->d);
    for (unsigned g = 0; g < 8; g++) {
        const uint32_t word = rg_load_u32(b->signs_scales + 4 * g);
        const float scale = d * ((float)(word >> 28) + 0.5f) * 0.5f;
        for (unsigned l = 0; l < 4; l++) {
            const uint8_t *index = b->qs + 8 * g + 2 * l;
            const unsigned signs = rg_ksigns_iq2xs[(word >> (7 * l)) & 127];
            put_grid4x2(x + 32 * g + 8 * l, scale, rg_grid_iq3xxs[index[0]],
                        rg_grid_iq3xxs[index[1]], signs);
        }
    }
}

void rg_unpack_iq3_s(const void *block, float *x) {
    const rg_block_iq3_s *b = block;
    const float d = load_f16(b->d);
    for (unsigned e = 0; e < 32; e++) {
        const uint8_t *index = b->qs + 2 * e;
        const unsigned high = (unsigned)b->qh[e / 4] >> (2 * (e % 4));
        const float scale = d * (float)(2 * nibble(b->scales, e / 4) + 1);
        put_grid4x2(x + 8 * e, scale, rg_grid_iq3s[index[0] | (high & 1) << 8],
                    rg_grid_iq3s[index[1] | (high & 2) << 7], b->signs[e]);
    }
}

void rg_unpack_iq1_s(const void *block, float *x) {
    const rg_block_iq1_s *b = block;
    const float d = load_f16(b->d);
    for (unsigned g = 0; g < 8; g++) {
        const unsigned word = rg_load_u16(b->qh + 2 * g);
        const float scale = d * (float)(2 * ((word >> 12) & 7) + 1);
        const float delta = word & 0x8000 ? -0.125f : 0.125f;
        for (unsigned l = 0; l < 4; l++) {
            const unsigned high = (word >> (3 * l)) & 7;
            put_ternary8(x + 32 * g + 8 * l, scale, rg_grid_iq1s[b->qs[4 * g + l] | high << 8],
                         delta);
        }
    }
}

void rg_unpack_iq1_m(const void *block, float *x) {
    const rg_block_iq1_m *b = block;
    const float d = f16_to_f32(rg_iq1_m_d(b));
    for (unsigned e = 0; e < 32; e++) {
        const unsigned s = e / 2;
        const unsigned code =
            ((unsigned)rg_load_u16(b->scales + 2 * (s / 4)) >> (3 * (s % 4))) & 7u;
        const float scale = d * (float)(2 * code + 1);
        const unsigned high = nibble(b->qh, e);
        put_ternary8(x + 8 * e, scale, rg_grid_iq1s[b->qs[e] | (high & 7) << 8],
                     high & 8 ? -0.125f : 0.125f);
    }
}
