/* Monotonic time. */
#ifndef RG_BASE_CLOCK_H
#define RG_BASE_CLOCK_H

#include <stdint.h>

/* Nanoseconds since an arbitrary start; never goes back. */
uint64_t rg_now_ns(void);

#endif
