/* pull: a model from a hub or any URL into the local store, and where a pulled one lies.
 *
 * Names: hf:USER/REPO[:QUANT] or a URL. The store holds USER/REPO/FILE; a URL's file lies in
 * its folder "url".
 */
#ifndef RG_FORGE_PULL_H
#define RG_FORGE_PULL_H

#include "model/model.h"

#define RG_PULL_ENDPOINT "https://huggingface.co"

typedef struct rg_pull_options {
    const char *name;                 /* hf:USER/REPO[:QUANT] or a URL */
    const char *store;                /* folder, made when missing */
    const char *endpoint;             /* NULL = RG_PULL_ENDPOINT */
    const char *token;                /* NULL = none */
    const char *sha256;               /* of a URL's file; NULL = unknown */
    unsigned tries, wait_ms, stall_s; /* as rg_fetch_options */
    rg_progress_fn *progress;
    void *progress_user;
} rg_pull_options;

/* Downloads the GGUF file of the repository whose name holds QUANT, all parts of it; without QUANT
 * there must be only one. The paths are appended to `out`, a line each. */
RG_MUST_CHECK rg_code rg_forge_pull(const rg_pull_options *opt, rg_buf *out, rg_status *st);

/* Path of the first file of a pulled model. INVALID when it is not in the store, or there are
 * several and QUANT does not choose. */
RG_MUST_CHECK rg_code rg_forge_pulled(const char *name, const char *store, rg_buf *out,
                                      rg_status *st);

#endif
