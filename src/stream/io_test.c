/* The devices below the scheduler, each by the same contract (io.h): io_uring, pread threads, and
 * both behind the fault wrapper.
 */
#include "stream/io.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define DEPTH        8u
#define PAGE         4096u
#define FILE_BYTES   (64 * PAGE + 100)
#define WAYS         2u
#define MEMORY_BYTES ((size_t)DEPTH * 4 * PAGE)

typedef struct fixture {
    char path[64];
    unsigned char *bytes;
    rg_io_files files;
    unsigned char *memory; /* [DEPTH][4 * PAGE] */
    rg_io *io;
    const char *name;
} fixture;

static bool open_way(fixture *f, uint32_t way, rg_stream_direct direct) {
    const char *path = f->path;
    assert_int_equal(rg_io_files_open(&f->files, &path, 1, direct, NULL), RG_OK);
    f->memory = rg_alloc_aligned(PAGE, MEMORY_BYTES, NULL);
    assert_non_null(f->memory);
    memset(f->memory, 0, MEMORY_BYTES);
    const rg_io_config c = {.files = &f->files,
                            .memory = f->memory,
                            .memory_bytes = MEMORY_BYTES,
                            .block_bytes = 4ull * PAGE,
                            .depth = DEPTH};
    rg_status st = {0};
    const rg_code rc = way ? rg_io_pread_open(&f->io, &c, &f->name, &st)
                           : rg_io_uring_open(&f->io, &c, &f->name, &st);
    if (rc == RG_OK) return true;
    assert_int_equal(way, 0);
    assert_int_equal(rc, RG_UNSUPPORTED);
    assert_null(f->io);
    rg_free(f->memory);
    rg_io_files_close(&f->files);
    return false;
}

static void close_way(fixture *f) {
    rg_io_close(f->io);
    rg_free(f->memory);
    rg_io_files_close(&f->files);
}

static rg_io_op op_at(const fixture *f, uint32_t i, uint64_t page, uint32_t pages) {
    return (rg_io_op){.dst = f->memory + (size_t)i * 4 * PAGE,
                      .offset = page * PAGE,
                      .tag = 100 + i,
                      .bytes = pages * PAGE};
}

static uint32_t reap_all(fixture *f, uint32_t n, int64_t *results) {
    uint32_t got = 0;
    for (uint32_t tries = 0; got < n && tries < 200; tries++) {
        rg_io_done done[DEPTH];
        const uint32_t r = f->io->vtable->reap(f->io, done, DEPTH, 50000000);
        for (uint32_t i = 0; i < r; i++) {
            assert_in_range(done[i].tag, 100, 100 + DEPTH - 1);
            results[done[i].tag - 100] = done[i].result;
        }
        got += r;
    }
    return got;
}

static int set_up(void **state) {
    static fixture f;
    snprintf(f.path, sizeof f.path, "io_test-%d.bin", (int)getpid());
    f.bytes = malloc(FILE_BYTES);
    assert_non_null(f.bytes);
    for (uint32_t i = 0; i < FILE_BYTES; i++)
        f.bytes[i] = (unsigned char)rg_random_u64(3, i);
    FILE *out = fopen(f.path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(f.bytes, 1, FILE_BYTES, out), FILE_BYTES);
    assert_int_equal(fclose(out), 0);
    *state = &f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    unlink(f->path);
    free(f->bytes);
    return 0;
}

static void test_reads(void **state) {
    fixture *f = *state;
    for (uint32_t way = 0; way < 2 * WAYS; way++) {
        if (!open_way(f, way % 2, way < 2 ? RG_DIRECT_AUTO : RG_DIRECT_OFF)) continue;
        assert_int_equal(f->files.n_direct > 0 && way >= 2, false);
        int64_t results[DEPTH];
        for (uint32_t round = 0; round < 20; round++) {
            rg_io_op ops[DEPTH];
            for (uint32_t i = 0; i < DEPTH; i++)
                ops[i] = op_at(f, i, (round * 7 + i * 5) % 60, 1 + i % 4);
            assert_int_equal(f->io->vtable->submit(f->io, ops, DEPTH), DEPTH);
            assert_int_equal(reap_all(f, DEPTH, results), DEPTH);
            for (uint32_t i = 0; i < DEPTH; i++) {
                assert_int_equal(results[i], ops[i].bytes);
                assert_memory_equal(ops[i].dst, f->bytes + ops[i].offset, ops[i].bytes);
            }
        }
        close_way(f);
    }
}

/* The last page is short, the one behind it empty; a timeout is a timeout. */
static void test_end_of_file(void **state) {
    fixture *f = *state;
    for (uint32_t way = 0; way < WAYS; way++) {
        if (!open_way(f, way, RG_DIRECT_AUTO)) continue;
        int64_t results[DEPTH];
        const rg_io_op ops[2] = {op_at(f, 0, 63, 4), op_at(f, 1, 65, 1)};
        rg_io_done done;
        const uint64_t before = rg_now_ns();
        assert_int_equal(f->io->vtable->reap(f->io, &done, 1, 2000000), 0);
        assert_true(rg_now_ns() - before >= 1000000);
        assert_int_equal(f->io->vtable->submit(f->io, ops, 2), 2);
        assert_int_equal(reap_all(f, 2, results), 2);
        assert_int_equal(results[0], PAGE + 100);
        assert_int_equal(results[1], 0);
        assert_memory_equal(ops[0].dst, f->bytes + (size_t)63 * PAGE, PAGE + 100);
        close_way(f);
    }
}

/* A descriptor that went bad gives the system's number, not a crash. */
static void test_bad_descriptor(void **state) {
    fixture *f = *state;
    if (!open_way(f, 1, RG_DIRECT_OFF)) return;
    const int fd = f->files.files[0].fd;
    f->files.files[0].fd = -1;
    int64_t results[DEPTH];
    const rg_io_op op = op_at(f, 0, 0, 1);
    assert_int_equal(f->io->vtable->submit(f->io, &op, 1), 1);
    assert_int_equal(reap_all(f, 1, results), 1);
    assert_int_equal(results[0], -EBADF);
    f->files.files[0].fd = fd;
    close_way(f);
}

/* Closing with reads in flight: none of them writes afterwards (the sanitizers look). */
static void test_close_in_flight(void **state) {
    fixture *f = *state;
    for (uint32_t way = 0; way < WAYS; way++) {
        for (uint32_t round = 0; round < 20; round++) {
            if (!open_way(f, way, RG_DIRECT_AUTO)) break;
            rg_io_op ops[DEPTH];
            for (uint32_t i = 0; i < DEPTH; i++)
                ops[i] = op_at(f, i, i, 4);
            assert_int_equal(f->io->vtable->submit(f->io, ops, DEPTH), DEPTH);
            close_way(f);
        }
    }
}

/* The fate of read n is a function of the seed and n. */
static void test_faults_repeat(void **state) {
    fixture *f = *state;
    int64_t seen[2][64];
    uint32_t n_eio = 0, n_short = 0, n_flip = 0;
    const rg_stream_faults faults = {.seed = 7,
                                     .eio_permille = 200,
                                     .short_permille = 200,
                                     .flip_permille = 200,
                                     .stall_permille = 300,
                                     .stall_ms_max = 2};
    for (uint32_t run = 0; run < 2; run++) {
        assert_true(open_way(f, 1, RG_DIRECT_AUTO));
        rg_io *wrapped;
        assert_int_equal(rg_io_fault_open(&wrapped, f->io, &faults, DEPTH, NULL), RG_OK);
        f->io = wrapped;
        for (uint32_t n = 0; n < 64; n++) {
            int64_t results[DEPTH];
            const rg_io_op op = op_at(f, 0, n % 60, 2);
            assert_int_equal(wrapped->vtable->submit(wrapped, &op, 1), 1);
            assert_int_equal(reap_all(f, 1, results), 1);
            seen[run][n] = results[0];
            n_eio += results[0] == -EIO;
            n_short += results[0] >= 0 && results[0] < (int64_t)2 * PAGE;
            n_flip +=
                results[0] > 0 && memcmp(op.dst, f->bytes + op.offset, (size_t)results[0]) != 0;
        }
        close_way(f);
    }
    assert_memory_equal(seen[0], seen[1], sizeof seen[0]);
    assert_true(n_eio > 0 && n_short > 0 && n_flip > 0);
}

static void test_files(void **state) {
    fixture *f = *state;
    rg_io_files files;
    rg_status st = {0};
    const char *const two[2] = {f->path, "."};
    assert_int_equal(rg_io_files_open(&files, two, 2, RG_DIRECT_AUTO, &st), RG_INVALID);
    assert_non_null(strstr(st.message, "directory"));
    for (uint64_t n = 1; n <= 2; n++) {
        rg_alloc_fail_at(n, false);
        assert_int_equal(rg_io_files_open(&files, two, 1, RG_DIRECT_AUTO, NULL), RG_NOMEM);
        rg_alloc_fail_at(0, false);
    }
    assert_int_equal(rg_io_files_open(&files, two, 1, RG_DIRECT_OFF, NULL), RG_OK);
    assert_int_equal(files.n_direct, 0);
    assert_int_equal(files.files[0].size_bytes, FILE_BYTES);
    rg_io_files_close(&files);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),          cmocka_unit_test(test_end_of_file),
        cmocka_unit_test(test_bad_descriptor), cmocka_unit_test(test_close_in_flight),
        cmocka_unit_test(test_faults_repeat),  cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
