/* f32 to and from f16: the exact rules of quant, written without branches for vector code. */
#include "kernels/cpu/levels.h"
#include "kernels/cpu/ref/math_inline.h"

/* Nearest even, overflow to infinity, subnormals kept. Three candidates by integer and float
 * arithmetic, one selected: normal halves round in the integer domain; for subnormal halves adding
 * 2^-1 * ... aligns the mantissa so that the float unit rounds; the rest are infinity and NaN. */
static inline uint16_t to_f16(float f) {
    const uint32_t u = rg_f32_bits(f);
    const uint32_t sign = (u >> 16) & 0x8000u;
    const uint32_t a = u & 0x7FFFFFFFu;
    const uint32_t normal = (a - 0x38000000u + 0x0FFFu + ((a >> 13) & 1u)) >> 13;
    const uint32_t subnormal = rg_f32_bits(rg_bits_f32(a) + 0.5f) - 0x3F000000u;
    const uint32_t special = a > 0x7F800000u ? 0x7E00u | ((a >> 13) & 0x1FFu) : 0x7C00u;
    uint32_t h = a < 0x38800000u ? subnormal : normal;
    h = a >= 0x477FF000u ? special : h;
    return (uint16_t)(sign | h);
}

static inline float from_f16(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t a = h & 0x7FFFu;
    const uint32_t normal = (a << 13) + 0x38000000u;
    /* Subnormal: the mantissa as an integer times 2^-24, exact. */
    const uint32_t subnormal = rg_f32_bits((float)(int32_t)a * 0x1p-24f);
    uint32_t u = a < 0x0400u ? subnormal : normal;
    /* A NaN becomes quiet, as the conversion instructions have it. */
    const uint32_t quiet = a > 0x7C00u ? 0x00400000u : 0;
    u = a >= 0x7C00u ? ((a << 13) + 0x70000000u) | quiet : u;
    return rg_bits_f32(sign | u);
}

void RG_OP(store)(const float *x, void *dst, bool f16, uint32_t n) {
    if (!f16) {
        memcpy(dst, x, (size_t)n * sizeof *x);
        return;
    }
    uint16_t *restrict y = dst;
    for (uint32_t i = 0; i < n; i++)
        y[i] = to_f16(x[i]);
}

void RG_OP(load)(const void *src, bool f16, float *restrict y, uint32_t n) {
    if (!f16) {
        memcpy(y, src, (size_t)n * sizeof *y);
        return;
    }
    const uint16_t *restrict x = src;
    for (uint32_t i = 0; i < n; i++)
        y[i] = from_f16(x[i]);
}
