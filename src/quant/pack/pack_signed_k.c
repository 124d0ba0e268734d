/* Formats of 256 elements whose sub-blocks have signed integer scales: q3_K, q6_K, iq4_xs.
 *
 * The sub-blocks' own best scales give a first common scale d; then d and the integers are chosen
 * in turn: for each sub-block the neighbour integers, with codes taken under the value really
 * stored, then d by least squares over the block.
 */
#include <string.h>

#include "quant/pack/packer_parts.h"

#define SUBS_MAX 16u

typedef struct layout {
    const code_set *set;
    unsigned n_sub, sub; /* sub-blocks, their elements */
    int lo, hi;          /* of the integer scales */
} layout;

typedef struct choice {
    float d; /* through f16 */
    int sc[SUBS_MAX];
} choice;

/* The best integer of each sub-block under d. Returns the gain; *next is d by least squares. */
static float choose(const layout *y, const float *x, const float *w, const float *scales, choice *c,
                    float *next) {
    float total = 0, up = 0, down = 0;
    for (unsigned s = 0; s < y->n_sub; s++) {
        const float *xs = x + s * y->sub, *ws = w + s * y->sub;
        const int at = (int)round_code(scales[s] / c->d, (float)y->lo, (float)y->hi);
        float best = 0;
        fit kept = {0, 0};
        c->sc[s] = 0;
        for (int sc = at - 1; sc <= at + 1; sc++) {
            if (sc == 0 || sc < y->lo || sc > y->hi) continue;
            const float scale = c->d * (float)sc;
            const fit f = LV(fit_codes)(y->set, xs, ws, y->sub, 1 / scale);
            const float gain = gain_of(f, scale);
            if (!(gain > best)) continue;
            best = gain;
            kept = f;
            c->sc[s] = sc;
        }
        total += best;
        up += (float)c->sc[s] * kept.A;
        down += (float)(c->sc[s] * c->sc[s]) * kept.C;
    }
    *next = down > 0 ? up / down : 0;
    return total;
}

static void search(const layout *y, const float *x, const float *w, choice *kept) {
    static const float stretch[] = {1.0f, 1.03f, 0.97f};
    float scales[SUBS_MAX], best = 0;
    for (unsigned s = 0; s < y->n_sub; s++)
        scales[s] = LV(best_scale)(y->set, x + s * y->sub, w + s * y->sub, y->sub);
    const float peak = signed_peak(scales, y->n_sub);
    *kept = (choice){0};
    for (unsigned end = 0; end < 2 && peak != 0; end++) {
        for (unsigned i = 0; i < RG_ARRAY_LEN(stretch); i++) {
            float d = peak / (float)(end ? y->hi : y->lo) * stretch[i];
            for (unsigned round = 0; round < 3; round++) {
                choice c = {.d = through_f16(d)};
                if (c.d == 0) break;
                const float gain = choose(y, x, w, scales, &c, &d);
                if (!(gain > best)) break;
                best = gain;
                *kept = c;
            }
        }
    }
}

static void all_codes(const layout *y, const float *x, const choice *c, uint8_t codes[256]) {
    for (unsigned s = 0; s < y->n_sub; s++) {
        LV(take_codes)(y->set, x + s * y->sub, y->sub, c->d * (float)c->sc[s], codes + s * y->sub);
    }
}

void LV(q6_K)(const float *x, const float *w, uint8_t *dst, void *scratch) {
    static const code_set set = {.lo = -32, .hi = 31, .from = 0.88f, .to = 1.12f, .steps = 16};
    static const layout y = {.set = &set, .n_sub = 16, .sub = 16, .lo = -128, .hi = 127};
    rg_block_q6_K *b = (rg_block_q6_K *)(void *)dst;
    uint8_t codes[256];
    choice c;
    (void)scratch;
    search(&y, x, w, &c);
    all_codes(&y, x, &c, codes);
    memset(b->ql, 0, sizeof b->ql);
    memset(b->qh, 0, sizeof b->qh);
    for (unsigned i = 0; i < 256; i++) {
        const unsigned n = i / 128, j = i / 32 % 4, l = i % 32;
        b->ql[64 * n + 32 * (j & 1) + l] |= (uint8_t)((codes[i] & 15u) << (4 * (j >> 1)));
        b->qh[32 * n + l] |= (uint8_t)((codes[i] >> 4) << (2 * j));
    }
    for (unsigned s = 0; s < 16; s++)
        b->scales[s] = (int8_t)c.sc[s];
    store_u16(b->d, finite_f16(c.d));
}

void LV(q3_K)(const float *x, const float *w, uint8_t *dst, void *scratch) {
    static const code_set set = {.lo = -4, .hi = 3, .from = 0.6f, .to = 1.9f, .steps = 32};
    static const layout y = {.set = &set, .n_sub = 16, .sub = 16, .lo = -32, .hi = 31};
    rg_block_q3_K *b = (rg_block_q3_K *)(void *)dst;
    uint8_t codes[256];
    choice c;
    (void)scratch;
    search(&y, x, w, &c);
    all_codes(&y, x, &c, codes);
    memset(b, 0, sizeof *b);
    for (unsigned i = 0; i < 256; i++) {
        const unsigned n = i / 128, j = i / 32 % 4, l = i % 32;
        b->qs[32 * n + l] |= (uint8_t)((codes[i] & 3u) << (2 * j));
        b->hmask[l] |= (uint8_t)((codes[i] >> 2) << (4 * n + j));
    }
    for (unsigned s = 0; s < 16; s++) {
        const unsigned code = (unsigned)(c.sc[s] + 32);
        b->scales[s % 8] |= (uint8_t)((code & 15u) << (s < 8 ? 0 : 4));
        b->scales[8 + s % 4] |= (uint8_t)((code >> 4) << (2 * (s / 4)));
    }
    store_u16(b->d, finite_f16(c.d));
}

void LV(iq4_xs)(const float *x, const float *w, uint8_t *dst, void *scratch) {
    static const float values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
    static const float mids[15] = {-115.5f, -93.5f, -74,   -57,   -42, -28.5f, -16, -4.5f,
                                   7,       19,     31.5f, 45.5f, 61,  79,     101};
    static const code_set set = {.lo = -127,
                                 .hi = 113,
                                 .values = values,
                                 .mids = mids,
                                 .from = 0.75f,
                                 .to = 1.35f,
                                 .steps = 24};
    static const layout y = {.set = &set, .n_sub = 8, .sub = 32, .lo = -32, .hi = 31};
    rg_block_iq4_xs *b = (rg_block_iq4_xs *)(void *)dst;
    uint8_t codes[256];
    choice c;
    (void)scratch;
    search(&y, x, w, &c);
    all_codes(&y, x, &c, codes);
    memset(b, 0, sizeof *b);
    unsigned high = 0;
    for (unsigned g = 0; g < 8; g++) {
        const unsigned code = (unsigned)(c.sc[g] + 32);
        b->scales_l[g / 2] |= (uint8_t)((code & 15u) << (4 * (g % 2)));
        high |= (code >> 4) << (2 * g);
        for (unsigned j = 0; j < 16; j++) {
            b->qs[16 * g + j] =
                (uint8_t)(codes[32 * g + j] | (unsigned)codes[32 * g + 16 + j] << 4);
        }
    }
    store_u16(b->scales_h, high);
    store_u16(b->d, finite_f16(c.d));
}
