/* Unpacking of rows: the choice of the block unpacker, and the scalar types. Pure functions, any
 * thread.
 */
#include "quant/unpack.h"

typedef void unpack_fn(const void *block, float *x);

static unpack_fn *const unpackers[RG_TYPE_COUNT] = {
    [RG_TYPE_Q4_0] = rg_unpack_q4_0,       [RG_TYPE_Q4_1] = rg_unpack_q4_1,
    [RG_TYPE_Q5_0] = rg_unpack_q5_0,       [RG_TYPE_Q5_1] = rg_unpack_q5_1,
    [RG_TYPE_Q8_0] = rg_unpack_q8_0,       [RG_TYPE_Q2_K] = rg_unpack_q2_K,
    [RG_TYPE_Q3_K] = rg_unpack_q3_K,       [RG_TYPE_Q4_K] = rg_unpack_q4_K,
    [RG_TYPE_Q5_K] = rg_unpack_q5_K,       [RG_TYPE_Q6_K] = rg_unpack_q6_K,
    [RG_TYPE_IQ2_XXS] = rg_unpack_iq2_xxs, [RG_TYPE_IQ2_XS] = rg_unpack_iq2_xs,
    [RG_TYPE_IQ3_XXS] = rg_unpack_iq3_xxs, [RG_TYPE_IQ1_S] = rg_unpack_iq1_s,
    [RG_TYPE_IQ4_NL] = rg_unpack_iq4_nl,   [RG_TYPE_IQ3_S] = rg_unpack_iq3_s,
    [RG_TYPE_IQ2_S] = rg_unpack_iq2_s,     [RG_TYPE_IQ4_XS] = rg_unpack_iq4_xs,
    [RG_TYPE_IQ1_M] = rg_unpack_iq1_m,     [RG_TYPE_TQ1_0] = rg_unpack_tq1_0,
    [RG_TYPE_TQ2_0] = rg_unpack_tq2_0,     [RG_TYPE_MXFP4] = rg_unpack_mxfp4,
    [RG_TYPE_NVFP4] = rg_unpack_nvfp4,     [RG_TYPE_Q1_0] = rg_unpack_q1_0,
    [RG_TYPE_Q2_0] = rg_unpack_q2_0,
};

static void unpack_row_f16(const uint8_t *src, float *dst, size_t n) {
    for (size_t i = 0; i < n; i++)
        dst[i] = load_f16(src + 2 * i);
}

static void unpack_row_bf16(const uint8_t *src, float *dst, size_t n) {
    for (size_t i = 0; i < n; i++)
        dst[i] = bf16_to_f32(rg_load_u16(src + 2 * i));
}

void rg_unpack_row(rg_type type, const void *src, float *dst, size_t n) {
    const rg_type_info *info = rg_type_get((uint32_t)type);
    RG_ASSERT(info && info->use == RG_USE_WEIGHT);
    RG_ASSERT(n % info->block_elems == 0);
    if (n == 0) return;
    switch (type) {
    case RG_TYPE_F32:
        memcpy(dst, src, n * sizeof *dst);
        return;
    case RG_TYPE_F16:
        unpack_row_f16(src, dst, n);
        return;
    case RG_TYPE_BF16:
        unpack_row_bf16(src, dst, n);
        return;
    default:
        break;
    }
    unpack_fn *const unpack = unpackers[type];
    const uint8_t *block = src;
    for (size_t i = 0; i < n; i += info->block_elems, block += info->block_bytes) {
        unpack(block, dst + i);
    }
}
