/* Packing rows of f32 into blocks: the quantizers. Offline work, several instruction levels with
 * the same bits.
 *
 * Each block is searched for the least sum of w (x - xhat)^2, where w is the importance of the
 * column (mean square of what is multiplied with it), or 1. The searches are ours; what they have
 * in common with the reference quantizers (GGUF format notes, part E) is the block layouts.
 */
#ifndef RG_QUANT_PACKER_H
#define RG_QUANT_PACKER_H

#include "quant/quant.h"

/* Whether rows of this type can be made: f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_K ..
 * q6_K, iq1_s, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s, iq4_nl, iq4_xs, q2_0, mxfp4. */
bool rg_pack_can(rg_type type);

/* Working memory of one thread for one type. */
size_t rg_pack_scratch_bytes(rg_type type);

typedef struct rg_packer {
    rg_type type;
    rg_cpu_level level; /* one that runs here; any gives the same bytes */
    void *scratch;      /* rg_pack_scratch_bytes, 64-aligned; of one thread */
} rg_packer;

/* Packs `n` finite elements, a multiple of the block, to `dst` [rg_row_bytes]. `importance` [n] >=
 * 0, or NULL. Columns of no importance keep a small one; a row of none counts as all ones. */
void rg_pack_row(const rg_packer *p, const float *x, const float *importance, void *dst, size_t n);

/* q8_0 without a search, for a conversion that others can repeat bit for bit: the scale is peak /
 * 127 rounded to f16, the codes are the nearest (ties to even) under that rounded scale. */
void rg_pack_q8_0_plain(const float *x, void *dst, size_t n);

#endif
