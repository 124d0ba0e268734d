/* The table of measured shapes: written, read again, chosen from; one that is damaged, cut, of
 * another device or with shapes that no kernel takes is refused as a whole. Needs no device.
 */
#include "kernels/gpu/gpu_tiles.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <xxhash.h>

#include "support/released.h"

static char path[64];
static const rg_gpu_info device = {
    .vendor_id = 0x10DE, .device_id = 0x2335, .driver_version = 0x91234567, .matrix = true};

static rg_gpu_tile sample[] = {
    {.key = {RG_GPU_OP_ROWS, RG_TYPE_Q8_0, false, false, 2560, 640, 1, 0}, .group_rows = 4},
    {.key = {RG_GPU_OP_ROWS, RG_TYPE_Q8_0, false, false, 2560, 640, 4, 0},
     .group_rows = 2,
     .loop = true},
    {.key = {RG_GPU_OP_ROWS, RG_TYPE_Q8_0, false, false, 2560, 640, 2, 48}, .group_rows = 4},
    {.key = {RG_GPU_OP_SLOTS, RG_TYPE_IQ2_XS, true, false, 2560, 512, 1, 0}, .group_rows = 1},
    {.key = {RG_GPU_OP_TILES, RG_TYPE_Q6_K, false, false, 2560, 640, 512, 0},
     .side = 8,
     .depth = 4},
    {.key = {RG_GPU_OP_TILES, RG_TYPE_Q6_K, false, false, 2560, 640, 64, 0}, .side = 2},
    {.key = {RG_GPU_OP_EXPERTS, RG_TYPE_IQ2_XS, false, false, 2560, 640, 5120, 0}, .side = 1},
};
static const rg_gpu_tiles table = {sample, (uint32_t)RG_ARRAY_LEN(sample)};

static rg_code read_table(rg_gpu_tiles *out, const rg_gpu_info *info) {
    rg_status st = {0};
    const rg_code rc = rg_gpu_tiles_read(out, path, info, &st);
    if (rc != RG_OK) {
        assert_true(st.message[0] != 0);
        assert_int_equal(out->n, 0);
        assert_null(out->all);
    }
    return rc;
}

static void write_table(const rg_gpu_tiles *t) {
    rg_status st = {0};
    if (rg_gpu_tiles_write(t, path, &device, &st) != RG_OK) fail_msg("%s", st.message);
}

static void round_trip(void **state) {
    (void)state;
    rg_gpu_tiles got;
    remove(path);
    assert_int_equal(read_table(&got, &device), RG_IO);
    write_table(&table);
    assert_int_equal(read_table(&got, &device), RG_OK);
    assert_int_equal(got.n, table.n);
    for (uint32_t i = 0; i < got.n; i++) {
        const rg_gpu_tile *a = &got.all[i], *b = &sample[i];
        assert_true(rg_gpu_tile_same(&a->key, &b->key));
        assert_int_equal(a->group_rows, b->group_rows);
        assert_int_equal(a->side, b->side);
        assert_int_equal(a->depth, b->depth);
        assert_int_equal(a->loop, b->loop);
        assert_int_equal(a->no_matrix, b->no_matrix);
    }
    rg_gpu_tiles_deinit(&got);
    write_table(&(rg_gpu_tiles){0});
    assert_int_equal(read_table(&got, &device), RG_OK);
    assert_int_equal(got.n, 0);
    rg_gpu_tiles_deinit(&got);
}

static void other_devices(void **state) {
    (void)state;
    rg_gpu_tiles got;
    rg_gpu_info other[3] = {device, device, device};
    other[0].vendor_id++;
    other[1].device_id++;
    other[2].driver_version++;
    write_table(&table);
    for (size_t i = 0; i < RG_ARRAY_LEN(other); i++)
        assert_int_equal(read_table(&got, &other[i]), RG_UNSUPPORTED);
}

static char *slurp(size_t *n) {
    char *data = NULL;
    if (rg_file_slurp(&data, n, path, (size_t)1 << 20, NULL) != RG_OK) {
        fail_msg("%s cannot be read", path);
        abort(); /* not reached: cmocka jumps */
    }
    return data;
}

static void put(const char *data, size_t n) {
    FILE *f = fopen(path, "wb");
    if (!f) {
        fail_msg("%s cannot be written", path);
        abort(); /* not reached: cmocka jumps */
    }
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Each byte changed in its turn, and the file cut behind each: never taken. */
static void damaged(void **state) {
    (void)state;
    size_t n = 0;
    rg_gpu_tiles got;
    write_table(&table);
    char *data = slurp(&n);
    for (size_t i = 0; i < n; i++) {
        data[i] ^= 1;
        put(data, n);
        assert_int_equal(read_table(&got, &device), RG_FORMAT);
        data[i] ^= 1;
        put(data, i);
        assert_int_equal(read_table(&got, &device), RG_FORMAT);
    }
    rg_free(data);
}

/* With a hash that fits. */
static rg_code read_text(const char *lines) {
    char text[512];
    rg_gpu_tiles got;
    const int n = snprintf(text, sizeof text, "regolith-gpu-tiles 2 10de 2335 91234567 %s", lines);
    assert_true(n > 0 && (size_t)n + 32 < sizeof text);
    const int more = snprintf(text + n, sizeof text - (size_t)n, "hash %016llx\n",
                              (unsigned long long)XXH3_64bits(text, (size_t)n));
    put(text, (size_t)n + (size_t)more);
    const rg_code rc = read_table(&got, &device);
    rg_gpu_tiles_deinit(&got);
    return rc;
}

/* Whole files whose lines no kernel could obey. */
static void unsound(void **state) {
    (void)state;
    static const char *const bad[] = {
        "1\n",                                        /* fewer lines than said */
        "0\nrows q8_0 0 0 64 64 1 0 1 0 0 0 0\n",     /* more */
        "1\nrows q8_0 0 0 64 64 1 0 3 0 0 0 0\n",     /* three rows of a lane */
        "1\nrows q8_0 0 0 64 64 16 0 1 0 0 0 0\n",    /* sixteen columns */
        "1\nrows q8_0 0 0 64 64 1 0 1 2 0 0 0\n",     /* a tile's side */
        "1\nrows q8_0 0 0 0 64 1 0 1 0 0 0 0\n",      /* rows of nothing */
        "1\ntiles q8_0 0 0 64 64 64 0 0 3 0 0 0\n",   /* side 3 */
        "1\ntiles q8_0 0 0 64 64 64 0 0 8 0 0 1\n",   /* side 8 without matrix units */
        "1\ntiles f32 0 0 64 64 64 0 0 8 0 0 0\n",    /* the same: floats have none */
        "1\ntiles q8_0 0 0 64 64 64 0 0 4 5 0 0\n",   /* depth 5 */
        "1\nexperts q8_0 0 0 64 64 64 0 0 3 0 0 0\n", /* side 3 of experts */
        "1\nexperts q8_0 0 0 64 64 64 0 2 4 0 0 0\n", /* rows of a lane in tiles */
        "1\ncolumns q8_0 0 0 64 64 1 0 1 0 0 0 0\n",  /* an op that is not there */
        "1\nrows q9_0 0 0 64 64 1 0 1 0 0 0 0\n",     /* a type */
        "1\nslots q8_0 0 0 64 64 1 8 1 0 0 0 0\n",    /* two matrices of an expert */
        "1\nrows q8_0 1 0 64 64 1 8 1 0 0 0 0\n",     /* of gate and up */
        "1\nrows q8_0 0 0 64 64 1 0 1 0 0 0\n",       /* a word too few */
        "1\nrows q8_0 0 0 64 64 1 0 1 0 0 0 0 0\n",   /* one too many */
        "1\nrows q8_0 0 0 64 64 1 0 -1 0 0 0 0\n",    /* a sign */
        "1\nrows q8_0 0 0 99999999999 64 1 0 1 0 0 0 0\n",
        "4097\n",
        "-1\n",
        "\n"};
    assert_int_equal(read_text("1\nrows q8_0 0 0 64 64 1 0 1 0 0 0 0\n"), RG_OK);
    assert_int_equal(read_text("1\nrows q8_0 0 0 64 64 1 8 1 0 0 0 0\n"), RG_OK);
    assert_int_equal(read_text("1\ntiles q8_0 0 0 64 64 64 0 0 8 4 0 0\n"), RG_OK);
    for (size_t i = 0; i < RG_ARRAY_LEN(bad); i++) {
        if (read_text(bad[i]) != RG_FORMAT) fail_msg("taken: %s", bad[i]);
    }
}

static rg_gpu_product product(uint32_t n_in, uint32_t n_out, uint32_t n) {
    return (rg_gpu_product){.n_in = n_in, .n_out = n_out, .n = n};
}

static void choosing(void **state) {
    (void)state;
    rg_gpu_product p = product(2560, 640, 3); /* as four columns */
    rg_gpu_product_way way = {.type = RG_TYPE_Q8_0};
    assert_true(rg_gpu_tiles_choose(&table, RG_GPU_OP_ROWS, &p, &way));
    assert_int_equal(way.group_rows, 2);
    assert_true(way.loop);
    p.n = 2; /* was measured with a second matrix only */
    way = (rg_gpu_product_way){.type = RG_TYPE_Q8_0};
    assert_false(rg_gpu_tiles_choose(&table, RG_GPU_OP_ROWS, &p, &way));
    assert_int_equal(way.group_rows, 0);
    p.n_out2 = 48;
    assert_true(rg_gpu_tiles_choose(&table, RG_GPU_OP_ROWS, &p, &way));
    assert_int_equal(way.group_rows, 4);
    p.n_out2 = 0;
    p.n = 1;
    way.group_rows = 1; /* the caller's own choice stays */
    assert_true(rg_gpu_tiles_choose(&table, RG_GPU_OP_ROWS, &p, &way));
    assert_int_equal(way.group_rows, 1);
    way = (rg_gpu_product_way){.type = RG_TYPE_Q8_0, .coding = true}; /* another kernel */
    assert_false(rg_gpu_tiles_choose(&table, RG_GPU_OP_ROWS, &p, &way));
    /* Tiles: those of the most columns that the product has. */
    static const struct {
        uint32_t n, side;
    } tiles[] = {{48, 0}, {64, 2}, {511, 2}, {512, 8}, {4000, 8}};
    for (size_t i = 0; i < RG_ARRAY_LEN(tiles); i++) {
        p.n = tiles[i].n;
        way = (rg_gpu_product_way){.type = RG_TYPE_Q6_K};
        assert_int_equal(rg_gpu_tiles_choose(&table, RG_GPU_OP_TILES, &p, &way),
                         tiles[i].side != 0);
        assert_int_equal(way.side, tiles[i].side);
    }
    /* Those of experts are for as many slots, and for experts alone. */
    const rg_gpu_tile_key key = sample[table.n - 1].key;
    rg_gpu_tile_key other = key;
    assert_ptr_equal(rg_gpu_tiles_find(&table, &key), &sample[table.n - 1]);
    other.n = key.n - 1;
    assert_null(rg_gpu_tiles_find(&table, &other));
    other = key;
    other.op = RG_GPU_OP_TILES;
    assert_null(rg_gpu_tiles_find(&table, &other));
}

/* The file of each device has its own name, beside the kernels. */
static void names(void **state) {
    (void)state;
    char *a = rg_gpu_tiles_path("/home/x/.cache/regolith/gpu-kernels.bin", &device, NULL);
    assert_non_null(a);
    assert_string_equal(a, "/home/x/.cache/regolith/gpu-tiles-10de-2335.txt");
    char *b = rg_gpu_tiles_path("gpu-kernels.bin", &device, NULL);
    assert_non_null(b);
    assert_string_equal(b, "gpu-tiles-10de-2335.txt");
    rg_free(a);
    rg_free(b);
}

/* What is proposed can be written and read again; the usual shape comes first. */
static void candidates(void **state) {
    (void)state;
    static const rg_gpu_tile_key keys[] = {
        {RG_GPU_OP_ROWS, RG_TYPE_Q4_K, false, false, 256, 64, 1, 0},
        {RG_GPU_OP_ROWS, RG_TYPE_Q4_K, false, true, 256, 64, 8, 0},
        {RG_GPU_OP_SLOTS, RG_TYPE_IQ3_XXS, true, false, 256, 64, 1, 0},
        {RG_GPU_OP_TILES, RG_TYPE_Q4_K, false, false, 256, 640, 64, 0},
        {RG_GPU_OP_TILES, RG_TYPE_F32, false, false, 256, 640, 64, 0},
        {RG_GPU_OP_EXPERTS, RG_TYPE_IQ3_XXS, false, false, 256, 640, 160, 0}};
    rg_gpu_tile all[RG_GPU_CANDIDATES_MAX];
    for (size_t i = 0; i < RG_ARRAY_LEN(keys); i++) {
        rg_gpu_tiles got;
        const uint32_t n = rg_gpu_tile_candidates(all, &keys[i], &device);
        assert_in_range(n, 4, RG_GPU_CANDIDATES_MAX);
        assert_int_equal(all[0].group_rows + all[0].side + all[0].depth, 0);
        write_table(&(rg_gpu_tiles){all, n});
        assert_int_equal(read_table(&got, &device), RG_OK);
        assert_int_equal(got.n, n);
        rg_gpu_tiles_deinit(&got);
    }
}

int main(void) {
    snprintf(path, sizeof path, "/tmp/rg_gpu_tiles_test_%ld.txt", (long)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip), cmocka_unit_test(other_devices), cmocka_unit_test(damaged),
        cmocka_unit_test(unsound),    cmocka_unit_test(choosing),      cmocka_unit_test(names),
        cmocka_unit_test(candidates)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove(path);
    return failed_or_leaked(failed);
}
