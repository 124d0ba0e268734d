/* regolith ppl: perplexity over non-overlapping windows, each with a fresh state; the first token
 * of a window is not scored.
 */
#include <jansson.h>
#include <math.h>

#include "forge/forge.h"
#include "cli/cli.h"

#define WINDOW_DEFAULT 512u

typedef struct ppl_job {
    const int32_t *ids; /* of the window */
    size_t n;
    uint32_t n_vocab;
    double nll_sum;
    uint64_t n_scored;
} ppl_job;

/* The logits of position p score the token at p + 1. */
static rg_code on_row(void *user, uint32_t position, const float *x, rg_status *st) {
    ppl_job *j = user;
    (void)st;
    if (position + 1 >= j->n) return RG_OK;
    float m = x[0];
    for (uint32_t i = 1; i < j->n_vocab; i++)
        m = x[i] > m ? x[i] : m;
    double sum = 0.0;
    for (uint32_t i = 0; i < j->n_vocab; i++)
        sum += exp((double)(x[i] - m));
    j->nll_sum += (double)m + log(sum) - (double)x[j->ids[position + 1]];
    j->n_scored++;
    return RG_OK;
}

static rg_code score(ppl_job *j, rg_session *session, const int32_t *ids, size_t n, uint32_t window,
                     rg_status *st) {
    for (size_t begin = 0; begin < n; begin += window) {
        j->ids = ids + begin;
        j->n = n - begin < window ? n - begin : window;
        if (j->n < 2) break; /* nothing to score */
        rg_session_reset(session);
        cli_progress_span(begin, n);
        RG_TRY(rg_session_eval(session, j->ids, j->n, 0, on_row, j, st));
    }
    return j->n_scored ? RG_OK : rg_fail(st, RG_INVALID, "the text has fewer than two tokens");
}

static int print_result(const ppl_job *j, const cli_options *opt, uint32_t window) {
    const double nll = j->nll_sum / (double)j->n_scored;
    if (!opt->json) {
        printf("ppl %.5f, nll %.6f a token, %llu tokens scored, windows of %u\n", exp(nll), nll,
               (unsigned long long)j->n_scored, window);
        return CLI_OK;
    }
    json_t *root = json_pack("{s:f, s:f, s:f, s:I, s:i}", "ppl", exp(nll), "nll", nll, "nll_sum",
                             j->nll_sum, "tokens", (json_int_t)j->n_scored, "ctx", (int)window);
    const bool ok = root && json_dumpf(root, stdout, JSON_INDENT(2)) == 0;
    json_decref(root);
    putchar('\n');
    if (ok) return CLI_OK;
    const rg_status st = {.code = RG_NOMEM, .message = "cannot write JSON"};
    return cli_fail(&st);
}

int cli_ppl(const cli_options *opt) {
    if (!opt->file) return cli_usage("ppl", "-f TEXT is missing");
    if (opt->ctx == 1) return cli_usage("ppl", "--ctx 1: a window of one token scores none");
    const uint32_t window = opt->ctx ? opt->ctx : WINDOW_DEFAULT;
    rg_status st = {0};
    rg_engine *engine = NULL;
    rg_session *session = NULL;
    char *text = NULL;
    int32_t *ids = NULL;
    size_t len = 0, n = 0;
    ppl_job j = {0};
    rg_code rc = cli_read_file(opt->file, &text, &len, &st);
    if (rc == RG_OK) rc = cli_open_engine(opt, &engine, &st);
    if (rc == RG_OK) rc = rg_engine_tokenize(engine, text, len, false, &ids, &n, &st);
    if (rc == RG_OK) {
        rg_engine_info info;
        rg_engine_get_info(engine, &info);
        j.n_vocab = info.n_vocab;
        const rg_session_options so = {.n_ctx = window, .kv = opt->kv};
        rc = rg_session_create(&session, engine, &so, &st);
    }
    if (rc == RG_OK) rc = score(&j, session, ids, n, window, &st);
    cli_progress_clear();
    int code = rc == RG_OK ? print_result(&j, opt, window) : cli_fail(&st);
    if (session && opt->verbose) cli_print_profile(engine, session);
    rg_release(text);
    rg_release(ids);
    rg_session_destroy(session);
    rg_engine_close(engine);
    const int written = cli_finish_output();
    return code == CLI_OK ? written : code;
}
