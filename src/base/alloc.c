#include "base/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"

/* Relaxed throughout: the counters order nothing, tests set them before threads start. */
static atomic_uint_fast64_t alloc_count;
static atomic_uint_fast64_t fail_at; /* absolute allocation number, 0 = off */
static atomic_bool fail_sticky;
static atomic_uint_fast64_t live_bytes;
static atomic_uint_fast64_t peak_bytes;
static _Thread_local int guard_depth;

static void count_in(const void *p) {
    if (!p) return;
    const uint64_t bytes = rg_heap_block_bytes(p);
    const uint64_t live =
        atomic_fetch_add_explicit(&live_bytes, bytes, memory_order_relaxed) + bytes;
    uint64_t peak = atomic_load_explicit(&peak_bytes, memory_order_relaxed);
    while (live > peak && !atomic_compare_exchange_weak_explicit(
                              &peak_bytes, &peak, live, memory_order_relaxed, memory_order_relaxed))
        ;
}

static void count_out(uint64_t bytes) {
    atomic_fetch_sub_explicit(&live_bytes, bytes, memory_order_relaxed);
}

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
    count_in(p);
    if (!p) rg_fail(st, RG_NOMEM, "cannot allocate %zu x %zu bytes", count, size);
    return p;
}

void *rg_realloc(void *old, size_t count, size_t size, rg_status *st) {
    size_t bytes = 0;
    void *p = NULL;
    if (!must_fail() && !__builtin_mul_overflow(count, size, &bytes)) {
        const uint64_t old_bytes = old ? rg_heap_block_bytes(old) : 0;
        p = realloc(old, bytes ? bytes : 1);
        count_in(p); /* first: the system may have held both for a moment */
        if (p) count_out(old_bytes);
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
    count_in(p);
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
    if (!p) return;
    count_out(rg_heap_block_bytes(p));
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

uint64_t rg_alloc_live_bytes(void) {
    return atomic_load_explicit(&live_bytes, memory_order_relaxed);
}

uint64_t rg_alloc_peak_bytes(void) {
    return atomic_load_explicit(&peak_bytes, memory_order_relaxed);
}

void rg_alloc_peak_reset(void) {
    atomic_store_explicit(&peak_bytes, rg_alloc_live_bytes(), memory_order_relaxed);
}

void rg_alloc_guard_enter(void) {
    guard_depth++;
}

void rg_alloc_guard_leave(void) {
    RG_ASSERT(guard_depth > 0);
    guard_depth--;
}
