/* Several sessions in one window; snapshots; sessions as bytes. */
#include <string.h>
#include <xxhash.h>

#include "api/api.h"

#define EXPORT_VERSION 1u /* of what rg_session_export writes, and of the arithmetic behind it */

struct rg_snapshot {
    uint32_t length;
    bool has_logits;
    XXH128_hash_t ids; /* of the tokens below */
    uint8_t *state;    /* [rg_seq_state_bytes] */
    float *logits;     /* [n_vocab] */
};

static rg_code check_batch(const rg_batch_part *parts, size_t n_parts, rg_status *st) {
    if (n_parts < 1 || n_parts > RG_BATCH_MAX) {
        return rg_fail(st, RG_INVALID, "%zu sessions for one window, 1..%d are possible", n_parts,
                       RG_BATCH_MAX);
    }
    for (size_t i = 0; i < n_parts; i++) {
        if (parts[i].session->pending < 0 && !parts[i].session->dump) continue;
        return rg_fail(st, RG_INVALID, "a session with a dump or a pending token shares no window");
    }
    return RG_OK;
}

rg_code rg_session_eval_batch(rg_engine *e, const rg_batch_part *parts, size_t n_parts,
                              const int32_t *ids, const rg_session *cancel, rg_status *st) {
    _Static_assert(RG_BATCH_MAX == RG_BATCH_PARTS_MAX, "one limit");
    rg_batch_rows rows[RG_BATCH_MAX];
    RG_TRY(check_batch(parts, n_parts, st));
    for (size_t i = 0; i < n_parts; i++) {
        rg_session *s = parts[i].session;
        rows[i] = (rg_batch_rows){s->seq, parts[i].n_ids, parts[i].want_logits ? s->logits : NULL};
    }
    const uint64_t begin = rg_now_ns();
    const rg_code rc = rg_core_eval_batch(e->core, rows, (uint32_t)n_parts, ids,
                                          cancel ? &cancel->cancel : NULL, st);
    const double ms = (double)(rg_now_ns() - begin) * 1e-6;
    if (rc == RG_INVALID) return rc;
    e->call_ms += ms;
    for (size_t i = 0; i < n_parts; i++) {
        rg_session *s = parts[i].session;
        s->has_logits = rc == RG_OK && parts[i].want_logits;
        s->stats.compute_ms += ms;
        if (parts[i].n_ids == 1) {
            s->stats.decode_tokens++;
            s->stats.decode_ms += ms;
        } else {
            s->stats.prefill_tokens += parts[i].n_ids;
            s->stats.prefill_ms += ms;
        }
    }
    return rc;
}

/* ---- snapshots ------------------------------------------------------------------------------ */

static XXH128_hash_t hash_ids(const rg_session *s, uint32_t n) {
    return XXH3_128bits(rg_seq_ids(s->seq), n * sizeof(int32_t));
}

rg_code rg_session_snapshot(rg_snapshot **out, const rg_session *s, rg_status *st) {
    *out = NULL;
    const uint32_t n = rg_seq_length(s->seq);
    if (s->options.draft_max) {
        return rg_fail(st, RG_UNSUPPORTED, "a session with drafts has no snapshots");
    }
    if (n == 0 || rg_seq_failed(s->seq) || s->pending >= 0) {
        return rg_fail(st, RG_INVALID,
                       "a session without tokens, with a pending one or after a "
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
    p->has_logits = s->has_logits;
    if (s->has_logits) memcpy(p->logits, s->logits, V * sizeof *p->logits);
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
    const size_t V = s->engine->model->hp.n_vocab;
    if (p->has_logits) memcpy(s->logits, p->logits, V * sizeof *s->logits);
    s->pending = -1;
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
    const size_t bytes = rg_seq_rows_bytes(from->seq, p->length);
    if (bytes != rg_seq_rows_bytes(to->seq, p->length)) {
        return rg_fail(st, RG_INVALID, "the sessions differ in their options");
    }
    uint8_t *rows = rg_alloc(1, bytes, st);
    if (!rows) return RG_NOMEM;
    rg_seq_rows_save(from->seq, p->length, rows);
    rg_seq_rows_load(to->seq, p->length, rows);
    rg_free(rows);
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

/* has_logits (8 bytes), logits, state, rows. */
static uint64_t export_bytes(const rg_session *s, uint32_t n) {
    return 8 + s->engine->model->hp.n_vocab * sizeof(float) + rg_seq_state_bytes(s->seq) +
           rg_seq_rows_bytes(s->seq, n);
}

uint64_t rg_session_export_bytes(const rg_session *s, const rg_snapshot *p) {
    return export_bytes(s, p->length);
}

void rg_session_export(const rg_session *s, const rg_snapshot *p, void *dst) {
    uint8_t *at = dst;
    const size_t logits = s->engine->model->hp.n_vocab * sizeof(float);
    memset(at, 0, 8);
    at[0] = p->has_logits;
    memcpy(at + 8, p->logits, logits);
    at += 8 + logits;
    memcpy(at, p->state, rg_seq_state_bytes(s->seq));
    rg_seq_rows_save(s->seq, p->length, at + rg_seq_state_bytes(s->seq));
}

rg_code rg_session_import(rg_session *s, uint32_t n, const void *src, uint64_t n_bytes,
                          rg_status *st) {
    rg_session_reset(s);
    if (s->options.draft_max) {
        return rg_fail(st, RG_UNSUPPORTED, "a session with drafts takes no saved state");
    }
    if (n < 1 || n > rg_seq_capacity(s->seq)) {
        return rg_fail(st, RG_INVALID, "%u saved tokens, the session holds 1..%u", n,
                       rg_seq_capacity(s->seq));
    }
    if (n_bytes != export_bytes(s, n)) {
        return rg_fail(st, RG_INVALID, "%u saved tokens take %llu bytes, not %llu", n,
                       (unsigned long long)export_bytes(s, n), (unsigned long long)n_bytes);
    }
    const uint8_t *at = src;
    const size_t logits = s->engine->model->hp.n_vocab * sizeof(float);
    const bool has_logits = at[0] != 0;
    memcpy(s->logits, at + 8, logits);
    at += 8 + logits;
    rg_seq_rows_load(s->seq, n, at + rg_seq_state_bytes(s->seq));
    rg_seq_state_load(s->seq, n, at);
    s->has_logits = has_logits;
    return RG_OK;
}

rg_code rg_session_identity(const rg_session *s, uint8_t out[16], rg_status *st) {
    rg_hash128 model;
    RG_TRY(rg_model_identity(s->engine->vocab.gguf, s->engine->model, &model, st));
    const uint64_t facts[4] = {model.low, model.high,
                               (uint64_t)s->engine->kernels << 32 | (uint64_t)s->options.kv << 8 |
                                   s->options.mtp,
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
