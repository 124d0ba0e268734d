/* The public interface on tiny models: what generation gives and when it ends, how sessions go on,
 * what refused calls leave behind, dumps through a session, and model files damaged in one value.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "model/model.h"
#include "regolith.h"
#include "support/tiny_model.h"

#define REPLY_MAX 512

/* ---- fixture --------------------------------------------------------------------------------- */

static rg_engine *engine;
static rg_engine_info info;
static int32_t *ids;
static uint32_t n_ids;

static rg_engine *open_tiny(const char *file, rg_kernel_set kernels) {
    char path[RG_TINY_PATH_MAX];
    rg_engine *e = NULL;
    rg_status st = {0};
    const rg_engine_options opt = {
        .model_path = rg_tiny_path(path, file), .n_threads = 1, .kernels = kernels};
    if (rg_engine_open(&e, &opt, &st) != RG_OK) fail_msg("%s", st.message);
    return e;
}

static int open_all(void **state) {
    (void)state;
    engine = open_tiny("a-mix.gguf", RG_KERNELS_AUTO);
    rg_engine_get_info(engine, &info);
    ids = rg_tiny_ids("a-mix", &n_ids);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    rg_engine_close(engine);
    rg_free(ids);
    return 0;
}

static rg_session *new_session(uint32_t n_ctx) {
    rg_session *s = NULL;
    rg_status st = {0};
    const rg_session_options opt = {.n_ctx = n_ctx};
    if (rg_session_create(&s, engine, &opt, &st) != RG_OK) fail_msg("%s", st.message);
    return s;
}

static void eval(rg_session *s, const int32_t *list, size_t n, uint32_t chunk) {
    rg_status st = {0};
    if (rg_session_eval(s, list, n, chunk, NULL, NULL, &st) != RG_OK) fail_msg("%s", st.message);
}

typedef struct reply {
    int32_t ids[REPLY_MAX];
    uint32_t n;
    char text[8 * REPLY_MAX];
    size_t len;
    uint32_t n_piece;
    uint32_t stop_after_ids, stop_after_pieces; /* 0 = never */
    bool broken;                                /* a piece was no whole characters */
    rg_session *cancel;                         /* when stop_after_ids is reached */
    rg_generate_result result;
} reply;

static bool on_token(void *user, int32_t id) {
    reply *r = user;
    assert_true(r->n < REPLY_MAX);
    r->ids[r->n++] = id;
    if (r->n != r->stop_after_ids) return true;
    if (!r->cancel) return false;
    rg_session_cancel(r->cancel);
    return true;
}

/* Whole characters: continuation bytes as many as the first byte says. */
static bool is_whole(const char *text, size_t len) {
    for (size_t i = 0; i < len;) {
        const unsigned c = (unsigned char)text[i];
        const size_t n = c < 0x80 ? 1 : c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc2 ? 2 : 0;
        if (n == 0 || n > len - i) return false;
        for (size_t k = 1; k < n; k++) {
            if (((unsigned char)text[i + k] & 0xc0u) != 0x80u) return false;
        }
        i += n;
    }
    return true;
}

static bool on_text(void *user, const char *text, size_t len) {
    reply *r = user;
    assert_true(len > 0 && r->len + len < sizeof r->text);
    memcpy(r->text + r->len, text, len);
    r->len += len;
    r->text[r->len] = 0;
    r->broken = r->broken || !is_whole(text, len);
    return ++r->n_piece != r->stop_after_pieces;
}

static rg_generate_options greedy(reply *r, uint32_t n) {
    rg_generate_options g = {.sampling = rg_sampling_defaults(),
                             .n_predict = n,
                             .ignore_eos = true,
                             .on_token = on_token,
                             .on_text = on_text,
                             .user = r};
    g.sampling.temperature = 0.0f;
    return g;
}

static rg_generate_options drawn(reply *r, uint32_t n, uint64_t seed) {
    rg_generate_options g = greedy(r, n);
    g.sampling.temperature = 0.8f;
    g.sampling.seed = seed;
    return g;
}

static void generate(rg_session *s, const rg_generate_options *g) {
    rg_status st = {0};
    reply *r = g->user;
    if (rg_session_generate(s, g, &r->result, &st) != RG_OK) fail_msg("%s", st.message);
    assert_int_equal(r->result.n_tokens, r->n);
    assert_false(r->broken);
}

static void same_reply(const reply *a, const reply *b) {
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, a->n * sizeof *a->ids);
    assert_string_equal(a->text, b->text);
}

/* Prompt and reply in a session of its own. */
static void answer(const rg_generate_options *g, uint32_t n_ctx, uint32_t chunk) {
    rg_session *s = new_session(n_ctx);
    eval(s, ids, 30, chunk);
    generate(s, g);
    rg_session_destroy(s);
}

/* ---- choice ---------------------------------------------------------------------------------- */

typedef struct chain {
    int32_t best;
    uint32_t calls;
} chain;

static rg_code keep_best(void *user, uint32_t position, const float *logits, rg_status *st) {
    chain *c = user;
    (void)position;
    (void)st;
    c->best = 0;
    for (uint32_t i = 1; i < info.n_vocab; i++) {
        if (logits[i] > logits[c->best]) c->best = (int32_t)i;
    }
    c->calls++;
    return RG_OK;
}

static void greedy_is_the_chain_of_the_best(void **state) {
    (void)state;
    static reply r;
    memset(&r, 0, sizeof r);
    const rg_generate_options g = greedy(&r, 40);
    answer(&g, 128, 0);
    assert_int_equal(r.result.finish, RG_FINISH_LENGTH);
    rg_session *s = new_session(128);
    chain c = {0};
    rg_status st = {0};
    assert_int_equal(rg_session_eval(s, ids, 30, 7, keep_best, &c, &st), RG_OK);
    assert_int_equal(c.calls, 30);
    for (uint32_t i = 0; i < 40; i++) {
        assert_int_equal(c.best, r.ids[i]);
        const int32_t id = c.best;
        assert_int_equal(rg_session_eval(s, &id, 1, 0, keep_best, &c, &st), RG_OK);
    }
    rg_session_destroy(s);
}

static void draws_depend_on_the_seed_alone(void **state) {
    (void)state;
    static reply first, other;
    memset(&first, 0, sizeof first);
    const rg_generate_options g = drawn(&first, 40, 5);
    answer(&g, 128, 0);
    static const uint32_t chunks[] = {1, 3, 16, 0};
    for (size_t i = 0; i < RG_ARRAY_LEN(chunks); i++) {
        memset(&other, 0, sizeof other);
        const rg_generate_options h = drawn(&other, 40, 5);
        answer(&h, 100, chunks[i]);
        same_reply(&first, &other);
    }
    memset(&other, 0, sizeof other);
    const rg_generate_options h = drawn(&other, 40, 6);
    answer(&h, 128, 0);
    assert_memory_not_equal(first.ids, other.ids, 40 * sizeof *first.ids);
}

static void two_generations_are_one(void **state) {
    (void)state;
    static reply whole, parts;
    memset(&whole, 0, sizeof whole);
    memset(&parts, 0, sizeof parts);
    const rg_generate_options g = drawn(&whole, 30, 9);
    answer(&g, 128, 0);
    rg_session *s = new_session(128);
    eval(s, ids, 30, 0);
    static const uint32_t cuts[] = {1, 12, 17};
    for (size_t i = 0; i < RG_ARRAY_LEN(cuts); i++) {
        const rg_generate_options h = drawn(&parts, cuts[i], 9);
        rg_status st = {0};
        rg_generate_result result;
        assert_int_equal(rg_session_generate(s, &h, &result, &st), RG_OK);
        assert_int_equal(result.n_tokens, cuts[i]);
    }
    /* Text may differ where a cut fell into a character; the choice must not. */
    assert_int_equal(parts.n, 30);
    assert_memory_equal(whole.ids, parts.ids, 30 * sizeof *whole.ids);
    assert_int_equal(rg_session_length(s), 30 + 29);
    /* The pending token comes before what is appended. */
    eval(s, ids, 4, 0);
    assert_int_equal(rg_session_length(s), 30 + 30 + 4);
    rg_session_destroy(s);
}

static void penalties_and_bias_act(void **state) {
    (void)state;
    static reply plain, other;
    memset(&plain, 0, sizeof plain);
    rg_generate_options g = greedy(&plain, 30);
    answer(&g, 128, 0);
    const rg_logit_bias force = {.id = 77, .bias = 1000.0f};
    const rg_logit_bias ban = {.id = plain.ids[0], .bias = -INFINITY};
    memset(&other, 0, sizeof other);
    g = greedy(&other, 5);
    g.sampling.logit_bias = &force;
    g.sampling.n_logit_bias = 1;
    answer(&g, 128, 0);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(other.ids[i], 77);
    memset(&other, 0, sizeof other);
    g = greedy(&other, 30);
    g.sampling.logit_bias = &ban;
    g.sampling.n_logit_bias = 1;
    answer(&g, 128, 0);
    for (uint32_t i = 0; i < 30; i++)
        assert_int_not_equal(other.ids[i], ban.id);
    /* A frequency penalty beyond all logits: no token of the prompt or the reply comes twice. */
    memset(&other, 0, sizeof other);
    g = greedy(&other, 30);
    g.sampling.frequency_penalty = 100.0f;
    g.sampling.penalty_last_n = -1;
    answer(&g, 128, 0);
    for (uint32_t i = 0; i < 30; i++) {
        for (uint32_t k = 0; k < 30; k++)
            assert_int_not_equal(other.ids[i], ids[k]);
        for (uint32_t k = 0; k < i; k++)
            assert_int_not_equal(other.ids[i], other.ids[k]);
    }
    rg_status st = {0};
    rg_session *s = new_session(64);
    eval(s, ids, 4, 0);
    const rg_logit_bias bad = {.id = (int32_t)info.n_vocab, .bias = 1.0f};
    g.sampling.logit_bias = &bad;
    g.sampling.n_logit_bias = 1;
    assert_int_equal(rg_session_generate(s, &g, NULL, &st), RG_INVALID);
    g.sampling.n_logit_bias = 0;
    g.sampling.temperature = NAN;
    rg_status_clear(&st);
    assert_int_equal(rg_session_generate(s, &g, NULL, &st), RG_INVALID);
    rg_session_destroy(s);
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* Every stretch of the greedy text as a stop string, so that many fall across tokens. */
static void stop_strings_cut_the_text(void **state) {
    (void)state;
    static reply plain, r;
    memset(&plain, 0, sizeof plain);
    rg_generate_options g = greedy(&plain, 24);
    answer(&g, 128, 0);
    uint32_t tried = 0;
    for (size_t at = 0; at + 5 < plain.len && tried < 12; at += 7) {
        char word[6] = {0};
        memcpy(word, plain.text + at, 5);
        if (!is_whole(word, 5) || strstr(plain.text, word) != plain.text + at) continue;
        const char *const stop[2] = {"never in the text", word};
        memset(&r, 0, sizeof r);
        g = greedy(&r, 24);
        g.stop = stop;
        g.n_stop = 2;
        answer(&g, 128, 0);
        assert_int_equal(r.result.finish, RG_FINISH_STOP);
        assert_int_equal(r.len, at);
        assert_memory_equal(r.text, plain.text, at);
        tried++;
    }
    assert_true(tried >= 5);
    const char *const empty[1] = {""};
    memset(&r, 0, sizeof r);
    g = greedy(&r, 5);
    g.stop = empty;
    g.n_stop = 1;
    rg_session *s = new_session(64);
    rg_status st = {0};
    eval(s, ids, 4, 0);
    assert_int_equal(rg_session_generate(s, &g, NULL, &st), RG_INVALID);
    rg_session_destroy(s);
}

static void eos_ends_unless_ignored(void **state) {
    (void)state;
    static reply r;
    int32_t eos = 506; /* tokenizer.ggml.eos_token_id of the tiny models */
    const rg_logit_bias force = {.id = eos, .bias = 1000.0f};
    memset(&r, 0, sizeof r);
    rg_generate_options g = greedy(&r, 6);
    g.sampling.logit_bias = &force;
    g.sampling.n_logit_bias = 1;
    g.ignore_eos = false;
    answer(&g, 128, 0);
    assert_int_equal(r.result.finish, RG_FINISH_EOS);
    assert_int_equal(r.n, 1);
    assert_int_equal(r.ids[0], eos);
    assert_int_equal(r.len, 0);
    memset(&r, 0, sizeof r);
    g.ignore_eos = true;
    answer(&g, 128, 0);
    assert_int_equal(r.result.finish, RG_FINISH_LENGTH);
    assert_int_equal(r.n, 6);
    assert_int_equal(r.len, 0); /* control tokens have no text ... */
    memset(&r, 0, sizeof r);
    g.show_special = true;
    answer(&g, 128, 0);
    assert_true(r.len > 0); /* ... unless it is asked for */
}

static void a_full_context_ends(void **state) {
    (void)state;
    static reply r;
    memset(&r, 0, sizeof r);
    rg_session *s = new_session(35);
    rg_generate_options g = greedy(&r, 0);
    rg_status st = {0};
    eval(s, ids, 30, 0);
    generate(s, &g);
    assert_int_equal(r.result.finish, RG_FINISH_CONTEXT);
    assert_int_equal(r.n, 6); /* five fit, the sixth follows the last position */
    assert_int_equal(rg_session_length(s), 35);
    /* Full is full, however often one asks, and nothing changes. */
    for (int i = 0; i < 3; i++) {
        rg_status_clear(&st);
        assert_int_equal(rg_session_eval(s, ids, 1, 0, NULL, NULL, &st), RG_INVALID);
        assert_non_null(strstr(st.message, "context of 35"));
        rg_status_clear(&st);
        assert_int_equal(rg_session_generate(s, &g, NULL, &st), RG_INVALID);
        assert_non_null(strstr(st.message, "context of 35"));
        assert_int_equal(rg_session_length(s), 35);
        assert_int_equal(r.n, 6);
    }
    rg_session_reset(s);
    eval(s, ids, 35, 0);
    rg_session_destroy(s);
}

static void the_caller_can_end(void **state) {
    (void)state;
    static reply r;
    memset(&r, 0, sizeof r);
    r.stop_after_ids = 3;
    rg_generate_options g = greedy(&r, 20);
    answer(&g, 128, 0);
    assert_int_equal(r.result.finish, RG_FINISH_CALLER);
    assert_int_equal(r.n, 3);
    memset(&r, 0, sizeof r);
    r.stop_after_pieces = 2;
    g = greedy(&r, 20);
    answer(&g, 128, 0);
    assert_int_equal(r.result.finish, RG_FINISH_CALLER);
    assert_int_equal(r.n_piece, 2);
    for (int i = 0; i <= RG_FINISH_CANCELED; i++)
        assert_string_not_equal(rg_finish_text((rg_finish)i), "unknown");
    assert_string_equal(rg_finish_text((rg_finish)99), "unknown");
}

static void cancel_gives_what_there_is(void **state) {
    (void)state;
    static reply plain, r;
    memset(&plain, 0, sizeof plain);
    rg_generate_options g = greedy(&plain, 5);
    answer(&g, 128, 0);
    memset(&r, 0, sizeof r);
    const char *const stop[1] = {"never in the text"};
    rg_session *s = new_session(128);
    rg_status st = {0};
    r.stop_after_ids = 5;
    r.cancel = s;
    g = greedy(&r, 50);
    g.stop = stop;
    g.n_stop = 1;
    eval(s, ids, 30, 0);
    assert_int_equal(rg_session_generate(s, &g, &r.result, &st), RG_CANCELED);
    assert_int_equal(r.result.finish, RG_FINISH_CANCELED);
    assert_int_equal(r.result.n_tokens, 5);
    same_reply(&plain, &r);
    rg_status_clear(&st);
    assert_int_equal(rg_session_generate(s, &g, NULL, &st), RG_INVALID);
    assert_non_null(strstr(st.message, "reset"));
    rg_status_clear(&st);
    assert_int_equal(rg_session_eval(s, ids, 1, 0, NULL, NULL, &st), RG_INVALID);
    rg_session_reset(s);
    memset(&r, 0, sizeof r);
    g = greedy(&r, 5);
    eval(s, ids, 30, 0);
    generate(s, &g);
    same_reply(&plain, &r);
    rg_session_destroy(s);
}

static void generation_needs_a_token(void **state) {
    (void)state;
    static reply r;
    memset(&r, 0, sizeof r);
    rg_session *s = new_session(64);
    rg_status st = {0};
    const rg_generate_options g = greedy(&r, 5);
    assert_int_equal(rg_session_generate(s, &g, &r.result, &st), RG_INVALID);
    assert_int_equal(r.n, 0);
    rg_status_clear(&st);
    assert_int_equal(rg_session_eval(s, ids, 0, 0, NULL, NULL, &st), RG_INVALID);
    rg_status_clear(&st);
    const int32_t bad = -7;
    assert_int_equal(rg_session_eval(s, &bad, 1, 0, NULL, NULL, &st), RG_INVALID);
    rg_status_clear(&st);
    assert_int_equal(rg_session_finish_dump(s, r.text, sizeof r.text, &st), RG_INVALID);
    eval(s, ids, 3, 0);
    generate(s, &g);
    rg_session_stats stats;
    rg_session_get_stats(s, &stats);
    assert_int_equal(stats.prefill_tokens, 3);
    assert_int_equal(stats.decode_tokens, 5);
    assert_true(stats.ttft_ms > 0 && stats.compute_ms > 0 && stats.host_ms > 0);
    assert_true(stats.rss_peak_bytes > 1u << 20 && stats.state_bytes > 0);
    rg_session_reset(s);
    rg_status_clear(&st);
    assert_int_equal(rg_session_generate(s, &g, NULL, &st), RG_INVALID);
    rg_session_destroy(s);
}

static void sessions_do_not_meet(void **state) {
    (void)state;
    static reply alone, mixed[2];
    memset(&alone, 0, sizeof alone);
    memset(mixed, 0, sizeof mixed);
    rg_generate_options g = drawn(&alone, 12, 3);
    answer(&g, 128, 0);
    rg_session *s[2] = {new_session(128), new_session(64)};
    eval(s[0], ids, 30, 0);
    eval(s[1], ids + 10, 20, 4);
    for (int i = 0; i < 12; i++) {
        for (int k = 0; k < 2; k++) {
            g = drawn(&mixed[k], 1, 3);
            rg_status st = {0};
            assert_int_equal(rg_session_generate(s[k], &g, NULL, &st), RG_OK);
        }
    }
    assert_memory_equal(alone.ids, mixed[0].ids, 12 * sizeof *alone.ids);
    rg_session_destroy(s[0]);
    rg_session_destroy(s[1]);
}

/* ---- options --------------------------------------------------------------------------------- */

static void bad_options_are_refused(void **state) {
    (void)state;
    char path[RG_TINY_PATH_MAX];
    rg_tiny_path(path, "a-f32.gguf");
    const rg_engine_options engines[] = {
        {.model_path = NULL},
        {.model_path = ""},
        {.model_path = "no such file.gguf"},
        {.model_path = RG_TEST_DATA},
        {.model_path = path, .n_threads = -1},
        {.model_path = path, .n_threads = 100000},
        {.model_path = path, .chunk = 1u << 30},
        {.model_path = path, .cpu_level = "pdp-11"},
        {.model_path = path, .chat_template = "no such family"},
    };
    for (size_t i = 0; i < RG_ARRAY_LEN(engines); i++) {
        const uint64_t before = rg_alloc_live_bytes();
        rg_engine *e = NULL;
        rg_status st = {0};
        assert_int_not_equal(rg_engine_open(&e, &engines[i], &st), RG_OK);
        assert_null(e);
        assert_true(st.message[0] && !strchr(st.message, '\n'));
        assert_int_equal(rg_alloc_live_bytes(), before);
    }
    const rg_session_options sessions[] = {
        {.n_ctx = UINT32_MAX},
        {.mtp = true},
        {.dump_dir = "no such folder"},
        {.dump_ref_dir = "no such folder"},
        {.dump_ref_dir = "no such folder", .dump_tolerance = (double)NAN},
        {.dump_dir = "a", .dump_ref_dir = "b"},
    };
    for (size_t i = 0; i < RG_ARRAY_LEN(sessions); i++) {
        const uint64_t before = rg_alloc_live_bytes();
        rg_session *s = NULL;
        rg_status st = {0};
        assert_int_not_equal(rg_session_create(&s, engine, &sessions[i], &st), RG_OK);
        assert_null(s);
        assert_true(st.message[0] && !strchr(st.message, '\n'));
        assert_int_equal(rg_alloc_live_bytes(), before);
    }
}

/* ---- damaged files --------------------------------------------------------------------------- */

/* A copy of a tiny model with two bytes (f16 and block scales) or four (f32) overwritten. */
static void damage(const char *from, const char *to, const rg_tensor *t, bool inf) {
    char *data = NULL;
    size_t len = 0;
    rg_status st = {0};
    if (rg_file_slurp(&data, &len, from, 64u << 20, &st) != RG_OK) fail_msg("%s", st.message);
    const uint64_t at = t->offset;
    if (t->type == RG_TYPE_F32) {
        const uint32_t bits = inf ? 0xff800000u : 0x7fc00000u;
        memcpy(data + at + t->size_bytes - 4, &bits, 4);
    } else {
        const uint16_t bits = inf ? 0x7c00u : 0x7e00u;
        const rg_type_info *ti = rg_type_get((uint32_t)t->type);
        uint64_t scale = 0;
        if (t->type == RG_TYPE_Q3_K || t->type == RG_TYPE_Q6_K || t->type == RG_TYPE_TQ1_0 ||
            t->type == RG_TYPE_TQ2_0) {
            scale = ti->block_bytes - 2u;
        } else if (t->type == RG_TYPE_Q2_K) {
            scale = ti->block_bytes - 4u;
        }
        memcpy(data + at + scale, &bits, 2);
    }
    FILE *f = fopen(to, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
    rg_free(data);
}

/* Opening or the first request fails and the message names tensor and layer, for NaN and infinity
 * in each tensor that holds values. */
static void damaged_weights_are_named(void **state) {
    (void)state;
    static const char *const files[] = {"a-f32.gguf", "a-mix.gguf", "b-f16.gguf"};
    const char *copy = "damaged.gguf";
    uint32_t tried = 0;
    for (size_t i = 0; i < RG_ARRAY_LEN(files); i++) {
        char path[RG_TINY_PATH_MAX];
        rg_gguf *g = NULL;
        rg_status st = {0};
        assert_int_equal(rg_gguf_open(&g, rg_tiny_path(path, files[i]), &st), RG_OK);
        for (size_t t = i % 2; t < rg_gguf_tensor_count(g); t += 3) {
            const rg_tensor *tensor = rg_gguf_tensor_at(g, t);
            const rg_type_info *ti = rg_type_get((uint32_t)tensor->type);
            const bool in_block = strncmp(tensor->name, "blk.", 4) == 0;
            const char *number = in_block ? tensor->name + 4 : "";
            char *end = NULL;
            const long layer = strtol(number, &end, 10);
            const bool in_layer = end != number;
            if (ti->use != RG_USE_WEIGHT || strstr(tensor->name, "ple_embd") ||
                tensor->type == RG_TYPE_MXFP4 || tensor->type == RG_TYPE_NVFP4 ||
                tensor->type == RG_TYPE_IQ1_M || tensor->type == RG_TYPE_BF16) {
                continue; /* scales of another shape; rows of the table are read as they are met */
            }
            damage(path, copy, tensor, t % 2);
            rg_engine *e = NULL;
            const rg_engine_options opt = {.model_path = copy,
                                           .n_threads = 1,
                                           .kernels = i ? RG_KERNELS_AUTO : RG_KERNELS_REF};
            rg_status_clear(&st);
            char want[32] = "";
            if (in_layer) snprintf(want, sizeof want, "layer %ld", layer);
            const rg_code rc = rg_engine_open(&e, &opt, &st);
            if (rc != RG_FORMAT || e || !strstr(st.message, tensor->name) ||
                !strstr(st.message, want)) {
                fail_msg("%s of %s: code %d, \"%s\"", tensor->name, files[i], (int)rc, st.message);
            }
            tried++;
        }
        rg_gguf_close(g);
    }
    assert_true(tried > 60);
    unlink(copy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_is_the_chain_of_the_best),
        cmocka_unit_test(draws_depend_on_the_seed_alone),
        cmocka_unit_test(two_generations_are_one),
        cmocka_unit_test(penalties_and_bias_act),
        cmocka_unit_test(stop_strings_cut_the_text),
        cmocka_unit_test(eos_ends_unless_ignored),
        cmocka_unit_test(a_full_context_ends),
        cmocka_unit_test(the_caller_can_end),
        cmocka_unit_test(cancel_gives_what_there_is),
        cmocka_unit_test(generation_needs_a_token),
        cmocka_unit_test(sessions_do_not_meet),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(damaged_weights_are_named),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
