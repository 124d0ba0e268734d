/* The vault gives what it got or nothing: over reopening, damage at any byte, quotas and full
 * disks.
 */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/store.h"

static char folder[] = "vault_test.XXXXXX";
static const uint8_t identity[16] = {1, 2, 3};

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

/* Entries of the folder whose names end on `ending`; removes them where `remove_them`. */
static int count_entries(const char *ending, bool remove_them) {
    DIR *d = opendir(folder);
    int n = 0;
    assert_non_null(d);
    /* readdir is safe where no two threads share a stream, and this one is local. */
    for (struct dirent *e; (e = readdir(d));) { /* NOLINT(concurrency-mt-unsafe) */
        const size_t len = strlen(e->d_name);
        const size_t tail = strlen(ending);
        if (len < tail || strcmp(e->d_name + len - tail, ending) != 0) continue;
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
        if (remove_them) unlinkat(dirfd(d), e->d_name, 0);
    }
    closedir(d);
    return n;
}

static int drop_folder(void **state) {
    (void)state;
    count_entries("", true);
    return rmdir(folder);
}

static rg_vault *open_vault(uint64_t quota) {
    rg_vault *v = NULL;
    rg_status st = {0};
    if (rg_vault_open(&v, folder, quota, identity, &st) != RG_OK) fail_msg("%s", st.message);
    return v;
}

/* Half noise, half zeros, so that both kinds of blocks occur. */
static uint8_t *payload(uint64_t seed, size_t bytes) {
    uint8_t *p = rg_alloc(1, bytes, NULL);
    assert_non_null(p);
    for (size_t i = 0; i < bytes; i++)
        p[i] = (i >> 20) % 2 ? 0 : (uint8_t)rg_random_u64(seed, i);
    return p;
}

static void fill_ids(int32_t *ids, uint32_t n, int32_t first) {
    for (uint32_t i = 0; i < n; i++)
        ids[i] = first + (int32_t)i;
}

static void keep(rg_vault *v, const int32_t *ids, uint32_t n, uint64_t seed, size_t bytes) {
    rg_status st = {0};
    uint8_t *p = payload(seed, bytes);
    if (rg_vault_write(v, RG_VAULT_STATE, ids, n, p, bytes, &st) != RG_OK)
        fail_msg("%s", st.message);
    rg_free(p);
}

static bool holds(rg_vault *v, const int32_t *ids, uint32_t n, uint64_t seed, size_t bytes) {
    uint8_t *got = NULL, *want = payload(seed, bytes);
    uint64_t len = 0;
    const bool ok = rg_vault_read(v, RG_VAULT_STATE, ids, n, &got, &len, NULL) == RG_OK &&
                    len == bytes && memcmp(got, want, bytes) == 0;
    rg_free(got);
    rg_free(want);
    return ok;
}

static void what_is_kept_comes_back(void **state) {
    int32_t ids[100];
    (void)state;
    fill_ids(ids, 100, 5);
    rg_vault *v = open_vault(1u << 30);
    keep(v, ids, 40, 1, 3000000);
    keep(v, ids, 70, 2, 2500001);
    assert_int_equal(rg_vault_find(v, ids, 100, 1000), 70);
    assert_int_equal(rg_vault_find(v, ids, 100, 69), 40);
    assert_int_equal(rg_vault_find(v, ids, 69, 1000), 40);
    assert_int_equal(rg_vault_find(v, ids, 39, 1000), 0);
    ids[50]++;
    assert_int_equal(rg_vault_find(v, ids, 100, 1000), 40);
    ids[50]--;
    rg_vault *second = NULL;
    assert_int_equal(rg_vault_open(&second, folder, 1, identity, NULL), RG_BUSY);
    rg_vault_close(v);
    v = open_vault(1u << 30); /* a restart */
    assert_true(holds(v, ids, 70, 2, 2500001));
    assert_true(holds(v, ids, 40, 1, 3000000));
    rg_vault_forget(v, RG_VAULT_STATE, ids, 40);
    assert_int_equal(rg_vault_find(v, ids, 69, 1000), 0);
    assert_int_equal(rg_vault_find(v, ids, 100, 1000), 70);
    rg_vault_close(v);
    const uint8_t other[16] = {9};
    rg_status st = {0};
    assert_int_equal(rg_vault_open(&v, folder, 1u << 30, other, &st), RG_OK);
    assert_int_equal(rg_vault_find(v, ids, 100, 1000), 0); /* another model's */
    rg_vault_close(v);
}

static void quotas_hold(void **state) {
    int32_t ids[64];
    (void)state;
    rg_vault *v = open_vault(5u << 20);
    for (int32_t k = 0; k < 6; k++) {
        fill_ids(ids, 64, 1000 * (k + 1));
        keep(v, ids, 64, (uint64_t)k, 1500000);
        rg_vault_meters m;
        rg_vault_get_meters(v, &m);
        assert_true(m.bytes <= (5u << 20));
    }
    assert_int_equal(rg_vault_find(v, ids, 64, 64), 64);
    fill_ids(ids, 64, 1000);
    assert_int_equal(rg_vault_find(v, ids, 64, 64), 0); /* the oldest went */
    uint8_t *p = payload(3, 12000000);
    assert_int_equal(rg_vault_write(v, RG_VAULT_STATE, ids, 64, p, 12000000, NULL), RG_INVALID);
    rg_free(p);
    assert_int_equal(rg_vault_find(v, ids, 64, 64), 0);
    rg_vault_close(v);
}

/* States and rows of the same tokens are two things. */
static void kinds_stay_apart(void **state) {
    int32_t ids[80];
    uint8_t *got = NULL;
    uint64_t len = 0;
    rg_status st = {0};
    (void)state;
    fill_ids(ids, 80, 300000);
    rg_vault *v = open_vault(1u << 30);
    uint8_t *rows = payload(8, 5000);
    assert_false(rg_vault_has(v, RG_VAULT_ROWS, ids, 60));
    if (rg_vault_write(v, RG_VAULT_ROWS, ids, 60, rows, 5000, &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
    assert_true(rg_vault_has(v, RG_VAULT_ROWS, ids, 60));
    assert_false(rg_vault_has(v, RG_VAULT_STATE, ids, 60));
    assert_int_equal(rg_vault_find(v, ids, 80, 80), 0); /* rows alone are no state */
    keep(v, ids, 60, 9, 4000);
    rg_vault_close(v);
    v = open_vault(1u << 30);
    assert_true(holds(v, ids, 60, 9, 4000));
    rg_vault_forget(v, RG_VAULT_STATE, ids, 60);
    assert_int_equal(rg_vault_find(v, ids, 80, 80), 0);
    assert_int_equal(rg_vault_read(v, RG_VAULT_ROWS, ids, 60, &got, &len, NULL), RG_OK);
    assert_int_equal(len, 5000);
    assert_memory_equal(got, rows, 5000);
    rg_free(got);
    rg_free(rows);
    rg_vault_close(v);
}

/* What is asked for counts as used and outlives the rest. */
static void what_is_used_stays(void **state) {
    int32_t ids[64], first[64];
    (void)state;
    rg_vault *v = open_vault(5u << 20);
    fill_ids(first, 64, 700000);
    keep(v, first, 64, 1, 1500000);
    for (int32_t k = 1; k < 8; k++) {
        fill_ids(ids, 64, 700000 + 1000 * k);
        assert_true(rg_vault_has(v, RG_VAULT_STATE, first, 64));
        keep(v, ids, 64, (uint64_t)k, 1500000);
    }
    assert_true(holds(v, first, 64, 1, 1500000));
    rg_vault_close(v);
}

static void entry_path(const int32_t *ids, uint32_t n, char *out, size_t cap) {
    char line[128];
    (void)ids;
    (void)n;
    snprintf(line, sizeof line, "ls -t %s/*.rgs", folder);
    FILE *f = popen(line, "r");
    assert_non_null(f);
    assert_non_null(fgets(out, (int)cap, f));
    out[strcspn(out, "\n")] = 0;
    pclose(f);
}

static void damage_is_found_and_removed(void **state) {
    int32_t ids[30];
    char path[256];
    (void)state;
    rg_vault *v = open_vault(1u << 30);
    for (uint32_t trial = 0; trial < 60; trial++) {
        fill_ids(ids, 30, 50000 + 100 * (int32_t)trial);
        keep(v, ids, 30, trial, 40000);
        entry_path(ids, 30, path, sizeof path);
        struct stat info;
        assert_int_equal(stat(path, &info), 0);
        const off_t at = (off_t)(rg_random_u64(77, trial) % (uint64_t)info.st_size);
        if (trial % 3 == 0) {
            assert_int_equal(truncate(path, at), 0);
        } else {
            const int fd = open(path, O_RDWR);
            uint8_t byte = 0;
            assert_int_equal(pread(fd, &byte, 1, at), 1);
            byte ^= (uint8_t)(1u << trial % 8);
            assert_int_equal(pwrite(fd, &byte, 1, at), 1);
            close(fd);
        }
        if (holds(v, ids, 30, trial, 40000)) fail_msg("damage at %lld passed", (long long)at);
        assert_int_equal(access(path, F_OK), -1);
        assert_int_equal(rg_vault_find(v, ids, 30, 30), 0);
    }
    rg_vault_close(v);
}

static void a_full_disk_is_harmless(void **state) {
    int32_t ids[30];
    (void)state;
    rg_vault *v = open_vault(1u << 30);
    fill_ids(ids, 30, 900000);
    keep(v, ids, 20, 4, 100000);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 200000;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    uint8_t *p = payload(5, 900000);
    rg_status st = {0};
    const rg_code rc = rg_vault_write(v, RG_VAULT_STATE, ids, 30, p, 900000, &st);
    setrlimit(RLIMIT_FSIZE, &old);
    rg_free(p);
    assert_int_equal(rc, RG_IO);
    assert_int_equal(rg_vault_find(v, ids, 30, 30), 20);
    assert_true(holds(v, ids, 20, 4, 100000));
    assert_int_equal(count_entries(".part", false), 0);
    rg_vault_close(v);
}

/* Killed at a random moment of its writing, again and again: what is found afterwards is whole. */
static void a_killed_writer_leaves_only_whole_entries(void **state) {
    int32_t ids[50];
    (void)state;
    for (uint32_t trial = 0; trial < 12; trial++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            rg_vault *v = open_vault(1u << 30);
            for (uint32_t n = 10;; n = n < 49 ? n + 1 : 10) {
                fill_ids(ids, 50, 2000000);
                keep(v, ids, n, n, 2200000);
            }
        }
        usleep(3000 + (useconds_t)(rg_random_u64(3, trial) % 60000));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        rg_vault *v = open_vault(1u << 30);
        assert_int_equal(count_entries(".part", false), 0);
        fill_ids(ids, 50, 2000000);
        for (uint32_t n = 49; n >= 10;) {
            const uint32_t found = rg_vault_find(v, ids, 50, n);
            if (!found) break;
            assert_true(holds(v, ids, found, found, 2200000));
            n = found - 1;
        }
        rg_vault_close(v);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_kept_comes_back),
        cmocka_unit_test(quotas_hold),
        cmocka_unit_test(kinds_stay_apart),
        cmocka_unit_test(what_is_used_stays),
        cmocka_unit_test(damage_is_found_and_removed),
        cmocka_unit_test(a_full_disk_is_harmless),
        cmocka_unit_test(a_killed_writer_leaves_only_whole_entries),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
