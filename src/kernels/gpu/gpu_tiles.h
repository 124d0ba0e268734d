/* gpu_tiles: shapes of products that a measurement found to be the best on one device, kept in a
 * file. A shape changes no bit of a result, only its time, so a file can make things slow at worst.
 *
 * The file is text. First line: "regolith-gpu-tiles 2", vendor, device and driver in hexadecimal,
 * number of lines. Then a line for each product: its kind, the weights' type, whether gate and up
 * are joined, whether it makes codes itself, n_in, n_out, columns, rows of a second matrix in the
 * same dispatch; then the shape: rows of a lane, side, depth, 1 for a loop that stays one, 1 for
 * tiles without matrix units. Tiles of experts have one shape for gate, up and down, as they share
 * a list; the line is that of the gate. Last line: "hash" and the XXH3 of everything before it.
 * What does not read so, all of it, is left alone.
 */
#ifndef RG_GPU_TILES_H
#define RG_GPU_TILES_H

#include "kernels/gpu/gpu_ops.h"

#define RG_GPU_TILES_MAX 4096u

typedef enum rg_gpu_tile_op {
    RG_GPU_OP_ROWS,    /* rg_gpu_mul of up to RG_GPU_ROWS_MAX columns */
    RG_GPU_OP_SLOTS,   /* rg_gpu_mul_slots */
    RG_GPU_OP_TILES,   /* rg_gpu_mul of more */
    RG_GPU_OP_EXPERTS, /* rg_gpu_mul_tiles: gate, up and down of a layer */
    RG_GPU_OP_COUNT
} rg_gpu_tile_op;
const char *rg_gpu_tile_op_name(rg_gpu_tile_op op); /* rows, slots, tiles, experts */

/* Which products a shape is for. */
typedef struct rg_gpu_tile_key {
    rg_gpu_tile_op op;
    rg_type type;
    bool fused, coding;
    uint32_t n_in, n_out;
    uint32_t n;      /* 1, 2, 4 or 8 columns of rows; 1 of slots; columns of tiles or slots of
                        experts as measured */
    uint32_t n_out2; /* of a second matrix; 0: none */
} rg_gpu_tile_key;

typedef struct rg_gpu_tile {
    rg_gpu_tile_key key;
    uint32_t group_rows, side, depth; /* as in rg_gpu_product_way; 0: its own choice */
    bool loop, no_matrix;
} rg_gpu_tile;

typedef struct rg_gpu_tiles {
    rg_gpu_tile *all; /* [n] */
    uint32_t n;
} rg_gpu_tiles;

/* The key that a product has; its n is rounded up to one that is measured. */
rg_gpu_tile_key rg_gpu_tile_key_of(rg_gpu_tile_op op, const rg_gpu_product *p,
                                   const rg_gpu_product_way *way);
bool rg_gpu_tile_same(const rg_gpu_tile_key *a, const rg_gpu_tile_key *b);
/* Gives `way` the shape of a tile; what the caller has chosen already stays. */
void rg_gpu_tile_put(const rg_gpu_tile *tile, rg_gpu_product_way *way);
/* The table's tile for the key of a product; NULL: there is none. */
const rg_gpu_tile *rg_gpu_tiles_find(const rg_gpu_tiles *tiles, const rg_gpu_tile_key *key);
/* Gives `way` the shape of the table's tile for the product; false: there is none. Tiles measured
 * with more columns than the product has are not for it. */
bool rg_gpu_tiles_choose(const rg_gpu_tiles *tiles, rg_gpu_tile_op op, const rg_gpu_product *p,
                         rg_gpu_product_way *way);

/* Where the table of a device lies: beside the file of compiled kernels. A new string; NULL: no
 * memory. */
char *rg_gpu_tiles_path(const char *cache_path, const rg_gpu_info *info, rg_status *st);
/* IO: there is no such file. FORMAT: damaged. UNSUPPORTED: of another device or driver. *out is
 * empty then. */
RG_MUST_CHECK rg_code rg_gpu_tiles_read(rg_gpu_tiles *out, const char *path,
                                        const rg_gpu_info *info, rg_status *st);
RG_MUST_CHECK rg_code rg_gpu_tiles_write(const rg_gpu_tiles *tiles, const char *path,
                                         const rg_gpu_info *info, rg_status *st);
void rg_gpu_tiles_deinit(rg_gpu_tiles *tiles);

/* Shapes worth measuring for a product, the usual one (all 0) first; returns how many. */
#define RG_GPU_CANDIDATES_MAX 20u
uint32_t rg_gpu_tile_candidates(rg_gpu_tile out[RG_GPU_CANDIDATES_MAX], const rg_gpu_tile_key *key,
                                const rg_gpu_info *info);

#endif
