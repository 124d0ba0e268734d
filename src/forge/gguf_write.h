/* A GGUF model being written: one file or several parts, tensors in any order of time, with a
 * journal so that a run that was killed goes on where it was. Private to the room; one thread.
 *
 * Every part grows under NAME.part, and NAME.part.log of the first one lists what is whole. The
 * journal starts with the identity of the job; one of another job, or none, starts over. Parts get
 * their names when all are on the drive; a run killed while they do goes on with the rest. A run
 * that fails removes what it wrote; one that is killed leaves it.
 */
#ifndef RG_FORGE_GGUF_WRITE_H
#define RG_FORGE_GGUF_WRITE_H

#include "forge/gguf_out.h"

#define RG_WRITE_PARTS_MAX 999u
#define RG_WRITE_PATH_MAX  4096u

typedef struct rg_out_tensor {
    char name[RG_GGUF_NAME_MAX];
    rg_type type;
    uint32_t n_dims;
    uint64_t ne[4];      /* missing dimensions are 1 */
    uint64_t size_bytes; /* of the payload */
} rg_out_tensor;

typedef struct rg_write_options {
    const char *path;        /* parts > 1: its prefix, a .gguf at the end is cut off */
    uint32_t parts;          /* 0 and 1: one file */
    bool overwrite;          /* an existing file is replaced; else INVALID */
    const uint8_t *identity; /* [16] of sources and options */
    uint64_t sync_bytes;     /* written between two lines of the journal; 0: 512 MiB */
} rg_write_options;

typedef struct rg_gguf_write rg_gguf_write;

/* Rows * row bytes of a shape; 0 when the type cannot hold it or the size does not fit. */
uint64_t rg_out_tensor_bytes(const rg_out_tensor *t);

/* `head` holds the metadata and no tensors; split keys are added as needed. Both are borrowed until
 * destroy. IO when the drive has no room for it, BUSY when another run writes the same file. */
RG_MUST_CHECK rg_code rg_gguf_write_create(rg_gguf_write **out, const rg_write_options *opt,
                                           const rg_gguf_out *head, const rg_out_tensor *tensors,
                                           uint32_t n_tensor, rg_status *st);
/* Whether tensor i is whole already, from a run before. */
bool rg_gguf_write_has(const rg_gguf_write *w, uint32_t i);
/* Payload bytes [begin, begin + n) of tensor i. */
RG_MUST_CHECK rg_code rg_gguf_write_at(rg_gguf_write *w, uint32_t i, uint64_t begin,
                                       const void *data, size_t n, rg_status *st);
/* All of tensor i was given. */
RG_MUST_CHECK rg_code rg_gguf_write_end(rg_gguf_write *w, uint32_t i, rg_status *st);
/* Everything to the drive, then the names. All tensors have ended. */
RG_MUST_CHECK rg_code rg_gguf_write_finish(rg_gguf_write *w, rg_status *st);
uint64_t rg_gguf_write_bytes(const rg_gguf_write *w);   /* of all parts */
const char *rg_gguf_write_path(const rg_gguf_write *w); /* of the first part */
/* Removes the parts unless they were finished. NULL is allowed. */
void rg_gguf_write_destroy(rg_gguf_write *w);

#endif
