/* AVX-512 products of the grid formats. */
#include "kernels/cpu/x86/v4_mul_256.h"

/* Levels with the sign at bit 2; bits above do no harm, the table repeats. */
RG_INLINE __m512i signed_levels(void) {
    return _mm512_set1_epi64(0x00d5e7f8002b1908);
}

/* Four codes a lane: levels are bits 8 s ... 8 s + 7 of `entries`, signs four bits of `signs`. */
RG_INLINE __m512i spread_signed(__m512i entries, __m512i signs, uint32_t s) {
    const uint64_t code = 0x0101010101010101u * 8 * s + 0x2624222006040200u;
    /* From two bits below: the sign of each code lands at bit 2. Only six bits of a byte count. */
    const uint64_t sign = 0x21201F1E01003F3Eu + 0x0101010101010101u * (4 * (s & 1) + 8 * (s & 2));
    const __m512i c = _mm512_multishift_epi64_epi8(_mm512_set1_epi64((long long)code), entries);
    const __m512i n = _mm512_multishift_epi64_epi8(_mm512_set1_epi64((long long)sign), signs);
    const __m512i at = _mm512_ternarylogic_epi32(_mm512_set1_epi8(4), n, c, 0xCA);
    return _mm512_permutexvar_epi8(at, signed_levels());
}

/* A dword of a block is two records of a 9-bit index and a 7-bit sign code: 16 values. Turned as
 * they are, they cost an eighth of the transposition of the codes. */
RG_INLINE void lanes_iq2_xs(const uint8_t *const blocks[16], int32_t (*codes)[V4_ROWS]) {
    __m512i w[16];
    for (uint32_t i = 0; i < 16; i++)
        w[i] = _mm512_loadu_si512(blocks[i] + 2);
    v4_transpose(w);
    for (uint32_t j = 0; j < 16; j++) {
        const __m512i index = _mm512_and_si512(w[j], _mm512_set1_epi16(511));
        const __m512i entries = v4_lookup512(rg_v4_grid_iq2xs, index);
        const __m512i seven = _mm512_srli_epi16(w[j], 9);
        const __m512i odd = _mm512_and_si512(_mm512_popcnt_epi16(seven), _mm512_set1_epi16(1));
        const __m512i signs = _mm512_or_si512(seven, _mm512_slli_epi16(odd, 7));
        for (uint32_t s = 0; s < 4; s++)
            _mm512_store_si512(codes[4 * j + s], spread_signed(entries, signs, s));
    }
}

/* name, block bytes, group, offset, what else */
#define FORMATS(X)                                                                                 \
    X(iq1_s, IQ1_S, 50, 32, 16, .grid = false)                                                     \
    X(iq1_m, IQ1_M, 56, 16, 16, .grid = false)                                                     \
    X(iq2_xxs, IQ2_XXS, 66, 32, 0, .grid = true)                                                   \
    X(iq2_xs, IQ2_XS, 74, 16, 0, .grid = true, .lanes = lanes_iq2_xs)                              \
    X(iq2_s, IQ2_S, 82, 16, 0, .grid = true)                                                       \
    X(iq3_xxs, IQ3_XXS, 98, 32, 0, .grid = true)                                                   \
    X(iq3_s, IQ3_S, 110, 32, 0, .grid = true)

FORMATS(V4_DEFINE)

bool rg_v4_mul_grid(const v4_job *j, uint32_t r0, uint32_t r1) {
    switch (j->w->type) {
        FORMATS(V4_CASE)
    default:
        return false;
    }
}
