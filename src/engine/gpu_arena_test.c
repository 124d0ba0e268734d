/* Where the experts lie that a GPU streams: memory that the host sees, memory that is filled by
 * transfers, memory of the host. The same bits everywhere, whatever the arena, the splitting,
 * read-ahead, windows with drafts; faults of the drive and a device that is lost while copies are
 * under way; the choice that is made when nothing is said.
 */
#include "support/gpu_trunk.h"

#include <pthread.h>
#include <time.h>

typedef struct arm {
    rg_gpu_arena arena;
    uint32_t extra; /* slots beyond the smallest arena */
    bool split_off;
    int32_t lookahead;
} arm;

static rg_core_options arm_options(const bench *b, const arm *a) {
    rg_core_options o = gpu_options(32);
    o.arena_bytes = arena_of(b, b->model->hp.n_expert_used + 1 + a->extra);
    o.split_off = a->split_off;
    o.io.lookahead = a->lookahead;
    o.gpu_arena = a->arena;
    return o;
}

static const char *name_of(rg_gpu_arena arena) {
    static const char *const names[] = {"mapped", "mapped", "staged", "host"};
    return names[arena]; /* lavapipe and the like: the host sees everything */
}

static bool sees_all(const rg_core *core) {
    return rg_gpu_get_info(core->gpu->gpu)->mappable;
}

/* Copies are made where there is staging, one for each read at least. */
static void check_meters(const rg_core *core, bool staged) {
    rg_stream_meters m;
    rg_stream_meters_get(rg_core_stream((rg_core *)(uintptr_t)core), &m);
    assert_true(m.misses > 0 && m.evictions > 0);
    assert_true(staged ? m.copies >= m.reads && m.copied_bytes >= m.copies : m.copies == 0);
    const rg_gpu_copies done = rg_gpu_landing_copies(core->gpu);
    assert_true(done.count <= m.copies && done.bytes <= m.copied_bytes);
    assert_true(staged ? done.count > 0 && done.bytes > 0 : done.count + done.bytes == 0);
    assert_int_equal(done.ns, rg_core_gpu_copy_ns(core));
    assert_int_equal(done.ns > 0, staged && rg_gpu_transfer_timed(core->gpu->gpu));
    assert_int_equal(rg_core_gpu_complaints(core), 0);
}

static void check_arm(const bench *b, const sheet *want, const arm *a) {
    sheet got = new_sheet(b);
    const rg_core_options o = arm_options(b, a);
    char what[96];
    rg_core *core = open_core(b, &o);
    snprintf(what, sizeof what, "%s, %u more slots, split %d, read-ahead %d", name_of(a->arena),
             a->extra, !a->split_off, (int)a->lookahead);
    if (sees_all(core)) assert_string_equal(rg_core_gpu_arena(core), name_of(a->arena));
    eval(core, b, 32, 5, &got);
    expect_same(&got, want, b->n, what);
    eval(core, b, 1, 0, &got); /* with a warm cache */
    expect_same(&got, want, b->n, what);
    check_meters(core, strcmp(rg_core_gpu_arena(core), "staged") == 0);
    rg_core_destroy(core);
    rg_free(got.rows);
}

static void resident(const bench *b, sheet *want) {
    const rg_core_options o = gpu_options(32);
    rg_core *core = open_core(b, &o);
    assert_string_equal(rg_core_gpu_arena(core), "");
    eval(core, b, 32, 6, want);
    rg_core_destroy(core);
}

static void charter(void **state) {
    (void)state;
    bench b = open_bench("a-mix.gguf", "a-mix", 18);
    const uint32_t all = b.model->hp.n_expert * b.model->hp.n_layer;
    sheet want = new_sheet(&b);
    const arm arms[] = {
        {RG_GPU_ARENA_STAGED, 0, false, -1},      {RG_GPU_ARENA_STAGED, 1, true, 4},
        {RG_GPU_ARENA_STAGED, all / 3, false, 4}, {RG_GPU_ARENA_HOST, all / 3, false, -1},
        {RG_GPU_ARENA_MAPPED, 0, false, 4}, /* turns of several waves */
        {RG_GPU_ARENA_MAPPED, 1, true, -1}};
    resident(&b, &want);
    for (size_t i = 0; i < RG_ARRAY_LEN(arms); i++)
        check_arm(&b, &want, &arms[i]);
    rg_free(want.rows);
    close_bench(&b);
}

/* ---- drafts ---------------------------------------------------------------------------------- */

/* A window of tokens of the text and some wrong ones behind them: the rows of the text. */
static void window(rg_core *core, const bench *b, const sheet *want, rg_seq *seq, uint32_t right,
                   uint32_t wrong) {
    int32_t ids[RG_VERIFY_ROWS];
    rg_status st = {0};
    const uint32_t at = rg_seq_length(seq), n = right + wrong;
    for (uint32_t i = 0; i < n; i++)
        ids[i] = i < right ? b->ids[at + i]
                           : (int32_t)((uint32_t)(b->ids[at] + 7 + (int32_t)i) % want->n_vocab);
    const rg_verify part = {.seq = seq, .ids = ids, .n = n, .n_kept = right};
    const float *logits = NULL;
    if (rg_mtp_make_room(core, seq, n, false, &st) != RG_OK ||
        rg_core_verify(core, &part, 1, NULL, &logits, &st) != RG_OK) {
        fail_msg("%s", st.message);
        abort(); /* not reached */
    }
    const sheet got = {(float *)(uintptr_t)logits, want->n_vocab};
    const sheet rows = {want->rows + at * want->n_vocab, want->n_vocab};
    expect_same(&got, &rows, right, "a window with drafts");
    if (rg_core_accept(core, &part, 1, &st) != RG_OK) fail_msg("%s", st.message);
}

/* The draft block's experts come through the arena too; drafts are taken and refused. */
static void drafts(void **state) {
    (void)state;
    bench b = open_bench("k-mtp.gguf", "k-mtp", 28);
    sheet want = new_sheet(&b);
    rg_seq *seq = NULL;
    rg_status st = {0};
    const arm a = {RG_GPU_ARENA_STAGED, 1, false, 4};
    const rg_core_options o = arm_options(&b, &a);
    rg_core *core = open_core(&b, &o);
    resident(&b, &want);
    const rg_seq_options so = {.n_ctx = N_CTX, .mtp = true, .draft_max = RG_DRAFT_MAX};
    if (rg_seq_create(&seq, core, &so, &st) != RG_OK) {
        fail_msg("%s", st.message);
        abort(); /* not reached */
    }
    if (rg_core_eval(core, seq, b.ids, 5, 5, RG_WANT_NONE, NULL, NULL, &st) != RG_OK)
        fail_msg("%s", st.message);
    for (uint32_t i = 0; rg_seq_length(seq) + RG_VERIFY_ROWS < b.n; i++)
        window(core, &b, &want, seq, 1 + i % 3, (3 * i) % 5);
    check_meters(core, true);
    rg_seq_destroy(seq);
    rg_core_destroy(core);
    rg_free(want.rows);
    close_bench(&b);
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* Reads that fail too often fail the request that needs them; the next ones get the same bits. */
static void fail_reads(rg_gpu_arena arena) {
    bench b = open_bench("a-mix.gguf", "a-mix", 12);
    sheet want = new_sheet(&b), got = new_sheet(&b);
    const arm a = {arena, 2, false, 2};
    const rg_stream_faults f = {.seed = 4,
                                .eio_permille = 3,
                                .eio_burst = 2,
                                .short_permille = 60,
                                .stall_permille = 50,
                                .stall_ms_max = 2};
    rg_core_options o = arm_options(&b, &a);
    rg_seq *seq = NULL;
    rg_status st = {0};
    uint32_t n_failed = 0, n_good = 0;
    o.io.faults = &f;
    o.io.retries_max = 1;
    rg_core *core = open_core(&b, &o);
    resident(&b, &want);
    const rg_logits_sink sink = {.row = keep, .user = &got};
    if (rg_seq_create(&seq, core, &(rg_seq_options){.n_ctx = N_CTX}, &st) != RG_OK)
        fail_msg("%s", st.message);
    for (uint32_t i = 0; i < 14; i++) {
        rg_status_clear(&st);
        rg_seq_reset(seq);
        const uint32_t n = 3 + i % 9;
        const rg_code rc =
            rg_core_eval(core, seq, b.ids, n, 1 + i % 4, RG_WANT_ALL, &sink, NULL, &st);
        if (rc == RG_OK) {
            expect_same(&got, &want, n, "between failures");
            n_good++;
        } else {
            assert_int_equal(rc, RG_IO);
            assert_non_null(strstr(st.message, "expert"));
            n_failed++;
        }
    }
    print_message("%u failed, %u did not\n", n_failed, n_good);
    assert_true(n_failed > 0 && n_good > 0);
    assert_int_equal(rg_core_gpu_complaints(core), 0);
    rg_seq_destroy(seq);
    rg_core_destroy(core);
    rg_free(want.rows);
    rg_free(got.rows);
    close_bench(&b);
}

/* Lists that are handed over before their experts are known have to end without them. */
static void faults_of_the_drive(void **state) {
    (void)state;
    fail_reads(RG_GPU_ARENA_STAGED);
    fail_reads(RG_GPU_ARENA_MAPPED);
}

typedef struct loser {
    rg_gpu *gpu;
    long after_us;
} loser;

static void *lose_later(void *arg) {
    const loser *l = arg;
    nanosleep(&(struct timespec){.tv_nsec = l->after_us * 1000}, NULL);
    rg_gpu_lose(l->gpu);
    return NULL;
}

/* The device goes at some time while tokens are computed and experts are copied. True when that was
 * noticed. */
static bool lose_in_flight(const bench *b, rg_gpu_arena arena, long after_us) {
    const arm a = {arena, 0, false, 4};
    const rg_stream_faults slow = {.seed = 2, .stall_permille = 500, .stall_ms_max = 2};
    rg_core_options o = arm_options(b, &a);
    o.io.faults = &slow;
    rg_core *core = open_core(b, &o);
    rg_seq *seq = NULL;
    rg_status st = {0};
    sheet s = new_sheet(b);
    const rg_logits_sink sink = {.row = keep, .user = &s};
    if (rg_seq_create(&seq, core, &(rg_seq_options){.n_ctx = N_CTX}, &st) != RG_OK)
        fail_msg("%s", st.message);
    loser l = {core->gpu->gpu, after_us};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, lose_later, &l), 0);
    rg_code rc = RG_OK;
    for (uint32_t i = 0; rc == RG_OK && i < 200; i++) {
        rg_seq_reset(seq);
        rc = rg_core_eval(core, seq, b->ids, b->n, 3, RG_WANT_ALL, &sink, NULL, &st);
    }
    pthread_join(thread, NULL);
    if (rc != RG_OK) {
        assert_int_equal(rc, RG_IO);
        assert_non_null(strstr(st.message, "was lost"));
    }
    rg_status_clear(&st);
    rg_seq_reset(seq);
    assert_int_equal(one_token(core, seq, b, 1, &s, &st), RG_IO); /* and ever after */
    assert_non_null(strstr(st.message, "was lost"));
    rg_seq_destroy(seq);
    const char *first = NULL;
    if (rg_gpu_complaints(core->gpu->gpu, &first)) fail_msg("complaint: %s", first);
    rg_core_destroy(core);
    rg_free(s.rows);
    return rc != RG_OK;
}

static void lost_device(void **state) {
    (void)state;
    bench b = open_bench("a-mix.gguf", "a-mix", 9);
    for (long i = 0; i < 3; i++)
        assert_true(lose_in_flight(&b, RG_GPU_ARENA_STAGED, 3000 + i * 41000));
    for (long i = 0; i < 2; i++)
        assert_true(lose_in_flight(&b, RG_GPU_ARENA_MAPPED, 5000 + i * 37000));
    close_bench(&b);
}

/* ---- choice ---------------------------------------------------------------------------------- */

/* What is chosen when nothing is said, on devices as described. */
static void choice(void **state) {
    (void)state;
    static const struct {
        const char *kind;
        bool mappable;
        uint64_t device_bytes;
        const char *want;
    } cases[] = {{"discrete", true, (uint64_t)1 << 40, "mapped"},
                 {"discrete", false, (uint64_t)1 << 40, "staged"},
                 {"discrete", false, (uint64_t)1 << 20, "host"}};
    bench b = open_bench("a-mix.gguf", "a-mix", 4);
    const rg_core_options o = gpu_options(16);
    rg_core *core = open_core(&b, &o);
    rg_gpu_info *info = (rg_gpu_info *)(uintptr_t)rg_gpu_get_info(core->gpu->gpu), opened;
    rg_status st = {0};
    sheet want = new_sheet(&b), got = new_sheet(&b);
    eval(core, &b, 3, 1, &want);
    core->opt.arena_bytes = arena_of(&b, b.model->hp.n_expert_used + 3);
    memcpy(&opened, info, sizeof opened);
    for (size_t i = 0; i < RG_ARRAY_LEN(cases); i++) {
        info->kind = cases[i].kind;
        info->mappable = cases[i].mappable;
        info->device_bytes = cases[i].device_bytes;
        if (rg_experts_open(core, &st) != RG_OK || rg_experts_start(core, &st) != RG_OK)
            fail_msg("%s", st.message);
        assert_string_equal(rg_core_gpu_arena(core), cases[i].want);
        eval(core, &b, 3, 1, &got);
        expect_same(&got, &want, b.n, cases[i].want);
        rg_experts_close(core);
        rg_gpu_arena_close(core->gpu);
        assert_string_equal(rg_core_gpu_arena(core), "");
    }
    memcpy(info, &opened, sizeof opened);
    assert_int_equal(rg_core_gpu_complaints(core), 0);
    rg_core_destroy(core);
    rg_free(want.rows);
    rg_free(got.rows);
    close_bench(&b);
}

int main(void) {
    if (!gpu_here()) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(charter),
        cmocka_unit_test(drafts),
        cmocka_unit_test(faults_of_the_drive),
        cmocka_unit_test(choice),
        cmocka_unit_test(lost_device), /* last: the device goes with its kernels */
    };
    return failed_or_leaked(cmocka_run_group_tests(tests, NULL, gpu_kept_release));
}
