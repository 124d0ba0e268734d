/* The product with what every 64-bit ARM has. */
#include <arm_neon.h>

/* |w| <= 128 and |y| <= 127: a product fits 16 bits, two of them do not, hence the widening sum. */
static inline int32x4_t neon_dot16(int32x4_t acc, int8x16_t w, int8x16_t y) {
    acc = vpadalq_s16(acc, vmull_s8(vget_low_s8(w), vget_low_s8(y)));
    return vpadalq_s16(acc, vmull_high_s8(w, y));
}

#include "kernels/cpu/arm/neon_rows.h"

bool rg_neon_mul_plain(const neon_job *j, uint32_t r0, uint32_t r1) {
    return neon_rows(j, r0, r1);
}
