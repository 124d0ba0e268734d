/* The table of what can be read: groups of equal items, the slot size classes they need, and the
 * aligned reads that fetch one item. Immutable after init; any thread may read it.
 */
#ifndef RG_STREAM_ITEMS_H
#define RG_STREAM_ITEMS_H

#include "stream/stream.h"

#define RG_ITEM_NONE UINT32_MAX

typedef struct rg_items {
    rg_stream_group *groups; /* [n_group] */
    uint32_t *first_item;    /* [n_group + 1] */
    uint16_t *group_of;      /* [n_item] */
    uint8_t *class_of;       /* [n_group] */
    uint16_t *shape_of;      /* [n_group] equal when the payload sizes are */
    uint32_t n_group, n_item;
    uint32_t group_items_max; /* items of the largest group */
    rg_stream_layout layout;
} rg_items;

/* One part of an item: the aligned superset that is read and the payload inside it. */
typedef struct rg_item_part {
    uint32_t file;
    uint64_t read_offset;  /* aligned */
    uint64_t read_bytes;   /* aligned; may reach beyond the end of the file */
    uint64_t slot_offset;  /* where the superset goes in the slot; aligned */
    uint64_t payload_skip; /* payload begins this far into the superset */
    uint32_t payload_bytes;
} rg_item_part;

RG_MUST_CHECK rg_code rg_items_init(rg_items *out, const rg_stream_group *groups, uint32_t n_group,
                                    rg_status *st);
void rg_items_deinit(rg_items *items);
/* Every extent lies inside its file. */
RG_MUST_CHECK rg_code rg_items_check_files(const rg_items *items, const uint64_t *file_bytes,
                                           const char *const *paths, uint32_t n_file,
                                           rg_status *st);

/* Fills parts[]; returns their number. */
uint32_t rg_items_parts(const rg_items *items, uint32_t item,
                        rg_item_part parts[RG_STREAM_EXTENTS_MAX]);

static inline uint32_t rg_items_group(const rg_items *items, uint32_t item) {
    return items->group_of[item];
}
static inline uint32_t rg_items_index(const rg_items *items, uint32_t item) {
    return item - items->first_item[items->group_of[item]];
}
/* True when the item has a checksum, then in *sum. */
bool rg_items_checksum(const rg_items *items, uint32_t item, uint64_t *sum);

#endif
