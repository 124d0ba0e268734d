/* One run: a prompt from nothing, then tokens behind it, with the meters read before and after. */
#include <string.h>

#include "cli/bench.h"

typedef struct moment {
    uint64_t ns;
    rg_engine_meters m;
} moment;

static moment now_of(const rg_engine *engine) {
    moment at;
    rg_engine_get_meters(engine, &at.m);
    at.ns = rg_now_ns();
    return at;
}

static double ms_between(const moment *a, const moment *b) {
    return (double)(b->ns - a->ns) * 1e-6;
}

static double ratio(double a, double b) {
    return b > 0 ? a / b : 0;
}

/* What happened between two moments. */
static void figures_of(const moment *a, const moment *b, double ceiling_gb_s, double *v) {
    const rg_engine_meters *x = &a->m, *y = &b->m;
    v[BENCH_HITS] = (double)(y->hits - x->hits);
    v[BENCH_MISSES] = (double)(y->misses - x->misses);
    v[BENCH_LATE] = (double)(y->late - x->late);
    v[BENCH_READAHEAD_USEFUL] = (double)(y->readahead_useful - x->readahead_useful);
    v[BENCH_READAHEAD_WASTED] = (double)(y->readahead_wasted - x->readahead_wasted);
    v[BENCH_READ_BYTES] = (double)(y->read_bytes - x->read_bytes);
    v[BENCH_WASTED_BYTES] = (double)(y->wasted_bytes - x->wasted_bytes);
    v[BENCH_COPIED_BYTES] = (double)(y->copied_bytes - x->copied_bytes);
    v[BENCH_COPY_MS] = y->copy_ms - x->copy_ms;
    v[BENCH_DRIVE_GB_S] = ratio(v[BENCH_READ_BYTES] * 1e-6, y->drive_ms - x->drive_ms);
    v[BENCH_DRIVE_CEILING_GB_S] = ceiling_gb_s;
    v[BENCH_COMPUTE_MS] = y->compute_ms - x->compute_ms;
    v[BENCH_WAIT_MS] = y->wait_ms - x->wait_ms;
    v[BENCH_HANDSHAKE_MS] = y->handshake_ms - x->handshake_ms;
    v[BENCH_HOST_MS] = y->host_ms - x->host_ms;
    v[BENCH_EMBED_MS] = y->embed_ms - x->embed_ms;
    v[BENCH_PLE_MS] = y->ple_ms - x->ple_ms;
    v[BENCH_PLAN_MS] = y->plan_ms - x->plan_ms;
    v[BENCH_SAMPLE_MS] = y->sample_ms - x->sample_ms;
    v[BENCH_WALL_MS] = ms_between(a, b);
    v[BENCH_ACCOUNTED_SHARE] =
        ratio(v[BENCH_COMPUTE_MS] + v[BENCH_WAIT_MS] + v[BENCH_HANDSHAKE_MS] + v[BENCH_HOST_MS],
              v[BENCH_WALL_MS]);
    v[BENCH_MAJOR_FAULTS] = (double)(y->major_faults - x->major_faults);
    v[BENCH_ARENA_PEAK_BYTES] = (double)y->arena_peak_bytes;
    v[BENCH_RSS_PEAK_BYTES] = (double)y->rss_peak_bytes;
    v[BENCH_DRAFT_ACCEPTED] = (double)(y->draft_accepted - x->draft_accepted);
    v[BENCH_DRAFT_OFFERED] = (double)(y->draft_offered - x->draft_offered);
    v[BENCH_LOGIT_ROWS_WHOLE] = (double)(y->logit_rows_whole - x->logit_rows_whole);
    v[BENCH_LOGIT_ROWS_BEST] = (double)(y->logit_rows_best - x->logit_rows_best);
}

/* Speeds and the time to the first token go to the phase they belong to, and to the whole. */
static void set_speed(bench_run *run, bench_phase phase, bench_key key, double value) {
    run->v[phase][key] = run->v[BENCH_ALL][key] = value;
}

static rg_code generate(rg_session *session, uint32_t n, rg_status *st) {
    rg_generate_options g = {
        .sampling = rg_sampling_defaults(), .n_predict = n, .ignore_eos = true};
    g.sampling.temperature = 0;
    return rg_session_generate(session, &g, NULL, st);
}

/* The first choice belongs to the prompt; then every token is evaluated and the next one chosen, or
 * the given ids are evaluated one at a time. */
static rg_code decode(const bench_job *job, rg_session *session, rg_status *st) {
    const cli_options *opt = job->opt;
    if (opt->generate) return generate(session, opt->n_gen, st);
    for (uint32_t i = 0; i < opt->n_gen; i++) {
        RG_TRY(rg_session_eval(session, job->ids + opt->n_prompt + i, 1, 0, NULL, NULL, st));
    }
    return RG_OK;
}

static void take_layers(const bench_arm *arm, const rg_layer_meters *before, rg_layer_meters *out) {
    rg_engine_get_layer_meters(arm->engine, out, arm->n_layer);
    for (size_t i = 0; i < arm->n_layer; i++) {
        out[i].before_router_ns -= before[i].before_router_ns;
        out[i].phase1_ns -= before[i].phase1_ns;
        out[i].phase2_ns -= before[i].phase2_ns;
        out[i].wait_ns -= before[i].wait_ns;
        out[i].urgent_bytes -= before[i].urgent_bytes;
        out[i].late_bytes -= before[i].late_bytes;
    }
}

static rg_code run_once(const bench_job *job, bench_arm *arm, bench_run *run,
                        rg_layer_meters *before, rg_status *st) {
    const cli_options *opt = job->opt;
    rg_session *session = arm->session;
    rg_session_reset(session);
    const moment begin = now_of(arm->engine);
    RG_TRY(rg_session_eval(session, job->ids, opt->n_prompt, 0, NULL, NULL, st));
    const moment prompted = now_of(arm->engine);
    if (opt->generate && opt->n_gen) RG_TRY(generate(session, 1, st));
    const moment first = now_of(arm->engine);
    rg_engine_get_layer_meters(arm->engine, before, arm->n_layer);
    const moment decoding = now_of(arm->engine);
    RG_TRY(decode(job, session, st));
    const moment end = now_of(arm->engine);
    take_layers(arm, before, run->layers);
    figures_of(&begin, &prompted, job->ceiling_gb_s, run->v[BENCH_PREFILL]);
    figures_of(&decoding, &end, job->ceiling_gb_s, run->v[BENCH_DECODE]);
    figures_of(&begin, &end, job->ceiling_gb_s, run->v[BENCH_ALL]);
    set_speed(run, BENCH_PREFILL, BENCH_PREFILL_TOK_S,
              ratio(1e3 * opt->n_prompt, ms_between(&begin, &prompted)));
    set_speed(run, BENCH_PREFILL, BENCH_TTFT_MS, ms_between(&begin, &first));
    set_speed(run, BENCH_DECODE, BENCH_DECODE_TOK_S,
              ratio(1e3 * opt->n_gen, ms_between(&decoding, &end)));
    return RG_OK;
}

rg_code bench_run_arm(bench_job *job, bench_arm *arm, uint32_t rep, rg_status *st) {
    rg_layer_meters *before = rg_alloc(arm->n_layer, sizeof *before, st);
    if (!before) return RG_NOMEM;
    rg_code rc = rg_engine_drop_caches(arm->engine, job->opt->cold, st);
    cli_cancel_on_interrupt(arm->session);
    if (rc == RG_OK) rc = run_once(job, arm, &arm->cold[rep], before, st);
    bench_watch_look(&job->watch);
    if (rc == RG_OK) rc = run_once(job, arm, &arm->warm[rep], before, st);
    bench_watch_look(&job->watch);
    cli_cancel_on_interrupt(NULL);
    rg_free(before);
    return rc;
}
