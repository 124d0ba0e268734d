/* quant: block formats of GGUF tensors. Layouts, sizes, the scalar reference unpack, and the
 * activation quantizers. This room defines the formats; every kernel is tested by it.
 *
 * Blocks are packed and unaligned: read them through memcpy or bytes, never through wider casts.
 * Multi-byte fields are little-endian (the only byte order supported).
 */
#ifndef RG_QUANT_H
#define RG_QUANT_H

#include "base/base.h"
#include "quant/blocks.h"

/* GGUF tensor type ids (ggml numbering). Retired ids are absent. */
typedef enum rg_type {
    RG_TYPE_F32 = 0,
    RG_TYPE_F16 = 1,
    RG_TYPE_Q4_0 = 2,
    RG_TYPE_Q4_1 = 3,
    RG_TYPE_Q5_0 = 6,
    RG_TYPE_Q5_1 = 7,
    RG_TYPE_Q8_0 = 8,
    RG_TYPE_Q8_1 = 9, /* activation only */
    RG_TYPE_Q2_K = 10,
    RG_TYPE_Q3_K = 11,
    RG_TYPE_Q4_K = 12,
    RG_TYPE_Q5_K = 13,
    RG_TYPE_Q6_K = 14,
    RG_TYPE_Q8_K = 15, /* activation only */
    RG_TYPE_IQ2_XXS = 16,
    RG_TYPE_IQ2_XS = 17,
    RG_TYPE_IQ3_XXS = 18,
    RG_TYPE_IQ1_S = 19,
    RG_TYPE_IQ4_NL = 20,
    RG_TYPE_IQ3_S = 21,
    RG_TYPE_IQ2_S = 22,
    RG_TYPE_IQ4_XS = 23,
    RG_TYPE_I8 = 24,
    RG_TYPE_I16 = 25,
    RG_TYPE_I32 = 26,
    RG_TYPE_I64 = 27,
    RG_TYPE_F64 = 28,
    RG_TYPE_IQ1_M = 29,
    RG_TYPE_BF16 = 30,
    RG_TYPE_TQ1_0 = 34,
    RG_TYPE_TQ2_0 = 35,
    RG_TYPE_MXFP4 = 39,
    RG_TYPE_NVFP4 = 40,
    RG_TYPE_Q1_0 = 41,
    RG_TYPE_Q2_0 = 42,
    RG_TYPE_COUNT = 43
} rg_type;

typedef enum rg_type_use {
    RG_USE_NONE,       /* retired or unassigned id */
    RG_USE_WEIGHT,     /* storable and computable */
    RG_USE_ACTIVATION, /* valid but never stored in a file */
    RG_USE_AUX         /* integers and F64: storable, not computable */
} rg_type_use;

typedef struct rg_type_info {
    const char *name;     /* as the format spells it: "q4_K", "iq2_xxs", "mxfp4", "f32" */
    uint32_t block_elems; /* N */
    uint32_t block_bytes;
    rg_type_use use;
} rg_type_info;

/* NULL for an id without meaning. */
const rg_type_info *rg_type_get(uint32_t id);
/* Looks a name up, ignoring case; false if unknown. */
bool rg_type_by_name(const char *name, rg_type *out);

/* Bytes of a row of `n` elements; 0 when n is not a multiple of the block, the type has no meaning,
 * or the product does not fit. */
size_t rg_row_bytes(rg_type type, size_t n);

/* Unpacks `n` elements (a multiple of the block) of blocks `src` to f32 `dst` [n]. The definition
 * of each format, bit-equal to the golden vectors. `type` must be RG_USE_WEIGHT. */
void rg_unpack_row(rg_type type, const void *src, float *dst, size_t n);

/* First non-finite scale or value in `n_blocks` blocks: true and `*block` set; false if all are
 * finite (the "check tensors" pass). */
bool rg_blocks_find_nonfinite(rg_type type, const void *src, size_t n_blocks, size_t *block);

/* ---- numeric primitives --------------------------------------------------------------------- */

float rg_f16_to_f32(uint16_t h);  /* exact */
uint16_t rg_f32_to_f16(float f);  /* nearest even, overflow to infinity, subnormals kept */
float rg_bf16_to_f32(uint16_t h); /* exact */
uint16_t rg_f32_to_bf16(float f); /* nearest even, NaN stays a quiet NaN */

/* ---- activations ---------------------------------------------------------------------------- */

/* 32 activations: scale f16, codes -127..127. Rule: d = amax/127, code = x*(1/d) rounded half away
 * from zero, d then rounded to f16. */
typedef struct rg_block_q8_0 {
    uint16_t d;
    int8_t qs[32];
} rg_block_q8_0;
_Static_assert(sizeof(rg_block_q8_0) == 34, "q8_0 block");

typedef struct rg_block_q8_1 {
    uint16_t d;
    uint16_t s; /* f16(d * sum of codes), unrounded d */
    int8_t qs[32];
} rg_block_q8_1;
_Static_assert(sizeof(rg_block_q8_1) == 36, "q8_1 block");

/* 256 activations: f32 scale (its sign is opposite to that of the largest element), codes, sums of
 * 16 codes each. */
typedef struct rg_block_q8_K {
    float d;
    int8_t qs[256];
    int16_t bsums[16];
} rg_block_q8_K;
_Static_assert(sizeof(rg_block_q8_K) == 292, "q8_K block");

/* `n` is a multiple of the block (32, 32, 256). The rules of act_golden_q8.txt. Where the scale's
 * inverse or an element is not finite, codes are clamped to -127..127 and a NaN gets code 0; an
 * infinite element makes `d` infinite. */
void rg_quantize_row_q8_0(const float *x, rg_block_q8_0 *y, size_t n);
void rg_quantize_row_q8_1(const float *x, rg_block_q8_1 *y, size_t n);
void rg_quantize_row_q8_K(const float *x, rg_block_q8_K *y, size_t n);

/* ---- tables (generated from the published grids by tools/gen_tables.py) ------------------------
 */

extern const uint64_t rg_grid_iq2xxs[256]; /* 8 unsigned bytes an entry, element j = byte j */
extern const uint64_t rg_grid_iq2xs[512];
extern const uint64_t rg_grid_iq2s[1024];
extern const uint64_t rg_grid_iq1s[2048];  /* 8 signed bytes an entry */
extern const uint32_t rg_grid_iq3xxs[256]; /* 4 unsigned bytes an entry */
extern const uint32_t rg_grid_iq3s[512];
extern const uint8_t rg_ksigns_iq2xs[128]; /* 7-bit sign code -> 8-bit mask, even parity */
extern const int8_t rg_kvalues_iq4nl[16];
extern const int8_t rg_kvalues_mxfp4[16]; /* doubled E2M1 */

#include "quant/packer.h" /* packing: the other direction */

#endif
