#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/levels.h"

rg_act_form rg_act_form_of(rg_type type, rg_kernel_set set) {
    const rg_type_info *info = rg_type_get(type);
    if (set == RG_KERNELS_REF || info->block_elems == 1) return RG_ACT_F32;
    return info->block_elems == 256 ? RG_ACT_Q256 : RG_ACT_Q32;
}

/* The tile of the wide forms (x86/v4_tile.h). */
#define RG_TILE_SCRATCH ((size_t)96 << 10)

size_t rg_mul_scratch_bytes(uint32_t n_in) {
    /* The larger of a row as f32, and of codes, block scales and minima (mul.c). */
    const size_t f32 = (size_t)n_in * sizeof(float);
    const size_t codes = (size_t)(n_in / 16) * (2 * sizeof(float) + sizeof(int16_t)) +
                         (size_t)n_in * sizeof(int16_t);
    const size_t row = ((f32 > codes ? f32 : codes) + 63) / 64 * 64 + 64;
    return row > RG_TILE_SCRATCH ? row : RG_TILE_SCRATCH;
}

const rg_ops *rg_ops_get(rg_cpu_level level) {
    switch (level) {
#if defined(__x86_64__)
    case RG_CPU_X86_V4:
        return &rg_ops_table_v4;
    case RG_CPU_X86_V3:
        return &rg_ops_table_v3;
#elif defined(__aarch64__)
    case RG_CPU_NEON:
        return &rg_ops_table_neon;
#endif
    default:
        return &rg_ops_table_scalar;
    }
}

/* sin and cos for |x| up to about 2^30: reduction by pi/2 in two parts with fma, Taylor series on
 * [-pi/4, pi/4] to the last bit but one of double. */
static void sin_cos(double x, double *s, double *c) {
    const double q = floor(x * 0.63661977236758134308 + 0.5);
    double r = fma(q, -1.57079632679489655800e+00, x);
    r = fma(q, -6.12323399573676603587e-17, r);
    const double z = r * r;
    double ps = -1.0 / 1307674368000.0;
    ps = fma(ps, z, 1.0 / 6227020800.0);
    ps = fma(ps, z, -1.0 / 39916800.0);
    ps = fma(ps, z, 1.0 / 362880.0);
    ps = fma(ps, z, -1.0 / 5040.0);
    ps = fma(ps, z, 1.0 / 120.0);
    ps = fma(ps, z, -1.0 / 6.0);
    const double sr = fma(ps * z, r, r);
    double pc = 1.0 / 20922789888000.0;
    pc = fma(pc, z, -1.0 / 87178291200.0);
    pc = fma(pc, z, 1.0 / 479001600.0);
    pc = fma(pc, z, -1.0 / 3628800.0);
    pc = fma(pc, z, 1.0 / 40320.0);
    pc = fma(pc, z, -1.0 / 720.0);
    pc = fma(pc, z, 1.0 / 24.0);
    const double cr = fma(pc * z, z, fma(-0.5, z, 1.0));
    switch ((int64_t)q & 3) {
    case 0:
        *s = sr, *c = cr;
        break;
    case 1:
        *s = cr, *c = -sr;
        break;
    case 2:
        *s = -sr, *c = -cr;
        break;
    default:
        *s = -cr, *c = sr;
        break;
    }
}

void rg_rope_table(float *cs, const double *inv_freq, uint32_t n_pair, uint64_t pos) {
    for (uint32_t i = 0; i < n_pair; i++) {
        double s, c;
        sin_cos((double)pos * inv_freq[i], &s, &c);
        cs[i] = (float)c;
        cs[n_pair + i] = (float)s;
    }
}

/* ---- top k ---------------------------------------------------------------------------------- */

/* Whether a ranks above b: higher score, then lower index; NaN below everything. */
static bool ranks_above(const float *scores, uint32_t a, uint32_t b) {
    const float x = scores[a], y = scores[b];
    if (x > y) return true;
    if (x < y) return false;
    if (isnan(x) != isnan(y)) return isnan(y);
    return a < b;
}

/* out[0..k) is a heap with the worst element on top. */
static void sift_down(const float *scores, uint32_t *heap, uint32_t k, uint32_t i) {
    for (;;) {
        uint32_t worst = i;
        for (uint32_t child = 2 * i + 1; child <= 2 * i + 2 && child < k; child++) {
            if (ranks_above(scores, heap[worst], heap[child])) worst = child;
        }
        if (worst == i) return;
        const uint32_t t = heap[i];
        heap[i] = heap[worst];
        heap[worst] = t;
        i = worst;
    }
}

void rg_top_k(const float *scores, uint32_t n, uint32_t k, uint32_t *out) {
    for (uint32_t i = 0; i < k; i++)
        out[i] = i;
    for (uint32_t i = k / 2; i-- > 0;)
        sift_down(scores, out, k, i);
    for (uint32_t i = k; i < n; i++) {
        if (!ranks_above(scores, i, out[0])) continue;
        out[0] = i;
        sift_down(scores, out, k, 0);
    }
    /* Heap sort: the worst goes to the end, so the best comes first. */
    for (uint32_t left = k; left > 1; left--) {
        const uint32_t t = out[0];
        out[0] = out[left - 1];
        out[left - 1] = t;
        sift_down(scores, out, left - 1, 0);
    }
}

/* Integers that order as the scores do: NaN lowest, -0 as 0. */
static uint32_t order_key(float x) {
    uint32_t bits;
    if (isnan(x)) return 0;
    x += 0.0f;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* Radix selection: the key of rank k is found byte by byte from counts. */
void rg_top_k_ascending(const float *scores, uint32_t n, uint32_t k, uint32_t *out) {
    uint32_t limit = 0, mask = 0, equal = k; /* of the keys like `limit`, so many are taken */
    for (uint32_t shift = 32; shift > 0;) {
        uint32_t count[256] = {0}, digit = 255;
        shift -= 8;
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t key = order_key(scores[i]);
            if ((key & mask) == limit) count[key >> shift & 255]++;
        }
        for (; count[digit] < equal; digit--)
            equal -= count[digit];
        limit |= digit << shift;
        mask |= (uint32_t)255 << shift;
    }
    for (uint32_t i = 0, m = 0; m < k; i++) {
        const uint32_t key = order_key(scores[i]);
        if (key < limit || (key == limit && equal == 0)) continue;
        equal -= key == limit;
        out[m++] = i;
    }
}
