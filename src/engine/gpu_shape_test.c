/* Measured shapes of products: whatever the table says, windows have the same bits; a sweep writes
 * a table that the next core obeys, and one that is damaged is passed over.
 */
#include "support/gpu_trunk.h"

#include <unistd.h>

#define CHUNK 16u
static char cache[80];

static rg_core *open_with_cache(const bench *b, uint64_t arena) {
    rg_core_options o = gpu_options(CHUNK);
    o.gpu_cache_path = cache;
    o.arena_bytes = arena;
    return open_core(b, &o);
}

/* Every shape at one end of what there is: few rows of a lane and columns of a tile, or many. */
static void fill_table(rg_gpu_tiles *t, const rg_gpu_noted *noted, const rg_gpu_info *info,
                       bool most) {
    t->n = 0;
    for (uint32_t i = 0; i < noted->n; i++) {
        rg_gpu_tile all[RG_GPU_CANDIDATES_MAX];
        const uint32_t n = rg_gpu_tile_candidates(all, &noted->all[i].key, info);
        t->all[t->n++] = all[most ? n - 1 : 1];
    }
}

static rg_gpu_noted *note(rg_core *core) {
    rg_status st = {0};
    rg_gpu_noted *noted = rg_alloc(1, sizeof *noted, &st);
    if (!noted || rg_gpu_note_products(core, noted, &st) != RG_OK) {
        fail_msg("%s", st.message);
        abort(); /* not reached: cmocka jumps */
    }
    return noted;
}

static void write_table(const rg_core *core, const rg_gpu_noted *noted, bool most) {
    const rg_gpu_info *info = rg_gpu_get_info(core->gpu->gpu);
    rg_status st = {0};
    rg_gpu_tiles t = {.all = rg_alloc(RG_GPU_TILES_MAX, sizeof *t.all, &st)};
    assert_non_null(t.all);
    fill_table(&t, noted, info, most);
    assert_true(t.n > 10);
    if (rg_gpu_tiles_write(&t, rg_core_gpu_tiles_path(core), info, &st) != RG_OK)
        fail_msg("%s", st.message);
    rg_free(t.all);
}

/* All positions but two in one chunk, which products in tiles have shapes for, then one by one. */
static void check(const bench *b, const sheet *want, uint64_t arena, bool shaped,
                  const char *what) {
    sheet got = new_sheet(b);
    rg_core *core = open_with_cache(b, arena);
    assert_int_equal(core->gpu->tiles.n > 0, shaped);
    eval(core, b, CHUNK, 2, &got);
    expect_same(&got, want, b->n, what);
    assert_int_equal(core->gpu->n_shaped > 0, shaped);
    assert_int_equal(rg_core_gpu_complaints(core), 0);
    rg_core_destroy(core);
    rg_free(got.rows);
}

static void damage(const char *path) {
    FILE *f = fopen(path, "r+b");
    if (!f) {
        fail_msg("%s is not there", path);
        abort(); /* not reached: cmocka jumps */
    }
    assert_int_equal(fseek(f, 30, SEEK_SET), 0);
    assert_int_equal(fputc('#', f), '#');
    assert_int_equal(fclose(f), 0);
}

static void any_table_same_bits(void **state) {
    (void)state;
    bench b = open_bench("a-mix.gguf", "a-mix", CHUNK + 2);
    sheet want = new_sheet(&b);
    rg_core *core = open_with_cache(&b, 0);
    assert_int_equal(core->gpu->tiles.n, 0);
    eval(core, &b, CHUNK, 2, &want);
    rg_gpu_noted *noted = note(core);
    write_table(core, noted, false);
    check(&b, &want, arena_of(&b, 9), true, "small shapes, streamed");
    write_table(core, noted, true);
    check(&b, &want, 0, true, "large shapes");
    damage(rg_core_gpu_tiles_path(core));
    rg_core *without = open_with_cache(&b, 0);
    assert_int_equal(without->gpu->tiles.n, 0);
    rg_core_destroy(without);
    assert_int_equal(remove(rg_core_gpu_tiles_path(core)), 0);
    rg_core_destroy(core);
    rg_free(noted);
    rg_free(want.rows);
    close_bench(&b);
}

typedef struct seen {
    uint32_t n, n_tiles, usual;
} seen;

static rg_code see(void *user, const rg_gpu_sweep_row *row, rg_status *st) {
    seen *s = user;
    (void)st;
    s->n++;
    s->usual += row->best_us >= row->usual_us;
    s->n_tiles += strcmp(row->op, "experts") == 0;
    if (strcmp(row->op, "experts") != 0) assert_string_equal(row->op, "slots");
    assert_true(row->usual_us > 0 && row->best_us > 0);
    assert_true(row->best_us <= row->usual_us);
    assert_true(row->n_tried >= 4);
    return RG_OK;
}

/* Whether the tiles of a layer's experts have a shape of the table. */
static bool tiles_shaped(const rg_core *core) {
    rg_gpu_tile tile;
    const bool found = rg_gpu_expert_tile(core, 0, CHUNK, &tile);
    assert_true(tile.side == 1 || tile.side == 2 || tile.side == 4 || tile.side == 8);
    return found;
}

/* A sweep of the experts' products; returns where the table lies. */
static void sweep_experts(rg_core *core, char path[sizeof cache + 40]) {
    rg_status st = {0};
    seen s = {0};
    assert_int_equal(core->gpu->tiles.n, 0);
    assert_false(tiles_shaped(core));
    const uint32_t ops = 1u << RG_GPU_OP_SLOTS | 1u << RG_GPU_OP_EXPERTS;
    if (rg_core_gpu_sweep(core, ops, see, &s, &st) != RG_OK) fail_msg("%s", st.message);
    assert_true(s.n >= 2 + s.n_tiles); /* gate and up, down */
    assert_int_equal(s.n_tiles, 1);
    assert_true(tiles_shaped(core));
    assert_int_equal(core->gpu->tiles.n, s.n);
    assert_int_equal(rg_core_gpu_complaints(core), 0);
    snprintf(path, sizeof cache + 40, "%s", rg_core_gpu_tiles_path(core));
}

/* With the experts in memory, and streamed. */
static void sweep(void **state) {
    (void)state;
    bench b = open_bench("a-f32.gguf", "a-f32", CHUNK + 2);
    char path[sizeof cache + 40];
    sheet want = new_sheet(&b);
    rg_core *core = open_with_cache(&b, 0);
    eval(core, &b, CHUNK, 2, &want);
    sweep_experts(core, path);
    rg_core_destroy(core);
    check(&b, &want, 0, true, "swept");
    assert_int_equal(remove(path), 0);
    core = open_with_cache(&b, arena_of(&b, 5));
    sweep_experts(core, path);
    rg_core_destroy(core);
    assert_int_equal(remove(path), 0);
    rg_free(want.rows);
    close_bench(&b);
}

/* Without a folder there is nowhere to keep a table. */
static void nowhere(void **state) {
    (void)state;
    bench b = open_bench("a-f32.gguf", "a-f32", 4);
    const rg_core_options o = gpu_options(16);
    rg_core *core = open_core(&b, &o);
    rg_status st = {0};
    assert_int_equal(rg_core_gpu_sweep(core, 15, NULL, NULL, &st), RG_INVALID);
    assert_string_equal(rg_core_gpu_tiles_path(core), "");
    rg_core_destroy(core);
    close_bench(&b);
}

int main(void) {
    if (!gpu_here()) return 77;
    snprintf(cache, sizeof cache, "/tmp/rg_gpu_shape_test_%ld.bin", (long)getpid());
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_table_same_bits),
                                       cmocka_unit_test(sweep), cmocka_unit_test(nowhere)};
    const int failed = cmocka_run_group_tests(tests, NULL, gpu_kept_release);
    remove(cache);
    return failed_or_leaked(failed);
}
