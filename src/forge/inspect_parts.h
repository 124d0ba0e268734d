/* Private to forge: the parts of the text of `inspect`. */
#ifndef RG_INSPECT_PARTS_H
#define RG_INSPECT_PARTS_H

#include "forge/forge.h"

/* Elements of a tensor. */
uint64_t rg_inspect_elems(const rg_tensor *t);
/* Sections about a described model: shape, experts, where the bytes and parameters are. */
RG_MUST_CHECK rg_code rg_inspect_model(const rg_gguf *g, const rg_model *m, rg_buf *out,
                                       rg_status *st);

#endif
