/* AVX-512 products of the K-quants and of iq4_xs. */
#include "kernels/cpu/x86/v4_mul_256.h"

/* name, block bytes, group, offset, what else */
#define FORMATS(X)                                                                                 \
    X(q2_K, Q2_K, 84, 16, 0, .mins = true)                                                         \
    X(q3_K, Q3_K, 110, 16, 4, .grid = false)                                                       \
    X(q4_K, Q4_K, 144, 32, 0, .mins = true, .pairs = true)                                         \
    X(q5_K, Q5_K, 176, 32, 0, .mins = true, .pairs = true)                                         \
    X(q6_K, Q6_K, 210, 16, 32, .grid = false)                                                      \
    X(iq4_xs, IQ4_XS, 136, 32, 128, .wide = true)

FORMATS(V4_DEFINE)

bool rg_v4_mul_k(const v4_job *j, uint32_t r0, uint32_t r1) {
    switch (j->w->type) {
        FORMATS(V4_CASE)
    default:
        return false;
    }
}
