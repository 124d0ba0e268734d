/* Formats of 32 elements with one f16 scale, some with an f16 min: q4_0, q4_1, q5_0, q5_1, q8_0
 * (GGUF block formats). Pure functions, any thread.
 */
#include "quant/unpack.h"

void rg_unpack_q4_0(const void *block, float *x) {
    const rg_block_q4_0 *b = block;
    const float d = load_f16(b->d);
    for (unsigned j = 0; j < 16; j++) {
        x[j] = d * (float)((b->qs[j] & 15) - 8);
        x[j + 16] = d * (float)((b->qs[j] >> 4) - 8);
    }
}

void rg_unpack_q4_1(const void *block, float *x) {
    const rg_block_q4_1 *b = block;
    const float d = load_f16(b->d);
    const float m = load_f16(b->m);
    for (unsigned j = 0; j < 16; j++) {
        x[j] = d * (float)(b->qs[j] & 15) + m;
        x[j + 16] = d * (float)(b->qs[j] >> 4) + m;
    }
}

/* 5-bit code of element `i` (0..31): a nibble of `qs` and bit i of `qh`. */
static int code5(const uint8_t qs[16], uint32_t qh, unsigned i) {
    const unsigned pair = qs[i % 16];
    const unsigned low = i < 16 ? pair & 15 : pair >> 4;
    return (int)(low | ((qh >> i) & 1u) << 4);
}

void rg_unpack_q5_0(const void *block, float *x) {
    const rg_block_q5_0 *b = block;
    const float d = load_f16(b->d);
    const uint32_t qh = rg_load_u32(b->qh);
    for (unsigned i = 0; i < 32; i++)
        x[i] = d * (float)(code5(b->qs, qh, i) - 16);
}

void rg_unpack_q5_1(const void *block, float *x) {
    const rg_block_q5_1 *b = block;
    const float d = load_f16(b->d);
    const float m = load_f16(b->m);
    const uint32_t qh = rg_load_u32(b->qh);
    for (unsigned i = 0; i < 32; i++)
        x[i] = d * (float)code5(b->qs, qh, i) + m;
}

void rg_unpack_q8_0(const void *block, float *x) {
    rg_block_q8_0 b; /* a copy: the struct is aligned to 2, stored blocks are not */
    memcpy(&b, block, sizeof b);
    const float d = f16_to_f32(b.d);
    for (unsigned j = 0; j < 32; j++)
        x[j] = d * (float)b.qs[j];
}
