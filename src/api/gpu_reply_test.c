/* Sessions on a GPU that hold the best logits of their last token alone: whom they are enough for
 * gets what all of them give, everyone else is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "regolith.h"
#include "support/gpu_here.h"
#include "support/tiny_model.h"

#define N_PROMPT 12u
#define N_MADE   5u

typedef struct bench {
    rg_engine *engine;
    rg_session *few, *all;
    int32_t *ids;
} bench;

static rg_session *new_session(const bench *b) {
    rg_session *s = NULL;
    rg_status st = {0};
    if (rg_session_create(&s, b->engine, &(rg_session_options){.n_ctx = 64}, &st) != RG_OK)
        fail_msg("%s", st.message);
    return s;
}

static void eval(const bench *b, uint32_t n_best) {
    rg_status st = {0};
    const rg_batch_part parts[] = {
        {.session = b->few, .n_ids = N_PROMPT, .want_logits = true, .n_best = n_best},
        {.session = b->all, .n_ids = N_PROMPT, .want_logits = true}};
    int32_t ids[2 * N_PROMPT];
    memcpy(ids, b->ids, N_PROMPT * sizeof *ids);
    memcpy(ids + N_PROMPT, b->ids, N_PROMPT * sizeof *ids);
    rg_session_reset(b->few);
    rg_session_reset(b->all);
    if (rg_session_eval_batch(b->engine, parts, 2, ids, NULL, &st) != RG_OK)
        fail_msg("%s", st.message);
}

static bench open_bench(void) {
    bench b = {0};
    char path[RG_TINY_PATH_MAX];
    uint32_t n = 0;
    rg_status st = {0};
    const rg_engine_options opt = {.model_path = rg_tiny_path(path, "a-mix.gguf"),
                                   .n_threads = 1,
                                   .n_session = 2,
                                   .chunk = 32,
                                   .gpu = true,
                                   .gpu_device = -1,
                                   .gpu_check = true};
    if (rg_engine_open(&b.engine, &opt, &st) != RG_OK) fail_msg("%s", st.message);
    b.ids = rg_tiny_ids("a-mix", &n);
    assert_true(n >= N_PROMPT);
    b.few = new_session(&b);
    b.all = new_session(&b);
    return b;
}

static void close_bench(bench *b) {
    rg_session_destroy(b->few);
    rg_session_destroy(b->all);
    rg_engine_close(b->engine);
    rg_free(b->ids);
}

static rg_reply_options drawn(int32_t top_k) {
    rg_reply_options o = {.sampling = rg_sampling_defaults()};
    o.sampling.temperature = top_k > 0 ? 1.5f : 0.0f;
    o.sampling.top_k = top_k;
    o.sampling.top_p = 1.0f;
    o.sampling.min_p = 0.0f;
    o.sampling.seed = 11;
    return o;
}

/* What a reply picks of a session; *n_best is what it looks at. */
static rg_code pick(const bench *b, rg_session *s, const rg_reply_options *o,
                    const uint8_t *allowed, uint32_t *n_best, int32_t *id) {
    rg_reply *r = NULL;
    rg_reply_step step;
    rg_status st = {0};
    if (rg_reply_create(&r, b->engine, o, b->ids, N_PROMPT, 4, &st) != RG_OK)
        fail_msg("%s", st.message);
    *n_best = rg_reply_best(r);
    const rg_code rc = rg_reply_pick(r, s, allowed, &step, &st);
    if (rc != RG_OK) assert_non_null(strstr(st.message, "best logits alone"));
    *id = step.id;
    rg_reply_destroy(r);
    return rc;
}

static void the_best_are_enough_for_some(void **state) {
    (void)state;
    bench b = open_bench();
    static const struct {
        int32_t top_k;
        bool logprobs, masked;
        uint32_t best;
        uint32_t least; /* of a session that it can pick from; 0: all logits */
    } cases[] = {{0, false, false, 1, 1},  {20, false, false, 20, 20}, {64, false, false, 64, 64},
                 {65, false, false, 0, 0}, {0, true, false, 0, 0},     {20, false, true, 20, 0}};
    static const uint32_t held[] = {1, 20, 64};
    uint8_t allowed[8192];
    memset(allowed, 0xff, sizeof allowed);
    for (size_t k = 0; k < RG_ARRAY_LEN(held); k++) {
        eval(&b, held[k]);
        assert_true(rg_session_can_pick(b.all, 0));
        for (size_t i = 0; i < RG_ARRAY_LEN(cases); i++) {
            rg_reply_options o = drawn(cases[i].top_k);
            const uint8_t *mask = cases[i].masked ? allowed : NULL;
            const bool enough = cases[i].least && cases[i].least <= held[k];
            uint32_t n_best = 0;
            int32_t id = -1, want = -1;
            o.logprobs = cases[i].logprobs;
            assert_int_equal(pick(&b, b.all, &o, mask, &n_best, &want), RG_OK);
            assert_int_equal(n_best, cases[i].best);
            assert_int_equal(rg_session_can_pick(b.few, cases[i].least), enough);
            const rg_code rc = pick(&b, b.few, &o, mask, &n_best, &id);
            assert_int_equal(rc, enough ? RG_OK : RG_INVALID);
            if (enough) assert_int_equal(id, want);
        }
    }
    close_bench(&b);
}

static bool note(void *user, int32_t id) {
    int32_t **at = user;
    *(*at)++ = id;
    return true;
}

static rg_code generate(rg_session *s, const rg_sampling_params *how, int32_t made[N_MADE]) {
    rg_status st = {0};
    int32_t *at = made;
    const rg_generate_options o = {
        .sampling = *how, .n_predict = N_MADE, .ignore_eos = true, .on_token = note, .user = &at};
    return rg_session_generate(s, &o, NULL, &st);
}

/* A generation goes on from the best logits that a shared window left, or says that it cannot. */
static void a_generation_goes_on(void **state) {
    (void)state;
    bench b = open_bench();
    int32_t got[N_MADE], want[N_MADE];
    const rg_sampling_params greedy = drawn(0).sampling, wide = drawn(65).sampling;
    eval(&b, 1);
    assert_int_equal(generate(b.few, &wide, got), RG_INVALID);
    assert_int_equal(generate(b.few, &greedy, got), RG_OK);
    assert_int_equal(generate(b.all, &greedy, want), RG_OK);
    assert_memory_equal(got, want, sizeof got);
    close_bench(&b);
}

int main(void) {
    if (!gpu_here()) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_are_enough_for_some),
        cmocka_unit_test(a_generation_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, gpu_kept_release);
}
