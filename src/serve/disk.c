#include "serve/disk.h"

#include <string.h>

#define GRID       RG_PREFIX_GRID
#define WANTED_MAX 48u /* the grid's points, at most two a bit, and four marks */

rg_code rg_disk_open(rg_vault **out, const char *folder, uint64_t quota_bytes,
                     const rg_session *session, rg_status *st) {
    *out = NULL;
    if (!folder) return RG_OK;
    uint8_t identity[16];
    RG_TRY(rg_session_identity(session, identity, st));
    return rg_vault_open(out, folder, quota_bytes, identity, st);
}

/* Tokens of a prefix whose rows are entries of their own. */
static uint32_t shared_rows(uint32_t length) {
    return length / GRID * GRID;
}

/* ---- loading -------------------------------------------------------------------------------- */

/* Whether the index has all rows that a state stands on; they count as used. */
static bool has_rows(rg_vault *v, const int32_t *ids, uint32_t length) {
    for (uint32_t to = GRID; to <= length; to += GRID) {
        if (!rg_vault_has(v, RG_VAULT_ROWS, ids, to)) return false;
    }
    return true;
}

static rg_code load_rows(rg_vault *v, rg_session *s, const int32_t *ids, uint32_t length,
                         rg_status *st) {
    rg_code rc = RG_OK;
    for (uint32_t to = GRID; to <= length && rc == RG_OK; to += GRID) {
        uint8_t *data = NULL;
        uint64_t bytes = 0;
        rc = rg_vault_read(v, RG_VAULT_ROWS, ids, to, &data, &bytes, st);
        if (rc == RG_OK) rc = rg_session_import_rows(s, to - GRID, to, data, bytes, st);
        rg_free(data);
    }
    return rc;
}

/* The session is touched once the state is read; *touched tells. */
static rg_code load(rg_vault *v, rg_prefix *p, uint32_t i, const int32_t *ids, uint32_t length,
                    bool *touched, rg_status *st) {
    rg_session *s = rg_prefix_session(p, i);
    uint8_t *data = NULL;
    uint64_t bytes = 0;
    rg_code rc = rg_vault_read(v, RG_VAULT_STATE, ids, length, &data, &bytes, st);
    if (rc == RG_OK && !has_rows(v, ids, length)) {
        rc = rg_fail(st, RG_FORMAT, "rows of a state of %u tokens are gone", length);
    }
    if (rc == RG_OK) {
        rg_prefix_forget(p, i);
        *touched = true;
        rc = load_rows(v, s, ids, length, st);
    }
    if (rc == RG_OK) rc = rg_session_import(s, length, shared_rows(length), data, bytes, st);
    rg_free(data);
    return rc;
}

/* Whether a state of `found` of n tokens is worth its reading beside `cached` ones that are there.
 */
static bool pays(uint32_t found, size_t n, uint32_t cached) {
    return found >= cached + RG_DISK_TOKENS_MIN || (found == n && cached < found);
}

uint32_t rg_disk_load(rg_vault *v, rg_prefix *p, uint32_t i, const int32_t *ids, size_t n,
                      uint32_t cached) {
    if (!v || n < RG_DISK_TOKENS_MIN) return cached;
    rg_session *s = rg_prefix_session(p, i);
    uint32_t most = rg_session_capacity(s);
    for (;;) {
        const uint32_t found = rg_vault_find(v, ids, n, most);
        if (!pays(found, n, cached)) return cached;
        rg_status st = {0};
        bool touched = false;
        const rg_code rc = load(v, p, i, ids, found, &touched, &st);
        if (rc == RG_OK && (found < n || rg_session_has_logits(s))) {
            rg_prefix_keep(p, i);
            return found;
        }
        if (touched) {
            rg_session_reset(s);
            cached = 0;
        }
        if (rc != RG_OK) {
            rg_log(RG_LOG_WARN, "prefix cache: %s", st.message);
            if (rc == RG_NOMEM) return cached;
            rg_vault_forget(v, RG_VAULT_STATE, ids, found);
        }
        most = found - 1;
    }
}

/* ---- saving --------------------------------------------------------------------------------- */

typedef struct wanted {
    uint32_t lengths[WANTED_MAX];
    uint32_t n;
} wanted;

static bool wants(const wanted *w, uint32_t length) {
    for (uint32_t k = 0; k < w->n; k++) {
        if (w->lengths[k] == length) return true;
    }
    return false;
}

static void want(wanted *w, uint32_t length) {
    if (length < RG_DISK_TOKENS_MIN || wants(w, length)) return;
    RG_ASSERT(w->n < WANTED_MAX);
    w->lengths[w->n++] = length;
}

/* What is missed least goes first under the quota: it is written first. Of the grid the last two
 * multiples of each power of two: one that is wanted now was wanted ever since it was passed. */
static wanted choose(uint32_t length, const rg_disk_marks *marks) {
    wanted w = {.n = 0};
    const uint32_t last = marks->prompt / GRID;
    for (uint32_t bit = 22; bit-- > 0;) {
        const uint32_t multiple = last >> bit;
        if (multiple > 1) want(&w, ((multiple - 1) << bit) * GRID);
        if (multiple) want(&w, (multiple << bit) * GRID);
    }
    want(&w, marks->first);
    want(&w, marks->turn);
    want(&w, marks->prompt);
    want(&w, length);
    return w;
}

static void forget_others(rg_vault *v, const int32_t *ids, uint32_t length, const wanted *w) {
    for (uint32_t most = length; most;) {
        const uint32_t found = rg_vault_find(v, ids, length, most);
        if (!found) return;
        if (!wants(w, found)) rg_vault_forget(v, RG_VAULT_STATE, ids, found);
        most = found - 1;
    }
}

static rg_code save_rows(rg_vault *v, const rg_session *s, uint32_t length, rg_status *st) {
    const int32_t *ids = rg_session_ids(s);
    rg_code rc = RG_OK;
    for (uint32_t to = GRID; to <= length && rc == RG_OK; to += GRID) {
        if (rg_vault_has(v, RG_VAULT_ROWS, ids, to)) continue;
        const uint64_t bytes = rg_session_rows_bytes(s, to - GRID, to);
        uint8_t *data = rg_alloc(1, bytes, st);
        if (!data) return RG_NOMEM;
        rg_session_export_rows(s, to - GRID, to, data);
        rc = rg_vault_write(v, RG_VAULT_ROWS, ids, to, data, bytes, st);
        rg_free(data);
    }
    return rc;
}

static rg_code save_state(rg_vault *v, const rg_session *s, const rg_snapshot *snap,
                          rg_status *st) {
    const uint32_t length = rg_snapshot_length(snap), from = shared_rows(length);
    const uint64_t bytes = rg_session_export_bytes(s, snap, from);
    uint8_t *data = rg_alloc(1, bytes, st);
    if (!data) return RG_NOMEM;
    rg_session_export(s, snap, from, data);
    const rg_code rc =
        rg_vault_write(v, RG_VAULT_STATE, rg_session_ids(s), length, data, bytes, st);
    rg_free(data);
    /* Rows stay longer than what stands on them. */
    (void)has_rows(v, rg_session_ids(s), length);
    return rc;
}

/* One wanted state: the session as it stands, or what is kept of it. One that is neither there nor
 * on disk is done without. */
static rg_code save_one(rg_vault *v, rg_prefix *p, uint32_t i, uint32_t length, rg_status *st) {
    rg_session *s = rg_prefix_session(p, i);
    if (rg_vault_has(v, RG_VAULT_STATE, rg_session_ids(s), length)) {
        (void)has_rows(v, rg_session_ids(s), length);
        return RG_OK;
    }
    if (length != rg_session_length(s)) {
        const rg_snapshot *kept = rg_prefix_find(p, i, length);
        return kept ? save_state(v, s, kept, st) : RG_OK;
    }
    rg_snapshot *now = NULL;
    RG_TRY(rg_session_snapshot(&now, s, st));
    const rg_code rc = save_state(v, s, now, st);
    rg_snapshot_destroy(now);
    return rc;
}

/* A conversation that the quota cannot hold would drive out everything, itself included. */
static bool fits(const rg_vault *v, const rg_session *s, uint32_t length) {
    return rg_session_rows_bytes(s, 0, length) + rg_session_snapshot_bytes(s) <= rg_vault_quota(v);
}

void rg_disk_save(rg_vault *v, rg_prefix *p, uint32_t i, const rg_disk_marks *marks) {
    rg_session *s = rg_prefix_session(p, i);
    const uint32_t length = rg_session_length(s);
    if (!v || length < RG_DISK_TOKENS_MIN || marks->prompt > length || !fits(v, s, length)) return;
    const wanted w = choose(length, marks);
    rg_status st = {0};
    forget_others(v, rg_session_ids(s), length, &w);
    rg_code rc = save_rows(v, s, length, &st);
    for (uint32_t k = 0; k < w.n && rc == RG_OK; k++)
        rc = save_one(v, p, i, w.lengths[k], &st);
    if (rc != RG_OK) rg_log(RG_LOG_WARN, "prefix cache: %s", st.message);
}
