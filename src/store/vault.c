#include "store/vault.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#define PATH_MAX_BYTES 4096u
#define INDEX_VERSION  2

struct rg_vault {
    char folder[PATH_MAX_BYTES - 64];
    uint64_t quota;
    uint8_t identity[16];
    int lock_fd;
    sqlite3 *db;
    rg_vault_meters meters;
    int64_t clock;
};

typedef struct header {
    char magic[8];
    uint8_t identity[16];
    uint32_t n_ids, block_bytes;
    uint64_t payload_bytes;
    uint64_t ids_hash;
    uint64_t check; /* xxh3-64 of the header before it */
} header;
_Static_assert(sizeof(header) == 56, "layout of the file");

typedef struct block_head {
    uint32_t stored, raw;
    uint64_t hash;
} block_head;
_Static_assert(sizeof(block_head) == 16, "layout of the file");

static const char MAGIC[2][9] = {"RGSTATE1", "RGROWS_1"}; /* by kind */

/* ---- names ---------------------------------------------------------------------------------- */

static XXH128_hash_t key_of(const rg_vault *v, rg_vault_kind kind, const int32_t *ids, uint32_t n) {
    return XXH3_128bits_withSeed(ids, n * sizeof *ids,
                                 XXH3_64bits(v->identity, sizeof v->identity) + kind);
}

static void path_of(const rg_vault *v, XXH128_hash_t key, const char *suffix,
                    char out[PATH_MAX_BYTES]) {
    snprintf(out, PATH_MAX_BYTES, "%s/%016llx%016llx%s", v->folder, (unsigned long long)key.high64,
             (unsigned long long)key.low64, suffix);
}

/* ---- index ---------------------------------------------------------------------------------- */

static rg_code sql_error(const rg_vault *v, const char *what, rg_status *st) {
    return rg_fail(st, RG_IO, "%.120s: index: %s: %.80s", v->folder, what, sqlite3_errmsg(v->db));
}

static rg_code run_sql(rg_vault *v, const char *sql, rg_status *st) {
    return sqlite3_exec(v->db, sql, NULL, NULL, NULL) == SQLITE_OK ? RG_OK
                                                                   : sql_error(v, "statement", st);
}

/* The one number that a statement gives; 0 when it gives none. */
static int64_t number(rg_vault *v, const char *sql) {
    sqlite3_stmt *s = NULL;
    int64_t n = 0;
    if (sqlite3_prepare_v2(v->db, sql, -1, &s, NULL) == SQLITE_OK &&
        sqlite3_step(s) == SQLITE_ROW) {
        n = sqlite3_column_int64(s, 0);
    }
    sqlite3_finalize(s);
    return n;
}

static rg_code open_index(rg_vault *v, rg_status *st) {
    char path[PATH_MAX_BYTES];
    snprintf(path, sizeof path, "%s/index.sqlite", v->folder);
    if (sqlite3_open_v2(path, &v->db,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                        NULL) != SQLITE_OK) {
        return sql_error(v, "open", st);
    }
    RG_TRY(run_sql(v, "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;", st));
    /* What another version indexed is no entry of this one; its files go as strays. */
    if (number(v, "PRAGMA user_version") != INDEX_VERSION) {
        RG_TRY(run_sql(v, "DROP TABLE IF EXISTS entries;", st));
    }
    return run_sql(v,
                   "CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY, identity BLOB NOT "
                   "NULL, kind INTEGER NOT NULL, n INTEGER NOT NULL, bytes INTEGER NOT NULL, used "
                   "INTEGER NOT NULL);"
                   "CREATE INDEX IF NOT EXISTS by_length ON entries (identity, kind, n DESC);"
                   "PRAGMA user_version=2;",
                   st);
}

/* Runs a statement with a key as its first parameter. */
static bool run_with_key(rg_vault *v, const char *sql, XXH128_hash_t key, const int64_t *values,
                         int n_values) {
    sqlite3_stmt *s = NULL;
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, key);
    if (sqlite3_prepare_v2(v->db, sql, -1, &s, NULL) != SQLITE_OK) return false;
    sqlite3_bind_blob(s, 1, c.digest, sizeof c.digest, SQLITE_STATIC);
    for (int i = 0; i < n_values; i++)
        sqlite3_bind_int64(s, 2 + i, values[i]);
    if (n_values > 1) sqlite3_bind_blob(s, 2 + n_values, v->identity, 16, SQLITE_STATIC);
    const bool done = sqlite3_step(s) == SQLITE_DONE;
    sqlite3_finalize(s);
    return done;
}

static int64_t sum_bytes(rg_vault *v) {
    return number(v, "SELECT coalesce(sum(bytes), 0) FROM entries");
}

static void remove_entry(rg_vault *v, XXH128_hash_t key) {
    char path[PATH_MAX_BYTES];
    path_of(v, key, ".rgs", path);
    unlink(path);
    run_with_key(v, "DELETE FROM entries WHERE key = ?1", key, NULL, 0);
    v->meters.bytes = (uint64_t)sum_bytes(v);
}

/* Reads a column with a key; false when it is none. */
static bool column_key(sqlite3_stmt *s, int column, XXH128_hash_t *key) {
    XXH128_canonical_t c;
    if (sqlite3_column_bytes(s, column) != (int)sizeof c.digest) return false;
    memcpy(c.digest, sqlite3_column_blob(s, column), sizeof c.digest);
    *key = XXH128_hashFromCanonical(&c);
    return true;
}

/* The entry used longest ago; false when there is none. */
static bool oldest(rg_vault *v, XXH128_hash_t *key) {
    sqlite3_stmt *s = NULL;
    bool found = false;
    if (sqlite3_prepare_v2(v->db, "SELECT key FROM entries ORDER BY used LIMIT 1", -1, &s, NULL) ==
            SQLITE_OK &&
        sqlite3_step(s) == SQLITE_ROW) {
        found = column_key(s, 0, key);
    }
    sqlite3_finalize(s);
    return found;
}

static void make_room(rg_vault *v, uint64_t bytes) {
    XXH128_hash_t key;
    while ((uint64_t)sum_bytes(v) + bytes > v->quota && oldest(v, &key)) {
        remove_entry(v, key);
        v->meters.evicted++;
    }
}

/* ---- opening -------------------------------------------------------------------------------- */

static rg_code take_lock(rg_vault *v, rg_status *st) {
    char path[PATH_MAX_BYTES];
    snprintf(path, sizeof path, "%s/lock", v->folder);
    v->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (v->lock_fd < 0) return rg_fail_errno(st, RG_IO, errno, "%.150s", path);
    if (flock(v->lock_fd, LOCK_EX | LOCK_NB) == 0) return RG_OK;
    return rg_fail(st, RG_BUSY, "the cache folder %.120s is in use by another process", v->folder);
}

static bool is_indexed(rg_vault *v, const char *name) {
    char half[17] = {0};
    char *end = NULL;
    if (strlen(name) != 36) return false;
    memcpy(half, name, 16);
    const unsigned long long high = strtoull(half, &end, 16);
    if (end != half + 16) return false;
    memcpy(half, name + 16, 16);
    const unsigned long long low = strtoull(half, &end, 16);
    if (end != half + 16) return false;
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, (XXH128_hash_t){.low64 = low, .high64 = high});
    sqlite3_stmt *s = NULL;
    bool found = false;
    if (sqlite3_prepare_v2(v->db, "SELECT 1 FROM entries WHERE key = ?1", -1, &s, NULL) ==
        SQLITE_OK) {
        sqlite3_bind_blob(s, 1, c.digest, sizeof c.digest, SQLITE_STATIC);
        found = sqlite3_step(s) == SQLITE_ROW;
    }
    sqlite3_finalize(s);
    return found;
}

/* What a crash left: temporary files, and files that the index does not know. Entries without a
 * file go when they are looked for. */
static void settle(rg_vault *v) {
    DIR *d = opendir(v->folder);
    if (!d) return;
    const struct dirent *e;
    while ((e = readdir(d))) { // NOLINT(concurrency-mt-unsafe): a stream of our own
        const char *dot = strrchr(e->d_name, '.');
        const bool part = dot && strcmp(dot, ".part") == 0;
        const bool stray = dot && strcmp(dot, ".rgs") == 0 && !is_indexed(v, e->d_name);
        if (part || stray) unlinkat(dirfd(d), e->d_name, 0);
    }
    closedir(d);
}

rg_code rg_vault_open(rg_vault **out, const char *folder, uint64_t quota_bytes,
                      const uint8_t identity[16], rg_status *st) {
    *out = NULL;
    rg_vault *v = rg_alloc(1, sizeof *v, st);
    if (!v) return RG_NOMEM;
    v->lock_fd = -1;
    v->quota = quota_bytes;
    v->clock = (int64_t)time(NULL) << 20;
    memcpy(v->identity, identity, sizeof v->identity);
    rg_code rc = RG_OK;
    if (strlen(folder) >= sizeof v->folder) {
        rc = rg_fail(st, RG_INVALID, "the cache folder's name is too long");
    } else {
        memcpy(v->folder, folder, strlen(folder) + 1);
        if (mkdir(folder, 0700) != 0 && errno != EEXIST) {
            rc = rg_fail_errno(st, RG_IO, errno, "%.150s", folder);
        }
    }
    if (rc == RG_OK) rc = take_lock(v, st);
    if (rc == RG_OK) rc = open_index(v, st);
    if (rc != RG_OK) {
        rg_vault_close(v);
        return rc;
    }
    /* Later than all that was before, also where that was in this very second. */
    const int64_t last = number(v, "SELECT coalesce(max(used), 0) FROM entries");
    if (last > v->clock) v->clock = last;
    settle(v);
    make_room(v, 0);
    v->meters.bytes = (uint64_t)sum_bytes(v);
    *out = v;
    return RG_OK;
}

void rg_vault_close(rg_vault *v) {
    if (!v) return;
    sqlite3_close(v->db);
    if (v->lock_fd >= 0) close(v->lock_fd);
    rg_free(v);
}

/* ---- finding -------------------------------------------------------------------------------- */

uint32_t rg_vault_find(rg_vault *v, const int32_t *ids, size_t n, uint32_t most) {
    sqlite3_stmt *s = NULL;
    uint32_t found = 0;
    static const char sql[] =
        "SELECT key, n FROM entries WHERE identity = ?1 AND kind = 0 AND n <= ?2 "
        "ORDER BY n DESC LIMIT 4096";
    if (sqlite3_prepare_v2(v->db, sql, -1, &s, NULL) != SQLITE_OK) return 0;
    sqlite3_bind_blob(s, 1, v->identity, 16, SQLITE_STATIC);
    sqlite3_bind_int64(s, 2, (int64_t)(n < most ? n : most));
    while (!found && sqlite3_step(s) == SQLITE_ROW) {
        XXH128_hash_t key;
        const int64_t length = sqlite3_column_int64(s, 1);
        if (length < 1 || (size_t)length > n || !column_key(s, 0, &key)) continue;
        if (XXH128_isEqual(key, key_of(v, RG_VAULT_STATE, ids, (uint32_t)length)))
            found = (uint32_t)length;
    }
    sqlite3_finalize(s);
    return found;
}

/* ---- reading -------------------------------------------------------------------------------- */

static rg_code read_all(FILE *f, void *to, size_t bytes, const char *path, rg_status *st) {
    if (fread(to, 1, bytes, f) == bytes) return RG_OK;
    return rg_fail(st, RG_FORMAT, "%.150s ends too early", path);
}

static rg_code read_header(const rg_vault *v, FILE *f, rg_vault_kind kind, const int32_t *ids,
                           uint32_t n, header *h, const char *path, rg_status *st) {
    RG_TRY(read_all(f, h, sizeof *h, path, st));
    const bool whole = memcmp(h->magic, MAGIC[kind], sizeof h->magic) == 0 &&
                       h->check == XXH3_64bits(h, offsetof(header, check)) &&
                       h->block_bytes == RG_VAULT_BLOCK;
    if (!whole) return rg_fail(st, RG_FORMAT, "%.150s: the header is damaged", path);
    if (memcmp(h->identity, v->identity, sizeof h->identity) != 0 || h->n_ids != n) {
        return rg_fail(st, RG_FORMAT, "%.150s belongs to another model or prompt", path);
    }
    int32_t *own = rg_alloc(n, sizeof *own, st);
    if (!own) return RG_NOMEM;
    rg_code rc = read_all(f, own, n * sizeof *own, path, st);
    /* Names are hashes: the tokens themselves decide. */
    if (rc == RG_OK && memcmp(own, ids, n * sizeof *own) != 0) {
        rc = rg_fail(st, RG_FORMAT, "%.150s holds other tokens", path);
    }
    rg_free(own);
    return rc;
}

static rg_code read_blocks(FILE *f, uint8_t *to, uint64_t bytes, const char *path, rg_status *st) {
    uint8_t *stored = rg_alloc(1, ZSTD_compressBound(RG_VAULT_BLOCK), st);
    if (!stored) return RG_NOMEM;
    rg_code rc = RG_OK;
    for (uint64_t at = 0; at < bytes && rc == RG_OK;) {
        const size_t raw = bytes - at < RG_VAULT_BLOCK ? (size_t)(bytes - at) : RG_VAULT_BLOCK;
        block_head b;
        RG_GO(read_all(f, &b, sizeof b, path, st));
        if (b.raw != raw || b.stored > ZSTD_compressBound(RG_VAULT_BLOCK)) {
            RG_GO(rg_fail(st, RG_FORMAT, "%.150s: a block's head is damaged", path));
        }
        RG_GO(read_all(f, stored, b.stored, path, st));
        if (XXH3_64bits(stored, b.stored) != b.hash) {
            RG_GO(rg_fail(st, RG_FORMAT, "%.150s: the block at %llu is damaged", path,
                          (unsigned long long)at));
        }
        if (b.stored == b.raw) {
            memcpy(to + at, stored, raw);
        } else if (ZSTD_decompress(to + at, raw, stored, b.stored) != raw) {
            RG_GO(rg_fail(st, RG_FORMAT, "%.150s: the block at %llu does not unpack", path,
                          (unsigned long long)at));
        }
        at += raw;
    }
cleanup:
    rg_free(stored);
    return rc;
}

static rg_code read_file(const rg_vault *v, const char *path, rg_vault_kind kind,
                         const int32_t *ids, uint32_t n, uint8_t **data, uint64_t *bytes,
                         rg_status *st) {
    FILE *f = fopen(path, "rbe");
    if (!f) return rg_fail_errno(st, RG_IO, errno, "%.150s", path);
    struct stat info;
    header h;
    rg_code rc = read_header(v, f, kind, ids, n, &h, path, st);
    /* zstd packs a thousandfold at most: a length beyond that is damage, not a wish for memory. */
    if (rc == RG_OK && (fstat(fileno(f), &info) != 0 || h.payload_bytes == 0 ||
                        h.payload_bytes / 20000 > (uint64_t)info.st_size)) {
        rc = rg_fail(st, RG_FORMAT, "%.150s: the length is damaged", path);
    }
    if (rc == RG_OK) {
        *data = rg_alloc(1, h.payload_bytes, st);
        rc = *data ? read_blocks(f, *data, h.payload_bytes, path, st) : RG_NOMEM;
    }
    if (rc == RG_OK) *bytes = h.payload_bytes;
    fclose(f);
    return rc;
}

static bool touch(rg_vault *v, XXH128_hash_t key) {
    const int64_t now = ++v->clock;
    return run_with_key(v, "UPDATE entries SET used = ?2 WHERE key = ?1", key, &now, 1) &&
           sqlite3_changes(v->db) == 1;
}

bool rg_vault_has(rg_vault *v, rg_vault_kind kind, const int32_t *ids, uint32_t n) {
    return touch(v, key_of(v, kind, ids, n));
}

rg_code rg_vault_read(rg_vault *v, rg_vault_kind kind, const int32_t *ids, uint32_t n,
                      uint8_t **data, uint64_t *bytes, rg_status *st) {
    char path[PATH_MAX_BYTES];
    const XXH128_hash_t key = key_of(v, kind, ids, n);
    *data = NULL;
    *bytes = 0;
    path_of(v, key, ".rgs", path);
    const rg_code rc = read_file(v, path, kind, ids, n, data, bytes, st);
    if (rc == RG_OK) {
        touch(v, key);
        v->meters.hits += kind == RG_VAULT_STATE;
        return RG_OK;
    }
    rg_free(*data);
    *data = NULL;
    if (rc != RG_NOMEM) {
        remove_entry(v, key);
        v->meters.damaged++;
    }
    return rc;
}

/* ---- writing -------------------------------------------------------------------------------- */

static rg_code write_all(FILE *f, const void *from, size_t bytes, const char *path, rg_status *st) {
    if (fwrite(from, 1, bytes, f) == bytes) return RG_OK;
    return rg_fail_errno(st, RG_IO, errno, "%.150s", path);
}

static rg_code write_blocks(FILE *f, const uint8_t *data, uint64_t bytes, const char *path,
                            rg_status *st) {
    const size_t bound = ZSTD_compressBound(RG_VAULT_BLOCK);
    uint8_t *packed = rg_alloc(1, bound, st);
    if (!packed) return RG_NOMEM;
    rg_code rc = RG_OK;
    for (uint64_t at = 0; at < bytes && rc == RG_OK; at += RG_VAULT_BLOCK) {
        const size_t raw = bytes - at < RG_VAULT_BLOCK ? (size_t)(bytes - at) : RG_VAULT_BLOCK;
        const size_t n = ZSTD_compress(packed, bound, data + at, raw, 1);
        const bool pays = !ZSTD_isError(n) && n < raw;
        const void *stored = pays ? packed : data + at;
        const block_head b = {(uint32_t)(pays ? n : raw), (uint32_t)raw,
                              XXH3_64bits(stored, pays ? n : raw)};
        RG_GO(write_all(f, &b, sizeof b, path, st));
        rc = write_all(f, stored, b.stored, path, st);
    }
cleanup:
    rg_free(packed);
    return rc;
}

static rg_code write_part(const rg_vault *v, const char *path, rg_vault_kind kind,
                          const int32_t *ids, uint32_t n, const void *data, uint64_t bytes,
                          rg_status *st) {
    FILE *f = fopen(path, "wbe");
    if (!f) return rg_fail_errno(st, RG_IO, errno, "%.150s", path);
    header h = {.n_ids = n,
                .block_bytes = RG_VAULT_BLOCK,
                .payload_bytes = bytes,
                .ids_hash = XXH3_64bits(ids, n * sizeof *ids)};
    memcpy(h.magic, MAGIC[kind], sizeof h.magic);
    memcpy(h.identity, v->identity, sizeof h.identity);
    h.check = XXH3_64bits(&h, offsetof(header, check));
    rg_code rc = write_all(f, &h, sizeof h, path, st);
    if (rc == RG_OK) rc = write_all(f, ids, n * sizeof *ids, path, st);
    if (rc == RG_OK) rc = write_blocks(f, data, bytes, path, st);
    if (rc == RG_OK && (fflush(f) != 0 || fsync(fileno(f)) != 0)) {
        rc = rg_fail_errno(st, RG_IO, errno, "%.150s", path);
    }
    if (fclose(f) != 0 && rc == RG_OK) rc = rg_fail_errno(st, RG_IO, errno, "%.150s", path);
    return rc;
}

static rg_code check_space(const rg_vault *v, uint64_t bytes, rg_status *st) {
    struct statvfs fs;
    if (statvfs(v->folder, &fs) != 0) return RG_OK;
    const uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (room >= bytes + RG_VAULT_FREE_FLOOR) return RG_OK;
    return rg_fail(st, RG_IO, "%.100s has %llu MiB free, %llu are needed", v->folder,
                   (unsigned long long)(room >> 20),
                   (unsigned long long)((bytes + RG_VAULT_FREE_FLOOR) >> 20));
}

static rg_code write_entry(rg_vault *v, rg_vault_kind kind, const int32_t *ids, uint32_t n,
                           const void *data, uint64_t bytes, rg_status *st) {
    const XXH128_hash_t key = key_of(v, kind, ids, n);
    char part[PATH_MAX_BYTES], path[PATH_MAX_BYTES];
    struct stat info;
    path_of(v, key, ".part", part);
    path_of(v, key, ".rgs", path);
    RG_TRY(check_space(v, bytes, st));
    rg_code rc = write_part(v, part, kind, ids, n, data, bytes, st);
    if (rc == RG_OK && stat(part, &info) != 0) rc = rg_fail_errno(st, RG_IO, errno, "%.150s", part);
    if (rc == RG_OK && (uint64_t)info.st_size > v->quota) {
        rc = rg_fail(st, RG_INVALID, "a prefix of %lld MiB is larger than the quota",
                     (long long)(info.st_size >> 20));
    }
    if (rc == RG_OK) {
        make_room(v, (uint64_t)info.st_size);
        if (rename(part, path) != 0) rc = rg_fail_errno(st, RG_IO, errno, "%.150s", path);
    }
    if (rc != RG_OK) {
        unlink(part);
        return rc;
    }
    const int64_t values[4] = {(int64_t)n, (int64_t)info.st_size, ++v->clock, kind};
    if (!run_with_key(v,
                      "INSERT OR REPLACE INTO entries (key, n, bytes, used, kind, identity) VALUES "
                      "(?1, ?2, ?3, ?4, ?5, ?6)",
                      key, values, 4)) {
        unlink(path);
        return sql_error(v, "insert", st);
    }
    return RG_OK;
}

rg_code rg_vault_write(rg_vault *v, rg_vault_kind kind, const int32_t *ids, uint32_t n,
                       const void *data, uint64_t bytes, rg_status *st) {
    if (n < 1 || n > RG_VAULT_IDS_MAX || bytes == 0) {
        return rg_fail(st, RG_INVALID, "a prefix of %u tokens and %llu bytes is not kept", n,
                       (unsigned long long)bytes);
    }
    const rg_code rc = write_entry(v, kind, ids, n, data, bytes, st);
    v->meters.bytes = (uint64_t)sum_bytes(v);
    if (rc == RG_OK) {
        v->meters.writes++;
    } else {
        v->meters.failed++;
    }
    return rc;
}

void rg_vault_forget(rg_vault *v, rg_vault_kind kind, const int32_t *ids, uint32_t n) {
    remove_entry(v, key_of(v, kind, ids, n));
}

uint64_t rg_vault_quota(const rg_vault *v) {
    return v->quota;
}

void rg_vault_get_meters(const rg_vault *v, rg_vault_meters *out) {
    *out = v->meters;
}
