/* The table of tensor types: names, block sizes, use. Constant data, any thread. */
#include "quant/quant.h"

#include <strings.h>

static const rg_type_info type_infos[RG_TYPE_COUNT] = {
    [RG_TYPE_F32] = {"f32", 1, 4, RG_USE_WEIGHT},
    [RG_TYPE_F16] = {"f16", 1, 2, RG_USE_WEIGHT},
    [RG_TYPE_Q4_0] = {"q4_0", 32, sizeof(rg_block_q4_0), RG_USE_WEIGHT},
    [RG_TYPE_Q4_1] = {"q4_1", 32, sizeof(rg_block_q4_1), RG_USE_WEIGHT},
    [RG_TYPE_Q5_0] = {"q5_0", 32, sizeof(rg_block_q5_0), RG_USE_WEIGHT},
    [RG_TYPE_Q5_1] = {"q5_1", 32, sizeof(rg_block_q5_1), RG_USE_WEIGHT},
    [RG_TYPE_Q8_0] = {"q8_0", 32, sizeof(rg_block_q8_0), RG_USE_WEIGHT},
    [RG_TYPE_Q8_1] = {"q8_1", 32, sizeof(rg_block_q8_1), RG_USE_ACTIVATION},
    [RG_TYPE_Q2_K] = {"q2_K", 256, sizeof(rg_block_q2_K), RG_USE_WEIGHT},
    [RG_TYPE_Q3_K] = {"q3_K", 256, sizeof(rg_block_q3_K), RG_USE_WEIGHT},
    [RG_TYPE_Q4_K] = {"q4_K", 256, sizeof(rg_block_q4_K), RG_USE_WEIGHT},
    [RG_TYPE_Q5_K] = {"q5_K", 256, sizeof(rg_block_q5_K), RG_USE_WEIGHT},
    [RG_TYPE_Q6_K] = {"q6_K", 256, sizeof(rg_block_q6_K), RG_USE_WEIGHT},
    [RG_TYPE_Q8_K] = {"q8_K", 256, sizeof(rg_block_q8_K), RG_USE_ACTIVATION},
    [RG_TYPE_IQ2_XXS] = {"iq2_xxs", 256, sizeof(rg_block_iq2_xxs), RG_USE_WEIGHT},
    [RG_TYPE_IQ2_XS] = {"iq2_xs", 256, sizeof(rg_block_iq2_xs), RG_USE_WEIGHT},
    [RG_TYPE_IQ3_XXS] = {"iq3_xxs", 256, sizeof(rg_block_iq3_xxs), RG_USE_WEIGHT},
    [RG_TYPE_IQ1_S] = {"iq1_s", 256, sizeof(rg_block_iq1_s), RG_USE_WEIGHT},
    [RG_TYPE_IQ4_NL] = {"iq4_nl", 32, sizeof(rg_block_iq4_nl), RG_USE_WEIGHT},
    [RG_TYPE_IQ3_S] = {"iq3_s", 256, sizeof(rg_block_iq3_s), RG_USE_WEIGHT},
    [RG_TYPE_IQ2_S] = {"iq2_s", 256, sizeof(rg_block_iq2_s), RG_USE_WEIGHT},
    [RG_TYPE_IQ4_XS] = {"iq4_xs", 256, sizeof(rg_block_iq4_xs), RG_USE_WEIGHT},
    [RG_TYPE_I8] = {"i8", 1, 1, RG_USE_AUX},
    [RG_TYPE_I16] = {"i16", 1, 2, RG_USE_AUX},
    [RG_TYPE_I32] = {"i32", 1, 4, RG_USE_AUX},
    [RG_TYPE_I64] = {"i64", 1, 8, RG_USE_AUX},
    [RG_TYPE_F64] = {"f64", 1, 8, RG_USE_AUX},
    [RG_TYPE_IQ1_M] = {"iq1_m", 256, sizeof(rg_block_iq1_m), RG_USE_WEIGHT},
    [RG_TYPE_BF16] = {"bf16", 1, 2, RG_USE_WEIGHT},
    [RG_TYPE_TQ1_0] = {"tq1_0", 256, sizeof(rg_block_tq1_0), RG_USE_WEIGHT},
    [RG_TYPE_TQ2_0] = {"tq2_0", 256, sizeof(rg_block_tq2_0), RG_USE_WEIGHT},
    [RG_TYPE_MXFP4] = {"mxfp4", 32, sizeof(rg_block_mxfp4), RG_USE_WEIGHT},
    [RG_TYPE_NVFP4] = {"nvfp4", 64, sizeof(rg_block_nvfp4), RG_USE_WEIGHT},
    [RG_TYPE_Q1_0] = {"q1_0", 128, sizeof(rg_block_q1_0), RG_USE_WEIGHT},
    [RG_TYPE_Q2_0] = {"q2_0", 64, sizeof(rg_block_q2_0), RG_USE_WEIGHT},
};

const rg_type_info *rg_type_get(uint32_t id) {
    if (id >= RG_TYPE_COUNT || type_infos[id].use == RG_USE_NONE) return NULL;
    return &type_infos[id];
}

bool rg_type_by_name(const char *name, rg_type *out) {
    for (uint32_t id = 0; id < RG_TYPE_COUNT; id++) {
        const rg_type_info *info = rg_type_get(id);
        if (info && strcasecmp(info->name, name) == 0) {
            *out = (rg_type)id;
            return true;
        }
    }
    return false;
}

size_t rg_row_bytes(rg_type type, size_t n) {
    const rg_type_info *info = rg_type_get((uint32_t)type);
    size_t bytes = 0;
    if (!info || n % info->block_elems != 0) return 0;
    if (__builtin_mul_overflow(n / info->block_elems, (size_t)info->block_bytes, &bytes)) return 0;
    return bytes;
}
