/* The header of a GGUF v3 file in the making: metadata, then the tensor table, laid out as the
 * format's writers must (spec A.4). Private to the room; one thread. Every call may fail with
 * NOMEM.
 */
#ifndef RG_FORGE_GGUF_OUT_H
#define RG_FORGE_GGUF_OUT_H

#include "model/model.h"

#define RG_GGUF_OUT_ALIGN 32u

typedef struct rg_gguf_out {
    rg_buf kv, table;
    uint64_t n_kv, n_tensor;
    uint64_t data_bytes; /* of all payloads so far, each padded */
} rg_gguf_out;

void rg_gguf_out_init(rg_gguf_out *g);
void rg_gguf_out_deinit(rg_gguf_out *g);

RG_MUST_CHECK rg_code rg_gguf_out_u16(rg_gguf_out *g, const char *key, uint16_t v, rg_status *st);
RG_MUST_CHECK rg_code rg_gguf_out_u32(rg_gguf_out *g, const char *key, uint32_t v, rg_status *st);
RG_MUST_CHECK rg_code rg_gguf_out_i32(rg_gguf_out *g, const char *key, int32_t v, rg_status *st);
RG_MUST_CHECK rg_code rg_gguf_out_f32(rg_gguf_out *g, const char *key, float v, rg_status *st);
RG_MUST_CHECK rg_code rg_gguf_out_bool(rg_gguf_out *g, const char *key, bool v, rg_status *st);
RG_MUST_CHECK rg_code rg_gguf_out_str(rg_gguf_out *g, const char *key, const char *v,
                                      rg_status *st);
RG_MUST_CHECK rg_code rg_gguf_out_i32s(rg_gguf_out *g, const char *key, const int32_t *v, size_t n,
                                       rg_status *st);
RG_MUST_CHECK rg_code rg_gguf_out_u64s(rg_gguf_out *g, const char *key, const uint64_t *v, size_t n,
                                       rg_status *st);
/* An array of `n` strings; exactly n calls of rg_gguf_out_elem follow. */
RG_MUST_CHECK rg_code rg_gguf_out_strs(rg_gguf_out *g, const char *key, uint64_t n, rg_status *st);
RG_MUST_CHECK rg_code rg_gguf_out_elem(rg_gguf_out *g, const char *s, size_t len, rg_status *st);

/* A record as another file has it. */
RG_MUST_CHECK rg_code rg_gguf_out_copy(rg_gguf_out *g, const rg_gguf_kv *kv, rg_status *st);

/* Adds a tensor to the table; payloads follow in this order, each padded to RG_GGUF_OUT_ALIGN. */
RG_MUST_CHECK rg_code rg_gguf_out_tensor(rg_gguf_out *g, const char *name, rg_type type,
                                         const uint64_t *ne, uint32_t n_dims, uint64_t size_bytes,
                                         rg_status *st);
/* Bytes before the first payload, and of the whole file. */
uint64_t rg_gguf_out_header_bytes(const rg_gguf_out *g);
uint64_t rg_gguf_out_file_bytes(const rg_gguf_out *g);
/* The fixed 24 bytes at the start; kv and table follow, then zeros up to header_bytes. */
void rg_gguf_out_start(const rg_gguf_out *g, uint8_t start[24]);

#endif
