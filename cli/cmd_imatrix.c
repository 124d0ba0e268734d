/* regolith imatrix: importance of the columns of every matrix, over a text cut into windows with a
 * fresh state each, as ppl does.
 */
#include <string.h>

#include "forge/forge.h"
#include "cli/cli.h"

#define WINDOW_DEFAULT 512u

/* Logits are wanted so that the head sees its rows. */
static rg_code on_row(void *user, uint32_t position, const float *x, rg_status *st) {
    (void)user, (void)position, (void)x, (void)st;
    return RG_OK;
}

typedef struct imatrix_job {
    int32_t *ids;
    size_t n;
    uint32_t window, n_chunk;
} imatrix_job;

static rg_code run(imatrix_job *j, const cli_options *opt, rg_engine *engine, const char *text,
                   size_t len, rg_status *st) {
    rg_session *session = NULL;
    rg_engine_info info;
    rg_engine_get_info(engine, &info);
    RG_TRY(rg_engine_tokenize(engine, text, len, true, &j->ids, &j->n, st));
    if (opt->n_predict && opt->n_predict < j->n) j->n = opt->n_predict;
    if (j->n < 2) return rg_fail(st, RG_INVALID, "%s has fewer than two tokens", opt->file);
    RG_TRY(rg_engine_collect_importance(engine, st));
    const rg_session_options so = {.n_ctx = j->window, .kv = opt->kv, .mtp = info.has_mtp};
    RG_TRY(rg_session_create(&session, engine, &so, st));
    cli_cancel_on_interrupt(session);
    rg_code rc = RG_OK;
    for (size_t at = 0; at < j->n && rc == RG_OK; at += j->window) {
        const size_t n = j->n - at < j->window ? j->n - at : j->window;
        rg_session_reset(session);
        cli_progress_span(at, j->n);
        rc = rg_session_eval(session, j->ids + at, n, 0, on_row, NULL, st);
        j->n_chunk++;
    }
    cli_cancel_on_interrupt(NULL);
    cli_progress_clear();
    rg_session_destroy(session);
    return rc;
}

int cli_imatrix(const cli_options *opt) {
    if (!opt->file) return cli_usage("imatrix", "-f TEXT is missing");
    if (opt->n_args != 1) return cli_usage("imatrix", "give the file to write");
    rg_status st = {0};
    rg_engine *engine = NULL;
    char *text = NULL;
    size_t len = 0;
    rg_buf report;
    imatrix_job j = {.window = opt->ctx ? opt->ctx : WINDOW_DEFAULT};
    rg_buf_init(&report, 0);
    rg_code rc = cli_read_file(opt->file, &text, &len, &st);
    if (rc == RG_OK) rc = cli_open_engine(opt, &engine, &st);
    if (rc == RG_OK) rc = run(&j, opt, engine, text, len, &st);
    if (rc == RG_OK) {
        const char *slash = strrchr(opt->file, '/');
        const rg_imatrix_info info = {.text = slash ? slash + 1 : opt->file,
                                      .n_chunk = j.n_chunk,
                                      .chunk_size = j.window,
                                      .overwrite = opt->overwrite};
        rc = rg_forge_imatrix_write(engine, opt->args[0], &info, &report, &st);
    }
    if (rc == RG_OK) {
        printf("%zu tokens in windows of %u; %s", j.n, j.window, report.data);
    }
    int code = rc == RG_OK ? CLI_OK : cli_fail(&st);
    rg_buf_deinit(&report);
    rg_release(j.ids);
    rg_release(text);
    rg_engine_close(engine);
    const int written = cli_finish_output();
    return code == CLI_OK ? written : code;
}
