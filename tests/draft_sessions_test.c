/* Four sessions that share windows, each under a JSON schema, penalties and a way to draw of its
 * own, with drafts of every source and length: token ids and the bits of all logits are those of
 * each session alone without drafts, at every size of the arena and with 1 to 3 threads. The same
 * of free text, where drafts are right more often.
 *
 *   draft_sessions_test [full [FROM TO]]
 *
 * A short form with few arms, or all of them with 512 tokens each; FROM and TO pick arms of the
 * full form, TO left out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#include <xxhash.h>

#include "api/api.h"
#include "serve/guide.h"

#define MODEL    RG_SOURCE_DIR "/models/regolith-demo-q4.gguf"
#define N_TALK   4u
#define N_FULL   512u
#define N_SHORT  72u
#define N_PROMPT 128u
#define N_DRAFT  14u
#define N_ARENA                                                                                    \
    9u /* everything resident, and 8 steps from the least legal arena to all experts               \
        */
#define N_SLOT    576u
#define N_LEAST   7u
#define N_ARM     (N_ARENA * N_DRAFT)
#define N_THREADS 3u

static const char schema_text[] =
    "{\"type\":\"array\",\"minItems\":96,\"items\":{\"type\":\"object\",\"additionalProperties\":"
    "false,\"required\":[\"word\",\"kind\",\"n\"],\"properties\":{\"word\":{\"type\":\"string\","
    "\"maxLength\":10},\"kind\":{\"enum\":[\"noun\",\"verb\",\"b\\n\\\"c\"]},\"n\":{\"type\":"
    "\"integer\",\"minimum\":-20,\"maximum\":300}}}}";

static const char *const prompts[N_TALK] = {
    ("<|im_start|>user\nDefine "
     "reparation.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    "Sir Walter had at first thought more of London; but Mr. Shepherd felt that he could not",
    "0001 anne 54\n0002 walter 91\n0003 russell 31\n0001 anne 54\n0002 walter 91\n0003 russell",
    "And the sons of Merari by their families; Mahli, and Mushi. And these are the families of"};

/* One text under way. */
typedef struct talk {
    rg_session *session;
    rg_reply *reply;
    rg_guide *guide;     /* NULL: free text */
    int32_t ids[N_FULL]; /* what was picked */
    uint32_t n;
    uint64_t hash; /* of the logits that they were picked from */
} talk;

/* What a text without drafts came to. */
typedef struct truth {
    int32_t ids[N_FULL];
    uint64_t hash;
} truth;

typedef struct job {
    uint32_t n_token;
    rg_lexicon lexicon;
    json_t *schema;
    truth truth[2][N_TALK]; /* free, under the schema */
    uint64_t offered, accepted;
} job;

typedef struct arm {
    rg_draft_mode mode;
    uint32_t draft_max;
    bool fixed, bound;
    uint32_t arena; /* slots; 0: everything resident */
    int threads;
} arm;

static void die(const char *what, const rg_status *st) {
    fprintf(stderr, "draft_sessions_test: %s: %s\n", what, st->message);
    abort();
}

/* ---- arms ----------------------------------------------------------------------------------- */

/* mtp 1..4, suffix 1..7, auto governed with 4 and 7, auto always 7: each at every arena. Threads
 * and schemas meet each of both: the sums are independent modulo 3. */
static arm arm_of(uint32_t i) {
    const uint32_t d = i % N_DRAFT, a = i / N_DRAFT;
    arm x = {.mode = RG_DRAFT_AUTO, .draft_max = 7, .fixed = d != 11 && d != 12};
    if (d < 4) {
        x.mode = RG_DRAFT_MTP;
        x.draft_max = d + 1;
    } else if (d < 11) {
        x.mode = RG_DRAFT_SUFFIX;
        x.draft_max = d - 3;
    } else if (d == 11) {
        x.draft_max = 4;
    }
    x.bound = (a + d) % 3 != 0;
    if (a) x.arena = N_LEAST + (N_SLOT - N_LEAST) * (a - 1) / (N_ARENA - 2);
    x.threads = (int)(1 + (a + 2 * d) % N_THREADS);
    return x;
}

/* ---- texts ---------------------------------------------------------------------------------- */

static rg_engine *open_engine(const arm *x, uint32_t n_talk) {
    rg_engine *e = NULL;
    rg_status st = {0};
    const rg_engine_options opt = {.model_path = MODEL,
                                   .n_threads = x->threads,
                                   .arena_experts = x->arena,
                                   .plan_mtp = true,
                                   .plan_draft_max = RG_DRAFTS_MAX,
                                   .n_ctx = N_PROMPT + N_FULL,
                                   .n_session = n_talk,
                                   .profile_path = "off"};
    if (rg_engine_open(&e, &opt, &st) != RG_OK) die("engine", &st);
    return e;
}

/* Greedy and three seeds, all with penalties. */
static rg_sampling_params sampling_of(uint32_t i) {
    rg_sampling_params p = rg_sampling_defaults();
    p.temperature = i ? 0.9f : 0.0f;
    p.seed = i;
    p.repeat_penalty = 1.1f;
    p.frequency_penalty = 0.1f;
    p.presence_penalty = i % 2 ? 0.1f : 0.0f;
    p.penalty_last_n = 48;
    return p;
}

static void start(talk *t, const job *j, rg_engine *e, const arm *x, uint32_t i) {
    rg_status st = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    const rg_session_options so = {.n_ctx = N_PROMPT + N_FULL,
                                   .draft = x->mode,
                                   .draft_max = x->mode == RG_DRAFT_OFF ? 0 : x->draft_max,
                                   .draft_fixed = x->fixed};
    const rg_reply_options ro = {.sampling = sampling_of(i), .ignore_eos = !x->bound};
    const rg_guide_options go = {.schema = j->schema};
    memset(t, 0, sizeof *t);
    if (rg_engine_tokenize(e, prompts[i], strlen(prompts[i]), true, &ids, &n, &st) != RG_OK ||
        rg_session_create(&t->session, e, &so, &st) != RG_OK ||
        rg_reply_create(&t->reply, e, &ro, ids, n, j->n_token, &st) != RG_OK ||
        (x->bound && rg_guide_create(&t->guide, &j->lexicon, &go, &st) != RG_OK)) {
        die("session", &st);
    }
    const rg_batch_part part = {.session = t->session, .n_ids = (uint32_t)n, .want_logits = true};
    if (rg_session_eval_batch(e, &part, 1, ids, NULL, &st) != RG_OK) die("prompt", &st);
    rg_release(ids);
}

static void stop(talk *t, job *j) {
    rg_draft_stats d;
    rg_session_get_draft_stats(t->session, &d);
    j->offered += d.offered;
    j->accepted += d.accepted;
    rg_guide_destroy(t->guide);
    rg_reply_destroy(t->reply);
    rg_session_destroy(t->session);
}

/* Picks as long as the window has rows for it. */
static void pick(talk *t, const job *j) {
    const rg_session *s = t->session;
    const size_t V = s->engine->model->hp.n_vocab;
    rg_status st = {0};
    do {
        const float *row = s->open.n ? s->open.logits + s->open_at * V : s->logits;
        const uint8_t *allowed = NULL;
        rg_reply_step step;
        t->hash = XXH3_64bits_withSeed(row, V * sizeof *row, t->hash);
        if (t->guide && rg_guide_allowed(t->guide, &allowed, &st) != RG_OK) die("guide", &st);
        if (rg_reply_pick(t->reply, t->session, allowed, &step, &st) != RG_OK) die("pick", &st);
        if (t->guide && rg_guide_accept(t->guide, step.id, &st) != RG_OK) die("guide", &st);
        if (step.end) {
            fprintf(stderr, "draft_sessions_test: a text ends after %u tokens\n", t->n);
            abort();
        }
        t->ids[t->n++] = step.id;
    } while (t->n < j->n_token && rg_session_follow(t->session, t->ids[t->n - 1]));
}

/* All texts to their ends, those under way in one window. */
static void run(talk *talks, uint32_t n_talk, const job *j, rg_engine *e) {
    rg_status st = {0};
    for (uint32_t i = 0; i < n_talk; i++)
        pick(&talks[i], j);
    for (;;) {
        rg_batch_part parts[N_TALK];
        talk *of[N_TALK];
        int32_t ids[N_TALK];
        uint32_t n = 0;
        for (uint32_t i = 0; i < n_talk; i++) {
            talk *t = &talks[i];
            if (t->n >= j->n_token) continue;
            parts[n] = (rg_batch_part){.session = t->session,
                                       .n_ids = 1,
                                       .want_logits = true,
                                       .reply = t->reply,
                                       .n_more = j->n_token - t->n - 1};
            ids[n] = t->ids[t->n - 1];
            of[n++] = t;
        }
        if (!n) return;
        if (rg_session_eval_batch(e, parts, n, ids, NULL, &st) != RG_OK) die("window", &st);
        for (uint32_t i = 0; i < n; i++)
            pick(of[i], j);
        if (rg_session_close_batch(e, parts, n, &st) != RG_OK) die("close", &st);
    }
}

/* Each text alone, without drafts, all experts in memory. */
static void find_truth(job *j) {
    for (uint32_t bound = 0; bound < 2; bound++) {
        const arm plain = {.mode = RG_DRAFT_OFF, .bound = bound != 0, .threads = 2};
        rg_engine *e = open_engine(&plain, 1);
        for (uint32_t i = 0; i < N_TALK; i++) {
            static talk t;
            start(&t, j, e, &plain, i);
            run(&t, 1, j, e);
            memcpy(j->truth[bound][i].ids, t.ids, sizeof t.ids);
            j->truth[bound][i].hash = t.hash;
            stop(&t, j);
        }
        rg_engine_close(e);
    }
}

/* False, and says so, when a text is not what it is alone. */
static bool check(job *j, const arm *x) {
    static talk talks[N_TALK];
    bool good = true;
    rg_engine *e = open_engine(x, N_TALK);
    for (uint32_t i = 0; i < N_TALK; i++)
        start(&talks[i], j, e, x, i);
    run(talks, N_TALK, j, e);
    for (uint32_t i = 0; i < N_TALK; i++) {
        const truth *want = &j->truth[x->bound][i];
        uint32_t at = 0;
        while (at < j->n_token && talks[i].ids[at] == want->ids[at])
            at++;
        if (at < j->n_token || talks[i].hash != want->hash) {
            fprintf(stderr,
                    "FAIL text %u, drafts %d up to %u%s, arena %u, %d threads%s: %u of %u ids "
                    "equal, logits %s\n",
                    i, (int)x->mode, x->draft_max, x->fixed ? " always" : "", x->arena, x->threads,
                    x->bound ? ", schema" : "", at, j->n_token,
                    talks[i].hash == want->hash ? "equal" : "differ");
            good = false;
        }
        stop(&talks[i], j);
    }
    rg_engine_close(e);
    return good;
}

static bool is_picked(uint32_t i, bool full, uint32_t from, uint32_t to) {
    if (full) return i >= from && i < to;
    return i % 25 == 3; /* other drafts, arenas, threads each time, both kinds */
}

int main(int argc, char **argv) {
    const bool full = argc > 1 && strcmp(argv[1], "full") == 0;
    const uint32_t from = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
    const uint32_t to = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : N_ARM;
    job *j = calloc(1, sizeof *j);
    rg_status st = {0};
    rg_vocab *vocab = NULL;
    uint32_t n = 0, n_bad = 0;
    if (!j || (argc > 1 && !full) || to > N_ARM || from >= to) {
        fprintf(stderr, "usage: draft_sessions_test [full [FROM TO]], arms 0 to %u\n", N_ARM);
        free(j);
        return 2;
    }
    j->n_token = full ? N_FULL : N_SHORT;
    j->schema = json_loads(schema_text, 0, NULL);
    if (!j->schema) die("schema", &st);
    if (rg_vocab_open(&vocab, MODEL, &st) != RG_OK) die("vocabulary", &st);
    if (rg_lexicon_init(&j->lexicon, vocab, &st) != RG_OK) die("lexicon", &st);
    find_truth(j);
    for (uint32_t i = 0; i < N_ARM; i++) {
        if (!is_picked(i, full, from, to)) continue;
        const arm x = arm_of(i);
        n++;
        n_bad += !check(j, &x);
    }
    printf("draft_sessions_test: %u tokens in each of 4 texts, %u of %u arms equal, %llu of %llu "
           "drafts accepted\n",
           j->n_token, n - n_bad, n, (unsigned long long)j->accepted,
           (unsigned long long)j->offered);
    const bool drafted = j->accepted > 0 && j->accepted < j->offered && j->offered > 100;
    if (!drafted) fprintf(stderr, "FAIL: no drafts, or none of them wrong\n");
    rg_lexicon_deinit(&j->lexicon);
    rg_vocab_close(vocab);
    json_decref(j->schema);
    free(j);
    return n && !n_bad && drafted ? 0 : 1;
}
