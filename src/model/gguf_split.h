/* Private to model: the files of a split model (format notes A.5). */
#ifndef RG_GGUF_SPLIT_H
#define RG_GGUF_SPLIT_H

#include "model/gguf_parts.h"

/* Number of files of the model that `s` belongs to: split.count, 1 if absent, 0 or 1. */
RG_MUST_CHECK rg_code rg_gguf_split_count(const rg_gguf_shard *s, uint32_t *count, rg_status *st);
/* Fills shards [count] of the model that `any`, one of its files, belongs to; takes `any` over in
 * every case. On failure the shards that were opened are left for the caller to close. */
RG_MUST_CHECK rg_code rg_gguf_split_open(rg_gguf_shard *shards, uint32_t count, rg_gguf_shard *any,
                                         rg_status *st);

#endif
