/* quantize: a GGUF model into another one with other types. Rows are independent, so the bytes do
 * not depend on the number of threads. Memory: a few megabytes of rows a thread.
 */
#ifndef RG_FORGE_QUANTIZE_H
#define RG_FORGE_QUANTIZE_H

#include "model/model.h"

#define RG_QUANTIZE_RULES_MAX 256u

typedef struct rg_quantize_options {
    const char *in_path, *out_path;
    const char *mix;          /* a named mix (type_mix.h) */
    const char *imatrix_path; /* NULL = none */
    const char *const *rules; /* [n_rules] "REGEX=TYPE" before the mix */
    uint32_t n_rules;
    uint64_t target_bytes;    /* of the output; 0: the mix. Types are then chosen (budget.c) */
    const char *weights_path; /* sensitivity of groups of tensors, lines "REGEX<tab>FACTOR" */
    uint32_t parts;           /* 0 and 1 = one file */
    bool overwrite;
    bool dry_run;             /* report types and sizes, write nothing */
    bool verbose;             /* report every tensor */
    int n_threads;            /* 0 = all */
    const char *cpu_level;    /* as rg_engine_options */
    rg_progress_fn *progress; /* "measure", "quantize" in bytes of the output; NULL = none */
    void *progress_user;
} rg_quantize_options;

/* Appends a report to `out`: notes about fallbacks, totals by type, bytes an expert. */
RG_MUST_CHECK rg_code rg_forge_quantize(const rg_quantize_options *opt, rg_buf *out, rg_status *st);
/* The table of the mixes with bits a weight for each role. */
RG_MUST_CHECK rg_code rg_forge_list_mixes(rg_buf *out, rg_status *st);

#endif
