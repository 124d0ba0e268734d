/* The packers of one instruction level. */
#include "quant/pack/packer_parts.h"

pack_block_fn *const RG_PACK_JOIN(rg_pack_table, RG_LEVEL)[RG_TYPE_COUNT] = {
    [RG_TYPE_Q4_0] = LV(q4_0),       [RG_TYPE_Q4_1] = LV(q4_1),       [RG_TYPE_Q5_0] = LV(q5_0),
    [RG_TYPE_Q5_1] = LV(q5_1),       [RG_TYPE_Q8_0] = LV(q8_0),       [RG_TYPE_Q2_K] = LV(q2_K),
    [RG_TYPE_Q3_K] = LV(q3_K),       [RG_TYPE_Q4_K] = LV(q4_K),       [RG_TYPE_Q5_K] = LV(q5_K),
    [RG_TYPE_Q6_K] = LV(q6_K),       [RG_TYPE_IQ2_XXS] = LV(iq2_xxs), [RG_TYPE_IQ2_XS] = LV(iq2_xs),
    [RG_TYPE_IQ3_XXS] = LV(iq3_xxs), [RG_TYPE_IQ1_S] = LV(iq1_s),     [RG_TYPE_IQ4_NL] = LV(iq4_nl),
    [RG_TYPE_IQ3_S] = LV(iq3_s),     [RG_TYPE_IQ2_S] = LV(iq2_s),     [RG_TYPE_IQ4_XS] = LV(iq4_xs),
    [RG_TYPE_MXFP4] = LV(mxfp4),     [RG_TYPE_Q2_0] = LV(q2_0),
};
