/* regolith bench: prefill and decode figures, cold and warm, with where the time went. Arms are
 * interleaved, A B A B, so that a drift of the machine meets all of them alike.
 */
#include <math.h>

#include "cli/bench.h"

#define WARM_UP_TOKENS      16u
#define ACCOUNTED_ERROR_MAX 0.02

const char *bench_key_name(size_t key) {
    static const char *const names[] = {
#define BENCH_NAME(name, text) text,
        BENCH_KEYS(BENCH_NAME)
#undef BENCH_NAME
    };
    return names[key];
}

static void close_arm(bench_arm *arm) {
    rg_session_destroy(arm->session);
    rg_engine_close(arm->engine);
    arm->session = NULL;
    arm->engine = NULL;
}

/* ---- tokens --------------------------------------------------------------------------------- */

static rg_code ids_of_text(bench_job *job, const rg_engine *engine, rg_status *st) {
    const size_t wanted = job->n_ids;
    char *text = NULL;
    size_t len = 0, n = 0;
    RG_TRY(cli_read_file(job->opt->file, &text, &len, st));
    const rg_code rc = rg_engine_tokenize(engine, text, len, false, &job->ids, &n, st);
    rg_release(text);
    RG_TRY(rc);
    if (n >= wanted) return RG_OK;
    return rg_fail(st, RG_INVALID, "%s holds %zu tokens, %zu are needed", job->opt->file, n,
                   wanted);
}

rg_code bench_take_ids(bench_job *job, const rg_engine *engine, uint32_t n_vocab, rg_status *st) {
    if (job->ids) return RG_OK;
    if (job->opt->file) return ids_of_text(job, engine, st);
    job->ids = rg_alloc(job->n_ids, sizeof *job->ids, st);
    if (!job->ids) return RG_NOMEM;
    for (size_t i = 0; i < job->n_ids; i++) {
        job->ids[i] = (int32_t)(rg_random_u64(job->opt->sampling.seed, i) % n_vocab);
    }
    return RG_OK;
}

/* ---- arms ----------------------------------------------------------------------------------- */

/* A few tokens that are not measured: pages of scratch and state are touched, threads have run. */
static rg_code warm_up(const bench_job *job, const bench_arm *arm, rg_status *st) {
    const uint32_t n = job->opt->n_prompt;
    RG_TRY(rg_session_eval(arm->session, job->ids, n < WARM_UP_TOKENS ? n : WARM_UP_TOKENS, 0, NULL,
                           NULL, st));
    rg_session_reset(arm->session);
    return RG_OK;
}

static rg_code open_arm(bench_job *job, bench_arm *arm, rg_status *st) {
    if (arm->engine) return RG_OK;
    RG_TRY(cli_open_engine(&arm->opt, &arm->engine, st));
    rg_engine_get_info(arm->engine, &arm->info);
    RG_TRY(bench_take_ids(job, arm->engine, arm->info.n_vocab, st));
    RG_TRY(bench_take_room(arm, job->opt->reps, st));
    const rg_session_options so = cli_session_options(&arm->opt, arm->opt.ctx);
    RG_TRY(rg_session_create(&arm->session, arm->engine, &so, st));
    const bool streams = arm->info.arena_bytes && !arm->opt.io_null;
    if (job->ceiling_gb_s <= 0 && streams) {
        RG_TRY(rg_doctor_expert_ceiling(&job->ceiling_gb_s, arm->opt.model, arm->info.expert_bytes,
                                        st));
    }
    return warm_up(job, arm, st);
}

/* Engines stay open between repetitions when all of them fit a quarter of the free memory, so that
 * none of them is planned with less than the others had. */
static bool all_fit(const bench_job *job) {
    if (job->n_arm == 1) return true;
    const rg_engine_info *info = &job->arms[0].info;
    const uint64_t one =
        info->weight_bytes + info->arena_bytes + info->staging_bytes + info->scratch_bytes;
    return job->n_arm * one < rg_mem_available_bytes() / 4;
}

static void log_run(const bench_job *job, const bench_arm *arm, size_t a, uint32_t rep) {
    if (!job->opt->verbose) return;
    cli_progress_clear();
    const double *v = arm->cold[rep].v[BENCH_ALL];
    fprintf(stderr, "bench: repetition %u arm %c%s%s: prefill %.1f tok/s, decode %.1f tok/s\n",
            rep + 1, (int)('A' + a), arm->name[0] ? " " : "", arm->name, v[BENCH_PREFILL_TOK_S],
            v[BENCH_DECODE_TOK_S]);
}

static rg_code run_all(bench_job *job, rg_status *st) {
    const uint64_t total = (uint64_t)job->opt->reps * job->n_arm;
    for (uint32_t rep = 0; rep < job->opt->reps; rep++) {
        for (size_t a = 0; a < job->n_arm; a++) {
            bench_arm *arm = &job->arms[a];
            RG_TRY(open_arm(job, arm, st));
            if (job->n_order == 0) job->keep_open = all_fit(job);
            RG_TRY(bench_run_arm(job, arm, rep, st));
            job->order[job->n_order++] = (uint8_t)a;
            log_run(job, arm, a, rep);
            cli_progress(NULL, "bench", job->n_order, total);
            if (!job->keep_open) close_arm(arm);
        }
    }
    return RG_OK;
}

/* ---- the command ---------------------------------------------------------------------------- */

static int check(const cli_options *opt) {
    if (opt->n_prompt == 0) return cli_usage("bench", "-p 0: at least one token is needed");
    if (opt->reps == 0) return cli_usage("bench", "--reps 0: at least one is needed");
    if (opt->ceiling_gb_s < 0) return cli_usage("bench", "--ceiling is less than 0");
    const uint64_t tokens = (uint64_t)opt->n_prompt + opt->n_gen + 1;
    if (tokens > INT32_MAX) return cli_usage("bench", "-p and -n are too large together");
    if (opt->ctx && opt->ctx < tokens) {
        return cli_usage("bench", "--ctx %u is less than the %llu tokens of -p and -n", opt->ctx,
                         (unsigned long long)tokens);
    }
    return CLI_OK;
}

/* The meters must explain the time that passed. */
static void judge_sums(bench_job *job) {
    double worst = 1;
    for (size_t a = 0; a < job->n_arm; a++) {
        for (uint32_t rep = 0; rep < job->opt->reps; rep++) {
            const bench_run *runs[] = {&job->arms[a].cold[rep], &job->arms[a].warm[rep]};
            for (size_t i = 0; i < 2; i++) {
                const double share = runs[i]->v[BENCH_ALL][BENCH_ACCOUNTED_SHARE];
                if (fabs(share - 1) > fabs(worst - 1)) worst = share;
            }
        }
    }
    if (fabs(worst - 1) <= ACCOUNTED_ERROR_MAX) return;
    snprintf(job->warnings[job->n_warning++], sizeof job->warnings[0],
             "the meters explain %.1f %% of the time of a run", 100 * worst);
}

static int run(bench_job *job) {
    rg_status st = {0};
    const int made = bench_make_arms(job);
    if (made != CLI_OK) return made;
    job->order = rg_alloc((size_t)job->opt->reps * job->n_arm, sizeof *job->order, &st);
    if (!job->order) return cli_fail(&st);
    bench_watch_begin(&job->watch);
    const rg_code rc = run_all(job, &st);
    cli_progress_clear();
    if (rc != RG_OK) return cli_fail(&st);
    bench_watch_judge(job);
    judge_sums(job);
    for (size_t i = 0; i < job->n_warning; i++)
        fprintf(stderr, "regolith: warning: %s\n", job->warnings[i]);
    if (job->opt->json) return bench_print_json(job);
    bench_print_table(job);
    return CLI_OK;
}

int cli_bench(const cli_options *opt) {
    int code = check(opt);
    if (code != CLI_OK) return code;
    cli_options o = *opt;
    if (!o.ctx) o.ctx = o.n_prompt + o.n_gen + 1;
    if (o.time_kernels && (o.draft != RG_DRAFT_OFF || o.n_ab)) {
        return cli_usage("bench", "--kernels goes without --draft and --ab");
    }
    if (o.sweep && (!o.gpu || o.time_kernels || o.n_ab || o.draft != RG_DRAFT_OFF)) {
        return cli_usage("bench", "--sweep wants --backend vulkan, without --kernels, --ab "
                                  "and --draft");
    }
    if (o.sweep || o.time_kernels || (o.draft != RG_DRAFT_OFF && !o.n_ab)) {
        code = o.sweep ? bench_sweep(&o) : o.time_kernels ? bench_kernels(&o) : bench_drafts(&o);
        const int flushed = cli_finish_output();
        return code == CLI_OK ? flushed : code;
    }
    rg_status st = {0};
    bench_job *job = rg_alloc(1, sizeof *job, &st);
    if (!job) return cli_fail(&st);
    job->opt = &o;
    job->n_ids = (size_t)o.n_prompt + o.n_gen;
    job->ceiling_gb_s = o.ceiling_gb_s;
    code = run(job);
    bench_free_arms(job);
    rg_release(job->ids);
    rg_free(job->order);
    rg_free(job);
    const int written = cli_finish_output();
    return code == CLI_OK ? written : code;
}
