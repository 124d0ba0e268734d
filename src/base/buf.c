#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

void rg_buf_init(rg_buf *b, size_t max) {
    *b = (rg_buf){.max = max};
}

void rg_buf_deinit(rg_buf *b) {
    rg_free(b->data);
    *b = (rg_buf){.max = b->max};
}

void rg_buf_clear(rg_buf *b) {
    b->len = 0;
    if (b->data) b->data[0] = 0;
}

static rg_code reserve(rg_buf *b, size_t more, rg_status *st) {
    if (more >= SIZE_MAX / 2 - b->len || (b->max && b->len + more > b->max)) {
        return rg_fail(st, RG_NOMEM, "buffer of %zu bytes cannot grow by %zu (limit %zu)", b->len,
                       more, b->max);
    }
    const size_t need = b->len + more + 1;
    if (need <= b->cap) return RG_OK;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need)
        cap *= 2;
    char *data = rg_realloc(b->data, cap, 1, st);
    if (!data) return RG_NOMEM;
    b->data = data;
    b->cap = cap;
    return RG_OK;
}

rg_code rg_buf_append(rg_buf *b, const void *data, size_t len, rg_status *st) {
    RG_TRY(reserve(b, len, st));
    if (len) memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = 0;
    return RG_OK;
}

rg_code rg_buf_puts(rg_buf *b, const char *s, rg_status *st) {
    return rg_buf_append(b, s, strlen(s), st);
}

rg_code rg_buf_printf(rg_buf *b, rg_status *st, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    rg_code rc = n < 0 ? rg_fail(st, RG_BUG, "bad format") : reserve(b, (size_t)n, st);
    if (rc == RG_OK) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return rc;
}
