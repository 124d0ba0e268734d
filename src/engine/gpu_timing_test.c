/* The trunk on a GPU while experts come late, fail and come short: the same bits.
 * gpu_timing_test [RUNS [FIRST]]: runs FIRST to RUNS - 1 of the series.
 */
#include "support/gpu_trunk.h"

/* Runs [0], [1] - 1; the long test asks for 20. */
static uint32_t timing_runs[2] = {0, 2};

/* Reads that come late, fail and come short, differently each time: the same bits. */
static void timing(void **state) {
    (void)state;
    bench b = open_bench("a-mix.gguf", "a-mix", 20);
    sheet want = new_sheet(&b), got = new_sheet(&b);
    rg_core_options o = gpu_options(8);
    rg_core *core = open_core(&b, &o);
    eval(core, &b, 8, 0, &want);
    rg_core_destroy(core);
    for (uint32_t i = timing_runs[0]; i < timing_runs[1]; i++) {
        const rg_stream_faults f = {.seed = 100 + i,
                                    .eio_permille = 20,
                                    .short_permille = 50,
                                    .stall_permille = 300,
                                    .stall_ms_max = 1 + i % 5};
        char what[64];
        o = gpu_options(i % 2 ? 8 : 20);
        o.arena_bytes = arena_of(&b, b.model->hp.n_expert_used + 1 + 3 * (i % 7));
        o.split_off = i % 3 == 2;
        o.gpu_arena = i % 2 ? RG_GPU_ARENA_STAGED : RG_GPU_ARENA_AUTO;
        o.io.lookahead = (int32_t)(i % 4) - 1;
        o.io.faults = &f;
        core = open_core(&b, &o);
        eval(core, &b, o.chunk, i % 2 ? 10 : 4, &got);
        snprintf(what, sizeof what, "run %u with late reads", i);
        expect_same(&got, &want, b.n, what);
        assert_int_equal(rg_core_gpu_complaints(core), 0);
        rg_core_destroy(core);
    }
    rg_free(want.rows);
    rg_free(got.rows);
    close_bench(&b);
}

int main(int argc, char **argv) {
    if (argc > 1) timing_runs[1] = (uint32_t)strtoul(argv[1], NULL, 10);
    if (argc > 2) timing_runs[0] = (uint32_t)strtoul(argv[2], NULL, 10);
    if (!gpu_here()) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(timing),
    };
    return failed_or_leaked(cmocka_run_group_tests(tests, NULL, gpu_kept_release));
}
