/* Private pieces of quantize: the job, rows of a tensor through unpack and pack. */
#ifndef RG_FORGE_QUANTIZE_PARTS_H
#define RG_FORGE_QUANTIZE_PARTS_H

#include "forge/gguf_write.h"
#include "forge/imatrix.h"
#include "forge/quantize.h"
#include "forge/type_mix.h"
#include "quant/quant.h"

typedef struct rg_quantize_thread {
    float *x, *y; /* [widest row] */
    void *scratch;
} rg_quantize_thread;

typedef struct rg_quantize_job {
    const rg_quantize_options *opt;
    rg_gguf *gguf;
    rg_imatrix *imatrix; /* NULL: none */
    rg_type_rules *rules;
    const rg_type_mix *mix;
    rg_cpu_level level;
    rg_pool *pool;
    rg_quantize_thread *threads;
    uint32_t n;         /* tensors */
    rg_out_tensor *out; /* [n] in the order of the input */
    float *importance;  /* [matrices][columns] of the tensor at hand */
    bool *known;        /* [matrices] */
    uint64_t importance_cap, known_cap;
    uint8_t *raw, *packed; /* RG_QUANTIZE_CHUNK each */
} rg_quantize_job;

#define RG_QUANTIZE_CHUNK ((size_t)8 << 20) /* bytes of rows at once, at least a row */

/* quantize_rows.c: working memory for the widest row of all tensors. */
RG_MUST_CHECK rg_code rg_quantize_rows_init(rg_quantize_job *j, rg_status *st);
void rg_quantize_rows_deinit(rg_quantize_job *j);
/* Importance of all matrices of a tensor into the job. */
RG_MUST_CHECK rg_code rg_quantize_importance(rg_quantize_job *j, const rg_tensor *t, rg_status *st);
/* Makes tensor i and hands it to the writer. */
RG_MUST_CHECK rg_code rg_quantize_tensor(rg_quantize_job *j, uint32_t i, rg_gguf_write *w,
                                         uint64_t done, rg_status *st);
/* Weighted error of tensor i as `type` over a sample of its rows, relative to the weighted power of
 * the rows: the mean relative error of what the matrix gives. */
RG_MUST_CHECK rg_code rg_quantize_measure(rg_quantize_job *j, uint32_t i, rg_type type,
                                          double *error, rg_status *st);

/* budget.c: chooses the types of job->out for opt->target_bytes. `fixed_bytes` is what the file has
 * besides payloads. */
RG_MUST_CHECK rg_code rg_quantize_budget(rg_quantize_job *j, uint64_t fixed_bytes, rg_buf *report,
                                         rg_status *st);
/* Whether a rule of the user names the tensor. */
bool rg_quantize_ruled(const rg_quantize_job *j, uint32_t i, rg_type *type);
void rg_quantize_set_type(rg_quantize_job *j, uint32_t i, rg_type type);

#endif
