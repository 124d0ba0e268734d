/* regolith plan: where the memory would go. */
#include "cli/cli.h"

int cli_plan(const cli_options *opt) {
    rg_status st = {0};
    char *text = NULL;
    const rg_engine_options e = cli_engine_options(opt);
    const rg_code rc = rg_plan_for(&e, &text, &st);
    if (rc == RG_OK) fputs(text, stdout);
    rg_release(text);
    const int code = rc == RG_OK ? CLI_OK : cli_fail(&st);
    const int written = cli_finish_output();
    return code == CLI_OK ? written : code;
}
