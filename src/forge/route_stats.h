/* What a model's routing looks like: skew, reuse between tokens, how well the next layer's router
 * guesses from this layer's input. Measured with the engine itself on random text.
 */
#ifndef RG_FORGE_ROUTE_STATS_H
#define RG_FORGE_ROUTE_STATS_H

#include "model/model.h"

#define RG_ROUTE_RANKS      16u
#define RG_ROUTE_TOKENS_MAX 65536u

typedef struct rg_route_options {
    uint32_t n_tokens;  /* read in one sequence; INVALID above the model's context */
    uint64_t seed;      /* of the random text */
    const int32_t *ids; /* [n_tokens] instead of random text; NULL = random */
    double cache_share; /* of all experts in the simulated cache; 0 = 0.2045, the reference job's */
    int n_threads;      /* 0 = all */
} rg_route_options;

typedef struct rg_route_stats {
    uint32_t n_layer, n_expert, n_used, n_tokens, n_rank;
    double distinct_3, distinct_1024, distinct_2048; /* experts of a layer in that many tokens; 0 =
                                                        too few tokens */
    double top_tenth_share;     /* of all choices, to the most used tenth of a layer's experts */
    double reuse_1, reuse_64;   /* chosen experts also chosen 1 and 64 tokens before, share */
    double cache_hit;           /* share of choices found in a global LRU */
    double hit[RG_ROUTE_RANKS]; /* guess of rank r is among the chosen */
    double hit_missing[RG_ROUTE_RANKS]; /* ... of the guesses that the LRU does not hold */
    double residual_rms_max;            /* of any layer */
    double logit_std;                   /* of the router logits */
} rg_route_stats;

/* Loads the model whole and runs it. */
RG_MUST_CHECK rg_code rg_route_measure(const char *path, const rg_route_options *opt,
                                       rg_route_stats *out, rg_status *st);

#endif
