/* Private to model: the pieces of a gguf object and the parser behind them.
 *
 * One shard is one file: its header bytes, the key/value records that point into them, and its
 * tensor records. Parsing works on the bytes in memory; when a record runs past them but not past
 * the file, the parser stops with `wanted` set, the loader fetches more and parses again. The steps
 * grow fourfold, so all attempts together cost a third more than one.
 */
#ifndef RG_GGUF_PARTS_H
#define RG_GGUF_PARTS_H

#include "model/gguf.h"

#define RG_GGUF_KEY_MAX        65535u
#define RG_GGUF_ALIGN_MIN      8u
#define RG_GGUF_ALIGN_DEFAULT  32u
#define RG_GGUF_KV_BYTES_MIN   14u /* key length, one key byte, type, one value byte */
#define RG_GGUF_INFO_BYTES_MIN 25u /* name length, one byte, n_dims, type, offset */
#define RG_GGUF_STEP_FIRST     65536u
#define RG_GGUF_SHOWN_MAX      64 /* bytes of a key, or of a file's name, in a message */

typedef struct rg_gguf_shard {
    char *path; /* owned; "(memory)" for a parsed range */
    rg_file file;
    uint8_t *header;     /* owned [header_bytes]; kvs point into it */
    size_t header_bytes; /* bytes in memory, at least the whole header */
    uint32_t version;
    uint32_t alignment;
    uint64_t data_begin;
    rg_gguf_kv *kvs; /* owned [n_kv]; string_offsets owned too */
    size_t n_kv;
    rg_map kv_index;    /* key -> index in kvs */
    rg_tensor *tensors; /* owned [n_tensor], in file order */
    size_t n_tensor;
    rg_map tensor_index; /* name -> index in tensors; keys lie in header */
} rg_gguf_shard;

struct rg_gguf {
    rg_gguf_shard *shards; /* [n_shard] */
    uint32_t n_shard;
    uint32_t n_attached; /* of them, the last ones: a draft file */
    rg_tensor *tensors;  /* [n_tensor] of all shards, in order; owned unless one shard owns them */
    size_t n_tensor;
    rg_map index; /* name -> index in tensors, if n_shard > 1 */
};

typedef struct rg_gguf_parser {
    rg_cursor c;        /* the bytes in memory */
    uint64_t limit;     /* bytes that exist: the file's size, at most RG_GGUF_HEADER_MAX */
    uint64_t file_size; /* of the whole file */
    uint64_t wanted;    /* not 0: stopped, because the header has at least this many bytes */
} rg_gguf_parser;

/* Checks that the file holds `len` more bytes, and that they are in memory. A file that is too
 * short: FORMAT with a message. Bytes not in memory: RG_BUSY without one, `wanted` set. */
RG_MUST_CHECK rg_code rg_gguf_need(rg_gguf_parser *p, uint64_t len, const char *what,
                                   rg_status *st);
/* Reads behind rg_gguf_need. */
RG_MUST_CHECK rg_code rg_gguf_take_u32(rg_gguf_parser *p, uint32_t *out, const char *what,
                                       rg_status *st);
RG_MUST_CHECK rg_code rg_gguf_take_u64(rg_gguf_parser *p, uint64_t *out, const char *what,
                                       rg_status *st);
RG_MUST_CHECK rg_code rg_gguf_take_bytes(rg_gguf_parser *p, const uint8_t **out, uint64_t len,
                                         const char *what, rg_status *st);
/* Bytes of the file behind the cursor. */
uint64_t rg_gguf_left(const rg_gguf_parser *p);

/* The whole header of one file: metadata, tensor table, layout of the data section. On RG_BUSY the
 * caller empties the shard, brings more bytes and calls again. */
RG_MUST_CHECK rg_code rg_gguf_parse_shard(rg_gguf_shard *s, rg_gguf_parser *p, rg_status *st);
/* The tensor table, cursor at its first byte; then the layout (rules 12-22). */
RG_MUST_CHECK rg_code rg_gguf_parse_table(rg_gguf_shard *s, rg_gguf_parser *p, uint64_t count,
                                          rg_status *st);
/* Frees what parsing made; path, file and header stay. */
void rg_gguf_shard_clear(rg_gguf_shard *s);

/* Bytes of a scalar of this type; 0 for strings and arrays. */
size_t rg_gguf_type_bytes(rg_gguf_type type);
const char *rg_gguf_type_name(rg_gguf_type type);

/* Typed reading of one shard's metadata (the public getters read shard 0). */
const rg_gguf_kv *rg_gguf_shard_find(const rg_gguf_shard *s, const char *key);
RG_MUST_CHECK rg_code rg_gguf_shard_u64(const rg_gguf_shard *s, const char *key, uint64_t min,
                                        uint64_t max, uint64_t *out, rg_status *st);
/* The last component of a path, for messages. */
const char *rg_gguf_base_name(const char *path);

#endif
