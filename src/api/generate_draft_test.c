/* Generation with drafts through the public interface, on tiny models: tokens, text, logits and the
 * way it ends are those of a generation without drafts, whoever drafts and however wrong; so is
 * what the session says afterwards.
 *
 *   generate_draft_test full [N]    512 tokens, every arm greedily and drawn, also on the demo
 *                                   model, with 1 to 3 threads; N: subject N alone
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "regolith.h"
#include "support/logits_hash.h"
#include "support/tiny_model.h"

#define N_CTX  200
#define N_GEN  48
#define N_FULL 512
#define DEMO   RG_SOURCE_DIR "/models/regolith-demo-q4.gguf"

#ifdef RG_DEBUG
#define STRIDE 3u
#else
#define STRIDE 1u
#endif

static bool full;   /* 512 tokens */
static size_t only; /* subject, from 1; 0: all */
static rg_engine *engine;
static rg_engine_info info;
static int32_t *prompt;
static uint32_t n_prompt;

typedef enum behaviour { NONE, ALL_RIGHT, WRONG_AT, SOMETIMES } behaviour;

typedef struct listener {
    /* what came */
    int32_t ids[N_FULL];
    uint32_t n, n_logits;
    char text[32768];
    size_t len;
    uint64_t hash;
    rg_generate_result result;
    /* drafts of the caller */
    const struct listener *truth;
    behaviour how;
    uint32_t wrong_at, n_asked;
    /* leaving */
    uint32_t stop_after, cancel_after;
    rg_session *session;
} listener;

static bool on_token(void *user, int32_t id) {
    listener *l = user;
    assert_true(l->n < RG_ARRAY_LEN(l->ids));
    l->ids[l->n++] = id;
    if (l->cancel_after && l->n == l->cancel_after) rg_session_cancel(l->session);
    return !l->stop_after || l->n < l->stop_after;
}

static bool on_text(void *user, const char *text, size_t len) {
    listener *l = user;
    assert_true(l->len + len < sizeof l->text);
    memcpy(l->text + l->len, text, len);
    l->len += len;
    return true;
}

static rg_code on_logits(void *user, uint32_t position, const float *logits, rg_status *st) {
    listener *l = user;
    (void)st;
    assert_int_equal(l->n_logits++, l->n); /* before its token */
    l->hash = hash_logits(l->hash, position, logits, info.n_vocab);
    return RG_OK;
}

static uint32_t on_draft(void *user, int32_t *ids, uint32_t n_max) {
    listener *l = user;
    uint32_t n = 0;
    l->n_asked++;
    if (l->how == SOMETIMES && rg_random_u64(5, l->n_asked) % 3 == 0) return 0;
    while (n < n_max && l->n + n < l->truth->n) {
        ids[n] = l->truth->ids[l->n + n];
        const bool wrong = l->how == WRONG_AT    ? n == l->wrong_at
                           : l->how == SOMETIMES ? rg_random_u64(6, l->n_asked * 8 + n) % 4 == 0
                                                 : false;
        if (wrong) ids[n] = (ids[n] + 1) % (int32_t)info.n_vocab;
        n++;
    }
    return n;
}

/* ---- fixture --------------------------------------------------------------------------------- */

static void open_with(const char *name, uint32_t arena_experts, int n_threads) {
    char path[RG_TINY_PATH_MAX], file[64];
    rg_status st = {0};
    const bool demo = strcmp(name, "demo") == 0;
    snprintf(file, sizeof file, "%s.gguf", name);
    const rg_engine_options opt = {.model_path = demo ? DEMO : rg_tiny_path(path, file),
                                   .n_threads = n_threads,
                                   .arena_experts = arena_experts};
    if (rg_engine_open(&engine, &opt, &st) != RG_OK) fail_msg("%s", st.message);
    rg_engine_get_info(engine, &info);
    prompt = rg_tiny_ids(demo ? "k-mtp" : name, &n_prompt);
    n_prompt = n_prompt < 30 ? n_prompt : 30;
}

static void open_engine(const char *name, uint32_t arena_experts) {
    open_with(name, arena_experts, 2);
}

static void close_engine(void) {
    rg_engine_close(engine);
    rg_free(prompt);
}

static rg_session *new_session(rg_draft_mode mode, uint32_t draft_max, bool fixed) {
    rg_session *s = NULL;
    rg_status st = {0};
    const rg_session_options opt = {.n_ctx = full ? N_CTX + N_FULL : N_CTX,
                                    .draft = mode,
                                    .draft_max = draft_max,
                                    .draft_fixed = fixed};
    if (rg_session_create(&s, engine, &opt, &st) != RG_OK) fail_msg("%s", st.message);
    if (rg_session_eval(s, prompt, n_prompt, 0, NULL, NULL, &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
    return s;
}

static rg_generate_options options(uint32_t kind) {
    rg_generate_options g = {
        .sampling = rg_sampling_defaults(), .n_predict = N_GEN, .ignore_eos = true};
    g.sampling.temperature = kind == 0 ? 0.0f : 0.9f;
    g.sampling.seed = kind;
    if (kind >= 4) {
        g.sampling.repeat_penalty = 1.3f;
        g.sampling.frequency_penalty = 0.3f;
        g.sampling.penalty_last_n = 20;
    }
    if (kind == 5) g.sampling.temperature = 0.0f;
    return g;
}

static rg_code run(rg_session *s, rg_generate_options g, listener *l) {
    rg_status st = {0};
    l->session = s;
    g.user = l;
    g.on_token = on_token;
    g.on_text = on_text;
    g.on_logits = on_logits;
    g.on_draft = l->how == NONE ? NULL : on_draft;
    const rg_code rc = rg_session_generate(s, &g, &l->result, &st);
    if (rc != RG_OK && rc != RG_CANCELED) fail_msg("%s", st.message);
    return rc;
}

static void same(const listener *a, const listener *b) {
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, a->n * sizeof *a->ids);
    assert_int_equal(a->len, b->len);
    assert_memory_equal(a->text, b->text, a->len);
    assert_true(a->hash == b->hash);
    assert_int_equal(a->result.finish, b->result.finish);
    assert_int_equal(a->result.n_tokens, b->result.n_tokens);
}

/* Both sessions say the same afterwards. */
static void go_on_alike(rg_session *a, rg_session *b) {
    rg_generate_options g = options(0);
    static listener x, y;
    x = y = (listener){0};
    g.n_predict = 8;
    assert_int_equal(rg_session_length(a), rg_session_length(b));
    run(a, g, &x);
    run(b, g, &y);
    same(&x, &y);
}

/* ---- tests ----------------------------------------------------------------------------------- */

typedef struct arm {
    rg_draft_mode mode;
    uint32_t n;
    bool fixed;
    behaviour how;
    uint32_t wrong_at;
} arm;

static uint32_t list_arms(arm *arms) {
    uint32_t n = 0;
    for (uint32_t k = 1; k <= RG_DRAFTS_MAX; k++) {
        if (k <= 4 && info.has_mtp) arms[n++] = (arm){RG_DRAFT_MTP, k, true, NONE, 0};
        arms[n++] = (arm){RG_DRAFT_SUFFIX, k, true, NONE, 0};
        arms[n++] = (arm){RG_DRAFT_OFF, k, true, ALL_RIGHT, 0};
        arms[n++] = (arm){RG_DRAFT_OFF, RG_DRAFTS_MAX, true, WRONG_AT, k - 1};
    }
    arms[n++] = (arm){RG_DRAFT_AUTO, 7, false, NONE, 0};
    arms[n++] = (arm){RG_DRAFT_AUTO, 7, true, NONE, 0};
    arms[n++] = (arm){RG_DRAFT_AUTO, 7, true, SOMETIMES, 0};
    return n;
}

static void check_counts(const arm *a, const rg_draft_stats *d, uint32_t n_token) {
    uint64_t tokens = 0, windows = 0;
    for (uint32_t s = 0; s < RG_SOURCE_COUNT; s++) {
        for (uint32_t n = 0; n <= RG_DRAFTS_MAX; n++) {
            tokens += d->windows[s][n].tokens;
            windows += d->windows[s][n].n;
        }
    }
    /* The first token came with the prompt. */
    assert_int_equal(tokens, n_token - 1);
    assert_int_equal(windows + d->accepted, tokens);
    assert_true(d->accepted <= d->offered);
    if (a->how == ALL_RIGHT) assert_int_equal(d->accepted, d->offered);
    if (a->how == WRONG_AT) {
        assert_true(d->right[RG_SOURCE_CALLER][a->wrong_at] == 0);
        assert_true(a->wrong_at == 0 || d->right[RG_SOURCE_CALLER][a->wrong_at - 1] > 0);
    }
    if (a->how != NONE || a->mode == RG_DRAFT_MTP) assert_true(d->offered > 0);
}

/* One arm against the text without drafts. */
static void check_arm(const arm *a, uint32_t kind, const listener *want, rg_session *plain) {
    static listener got;
    rg_draft_stats d;
    rg_generate_options g = options(kind);
    g.n_predict = want->n;
    got = (listener){.truth = want, .how = a->how, .wrong_at = a->wrong_at};
    rg_session *s = new_session(a->mode, a->n, a->fixed);
    run(s, g, &got);
    same(want, &got);
    rg_session_get_draft_stats(s, &d);
    check_counts(a, &d, got.n);
    if (plain) go_on_alike(plain, s);
    rg_session_destroy(s);
}

static void check_arms(uint32_t n_token, uint32_t kind_step) {
    arm arms[40];
    const uint32_t n_arm = list_arms(arms);
    for (uint32_t kind = 0; kind < 6; kind += kind_step) {
        static listener want;
        want = (listener){0};
        rg_generate_options g = options(kind);
        g.n_predict = n_token;
        rg_session *plain = new_session(RG_DRAFT_OFF, 0, false);
        run(plain, g, &want);
        assert_int_equal(want.n, n_token);
        /* Every arm greedily, and drawn in one of the ways. */
        const uint32_t stride = full ? 1 : STRIDE, step = kind ? (full ? 4 : 5) * stride : stride;
        for (uint32_t a = kind % step; a < n_arm; a += step)
            check_arm(&arms[a], kind, &want, a == 3 ? plain : NULL);
        rg_session_destroy(plain);
    }
}

static void drafts_never_show(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint32_t arena;
        int threads;
    } subjects[] = {{"a-mix", 0, 2}, {"k-mtp", 0, 2}, {"k-mtp", 3, 2}, /* and in full: */
                    {"k-mtp", 3, 1}, {"demo", 0, 3},  {"demo", 7, 2}};
    const size_t n = full ? RG_ARRAY_LEN(subjects) : 3;
    for (size_t i = 0; i < n; i++) {
        if (only && i + 1 != only) continue;
        open_with(subjects[i].name, subjects[i].arena, subjects[i].threads);
        const bool demo = strcmp(subjects[i].name, "demo") == 0; /* greedily, and with penalties */
        check_arms(full ? N_FULL : N_GEN, demo ? 4 : 1);
        close_engine();
    }
}

/* The end falls inside a window: length, stop string, end of text, full context, the caller. */
static void every_end_is_the_same(void **state) {
    (void)state;
    open_engine("k-mtp", 0);
    static listener whole, want, got;
    whole = (listener){0};
    rg_session *s = new_session(RG_DRAFT_OFF, 0, false);
    run(s, options(0), &whole);
    rg_session_destroy(s);
    for (uint32_t at = 1; at < 14; at += STRIDE) {
        for (uint32_t way = 0; way < 4; way++) {
            rg_generate_options g = options(0);
            char stop[4] = {0};
            const char *const stops[] = {stop};
            want = (listener){0};
            got = (listener){.truth = &whole, .how = ALL_RIGHT};
            if (way == 0) g.n_predict = at;
            if (way == 1) want.stop_after = got.stop_after = at;
            if (way == 2) want.cancel_after = got.cancel_after = at;
            if (way == 3 && at + 2 < whole.len) {
                memcpy(stop, whole.text + at, 2);
                g.stop = stops;
                g.n_stop = stop[0] && stop[1] ? 1 : 0;
            }
            rg_session *a = new_session(RG_DRAFT_OFF, 0, false);
            rg_session *b = new_session(RG_DRAFT_OFF, 7, true);
            assert_int_equal(run(a, g, &want), way == 2 ? RG_CANCELED : RG_OK);
            assert_int_equal(run(b, g, &got), way == 2 ? RG_CANCELED : RG_OK);
            /* A cancel stops the next window: drafts may have given some tokens more. */
            if (way != 2) same(&want, &got);
            if (way == 2) {
                assert_true(got.n >= want.n && got.n < want.n + 8);
                assert_memory_equal(got.ids, whole.ids, got.n * sizeof *got.ids);
            }
            if (way != 2) go_on_alike(a, b);
            rg_session_destroy(a);
            rg_session_destroy(b);
        }
    }
    /* To the end of the context, and with the model's own end. */
    rg_generate_options g = options(0);
    for (uint32_t eos = 0; eos < 2; eos++) {
        g.n_predict = eos ? 100 : 0;
        g.ignore_eos = !eos;
        g.sampling.temperature = eos ? 2.0f : 0.0f;
        g.sampling.top_k = 0;
        g.sampling.top_p = 1.0f;
        rg_session *a = new_session(RG_DRAFT_OFF, 0, false),
                   *b = new_session(RG_DRAFT_AUTO, 7, true);
        want = got = (listener){.stop_after = 139};
        run(a, g, &want);
        run(b, g, &got);
        same(&want, &got);
        rg_session_destroy(a);
        rg_session_destroy(b);
    }
    close_engine();
}

static void a_full_context_ends_alike(void **state) {
    (void)state;
    open_engine("a-mix", 0);
    static listener want, got;
    rg_status st = {0};
    for (uint32_t n_ctx = n_prompt + 1; n_ctx < n_prompt + 14; n_ctx++) {
        rg_generate_options g = options(0);
        g.n_predict = 0;
        want = (listener){0};
        rg_session *s[2];
        for (uint32_t i = 0; i < 2; i++) {
            const rg_session_options opt = {.n_ctx = n_ctx, .draft_max = i ? 6 : 0};
            assert_int_equal(rg_session_create(&s[i], engine, &opt, &st), RG_OK);
            assert_int_equal(rg_session_eval(s[i], prompt, n_prompt, 0, NULL, NULL, &st), RG_OK);
        }
        run(s[0], g, &want);
        assert_int_equal(want.result.finish, RG_FINISH_CONTEXT);
        got = (listener){.truth = &want, .how = ALL_RIGHT};
        run(s[1], g, &got);
        same(&want, &got);
        rg_session_destroy(s[0]);
        rg_session_destroy(s[1]);
    }
    close_engine();
}

/* Four sessions in turn, a piece each: none notices the others' drafts. */
static void sessions_with_drafts_do_not_meet(void **state) {
    (void)state;
    enum { N = 4, PIECE = 9, PIECES = 5 };
    open_engine("k-mtp", 3);
    static const rg_draft_mode modes[N] = {RG_DRAFT_MTP, RG_DRAFT_SUFFIX, RG_DRAFT_AUTO,
                                           RG_DRAFT_OFF};
    static listener alone[N], turns[N];
    rg_session *s[N];
    for (uint32_t i = 0; i < N; i++) {
        alone[i] = turns[i] = (listener){0};
        rg_session *plain = new_session(RG_DRAFT_OFF, 0, false);
        rg_generate_options g = options(i);
        g.n_predict = PIECE;
        for (uint32_t k = 0; k < PIECES; k++)
            run(plain, g, &alone[i]);
        rg_session_destroy(plain);
        s[i] = new_session(modes[i], 3, true);
    }
    for (uint32_t k = 0; k < PIECES; k++) {
        for (uint32_t i = 0; i < N; i++) {
            rg_generate_options g = options(i);
            g.n_predict = PIECE;
            run(s[i], g, &turns[i]);
        }
    }
    for (uint32_t i = 0; i < N; i++) {
        same(&alone[i], &turns[i]);
        rg_session_destroy(s[i]);
    }
    close_engine();
}

static uint32_t too_many(void *user, int32_t *ids, uint32_t n_max) {
    (void)user;
    for (uint32_t i = 0; i < n_max; i++)
        ids[i] = 0;
    return n_max + 1;
}
static uint32_t out_of_range(void *user, int32_t *ids, uint32_t n_max) {
    (void)user, (void)n_max;
    ids[0] = (int32_t)info.n_vocab;
    return 1;
}

static void bad_options_are_refused(void **state) {
    (void)state;
    rg_status st = {0};
    open_engine("a-mix", 0);
    rg_session *s = NULL;
    rg_session_options opt = {.n_ctx = N_CTX, .draft = RG_DRAFT_MTP};
    assert_int_equal(rg_session_create(&s, engine, &opt, &st), RG_INVALID); /* no draft block */
    assert_null(s);
    opt = (rg_session_options){.n_ctx = N_CTX, .draft = RG_DRAFT_AUTO, .draft_max = 8};
    assert_int_equal(rg_session_create(&s, engine, &opt, &st), RG_INVALID);
    opt = (rg_session_options){.n_ctx = N_CTX, .draft = (rg_draft_mode)9, .draft_max = 2};
    assert_int_equal(rg_session_create(&s, engine, &opt, &st), RG_INVALID);
    s = new_session(RG_DRAFT_OFF, 3, true);
    rg_generate_options g = options(0);
    g.on_draft = too_many;
    st = (rg_status){0};
    assert_int_equal(rg_session_generate(s, &g, NULL, &st), RG_INVALID);
    g.on_draft = out_of_range;
    st = (rg_status){0};
    assert_int_equal(rg_session_generate(s, &g, NULL, &st), RG_INVALID);
    assert_non_null(strstr(st.message, "outside the vocabulary"));
    g.on_draft = NULL; /* and goes on */
    g.n_predict = 3;
    assert_int_equal(rg_session_generate(s, &g, NULL, &st), RG_OK);
    rg_session_destroy(s);
    close_engine();
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_never_show),
        cmocka_unit_test(every_end_is_the_same),
        cmocka_unit_test(a_full_context_ends_alike),
        cmocka_unit_test(sessions_with_drafts_do_not_meet),
        cmocka_unit_test(bad_options_are_refused),
    };
    full = argc > 1 && strcmp(argv[1], "full") == 0;
    only = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
