/* The tokenizer: special tokens, then valid UTF-8 stretches through pre-tokenizer and byte pair
 * encoding, all other bytes as their byte tokens. Immutable after load; every call owns its
 * scratch, so any number of threads may tokenize at once.
 */
#include "text/tokenizer.h"

#include <string.h>

#include "text/utf8.h"

struct rg_tokenizer {
    rg_vocab vocab;
    rg_bpe bpe;
    rg_pretok pretok;
    uint8_t *eog; /* [n_tokens] 1 where generation ends */
    int32_t bos, eos;
    bool add_bos;
};

/* Tokens that end a turn or a text in the published vocabularies. */
#define DEEPSEEK_END "<\xEF\xBD\x9C\x65nd\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"
static const char *const eog_texts[] = {
    "<|endoftext|>",   "<|im_end|>",      "<|eot_id|>", "<|eom_id|>",
    "<|end_of_text|>", "<end_of_turn>",   "<|end|>",    "<|return|>",
    "<|call|>",        "<|end_of_turn|>", "<|eot|>",    "<end_of_utterance>",
    "<EOT>",           "_<EOT>",          DEEPSEEK_END,
};

static rg_code mark_eog(rg_tokenizer *t, const rg_tokenizer_spec *spec, rg_status *st) {
    t->eog = rg_alloc(spec->n_tokens, 1, st);
    if (!t->eog) return RG_NOMEM;
    const int32_t keys[] = {spec->eos, spec->eot, spec->eom};
    for (size_t i = 0; i < RG_ARRAY_LEN(keys); i++) {
        if (keys[i] >= 0) t->eog[keys[i]] = 1;
    }
    for (size_t i = 0; i < RG_ARRAY_LEN(eog_texts); i++) {
        const int32_t id = rg_tokenizer_find(t, eog_texts[i], strlen(eog_texts[i]));
        if (id >= 0) t->eog[id] = 1;
    }
    return RG_OK;
}

/* Files exist whose turn tokens are marked normal; taken as text they would never be recognised.
 * Copies the kinds with those made control. */
static rg_code fix_kinds(const rg_tokenizer_spec *spec, uint8_t **out, rg_status *st) {
    uint8_t *kinds = rg_alloc(spec->n_tokens, 1, st);
    if (!kinds) return RG_NOMEM;
    for (size_t i = 0; i < spec->n_tokens; i++) {
        kinds[i] = spec->kinds ? spec->kinds[i] : (uint8_t)RG_TOKEN_NORMAL;
        const rg_str text = spec->tokens[i];
        if (kinds[i] != RG_TOKEN_NORMAL || text.len < 3 || text.data[text.len - 1] != '>') continue;
        for (size_t k = 0; k < RG_ARRAY_LEN(eog_texts); k++) {
            if (strlen(eog_texts[k]) == text.len && !memcmp(eog_texts[k], text.data, text.len)) {
                kinds[i] = RG_TOKEN_CONTROL;
            }
        }
    }
    *out = kinds;
    return RG_OK;
}

static rg_code check_id(const char *what, int32_t id, size_t n_tokens, rg_status *st) {
    if (id < (int32_t)n_tokens) return RG_OK;
    return rg_fail(st, RG_FORMAT, "tokenizer: %s is %d, the vocabulary has %zu tokens", what, id,
                   n_tokens);
}

rg_code rg_tokenizer_build(rg_tokenizer **out, const rg_tokenizer_spec *spec, rg_status *st) {
    *out = NULL;
    if (spec->n_tokens > INT32_MAX) {
        return rg_fail(st, RG_FORMAT, "tokenizer: %zu tokens, at most %d are allowed",
                       spec->n_tokens, INT32_MAX);
    }
    RG_TRY(check_id("bos_token_id", spec->bos, spec->n_tokens, st));
    RG_TRY(check_id("eos_token_id", spec->eos, spec->n_tokens, st));
    RG_TRY(check_id("eot_token_id", spec->eot, spec->n_tokens, st));
    RG_TRY(check_id("eom_token_id", spec->eom, spec->n_tokens, st));
    RG_TRY(check_id("unknown_token_id", spec->unknown, spec->n_tokens, st));
    rg_code rc = RG_OK;
    uint8_t *kinds = NULL;
    rg_tokenizer *t = rg_alloc(1, sizeof *t, st);
    if (!t) return RG_NOMEM;
    RG_GO(rg_pretok_init(&t->pretok, spec->pre, st));
    RG_GO(fix_kinds(spec, &kinds, st));
    RG_GO(rg_vocab_init(&t->vocab, spec->tokens, kinds, spec->n_tokens, st));
    RG_GO(rg_bpe_init(&t->bpe, &t->vocab, spec->merges, spec->n_merges, st));
    RG_GO(mark_eog(t, spec, st));
    t->bpe.unknown_id = spec->unknown;
    t->bos = spec->bos;
    t->eos = spec->eos;
    t->add_bos = spec->bos >= 0 && (spec->add_bos < 0 ? t->pretok.add_bos : spec->add_bos > 0);
    *out = t;

cleanup:
    rg_free(kinds);
    if (rc != RG_OK) rg_tokenizer_destroy(t);
    return rc;
}

void rg_tokenizer_destroy(rg_tokenizer *t) {
    if (!t) return;
    rg_vocab_deinit(&t->vocab);
    rg_bpe_deinit(&t->bpe);
    rg_pretok_deinit(&t->pretok);
    rg_free(t->eog);
    rg_free(t);
}

/* ---- bytes to tokens ---------------------------------------------------------------------------
 */

typedef struct tokenize_job {
    const rg_tokenizer *t;
    rg_pretok_matcher matcher;
    rg_bpe_scratch scratch;
    rg_ids *out;
} tokenize_job;

static rg_code add_piece(void *arg, const char *piece, size_t len, rg_status *st) {
    tokenize_job *job = arg;
    const rg_tokenizer *t = job->t;
    uint64_t id = 0;
    if (t->pretok.ignore_merges && rg_map_get(&t->vocab.by_bytes, piece, len, &id) &&
        t->vocab.kinds[id] == RG_TOKEN_NORMAL) {
        return rg_ids_push(job->out, (int32_t)id, st);
    }
    return rg_bpe_piece(&t->bpe, &t->vocab, &job->scratch, piece, len, job->out, st);
}

/* Valid stretches go through the pre-tokenizer; bytes that are not UTF-8 have no characters a
 * pattern could see and become one token each. */
static rg_code add_stretch(void *arg, const char *text, size_t len, int32_t id, rg_status *st) {
    tokenize_job *job = arg;
    if (id >= 0) return rg_ids_push(job->out, id, st);
    size_t done = 0;
    size_t pos = 0;
    while (pos < len) {
        const rg_utf8_step step = rg_utf8_next((const uint8_t *)text + pos, len - pos);
        if (step.kind != RG_UTF8_VALID) {
            if (pos > done) {
                RG_TRY(rg_pretok_split(&job->matcher, text + done, pos - done, add_piece, job, st));
            }
            for (size_t i = 0; i < step.len; i++) {
                RG_TRY(rg_bpe_piece(&job->t->bpe, &job->t->vocab, &job->scratch, text + pos + i, 1,
                                    job->out, st));
            }
            done = pos + step.len;
        }
        pos += step.len;
    }
    if (len == done) return RG_OK;
    return rg_pretok_split(&job->matcher, text + done, len - done, add_piece, job, st);
}

rg_code rg_tokenize_limited(const rg_tokenizer *t, const char *text, size_t len, bool parse_special,
                            const rg_pretok_limits *limits, rg_ids *out, rg_tokenize_counts *counts,
                            rg_status *st) {
    if (len > RG_TEXT_INPUT_MAX) {
        return rg_fail(st, RG_INVALID, "text of %zu bytes, at most %u are allowed", len,
                       RG_TEXT_INPUT_MAX);
    }
    rg_code rc = RG_OK;
    const size_t count_before = out->count;
    tokenize_job job = {.t = t, .out = out};
    RG_TRY(rg_pretok_matcher_init(&job.matcher, &t->pretok, limits, st));
    RG_GO(rg_special_split(&t->vocab, text, len, parse_special, add_stretch, &job, st));
    if (counts) {
        counts->n_queued += job.scratch.n_queued;
        counts->n_chunks += job.matcher.n_chunks;
    }

cleanup:
    if (rc != RG_OK) out->count = count_before;
    rg_bpe_scratch_deinit(&job.scratch);
    rg_pretok_matcher_deinit(&job.matcher);
    return rc;
}

rg_code rg_tokenize(const rg_tokenizer *t, const char *text, size_t len, bool parse_special,
                    rg_ids *out, rg_status *st) {
    return rg_tokenize_limited(t, text, len, parse_special, &rg_pretok_default_limits, out, NULL,
                               st);
}

/* ---- tokens to bytes, and questions ------------------------------------------------------------
 */

rg_code rg_detokenize(const rg_tokenizer *t, int32_t id, bool special, rg_buf *out, rg_status *st) {
    if (id < 0 || (size_t)id >= t->vocab.n_tokens) {
        return rg_fail(st, RG_INVALID, "token %d is not in the vocabulary of %zu", id,
                       t->vocab.n_tokens);
    }
    switch ((rg_token_kind)t->vocab.kinds[id]) {
    case RG_TOKEN_CONTROL:
    case RG_TOKEN_UNKNOWN:
        if (!special) return RG_OK;
        break;
    case RG_TOKEN_UNUSED:
        return RG_OK;
    case RG_TOKEN_NORMAL:
    case RG_TOKEN_USER:
    case RG_TOKEN_BYTE:
        break;
    }
    const rg_str bytes = rg_vocab_bytes(&t->vocab, id);
    return rg_buf_append(out, bytes.data, bytes.len, st);
}

int32_t rg_tokenizer_vocab(const rg_tokenizer *t) {
    return (int32_t)t->vocab.n_tokens;
}

rg_token_kind rg_tokenizer_kind(const rg_tokenizer *t, int32_t id) {
    if (id < 0 || (size_t)id >= t->vocab.n_tokens) return RG_TOKEN_UNUSED;
    return (rg_token_kind)t->vocab.kinds[id];
}

int32_t rg_tokenizer_find(const rg_tokenizer *t, const char *text, size_t len) {
    uint64_t id = 0;
    return rg_map_get(&t->vocab.by_bytes, text, len, &id) ? (int32_t)id : -1;
}

int32_t rg_tokenizer_eos(const rg_tokenizer *t) {
    return t->eos;
}

int32_t rg_tokenizer_bos(const rg_tokenizer *t) {
    return t->bos;
}

bool rg_tokenizer_add_bos(const rg_tokenizer *t) {
    return t->add_bos;
}

bool rg_tokenizer_is_eog(const rg_tokenizer *t, int32_t id) {
    return id >= 0 && (size_t)id < t->vocab.n_tokens && t->eog[id];
}
