/* A folder of a test's own, checked to be empty at the end. Tests only. */
#ifndef RG_FORGE_TEST_FOLDER_H
#define RG_FORGE_TEST_FOLDER_H

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define TEST_PATH_BYTES 512

typedef struct test_folder {
    char path[TEST_PATH_BYTES];
    char file[TEST_PATH_BYTES + 64]; /* the last one asked for */
} test_folder;

static inline void folder_make(test_folder *f) {
    snprintf(f->path, sizeof f->path, "forge-test-XXXXXX");
    assert_non_null(mkdtemp(f->path));
}

static inline const char *folder_file(test_folder *f, const char *name) {
    snprintf(f->file, sizeof f->file, "%s/%s", f->path, name);
    return f->file;
}

static inline int folder_count(const test_folder *f) {
    DIR *d = opendir(f->path);
    int n = 0;
    assert_non_null(d);
    /* readdir is safe where no two threads share a stream, and this one is local. */
    for (struct dirent *e; (e = readdir(d));) /* NOLINT(concurrency-mt-unsafe) */
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

/* Removes `name` files, then the folder, which must be empty by then. */
static inline void folder_remove(test_folder *f) {
    assert_int_equal(folder_count(f), 0);
    assert_int_equal(rmdir(f->path), 0);
}

#endif
