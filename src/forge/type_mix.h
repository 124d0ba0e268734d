/* Which tensor gets which type: user rules, named mixes, and the fallback for rows that a type
 * cannot hold. Private to the room. docs/quantize.md shows the table of the mixes.
 */
#ifndef RG_FORGE_TYPE_MIX_H
#define RG_FORGE_TYPE_MIX_H

#include "model/model.h"

/* What a tensor is in a qwen4exp model. */
typedef enum rg_tensor_role {
    RG_ROLE_KEEP, /* vectors, convolutions, router, inject, alpha, beta, shared gate: as they are */
    RG_ROLE_EXPERT_IN,  /* gate and up of the experts */
    RG_ROLE_EXPERT_OUT, /* down of the experts */
    RG_ROLE_NGRAM,      /* the n-gram table */
    RG_ROLE_EMBED,
    RG_ROLE_OUTPUT,
    RG_ROLE_HYPER, /* down and up of the hyper-connections */
    RG_ROLE_TRUNK, /* the other matrices */
    RG_ROLE_COUNT
} rg_tensor_role;

rg_tensor_role rg_role_of(const char *name, uint32_t n_dims);

typedef struct rg_type_mix {
    const char *name;
    uint32_t file_type; /* general.file_type */
    rg_type types[RG_ROLE_COUNT];
} rg_type_mix;

/* A mix by name, ignoring case; NULL if unknown. */
const rg_type_mix *rg_type_mix_find(const char *name);
/* Mix i; NULL behind the last. */
const rg_type_mix *rg_type_mix_at(uint32_t i);

/* The type that rows of `cols` values get when `wanted` was asked for: itself, or the narrowest of
 * q2_0, iq4_nl, q5_0, q5_1, q8_0 that is not coarser than wanted (from 2.25, 4.5, 5.5, 6, 8.5 bits)
 * and fits, or f16. */
rg_type rg_type_fit(rg_type wanted, uint64_t cols);
/* Bits a weight. */
double rg_type_bits(rg_type type);

/* Rules "REGEX=TYPE" (POSIX extended, searched in the name); the first that matches wins. */
typedef struct rg_type_rules rg_type_rules;
RG_MUST_CHECK rg_code rg_type_rules_create(rg_type_rules **out, const char *const *texts,
                                           uint32_t n, rg_status *st);
bool rg_type_rules_match(const rg_type_rules *r, const char *name, rg_type *out);
void rg_type_rules_destroy(rg_type_rules *r);

#endif
