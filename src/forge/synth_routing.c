/* The numbers behind routing that behaves (docs/synth.md): how loud the constant, slow and token
 * parts of the residual are, and which bias gives an expert its share of the tokens.
 */
#include <math.h>
#include <string.h>

#include "forge/synth_parts.h"

#define SKEW_DEFAULT           1.35
#define CORRELATION_DEFAULT    0.6
#define PREDICTABILITY_DEFAULT 0.76
#define USAGE_MOST             0.5  /* share of the tokens the most popular expert sees */
#define CONST_SHARE            0.35 /* of the embedding's energy and the slow part's */
#define DRIFT                  0.2  /* energy all other half layers add together, of the start's */
#define MEMORY_TOKENS          35.0
#define GATE                   0.5  /* mean of the stream gates */
#define KEPT_BY_NATURE         0.95 /* correlation of successive mixed inputs without flips */

static double share_or(double v, double fallback, double most) {
    if (!(v >= 0)) return fallback;
    return v > most ? most : v;
}

/* ---- popularity ------------------------------------------------------------------------------ */

/* Inverse of the normal distribution function, by bisection. */
static double normal_quantile(double p) {
    double low = -9, high = 9;
    for (int i = 0; i < 60; i++) {
        const double mid = (low + high) / 2;
        if (0.5 * erfc(-mid / sqrt(2)) < p) {
            low = mid;
        } else {
            high = mid;
        }
    }
    return low;
}

/* Zipf-Mandelbrot: usage of rank r is proportional to (r + shift)^-skew, with the least shift that
 * leaves the first expert at most USAGE_MOST of the tokens; all together n_used. */
void rg_synth_usage(uint32_t n_expert, uint32_t n_used, double skew, double *usage) {
    const double mean = (double)n_used / n_expert;
    const double most = fmax(USAGE_MOST, fmin(0.95, 2 * mean));
    double low = 0, high = 1e6;
    for (int i = 0; i < 80; i++) {
        const double shift = i == 0 ? 0 : (low + high) / 2;
        double sum = 0;
        for (uint32_t r = 0; r < n_expert; r++)
            sum += usage[r] = pow(r + 1 + shift, -skew);
        for (uint32_t r = 0; r < n_expert; r++)
            usage[r] *= n_used / sum;
        if (usage[0] > most) {
            low = shift;
        } else if (i == 0) {
            return;
        } else {
            high = shift;
        }
    }
}

/* ---- energies -------------------------------------------------------------------------------- */

/* Room for the constant coordinates: whole blocks of the embedding's type, about an eighth of E. */
static uint32_t const_width(uint32_t n_embd, rg_type type) {
    const uint32_t block = rg_type_get((uint32_t)type)->block_elems;
    if (n_embd >= 1024 && n_embd % 256 == 0) return 256;
    const uint32_t unit = block > 16 ? block : 16;
    const uint32_t width = (n_embd / 8 + unit - 1) / unit * unit;
    return width > n_embd / 2 ? 0 : width;
}

void rg_synth_routing_energies(rg_synth_plan *p) {
    const rg_synth_shape *s = p->shape;
    const rg_synth_options *opt = p->opt;
    rg_synth_routing *r = &p->routing;
    const double slow = share_or(opt->correlation, CORRELATION_DEFAULT, 0.95);
    const double kept = share_or(opt->predictability, PREDICTABILITY_DEFAULT, 1);
    /* A tied output needs rows of a scale that gives logits of deviation about 1. */
    r->token = s->tied ? 2 / sqrt(s->n_embd) : 4;
    r->slow_layer = s->interval >= 2 ? 0 : UINT32_MAX;
    r->slow = r->slow_layer == 0 ? r->token * sqrt(slow / (1 - slow)) : 0;
    const double start = r->token * r->token + r->slow * r->slow;
    r->step = sqrt(DRIFT * start / (2.0 * s->n_layer));
    r->memory = MEMORY_TOKENS;
    r->flip = (1 - sqrt(fmin(1, kept / KEPT_BY_NATURE))) / 2;
}

static void set_constant(rg_synth_routing *r, uint32_t n_embd) {
    if (r->n_const == 0) return;
    const double start = r->token * r->token + r->slow * r->slow;
    r->constant =
        sqrt(CONST_SHARE / (1 - CONST_SHARE) * (n_embd - r->n_const) * start / r->n_const);
}

/* Energy of the residual outside C before the given read. */
static double varying_energy(const rg_synth_plan *p, uint32_t layer, bool ffn) {
    const rg_synth_routing *r = &p->routing;
    const uint32_t half = 2 * layer + (ffn ? 1 : 0);
    double e = r->token * r->token;
    if (r->slow_layer != UINT32_MAX && half > 2 * r->slow_layer) e += r->slow * r->slow;
    return e + half * r->step * r->step;
}

double rg_synth_gain(const rg_synth_plan *p, uint32_t layer, bool ffn) {
    const rg_synth_routing *r = &p->routing;
    const double E = p->shape->n_embd;
    const double square = (r->n_const * r->constant * r->constant +
                           (E - r->n_const) * varying_energy(p, layer, ffn)) /
                          E;
    return GATE / sqrt(square);
}

/* Deviation of router weights outside C so that the varying part of a logit has deviation 1. */
static void set_router_sigmas(rg_synth_plan *p) {
    for (uint32_t i = 0; i < p->n_tensor; i++) {
        rg_synth_tensor *t = &p->tensors[i];
        if (!strstr(t->name, "ffn_gate_inp.weight")) continue;
        const double width = p->shape->n_embd - p->routing.n_const;
        t->sigma = 1 / (rg_synth_gain(p, t->layer, true) *
                        sqrt(width * varying_energy(p, t->layer, true)));
    }
}

/* ---- constants ------------------------------------------------------------------------------- */

static rg_code make_mu(rg_synth_plan *p, rg_type type, rg_status *st) {
    rg_synth_routing *r = &p->routing;
    const rg_type_info *info = rg_type_get((uint32_t)type);
    if (r->n_const == 0) return RG_OK;
    const size_t blocks = r->n_const / info->block_elems;
    r->mu_bytes = blocks * info->block_bytes;
    r->mu_blocks = rg_alloc(1, r->mu_bytes, st);
    r->mu = rg_alloc(r->n_const, sizeof *r->mu, st);
    if (!r->mu_blocks || !r->mu) return RG_NOMEM;
    rg_synth_blocks(type, r->constant, rg_random_u64(p->opt->seed, 0xC0457), r->mu_blocks, blocks);
    rg_unpack_row(type, r->mu_blocks, r->mu, r->n_const);
    for (uint32_t i = 0; i < r->n_const; i++)
        r->mu_square += (double)r->mu[i] * (double)r->mu[i];
    return RG_OK;
}

rg_code rg_synth_routing_init(rg_synth_plan *p, rg_status *st) {
    const rg_synth_shape *s = p->shape;
    rg_synth_routing *r = &p->routing;
    const double skew = share_or(p->opt->skew, SKEW_DEFAULT, 4);
    rg_type embed = RG_TYPE_F32;
    for (uint32_t i = 0; i < p->n_tensor; i++) {
        if (strcmp(p->tensors[i].name, "token_embd.weight") == 0) embed = p->tensors[i].type;
    }
    r->n_const = const_width(s->n_embd, embed);
    set_constant(r, s->n_embd);
    RG_TRY(make_mu(p, embed, st));
    set_router_sigmas(p);
    r->bias = rg_alloc(s->n_expert, sizeof *r->bias, st);
    if (!r->bias) return RG_NOMEM;
    rg_synth_usage(s->n_expert, s->n_used, skew, r->bias);
    for (uint32_t e = 0; e < s->n_expert; e++)
        r->bias[e] = normal_quantile(fmin(r->bias[e], 0.999));
    return RG_OK;
}

void rg_synth_routing_deinit(rg_synth_routing *r) {
    rg_free(r->mu);
    rg_free(r->mu_blocks);
    rg_free(r->bias);
    *r = (rg_synth_routing){0};
}
