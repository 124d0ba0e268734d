/* regolith logits: teacher-forced logits of every position. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "forge/forge.h"
#include "cli/cli.h"

typedef struct logits_job {
    const cli_options *opt;
    uint32_t n_vocab;
    FILE *out, *ref;
    XXH3_state_t *hash;
    float *ref_row;
    /* against --ref */
    uint64_t n, same_top;
    double max_error, square_sum, kl_sum;
} logits_job;

static uint32_t best(const float *x, uint32_t n) {
    uint32_t at = 0;
    for (uint32_t i = 1; i < n; i++) {
        if (x[i] > x[at]) at = i;
    }
    return at;
}

static double log_sum_exp(const float *x, uint32_t n) {
    const double m = (double)x[best(x, n)];
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - m);
    return m + log(sum);
}

/* KL(reference || logits), largest and mean square error, agreement of the best token. */
static rg_code compare_row(logits_job *j, uint32_t position, const float *x, rg_status *st) {
    if (fread(j->ref_row, sizeof *x, j->n_vocab, j->ref) != j->n_vocab) {
        return rg_fail(st, RG_FORMAT, "%s ends before position %u of %u logits", j->opt->ref,
                       position, j->n_vocab);
    }
    const double lx = log_sum_exp(x, j->n_vocab), lr = log_sum_exp(j->ref_row, j->n_vocab);
    for (uint32_t i = 0; i < j->n_vocab; i++) {
        const double r = (double)j->ref_row[i], d = (double)x[i] - r;
        j->max_error = fmax(j->max_error, fabs(d));
        j->square_sum += d * d;
        j->kl_sum += exp(r - lr) * ((r - lr) - ((double)x[i] - lx));
    }
    j->n++;
    j->same_top += best(x, j->n_vocab) == best(j->ref_row, j->n_vocab);
    return RG_OK;
}

static rg_code print_top(const logits_job *j, uint32_t position, const float *x, rg_status *st) {
    uint32_t k = j->opt->top < j->n_vocab ? j->opt->top : j->n_vocab;
    int32_t *ids = rg_alloc(k, sizeof *ids, st);
    if (!ids) return RG_NOMEM;
    /* Selection by repeated maximum: k is small. */
    for (uint32_t i = 0; i < k; i++) {
        int32_t at = -1;
        for (uint32_t v = 0; v < j->n_vocab; v++) {
            if (at >= 0 && !(x[v] > x[at])) continue;
            if (i > 0) {
                const int32_t last = ids[i - 1];
                if (x[v] > x[last] || (!(x[v] < x[last]) && (int32_t)v <= last)) continue;
            }
            at = (int32_t)v;
        }
        ids[i] = at;
    }
    printf("%u", position);
    for (uint32_t i = 0; i < k; i++)
        printf(" %d:%.6g", ids[i], (double)x[ids[i]]);
    putchar('\n');
    rg_free(ids);
    return RG_OK;
}

static rg_code on_row(void *user, uint32_t position, const float *x, rg_status *st) {
    logits_job *j = user;
    const size_t bytes = j->n_vocab * sizeof *x;
    if (j->out && fwrite(x, 1, bytes, j->out) != bytes) {
        return rg_fail_errno(st, RG_IO, errno, "writing %s", j->opt->out);
    }
    if (j->hash) XXH3_128bits_update(j->hash, x, bytes);
    if (j->opt->top) RG_TRY(print_top(j, position, x, st));
    return j->ref ? compare_row(j, position, x, st) : RG_OK;
}

static rg_code open_files(logits_job *j, rg_status *st) {
    const cli_options *opt = j->opt;
    if (opt->out) {
        j->out = fopen(opt->out, "wbe");
        if (!j->out) return rg_fail_errno(st, RG_IO, errno, "cannot write %s", opt->out);
    }
    if (opt->ref) {
        j->ref = fopen(opt->ref, "rbe");
        if (!j->ref) return rg_fail_errno(st, RG_IO, errno, "cannot open %s", opt->ref);
        j->ref_row = rg_alloc(j->n_vocab, sizeof *j->ref_row, st);
        if (!j->ref_row) return RG_NOMEM;
    }
    if (opt->hash) {
        j->hash = XXH3_createState();
        if (!j->hash) return rg_fail(st, RG_NOMEM, "no memory for the hash");
        XXH3_128bits_reset(j->hash);
    }
    return RG_OK;
}

static void print_results(const logits_job *j) {
    if (j->hash) {
        XXH128_canonical_t digest;
        XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(j->hash));
        for (size_t i = 0; i < sizeof digest.digest; i++)
            printf("%02x", digest.digest[i]);
        putchar('\n');
    }
    if (!j->ref || !j->n) return;
    const double n = (double)j->n;
    printf(
        "positions %llu, max error %.6g, rms error %.6g, mean KL %.6g, same best token %.2f %%\n",
        (unsigned long long)j->n, j->max_error, sqrt(j->square_sum / (n * j->n_vocab)),
        j->kl_sum / n, 100.0 * (double)j->same_top / n);
}

/* All tokens but the last `decode` in chunks, those one at a time. */
static rg_code evaluate(logits_job *j, rg_session *session, const int32_t *ids, size_t n,
                        rg_status *st) {
    const size_t decode = j->opt->decode < n ? j->opt->decode : n;
    if (n > decode) RG_TRY(rg_session_eval(session, ids, n - decode, 0, on_row, j, st));
    if (decode && j->opt->moce > 0) {
        RG_TRY(rg_session_moce(session, j->opt->moce, j->opt->moce_slots, st));
    }
    for (size_t i = n - decode; i < n; i++) {
        RG_TRY(rg_session_eval(session, ids + i, 1, 0, on_row, j, st));
    }
    return RG_OK;
}

static rg_code run(logits_job *j, rg_engine *engine, rg_session **session, const int32_t *ids,
                   size_t n, rg_status *st) {
    const cli_options *opt = j->opt;
    rg_engine_info info;
    rg_engine_get_info(engine, &info);
    j->n_vocab = info.n_vocab;
    RG_TRY(open_files(j, st));
    rg_session_options so = {.n_ctx = opt->ctx,
                             .kv = opt->kv,
                             .mtp = info.has_mtp && (opt->dump || opt->dump_ref),
                             .dump_dir = opt->dump,
                             .dump_ref_dir = opt->dump_ref,
                             .dump_tolerance = opt->dump_tolerance};
    if (!so.n_ctx) so.n_ctx = n < info.n_ctx_train ? (uint32_t)n : info.n_ctx_train;
    RG_TRY(rg_session_create(session, engine, &so, st));
    cli_cancel_on_interrupt(*session);
    const rg_code rc = evaluate(j, *session, ids, n, st);
    cli_cancel_on_interrupt(NULL);
    cli_progress_clear();
    RG_TRY(rc);
    if (j->out && fflush(j->out) != 0) {
        return rg_fail_errno(st, RG_IO, errno, "writing %s", opt->out);
    }
    print_results(j);
    if (opt->moce > 0) {
        rg_moce_receipt receipt;
        rg_session_moce_receipt(*session, &receipt);
        cli_print_moce(&receipt, opt->moce);
    }
    if (!opt->dump && !opt->dump_ref) return RG_OK;
    char report[512];
    RG_TRY(rg_session_finish_dump(*session, report, sizeof report, st));
    printf("%s\n", report);
    return RG_OK;
}

int cli_logits(const cli_options *opt) {
    if (!opt->ids) return cli_usage("logits", "--ids FILE is missing");
    cli_options o = *opt;
    if (!o.out && !o.hash && !o.ref && !o.dump && !o.dump_ref && !o.top) o.top = 5;
    rg_status st = {0};
    rg_engine *engine = NULL;
    rg_session *session = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    logits_job j = {.opt = &o};
    rg_code rc = cli_read_ids(o.ids, &ids, &n, &st);
    if (rc == RG_OK) rc = cli_open_engine(&o, &engine, &st);
    if (rc == RG_OK) rc = run(&j, engine, &session, ids, n, &st);
    const int code = rc == RG_OK ? CLI_OK : cli_fail(&st);
    if (session && o.verbose) cli_print_profile(engine, session);
    if (j.out) fclose(j.out);
    if (j.ref) fclose(j.ref);
    rg_free(j.ref_row);
    XXH3_freeState(j.hash);
    rg_release(ids);
    rg_session_destroy(session);
    rg_engine_close(engine);
    const int written = cli_finish_output();
    return code == CLI_OK ? written : code;
}
