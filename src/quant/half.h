/* f16 and bf16 conversions for inlining into the loops of this room. Private; the door offers the
 * same as functions.
 *
 * Needs the default rounding mode, and subnormals neither flushed nor read as zero.
 */
#ifndef RG_QUANT_HALF_H
#define RG_QUANT_HALF_H

#include <stdint.h>
#include <string.h>

static inline float bits_to_f32(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t f32_to_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* The exponent field is moved into place and its bias put right by one exact multiplication, which
 * normalises subnormals too. Infinity and NaN take the widest exponent instead; a NaN keeps its
 * payload and becomes quiet, as the conversion instructions have it. */
static inline float f16_to_f32(uint16_t h) {
    const uint32_t magnitude = h & 0x7fffu;
    const uint32_t wide = magnitude << 13;
    const uint32_t finite = f32_to_bits(bits_to_f32(wide) * 0x1p112f);
    const uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0;
    const uint32_t bits = magnitude < 0x7c00u ? finite : wide | 0x7f800000u | quiet;
    return bits_to_f32(bits | (uint32_t)(h & 0x8000u) << 16);
}

static inline uint16_t f32_to_f16(float f) {
    const uint32_t sign = (f32_to_bits(f) >> 16) & 0x8000u;
    const uint32_t magnitude = f32_to_bits(f) & 0x7fffffffu;
    /* Below 2^-14: at 0.5 the last place of f32 is 2^-24, the step of f16 subnormals, so the
     * addition does the rounding. */
    const uint32_t small = f32_to_bits(bits_to_f32(magnitude) + 0.5f) - 0x3f000000u;
    /* Rebias the exponent by 112, round half to even at bit 13; a carry moves the exponent on. */
    const uint32_t odd = (magnitude >> 13) & 1u;
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + odd) >> 13;
    uint32_t bits = magnitude < 0x38800000u ? small : normal;
    if (magnitude >= 0x477ff000u) bits = 0x7c00u; /* 65520 and up round to infinity */
    if (magnitude > 0x7f800000u) bits = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    return (uint16_t)(bits | sign);
}

static inline float bf16_to_f32(uint16_t h) {
    return bits_to_f32((uint32_t)h << 16);
}

static inline uint16_t f32_to_bf16(float f) {
    const uint32_t bits = f32_to_bits(f);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t nan = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

#endif
