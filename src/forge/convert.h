/* convert: a Hugging Face checkpoint of a qwen4_exp model into GGUF (architecture notes, section
 * 9). Memory: some rows a thread, whatever the size of the tensors.
 */
#ifndef RG_FORGE_CONVERT_H
#define RG_FORGE_CONVERT_H

#include "model/model.h"

typedef struct rg_convert_options {
    const char *folder; /* config.json, tokenizer.json, *.safetensors */
    const char *out_path;
    const char *mix;          /* type of the matrices, as quantize; NULL = as the checkpoint has it,
                                 fp8 becomes bf16 */
    const char *const *rules; /* [n_rules] "REGEX=TYPE" */
    uint32_t n_rules;
    const char *name; /* general.name; NULL = the folder's */
    uint32_t parts;
    bool overwrite, no_mtp;
    int n_threads;
    const char *cpu_level;
    rg_progress_fn *progress; /* "convert", bytes of the output; NULL = none */
    void *progress_user;
} rg_convert_options;

/* Appends a report to `out`. Nothing stays under the final name unless all of it was written; a run
 * that was killed goes on where it was. */
RG_MUST_CHECK rg_code rg_forge_convert(const rg_convert_options *opt, rg_buf *out, rg_status *st);

#endif
