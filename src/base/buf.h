/* A growing byte buffer with a limit. Owner: whoever holds the struct; no lock. */
#ifndef RG_BASE_BUF_H
#define RG_BASE_BUF_H

#include "base/status.h"

typedef struct rg_buf {
    char *data; /* [len] and one NUL after it once anything was appended; NULL before */
    size_t len;
    size_t cap;
    size_t max; /* appending past this many bytes fails with NOMEM; 0 = no limit */
} rg_buf;

void rg_buf_init(rg_buf *b, size_t max);
void rg_buf_deinit(rg_buf *b);
void rg_buf_clear(rg_buf *b);
RG_MUST_CHECK rg_code rg_buf_append(rg_buf *b, const void *data, size_t len, rg_status *st);
RG_MUST_CHECK rg_code rg_buf_puts(rg_buf *b, const char *s, rg_status *st);
RG_MUST_CHECK rg_code rg_buf_printf(rg_buf *b, rg_status *st, const char *fmt, ...) RG_PRINTF(3, 4);

#endif
