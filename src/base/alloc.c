#include "base/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Relaxed throughout: the counters order nothing, tests set them before threads start. */
static atomic_uint_fast64_t alloc_count;
static atomic_uint_fast64_t fail_at; /* absolute allocation number, 0 = off */
static atomic_bool fail_sticky;
static _Thread_local int guard_depth;

static bool must_fail(void) {
    const uint64_t n = atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed) + 1;
    const uint64_t at = atomic_load_explicit(&fail_at, memory_order_relaxed);
    RG_DASSERT(guard_depth == 0);
    if (at == 0) return false;
    if (n == at) return true;
    return n > at && atomic_load_explicit(&fail_sticky, memory_order_relaxed);
}

void *rg_alloc(size_t count, size_t size, rg_status *st) {
    size_t bytes = 0;
    void *p = NULL;
    /* calloc checks the product too, but a sanitizer's calloc ends the process over it. */
    if (!must_fail() && !__builtin_mul_overflow(count, size, &bytes)) p = calloc(1, bytes + !bytes);
    if (!p) rg_fail(st, RG_NOMEM, "cannot allocate %zu x %zu bytes", count, size);
    return p;
}

void *rg_realloc(void *old, size_t count, size_t size, rg_status *st) {
    size_t bytes = 0;
    void *p = NULL;
    if (!must_fail() && !__builtin_mul_overflow(count, size, &bytes)) {
        p = realloc(old, bytes ? bytes : 1);
    }
    if (!p) rg_fail(st, RG_NOMEM, "cannot allocate %zu x %zu bytes", count, size);
    return p;
}

void *rg_alloc_aligned(size_t align, size_t size, rg_status *st) {
    void *p = NULL;
    if (must_fail() || posix_memalign(&p, align, size ? size : align) != 0) p = NULL;
    if (!p) {
        rg_fail(st, RG_NOMEM, "cannot allocate %zu bytes aligned to %zu", size, align);
        return NULL;
    }
    memset(p, 0, size);
    return p;
}

char *rg_strndup(const char *s, size_t len, rg_status *st) {
    if (len == SIZE_MAX) {
        rg_fail(st, RG_NOMEM, "cannot copy a string of %zu bytes", len);
        return NULL;
    }
    char *p = rg_alloc(len + 1, 1, st);
    if (p && len) memcpy(p, s, len);
    return p;
}

void rg_free(void *p) {
    free(p);
}

void rg_alloc_fail_at(uint64_t n, bool sticky) {
    const uint64_t now = atomic_load_explicit(&alloc_count, memory_order_relaxed);
    atomic_store_explicit(&fail_sticky, sticky, memory_order_relaxed);
    atomic_store_explicit(&fail_at, n ? now + n : 0, memory_order_relaxed);
}

uint64_t rg_alloc_count(void) {
    return atomic_load_explicit(&alloc_count, memory_order_relaxed);
}

void rg_alloc_guard_enter(void) {
    guard_depth++;
}

void rg_alloc_guard_leave(void) {
    RG_ASSERT(guard_depth > 0);
    guard_depth--;
}
