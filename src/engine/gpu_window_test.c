/* Windows on a GPU: built ahead of the first token, joined kernels taken apart, the profile of
 * their kernels.
 */
#include "support/gpu_trunk.h"

#include <math.h>

#define CAP 128u

/* Behind a prewarm the first windows record nothing more, whether blocks are selected or not. */
static void see_prewarm(const bench *b, const rg_core_options *o) {
    gpu_kept_fresh(true);
    rg_core *core = open_core(b, o);
    gpu_kept_fresh(false);
    rg_seq *seq = NULL;
    rg_status st = {0};
    sheet s = new_sheet(b);
    if (rg_seq_create(&seq, core, &(rg_seq_options){.n_ctx = N_CTX}, &st) != RG_OK)
        fail_msg("%s", st.message);
    const uint32_t kernels = rg_gpu_kernels(core->gpu->gpu), windows = core->gpu->n_recorded;
    assert_true(kernels > 0);
    assert_true(windows >= 2 * RG_GPU_ROWS_MAX);
    for (uint32_t T = 1; T <= RG_GPU_ROWS_MAX; T++) {
        rg_seq_reset(seq);
        if (one_token(core, seq, b, T, &s, &st) != RG_OK) fail_msg("%s", st.message);
    }
    assert_int_equal(core->gpu->n_recorded, windows);
    /* Up to where blocks are selected: wide windows are recorded each time, nothing is built. */
    eval_on(core, seq, b, 16, 6, &s);
    assert_int_equal(rg_gpu_kernels(core->gpu->gpu), kernels);
    assert_int_equal(rg_core_gpu_complaints(core), 0);
    rg_seq_destroy(seq);
    rg_core_destroy(core);
    rg_free(s.rows);
}

static void prewarm(void **state) {
    (void)state;
    bench b = open_bench("c-f32.gguf", "c-f32", 90);
    rg_core_options o = gpu_options(16);
    o.gpu_prewarm = RG_GPU_PREWARM_ON;
    see_prewarm(&b, &o);
    o.arena_bytes = arena_of(&b, b.model->hp.n_expert_used + 3);
    see_prewarm(&b, &o); /* in turns */
    close_bench(&b);
}

/* The lists of turns are recorded once for all windows of as many rows; what a window cannot know
 * of another, a sequence, whether the host chooses, is asked for each time. */
static void turns_are_kept(void **state) {
    (void)state;
    bench b = open_bench("a-mix.gguf", "a-mix", 9);
    rg_core_options o = gpu_options(16);
    o.arena_bytes = arena_of(&b, b.model->hp.n_expert_used + 3);
    rg_core *core = open_core(&b, &o);
    sheet s = new_sheet(&b);
    rg_status st = {0};
    rg_seq *seqs[2];
    uint32_t before = 0;
    for (uint32_t i = 0; i < 2; i++) {
        if (rg_seq_create(&seqs[i], core, &(rg_seq_options){.n_ctx = N_CTX}, &st) != RG_OK)
            fail_msg("%s", st.message);
    }
    for (uint32_t i = 0; i < 2; i++) {
        before = core->gpu->n_recorded;
        for (uint32_t k = 0; k < 3; k++) {
            rg_seq_reset(seqs[i]);
            if (one_token(core, seqs[i], &b, 2, &s, &st) != RG_OK) fail_msg("%s", st.message);
        }
        assert_int_equal(core->gpu->n_recorded, before + 1);
    }
    if (rg_seq_moce_begin(seqs[1], 0.5F, 16, &st) != RG_OK) fail_msg("%s", st.message);
    before = core->gpu->n_recorded;
    for (uint32_t k = 0; k < 2; k++) {
        rg_seq_reset(seqs[1]);
        if (rg_seq_moce_begin(seqs[1], 0.5F, 16, &st) != RG_OK) fail_msg("%s", st.message);
        if (one_token(core, seqs[1], &b, 2, &s, &st) != RG_OK) fail_msg("%s", st.message);
    }
    assert_int_equal(core->gpu->n_recorded, before + 1);
    for (uint32_t i = 0; i < 2; i++)
        rg_seq_destroy(seqs[i]);
    rg_core_destroy(core);
    rg_free(s.rows);
    close_bench(&b);
}

/* Each joined kernel taken apart: the same bits, and more dispatches. */
static void switches(void **state) {
    (void)state;
    bench b = open_bench("a-mix.gguf", "a-mix", 9);
    const rg_core_options o = gpu_options(16);
    rg_core *core = open_core(&b, &o);
    sheet want = new_sheet(&b), got = new_sheet(&b);
    uint32_t joined = 0, apart = 0, barriers = 0, all_barriers = 0;
    eval(core, &b, 3, 4, &want);
    rg_core_gpu_counts(core, &joined, &barriers);
    for (uint32_t bit = 1; bit <= RG_GPU_FUSE_ALL; bit *= 2) {
        char what[40];
        snprintf(what, sizeof what, "without %u", bit);
        rg_core_gpu_switch(core, bit, 0, false);
        eval(core, &b, 3, 4, &got);
        expect_same(&got, &want, b.n, what);
        rg_core_gpu_counts(core, &apart, &all_barriers);
        if (bit != RG_GPU_LOOP && bit != RG_GPU_FEW) assert_true(apart > joined);
    }
    rg_core_gpu_switch(core, RG_GPU_FUSE_ALL, 1, true);
    eval(core, &b, 3, 4, &got);
    expect_same(&got, &want, b.n, "all apart");
    rg_core_gpu_counts(core, &apart, &all_barriers);
    assert_true(all_barriers > barriers);
    print_message("%u dispatches and %u barriers, apart %u and %u\n", joined, barriers, apart,
                  all_barriers);
    assert_int_equal(rg_core_gpu_complaints(core), 0);
    rg_core_destroy(core);
    rg_free(want.rows);
    rg_free(got.rows);
    close_bench(&b);
}

/* Products of one input: so many pairs of them have weights of one type, each a dispatch less for
 * every number of rows, and no barrier more or less. */
static uint32_t count_pairs(const rg_core *core) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < core->hp->n_layer; i++) {
        const rg_layer_weights *l = &core->w.layers[i];
        n += l->moe.router.type == l->moe.shared_gate_inp.type;
        if (!l->is_attn) {
            n += l->gdn.qkv.type == l->gdn.gate.type;
            n += l->gdn.alpha.type == l->gdn.beta.type;
            continue;
        }
        n += l->attn.k.type == l->attn.v.type;
        n += l->attn.ratio && l->attn.idx_k.type == l->attn.idx_q.type;
    }
    return n;
}

static void pairs(void **state) {
    (void)state;
    static const char *const names[][2] = {{"a-f32.gguf", "a-f32"}, {"a-mix.gguf", "a-mix"}};
    for (size_t i = 0; i < RG_ARRAY_LEN(names); i++) {
        bench b = open_bench(names[i][0], names[i][1], RG_GPU_ROWS_MAX);
        const rg_core_options o = gpu_options(16);
        rg_core *core = open_core(&b, &o);
        sheet want = new_sheet(&b), got = new_sheet(&b);
        const uint32_t n_pair = count_pairs(core), last = i ? 1 : RG_GPU_ROWS_MAX;
        assert_true(i ? n_pair > 0 : n_pair >= 3 * core->hp->n_layer);
        for (uint32_t T = 1; T <= last; T++) {
            uint32_t joined = 0, barriers = 0, apart = 0, same = 0;
            b.n = T;
            rg_core_gpu_switch(core, RG_GPU_FUSE_PAIRS, 0, false);
            eval(core, &b, T, 0, &want);
            rg_core_gpu_counts(core, &apart, &barriers);
            rg_core_gpu_switch(core, 0, 0, false);
            eval(core, &b, T, 0, &got);
            rg_core_gpu_counts(core, &joined, &same);
            expect_same(&got, &want, T, "pairs of products");
            assert_int_equal(apart, joined + n_pair);
            assert_int_equal(same, barriers);
        }
        assert_int_equal(rg_core_gpu_complaints(core), 0);
        rg_core_destroy(core);
        rg_free(want.rows);
        rg_free(got.rows);
        close_bench(&b);
    }
}

typedef struct few_check {
    rg_core *core;
    const sheet *want;
    uint32_t few;      /* of each row; 0: all */
    uint32_t n, n_few; /* rows seen; of them as lists */
} few_check;

/* A list holds the best of all logits with their bits, the lowest ids among equals; so does the
 * row, and nothing else. */
static rg_code compare_few(void *user, uint32_t position, const float *logits, rg_status *st) {
    few_check *c = user;
    const uint32_t V = (uint32_t)c->want->n_vocab;
    const float *want = c->want->rows + (size_t)position * V;
    const rg_few *few = rg_core_few(c->core, logits);
    uint32_t best[RG_FEW_MAX], finite = 0;
    (void)st;
    for (uint32_t i = 0; i < V; i++) {
        if (!isfinite(logits[i])) continue;
        assert_true(same_bits(logits[i], want[i]));
        finite++;
    }
    c->n++;
    if (!few) {
        assert_int_equal(finite, V);
        return RG_OK;
    }
    c->n_few++;
    assert_int_equal(few->n, c->few);
    assert_int_equal(finite, c->few);
    rg_top_k(want, V, c->few, best);
    for (uint32_t i = 0; i < c->few; i++) {
        assert_int_equal(few->ids[i], best[i]);
        assert_true(same_bits(few->logits[i], want[best[i]]));
        assert_true(same_bits(logits[best[i]], want[best[i]]));
    }
    return RG_OK;
}

/* A window of T rows from the beginning on. */
static void see_few(few_check *c, rg_seq *seq, const bench *b, uint32_t T, uint32_t few) {
    rg_status st = {0};
    const rg_logits_sink sink = {.row = compare_few, .user = c};
    c->few = few;
    c->n = c->n_few = 0;
    rg_core_want_few(c->core, few);
    rg_seq_reset(seq);
    if (rg_core_eval(c->core, seq, b->ids, T, T, RG_WANT_ALL, &sink, NULL, &st) != RG_OK)
        fail_msg("%s", st.message);
    assert_int_equal(c->n, T);
}

/* Windows of up to 8 rows with the best few logits alone wanted, switched off, with all wanted;
 * longer ones give all. */
static void few_alone(void **state) {
    (void)state;
    bench b = open_bench("a-mix.gguf", "a-mix", RG_GPU_ROWS_MAX + 2);
    static const uint32_t counts[] = {1, 2, 40, RG_FEW_MAX, 1};
    static const uint32_t rows[] = {1, 5, 2, 1, RG_GPU_ROWS_MAX}; /* resident, streamed in turn */
    for (int streamed = 0; streamed < 2; streamed++) {
        rg_core_options o = gpu_options(16);
        if (streamed) o.arena_bytes = arena_of(&b, 9);
        rg_core *core = open_core(&b, &o);
        sheet want = new_sheet(&b);
        rg_seq *seq = NULL;
        rg_status st = {0};
        few_check c = {.core = core, .want = &want};
        eval(core, &b, 1, 0, &want);
        if (rg_seq_create(&seq, core, &(rg_seq_options){.n_ctx = N_CTX}, &st) != RG_OK)
            fail_msg("%s", st.message);
        for (size_t t = streamed ? 1 : 0; t < RG_ARRAY_LEN(rows); t += 2) {
            const uint32_t T = rows[t];
            for (size_t i = t / 2 % 2; i < RG_ARRAY_LEN(counts); i += 2) {
                see_few(&c, seq, &b, T, counts[i]);
                assert_int_equal(c.n_few, T);
                see_few(&c, seq, &b, T, 0);
                assert_int_equal(c.n_few, 0);
            }
        }
        rg_core_gpu_switch(core, RG_GPU_FEW, 0, false);
        see_few(&c, seq, &b, rows[1 - streamed], 2);
        assert_int_equal(c.n_few, 0);
        rg_core_gpu_switch(core, 0, 0, false);
        see_few(&c, seq, &b, RG_GPU_ROWS_MAX + 1, 2);
        assert_int_equal(c.n_few, 0);
        see_few(&c, seq, &b, 1, RG_FEW_MAX + 1); /* more than a list holds */
        assert_int_equal(c.n_few, 0);
        assert_int_equal(rg_core_gpu_complaints(core), 0);
        rg_seq_destroy(seq);
        rg_core_destroy(core);
        rg_free(want.rows);
    }
    close_bench(&b);
}

/* The table of kernel times: what the device did, and one row for the rest of the windows. */
static void check_table(const rg_core *core, const rg_core_gpu_row *rows, uint32_t n_row) {
    rg_kernel_time t[CAP];
    uint64_t device = 0, host = 0, want = 0;
    const size_t n = rg_core_kernel_times(core, t, CAP);
    for (size_t i = 0; i < n; i++) {
        *(strcmp(t[i].part, "host") == 0 ? &host : &device) += t[i].ns;
        assert_true(t[i].calls > 0);
        assert_true(t[i].type == RG_TYPE_COUNT || rg_type_get(t[i].type));
    }
    for (uint32_t i = 0; i < n_row; i++)
        want += rows[i].ns;
    assert_int_equal(device, want);
    assert_true(host > 0);
    assert_int_equal(device + host, core->gpu->windows_ns);
}

static uint64_t size_of(const rg_mat *w) {
    return (uint64_t)w->n_in * w->n_out;
}

/* Multiply-adds of a row's products: every matrix once, of the experts those that are used. With
 * experts that stream also the routers of the next layers, which guess. */
static uint64_t multiplies_of(const rg_core *core) {
    const rg_weights *w = &core->w;
    uint64_t n = size_of(&w->output) + size_of(&w->output_hc.down) + size_of(&w->output_hc.up);
    for (uint32_t i = 0; i < core->hp->n_layer; i++) {
        const rg_layer_weights *l = &w->layers[i];
        const rg_hc_weights *hc[2] = {&l->hc_attn, &l->hc_ffn};
        const rg_moe_weights *m = &l->moe;
        for (uint32_t k = 0; k < 2; k++)
            n += size_of(&hc[k]->down) + size_of(&hc[k]->up) + size_of(&hc[k]->inject);
        if (l->is_attn) {
            n += size_of(&l->attn.q) + size_of(&l->attn.k) + size_of(&l->attn.v);
            n += size_of(&l->attn.out);
            if (l->attn.ratio) n += size_of(&l->attn.idx_q) + size_of(&l->attn.idx_k);
        } else {
            n += size_of(&l->gdn.qkv) + size_of(&l->gdn.gate) + size_of(&l->gdn.alpha);
            n += size_of(&l->gdn.beta) + size_of(&l->gdn.out);
        }
        if (l->has_ple) n += size_of(&l->ple.key) + size_of(&l->ple.value);
        n += size_of(&m->router) + size_of(&m->shared_gate_inp) + size_of(&m->shared_gate);
        n += size_of(&m->shared_up) + size_of(&m->shared_down);
        n += core->hp->n_expert_used *
             (size_of(&m->gate.mat) + size_of(&m->up.mat) + size_of(&m->down.mat));
        const rg_mat *next = core->stream ? rg_experts_next_router(core, i) : NULL;
        if (next) n += size_of(next);
    }
    return n;
}

/* Rows of the profile hold every dispatch; products know their bytes and how much they multiply.
 * Streamed windows too. */
static void profile_rows(void **state) {
    (void)state;
    bench b = open_bench("a-mix.gguf", "a-mix", 6);
    for (int streamed = 0; streamed < 2; streamed++) {
        rg_core_options o = gpu_options(16);
        o.gpu_stamps = true;
        if (streamed) o.arena_bytes = arena_of(&b, 9);
        rg_core *core = open_core(&b, &o);
        sheet s = new_sheet(&b);
        rg_core_gpu_row rows[CAP];
        uint32_t dispatches = 0, barriers = 0;
        eval(core, &b, 6, 0, &s);
        rg_core_gpu_counts(core, &dispatches, &barriers);
        const uint32_t n = rg_core_gpu_rows(core, rows, CAP);
        uint64_t calls = 0, products = 0, multiplies = 0;
        for (uint32_t i = 0; i < n; i++) {
            calls += rows[i].calls;
            products += strcmp(rows[i].name, "mul_rows") == 0 && rows[i].type[0] && rows[i].bytes;
            multiplies += rows[i].ops;
            /* What multiplies is of a type of weights. */
            assert_true(!rows[i].ops || rows[i].type[0]);
            assert_true(!rows[i].ops || rows[i].bytes);
            if (i) assert_true(rows[i - 1].ns >= rows[i].ns);
        }
        assert_int_equal(calls, dispatches);
        assert_true(products > 0);
        assert_int_equal(multiplies, b.n * multiplies_of(core));
        assert_true(n && rows[0].ns > 0);
        check_table(core, rows, n);
        rg_core_gpu_rows_reset(core);
        assert_int_equal(rg_core_gpu_rows(core, rows, CAP), 0);
        rg_core_destroy(core);
        rg_free(s.rows);
    }
    close_bench(&b);
}

int main(void) {
    if (!gpu_here()) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prewarm),   cmocka_unit_test(switches),
        cmocka_unit_test(pairs),     cmocka_unit_test(profile_rows),
        cmocka_unit_test(few_alone), cmocka_unit_test(turns_are_kept),
    };
    return failed_or_leaked(cmocka_run_group_tests(tests, NULL, gpu_kept_release));
}
