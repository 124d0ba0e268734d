/* regolith convert: a Hugging Face checkpoint to GGUF. */
#include <stdlib.h>

#include "forge/forge.h"
#include "cli/cli.h"

int cli_convert(const cli_options *opt) {
    if (opt->n_args != 2) {
        return cli_usage("convert", "give the checkpoint's folder and the file to write");
    }
    rg_status st = {0};
    rg_buf text;
    rg_buf_init(&text, 0);
    const rg_convert_options o = {.folder = opt->args[0],
                                  .out_path = opt->args[1],
                                  .mix = opt->tools.type,
                                  .rules = opt->types,
                                  .n_rules = (uint32_t)opt->n_types,
                                  .name = opt->tools.name,
                                  .parts = opt->split_files,
                                  .overwrite = opt->overwrite,
                                  .no_mtp = opt->no_mtp,
                                  .n_threads = opt->threads,
                                  .cpu_level = getenv("RG_CPU"),
                                  .progress = cli_progress};
    const rg_code rc = rg_forge_convert(&o, &text, &st);
    cli_progress_clear();
    if (rc == RG_OK && text.data) fputs(text.data, stdout);
    const int code = rc == RG_OK ? CLI_OK : cli_fail(&st);
    rg_buf_deinit(&text);
    const int written = cli_finish_output();
    return code == CLI_OK ? written : code;
}
