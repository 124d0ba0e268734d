/* regolith pack: the experts of a model in a file of their own. */
#include "cli/cli.h"
#include "forge/forge.h"

int cli_pack(const cli_options *opt) {
    const int n_model = opt->model ? 0 : 1; /* main has seen to it that there is one */
    if (opt->n_args > n_model + 1) {
        return cli_usage("pack", "unexpected word %s", opt->args[n_model + 1]);
    }
    const rg_forge_pack_options pack = {.model_path = opt->model ? opt->model : opt->args[0],
                                        .out_path =
                                            opt->n_args > n_model ? opt->args[n_model] : NULL,
                                        .progress = cli_progress};
    rg_status st = {0};
    rg_buf text;
    rg_buf_init(&text, 0);
    const rg_code rc = rg_forge_pack(&pack, &text, &st);
    cli_progress_clear();
    if (rc == RG_OK) fwrite(text.data, 1, text.len, stdout);
    rg_buf_deinit(&text);
    const int code = rc == RG_OK ? CLI_OK : cli_fail(&st);
    const int written = cli_finish_output();
    return code == CLI_OK ? written : code;
}
