/* Tests of the sampler against a naive reference: sort everything, filter, normalise, draw. */
#include "engine/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"

enum { VOCAB = 500, CTX = 64 };

static rg_sampling_params plain(float temperature) {
    return (rg_sampling_params){
        .temperature = temperature, .top_p = 1.0f, .repeat_penalty = 1.0f, .penalty_last_n = -1};
}

static rg_sampler *make(const rg_sampling_params *p, size_t n_vocab) {
    rg_sampler *s = NULL;
    rg_status st = {0};
    if (rg_sampler_create(&s, p, n_vocab, CTX, &st) != RG_OK) fail_msg("%s", st.message);
    return s;
}

static int32_t pick(rg_sampler *s, const float *logits, uint64_t position) {
    int32_t id = -2;
    assert_int_equal(rg_sampler_pick(s, logits, position, &id, NULL), RG_OK);
    return id;
}

/* Roughly normal, rounded to 1/4 so that ties are common. */
static void random_logits(float *x, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) {
        double sum = -6.0;
        for (uint64_t j = 0; j < 12; j++)
            sum += rg_random_unit(seed, i * 12 + j);
        x[i] = (float)(floor(sum * 12.0) / 4.0);
    }
}

/* ---- the naive reference -------------------------------------------------------------------- */

typedef struct ref_token {
    double logit;
    double prob;
    int32_t id;
} ref_token;

static int by_logit(const void *va, const void *vb) {
    const ref_token *a = va, *b = vb;
    if (a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

static void softmax(ref_token *t, size_t n, double temperature) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        t[i].prob = exp((t[i].logit - t[0].logit) / temperature);
        sum += t[i].prob;
    }
    for (size_t i = 0; i < n; i++)
        t[i].prob /= sum;
}

/* Returns the number of tokens left in t, best first, with their final probabilities. */
static size_t reference(const rg_sampling_params *p, const float *logits, size_t n_vocab,
                        const int32_t *history, size_t n_history, ref_token *t) {
    const size_t window = p->penalty_last_n < 0 ? n_history : (size_t)p->penalty_last_n;
    const size_t first = n_history > window ? n_history - window : 0;
    for (size_t i = 0; i < n_vocab; i++) {
        float x = logits[i];
        int n = 0;
        for (size_t j = 0; j < p->n_logit_bias; j++) {
            if (p->logit_bias[j].id == (int32_t)i) x += p->logit_bias[j].bias;
        }
        for (size_t j = first; j < n_history; j++)
            n += history[j] == (int32_t)i;
        if (n) {
            x = x > 0.0f ? x / p->repeat_penalty : x * p->repeat_penalty;
            x = x - (float)n * p->frequency_penalty - p->presence_penalty;
        }
        t[i] = (ref_token){.logit = (double)x, .id = (int32_t)i};
    }
    qsort(t, n_vocab, sizeof *t, by_logit);
    size_t n = n_vocab;
    if (p->top_k > 0 && (size_t)p->top_k < n) n = (size_t)p->top_k;
    softmax(t, n, 1.0);
    if (p->top_p < 1.0f) {
        double sum = 0.0;
        size_t kept = 0;
        while (kept < n && sum < (double)p->top_p)
            sum += t[kept++].prob;
        n = kept ? kept : 1;
    }
    if (p->min_p > 0.0f) {
        while (n > 1 && t[n - 1].prob / t[0].prob < (double)p->min_p)
            n--;
    }
    softmax(t, n, (double)p->temperature);
    return n;
}

static int32_t reference_draw(const ref_token *t, size_t n, double u) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        sum += t[i].prob;
        if (sum > u) return t[i].id;
    }
    return t[n - 1].id;
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void greedy_takes_the_highest_logit_and_the_lowest_id(void **state) {
    (void)state;
    const float logits[6] = {1.0f, 3.0f, -2.0f, 3.0f, 3.0f, -INFINITY};
    rg_sampling_params p = plain(0.0f);
    rg_sampler *s = make(&p, 6);
    assert_int_equal(pick(s, logits, 0), 1);
    rg_sampler_destroy(s);

    const rg_logit_bias bias[2] = {{1, -INFINITY}, {4, 0.5f}};
    p.logit_bias = bias;
    p.n_logit_bias = 1;
    s = make(&p, 6);
    assert_int_equal(pick(s, logits, 0), 3);
    rg_sampler_destroy(s);
    p.n_logit_bias = 2;
    p.temperature = -1.0f;
    s = make(&p, 6);
    assert_int_equal(pick(s, logits, 9), 4);
    rg_sampler_destroy(s);
}

/* Over the blocks of a large vocabulary: the first of equals, wherever they lie; what no logit may
 * be is found behind the best too.
 */
static void greedy_finds_the_first_of_many(void **state) {
    (void)state;
    enum { MANY = 1300 };
    static float logits[MANY];
    static const int32_t places[][2] = {
        {0, 1299}, {255, 256}, {256, 511}, {700, 701}, {1290, 1299}};
    const rg_logit_bias none = {3, 0.0f};
    for (int biased = 0; biased < 2; biased++) { /* with a copy of the logits, and without */
        rg_sampling_params p = plain(0.0f);
        p.logit_bias = &none;
        p.n_logit_bias = (size_t)biased;
        rg_sampler *s = make(&p, MANY);
        for (size_t i = 0; i < RG_ARRAY_LEN(places); i++) {
            rg_status st = {0};
            int32_t id = 0;
            for (size_t k = 0; k < MANY; k++)
                logits[k] = -(float)((k * 7919) % MANY) - 1.0f;
            logits[places[i][0]] = logits[places[i][1]] = 2.0f;
            assert_int_equal(pick(s, logits, 0), places[i][0]);
            logits[places[i][1]] = 2.5f;
            assert_int_equal(pick(s, logits, 0), places[i][1]);
            logits[1100] = i % 2 ? NAN : INFINITY;
            assert_int_equal(rg_sampler_pick(s, logits, 0, &id, &st), RG_INVALID);
            assert_int_equal(id, -1);
            assert_non_null(strstr(st.message, "token 1100"));
        }
        rg_sampler_destroy(s);
    }
}

static void filters_agree_with_the_reference(void **state) {
    (void)state;
    static const int32_t top_k[] = {0, 1, 7, 40, 500, 1000};
    static const float top_p[] = {1.0f, 0.95f, 0.5f, 0.0f};
    static const float min_p[] = {0.0f, 0.05f, 1.0f};
    static const float temperature[] = {0.3f, 1.0f, 3.0f};
    static float logits[VOCAB];
    static ref_token t[VOCAB];
    const rg_logit_bias bias[3] = {{0, -INFINITY}, {17, 2.25f}, {18, -1.5f}};
    uint64_t n_picks = 0;
    const size_t n_cases = 432; /* all combinations, with and without bias */
    for (size_t c = 0; c < n_cases; c++) {
        rg_sampling_params p = plain(temperature[c / 72 % 3]);
        p.top_k = top_k[c % 6];
        p.top_p = top_p[c / 6 % 4];
        p.min_p = min_p[c / 24 % 3];
        p.seed = c;
        p.logit_bias = bias;
        p.n_logit_bias = c / 216 ? 3 : 0;
        random_logits(logits, VOCAB, c);
        if (c % 5 == 0) {
            for (size_t i = 0; i < VOCAB; i++) {
                if (i % 50) logits[i] = -INFINITY;
            }
        }
        const size_t n = reference(&p, logits, VOCAB, NULL, 0, t);
        rg_sampler *s = make(&p, VOCAB);
        for (uint64_t position = 0; position < 20; position++, n_picks++) {
            const int32_t want = reference_draw(t, n, rg_random_unit(p.seed, position));
            assert_int_equal(pick(s, logits, position), want);
        }
        rg_sampler_destroy(s);
    }
    assert_int_equal(n_picks, 8640);
}

/* Pearson's statistic of 20,000 draws over about 20 cells; 60 is beyond the 1e-5 quantile of
 * chi-squared with 23 degrees of freedom, and the seeds are fixed. */
/* The n best of a row, best first. */
static void list_best(const float *x, uint32_t n_vocab, uint32_t n, rg_few *few) {
    few->n = 0;
    while (few->n < n) {
        int32_t best = -1;
        for (uint32_t i = 0; i < n_vocab; i++) {
            bool taken = false;
            for (uint32_t k = 0; k < few->n; k++)
                taken = taken || few->ids[k] == (int32_t)i;
            if (!taken && (best < 0 || x[i] > x[best])) best = (int32_t)i;
        }
        few->ids[few->n] = best;
        few->logits[few->n++] = x[best];
    }
}

/* Over every filter, with ties at the border, from lists of just enough and of more. */
static void a_list_of_the_best_gives_the_same_token(void **state) {
    (void)state;
    static const int32_t top_ks[] = {1, 2, 7, 40, RG_FEW_MAX};
    static const float shares[] = {1.0f, 0.9f, 0.3f}, least[] = {0.0f, 0.05f, 0.6f};
    uint32_t n_id = 0;
    for (uint64_t at = 0; at < 180; at++) {
        float x[VOCAB];
        rg_few few;
        rg_sampling_params p = plain(at % 4 ? 0.3f + (float)(at % 7) : 0.0f);
        p.top_k = top_ks[at % 5];
        p.top_p = shares[at / 5 % 3];
        p.min_p = least[at / 15 % 3];
        p.seed = at;
        const uint32_t want = p.temperature > 0.0f ? (uint32_t)p.top_k : 1;
        assert_int_equal(rg_sampling_few(&p), want);
        random_logits(x, VOCAB, at);
        list_best(x, VOCAB, at % 2 ? want : RG_FEW_MAX, &few);
        rg_sampler *s = make(&p, VOCAB);
        int32_t last = -1;
        for (uint64_t position = 0; position < 20; position++) {
            const int32_t id = pick(s, x, position);
            assert_int_equal(rg_sampler_pick_few(s, &few, position), id);
            n_id += id != last;
            last = id;
        }
        rg_sampler_destroy(s);
    }
    assert_true(n_id > 500); /* they were draws */
    /* A small vocabulary, all of it in the list. */
    const float y[3] = {0.5f, 0.5f, 0.25f};
    rg_few all;
    rg_sampling_params p = plain(1.0f);
    p.top_k = 40;
    list_best(y, 3, 3, &all);
    rg_sampler *s = make(&p, 3);
    for (uint64_t position = 0; position < 50; position++)
        assert_int_equal(rg_sampler_pick_few(s, &all, position), pick(s, y, position));
    rg_sampler_destroy(s);
}

/* Where a list would not do: no top_k or a large one, penalties, bias. */
static void a_list_is_not_always_enough(void **state) {
    (void)state;
    rg_sampling_params p = plain(0.8f);
    const rg_logit_bias bias = {3, 1.0f};
    assert_int_equal(rg_sampling_few(&p), 0);
    p.top_k = RG_FEW_MAX + 1;
    assert_int_equal(rg_sampling_few(&p), 0);
    p.top_k = 5;
    assert_int_equal(rg_sampling_few(&p), 5);
    p.presence_penalty = 0.5f;
    assert_int_equal(rg_sampling_few(&p), 0);
    p.penalty_last_n = 0; /* sees nothing */
    assert_int_equal(rg_sampling_few(&p), 5);
    p.logit_bias = &bias;
    p.n_logit_bias = 1;
    assert_int_equal(rg_sampling_few(&p), 0);
    p.temperature = 0.0f;
    assert_int_equal(rg_sampling_few(&p), 0);
}

static void frequencies_follow_the_probabilities(void **state) {
    (void)state;
    static ref_token t[24];
    float logits[24];
    for (uint64_t seed = 1; seed <= 5; seed++) {
        rg_sampling_params p = plain(1.5f);
        p.seed = seed * 1000003u;
        p.min_p = 0.01f;
        random_logits(logits, 24, seed);
        const size_t n = reference(&p, logits, 24, NULL, 0, t);
        unsigned count[24] = {0};
        rg_sampler *s = make(&p, 24);
        const unsigned n_draws = 20000;
        for (unsigned i = 0; i < n_draws; i++)
            count[pick(s, logits, i)]++;
        rg_sampler_destroy(s);
        double chi2 = 0.0;
        unsigned inside = 0;
        for (size_t i = 0; i < n; i++) {
            const double want = t[i].prob * n_draws;
            const double off = (double)count[t[i].id] - want;
            chi2 += off * off / want;
            inside += count[t[i].id];
        }
        assert_int_equal(inside, n_draws);
        if (chi2 > 60.0) fail_msg("seed %d: chi-squared %f over %d cells", (int)seed, chi2, (int)n);
    }
}

static void a_draw_depends_on_seed_and_position_alone(void **state) {
    (void)state;
    float logits[VOCAB];
    random_logits(logits, VOCAB, 7);
    rg_sampling_params p = plain(2.0f);
    p.seed = 11;
    rg_sampler *a = make(&p, VOCAB);
    rg_sampler *b = make(&p, VOCAB);
    p.seed = 12;
    rg_sampler *other = make(&p, VOCAB);
    int32_t first[100];
    unsigned n_same = 0;
    for (uint64_t i = 0; i < 100; i++)
        first[i] = pick(a, logits, i);
    for (uint64_t i = 100; i-- > 0;) {
        assert_int_equal(pick(b, logits, i), first[i]);
        n_same += pick(other, logits, i) == first[i];
    }
    assert_true(n_same < 50);
    rg_sampler_destroy(a);
    rg_sampler_destroy(b);
    rg_sampler_destroy(other);
}

static void penalties_agree_with_the_reference(void **state) {
    (void)state;
    static ref_token t[20];
    float logits[20];
    static const int32_t last_n[] = {-1, 0, 1, 5, 1000};
    for (size_t c = 0; c < RG_ARRAY_LEN(last_n); c++) {
        rg_sampling_params p = plain(1.0f);
        p.repeat_penalty = 1.3f;
        p.presence_penalty = 0.5f;
        p.frequency_penalty = 0.25f;
        p.penalty_last_n = last_n[c];
        p.seed = c;
        rg_sampler *s = make(&p, 20);
        int32_t history[CTX];
        for (size_t i = 0; i < CTX; i++) {
            random_logits(logits, 20, i);
            const size_t n = reference(&p, logits, 20, history, i, t);
            history[i] = pick(s, logits, i);
            assert_int_equal(history[i], reference_draw(t, n, rg_random_unit(p.seed, i)));
            assert_int_equal(rg_sampler_accept(s, history[i], NULL), RG_OK);
        }
        rg_status st = {0};
        assert_int_equal(rg_sampler_accept(s, 0, &st), RG_INVALID);
        assert_non_null(strstr(st.message, "65"));
        rg_sampler_destroy(s);
    }
}

static void a_rollback_equals_a_fresh_replay(void **state) {
    (void)state;
    static const int32_t last_n[] = {-1, 3, 8};
    float logits[6];
    random_logits(logits, 6, 3);
    for (size_t c = 0; c < RG_ARRAY_LEN(last_n); c++) {
        rg_sampling_params p = plain(1.0f);
        p.frequency_penalty = 0.7f;
        p.penalty_last_n = last_n[c];
        rg_sampler *s = make(&p, 6);
        int32_t history[CTX];
        size_t n = 0;
        for (uint64_t step = 0; step < 300; step++) {
            const size_t back = (size_t)(rg_random_u64(step, 1) % (n + 1)) / 2;
            assert_int_equal(rg_sampler_rollback(s, back, NULL), RG_OK);
            n -= back;
            for (uint64_t i = 0; i < 5 && n < CTX; i++, n++) {
                history[n] = (int32_t)(rg_random_u64(step, 2 + i) % 6);
                assert_int_equal(rg_sampler_accept(s, history[n], NULL), RG_OK);
            }
            assert_int_equal(rg_sampler_n_accepted(s), n);
            rg_sampler *fresh = make(&p, 6);
            for (size_t i = 0; i < n; i++) {
                assert_int_equal(rg_sampler_accept(fresh, history[i], NULL), RG_OK);
            }
            for (uint64_t i = 0; i < 10; i++) {
                assert_int_equal(pick(s, logits, i), pick(fresh, logits, i));
            }
            rg_sampler_destroy(fresh);
        }
        rg_status st = {0};
        assert_int_equal(rg_sampler_rollback(s, n + 1, &st), RG_INVALID);
        assert_int_equal(rg_sampler_n_accepted(s), n);
        assert_int_equal(rg_sampler_rollback(s, n, NULL), RG_OK);
        assert_int_equal(rg_sampler_n_accepted(s), 0);
        rg_sampler_destroy(s);
    }
}

static void bad_logits_are_refused(void **state) {
    (void)state;
    for (int greedy = 0; greedy < 2; greedy++) {
        rg_sampling_params p = plain(greedy ? 0.0f : 1.0f);
        rg_sampler *s = make(&p, 3);
        float logits[3] = {1.0f, 2.0f, NAN};
        int32_t id = 5;
        rg_status st = {0};
        assert_int_equal(rg_sampler_pick(s, logits, 0, &id, &st), RG_INVALID);
        assert_string_equal(st.message, "the logit of token 2 is not a number");
        assert_int_equal(id, -1);
        rg_status_clear(&st);
        logits[2] = INFINITY;
        assert_int_equal(rg_sampler_pick(s, logits, 0, &id, &st), RG_INVALID);
        assert_string_equal(st.message, "the logit of token 2 is +inf");
        rg_status_clear(&st);
        for (size_t i = 0; i < 3; i++)
            logits[i] = -INFINITY;
        assert_int_equal(rg_sampler_pick(s, logits, 0, &id, &st), RG_INVALID);
        assert_string_equal(st.message, "no token can be chosen: all 3 logits are -inf");
        logits[1] = -3.4e38f;
        assert_int_equal(pick(s, logits, 0), 1);
        rg_sampler_destroy(s);
    }
}

static void a_bias_of_minus_infinity_bans(void **state) {
    (void)state;
    const float logits[4] = {9.0f, 8.0f, 0.0f, 0.0f};
    const rg_logit_bias bias[4] = {{0, -INFINITY}, {1, -INFINITY}, {2, -INFINITY}, {3, -INFINITY}};
    rg_sampling_params p = plain(1.0f);
    p.logit_bias = bias;
    p.n_logit_bias = 2;
    rg_sampler *s = make(&p, 4);
    for (uint64_t i = 0; i < 200; i++)
        assert_true(pick(s, logits, i) >= 2);
    rg_sampler_destroy(s);
    p.n_logit_bias = 4;
    s = make(&p, 4);
    int32_t id = 0;
    assert_int_equal(rg_sampler_pick(s, logits, 0, &id, NULL), RG_INVALID);
    rg_sampler_destroy(s);
}

static void refuse(rg_sampling_params p, const char *message) {
    rg_status st = {0};
    rg_sampler *s = NULL;
    assert_int_equal(rg_sampler_create(&s, &p, 8, CTX, &st), RG_INVALID);
    assert_null(s);
    if (!strstr(st.message, message)) fail_msg("\"%s\" lacks \"%s\"", st.message, message);
}

static void bad_parameters_are_refused(void **state) {
    (void)state;
    rg_sampling_params p;
#define REFUSE(field, value, message)                                                              \
    (p = rg_sampling_defaults(), p.field = (value), refuse(p, message))
    REFUSE(temperature, NAN, "temperature is nan");
    REFUSE(temperature, INFINITY, "temperature is inf");
    REFUSE(top_k, -1, "top_k is -1");
    REFUSE(top_p, 1.5f, "top_p is 1.5, allowed is 0 to 1");
    REFUSE(top_p, NAN, "top_p is nan");
    REFUSE(min_p, -0.5f, "min_p is -0.5");
    REFUSE(repeat_penalty, 0.0f, "repeat_penalty is 0");
    REFUSE(presence_penalty, -101.0f, "presence_penalty is -101");
    REFUSE(frequency_penalty, NAN, "frequency_penalty is nan");
    REFUSE(penalty_last_n, -2, "penalty_last_n is -2");
    REFUSE(n_logit_bias, 1, "1 entries and no array");
    REFUSE(n_logit_bias, RG_SAMPLING_BIAS_MAX + 1, "65537 entries");
#undef REFUSE
    const rg_logit_bias bad[4] = {{8, 0.0f}, {-1, 0.0f}, {0, NAN}, {0, INFINITY}};
    static const char *const message[4] = {"token is 8, the vocabulary has 8", "token is -1",
                                           "token 0 is nan", "token 0 is inf"};
    for (size_t i = 0; i < 4; i++) {
        p = rg_sampling_defaults();
        p.logit_bias = &bad[i];
        p.n_logit_bias = 1;
        refuse(p, message[i]);
    }
    p = rg_sampling_defaults();
    assert_int_equal(rg_sampling_validate(&p, 8, NULL), RG_OK);
    rg_sampler *s = NULL;
    assert_int_equal(rg_sampler_create(&s, &p, 0, CTX, NULL), RG_INVALID);
    assert_int_equal(rg_sampler_create(&s, &p, 8, SIZE_MAX, NULL), RG_INVALID);
    s = make(&p, 8);
    assert_int_equal(rg_sampler_accept(s, 8, NULL), RG_INVALID);
    assert_int_equal(rg_sampler_accept(s, -1, NULL), RG_INVALID);
    assert_int_equal(rg_sampler_n_accepted(s), 0);
    rg_sampler_destroy(s);
}

static void creation_survives_failed_allocations_and_picks_make_none(void **state) {
    (void)state;
    const rg_logit_bias bias = {3, 1.0f};
    rg_sampling_params p = rg_sampling_defaults();
    p.repeat_penalty = 1.1f;
    p.logit_bias = &bias;
    p.n_logit_bias = 1;
    rg_sampler *s = NULL;
    uint64_t n_failed = 0;
    for (uint64_t n = 1; !s; n++) {
        rg_alloc_fail_at(n, false);
        const rg_code rc = rg_sampler_create(&s, &p, VOCAB, CTX, NULL);
        rg_alloc_fail_at(0, false);
        assert_int_equal(rc, s ? RG_OK : RG_NOMEM);
        n_failed += !s;
    }
    assert_int_equal(n_failed, 6);
    float logits[VOCAB];
    random_logits(logits, VOCAB, 1);
    const uint64_t before = rg_alloc_count();
    for (uint64_t i = 0; i < CTX; i++) {
        assert_int_equal(rg_sampler_accept(s, pick(s, logits, i), NULL), RG_OK);
    }
    assert_int_equal(rg_alloc_count(), before);
    rg_sampler_destroy(s);
    rg_sampler_destroy(NULL);
}

static void logprobs_agree_with_the_reference(void **state) {
    (void)state;
    float logits[VOCAB];
    static ref_token t[VOCAB];
    random_logits(logits, VOCAB, 21);
    logits[3] = -INFINITY;
    const rg_sampling_params p = plain(1.0f);
    reference(&p, logits, VOCAB, NULL, 0, t);
    static const size_t top_n[] = {0, 1, 20, RG_SAMPLING_LOGPROBS_MAX};
    for (size_t c = 0; c < RG_ARRAY_LEN(top_n); c++) {
        int32_t ids[RG_SAMPLING_LOGPROBS_MAX];
        float lp[RG_SAMPLING_LOGPROBS_MAX];
        double lse = 0.0;
        assert_int_equal(rg_sampler_logprobs(logits, VOCAB, top_n[c], ids, lp, &lse, NULL), RG_OK);
        for (size_t i = 0; i < top_n[c]; i++) {
            assert_int_equal(ids[i], t[i].id);
            assert_true(fabs((double)lp[i] - log(t[i].prob)) < 1e-5);
        }
        assert_true(fabs((double)logits[t[0].id] - lse - log(t[0].prob)) < 1e-12);
    }
    int32_t ids[2];
    float lp[2];
    assert_int_equal(rg_sampler_logprobs(logits, 1, 2, ids, lp, NULL, NULL), RG_INVALID);
    assert_int_equal(rg_sampler_logprobs(logits + 3, 1, 1, ids, lp, NULL, NULL), RG_INVALID);
    logits[8] = NAN;
    assert_int_equal(rg_sampler_logprobs(logits, VOCAB, 2, ids, lp, NULL, NULL), RG_INVALID);
}

/* A vocabulary of the released size, almost flat: the slowest case. */
static void a_large_flat_vocabulary_works(void **state) {
    (void)state;
    enum { N = 248320 };
    float *logits = rg_alloc(N, sizeof *logits, NULL);
    ref_token *t = rg_alloc(N, sizeof *t, NULL);
    assert_non_null(logits);
    assert_non_null(t);
    for (size_t i = 0; i < N; i++)
        logits[i] = (float)rg_random_unit(5, i);
    rg_sampling_params p = plain(1.0f);
    p.top_p = 0.9f;
    const size_t n = reference(&p, logits, N, NULL, 0, t);
    assert_true(n > N / 2);
    rg_sampler *s = make(&p, N);
    for (uint64_t i = 0; i < 3; i++) {
        assert_int_equal(pick(s, logits, i), reference_draw(t, n, rg_random_unit(0, i)));
    }
    rg_sampler_destroy(s);
    rg_free(logits);
    rg_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_highest_logit_and_the_lowest_id),
        cmocka_unit_test(greedy_finds_the_first_of_many),
        cmocka_unit_test(filters_agree_with_the_reference),
        cmocka_unit_test(a_list_of_the_best_gives_the_same_token),
        cmocka_unit_test(a_list_is_not_always_enough),
        cmocka_unit_test(frequencies_follow_the_probabilities),
        cmocka_unit_test(a_draw_depends_on_seed_and_position_alone),
        cmocka_unit_test(penalties_agree_with_the_reference),
        cmocka_unit_test(a_rollback_equals_a_fresh_replay),
        cmocka_unit_test(bad_logits_are_refused),
        cmocka_unit_test(a_bias_of_minus_infinity_bans),
        cmocka_unit_test(bad_parameters_are_refused),
        cmocka_unit_test(creation_survives_failed_allocations_and_picks_make_none),
        cmocka_unit_test(logprobs_agree_with_the_reference),
        cmocka_unit_test(a_large_flat_vocabulary_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
