/* Codebook formats with signs: iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s.
 *
 * No neighbour lists: the whole grid is searched. For a group of elements and a grid point g the
 * error at scale s is s^2 Q - 2 s P and a constant, with P = sum w |x| g and Q = sum w g^2, which
 * do not depend on s. They are computed once a group for all points; each scale tried then costs
 * two operations a point. Where signs have even parity and a group's own signs do not, one element
 * takes the wrong sign: the cheapest for each point, so point and flipped element are chosen
 * together (P -= 2 min w |x| g).
 *
 * Scales s are in units of the decoded magnitudes. First each sub-block by itself, then the common
 * d with the sub-blocks' 4-bit codes, in turn, with points chosen under the scale really stored.
 */
#include <string.h>

#include "quant/pack/packer_parts.h"

#define POINTS_MAX 1024u
#define GROUP_MAX  8u
#define GROUPS_MAX 64u

typedef struct shape {
    unsigned points, group; /* of the grid; elements of a group */
    unsigned groups_a_sub, n_sub;
    bool parity; /* over 8 elements: one group of 8, or two of 4 */
    float top;   /* largest magnitude */
    float half;  /* scale of code c is d * (2c + 1) * half */
} shape;

/* Points of one group as arrays over the grid. */
typedef struct tables {
    float value[GROUP_MAX][POINTS_MAX];
    float P[GROUPS_MAX][POINTS_MAX];    /* signs as they are */
    float flip[GROUPS_MAX][POINTS_MAX]; /* with one wrong sign; parity formats only */
    float Q[GROUPS_MAX][POINTS_MAX];
    bool odd[GROUPS_MAX]; /* of the 8 elements the group belongs to */
} tables;

_Static_assert(sizeof(tables) <= RG_PACK_GRID_BYTES, "pack scratch");

/* What a sub-block of points chose. */
typedef struct pick {
    uint16_t point[8];
    bool flipped[8]; /* one element of this group has the wrong sign */
    float A, C;      /* sums of P and Q */
} pick;

static void load_grid8(const uint64_t *grid, unsigned n, tables *t) {
    for (unsigned p = 0; p < n; p++) {
        for (unsigned j = 0; j < 8; j++)
            t->value[j][p] = (float)((grid[p] >> (8 * j)) & 255);
    }
}

static void load_grid4(const uint32_t *grid, unsigned n, tables *t) {
    for (unsigned p = 0; p < n; p++) {
        for (unsigned j = 0; j < 4; j++)
            t->value[j][p] = (float)((grid[p] >> (8 * j)) & 255);
    }
}

/* P and Q of one group for all points. */
static void fill_group(const shape *y, tables *t, unsigned g, const float *x, const float *w) {
    float *P = t->P[g], *Q = t->Q[g];
    memset(P, 0, y->points * sizeof *P);
    memset(Q, 0, y->points * sizeof *Q);
    for (unsigned j = 0; j < y->group; j++) {
        const float a = w[j] * fabsf(x[j]), wj = w[j];
        const float *v = t->value[j];
        for (unsigned p = 0; p < y->points; p++) {
            P[p] += a * v[p];
            Q[p] += wj * v[p] * v[p];
        }
    }
    if (!y->parity || !t->odd[g]) return;
    float *flip = t->flip[g];
    for (unsigned p = 0; p < y->points; p++)
        flip[p] = INFINITY;
    for (unsigned j = 0; j < y->group; j++) {
        const float a = w[j] * fabsf(x[j]);
        const float *v = t->value[j];
        for (unsigned p = 0; p < y->points; p++)
            flip[p] = a * v[p] < flip[p] ? a * v[p] : flip[p];
    }
    for (unsigned p = 0; p < y->points; p++)
        flip[p] = P[p] - 2 * flip[p];
}

static void fill(const shape *y, tables *t, const float *x, const float *w) {
    const unsigned n = 256 / y->group;
    for (unsigned e = 0; e < 32; e++) {
        unsigned negatives = 0;
        for (unsigned j = 0; j < 8; j++)
            negatives += x[8 * e + j] < 0;
        for (unsigned g = e * 8 / y->group; g < (e + 1) * 8 / y->group; g++)
            t->odd[g] = (negatives & 1) != 0;
    }
    for (unsigned g = 0; g < n; g++)
        fill_group(y, t, g, x + g * y->group, w + g * y->group);
}

/* One wrong sign in one of two neighbour groups of four. */
static void pick_pair(const shape *y, const tables *t, unsigned g, float s, pick *k, unsigned i) {
    float plain[2], wrong[2];
    unsigned p[2], f[2];
    for (unsigned h = 0; h < 2; h++) {
        p[h] = least_point(t->P[g + h], t->Q[g + h], y->points, s, &plain[h]);
        f[h] = least_point(t->flip[g + h], t->Q[g + h], y->points, s, &wrong[h]);
    }
    const unsigned h = wrong[0] + plain[1] <= plain[0] + wrong[1] ? 0u : 1u;
    k->point[i + h] = (uint16_t)f[h];
    k->point[i + 1 - h] = (uint16_t)p[1 - h];
    k->flipped[i + h] = true;
    k->flipped[i + 1 - h] = false;
}

/* Points of sub-block `sub` at scale s > 0. */
static void pick_sub(const shape *y, const tables *t, unsigned sub, float s, pick *k) {
    const unsigned first = sub * y->groups_a_sub;
    float cost = 0;
    for (unsigned i = 0; i < y->groups_a_sub; i++) {
        const unsigned g = first + i;
        const bool odd = y->parity && t->odd[g];
        if (odd && y->group == 4) {
            pick_pair(y, t, g, s, k, i);
            i++;
            continue;
        }
        k->flipped[i] = odd;
        k->point[i] =
            (uint16_t)least_point(odd ? t->flip[g] : t->P[g], t->Q[g], y->points, s, &cost);
    }
    k->A = k->C = 0;
    for (unsigned i = 0; i < y->groups_a_sub; i++) {
        const unsigned p = k->point[i];
        k->A += (k->flipped[i] ? t->flip : t->P)[first + i][p];
        k->C += t->Q[first + i][p];
    }
}

/* The best scale of a sub-block by itself; 0 when nothing is gained. */
static float sub_scale(const shape *y, const tables *t, unsigned sub, float peak) {
    float best = 0, scale = 0;
    pick k;
    for (unsigned i = 0; i < 9; i++) {
        const float s = peak / y->top * (0.62f + 0.09f * (float)i);
        pick_sub(y, t, sub, s, &k);
        if (!(k.C > 0) || k.A <= 0 || !(k.A * k.A > best * k.C)) continue;
        best = k.A * k.A / k.C;
        scale = k.A / k.C;
    }
    for (unsigned round = 0; round < 2 && scale > 0; round++) {
        pick_sub(y, t, sub, scale, &k);
        if (!(k.C > 0) || k.A <= 0 || !(k.A * k.A > best * k.C)) break;
        best = k.A * k.A / k.C;
        scale = k.A / k.C;
    }
    return scale;
}

typedef struct choice {
    float d; /* through f16 */
    unsigned code[16];
    pick picks[16];
} choice;

static float choose(const shape *y, const tables *t, const float *scales, choice *c, float *next) {
    float total = 0, up = 0, down = 0;
    for (unsigned sub = 0; sub < y->n_sub; sub++) {
        const float want = (scales[sub] / (c->d * y->half) - 1) * 0.5f;
        const int at = (int)clamp_code(round_code(want, 0, 15), 0, 15);
        float best = -INFINITY;
        for (int code = at - 1; code <= at + 1; code++) {
            if (code < 0 || code > 15) continue;
            const float unit = (float)(2 * code + 1) * y->half, s = c->d * unit;
            pick k;
            pick_sub(y, t, sub, s, &k);
            const float gain = s * (2 * k.A - s * k.C);
            if (!(gain > best)) continue;
            best = gain;
            c->code[sub] = (unsigned)code;
            c->picks[sub] = k;
        }
        const float unit = (float)(2 * c->code[sub] + 1) * y->half;
        total += best;
        up += unit * c->picks[sub].A;
        down += unit * unit * c->picks[sub].C;
    }
    *next = down > 0 ? up / down : 0;
    return total;
}

static void search(const shape *y, tables *t, const float *x, const float *w, choice *kept) {
    static const float stretch[] = {1.0f, 0.9f};
    const unsigned len = 256 / y->n_sub;
    float scales[16], peak = 0, best = 0;
    fill(y, t, x, w);
    for (unsigned sub = 0; sub < y->n_sub; sub++) {
        const float top = fabsf(signed_peak(x + sub * len, len));
        scales[sub] = top > 0 ? sub_scale(y, t, sub, top) : 0;
        if (scales[sub] > peak) peak = scales[sub];
    }
    memset(kept, 0, sizeof *kept);
    for (unsigned i = 0; i < RG_ARRAY_LEN(stretch) && peak > 0; i++) {
        float d = peak / (31 * y->half) * stretch[i];
        for (unsigned round = 0; round < 3; round++) {
            choice c = {.d = least_scale(through_f16(d))};
            const float gain = choose(y, t, scales, &c, &d);
            if (!(gain > best)) break;
            best = gain;
            *kept = c;
        }
    }
}

/* Sign mask of the 8 elements at `e`; the wrong sign of a flipped group is put on its cheapest. */
static unsigned signs_of(const shape *y, const tables *t, const choice *c, unsigned e,
                         const float *x, const float *w) {
    unsigned mask = 0;
    for (unsigned j = 0; j < 8; j++)
        mask |= (x[8 * e + j] < 0 ? 1u : 0u) << j;
    for (unsigned g = e * 8 / y->group; g < (e + 1) * 8 / y->group; g++) {
        const pick *k = &c->picks[g / y->groups_a_sub];
        const unsigned i = g % y->groups_a_sub;
        if (!k->flipped[i]) continue;
        unsigned cheapest = 0;
        float least_cost = INFINITY;
        for (unsigned j = 0; j < y->group; j++) {
            const unsigned at = g * y->group + j;
            const float cost = w[at] * fabsf(x[at]) * t->value[j][k->point[i]];
            if (!(cost < least_cost)) continue;
            least_cost = cost;
            cheapest = at;
        }
        mask ^= 1u << (cheapest - 8 * e);
    }
    return mask;
}

static unsigned point_of(const shape *y, const choice *c, unsigned g) {
    return c->picks[g / y->groups_a_sub].point[g % y->groups_a_sub];
}

/* ---- formats ----------------------------------------------------------------------------------
 */

void LV(iq2_xxs)(const float *x, const float *w, uint8_t *dst, void *scratch) {
    static const shape y = {256, 8, 4, 8, true, 43, 0.125f};
    rg_block_iq2_xxs *b = (rg_block_iq2_xxs *)(void *)dst;
    tables *t = scratch;
    choice c;
    load_grid8(rg_grid_iq2xxs, 256, t);
    search(&y, t, x, w, &c);
    memset(b, 0, sizeof *b);
    store_u16(b->d, finite_f16(c.d));
    if (c.d == 0) return;
    for (unsigned g = 0; g < 8; g++) {
        uint32_t word = (uint32_t)c.code[g] << 28;
        for (unsigned l = 0; l < 4; l++) {
            const unsigned e = 4 * g + l;
            b->qs[8 * g + l] = (uint8_t)point_of(&y, &c, e);
            word |= (uint32_t)(signs_of(&y, t, &c, e, x, w) & 127) << (7 * l);
        }
        store_u32(b->qs + 8 * g + 4, word);
    }
}

void LV(iq2_xs)(const float *x, const float *w, uint8_t *dst, void *scratch) {
    static const shape y = {512, 8, 2, 16, true, 43, 0.125f};
    rg_block_iq2_xs *b = (rg_block_iq2_xs *)(void *)dst;
    tables *t = scratch;
    choice c;
    load_grid8(rg_grid_iq2xs, 512, t);
    search(&y, t, x, w, &c);
    memset(b, 0, sizeof *b);
    store_u16(b->d, finite_f16(c.d));
    if (c.d == 0) return;
    for (unsigned e = 0; e < 32; e++) {
        const unsigned signs = signs_of(&y, t, &c, e, x, w) & 127;
        store_u16(b->qs + 2 * e, point_of(&y, &c, e) | signs << 9);
    }
    for (unsigned s = 0; s < 16; s++)
        b->scales[s / 2] |= (uint8_t)(c.code[s] << (4 * (s % 2)));
}

void LV(iq2_s)(const float *x, const float *w, uint8_t *dst, void *scratch) {
    static const shape y = {1024, 8, 2, 16, false, 43, 0.125f};
    rg_block_iq2_s *b = (rg_block_iq2_s *)(void *)dst;
    tables *t = scratch;
    choice c;
    load_grid8(rg_grid_iq2s, 1024, t);
    search(&y, t, x, w, &c);
    memset(b, 0, sizeof *b);
    store_u16(b->d, finite_f16(c.d));
    if (c.d == 0) return;
    for (unsigned e = 0; e < 32; e++) {
        const unsigned p = point_of(&y, &c, e);
        b->qs[e] = (uint8_t)p;
        b->qh[e / 4] |= (uint8_t)((p >> 8) << (2 * (e % 4)));
        b->signs[e] = (uint8_t)signs_of(&y, t, &c, e, x, w);
    }
    for (unsigned s = 0; s < 16; s++)
        b->scales[s / 2] |= (uint8_t)(c.code[s] << (4 * (s % 2)));
}

void LV(iq3_xxs)(const float *x, const float *w, uint8_t *dst, void *scratch) {
    static const shape y = {256, 4, 8, 8, true, 62, 0.25f};
    rg_block_iq3_xxs *b = (rg_block_iq3_xxs *)(void *)dst;
    tables *t = scratch;
    choice c;
    load_grid4(rg_grid_iq3xxs, 256, t);
    search(&y, t, x, w, &c);
    memset(b, 0, sizeof *b);
    store_u16(b->d, finite_f16(c.d));
    if (c.d == 0) return;
    for (unsigned e = 0; e < 64; e++)
        b->qs[e] = (uint8_t)point_of(&y, &c, e);
    for (unsigned g = 0; g < 8; g++) {
        uint32_t word = (uint32_t)c.code[g] << 28;
        for (unsigned l = 0; l < 4; l++)
            word |= (uint32_t)(signs_of(&y, t, &c, 4 * g + l, x, w) & 127) << (7 * l);
        store_u32(b->signs_scales + 4 * g, word);
    }
}

void LV(iq3_s)(const float *x, const float *w, uint8_t *dst, void *scratch) {
    static const shape y = {512, 4, 8, 8, false, 15, 1};
    rg_block_iq3_s *b = (rg_block_iq3_s *)(void *)dst;
    tables *t = scratch;
    choice c;
    load_grid4(rg_grid_iq3s, 512, t);
    search(&y, t, x, w, &c);
    memset(b, 0, sizeof *b);
    store_u16(b->d, finite_f16(c.d));
    if (c.d == 0) return;
    for (unsigned e = 0; e < 64; e++) {
        const unsigned p = point_of(&y, &c, e);
        b->qs[e] = (uint8_t)p;
        b->qh[e / 8] |= (uint8_t)((p >> 8) << (e % 8));
    }
    for (unsigned e = 0; e < 32; e++)
        b->signs[e] = (uint8_t)signs_of(&y, t, &c, e, x, w);
    for (unsigned g = 0; g < 8; g++)
        b->scales[g / 2] |= (uint8_t)(c.code[g] << (4 * (g % 2)));
}
