/* The file of compiled kernels: written at the end, read at the next start; one that is damaged,
 * cut or of another device is left alone, and the kernels give the same bits in any case.
 */
#include <stdio.h>
#include <unistd.h>

#include <xxhash.h>

#include "kernels/gpu_check.h"
#include "support/released.h"

#define N      1024u
#define HEAD   24u /* ours: mark, length, hash; the driver's data follow */
#define VENDOR (HEAD + 8u)

static char path[64];

/* Opens a device with the file, runs a kernel, closes it again: the file is written. */
static rg_gpu_cache use(float y[N]) {
    gpu_check c = {0};
    rg_status st = {0};
    const rg_gpu_options opt = {.device = -1, .validate = true, .cache_path = path};
    if (rg_gpu_open(&c.gpu, &opt, &st) != RG_OK ||
        rg_gpu_list_create(&c.list, c.gpu, &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
    const rg_gpu_cache found = rg_gpu_cache_found(c.gpu);
    float x[2 * N];
    for (size_t i = 0; i < RG_ARRAY_LEN(x); i++)
        x[i] = (float)i / 300.0f - 3.0f;
    rg_gpu_buffer b = gpu_filled(&c, x, sizeof x);
    const rg_gpu_silu_mul_args a = {.g = b.address, .u = b.address + N * sizeof(float), .n = N};
    rg_gpu_list_begin(c.list, false);
    rg_gpu_silu_mul(c.list, &a, 1);
    gpu_run_list(&c);
    gpu_fetch(&c, &b, y, N * sizeof(float));
    assert_int_equal(rg_gpu_kernels(c.gpu), 1);
    rg_gpu_buffer_destroy(c.gpu, &b);
    gpu_check_close(&c);
    return found;
}

static uint8_t *slurp(size_t *n) {
    char *data = NULL;
    rg_status st = {0};
    if (rg_file_slurp(&data, n, path, (size_t)1 << 30, &st) != RG_OK) fail_msg("%s", st.message);
    assert_true(*n >= HEAD + 32);
    return (uint8_t *)data;
}

static void put(const uint8_t *data, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Uses the file [n] of `data`; afterwards there is a sound one again. */
static void expect(const uint8_t *data, size_t n, rg_gpu_cache want, const float *y) {
    float got[N];
    put(data, n);
    assert_int_equal(use(got), want);
    assert_memory_equal(got, y, sizeof got);
    assert_int_equal(use(got), RG_GPU_CACHE_USED);
}

/* As the file has it of the driver's data, so that a change of them looks sound. */
static void seal(uint8_t *data, size_t n) {
    const uint64_t h = XXH3_64bits(data + HEAD, n - HEAD);
    memcpy(data + 16, &h, sizeof h);
}

static void kept_and_judged(void **state) {
    (void)state;
    float y[N], again[N];
    size_t n = 0;
    assert_int_equal(use(y), RG_GPU_CACHE_NONE);
    assert_int_equal(use(again), RG_GPU_CACHE_USED);
    assert_memory_equal(again, y, sizeof y);
    uint8_t *data = slurp(&n);
    data[n - 1] ^= 1; /* in the driver's data */
    expect(data, n, RG_GPU_CACHE_DAMAGED, y);
    data[n - 1] ^= 1;
    expect(data, n, RG_GPU_CACHE_USED, y);
    data[0] ^= 0x20; /* the mark */
    expect(data, n, RG_GPU_CACHE_DAMAGED, y);
    data[0] ^= 0x20;
    expect(data, n - 1, RG_GPU_CACHE_DAMAGED, y); /* cut */
    expect(data, 11, RG_GPU_CACHE_DAMAGED, y);
    expect(data, 0, RG_GPU_CACHE_DAMAGED, y);
    data[VENDOR] ^= 1;
    seal(data, n);
    expect(data, n, RG_GPU_CACHE_FOREIGN, y);
    data[VENDOR] ^= 1;
    data[HEAD + 20] ^= 1; /* of another build of the driver */
    seal(data, n);
    expect(data, n, RG_GPU_CACHE_FOREIGN, y);
    rg_free(data);
}

/* A folder that is not there is no failure. */
static void nowhere(void **state) {
    (void)state;
    float y[N];
    char own[sizeof path];
    memcpy(own, path, sizeof own);
    snprintf(path, sizeof path, "/nonexistent/folder/gpu-kernels.bin");
    assert_int_equal(use(y), RG_GPU_CACHE_NONE);
    assert_int_equal(use(y), RG_GPU_CACHE_NONE);
    memcpy(path, own, sizeof path);
}

int main(void) {
    if (!gpu_check_here()) return 77;
    snprintf(path, sizeof path, "/tmp/rg_gpu_cache_test_%ld.bin", (long)getpid());
    const struct CMUnitTest tests[] = {cmocka_unit_test(kept_and_judged),
                                       cmocka_unit_test(nowhere)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove(path);
    return failed_or_leaked(failed);
}
