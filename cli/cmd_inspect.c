/* regolith inspect: what is in a model file. */
#include "cli/cli.h"
#include "forge/forge.h"

int cli_inspect(const cli_options *opt) {
    const char *path = opt->n_args ? opt->args[0] : opt->model;
    if (!path) return cli_usage("inspect", "give a model file");
    rg_status st = {0};
    rg_buf text;
    rg_buf_init(&text, 0);
    const rg_code rc = rg_forge_inspect(path, &text, &st);
    if (rc == RG_OK) fwrite(text.data, 1, text.len, stdout);
    rg_buf_deinit(&text);
    const int code = rc == RG_OK ? CLI_OK : cli_fail(&st);
    const int written = cli_finish_output();
    return code == CLI_OK ? written : code;
}
