/* The stream's state, for stream.c and for tests that look inside. */
#ifndef RG_STREAM_STATE_H
#define RG_STREAM_STATE_H

#include "stream/cache.h"
#include "stream/readahead.h"
#include "stream/sched.h"

struct rg_stream {
    rg_items items;
    rg_arena arena;
    rg_cache cache;
    rg_readahead ahead;
    rg_sched sched;
    rg_stream_landing landing; /* zeroed: none */
    rg_io_files files;
    rg_io *io; /* ours, or NULL when borrowed */
    char **paths;
    uint32_t n_path;
    const char *backend_name;
    const char *group_noun, *item_noun;
    rg_stream_meters meters; /* guarded by the scheduler's lock */
    bool null_reads, poison;
    bool has_sched;
    /* The turn. */
    bool in_turn;
    rg_turn turn;
    uint32_t *wave;    /* [group_items_max] items of the wave, in wanted order */
    uint32_t *left;    /* [group_items_max] items for later waves */
    uint32_t *ready;   /* [group_items_max] */
    uint32_t *pending; /* [group_items_max] */
    uint32_t *failed;  /* [group_items_max] of the turn */
    uint32_t n_wave, n_left, n_failed;
};

#endif
