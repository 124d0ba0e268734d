/* disk: prefixes of sessions to and from the vault. Engine thread. */
#ifndef RG_SERVE_DISK_H
#define RG_SERVE_DISK_H

#include "serve/prefix.h"
#include "store/store.h"

#define RG_DISK_TOKENS_MIN 32u /* shorter prefixes are evaluated faster than they are read */

/* *out is NULL, and every other call then does nothing, without a folder. */
RG_MUST_CHECK rg_code rg_disk_open(rg_vault **out, const char *folder, uint64_t quota_bytes,
                                   const rg_session *session, rg_status *st);
/* Puts session i to a longer prefix of ids[n] than its `cached` tokens, if the vault has one.
 * Returns the tokens that need no evaluation then. */
uint32_t rg_disk_load(rg_vault *v, rg_prefix *p, uint32_t i, const int32_t *ids, size_t n,
                      uint32_t cached);
/* Keeps where session i stands, and its prompt of `n_prompt` tokens; what it kept of earlier turns
 * goes. Failures are logged: a cache that cannot be written is no error. */
void rg_disk_save(rg_vault *v, rg_prefix *p, uint32_t i, uint32_t n_prompt);

#endif
