/* Constants of the hashed n-gram memory, derived as spec 4.3 says: multipliers from mix64, table
 * sizes from consecutive primes. Private to the room.
 */
#ifndef RG_FORGE_PLE_CONSTANTS_H
#define RG_FORGE_PLE_CONSTANTS_H

#include "model/model.h"

typedef struct rg_ple_constants {
    uint32_t n_head; /* heads_per_ngram * (ngram - 1) */
    uint64_t mult[RG_NGRAM_MAX];
    uint64_t size[RG_NGRAM_HEADS_MAX], offset[RG_NGRAM_HEADS_MAX];
    uint64_t rows; /* of the table, padded to a multiple of the divisor */
} rg_ple_constants;

/* `vocab` >= 1, 2 <= ngram <= RG_NGRAM_MAX, at most RG_NGRAM_HEADS_MAX heads together. INVALID when
 * the rows exceed RG_PLE_ROWS_MAX. For the first module (q = 0). */
RG_MUST_CHECK rg_code rg_ple_constants_derive(rg_ple_constants *c, uint32_t vocab, uint32_t ngram,
                                              uint32_t heads_per_ngram, uint64_t base,
                                              uint64_t divisor, uint64_t seed, rg_status *st);

/* Rows of the table for the context c[0] (current token) .. c[ngram-1]. rows: [n_head]. */
void rg_ple_constants_rows(const rg_ple_constants *c, uint32_t ngram, const uint64_t *context,
                           uint64_t *rows);

#endif
