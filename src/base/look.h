/* Waiting without sleep: what a condition variable costs to wake a thread is longer than many reads
 * take. For those who have cores to spare.
 */
#ifndef RG_BASE_LOOK_H
#define RG_BASE_LOOK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

/* Between two looks: a breath for the processor's other thread. */
static inline void rg_look_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Returns when *n is not 0, or after `ns`; whether it is. */
static inline bool rg_look(const atomic_uint *n, uint64_t ns) {
    const uint64_t begin = ns ? rg_now_ns() : 0;
    for (;;) {
        if (atomic_load_explicit(n, memory_order_acquire) != 0) return true;
        if (!ns || rg_now_ns() - begin >= ns) return false;
        rg_look_pause();
    }
}

#endif
