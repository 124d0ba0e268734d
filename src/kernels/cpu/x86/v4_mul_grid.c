/* AVX-512 products of the grid formats. */
#include "kernels/cpu/x86/v4_mul_256.h"

/* name, block bytes, group, offset, what else */
#define FORMATS(X)                                                                                 \
    X(iq1_s, IQ1_S, 50, 32, 16, .grid = false)                                                     \
    X(iq1_m, IQ1_M, 56, 16, 16, .grid = false)                                                     \
    X(iq2_xxs, IQ2_XXS, 66, 32, 0, .grid = true)                                                   \
    X(iq2_xs, IQ2_XS, 74, 16, 0, .grid = true)                                                     \
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
