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
                                   .chunk = 64,
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

/* The rows below `from` in two pieces, then what stands on them. */
static void move_in_pieces(rg_session *to, const rg_session *from, const rg_snapshot *snap,
                           uint32_t shared) {
    rg_status st = {0};
    const uint32_t cuts[3] = {0, shared / 2, shared};
    for (size_t i = 0; i < 2; i++) {
        if (cuts[i] == cuts[i + 1]) continue;
        const uint64_t bytes = rg_session_rows_bytes(from, cuts[i], cuts[i + 1]);
        uint8_t *rows = rg_alloc(1, bytes, NULL);
        assert_non_null(rows);
        rg_session_export_rows(from, cuts[i], cuts[i + 1], rows);
        if (rg_session_import_rows(to, cuts[i], cuts[i + 1], rows, bytes, &st) != RG_OK) {
            fail_msg("%s", st.message);
            abort();
        }
        assert_int_equal(rg_session_import_rows(to, cuts[i], cuts[i + 1], rows, bytes - 1, NULL),
                         RG_INVALID);
        rg_free(rows);
    }
    const uint64_t bytes = rg_session_export_bytes(from, snap, shared);
    uint8_t *saved = rg_alloc(1, bytes, NULL);
    assert_non_null(saved);
    rg_session_export(from, snap, shared, saved);
    if (rg_session_import(to, rg_snapshot_length(snap), shared, saved, bytes, &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
    rg_free(saved);
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

            const uint64_t bytes = rg_session_export_bytes(warm, snap, 0);
            uint8_t *saved = rg_alloc(1, bytes, NULL);
            assert_non_null(saved);
            rg_session_export(warm, snap, 0, saved);

            rg_session_reset(cold);
            batch(&b, cold, b.ids, cut);
            same(&b, cold, other);
            same_for_good(&b, cold, warm);
            rg_session_reset(cold);
            batch(&b, cold, b.ids, cut);
            if (rg_session_import(other, cut, 0, saved, bytes, &st) != RG_OK) {
                fail_msg("%s", st.message);
            }
            same_for_good(&b, cold, other);
            rg_session_reset(cold);
            batch(&b, cold, b.ids, cut);
            move_in_pieces(other, warm, snap, cut / 2);
            same_for_good(&b, cold, other);
            assert_int_equal(rg_session_import(other, cut, 0, saved, bytes - 1, NULL), RG_INVALID);
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

/* Where the draft block stands is checked: everything is read by it. */
static void a_state_that_cannot_be_is_refused(void **state) {
    (void)state;
    bench b = open_bench(&subjects[2]);
    rg_session *s = new_session(&b);
    rg_snapshot *snap = NULL;
    rg_status st = {0};
    batch(&b, s, b.ids, 6);
    assert_int_equal(rg_session_snapshot(&snap, s, &st), RG_OK);
    const uint64_t bytes = rg_session_export_bytes(s, snap, 0);
    const size_t at = 8 + b.info.n_vocab * sizeof(float);
    uint8_t *saved = rg_alloc(1, bytes, NULL);
    assert_non_null(saved);
    rg_session_export(s, snap, 0, saved);
    for (size_t i = 0; i < 16; i++) {
        saved[at + i] ^= 0x21;
        assert_int_equal(rg_session_import(s, 6, 0, saved, bytes, NULL), RG_INVALID);
        assert_int_equal(rg_session_length(s), 0);
        saved[at + i] ^= 0x21;
    }
    assert_int_equal(rg_session_import(s, 6, 0, saved, bytes, NULL), RG_OK);
    rg_free(saved);
    rg_snapshot_destroy(snap);
    rg_session_destroy(s);
    close_bench(&b);
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
    const rg_batch_part twice[2] = {{s, 1, true, NULL, 0, 0}, {s, 1, true, NULL, 0, 0}};
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

/* ---- guesses -------------------------------------------------------------------------------- */

#define N_MADE 24u

/* What a reply chose, and the best log probabilities it chose from. */
typedef struct made {
    rg_session *session;
    rg_reply *reply;
    uint8_t *allowed; /* NULL: everything */
    uint32_t n, n_prompt;
    int32_t ids[N_MADE];
    float probs[N_MADE][4];
} made;

/* Greedy, drawn with penalties, and greedy under a mask that changes with every token: most of the
 * time it leaves one, so that the text repeats and guesses are right. */
static made begin_reply(const bench *b, uint32_t kind, bool guesses) {
    made m = {.n_prompt = 9 + kind};
    rg_status st = {0};
    bench own = *b;
    if (!guesses) own.so.draft_max = 0;
    if (!guesses) own.so.draft = RG_DRAFT_OFF;
    m.session = new_session(&own);
    rg_reply_options o = {.sampling = rg_sampling_defaults(), .logprobs = true, .n_top = 4};
    o.ignore_eos = true;
    o.sampling.temperature = kind == 1 ? 0.7f : 0.0f;
    o.sampling.frequency_penalty = kind == 1 ? 0.02f : 0.0f;
    o.sampling.seed = 5;
    if (rg_reply_create(&m.reply, b->engine, &o, b->ids + kind, m.n_prompt, 99, &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
    if (kind == 2) m.allowed = rg_alloc((b->info.n_vocab + 7) / 8, 1, NULL);
    batch(b, m.session, b->ids + kind, m.n_prompt);
    return m;
}

static void end_reply(made *m) {
    rg_reply_destroy(m->reply);
    rg_session_destroy(m->session);
    rg_free(m->allowed);
}

/* Picks from all rows that are there. */
static void pick_rows(const bench *b, made *m) {
    rg_status st = {0};
    rg_reply_step step;
    do {
        for (uint32_t id = 0; m->allowed && id < b->info.n_vocab; id++) {
            const uint8_t bit = (uint8_t)(1u << (id % 8));
            const bool on = m->n % 6 == 5 ? id % 5 != m->n % 5 : id == 7 + m->n % 3;
            m->allowed[id / 8] = (uint8_t)((m->allowed[id / 8] & ~bit) | (on ? bit : 0));
        }
        if (rg_reply_pick(m->reply, m->session, m->allowed, &step, &st) != RG_OK) {
            fail_msg("%s", st.message);
        }
        m->ids[m->n] = step.id;
        memcpy(m->probs[m->n++], step.top_logprobs, sizeof m->probs[0]);
    } while (m->n < N_MADE && rg_session_follow(m->session, step.id));
}

/* One window of all replies that are not done, and of a prompt that is read beside them; false when
 * there is none. */
static bool turn(const bench *b, made *all, uint32_t n_reply, rg_session *prompt) {
    rg_batch_part parts[N_SESSION + 1];
    int32_t ids[N_SESSION + 3];
    rg_status st = {0};
    uint32_t who[N_SESSION], n = 0;
    for (uint32_t i = 0; i < n_reply; i++) {
        made *m = &all[i];
        if (m->n == 0) pick_rows(b, m);
        if (m->n == N_MADE) continue;
        ids[n] = m->ids[m->n - 1];
        parts[n] = (rg_batch_part){m->session, 1, true, m->reply, N_MADE - m->n - 1, 0};
        who[n++] = i;
    }
    if (n == 0) return false;
    uint32_t n_part = n;
    if (prompt && rg_session_length(prompt) + 3 <= b->n) {
        memcpy(ids + n, b->ids + rg_session_length(prompt), 3 * sizeof *ids);
        parts[n_part++] = (rg_batch_part){.session = prompt, .n_ids = 3, .want_logits = true};
    }
    if (rg_session_eval_batch(b->engine, parts, n_part, ids, NULL, &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
    for (uint32_t k = 0; k < n; k++)
        pick_rows(b, &all[who[k]]);
    if (rg_session_close_batch(b->engine, parts, n_part, &st) != RG_OK) fail_msg("%s", st.message);
    return true;
}

static void same_reply(const made *one, const made *two) {
    assert_int_equal(one->n, two->n);
    assert_memory_equal(one->ids, two->ids, sizeof one->ids);
    assert_memory_equal(one->probs, two->probs, sizeof one->probs);
}

static bench open_guessing(size_t k) {
    bench b = open_bench(&subjects[k]);
    b.so.draft = subjects[k].mtp ? RG_DRAFT_AUTO : RG_DRAFT_SUFFIX;
    b.so.draft_max = 4;
    b.so.draft_fixed = true;
    return b;
}

static void guesses_share_windows_and_change_nothing(void **state) {
    (void)state;
    uint64_t offered = 0, accepted = 0;
    for (size_t k = 0; k < RG_ARRAY_LEN(subjects); k++) {
        bench b = open_guessing(k);
        made alone[N_SESSION], shared[N_SESSION];
        rg_session *prompt = new_session(&b), *cold = new_session(&b);
        for (uint32_t i = 0; i < N_SESSION; i++) {
            alone[i] = begin_reply(&b, i, false);
            shared[i] = begin_reply(&b, i, true);
            while (turn(&b, &alone[i], 1, NULL))
                continue;
        }
        while (turn(&b, shared, N_SESSION, prompt))
            continue;
        for (uint32_t i = 0; i < N_SESSION; i++) {
            rg_draft_stats d;
            same_reply(&alone[i], &shared[i]);
            rg_session_get_draft_stats(shared[i].session, &d);
            offered += d.offered;
            accepted += d.accepted;
            end_reply(&alone[i]);
            end_reply(&shared[i]);
        }
        batch(&b, cold, b.ids, rg_session_length(prompt));
        assert_true(rg_session_length(prompt) > 20);
        same_for_good(&b, cold, prompt);
        rg_session_destroy(cold);
        rg_session_destroy(prompt);
        close_bench(&b);
    }
    assert_true(accepted > 0);
    assert_true(accepted < offered);
}

/* At every length that a window with guesses ends at: back from another text, out as bytes. */
static void a_prefix_behind_guesses_is_that_of_a_cold_start(void **state) {
    (void)state;
    for (size_t k = 0; k < RG_ARRAY_LEN(subjects); k++) {
        bench b = open_guessing(k);
        made m = begin_reply(&b, 0, true);
        rg_session *cold = new_session(&b), *other = new_session(&b);
        while (turn(&b, &m, 1, NULL)) {
            rg_status st = {0};
            rg_snapshot *snap = NULL;
            const uint32_t n = rg_session_length(m.session);
            if (rg_session_snapshot(&snap, m.session, &st) != RG_OK) fail_msg("%s", st.message);
            int32_t ids[64];
            memcpy(ids, rg_session_ids(m.session), n * sizeof *ids);
            for (uint32_t i = 0; i < 5; i++)
                batch(&b, m.session, &b.ids[(i * 3) % b.n], 1);
            move_in_pieces(other, m.session, snap, n / 3);
            rg_session_reset(cold);
            batch(&b, cold, ids, n);
            same_for_good(&b, cold, other);
            assert_int_equal(rg_session_copy(other, m.session, snap, &st), RG_OK);
            if (rg_session_rewind(m.session, snap, &st) != RG_OK) fail_msg("%s", st.message);
            same(&b, m.session, other);
            rg_snapshot_destroy(snap);
        }
        /* The reply that was put back again and again is that of one that was not. */
        made plain = begin_reply(&b, 0, false);
        while (turn(&b, &plain, 1, NULL))
            continue;
        same_reply(&plain, &m);
        end_reply(&plain);
        end_reply(&m);
        rg_session_destroy(cold);
        rg_session_destroy(other);
        close_bench(&b);
    }
}

/* Routing that prefers what a request used depends on its own tokens, not on neighbours or
 * guesses. */
static void routing_by_request_shares_windows(void **state) {
    (void)state;
    bench b = open_guessing(1);
    made alone[N_SESSION], shared[N_SESSION];
    rg_moce_receipt one, two;
    for (uint32_t i = 0; i < N_SESSION; i++) {
        alone[i] = begin_reply(&b, i, false);
        shared[i] = begin_reply(&b, i, true);
        assert_int_equal(rg_session_moce(alone[i].session, 0.9f, 12, NULL), RG_OK);
        assert_int_equal(rg_session_moce(shared[i].session, 0.9f, 12, NULL), RG_OK);
        while (turn(&b, &alone[i], 1, NULL))
            continue;
    }
    while (turn(&b, shared, N_SESSION, NULL))
        continue;
    for (uint32_t i = 0; i < N_SESSION; i++) {
        same_reply(&alone[i], &shared[i]);
        rg_session_moce_receipt(alone[i].session, &one);
        rg_session_moce_receipt(shared[i].session, &two);
        assert_true(one.routes_changed > 0);
        assert_memory_equal(&one, &two, sizeof one);
        const uint32_t length = rg_session_length(alone[i].session);
        assert_int_equal(rg_session_window_rows(alone[i].session, 64), 16 - length % 16);
        end_reply(&alone[i]);
        end_reply(&shared[i]);
    }
    close_bench(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_share_windows_and_change_nothing),
        cmocka_unit_test(a_prefix_behind_guesses_is_that_of_a_cold_start),
        cmocka_unit_test(routing_by_request_shares_windows),
        cmocka_unit_test(a_shared_window_gives_the_bits_of_one_alone),
        cmocka_unit_test(a_prefix_from_anywhere_gives_the_bits_of_a_cold_start),
        cmocka_unit_test(a_state_that_cannot_be_is_refused),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(a_mask_binds_the_pick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
