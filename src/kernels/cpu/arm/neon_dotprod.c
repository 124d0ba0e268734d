/* The product with sdot: four byte products a lane. */
#include <arm_neon.h>

static inline int32x4_t neon_dot16(int32x4_t acc, int8x16_t w, int8x16_t y) {
    return vdotq_s32(acc, w, y);
}

#include "kernels/cpu/arm/neon_rows.h"

bool rg_neon_mul_dotprod(const neon_job *j, uint32_t r0, uint32_t r1) {
    return neon_rows(j, r0, r1);
}
