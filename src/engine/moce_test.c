/* Cache-aware routing against a naive model of the rule, of the shadow directory and of its copy.
 */
#include "engine/moce.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 3, EXPERTS = 24, USED = 4, TOKENS = 100, CASES = 3000 };

static float draw_logit(uint64_t seed, uint64_t n) {
    /* Few distinct values: ties happen. */
    return (float)(rg_random_u64(seed, n) % 40) * 0.25f - 5.0f;
}

/* Best of what is left, ties by lower index, k times; the best plain one first of all. */
static void naive_select(const float *logits, const uint8_t *resident, float bonus, uint32_t n,
                         uint32_t k, uint32_t *ids) {
    bool taken[EXPERTS] = {false};
    uint32_t best = 0;
    for (uint32_t e = 1; e < n; e++)
        if (logits[e] > logits[best]) best = e;
    taken[best] = true;
    for (uint32_t i = 1; i < k; i++) {
        uint32_t at = UINT32_MAX;
        float top = 0.0f;
        for (uint32_t e = 0; e < n; e++) {
            const float x = logits[e] + (resident[e] ? bonus : 0.0f);
            if (taken[e] || (at != UINT32_MAX && !(x > top))) continue;
            at = e;
            top = x;
        }
        taken[at] = true;
    }
    uint32_t n_id = 0;
    for (uint32_t i = 0; i < k; i++) { /* in the order of the plain router */
        uint32_t at = UINT32_MAX;
        for (uint32_t e = 0; e < n; e++)
            if (taken[e] && (at == UINT32_MAX || logits[e] > logits[at])) at = e;
        ids[n_id++] = at;
        taken[at] = false;
    }
}

static void rule_equals_the_naive_one(void **state) {
    (void)state;
    uint32_t changed = 0;
    for (uint64_t c = 0; c < CASES; c++) {
        float logits[EXPERTS], scores[EXPERTS];
        uint8_t resident[EXPERTS];
        uint32_t got[EXPERTS], want[EXPERTS], plain[EXPERTS];
        const uint32_t n = 2 + (uint32_t)(rg_random_u64(c, 1) % (EXPERTS - 1));
        const uint32_t k = 1 + (uint32_t)(rg_random_u64(c, 2) % n);
        const float bonus = (float)(rg_random_u64(c, 3) % 5) * 1.1f;
        for (uint32_t e = 0; e < n; e++) {
            logits[e] = draw_logit(c, 100 + e);
            resident[e] = rg_random_u64(c, 200 + e) % 10 < 6;
        }
        rg_moce_select(logits, resident, bonus, n, k, scores, got);
        naive_select(logits, resident, bonus, n, k, want);
        if (memcmp(got, want, k * sizeof *got) != 0) fail_msg("case %llu", (unsigned long long)c);
        rg_top_k(logits, n, k, plain);
        assert_int_equal(got[0], plain[0]); /* the best one is kept, and is first */
        if (bonus <= 0.0f) assert_memory_equal(got, plain, k * sizeof *got);
        changed += memcmp(got, plain, k * sizeof *got) != 0;
    }
    assert_true(changed > CASES / 4);
}

/* ---- a request ------------------------------------------------------------------------------ */

typedef struct request {
    uint32_t ids[TOKENS][LAYERS][USED];
    rg_moce_receipt receipt;
} request;

static void logits_of(uint32_t token, uint32_t layer, float *x) {
    for (uint32_t e = 0; e < EXPERTS; e++)
        x[e] = draw_logit(77, ((uint64_t)token * LAYERS + layer) * EXPERTS + e);
}

static rg_moce *make(float lambda, uint32_t n_slot) {
    const rg_moce_shape shape = {
        .n_layer = LAYERS, .n_expert = EXPERTS, .n_used = USED, .lambda = lambda, .n_slot = n_slot};
    rg_moce *m;
    rg_status st = {0};
    if (rg_moce_create(&m, &shape, &st) != RG_OK) fail_msg("%s", st.message);
    return m;
}

/* Tokens at positions first.. in windows of up to `rows`, of which `keep` at most are accepted. */
static void run(request *r, float lambda, uint32_t n_slot, uint32_t first, uint32_t rows,
                uint32_t keep) {
    rg_moce *m = make(lambda, n_slot);
    const rg_ops *ops = rg_ops_get(RG_CPU_SCALAR);
    memset(r, 0, sizeof *r);
    for (uint32_t done = 0; done < TOKENS;) {
        const uint32_t left = TOKENS - done < rows ? TOKENS - done : rows;
        const uint32_t n = rg_moce_rows(first + done, left);
        rg_moce_begin(m, first + done, n);
        for (uint32_t l = 0; l < LAYERS; l++) {
            for (uint32_t t = 0; t < n; t++) {
                float x[EXPERTS];
                logits_of(done + t, l, x);
                rg_moce_route(m, ops, l, t, x, r->ids[done + t][l]);
            }
        }
        const uint32_t accepted = n < keep ? n : keep;
        rg_moce_accept(m, accepted);
        done += accepted;
    }
    r->receipt = rg_moce_get_receipt(m);
    rg_moce_destroy(m);
}

static void same(const request *a, const request *b) {
    assert_memory_equal(a->ids, b->ids, sizeof a->ids);
    assert_int_equal(a->receipt.tokens, b->receipt.tokens);
    assert_int_equal(a->receipt.routes, b->receipt.routes);
    assert_int_equal(a->receipt.routes_changed, b->receipt.routes_changed);
    assert_true(a->receipt.mass_moved <= b->receipt.mass_moved);
    assert_true(a->receipt.mass_moved >= b->receipt.mass_moved);
}

static void windows_and_drafts_change_nothing(void **state) {
    (void)state;
    static request want, got;
    run(&want, 0.6f, 20, 5, 1, 1);
    static const uint32_t cuts[][2] = {{3, 3}, {8, 8}, {64, 64}, {4, 1}, {16, 5}, {7, 3}};
    for (size_t i = 0; i < RG_ARRAY_LEN(cuts); i++) {
        run(&got, 0.6f, 20, 5, cuts[i][0], cuts[i][1]);
        same(&got, &want);
    }
    assert_int_equal(want.receipt.tokens, TOKENS);
    assert_int_equal(want.receipt.routes, TOKENS * LAYERS * USED);
    assert_true(want.receipt.routes_changed > 0);
    assert_true(want.receipt.mass_moved > 0.0);
    assert_true(want.receipt.mass_moved < 1.0);
    run(&got, 0.6f, 60, 5, 1, 1);
    assert_memory_not_equal(got.ids, want.ids, sizeof want.ids); /* the directory's size counts */
}

static void strength_zero_is_the_plain_router(void **state) {
    (void)state;
    static request r;
    run(&r, 0.0f, 20, 0, 8, 8);
    assert_int_equal(r.receipt.routes_changed, 0);
    for (uint32_t t = 0; t < TOKENS; t++) {
        for (uint32_t l = 0; l < LAYERS; l++) {
            float x[EXPERTS];
            uint32_t plain[USED];
            logits_of(t, l, x);
            rg_top_k(x, EXPERTS, USED, plain);
            assert_memory_equal(plain, r.ids[t][l], sizeof plain);
        }
    }
}

/* Recomputes every choice from a list kept by hand and sums of ranges. */
static void whole_requests_equal_the_naive_model(void **state) {
    (void)state;
    enum { SLOTS = 17, FIRST = 9 };
    static request r;
    run(&r, 0.85f, SLOTS, FIRST, 1, 1);
    uint32_t list[SLOTS], n = 0; /* newest first */
    uint8_t copy[LAYERS][EXPERTS] = {{0}};
    double sum[LAYERS] = {0};
    float bonus[LAYERS] = {0};
    for (uint32_t t = 0; t < TOKENS; t++) {
        if ((FIRST + t) % RG_MOCE_PERIOD == 0) {
            memset(copy, 0, sizeof copy);
            for (uint32_t i = 0; i < n; i++)
                copy[list[i] / EXPERTS][list[i] % EXPERTS] = 1;
            for (uint32_t l = 0; l < LAYERS && t; l++)
                bonus[l] = (float)((double)0.85f * (sum[l] / t));
        }
        for (uint32_t l = 0; l < LAYERS; l++) {
            float x[EXPERTS], least = INFINITY, most = -INFINITY;
            uint32_t ids[EXPERTS];
            logits_of(t, l, x);
            naive_select(x, copy[l], bonus[l], EXPERTS, USED, ids);
            assert_memory_equal(ids, r.ids[t][l], sizeof r.ids[t][l]);
            for (uint32_t e = 0; e < EXPERTS; e++) {
                least = fminf(least, x[e]);
                most = fmaxf(most, x[e]);
            }
            sum[l] += (double)(most - least);
            for (uint32_t k = 0; k < USED; k++) {
                const uint32_t item = l * EXPERTS + ids[k];
                uint32_t at = 0;
                while (at < n && list[at] != item)
                    at++;
                if (at == n && n < SLOTS) n++;
                if (at == n) at--;
                memmove(list + 1, list, at * sizeof *list);
                list[0] = item;
            }
        }
    }
}

static void copy_waits_for_its_position(void **state) {
    (void)state;
    rg_moce *m = make(1.0f, 50);
    const rg_ops *ops = rg_ops_get(RG_CPU_SCALAR);
    uint32_t ids[USED];
    float x[EXPERTS];
    logits_of(0, 0, x);
    for (uint32_t position = 13; position <= 16; position++) {
        rg_moce_begin(m, position, 1);
        assert_int_equal(rg_moce_copy_holds(m, 0, 0), false);
        rg_moce_route(m, ops, 0, 0, x, ids);
        assert_int_equal(rg_moce_copy_holds(m, 0, ids[0]), position == 16);
        rg_moce_accept(m, 1);
        assert_true(rg_moce_holds(m, 0, ids[0]));
    }
    rg_moce_destroy(m);
    assert_int_equal(rg_moce_rows(13, 100), 3);
    assert_int_equal(rg_moce_rows(16, 100), 16);
    assert_int_equal(rg_moce_rows(16, 2), 2);
}

static void refuses_other_strengths(void **state) {
    (void)state;
    static const float bad[] = {-0.1f, 1.01f, NAN, INFINITY};
    rg_moce *m = NULL;
    for (size_t i = 0; i < RG_ARRAY_LEN(bad); i++) {
        const rg_moce_shape shape = {
            .n_layer = 1, .n_expert = 4, .n_used = 2, .lambda = bad[i], .n_slot = 3};
        assert_int_equal(rg_moce_create(&m, &shape, NULL), RG_INVALID);
        assert_null(m);
    }
    const rg_moce_shape good = {
        .n_layer = 1, .n_expert = 4, .n_used = 2, .lambda = 1.0f, .n_slot = 3};
    rg_code rc = RG_NOMEM;
    for (uint64_t n = 1; rc != RG_OK && n < 100; n++) {
        rg_alloc_fail_at(n, false);
        rc = rg_moce_create(&m, &good, NULL);
        rg_alloc_fail_at(0, false);
        assert_true(rc == RG_OK || (rc == RG_NOMEM && !m));
    }
    assert_int_equal(rc, RG_OK);
    rg_moce_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rule_equals_the_naive_one),
        cmocka_unit_test(windows_and_drafts_change_nothing),
        cmocka_unit_test(strength_zero_is_the_plain_router),
        cmocka_unit_test(whole_requests_equal_the_naive_model),
        cmocka_unit_test(copy_waits_for_its_position),
        cmocka_unit_test(refuses_other_strengths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
