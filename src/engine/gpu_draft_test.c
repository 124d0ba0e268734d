/* Drafts on a GPU: whatever is drafted and however much of it is accepted, logits and device memory
 * are those of a sequence that never drafted, bit by bit. Windows taken in by the joined kernel and
 * op by op, resident and with the smallest arena, prompts between windows, sequences that share
 * one; a draft block that projects by one matrix and by two.
 */
#include "support/gpu_trunk.h"

#include "support/seq_state.h"
#include "support/split_draft.h"

#include <math.h>
#include <unistd.h>

#define DRAFTED 24u /* tokens of the text */

typedef struct subject {
    const char *file, *name;
    bool mtp, apart;           /* apart: the delta net op by op */
    uint32_t arena;            /* the smallest; 0: all are in memory */
    uint32_t past, step, skip; /* tokens in front of a window; steps of its rows, of rows kept */
} subject;

static const subject subjects[] = {
    {"a-mix.gguf", "a-mix", false, false, 0, 6, 3, 1}, /* n-gram memory, delta net, attention */
    {"a-mix.gguf", "a-mix", false, true, 1, 3, 8, 2},
    {"k-mtp.gguf", "k-mtp", true, false, 0, 5, 8, 2},
    {"k-mtp.gguf", "k-mtp", true, false, 1, 2, 8, 3},
    {"c-f32.gguf", "c-f32", false, false, 0, 76, 8, 3}, /* selects blocks */
};

typedef struct setup {
    bench b;
    const subject *of;
    rg_core *core;
    sheet truth;
    rg_seq *plain, *drafted;
} setup;

static rg_seq *new_seq(const setup *s) {
    rg_seq *seq = NULL;
    rg_status st = {0};
    const rg_seq_options opt = {.n_ctx = N_CTX, .mtp = s->of->mtp, .draft_max = RG_DRAFT_MAX};
    if (rg_seq_create(&seq, s->core, &opt, &st) != RG_OK) fail_msg("%s", st.message);
    return seq;
}

/* Of the model in a file, which is that of the subject or one made of it. */
static setup open_setup_at(const subject *of, const char *path) {
    setup s = {.of = of, .b = open_bench_at(path, of->name, of->past + 36)};
    rg_core_options o = gpu_options(16);
    const uint32_t least = s.b.model->hp.n_expert_used + 1;
    if (of->arena) o.arena_bytes = arena_of(&s.b, least);
    if (of->apart) o.gpu_unfused = RG_GPU_FUSE_DELTA;
    s.core = open_core(&s.b, &o);
    s.truth = new_sheet(&s.b);
    eval(s.core, &s.b, 16, 1, &s.truth);
    s.plain = new_seq(&s);
    s.drafted = new_seq(&s);
    return s;
}

static setup open_setup(const subject *of) {
    char path[RG_TINY_PATH_MAX];
    return open_setup_at(of, rg_tiny_path(path, of->file));
}

static void close_setup(setup *s) {
    assert_int_equal(rg_core_gpu_complaints(s->core), 0);
    rg_seq_destroy(s->plain);
    rg_seq_destroy(s->drafted);
    rg_core_destroy(s->core);
    rg_free(s->truth.rows);
    close_bench(&s->b);
}

static void feed(const setup *s, rg_seq *seq, uint32_t n, uint32_t chunk) {
    rg_status st = {0};
    const sheet *t = &s->truth;
    sheet got = new_sheet(&s->b);
    const rg_logits_sink sink = {.row = keep, .user = &got};
    const uint32_t at = rg_seq_length(seq);
    if (rg_core_eval(s->core, seq, s->b.ids + at, n, chunk, RG_WANT_LAST, &sink, NULL, &st) !=
        RG_OK) {
        fail_msg("%s", st.message);
    }
    const size_t last = (size_t)(at + n - 1) * t->n_vocab;
    const sheet a = {got.rows + last, t->n_vocab}, w = {t->rows + last, t->n_vocab};
    expect_same(&a, &w, 1, "tokens between windows");
    rg_free(got.rows);
}

/* Device memory into the host's, which has the same plan; the ids are the host's own. */
static void fetch(const setup *s, rg_seq *seq) {
    rg_status st = {0};
    const size_t bytes = (size_t)((uint8_t *)seq->ids - (uint8_t *)seq->memory);
    if (rg_gpu_settle(s->core, &seq, 1, &st) != RG_OK ||
        rg_mtp_settle(s->core, seq, &st) != RG_OK ||
        rg_gpu_read(s->core->gpu->gpu, &seq->gpu->memory, 0, seq->memory, bytes, &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
}

static void same_on_device(const setup *s, rg_seq *a, rg_seq *b) {
    fetch(s, a);
    fetch(s, b);
    same_state(a, b);
}

/* The next `right` tokens of the text and `wrong` other ones behind. */
static void fill_ids(const setup *s, uint32_t at, uint32_t right, uint32_t wrong, uint64_t seed,
                     int32_t *ids) {
    const uint32_t V = s->b.model->hp.n_vocab;
    for (uint32_t i = 0; i < right + wrong; i++) {
        ids[i] = s->b.ids[(at + i) % s->b.n];
        if (i < right) continue;
        const uint64_t other = (uint64_t)ids[i] + 1 + rg_random_u64(seed, i) % (V - 1);
        ids[i] = (int32_t)(other % V);
    }
}

static void expect_rows(const setup *s, const float *logits, uint32_t at, uint32_t n) {
    const size_t V = s->truth.n_vocab;
    const sheet got = {(float *)(uintptr_t)logits, V}, want = {s->truth.rows + at * V, V};
    expect_same(&got, &want, n, "a window with drafts");
}

static void window(const setup *s, rg_seq *seq, uint32_t right, uint32_t wrong, uint64_t seed) {
    int32_t ids[RG_VERIFY_ROWS];
    rg_status st = {0};
    const uint32_t at = rg_seq_length(seq), n = right + wrong;
    fill_ids(s, at, right, wrong, seed, ids);
    if (seq->opt.mtp && rg_mtp_make_room(s->core, seq, n, false, &st) != RG_OK)
        fail_msg("%s", st.message);
    const rg_verify part = {.seq = seq, .ids = ids, .n = n, .n_kept = right};
    const float *logits = NULL;
    if (rg_core_verify(s->core, &part, 1, NULL, &logits, &st) != RG_OK) {
        fail_msg("%s", st.message);
        abort(); /* not reached: fail_msg jumps away, which analyzers do not know */
    }
    expect_rows(s, logits, at, right);
    if (rg_core_accept(s->core, &part, 1, &st) != RG_OK) fail_msg("%s", st.message);
    assert_int_equal(rg_seq_length(seq), at + right);
}

/* Every length of a window with every number of rows kept, from the same past. */
static void accept_lengths(const setup *s) {
    const uint32_t past = s->of->past;
    for (uint32_t right = 1; right <= RG_VERIFY_ROWS; right += s->of->skip) {
        rg_seq_reset(s->plain);
        feed(s, s->plain, past + right, 0);
        for (uint32_t n = RG_VERIFY_ROWS; n >= right; n -= n > s->of->step ? s->of->step : n) {
            rg_seq_reset(s->drafted);
            feed(s, s->drafted, past, 0);
            window(s, s->drafted, right, n - right, n * 8 + right);
            same_on_device(s, s->plain, s->drafted);
        }
    }
}

/* Windows one after another with nothing settled between them, from the first token on; sometimes
 * tokens by themselves or a prompt of a few windows. */
static void text_of_windows(const setup *s) {
    const uint64_t seed = 1;
    const uint32_t n = s->b.n < DRAFTED ? s->b.n : DRAFTED;
    uint64_t draw = 0;
    rg_seq_reset(s->plain);
    feed(s, s->plain, n, 0);
    rg_seq_reset(s->drafted);
    while (rg_seq_length(s->drafted) < n) {
        const uint32_t left = n - rg_seq_length(s->drafted);
        const uint64_t kind = rg_random_u64(seed, draw++) % 8;
        uint32_t right = 1 + (uint32_t)(rg_random_u64(seed, draw++) % RG_VERIFY_ROWS);
        if (right > left) right = left;
        const uint32_t most = RG_VERIFY_ROWS - right + 1;
        const uint32_t wrong = (uint32_t)(rg_random_u64(seed, draw++) % most);
        if (kind < 6) {
            window(s, s->drafted, right, wrong, seed * 1000 + draw);
        } else {
            const uint32_t some = left < 10 ? left : 10;
            feed(s, s->drafted, kind == 6 ? right : some, kind == 6 ? 1 : 9);
        }
    }
    same_on_device(s, s->plain, s->drafted);
}

/* ---- the draft block ------------------------------------------------------------------------- */

typedef struct picks {
    uint32_t n, n_vocab;
    float *first; /* logits of the first draft */
    uint32_t few; /* as rg_draft_pick has it */
    float leads[RG_DRAFT_MAX];
} picks;

static rg_code pick_best(void *user, const float *logits, uint32_t position, int32_t *id,
                         bool *more, rg_status *st) {
    picks *p = user;
    uint32_t finite = 0;
    float second = -INFINITY;
    (void)position, (void)st;
    if (p->n == 0) memcpy(p->first, logits, p->n_vocab * sizeof *logits);
    *id = 0;
    for (uint32_t i = 1; i < p->n_vocab; i++)
        if (logits[i] > logits[*id]) *id = (int32_t)i;
    for (uint32_t i = 0; i < p->n_vocab; i++) {
        if (i != (uint32_t)*id && logits[i] > second) second = logits[i];
        finite += isfinite(logits[i]) ? 1 : 0;
    }
    assert_int_equal(finite, p->few ? p->few : p->n_vocab);
    p->leads[p->n++] = logits[*id] - second;
    *more = true;
    return RG_OK;
}

static void draft(rg_core *core, rg_seq *seq, int32_t next, uint32_t n_max, picks *p,
                  int32_t *ids) {
    rg_status st = {0};
    uint32_t n = 0;
    const rg_draft_pick how = {.pick = pick_best, .user = p, .few = p->few};
    if (rg_mtp_draft(core, seq, next, n_max, &how, ids, &n, &st) != RG_OK)
        fail_msg("%s", st.message);
    assert_int_equal(n, n_max);
    assert_int_equal(p->n, n_max);
}

static picks new_picks(const setup *s) {
    picks p = {.n_vocab = s->b.model->hp.n_vocab};
    p.first = rg_alloc(p.n_vocab, sizeof *p.first, NULL);
    assert_non_null(p.first);
    return p;
}

/* Chains before windows: the first draft does not depend on the chains and windows before it, and
 * they leave no trace in the state. */
static void chains_leave_no_trace(const setup *s) {
    picks got = new_picks(s), want = new_picks(s);
    rg_seq_reset(s->drafted);
    feed(s, s->drafted, 5, 0);
    for (uint32_t round = 0; round < 3; round++) {
        const uint32_t at = rg_seq_length(s->drafted), n = 1 + (3 * round) % RG_DRAFT_MAX;
        int32_t ids[RG_DRAFT_MAX], one;
        rg_seq_reset(s->plain);
        feed(s, s->plain, at, 0);
        got.n = want.n = 0;
        draft(s->core, s->drafted, s->b.ids[at], n, &got, ids);
        draft(s->core, s->plain, s->b.ids[at], 1, &want, &one);
        assert_int_equal(ids[0], one);
        assert_memory_equal(got.first, want.first, got.n_vocab * sizeof(float));
        window(s, s->drafted, 1 + round % 3, round, round);
    }
    rg_seq_reset(s->plain);
    feed(s, s->plain, rg_seq_length(s->drafted), 0);
    same_on_device(s, s->plain, s->drafted);
    rg_free(got.first);
    rg_free(want.first);
}

static double distance(const picks *a, const picks *b) {
    double sum = 0.0;
    for (uint32_t i = 0; i < a->n_vocab; i++) {
        const double d = (double)a->first[i] - (double)b->first[i];
        sum += d * d;
    }
    return sqrt(sum / a->n_vocab);
}

/* First draft behind `at` tokens by the CPU. */
static void draft_on_cpu(const setup *s, rg_kernel_set kernels, uint32_t at, picks *p) {
    rg_core_options o = gpu_options(16);
    rg_status st = {0};
    int32_t id;
    o.gpu = false;
    o.kernels = kernels;
    const setup cpu = {.b = s->b, .of = s->of, .core = open_core(&s->b, &o)};
    rg_seq *seq = new_seq(&cpu);
    if (rg_core_eval(cpu.core, seq, s->b.ids, at, 0, RG_WANT_NONE, NULL, NULL, &st) != RG_OK)
        fail_msg("%s", st.message);
    draft(cpu.core, seq, s->b.ids[at], 1, p, &id);
    rg_seq_destroy(seq);
    rg_core_destroy(cpu.core);
}

/* Logits of the draft block are as near to the float reference as those of the CPU, whose
 * activations are 8-bit codes too. */
static void drafts_are_near_the_reference(const setup *s) {
    enum { AT = 30 };
    picks got = new_picks(s), ref = new_picks(s), codes = new_picks(s);
    int32_t id;
    rg_seq_reset(s->drafted);
    feed(s, s->drafted, AT, 7);
    draft(s->core, s->drafted, s->b.ids[AT], 1, &got, &id);
    draft_on_cpu(s, RG_KERNELS_REF, AT, &ref);
    draft_on_cpu(s, RG_KERNELS_AUTO, AT, &codes);
    const double off = distance(&got, &ref), usual = distance(&codes, &ref);
    if (!(off < 2.0 * usual + 1e-4)) fail_msg("%g from the reference, the CPU %g", off, usual);
    rg_free(got.first);
    rg_free(ref.first);
    rg_free(codes.first);
}

/* Ops and barriers between the flag and the residual of the block's first row. */
static void expect_counts(const setup *s, uint32_t dispatches, uint32_t barriers) {
    rg_status st = {0};
    const rg_segment seg = {.seq = s->plain, .n = 1};
    const rg_window win = {.core = s->core, .segs = &seg, .n_seg = 1, .T = 1};
    rg_gpu_core *g = s->core->gpu;
    rg_gpu_rec r = {
        .g = g, .core = s->core, .win = &win, .list = g->head, .residual = g->s.mtp_residual};
    rg_gpu_list_begin(r.list, false);
    rg_gpu_rec_draft(&r);
    assert_int_equal(rg_gpu_list_dispatches(r.list), dispatches);
    assert_int_equal(rg_gpu_list_barriers(r.list), barriers);
    if (rg_gpu_list_end(r.list, &st) != RG_OK) fail_msg("%s", st.message);
}

static void first_draft(const setup *s, uint32_t at, picks *p) {
    int32_t id;
    rg_seq_reset(s->drafted);
    feed(s, s->drafted, at, 7);
    draft(s->core, s->drafted, s->b.ids[at], 1, p, &id);
}

static char apart_path[64]; /* of a file that main removes: every core opens it again */

/* The same weights as one matrix and as two: logits that differ by the order of a sum at most. */
static void projection_of_two_matrices(void **state) {
    (void)state;
    enum { AT = 30 };
    char whole_path[RG_TINY_PATH_MAX];
    static const subject own = {"k-mtp.gguf", "k-mtp", true, false, 0, 5, 8, 5}, *of = &own;
    rg_test_split_draft(rg_tiny_path(whole_path, of->file), apart_path);
    setup whole = open_setup(of), apart = open_setup_at(of, apart_path);
    assert_null(apart.core->w.mtp.eh_proj.data);
    expect_counts(&whole, 2, 2);
    expect_counts(&apart, 4, 3);
    picks a = new_picks(&whole), b = new_picks(&apart), ref = new_picks(&whole);
    first_draft(&whole, AT, &a);
    first_draft(&apart, AT, &b);
    draft_on_cpu(&whole, RG_KERNELS_REF, AT, &ref);
    const double off = distance(&a, &b), usual = distance(&a, &ref);
    if (!(off < usual)) fail_msg("%g apart, the reference is %g away", off, usual);
    drafts_are_near_the_reference(&apart);
    chains_leave_no_trace(&apart);
    accept_lengths(&apart);
    rg_free(a.first);
    rg_free(b.first);
    rg_free(ref.first);
    close_setup(&apart);
    close_setup(&whole);
}

/* ---- sharing, learning ----------------------------------------------------------------------- */

/* Windows of several sequences, more rows than the joined kernel takes; one is a prompt. */
static void sequences_share_windows(const setup *s) {
    enum { N = 3, PROMPT = 5 };
    rg_seq *seqs[N];
    rg_seq_reset(s->drafted);
    float *last = rg_alloc(s->truth.n_vocab, sizeof *last, NULL);
    assert_non_null(last);
    for (uint32_t i = 0; i < N; i++) {
        seqs[i] = new_seq(s);
        feed(s, seqs[i], 3 + 4 * i, 0);
    }
    for (uint32_t round = 0; round < 3; round++) {
        int32_t ids[N * RG_VERIFY_ROWS + PROMPT];
        rg_batch_rows parts[N + 1];
        rg_verify kept[N];
        rg_status st = {0};
        uint32_t n = 0;
        const float *logits = NULL;
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t right = 1 + (round + i) % 3, wrong = (round + 2 * i) % 3;
            fill_ids(s, rg_seq_length(seqs[i]), right, wrong, round * N + i, ids + n);
            parts[i] = (rg_batch_rows){.seq = seqs[i], .n = right + wrong, .open = true};
            kept[i] = (rg_verify){.seq = seqs[i], .ids = ids + n, .n = right + wrong};
            kept[i].n_kept = right;
            n += right + wrong;
        }
        const uint32_t at = rg_seq_length(s->drafted);
        parts[N] = (rg_batch_rows){.seq = s->drafted, .n = PROMPT, .logits = last};
        memcpy(ids + n, s->b.ids + at, PROMPT * sizeof *ids);
        if (rg_core_eval_batch(s->core, parts, N + 1, ids, NULL, &logits, &st) != RG_OK) {
            fail_msg("%s", st.message);
            abort(); /* not reached */
        }
        expect_rows(s, last, at + PROMPT - 1, 1);
        for (uint32_t i = 0; i < N; i++) {
            expect_rows(s, logits, rg_seq_length(seqs[i]), kept[i].n_kept);
            logits += kept[i].n * s->truth.n_vocab;
        }
        if (rg_core_accept(s->core, kept, N, &st) != RG_OK) fail_msg("%s", st.message);
    }
    for (uint32_t i = 0; i < N; i++) {
        rg_seq_reset(s->plain);
        feed(s, s->plain, rg_seq_length(seqs[i]), 0);
        same_on_device(s, s->plain, seqs[i]);
        rg_seq_destroy(seqs[i]);
    }
    rg_free(last);
}

/* What the cache learns of a window: the experts of accepted rows, in order. */
static void recency_sees_accepted_rows(void **state) {
    (void)state;
    bench b = open_bench("a-mix.gguf", "a-mix", 24);
    const rg_hparams *hp = &b.model->hp;
    rg_core_options o = gpu_options(16);
    o.arena_bytes = arena_of(&b, hp->n_expert * hp->n_layer);
    o.io.lookahead = 0;
    setup s[2];
    rg_seq *seqs[2];
    const size_t n = (size_t)2 * hp->n_expert_used * hp->n_layer;
    for (uint32_t i = 0; i < 2; i++) {
        s[i] = (setup){.b = b, .of = &subjects[0], .core = open_core(&b, &o)};
        s[i].truth = new_sheet(&b);
        seqs[i] = new_seq(&s[i]);
        eval(s[i].core, &b, 16, 0, &s[i].truth);
        feed(&s[i], seqs[i], 8, 0);
    }
    for (uint32_t at = 8; at < 18; at += 2) {
        for (uint32_t i = 0; i < 2; i++)
            window(&s[i], seqs[i], 2, i ? at % 5 : 0, at);
        assert_memory_equal(s[0].core->touched, s[1].core->touched, n * sizeof(uint32_t));
        assert_int_not_equal(s[0].core->touched[n - 1], s[0].core->touched[0]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        rg_seq_destroy(seqs[i]);
        rg_core_destroy(s[i].core);
        rg_free(s[i].truth.rows);
    }
    close_bench(&b);
}

/* Two sequences draft alike: from all logits of the draft block, and from its two best. */
static void draft_alike(const setup *s, uint32_t n) {
    picks p[2] = {new_picks(s), new_picks(s)};
    int32_t ids[2][RG_DRAFT_MAX];
    const int32_t next = s->b.ids[rg_seq_length(s->plain)];
    p[1].few = 2;
    draft(s->core, s->plain, next, n, &p[0], ids[0]);
    draft(s->core, s->drafted, next, n, &p[1], ids[1]);
    assert_memory_equal(ids[0], ids[1], n * sizeof *ids[0]);
    assert_memory_equal(p[0].leads, p[1].leads, n * sizeof *p[0].leads);
    rg_free(p[0].first);
    rg_free(p[1].first);
}

/* Behind a prewarm neither drafts nor windows of any length build a kernel. */
static void drafts_are_built_ahead(void **state) {
    (void)state;
    setup s = {.of = &subjects[2], .b = open_bench("k-mtp.gguf", "k-mtp", 60)};
    rg_core_options o = gpu_options(16);
    o.gpu_prewarm = RG_GPU_PREWARM_ON;
    gpu_kept_fresh(true);
    s.core = open_core(&s.b, &o);
    gpu_kept_fresh(false);
    s.truth = new_sheet(&s.b);
    s.plain = new_seq(&s);
    s.drafted = new_seq(&s);
    const uint32_t kernels = rg_gpu_kernels(s.core->gpu->gpu);
    eval_on(s.core, s.drafted, &s.b, 16, 0, &s.truth);
    rg_seq_reset(s.drafted);
    feed(&s, s.plain, 17, 16);
    feed(&s, s.drafted, 17, 16);
    for (uint32_t n = 1; n <= RG_DRAFT_MAX; n++) {
        const uint32_t right = 1 + n / 2;
        draft_alike(&s, n);
        window(&s, s.plain, right, n + 1 - right, n);
        window(&s, s.drafted, right, n + 1 - right, n + 1);
    }
    feed(&s, s.drafted, 12, 12);
    assert_int_equal(rg_gpu_kernels(s.core->gpu->gpu), kernels);
    close_setup(&s);
}

/* A core is dear here: everything with it at once. */
static void all_of(const subject *of) {
    setup s = open_setup(of);
    accept_lengths(&s);
    if (of->past < DRAFTED) text_of_windows(&s);
    if (of->mtp) chains_leave_no_trace(&s);
    if (of->mtp && !of->arena) drafts_are_near_the_reference(&s);
    if (of->apart) sequences_share_windows(&s);
    close_setup(&s);
}

static void memory_of_ngrams(void **state) {
    (void)state;
    all_of(&subjects[0]);
}
static void op_by_op(void **state) {
    (void)state;
    all_of(&subjects[1]);
}
static void draft_block(void **state) {
    (void)state;
    all_of(&subjects[2]);
}
static void draft_block_streamed(void **state) {
    (void)state;
    all_of(&subjects[3]);
}
static void selected_blocks(void **state) {
    (void)state;
    all_of(&subjects[4]);
}

int main(void) {
    if (!gpu_here()) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_of_ngrams),
        cmocka_unit_test(op_by_op),
        cmocka_unit_test(draft_block),
        cmocka_unit_test(draft_block_streamed),
        cmocka_unit_test(selected_blocks),
        cmocka_unit_test(recency_sees_accepted_rows),
        cmocka_unit_test(drafts_are_built_ahead),
        cmocka_unit_test(projection_of_two_matrices),
    };
    snprintf(apart_path, sizeof apart_path, "/tmp/rg_gpu_draft_test_%ld.gguf", (long)getpid());
    const int failed = cmocka_run_group_tests(tests, NULL, gpu_kept_release);
    remove(apart_path);
    return failed_or_leaked(failed);
}
