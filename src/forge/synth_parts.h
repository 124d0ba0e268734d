/* What the files of synth share. Private.
 *
 * Letters: E n_embd, X experts. C: the constant coordinates, the first `n_const` of E, where every
 * token's embedding holds the same values (docs/synth.md).
 */
#ifndef RG_FORGE_SYNTH_PARTS_H
#define RG_FORGE_SYNTH_PARTS_H

#include "forge/gguf_out.h"
#include "forge/ple_constants.h"
#include "forge/synth.h"

/* How the rows of a tensor are made. */
typedef enum rg_synth_kind {
    RG_SYNTH_RANDOM, /* blocks of a pool, standard deviation `sigma` */
    RG_SYNTH_EMBED,  /* as RANDOM, the constant coordinates the same in every row */
    RG_SYNTH_QKV,    /* as RANDOM; key rows repeat the query rows, value rows ignore C */
    RG_SYNTH_NORM,   /* 1 + 0.2 normal */
    RG_SYNTH_NORM_FFN /* ... with signs flipped outside C, the same for all streams */,
    RG_SYNTH_TAPS_GDN, /* taps of the delta net: positive; values small */
    RG_SYNTH_TAPS_PLE,
    RG_SYNTH_DT,
    RG_SYNTH_A,
    RG_SYNTH_BETA,  /* slow writes: negative along C */
    RG_SYNTH_ROUTER /* usage bias along C, random elsewhere */
} rg_synth_kind;

typedef struct rg_synth_tensor {
    char name[RG_GGUF_NAME_MAX];
    uint64_t ne[3];
    uint32_t n_dims;
    uint32_t layer;
    rg_synth_kind kind;
    bool is_matrix; /* type rules apply */
    bool is_small;  /* F32 unless a rule says otherwise */
    bool is_expert;
    double sigma;
    rg_type type;
    uint64_t rows;
    size_t row_bytes;
} rg_synth_tensor;

/* The routing model, derived once. All in units of the residual (docs/synth.md). */
typedef struct rg_synth_routing {
    uint32_t n_const;    /* 0: the shape or a type has no room for the constant coordinates */
    double token;        /* rms of the embedding outside C */
    double slow;         /* rms of the first delta net's output */
    double constant;     /* rms of the embedding in C */
    double step;         /* rms of what any other half layer adds */
    double memory;       /* time constant of the slow part, tokens */
    double flip;         /* probability of a sign flip in the norm before the experts */
    uint32_t slow_layer; /* the first delta net; UINT32_MAX without one */
    float *mu;           /* [n_const] the constant values */
    uint8_t *mu_blocks;  /* ... as the embedding stores them */
    size_t mu_bytes;
    double mu_square; /* sum of squares */
    double *bias;     /* [X] logit bias by popularity, most popular first */
} rg_synth_routing;

typedef struct rg_synth_plan {
    const rg_synth_options *opt;
    const rg_synth_shape *shape;
    rg_ple_constants ple;
    rg_synth_routing routing;
    rg_synth_tensor *tensors;
    uint32_t n_tensor, cap;
    size_t row_bytes_max;
} rg_synth_plan;

/* synth_shape.c: INVALID naming the fields that disagree. */
RG_MUST_CHECK rg_code rg_synth_check_shape(const rg_synth_shape *s, rg_status *st);
bool rg_synth_is_attn(const rg_synth_shape *s, uint32_t layer); /* trunk and draft block */

/* synth_plan.c: tensors in file order with their types. */
RG_MUST_CHECK rg_code rg_synth_plan_init(rg_synth_plan *p, const rg_synth_options *opt,
                                         rg_status *st);
void rg_synth_plan_deinit(rg_synth_plan *p);
RG_MUST_CHECK rg_code rg_synth_plan_meta(const rg_synth_plan *p, rg_gguf_out *g, rg_status *st);

/* synth_types.c: type of each tensor by the rules. */
RG_MUST_CHECK rg_code rg_synth_pick_types(rg_synth_plan *p, rg_status *st);

/* synth_vocab.c */
#define RG_SYNTH_ENDOFTEXT   0u /* offsets of the special tokens */
#define RG_SYNTH_IM_END      2u
#define RG_SYNTH_KIND_NORMAL 1 /* token_type of the format */
#define RG_SYNTH_KIND_UNUSED 5
uint32_t rg_synth_special_id(uint32_t special);
RG_MUST_CHECK rg_code rg_synth_vocab(const rg_synth_shape *s, rg_gguf_out *g, rg_status *st);
extern const char rg_synth_chat_template[];

/* synth_routing.c */
void rg_synth_usage(uint32_t n_expert, uint32_t n_used, double skew, double *usage);
void rg_synth_routing_energies(rg_synth_plan *p); /* needs the shape alone */
/* Needs the tensors with their types. */
RG_MUST_CHECK rg_code rg_synth_routing_init(rg_synth_plan *p, rg_status *st);
void rg_synth_routing_deinit(rg_synth_routing *r);
/* How much of a residual coordinate a half layer's mixed input shows (u = gain * R). */
double rg_synth_gain(const rg_synth_plan *p, uint32_t layer, bool ffn);

/* synth_blocks.c: `n` valid random blocks of standard deviation sigma. */
void rg_synth_blocks(rg_type type, double sigma, uint64_t seed, uint8_t *dst, size_t n);

/* synth_fill.c */
typedef struct rg_synth_fill rg_synth_fill;
RG_MUST_CHECK rg_code rg_synth_fill_create(rg_synth_fill **out, const rg_synth_plan *p,
                                           rg_pool *pool, rg_status *st);
void rg_synth_fill_destroy(rg_synth_fill *f);
/* Rows [begin, end) of a tensor to dst. */
RG_MUST_CHECK rg_code rg_synth_fill_rows(rg_synth_fill *f, uint32_t tensor, uint64_t begin,
                                         uint64_t end, uint8_t *dst, rg_status *st);

/* A near-normal number of mean 0 and deviation 1: the sum of four 16-bit draws of one word. */
float rg_synth_normal(uint64_t seed, uint64_t counter);

#endif
