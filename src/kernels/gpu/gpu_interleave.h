/* gpu_interleave: weights of i-quants with interleaved rows, a layout of their own for the device.
 *
 * A file keeps what 32 weights need in three or four places at even addresses, for one row. Here
 * two rows lie together, every kind of datum in a plane of its own, so that one aligned load brings
 * a lane what it needs of both rows:
 *
 *   codes   [pairs][groups] 16 bytes: low bytes of the grid's indices of both rows; with grids of
 *           eight each followed by the row's signs
 *   signs   [pairs][groups] 8 bytes, with grids of four: of both rows
 *   extra   [pairs][groups] of both rows: a byte each, the scale; or two: further bits of the
 *           indices from bit 0 on, scales from bit 8 on (of the halves where they have their own)
 *   d       [pairs][blocks] 4 bytes: the f16 scales of both rows' blocks
 *
 * Signs: bit 8 k + q belongs to value 4 q + k, so that four values' signs are one shift away from
 * the lowest bits of four bytes. Signs that a file leaves to parity are written out. Planes start
 * at multiples of 16. The second row of an odd matrix's last pair is all zeros. Formats of blocks:
 * quant/blocks.h. The codes, scales and sums are the file's: no bit of a result changes.
 */
#ifndef RG_GPU_INTERLEAVE_H
#define RG_GPU_INTERLEAVE_H

#include "base/base.h"
#include "quant/quant.h"

/* Offsets of the planes from the start of a matrix, and its size, in bytes. */
typedef struct rg_gpu_interleaved {
    uint64_t signs, extra, d, bytes;
} rg_gpu_interleaved;

/* Whether weights of this type and rows of n_in values have such a layout. */
bool rg_gpu_can_interleave(rg_type type, uint32_t n_in);
/* Of a matrix of n_out rows of n_in values, a multiple of 256; all 0 of other types. */
rg_gpu_interleaved rg_gpu_interleaved_of(rg_type type, uint32_t n_in, uint32_t n_out);
/* Pairs of rows [pair0, pair1) of the matrix `src` [n_out rows] into `dst`, which has room for all
 * of it; other pairs are left alone, so threads may share a matrix. Nothing of
 * other types. */
void rg_gpu_interleave(rg_type type, uint32_t n_in, uint32_t n_out, const void *src, void *dst,
                       uint32_t pair0, uint32_t pair1);

#endif
