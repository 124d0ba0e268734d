/* Everything that reads a header, over one header in memory. Used by the fuzzer and the mutation
 * test: whatever the bytes are, the result is an error with one line or a model that can be read.
 */
#ifndef RG_TEST_GGUF_EXERCISE_H
#define RG_TEST_GGUF_EXERCISE_H

#include "base/base.h"

/* RG_OK if the header loaded; `*described` (may be NULL) tells whether it is a valid model too.
 * Contradictions between what the library promises and what it does end the process. */
rg_code rg_test_gguf_exercise(const void *data, size_t size, uint64_t file_size, bool *described);

#endif
