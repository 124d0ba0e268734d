/* Test support of the trunk on a GPU: a tiny model, its logits from a core on the device, equal
 * bits.
 */
#ifndef RG_TESTS_GPU_TRUNK_H
#define RG_TESTS_GPU_TRUNK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/gpu_core.h"
#include "support/gpu_here.h"
#include "support/released.h"
#include "support/tiny_model.h"

#define N_CTX 256u
typedef struct bench {
    rg_gguf *gguf;
    rg_model *model;
    int32_t *ids;
    uint32_t n;
} bench;

static inline bench open_bench_at(const char *path, const char *name, uint32_t n_most) {
    bench b = {0};
    rg_status st = {0};
    if (rg_gguf_open(&b.gguf, path, &st) != RG_OK ||
        rg_model_create(&b.model, b.gguf, &(rg_model_options){0}, &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
    b.ids = rg_tiny_ids(name, &b.n);
    if (b.n > n_most) b.n = n_most;
    return b;
}

static inline bench open_bench(const char *file, const char *name, uint32_t n_most) {
    char path[RG_TINY_PATH_MAX];
    return open_bench_at(rg_tiny_path(path, file), name, n_most);
}

static inline void close_bench(bench *b) {
    rg_free(b->ids);
    rg_model_destroy(b->model);
    rg_gguf_close(b->gguf);
}

static inline rg_core_options gpu_options(uint32_t chunk) {
    rg_core_options o = {
        .n_threads = 2, .chunk = chunk, .gpu = true, .gpu_device = -1, .gpu_validate = true};
    assert_int_equal(rg_cpu_level_pick(&o.level, NULL, NULL), RG_OK);
    return o;
}

static inline rg_core *open_core(const bench *b, const rg_core_options *o) {
    rg_core *core = NULL;
    rg_status st = {0};
    if (rg_core_create(&core, b->gguf, b->model, o, &st) != RG_OK) fail_msg("%s", st.message);
    return core;
}

typedef struct sheet {
    float *rows; /* [n][n_vocab] */
    size_t n_vocab;
} sheet;

static inline rg_code keep(void *user, uint32_t position, const float *logits, rg_status *st) {
    const sheet *s = user;
    (void)st;
    memcpy(s->rows + position * s->n_vocab, logits, s->n_vocab * sizeof *logits);
    return RG_OK;
}

static inline sheet new_sheet(const bench *b) {
    sheet s = {.n_vocab = b->model->hp.n_vocab};
    s.rows = rg_alloc((size_t)b->n * s.n_vocab, sizeof *s.rows, NULL);
    assert_non_null(s.rows);
    return s;
}

/* All positions: windows of `chunk`, the last `tail` tokens one by one. */
static inline void eval_on(rg_core *core, rg_seq *seq, const bench *b, uint32_t chunk,
                           uint32_t tail, sheet *s) {
    rg_status st = {0};
    const rg_logits_sink sink = {.row = keep, .user = s};
    const uint32_t head = b->n - tail;
    rg_seq_reset(seq);
    memset(s->rows, 0, b->n * s->n_vocab * sizeof *s->rows);
    if (rg_core_eval(core, seq, b->ids, head, chunk, RG_WANT_ALL, &sink, NULL, &st) != RG_OK ||
        (tail &&
         rg_core_eval(core, seq, b->ids + head, tail, 1, RG_WANT_ALL, &sink, NULL, &st) != RG_OK)) {
        fail_msg("%s", st.message);
    }
}

static inline void eval(rg_core *core, const bench *b, uint32_t chunk, uint32_t tail, sheet *s) {
    rg_seq *seq = NULL;
    rg_status st = {0};
    if (rg_seq_create(&seq, core, &(rg_seq_options){.n_ctx = N_CTX}, &st) != RG_OK)
        fail_msg("%s", st.message);
    eval_on(core, seq, b, chunk, tail, s);
    rg_seq_destroy(seq);
}

static inline bool same_bits(float a, float b) {
    uint32_t x;
    uint32_t y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return x == y;
}

static inline void expect_same(const sheet *got, const sheet *want, uint32_t n, const char *what) {
    for (size_t i = 0; i < n * want->n_vocab; i++) {
        if (same_bits(got->rows[i], want->rows[i])) continue;
        fail_msg("%s: row %zu, logit %zu is %a, expected %a", what, i / want->n_vocab,
                 i % want->n_vocab, (double)got->rows[i], (double)want->rows[i]);
    }
}

static inline uint64_t arena_of(const bench *b, uint32_t n_expert) {
    rg_stream_layout layout;
    assert_int_equal(rg_experts_layout(&layout, b->model, NULL, NULL), RG_OK);
    return layout.slot_bytes_max * n_expert;
}

static inline rg_code one_token(rg_core *core, rg_seq *seq, const bench *b, uint32_t T, sheet *s,
                                rg_status *st) {
    const rg_logits_sink sink = {.row = keep, .user = s};
    return rg_core_eval(core, seq, b->ids, T, T, RG_WANT_LAST, &sink, NULL, st);
}

#endif
