/* regolith kld: how far a model's predictions are from saved ones. The text is cut into windows,
 * each with a fresh state, as ppl does; every position of a window counts.
 */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/kld.h"

#define WINDOW_DEFAULT 512u
#define TOP_DEFAULT    5u
#define TOP_MAX        ((uint32_t)CLI_TOP_AGREE_MAX)

/* Of one model. */
typedef struct kld_result {
    const char *model;
    rg_engine_info info;
    double tok_s;
    double mean, median, p99, max; /* nats */
    double top1, topk;             /* shares */
    double ppl, ppl_ref;
} kld_result;

typedef struct kld_job {
    const cli_options *opt;
    kld_identity id;
    uint32_t top; /* best tokens that are compared */
    int32_t *ids;
    kld_ref *ref;
    kld_save *save;
    FILE *csv;
    float *ref_row;
    double *kl;   /* [n_token] */
    size_t begin; /* first token of the window */
    size_t n;     /* tokens of the window */
    double top1_sum, topk_sum, nll_sum, nll_ref_sum;
    uint64_t n_scored;
    uint64_t inside_ns; /* time that is not the model's */
    kld_result *result;
} kld_job;

/* ---- one position --------------------------------------------------------------------------- */

/* The best `top` ids, best first, ties by lower id; fewer in a smaller vocabulary. */
static uint32_t best_of(const float *x, uint32_t n, uint32_t top, uint32_t ids[TOP_MAX]) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (count == top && !(x[i] > x[ids[top - 1]])) continue;
        uint32_t at = count < top ? count++ : top - 1;
        while (at > 0 && x[i] > x[ids[at - 1]]) {
            ids[at] = ids[at - 1];
            at--;
        }
        ids[at] = i;
    }
    return count;
}

static double log_sum_exp(const float *x, uint32_t n, float top) {
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - (double)top);
    return (double)top + log(sum);
}

static double shared_share(const uint32_t *a, const uint32_t *b, uint32_t n) {
    uint32_t same = 0;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < n; k++)
            same += a[i] == b[k];
    }
    return (double)same / n;
}

/* KL(reference || model), agreement of the best tokens, and how both price the next token. */
static rg_code compare(kld_job *j, uint32_t position, const float *x, rg_status *st) {
    const uint32_t V = j->id.n_vocab;
    const float *r = j->ref_row;
    uint32_t best_x[TOP_MAX] = {0}, best_r[TOP_MAX] = {0};
    RG_TRY(kld_ref_next(j->ref, j->ref_row, st));
    const uint32_t k = best_of(x, V, j->top, best_x);
    (void)best_of(r, V, j->top, best_r);
    const double lx = log_sum_exp(x, V, x[best_x[0]]), lr = log_sum_exp(r, V, r[best_r[0]]);
    double kl = 0;
    for (uint32_t i = 0; i < V; i++) {
        const double log_p = (double)r[i] - lr;
        kl += exp(log_p) * (log_p - ((double)x[i] - lx));
    }
    const bool same = best_x[0] == best_r[0];
    const double topk = shared_share(best_x, best_r, k);
    const size_t at = j->begin + position;
    j->kl[at] = kl;
    j->top1_sum += same;
    j->topk_sum += topk;
    const bool scored = position + 1 < j->n;
    const int32_t next = scored ? j->ids[at + 1] : 0;
    const double nll = lx - (double)x[next], nll_ref = lr - (double)r[next];
    if (scored) {
        j->nll_sum += nll;
        j->nll_ref_sum += nll_ref;
        j->n_scored++;
    }
    if (!j->csv) return RG_OK;
    fprintf(j->csv, "\"%s\",%zu,%d,%.9g,%d,%.6g", j->result->model, at, j->ids[at], kl, same, topk);
    if (scored) {
        fprintf(j->csv, ",%.9g,%.9g\n", nll_ref, nll);
    } else {
        fputs(",,\n", j->csv);
    }
    return RG_OK;
}

static rg_code on_row(void *user, uint32_t position, const float *x, rg_status *st) {
    kld_job *j = user;
    const uint64_t begin = rg_now_ns();
    const rg_code rc = j->save ? kld_save_row(j->save, x, st) : compare(j, position, x, st);
    j->inside_ns += rg_now_ns() - begin;
    return rc;
}

/* ---- one model ------------------------------------------------------------------------------ */

static rg_code evaluate(kld_job *j, rg_session *session, rg_status *st) {
    const uint64_t begin = rg_now_ns();
    j->inside_ns = 0;
    for (j->begin = 0; j->begin < j->id.n_token; j->begin += j->id.window) {
        const size_t left = j->id.n_token - j->begin;
        j->n = left < j->id.window ? left : j->id.window;
        rg_session_reset(session);
        RG_TRY(rg_session_eval(session, j->ids + j->begin, j->n, 0, on_row, j, st));
        cli_progress(NULL, "kld", j->begin + j->n, j->id.n_token);
    }
    const uint64_t spent = rg_now_ns() - begin - j->inside_ns;
    j->result->tok_s = spent ? 1e9 * (double)j->id.n_token / (double)spent : 0;
    return RG_OK;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The 99th percentile by nearest rank. */
static void summarise(kld_job *j) {
    kld_result *r = j->result;
    const size_t n = j->id.n_token;
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += j->kl[i];
    qsort(j->kl, n, sizeof *j->kl, by_value);
    r->mean = sum / (double)n;
    r->median = n % 2 ? j->kl[n / 2] : 0.5 * (j->kl[n / 2 - 1] + j->kl[n / 2]);
    r->p99 = j->kl[(n * 99 + 99) / 100 - 1];
    r->max = j->kl[n - 1];
    r->top1 = j->top1_sum / (double)n;
    r->topk = j->topk_sum / (double)n;
    r->ppl = j->n_scored ? exp(j->nll_sum / (double)j->n_scored) : 0;
    r->ppl_ref = j->n_scored ? exp(j->nll_ref_sum / (double)j->n_scored) : 0;
}

/* Tokens of the text under this model, and the window that flags or reference ask for. */
static rg_code identify(kld_job *j, const rg_engine *engine, const char *text, size_t len,
                        rg_status *st) {
    rg_release(j->ids);
    j->ids = NULL;
    RG_TRY(rg_engine_tokenize(engine, text, len, false, &j->ids, &j->id.n_token, st));
    if (j->id.n_token == 0) {
        return rg_fail(st, RG_INVALID, "%s holds no tokens", j->opt->file);
    }
    j->id.ids = j->ids;
    j->id.n_vocab = j->result->info.n_vocab;
    j->id.window = j->opt->ctx;
    if (j->id.window) return RG_OK;
    j->id.window = j->ref ? kld_ref_window(j->ref) : WINDOW_DEFAULT;
    /* logits --out knows no windows */
    if (!j->id.window) j->id.window = (uint32_t)j->id.n_token;
    return RG_OK;
}

static rg_code take_rows(kld_job *j, rg_status *st) {
    j->ref_row = rg_alloc(j->id.n_vocab, sizeof *j->ref_row, st);
    j->kl = rg_alloc(j->id.n_token, sizeof *j->kl, st);
    j->top1_sum = j->topk_sum = j->nll_sum = j->nll_ref_sum = 0;
    j->n_scored = 0;
    return j->ref_row && j->kl ? RG_OK : RG_NOMEM;
}

static rg_code save_all(kld_job *j, rg_session *session, rg_status *st) {
    uint64_t bytes = 0;
    RG_TRY(evaluate(j, session, st));
    RG_TRY(kld_save_finish(j->save, &bytes, st));
    const double raw = (double)j->id.n_token * j->id.n_vocab * sizeof(float);
    printf("%s: %zu tokens in windows of %u, %llu bytes (%.1f %% of the raw logits)\n",
           j->opt->save, j->id.n_token, j->id.window, (unsigned long long)bytes,
           100.0 * (double)bytes / raw);
    return RG_OK;
}

static rg_code compare_all(kld_job *j, rg_session *session, rg_status *st) {
    RG_TRY(evaluate(j, session, st));
    RG_TRY(kld_ref_end(j->ref, st));
    summarise(j);
    return RG_OK;
}

static rg_code prepare(kld_job *j, const rg_engine *engine, const char *text, size_t len,
                       rg_status *st) {
    RG_TRY(identify(j, engine, text, len, st));
    if (j->opt->save) return kld_save_create(&j->save, j->opt->save, &j->id, st);
    RG_TRY(kld_ref_check(j->ref, &j->id, st));
    return take_rows(j, st);
}

static rg_code run_model(kld_job *j, const char *model, const char *text, size_t len,
                         rg_status *st) {
    rg_engine *engine = NULL;
    rg_session *session = NULL;
    cli_options o = *j->opt;
    o.model = model;
    rg_code rc = o.ref ? kld_ref_open(&j->ref, o.ref, st) : RG_OK;
    /* What the memory plan makes room for; a raw reference does not say. */
    if (!o.ctx && j->ref) o.ctx = kld_ref_window(j->ref);
    if (!o.ctx) o.ctx = WINDOW_DEFAULT;
    if (rc == RG_OK) rc = cli_open_engine(&o, &engine, st);
    if (rc == RG_OK) {
        rg_engine_get_info(engine, &j->result->info);
        rc = prepare(j, engine, text, len, st);
    }
    if (rc == RG_OK) {
        const rg_session_options so = {.n_ctx = j->id.window, .kv = o.kv};
        rc = rg_session_create(&session, engine, &so, st);
    }
    if (rc == RG_OK) {
        cli_cancel_on_interrupt(session);
        rc = j->save ? save_all(j, session, st) : compare_all(j, session, st);
        cli_cancel_on_interrupt(NULL);
        cli_progress_clear();
        if (o.verbose) cli_print_profile(engine, session);
    }
    kld_ref_close(j->ref);
    kld_save_destroy(j->save);
    j->ref = NULL;
    j->save = NULL;
    rg_free(j->ref_row);
    rg_free(j->kl);
    j->ref_row = NULL;
    j->kl = NULL;
    rg_session_destroy(session);
    rg_engine_close(engine);
    return rc;
}

/* ---- output --------------------------------------------------------------------------------- */

static double bytes_per_weight(const kld_result *r) {
    return r->info.n_weight ? (double)r->info.file_bytes / (double)r->info.n_weight : 0;
}

static void print_table(const kld_job *j, const kld_result *results, size_t n) {
    printf("%zu tokens in windows of %u against %s, perplexity %.4f\n", j->id.n_token, j->id.window,
           j->opt->ref, results[0].ppl_ref);
    char head[16];
    snprintf(head, sizeof head, "top-%u %%", j->top);
    printf("%12s %9s %9s %10s %10s %10s %10s %8s %8s %10s  %s\n", "bytes", "bytes/wt", "tok/s",
           "mean KL", "median", "99 %", "max", "top-1 %", head, "ppl", "model");
    for (size_t i = 0; i < n; i++) {
        const kld_result *r = &results[i];
        printf("%12llu %9.4f %9.1f %10.6f %10.6f %10.6f %10.6f %8.2f %8.2f %10.4f  %s\n",
               (unsigned long long)r->info.file_bytes, bytes_per_weight(r), r->tok_s, r->mean,
               r->median, r->p99, r->max, 100 * r->top1, 100 * r->topk, r->ppl, r->model);
    }
}

static int print_json(const kld_job *j, const kld_result *results, size_t n) {
    char agreement[32];
    snprintf(agreement, sizeof agreement, "top%u_agreement", j->top);
    json_t *list = json_array();
    bool good = list != NULL;
    for (size_t i = 0; i < n; i++) {
        const kld_result *r = &results[i];
        json_t *o =
            json_pack("{s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "model",
                      r->model, "file_bytes", (json_int_t)r->info.file_bytes, "bytes_per_weight",
                      bytes_per_weight(r), "tok_s", r->tok_s, "kl_mean", r->mean, "kl_median",
                      r->median, "kl_p99", r->p99, "kl_max", r->max, "top1_agreement", r->top1,
                      agreement, r->topk, "ppl", r->ppl, "ppl_ref", r->ppl_ref);
        good = json_array_append_new(list, o) == 0 && good;
    }
    json_t *root = json_pack("{s:s, s:I, s:I, s:I, s:o}", "ref", j->opt->ref, "tokens",
                             (json_int_t)j->id.n_token, "ctx", (json_int_t)j->id.window, "top_k",
                             (json_int_t)j->top, "models", list);
    good = good && root && json_dumpf(root, stdout, JSON_INDENT(2)) == 0;
    json_decref(root);
    if (good) {
        putchar('\n');
        return CLI_OK;
    }
    const rg_status st = {.code = RG_NOMEM, .message = "cannot write JSON"};
    return cli_fail(&st);
}

static rg_code run_models(kld_job *j, kld_result *results, rg_status *st) {
    const cli_options *opt = j->opt;
    char *text = NULL;
    size_t len = 0;
    if (opt->csv) {
        j->csv = fopen(opt->csv, "we");
        if (!j->csv) return rg_fail_errno(st, RG_IO, errno, "cannot write %s", opt->csv);
        fprintf(j->csv, "model,position,token,kl,top1,top%u,nll_ref,nll\n", j->top);
    }
    RG_TRY(cli_read_file(opt->file, &text, &len, st));
    rg_code rc = RG_OK;
    for (size_t i = 0; i < opt->n_models && rc == RG_OK; i++) {
        j->result = &results[i];
        j->result->model = opt->models[i];
        rc = run_model(j, opt->models[i], text, len, st);
    }
    rg_release(text);
    return rc;
}

/* Closed here, so that a full disk is noticed. */
static rg_code close_csv(kld_job *j, rg_status *st) {
    FILE *csv = j->csv;
    j->csv = NULL;
    const bool bad = csv && ferror(csv);
    if (!csv || (fclose(csv) == 0 && !bad)) return RG_OK;
    return rg_fail_errno(st, RG_IO, errno, "writing %s", j->opt->csv);
}

int cli_kld(const cli_options *opt) {
    if (!opt->file) return cli_usage("kld", "-f TEXT is missing");
    if (!opt->ref == !opt->save) return cli_usage("kld", "give one of --ref FILE, --save FILE");
    if (opt->save && opt->n_models > 1) {
        return cli_usage("kld", "--save takes one model, %zu are given", opt->n_models);
    }
    if (opt->save && opt->csv) return cli_usage("kld", "--csv needs --ref");
    rg_status st = {0};
    kld_result results[CLI_MODELS_MAX] = {{0}};
    kld_job j = {.opt = opt, .top = opt->top_agree ? opt->top_agree : TOP_DEFAULT};
    rg_code rc = run_models(&j, results, &st);
    const rg_code closed = close_csv(&j, &st);
    if (rc == RG_OK) rc = closed;
    int code = rc == RG_OK ? CLI_OK : cli_fail(&st);
    if (code == CLI_OK && opt->ref) {
        if (opt->json) {
            code = print_json(&j, results, opt->n_models);
        } else {
            print_table(&j, results, opt->n_models);
        }
    }
    rg_release(j.ids);
    const int written = cli_finish_output();
    return code == CLI_OK ? written : code;
}
