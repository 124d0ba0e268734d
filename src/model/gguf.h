/* GGUF container, versions 2 and 3, single and split files. Read-only.
 *
 * Only the header (metadata and tensor table) is held in memory; tensor data is read by position.
 * Every bad input comes back as one line that names the file, the key or tensor, and the numbers
 * that disagree. A gguf object is immutable after open: any thread may read it.
 */
#ifndef RG_MODEL_GGUF_H
#define RG_MODEL_GGUF_H

#include "base/base.h"
#include "quant/quant.h"

#define RG_GGUF_TENSORS_MAX 1000000u
#define RG_GGUF_KVS_MAX     1000000u
#define RG_GGUF_STRING_MAX  (64u << 20)
#define RG_GGUF_HEADER_MAX  (1u << 30) /* bytes of metadata and tensor table of one file */
#define RG_GGUF_SHARDS_MAX  4096u
#define RG_GGUF_ALIGN_MAX   65536u
#define RG_GGUF_NAME_MAX    64u /* tensor names are shorter than this */

typedef enum rg_gguf_type {
    RG_GGUF_U8,
    RG_GGUF_I8,
    RG_GGUF_U16,
    RG_GGUF_I16,
    RG_GGUF_U32,
    RG_GGUF_I32,
    RG_GGUF_F32,
    RG_GGUF_BOOL,
    RG_GGUF_STRING,
    RG_GGUF_ARRAY,
    RG_GGUF_U64,
    RG_GGUF_I64,
    RG_GGUF_F64,
    RG_GGUF_TYPE_COUNT
} rg_gguf_type;

typedef struct rg_gguf_kv {
    rg_str key;
    rg_gguf_type type;
    rg_gguf_type elem_type; /* of an array */
    uint64_t count;         /* of an array; 1 otherwise */
    const uint8_t *data;    /* scalar or string payload (behind its length), or packed array body */
    size_t size_bytes;      /* of data */
    const uint64_t
        *string_offsets; /* arrays of strings: [count] offsets of each length field in data */
} rg_gguf_kv;

typedef struct rg_tensor {
    char name[RG_GGUF_NAME_MAX];
    rg_type type;
    uint32_t n_dims;
    uint64_t ne[4];      /* missing dimensions are 1; ne[0] is contiguous */
    uint32_t file;       /* index of the shard */
    uint64_t offset;     /* absolute position in that file */
    uint64_t size_bytes; /* of the payload */
} rg_tensor;

typedef struct rg_gguf rg_gguf;

/* Opens `path`; any shard of a split model will do. All shards are opened and checked. */
RG_MUST_CHECK rg_code rg_gguf_open(rg_gguf **out, const char *path, rg_status *st);
/* Parses one header that lies in memory as if it were the start of a file of `file_size` bytes
 * (tests, fuzzing). The object cannot read tensor data. Split headers are refused unless
 * split.count <= 1. */
RG_MUST_CHECK rg_code rg_gguf_parse(rg_gguf **out, const void *header, size_t header_bytes,
                                    uint64_t file_size, rg_status *st);
void rg_gguf_close(rg_gguf *g);

/* Joins a file that holds the draft block alone (spec 5.2): its tensors stand behind the model's,
 * under names with RG_GGUF_DRAFT_PREFIX in front; metadata stays that of the model. To be called
 * before anything else refers to the object; on failure nothing has changed. */
#define RG_GGUF_DRAFT_PREFIX "draft:"
RG_MUST_CHECK rg_code rg_gguf_attach(rg_gguf *g, const char *path, rg_status *st);
bool rg_gguf_has_attached(const rg_gguf *g);
/* Metadata of the attached file; NULL if absent. */
const rg_gguf_kv *rg_gguf_find_attached(const rg_gguf *g, const char *key);

uint32_t rg_gguf_version(const rg_gguf *g);
uint32_t rg_gguf_file_count(const rg_gguf *g);
const char *rg_gguf_file_path(const rg_gguf *g, uint32_t file);
const rg_file *rg_gguf_file(const rg_gguf *g, uint32_t file);

size_t rg_gguf_kv_count(const rg_gguf *g);
const rg_gguf_kv *rg_gguf_kv_at(const rg_gguf *g, size_t i);
/* NULL if absent. */
const rg_gguf_kv *rg_gguf_find(const rg_gguf *g, const char *key);

/* Typed getters. Any integer type whose value fits is accepted for integers; floats must be finite.
 * Absent key: FORMAT, naming the key ("required key ... is missing"). Wrong type or range: FORMAT
 * with the value and the range. */
RG_MUST_CHECK rg_code rg_gguf_get_u64(const rg_gguf *g, const char *key, uint64_t min, uint64_t max,
                                      uint64_t *out, rg_status *st);
RG_MUST_CHECK rg_code rg_gguf_get_f64(const rg_gguf *g, const char *key, double min, double max,
                                      double *out, rg_status *st);
RG_MUST_CHECK rg_code rg_gguf_get_bool(const rg_gguf *g, const char *key, bool *out, rg_status *st);
RG_MUST_CHECK rg_code rg_gguf_get_str(const rg_gguf *g, const char *key, rg_str *out,
                                      rg_status *st);
/* Array of a given element type; `count_min..count_max` checked. */
RG_MUST_CHECK rg_code rg_gguf_get_array(const rg_gguf *g, const char *key, uint64_t count_min,
                                        uint64_t count_max, const rg_gguf_kv **out, rg_status *st);
/* Element i of an integer array as u64 (range-checked; negative is FORMAT). */
RG_MUST_CHECK rg_code rg_gguf_elem_u64(const rg_gguf_kv *kv, uint64_t i, uint64_t max,
                                       uint64_t *out, rg_status *st);
RG_MUST_CHECK rg_code rg_gguf_elem_f64(const rg_gguf_kv *kv, uint64_t i, double *out,
                                       rg_status *st);
/* Element i of a string array. The kv must be an array of strings, i in range. */
rg_str rg_gguf_elem_str(const rg_gguf_kv *kv, uint64_t i);

size_t rg_gguf_tensor_count(const rg_gguf *g);
const rg_tensor *rg_gguf_tensor_at(const rg_gguf *g, size_t i);
const rg_tensor *rg_gguf_tensor(const rg_gguf *g, const char *name); /* NULL if absent */
/* Reads payload bytes [begin, begin + len) of a tensor. */
RG_MUST_CHECK rg_code rg_gguf_read(const rg_gguf *g, const rg_tensor *t, uint64_t begin, size_t len,
                                   void *dst, rg_status *st);
/* The optional pass over all data: reports the first tensor and block with a non-finite scale. */
RG_MUST_CHECK rg_code rg_gguf_check_data(const rg_gguf *g, rg_status *st);

#endif
