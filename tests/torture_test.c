/* Torture: the n-th allocation fails, for every n until a run needs no more of them; once alone and
 * once with all that follow. Each failure must be a clean NOMEM with one line, nothing may leak,
 * and an engine that is open must still answer as before.
 *
 *   torture_test [MODEL IDS]      default: tiny models
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "regolith.h"
#include "support/tiny_model.h"

#define PROMPT_MAX 10u
#define REPLY      6u

typedef struct subject {
    const char *path;
    const int32_t *ids;
    uint32_t n;
    bool mtp;
} subject;

typedef struct tally {
    uint64_t runs, failures;
    uint64_t silent; /* done without: the expression compiler's fast form, for one */
} tally;

static const char *doing = "";

static void complain(const char *what, const rg_status *st) {
    rg_alloc_fail_at(0, false);
    fprintf(stderr, "torture: %s: %s: %s: \"%s\"\n", doing, what, rg_code_text(st->code),
            st->message);
    exit(1);
}

/* True when the call worked; a failure must be NOMEM with one line. */
static bool ok(rg_code rc, const rg_status *st, const char *what) {
    if (rc == RG_OK) {
        if (st->code != RG_OK) complain(what, st);
        return true;
    }
    if (rc != RG_NOMEM || st->code != rc || !st->message[0]) complain(what, st);
    if (strchr(st->message, '\n')) complain(what, st);
    return false;
}

static bool take_text(void *user, const char *text, size_t len) {
    (void)text;
    *(size_t *)user += len;
    return true;
}

static bool take_id(void *user, int32_t id) {
    (void)user;
    return id >= 0;
}

static bool converse(const rg_engine *engine) {
    static const rg_message messages[] = {
        {.role = RG_ROLE_SYSTEM, .content = {"Be brief.", 9}},
        {.role = RG_ROLE_USER, .content = {"Hello, \xe4\xbd\xa0?", 11}},
        {.role = RG_ROLE_ASSISTANT, .content = {"Good day.", 9}, .reasoning = {"hm", 2}},
        {.role = RG_ROLE_USER, .content = {"The sea", 7}},
    };
    const rg_chat_options chat = {.add_generation_prompt = true, .enable_thinking = true};
    rg_status st = {0};
    char *text = NULL;
    int32_t *ids = NULL;
    size_t len = 0, n = 0;
    const rg_code rc = rg_engine_render_chat(engine, messages, RG_ARRAY_LEN(messages), NULL, 0,
                                             &chat, &text, &len, &st);
    /* A tiny model's template may be of no known family: that is no failure of memory. */
    if (rc == RG_UNSUPPORTED) return true;
    if (!ok(rc, &st, "chat")) {
        if (text) complain("text handed out with a failure", &st);
        return false;
    }
    const bool good =
        ok(rg_engine_tokenize(engine, text, len, true, &ids, &n, &st), &st, "tokenize");
    char *back = NULL;
    size_t back_len = 0;
    bool same = true;
    if (good) {
        same = ok(rg_vocab_detokenize(rg_engine_vocab(engine), ids, n, &back, &back_len, &st), &st,
                  "detokenize");
        if (same && (back_len != len || memcmp(back, text, len) != 0)) {
            complain("text changed on its way through ids", &st);
        }
    }
    rg_release(text);
    rg_release(back);
    rg_release(ids);
    return good && same;
}

/* Prefill, decode, generation, reset and again. */
static bool talk(rg_engine *engine, const subject *s, float *last_logit) {
    static const char *const stop[] = {"zqzq", "\xff\xfe never"};
    rg_status st = {0};
    rg_session *session = NULL;
    const rg_session_options so = {.n_ctx = 64, .mtp = s->mtp};
    if (!ok(rg_session_create(&session, engine, &so, &st), &st, "session")) {
        if (session) complain("session handed out with a failure", &st);
        return false;
    }
    size_t shown = 0;
    const rg_generate_options g = {.sampling = rg_sampling_defaults(),
                                   .n_predict = REPLY,
                                   .ignore_eos = true,
                                   .show_special = true,
                                   .stop = stop,
                                   .n_stop = 2,
                                   .on_token = take_id,
                                   .on_text = take_text,
                                   .user = &shown};
    bool good = true;
    for (int turn = 0; turn < 2 && good; turn++) {
        rg_generate_result r = {0};
        good = ok(rg_session_eval(session, s->ids, s->n - 2, 5, NULL, NULL, &st), &st, "prefill");
        for (uint32_t i = s->n - 2; i < s->n && good; i++) {
            good = ok(rg_session_eval(session, s->ids + i, 1, 0, NULL, NULL, &st), &st, "decode");
        }
        good = good && ok(rg_session_generate(session, &g, &r, &st), &st, "generate");
        if (good && (r.n_tokens != REPLY || !shown)) complain("the reply is short", &st);
        if (good) *last_logit += (float)shown;
        rg_session_reset(session);
        if (rg_session_length(session) != 0) complain("length after reset", &st);
    }
    rg_session_destroy(session);
    return good;
}

static bool open_engine(const subject *s, rg_engine **engine) {
    const rg_engine_options eo = {.model_path = s->path, .n_threads = 1, .chunk = 8};
    rg_status st = {0};
    if (ok(rg_engine_open(engine, &eo, &st), &st, "open")) return true;
    if (*engine) complain("engine handed out with a failure", &st);
    return false;
}

/* One life of an engine in which allocation n fails. False when something failed. */
static bool life(const subject *s, uint64_t n, bool sticky, float want) {
    const uint64_t before = rg_alloc_live_bytes();
    rg_engine *engine = NULL;
    float got = 0.0f;
    rg_alloc_fail_at(n, sticky);
    bool good = open_engine(s, &engine);
    if (good) {
        good = converse(engine);
        good = talk(engine, s, &got) && good;
        rg_alloc_fail_at(0, false);
        /* Whatever failed, the engine answers as ever. */
        float again = 0.0f;
        const rg_status none = {0};
        if (!good && (!converse(engine) || !talk(engine, s, &again) || again != want)) {
            complain("the engine answers differently after a failure", &none);
        }
        if (good && got != want) complain("the answer differs", &none);
    }
    rg_engine_close(engine);
    rg_alloc_fail_at(0, false);
    if (rg_alloc_live_bytes() != before) {
        fprintf(stderr, "torture: %s: allocation %llu%s: %lld bytes leaked\n", doing,
                (unsigned long long)n, sticky ? " and all behind it" : "",
                (long long)(rg_alloc_live_bytes() - before));
        exit(1);
    }
    return good;
}

/* The vocabulary alone. */
static bool vocab_life(const subject *s, uint64_t n, bool sticky) {
    const uint64_t before = rg_alloc_live_bytes();
    rg_vocab *vocab = NULL;
    rg_status st = {0};
    rg_alloc_fail_at(n, sticky);
    const bool good = ok(rg_vocab_open(&vocab, s->path, &st), &st, "vocabulary");
    rg_alloc_fail_at(0, false);
    if (!good && vocab) complain("vocabulary handed out with a failure", &st);
    rg_vocab_close(vocab);
    if (rg_alloc_live_bytes() != before) complain("the vocabulary leaked", &st);
    return good;
}

static void torture(const char *name, const subject *s, uint64_t stride, tally *t) {
    doing = name;
    float want = 0.0f;
    rg_engine *engine = NULL;
    if (!open_engine(s, &engine) || !converse(engine) || !talk(engine, s, &want)) {
        fprintf(stderr, "torture: %s fails undisturbed\n", name);
        exit(1);
    }
    rg_engine_close(engine);
    const uint64_t begin = rg_alloc_count();
    if (!life(s, 0, false, want)) exit(1);
    const uint64_t n_alloc = rg_alloc_count() - begin;
    for (int sticky = 0; sticky < 2; sticky++) {
        for (uint64_t n = 1 + (uint64_t)sticky * (stride / 2); n <= n_alloc; n += stride) {
            t->runs++;
            if (life(s, n, sticky, want)) {
                t->silent++;
            } else {
                t->failures++;
            }
        }
        if (!life(s, n_alloc + 1, sticky, want)) exit(1);
        for (uint64_t n = 1; !vocab_life(s, n, sticky); n += stride)
            t->runs++;
    }
    printf("torture: %s: %llu allocations\n", name, (unsigned long long)n_alloc);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name, *file;
        bool mtp;
    } models[] = {{"a-f32", "a-f32.gguf", false},
                  {"a-fused", "a-fused-00002-of-00003.gguf", false},
                  {"k-mtp", "k-mtp.gguf", true}};
    const char *stride_text = getenv("RG_TORTURE_STRIDE");
    const long stride = stride_text ? strtol(stride_text, NULL, 10) : 1;
    tally t = {0};
    if (stride < 1) return 2;
    if (argc > 2) {
        static int32_t ids[PROMPT_MAX];
        subject s = {.path = argv[1], .ids = ids};
        for (char *at = argv[2], *end = NULL; s.n < PROMPT_MAX; at = end, s.n++) {
            const long id = strtol(at, &end, 10);
            if (end == at) break;
            ids[s.n] = (int32_t)id;
        }
        if (s.n < 3) return 2;
        torture(argv[1], &s, (uint64_t)stride, &t);
    }
    for (size_t i = 0; argc < 2 && i < RG_ARRAY_LEN(models); i++) {
        char path[RG_TINY_PATH_MAX];
        uint32_t n = 0;
        int32_t *ids = rg_tiny_ids(models[i].name, &n);
        const subject s = {.path = rg_tiny_path(path, models[i].file),
                           .ids = ids,
                           .n = n < PROMPT_MAX ? n : PROMPT_MAX,
                           .mtp = models[i].mtp};
        torture(models[i].name, &s, (uint64_t)stride, &t);
        rg_free(ids);
    }
    printf("torture: %llu runs, %llu clean failures, %llu times done without\n",
           (unsigned long long)t.runs, (unsigned long long)t.failures,
           (unsigned long long)t.silent);
    return 0;
}
