/* One- and two-bit formats with one f16 scale, and base-3 digits: q1_0, q2_0, tq1_0, tq2_0 (GGUF
 * block formats). Pure functions, any thread.
 */
#include "quant/unpack.h"

void rg_unpack_q1_0(const void *block, float *x) {
    const rg_block_q1_0 *b = block;
    const float d = load_f16(b->d);
    for (unsigned j = 0; j < 128; j++)
        x[j] = (b->qs[j / 8] >> (j % 8)) & 1 ? d : -d;
}

void rg_unpack_q2_0(const void *block, float *x) {
    const rg_block_q2_0 *b = block;
    const float d = load_f16(b->d);
    for (unsigned j = 0; j < 64; j++) {
        x[j] = d * (float)(((b->qs[j / 4] >> (2 * (j % 4))) & 3) - 1);
    }
}

void rg_unpack_tq2_0(const void *block, float *x) {
    const rg_block_tq2_0 *b = block;
    const float d = load_f16(b->d);
    for (unsigned i = 0; i < 256; i++) {
        const unsigned code = ((unsigned)b->qs[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4))) & 3u;
        x[i] = d * (float)((int)code - 1);
    }
}

/* The first `n_digits` base-3 digits of `n` bytes, digit k of byte m to element k n + m. A byte is
 * the fraction of 256 that the digits spell, rounded up, so multiplying it by 3 moves the next
 * digit above bit 7. */
static void put_digits(float *x, float d, const uint8_t *bytes, unsigned n, unsigned n_digits) {
    unsigned power = 1;
    for (unsigned k = 0; k < n_digits; k++, power *= 3) {
        for (unsigned m = 0; m < n; m++) {
            const unsigned fraction = bytes[m] * power & 255u;
            x[k * n + m] = d * (float)((int)(3 * fraction >> 8) - 1);
        }
    }
}

void rg_unpack_tq1_0(const void *block, float *x) {
    const rg_block_tq1_0 *b = block;
    const float d = load_f16(b->d);
    put_digits(x, d, b->qs, 32, 5);
    put_digits(x + 160, d, b->qs + 32, 16, 5);
    put_digits(x + 240, d, b->qh, 4, 4);
}
