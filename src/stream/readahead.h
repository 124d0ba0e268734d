/* How deep to read ahead in decode. See readahead.c. */
#ifndef RG_STREAM_READAHEAD_H
#define RG_STREAM_READAHEAD_H

#include "stream/cache.h"

typedef struct rg_readahead {
    rg_stream_meters *meters;
    uint32_t depth;
    bool fixed;
    uint32_t cost_permille;
    /* The last guesses made, unheld ones only, by rank; judged when their group begins. */
    uint32_t group;
    uint32_t n;
    uint32_t items[RG_STREAM_RANKS];
    uint8_t ranks[RG_STREAM_RANKS];
    /* Decayed counts by rank. */
    uint32_t wanted[RG_STREAM_RANKS];
    uint32_t total[RG_STREAM_RANKS];
    bool decoded; /* a decode turn began in this window */
} rg_readahead;

/* `lookahead` and `cost_permille` as in rg_stream_options. */
void rg_readahead_init(rg_readahead *r, int32_t lookahead, uint32_t cost_permille,
                       rg_stream_meters *meters);
/* Notes which of the ranked guesses the directory does not hold; before any of them is claimed. */
void rg_readahead_note(rg_readahead *r, const rg_cache *c, uint32_t group, const uint32_t *items,
                       uint32_t n);
/* A decode turn of the group has begun: c->wanted says what it wants. */
void rg_readahead_judge(rg_readahead *r, const rg_cache *c, uint32_t group);
/* Whether guesses of a rank come true so often that they count as warmer than what lies unused. */
bool rg_readahead_trusts(const rg_readahead *r, uint32_t rank);
/* A token boundary: moves the depth by one at most. */
void rg_readahead_token(rg_readahead *r);

#endif
