/* synth: random but valid qwen4exp models of any shape and type mix, written as a stream.
 *
 * The same options give the same bytes, whatever the number of threads. Routing is made to behave
 * like that of a trained model (docs/synth.md): skewed expert usage, correlated between
 * neighbouring tokens, guessable by the next layer's router to a chosen degree.
 */
#ifndef RG_FORGE_SYNTH_H
#define RG_FORGE_SYNTH_H

#include <stdatomic.h>

#include "model/model.h"

#define RG_SYNTH_RULES_MAX   256u
#define RG_SYNTH_SPLIT_MAX   999u
#define RG_SYNTH_VOCAB_MIN   320u /* 256 bytes, merges, specials */
#define RG_SYNTH_PATTERN_MAX 256u
#define RG_SYNTH_PATH_MAX    4096u

/* Every field can be set by name (rg_synth_set); the names are those of rg_synth_field_name. */
typedef struct rg_synth_shape {
    uint32_t n_layer, mtp, interval, n_ctx; /* mtp: 0 or 1 draft block */
    uint32_t mtp_halves; /* its projection as fc_embd and fc_hidden, not as eh_proj */
    uint32_t n_embd, n_vocab, tied;
    uint32_t n_head, n_head_kv, head_dim, n_rot, rope_base;
    uint32_t ssm_conv, ssm_dim, n_k_head, n_v_head;
    uint32_t n_expert, n_used, n_ff, n_ff_shared, fused;
    uint32_t n_hc, n_hc_rank;
    uint32_t idx_heads, idx_dim, idx_budget, idx_ratio; /* ratio 0 = dense attention */
    uint32_t ngram;                                     /* 0 = no n-gram memory */
    uint32_t ngram_heads, ngram_base, ngram_divisor, ngram_seed, ngram_conv, ngram_layer;
} rg_synth_shape;

/* Names known: release, tiny, demo. INVALID otherwise. */
RG_MUST_CHECK rg_code rg_synth_preset(rg_synth_shape *out, const char *name, rg_status *st);
/* "key=value". INVALID naming the key, the value and the range. */
RG_MUST_CHECK rg_code rg_synth_set(rg_synth_shape *shape, const char *assignment, rg_status *st);
/* Key and meaning of field i; NULL behind the last. */
const char *rg_synth_field_name(uint32_t i, const char **meaning);

typedef struct rg_synth_progress {
    uint64_t done_bytes, total_bytes;
    const char *tensor; /* being written; borrowed */
} rg_synth_progress;

typedef struct rg_synth_options {
    rg_synth_shape shape;
    /* "REGEX=TYPE" each (POSIX extended, searched in the tensor name), first match wins. */
    const char *const *type_rules;
    uint32_t n_type_rules;
    const char *type_default; /* matrices without a rule; NULL = the published-like mix */
    const char *name;         /* general.name; NULL = "regolith synth" */
    uint64_t seed;
    /* Routing (docs/synth.md). A negative value means the default. */
    double skew;               /* Zipf exponent of expert usage, 0 .. 4; default 1.35 */
    double correlation;        /* share of the slow part in what is not static, 0 .. 0.95 */
    double predictability;     /* correlation of guess and truth in the varying part, 0 .. 1 */
    uint32_t split;            /* shards; 0 and 1 = one file */
    bool overwrite;            /* an existing file is replaced; else INVALID */
    int n_threads;             /* 0 = all */
    const atomic_bool *cancel; /* NULL, or looked at between writes */
    void (*progress)(void *user, const rg_synth_progress *p);
    void *progress_user;
} rg_synth_options;

/* The defaults: preset release, seed 1, all routing defaults, one file. */
void rg_synth_options_init(rg_synth_options *opt);

typedef struct rg_synth_result {
    uint64_t size_bytes; /* all files */
    uint64_t expert_bytes;
    uint32_t n_tensor, n_file;
    double seconds;
    char first_path[RG_SYNTH_PATH_MAX];
} rg_synth_result;

/* Writes the model. Nothing stays under the final names unless all of it was written. With split >
 * 1 `path` gives the prefix: PREFIX-00001-of-0000N.gguf (a .gguf at its end is cut off). */
RG_MUST_CHECK rg_code rg_synth_write(const char *path, const rg_synth_options *opt,
                                     rg_synth_result *result, rg_status *st);

#endif
