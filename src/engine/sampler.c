/* sampler: bias, penalties, truncation and the draw. See sampler.h for the order.
 *
 * Arithmetic. Logits stay float; weights and their sums are double. The exponential is our own and
 * uses only +, -, * and an exact power of two, so that a pick gives the same token on every CPU
 * level and every machine. Sums run in ascending id where the whole vocabulary counts, else from
 * the best candidate down.
 *
 * Order. Candidates are ranked by higher logit, then lower id: a total order. They are taken from a
 * binary heap, best first, only as many as the settings need; top_k selects before with a heap of k
 * entries, worst first. O(n log k + m log m) at worst for m candidates; no quadratic case.
 *
 * Invariants: 1. count[id] is the number of times `id` is in the last min(window, n_history) tokens
 * of the history. 2. n_history <= n_ctx. Threads: one at a time.
 */
#include "engine/sampler.h"

#include <math.h>
#include <string.h>

#include "base/base.h"

#define N_VOCAB_MAX     (1u << 24)
#define N_CTX_MAX       (1u << 28)
#define PENALTY_MAX     100.0f /* presence and frequency, either sign */
#define REPEAT_MIN      0.01f
#define REPEAT_MAX      100.0f
#define TEMPERATURE_MAX 1e6f

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

struct rg_sampler {
    rg_sampling_params params; /* logit_bias points to `bias` */
    size_t n_vocab;
    size_t n_ctx;
    size_t window;    /* tokens the penalties see; 0 = no penalty */
    size_t n_history; /* accepted tokens */
    int32_t *history; /* [n_ctx] */
    uint32_t *count;  /* [n_vocab] */
    rg_logit_bias *bias;
    float *work;     /* [n_vocab] logits after bias and penalties */
    candidate *cand; /* [n_vocab]; [0, n_heap) is a heap, [n_heap, n_cand) sorted, best last */
    size_t n_cand;
    size_t n_heap;
};

/* e^x for x <= 0, relative error below 1e-15; 0 below -700. Reduction by multiples of ln 2 in two
 * parts (Cody and Waite 1980), then the Taylor series to the 13th power on |r| <= ln(2) / 2. */
static double exp_nonpositive(double x) {
    if (!(x > -700.0)) return 0.0;
    const int k = (int)(x * 1.4426950408889634 - 0.5);
    const double r = (x - k * 0x1.62e42fee00000p-1) - k * 0x1.a39ef35793c76p-33;
    double y = 1.0 / 6227020800.0;
    static const double coefficient[] = {1.0 / 479001600.0,
                                         1.0 / 39916800.0,
                                         1.0 / 3628800.0,
                                         1.0 / 362880.0,
                                         1.0 / 40320.0,
                                         1.0 / 5040.0,
                                         1.0 / 720.0,
                                         1.0 / 120.0,
                                         1.0 / 24.0,
                                         1.0 / 6.0,
                                         0.5,
                                         1.0,
                                         1.0};
    for (size_t i = 0; i < sizeof coefficient / sizeof *coefficient; i++) {
        y = y * r + coefficient[i];
    }
    const uint64_t bits = (uint64_t)(1023 + k) << 52; /* k > -1011: a normal number */
    double power;
    memcpy(&power, &bits, sizeof power);
    return y * power;
}

/* ---- parameters ----------------------------------------------------------------------------- */

rg_sampling_params rg_sampling_defaults(void) {
    return (rg_sampling_params){
        .temperature = 0.8f,
        .top_k = 40,
        .top_p = 0.95f,
        .min_p = 0.05f,
        .repeat_penalty = 1.0f,
        .penalty_last_n = 64,
    };
}

/* NaN fails both comparisons. */
static rg_code check_range(const char *name, float value, float min, float max, rg_status *st) {
    if (value >= min && value <= max) return RG_OK;
    return rg_fail(st, RG_INVALID, "%s is %g, allowed is %g to %g", name, (double)value,
                   (double)min, (double)max);
}

static rg_code check_bias(const rg_sampling_params *p, size_t n_vocab, rg_status *st) {
    if (p->n_logit_bias > RG_SAMPLING_BIAS_MAX) {
        return rg_fail(st, RG_INVALID, "logit_bias has %zu entries, at most %d are allowed",
                       p->n_logit_bias, RG_SAMPLING_BIAS_MAX);
    }
    if (p->n_logit_bias && !p->logit_bias) {
        return rg_fail(st, RG_INVALID, "logit_bias has %zu entries and no array", p->n_logit_bias);
    }
    for (size_t i = 0; i < p->n_logit_bias; i++) {
        const rg_logit_bias b = p->logit_bias[i];
        if (b.id < 0 || (size_t)b.id >= n_vocab) {
            return rg_fail(st, RG_INVALID, "logit_bias token is %d, the vocabulary has %zu", b.id,
                           n_vocab);
        }
        if (isnan(b.bias) || b.bias == INFINITY) {
            return rg_fail(st, RG_INVALID, "logit_bias of token %d is %g, not a number or -inf",
                           b.id, (double)b.bias);
        }
    }
    return RG_OK;
}

rg_code rg_sampling_validate(const rg_sampling_params *p, size_t n_vocab, rg_status *st) {
    RG_TRY(check_range("temperature", p->temperature, -TEMPERATURE_MAX, TEMPERATURE_MAX, st));
    RG_TRY(check_range("top_p", p->top_p, 0.0f, 1.0f, st));
    RG_TRY(check_range("min_p", p->min_p, 0.0f, 1.0f, st));
    RG_TRY(check_range("repeat_penalty", p->repeat_penalty, REPEAT_MIN, REPEAT_MAX, st));
    RG_TRY(check_range("presence_penalty", p->presence_penalty, -PENALTY_MAX, PENALTY_MAX, st));
    RG_TRY(check_range("frequency_penalty", p->frequency_penalty, -PENALTY_MAX, PENALTY_MAX, st));
    if (p->top_k < 0) {
        return rg_fail(st, RG_INVALID, "top_k is %d, allowed is 0 (off) and above", p->top_k);
    }
    if (p->penalty_last_n < -1) {
        return rg_fail(st, RG_INVALID, "penalty_last_n is %d, allowed is -1 (all) and above",
                       p->penalty_last_n);
    }
    return check_bias(p, n_vocab, st);
}

static bool has_penalty(const rg_sampling_params *p) {
    return p->repeat_penalty != 1.0f || p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f;
}

/* ---- life ----------------------------------------------------------------------------------- */

rg_code rg_sampler_create(rg_sampler **out, const rg_sampling_params *p, size_t n_vocab,
                          size_t n_ctx, rg_status *st) {
    rg_code rc = RG_OK;
    *out = NULL;
    if (n_vocab < 1 || n_vocab > N_VOCAB_MAX) {
        return rg_fail(st, RG_INVALID, "sampler: vocabulary of %zu, allowed is 1 to %u", n_vocab,
                       N_VOCAB_MAX);
    }
    if (n_ctx > N_CTX_MAX) {
        return rg_fail(st, RG_INVALID, "sampler: context of %zu, at most %u is allowed", n_ctx,
                       N_CTX_MAX);
    }
    RG_TRY(rg_sampling_validate(p, n_vocab, st));
    rg_sampler *s = rg_alloc(1, sizeof *s, st);
    if (!s) return RG_NOMEM;
    s->params = *p;
    s->n_vocab = n_vocab;
    s->n_ctx = n_ctx;
    s->window = p->penalty_last_n < 0 ? n_ctx : (size_t)p->penalty_last_n;
    if (!has_penalty(p)) s->window = 0;
    if (!(s->history = rg_alloc(n_ctx, sizeof *s->history, st)) ||
        !(s->count = rg_alloc(n_vocab, sizeof *s->count, st)) ||
        !(s->bias = rg_alloc(p->n_logit_bias, sizeof *s->bias, st)) ||
        !(s->work = rg_alloc(n_vocab, sizeof *s->work, st)) ||
        !(s->cand = rg_alloc(n_vocab, sizeof *s->cand, st))) {
        rc = RG_NOMEM;
        goto cleanup;
    }
    if (p->n_logit_bias) memcpy(s->bias, p->logit_bias, p->n_logit_bias * sizeof *s->bias);
    s->params.logit_bias = s->bias;
    *out = s;
    s = NULL;

cleanup:
    rg_sampler_destroy(s);
    return rc;
}

void rg_sampler_destroy(rg_sampler *s) {
    if (!s) return;
    rg_free(s->history);
    rg_free(s->count);
    rg_free(s->bias);
    rg_free(s->work);
    rg_free(s->cand);
    rg_free(s);
}

/* ---- history -------------------------------------------------------------------------------- */

rg_code rg_sampler_accept(rg_sampler *s, int32_t id, rg_status *st) {
    if (id < 0 || (size_t)id >= s->n_vocab) {
        return rg_fail(st, RG_INVALID, "sampler: token %d, the vocabulary has %zu", id, s->n_vocab);
    }
    if (s->n_history == s->n_ctx) {
        return rg_fail(st, RG_INVALID, "sampler: token %zu does not fit a context of %zu",
                       s->n_history + 1, s->n_ctx);
    }
    s->history[s->n_history++] = id;
    if (s->window == 0) return RG_OK;
    s->count[id]++;
    if (s->n_history > s->window) {
        const int32_t left = s->history[s->n_history - s->window - 1];
        RG_ASSERT(s->count[left] > 0);
        s->count[left]--;
    }
    return RG_OK;
}

rg_code rg_sampler_rollback(rg_sampler *s, size_t n, rg_status *st) {
    if (n > s->n_history) {
        return rg_fail(st, RG_INVALID, "sampler: cannot take back %zu tokens of %zu", n,
                       s->n_history);
    }
    for (size_t i = 0; i < n; i++) {
        const int32_t id = s->history[--s->n_history];
        if (s->window == 0) continue;
        RG_ASSERT(s->count[id] > 0);
        s->count[id]--;
        if (s->n_history >= s->window) s->count[s->history[s->n_history - s->window]]++;
    }
    return RG_OK;
}

uint32_t rg_sampling_few(const rg_sampling_params *p) {
    const bool penalties = has_penalty(p) && p->penalty_last_n != 0;
    if (penalties || p->n_logit_bias) return 0;
    if (p->temperature <= 0.0f) return 1;
    return p->top_k > 0 && (uint32_t)p->top_k <= RG_FEW_MAX ? (uint32_t)p->top_k : 0;
}

uint32_t rg_sampler_few(const rg_sampler *s) {
    return rg_sampling_few(&s->params);
}

size_t rg_sampler_n_accepted(const rg_sampler *s) {
    return s->n_history;
}

/* ---- candidates ----------------------------------------------------------------------------- */

static bool is_better(candidate a, candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* Candidates differ in id, so "worse" is exactly "not better". */
static void sift_down(candidate *heap, size_t n, size_t at, bool best_first) {
    const candidate moving = heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= n) break;
        if (child + 1 < n && is_better(heap[child + 1], heap[child]) == best_first) child++;
        if (is_better(heap[child], moving) != best_first) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moving;
}

static void heap_build(candidate *heap, size_t n, bool best_first) {
    for (size_t i = n / 2; i-- > 0;) {
        sift_down(heap, n, i, best_first);
    }
}

/* The candidate of this rank, 0 = best; ranks are asked for in ascending order, any number of
 * times. */
static candidate ranked(rg_sampler *s, size_t rank) {
    RG_DASSERT(rank < s->n_cand);
    while (s->n_cand - s->n_heap <= rank) {
        const candidate best = s->cand[0];
        s->n_heap--;
        s->cand[0] = s->cand[s->n_heap];
        if (s->n_heap > 1) sift_down(s->cand, s->n_heap, 0, true);
        s->cand[s->n_heap] = best;
    }
    return s->cand[s->n_cand - 1 - rank];
}

static rg_code bad_logit(float logit, size_t id, rg_status *st) {
    return rg_fail(st, RG_INVALID, "the logit of token %zu is %s", id,
                   isnan(logit) ? "not a number" : "+inf");
}

#define BLOCK 256u

/* Whether a block has a logit above `best`, or one that is not below +inf. */
static bool block_stands_out(const float *x, float best) {
    uint32_t out = 0; /* a loop without a way out is a wide one */
    for (size_t i = 0; i < BLOCK; i++)
        out |= (uint32_t) !(x[i] <= best);
    return out != 0;
}

/* The best of x[n], the lowest id among equals. Nearly all blocks are passed over. */
static rg_code find_best(const float *x, size_t n, candidate *best, rg_status *st) {
    *best = (candidate){.logit = -INFINITY, .id = -1};
    for (size_t at = 0; at < n; at += BLOCK) {
        const size_t end = n - at < BLOCK ? n : at + BLOCK;
        if (end - at == BLOCK && !block_stands_out(x + at, best->logit)) continue;
        for (size_t i = at; i < end; i++) {
            if (!(x[i] < INFINITY)) return bad_logit(x[i], i, st);
            if (x[i] > best->logit) *best = (candidate){x[i], (int32_t)i};
        }
    }
    if (best->id >= 0) return RG_OK;
    return rg_fail(st, RG_INVALID, "no token can be chosen: all %zu logits are -inf", n);
}

/* Fills work[] and finds its best entry. */
static rg_code adjust(rg_sampler *s, const float *logits, candidate *best, rg_status *st) {
    const rg_sampling_params *p = &s->params;
    float *work = s->work;
    memcpy(work, logits, s->n_vocab * sizeof *work);
    for (size_t i = 0; i < p->n_logit_bias; i++)
        work[s->bias[i].id] += s->bias[i].bias;
    if (s->window) {
        for (size_t i = 0; i < s->n_vocab; i++) {
            const uint32_t n = s->count[i];
            if (n == 0) continue;
            float x = work[i];
            x = x > 0.0f ? x / p->repeat_penalty : x * p->repeat_penalty;
            work[i] = x - (float)n * p->frequency_penalty - p->presence_penalty;
        }
    }
    return find_best(work, s->n_vocab, best, st);
}

/* ---- truncation ----------------------------------------------------------------------------- */

/* Weights of all candidates, from the best down. */
static double sum_ranked(rg_sampler *s, float best) {
    double total = 0.0;
    for (size_t i = 0; i < s->n_cand; i++)
        total += exp_nonpositive((double)ranked(s, i).logit - (double)best);
    return total;
}

/* Candidates from the k best entries of work[], k > 0. The heap has the worst of them on top; a
 * later entry of the same logit has a higher id and is worse. Returns the sum of their weights. */
static double gather_top_k(rg_sampler *s, float best, size_t k) {
    s->n_cand = 0;
    for (size_t i = 0; i < s->n_vocab; i++) {
        const candidate c = {s->work[i], (int32_t)i};
        if (c.logit == -INFINITY) continue;
        if (s->n_cand < k) {
            s->cand[s->n_cand++] = c;
            if (s->n_cand == k) heap_build(s->cand, k, false);
        } else if (c.logit > s->cand[0].logit) {
            s->cand[0] = c;
            sift_down(s->cand, k, 0, false);
        }
    }
    s->n_heap = s->n_cand;
    heap_build(s->cand, s->n_cand, true);
    return sum_ranked(s, best);
}

/* The same from a list that holds them. */
static double take_few(rg_sampler *s, const rg_few *few, size_t k) {
    s->n_cand = few->n < k ? few->n : k;
    s->n_heap = 0;
    for (size_t i = 0; i < s->n_cand; i++)
        s->cand[s->n_cand - 1 - i] = (candidate){few->logits[i], few->ids[i]};
    return sum_ranked(s, few->logits[0]);
}

/* Candidates that top_p < 1 can keep. All entries whose weight is below (1 - top_p) * total / n
 * weigh at most (1 - top_p) * total together, so those above them reach top_p; half of that bound
 * leaves room for rounding. What is left out cannot change the result, nor can the last bit of this
 * logarithm. Returns the sum of the weights of the whole vocabulary. */
static double gather_nucleus(rg_sampler *s, float best) {
    double total = 0.0;
    for (size_t i = 0; i < s->n_vocab; i++) {
        total += exp_nonpositive((double)s->work[i] - (double)best);
    }
    const double share = 0.5 * (1.0 - (double)s->params.top_p) * total / (double)s->n_vocab;
    const double least = (double)best + log(share);
    s->n_cand = 0;
    for (size_t i = 0; i < s->n_vocab; i++) {
        const float logit = s->work[i];
        if (logit == -INFINITY || ((double)logit < least && logit < best)) continue;
        s->cand[s->n_cand++] = (candidate){logit, (int32_t)i};
    }
    s->n_heap = s->n_cand;
    heap_build(s->cand, s->n_cand, true);
    return total;
}

/* Candidates that min_p leaves of the whole vocabulary. Returns the sum of their tempered weights.
 */
static double gather_all(rg_sampler *s, float best) {
    const double min_p = (double)s->params.min_p;
    double total = 0.0;
    s->n_cand = 0;
    for (size_t i = 0; i < s->n_vocab; i++) {
        if (s->work[i] == -INFINITY) continue;
        const double below = (double)s->work[i] - (double)best;
        if (min_p > 0.0 && exp_nonpositive(below) < min_p) continue;
        total += exp_nonpositive(below / (double)s->params.temperature);
        s->cand[s->n_cand++] = (candidate){s->work[i], (int32_t)i};
    }
    s->n_heap = s->n_cand;
    heap_build(s->cand, s->n_cand, true);
    return total;
}

/* How many of the best candidates may be drawn; `untempered` is the sum of the weights that top_p
 * takes its share of. *total is the sum of their tempered weights. */
static size_t truncate_ranked(rg_sampler *s, float best, double untempered, double *total) {
    const rg_sampling_params *p = &s->params;
    const double wanted = (double)p->top_p * untempered;
    double sum = 0.0;
    size_t n = 0;
    *total = 0.0;
    while (n < s->n_cand) {
        const double below = (double)ranked(s, n).logit - (double)best;
        const double weight = exp_nonpositive(below);
        if (weight < (double)p->min_p) break;
        *total += exp_nonpositive(below / (double)p->temperature);
        n++;
        sum += weight;
        if (p->top_p < 1.0f && sum >= wanted) break;
    }
    return n;
}

/* Fills cand[] from work[]. */
static size_t truncate_vocab(rg_sampler *s, float best, double *total) {
    const rg_sampling_params *p = &s->params;
    if (p->top_k == 0 && p->top_p >= 1.0f) {
        *total = gather_all(s, best);
        return s->n_cand;
    }
    const double untempered =
        p->top_k > 0 ? gather_top_k(s, best, (size_t)p->top_k) : gather_nucleus(s, best);
    return truncate_ranked(s, best, untempered, total);
}

/* ---- the draw ------------------------------------------------------------------------------- */

/* One of the n best candidates, whose tempered weights are `total` together. */
static int32_t draw(rg_sampler *s, size_t n, float best, double total, uint64_t position) {
    RG_ASSERT(n > 0); /* the best candidate has weight 1 and passes every filter */
    const double wanted = rg_random_unit(s->params.seed, position) * total;
    double sum = 0.0;
    int32_t id = -1;
    for (size_t i = 0; i < n; i++) {
        const candidate c = ranked(s, i);
        const double below = (double)c.logit - (double)best;
        const double weight = exp_nonpositive(below / (double)s->params.temperature);
        if (weight == 0.0) break; /* so are all that follow; rounding alone leads here */
        sum += weight;
        id = c.id;
        if (sum > wanted) break;
    }
    return id;
}

rg_code rg_sampler_pick(rg_sampler *s, const float *logits, uint64_t position, int32_t *out,
                        rg_status *st) {
    candidate best;
    *out = -1;
    if (s->params.temperature <= 0.0f && !s->window && !s->params.n_logit_bias) {
        RG_TRY(find_best(logits, s->n_vocab, &best, st)); /* nothing else is wanted of them */
        *out = best.id;
        return RG_OK;
    }
    RG_TRY(adjust(s, logits, &best, st));
    if (s->params.temperature <= 0.0f) {
        *out = best.id;
        return RG_OK;
    }
    double total = 0.0;
    const size_t n = truncate_vocab(s, best.logit, &total);
    *out = draw(s, n, best.logit, total, position);
    return RG_OK;
}

int32_t rg_sampler_pick_few(rg_sampler *s, const rg_few *few, uint64_t position) {
    RG_ASSERT(rg_sampler_few(s) > 0);
    RG_ASSERT(few->n > 0);
    RG_ASSERT(few->n >= rg_sampler_few(s) || few->n == s->n_vocab);
    if (s->params.temperature <= 0.0f) return few->ids[0];
    double total = 0.0;
    const double untempered = take_few(s, few, (size_t)s->params.top_k);
    const size_t n = truncate_ranked(s, few->logits[0], untempered, &total);
    return draw(s, n, few->logits[0], total, position);
}

/* ---- log probabilities ---------------------------------------------------------------------- */

rg_code rg_sampler_logprobs(const float *logits, size_t n_vocab, size_t top_n, int32_t *ids_out,
                            float *logprobs_out, double *lse_out, rg_status *st) {
    if (top_n > n_vocab || top_n > RG_SAMPLING_LOGPROBS_MAX) {
        return rg_fail(st, RG_INVALID, "%zu log probabilities of %zu tokens, at most %d", top_n,
                       n_vocab, RG_SAMPLING_LOGPROBS_MAX);
    }
    candidate top[RG_SAMPLING_LOGPROBS_MAX];
    size_t n = 0;
    float best = -INFINITY;
    for (size_t i = 0; i < n_vocab; i++) {
        const candidate c = {logits[i], (int32_t)i};
        if (!(c.logit < INFINITY)) return bad_logit(c.logit, i, st);
        if (c.logit > best) best = c.logit;
        if (top_n == 0 || (n == top_n && !is_better(c, top[n - 1]))) continue;
        size_t at = n < top_n ? n++ : n - 1;
        for (; at > 0 && is_better(c, top[at - 1]); at--)
            top[at] = top[at - 1];
        top[at] = c;
    }
    if (best == -INFINITY) {
        return rg_fail(st, RG_INVALID, "no token is possible: all %zu logits are -inf", n_vocab);
    }
    double sum = 0.0;
    for (size_t i = 0; i < n_vocab; i++)
        sum += exp_nonpositive((double)logits[i] - (double)best);
    const double lse = (double)best + log(sum);
    for (size_t i = 0; i < n; i++) {
        ids_out[i] = top[i].id;
        logprobs_out[i] = (float)((double)top[i].logit - lse);
    }
    if (lse_out) *lse_out = lse;
    return RG_OK;
}
