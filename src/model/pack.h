/* Expert packs: every expert of a model contiguous, page aligned and checksummed, so that one
 * direct read brings it whole. Optional: a copy of bytes that the model file holds too.
 *
 * The file, all numbers little-endian:
 *
 *     0   8  magic "rgpack\r\n"              64  [n_group] of 40 bytes:
 *     8   4  version, 1                           0   4  experts of the group
 *     12  4  groups                               4   4  parts of an expert (2 or 3)
 *     16  8  header bytes, a multiple of 4096     8  12  bytes of each part, 0 if absent
 *     24  8  bytes of the whole file              20  4  0
 *     32 16  identity of the model (low, high)    24  8  stride: parts rounded up to 4096
 *     48  8  experts of all groups                32  8  offset of expert 0
 *     56  8  XXH3-64 of the header, see rg_pack_header_sum     then [experts] of 8: XXH3-64 of the
 * parts
 *
 * then zeros up to the header's size, then the groups one after another without gaps. A group is a
 * layer, the draft block the last; parts are gate, up, down, or gate_up, down. So every number of
 * the table follows from the sizes before it, and one that does not is refused.
 *
 * A pack object is immutable once opened: any thread may read it. One that is being written
 * (rg_pack_plan) belongs to its writer.
 */
#ifndef RG_MODEL_PACK_H
#define RG_MODEL_PACK_H

#include "model/identity.h"

#define RG_PACK_ALIGN      4096u
#define RG_PACK_PARTS_MAX  3u
#define RG_PACK_EXPERT_MAX (1u << 30)  /* bytes of an expert */
#define RG_PACK_ITEMS_MAX  (1u << 20)  /* experts of all groups */
#define RG_PACK_HEADER_MAX (16u << 20) /* more than those need */
#define RG_PACK_HEAD       64u         /* bytes in front of the table of groups */
#define RG_PACK_FIXED      64u         /* experts hashed anew when a pack is checked */

typedef struct rg_pack_group {
    uint32_t n_item;
    uint32_t n_part;
    uint32_t part_bytes[RG_PACK_PARTS_MAX];
    uint32_t item_bytes; /* of all parts */
    uint64_t stride, offset;
    const uint64_t *checksums; /* [n_item] */
} rg_pack_group;

typedef struct rg_pack rg_pack;

/* Reads and checks the header. FORMAT for a file that is no pack, is truncated or damaged. */
RG_MUST_CHECK rg_code rg_pack_open(rg_pack **out, const char *path, rg_status *st);
/* The same for the first `len` bytes of a file of `file_bytes` (tests, fuzzing). */
RG_MUST_CHECK rg_code rg_pack_parse(rg_pack **out, const void *header, size_t len,
                                    uint64_t file_bytes, rg_status *st);
/* NULL is allowed. */
void rg_pack_close(rg_pack *pack);

const char *rg_pack_path(const rg_pack *pack); /* "" when it came from memory */
uint32_t rg_pack_group_count(const rg_pack *pack);
const rg_pack_group *rg_pack_group_at(const rg_pack *pack, uint32_t group);
uint32_t rg_pack_item_count(const rg_pack *pack);
uint64_t rg_pack_file_bytes(const rg_pack *pack);
size_t rg_pack_header_bytes(const rg_pack *pack);

/* INVALID unless the pack was made of this model: the same shape, the same identity, and
 * RG_PACK_FIXED experts of the model's own file that give the checksums of the pack. */
RG_MUST_CHECK rg_code rg_pack_check(const rg_pack *pack, const rg_gguf *g, const rg_model *m,
                                    rg_status *st);

/* Where a model's pack is looked for: "m.gguf" and "m-00001-of-00003.gguf" have theirs in
 * "m.rgpack". Release with rg_free. */
RG_MUST_CHECK rg_code rg_pack_default_path(char **out, const char *model_path, rg_status *st);

/* ---- writing -------------------------------------------------------------------------------- */

/* The experts of block `i`: trunk layers, then the draft block. */
const rg_moe_desc *rg_model_moe(const rg_model *m, uint32_t i);

/* The pack that this model would have, checksums zero. */
RG_MUST_CHECK rg_code rg_pack_plan(rg_pack **out, const rg_gguf *g, const rg_model *m,
                                   rg_status *st);
void rg_pack_set_checksum(rg_pack *pack, uint32_t group, uint32_t item, uint64_t sum);
/* Fills header[rg_pack_header_bytes]. An unfinished one has another magic: no reader takes it. */
void rg_pack_write_header(const rg_pack *pack, bool finished, uint8_t *header);
/* Whether two headers of this pack's size are of the same pack, finished or not, whatever their
 * checksums. */
bool rg_pack_same_header(const rg_pack *pack, const uint8_t *a, const uint8_t *b);
/* XXH3-64 of a header but its own field; len >= RG_PACK_HEAD. */
uint64_t rg_pack_header_sum(const uint8_t *header, size_t len);

/* Moves experts piece by piece through one buffer and hashes them. One thread. */
typedef struct rg_pack_mover {
    uint8_t *buffer;
    void *hash;
} rg_pack_mover;

/* Takes the next bytes of an expert. */
typedef rg_code rg_pack_sink(void *user, const void *data, size_t len, rg_status *st);

RG_MUST_CHECK rg_code rg_pack_mover_init(rg_pack_mover *mover, rg_status *st);
void rg_pack_mover_deinit(rg_pack_mover *mover);
/* Reads an expert's parts out of the model file, gives them to `sink` (may be NULL) and their
 * checksum to *sum. */
RG_MUST_CHECK rg_code rg_pack_mover_model(rg_pack_mover *mover, const rg_gguf *g, const rg_model *m,
                                          uint32_t group, uint32_t item, rg_pack_sink *sink,
                                          void *user, uint64_t *sum, rg_status *st);
/* The checksum of an expert as it lies in a pack's file. */
RG_MUST_CHECK rg_code rg_pack_mover_file(rg_pack_mover *mover, const rg_file *file,
                                         const char *name, const rg_pack_group *group,
                                         uint32_t item, uint64_t *sum, rg_status *st);

/* Reads a whole pack and compares every expert with its checksum. IO names the pack, the layer and
 * the expert of the first that differs. `tick` (may be NULL) is asked after every layer; CANCELED
 * when it says false. */
RG_MUST_CHECK rg_code rg_pack_verify(const rg_pack *pack, bool (*tick)(void *user), void *user,
                                     rg_status *st);

#endif
