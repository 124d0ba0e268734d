/* The f16 and bf16 conversions of the door. Pure functions, any thread. */
#include "quant/half.h"

#include "quant/quant.h"

float rg_f16_to_f32(uint16_t h) {
    return f16_to_f32(h);
}

uint16_t rg_f32_to_f16(float f) {
    return f32_to_f16(f);
}

float rg_bf16_to_f32(uint16_t h) {
    return bf16_to_f32(h);
}

uint16_t rg_f32_to_bf16(float f) {
    return f32_to_bf16(f);
}
