/* Dequantise any bytes: byte 0 chooses the type, the rest is a run of blocks (a partial last block
 * is dropped). Unpacking and the finite check must stay inside exactly those bytes, every table
 * index included; when the check finds nothing, no unpacked weight may be NaN.
 */
#include "fuzz_target.h"

#include <math.h>
#include <string.h>

#include "base/base.h"
#include "quant/quant.h"

#define ELEMS_MAX 65536u

static void unpack_blocks(rg_type type, const uint8_t *data, size_t n_blocks) {
    const rg_type_info *info = rg_type_get(type);
    const size_t n = n_blocks * info->block_elems;
    const size_t size = rg_row_bytes(type, n);
    RG_ASSERT(size == n_blocks * info->block_bytes);
    uint8_t *src = rg_alloc(size, 1, NULL); /* exact, so that a sanitizer sees any byte beyond */
    float *dst = rg_alloc(n, sizeof *dst, NULL);
    if (src && dst) {
        memcpy(src, data, size);
        rg_unpack_row(type, src, dst, n);
        size_t bad_block = 0;
        const bool found = rg_blocks_find_nonfinite(type, src, n_blocks, &bad_block);
        if (found) RG_ASSERT(bad_block < n_blocks);
        for (size_t i = 0; i < n && !found; i++)
            RG_ASSERT(!isnan(dst[i]));
    }
    rg_free(src);
    rg_free(dst);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    const uint32_t id = data[0] % RG_TYPE_COUNT;
    const rg_type_info *info = rg_type_get(id);
    if (!info || info->use != RG_USE_WEIGHT) return 0;
    const size_t n_blocks_max = ELEMS_MAX / info->block_elems;
    const size_t n_blocks = (size - 1) / info->block_bytes;
    unpack_blocks((rg_type)id, data + 1, n_blocks < n_blocks_max ? n_blocks : n_blocks_max);
    return 0;
}
