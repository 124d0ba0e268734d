/* The "check tensors" pass: the first block with a scale (or scalar element) that is not finite.
 * Pure functions, any thread.
 */
#include "quant/half.h"
#include "quant/quant.h"

#include <stddef.h>

typedef enum check_kind {
    CHECK_NONE = 0, /* any bytes are finite: nvfp4, integers, unassigned ids */
    CHECK_F16,      /* 16-bit floats with the exponent field of f16 */
    CHECK_BF16,
    CHECK_F32,
    CHECK_F64,
    CHECK_E8M0, /* one byte, 255 is NaN */
    CHECK_IQ1_M /* f16 bits scattered over the block */
} check_kind;

#define AT(type, field) (uint8_t) offsetof(rg_block_##type, field)

static const struct scale_fields {
    check_kind kind;
    uint8_t count; /* number of fields */
    uint8_t at[2]; /* their byte offsets in the block */
} scale_fields[RG_TYPE_COUNT] = {
    [RG_TYPE_F32] = {CHECK_F32, 1, {0}},
    [RG_TYPE_F16] = {CHECK_F16, 1, {0}},
    [RG_TYPE_BF16] = {CHECK_BF16, 1, {0}},
    [RG_TYPE_F64] = {CHECK_F64, 1, {0}},
    [RG_TYPE_Q4_0] = {CHECK_F16, 1, {AT(q4_0, d)}},
    [RG_TYPE_Q4_1] = {CHECK_F16, 2, {AT(q4_1, d), AT(q4_1, m)}},
    [RG_TYPE_Q5_0] = {CHECK_F16, 1, {AT(q5_0, d)}},
    [RG_TYPE_Q5_1] = {CHECK_F16, 2, {AT(q5_1, d), AT(q5_1, m)}},
    [RG_TYPE_Q8_0] = {CHECK_F16, 1, {AT(q8_0, d)}},
    [RG_TYPE_Q8_1] = {CHECK_F16, 2, {AT(q8_1, d), AT(q8_1, s)}},
    [RG_TYPE_Q2_K] = {CHECK_F16, 2, {AT(q2_K, d), AT(q2_K, dmin)}},
    [RG_TYPE_Q3_K] = {CHECK_F16, 1, {AT(q3_K, d)}},
    [RG_TYPE_Q4_K] = {CHECK_F16, 2, {AT(q4_K, d), AT(q4_K, dmin)}},
    [RG_TYPE_Q5_K] = {CHECK_F16, 2, {AT(q5_K, d), AT(q5_K, dmin)}},
    [RG_TYPE_Q6_K] = {CHECK_F16, 1, {AT(q6_K, d)}},
    [RG_TYPE_Q8_K] = {CHECK_F32, 1, {AT(q8_K, d)}},
    [RG_TYPE_IQ2_XXS] = {CHECK_F16, 1, {AT(iq2_xxs, d)}},
    [RG_TYPE_IQ2_XS] = {CHECK_F16, 1, {AT(iq2_xs, d)}},
    [RG_TYPE_IQ3_XXS] = {CHECK_F16, 1, {AT(iq3_xxs, d)}},
    [RG_TYPE_IQ1_S] = {CHECK_F16, 1, {AT(iq1_s, d)}},
    [RG_TYPE_IQ4_NL] = {CHECK_F16, 1, {AT(iq4_nl, d)}},
    [RG_TYPE_IQ3_S] = {CHECK_F16, 1, {AT(iq3_s, d)}},
    [RG_TYPE_IQ2_S] = {CHECK_F16, 1, {AT(iq2_s, d)}},
    [RG_TYPE_IQ4_XS] = {CHECK_F16, 1, {AT(iq4_xs, d)}},
    [RG_TYPE_IQ1_M] = {CHECK_IQ1_M, 1, {0}},
    [RG_TYPE_TQ1_0] = {CHECK_F16, 1, {AT(tq1_0, d)}},
    [RG_TYPE_TQ2_0] = {CHECK_F16, 1, {AT(tq2_0, d)}},
    [RG_TYPE_MXFP4] = {CHECK_E8M0, 1, {AT(mxfp4, e)}},
    [RG_TYPE_Q1_0] = {CHECK_F16, 1, {AT(q1_0, d)}},
    [RG_TYPE_Q2_0] = {CHECK_F16, 1, {AT(q2_0, d)}},
};

/* All ones in the exponent field mean infinity or NaN. */
static bool is_nonfinite(check_kind kind, const uint8_t *p) {
    switch (kind) {
    case CHECK_F16:
        return (rg_load_u16(p) & 0x7c00u) == 0x7c00u;
    case CHECK_BF16:
        return (rg_load_u16(p) & 0x7f80u) == 0x7f80u;
    case CHECK_F32:
        return (rg_load_u32(p) & 0x7f800000u) == 0x7f800000u;
    case CHECK_F64:
        return (rg_load_u32(p + 4) & 0x7ff00000u) == 0x7ff00000u;
    case CHECK_E8M0:
        return *p == 255;
    case CHECK_IQ1_M:
        return (rg_iq1_m_d((const rg_block_iq1_m *)p) & 0x7c00u) == 0x7c00u;
    case CHECK_NONE:
        break;
    }
    return false;
}

bool rg_blocks_find_nonfinite(rg_type type, const void *src, size_t n_blocks, size_t *block) {
    const rg_type_info *info = rg_type_get((uint32_t)type);
    RG_ASSERT(info);
    const struct scale_fields *fields = &scale_fields[type];
    if (fields->kind == CHECK_NONE) return false;
    const uint8_t *p = src;
    for (size_t i = 0; i < n_blocks; i++, p += info->block_bytes) {
        for (unsigned k = 0; k < fields->count; k++) {
            if (!is_nonfinite(fields->kind, p + fields->at[k])) continue;
            *block = i;
            return true;
        }
    }
    return false;
}
