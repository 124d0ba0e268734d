/* The door of the packers: weights of a row, choice of level and format. Pure functions, any
 * thread.
 */
#include "quant/packer.h"

#include <math.h>

#include "quant/half.h"
#include "quant/packer_levels.h"

/* Columns without importance keep this part of the mean: their codes stay sensible. */
#define WEIGHT_FLOOR 1e-4
#define BLOCK_MAX    256u

#if defined(__x86_64__)
static pack_block_fn *const *table_of(rg_cpu_level level) {
    if (level == RG_CPU_X86_V4) return rg_pack_table_v4;
    return level == RG_CPU_X86_V3 ? rg_pack_table_v3 : rg_pack_table_scalar;
}
#elif defined(__aarch64__)
static pack_block_fn *const *table_of(rg_cpu_level level) {
    return level == RG_CPU_NEON ? rg_pack_table_neon : rg_pack_table_scalar;
}
#else
static pack_block_fn *const *table_of(rg_cpu_level level) {
    (void)level;
    return rg_pack_table_scalar;
}
#endif

static bool is_plain(rg_type type) {
    return type == RG_TYPE_F32 || type == RG_TYPE_F16 || type == RG_TYPE_BF16;
}

bool rg_pack_can(rg_type type) {
    return is_plain(type) || ((unsigned)type < RG_TYPE_COUNT && rg_pack_table_scalar[type] != NULL);
}

size_t rg_pack_scratch_bytes(rg_type type) {
    switch (type) {
    case RG_TYPE_IQ1_S:
        return RG_PACK_TERNARY_BYTES;
    case RG_TYPE_IQ2_XXS:
    case RG_TYPE_IQ2_XS:
    case RG_TYPE_IQ2_S:
    case RG_TYPE_IQ3_XXS:
    case RG_TYPE_IQ3_S:
        return RG_PACK_GRID_BYTES;
    default:
        return 64;
    }
}

static void pack_plain(rg_type type, const float *x, uint8_t *dst, size_t n) {
    if (type == RG_TYPE_F32) {
        memcpy(dst, x, n * sizeof *x);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const uint16_t h = type == RG_TYPE_F16 ? f32_to_f16(x[i]) : f32_to_bf16(x[i]);
        memcpy(dst + 2 * i, &h, sizeof h);
    }
}

void rg_pack_q8_0_plain(const float *x, void *dst, size_t n) {
    const size_t block = 32;
    uint8_t *to = dst;
    RG_ASSERT(n % block == 0);
    for (size_t at = 0; at < n; at += block, to += sizeof(rg_block_q8_0)) {
        double peak = 0;
        for (size_t i = 0; i < block;
             i++) { /* fmax here ends gcc 12 for ARM in an internal error */
            const double size = fabs((double)x[at + i]);
            if (size > peak) peak = size;
        }
        const uint16_t h = f32_to_f16((float)fmin(peak / 127, 65504));
        const double d = (double)f16_to_f32(h);
        memcpy(to, &h, sizeof h);
        for (size_t i = 0; i < block; i++) {
            const double code = d > 0 ? rint((double)x[at + i] / d) : 0;
            to[2 + i] = (uint8_t)(int8_t)fmax(-127, fmin(127, code));
        }
    }
}

/* Mean of the importance; 0 when it says nothing. */
static double mean_of(const float *importance, size_t n) {
    double sum = 0;
    for (size_t i = 0; importance && i < n; i++)
        sum += (double)importance[i];
    return sum > 0 && isfinite(sum) ? sum / (double)n : 0;
}

void rg_pack_row(const rg_packer *p, const float *x, const float *importance, void *dst, size_t n) {
    uint8_t *to = dst;
    if (is_plain(p->type)) {
        pack_plain(p->type, x, to, n);
        return;
    }
    const rg_type_info *info = rg_type_get((uint32_t)p->type);
    pack_block_fn *pack = table_of(p->level)[p->type];
    RG_ASSERT(pack);
    RG_ASSERT(n % info->block_elems == 0);
    const double mean = mean_of(importance, n);
    float w[BLOCK_MAX];
    for (size_t at = 0; at < n; at += info->block_elems) {
        for (size_t i = 0; i < info->block_elems; i++) {
            w[i] = mean > 0 ? (float)((double)importance[at + i] / mean + WEIGHT_FLOOR) : 1.0f;
        }
        pack(x + at, w, to, p->scratch);
        to += info->block_bytes;
    }
}
