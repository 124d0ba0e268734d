/* Formats whose 4-bit codes choose one of 16 fixed values: iq4_nl, iq4_xs, mxfp4, nvfp4 (GGUF block
 * formats; the last two are the OCP microscaling and NVIDIA fp4 formats). Pure functions, any
 * thread.
 */
#include "quant/unpack.h"

/* 2 n elements from n bytes: low nibbles are the first half, high nibbles the second. */
static void put_nibbles(float *x, float scale, const uint8_t *qs, unsigned n,
                        const int8_t values[16]) {
    for (unsigned j = 0; j < n; j++) {
        x[j] = scale * (float)values[qs[j] & 15];
        x[j + n] = scale * (float)values[qs[j] >> 4];
    }
}

/* Half of the E8M0 scale 2^(e - 127), because the code values are doubled; subnormal for e < 2. */
static float half_e8m0(uint8_t e) {
    return bits_to_f32(e < 2 ? 0x00200000u << e : (e - 1u) << 23);
}

/* Half of the UE4M3 scale. Bit 7 is ignored, except that only 0x7f is the special value (zero). */
static float half_ue4m3(uint8_t b) {
    if (b == 0x7f) return 0.0f;
    const uint32_t exponent = (b >> 3) & 15;
    const uint32_t mantissa = b & 7;
    if (exponent == 0) return (float)mantissa * 0x1p-10f;
    return bits_to_f32((exponent - 8 + 127) << 23 | mantissa << 20);
}

void rg_unpack_iq4_nl(const void *block, float *x) {
    const rg_block_iq4_nl *b = block;
    put_nibbles(x, load_f16(b->d), b->qs, 16, rg_kvalues_iq4nl);
}

void rg_unpack_iq4_xs(const void *block, float *x) {
    const rg_block_iq4_xs *b = block;
    const float d = load_f16(b->d);
    const unsigned high = rg_load_u16(b->scales_h);
    for (unsigned g = 0; g < 8; g++) {
        const unsigned low4 = ((unsigned)b->scales_l[g / 2] >> (4 * (g % 2))) & 15u;
        const int sc = (int)(low4 | ((high >> (2 * g)) & 3u) << 4) - 32;
        put_nibbles(x + 32 * g, d * (float)sc, b->qs + 16 * g, 16, rg_kvalues_iq4nl);
    }
}

void rg_unpack_mxfp4(const void *block, float *x) {
    const rg_block_mxfp4 *b = block;
    put_nibbles(x, half_e8m0(b->e), b->qs, 16, rg_kvalues_mxfp4);
}

void rg_unpack_nvfp4(const void *block, float *x) {
    const rg_block_nvfp4 *b = block;
    for (unsigned s = 0; s < 4; s++) {
        put_nibbles(x + 16 * s, half_ue4m3(b->d[s]), b->qs + 8 * s, 8, rg_kvalues_mxfp4);
    }
}
