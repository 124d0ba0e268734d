/* Private to model: the pieces of a pack object. */
#ifndef RG_PACK_PARTS_H
#define RG_PACK_PARTS_H

#include "model/pack.h"

#define RG_PACK_MAGIC       "rgpack\r\n"
#define RG_PACK_MAGIC_BEGUN "rgpart\r\n" /* a file whose writer has not finished */
#define RG_PACK_MAGIC_BYTES 8u
#define RG_PACK_VERSION     1u
#define RG_PACK_RECORD      40u /* bytes of a group's record */
#define RG_PACK_AT_SUM      56u

struct rg_pack {
    char *path; /* owned; NULL from memory */
    rg_hash128 identity;
    uint32_t n_group, n_item;
    uint64_t header_bytes, file_bytes;
    rg_pack_group *groups; /* owned [n_group] */
    uint64_t *sums;        /* owned [n_item]; the groups point into it */
};

/* An empty pack with room for its tables. */
RG_MUST_CHECK rg_code rg_pack_alloc(rg_pack **out, uint32_t n_group, uint32_t n_item,
                                    rg_status *st);

/* The tensors that hold an expert's parts, in order, NULL behind them; returns their number. */
uint32_t rg_pack_parts_of(const rg_moe_desc *d, const rg_tensor *parts[RG_PACK_PARTS_MAX]);

static inline uint64_t rg_pack_align_up(uint64_t x) {
    return (x + RG_PACK_ALIGN - 1) & ~(uint64_t)(RG_PACK_ALIGN - 1);
}
static inline uint64_t rg_pack_table_bytes(uint32_t n_group, uint32_t n_item) {
    return RG_PACK_HEAD + (uint64_t)n_group * RG_PACK_RECORD + (uint64_t)n_item * sizeof(uint64_t);
}

#endif
