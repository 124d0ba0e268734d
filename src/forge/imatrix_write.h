/* regolith imatrix: what an engine collected, as a file (imatrix.h says how it looks). */
#ifndef RG_FORGE_IMATRIX_WRITE_H
#define RG_FORGE_IMATRIX_WRITE_H

#include "regolith.h"

#include "base/base.h"

typedef struct rg_imatrix_info {
    const char *text; /* name of the text */
    uint32_t n_chunk, chunk_size;
    bool overwrite;
} rg_imatrix_info;

/* Tensors of which no row was seen are left out, and experts that saw none are named in the report,
 * which is appended to `out`. */
RG_MUST_CHECK rg_code rg_forge_imatrix_write(const rg_engine *engine, const char *path,
                                             const rg_imatrix_info *info, rg_buf *out,
                                             rg_status *st);

#endif
