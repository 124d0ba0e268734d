/* iq1_s: eight ternary levels a grid point, all shifted by +1/8 or -1/8 in a sub-block of 32.
 *
 * As in pack_grid.c the whole grid is searched. With levels g and shift t the error at scale s is
 * s^2 Q - 2 s P and a constant, P = sum w x g + t sum w x, Q = sum w g^2 + 2 t sum w g + t^2 sum w.
 */
#include <string.h>

#include "quant/pack/packer_parts.h"

#define POINTS 2048u
#define GROUPS 32u
#define SUBS   8u
#define SHIFT  0.125f

typedef struct tables {
    float level[8][POINTS];
    float P[2][GROUPS][POINTS], Q[2][GROUPS][POINTS]; /* shift +, - */
} tables;

_Static_assert(sizeof(tables) <= RG_PACK_TERNARY_BYTES, "pack scratch");

typedef struct pick {
    uint16_t point[4];
    unsigned shift; /* 1: minus */
    float A, C;
} pick;

typedef struct choice {
    float d;
    unsigned code[SUBS];
    pick picks[SUBS];
} choice;

static void load_grid(tables *t) {
    for (unsigned p = 0; p < POINTS; p++) {
        for (unsigned j = 0; j < 8; j++)
            t->level[j][p] = (float)(int8_t)((rg_grid_iq1s[p] >> (8 * j)) & 255);
    }
}

static void fill_group(tables *t, unsigned g, const float *x, const float *w) {
    float *P = t->P[0][g], *Q = t->Q[0][g], *P1 = t->P[1][g], *Q1 = t->Q[1][g];
    float sum_w = 0, sum_x = 0;
    memset(P, 0, sizeof t->P[0][g]);
    memset(Q, 0, sizeof t->Q[0][g]);
    memset(Q1, 0, sizeof t->Q[1][g]); /* sum w g for now */
    for (unsigned j = 0; j < 8; j++) {
        const float a = w[j] * x[j], wj = w[j];
        const float *v = t->level[j];
        for (unsigned p = 0; p < POINTS; p++) {
            P[p] += a * v[p];
            Q[p] += wj * v[p] * v[p];
            Q1[p] += wj * v[p];
        }
        sum_w += wj;
        sum_x += a;
    }
    for (unsigned p = 0; p < POINTS; p++) {
        const float cross = 2 * SHIFT * Q1[p], fixed = Q[p] + SHIFT * SHIFT * sum_w;
        P1[p] = P[p] - SHIFT * sum_x;
        P[p] = P[p] + SHIFT * sum_x;
        Q1[p] = fixed - cross;
        Q[p] = fixed + cross;
    }
}

/* Points of a sub-block at scale s > 0, with the better shift. */
static void pick_sub(const tables *t, unsigned sub, float s, pick *k) {
    float best = -INFINITY, cost = 0;
    for (unsigned shift = 0; shift < 2; shift++) {
        pick one = {.shift = shift};
        for (unsigned i = 0; i < 4; i++) {
            const unsigned g = 4 * sub + i;
            const unsigned p = least_point(t->P[shift][g], t->Q[shift][g], POINTS, s, &cost);
            one.point[i] = (uint16_t)p;
            one.A += t->P[shift][g][p];
            one.C += t->Q[shift][g][p];
        }
        const float gain = s * (2 * one.A - s * one.C);
        if (!(gain > best)) continue;
        best = gain;
        *k = one;
    }
}

static float sub_scale(const tables *t, unsigned sub, float peak) {
    float best = 0, scale = 0;
    pick k = {0};
    for (unsigned i = 0; i < 10; i++) {
        pick_sub(t, sub, peak * (0.3f + 0.07f * (float)i), &k);
        if (!(k.C > 0) || k.A <= 0 || !(k.A * k.A > best * k.C)) continue;
        best = k.A * k.A / k.C;
        scale = k.A / k.C;
    }
    for (unsigned round = 0; round < 2 && scale > 0; round++) {
        pick_sub(t, sub, scale, &k);
        if (!(k.C > 0) || k.A <= 0 || !(k.A * k.A > best * k.C)) break;
        best = k.A * k.A / k.C;
        scale = k.A / k.C;
    }
    return scale;
}

static float choose(const tables *t, const float *scales, choice *c, float *next) {
    float total = 0, up = 0, down = 0;
    for (unsigned sub = 0; sub < SUBS; sub++) {
        const float want = (scales[sub] / c->d - 1) * 0.5f;
        const int at = (int)clamp_code(round_code(want, 0, 7), 0, 7);
        float best = -INFINITY;
        for (int code = at - 1; code <= at + 1; code++) {
            if (code < 0 || code > 7) continue;
            const float unit = (float)(2 * code + 1), s = c->d * unit;
            pick k = {0};
            pick_sub(t, sub, s, &k);
            const float gain = s * (2 * k.A - s * k.C);
            if (!(gain > best)) continue;
            best = gain;
            c->code[sub] = (unsigned)code;
            c->picks[sub] = k;
        }
        const float unit = (float)(2 * c->code[sub] + 1);
        total += best;
        up += unit * c->picks[sub].A;
        down += unit * unit * c->picks[sub].C;
    }
    *next = down > 0 ? up / down : 0;
    return total;
}

static void search(tables *t, const float *x, const float *w, choice *kept) {
    static const float stretch[] = {1.0f, 0.85f};
    float scales[SUBS], peak = 0, best = 0;
    load_grid(t);
    for (unsigned g = 0; g < GROUPS; g++)
        fill_group(t, g, x + 8 * g, w + 8 * g);
    for (unsigned sub = 0; sub < SUBS; sub++) {
        const float top = fabsf(signed_peak(x + 32 * sub, 32));
        scales[sub] = top > 0 ? sub_scale(t, sub, top) : 0;
        if (scales[sub] > peak) peak = scales[sub];
    }
    memset(kept, 0, sizeof *kept);
    for (unsigned i = 0; i < RG_ARRAY_LEN(stretch) && peak > 0; i++) {
        float d = peak / 15 * stretch[i];
        for (unsigned round = 0; round < 3; round++) {
            choice c = {.d = least_scale(through_f16(d))};
            const float gain = choose(t, scales, &c, &d);
            if (!(gain > best)) break;
            best = gain;
            *kept = c;
        }
    }
}

void LV(iq1_s)(const float *x, const float *w, uint8_t *dst, void *scratch) {
    rg_block_iq1_s *b = (rg_block_iq1_s *)(void *)dst;
    choice c;
    search(scratch, x, w, &c);
    memset(b, 0, sizeof *b);
    store_u16(b->d, finite_f16(c.d));
    if (c.d == 0) return;
    for (unsigned g = 0; g < SUBS; g++) {
        const pick *k = &c.picks[g];
        unsigned word = c.code[g] << 12 | k->shift << 15;
        for (unsigned l = 0; l < 4; l++) {
            b->qs[4 * g + l] = (uint8_t)k->point[l];
            word |= ((unsigned)k->point[l] >> 8) << (3 * l);
        }
        store_u16(b->qh + 2 * g, word);
    }
}
