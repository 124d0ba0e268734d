/* disk: prefixes of sessions to and from the vault. Engine thread.
 *
 * A state on disk has the rows behind the last multiple of RG_PREFIX_GRID in its own file. Rows
 * before that are entries of RG_PREFIX_GRID tokens each, which all states that begin with these
 * tokens share: rows are written once. States are large (the recurrent part has the same size at
 * every length), so of the grid's points only the last two multiples of each power of two stay:
 * going back k tokens costs at most about k more.
 *
 * Rows count as used later than every state that stands on them, so states go first under the
 * quota. A state whose rows are gone is removed when it is found.
 */
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
/* Lengths of a conversation that are likely to be gone back to. */
typedef struct rg_disk_marks {
    uint32_t prompt; /* its end */
    uint32_t turn;   /* where the last user turn begins; 0: nowhere */
    uint32_t first;  /* where the first one does: what other conversations share; 0: nowhere */
} rg_disk_marks;

/* Keeps where session i stands, its marks and points of the grid; other states of the conversation
 * go. Failures are logged: a cache that cannot be written is no error. */
void rg_disk_save(rg_vault *v, rg_prefix *p, uint32_t i, const rg_disk_marks *marks);

#endif
