/* Windows of several sequences of which some want their best logits alone: each row comes as its
 * sequence asked for it, with the bits of a window alone, and no row comes whole that need not.
 */
#include "support/gpu_trunk.h"

#include <math.h>

#define PARTS    4u
#define TEXT     60u
#define ROWS_MAX 32u

typedef struct part {
    uint32_t n, n_best;
    bool open;
} part;

typedef struct shared {
    const char *what;
    part parts[PARTS];
} shared;

/* Up to 8 rows are one list, of more each run of neighbours is one of its own. */
static const shared windows[] = {
    {"prompts", {{7, 1, false}, {9, 5, false}, {5, 0, false}, {6, RG_FEW_MAX, false}}},
    {"one each", {{1, 1, false}, {1, 5, false}, {1, 0, false}, {1, 2, false}}},
    {"all whole", {{1, 0, false}, {1, 0, false}, {1, 0, false}, {1, 0, false}}},
    {"all the best", {{1, 1, false}, {1, 1, false}, {1, RG_FEW_MAX, false}, {1, 1, false}}},
    {"more than a list holds", {{1, 1, false}, {1, RG_FEW_MAX + 1, false}}},
    {"beside a prompt", {{1, 3, false}, {1, 1, false}, {1, 0, false}, {9, 2, false}}},
    {"whole beside a prompt", {{1, 0, false}, {1, 0, false}, {1, 1, false}, {9, 0, false}}},
    {"open", {{3, 2, true}, {2, 0, true}, {1, 0, false}, {1, 4, false}}},
    {"open, and scratch goes", {{4, 1, true}, {3, 0, true}, {2, 7, true}, {9, 1, false}}},
    {"open again", {{3, 2, true}, {1, 1, false}, {1, 0, false}, {1, 4, false}}},
};

typedef struct setup {
    bench b;
    rg_core *core;
    sheet truth;
    rg_seq *seqs[PARTS];
    float *last[PARTS];
} setup;

static setup open_setup(uint32_t n_expert) {
    setup s = {.b = open_bench("a-mix.gguf", "a-mix", TEXT)};
    rg_core_options o = gpu_options(ROWS_MAX);
    const rg_seq_options so = {.n_ctx = N_CTX, .draft_max = 4};
    rg_status st = {0};
    if (n_expert) o.arena_bytes = arena_of(&s.b, n_expert);
    s.core = open_core(&s.b, &o);
    s.truth = new_sheet(&s.b);
    eval(s.core, &s.b, ROWS_MAX, 0, &s.truth);
    for (uint32_t i = 0; i < PARTS; i++) {
        if (rg_seq_create(&s.seqs[i], s.core, &so, &st) != RG_OK) fail_msg("%s", st.message);
        s.last[i] = rg_alloc(s.truth.n_vocab, sizeof *s.last[i], NULL);
        assert_non_null(s.last[i]);
    }
    return s;
}

static void close_setup(setup *s) {
    assert_int_equal(rg_core_gpu_complaints(s->core), 0);
    for (uint32_t i = 0; i < PARTS; i++) {
        rg_seq_destroy(s->seqs[i]);
        rg_free(s->last[i]);
    }
    rg_core_destroy(s->core);
    rg_free(s->truth.rows);
    close_bench(&s->b);
}

/* A list holds at least the n_best best of the row, in their order, with their bits. */
static void expect_list(const setup *s, const rg_few *few, uint32_t position, uint32_t n_best) {
    const float *want = s->truth.rows + position * s->truth.n_vocab;
    uint32_t best[RG_FEW_MAX];
    assert_true(few->n >= n_best && few->n <= RG_FEW_MAX);
    rg_top_k(want, (uint32_t)s->truth.n_vocab, few->n, best);
    for (uint32_t i = 0; i < few->n; i++) {
        assert_int_equal(few->ids[i], best[i]);
        assert_true(same_bits(few->logits[i], want[best[i]]));
    }
}

/* The row has nothing else. */
static void expect_alone(const setup *s, const rg_few *few, const float *logits) {
    uint32_t finite = 0;
    for (size_t i = 0; i < s->truth.n_vocab; i++)
        finite += isfinite(logits[i]) ? 1 : 0;
    assert_int_equal(finite, few->n);
    for (uint32_t i = 0; i < few->n; i++)
        assert_true(same_bits(logits[few->ids[i]], few->logits[i]));
}

static void expect_whole(const setup *s, float *logits, uint32_t position, const char *what) {
    const sheet got = {logits, s->truth.n_vocab};
    const sheet want = {s->truth.rows + position * s->truth.n_vocab, s->truth.n_vocab};
    expect_same(&got, &want, 1, what);
}

static bool wants_list(const part *p) {
    return p->n_best && p->n_best <= RG_FEW_MAX;
}

static void check_open(const setup *s, const shared *r, const float *logits) {
    for (uint32_t i = 0; i < PARTS; i++) {
        const part *p = &r->parts[i];
        for (uint32_t k = 0; p->open && k < p->n; k++, logits += s->truth.n_vocab) {
            const uint32_t position = rg_seq_length(s->seqs[i]) + k;
            const rg_few *few = rg_core_few(s->core, logits);
            sheet copy = new_sheet(&s->b);
            memcpy(copy.rows, logits, copy.n_vocab * sizeof *logits);
            assert_int_equal(few != NULL, wants_list(p));
            if (few) {
                expect_list(s, few, position, p->n_best);
                expect_alone(s, few, logits);
            } else {
                expect_whole(s, copy.rows, position, r->what);
            }
            rg_free(copy.rows);
        }
    }
}

static void accept(const setup *s, const shared *r, const int32_t *ids) {
    rg_verify kept[PARTS];
    rg_status st = {0};
    uint32_t n = 0;
    for (uint32_t i = 0; i < PARTS; ids += r->parts[i++].n) {
        if (!r->parts[i].open) continue;
        kept[n++] = (rg_verify){s->seqs[i], ids, r->parts[i].n, r->parts[i].n};
    }
    if (n && rg_core_accept(s->core, kept, n, &st) != RG_OK) fail_msg("%s", st.message);
}

/* Rows that came whole and those that did not, counted by the core. */
static void expect_counts(const setup *s, const shared *r, const uint64_t before[2]) {
    uint64_t want[2] = {before[0], before[1]}, got[2];
    for (uint32_t i = 0; i < PARTS; i++) {
        const part *p = &r->parts[i];
        if (p->n) want[wants_list(p)] += p->open ? p->n : 1;
    }
    rg_core_gpu_rows_given(s->core, &got[0], &got[1]);
    assert_int_equal(got[0], want[0]);
    assert_int_equal(got[1], want[1]);
}

static void play(const setup *s, const shared *r) {
    rg_batch_rows parts[PARTS];
    rg_few best[PARTS];
    int32_t ids[ROWS_MAX];
    uint64_t before[2];
    rg_status st = {0};
    uint32_t n = 0, n_part = 0;
    const float *logits = NULL;
    rg_core_gpu_rows_given(s->core, &before[0], &before[1]);
    for (uint32_t i = 0; i < PARTS && r->parts[i].n; i++, n_part++) {
        const part *p = &r->parts[i];
        parts[i] = (rg_batch_rows){s->seqs[i], p->n, p->open, s->last[i], p->n_best, &best[i]};
        memcpy(ids + n, s->b.ids + rg_seq_length(s->seqs[i]), p->n * sizeof *ids);
        n += p->n;
        best[i].n = 1;
        s->last[i][0] = 77.0f;
    }
    if (rg_core_eval_batch(s->core, parts, n_part, ids, NULL, &logits, &st) != RG_OK)
        fail_msg("%s: %s", r->what, st.message);
    expect_counts(s, r, before);
    /* What a short window's own list brought was enough: the head did not run again. */
    assert_int_equal(s->core->gpu->n_head_rows, n <= RG_GPU_ROWS_MAX ? n : 0);
    check_open(s, r, logits);
    for (uint32_t i = 0; i < n_part; i++) {
        const part *p = &r->parts[i];
        if (p->open) continue;
        assert_int_equal(best[i].n > 0, wants_list(p));
        if (best[i].n) {
            expect_list(s, &best[i], rg_seq_length(s->seqs[i]) - 1, p->n_best);
            assert_true(same_bits(s->last[i][0], 77.0f));
        } else {
            expect_whole(s, s->last[i], rg_seq_length(s->seqs[i]) - 1, r->what);
        }
    }
    accept(s, r, ids);
}

static void rows_as_they_are_wanted(void **state) {
    (void)state;
    for (int streamed = 0; streamed < 2; streamed++) {
        setup s = open_setup(streamed ? 9 : 0);
        for (size_t i = 0; i < RG_ARRAY_LEN(windows); i++)
            play(&s, &windows[i]);
        close_setup(&s);
    }
}

int main(void) {
    if (!gpu_here()) return 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_as_they_are_wanted)};
    return failed_or_leaked(cmocka_run_group_tests(tests, NULL, gpu_kept_release));
}
