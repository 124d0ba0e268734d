/* Writes GGUF files for tests, well-formed ones and deliberately broken ones. A failure of the
 * writer itself (memory, disk) ends the test process. Single-threaded.
 */
#ifndef RG_TEST_GGUF_WRITER_H
#define RG_TEST_GGUF_WRITER_H

#include "base/base.h"
#include "model/gguf.h"

typedef struct rg_gguf_writer {
    rg_buf kvs;        /* records, back to back */
    rg_buf infos;      /* tensor records */
    rg_buf data;       /* payloads with their padding; empty when `no_data` */
    uint64_t n_kv;     /* what the header will claim: tests may change it */
    uint64_t n_tensor; /* likewise */
    uint64_t data_bytes;
    uint32_t version;
    uint32_t alignment; /* of the data; writes no key */
    bool no_data;       /* count payload bytes without storing them */
} rg_gguf_writer;

void rg_gguf_writer_init(rg_gguf_writer *w);
void rg_gguf_writer_deinit(rg_gguf_writer *w);

/* A record of any type with any payload: `type` and `body` go out as they are. */
void rg_gguf_writer_raw(rg_gguf_writer *w, const char *key, uint32_t type, const void *body,
                        size_t body_bytes);
void rg_gguf_writer_u32(rg_gguf_writer *w, const char *key, uint32_t v);
void rg_gguf_writer_i32(rg_gguf_writer *w, const char *key, int32_t v);
void rg_gguf_writer_u64(rg_gguf_writer *w, const char *key, uint64_t v);
void rg_gguf_writer_f32(rg_gguf_writer *w, const char *key, float v);
void rg_gguf_writer_bool(rg_gguf_writer *w, const char *key, bool v);
void rg_gguf_writer_str(rg_gguf_writer *w, const char *key, const char *v);
/* `elems` holds `count` packed elements of `elem_bytes`; `elem_type` is no string. */
void rg_gguf_writer_array(rg_gguf_writer *w, const char *key, uint32_t elem_type, uint64_t count,
                          const void *elems, size_t elem_bytes);
void rg_gguf_writer_strings(rg_gguf_writer *w, const char *key, const char *const *v,
                            uint64_t count);

/* A tensor behind all earlier ones. `data` NULL: zero bytes. */
void rg_gguf_writer_tensor(rg_gguf_writer *w, const char *name, rg_type type, uint32_t n_dims,
                           const uint64_t *ne, const void *data);
/* A tensor record as given, no payload. */
void rg_gguf_writer_info(rg_gguf_writer *w, const char *name, size_t name_len, uint32_t n_dims,
                         const uint64_t *ne, uint32_t type, uint64_t offset);

/* A record of another file, as it is. */
void rg_gguf_writer_copy_kv(rg_gguf_writer *w, const rg_gguf_kv *kv);

/* The file's bytes (header only with `no_data`) into `out`, which is cleared first; the size that
 * the whole file has. */
uint64_t rg_gguf_writer_finish(const rg_gguf_writer *w, rg_buf *out);
void rg_gguf_writer_save(const rg_gguf_writer *w, const char *path);

/* Writes bytes to a file. */
void rg_test_save(const char *path, const void *data, size_t len);

#endif
