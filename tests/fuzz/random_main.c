/* Feeds random byte strings to a fuzz target: the model test that runs with every compiler.
 *   NAME_random [first] [count]      input i is a function of i alone
 */
#include "fuzz_target.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"

#define INPUT_BYTES_MAX 2048u

int main(int argc, char **argv) {
    const uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    const uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000;
    uint8_t data[INPUT_BYTES_MAX];
    for (uint64_t i = first; i < first + count; i++) {
        const size_t size = rg_random_u64(i, 0) % INPUT_BYTES_MAX;
        for (size_t k = 0; k < size; k++)
            data[k] = (uint8_t)rg_random_u64(i, 1 + k);
        (void)LLVMFuzzerTestOneInput(data, size); /* a broken promise aborts */
    }
    printf("%llu random inputs\n", (unsigned long long)count);
    return 0;
}
