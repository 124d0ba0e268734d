/* The one entry point of a fuzz target, called by libFuzzer or by the replay driver. */
#ifndef RG_FUZZ_TARGET_H
#define RG_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>

/* `data` [size] is borrowed for the call. Returns 0. Must give the same result for the same bytes
 * whatever was fed before. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
