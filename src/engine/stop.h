/* stop: ends a generation at a stop string, whatever pieces the text comes in.
 *
 * A matcher holds the strings and is constant after creation; any number of sessions may share it.
 * The state of one stream is a small struct that can be copied: save it before a draft and put it
 * back when the draft is rejected.
 *
 * Text is held back only while it may be the beginning of a stop string; it is released as soon as
 * it cannot be. The stop string that ends first wins; among those ending at the same byte, the
 * longest. The result does not depend on how the text was cut. Bytes are compared as they are. Text
 * released never ends inside a UTF-8 character unless a piece or a stop string begins or ends
 * there.
 */
#ifndef RG_ENGINE_STOP_H
#define RG_ENGINE_STOP_H

#include "base/base.h"

#define RG_STOP_STRINGS_MAX 32   /* of one request */
#define RG_STOP_BYTES_MAX   1024 /* of one string */

typedef struct rg_stop rg_stop;

typedef struct rg_stop_state {
    uint32_t n_matched[RG_STOP_STRINGS_MAX]; /* longest prefix of string i that the text ends in */
    uint32_t n_held;                         /* bytes held back: the largest of n_matched */
    int32_t hit;                             /* index of the string found, -1 before */
} rg_stop_state;

/* strings[i] has len[i] bytes, or is NUL-terminated when `len` is NULL. n may be 0. INVALID for an
 * empty or too long string, or too many. */
RG_MUST_CHECK rg_code rg_stop_create(rg_stop **out, const char *const *strings, const size_t *len,
                                     size_t n, rg_status *st);
void rg_stop_destroy(rg_stop *m); /* NULL is allowed */

rg_stop_state rg_stop_begin(void);

/* Reads the next piece. out[0, *n_out) gets the text that is released: all of it before the stop
 * string when state->hit tells that one was found (the rest of the piece is dropped, as is any
 * later one), else all that cannot belong to one. `cap` must be at least state->n_held + len bytes,
 * else INVALID and nothing changes. O(len) for each stop string; allocates nothing. */
RG_MUST_CHECK rg_code rg_stop_feed(const rg_stop *m, rg_stop_state *state, const char *piece,
                                   size_t len, char *out, size_t cap, size_t *n_out, rg_status *st);

/* The end of the text: releases what is held back. `cap` as above, with len 0. */
RG_MUST_CHECK rg_code rg_stop_flush(const rg_stop *m, rg_stop_state *state, char *out, size_t cap,
                                    size_t *n_out, rg_status *st);

#endif
