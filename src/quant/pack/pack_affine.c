/* Formats with a scale and a minimum, x = s*q - m: q4_1 and q5_1 (m of any sign), q2_K, q4_K and
 * q5_K (m >= 0, both as small integers of a common d and dmin).
 *
 * A sub-block is searched over inverse scales around the one that spans its range; each try is
 * solved for (s, m) by weighted least squares, and the next tries start from the best offset so
 * far. In the formats of 256 the integers of each sub-block are then chosen among neighbours, with
 * codes taken under the values really stored, and (d, dmin) by least squares, in turn.
 */
#include <string.h>

#include "quant/pack/packer_parts.h"

#define SUBS_MAX 16u

/* Weighted sums of one sub-block; those with q belong to one choice of codes. */
typedef struct sums {
    float w, x; /* sum w, sum w x */
    float q, qq, xq;
} sums;

typedef struct line {
    float s, m;
} line;

static float line_gain(const sums *a, line f) {
    return 2 * (f.s * a->xq - f.m * a->x + f.s * f.m * a->q) - f.s * f.s * a->qq - f.m * f.m * a->w;
}

/* Codes q = (x + m) * inverse, rounded, in 0..top. */
static void take_sums(const float *x, const float *w, unsigned n, float inv, float m, float top,
                      sums *a) {
    float q_[LANES] = {0}, qq[LANES] = {0}, xq[LANES] = {0};
    for (unsigned k = 0; k < n; k += LANES) {
        for (unsigned l = 0; l < LANES; l++) {
            const float q = clamp_code(round_code(inv * (x[k + l] + m), 0, top), 0, top);
            const float t = w[k + l] * q;
            q_[l] += t;
            qq[l] += t * q;
            xq[l] += t * x[k + l];
        }
    }
    a->q = lane_sum(q_);
    a->qq = lane_sum(qq);
    a->xq = lane_sum(xq);
}

static void fixed_sums(const float *x, const float *w, unsigned n, sums *a) {
    float sw[LANES] = {0}, sx[LANES] = {0};
    for (unsigned k = 0; k < n; k += LANES) {
        for (unsigned l = 0; l < LANES; l++) {
            sw[l] += w[k + l];
            sx[l] += w[k + l] * x[k + l];
        }
    }
    a->w = lane_sum(sw);
    a->x = lane_sum(sx);
}

/* The best line for given codes; with `positive`, m >= 0 and s >= 0. */
static line solve(const sums *a, bool positive) {
    const float det = a->w * a->qq - a->q * a->q;
    line f = {0, 0};
    if (det > 0) {
        f.s = (a->w * a->xq - a->x * a->q) / det;
        f.m = (a->q * a->xq - a->qq * a->x) / det;
    }
    if (!(det > 0) || (positive && f.m < 0)) {
        f.s = a->qq > 0 ? a->xq / a->qq : 0;
        f.m = 0;
    }
    if (positive && f.s < 0) f.s = 0;
    return f;
}

typedef struct range {
    float lo, hi;
} range;

static range range_of(const float *x, unsigned n, bool positive) {
    range r = {x[0], x[0]};
    for (unsigned i = 1; i < n; i++) {
        if (x[i] < r.lo) r.lo = x[i];
        if (x[i] > r.hi) r.hi = x[i];
    }
    if (positive && r.lo > 0) r.lo = 0;
    if (positive && r.hi < 0) r.hi = 0;
    return r;
}

/* The best line found, unrounded. */
static line search_line(const float *x, const float *w, unsigned n, float top, bool positive) {
    const range r = range_of(x, n, positive);
    const unsigned starts = top < 4 ? 4 : 2;
    line best = {0, positive && r.lo < 0 ? -r.lo : 0};
    sums a;
    fixed_sums(x, w, n, &a);
    if (!(r.hi - r.lo > 1e-15f)) {
        if (!positive) best.m = -r.lo;
        return best;
    }
    a.q = a.qq = a.xq = 0;
    float gain = line_gain(&a, best);
    for (unsigned start = 0; start < starts; start++) {
        const float shrink = 1 - 0.12f * (float)start;
        float m = -r.lo * shrink;
        for (unsigned i = 0; i <= 36; i++) {
            const float t = -0.9f + (top < 4 ? 0.07f : 0.05f) * (float)i;
            const float span = r.hi * shrink + m;
            if (!(span > 0)) break;
            take_sums(x, w, n, (top + t) / span, m, top, &a);
            const line f = solve(&a, positive);
            const float g = line_gain(&a, f);
            if (!(g > gain)) continue;
            gain = g;
            best = f;
            if (start == 0) m = f.m;
        }
    }
    for (unsigned round = 0; round < 4 && best.s > 0; round++) {
        take_sums(x, w, n, 1 / best.s, best.m, top, &a);
        const line f = solve(&a, positive);
        const float g = line_gain(&a, f);
        if (!(g > gain)) break;
        gain = g;
        best = f;
    }
    return best;
}

static uint8_t code_of(float x, float inv, float m, float top) {
    return (uint8_t)(int)clamp_code(round_code(inv * (x + m), 0, top), 0, top);
}

static float inverse(float s) {
    return s != 0 ? 1 / s : 0;
}

/* ---- blocks of 32 -----------------------------------------------------------------------------
 */

/* Scale and minimum through f16, codes [32] under them. */
static line stored_line(const float *x, const float *w, float top, uint8_t codes[32]) {
    line f = search_line(x, w, 32, top, false), kept = {0, 0};
    float best = -INFINITY;
    sums a;
    fixed_sums(x, w, 32, &a);
    for (unsigned round = 0; round < 4; round++) {
        const line r = {through_f16(f.s), through_f16(f.m)};
        take_sums(x, w, 32, inverse(r.s), r.m, top, &a);
        const float g = line_gain(&a, r);
        if (!(g > best)) break;
        best = g;
        kept = r;
        f = solve(&a, false);
    }
    for (unsigned i = 0; i < 32; i++)
        codes[i] = code_of(x[i], inverse(kept.s), kept.m, top);
    return kept;
}

static void put_nibbles(uint8_t qs[16], const uint8_t codes[32]) {
    for (unsigned j = 0; j < 16; j++)
        qs[j] = (uint8_t)((codes[j] & 15) | (codes[j + 16] & 15) << 4);
}

void LV(q4_1)(const float *x, const float *w, uint8_t *dst, void *scratch) {
    rg_block_q4_1 *b = (rg_block_q4_1 *)(void *)dst;
    uint8_t codes[32];
    (void)scratch;
    const line f = stored_line(x, w, 15, codes);
    store_u16(b->d, finite_f16(f.s));
    store_u16(b->m, finite_f16(-f.m));
    put_nibbles(b->qs, codes);
}

void LV(q5_1)(const float *x, const float *w, uint8_t *dst, void *scratch) {
    rg_block_q5_1 *b = (rg_block_q5_1 *)(void *)dst;
    uint8_t codes[32];
    (void)scratch;
    const line f = stored_line(x, w, 31, codes);
    store_u16(b->d, finite_f16(f.s));
    store_u16(b->m, finite_f16(-f.m));
    put_nibbles(b->qs, codes);
    uint32_t high = 0;
    for (unsigned i = 0; i < 32; i++)
        high |= (uint32_t)(codes[i] >> 4) << i;
    store_u32(b->qh, high);
}

/* ---- blocks of 256 ----------------------------------------------------------------------------
 */

typedef struct layout {
    unsigned n_sub, sub;
    float top;       /* largest code */
    int scale_limit; /* largest integer scale and minimum */
} layout;

typedef struct choice {
    line d; /* d and dmin, through f16 */
    int sc[SUBS_MAX], mn[SUBS_MAX];
} choice;

/* Normal equations of (d, dmin) with regressors sc*q and -mn. */
typedef struct normal {
    double ss, sm, mm, sx, mx;
} normal;

static void add_normal(normal *e, const sums *a, int sc, int mn) {
    const double s = sc, m = mn;
    e->ss += s * s * (double)a->qq;
    e->sm += s * m * (double)a->q;
    e->mm += m * m * (double)a->w;
    e->sx += s * (double)a->xq;
    e->mx += m * (double)a->x;
}

static line solve_normal(const normal *e, line old) {
    const double det = e->ss * e->mm - e->sm * e->sm;
    if (!(det > 1e-12 * e->ss * e->mm)) {
        const double s = e->ss > 0 ? e->sx / e->ss : (double)old.s;
        return (line){(float)s, old.m};
    }
    const line f = {(float)((e->sx * e->mm - e->mx * e->sm) / det),
                    (float)((e->sx * e->sm - e->mx * e->ss) / det)};
    return f.s > 0 && f.m >= 0 ? f : old;
}

/* The best integers of each sub-block under c->d. */
static float choose(const layout *y, const float *x, const float *w, const line *subs, choice *c,
                    line *next) {
    normal e = {0};
    float total = 0;
    for (unsigned s = 0; s < y->n_sub; s++) {
        const float *xs = x + s * y->sub, *ws = w + s * y->sub;
        const float limit = (float)y->scale_limit;
        const int sc0 =
            (int)clamp_code(round_code(subs[s].s * inverse(c->d.s), 0, limit), 0, limit);
        const int mn0 =
            (int)clamp_code(round_code(subs[s].m * inverse(c->d.m), 0, limit), 0, limit);
        float best = -INFINITY;
        sums a, kept = {0};
        fixed_sums(xs, ws, y->sub, &a);
        for (int sc = sc0 - 1; sc <= sc0 + 1; sc++) {
            for (int mn = mn0 - 1; mn <= mn0 + 1; mn++) {
                if (sc < 0 || mn < 0 || sc > y->scale_limit || mn > y->scale_limit) continue;
                const line f = {c->d.s * (float)sc, c->d.m * (float)mn};
                take_sums(xs, ws, y->sub, inverse(f.s), f.m, y->top, &a);
                const float g = line_gain(&a, f);
                if (!(g > best)) continue;
                best = g;
                kept = a;
                c->sc[s] = sc;
                c->mn[s] = mn;
            }
        }
        total += best;
        add_normal(&e, &kept, c->sc[s], c->mn[s]);
    }
    *next = solve_normal(&e, c->d);
    return total;
}

static void search(const layout *y, const float *x, const float *w, choice *kept) {
    static const float stretch[] = {1.0f, 0.94f, 1.06f};
    line subs[SUBS_MAX], peak = {0, 0};
    float best = -INFINITY;
    for (unsigned s = 0; s < y->n_sub; s++) {
        subs[s] = search_line(x + s * y->sub, w + s * y->sub, y->sub, y->top, true);
        if (subs[s].s > peak.s) peak.s = subs[s].s;
        if (subs[s].m > peak.m) peak.m = subs[s].m;
    }
    *kept = (choice){0};
    const unsigned tries = y->scale_limit < 63 ? 3 : 1;
    for (unsigned i = 0; i < tries; i++) {
        const float by = stretch[i] / (float)y->scale_limit;
        line d = {peak.s * by, peak.m * by};
        for (unsigned round = 0; round < 3; round++) {
            choice c = {.d = {through_f16(d.s), through_f16(d.m)}};
            const float gain = choose(y, x, w, subs, &c, &d);
            if (!(gain > best)) break;
            best = gain;
            *kept = c;
        }
    }
}

static void all_codes(const layout *y, const float *x, const choice *c, uint8_t codes[256]) {
    for (unsigned i = 0; i < 256; i++) {
        const unsigned s = i / y->sub;
        codes[i] =
            code_of(x[i], inverse(c->d.s * (float)c->sc[s]), c->d.m * (float)c->mn[s], y->top);
    }
}

void LV(q2_K)(const float *x, const float *w, uint8_t *dst, void *scratch) {
    static const layout y = {.n_sub = 16, .sub = 16, .top = 3, .scale_limit = 15};
    rg_block_q2_K *b = (rg_block_q2_K *)(void *)dst;
    uint8_t codes[256];
    choice c;
    (void)scratch;
    search(&y, x, w, &c);
    all_codes(&y, x, &c, codes);
    memset(b->qs, 0, sizeof b->qs);
    for (unsigned i = 0; i < 256; i++)
        b->qs[32 * (i / 128) + i % 32] |= (uint8_t)(codes[i] << (2 * (i / 32 % 4)));
    for (unsigned s = 0; s < 16; s++)
        b->scales[s] = (uint8_t)(c.sc[s] | c.mn[s] << 4);
    store_u16(b->d, finite_f16(c.d.s));
    store_u16(b->dmin, finite_f16(c.d.m));
}

/* Eight 6-bit pairs, as rg_unpack_scales_q4_K reads them. */
static void put_pairs(uint8_t packed[12], const choice *c) {
    for (unsigned s = 0; s < 4; s++) {
        const unsigned sc = (unsigned)c->sc[s + 4], mn = (unsigned)c->mn[s + 4];
        packed[s] = (uint8_t)((unsigned)c->sc[s] | (sc >> 4) << 6);
        packed[s + 4] = (uint8_t)((unsigned)c->mn[s] | (mn >> 4) << 6);
        packed[s + 8] = (uint8_t)((sc & 15) | (mn & 15) << 4);
    }
}

static void put_low_nibbles(uint8_t qs[128], const uint8_t codes[256]) {
    for (unsigned c = 0; c < 4; c++) {
        for (unsigned l = 0; l < 32; l++) {
            qs[32 * c + l] =
                (uint8_t)((codes[64 * c + l] & 15) | (codes[64 * c + 32 + l] & 15) << 4);
        }
    }
}

void LV(q4_K)(const float *x, const float *w, uint8_t *dst, void *scratch) {
    static const layout y = {.n_sub = 8, .sub = 32, .top = 15, .scale_limit = 63};
    rg_block_q4_K *b = (rg_block_q4_K *)(void *)dst;
    uint8_t codes[256];
    choice c;
    (void)scratch;
    search(&y, x, w, &c);
    all_codes(&y, x, &c, codes);
    put_low_nibbles(b->qs, codes);
    put_pairs(b->scales, &c);
    store_u16(b->d, finite_f16(c.d.s));
    store_u16(b->dmin, finite_f16(c.d.m));
}

void LV(q5_K)(const float *x, const float *w, uint8_t *dst, void *scratch) {
    static const layout y = {.n_sub = 8, .sub = 32, .top = 31, .scale_limit = 63};
    rg_block_q5_K *b = (rg_block_q5_K *)(void *)dst;
    uint8_t codes[256];
    choice c;
    (void)scratch;
    search(&y, x, w, &c);
    all_codes(&y, x, &c, codes);
    put_low_nibbles(b->qs, codes);
    memset(b->qh, 0, sizeof b->qh);
    for (unsigned i = 0; i < 256; i++)
        b->qh[i % 32] |= (uint8_t)((codes[i] >> 4) << (i / 32));
    put_pairs(b->scales, &c);
    store_u16(b->d, finite_f16(c.d.s));
    store_u16(b->dmin, finite_f16(c.d.m));
}
