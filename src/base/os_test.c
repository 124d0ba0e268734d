#include "base/os.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static char folder[64];
static char path[128];

static const char *path_of(const char *name) {
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, size_t size) {
    FILE *f = fopen(path_of(name), "wb");
    assert_non_null(f);
    for (size_t i = 0; i < size; i++)
        fputc((int)(rg_random_u64(3, i) & 0xff), f);
    assert_int_equal(fclose(f), 0);
}

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/rg_os_test_XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    static const char *const names[] = {"file", "fifo", "empty", "pipe", "big", "directory"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        (void)remove(path_of(names[i]));
    return rmdir(folder);
}

static void test_open_refuses(void **state) {
    (void)state;
    rg_file f = {.fd = 5};
    rg_status st = {0};
    assert_int_equal(rg_file_open(&f, path_of("missing"), &st), RG_IO);
    assert_int_equal(f.fd, -1);
    assert_non_null(strstr(st.message, "missing: No such file or directory"));
    assert_int_equal(mkdir(path_of("directory"), 0700), 0);
    rg_status_clear(&st);
    assert_int_equal(rg_file_open(&f, path, &st), RG_INVALID);
    assert_non_null(strstr(st.message, "is a directory, not a regular file"));
    assert_int_equal(mkfifo(path_of("fifo"), 0600), 0);
    rg_status_clear(&st);
    assert_int_equal(rg_file_open(&f, path, &st), RG_INVALID); /* and does not hang */
    assert_non_null(strstr(st.message, "is a special file, not a regular file"));
    assert_int_equal(rg_file_open(&f, "/dev/null", NULL), RG_INVALID);
    assert_int_equal(f.fd, -1);
    rg_file_close(&f);
}

/* Past the page cache, where the file system has such reads; the advice never fails. */
static void test_direct(void **state) {
    (void)state;
    write_file("file", 10000);
    rg_file f = {.fd = 5}, plain;
    rg_status st = {0};
    assert_int_equal(rg_file_open_direct(&f, path_of("missing"), &st), RG_IO);
    assert_int_equal(f.fd, -1);
    rg_status_clear(&st);
    (void)path_of("file");
    assert_int_equal(rg_file_open(&plain, path, NULL), RG_OK);
    unsigned char want[10000];
    assert_int_equal(rg_file_read_at(&plain, want, sizeof want, 0, "file", NULL), RG_OK);
    const rg_code rc = rg_file_open_direct(&f, path, &st);
    if (rc == RG_OK) {
        unsigned char *got = rg_alloc_aligned(RG_DIRECT_ALIGN, (size_t)3 * RG_DIRECT_ALIGN, NULL);
        assert_non_null(got);
        assert_int_equal(f.size_bytes, sizeof want);
        assert_int_equal(pread(f.fd, got, (size_t)3 * RG_DIRECT_ALIGN, 0), (ssize_t)sizeof want);
        assert_memory_equal(got, want, sizeof want);
        rg_free(got);
        rg_file_close(&f);
    } else {
        assert_int_equal(rc, RG_UNSUPPORTED);
        assert_non_null(strstr(st.message, "no direct reads"));
    }
    assert_int_equal(f.fd, -1);
    rg_file_expect_random(&plain);
    rg_file_forget(&plain, 100, 9000);
    assert_int_equal(rg_file_read_at(&plain, want, sizeof want, 0, "file", NULL), RG_OK);
    rg_file_close(&plain);
    assert_int_equal(remove(path), 0);
}

static void test_read_at(void **state) {
    (void)state;
    enum { SIZE = 10000 };
    write_file("file", SIZE);
    rg_file f;
    assert_int_equal(rg_file_open(&f, path, NULL), RG_OK);
    assert_int_equal(f.size_bytes, SIZE);
    unsigned char got[SIZE];
    for (uint64_t i = 0; i < 300; i++) {
        const size_t offset = rg_random_u64(8, i) % SIZE;
        const size_t len = rg_random_u64(9, i) % (SIZE - offset + 1);
        assert_int_equal(rg_file_read_at(&f, got, len, offset, "file", NULL), RG_OK);
        for (size_t j = 0; j < len; j++)
            assert_int_equal(got[j], rg_random_u64(3, offset + j) & 0xff);
    }
    assert_int_equal(rg_file_read_at(&f, NULL, 0, SIZE, "file", NULL), RG_OK);
    rg_file_close(&f);
    assert_int_equal(f.fd, -1);
    rg_file_close(&f);
}

static void test_read_past_end(void **state) {
    (void)state;
    write_file("file", 100);
    rg_file f;
    char got[200];
    assert_int_equal(rg_file_open(&f, path, NULL), RG_OK);
    static const struct {
        size_t len;
        uint64_t offset;
    } beyond[] = {{1, 100},        {101, 0},   {51, 50},       {0, 101},
                  {2, UINT64_MAX}, {50, 1000}, {SIZE_MAX, 50}, {1, (uint64_t)1 << 63}};
    for (size_t i = 0; i < sizeof beyond / sizeof beyond[0]; i++) {
        rg_status st = {0};
        assert_int_equal(rg_file_read_at(&f, got, beyond[i].len, beyond[i].offset, "m", &st),
                         RG_FORMAT);
        assert_non_null(strstr(st.message, "the file has 100"));
    }
    rg_file_close(&f);
}

/* The file loses its tail between open and read. */
static void test_shrinking_file(void **state) {
    (void)state;
    write_file("file", 5000);
    rg_file f;
    char got[5000];
    rg_status st = {0};
    assert_int_equal(rg_file_open(&f, path, NULL), RG_OK);
    assert_int_equal(truncate(path, 1200), 0);
    assert_int_equal(rg_file_read_at(&f, got, 1200, 0, "file", NULL), RG_OK);
    assert_int_equal(rg_file_read_at(&f, got, 4000, 1000, "file", &st), RG_FORMAT);
    assert_string_equal(st.message, "file shrank: 4000 bytes wanted at 1000, 200 came");
    rg_file_close(&f);
    rg_status_clear(&st);
    f = (rg_file){.fd = -1, .size_bytes = 10};
    assert_int_equal(rg_file_read_at(&f, got, 10, 0, "closed", &st), RG_IO);
    assert_true(st.sys_errno != 0);
}

static void test_slurp(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 65535, 65536, 65537, 300000};
    char *data = NULL;
    size_t len = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        write_file("big", sizes[i]);
        assert_int_equal(rg_file_slurp(&data, &len, path, sizes[i], NULL), RG_OK);
        assert_int_equal(len, sizes[i]);
        assert_int_equal(data[len], 0);
        for (size_t j = 0; j < len; j++)
            assert_int_equal((unsigned char)data[j], rg_random_u64(3, j) & 0xff);
        rg_free(data);
        if (sizes[i] == 0) continue;
        rg_status st = {0};
        assert_int_equal(rg_file_slurp(&data, &len, path, sizes[i] - 1, &st), RG_INVALID);
        assert_null(data);
        assert_int_equal(len, 0);
        assert_non_null(strstr(st.message, "is larger than"));
    }
    rg_status st = {0};
    assert_int_equal(rg_file_slurp(&data, &len, path_of("missing"), 10, &st), RG_IO);
    assert_null(data);
    assert_int_equal(rg_file_slurp(&data, &len, folder, 10, NULL), RG_IO);
    assert_null(data);
}

static void test_slurp_torture(void **state) {
    (void)state;
    write_file("big", 300000);
    char *data = NULL;
    size_t len = 0;
    for (uint64_t n = 1;; n++) {
        rg_status st = {0};
        rg_alloc_fail_at(n, false);
        const rg_code rc = rg_file_slurp(&data, &len, path, SIZE_MAX, &st);
        rg_alloc_fail_at(0, false);
        if (rc == RG_OK) {
            assert_true(n > 2);
            break;
        }
        assert_int_equal(rc, RG_NOMEM);
        assert_int_equal(st.code, RG_NOMEM);
        assert_null(data);
    }
    assert_int_equal(len, 300000);
    rg_free(data);
}

static void *feed_fifo(void *arg) {
    const int fd = open(arg, O_WRONLY);
    for (int i = 0; i < 100 && fd >= 0; i++) {
        if (write(fd, "0123456789", 10) != 10) break;
    }
    if (fd >= 0) close(fd);
    return NULL;
}

static void test_slurp_pipe(void **state) {
    (void)state;
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    pthread_t writer;
    assert_int_equal(pthread_create(&writer, NULL, feed_fifo, path), 0);
    char *data = NULL;
    size_t len = 0;
    assert_int_equal(rg_file_slurp(&data, &len, path, 1000, NULL), RG_OK);
    assert_int_equal(pthread_join(writer, NULL), 0);
    assert_int_equal(len, 1000);
    assert_memory_equal(data + 990, "0123456789", 11);
    rg_free(data);
}

static void test_memory(void **state) {
    (void)state;
    const size_t size = (size_t)4 << 20;
    void *p = NULL;
    rg_status st = {0};
    assert_int_equal(rg_mem_map(&p, size, &st), RG_OK);
    assert_int_equal((uintptr_t)p % 4096, 0);
    const char *bytes = p;
    for (size_t i = 0; i < size; i += 1000)
        assert_int_equal(bytes[i], 0);
    memset(p, 1, size);
    rg_mem_unmap(p, size);
    rg_mem_unmap(NULL, 0);
    assert_int_equal(rg_mem_map(&p, SIZE_MAX / 2, &st), RG_NOMEM);
    assert_null(p);
    rg_status_clear(&st);
    rg_alloc_fail_at(1, false);
    assert_int_equal(rg_mem_map(&p, size, &st), RG_NOMEM);
    rg_alloc_fail_at(0, false);
    assert_null(p);
    assert_int_equal(st.code, RG_NOMEM);
}

/* What the system keeps is its own affair; the file must stay as it is. */
static void test_page_cache_drop(void **state) {
    (void)state;
    rg_status st = {0};
    write_file("file", 5000);
    const rg_code rc = rg_page_cache_drop(path, &st);
    assert_true(rc == RG_OK || rc == RG_UNSUPPORTED);
    char *text = NULL;
    size_t len = 0;
    assert_int_equal(rg_file_slurp(&text, &len, path, 10000, NULL), RG_OK);
    assert_int_equal(len, 5000);
    rg_free(text);
    rg_status_clear(&st);
    assert_int_not_equal(rg_page_cache_drop(path_of("missing"), &st), RG_OK);
    assert_non_null(strstr(st.message, "missing"));
}

static void test_machine(void **state) {
    (void)state;
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    assert_in_range(rg_cpu_count(), 1, online > 0 ? online : 1);
    const uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES);
    const uint64_t total = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    assert_true(rg_mem_available_bytes() <= total);
    assert_true(rg_mem_available_bytes() > (uint64_t)1 << 20);
    assert_true(rg_rss_peak_bytes() > (uint64_t)1 << 19);
    const uint64_t before = rg_now_ns();
    usleep(2000);
    assert_true(rg_now_ns() - before >= 2000000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_refuses),    cmocka_unit_test(test_direct),
        cmocka_unit_test(test_read_at),         cmocka_unit_test(test_read_past_end),
        cmocka_unit_test(test_shrinking_file),  cmocka_unit_test(test_slurp),
        cmocka_unit_test(test_slurp_torture),   cmocka_unit_test(test_slurp_pipe),
        cmocka_unit_test(test_memory),          cmocka_unit_test(test_machine),
        cmocka_unit_test(test_page_cache_drop),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
