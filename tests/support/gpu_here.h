/* Whether a test has a device. */
#ifndef RG_SUPPORT_GPU_HERE_H
#define RG_SUPPORT_GPU_HERE_H

#include <stdio.h>

#include "kernels/gpu/gpu.h"
#include "support/gpu_kept.h"

/* Whether there is a device; without one a test program returns 77. */
static inline bool gpu_here(void) {
    rg_gpu_info info[RG_GPU_DEVICES_MAX];
    uint32_t n = 0;
    if (rg_gpu_enumerate(info, RG_GPU_DEVICES_MAX, &n, NULL) == RG_OK && n > 0 && info[0].usable)
        return true;
    fprintf(stderr, "skipped: no usable GPU\n");
    return false;
}

#endif
