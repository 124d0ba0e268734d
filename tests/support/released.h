/* For tests that run without the leak checker. Include after base/base.h. */
#ifndef RG_TESTS_RELEASED_H
#define RG_TESTS_RELEASED_H

#include <stdio.h>

/* `failed`, the count of failed tests; 1 when all passed but our own memory was not released. */
static inline int failed_or_leaked(int failed) {
    if (rg_alloc_live_bytes() == 0) return failed;
    fprintf(stderr, "%llu bytes are not released\n", (unsigned long long)rg_alloc_live_bytes());
    return failed ? failed : 1;
}

#endif
