/* bench --draft: what drafts of each source and length do to one greedy reply. Every arm gives the
 * same tokens, which is checked; arms are interleaved, repetition by repetition.
 *
 *     off      one token at a time
 *     plain    the same through verification windows of one row
 *     mtp, suffix   always N drafts
 *     forced   N drafts that are all right: what a window costs
 *     governed      as --draft says, as many drafts as pay
 */
#include <string.h>

#include "cli/bench.h"
#include "cli/draft_print.h"

#define ARMS_MAX (3u * RG_DRAFTS_MAX + 3u)

typedef struct draft_arm {
    const char *name;
    rg_draft_mode mode;
    uint32_t n; /* drafts; 0 without */
    bool fixed, forced;
    double *tok_s; /* [reps] */
    rg_draft_stats sum;
} draft_arm;

typedef struct draft_job {
    const cli_options *opt;
    rg_engine *engine;
    rg_engine_info info;
    int32_t *prompt; /* [n_prompt] */
    int32_t *reply;  /* [n_gen] of the first run */
    uint32_t n_reply;
    draft_arm arms[ARMS_MAX];
    uint32_t n_arm;
    double *store;
} draft_job;

/* ---- one run -------------------------------------------------------------------------------- */

typedef struct listener {
    draft_job *job;
    bool forced;
    uint32_t n;
    bool differs;
} listener;

static bool on_token(void *user, int32_t id) {
    listener *l = user;
    draft_job *job = l->job;
    if (l->n == job->n_reply) job->reply[job->n_reply++] = id;
    l->differs = l->differs || job->reply[l->n] != id;
    l->n++;
    return !l->differs;
}

static uint32_t on_draft(void *user, int32_t *ids, uint32_t n_max) {
    const listener *l = user;
    uint32_t n = 0;
    for (; l->forced && n < n_max && l->n + n < l->job->n_reply; n++)
        ids[n] = l->job->reply[l->n + n];
    return n;
}

static void add_windows(rg_draft_windows *to, const rg_draft_windows *from) {
    to->n += from->n;
    to->tokens += from->tokens;
    to->window_ns += from->window_ns;
    to->draft_ns += from->draft_ns;
    to->experts += from->experts;
    to->read_bytes += from->read_bytes;
    to->waves += from->waves;
}

static void add_stats(rg_draft_stats *to, const rg_draft_stats *from) {
    for (uint32_t s = 0; s < RG_SOURCE_COUNT; s++) {
        for (uint32_t i = 0; i < RG_DRAFTS_MAX; i++) {
            to->tried[s][i] += from->tried[s][i];
            to->right[s][i] += from->right[s][i];
        }
        for (uint32_t i = 0; i <= RG_DRAFTS_MAX; i++)
            add_windows(&to->windows[s][i], &from->windows[s][i]);
    }
    to->offered += from->offered;
    to->accepted += from->accepted;
    memcpy(to->window_ns, from->window_ns, sizeof to->window_ns);
    memcpy(to->chance, from->chance, sizeof to->chance);
    to->rows_max = from->rows_max;
}

static rg_code run_session(draft_job *job, draft_arm *arm, rg_session *session, uint32_t rep,
                           rg_status *st) {
    const cli_options *opt = job->opt;
    listener l = {.job = job, .forced = arm->forced};
    rg_generate_options g = {.sampling = rg_sampling_defaults(),
                             .n_predict = opt->n_gen,
                             .ignore_eos = true,
                             .on_token = on_token,
                             .on_draft = arm->n && arm->forced ? on_draft : NULL,
                             .user = &l};
    rg_session_stats before, after;
    rg_draft_stats drafts;
    g.sampling.temperature = 0;
    RG_TRY(rg_session_eval(session, job->prompt, opt->n_prompt, 0, NULL, NULL, st));
    rg_session_get_stats(session, &before);
    RG_TRY(rg_session_generate(session, &g, NULL, st));
    rg_session_get_stats(session, &after);
    if (l.differs || l.n != opt->n_gen) {
        return rg_fail(st, RG_BUG, "token %u differs with drafts (%s, %u)", l.n - 1, arm->name,
                       arm->n);
    }
    const double ms = after.decode_ms - before.decode_ms;
    arm->tok_s[rep] = ms > 0 ? 1e3 * opt->n_gen / ms : 0;
    rg_session_get_draft_stats(session, &drafts);
    add_stats(&arm->sum, &drafts);
    return RG_OK;
}

static rg_code run_arm(draft_job *job, draft_arm *arm, uint32_t rep, rg_status *st) {
    const rg_session_options so = {.n_ctx = job->opt->ctx,
                                   .kv = job->opt->kv,
                                   .draft = arm->mode,
                                   .draft_max = arm->n,
                                   .draft_fixed = arm->fixed};
    rg_session *session = NULL;
    RG_TRY(rg_session_create(&session, job->engine, &so, st));
    cli_cancel_on_interrupt(session);
    const rg_code rc = run_session(job, arm, session, rep, st);
    cli_cancel_on_interrupt(NULL);
    rg_session_destroy(session);
    return rc;
}

/* ---- arms ----------------------------------------------------------------------------------- */

static void add_arm(draft_job *job, const char *name, rg_draft_mode mode, uint32_t n, bool fixed,
                    bool forced) {
    draft_arm *a = &job->arms[job->n_arm];
    *a = (draft_arm){.name = name, .mode = mode, .n = n, .fixed = fixed, .forced = forced};
    a->tok_s = job->store + (size_t)job->n_arm++ * job->opt->reps;
}

static void make_arms(draft_job *job) {
    const cli_options *opt = job->opt;
    const uint32_t most = opt->draft_max ? opt->draft_max : RG_DRAFT_DEFAULT;
    add_arm(job, "off", RG_DRAFT_OFF, 0, false, false);
    add_arm(job, "plain", RG_DRAFT_OFF, 1, false, false);
    for (uint32_t n = 1; n <= most && opt->draft != RG_DRAFT_SUFFIX && job->info.has_mtp; n++)
        add_arm(job, "mtp", RG_DRAFT_MTP, n, true, false);
    for (uint32_t n = 1; n <= most && opt->draft != RG_DRAFT_MTP; n++)
        add_arm(job, "suffix", RG_DRAFT_SUFFIX, n, true, false);
    for (uint32_t n = 1; n <= most; n++)
        add_arm(job, "forced", RG_DRAFT_OFF, n, true, true);
    add_arm(job, "governed", opt->draft, most, false, false);
}

static rg_code take_prompt(draft_job *job, rg_status *st) {
    const cli_options *opt = job->opt;
    if (!opt->file) {
        job->prompt = rg_alloc(opt->n_prompt, sizeof *job->prompt, st);
        for (uint32_t i = 0; job->prompt && i < opt->n_prompt; i++) {
            job->prompt[i] = (int32_t)(rg_random_u64(opt->sampling.seed, i) % job->info.n_vocab);
        }
        return job->prompt ? RG_OK : RG_NOMEM;
    }
    char *text = NULL;
    size_t len = 0, n = 0;
    RG_TRY(cli_read_file(opt->file, &text, &len, st));
    const rg_code rc = rg_engine_tokenize(job->engine, text, len, true, &job->prompt, &n, st);
    rg_release(text);
    RG_TRY(rc);
    if (n >= opt->n_prompt) return RG_OK;
    return rg_fail(st, RG_INVALID, "%s holds %zu tokens, %u are needed", opt->file, n,
                   opt->n_prompt);
}

static rg_code run_all(draft_job *job, rg_status *st) {
    const cli_options *opt = job->opt;
    RG_TRY(cli_open_engine(opt, &job->engine, st));
    rg_engine_get_info(job->engine, &job->info);
    RG_TRY(take_prompt(job, st));
    job->reply = rg_alloc(opt->n_gen, sizeof *job->reply, st);
    job->store = rg_alloc((size_t)ARMS_MAX * opt->reps, sizeof *job->store, st);
    if (!job->reply || !job->store) return RG_NOMEM;
    make_arms(job);
    RG_TRY(run_arm(job, &job->arms[0], 0, st)); /* the reply; the machine is warm */
    const uint64_t total = (uint64_t)job->n_arm * opt->reps;
    for (uint32_t rep = 0; rep < opt->reps; rep++) {
        for (uint32_t a = 0; a < job->n_arm; a++) {
            RG_TRY(run_arm(job, &job->arms[a], rep, st));
            cli_progress(NULL, "bench", (uint64_t)rep * job->n_arm + a + 1, total);
        }
    }
    return RG_OK;
}

/* ---- output --------------------------------------------------------------------------------- */

/* All windows of an arm together, and the source that most of its drafts came from. */
static rg_draft_windows all_windows(const draft_arm *arm, uint32_t *source) {
    rg_draft_windows sum = {0};
    *source = RG_SOURCE_NONE;
    for (uint32_t s = 0; s < RG_SOURCE_COUNT; s++) {
        for (uint32_t n = 0; n <= RG_DRAFTS_MAX; n++)
            add_windows(&sum, &arm->sum.windows[s][n]);
        if (arm->sum.tried[s][0] > arm->sum.tried[*source][0]) *source = s;
    }
    return sum;
}

/* Windows of the arm's length, or all of a governed one. */
static rg_draft_windows full_windows(const draft_arm *arm) {
    uint32_t source = 0;
    const rg_draft_windows all = all_windows(arm, &source);
    const uint32_t n = arm->fixed ? arm->n : 0;
    return arm->fixed && arm->sum.windows[source][n].n ? arm->sum.windows[source][n] : all;
}

static double per(uint64_t a, uint64_t b) {
    return b ? (double)a / (double)b : 0.0;
}

static double gain_of(const draft_job *job, const draft_arm *arm) {
    double ratio[CLI_REPS_MAX];
    for (uint32_t r = 0; r < job->opt->reps; r++)
        ratio[r] = arm->tok_s[r] / job->arms[0].tok_s[r];
    return bench_stat_of(ratio, job->opt->reps).median;
}

static void print_arm(const draft_job *job, const draft_arm *arm) {
    const rg_draft_windows plain = full_windows(&job->arms[1]);
    const rg_draft_windows w = full_windows(arm);
    uint32_t source = 0;
    const rg_draft_windows all = all_windows(arm, &source);
    const double one = per(plain.window_ns, plain.n);
    printf("%-9s %2u %8.1f %6.3f", arm->name, arm->n,
           bench_stat_of(arm->tok_s, job->opt->reps).median, gain_of(job, arm));
    if (!all.n) {
        putchar('\n');
        return;
    }
    printf(" %7.2f %9.3f %7.2f %8.3f %8.1f %9.2f  ", per(all.tokens, all.n),
           per(w.window_ns, w.n) * 1e-6, one > 0 ? per(w.window_ns, w.n) / one : 0.0,
           per(w.draft_ns, w.n) * 1e-6, per(w.experts, w.n),
           (per(w.read_bytes, w.n) - per(plain.read_bytes, plain.n)) / 0x1p20);
    for (uint32_t i = 0; i < RG_DRAFTS_MAX && arm->sum.tried[source][i]; i++)
        printf(" %.2f", per(arm->sum.right[source][i], arm->sum.tried[source][i]));
    putchar('\n');
}

static void print_table(const draft_job *job) {
    printf("%s: %u threads, %s; prompt %u, reply %u, %u repetitions; text equal in all arms\n",
           job->opt->model, job->info.n_threads, job->info.cpu_level, job->opt->n_prompt,
           job->opt->n_gen, job->opt->reps);
    printf("%-9s %2s %8s %6s %7s %9s %7s %8s %8s %9s   %s\n", "drafts", "", "tok/s", "x off",
           "tok/win", "window ms", "x plain", "draft ms", "experts", "extra MiB",
           "accepted by position");
    for (uint32_t a = 0; a < job->n_arm; a++)
        print_arm(job, &job->arms[a]);
}

static int print_json(const draft_job *job) {
    json_t *arms = json_array();
    for (uint32_t a = 0; a < job->n_arm; a++) {
        const draft_arm *arm = &job->arms[a];
        const bench_stat s = bench_stat_of(arm->tok_s, job->opt->reps);
        const rg_draft_windows w = full_windows(arm), plain = full_windows(&job->arms[1]);
        const double one = per(plain.window_ns, plain.n);
        json_array_append_new(
            arms, json_pack("{s:s, s:i, s:f, s:f, s:f, s:f, s:f, s:o}", "arm", arm->name, "drafts",
                            (int)arm->n, "decode_tok_s", s.median, "decode_tok_s_min", s.min,
                            "decode_tok_s_max", s.max, "gain", gain_of(job, arm),
                            "window_over_plain", one > 0 ? per(w.window_ns, w.n) / one : 0.0,
                            "draft", cli_draft_json(&arm->sum)));
    }
    json_t *root =
        json_pack("{s:o, s:i, s:i, s:i}", "arms", arms, "n_prompt", (int)job->opt->n_prompt,
                  "n_gen", (int)job->opt->n_gen, "reps", (int)job->opt->reps);
    const bool good = root && json_dumpf(root, stdout, JSON_INDENT(2)) == 0;
    json_decref(root);
    if (good) {
        putchar('\n');
        return CLI_OK;
    }
    const rg_status st = {.code = RG_NOMEM, .message = "cannot write JSON"};
    return cli_fail(&st);
}

int bench_drafts(const cli_options *opt) {
    if (opt->n_gen < 2) return cli_usage("bench", "-n %u: drafts need two tokens", opt->n_gen);
    rg_status st = {0};
    draft_job job = {.opt = opt};
    const rg_code rc = run_all(&job, &st);
    cli_progress_clear();
    int code = CLI_OK;
    if (rc != RG_OK) {
        code = cli_fail(&st);
    } else if (opt->json) {
        code = print_json(&job);
    } else {
        print_table(&job);
    }
    rg_engine_close(job.engine);
    rg_release(job.prompt);
    rg_free(job.reply);
    rg_free(job.store);
    return code;
}
