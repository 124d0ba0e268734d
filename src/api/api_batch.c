/* Several sessions in one window; snapshots; sessions as bytes. */
#include <string.h>
#include <xxhash.h>

#include "api/api.h"

#define EXPORT_VERSION 3u /* of what rg_session_export writes, and of the arithmetic behind it */

struct rg_snapshot {
    uint32_t length;
    bool has_logits;
    XXH128_hash_t ids; /* of the tokens below */
    uint8_t *state;    /* [rg_seq_state_bytes] */
    float *logits;     /* [n_vocab] */
};

/* ---- windows of several sessions ------------------------------------------------------------ */

/* What becomes of the parts: rows with the guesses behind them. */
typedef struct batch {
    rg_engine *engine;
    const rg_batch_part *parts;
    size_t n_parts;
    const int32_t *given; /* the caller's ids */
    rg_batch_rows rows[RG_BATCH_MAX];
    uint32_t n_given; /* rows of the caller */
    uint32_t n_open;  /* parts */
    int32_t ids[RG_CHUNK_MAX];
} batch;

static bool may_open(const rg_batch_part *p) {
    return p->reply && p->session->drafter && p->n_ids == 1;
}

static rg_code check_batch(batch *b, rg_status *st) {
    const uint32_t chunk = rg_core_chunk(b->engine->core);
    if (b->n_parts < 1 || b->n_parts > RG_BATCH_MAX) {
        return rg_fail(st, RG_INVALID, "%zu sessions for one window, 1..%d are possible",
                       b->n_parts, RG_BATCH_MAX);
    }
    for (size_t i = 0; i < b->n_parts; i++) {
        const rg_session *s = b->parts[i].session;
        if (s->pending >= 0 || s->dump || s->open.n) {
            return rg_fail(st, RG_INVALID,
                           "a session with a dump, a pending token or an open window shares none");
        }
        if (b->parts[i].n_ids > chunk - b->n_given) {
            return rg_fail(st, RG_INVALID, "more rows for one window than its %u", chunk);
        }
        b->n_given += b->parts[i].n_ids;
        b->n_open += may_open(&b->parts[i]) && b->n_open < RG_OPEN_ROWS_MAX;
    }
    return RG_OK;
}

/* Guesses that each open part may have: all get the same. */
static uint32_t fair_share(const batch *b) {
    const uint32_t by_head = RG_OPEN_ROWS_MAX - b->n_open;
    const uint32_t by_chunk = rg_core_chunk(b->engine->core) - b->n_given;
    return b->n_open ? (by_head < by_chunk ? by_head : by_chunk) / b->n_open : 0;
}

/* The rows of an open part. Rows of the others count as one token each, unless a prompt is among
 * them: beside it guesses cost next to nothing. */
static rg_code guess(const batch *b, const rg_batch_part *p, int32_t id, const atomic_bool *cancel,
                     rg_status *st) {
    rg_session *s = p->session;
    const uint32_t share = fair_share(b);
    const bool prompt = b->n_given > b->n_parts;
    const rg_drafter_request req = {.next = id,
                                    .n_max = p->n_more < share ? p->n_more : share,
                                    .sampler = rg_reply_sampler(p->reply),
                                    .others = prompt ? 0 : b->n_given - 1,
                                    .cancel = cancel};
    if (s->drafted != p->reply) rg_drafter_begin(s->drafter);
    s->drafted = p->reply;
    return rg_drafter_make(s->drafter, &req, &s->open, st);
}

/* Fills rows and ids. A failure of the draft block is one of the window. */
static rg_code make_rows(batch *b, const atomic_bool *cancel, rg_status *st) {
    uint32_t from = 0, to = 0, n_open = 0;
    for (size_t i = 0; i < b->n_parts; i++) {
        const rg_batch_part *p = &b->parts[i];
        rg_session *s = p->session;
        const bool open = may_open(p) && n_open < b->n_open;
        b->rows[i] = (rg_batch_rows){.seq = s->seq,
                                     .n = p->n_ids,
                                     .open = open,
                                     .logits = p->want_logits ? s->logits : NULL,
                                     .n_best = p->n_best,
                                     .best = open ? NULL : &s->few};
        if (open) {
            n_open++;
            RG_TRY(guess(b, p, b->given[from], cancel, st));
            b->rows[i].n = s->open.n;
        }
        memcpy(b->ids + to, open ? s->open.ids : b->given + from, b->rows[i].n * sizeof *b->ids);
        from += p->n_ids;
        to += b->rows[i].n;
    }
    return RG_OK;
}

static void end_rows(batch *b, const float *logits, bool ok, double ms) {
    const size_t V = b->engine->model->hp.n_vocab;
    for (size_t i = 0; i < b->n_parts; i++) {
        rg_session *s = b->parts[i].session;
        const bool open = b->rows[i].open;
        s->has_logits = ok && b->parts[i].want_logits && !open;
        s->open_at = 0;
        s->open.logits = open ? logits : NULL;
        if (open && ok) logits += s->open.n * V;
        if (!ok) s->open.n = 0;
        s->stats.compute_ms += ms;
        if (b->parts[i].n_ids == 1) {
            s->stats.decode_tokens += !open;
            s->stats.decode_ms += ms;
        } else {
            s->stats.prefill_tokens += b->parts[i].n_ids;
            s->stats.prefill_ms += ms;
        }
    }
}

/* A window that could not be asked for leaves the sessions as they are, but for what their draft
 * blocks did: they are not told from those of a window that broke off. */
static void forget_guesses(const batch *b) {
    for (size_t i = 0; i < b->n_parts; i++)
        b->parts[i].session->open.n = 0;
}

rg_code rg_session_eval_batch(rg_engine *e, const rg_batch_part *parts, size_t n_parts,
                              const int32_t *ids, const rg_session *cancel, rg_status *st) {
    _Static_assert(RG_BATCH_MAX == RG_BATCH_PARTS_MAX, "one limit");
    batch b = {.engine = e, .parts = parts, .n_parts = n_parts, .given = ids};
    const atomic_bool *flag = cancel ? &cancel->cancel : NULL;
    const float *logits = NULL;
    RG_TRY(check_batch(&b, st));
    const uint64_t begin = rg_now_ns();
    rg_code rc = make_rows(&b, flag, st);
    const uint64_t drafted = rg_now_ns();
    if (rc == RG_OK) {
        rc = rg_core_eval_batch(e->core, b.rows, (uint32_t)n_parts, b.ids, flag, &logits, st);
    }
    const double ms = (double)(rg_now_ns() - begin) * 1e-6;
    if (rc == RG_INVALID) forget_guesses(&b);
    if (rc == RG_INVALID) return rc;
    e->call_ms += ms;
    e->window_ns = b.n_given > n_parts ? 0 : rg_now_ns() - drafted;
    end_rows(&b, logits, rc == RG_OK, ms);
    return rc;
}

bool rg_session_is_open(const rg_session *s) {
    return s->open.n > 0;
}

bool rg_session_follow(rg_session *s, int32_t id) {
    if (s->open_at + 1 >= s->open.n || s->open.ids[s->open_at + 1] != id) return false;
    s->open_at++;
    return true;
}

rg_code rg_session_close_batch(rg_engine *e, const rg_batch_part *parts, size_t n_parts,
                               rg_status *st) {
    const size_t V = e->model->hp.n_vocab;
    rg_verify open[RG_BATCH_MAX];
    uint32_t n = 0, rows = 0;
    for (size_t i = 0; i < n_parts; i++) {
        rg_session *s = parts[i].session;
        rows += s->open.n ? s->open.n : parts[i].n_ids;
        if (!s->open.n) continue;
        RG_ASSERT(n < RG_BATCH_MAX);
        rg_session_take_logits(s, s->open.logits + s->open_at * V);
        open[n++] = (rg_verify){s->seq, s->open.ids, s->open.n, s->open_at + 1};
    }
    if (n == 0) return RG_OK;
    const uint64_t begin = rg_now_ns();
    const rg_code rc = rg_core_accept(e->core, open, n, st);
    const uint64_t ns = rg_now_ns() - begin;
    uint64_t window_ns = e->window_ns ? e->window_ns + ns : 0;
    e->call_ms += (double)ns * 1e-6;
    for (size_t i = 0; i < n_parts; i++) {
        rg_session *s = parts[i].session;
        if (!s->open.n) continue;
        s->stats.decode_tokens += s->open_at + 1;
        rg_drafter_learn(s->drafter, s->open_at + 1, rows, window_ns);
        window_ns = 0; /* it is learned once */
        s->has_logits = rc == RG_OK;
        s->open.n = 0;
    }
    return rc;
}

uint32_t rg_session_window_rows(const rg_session *s, uint32_t n) {
    return rg_seq_window_rows(s->seq, n);
}

/* ---- snapshots ------------------------------------------------------------------------------ */

static XXH128_hash_t hash_ids(const rg_session *s, uint32_t n) {
    return XXH3_128bits(rg_seq_ids(s->seq), n * sizeof(int32_t));
}

static rg_code check_copies(const rg_session *s, rg_status *st) {
    if (rg_seq_copies(s->seq)) return RG_OK;
    return rg_fail(st, RG_UNSUPPORTED, "states on a GPU are not copied out or in");
}

rg_code rg_session_snapshot(rg_snapshot **out, rg_session *s, rg_status *st) {
    *out = NULL;
    RG_TRY(check_copies(s, st));
    const uint32_t n = rg_seq_length(s->seq);
    if (n == 0 || rg_seq_failed(s->seq) || s->pending >= 0 || s->open.n) {
        return rg_fail(st, RG_INVALID,
                       "a session without tokens, with a pending one, an open window or after a "
                       "failure has no snapshot");
    }
    const size_t V = s->engine->model->hp.n_vocab;
    rg_snapshot *p = rg_alloc(1, sizeof *p, st);
    if (!p) return RG_NOMEM;
    p->state = rg_alloc(1, rg_seq_state_bytes(s->seq), st);
    p->logits = rg_alloc(V, sizeof *p->logits, st);
    if (!p->state || !p->logits) {
        rg_snapshot_destroy(p);
        return RG_NOMEM;
    }
    p->length = n;
    p->ids = hash_ids(s, n);
    p->has_logits = s->has_logits && !s->few.n;
    if (p->has_logits) memcpy(p->logits, s->logits, V * sizeof *p->logits);
    rg_seq_state_save(s->seq, p->state);
    *out = p;
    return RG_OK;
}

void rg_snapshot_destroy(rg_snapshot *p) {
    if (!p) return;
    rg_free(p->state);
    rg_free(p->logits);
    rg_free(p);
}

uint32_t rg_snapshot_length(const rg_snapshot *p) {
    return p->length;
}

bool rg_snapshot_has_logits(const rg_snapshot *p) {
    return p->has_logits;
}

uint64_t rg_session_snapshot_bytes(const rg_session *s) {
    return sizeof(rg_snapshot) + rg_seq_state_bytes(s->seq) +
           s->engine->model->hp.n_vocab * sizeof(float);
}

/* Takes the recurrent part and the logits over; the rows below are there. */
static void take(rg_session *s, const rg_snapshot *p) {
    rg_seq_state_load(s->seq, p->length, p->state);
    s->has_logits = p->has_logits;
    s->few.n = 0;
    const size_t V = s->engine->model->hp.n_vocab;
    if (p->has_logits) memcpy(s->logits, p->logits, V * sizeof *s->logits);
    s->pending = -1;
    s->open.n = 0;
    atomic_store(&s->cancel, false);
}

rg_code rg_session_rewind(rg_session *s, const rg_snapshot *p, rg_status *st) {
    const uint32_t n = rg_seq_length(s->seq);
    if (p->length > n || !XXH128_isEqual(p->ids, hash_ids(s, p->length))) {
        return rg_fail(st, RG_INVALID, "the snapshot's %u tokens are not the session's", p->length);
    }
    take(s, p);
    return RG_OK;
}

rg_code rg_session_copy(rg_session *to, const rg_session *from, const rg_snapshot *p,
                        rg_status *st) {
    if (p->length > rg_seq_length(from->seq) || p->length > rg_seq_capacity(to->seq) ||
        !XXH128_isEqual(p->ids, hash_ids(from, p->length))) {
        return rg_fail(st, RG_INVALID, "the snapshot's %u tokens are not the session's", p->length);
    }
    const uint32_t n = p->length;
    const size_t rows = rg_seq_rows_bytes(from->seq, 0, n);
    const size_t drafts = rg_seq_draft_rows_bytes(from->seq, n);
    if (rows != rg_seq_rows_bytes(to->seq, 0, n) || drafts != rg_seq_draft_rows_bytes(to->seq, n)) {
        return rg_fail(st, RG_INVALID, "the sessions differ in their options");
    }
    uint8_t *copy = rg_alloc(1, rows + drafts, st);
    if (!copy) return RG_NOMEM;
    rg_seq_rows_save(from->seq, 0, n, copy);
    rg_seq_draft_rows_save(from->seq, n, copy + rows);
    rg_seq_rows_load(to->seq, 0, n, copy);
    rg_seq_draft_rows_load(to->seq, n, copy + rows);
    rg_free(copy);
    take(to, p);
    return RG_OK;
}

const int32_t *rg_session_ids(const rg_session *s) {
    return rg_seq_ids(s->seq);
}

bool rg_session_has_logits(const rg_session *s) {
    return s->has_logits;
}

/* ---- sessions as bytes ---------------------------------------------------------------------- */

/* has_logits (8 bytes), logits, state, rows of the draft block, rows [from, n). */
static uint64_t export_bytes(const rg_session *s, uint32_t n, uint32_t from) {
    return 8 + s->engine->model->hp.n_vocab * sizeof(float) + rg_seq_state_bytes(s->seq) +
           rg_seq_draft_rows_bytes(s->seq, n) + rg_seq_rows_bytes(s->seq, from, n);
}

uint64_t rg_session_export_bytes(const rg_session *s, const rg_snapshot *p, uint32_t from) {
    RG_ASSERT(from <= p->length);
    return export_bytes(s, p->length, from);
}

void rg_session_export(const rg_session *s, const rg_snapshot *p, uint32_t from, void *dst) {
    uint8_t *at = dst;
    const size_t logits = s->engine->model->hp.n_vocab * sizeof(float);
    RG_ASSERT(from <= p->length);
    memset(at, 0, 8);
    at[0] = p->has_logits;
    memcpy(at + 8, p->logits, logits);
    at += 8 + logits;
    memcpy(at, p->state, rg_seq_state_bytes(s->seq));
    at += rg_seq_state_bytes(s->seq);
    rg_seq_draft_rows_save(s->seq, p->length, at);
    at += rg_seq_draft_rows_bytes(s->seq, p->length);
    rg_seq_rows_save(s->seq, from, p->length, at);
}

uint64_t rg_session_rows_bytes(const rg_session *s, uint32_t from, uint32_t to) {
    return rg_seq_rows_bytes(s->seq, from, to);
}

void rg_session_export_rows(const rg_session *s, uint32_t from, uint32_t to, void *dst) {
    RG_ASSERT(to <= rg_seq_length(s->seq));
    rg_seq_rows_save(s->seq, from, to, dst);
}

rg_code rg_session_import_rows(rg_session *s, uint32_t from, uint32_t to, const void *src,
                               uint64_t n_bytes, rg_status *st) {
    rg_session_reset(s);
    RG_TRY(check_copies(s, st));
    if (from >= to || to > rg_seq_capacity(s->seq) ||
        n_bytes != rg_seq_rows_bytes(s->seq, from, to)) {
        return rg_fail(st, RG_INVALID, "saved rows %u to %u do not fit", from, to);
    }
    rg_seq_rows_load(s->seq, from, to, src);
    return RG_OK;
}

rg_code rg_session_import(rg_session *s, uint32_t n, uint32_t from, const void *src,
                          uint64_t n_bytes, rg_status *st) {
    rg_session_reset(s);
    RG_TRY(check_copies(s, st));
    if (n < 1 || n > rg_seq_capacity(s->seq) || from > n) {
        return rg_fail(st, RG_INVALID, "%u saved tokens, the session holds 1..%u", n,
                       rg_seq_capacity(s->seq));
    }
    if (n_bytes != export_bytes(s, n, from)) {
        return rg_fail(st, RG_INVALID, "%u saved tokens take %llu bytes, not %llu", n,
                       (unsigned long long)export_bytes(s, n, from), (unsigned long long)n_bytes);
    }
    const uint8_t *at = src;
    const size_t logits = s->engine->model->hp.n_vocab * sizeof(float);
    const bool has_logits = at[0] != 0;
    memcpy(s->logits, at + 8, logits);
    s->few.n = 0;
    const uint8_t *state = at + 8 + logits;
    if (!rg_seq_state_fits(s->seq, n, state)) {
        return rg_fail(st, RG_INVALID, "the saved state is not one of %u tokens", n);
    }
    at = state + rg_seq_state_bytes(s->seq);
    rg_seq_draft_rows_load(s->seq, n, at);
    rg_seq_rows_load(s->seq, from, n, at + rg_seq_draft_rows_bytes(s->seq, n));
    rg_seq_state_load(s->seq, n, state);
    s->has_logits = has_logits;
    return RG_OK;
}

rg_code rg_session_identity(const rg_session *s, uint8_t out[16], rg_status *st) {
    rg_hash128 model;
    RG_TRY(rg_model_identity(s->engine->vocab.gguf, s->engine->model, &model, st));
    const uint64_t facts[4] = {model.low, model.high,
                               (uint64_t)s->engine->kernels << 32 | (uint64_t)s->options.kv << 8 |
                                   (s->options.draft_max ? 2u : 0u) | s->options.mtp,
                               EXPORT_VERSION};
    const XXH128_hash_t hash = XXH3_128bits(facts, sizeof facts);
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, hash);
    memcpy(out, c.digest, 16);
    return RG_OK;
}

/* ---- watching ------------------------------------------------------------------------------- */

size_t rg_engine_get_experts(const rg_engine *e, uint8_t *resident, uint32_t *uses, size_t cap) {
    const rg_hparams *hp = &e->model->hp;
    const size_t n = (size_t)(hp->n_layer + hp->n_mtp) * hp->n_expert;
    const rg_stream *stream = rg_core_stream(e->core);
    const uint32_t *counts = rg_core_expert_uses(e->core);
    for (size_t i = 0; i < n && i < cap; i++) {
        resident[i] = !stream || rg_stream_holds(stream, (uint32_t)i);
        uses[i] = counts[i];
    }
    return n;
}

bool rg_vocab_is_end(const rg_vocab *v, int32_t id) {
    return rg_tokenizer_is_eog(v->tokenizer, id);
}

size_t rg_vocab_size(const rg_vocab *v) {
    return (size_t)rg_tokenizer_vocab(v->tokenizer);
}

rg_code rg_vocab_token(const rg_vocab *v, int32_t id, char **text, size_t *len, bool *is_control,
                       rg_status *st) {
    RG_TRY(rg_vocab_detokenize(v, &id, 1, text, len, st));
    const rg_token_kind kind = rg_tokenizer_kind(v->tokenizer, id);
    *is_control = kind == RG_TOKEN_CONTROL || kind == RG_TOKEN_UNUSED || kind == RG_TOKEN_UNKNOWN;
    return RG_OK;
}
