/* Windows and sequences on the tiny models: results do not depend on cuts, threads, neighbours or
 * the past; refused requests change nothing; failed ones are mended by a reset; weights damaged in
 * memory are noticed and the layer is named.
 */
#include "engine/core.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "support/seq_state.h"
#include "support/tiny_model.h"

#define N_CTX 320u

/* Sanitized builds are some twenty times slower: they see every path, but fewer samples. */
#ifdef RG_DEBUG
#define CUT_SEEDS   1u
#define THREADS_MAX 2
#define ROUNDS      3u
#define STRIDE      5u
#else
#define CUT_SEEDS   6u
#define THREADS_MAX 4
#define ROUNDS      8u
#define STRIDE      1u
#endif

/* ---- a model and what it said ---------------------------------------------------------------- */

typedef struct subject {
    const char *name, *file;
    rg_kernel_set kernels;
    rg_kv_type kv;
    bool mtp;
} subject;

static const subject subjects[] = {
    {"a-f32", "a-f32.gguf", RG_KERNELS_REF, RG_KV_F32, false},
    {"a-mix", "a-mix.gguf", RG_KERNELS_AUTO, RG_KV_F16, false},
    {"a-fused", "a-fused-00001-of-00003.gguf", RG_KERNELS_AUTO, RG_KV_F16, false},
    {"b-f16", "b-f16.gguf", RG_KERNELS_AUTO, RG_KV_F32, false},
    {"c-f32", "c-f32.gguf", RG_KERNELS_AUTO, RG_KV_F16, false}, /* selects blocks */
    {"k-mtp", "k-mtp.gguf", RG_KERNELS_AUTO, RG_KV_F16, true},
};

typedef struct bench {
    rg_gguf *gguf;
    rg_model *model;
    rg_core *core;
    const subject *of;
    int32_t *ids;
    uint32_t n;
    uint32_t n_vocab;
} bench;

typedef struct chatty {
    uint32_t calls, cancel_at; /* 0 = never */
    atomic_bool cancel;
    uint64_t last;
    bool backwards;
} chatty;

static void on_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    chatty *c = user;
    if (strcmp(what, "prefill") != 0) return;
    if (done > total || done < c->last) c->backwards = true;
    c->last = done;
    if (++c->calls == c->cancel_at) atomic_store(&c->cancel, true);
}

static bench open_bench(const subject *of, int threads, chatty *c) {
    bench b = {.of = of};
    rg_status st = {0};
    char path[RG_TINY_PATH_MAX];
    const rg_model_options mo = {0};
    rg_core_options co = {.n_threads = threads, .kernels = of->kernels, .level = RG_CPU_SCALAR};
    if (c) {
        co.progress = on_progress;
        co.progress_user = c;
    }
    if (rg_cpu_level_pick(&co.level, NULL, &st) != RG_OK ||
        rg_gguf_open(&b.gguf, rg_tiny_path(path, of->file), &st) != RG_OK ||
        rg_model_create(&b.model, b.gguf, &mo, &st) != RG_OK ||
        rg_core_create(&b.core, b.gguf, b.model, &co, &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
    b.ids = rg_tiny_ids(of->name, &b.n);
    b.n_vocab = b.model->hp.n_vocab;
    return b;
}

static void close_bench(bench *b) {
    rg_core_destroy(b->core);
    rg_model_destroy(b->model);
    rg_gguf_close(b->gguf);
    rg_free(b->ids);
}

static rg_seq *new_seq(const bench *b) {
    const rg_seq_options opt = {.n_ctx = N_CTX, .kv = b->of->kv, .mtp = b->of->mtp};
    rg_seq *seq = NULL;
    rg_status st = {0};
    if (rg_seq_create(&seq, b->core, &opt, &st) != RG_OK) fail_msg("%s", st.message);
    return seq;
}

/* Logits by position. */
typedef struct record {
    float *logits; /* [N_CTX][n_vocab] */
    uint32_t n_vocab, next;
} record;

static record new_record(const bench *b) {
    record r = {.logits = rg_alloc((size_t)N_CTX * b->n_vocab, sizeof(float), NULL),
                .n_vocab = b->n_vocab};
    assert_non_null(r.logits);
    return r;
}

static rg_code keep_row(void *user, uint32_t position, const float *logits, rg_status *st) {
    record *r = user;
    (void)st;
    assert_int_equal(position, r->next++);
    memcpy(r->logits + (size_t)position * r->n_vocab, logits, r->n_vocab * sizeof *logits);
    return RG_OK;
}

static rg_code try_eval(const bench *b, rg_seq *seq, const int32_t *ids, uint32_t n, record *r,
                        const atomic_bool *cancel, rg_status *st) {
    const rg_logits_sink sink = {.row = keep_row, .user = r};
    r->next = rg_seq_length(seq);
    return rg_core_eval(b->core, seq, ids, n, 0, RG_WANT_ALL, &sink, cancel, st);
}

static void eval(const bench *b, rg_seq *seq, const int32_t *ids, uint32_t n, record *r) {
    rg_status st = {0};
    if (try_eval(b, seq, ids, n, r, NULL, &st) != RG_OK) fail_msg("%s", st.message);
}

/* ---- equality -------------------------------------------------------------------------------- */

static void same_logits(const record *a, const record *b, uint32_t n) {
    const size_t row = a->n_vocab * sizeof(float);
    for (uint32_t p = 0; p < n; p++) {
        const size_t at = (size_t)p * a->n_vocab;
        if (memcmp(a->logits + at, b->logits + at, row) != 0) fail_msg("position %u differs", p);
    }
}

/* ---- windows --------------------------------------------------------------------------------- */

/* Appends ids in random windows, short ones likelier than long ones. */
static void eval_in_cuts(const bench *b, rg_seq *seq, uint32_t n, record *r, uint64_t seed) {
    uint64_t draw = 0;
    for (uint32_t done = rg_seq_length(seq); done < n;) {
        const uint64_t most = 1ull << rg_random_u64(seed, draw++) % 7;
        uint32_t T = (uint32_t)(1 + rg_random_u64(seed, draw++) % most);
        if (T > n - done) T = n - done;
        eval(b, seq, b->ids + done, T, r);
        done += T;
    }
}

static void any_cut_gives_the_same_bits(void **state) {
    (void)state;
    for (size_t i = 0; i < RG_ARRAY_LEN(subjects); i++) {
        bench b = open_bench(&subjects[i], 1, NULL);
        record whole = new_record(&b), cut = new_record(&b);
        rg_seq *one = new_seq(&b), *other = new_seq(&b);
        eval(&b, one, b.ids, b.n, &whole);
        for (uint64_t seed = 1; seed <= CUT_SEEDS; seed++) {
            rg_seq_reset(other);
            eval_in_cuts(&b, other, b.n, &cut, seed);
            same_logits(&whole, &cut, b.n);
            same_state(one, other);
        }
        /* Both go on alike. */
        eval(&b, one, b.ids, 20, &whole);
        for (uint32_t k = 0; k < 20; k++)
            eval(&b, other, b.ids + k, 1, &cut);
        same_logits(&whole, &cut, b.n + 20);
        same_state(one, other);
        rg_seq_destroy(one);
        rg_seq_destroy(other);
        rg_free(whole.logits);
        rg_free(cut.logits);
        close_bench(&b);
    }
}

static void threads_change_nothing(void **state) {
    (void)state;
    for (size_t i = 1; i < RG_ARRAY_LEN(subjects); i += 2) {
        record first = {0};
        for (int threads = 1; threads <= THREADS_MAX; threads++) {
            bench b = open_bench(&subjects[i], threads, NULL);
            record r = new_record(&b);
            rg_seq *seq = new_seq(&b);
            eval_in_cuts(&b, seq, 40, &r, 77);
            if (first.logits) same_logits(&first, &r, 40);
            rg_seq_destroy(seq);
            close_bench(&b);
            if (first.logits) rg_free(r.logits);
            if (!first.logits) first = r;
        }
        rg_free(first.logits);
    }
}

/* ---- sequences ------------------------------------------------------------------------------- */

static void neighbours_change_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < RG_ARRAY_LEN(subjects); i++) {
        bench b = open_bench(&subjects[i], 1, NULL);
        record alone = new_record(&b), mixed = new_record(&b), noise = new_record(&b);
        rg_seq *one = new_seq(&b), *two = new_seq(&b), *three = new_seq(&b);
        const uint32_t n = b.n < 60 ? b.n : 60;
        eval(&b, one, b.ids, n, &alone);
        for (uint32_t done = 0; done < n; done += 5) {
            const uint32_t T = n - done < 5 ? n - done : 5;
            eval(&b, two, b.ids + done, T, &mixed);
            eval(&b, three, b.ids + n - done - T, T, &noise);
        }
        same_logits(&alone, &mixed, n);
        same_state(one, two);
        rg_seq_destroy(one);
        rg_seq_destroy(two);
        rg_seq_destroy(three);
        rg_free(alone.logits);
        rg_free(mixed.logits);
        rg_free(noise.logits);
        close_bench(&b);
    }
}

/* Rows of several sequences in one window. */
static void shared_windows_change_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < RG_ARRAY_LEN(subjects); i++) {
        bench b = open_bench(&subjects[i], 1, NULL);
        record r = new_record(&b);
        rg_status st = {0};
        enum { N = 3 };
        rg_seq *alone[N], *shared[N];
        for (uint32_t s = 0; s < N; s++) {
            alone[s] = new_seq(&b);
            shared[s] = new_seq(&b);
        }
        for (uint32_t round = 0; round < ROUNDS; round++) {
            rg_segment segs[N];
            int32_t ids[64];
            rg_window win = {.core = b.core, .segs = segs, .n_seg = N, .ids = ids};
            for (uint32_t s = 0; s < N; s++) {
                const uint32_t T = 1 + (uint32_t)rg_random_u64(5, round * N + s) % 9;
                segs[s] = (rg_segment){
                    .seq = shared[s], .row0 = win.T, .n = T, .pos0 = rg_seq_length(shared[s])};
                for (uint32_t k = 0; k < T; k++)
                    ids[win.T++] = b.ids[(segs[s].pos0 + k + s * 7) % b.n];
            }
            if (rg_window_run(&win, &(rg_eval_call){0}, &st) != RG_OK) fail_msg("%s", st.message);
            for (uint32_t s = 0; s < N; s++) {
                memcpy(shared[s]->ids + segs[s].pos0, ids + segs[s].row0, segs[s].n * sizeof *ids);
                shared[s]->length += segs[s].n;
            }
            for (uint32_t s = 0; s < N; s++) {
                eval(&b, alone[s], ids + segs[s].row0, segs[s].n, &r);
                same_state(alone[s], shared[s]);
            }
        }
        for (uint32_t s = 0; s < N; s++) {
            rg_seq_destroy(alone[s]);
            rg_seq_destroy(shared[s]);
        }
        rg_free(r.logits);
        close_bench(&b);
    }
}

static void reset_is_a_fresh_start(void **state) {
    (void)state;
    for (size_t i = 0; i < RG_ARRAY_LEN(subjects); i++) {
        bench b = open_bench(&subjects[i], 1, NULL);
        record fresh = new_record(&b), again = new_record(&b);
        rg_seq *one = new_seq(&b), *two = new_seq(&b);
        const uint32_t n = b.n < 50 ? b.n : 50;
        eval(&b, one, b.ids, n, &fresh);
        eval(&b, two, b.ids + b.n - 40, 40, &again);
        rg_seq_reset(two);
        assert_int_equal(rg_seq_length(two), 0);
        eval_in_cuts(&b, two, n, &again, 3);
        same_logits(&fresh, &again, n);
        same_state(one, two);
        rg_seq_destroy(one);
        rg_seq_destroy(two);
        rg_free(fresh.logits);
        rg_free(again.logits);
        close_bench(&b);
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refused_requests_change_nothing(void **state) {
    (void)state;
    bench b = open_bench(&subjects[1], 2, NULL);
    record fresh = new_record(&b), r = new_record(&b);
    rg_seq *one = new_seq(&b), *two = new_seq(&b);
    eval(&b, one, b.ids, 40, &fresh);
    eval(&b, two, b.ids, 20, &r);
    int32_t ids[N_CTX];
    for (uint32_t i = 0; i < N_CTX; i++)
        ids[i] = b.ids[i % b.n];
    const int32_t bad[] = {-1, (int32_t)b.n_vocab, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < RG_ARRAY_LEN(bad); i++) {
        rg_status st = {0};
        ids[7] = bad[i];
        assert_int_equal(try_eval(&b, two, ids, 9, &r, NULL, &st), RG_INVALID);
        assert_non_null(strstr(st.message, "vocabulary"));
        assert_int_equal(rg_seq_length(two), 20);
        assert_false(rg_seq_failed(two));
    }
    ids[7] = 0;
    rg_status st = {0};
    assert_int_equal(try_eval(&b, two, ids, N_CTX - 19, &r, NULL, &st), RG_INVALID);
    assert_string_equal(st.message, "301 tokens do not fit behind 20 in a context of 320");
    eval(&b, two, b.ids + 20, 20, &r);
    same_logits(&fresh, &r, 40);
    same_state(one, two);
    /* Exactly full, then nothing more. */
    eval(&b, two, ids, N_CTX - 40, &r);
    rg_status_clear(&st);
    assert_int_equal(try_eval(&b, two, ids, 1, &r, NULL, &st), RG_INVALID);
    assert_int_equal(rg_seq_length(two), N_CTX);
    rg_seq_destroy(one);
    rg_seq_destroy(two);
    rg_free(fresh.logits);
    rg_free(r.logits);
    close_bench(&b);
}

static void options_are_checked(void **state) {
    (void)state;
    bench b = open_bench(&subjects[0], 1, NULL);
    const rg_seq_options bad[] = {
        {.n_ctx = 0}, {.n_ctx = b.model->hp.n_ctx_train + 1}, {.n_ctx = 10, .mtp = true}};
    for (size_t i = 0; i < RG_ARRAY_LEN(bad); i++) {
        rg_status st = {0};
        rg_seq *seq = NULL;
        assert_int_equal(rg_seq_create(&seq, b.core, &bad[i], &st), RG_INVALID);
        assert_null(seq);
        assert_true(st.message[0]);
    }
    const rg_core_options cores[] = {
        {.chunk = RG_CHUNK_MAX + 1}, {.n_threads = -1}, {.n_threads = RG_POOL_THREADS_MAX + 1}};
    for (size_t i = 0; i < RG_ARRAY_LEN(cores); i++) {
        rg_status st = {0};
        rg_core *core = NULL;
        assert_int_equal(rg_core_create(&core, b.gguf, b.model, &cores[i], &st), RG_INVALID);
        assert_null(core);
        assert_true(st.message[0]);
    }
    close_bench(&b);
}

/* ---- failures in the middle ------------------------------------------------------------------ */

static void cancel_ends_and_reset_mends(void **state) {
    (void)state;
    for (size_t i = 0; i < RG_ARRAY_LEN(subjects); i++) {
        chatty c = {0};
        bench b = open_bench(&subjects[i], 2, &c);
        record fresh = new_record(&b), r = new_record(&b);
        rg_seq *one = new_seq(&b), *two = new_seq(&b);
        eval(&b, one, b.ids, 40, &fresh);
        assert_false(c.backwards);
        const uint32_t n_call = c.calls;
        assert_int_equal(n_call, b.model->hp.n_layer);
        for (uint32_t at = 1; at < n_call; at += STRIDE) {
            rg_status st = {0};
            c.calls = 0;
            c.last = 0;
            c.cancel_at = at;
            atomic_store(&c.cancel, false);
            assert_int_equal(try_eval(&b, two, b.ids, 40, &r, &c.cancel, &st), RG_CANCELED);
            assert_true(rg_seq_failed(two));
            rg_status_clear(&st);
            atomic_store(&c.cancel, false);
            assert_int_equal(try_eval(&b, two, b.ids, 1, &r, &c.cancel, &st), RG_INVALID);
            assert_non_null(strstr(st.message, "reset"));
            rg_seq_reset(two);
            c.cancel_at = 0;
            c.last = 0;
            eval(&b, two, b.ids, 40, &r);
            same_logits(&fresh, &r, 40);
            same_state(one, two);
            rg_seq_reset(two);
        }
        rg_seq_destroy(one);
        rg_seq_destroy(two);
        rg_free(fresh.logits);
        rg_free(r.logits);
        close_bench(&b);
    }
}

static rg_code refuse_third(void *user, uint32_t position, const float *logits, rg_status *st) {
    (void)user;
    (void)logits;
    /* A callback may allocate. */
    void *p = rg_alloc(1, 16, st);
    rg_free(p);
    return position == 2 ? rg_fail(st, RG_BUSY, "enough at %u", position) : RG_OK;
}

static void a_sink_can_end_the_call(void **state) {
    (void)state;
    bench b = open_bench(&subjects[0], 2, NULL);
    rg_seq *seq = new_seq(&b);
    const rg_logits_sink sink = {.row = refuse_third};
    rg_status st = {0};
    assert_int_equal(rg_core_eval(b.core, seq, b.ids, 9, 0, RG_WANT_ALL, &sink, NULL, &st),
                     RG_BUSY);
    assert_string_equal(st.message, "enough at 2");
    assert_true(rg_seq_failed(seq));
    rg_seq_destroy(seq);
    close_bench(&b);
}

/* ---- drafts ---------------------------------------------------------------------------------- */

typedef struct drafts {
    float *logits;  /* [N_CTX][n_vocab] */
    uint32_t *seen; /* [N_CTX] */
} drafts;

static rg_code see_drafts(void *user, const char *name, uint32_t layer, uint32_t row0,
                          uint32_t rows, uint32_t cols, const float *data, rg_status *st) {
    drafts *d = user;
    (void)st;
    (void)layer;
    if (strcmp(name, "mtp_logits") != 0) return RG_OK;
    memcpy(d->logits + (size_t)row0 * cols, data, (size_t)rows * cols * sizeof *data);
    for (uint32_t i = 0; i < rows; i++)
        d->seen[row0 + i]++;
    return RG_OK;
}

static drafts new_drafts(const bench *b) {
    drafts d = {.logits = rg_alloc((size_t)N_CTX * b->n_vocab, sizeof(float), NULL),
                .seen = rg_alloc(N_CTX, sizeof(uint32_t), NULL)};
    assert_true(d.logits && d.seen);
    return d;
}

static void drafts_do_not_depend_on_cuts(void **state) {
    (void)state;
    bench b = open_bench(&subjects[5], 2, NULL);
    record r = new_record(&b);
    rg_seq *seq = new_seq(&b);
    drafts whole = new_drafts(&b);
    rg_core_set_tap(b.core, &(rg_tap){see_drafts, &whole});
    eval(&b, seq, b.ids, b.n, &r);
    for (uint64_t seed = 1; seed <= 6; seed++) {
        drafts cut = new_drafts(&b);
        rg_core_set_tap(b.core, &(rg_tap){see_drafts, &cut});
        rg_seq_reset(seq);
        eval_in_cuts(&b, seq, b.n, &r, seed);
        for (uint32_t p = 0; p < b.n; p++) {
            const uint32_t want = p + 1 < b.n; /* the last row waits for its token */
            assert_int_equal(whole.seen[p], want);
            assert_int_equal(cut.seen[p], want);
        }
        assert_memory_equal(whole.logits, cut.logits, (size_t)N_CTX * b.n_vocab * sizeof(float));
        rg_free(cut.logits);
        rg_free(cut.seen);
    }
    rg_core_set_tap(b.core, NULL);
    rg_seq_destroy(seq);
    rg_free(r.logits);
    rg_free(whole.logits);
    rg_free(whole.seen);
    close_bench(&b);
}

/* ---- damage in memory ------------------------------------------------------------------------ */

typedef struct wound {
    const void *at; /* a float of a vector or the first scale of a matrix */
    rg_type type;
    uint32_t layer, n; /* tokens until it must show */
    const char *name;
} wound;

/* NaN into the first element or scale of each of the first rows. */
static void strike(const wound *w, uint8_t saved[4], bool heal) {
    uint8_t *at = (uint8_t *)(uintptr_t)w->at;
    const uint32_t nan32 = 0x7fc00000u;
    const uint16_t nan16 = 0x7e00u;
    const bool wide = w->type == RG_TYPE_F32;
    if (heal) {
        memcpy(at, saved, wide ? 4 : 2);
        return;
    }
    memcpy(saved, at, wide ? 4 : 2);
    memcpy(at, wide ? (const void *)&nan32 : (const void *)&nan16, wide ? 4 : 2);
}

static uint32_t list_wounds(const bench *b, wound *out) {
    uint32_t n = 0, n_id = 12; /* the histories of the convolutions are full */
#define ADD(p, t, l, what)                                                                         \
    out[n++] = (wound) {                                                                           \
        p, t, l, n_id, what                                                                        \
    }
#define MAT(mat, l)                                                                                \
    if ((mat).data && ((mat).type == RG_TYPE_F32 || (mat).type == RG_TYPE_F16 ||                   \
                       (mat).type == RG_TYPE_Q8_0 || (mat).type == RG_TYPE_Q4_0))                  \
    ADD((mat).data, (mat).type, l, #mat)
#define VEC(vec, l) ADD(vec, RG_TYPE_F32, l, #vec)
    const rg_weights *w = &b->core->w;
    for (uint32_t i = 0; i < b->core->hp->n_layer; i++) {
        const rg_layer_weights *l = &w->layers[i];
        const rg_hc_weights *hc[2] = {&l->hc_attn, &l->hc_ffn};
        for (int k = 0; k < 2; k++) {
            VEC(hc[k]->norm, i);
            MAT(hc[k]->down, i);
            MAT(hc[k]->up, i);
            MAT(hc[k]->inject, i);
        }
        MAT(l->moe.router, i);
        MAT(l->moe.shared_gate_inp, i);
        MAT(l->moe.shared_gate, i);
        MAT(l->moe.shared_up, i);
        MAT(l->moe.shared_down, i);
        if (l->is_attn) {
            MAT(l->attn.q, i);
            MAT(l->attn.k, i);
            MAT(l->attn.v, i);
            MAT(l->attn.out, i);
            VEC(l->attn.q_norm, i);
            VEC(l->attn.k_norm, i);
            if (b->n > 200) { /* long enough to select blocks */
                n_id = b->n;
                MAT(l->attn.idx_q, i);
                MAT(l->attn.idx_k, i);
                VEC(l->attn.idx_q_norm, i);
                VEC(l->attn.idx_k_norm, i);
                n_id = 12;
            }
        } else {
            MAT(l->gdn.qkv, i);
            MAT(l->gdn.gate, i);
            MAT(l->gdn.alpha, i);
            MAT(l->gdn.beta, i);
            MAT(l->gdn.out, i);
            VEC(l->gdn.conv, i);
            VEC(l->gdn.dt, i);
            VEC(l->gdn.a, i);
            VEC(l->gdn.norm, i);
        }
        if (l->has_ple) {
            MAT(l->ple.key, i);
            MAT(l->ple.value, i);
            VEC(l->ple.norm_key, i);
            VEC(l->ple.norm_query, i);
            VEC(l->ple.norm_conv, i);
            VEC(l->ple.conv, i);
        }
    }
    MAT(w->output, b->core->hp->n_layer);
    VEC(w->output_hc.norm, b->core->hp->n_layer);
    MAT(w->output_hc.down, b->core->hp->n_layer);
    MAT(w->output_hc.up, b->core->hp->n_layer);
#undef ADD
#undef MAT
#undef VEC
    return n;
}

/* The error names the layer whose weights are damaged, or the next one, which reads the values. */
static void damage_is_named(void **state) {
    (void)state;
    for (size_t i = 0; i < 5; i++) {
        bench b = open_bench(&subjects[i], 1, NULL);

        record r = new_record(&b);
        rg_seq *seq = new_seq(&b);
        static wound wounds[400];
        const uint32_t n = list_wounds(&b, wounds);
        assert_true(n > 60 && n < RG_ARRAY_LEN(wounds));
        for (uint32_t k = (uint32_t)i % STRIDE; k < n; k += STRIDE) {
            uint8_t saved[4];
            rg_status st = {0};
            strike(&wounds[k], saved, false);
            rg_seq_reset(seq);
            const rg_code rc = try_eval(&b, seq, b.ids, wounds[k].n, &r, NULL, &st);
            strike(&wounds[k], saved, true);
            char here[32], next[32], before[32];
            snprintf(here, sizeof here, "layer %u", wounds[k].layer);
            snprintf(next, sizeof next, "layer %u", wounds[k].layer + 1);
            snprintf(before, sizeof before, "layer %u", b.core->hp->n_layer - 1);
            const bool head = wounds[k].layer == b.core->hp->n_layer;
            const bool named = strstr(st.message, here) || strstr(st.message, next) ||
                               (head && strstr(st.message, before));
            if (rc != RG_FORMAT || !named) {
                fail_msg("%s: %s of layer %u: code %d, \"%s\"", subjects[i].name, wounds[k].name,
                         wounds[k].layer, (int)rc, st.message);
            }
        }
        rg_seq_reset(seq);
        eval(&b, seq, b.ids, 12, &r);
        rg_seq_destroy(seq);
        rg_free(r.logits);
        close_bench(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_gives_the_same_bits),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(neighbours_change_nothing),
        cmocka_unit_test(shared_windows_change_nothing),
        cmocka_unit_test(reset_is_a_fresh_start),
        cmocka_unit_test(refused_requests_change_nothing),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(cancel_ends_and_reset_mends),
        cmocka_unit_test(a_sink_can_end_the_call),
        cmocka_unit_test(drafts_do_not_depend_on_cuts),
        cmocka_unit_test(damage_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
