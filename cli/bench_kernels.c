/* bench --kernels: where the time of prefill and decode goes. Runs with and without timing take
 * turns; the timed ones give the table, the others say what timing costs.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"

#define KERNELS_MAX 512u
/* What the kernels must explain of the time that passed. */
#define UNEXPLAINED_MAX 0.03

typedef struct kernel_phase {
    const char *name;
    uint32_t n_token;
    double timed_ms, plain_ms; /* of one run, means over the repetitions */
    rg_kernel_meter rows[KERNELS_MAX];
    size_t n_row; /* sums over the repetitions */
} kernel_phase;

typedef struct kernel_job {
    bench_job base; /* options and ids */
    rg_engine *engine;
    rg_session *session;
    rg_engine_info info;
    double read_gb_s, int8_gmac_s;
    kernel_phase prefill, decode;
} kernel_job;

/* ---- runs ----------------------------------------------------------------------------------- */

/* Adds what was counted since timing began. Names are static: equal pointers, equal rows. */
static void add_rows(kernel_phase *phase, const rg_engine *engine) {
    static rg_kernel_meter now[KERNELS_MAX];
    const size_t n = rg_engine_get_kernel_meters(engine, now, KERNELS_MAX);
    for (size_t i = 0; i < n && i < KERNELS_MAX; i++) {
        size_t at = 0;
        while (at < phase->n_row &&
               !(phase->rows[at].part == now[i].part && phase->rows[at].kernel == now[i].kernel &&
                 strcmp(phase->rows[at].type, now[i].type) == 0))
            at++;
        if (at == KERNELS_MAX) return;
        if (at == phase->n_row) {
            phase->rows[phase->n_row++] = now[i];
            continue;
        }
        rg_kernel_meter *sum = &phase->rows[at];
        sum->calls += now[i].calls;
        sum->ns += now[i].ns;
        sum->busy_ns += now[i].busy_ns;
        sum->bytes += now[i].bytes;
        sum->ops += now[i].ops;
    }
}

/* Evaluates n ids, `step` at once. */
static rg_code run_phase(kernel_job *job, kernel_phase *phase, const int32_t *ids, uint32_t step,
                         bool timed, rg_status *st) {
    RG_TRY(rg_engine_time_kernels(job->engine, timed, st));
    const uint64_t begin = rg_now_ns();
    for (uint32_t i = 0; i < phase->n_token; i += step)
        RG_TRY(rg_session_eval(job->session, ids + i, step, 0, NULL, NULL, st));
    const double ms = (double)(rg_now_ns() - begin) * 1e-6 / job->base.opt->reps;
    if (timed) {
        phase->timed_ms += ms;
        add_rows(phase, job->engine);
    } else {
        phase->plain_ms += ms;
    }
    return RG_OK;
}

static rg_code run_once(kernel_job *job, bool timed, rg_status *st) {
    const uint32_t n = job->prefill.n_token;
    rg_session_reset(job->session);
    RG_TRY(run_phase(job, &job->prefill, job->base.ids, n, timed, st));
    return run_phase(job, &job->decode, job->base.ids + n, 1, timed, st);
}

static bool on_gpu(const kernel_job *job) {
    return job->info.gpu[0] != 0;
}

static rg_code measure_ceilings(kernel_job *job, rg_status *st) {
    double read = 0, int8 = 0;
    if (on_gpu(job)) {
        RG_TRY(rg_doctor_gpu_ceiling(&read, job->base.opt->device, st));
    } else {
        RG_TRY(
            rg_doctor_compute_ceilings(&read, &int8, job->info.cpu_level, job->info.n_threads, st));
    }
    if (read > job->read_gb_s) job->read_gb_s = read;
    if (int8 > job->int8_gmac_s) job->int8_gmac_s = int8;
    return RG_OK;
}

static rg_code run_all(kernel_job *job, rg_status *st) {
    const cli_options *opt = job->base.opt;
    RG_TRY(cli_open_engine(opt, &job->engine, st));
    rg_engine_get_info(job->engine, &job->info);
    RG_TRY(bench_take_ids(&job->base, job->engine, job->info.n_vocab, st));
    const rg_session_options so = cli_session_options(opt, opt->ctx);
    RG_TRY(rg_session_create(&job->session, job->engine, &so, st));
    cli_cancel_on_interrupt(job->session);
    RG_TRY(measure_ceilings(job, st));
    RG_TRY(rg_session_eval(job->session, job->base.ids, opt->n_prompt, 0, NULL, NULL, st));
    if (opt->n_gen) /* a GPU's kernels are compiled by then */
        RG_TRY(rg_session_eval(job->session, job->base.ids + opt->n_prompt, 1, 0, NULL, NULL, st));
    for (uint32_t rep = 0; rep < opt->reps; rep++) {
        RG_TRY(run_once(job, false, st));
        RG_TRY(run_once(job, true, st));
        cli_progress(NULL, "bench", rep + 1, opt->reps);
    }
    return measure_ceilings(job, st);
}

/* ---- figures -------------------------------------------------------------------------------- */

static int by_time(const void *a, const void *b) {
    const uint64_t x = ((const rg_kernel_meter *)a)->ns, y = ((const rg_kernel_meter *)b)->ns;
    return x < y ? 1 : x > y ? -1 : 0;
}

static double kernels_ms(const kernel_job *job, const kernel_phase *phase) {
    uint64_t ns = 0;
    for (size_t i = 0; i < phase->n_row; i++)
        ns += phase->rows[i].beside ? 0 : phase->rows[i].ns;
    return (double)ns * 1e-6 / job->base.opt->reps;
}

static double share_of(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

/* 10^9 units a second; 0 where none are stated. */
static double rate_of(uint64_t units, uint64_t ns) {
    return ns ? (double)units / (double)ns : 0;
}

/* ---- table ---------------------------------------------------------------------------------- */

static void print_rate(uint64_t units, uint64_t ns, double ceiling) {
    if (!units) {
        printf(" %9s %6s", "-", "-");
        return;
    }
    const double rate = rate_of(units, ns);
    printf(" %9.2f", rate);
    if (ceiling > 0) {
        printf(" %6.1f", 100 * rate / ceiling);
    } else {
        printf(" %6s", "-");
    }
}

static void print_row(const kernel_job *job, const kernel_phase *phase, const rg_kernel_meter *r) {
    const double ms = (double)r->ns * 1e-6 / job->base.opt->reps;
    printf("%-22s %-18s %-8s %10.4f %6.2f %9.1f", r->part, r->kernel, r->type[0] ? r->type : "-",
           ms / phase->n_token, 100 * share_of(ms, phase->timed_ms),
           (double)r->calls / job->base.opt->reps / phase->n_token);
    print_rate(r->bytes, r->ns, job->read_gb_s);
    print_rate(r->ops, r->ns, job->int8_gmac_s);
    printf(" %6.1f\n",
           100 * share_of((double)r->busy_ns, (double)r->ns * (double)job->info.n_threads));
}

static void print_phase(const kernel_job *job, const kernel_phase *phase) {
    if (!phase->n_token) return;
    const double n = phase->n_token, in_kernels = kernels_ms(job, phase);
    printf("\n%s of %u tokens: %.4f ms a token, %.4f untimed (timing costs %.1f %%)\n", phase->name,
           phase->n_token, phase->timed_ms / n, phase->plain_ms / n,
           100 * (share_of(phase->timed_ms, phase->plain_ms) - 1));
    printf("%-22s %-18s %-8s %10s %6s %9s %9s %6s %9s %6s %6s\n", "part", "kernel", "type",
           "ms/token", "time %", "calls/tok", "GB/s", "read %", "GMAC/s", "int8 %", "busy %");
    for (size_t i = 0; i < phase->n_row; i++) {
        if (!phase->rows[i].beside) print_row(job, phase, &phase->rows[i]);
    }
    printf("%-22s %-18s %-8s %10.4f %6.2f\n", "outside the windows", "-", "-",
           (phase->timed_ms - in_kernels) / n,
           100 * share_of(phase->timed_ms - in_kernels, phase->timed_ms));
    for (size_t i = 0; i < phase->n_row; i++) {
        if (phase->rows[i].beside) print_row(job, phase, &phase->rows[i]);
    }
}

static void print_table(const kernel_job *job) {
    if (on_gpu(job)) {
        printf("%s: %s", job->base.opt->model, job->info.gpu);
    } else {
        printf("%s: %d threads %s", job->base.opt->model, job->info.n_threads, job->info.cpu_level);
    }
    printf("; at most %.1f GB/s read", job->read_gb_s);
    if (job->int8_gmac_s > 0) printf(", %.0f GMAC/s of int8", job->int8_gmac_s);
    printf("; means of %u\n", job->base.opt->reps);
    print_phase(job, &job->prefill);
    print_phase(job, &job->decode);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static json_t *row_json(const kernel_job *job, const rg_kernel_meter *r) {
    const double reps = job->base.opt->reps;
    return json_pack("{s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "part", r->part,
                     "kernel", r->kernel, "type", r->type, "calls", (double)r->calls / reps, "ms",
                     (double)r->ns * 1e-6 / reps, "busy_share",
                     share_of((double)r->busy_ns, (double)r->ns * (double)job->info.n_threads),
                     "bytes", (double)r->bytes / reps, "ops", (double)r->ops / reps, "gb_s",
                     rate_of(r->bytes, r->ns), "gmac_s", rate_of(r->ops, r->ns));
}

/* NULL when memory is out. */
static json_t *phase_json(const kernel_job *job, const kernel_phase *phase) {
    json_t *list = json_array(), *beside = json_array();
    bool failed = !list || !beside;
    for (size_t i = 0; i < phase->n_row; i++) {
        json_t *to = phase->rows[i].beside ? beside : list;
        failed = json_array_append_new(to, row_json(job, &phase->rows[i])) != 0 || failed;
    }
    json_t *o = json_pack("{s:i, s:f, s:f, s:f, s:o, s:o}", "tokens", (int)phase->n_token,
                          "wall_ms", phase->timed_ms, "untimed_ms", phase->plain_ms,
                          "accounted_share", share_of(kernels_ms(job, phase), phase->timed_ms),
                          "kernels", list, "beside", beside);
    if (!failed) return o;
    json_decref(o);
    return NULL;
}

int bench_print_object(json_t *o, const char *flag) {
    const int written = o ? json_dumpf(o, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : -1;
    json_decref(o);
    putchar('\n');
    if (written == 0) return CLI_OK;
    rg_status st = {0};
    (void)rg_fail(&st, RG_NOMEM, "no memory for the JSON of bench %s", flag);
    return cli_fail(&st);
}

static int print_json(const kernel_job *job) {
    json_t *o = json_pack(
        "{s:s, s:i, s:s, s:s, s:i, s:f, s:f, s:o, s:o}", "model", job->base.opt->model, "threads",
        job->info.n_threads, "cpu_level", job->info.cpu_level, "gpu", job->info.gpu, "reps",
        (int)job->base.opt->reps, "read_gb_s", job->read_gb_s, "int8_gmac_s", job->int8_gmac_s,
        "prefill", phase_json(job, &job->prefill), "decode", phase_json(job, &job->decode));
    return bench_print_object(o, "--kernels");
}

/* ---- command -------------------------------------------------------------------------------- */

static void warn(const kernel_job *job, const kernel_phase *phase) {
    const double rest = 1 - share_of(kernels_ms(job, phase), phase->timed_ms);
    if (!phase->n_token || rest <= UNEXPLAINED_MAX) return;
    fprintf(stderr,
            "regolith: warning: %.1f %% of the time of %s is not explained by the kernels\n",
            100 * rest, phase->name);
}

static void warn_of_copies(const kernel_job *job) {
    rg_engine_meters m;
    rg_engine_get_meters(job->engine, &m);
    if (!m.copied_bytes || m.copy_ms > 0) return;
    fprintf(stderr, "regolith: warning: copies into the arena have no row: the device's queue for "
                    "them has no time stamps\n");
}

int bench_kernels(const cli_options *opt) {
    rg_status st = {0};
    kernel_job *job = rg_alloc(1, sizeof *job, &st);
    if (!job) return cli_fail(&st);
    job->base.opt = opt;
    job->base.n_ids = (size_t)opt->n_prompt + opt->n_gen;
    job->prefill = (kernel_phase){.name = "prefill", .n_token = opt->n_prompt};
    job->decode = (kernel_phase){.name = "decode", .n_token = opt->n_gen};
    rg_code rc = run_all(job, &st);
    cli_progress_clear();
    cli_cancel_on_interrupt(NULL);
    int code = rc == RG_OK ? CLI_OK : cli_fail(&st);
    if (rc == RG_OK) {
        qsort(job->prefill.rows, job->prefill.n_row, sizeof *job->prefill.rows, by_time);
        qsort(job->decode.rows, job->decode.n_row, sizeof *job->decode.rows, by_time);
        warn(job, &job->prefill);
        warn(job, &job->decode);
        warn_of_copies(job);
        if (opt->json) {
            code = print_json(job);
        } else {
            print_table(job);
        }
    }
    rg_session_destroy(job->session);
    rg_engine_close(job->engine);
    rg_release(job->base.ids);
    rg_free(job);
    return code;
}
