/* The governor in made-up worlds, where windows take what we say and drafts are right as often as
 * we say: it finds the length that pays, stops when nothing does, comes back when something does
 * again, and shrinks windows that do not fit.
 */
#include "engine/draft_governor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* A world: a window of T rows takes plain * (1 + slope * (T - 1)). */
typedef struct world {
    double plain_ns, slope, first_ns, chain_ns;
    double right[RG_SOURCE_COUNT]; /* chance of a draft */
    uint32_t match;                /* of the suffix source; 0: nothing */
    uint32_t rows_fit;             /* more rows make waves; 0: no limit */
    double noise;
    double first_sight; /* the first window of each length takes so many times as long; 0: none */
    bool sighted[RG_VERIFY_ROWS + 1];
} world;

typedef struct outcome {
    double tokens, ns;
    uint64_t windows[RG_SOURCE_COUNT], drafts[RG_SOURCE_COUNT];
    uint32_t n_last;
} outcome;

static uint64_t draw;

static double noisy(double ns, double noise) {
    return ns * (1 + noise * (rg_random_unit(11, draw++) - 0.5));
}

static outcome live(rg_governor *g, world *w, uint32_t n_window) {
    outcome o = {0};
    for (uint32_t i = 0; i < n_window; i++) {
        uint32_t confidence[RG_DRAFT_MAX], made = 0;
        const rg_governor_plan p = rg_governor_choose(g, w->match, RG_DRAFT_MAX, 0);
        uint32_t n = p.n;
        double draft_ns = 0;
        for (uint32_t k = 0; k < RG_DRAFT_MAX; k++)
            confidence[k] = p.source == RG_SOURCE_SUFFIX ? rg_confidence_of_match(w->match + k) : 4;
        if (p.source == RG_SOURCE_MTP) {
            do {
                draft_ns += made++ ? w->chain_ns : w->first_ns;
            } while (made < p.n && rg_governor_go_on(g, confidence, made));
            n = rg_governor_trim(g, confidence, made);
            assert_true(n <= made);
        }
        uint32_t right = 0;
        while (right < n && rg_random_unit(12, draw++) < w->right[p.source])
            right++;
        double ns = noisy(w->plain_ns * (1 + w->slope * n), w->noise);
        if (w->first_sight > 0 && !w->sighted[n]) ns *= w->first_sight;
        w->sighted[n] = true;
        const rg_governor_window seen = {.source = p.source,
                                         .n = n,
                                         .right = right,
                                         .confidence = confidence,
                                         .rows = n + 1,
                                         .window_ns = (uint64_t)ns,
                                         .draft_ns = (uint64_t)draft_ns,
                                         .n_made = made,
                                         .waves = w->rows_fit && n + 1 > w->rows_fit};
        rg_governor_learn(g, &seen);
        o.tokens += 1 + right;
        o.ns += ns + draft_ns;
        o.windows[p.source]++;
        o.drafts[p.source] += n;
        o.n_last = n;
    }
    return o;
}

static double speed(const outcome *o, const world *w) {
    return o->tokens / o->ns * w->plain_ns; /* 1: as fast as without drafts */
}

static rg_governor_memory memory;

static rg_governor start(bool mtp, bool suffix) {
    rg_governor g;
    const rg_governor_options opt = {.draft_max = RG_DRAFT_MAX, .mtp = mtp, .suffix = suffix};
    rg_governor_memory_init(&memory);
    rg_governor_init(&g, &opt, &memory);
    draw = 0;
    return g;
}

static void the_best_length_is_found(void **state) {
    (void)state;
    for (int i = 1; i <= 8; i++) {
        world w = {.plain_ns = 1e6, .slope = 0.05 * i, .noise = 0.1, .match = 30};
        w.right[RG_SOURCE_SUFFIX] = 0.8;
        rg_governor g = start(false, true);
        live(&g, &w, 300);
        const outcome o = live(&g, &w, 2000);
        double best = 1, all = 1, tokens = 1;
        for (uint32_t n = 1; n <= RG_DRAFT_MAX; n++) {
            all *= 0.8;
            tokens += all;
            const double s = tokens / (1 + w.slope * n);
            best = s > best ? s : best;
        }
        if (speed(&o, &w) < 0.94 * best)
            fail_msg("slope %g: %g of %g", w.slope, speed(&o, &w), best);
    }
}

/* Windows of a length are slow at first: code and data are cold, others run. */
static void a_bad_start_is_forgotten(void **state) {
    (void)state;
    for (int factor = 2; factor <= 16; factor *= 2) {
        world w = {.plain_ns = 5e5, .slope = 0.25, .noise = 0.1, .match = 30};
        w.first_sight = factor;
        w.right[RG_SOURCE_SUFFIX] = 0.97;
        rg_governor g = start(false, true);
        const outcome first = live(&g, &w, 60);
        const outcome o = live(&g, &w, 200);
        const double best = 7.2 / (1 + 7 * w.slope);
        if (speed(&first, &w) < 0.6 * best || speed(&o, &w) < 0.88 * best) {
            fail_msg("%d times: %g, then %g of %g", factor, speed(&first, &w), speed(&o, &w), best);
        }
    }
}

/* The machine changes its pace: what paid goes on, what did not is not taken for a bargain. */
static void another_pace_changes_nothing(void **state) {
    (void)state;
    for (int good = 0; good < 2; good++) {
        world w = {.plain_ns = 5e5, .slope = good ? 0.25 : 0.8, .noise = 0.1, .match = 30};
        w.right[RG_SOURCE_SUFFIX] = good ? 0.95 : 0.6;
        rg_governor g = start(false, true);
        live(&g, &w, 600);
        double gained = 0;
        for (uint32_t i = 0; i < 20; i++) {
            w.plain_ns *= i % 2 ? 0.4 : 2.5;
            const outcome o = live(&g, &w, 200);
            gained += speed(&o, &w) / 20;
        }
        if (gained < (good ? 1.9 : 0.98)) fail_msg("%d: %g", good, gained);
    }
}

/* Wrong drafts, or windows that cost what they give: little is lost to trials. */
static void losing_drafts_stop(void **state) {
    (void)state;
    const struct {
        double slope, first, right;
    } bad[] = {{0.8, 0.3, 0.6}, {0.3, 0.2, 0.1}, {1.0, 0.0, 0.9}};
    for (size_t i = 0; i < RG_ARRAY_LEN(bad); i++) {
        world w = {.plain_ns = 2e6, .slope = bad[i].slope, .noise = 0.1, .match = 8};
        w.first_ns = w.chain_ns = bad[i].first * w.plain_ns;
        w.right[RG_SOURCE_SUFFIX] = w.right[RG_SOURCE_MTP] = bad[i].right;
        rg_governor g = start(true, true);
        const outcome first = live(&g, &w, 500);
        const outcome o = live(&g, &w, 3000);
        if (speed(&first, &w) < 0.97 || speed(&o, &w) < 0.99) {
            fail_msg("world %zu: %g, then %g", i, speed(&first, &w), speed(&o, &w));
        }
        assert_true(o.windows[RG_SOURCE_NONE] > 2800);
        /* It keeps looking. */
        assert_true(first.drafts[RG_SOURCE_MTP] + first.drafts[RG_SOURCE_SUFFIX] > 0);
        assert_true(o.drafts[RG_SOURCE_MTP] + o.drafts[RG_SOURCE_SUFFIX] > 0);
    }
}

static void drafts_come_back_when_they_pay(void **state) {
    (void)state;
    world w = {.plain_ns = 1e6, .slope = 0.3, .first_ns = 2e5, .chain_ns = 2e5, .noise = 0.1};
    w.right[RG_SOURCE_MTP] = 0.1;
    rg_governor g = start(true, false);
    live(&g, &w, 500);
    w.right[RG_SOURCE_MTP] = 0.9;
    live(&g, &w, 2500);
    const outcome o = live(&g, &w, 500);
    assert_true(speed(&o, &w) > 1.25);
    assert_true(o.windows[RG_SOURCE_NONE] < 50);
    assert_false(rg_governor_mtp_rests(&g));
    w.right[RG_SOURCE_MTP] = 0.05;
    live(&g, &w, 300);
    const outcome after = live(&g, &w, 1000);
    assert_true(speed(&after, &w) > 0.98);
    assert_true(rg_governor_mtp_rests(&g));
}

static void the_better_source_is_taken(void **state) {
    (void)state;
    world w = {.plain_ns = 1e6, .slope = 0.2, .first_ns = 2e5, .chain_ns = 2e5, .match = 25};
    w.right[RG_SOURCE_MTP] = 0.7;
    w.right[RG_SOURCE_SUFFIX] = 0.95;
    rg_governor g = start(true, true);
    live(&g, &w, 300);
    outcome o = live(&g, &w, 400);
    assert_true(o.windows[RG_SOURCE_SUFFIX] > 350);
    w.match = 0;
    live(&g, &w, 100);
    o = live(&g, &w, 400);
    assert_true(o.windows[RG_SOURCE_MTP] > 350);
}

static void windows_that_do_not_fit_shrink(void **state) {
    (void)state;
    world w = {.plain_ns = 1e6, .slope = 0.1, .match = 50, .rows_fit = 3};
    w.right[RG_SOURCE_SUFFIX] = 0.97;
    rg_governor g = start(false, true);
    live(&g, &w, 100);
    const outcome o = live(&g, &w, 200);
    assert_int_equal(memory.rows_max, 3);
    assert_true(o.drafts[RG_SOURCE_SUFFIX] <= 2 * 200 + RG_DRAFT_MAX);
    w.rows_fit = 0; /* and grow again, slowly */
    live(&g, &w, 3000);
    assert_int_equal(memory.rows_max, RG_VERIFY_ROWS);
}

/* What one text taught helps the next; a fixed length asks nobody. */
static void memory_and_fixed_lengths(void **state) {
    (void)state;
    world w = {.plain_ns = 1e6, .slope = 0.1, .match = 50};
    w.right[RG_SOURCE_SUFFIX] = 0.95;
    rg_governor g = start(false, true), next;
    live(&g, &w, 300);
    rg_governor_init(&next, &g.opt, &memory);
    const outcome o = live(&next, &w, 20);
    assert_true(o.windows[RG_SOURCE_SUFFIX] >= 18);
    const rg_governor_options opt = {.draft_max = 5, .mtp = true, .suffix = true, .fixed = true};
    rg_governor_init(&next, &opt, &memory);
    rg_governor_plan p = rg_governor_choose(&next, 0, 7, 0);
    assert_int_equal(p.source, RG_SOURCE_MTP);
    assert_int_equal(p.n, 5);
    p = rg_governor_choose(&next, 3, 4, 0);
    assert_int_equal(p.source, RG_SOURCE_SUFFIX);
    assert_int_equal(p.n, 4);
    p = rg_governor_choose(&next, 3, 0, 0);
    assert_int_equal(p.source, RG_SOURCE_NONE);
}

/* Rows of others make a window dear whatever is drafted: a guess must be surer to join them. */
static void company_raises_the_bar(void **state) {
    (void)state;
    world w = {.plain_ns = 1e6, .slope = 0.3, .match = 9};
    w.right[RG_SOURCE_SUFFIX] = 0.8;
    rg_governor g = start(false, true);
    live(&g, &w, 400);
    memory.since_plain = 0;
    assert_int_equal(rg_governor_choose(&g, 9, 7, 0).source, RG_SOURCE_SUFFIX);
    uint32_t before = 7;
    for (uint32_t others = 0; others < 24; others++) {
        memory.idle[RG_SOURCE_SUFFIX] = 0; /* no trial */
        const uint32_t n = rg_governor_choose(&g, 9, 7, others).n;
        assert_true(n <= before);
        before = n;
    }
    assert_int_equal(before, 0);
    /* Where the arena is known to be small, all rows of the window count. */
    const rg_governor_options opt = {.draft_max = 7, .suffix = true};
    w.right[RG_SOURCE_SUFFIX] = 0.99;
    w.slope = 0.01;
    rg_governor_init(&g, &opt, &memory);
    live(&g, &w, 400);
    memory.rows_max = 4;
    memory.since_plain = 0;
    assert_int_equal(rg_governor_choose(&g, 9, 7, 0).n, 3);
    assert_int_equal(rg_governor_choose(&g, 9, 7, 2).n, 1);
    assert_int_equal(rg_governor_choose(&g, 9, 7, 9).n, 0);
}

static void confidences_grow(void **state) {
    (void)state;
    for (uint32_t m = 1; m < 70; m++)
        assert_true(rg_confidence_of_match(m + 1) >= rg_confidence_of_match(m));
    assert_int_equal(rg_confidence_of_match(1), 0);
    assert_int_equal(rg_confidence_of_match(64), RG_CONFIDENCES - 1);
    assert_int_equal(rg_confidence_of_lead(0.0f), 0);
    assert_int_equal(rg_confidence_of_lead(100.0f), RG_CONFIDENCES - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_length_is_found),
        cmocka_unit_test(a_bad_start_is_forgotten),
        cmocka_unit_test(another_pace_changes_nothing),
        cmocka_unit_test(losing_drafts_stop),
        cmocka_unit_test(drafts_come_back_when_they_pay),
        cmocka_unit_test(the_better_source_is_taken),
        cmocka_unit_test(windows_that_do_not_fit_shrink),
        cmocka_unit_test(memory_and_fixed_lengths),
        cmocka_unit_test(company_raises_the_bar),
        cmocka_unit_test(confidences_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
