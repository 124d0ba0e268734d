/* The most int8 multiply-adds AVX2 does with int32 sums: byte products to pair sums, pair sums to
 * lanes, lanes to the accumulator, in independent chains that never leave registers.
 */
#include <immintrin.h>

#include "kernels/cpu/levels.h"

#define CHAINS 8u

/* The operand passes through the asm, or the compiler would take the products out of the loop. */
#define TURN(c)                                                                                    \
    __asm__ volatile("" : "+x"(a));                                                                \
    (c) = _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones))

uint64_t rg_v3_int8_peak(uint64_t turns, int32_t *sink) {
    __m256i a = _mm256_set1_epi8(3);
    const __m256i b = _mm256_set1_epi8(2), ones = _mm256_set1_epi16(1);
    const __m256i z = _mm256_setzero_si256();
    __m256i c0 = z, c1 = z, c2 = z, c3 = z, c4 = z, c5 = z, c6 = z, c7 = z;
    for (uint64_t t = 0; t < turns; t++) {
        TURN(c0);
        TURN(c1);
        TURN(c2);
        TURN(c3);
        TURN(c4);
        TURN(c5);
        TURN(c6);
        TURN(c7);
    }
    c0 = _mm256_add_epi32(_mm256_add_epi32(c0, c1), _mm256_add_epi32(c2, c3));
    c4 = _mm256_add_epi32(_mm256_add_epi32(c4, c5), _mm256_add_epi32(c6, c7));
    c0 = _mm256_add_epi32(c0, c4);
    *sink = _mm256_extract_epi32(c0, 0) + _mm256_extract_epi32(c0, 7);
    return turns * CHAINS * sizeof(__m256i);
}
