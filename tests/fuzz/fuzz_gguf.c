/* A GGUF header, as the start of a file that ends with it and of one with 64 MiB of data behind. */
#include "fuzz_target.h"

#include "support/gguf_exercise.h"

#define DATA_BYTES (64u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    (void)rg_test_gguf_exercise(data, size, size, NULL);
    (void)rg_test_gguf_exercise(data, size, (uint64_t)size + DATA_BYTES, NULL);
    return 0;
}
