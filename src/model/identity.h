/* Which model a file holds: a fingerprint of metadata, tensor table and samples of the data.
 * Whatever is derived from a model (expert packs, saved states) carries it and is refused
 * elsewhere.
 */
#ifndef RG_MODEL_IDENTITY_H
#define RG_MODEL_IDENTITY_H

#include "model/desc.h"

#define RG_IDENTITY_SAMPLE 4096u /* bytes taken at the first, middle and last of every tensor */

typedef struct rg_hash128 {
    uint64_t low, high;
} rg_hash128;

static inline bool rg_hash128_equal(rg_hash128 a, rg_hash128 b) {
    return a.low == b.low && a.high == b.high;
}

/* XXH3-128 over all metadata but the keys of the split, every tensor's name, type and shape, and
 * samples of every tensor. So it is the same for one file and for its split form, and does not
 * depend on whether the draft block is in use. Not cryptographic. Reads about 12 KiB a tensor. */
RG_MUST_CHECK rg_code rg_model_identity(const rg_gguf *g, const rg_model *m, rg_hash128 *out,
                                        rg_status *st);

#endif
