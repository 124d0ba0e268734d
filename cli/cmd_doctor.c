/* regolith doctor: what this machine and model can do, and what to change. */
#include "cli/cli.h"
#include "forge/forge.h"

static void on_step(void *user, const char *what, uint32_t done, uint32_t total) {
    (void)user;
    cli_progress(NULL, what, done, total);
}

int cli_doctor(const cli_options *opt) {
    rg_status st = {0};
    rg_buf text;
    rg_buf_init(&text, 0);
    rg_doctor_report *report = rg_alloc(1, sizeof *report, &st);
    const rg_doctor_options d = {.model = opt->model, .quick = opt->quick, .progress = on_step};
    rg_code rc = report ? rg_doctor_run(report, &d, &st) : RG_NOMEM;
    cli_progress_clear();
    if (rc == RG_OK) {
        rc = opt->json ? rg_doctor_json(report, &text, &st) : rg_doctor_text(report, &text, &st);
    }
    if (rc == RG_OK) fwrite(text.data, 1, text.len, stdout);
    rg_buf_deinit(&text);
    rg_free(report);
    const int code = rc == RG_OK ? CLI_OK : cli_fail(&st);
    const int written = cli_finish_output();
    return code == CLI_OK ? written : code;
}
