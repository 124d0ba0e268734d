/* Sixteen bytes as one value: the vector type that gcc and clang share on every CPU. */
#ifndef RG_KERNELS_ROW_VEC_H
#define RG_KERNELS_ROW_VEC_H

#include <stdint.h>

typedef uint8_t row_vec __attribute__((vector_size(16)));
typedef uint64_t row_words __attribute__((vector_size(16)));

#endif
