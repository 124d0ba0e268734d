/* vault: sessions' beginnings as files in one folder, with an index. An entry is a state behind
 * some tokens, or rows of the last of them that several states can share; the vault does not look
 * inside.
 *
 * A file is written under a temporary name, synced, renamed, and only then indexed; every block of
 * it carries a checksum. So under its name a file is whole, or its damage is found when it is read:
 * then it is removed and was never there. The index (SQLite, WAL) and the files may disagree after
 * a crash; opening the vault settles that.
 *
 * File, little-endian: header, ids [n_ids] i32, then blocks {stored u32, raw u32, xxh3-64 of the
 * stored bytes} and their bytes, zstd level 1 where that is smaller.
 *
 * Invariants:
 *  1. the files of the index take at most the quota, the least recently used go first;
 *  2. a failed write (full disk, no rights) leaves nothing behind and is no error of the caller's;
 *  3. bytes that come out are those that went in.
 * One vault at a time on a folder: a lock file says so. Thread: its owner's.
 */
#ifndef RG_STORE_VAULT_H
#define RG_STORE_VAULT_H

#include "base/base.h"

#define RG_VAULT_BLOCK      ((size_t)1 << 20)
#define RG_VAULT_FREE_FLOOR ((uint64_t)256 << 20) /* of the file system, never taken */
#define RG_VAULT_IDS_MAX    (1u << 24)

typedef struct rg_vault rg_vault;

typedef enum rg_vault_kind { RG_VAULT_STATE, RG_VAULT_ROWS } rg_vault_kind;

typedef struct rg_vault_meters {
    uint64_t hits, writes, evicted, damaged, failed;
    uint64_t bytes; /* of all files */
} rg_vault_meters;

/* Makes the folder if need be. BUSY when another process has it. */
RG_MUST_CHECK rg_code rg_vault_open(rg_vault **out, const char *folder, uint64_t quota_bytes,
                                    const uint8_t identity[16], rg_status *st);
void rg_vault_close(rg_vault *v); /* NULL is allowed */

/* Tokens of the longest state that ids[n] begin with; 0: none. States longer than `most` tokens are
 * passed over. */
uint32_t rg_vault_find(rg_vault *v, const int32_t *ids, size_t n, uint32_t most);
/* Whether the index has the entry of exactly ids[n]; it counts as used. */
bool rg_vault_has(rg_vault *v, rg_vault_kind kind, const int32_t *ids, uint32_t n);
/* The payload of the entry of exactly ids[n]; IO or FORMAT when it cannot be read, and then the
 * entry is gone. Release *data with rg_free. */
RG_MUST_CHECK rg_code rg_vault_read(rg_vault *v, rg_vault_kind kind, const int32_t *ids, uint32_t n,
                                    uint8_t **data, uint64_t *bytes, rg_status *st);
/* Keeps a payload; an entry of the same ids is replaced. Entries that take more than the quota are
 * not kept (INVALID). */
RG_MUST_CHECK rg_code rg_vault_write(rg_vault *v, rg_vault_kind kind, const int32_t *ids,
                                     uint32_t n, const void *data, uint64_t bytes, rg_status *st);
void rg_vault_forget(rg_vault *v, rg_vault_kind kind, const int32_t *ids, uint32_t n);
uint64_t rg_vault_quota(const rg_vault *v);
void rg_vault_get_meters(const rg_vault *v, rg_vault_meters *out);

#endif
