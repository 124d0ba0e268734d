/* The charter's matrix on a GPU through the public interface: ids, and a hash of all logits, of a
 * generation with drafts of any source and length, right, wrong or mixed, are those without drafts;
 * so whatever the size of the arena, with splitting on and off, with read-ahead off, as it pays and
 * far, and with any chunk of the prompt. With logits shown and without (where a device may keep
 * them to itself), greedy and drawn.
 *
 *   gpu_drafts_matrix_test [full [FROM TO]]   engines FROM to TO - 1 of all, each with
 *       every other arm, logits shown and not
 *
 * The short form gives each engine a share of the arms.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "kernels/kernels.h"
#include "regolith.h"
#include "support/gpu_here.h"
#include "support/logits_hash.h"
#include "support/released.h"
#include "support/tiny_model.h"

#define DEMO      RG_SOURCE_DIR "/models/regolith-demo-q4.gguf"
#define N_CTX     160u
#define N_FULL    40u /* tokens of a generation at most */
#define CHUNK     64u /* the engines' */
#define ARMS_MAX  40u
#define N_ENGINE  19u /* of the full form */
#define N_CHUNK   4u
#define N_KIND    4u /* logits shown or not, greedy or drawn */
#define N_SAMPLED 2u

typedef enum source { SESSION, RIGHT, WRONG_AT, SOMETIMES } source;

typedef struct arm {
    rg_draft_mode mode;
    uint32_t n; /* drafts at most; 0: none */
    bool fixed;
    source from;       /* SESSION, or the caller's drafts */
    uint32_t wrong_at; /* draft that the caller gets wrong */
} arm;

/* What a generation without drafts came to. */
typedef struct truth {
    int32_t ids[N_FULL];
    uint64_t hash; /* of the logits behind every token of the prompt and of the text */
} truth;

typedef struct subject {
    const char *path, *ids;
    bool mtp;          /* has a draft block; else its text repeats itself */
    uint32_t n_expert; /* of all layers: an arena that holds them */
    uint32_t least;
    uint32_t n_short; /* tokens of a short generation */
} subject;

typedef struct place {
    const subject *of;
    uint32_t arena; /* experts; 0: all are in memory without one */
    rg_toggle split;
    int32_t lookahead;
} place;

static bool full;
static uint32_t first = 0, last = N_ENGINE, n_token;
static uint32_t n_error; /* lines of errors: validation layers among them */
static char first_error[256];

/* ---- a generation ---------------------------------------------------------------------------- */

typedef struct listener {
    const arm *a;
    const truth *want; /* NULL: nothing to draft from */
    uint32_t n_vocab, n, n_asked;
    int32_t ids[N_FULL];
    uint64_t hash;
} listener;

static bool on_token(void *user, int32_t id) {
    listener *l = user;
    assert_true(l->n < n_token);
    l->ids[l->n++] = id;
    return true;
}

static rg_code on_logits(void *user, uint32_t position, const float *logits, rg_status *st) {
    listener *l = user;
    (void)st;
    l->hash = hash_logits(l->hash, position, logits, l->n_vocab);
    return RG_OK;
}

/* Drafts of the caller: the text that is to come, with mistakes. */
static uint32_t on_draft(void *user, int32_t *ids, uint32_t n_max) {
    listener *l = user;
    uint32_t n = 0;
    l->n_asked++;
    if (l->a->from == SOMETIMES && rg_random_u64(3, l->n_asked) % 4 == 0) return 0;
    for (; n < n_max && l->n + n < n_token; n++) {
        const uint64_t draw = rg_random_u64(4, l->n_asked * 8 + n);
        const bool wrong = l->a->from == WRONG_AT    ? n == l->a->wrong_at
                           : l->a->from == SOMETIMES ? draw % 3 == 0
                                                     : false;
        ids[n] = (l->want->ids[l->n + n] + (wrong ? 1 : 0)) % (int32_t)l->n_vocab;
    }
    return n;
}

typedef struct prompt {
    int32_t *ids;
    uint32_t n;
} prompt;

/* kind: bit 0 drawn, bit 1 logits are not shown. */
static void generate(rg_engine *e, const prompt *p, const arm *a, uint32_t kind, uint32_t chunk,
                     listener *l, rg_draft_stats *drafts) {
    rg_session *s = NULL;
    rg_status st = {0};
    rg_engine_info info;
    const rg_session_options so = {
        .n_ctx = N_CTX, .draft = a->mode, .draft_max = a->n, .draft_fixed = a->fixed};
    rg_generate_options g = {.sampling = rg_sampling_defaults(),
                             .n_predict = n_token,
                             .ignore_eos = true,
                             .on_token = on_token,
                             .on_logits = kind & 2 ? NULL : on_logits,
                             .on_draft = a->from == SESSION ? NULL : on_draft,
                             .user = l};
    g.sampling.temperature = kind & 1 ? 0.9f : 0.0f;
    g.sampling.seed = 5;
    rg_engine_get_info(e, &info);
    l->a = a;
    l->n_vocab = info.n_vocab;
    if (rg_session_create(&s, e, &so, &st) != RG_OK ||
        rg_session_eval(s, p->ids, p->n, chunk, kind & 2 ? NULL : on_logits, l, &st) != RG_OK ||
        rg_session_generate(s, &g, NULL, &st) != RG_OK) {
        fail_msg("%s", st.message);
    }
    assert_int_equal(l->n, n_token);
    rg_session_get_draft_stats(s, drafts);
    rg_session_destroy(s);
}

/* ---- arms ------------------------------------------------------------------------------------ */

static uint32_t list_arms(arm *arms, bool mtp) {
    uint32_t n = 0;
    for (uint32_t k = 1; k <= RG_DRAFTS_MAX; k++) {
        arms[n++] = (arm){mtp ? RG_DRAFT_MTP : RG_DRAFT_SUFFIX, k, true, SESSION, 0};
        arms[n++] = (arm){RG_DRAFT_OFF, k, true, RIGHT, 0};
        if (mtp) arms[n++] = (arm){RG_DRAFT_OFF, RG_DRAFTS_MAX, true, WRONG_AT, k - 1};
    }
    arms[n++] = (arm){RG_DRAFT_AUTO, RG_DRAFTS_MAX, false, SESSION, 0};
    arms[n++] = (arm){RG_DRAFT_AUTO, 4, true, SESSION, 0};
    arms[n++] = (arm){RG_DRAFT_AUTO, 5, true, SOMETIMES, 0};
    arms[n++] = (arm){RG_DRAFT_OFF, 0, false, SESSION, 0};
    return n;
}

static void check_counts(const arm *a, const rg_draft_stats *d) {
    uint64_t windows = 0, tokens = 0;
    for (uint32_t s = 0; s < RG_SOURCE_COUNT; s++) {
        for (uint32_t n = 0; n <= RG_DRAFTS_MAX; n++) {
            windows += d->windows[s][n].n;
            tokens += d->windows[s][n].tokens;
        }
    }
    if (!a->n) return;                     /* no windows with drafts */
    assert_int_equal(tokens, n_token - 1); /* the first token came with the prompt */
    assert_int_equal(windows + d->accepted, tokens);
    if (a->from == RIGHT) assert_int_equal(d->accepted, d->offered);
    if (a->from == WRONG_AT) {
        assert_true(d->right[RG_SOURCE_CALLER][a->wrong_at] == 0);
        assert_true(a->wrong_at == 0 || d->right[RG_SOURCE_CALLER][a->wrong_at - 1] > 0);
    }
    if (a->from != SESSION || a->mode == RG_DRAFT_MTP) assert_true(d->offered > 0);
}

typedef struct sums {
    uint32_t n_run;
    uint64_t offered[RG_SOURCE_COUNT], accepted;
} sums;

static void check_arm(rg_engine *e, const prompt *p, const arm *a, uint32_t kind, uint32_t chunk,
                      const truth *truths, const place *at, sums *all) {
    rg_draft_stats d;
    listener got = {.want = &truths[kind & 1]};
    generate(e, p, a, kind, chunk, &got, &d);
    if (memcmp(got.ids, got.want->ids, n_token * sizeof *got.ids) != 0 ||
        (!(kind & 2) && got.hash != got.want->hash)) {
        fail_msg("drafts %d, at most %u (fixed %d, from %d, wrong %u), %s, logits %s, chunk %u, "
                 "arena %u, "
                 "split %d, read-ahead %d: not as without drafts",
                 a->mode, a->n, a->fixed, a->from, a->wrong_at, kind & 1 ? "drawn" : "greedy",
                 kind & 2 ? "kept" : "shown", chunk, at->arena, at->split, at->lookahead);
    }
    check_counts(a, &d);
    all->n_run++;
    all->accepted += d.accepted;
    for (uint32_t s = 0; s < RG_SOURCE_COUNT; s++)
        all->offered[s] += d.tried[s][0];
}

/* ---- engines --------------------------------------------------------------------------------- */

static void hear(void *user, rg_log_level level, const char *line) {
    (void)user;
    if (level != RG_LOG_ERROR || n_error++) return;
    snprintf(first_error, sizeof first_error, "%s", line);
}

static rg_engine *open_engine(const place *at) {
    char path[RG_TINY_PATH_MAX];
    rg_engine *e = NULL;
    rg_status st = {0};
    const rg_engine_options opt = {
        .model_path = at->of->mtp ? rg_tiny_path(path, at->of->path) : at->of->path,
        .n_threads = 2,
        .chunk = CHUNK,
        .gpu = true,
        .gpu_device = -1,
        .gpu_check = full && !at->arena, /* slow; gpu_draft_test is checked */
        .arena_experts = at->arena,
        .split = at->split,
        .lookahead = at->lookahead,
        .profile_path = "off"};
    if (rg_engine_open(&e, &opt, &st) != RG_OK) fail_msg("%s", st.message);
    return e;
}

/* The tokens of a subject's prompt; for the demo a text that it goes on with in its own words. */
static prompt open_prompt(const rg_engine *e, const subject *of) {
    static const char text[] = "And the sons of Merari by their families; Mahli, and Mushi. And "
                               "these are the families of";
    prompt p = {0};
    size_t n = 0;
    rg_status st = {0};
    if (of->mtp) {
        p.ids = rg_tiny_ids(of->ids, &p.n);
        p.n = p.n < 30 ? p.n : 30;
        return p;
    }
    if (rg_engine_tokenize(e, text, sizeof text - 1, false, &p.ids, &n, &st) != RG_OK)
        fail_msg("%s", st.message);
    p.n = (uint32_t)n;
    return p;
}

static void close_prompt(prompt *p, const subject *of) {
    if (of->mtp) {
        rg_free(p->ids);
    } else {
        rg_release(p->ids);
    }
}

/* Without drafts, greedy and drawn. */
static void find_truths(rg_engine *e, const prompt *p, uint32_t chunk, truth *truths) {
    const arm off = {RG_DRAFT_OFF, 0, false, SESSION, 0};
    for (uint32_t k = 0; k < N_SAMPLED; k++) {
        rg_draft_stats d;
        listener l = {0};
        generate(e, p, &off, k, chunk, &l, &d);
        memcpy(truths[k].ids, l.ids, sizeof l.ids);
        truths[k].hash = l.hash;
    }
}

/* One arm of `step`, in each family another, each with another way to look and to draw. In the
 * short form a place has one chunk size: every other one builds its own kernels, which is what
 * takes the time there. */
static void check_place(const place *at, uint32_t index, uint32_t step, truth *truths, sums *all) {
    static const uint32_t chunks[N_CHUNK] = {16, 7, 1, CHUNK};
    arm arms[ARMS_MAX];
    const uint32_t n = list_arms(arms, at->of->mtp);
    rg_engine *e = open_engine(at);
    prompt p = open_prompt(e, at->of);
    if (!truths[0].hash) find_truths(e, &p, chunks[index % N_CHUNK], truths);
    const uint32_t family = at->of->mtp ? 3 : 2; /* arms with the same number of drafts */
    for (uint32_t a = 0, i = 0; a < n; a++) {
        if ((a + a / family) % step != index % step) continue;
        const uint32_t kind = (i++ + index) % N_KIND;
        const uint32_t chunk = chunks[(full ? a / 2 + index : index) % N_CHUNK];
        for (uint32_t k = 0; k < (full ? 2u : 1u); k++)
            check_arm(e, &p, &arms[a], kind ^ (2 * k), chunk, truths, at, all);
    }
    close_prompt(&p, at->of);
    rg_engine_close(e);
}

static uint32_t list_places(place *places, const subject *of) {
    const uint32_t sizes[] = {of->least, (of->least + of->n_expert) / 2, of->n_expert};
    static const int32_t ahead[] = {0, -1, 4};
    static const rg_toggle split[] = {RG_ON, RG_OFF};
    uint32_t n = 0;
    places[n++] = (place){of, 0, RG_AUTO, 0};
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t l = 0; l < 3; l++)
            for (uint32_t s = 0; s < 2; s++)
                places[n++] = (place){of, sizes[i], split[s], ahead[l]};
    return n;
}

/* All in memory, the smallest and the largest arena, the middle one: with other splits and
 * read-aheads. */
static const uint32_t short_places[] = {0, 1 + 1, 13 + 4, 7 + 2};

/* The short form: places from .. to - 1 with every step-th arm each. */
static void whatever_is_drafted(const subject *of, uint32_t from, uint32_t to, uint32_t step) {
    place places[N_ENGINE];
    truth truths[N_SAMPLED] = {{{0}, 0}};
    sums all = {0};
    const uint32_t n = list_places(places, of);
    n_token = full ? N_FULL : of->n_short;
    for (uint32_t i = 0; i < n && full; i++) {
        if (i >= first && i < last) check_place(&places[i], i, 2, truths, &all);
    }
    for (uint32_t i = from; i < to && !full; i++)
        check_place(&places[short_places[i]], i, step, truths, &all);
    if (n_error) fail_msg("%u errors, first: %s", n_error, first_error);
    print_message("%u runs, %llu drafts accepted; windows of the draft block %llu, of the text "
                  "%llu, of the caller %llu\n",
                  all.n_run, (unsigned long long)all.accepted,
                  (unsigned long long)all.offered[RG_SOURCE_MTP],
                  (unsigned long long)all.offered[RG_SOURCE_SUFFIX],
                  (unsigned long long)all.offered[RG_SOURCE_CALLER]);
    assert_true(all.n_run > 0 && all.accepted > all.n_run);
    assert_true(all.offered[RG_SOURCE_CALLER] > 0);
    assert_true(all.offered[of->mtp ? RG_SOURCE_MTP : RG_SOURCE_SUFFIX] > 0);
}

static void draft_block(void **state) {
    static const subject of = {"k-mtp.gguf", "k-mtp", true, 30, 3, 10};
    (void)state;
    whatever_is_drafted(&of, 0, 3, 3);
}

static void text_that_repeats(void **state) {
    static const subject of = {DEMO, NULL, false, 576, 7, 16};
    (void)state;
    whatever_is_drafted(&of, 3, 4, 3);
}

int main(int argc, char **argv) {
    full = argc > 1 && strcmp(argv[1], "full") == 0;
    if (argc > 2) first = (uint32_t)strtoul(argv[2], NULL, 10);
    if (argc > 3) last = (uint32_t)strtoul(argv[3], NULL, 10);
    if (!gpu_here()) return 77;
    rg_log_set(hear, NULL, RG_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draft_block),
        cmocka_unit_test(text_that_repeats),
    };
    return failed_or_leaked(cmocka_run_group_tests(tests, NULL, gpu_kept_release));
}
