/* Streaming UTF-8: whole characters out, whatever the cuts of the input.
 *
 * Well-formed sequences are those of table 3-7 of the Unicode Standard 15.0; each maximal subpart
 * of an ill-formed sequence becomes one U+FFFD (section 3.9, table 3-8), so the output depends on
 * the bytes alone and never on the cuts. A stream belongs to one thread.
 *
 * Invariant: pending[0 .. n_pending) is a proper prefix of a well-formed sequence.
 */
#include "text/text.h"

#include <string.h>

#include "text/utf8.h"

#define REPLACEMENT "\xEF\xBF\xBD"

rg_utf8_step rg_utf8_next(const uint8_t *p, size_t n) {
    const uint8_t b = p[0];
    if (b < 0x80) return (rg_utf8_step){RG_UTF8_VALID, 1, b};
    uint8_t need = 0;
    uint8_t low = 0x80; /* bounds of the second byte; all later ones lie in 80..BF */
    uint8_t high = 0xBF;
    uint32_t code = 0;
    if (b >= 0xC2 && b <= 0xDF) {
        need = 2;
        code = b & 0x1Fu;
    } else if (b >= 0xE0 && b <= 0xEF) {
        need = 3;
        code = b & 0x0Fu;
        if (b == 0xE0) low = 0xA0;
        if (b == 0xED) high = 0x9F;
    } else if (b >= 0xF0 && b <= 0xF4) {
        need = 4;
        code = b & 0x07u;
        if (b == 0xF0) low = 0x90;
        if (b == 0xF4) high = 0x8F;
    } else {
        return (rg_utf8_step){RG_UTF8_INVALID, 1, 0};
    }
    for (uint8_t i = 1; i < need; i++) {
        if (i >= n) return (rg_utf8_step){RG_UTF8_SHORT, i, 0};
        if (p[i] < low || p[i] > high) return (rg_utf8_step){RG_UTF8_INVALID, i, 0};
        code = code << 6 | (p[i] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    return (rg_utf8_step){RG_UTF8_VALID, need, code};
}

/* Finishes the character that an earlier push left open, byte by byte; `*used` bytes of the input
 * are consumed. */
static rg_code push_pending(rg_utf8_stream *s, const char *bytes, size_t len, size_t *used,
                            rg_buf *out, rg_status *st) {
    *used = 0;
    while (s->n_pending > 0 && *used < len) {
        RG_ASSERT(s->n_pending < sizeof s->pending);
        s->pending[s->n_pending] = (uint8_t)bytes[*used];
        const rg_utf8_step step = rg_utf8_next(s->pending, s->n_pending + 1u);
        if (step.kind == RG_UTF8_SHORT) {
            s->n_pending++;
            (*used)++;
        } else if (step.kind == RG_UTF8_VALID) {
            RG_TRY(rg_buf_append(out, s->pending, step.len, st));
            s->n_pending = 0;
            (*used)++;
        } else {
            /* The new byte is not part of the subpart: it is looked at again by the caller. */
            RG_TRY(rg_buf_puts(out, REPLACEMENT, st));
            s->n_pending = 0;
        }
    }
    return RG_OK;
}

rg_code rg_utf8_push(rg_utf8_stream *s, const char *bytes, size_t len, rg_buf *out, rg_status *st) {
    size_t pos = 0;
    RG_TRY(push_pending(s, bytes, len, &pos, out, st));
    size_t run = pos; /* start of valid characters not yet appended */
    while (pos < len) {
        const rg_utf8_step step = rg_utf8_next((const uint8_t *)bytes + pos, len - pos);
        if (step.kind == RG_UTF8_VALID) {
            pos += step.len;
            continue;
        }
        if (pos > run) RG_TRY(rg_buf_append(out, bytes + run, pos - run, st));
        if (step.kind == RG_UTF8_SHORT) {
            memcpy(s->pending, bytes + pos, step.len);
            s->n_pending = step.len;
            return RG_OK;
        }
        RG_TRY(rg_buf_puts(out, REPLACEMENT, st));
        pos += step.len;
        run = pos;
    }
    if (pos > run) RG_TRY(rg_buf_append(out, bytes + run, pos - run, st));
    return RG_OK;
}

rg_code rg_utf8_finish(rg_utf8_stream *s, rg_buf *out, rg_status *st) {
    if (s->n_pending == 0) return RG_OK;
    s->n_pending = 0;
    return rg_buf_puts(out, REPLACEMENT, st);
}
