/* Verification windows on the tiny models: whatever is drafted, however much of it is accepted,
 * logits and state are those of a sequence that never drafted; chained drafts of the draft block
 * change nothing either; several sequences share a window; refused windows change nothing.
 *
 *   draft_journal_test full    what follows every window, and 1 to 3 threads everywhere
 */
#include "engine/core.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/seq_state.h"
#include "support/tiny_model.h"

#define N_CTX 320u
#define BURST 200u

#ifdef RG_DEBUG
#define SEEDS       1u
#define THREADS_MAX 2
#else
#define SEEDS       2u
#define THREADS_MAX 3
#endif

static bool full;

typedef struct subject {
    const char *name, *file;
    rg_kernel_set kernels;
    rg_kv_type kv;
    bool mtp;
    uint64_t arena_bytes; /* the smallest legal one when 1 */
} subject;

static const subject subjects[] = {
    {"a-mix", "a-mix.gguf", RG_KERNELS_AUTO, RG_KV_F16, false, 0},
    {"b-f16", "b-f16.gguf", RG_KERNELS_AUTO, RG_KV_F32, false, 0},
    {"c-f32", "c-f32.gguf", RG_KERNELS_AUTO, RG_KV_F16, false, 0}, /* selects blocks */
    {"k-mtp", "k-mtp.gguf", RG_KERNELS_AUTO, RG_KV_F16, true, 0},
    {"k-mtp", "k-mtp.gguf", RG_KERNELS_REF, RG_KV_F32, true, 1},
    {"a-fused", "a-fused-00001-of-00003.gguf", RG_KERNELS_AUTO, RG_KV_F16, false, 1},
};

typedef struct bench {
    rg_gguf *gguf;
    rg_model *model;
    rg_core *core;
    const subject *of;
    int32_t *ids;
    uint32_t n, n_vocab;
    float *truth; /* [n][n_vocab] logits without drafts */
} bench;

static rg_code keep_truth(void *user, uint32_t position, const float *logits, rg_status *st) {
    const bench *b = user;
    (void)st;
    memcpy(b->truth + (size_t)position * b->n_vocab, logits, b->n_vocab * sizeof *logits);
    return RG_OK;
}

static rg_seq *new_seq(const bench *b) {
    const rg_seq_options opt = {
        .n_ctx = N_CTX, .kv = b->of->kv, .mtp = b->of->mtp, .draft_max = RG_DRAFT_MAX};
    rg_seq *seq = NULL;
    rg_status st = {0};
    if (rg_seq_create(&seq, b->core, &opt, &st) != RG_OK) fail_msg("%s", st.message);
    return seq;
}

static void eval(const bench *b, rg_seq *seq, const int32_t *ids, uint32_t n) {
    rg_status st = {0};
    if (rg_core_eval(b->core, seq, ids, n, 0, RG_WANT_NONE, NULL, NULL, &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
}

static bench open_bench(const subject *of, int threads) {
    bench b = {.of = of};
    rg_status st = {0};
    char path[RG_TINY_PATH_MAX];
    const rg_model_options mo = {0};
    rg_core_options co = {.n_threads = threads, .kernels = of->kernels, .level = RG_CPU_SCALAR};
    if (rg_cpu_level_pick(&co.level, NULL, &st) != RG_OK ||
        rg_gguf_open(&b.gguf, rg_tiny_path(path, of->file), &st) != RG_OK ||
        rg_model_create(&b.model, b.gguf, &mo, &st) != RG_OK) {
        fail_msg("%s", st.message);
        abort(); /* not reached: fail_msg jumps away, which analyzers do not know */
    }
    rg_stream_layout layout;
    if (rg_experts_layout(&layout, b.model, NULL, &st) != RG_OK) fail_msg("%s", st.message);
    if (of->arena_bytes) co.arena_bytes = rg_stream_min_bytes(&layout, b.model->hp.n_expert_used);
    if (rg_core_create(&b.core, b.gguf, b.model, &co, &st) != RG_OK) fail_msg("%s", st.message);
    b.ids = rg_tiny_ids(of->name, &b.n);
    if (b.n > BURST) b.n = BURST;
    b.n_vocab = b.model->hp.n_vocab;
    b.truth = rg_alloc((size_t)b.n * b.n_vocab, sizeof *b.truth, &st);
    assert_non_null(b.truth);
    rg_seq *seq = new_seq(&b);
    const rg_logits_sink sink = {.row = keep_truth, .user = &b};
    if (rg_core_eval(b.core, seq, b.ids, b.n, 0, RG_WANT_ALL, &sink, NULL, &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
    rg_seq_destroy(seq);
    return b;
}

static void close_bench(bench *b) {
    rg_core_destroy(b->core);
    rg_model_destroy(b->model);
    rg_gguf_close(b->gguf);
    rg_free(b->ids);
    rg_free(b->truth);
}

/* Both sequences as memory that may be compared: journals replayed, the draft block fed. */
static void settle(const bench *b, rg_seq *seq) {
    rg_status st = {0};
    rg_seq_settle(seq);
    if (rg_mtp_settle(b->core, seq, &st) != RG_OK) fail_msg("%s", st.message);
}

static void make_room(const bench *b, rg_seq *seq, uint32_t rows) {
    rg_status st = {0};
    if (!seq->opt.mtp) return;
    if (rg_mtp_make_room(b->core, seq, rows, false, &st) != RG_OK) fail_msg("%s", st.message);
}

/* A window of the next `right` tokens of the text and `wrong` other ones behind; the right ones are
 * kept, and their logits must be those of the plain run. */
static void window(const bench *b, rg_seq *seq, uint32_t right, uint32_t wrong, uint64_t seed) {
    int32_t ids[RG_VERIFY_ROWS];
    rg_status st = {0};
    const uint32_t at = rg_seq_length(seq), n = right + wrong;
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = b->ids[(at + i) % b->n];
        if (i < right) continue;
        ids[i] = (int32_t)((uint32_t)ids[i] + 1 + rg_random_u64(seed, i) % (b->n_vocab - 1));
        ids[i] %= (int32_t)b->n_vocab;
    }
    make_room(b, seq, n);
    rg_verify part = {.seq = seq, .ids = ids, .n = n, .n_kept = right};
    const float *logits = NULL;
    if (rg_core_verify(b->core, &part, 1, NULL, &logits, &st) != RG_OK) fail_msg("%s", st.message);
    assert_memory_equal(logits, b->truth + (size_t)at * b->n_vocab,
                        (size_t)right * b->n_vocab * sizeof *logits);
    if (rg_core_accept(b->core, &part, 1, &st) != RG_OK) fail_msg("%s", st.message);
    assert_int_equal(rg_seq_length(seq), at + right);
}

/* Every window length with every number of rows kept, from the same past. */
static void accept_lengths(const bench *b) {
    const uint32_t past = b->n > 150 ? 150 : b->n / 2; /* c-f32: the selection is on */
    rg_seq *plain = new_seq(b), *drafted = new_seq(b);
    for (uint32_t n = 1; n <= RG_VERIFY_ROWS; n++) {
        for (uint32_t right = 1; right <= n; right++) {
            rg_seq_reset(plain);
            rg_seq_reset(drafted);
            eval(b, plain, b->ids, past + right);
            eval(b, drafted, b->ids, past);
            window(b, drafted, right, n - right, n * 8 + right);
            settle(b, drafted);
            same_state(plain, drafted);
            if (!full && (n + right) % 5) continue; /* and what follows is the same too */
            eval(b, plain, b->ids + past + right, 3);
            eval(b, drafted, b->ids + past + right, 3);
            same_state(plain, drafted);
        }
    }
    rg_seq_destroy(plain);
    rg_seq_destroy(drafted);
}

static void every_accept_length(void **state) {
    (void)state;
    for (size_t i = 0; i < RG_ARRAY_LEN(subjects); i++) {
        for (int threads = 1; threads <= (full ? 3 : 1); threads++) {
            bench b = open_bench(&subjects[i], threads);
            accept_lengths(&b);
            close_bench(&b);
        }
    }
}

/* Windows one after another without anything settled between them, from the first token on. */
static void text_of_windows(const bench *b, uint64_t n_seed) {
    rg_seq *plain = new_seq(b), *drafted = new_seq(b);
    eval(b, plain, b->ids, b->n);
    for (uint64_t seed = 1; seed <= n_seed; seed++) {
        rg_seq_reset(drafted);
        uint64_t draw = 0;
        while (rg_seq_length(drafted) < b->n) {
            const uint32_t left = b->n - rg_seq_length(drafted);
            uint32_t right = 1 + (uint32_t)(rg_random_u64(seed, draw++) % RG_VERIFY_ROWS);
            if (right > left) right = left;
            const uint32_t most = RG_VERIFY_ROWS - right + 1;
            const uint32_t wrong = (uint32_t)(rg_random_u64(seed, draw++) % most);
            window(b, drafted, right, wrong, seed * 1000 + draw);
        }
        settle(b, drafted);
        same_state(plain, drafted);
    }
    rg_seq_destroy(plain);
    rg_seq_destroy(drafted);
}

static void a_text_of_windows(void **state) {
    (void)state;
    for (size_t i = 0; i < RG_ARRAY_LEN(subjects); i++) {
        const int few = i % 2 ? 1 : THREADS_MAX;
        for (int threads = full ? 1 : few; threads <= (full ? 3 : few); threads++) {
            bench b = open_bench(&subjects[i], threads);
            text_of_windows(&b, full ? 8 : SEEDS);
            close_bench(&b);
        }
    }
}

/* ---- the draft block ------------------------------------------------------------------------- */

typedef struct picks {
    uint32_t n, n_vocab;
    float first[512]; /* logits of the first draft */
} picks;

static rg_code pick_best(void *user, const float *logits, uint32_t position, int32_t *id,
                         bool *more, rg_status *st) {
    picks *p = user;
    (void)position, (void)st;
    if (p->n++ == 0) memcpy(p->first, logits, p->n_vocab * sizeof *logits);
    *id = 0;
    for (uint32_t i = 1; i < p->n_vocab; i++)
        if (logits[i] > logits[*id]) *id = (int32_t)i;
    *more = true;
    return RG_OK;
}

/* Chains before some windows, of every length: the first draft does not depend on the chains and
 * windows before it, and the state is that of a sequence that never drafted. */
static void chains_leave_no_trace(void **state) {
    (void)state;
    for (size_t i = 3; i < 5; i++) {
        bench b = open_bench(&subjects[i], 2);
        rg_seq *plain = new_seq(&b), *drafted = new_seq(&b);
        uint64_t draw = 0;
        uint32_t n_chain = 0;
        eval(&b, drafted, b.ids, 5);
        while (rg_seq_length(drafted) + RG_VERIFY_ROWS < b.n) {
            const uint32_t at = rg_seq_length(drafted);
            const uint32_t n_max = (uint32_t)(rg_random_u64(9, draw++) % (RG_DRAFT_MAX + 1));
            picks got = {.n_vocab = b.n_vocab}, want = {.n_vocab = b.n_vocab};
            const rg_draft_pick how = {.pick = pick_best, .user = &got};
            const rg_draft_pick once = {.pick = pick_best, .user = &want};
            int32_t ids[RG_DRAFT_MAX], one;
            uint32_t n = 0, n_one = 0;
            rg_status st = {0};
            if (rg_mtp_draft(b.core, drafted, b.ids[at], n_max, &how, ids, &n, &st) != RG_OK) {
                fail_msg("%s", st.message);
            }
            assert_int_equal(n, n_max);
            assert_int_equal(got.n, n_max);
            if (n) {
                rg_seq_reset(plain);
                eval(&b, plain, b.ids, at);
                if (rg_mtp_draft(b.core, plain, b.ids[at], 1, &once, &one, &n_one, &st) != RG_OK) {
                    fail_msg("%s", st.message);
                }
                assert_int_equal(n_one, 1);
                assert_int_equal(ids[0], one);
                assert_memory_equal(got.first, want.first, b.n_vocab * sizeof(float));
                n_chain++;
            }
            const uint32_t right = 1 + (uint32_t)(rg_random_u64(9, draw++) % 4);
            const uint32_t wrong = (uint32_t)(rg_random_u64(9, draw++) % 4);
            window(&b, drafted, right, wrong, draw);
        }
        assert_true(n_chain > 5);
        rg_seq_reset(plain);
        eval(&b, plain, b.ids, rg_seq_length(drafted));
        settle(&b, drafted);
        same_state(plain, drafted);
        rg_seq_destroy(plain);
        rg_seq_destroy(drafted);
        close_bench(&b);
    }
}

/* Rows left out of the draft block change drafts, nothing else; drafting goes on behind the gap. */
static void a_gap_changes_drafts_only(void **state) {
    (void)state;
    bench b = open_bench(&subjects[3], 1);
    rg_seq *plain = new_seq(&b), *drafted = new_seq(&b);
    rg_status st = {0};
    eval(&b, drafted, b.ids, 6);
    while (rg_seq_length(drafted) < 40) {
        if (rg_mtp_make_room(b.core, drafted, 3, true, &st) != RG_OK) fail_msg("%s", st.message);
        window(&b, drafted, 2, 1, rg_seq_length(drafted));
    }
    assert_true(drafted->mtp_length < drafted->mtp_pos);
    picks got = {.n_vocab = b.n_vocab};
    const rg_draft_pick how = {.pick = pick_best, .user = &got};
    int32_t ids[RG_DRAFT_MAX];
    uint32_t n = 0;
    if (rg_mtp_draft(b.core, drafted, b.ids[40], 3, &how, ids, &n, &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
    assert_int_equal(n, 3);
    window(&b, drafted, 4, 0, 1);
    eval(&b, drafted, b.ids + rg_seq_length(drafted), 5);
    eval(&b, plain, b.ids, rg_seq_length(drafted));
    settle(&b, drafted);
    plain->opt.mtp = drafted->opt.mtp = false; /* the trunk alone */
    same_state(plain, drafted);
    plain->opt.mtp = drafted->opt.mtp = true;
    rg_seq_destroy(plain);
    rg_seq_destroy(drafted);
    close_bench(&b);
}

/* ---- sharing, refusing ----------------------------------------------------------------------- */

static void sequences_share_windows(void **state) {
    (void)state;
    enum { N = 4 };
    for (size_t i = 0; i < RG_ARRAY_LEN(subjects); i++) {
        bench b = open_bench(&subjects[i], 2);
        rg_seq *alone = new_seq(&b), *shared[N];
        rg_status st = {0};
        for (uint32_t s = 0; s < N; s++) {
            shared[s] = new_seq(&b);
            eval(&b, shared[s], b.ids, 3 + 5 * s);
        }
        for (uint32_t round = 0; round < 4; round++) {
            int32_t ids[N][RG_VERIFY_ROWS];
            rg_verify parts[N];
            const float *logits = NULL;
            for (uint32_t s = 0; s < N; s++) {
                const uint32_t at = rg_seq_length(shared[s]), draw = round * N + s;
                const uint32_t n = 1 + (uint32_t)(rg_random_u64(3, draw) % RG_VERIFY_ROWS);
                const uint32_t kept = 1 + (uint32_t)(rg_random_u64(4, draw) % n);
                for (uint32_t k = 0; k < n; k++)
                    ids[s][k] = k < kept ? b.ids[at + k] : b.ids[at] % 7;
                make_room(&b, shared[s], n);
                parts[s] = (rg_verify){.seq = shared[s], .ids = ids[s], .n = n, .n_kept = kept};
            }
            if (rg_core_verify(b.core, parts, N, NULL, &logits, &st) != RG_OK) {
                fail_msg("%s", st.message);
            }
            for (uint32_t s = 0; s < N; s++) {
                assert_memory_equal(logits, b.truth + (size_t)rg_seq_length(shared[s]) * b.n_vocab,
                                    (size_t)parts[s].n_kept * b.n_vocab * sizeof *logits);
                logits += (size_t)parts[s].n * b.n_vocab;
            }
            if (rg_core_accept(b.core, parts, N, &st) != RG_OK) fail_msg("%s", st.message);
        }
        for (uint32_t s = 0; s < N; s++) {
            rg_seq_reset(alone);
            eval(&b, alone, b.ids, rg_seq_length(shared[s]));
            settle(&b, shared[s]);
            same_state(alone, shared[s]);
            rg_seq_destroy(shared[s]);
        }
        rg_seq_destroy(alone);
        close_bench(&b);
    }
}

static void refused(const bench *b, rg_seq *seq, const int32_t *ids, uint32_t n, const char *why) {
    rg_status st = {0};
    const float *logits = NULL;
    const rg_verify part = {.seq = seq, .ids = ids, .n = n};
    assert_int_equal(rg_core_verify(b->core, &part, 1, NULL, &logits, &st), RG_INVALID);
    assert_null(logits);
    if (!strstr(st.message, why)) fail_msg("\"%s\" does not say \"%s\"", st.message, why);
}

static void refused_windows_change_nothing(void **state) {
    (void)state;
    bench b = open_bench(&subjects[0], 1);
    rg_seq *plain = new_seq(&b), *seq = new_seq(&b);
    rg_status st = {0};
    eval(&b, plain, b.ids, 4);
    eval(&b, seq, b.ids, 4);
    const int32_t bad[] = {1, (int32_t)b.n_vocab, 2}, good[RG_VERIFY_ROWS + 1] = {1, 2, 3};
    refused(&b, seq, bad, 3, "outside the vocabulary");
    refused(&b, seq, good, 0, "0 rows");
    refused(&b, seq, good, RG_VERIFY_ROWS + 1, "9 rows");
    same_state(plain, seq);
    rg_verify open = {.seq = seq, .ids = b.ids + 4, .n = 3, .n_kept = 1};
    const float *logits = NULL;
    assert_int_equal(rg_core_verify(b.core, &open, 1, NULL, &logits, &st), RG_OK);
    refused(&b, seq, good, 1, "open window");
    assert_int_equal(rg_core_accept(b.core, &open, 1, &st), RG_OK);
    /* A broken window marks the sequence, a reset mends it. */
    const atomic_bool cancel = true;
    assert_int_equal(rg_core_verify(b.core, &open, 1, &cancel, &logits, &st), RG_CANCELED);
    assert_true(rg_seq_failed(seq));
    refused(&b, seq, good, 1, "not reset");
    rg_seq_reset(seq);
    eval(&b, seq, b.ids, 4);
    same_state(plain, seq);
    const rg_seq_options many = {.n_ctx = 16, .draft_max = RG_DRAFT_MAX + 1};
    rg_seq *none = NULL;
    assert_int_equal(rg_seq_create(&none, b.core, &many, &st), RG_INVALID);
    rg_seq_destroy(plain);
    rg_seq_destroy(seq);
    close_bench(&b);
}

/* The last positions of a context. */
static void windows_end_with_the_context(void **state) {
    (void)state;
    bench b = open_bench(&subjects[0], 1);
    const rg_seq_options opt = {.n_ctx = 12, .kv = b.of->kv, .draft_max = 5};
    rg_seq *seq = NULL;
    rg_status st = {0};
    assert_int_equal(rg_seq_create(&seq, b.core, &opt, &st), RG_OK);
    assert_int_equal(rg_verify_rows(seq, 8), 6);
    eval(&b, seq, b.ids, 9);
    assert_int_equal(rg_verify_rows(seq, 8), 3);
    window(&b, seq, 2, 1, 1);
    assert_int_equal(rg_verify_rows(seq, 8), 1);
    window(&b, seq, 1, 0, 1);
    assert_int_equal(rg_verify_rows(seq, 8), 0);
    rg_seq_destroy(seq);
    close_bench(&b);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_accept_length),
        cmocka_unit_test(a_text_of_windows),
        cmocka_unit_test(chains_leave_no_trace),
        cmocka_unit_test(a_gap_changes_drafts_only),
        cmocka_unit_test(sequences_share_windows),
        cmocka_unit_test(refused_windows_change_nothing),
        cmocka_unit_test(windows_end_with_the_context),
    };
    full = argc > 1 && strcmp(argv[1], "full") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
