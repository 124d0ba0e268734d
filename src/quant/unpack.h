/* Block unpackers, one per format: `block` at any address, its elements to `x` [block_elems] f32.
 * Private; rg_unpack_row is the door.
 *
 * Every product of scale and code is exact in f32, and the formats with a min round once, in their
 * last addition: so any faithful implementation gives the same bits. The sign of zero is that of
 * `scale * (float)code`.
 */
#ifndef RG_QUANT_UNPACK_H
#define RG_QUANT_UNPACK_H

#include "quant/half.h"
#include "quant/quant.h"

static inline float load_f16(const uint8_t p[2]) {
    return f16_to_f32(rg_load_u16(p));
}

/* unpack_legacy.c */
void rg_unpack_q4_0(const void *block, float *x);
void rg_unpack_q4_1(const void *block, float *x);
void rg_unpack_q5_0(const void *block, float *x);
void rg_unpack_q5_1(const void *block, float *x);
void rg_unpack_q8_0(const void *block, float *x);

/* unpack_k.c */
void rg_unpack_q2_K(const void *block, float *x);
void rg_unpack_q3_K(const void *block, float *x);
void rg_unpack_q4_K(const void *block, float *x);
void rg_unpack_q5_K(const void *block, float *x);
void rg_unpack_q6_K(const void *block, float *x);

/* unpack_iq.c: codebook formats */
void rg_unpack_iq1_s(const void *block, float *x);
void rg_unpack_iq1_m(const void *block, float *x);
void rg_unpack_iq2_xxs(const void *block, float *x);
void rg_unpack_iq2_xs(const void *block, float *x);
void rg_unpack_iq2_s(const void *block, float *x);
void rg_unpack_iq3_xxs(const void *block, float *x);
void rg_unpack_iq3_s(const void *block, float *x);

/* unpack_table.c: 4-bit codes into a table of 16 values */
void rg_unpack_iq4_nl(const void *block, float *x);
void rg_unpack_iq4_xs(const void *block, float *x);
void rg_unpack_mxfp4(const void *block, float *x);
void rg_unpack_nvfp4(const void *block, float *x);

/* unpack_ternary.c: one and two bits, base-3 digits */
void rg_unpack_q1_0(const void *block, float *x);
void rg_unpack_q2_0(const void *block, float *x);
void rg_unpack_tq1_0(const void *block, float *x);
void rg_unpack_tq2_0(const void *block, float *x);

#endif
