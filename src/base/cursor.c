#include "base/cursor.h"

#include <string.h>

static rg_code check_left(const rg_cursor *c, uint64_t len, const char *what, rg_status *st) {
    const size_t left = rg_cursor_remaining(c);
    if (len <= left) return RG_OK;
    return rg_fail(st, RG_FORMAT, "%s at byte %zu needs %llu bytes, %zu are left", what, c->pos,
                   (unsigned long long)len, left);
}

rg_code rg_cursor_bytes(rg_cursor *c, const uint8_t **out, uint64_t len, const char *what,
                        rg_status *st) {
    *out = NULL;
    RG_TRY(check_left(c, len, what, st));
    /* An empty range may have no data at all; NULL + 0 is undefined in C. */
    if (c->data) *out = c->data + c->pos;
    c->pos += (size_t)len;
    return RG_OK;
}

static rg_code take_scalar(rg_cursor *c, void *out, size_t size, const char *what, rg_status *st) {
    RG_TRY(check_left(c, size, what, st));
    memcpy(out, c->data + c->pos, size);
    c->pos += size;
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
