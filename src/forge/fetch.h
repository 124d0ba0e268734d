/* Getting files over HTTP, whatever the server does. Private to the room; libcurl behind it.
 *
 * A file grows as NAME.part and is renamed when its size, and its SHA-256 where known, are right. A
 * server that cuts, throttles (429, 503, with or without Retry-After) or fails for a while is asked
 * again, for the rest if it can send it; one that ignores ranges starts over, and so does a file
 * that is another one than at the last try (ETag or size). No progress at several tries, a wrong
 * length or a wrong hash twice: one clear failure, nothing under the final name.
 */
#ifndef RG_FORGE_FETCH_H
#define RG_FORGE_FETCH_H

#include "model/model.h"

typedef struct rg_fetch_options {
    const char *token;        /* bearer, sent to the first host only; NULL = none */
    unsigned tries;           /* without progress; 0 = 5 */
    unsigned wait_ms;         /* between tries, doubled each time; 0 = 1000 */
    unsigned stall_s;         /* a transfer without a byte for so long is cut; 0 = 30 */
    rg_progress_fn *progress; /* "pull", "verify" */
    void *progress_user;
} rg_fetch_options;

/* A small text [at most max bytes]. */
RG_MUST_CHECK rg_code rg_fetch_text(const rg_fetch_options *opt, const char *url, size_t max,
                                    rg_buf *out, rg_status *st);

typedef struct rg_fetch_want {
    uint64_t size_bytes; /* UINT64_MAX: as the server says */
    const char *sha256;  /* lower-case hexadecimal; NULL = unknown */
} rg_fetch_want;

/* A file at `path`; one that is there with the right size and hash is kept. */
RG_MUST_CHECK rg_code rg_fetch_file(const rg_fetch_options *opt, const char *url, const char *path,
                                    const rg_fetch_want *want, rg_status *st);

#endif
