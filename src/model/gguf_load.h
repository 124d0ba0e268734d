/* Private to model: one shard, from a file or from memory. */
#ifndef RG_GGUF_LOAD_H
#define RG_GGUF_LOAD_H

#include "model/gguf_parts.h"

/* Opens and parses one file. On failure the shard owns nothing. */
RG_MUST_CHECK rg_code rg_gguf_shard_open(rg_gguf_shard *s, const char *path, rg_status *st);
/* Parses a copy of a header in memory. On failure the shard owns nothing. */
RG_MUST_CHECK rg_code rg_gguf_shard_parse(rg_gguf_shard *s, const void *header, size_t header_bytes,
                                          uint64_t file_size, rg_status *st);
void rg_gguf_shard_deinit(rg_gguf_shard *s);

#endif
