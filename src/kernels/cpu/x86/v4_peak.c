/* The most int8 multiply-adds AVX-512 VNNI does: independent chains that never leave registers. */
#include <immintrin.h>

#include "kernels/cpu/levels.h"

#define CHAINS 12u

/* Names, not an array: compilers keep arrays in memory. The asm keeps the turns apart. */
#define TURN(c)                                                                                    \
    (c) = _mm512_dpbusd_epi32(c, a, b);                                                            \
    __asm__ volatile("" : "+v"(c))

uint64_t rg_v4_int8_peak(uint64_t turns, int32_t *sink) {
    const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(2), z = _mm512_setzero_si512();
    __m512i c0 = z, c1 = z, c2 = z, c3 = z, c4 = z, c5 = z;
    __m512i c6 = z, c7 = z, c8 = z, c9 = z, c10 = z, c11 = z;
    for (uint64_t t = 0; t < turns; t++) {
        TURN(c0);
        TURN(c1);
        TURN(c2);
        TURN(c3);
        TURN(c4);
        TURN(c5);
        TURN(c6);
        TURN(c7);
        TURN(c8);
        TURN(c9);
        TURN(c10);
        TURN(c11);
    }
    c0 = _mm512_add_epi32(_mm512_add_epi32(c0, c1), _mm512_add_epi32(c2, c3));
    c4 = _mm512_add_epi32(_mm512_add_epi32(c4, c5), _mm512_add_epi32(c6, c7));
    c8 = _mm512_add_epi32(_mm512_add_epi32(c8, c9), _mm512_add_epi32(c10, c11));
    *sink = _mm512_reduce_add_epi32(_mm512_add_epi32(c0, _mm512_add_epi32(c4, c8)));
    return turns * CHAINS * sizeof(__m512i);
}
