/* Streaming UTF-8: any bytes, cut anywhere, give what one push gives; all of it is valid UTF-8, and
 * valid input comes out unchanged. Byte 0 seeds the cuts.
 */
#include "fuzz_target.h"

#include <string.h>

#include "text/text.h"
#include "text/utf8.h"

static bool is_valid(const char *bytes, size_t len) {
    for (size_t i = 0; i < len;) {
        const rg_utf8_step step = rg_utf8_next((const uint8_t *)bytes + i, len - i);
        if (step.kind != RG_UTF8_VALID) return false;
        i += step.len;
    }
    return true;
}

/* Pieces of 0 to `longest` bytes. */
static void decode(const char *bytes, size_t len, size_t longest, uint64_t seed, rg_buf *out) {
    rg_utf8_stream s = {0};
    size_t pos = 0;
    for (uint64_t n = 0; pos < len; n++) {
        size_t piece = (size_t)(rg_random_u64(seed, n) % (longest + 1));
        if (longest >= len) piece = len;
        if (piece > len - pos) piece = len - pos;
        RG_ASSERT(rg_utf8_push(&s, bytes + pos, piece, out, NULL) == RG_OK);
        RG_ASSERT(is_valid(out->data, out->len));
        pos += piece;
    }
    RG_ASSERT(rg_utf8_finish(&s, out, NULL) == RG_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1 || size > 1024) return 0;
    const char *bytes = (const char *)data + 1;
    const size_t len = size - 1;
    static const size_t longest[] = {1, 2, 7};
    rg_buf whole;
    rg_buf_init(&whole, 0);
    decode(bytes, len, SIZE_MAX - 1, 0, &whole);
    RG_ASSERT(is_valid(whole.data, whole.len));
    if (is_valid(bytes, len)) {
        RG_ASSERT(whole.len == len);
        if (len) RG_ASSERT(memcmp(whole.data, bytes, len) == 0);
    }
    for (size_t i = 0; i < RG_ARRAY_LEN(longest); i++) {
        rg_buf cut;
        rg_buf_init(&cut, 0);
        decode(bytes, len, longest[i], data[0], &cut);
        RG_ASSERT(cut.len == whole.len);
        if (cut.len) RG_ASSERT(memcmp(cut.data, whole.data, cut.len) == 0);
        rg_buf_deinit(&cut);
    }
    rg_buf_deinit(&whole);
    return 0;
}
