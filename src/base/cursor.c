#include "base/cursor.h"

#include <string.h>

/* The next `len` bytes, NULL when fewer are left. */
static const uint8_t *take(rg_cursor *c, uint64_t len, const char *what, rg_status *st) {
    const size_t left = rg_cursor_remaining(c);
    if (len > left) {
        rg_fail(st, RG_FORMAT, "%s at byte %zu needs %llu bytes, %zu are left", what, c->pos,
                (unsigned long long)len, left);
        return NULL;
    }
    const uint8_t *p = c->data + c->pos;
    c->pos += (size_t)len;
    return p;
}

rg_code rg_cursor_bytes(rg_cursor *c, const uint8_t **out, uint64_t len, const char *what,
                        rg_status *st) {
    *out = take(c, len, what, st);
    return *out ? RG_OK : RG_FORMAT;
}

static rg_code take_scalar(rg_cursor *c, void *out, size_t size, const char *what, rg_status *st) {
    const uint8_t *p = take(c, size, what, st);
    if (!p) return RG_FORMAT;
    memcpy(out, p, size);
    return RG_OK;
}

rg_code rg_cursor_u8(rg_cursor *c, uint8_t *out, const char *what, rg_status *st) {
    return take_scalar(c, out, sizeof *out, what, st);
}

rg_code rg_cursor_u16(rg_cursor *c, uint16_t *out, const char *what, rg_status *st) {
    return take_scalar(c, out, sizeof *out, what, st);
}

rg_code rg_cursor_u32(rg_cursor *c, uint32_t *out, const char *what, rg_status *st) {
    return take_scalar(c, out, sizeof *out, what, st);
}

rg_code rg_cursor_u64(rg_cursor *c, uint64_t *out, const char *what, rg_status *st) {
    return take_scalar(c, out, sizeof *out, what, st);
}
