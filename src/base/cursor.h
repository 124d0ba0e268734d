/* A bounds-checked reader over a range of memory. Each read first checks `need <= remaining`; after
 * a failure the cursor stays where it was. All integers are little-endian.
 */
#ifndef RG_BASE_CURSOR_H
#define RG_BASE_CURSOR_H

#include "base/status.h"

typedef struct rg_cursor {
    const uint8_t *data; /* borrowed */
    size_t size;
    size_t pos;
} rg_cursor;

static inline size_t rg_cursor_remaining(const rg_cursor *c) {
    return c->size - c->pos;
}

/* `what` names the object being read, for the message ("key length"). FORMAT when the range ends
 * too early: the message says what, at which byte, how many bytes were wanted and how many left. */
RG_MUST_CHECK rg_code rg_cursor_u8(rg_cursor *c, uint8_t *out, const char *what, rg_status *st);
RG_MUST_CHECK rg_code rg_cursor_u16(rg_cursor *c, uint16_t *out, const char *what, rg_status *st);
RG_MUST_CHECK rg_code rg_cursor_u32(rg_cursor *c, uint32_t *out, const char *what, rg_status *st);
RG_MUST_CHECK rg_code rg_cursor_u64(rg_cursor *c, uint64_t *out, const char *what, rg_status *st);
/* Borrows `len` bytes of the range; NULL only on failure or when the range itself is NULL. */
RG_MUST_CHECK rg_code rg_cursor_bytes(rg_cursor *c, const uint8_t **out, uint64_t len,
                                      const char *what, rg_status *st);

#endif
