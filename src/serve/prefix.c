#include "serve/prefix.h"

#include <string.h>

#define SNAPSHOTS_MAX 4096u

typedef struct kept {
    rg_snapshot *snapshot;
    uint32_t session;
    uint64_t used; /* clock when it was made or used last */
} kept;

struct rg_prefix {
    rg_session *sessions[RG_BATCH_MAX];
    uint64_t used[RG_BATCH_MAX]; /* clock */
    uint32_t n_session;
    kept *list; /* [SNAPSHOTS_MAX] */
    uint32_t n_kept, n_max;
    uint64_t each_bytes;
    uint64_t clock;
};

rg_code rg_prefix_create(rg_prefix **out, rg_engine *engine, uint32_t n_session,
                         const rg_session_options *opt, uint64_t budget_bytes, rg_status *st) {
    *out = NULL;
    rg_prefix *p = rg_alloc(1, sizeof *p, st);
    if (!p) return RG_NOMEM;
    rg_code rc = RG_OK;
    p->list = rg_alloc(SNAPSHOTS_MAX, sizeof *p->list, st);
    if (!p->list) rc = RG_NOMEM;
    for (uint32_t i = 0; i < n_session && rc == RG_OK; i++) {
        rc = rg_session_create(&p->sessions[i], engine, opt, st);
        if (rc == RG_OK) p->n_session++;
    }
    if (rc != RG_OK) {
        rg_prefix_destroy(p);
        return rc;
    }
    p->each_bytes = rg_session_snapshot_bytes(p->sessions[0]);
    const uint64_t n = p->each_bytes ? budget_bytes / p->each_bytes : 0;
    p->n_max = n < SNAPSHOTS_MAX ? (uint32_t)n : SNAPSHOTS_MAX;
    *out = p;
    return RG_OK;
}

void rg_prefix_destroy(rg_prefix *p) {
    if (!p) return;
    for (uint32_t i = 0; p->list && i < p->n_kept; i++)
        rg_snapshot_destroy(p->list[i].snapshot);
    for (uint32_t i = 0; i < p->n_session; i++)
        rg_session_destroy(p->sessions[i]);
    rg_free(p->list);
    rg_free(p);
}

rg_session *rg_prefix_session(rg_prefix *p, uint32_t i) {
    RG_ASSERT(i < p->n_session);
    return p->sessions[i];
}

uint64_t rg_prefix_bytes(const rg_prefix *p) {
    return p->n_kept * p->each_bytes;
}

uint32_t rg_prefix_count(const rg_prefix *p) {
    return p->n_kept;
}

static void forget(rg_prefix *p, uint32_t at) {
    rg_snapshot_destroy(p->list[at].snapshot);
    p->list[at] = p->list[--p->n_kept];
}

static void forget_beyond(rg_prefix *p, uint32_t session, uint32_t length) {
    for (uint32_t i = p->n_kept; i-- > 0;) {
        const kept *k = &p->list[i];
        if (k->session == session && rg_snapshot_length(k->snapshot) > length) forget(p, i);
    }
}

static uint32_t common(const rg_session *s, const int32_t *ids, size_t n) {
    const uint32_t length = rg_session_length(s);
    const int32_t *own = rg_session_ids(s);
    uint32_t i = 0;
    while (i < length && i < n && own[i] == ids[i])
        i++;
    return i;
}

/* The best way to ids[n] through one session. */
typedef struct way {
    uint32_t session;
    uint32_t length; /* tokens it saves; 0: none */
    uint32_t kept;   /* index of the snapshot; UINT32_MAX: the session as it stands */
} way;

/* A prefix that is the whole prompt must have logits to pick from. */
static bool usable(uint32_t length, size_t n, bool has_logits) {
    return length > 0 && (length < n || (length == n && has_logits));
}

static way way_through(rg_prefix *p, uint32_t session, const rg_prefix_wish *wish, bool standing) {
    const rg_session *s = p->sessions[session];
    const size_t n = wish->n;
    way best = {session, 0, UINT32_MAX};
    const uint32_t shared = common(s, wish->ids, n), length = rg_session_length(s);
    if (standing && shared == length && usable(length, n, rg_session_can_pick(s, wish->n_best))) {
        best.length = length;
    }
    for (uint32_t i = 0; i < p->n_kept; i++) {
        const kept *k = &p->list[i];
        if (k->session != session) continue;
        const uint32_t l = rg_snapshot_length(k->snapshot);
        /* Snapshots at a prompt's end hold logits; others are passed by the next case. */
        if (l > shared || l <= best.length || !usable(l, n, rg_snapshot_has_logits(k->snapshot))) {
            continue;
        }
        best.length = l;
        best.kept = i;
    }
    return best;
}

/* The session used longest ago among those not busy. */
static uint32_t oldest_idle(const rg_prefix *p, const bool *busy) {
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < p->n_session; i++) {
        if (busy[i]) continue;
        if (best == UINT32_MAX || p->used[i] < p->used[best]) best = i;
    }
    RG_ASSERT(best != UINT32_MAX);
    return best;
}

/* Takes the way with its own session; false when it cannot be taken. */
static bool go(rg_prefix *p, const way *w) {
    if (w->length == 0) return false;
    if (w->kept != UINT32_MAX) {
        kept *k = &p->list[w->kept];
        if (rg_session_rewind(p->sessions[w->session], k->snapshot, NULL) != RG_OK) return false;
        k->used = ++p->clock;
    }
    forget_beyond(p, w->session, w->length);
    return true;
}

static bool copy(rg_prefix *p, const way *w, uint32_t to) {
    if (w->length == 0 || w->kept == UINT32_MAX) return false;
    kept *k = &p->list[w->kept];
    forget_beyond(p, to, 0);
    /* The list may have moved under the index. */
    for (uint32_t i = 0; i < p->n_kept; i++) {
        if (p->list[i].session != w->session) continue;
        if (rg_snapshot_length(p->list[i].snapshot) == w->length) k = &p->list[i];
    }
    k->used = ++p->clock;
    return rg_session_copy(p->sessions[to], p->sessions[w->session], k->snapshot, NULL) == RG_OK;
}

static void start_cold(rg_prefix *p, uint32_t session) {
    forget_beyond(p, session, 0);
    rg_session_reset(p->sessions[session]);
}

uint32_t rg_prefix_choose(rg_prefix *p, const rg_prefix_wish *wish, const bool *busy,
                          uint32_t *cached) {
    way best = {0, 0, UINT32_MAX};
    bool found = false;
    for (uint32_t i = 0; i < p->n_session; i++) {
        const way w = way_through(p, i, wish, !busy[i]);
        if (found && w.length < best.length) continue;
        /* Of equal ways one through an idle session: nothing is copied. */
        if (found && w.length == best.length && (busy[i] || !busy[best.session])) continue;
        best = w;
        found = true;
    }
    uint32_t chosen = oldest_idle(p, busy);
    /* A conversation that shares no more than its beginning is left alone while there is another
     * session to be had. */
    const bool much = 2 * best.length >= rg_session_length(p->sessions[best.session]);
    *cached = best.length;
    if (best.length && !busy[best.session] && (much || chosen == best.session)) {
        chosen = best.session;
        if (!go(p, &best)) best.length = 0;
    } else if (!copy(p, &best, chosen)) {
        best.length = 0;
    }
    if (best.length == 0) {
        start_cold(p, chosen);
        *cached = 0;
    }
    p->used[chosen] = ++p->clock;
    return chosen;
}

void rg_prefix_restore(rg_prefix *p, uint32_t i, const int32_t *ids, size_t n) {
    const rg_prefix_wish wish = {.ids = ids, .n = n};
    const way w = way_through(p, i, &wish, false);
    if (!go(p, &w)) start_cold(p, i);
}

void rg_prefix_keep(rg_prefix *p, uint32_t i) {
    const uint32_t length = rg_session_length(p->sessions[i]);
    if (p->n_max == 0 || length == 0) return;
    for (uint32_t k = 0; k < p->n_kept; k++) {
        kept *old = &p->list[k];
        if (old->session != i || rg_snapshot_length(old->snapshot) != length) continue;
        if (rg_snapshot_has_logits(old->snapshot) || !rg_session_has_logits(p->sessions[i])) {
            old->used = ++p->clock;
            return;
        }
        forget(p, k);
        break;
    }
    if (p->n_kept == p->n_max) {
        uint32_t oldest = 0;
        for (uint32_t k = 1; k < p->n_kept; k++) {
            if (p->list[k].used < p->list[oldest].used) oldest = k;
        }
        forget(p, oldest);
    }
    kept k = {.session = i, .used = ++p->clock};
    if (rg_session_snapshot(&k.snapshot, p->sessions[i], NULL) != RG_OK) return;
    p->list[p->n_kept++] = k;
}

const rg_snapshot *rg_prefix_find(const rg_prefix *p, uint32_t i, uint32_t length) {
    for (uint32_t k = 0; k < p->n_kept; k++) {
        if (p->list[k].session == i && rg_snapshot_length(p->list[k].snapshot) == length) {
            return p->list[k].snapshot;
        }
    }
    return NULL;
}

void rg_prefix_forget(rg_prefix *p, uint32_t i) {
    forget_beyond(p, i, 0);
}

uint32_t rg_prefix_next(const rg_prefix *p, uint32_t from, uint32_t n, uint32_t turn) {
    if (p->n_max == 0) return n;
    uint32_t next = from / RG_PREFIX_GRID * RG_PREFIX_GRID + RG_PREFIX_GRID;
    if (turn > from && turn < next) next = turn;
    return next < n ? next : n;
}
