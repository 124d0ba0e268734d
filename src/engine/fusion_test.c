/* Fused steps and their parts give the same bits: logits, the last residual and all state, for
 * windows of 1..8 rows and a wide one, on every level of this machine, for 1..3 threads; with
 * several sequences in a window, with drafts taken back, and with experts that stream.
 */
#include "engine/core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/seq_state.h"
#include "support/tiny_model.h"

#define N_CTX 320u
#define WIDE  40u

#ifdef RG_DEBUG
#define SCALAR_TOO false
#else
#define SCALAR_TOO true
#endif

typedef struct subject {
    const char *name, *file; /* of the tiny models; name NULL: the demo */
    rg_kernel_set kernels;
    bool mtp;
} subject;

static const subject subjects[] = {
    {"a-f32", "a-f32.gguf", RG_KERNELS_REF, false},
    {"a-mix", "a-mix.gguf", RG_KERNELS_AUTO, false},
    {"b-f16", "b-f16.gguf", RG_KERNELS_AUTO, false},
    {"c-f32", "c-f32.gguf", RG_KERNELS_AUTO, false}, /* selects blocks */
    {"k-mtp", "k-mtp.gguf", RG_KERNELS_AUTO, true},  /* blocks of 256, a draft block */
    {NULL, "regolith-demo-q4.gguf", RG_KERNELS_AUTO, true},
};

typedef struct bench {
    rg_gguf *gguf;
    rg_model *model;
    rg_core *core;
    const subject *of;
    int32_t ids[N_CTX];
    uint32_t n;
} bench;

static void open_bench(bench *b, const subject *of, rg_cpu_level level, int threads,
                       uint64_t arena_bytes) {
    *b = (bench){.of = of};
    rg_status st = {0};
    char path[RG_TINY_PATH_MAX];
    const rg_model_options mo = {0};
    const rg_core_options co = {.n_threads = threads,
                                .kernels = of->kernels,
                                .level = level,
                                .chunk = 64,
                                .arena_bytes = arena_bytes};
    if (of->name) {
        uint32_t n = 0;
        int32_t *ids = rg_tiny_ids(of->name, &n);
        b->n = n < 120 ? n : 120;
        memcpy(b->ids, ids, b->n * sizeof *ids);
        rg_free(ids);
        rg_tiny_path(path, of->file);
    } else {
        for (b->n = 0; b->n < 120; b->n++)
            b->ids[b->n] = (int32_t)(5 + rg_random_u64(11, b->n) % 4000);
        snprintf(path, sizeof path, "%s/../../models/%s", RG_TEST_DATA, of->file);
    }
    if (rg_gguf_open(&b->gguf, path, &st) != RG_OK ||
        rg_model_create(&b->model, b->gguf, &mo, &st) != RG_OK ||
        rg_core_create(&b->core, b->gguf, b->model, &co, &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
}

static void close_bench(bench *b) {
    rg_core_destroy(b->core);
    rg_model_destroy(b->model);
    rg_gguf_close(b->gguf);
}

static rg_seq *new_seq(const bench *b, uint32_t draft_max) {
    const rg_seq_options opt = {
        .n_ctx = N_CTX, .kv = RG_KV_F16, .mtp = b->of->mtp, .draft_max = draft_max};
    rg_seq *seq = NULL;
    rg_status st = {0};
    if (rg_seq_create(&seq, b->core, &opt, &st) != RG_OK) {
        fail_msg("%s", st.message);
        abort(); /* not reached: fail_msg ends the test */
    }
    return seq;
}

/* Logits and last residuals of a run, in order. */
typedef struct record {
    float *logits, *residual;
    size_t n_logits, n_residual, cap;
} record;

static record new_record(size_t cap) {
    record r = {.cap = cap,
                .logits = rg_alloc(cap, sizeof(float), NULL),
                .residual = rg_alloc(cap, sizeof(float), NULL)};
    assert_non_null(r.logits);
    assert_non_null(r.residual);
    return r;
}

static void free_record(record *r) {
    rg_free(r->logits);
    rg_free(r->residual);
}

static void same_record(const record *a, const record *b, const char *what) {
    assert_int_equal(a->n_logits, b->n_logits);
    assert_int_equal(a->n_residual, b->n_residual);
    assert_true(a->n_logits > 0);
    if (memcmp(a->logits, b->logits, a->n_logits * sizeof(float)) != 0) {
        fail_msg("%s: logits differ", what);
    }
    if (memcmp(a->residual, b->residual, a->n_residual * sizeof(float)) != 0) {
        fail_msg("%s: residuals differ", what);
    }
}

typedef struct keeper {
    record *r;
    size_t n_vocab;
} keeper;

static rg_code keep_row(void *user, uint32_t position, const float *logits, rg_status *st) {
    keeper *k = user;
    (void)position, (void)st;
    assert_true(k->r->n_logits + k->n_vocab <= k->r->cap);
    memcpy(k->r->logits + k->r->n_logits, logits, k->n_vocab * sizeof *logits);
    k->r->n_logits += k->n_vocab;
    return RG_OK;
}

/* The residual rows of the last window are still in the scratch. */
static void keep_residual(const bench *b, record *r, uint32_t T) {
    const size_t n = (size_t)T * b->model->hp.n_hc * b->model->hp.n_embd;
    assert_true(r->n_residual + n <= r->cap);
    memcpy(r->residual + r->n_residual, b->core->s.residual, n * sizeof(float));
    r->n_residual += n;
}

static void eval(const bench *b, rg_seq *seq, uint32_t T, record *r) {
    rg_status st = {0};
    keeper k = {.r = r, .n_vocab = b->model->hp.n_vocab};
    const rg_logits_sink sink = {.row = keep_row, .user = &k};
    if (rg_core_eval(b->core, seq, b->ids + rg_seq_length(seq), T, 0, RG_WANT_ALL, &sink, NULL,
                     &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
    if (T <= RG_SCRATCH_KEPT_ROWS) keep_residual(b, r, T);
}

/* A wide window, then one of each width of a decode window. */
static void eval_widths(const bench *b, rg_seq *seq, uint32_t unfused, record *r) {
    b->core->opt.unfused = unfused;
    rg_seq_reset(seq);
    r->n_logits = r->n_residual = 0;
    eval(b, seq, WIDE, r);
    for (uint32_t T = 1; T <= RG_DECODE_ROWS; T++)
        eval(b, seq, T, r);
}

static size_t record_floats(const bench *b) {
    const size_t row = b->model->hp.n_vocab > b->model->hp.n_hc * b->model->hp.n_embd
                           ? b->model->hp.n_vocab
                           : b->model->hp.n_hc * b->model->hp.n_embd;
    return row * 128;
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void widths_agree(const subject *of, rg_cpu_level level, int threads, record *first) {
    bench b;
    char what[128];
    open_bench(&b, of, level, threads, 0);
    record parts = new_record(record_floats(&b)), fused = new_record(record_floats(&b));
    rg_seq *one = new_seq(&b, 0), *other = new_seq(&b, 0);
    eval_widths(&b, one, RG_FUSE_ALL, &parts);
    /* Each alone in parts, each alone fused, all fused. */
    uint32_t last = ~0u;
    for (uint32_t i = 0; i <= 12; i++) {
        const uint32_t bit = 1u << i % 6;
        const uint32_t unfused = i == 12 ? 0 : i < 6 ? RG_FUSE_ALL & ~bit : bit;
        if (threads == 2 && i < 6) continue; /* enough of combinations */
        if (threads == 3 && i < 12) continue;
        eval_widths(&b, other, unfused, &fused);
        snprintf(what, sizeof what, "%s, level %d, %d threads, parts %#x", of->file, (int)level,
                 threads, (unsigned)unfused);
        same_record(&parts, &fused, what);
        same_state(one, other);
        last = unfused;
    }
    assert_int_equal(last, 0);
    if (first->logits) same_record(first, &fused, what);
    rg_seq_destroy(one);
    rg_seq_destroy(other);
    close_bench(&b);
    free_record(&parts);
    if (first->logits) {
        free_record(&fused);
    } else {
        *first = fused;
    }
}

static void fused_steps_equal_their_parts(void **state) {
    (void)state;
    rg_cpu_level best = RG_CPU_SCALAR;
    rg_status st = {0};
    if (rg_cpu_level_pick(&best, NULL, &st) != RG_OK) fail_msg("%s", st.message);
    for (size_t i = 0; i < RG_ARRAY_LEN(subjects); i++) {
        record first = {0}; /* levels and thread counts agree with each other, too */
        for (int level = RG_CPU_SCALAR; level <= (int)best; level++) {
            const bool scalar = level == RG_CPU_SCALAR;
            if (scalar && (!SCALAR_TOO || !subjects[i].name)) continue;
            for (int threads = 1; threads <= 3; threads++) {
                if (level != (int)best && threads > 1) continue;
                widths_agree(&subjects[i], (rg_cpu_level)level, threads, &first);
            }
        }
        assert_non_null(first.logits);
        free_record(&first);
    }
}

/* Three sequences in one window, one of them short, with open drafts of which some are taken back:
 * ids, kept rows and widths change from round to round. */
static void run_shared_windows(const bench *b, rg_seq *const seqs[3], uint32_t unfused, record *r) {
    const size_t V = b->model->hp.n_vocab;
    b->core->opt.unfused = unfused;
    r->n_logits = r->n_residual = 0;
    for (uint32_t i = 0; i < 3; i++)
        rg_seq_reset(seqs[i]);
    for (uint32_t round = 0; round < 6; round++) {
        rg_verify parts[3];
        const float *logits = NULL;
        rg_status st = {0};
        size_t rows = 0;
        for (uint32_t i = 0; i < 3; i++) {
            const uint32_t n = 1 + (round + 2 * i) % 4;
            parts[i] = (rg_verify){.seq = seqs[i],
                                   .ids = b->ids + rg_seq_length(seqs[i]) + i,
                                   .n = n,
                                   .n_kept = 1 + (round * 5 + i) % n};
            rows += n;
        }
        for (uint32_t i = 0; i < 3 && b->of->mtp; i++) {
            if (rg_mtp_make_room(b->core, seqs[i], parts[i].n, false, &st) != RG_OK) {
                fail_msg("%s", st.message);
            }
        }
        if (rg_core_verify(b->core, parts, 3, NULL, &logits, &st) != RG_OK) {
            fail_msg("%s", st.message);
        }
        assert_true(r->n_logits + rows * V <= r->cap);
        memcpy(r->logits + r->n_logits, logits, rows * V * sizeof *logits);
        r->n_logits += rows * V;
        if (rg_core_accept(b->core, parts, 3, &st) != RG_OK) fail_msg("%s", st.message);
    }
    for (uint32_t i = 0; i < 3; i++)
        rg_seq_settle(seqs[i]);
}

static void shared_windows_and_drafts_agree(void **state) {
    rg_cpu_level level = RG_CPU_SCALAR;
    rg_status st = {0};
    (void)state;
    if (rg_cpu_level_pick(&level, NULL, &st) != RG_OK) fail_msg("%s", st.message);
    for (size_t i = 1; i < RG_ARRAY_LEN(subjects); i++) {
        bench b;
        open_bench(&b, &subjects[i], level, 2, 0);
        record parts = new_record(record_floats(&b)), fused = new_record(record_floats(&b));
        rg_seq *x[3], *y[3];
        for (uint32_t k = 0; k < 3; k++) {
            x[k] = new_seq(&b, RG_DRAFT_MAX);
            y[k] = new_seq(&b, RG_DRAFT_MAX);
        }
        run_shared_windows(&b, x, RG_FUSE_ALL, &parts);
        run_shared_windows(&b, y, 0, &fused);
        same_record(&parts, &fused, subjects[i].file);
        for (uint32_t k = 0; k < 3; k++) {
            same_state(x[k], y[k]);
            rg_seq_destroy(x[k]);
            rg_seq_destroy(y[k]);
        }
        free_record(&parts);
        free_record(&fused);
        close_bench(&b);
    }
}

/* Experts in waves: the shared one goes with the first, whatever has arrived by then. */
static void streamed_experts_agree(void **state) {
    rg_cpu_level level = RG_CPU_SCALAR;
    rg_status st = {0};
    (void)state;
    if (rg_cpu_level_pick(&level, NULL, &st) != RG_OK) fail_msg("%s", st.message);
    const subject *of = &subjects[RG_ARRAY_LEN(subjects) - 1];
    record first = {0};
    for (int split_off = 0; split_off < 2; split_off++) {
        bench b;
        open_bench(&b, of, level, 2, 2u << 20);
        b.core->opt.split_off = split_off != 0;
        assert_non_null(b.core->stream);
        record parts = new_record(record_floats(&b)), fused = new_record(record_floats(&b));
        rg_seq *one = new_seq(&b, 0), *other = new_seq(&b, 0);
        eval_widths(&b, one, RG_FUSE_ALL, &parts);
        eval_widths(&b, other, 0, &fused);
        same_record(&parts, &fused, "streamed");
        same_state(one, other);
        rg_seq_destroy(one);
        rg_seq_destroy(other);
        close_bench(&b);
        free_record(&parts);
        if (first.logits) {
            same_record(&first, &fused, "streamed, split off");
            free_record(&fused);
        } else {
            first = fused;
        }
    }
    free_record(&first);
}

/* A window that breaks off between a layer and the write that is due leaves nothing behind. */
static void a_broken_window_leaves_no_write(void **state) {
    rg_cpu_level level = RG_CPU_SCALAR;
    rg_status st = {0};
    (void)state;
    if (rg_cpu_level_pick(&level, NULL, &st) != RG_OK) fail_msg("%s", st.message);
    bench b;
    open_bench(&b, &subjects[1], level, 2, 0);
    record want = new_record(record_floats(&b)), got = new_record(record_floats(&b));
    rg_seq *seq = new_seq(&b, 0);
    eval_widths(&b, seq, 0, &want);
    b.core->due = (rg_due){.residual = b.core->s.residual, .T = 5, .combine = true};
    eval_widths(&b, seq, 0, &got);
    same_record(&want, &got, "behind a broken window");
    assert_null(b.core->due.residual);
    rg_seq_destroy(seq);
    close_bench(&b);
    free_record(&want);
    free_record(&got);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_steps_equal_their_parts),
        cmocka_unit_test(shared_windows_and_drafts_agree),
        cmocka_unit_test(streamed_experts_agree),
        cmocka_unit_test(a_broken_window_leaves_no_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
