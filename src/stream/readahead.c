/* The governor of read-ahead in decode. Owner: the worker thread.
 *
 * A guess of rank r costs a read and pays when its item is wanted before it leaves. Whether it is
 * wanted does not depend on whether it was read, so the governor counts every guess that was not
 * held, also those beyond the depth in force: no probing reads, and what a rank is worth is known
 * at depth 0 too. At a token boundary the depth moves by one towards the first rank whose useful
 * share lies below the cost constant, fixed at start. Counts alone decide, never a clock, so that a
 * replay of the same calls gives the same depths.
 *
 * A rank whose guesses nearly always come true is warmer than anything that lies unused, so the
 * cache's guess guard lets it pass. The constants come from replayed traces (bench/results.tsv).
 */
#include "stream/readahead.h"

#include <string.h>

#define DEPTH_START    6u
#define SAMPLES_MIN    64u /* guesses of a rank before it may be judged */
#define TRUST_PERMILLE 800u
#define DECAY_AT       1024u /* counts of a rank are halved when they reach this */

void rg_readahead_init(rg_readahead *r, int32_t lookahead, uint32_t cost_permille,
                       rg_stream_meters *meters) {
    RG_ASSERT(meters);
    *r = (rg_readahead){.meters = meters,
                        .depth = DEPTH_START,
                        .fixed = lookahead >= 0,
                        .cost_permille = cost_permille,
                        .group = RG_GROUP_NONE};
    if (lookahead >= 0)
        r->depth = (uint32_t)lookahead < RG_STREAM_RANKS ? (uint32_t)lookahead : RG_STREAM_RANKS;
    RG_ASSERT(r->depth <= RG_STREAM_RANKS);
}

void rg_readahead_note(rg_readahead *r, const rg_cache *c, uint32_t group, const uint32_t *items,
                       uint32_t n) {
    RG_ASSERT(group < c->items->n_group);
    r->group = group;
    r->n = 0;
    for (uint32_t i = 0; i < n && i < RG_STREAM_RANKS; i++) {
        if (rg_cache_find(c, items[i]) != RG_SLOT_NONE) continue;
        r->items[r->n] = items[i];
        r->ranks[r->n++] = (uint8_t)i;
    }
    RG_ASSERT(r->n <= RG_STREAM_RANKS);
}

void rg_readahead_judge(rg_readahead *r, const rg_cache *c, uint32_t group) {
    r->decoded = true;
    if (r->group != group) return;
    for (uint32_t i = 0; i < r->n; i++) {
        const uint32_t rank = r->ranks[i];
        RG_ASSERT(rank < RG_STREAM_RANKS);
        const bool hit = c->wanted[r->items[i]] == c->turn;
        r->total[rank]++;
        r->meters->guess_total[rank]++;
        if (hit) {
            r->wanted[rank]++;
            r->meters->guess_wanted[rank]++;
        }
        RG_ASSERT(r->wanted[rank] <= r->total[rank]);
        if (r->total[rank] < DECAY_AT) continue;
        r->total[rank] /= 2;
        r->wanted[rank] /= 2;
    }
    r->group = RG_GROUP_NONE;
}

bool rg_readahead_trusts(const rg_readahead *r, uint32_t rank) {
    if (rank >= RG_STREAM_RANKS || r->total[rank] < SAMPLES_MIN) return false;
    return (uint64_t)r->wanted[rank] * 1000 >= (uint64_t)r->total[rank] * TRUST_PERMILLE;
}

void rg_readahead_token(rg_readahead *r) {
    if (!r->decoded) return;
    r->decoded = false;
    if (r->fixed) return;
    const uint32_t k = r->depth;
    RG_ASSERT(k <= RG_STREAM_RANKS);
    /* Down when the last rank in force does not pay; up when the next one does, by an eighth more
     * than the cost, so that a rank at the edge does not flap. */
    if (k > 0 && r->total[k - 1] >= SAMPLES_MIN &&
        (uint64_t)r->wanted[k - 1] * 1000 < (uint64_t)r->total[k - 1] * r->cost_permille) {
        r->depth--;
    } else if (k < RG_STREAM_RANKS && r->total[k] >= SAMPLES_MIN &&
               (uint64_t)r->wanted[k] * 8000 >= (uint64_t)r->total[k] * r->cost_permille * 9) {
        r->depth++;
    }
}
