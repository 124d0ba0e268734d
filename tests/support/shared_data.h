/* Tests on data that lies beside the checkout (../shared), not in it. Such a test skips where the
 * data is absent; with RG_REQUIRE_SHARED set to anything but "" or "0", as in CI, it fails there.
 */
#ifndef RG_TESTS_SHARED_DATA_H
#define RG_TESTS_SHARED_DATA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RG_SHARED_DIR RG_SOURCE_DIR "/../shared"

/* 0 when `path` can be read; else says so and gives the status to exit with: 77 (skipped) or 1. */
static inline int shared_data_status(const char *path) {
    if (access(path, R_OK) == 0) return 0;
    const char *require = getenv("RG_REQUIRE_SHARED");
    const int must = require && *require && strcmp(require, "0") != 0;
    fprintf(stderr, "%s: %s is absent\n", must ? "failed" : "skipped", path);
    return must ? 1 : 77;
}

#endif
