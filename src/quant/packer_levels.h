/* Tables of the packers, one for each instruction level that was built. Private to the room. */
#ifndef RG_QUANT_PACKER_LEVELS_H
#define RG_QUANT_PACKER_LEVELS_H

#include "quant/quant.h"

/* Working memory of the codebook formats. */
#define RG_PACK_GRID_BYTES    ((size_t)832 << 10)
#define RG_PACK_TERNARY_BYTES ((size_t)1088 << 10)

/* One block of a format to dst. `w` are positive weights. */
typedef void pack_block_fn(const float *x, const float *w, uint8_t *dst, void *scratch);

extern pack_block_fn *const rg_pack_table_scalar[RG_TYPE_COUNT];
extern pack_block_fn *const rg_pack_table_v3[RG_TYPE_COUNT];
extern pack_block_fn *const rg_pack_table_v4[RG_TYPE_COUNT];
extern pack_block_fn *const rg_pack_table_neon[RG_TYPE_COUNT];

#endif
