#include "kernels/cpu/levels.h"

#define TABLE_PASTE(level)  rg_ops_table_##level
#define TABLE_EXPAND(level) TABLE_PASTE(level)

#ifndef RG_LEVEL_MUL
#define RG_LEVEL_MUL RG_OP(mul)
#endif
#ifndef RG_LEVEL_ATTENTION
#define RG_LEVEL_ATTENTION RG_OP(attention)
#endif
#ifndef RG_LEVEL_INDEX_SCORES
#define RG_LEVEL_INDEX_SCORES RG_OP(index_scores)
#endif
#ifndef RG_LEVEL_GDN
#define RG_LEVEL_GDN RG_OP(gdn_steps)
#endif
#ifndef RG_LEVEL_PEAK
#define RG_LEVEL_PEAK NULL
#endif

const rg_ops TABLE_EXPAND(RG_LEVEL) = {
    .level = RG_LEVEL_ID,
    .mul = RG_LEVEL_MUL,
    .quantize = RG_OP(quantize),
    .dot = RG_OP(dot),
    .rms_norm = RG_OP(rms_norm),
    .l2_norm = RG_OP(l2_norm),
    .silu_div = RG_OP(silu_div),
    .silu_mul = RG_OP(silu_mul),
    .sigmoid_mul = RG_OP(sigmoid_mul),
    .sigmoid = RG_OP(sigmoid),
    .gdn_decay = RG_OP(gdn_decay),
    .hc_mix = RG_OP(hc_mix),
    .axpy = RG_OP(axpy),
    .add = RG_OP(add),
    .route_weights = RG_OP(route_weights),
    .conv_silu = RG_OP(conv_silu),
    .gdn_steps = RG_LEVEL_GDN,
    .rope = RG_OP(rope),
    .attention = RG_LEVEL_ATTENTION,
    .index_scores = RG_LEVEL_INDEX_SCORES,
    .store = RG_OP(store),
    .load = RG_OP(load),
    .int8_peak = RG_LEVEL_PEAK,
};
