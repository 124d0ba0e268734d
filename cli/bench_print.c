/* What bench prints: one JSON object, or a table. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"

/* ---- statistics ----------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

bench_stat bench_stat_of(const double *values, size_t n) {
    double sorted[CLI_REPS_MAX];
    memcpy(sorted, values, n * sizeof *values);
    qsort(sorted, n, sizeof *sorted, by_value);
    const double median = n % 2 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]);
    return (bench_stat){.median = median, .min = sorted[0], .max = sorted[n - 1]};
}

static void values_of(const bench_run *runs, size_t n, bench_phase phase, size_t key, double *out) {
    for (size_t i = 0; i < n; i++)
        out[i] = runs[i].v[phase][key];
}

/* Second arm over first, repetition by repetition: neighbours in time are compared. */
static size_t ratios_of(const bench_run *a, const bench_run *b, size_t n, size_t key, double *out) {
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        const double x = a[i].v[BENCH_ALL][key], y = b[i].v[BENCH_ALL][key];
        if (x > 0 && y > 0) out[used++] = y / x;
    }
    return used;
}

/* The keys whose ratios are shown. */
static const bench_key compared[] = {BENCH_PREFILL_TOK_S, BENCH_DECODE_TOK_S, BENCH_TTFT_MS,
                                     BENCH_READ_BYTES};

/* ---- JSON ----------------------------------------------------------------------------------- */

/* jansson gives NULL, or an error for a NULL value, when memory is out: remembered here. */
typedef struct writer {
    bool failed;
} writer;

static void put(writer *w, json_t *object, const char *key, json_t *value) {
    if (json_object_set_new(object, key, value) != 0) w->failed = true;
}

static void add(writer *w, json_t *array, json_t *value) {
    if (json_array_append_new(array, value) != 0) w->failed = true;
}

/* Counts as whole numbers. */
static json_t *number(double x) {
    const bool whole = x >= 0 && x < 0x1p53 && !(x < floor(x)) && !(x > floor(x));
    return whole ? json_integer((json_int_t)x) : json_real(x);
}

static json_t *stat_json(writer *w, const double *values, size_t n) {
    json_t *o = json_object(), *list = json_array();
    const bench_stat s = bench_stat_of(values, n);
    put(w, o, "median", number(s.median));
    put(w, o, "min", number(s.min));
    put(w, o, "max", number(s.max));
    for (size_t i = 0; i < n; i++)
        add(w, list, number(values[i]));
    put(w, o, "values", list);
    return o;
}

static bool in_phase(bench_phase phase, size_t key) {
    if (phase == BENCH_PREFILL) return key != BENCH_DECODE_TOK_S;
    if (phase == BENCH_DECODE) return key != BENCH_PREFILL_TOK_S && key != BENCH_TTFT_MS;
    return true;
}

/* Medians at the top, every value under `runs`. */
static void put_phase(writer *w, json_t *o, const bench_run *runs, size_t n, bench_phase phase) {
    json_t *all = json_object();
    double values[CLI_REPS_MAX];
    for (size_t key = 0; key < BENCH_N_KEYS; key++) {
        if (!in_phase(phase, key)) continue;
        values_of(runs, n, phase, key, values);
        put(w, o, bench_key_name(key), number(bench_stat_of(values, n).median));
        put(w, all, bench_key_name(key), stat_json(w, values, n));
    }
    put(w, o, "runs", all);
}

static void put_runs(writer *w, json_t *o, const bench_run *runs, size_t n) {
    json_t *prefill = json_object(), *decode = json_object();
    put_phase(w, o, runs, n, BENCH_ALL);
    put_phase(w, prefill, runs, n, BENCH_PREFILL);
    put_phase(w, decode, runs, n, BENCH_DECODE);
    put(w, o, "prefill", prefill);
    put(w, o, "decode", decode);
}

/* The cold run whose decode speed is the (lower) median. */
static size_t median_run(const bench_run *runs, size_t n) {
    double values[CLI_REPS_MAX], sorted[CLI_REPS_MAX];
    values_of(runs, n, BENCH_DECODE, BENCH_DECODE_TOK_S, values);
    memcpy(sorted, values, n * sizeof *values);
    qsort(sorted, n, sizeof *sorted, by_value);
    size_t at = 0;
    while (values[at] < sorted[(n - 1) / 2])
        at++;
    return at;
}

/* Time of a token by layers, of one run, and the bound that the parts give together. */
static json_t *layers_json(writer *w, const bench_job *job, const bench_arm *arm,
                           const bench_run *runs) {
    const size_t run = median_run(runs, job->opt->reps);
    const rg_layer_meters *l = runs[run].layers;
    const double wall_ns = runs[run].v[BENCH_DECODE][BENCH_WALL_MS] * 1e6;
    json_t *o = json_object();
    json_t *lists[6] = {json_array(), json_array(), json_array(),
                        json_array(), json_array(), json_array()};
    static const char *const names[6] = {"before_router_ns", "phase1_ns",    "phase2_ns",
                                         "wait_ns",          "urgent_bytes", "late_bytes"};
    double inside_ns = 0, bound_ns = 0;
    for (size_t i = 0; i < arm->n_layer; i++) {
        const uint64_t values[6] = {l[i].before_router_ns, l[i].phase1_ns,    l[i].phase2_ns,
                                    l[i].wait_ns,          l[i].urgent_bytes, l[i].late_bytes};
        for (size_t k = 0; k < 6; k++)
            add(w, lists[k], json_integer((json_int_t)values[k]));
        const double urgent_ns =
            job->ceiling_gb_s > 0 ? (double)values[4] / job->ceiling_gb_s : 0.0;
        inside_ns += (double)(values[0] + values[1] + values[2] + values[3]);
        bound_ns += (double)values[0] + fmax((double)values[1], urgent_ns) + (double)values[2];
    }
    for (size_t k = 0; k < 6; k++)
        put(w, o, names[k], lists[k]);
    const double tokens = job->opt->n_gen ? job->opt->n_gen : 1;
    put(w, o, "run", json_integer((json_int_t)run));
    put(w, o, "tokens", json_integer(job->opt->n_gen));
    put(w, o, "outside_ns", number(floor(wall_ns - inside_ns)));
    put(w, o, "token_ms", json_real(wall_ns / tokens * 1e-6));
    put(w, o, "bound_ms", json_real((bound_ns + wall_ns - inside_ns) / tokens * 1e-6));
    return o;
}

static void put_arm(writer *w, json_t *o, const bench_job *job, size_t a) {
    const bench_arm *arm = &job->arms[a];
    json_t *warm = json_object();
    put_runs(w, o, arm->cold, job->opt->reps);
    put_runs(w, warm, arm->warm, job->opt->reps);
    put(w, warm, "layers", layers_json(w, job, arm, arm->warm));
    put(w, o, "layers", layers_json(w, job, arm, arm->cold));
    put(w, o, "warm", warm);
    put(w, o, "model", json_string(arm->opt.model));
    put(w, o, "cpu_level", json_string(arm->info.cpu_level));
    put(w, o, "io_backend", json_string(arm->info.io_backend));
    put(w, o, "threads", json_integer(arm->info.n_threads));
    put(w, o, "chunk", json_integer(arm->info.chunk));
    put(w, o, "weight_bytes", json_integer((json_int_t)arm->info.weight_bytes));
    put(w, o, "arena_bytes", json_integer((json_int_t)arm->info.arena_bytes));
    put(w, o, "staging_bytes", json_integer((json_int_t)arm->info.staging_bytes));
    put(w, o, "load_ms", json_real(arm->info.load_ms));
}

static json_t *ratios_json(writer *w, const bench_job *job) {
    json_t *list = json_array();
    double values[CLI_REPS_MAX];
    for (size_t a = 0; a < job->n_arm; a++) {
        for (size_t b = a + 1; b < job->n_arm; b++) {
            json_t *o = json_object(), *warm = json_object();
            put(w, o, "a", json_string(job->arms[a].name));
            put(w, o, "b", json_string(job->arms[b].name));
            for (size_t k = 0; k < RG_ARRAY_LEN(compared); k++) {
                const char *name = bench_key_name(compared[k]);
                size_t n = ratios_of(job->arms[a].cold, job->arms[b].cold, job->opt->reps,
                                     compared[k], values);
                if (n) put(w, o, name, stat_json(w, values, n));
                n = ratios_of(job->arms[a].warm, job->arms[b].warm, job->opt->reps, compared[k],
                              values);
                if (n) put(w, warm, name, stat_json(w, values, n));
            }
            put(w, o, "warm", warm);
            add(w, list, o);
        }
    }
    return list;
}

static json_t *machine_json(writer *w, const bench_job *job) {
    const bench_watch *m = &job->watch;
    json_t *o = json_object(), *warnings = json_array();
    const bool others = m->others_cores >= 0;
    put(w, o, "others_cores", others ? json_real(m->others_cores) : json_null());
    put(w, o, "clock_mhz_min", m->mhz_max > 0 ? json_real(m->mhz_min) : json_null());
    put(w, o, "clock_mhz_max", m->mhz_max > 0 ? json_real(m->mhz_max) : json_null());
    put(w, o, "celsius_min", m->celsius_max > 0 ? json_real(m->celsius_min) : json_null());
    put(w, o, "celsius_max", m->celsius_max > 0 ? json_real(m->celsius_max) : json_null());
    for (size_t i = 0; i < job->n_warning; i++)
        add(w, warnings, json_string(job->warnings[i]));
    put(w, o, "warnings", warnings);
    return o;
}

static void put_arms(writer *w, json_t *root, const bench_job *job) {
    json_t *arms = json_array(), *order = json_array();
    for (size_t a = 0; a < job->n_arm; a++) {
        json_t *o = json_object();
        put(w, o, "arm", json_string(job->arms[a].name));
        put_arm(w, o, job, a);
        add(w, arms, o);
    }
    for (size_t i = 0; i < job->n_order; i++)
        add(w, order, json_string(job->arms[job->order[i]].name));
    put(w, root, "arms", arms);
    put(w, root, "order", order);
    put(w, root, "ratios", ratios_json(w, job));
}

int bench_print_json(const bench_job *job) {
    writer w = {0};
    json_t *root = json_object();
    if (job->n_arm == 1) {
        put_arm(&w, root, job, 0);
    } else {
        put_arms(&w, root, job);
    }
    put(&w, root, "n_prompt", json_integer(job->opt->n_prompt));
    put(&w, root, "n_gen", json_integer(job->opt->n_gen));
    put(&w, root, "reps", json_integer(job->opt->reps));
    put(&w, root, "machine", machine_json(&w, job));
    const bool good = root && !w.failed && json_dumpf(root, stdout, JSON_INDENT(2)) == 0;
    json_decref(root);
    if (good) {
        putchar('\n');
        return CLI_OK;
    }
    const rg_status st = {.code = RG_NOMEM, .message = "cannot write JSON"};
    return cli_fail(&st);
}

/* ---- table ---------------------------------------------------------------------------------- */

static double median_of(const bench_job *job, const bench_run *runs, bench_phase phase,
                        size_t key) {
    double values[CLI_REPS_MAX];
    values_of(runs, job->opt->reps, phase, key, values);
    return bench_stat_of(values, job->opt->reps).median;
}

static void print_spread(const bench_job *job, const bench_run *runs, size_t key) {
    double values[CLI_REPS_MAX];
    char text[64];
    values_of(runs, job->opt->reps, BENCH_ALL, key, values);
    const bench_stat s = bench_stat_of(values, job->opt->reps);
    snprintf(text, sizeof text, "%.1f (%.1f-%.1f)", s.median, s.min, s.max);
    printf(" %22s", text);
}

static void print_row(const bench_job *job, size_t a, const char *when, const bench_run *runs) {
    const double hits = median_of(job, runs, BENCH_ALL, BENCH_HITS);
    const double wanted = hits + median_of(job, runs, BENCH_ALL, BENCH_MISSES);
    printf("%c %s", (int)('A' + a), when);
    print_spread(job, runs, BENCH_PREFILL_TOK_S);
    print_spread(job, runs, BENCH_DECODE_TOK_S);
    printf(" %9.1f %6.1f %9.1f %6.2f %10.1f %9.1f %8.1f %6.1f\n",
           median_of(job, runs, BENCH_ALL, BENCH_TTFT_MS), wanted > 0 ? 100 * hits / wanted : 100.0,
           median_of(job, runs, BENCH_ALL, BENCH_READ_BYTES) / 0x1p20,
           median_of(job, runs, BENCH_ALL, BENCH_DRIVE_GB_S),
           median_of(job, runs, BENCH_ALL, BENCH_COMPUTE_MS),
           median_of(job, runs, BENCH_ALL, BENCH_WAIT_MS),
           median_of(job, runs, BENCH_ALL, BENCH_HOST_MS),
           100 * median_of(job, runs, BENCH_ALL, BENCH_ACCOUNTED_SHARE));
    const double copied = median_of(job, runs, BENCH_ALL, BENCH_COPIED_BYTES);
    const double ms = median_of(job, runs, BENCH_ALL, BENCH_COPY_MS);
    if (copied > 0) {
        printf("%c %s  staged: %.1f MiB copied, %.1f ms of the device, %.2f GB/s\n", (int)('A' + a),
               when, copied / 0x1p20, ms, ms > 0 ? copied * 1e-6 / ms : 0.0);
    }
}

static void print_ratio(const bench_job *job, size_t a, size_t b, bool warm) {
    const bench_run *x = warm ? job->arms[a].warm : job->arms[a].cold;
    const bench_run *y = warm ? job->arms[b].warm : job->arms[b].cold;
    double values[CLI_REPS_MAX];
    printf("%c/%c %s", (int)('A' + b), (int)('A' + a), warm ? "warm" : "cold");
    for (size_t k = 0; k < 2; k++) {
        const size_t n = ratios_of(x, y, job->opt->reps, compared[k], values);
        if (!n) continue;
        const bench_stat s = bench_stat_of(values, n);
        printf("  %s x %.3f (%.3f-%.3f)", k ? "decode" : "prefill", s.median, s.min, s.max);
    }
    putchar('\n');
}

void bench_print_table(const bench_job *job) {
    const bench_arm *first = &job->arms[0];
    const cli_options *opt = job->opt;
    printf("%s: %d threads %s, weights %.1f MiB, ", first->opt.model, first->info.n_threads,
           first->info.cpu_level, (double)first->info.weight_bytes / 0x1p20);
    if (first->info.arena_bytes) {
        printf("arena %.1f MiB%s%s, %s, ", (double)first->info.arena_bytes / 0x1p20,
               first->info.gpu_arena[0] ? " " : "", first->info.gpu_arena, first->info.io_backend);
    }
    if (job->ceiling_gb_s > 0) printf("drive ceiling %.2f GB/s, ", job->ceiling_gb_s);
    printf("prompt %u, decode %u, median (least-most) of %u\n", opt->n_prompt, opt->n_gen,
           opt->reps);
    for (size_t a = 0; a < job->n_arm && job->n_arm > 1; a++)
        printf("%c: %s\n", (int)('A' + a), job->arms[a].name);
    printf("%6s %22s %22s %9s %6s %9s %6s %10s %9s %8s %6s\n", "", "prefill tok/s", "decode tok/s",
           "ttft ms", "hit %", "read MiB", "GB/s", "compute ms", "wait ms", "host ms", "acc %");
    for (size_t a = 0; a < job->n_arm; a++) {
        print_row(job, a, "cold", job->arms[a].cold);
        print_row(job, a, "warm", job->arms[a].warm);
    }
    for (size_t a = 0; a < job->n_arm; a++) {
        for (size_t b = a + 1; b < job->n_arm; b++) {
            print_ratio(job, a, b, false);
            print_ratio(job, a, b, true);
        }
    }
}
