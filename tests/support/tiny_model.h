/* The tiny models of tests/data/tiny, for tests of engine and api. A failure here ends the test. */
#ifndef RG_TESTS_TINY_MODEL_H
#define RG_TESTS_TINY_MODEL_H

#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"

#define RG_TINY_PATH_MAX 512

/* Path of a file beside the tiny models, in `out`. */
static inline const char *rg_tiny_path(char out[RG_TINY_PATH_MAX], const char *file) {
    snprintf(out, RG_TINY_PATH_MAX, RG_TEST_DATA "/tiny/%s", file);
    return out;
}

/* The ids of NAME.ids. Release with rg_free. */
static inline int32_t *rg_tiny_ids(const char *name, uint32_t *n) {
    char path[RG_TINY_PATH_MAX], file[64], *text = NULL;
    size_t len = 0;
    rg_status st = {0};
    snprintf(file, sizeof file, "%s.ids", name);
    if (rg_file_slurp(&text, &len, rg_tiny_path(path, file), 1u << 20, &st) != RG_OK) {
        fprintf(stderr, "%s\n", st.message);
        exit(1);
    }
    int32_t *ids = rg_alloc(len / 2 + 1, sizeof *ids, &st);
    if (!ids) exit(1);
    *n = 0;
    for (char *at = text, *end = NULL;; at = end) {
        const long id = strtol(at, &end, 10);
        if (end == at) break;
        ids[(*n)++] = (int32_t)id;
    }
    rg_free(text);
    return ids;
}

#endif
