/* Several sessions in one window, snapshots, and sessions as bytes: the bits are those of a session
 * alone and cold, wherever it is cut.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "regolith.h"
#include "support/tiny_model.h"

#define N_SESSION 3

typedef struct subject {
    const char *file, *ids;
    bool mtp, stream;
} subject;

static const subject subjects[] = {{"a-mix.gguf", "a-mix", false, false},
                                   {"a-mix.gguf", "a-mix", false, true},
                                   {"k-mtp.gguf", "k-mtp", true, false}};

typedef struct bench {
    rg_engine *engine;
    rg_engine_info info;
    int32_t *ids;
    uint32_t n;
    rg_session_options so;
} bench;

static bench open_bench(const subject *s) {
    bench b = {0};
    char path[RG_TINY_PATH_MAX];
    rg_status st = {0};
    const rg_engine_options opt = {.model_path = rg_tiny_path(path, s->file),
                                   .n_threads = 1,
                                   .plan_mtp = s->mtp,
                                   .n_session = N_SESSION,
                                   .arena_experts = s->stream ? 12 : 0};
    if (rg_engine_open(&b.engine, &opt, &st) != RG_OK) fail_msg("%s", st.message);
    rg_engine_get_info(b.engine, &b.info);
    b.ids = rg_tiny_ids(s->ids, &b.n);
    if (b.n > 40) b.n = 40;
    b.so = (rg_session_options){.n_ctx = 64, .mtp = s->mtp};
    return b;
}

static void close_bench(bench *b) {
    rg_engine_close(b->engine);
    rg_free(b->ids);
}

static rg_session *new_session(const bench *b) {
    rg_session *s = NULL;
    rg_status st = {0};
    if (rg_session_create(&s, b->engine, &b->so, &st) != RG_OK) fail_msg("%s", st.message);
    return s;
}

static void batch(const bench *b, rg_session *s, const int32_t *ids, uint32_t n) {
    rg_status st = {0};
    const rg_batch_part part = {.session = s, .n_ids = n, .want_logits = true};
    if (rg_session_eval_batch(b->engine, &part, 1, ids, NULL, &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
}

/* The logits a session stands before, taken out through a greedy reply that tells probabilities. */
static rg_reply_step look(const bench *b, rg_session *s, float probs[8]) {
    rg_reply *r = NULL;
    rg_reply_step step;
    rg_status st = {0};
    rg_reply_options o = {.sampling = rg_sampling_defaults(), .logprobs = true, .n_top = 8};
    o.sampling.temperature = 0;
    if (rg_reply_create(&r, b->engine, &o, NULL, 0, 4, &st) != RG_OK) fail_msg("%s", st.message);
    if (rg_reply_pick(r, s, NULL, &step, &st) != RG_OK) fail_msg("%s", st.message);
    memcpy(probs, step.top_logprobs, 8 * sizeof *probs);
    rg_reply_destroy(r);
    return step;
}

static void same(const bench *b, rg_session *one, rg_session *two) {
    float p[8], q[8];
    assert_int_equal(rg_session_length(one), rg_session_length(two));
    assert_int_equal(look(b, one, p).id, look(b, two, q).id);
    assert_memory_equal(p, q, sizeof p);
}

/* Both go on for a few tokens and stay equal: the whole state is, not the logits alone. */
static void same_for_good(const bench *b, rg_session *one, rg_session *two) {
    same(b, one, two);
    for (uint32_t i = 0; i < 6; i++) {
        const int32_t id = b->ids[(i * 7 + 3) % b->n];
        batch(b, one, &id, 1);
        batch(b, two, &id, 1);
        same(b, one, two);
    }
}

static void a_shared_window_gives_the_bits_of_one_alone(void **state) {
    (void)state;
    for (size_t k = 0; k < RG_ARRAY_LEN(subjects); k++) {
        bench b = open_bench(&subjects[k]);
        rg_session *alone[N_SESSION], *shared[N_SESSION];
        for (uint32_t i = 0; i < N_SESSION; i++) {
            alone[i] = new_session(&b);
            shared[i] = new_session(&b);
        }
        for (uint32_t round = 0; round < 4; round++) {
            rg_batch_part parts[N_SESSION];
            int32_t ids[64];
            uint32_t n = 0;
            rg_status st = {0};
            for (uint32_t i = 0; i < N_SESSION; i++) {
                const uint32_t rows = (round + i) % 3 == 0 ? 5 : 1;
                parts[i] =
                    (rg_batch_part){.session = shared[i], .n_ids = rows, .want_logits = true};
                for (uint32_t r = 0; r < rows; r++)
                    ids[n + r] = b.ids[(round * 5 + i * 11 + r) % b.n];
                batch(&b, alone[i], ids + n, rows);
                n += rows;
            }
            if (rg_session_eval_batch(b.engine, parts, N_SESSION, ids, NULL, &st) != RG_OK) {
                fail_msg("%s", st.message);
            }
            for (uint32_t i = 0; i < N_SESSION; i++)
                same(&b, alone[i], shared[i]);
        }
        for (uint32_t i = 0; i < N_SESSION; i++) {
            rg_session_destroy(alone[i]);
            rg_session_destroy(shared[i]);
        }
        close_bench(&b);
    }
}

static void a_prefix_from_anywhere_gives_the_bits_of_a_cold_start(void **state) {
    (void)state;
    for (size_t k = 0; k < RG_ARRAY_LEN(subjects); k++) {
        bench b = open_bench(&subjects[k]);
        rg_session *cold = new_session(&b), *warm = new_session(&b), *other = new_session(&b);
        for (uint32_t cut = 1; cut < b.n; cut++) {
            rg_status st = {0};
            rg_snapshot *snap = NULL;
            rg_session_reset(warm);
            batch(&b, warm, b.ids, cut);
            if (rg_session_snapshot(&snap, warm, &st) != RG_OK) fail_msg("%s", st.message);
            assert_int_equal(rg_snapshot_length(snap), cut);
            /* The session runs on into another text, then comes back. */
            for (uint32_t i = 0; i < 9; i++)
                batch(&b, warm, &b.ids[(i * 3) % b.n], 1);
            assert_int_equal(rg_session_copy(other, warm, snap, &st), RG_OK);
            if (rg_session_rewind(warm, snap, &st) != RG_OK) fail_msg("%s", st.message);

            const uint64_t bytes = rg_session_export_bytes(warm, snap);
            uint8_t *saved = rg_alloc(1, bytes, NULL);
            assert_non_null(saved);
            rg_session_export(warm, snap, saved);

            rg_session_reset(cold);
            batch(&b, cold, b.ids, cut);
            same(&b, cold, other);
            same_for_good(&b, cold, warm);
            rg_session_reset(cold);
            batch(&b, cold, b.ids, cut);
            if (rg_session_import(other, cut, saved, bytes, &st) != RG_OK) {
                fail_msg("%s", st.message);
            }
            same_for_good(&b, cold, other);
            assert_int_equal(rg_session_import(other, cut, saved, bytes - 1, NULL), RG_INVALID);
            assert_int_equal(rg_session_length(other), 0);
            rg_free(saved);
            rg_snapshot_destroy(snap);
        }
        rg_session_destroy(cold);
        rg_session_destroy(warm);
        rg_session_destroy(other);
        close_bench(&b);
    }
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    bench b = open_bench(&subjects[0]);
    rg_session *s = new_session(&b), *t = new_session(&b);
    rg_snapshot *snap = NULL;
    rg_status st = {0};
    assert_int_equal(rg_session_snapshot(&snap, s, NULL), RG_INVALID);
    assert_null(snap);
    batch(&b, s, b.ids, 6);
    assert_int_equal(rg_session_snapshot(&snap, s, &st), RG_OK);
    batch(&b, t, b.ids + 1, 7);
    assert_int_equal(rg_session_rewind(t, snap, NULL), RG_INVALID); /* other tokens */
    assert_int_equal(rg_session_length(t), 7);
    const rg_batch_part twice[2] = {{s, 1, true, NULL, 0}, {s, 1, true, NULL, 0}};
    assert_int_equal(rg_session_eval_batch(b.engine, twice, 2, b.ids, NULL, NULL), RG_INVALID);
    const rg_batch_part wide = {.session = s, .n_ids = 64, .want_logits = true};
    assert_int_equal(rg_session_eval_batch(b.engine, &wide, 1, b.ids, NULL, NULL), RG_INVALID);
    assert_int_equal(rg_session_length(s), 6);
    const int32_t bad[1] = {-5};
    const rg_batch_part one = {.session = s, .n_ids = 1, .want_logits = true};
    assert_int_equal(rg_session_eval_batch(b.engine, &one, 1, bad, NULL, NULL), RG_INVALID);
    batch(&b, s, b.ids, 1); /* still alive */
    rg_snapshot_destroy(snap);
    rg_session_destroy(s);
    rg_session_destroy(t);
    close_bench(&b);
}

static void a_mask_binds_the_pick(void **state) {
    (void)state;
    bench b = open_bench(&subjects[0]);
    rg_session *s = new_session(&b);
    rg_reply *r = NULL;
    rg_reply_step step;
    rg_status st = {0};
    rg_reply_options o = {.sampling = rg_sampling_defaults()};
    uint8_t *allowed = rg_alloc((b.info.n_vocab + 7) / 8, 1, NULL);
    assert_non_null(allowed);
    batch(&b, s, b.ids, 5);
    assert_int_equal(rg_reply_create(&r, b.engine, &o, b.ids, 5, 99, &st), RG_OK);
    for (uint32_t id = 3; id < b.info.n_vocab; id += b.info.n_vocab / 9) {
        memset(allowed, 0, (b.info.n_vocab + 7) / 8);
        allowed[id / 8] |= (uint8_t)(1u << (id % 8));
        assert_int_equal(rg_reply_pick(r, s, allowed, &step, &st), RG_OK);
        assert_int_equal(step.id, id);
    }
    memset(allowed, 0, (b.info.n_vocab + 7) / 8);
    assert_int_equal(rg_reply_pick(r, s, allowed, &step, NULL), RG_INVALID);
    rg_reply_destroy(r);
    rg_free(allowed);
    rg_session_destroy(s);
    close_bench(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shared_window_gives_the_bits_of_one_alone),
        cmocka_unit_test(a_prefix_from_anywhere_gives_the_bits_of_a_cold_start),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(a_mask_binds_the_pick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
