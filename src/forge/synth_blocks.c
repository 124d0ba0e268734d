/* Random valid blocks of every storable type: all code bits random, only scales chosen, so that the
 * unpacked values have a wanted standard deviation and mean about zero (formats: spec part C).
 *
 * Asymmetric codes are centred by the format's minimum (q4_1, q5_1, q2_K, q4_K, q5_K) or by a scale
 * of random sign; a scale never underflows to zero.
 */
#include <math.h>
#include <string.h>

#include "forge/synth_parts.h"

#define UNIT_BLOCKS 64u /* blocks unpacked to learn the deviation at scale 1 */
#define F16_LEAST   0x1p-24
#define F16_MOST    60000.0

float rg_synth_normal(uint64_t seed, uint64_t counter) {
    const uint64_t r = rg_random_u64(seed, counter);
    const int32_t sum = (int32_t)(r & 0xffff) + (int32_t)(r >> 16 & 0xffff) +
                        (int32_t)(r >> 32 & 0xffff) + (int32_t)(r >> 48);
    /* mean 4 * 65535 / 2, variance 4 * (65536^2 - 1) / 12 */
    return (float)(sum - 131070) * (1.0f / 37837.22f);
}

static void put_f16(uint8_t *at, double v) {
    double mag = fabs(v);
    if (mag < F16_LEAST) mag = F16_LEAST;
    if (mag > F16_MOST) mag = F16_MOST;
    const uint16_t h = rg_f32_to_f16((float)(v < 0 ? -mag : mag));
    memcpy(at, &h, sizeof h);
}

/* Equal scales and minima in the packed pairs of q4_K and q5_K. */
static void pair_minima(uint8_t packed[12]) {
    for (int s = 0; s < 4; s++) {
        packed[s + 4] = packed[s];
        packed[s + 8] = (uint8_t)((packed[s + 8] & 15) * 17);
    }
}

static void put_iq1_m(uint8_t *block, double d) {
    uint8_t bits[2];
    put_f16(bits, d);
    const unsigned h = (unsigned)bits[0] | (unsigned)bits[1] << 8;
    for (size_t k = 0; k < 4; k++) {
        uint8_t *top = block + offsetof(rg_block_iq1_m, scales) + 2 * k + 1;
        *top = (uint8_t)((*top & 15) | (h >> (4 * k) & 15) << 4);
    }
}

/* Exponent byte whose expected square is that of the wanted scale: between two powers of two by
 * chance. */
static uint8_t e8m0(double scale, double chance) {
    const double log = log2(scale);
    const double low = floor(log);
    const double up = (exp2(2 * (log - low)) - 1) / 3;
    double e = low + 128 + (chance < up ? 1 : 0);
    if (e < 1) e = 1;
    if (e > 250) e = 250;
    return (uint8_t)e;
}

/* UE4M3 near `v`, rounded by chance; never zero or the NaN code. */
static uint8_t ue4m3(double v, double chance) {
    if (v < 0x1p-6) {
        const double units = floor(v * 512 + chance);
        return (uint8_t)(units < 1 ? 1 : units > 7 ? 7 : units);
    }
    int e = (int)floor(log2(v));
    if (e > 8) return 0x7E;
    int m = (int)floor((v / exp2(e) - 1) * 8 + chance);
    if (m >= 8) {
        m = 0;
        e++;
    }
    const int code = (e + 7) << 3 | m;
    return (uint8_t)(code > 0x7E ? 0x7E : code);
}

/* Root mean square of the doubled E2M1 table over all codes. */
#define KF_RMS 5.8523

/* One flat switch over the formats: the scale fields of a block of random bytes. `word`: 64 random
 * bits of the block's own. */
static void set_scale(rg_type type, uint8_t *block, double d, uint64_t word) {
    const double sign = word & 1 ? -1 : 1;
    const double chance = (double)(word >> 11) * 0x1p-53;
    switch (type) {
    case RG_TYPE_Q4_0:
    case RG_TYPE_Q5_0:
    case RG_TYPE_IQ4_NL:
    case RG_TYPE_Q2_0:
        put_f16(block, sign * d);
        break;
    case RG_TYPE_Q4_1:
    case RG_TYPE_Q5_1:
        put_f16(block, d);
        put_f16(block + 2, type == RG_TYPE_Q4_1 ? -7.5 * d : -15.5 * d);
        break;
    case RG_TYPE_Q2_K:
        for (int s = 0; s < 16; s++)
            block[s] = (uint8_t)((block[s] & 15) * 17);
        put_f16(block + offsetof(rg_block_q2_K, d), d);
        put_f16(block + offsetof(rg_block_q2_K, dmin), 1.5 * d);
        break;
    case RG_TYPE_Q4_K:
    case RG_TYPE_Q5_K:
        pair_minima(block + 4);
        put_f16(block, d);
        put_f16(block + 2, type == RG_TYPE_Q4_K ? 7.5 * d : 15.5 * d);
        break;
    case RG_TYPE_Q3_K:
        put_f16(block + offsetof(rg_block_q3_K, d), d);
        break;
    case RG_TYPE_Q6_K:
        put_f16(block + offsetof(rg_block_q6_K, d), d);
        break;
    case RG_TYPE_TQ1_0:
        put_f16(block + offsetof(rg_block_tq1_0, d), d);
        break;
    case RG_TYPE_TQ2_0:
        put_f16(block + offsetof(rg_block_tq2_0, d), sign * d);
        break;
    case RG_TYPE_IQ1_M:
        put_iq1_m(block, d);
        break;
    case RG_TYPE_MXFP4:
        block[0] = e8m0(d, chance);
        break;
    case RG_TYPE_NVFP4:
        for (int s = 0; s < 4; s++)
            block[s] = ue4m3(2 * d, (double)(word >> (16 * s) & 0xffff) * 0x1p-16);
        break;
    default: /* all others have an f16 scale in front */
        put_f16(block, d);
        break;
    }
}

static void random_bytes(uint64_t seed, uint8_t *dst, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const uint64_t w = rg_random_u64(seed, i);
        memcpy(dst + i, &w, 8);
    }
    const uint64_t last = rg_random_u64(seed, i);
    memcpy(dst + i, &last, n - i);
}

static void random_blocks(rg_type type, double d, uint64_t seed, uint8_t *dst, size_t n) {
    const size_t block = rg_type_get((uint32_t)type)->block_bytes;
    random_bytes(seed, dst, n * block);
    for (size_t b = 0; b < n; b++) {
        const uint64_t word = rg_random_u64(~seed, b);
        const double jitter =
            exp2(((double)(word >> 1 & 0xff) - 127.5) / 512.0); /* +- 1/4 octave */
        set_scale(type, dst + b * block, d * jitter, word);
    }
}

/* Deviation of the unpacked values at scale 1. */
static double unit_of(rg_type type) {
    if (type == RG_TYPE_MXFP4 || type == RG_TYPE_NVFP4) return KF_RMS;
    uint8_t blocks[UNIT_BLOCKS * 256];
    float x[256];
    const rg_type_info *info = rg_type_get((uint32_t)type);
    RG_ASSERT(info->block_bytes <= 256 && info->block_elems <= 256);
    random_blocks(type, 1.0, 0x5EED, blocks, UNIT_BLOCKS);
    double sum = 0;
    for (size_t b = 0; b < UNIT_BLOCKS; b++) {
        rg_unpack_row(type, blocks + b * info->block_bytes, x, info->block_elems);
        for (size_t i = 0; i < info->block_elems; i++)
            sum += (double)x[i] * (double)x[i];
    }
    return sqrt(sum / (UNIT_BLOCKS * info->block_elems));
}

void rg_synth_blocks(rg_type type, double sigma, uint64_t seed, uint8_t *dst, size_t n) {
    for (size_t i = 0; i < n && rg_type_get((uint32_t)type)->block_elems == 1; i++) {
        const float v = (float)sigma * rg_synth_normal(seed, i);
        const uint16_t h = type == RG_TYPE_F16 ? rg_f32_to_f16(v) : rg_f32_to_bf16(v);
        if (type == RG_TYPE_F32) {
            memcpy(dst + 4 * i, &v, 4);
        } else {
            memcpy(dst + 2 * i, &h, 2);
        }
    }
    if (rg_type_get((uint32_t)type)->block_elems > 1)
        random_blocks(type, sigma / unit_of(type), seed, dst, n);
}
