/* Sixteen bytes as one value: the vector type that gcc and clang share on every CPU, and the two
 * operations on top that each CPU has in its own way.
 */
#ifndef RG_KERNELS_ROW_VEC_H
#define RG_KERNELS_ROW_VEC_H

#include <string.h>

#include "quant/quant.h"

typedef uint8_t row_vec __attribute__((vector_size(16)));
typedef uint64_t row_words __attribute__((vector_size(16)));

/* row_table: table[index], index < 16. row_half: an f16. */
#if defined(__AVX2__)
#include <immintrin.h>

static inline row_vec row_table(row_vec table, row_vec index) {
    return (row_vec)_mm_shuffle_epi8((__m128i)table, (__m128i)index);
}

static inline float row_half(uint16_t h) {
    return _cvtsh_ss(h);
}
#elif defined(__aarch64__)
#include <arm_neon.h>

static inline row_vec row_table(row_vec table, row_vec index) {
    return (row_vec)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)index);
}

static inline float row_half(uint16_t h) {
    __fp16 f;
    memcpy(&f, &h, sizeof f);
    return (float)f;
}
#else
static inline row_vec row_table(row_vec table, row_vec index) {
    row_vec v = index;
    for (int i = 0; i < 16; i++)
        v[i] = table[index[i] & 15];
    return v;
}

static inline float row_half(uint16_t h) {
    return rg_f16_to_f32(h);
}
#endif

#endif
