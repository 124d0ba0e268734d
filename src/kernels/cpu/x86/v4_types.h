/* AVX-512 unpackers: 64 weight codes at a time, as unsigned bytes with an offset (code = u -
 * offset) or, for grid formats, as magnitudes with a sign mask. Each gives the integers that
 * codes.c defines; sub-scales stay apart as int16, so that byte products run at full width.
 *
 * A 256-value block is four parts of 64. Formats: GGUF block definitions (quant.h).
 */
#ifndef RG_KERNELS_V4_TYPES_H
#define RG_KERNELS_V4_TYPES_H

#include <immintrin.h>
#include <string.h>

#include "kernels/kernels.h"

/* Forced: these are bodies of templates, one copy for each format. */
#define RG_INLINE static inline __attribute__((always_inline))

RG_INLINE float v4_f16(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return _cvtsh_ss(h);
}

RG_INLINE uint32_t v4_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

RG_INLINE uint64_t v4_u64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

RG_INLINE __m128i v4_load128(const uint8_t *p) {
    return _mm_loadu_si128((const __m128i *)p);
}
RG_INLINE __m256i v4_load256(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}

/* Bytes of a and b (32 each) as one register. */
RG_INLINE __m512i v4_join(__m256i a, __m256i b) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

/* What a block of 256 holds beside its codes. */
typedef struct v4_block {
    __m256i scales; /* 16 x int16, of 16 values each */
    __m256i mins;   /* 16 x int16; formats with minima */
    float d, m;     /* block scale, with the grid's power of two; factor of the minima */
} v4_block;

/* A part of 64 codes: u - offset, or with a sign mask: -u where the bit is set. */
typedef struct v4_part {
    __m512i u;
    __mmask64 sign;
} v4_part;

/* ---- K-quants -------------------------------------------------------------------------------- */

/* Eight 6-bit pairs, each twice (sub-blocks of 32 are two groups of 16). */
RG_INLINE void v4_pairs(const uint8_t *s, __m256i *sc, __m256i *mn) {
    const uint32_t a = v4_u32(s), b = v4_u32(s + 4), c = v4_u32(s + 8);
    const uint32_t sc0 = a & 0x3F3F3F3Fu, mn0 = b & 0x3F3F3F3Fu;
    const uint32_t sc1 = (c & 0x0F0F0F0Fu) | (a >> 2 & 0x30303030u);
    const uint32_t mn1 = (c >> 4 & 0x0F0F0F0Fu) | (b >> 2 & 0x30303030u);
    const __m128i bytes = _mm_set_epi32((int)mn1, (int)mn0, (int)sc1, (int)sc0);
    const __m128i twice_lo = _mm_unpacklo_epi8(bytes, bytes);
    const __m128i twice_hi = _mm_unpackhi_epi8(bytes, bytes);
    *sc = _mm256_cvtepu8_epi16(twice_lo);
    *mn = _mm256_cvtepu8_epi16(twice_hi);
}

RG_INLINE v4_block v4_head_q4_K(const uint8_t *b) {
    v4_block h = {.d = v4_f16(b), .m = -v4_f16(b + 2)};
    v4_pairs(b + 4, &h.scales, &h.mins);
    return h;
}

/* Part p: low nibbles of 32 bytes, then their high nibbles. */
RG_INLINE v4_part v4_part_q4_K(const uint8_t *b, int p) {
    const __m256i q = v4_load256(b + 16 + 32 * p);
    const __m512i both = v4_join(q, _mm256_srli_epi16(q, 4));
    return (v4_part){.u = _mm512_and_si512(both, _mm512_set1_epi8(15))};
}

RG_INLINE v4_part v4_part_q5_K(const uint8_t *b, int p) {
    const __m256i q = v4_load256(b + 48 + 32 * p), h = v4_load256(b + 16);
    const __m512i low = _mm512_and_si512(v4_join(q, _mm256_srli_epi16(q, 4)), _mm512_set1_epi8(15));
    const __m512i bits = v4_join(h, _mm256_srli_epi16(h, 1));
    const __mmask64 high = _mm512_test_epi8_mask(bits, _mm512_set1_epi8((char)(1 << (2 * p))));
    /* Bytes shifted as words bring neighbours' bits in, but only above those tested. */
    return (v4_part){.u = _mm512_mask_add_epi8(low, high, low, _mm512_set1_epi8(16))};
}

RG_INLINE v4_block v4_head_q6_K(const uint8_t *b) {
    return (v4_block){.scales = _mm256_cvtepi8_epi16(v4_load128(b + 192)), .d = v4_f16(b + 208)};
}

/* u = code + 32. Part p of half n = p / 2: sub-blocks j = 2 * (p & 1), +1. */
RG_INLINE v4_part v4_part_q6_K(const uint8_t *b, int p) {
    const int n = p / 2, odd = p & 1;
    const __m512i ql = _mm512_loadu_si512(b + 64 * n);
    const __m256i qh = v4_load256(b + 128 + 32 * n);
    const __m512i low = _mm512_and_si512(odd ? _mm512_srli_epi16(ql, 4) : ql, _mm512_set1_epi8(15));
    const __m256i top0 = odd ? _mm256_srli_epi16(qh, 4) : qh;
    const __m512i top = v4_join(top0, _mm256_srli_epi16(top0, 2));
    const __m512i top2 = _mm512_slli_epi16(_mm512_and_si512(top, _mm512_set1_epi8(3)), 4);
    return (v4_part){.u = _mm512_or_si512(low, top2)};
}

RG_INLINE v4_block v4_head_q2_K(const uint8_t *b) {
    const __m128i s = v4_load128(b), low = _mm_set1_epi8(15);
    return (v4_block){.scales = _mm256_cvtepu8_epi16(_mm_and_si128(s, low)),
                      .mins = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(s, 4), low)),
                      .d = v4_f16(b + 80),
                      .m = -v4_f16(b + 82)};
}

RG_INLINE __m512i v4_two_bits(const uint8_t *q, int p) {
    const __m256i v = v4_load256(q + 32 * (p / 2));
    const __m256i a = p & 1 ? _mm256_srli_epi16(v, 4) : v;
    return _mm512_and_si512(v4_join(a, _mm256_srli_epi16(a, 2)), _mm512_set1_epi8(3));
}

RG_INLINE v4_part v4_part_q2_K(const uint8_t *b, int p) {
    return (v4_part){.u = v4_two_bits(b + 16, p)};
}

RG_INLINE v4_block v4_head_q3_K(const uint8_t *b) {
    const uint32_t a0 = v4_u32(b + 96), a1 = v4_u32(b + 100), t = v4_u32(b + 104);
    const uint32_t low = 0x0F0F0F0Fu, two = 0x03030303u;
    const __m128i s = _mm_set_epi32(
        (int)((a1 >> 4 & low) | (t >> 6 & two) << 4), (int)((a0 >> 4 & low) | (t >> 4 & two) << 4),
        (int)((a1 & low) | (t >> 2 & two) << 4), (int)((a0 & low) | (t & two) << 4));
    return (v4_block){.scales = _mm256_sub_epi16(_mm256_cvtepu8_epi16(s), _mm256_set1_epi16(32)),
                      .d = v4_f16(b + 108)};
}

/* u = code + 4: two low bits and the third. */
RG_INLINE v4_part v4_part_q3_K(const uint8_t *b, int p) {
    const __m512i low = v4_two_bits(b + 32, p);
    const __m256i h = v4_load256(b);
    const __m512i bits = v4_join(h, _mm256_srli_epi16(h, 1));
    const __mmask64 high = _mm512_test_epi8_mask(bits, _mm512_set1_epi8((char)(1 << (2 * p))));
    return (v4_part){.u = _mm512_mask_add_epi8(low, high, low, _mm512_set1_epi8(4))};
}

/* ---- grids ----------------------------------------------------------------------------------- */

/* Sixteen nibbles of eight bytes as 2 * nibble + 1. */
RG_INLINE __m256i v4_odd_scales(const uint8_t *s) {
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)s);
    const __m128i low = _mm_and_si128(bytes, _mm_set1_epi8(15));
    const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
    const __m256i n = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(low, high));
    return _mm256_add_epi16(_mm256_add_epi16(n, n), _mm256_set1_epi16(1));
}

/* The same for four bytes, each nibble twice (groups of 32). */
RG_INLINE __m256i v4_odd_scales_32(const uint8_t *s) {
    const __m128i bytes = _mm_cvtsi32_si128((int)v4_u32(s));
    const __m128i low = _mm_and_si128(bytes, _mm_set1_epi8(15));
    const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
    const __m128i n8 = _mm_unpacklo_epi8(low, high);
    const __m256i n = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(n8, n8));
    return _mm256_add_epi16(_mm256_add_epi16(n, n), _mm256_set1_epi16(1));
}

/* Sign masks of eight 7-bit codes in the low seven bits of bytes: bit 7 makes the parity even. */
RG_INLINE uint64_t v4_even_parity(uint64_t c) {
    const __m128i v = _mm_cvtsi64_si128((long long)c);
    const __m128i odd = _mm_and_si128(_mm_popcnt_epi8(v), _mm_set1_epi8(1));
    return (uint64_t)_mm_cvtsi128_si64(_mm_or_si128(v, _mm_slli_epi16(odd, 7)));
}

RG_INLINE __m512i v4_gather8(const uint64_t *grid, const uint32_t i[8]) {
    return _mm512_set_epi64((long long)grid[i[7]], (long long)grid[i[6]], (long long)grid[i[5]],
                            (long long)grid[i[4]], (long long)grid[i[3]], (long long)grid[i[2]],
                            (long long)grid[i[1]], (long long)grid[i[0]]);
}

RG_INLINE v4_block v4_head_iq2_xs(const uint8_t *b) {
    return (v4_block){.scales = v4_odd_scales(b + 66), .d = v4_f16(b) * 0.125f};
}

RG_INLINE v4_part v4_part_iq2_xs(const uint8_t *b, int p) {
    const uint8_t *e = b + 2 + 16 * p;
    const uint64_t x = v4_u64(e), y = v4_u64(e + 8);
    const uint32_t i[8] = {(uint32_t)x & 511,         (uint32_t)(x >> 16) & 511,
                           (uint32_t)(x >> 32) & 511, (uint32_t)(x >> 48) & 511,
                           (uint32_t)y & 511,         (uint32_t)(y >> 16) & 511,
                           (uint32_t)(y >> 32) & 511, (uint32_t)(y >> 48) & 511};
    const uint64_t codes = _pext_u64(x >> 9, 0x007F007F007F007Fu);
    const uint64_t more = _pext_u64(y >> 9, 0x007F007F007F007Fu);
    const uint64_t bytes = _pdep_u64(codes | more << 28, 0x7F7F7F7F7F7F7F7Fu);
    return (v4_part){.u = v4_gather8(rg_grid_iq2xs, i), .sign = v4_even_parity(bytes)};
}

RG_INLINE v4_block v4_head_iq2_xxs(const uint8_t *b) {
    int16_t s[16];
    for (int g = 0; g < 8; g++) {
        s[2 * g] = s[2 * g + 1] = (int16_t)(2 * (b[2 + 8 * g + 7] >> 4) + 1);
    }
    v4_block h = {.d = v4_f16(b) * 0.125f};
    h.scales = _mm256_loadu_si256((const __m256i *)s);
    return h;
}

RG_INLINE v4_part v4_part_iq2_xxs(const uint8_t *b, int p) {
    const uint8_t *r = b + 2 + 16 * p;
    const uint32_t i[8] = {r[0], r[1], r[2], r[3], r[8], r[9], r[10], r[11]};
    const uint64_t codes = (v4_u32(r + 4) & 0x0FFFFFFFu) | (uint64_t)(v4_u32(r + 12) & 0x0FFFFFFFu)
                                                               << 28;
    return (v4_part){.u = v4_gather8(rg_grid_iq2xxs, i),
                     .sign = v4_even_parity(_pdep_u64(codes, 0x7F7F7F7F7F7F7F7Fu))};
}

RG_INLINE v4_block v4_head_iq2_s(const uint8_t *b) {
    return (v4_block){.scales = v4_odd_scales(b + 74), .d = v4_f16(b) * 0.125f};
}

RG_INLINE v4_part v4_part_iq2_s(const uint8_t *b, int p) {
    const uint8_t *q = b + 2 + 8 * p, *h = b + 66 + 2 * p;
    const uint32_t h0 = h[0], h1 = h[1];
    const uint32_t i[8] = {q[0] | (h0 << 8 & 0x300), q[1] | (h0 << 6 & 0x300),
                           q[2] | (h0 << 4 & 0x300), q[3] | (h0 << 2 & 0x300),
                           q[4] | (h1 << 8 & 0x300), q[5] | (h1 << 6 & 0x300),
                           q[6] | (h1 << 4 & 0x300), q[7] | (h1 << 2 & 0x300)};
    return (v4_part){.u = v4_gather8(rg_grid_iq2s, i), .sign = v4_u64(b + 34 + 8 * p)};
}

RG_INLINE __m512i v4_gather4(const uint32_t *grid, const uint32_t i[16]) {
    return _mm512_set_epi32((int)grid[i[15]], (int)grid[i[14]], (int)grid[i[13]], (int)grid[i[12]],
                            (int)grid[i[11]], (int)grid[i[10]], (int)grid[i[9]], (int)grid[i[8]],
                            (int)grid[i[7]], (int)grid[i[6]], (int)grid[i[5]], (int)grid[i[4]],
                            (int)grid[i[3]], (int)grid[i[2]], (int)grid[i[1]], (int)grid[i[0]]);
}

RG_INLINE v4_block v4_head_iq3_xxs(const uint8_t *b) {
    int16_t s[16];
    for (int g = 0; g < 8; g++) {
        s[2 * g] = s[2 * g + 1] = (int16_t)(2 * (b[66 + 4 * g + 3] >> 4) + 1);
    }
    v4_block h = {.d = v4_f16(b) * 0.25f};
    h.scales = _mm256_loadu_si256((const __m256i *)s);
    return h;
}

RG_INLINE v4_part v4_part_iq3_xxs(const uint8_t *b, int p) {
    const uint8_t *q = b + 2 + 16 * p, *w = b + 66 + 8 * p;
    const __m512i index = _mm512_cvtepu8_epi32(v4_load128(q));
    const uint64_t codes = (v4_u32(w) & 0x0FFFFFFFu) | (uint64_t)(v4_u32(w + 4) & 0x0FFFFFFFu)
                                                           << 28;
    return (v4_part){.u = _mm512_i32gather_epi32(index, (const void *)rg_grid_iq3xxs, 4),
                     .sign = v4_even_parity(_pdep_u64(codes, 0x7F7F7F7F7F7F7F7Fu))};
}

RG_INLINE v4_block v4_head_iq3_s(const uint8_t *b) {
    return (v4_block){.scales = v4_odd_scales_32(b + 106), .d = v4_f16(b)};
}

RG_INLINE v4_part v4_part_iq3_s(const uint8_t *b, int p) {
    const __m512i low = _mm512_cvtepu8_epi32(v4_load128(b + 2 + 16 * p));
    const __mmask16 high = (__mmask16)(b[66 + 2 * p] | b[67 + 2 * p] << 8);
    const __m512i index = _mm512_mask_add_epi32(low, high, low, _mm512_set1_epi32(256));
    return (v4_part){.u = _mm512_i32gather_epi32(index, (const void *)rg_grid_iq3s, 4),
                     .sign = v4_u64(b + 74 + 8 * p)};
}

/* ---- IQ4_XS ---------------------------------------------------------------------------------- */

/* The table of 16 values plus 128, as unsigned bytes, in each 128-bit lane. */
RG_INLINE __m512i v4_table_iq4(void) {
    const __m128i t = v4_load128((const uint8_t *)rg_kvalues_iq4nl);
    return _mm512_xor_si512(_mm512_broadcast_i32x4(t), _mm512_set1_epi8((char)0x80));
}

RG_INLINE v4_block v4_head_iq4_xs(const uint8_t *b) {
    uint16_t high;
    memcpy(&high, b + 2, sizeof high);
    int16_t s[16];
    for (int g = 0; g < 8; g++) {
        const int low = b[4 + g / 2] >> 4 * (g & 1) & 15;
        s[2 * g] = s[2 * g + 1] = (int16_t)((low | (high >> 2 * g & 3) << 4) - 32);
    }
    v4_block h = {.d = v4_f16(b)};
    h.scales = _mm256_loadu_si256((const __m256i *)s);
    return h;
}

/* u = value + 128. Two groups of 32: 16 bytes each, low nibbles first. */
RG_INLINE v4_part v4_part_iq4_xs(const uint8_t *b, int p) {
    const __m128i q0 = v4_load128(b + 8 + 32 * p), q1 = v4_load128(b + 24 + 32 * p);
    const __m256i a = _mm256_set_m128i(_mm_srli_epi16(q0, 4), q0);
    const __m256i c = _mm256_set_m128i(_mm_srli_epi16(q1, 4), q1);
    const __m512i index = _mm512_and_si512(v4_join(a, c), _mm512_set1_epi8(15));
    return (v4_part){.u = _mm512_shuffle_epi8(v4_table_iq4(), index)};
}

#endif
