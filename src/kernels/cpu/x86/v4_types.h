/* AVX-512 unpackers: 64 weight codes at a time, as unsigned bytes with an offset (code = u -
 * offset) or, for grid formats, as magnitudes with a sign mask. Each gives the integers that
 * codes.c defines; sub-scales stay apart as int16, so that byte products run at full width.
 *
 * A 256-value block is four parts of 64; grids are looked up in registers. Formats: GGUF block
 * definitions (quant.h).
 */
#ifndef RG_KERNELS_V4_TYPES_H
#define RG_KERNELS_V4_TYPES_H

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/x86/v4_grids.h"
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
    return _mm_loadu_si128((const void *)p);
}
RG_INLINE __m256i v4_load256(const uint8_t *p) {
    return _mm256_loadu_si256((const void *)p);
}

/* Bytes of a and b (32 each) as one register. */
RG_INLINE __m512i v4_join(__m256i a, __m256i b) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

/* What a block of 256 holds beside its codes: int16, 16 of them for groups of 16 values, 8 in the
 * low half for groups of 32. */
typedef struct v4_block {
    __m256i scales, mins;
    float d, m; /* block scale, with the grid's power of two; factor of the minima */
} v4_block;

/* 256 codes in order: u - offset, or with sign masks: -u where the bit is set. */
typedef struct v4_codes {
    __m512i u[4];
    __mmask64 sign[4];
} v4_codes;

/* ---- K-quants -------------------------------------------------------------------------------- */

/* Head of q4_K and q5_K in each lane of x, d and dmin before twelve bytes of 6-bit pairs: bytes of
 * eight scales, then of eight minima. */
RG_INLINE __m512i v4_pairs(__m512i x) {
    const __m512i from = _mm512_shuffle_epi32(x, 0xED); /* dwords 1 3 2 3 */
    const __m512i shift = _mm512_broadcast_i32x4(_mm_set_epi32(4, 0, 0, 0));
    const __m512i keep =
        _mm512_broadcast_i32x4(_mm_set_epi32(0x0F0F0F0F, 0x3F3F3F3F, 0x0F0F0F0F, 0x3F3F3F3F));
    const __m512i low = _mm512_and_si512(_mm512_srlv_epi32(from, shift), keep);
    const __m512i top = _mm512_srli_epi32(_mm512_shuffle_epi32(x, 0xA5), 2); /* 1 1 2 2 */
    const __m512i high = _mm512_broadcast_i32x4(_mm_set_epi32(0x30303030, 0, 0x30303030, 0));
    return _mm512_or_si512(low, _mm512_and_si512(top, high));
}

RG_INLINE v4_block v4_head_q4_K(const uint8_t *b) {
    v4_block h = {.d = v4_f16(b), .m = -v4_f16(b + 2)};
    const __m128i s = _mm512_castsi512_si128(v4_pairs(_mm512_castsi128_si512(v4_load128(b))));
    h.scales = _mm256_castsi128_si256(_mm_cvtepu8_epi16(s));
    h.mins = _mm256_castsi128_si256(_mm_cvtepu8_epi16(_mm_unpackhi_epi64(s, s)));
    return h;
}

/* Part p: low nibbles of 32 bytes, then their high nibbles. */
RG_INLINE v4_codes v4_codes_q4_K(const uint8_t *b) {
    v4_codes c;
    for (int p = 0; p < 4; p++) {
        const __m256i q = v4_load256(b + 16 + 32 * p);
        c.u[p] = _mm512_and_si512(v4_join(q, _mm256_srli_epi16(q, 4)), _mm512_set1_epi8(15));
    }
    return c;
}

RG_INLINE v4_block v4_head_q5_K(const uint8_t *b) {
    return v4_head_q4_K(b);
}

RG_INLINE v4_codes v4_codes_q5_K(const uint8_t *b) {
    v4_codes c = v4_codes_q4_K(b + 32);
    const __m256i h = v4_load256(b + 16);
    const __m512i bits = v4_join(h, _mm256_srli_epi16(h, 1));
    /* Bytes move as words: neighbours' bits come in beside the one that is kept. */
    const __m512i sixteen = _mm512_set1_epi8(16);
    c.u[0] = _mm512_or_si512(c.u[0], _mm512_and_si512(_mm512_slli_epi16(bits, 4), sixteen));
    c.u[1] = _mm512_or_si512(c.u[1], _mm512_and_si512(_mm512_slli_epi16(bits, 2), sixteen));
    c.u[2] = _mm512_or_si512(c.u[2], _mm512_and_si512(bits, sixteen));
    c.u[3] = _mm512_or_si512(c.u[3], _mm512_and_si512(_mm512_srli_epi16(bits, 2), sixteen));
    return c;
}

RG_INLINE v4_block v4_head_q6_K(const uint8_t *b) {
    return (v4_block){.scales = _mm256_cvtepi8_epi16(v4_load128(b + 192)), .d = v4_f16(b + 208)};
}

/* u = code + 32. Each half: low nibbles of 64 bytes, then high ones; two top bits of each value in
 * 32 bytes. */
RG_INLINE v4_codes v4_codes_q6_K(const uint8_t *b) {
    v4_codes c;
    const __m512i nibble = _mm512_set1_epi8(15), top = _mm512_set1_epi8(0x30);
    for (int n = 0; n < 2; n++) {
        const __m512i ql = _mm512_loadu_si512(b + 64 * n);
        const __m256i qh = v4_load256(b + 128 + 32 * n);
        const __m512i h = v4_join(_mm256_slli_epi16(qh, 4), _mm256_slli_epi16(qh, 2));
        const __m512i g = v4_join(qh, _mm256_srli_epi16(qh, 2));
        c.u[2 * n] = _mm512_or_si512(_mm512_and_si512(ql, nibble), _mm512_and_si512(h, top));
        c.u[2 * n + 1] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(ql, 4), nibble),
                                         _mm512_and_si512(g, top));
    }
    return c;
}

RG_INLINE v4_block v4_head_q2_K(const uint8_t *b) {
    const __m128i s = v4_load128(b), low = _mm_set1_epi8(15);
    return (v4_block){.scales = _mm256_cvtepu8_epi16(_mm_and_si128(s, low)),
                      .mins = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(s, 4), low)),
                      .d = v4_f16(b + 80),
                      .m = -v4_f16(b + 82)};
}

/* Two bits of each value: 32 bytes hold 128 of them. */
RG_INLINE v4_codes v4_codes_two_bits(const uint8_t *q) {
    v4_codes c;
    for (int n = 0; n < 2; n++) {
        const __m256i v = v4_load256(q + 32 * n);
        const __m512i both = v4_join(v, _mm256_srli_epi16(v, 2));
        c.u[2 * n] = _mm512_and_si512(both, _mm512_set1_epi8(3));
        c.u[2 * n + 1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), _mm512_set1_epi8(3));
    }
    return c;
}

RG_INLINE v4_codes v4_codes_q2_K(const uint8_t *b) {
    return v4_codes_two_bits(b + 16);
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
RG_INLINE v4_codes v4_codes_q3_K(const uint8_t *b) {
    v4_codes c = v4_codes_two_bits(b + 32);
    const __m256i h = v4_load256(b);
    const __m512i bits = v4_join(h, _mm256_srli_epi16(h, 1)), four = _mm512_set1_epi8(4);
    c.u[0] = _mm512_or_si512(c.u[0], _mm512_and_si512(_mm512_slli_epi16(bits, 2), four));
    c.u[1] = _mm512_or_si512(c.u[1], _mm512_and_si512(bits, four));
    c.u[2] = _mm512_or_si512(c.u[2], _mm512_and_si512(_mm512_srli_epi16(bits, 2), four));
    c.u[3] = _mm512_or_si512(c.u[3], _mm512_and_si512(_mm512_srli_epi16(bits, 4), four));
    return c;
}

/* ---- grids ----------------------------------------------------------------------------------- */

/* 2 * n + 1 for 16 words, and for 8. */
RG_INLINE __m256i v4_odd(__m256i n) {
    return _mm256_add_epi16(_mm256_add_epi16(n, n), _mm256_set1_epi16(1));
}
RG_INLINE __m256i v4_odd8(__m128i n) {
    return _mm256_castsi128_si256(_mm_add_epi16(_mm_add_epi16(n, n), _mm_set1_epi16(1)));
}

/* The nibbles of eight bytes in order. */
RG_INLINE __m128i v4_nibbles(__m128i bytes) {
    const __m128i low = _mm_and_si128(bytes, _mm_set1_epi8(15));
    const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
    return _mm_unpacklo_epi8(low, high);
}

/* Entries of a compact grid: 64 words by one permute, halves joined by the next index bit. Written
 * out, because gcc leaves a loop over them in memory. */
RG_INLINE __m512i v4_lookup64(const uint16_t *grid, __m512i index) {
    return _mm512_permutex2var_epi16(_mm512_loadu_si512(grid), index,
                                     _mm512_loadu_si512(grid + 32));
}

#define V4_LOOKUP(n, half)                                                                         \
    RG_INLINE __m512i v4_lookup##n(const uint16_t *grid, __m512i index) {                          \
        const __mmask32 upper = _mm512_test_epi16_mask(index, _mm512_set1_epi16(half));            \
        return _mm512_mask_blend_epi16(upper, v4_lookup##half(grid, index),                        \
                                       v4_lookup##half(grid + (half), index));                     \
    }
V4_LOOKUP(128, 64)
V4_LOOKUP(256, 128)
V4_LOOKUP(512, 256)
V4_LOOKUP(1024, 512)
#undef V4_LOOKUP

/* 32 entries of eight 2-bit levels. */
RG_INLINE void v4_spread_2(__m512i entries, v4_codes *c) {
    const __m512i levels = _mm512_set1_epi32(0x002b1908),
                  shifts = _mm512_set1_epi64(0x0E0C0A0806040200);
    const __m512i words = _mm512_set_epi64(
        0x0007000700070007, 0x0006000600060006, 0x0005000500050005, 0x0004000400040004,
        0x0003000300030003, 0x0002000200020002, 0x0001000100010001, 0);
    for (int p = 0; p < 4; p++) {
        const __m512i at = _mm512_add_epi16(words, _mm512_set1_epi16((short)(8 * p)));
        const __m512i v = _mm512_permutexvar_epi16(at, entries);
        /* Bits above a level do no harm: the table repeats. */
        c->u[p] = _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(shifts, v), levels);
    }
}

/* Twice 32 entries of four 3-bit levels. */
RG_INLINE void v4_spread_3(__m512i first, __m512i second, uint64_t levels8, v4_codes *c) {
    const __m512i levels = _mm512_set1_epi64((long long)levels8);
    const __m512i shifts = _mm512_set1_epi64(0x2926232009060300);
    for (int p = 0; p < 4; p++) {
        const __m512i e = p < 2 ? first : second;
        const __m256i half = p & 1 ? _mm512_extracti64x4_epi64(e, 1) : _mm512_castsi512_si256(e);
        const __m512i v = _mm512_cvtepu16_epi32(half);
        c->u[p] = _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(shifts, v), levels);
    }
}

RG_INLINE void v4_signs(__m256i bytes, v4_codes *c) {
    uint64_t s[4] __attribute__((aligned(32)));
    _mm256_store_si256((__m256i *)(void *)s, bytes);
    for (int p = 0; p < 4; p++)
        c->sign[p] = s[p];
}

/* Sign bytes of 7-bit codes: bit 7 makes the parity even. Bit 7 of `codes` may be anything. */
RG_INLINE __m256i v4_even_parity(__m256i codes) {
    const __m256i v = _mm256_and_si256(codes, _mm256_set1_epi8(0x7F));
    const __m256i odd = _mm256_and_si256(_mm256_popcnt_epi8(v), _mm256_set1_epi8(1));
    return _mm256_or_si256(v, _mm256_slli_epi16(odd, 7));
}

RG_INLINE v4_block v4_head_iq2_xs(const uint8_t *b) {
    const __m128i n = v4_nibbles(_mm_loadl_epi64((const void *)(b + 66)));
    return (v4_block){.scales = v4_odd(_mm256_cvtepu8_epi16(n)), .d = v4_f16(b) * 0.125f};
}

RG_INLINE v4_codes v4_codes_iq2_xs(const uint8_t *b) {
    v4_codes c;
    const __m512i w = _mm512_loadu_si512(b + 2);
    const __m512i index = _mm512_and_si512(w, _mm512_set1_epi16(511));
    v4_spread_2(v4_lookup512(rg_v4_grid_iq2xs, index), &c);
    v4_signs(v4_even_parity(_mm512_cvtepi16_epi8(_mm512_srli_epi16(w, 9))), &c);
    return c;
}

/* Eight records: four indices, then four sign codes and a scale in 32 bits. */
RG_INLINE v4_block v4_head_iq2_xxs(const uint8_t *b) {
    const __m512i top = _mm512_srli_epi64(_mm512_loadu_si512(b + 2), 60);
    return (v4_block){.scales = v4_odd8(_mm512_cvtepi64_epi16(top)), .d = v4_f16(b) * 0.125f};
}

RG_INLINE v4_codes v4_codes_iq2_xxs(const uint8_t *b) {
    v4_codes c;
    const __m512i w = _mm512_loadu_si512(b + 2);
    const __m512i index = _mm512_cvtepu8_epi16(_mm512_cvtepi64_epi32(w));
    v4_spread_2(v4_lookup256(rg_v4_grid_iq2xxs, index), &c);
    const __m512i seven = _mm512_set1_epi64(0x352E2720352E2720); /* from bits 32, 39, 46, 53 */
    v4_signs(v4_even_parity(_mm512_cvtepi64_epi32(_mm512_multishift_epi64_epi8(seven, w))), &c);
    return c;
}

RG_INLINE v4_block v4_head_iq2_s(const uint8_t *b) {
    const __m128i n = v4_nibbles(_mm_loadl_epi64((const void *)(b + 74)));
    return (v4_block){.scales = v4_odd(_mm256_cvtepu8_epi16(n)), .d = v4_f16(b) * 0.125f};
}

RG_INLINE v4_codes v4_codes_iq2_s(const uint8_t *b) {
    v4_codes c;
    /* Bits 8 and 9 of index 4 q + j: bits 2 j of byte q. */
    const __m512i at = _mm512_set_epi64(0x3E003C003A003800, 0x3600340032003000, 0x2E002C002A002800,
                                        0x2600240022002000, 0x1E001C001A001800, 0x1600140012001000,
                                        0x0E000C000A000800, 0x0600040002000000);
    const __m512i high =
        _mm512_multishift_epi64_epi8(at, _mm512_set1_epi64((long long)v4_u64(b + 66)));
    const __m512i index = _mm512_or_si512(_mm512_cvtepu8_epi16(v4_load256(b + 2)),
                                          _mm512_and_si512(high, _mm512_set1_epi16(0x0300)));
    v4_spread_2(v4_lookup1024(rg_v4_grid_iq2s, index), &c);
    for (int p = 0; p < 4; p++)
        c.sign[p] = v4_u64(b + 34 + 8 * p);
    return c;
}

RG_INLINE v4_block v4_head_iq3_xxs(const uint8_t *b) {
    const __m128i n = _mm256_cvtepi32_epi16(_mm256_srli_epi32(v4_load256(b + 66), 28));
    return (v4_block){.scales = v4_odd8(n), .d = v4_f16(b) * 0.25f};
}

RG_INLINE v4_codes v4_codes_iq3_xxs(const uint8_t *b) {
    v4_codes c;
    const __m512i i0 = _mm512_cvtepu8_epi16(v4_load256(b + 2));
    const __m512i i1 = _mm512_cvtepu8_epi16(v4_load256(b + 34));
    v4_spread_3(v4_lookup256(rg_v4_grid_iq3xxs, i0), v4_lookup256(rg_v4_grid_iq3xxs, i1),
                0x3e342c241c140c04u, &c);
    const __m512i w = _mm512_cvtepu32_epi64(v4_load256(b + 66));
    const __m512i seven = _mm512_set1_epi64(0x150E0700);
    v4_signs(v4_even_parity(_mm512_cvtepi64_epi32(_mm512_multishift_epi64_epi8(seven, w))), &c);
    return c;
}

RG_INLINE v4_block v4_head_iq3_s(const uint8_t *b) {
    const __m128i n = v4_nibbles(_mm_cvtsi32_si128((int)v4_u32(b + 106)));
    return (v4_block){.scales = v4_odd8(_mm_cvtepu8_epi16(n)), .d = v4_f16(b)};
}

RG_INLINE v4_codes v4_codes_iq3_s(const uint8_t *b) {
    v4_codes c;
    const __m512i upper = _mm512_set1_epi16(256);
    const __m512i q0 = _mm512_cvtepu8_epi16(v4_load256(b + 2));
    const __m512i q1 = _mm512_cvtepu8_epi16(v4_load256(b + 34));
    const __m512i i0 = _mm512_mask_add_epi16(q0, v4_u32(b + 66), q0, upper);
    const __m512i i1 = _mm512_mask_add_epi16(q1, v4_u32(b + 70), q1, upper);
    v4_spread_3(v4_lookup512(rg_v4_grid_iq3s, i0), v4_lookup512(rg_v4_grid_iq3s, i1),
                0x0f0d0b0907050301u, &c);
    for (int p = 0; p < 4; p++)
        c.sign[p] = v4_u64(b + 74 + 8 * p);
    return c;
}

/* ---- IQ1: ternary grids with a shift of an eighth ---------------------------------------------
 */

/* u = 8 * value + shift + 16 for the entries of grid rows i; shift is -1 or +1. */
RG_INLINE __m512i v4_ternary(const uint32_t i[8], __m512i shift) {
    const uint64_t *grid = rg_grid_iq1s;
    const __m512i g = _mm512_set_epi64(
        (long long)grid[i[7]], (long long)grid[i[6]], (long long)grid[i[5]], (long long)grid[i[4]],
        (long long)grid[i[3]], (long long)grid[i[2]], (long long)grid[i[1]], (long long)grid[i[0]]);
    const __m512i eight = _mm512_and_si512(_mm512_slli_epi16(g, 3), _mm512_set1_epi8((char)0xF8));
    return _mm512_add_epi8(_mm512_add_epi8(eight, _mm512_set1_epi8(16)), shift);
}

RG_INLINE v4_block v4_head_iq1_s(const uint8_t *b) {
    const __m128i w = v4_load128(b + 34);
    const __m128i n = _mm_and_si128(_mm_srli_epi16(w, 12), _mm_set1_epi16(7));
    return (v4_block){.scales = v4_odd8(n), .d = v4_f16(b) * 0.125f};
}

RG_INLINE v4_codes v4_codes_iq1_s(const uint8_t *b) {
    v4_codes c;
    for (int p = 0; p < 4; p++) {
        uint32_t i[8];
        const uint32_t w = v4_u32(b + 34 + 4 * p), w0 = w & 0xFFFF, w1 = w >> 16;
        for (int k = 0; k < 4; k++) {
            i[k] = b[2 + 8 * p + k] | (w0 >> 3 * k & 7) << 8;
            i[k + 4] = b[6 + 8 * p + k] | (w1 >> 3 * k & 7) << 8;
        }
        const __m256i s0 = _mm256_set1_epi8((char)(1 - 2 * (int)(w0 >> 15)));
        const __m256i s1 = _mm256_set1_epi8((char)(1 - 2 * (int)(w1 >> 15)));
        c.u[p] = v4_ternary(i, v4_join(s0, s1));
    }
    return c;
}

RG_INLINE v4_block v4_head_iq1_m(const uint8_t *b) {
    const uint64_t w = v4_u64(b + 48);
    const uint16_t d = (uint16_t)_pext_u64(w, 0xF000F000F000F000u);
    /* Four 3-bit scales in each of four words. */
    const uint64_t lo =
        _pdep_u64((w & 0xFFF) | _pext_u64(w, 0x000000000FFF0000u) << 12, 0x0707070707070707u);
    const uint64_t hi =
        _pdep_u64(_pext_u64(w, 0x00000FFF00000000u) | _pext_u64(w, 0x0FFF000000000000u) << 12,
                  0x0707070707070707u);
    const __m128i n = _mm_set_epi64x((long long)hi, (long long)lo);
    return (v4_block){.scales = v4_odd(_mm256_cvtepu8_epi16(n)), .d = _cvtsh_ss(d) * 0.125f};
}

RG_INLINE v4_codes v4_codes_iq1_m(const uint8_t *b) {
    v4_codes c;
    for (int p = 0; p < 4; p++) {
        uint32_t i[8];
        const uint32_t h = v4_u32(b + 32 + 4 * p);
        for (int k = 0; k < 8; k++)
            i[k] = b[8 * p + k] | (h >> 4 * k & 7) << 8;
        const __mmask8 minus = (__mmask8)_pext_u32(h, 0x88888888u);
        const __m512i one = _mm512_set1_epi8(1), shift = _mm512_set1_epi8(-1);
        c.u[p] = v4_ternary(i, _mm512_mask_blend_epi64(minus, one, shift));
    }
    return c;
}

/* ---- IQ4_XS ---------------------------------------------------------------------------------- */

/* The table of 16 values plus 128, as unsigned bytes, in each 128-bit lane. */
RG_INLINE __m512i v4_table_iq4(void) {
    const __m128i t = v4_load128((const uint8_t *)rg_kvalues_iq4nl);
    return _mm512_xor_si512(_mm512_broadcast_i32x4(t), _mm512_set1_epi8((char)0x80));
}

RG_INLINE v4_block v4_head_iq4_xs(const uint8_t *b) {
    const uint64_t w = v4_u64(b);
    const uint64_t low = _pdep_u64(w >> 32, 0x0F0F0F0F0F0F0F0Fu);
    const uint64_t high = _pdep_u64(w >> 16 & 0xFFFF, 0x3030303030303030u);
    const __m128i s = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)(low | high)));
    return (v4_block){.scales = _mm256_castsi128_si256(_mm_sub_epi16(s, _mm_set1_epi16(32))),
                      .d = v4_f16(b)};
}

/* u = value + 128. Two groups of 32: 16 bytes each, low nibbles first. */
RG_INLINE v4_codes v4_codes_iq4_xs(const uint8_t *b) {
    v4_codes c;
    for (int p = 0; p < 4; p++) {
        const __m128i q0 = v4_load128(b + 8 + 32 * p), q1 = v4_load128(b + 24 + 32 * p);
        const __m256i lo = _mm256_set_m128i(_mm_srli_epi16(q0, 4), q0);
        const __m256i hi = _mm256_set_m128i(_mm_srli_epi16(q1, 4), q1);
        const __m512i index = _mm512_and_si512(v4_join(lo, hi), _mm512_set1_epi8(15));
        c.u[p] = _mm512_shuffle_epi8(v4_table_iq4(), index);
    }
    return c;
}

#endif
