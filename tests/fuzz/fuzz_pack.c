/* The header of an expert pack: as it is, and with its checksum made right, so that the tables
 * behind it are reached. What parses must place every expert inside the file, without overlap.
 */
#include "fuzz_target.h"

#include <stdlib.h>
#include <string.h>

#include "model/model.h"

/* Not an assertion of ours: a failure must end the process in every build. */
static void require(bool holds) {
    if (!holds) abort();
}

static void exercise(const uint8_t *data, size_t size, uint64_t file_bytes) {
    rg_pack *p = NULL;
    rg_status st = {0};
    if (rg_pack_parse(&p, data, size, file_bytes, &st) != RG_OK) {
        require(p == NULL && st.message[0] && !strchr(st.message, '\n'));
        return;
    }
    uint64_t at = rg_pack_header_bytes(p), sum = 0;
    uint32_t n_item = 0;
    for (uint32_t g = 0; g < rg_pack_group_count(p); g++) {
        const rg_pack_group *group = rg_pack_group_at(p, g);
        require(group->offset == at && at % RG_PACK_ALIGN == 0);
        require(group->stride >= group->item_bytes && group->item_bytes > 0);
        at += group->n_item * group->stride;
        n_item += group->n_item;
        for (uint32_t i = 0; i < group->n_item; i++)
            sum ^= group->checksums[i];
    }
    require(at == file_bytes && at == rg_pack_file_bytes(p));
    require(n_item == rg_pack_item_count(p));
    /* Writing it again gives the same tables. */
    uint8_t *again = rg_alloc(rg_pack_header_bytes(p), 1, NULL);
    if (again) {
        rg_pack_write_header(p, true, again);
        require(rg_pack_same_header(p, again, data));
        sum ^= rg_pack_header_sum(again, rg_pack_header_bytes(p));
    }
    rg_free(again);
    rg_pack_close(p);
    (void)sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    exercise(data, size, size);
    if (size < RG_PACK_HEAD) return 0;
    uint64_t header_bytes = 0, file_bytes = 0;
    memcpy(&header_bytes, data + 16, sizeof header_bytes);
    memcpy(&file_bytes, data + 24, sizeof file_bytes);
    exercise(data, size, file_bytes);
    if (header_bytes < RG_PACK_HEAD || header_bytes > size) return 0;
    uint8_t *copy = rg_alloc(size, 1, NULL);
    if (!copy) return 0;
    memcpy(copy, data, size);
    const uint64_t sum = rg_pack_header_sum(copy, (size_t)header_bytes);
    memcpy(copy + RG_PACK_HEAD - sizeof sum, &sum, sizeof sum);
    exercise(copy, size, file_bytes);
    rg_free(copy);
    return 0;
}
