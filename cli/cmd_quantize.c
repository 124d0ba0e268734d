/* regolith quantize: other types for the tensors of a model. */
#include <stdlib.h>

#include "forge/forge.h"
#include "cli/cli.h"

static int print_buf(rg_code rc, rg_buf *text, const rg_status *st) {
    cli_progress_clear();
    if (rc == RG_OK && text->data) fputs(text->data, stdout);
    const int code = rc == RG_OK ? CLI_OK : cli_fail(st);
    rg_buf_deinit(text);
    const int written = cli_finish_output();
    return code == CLI_OK ? written : code;
}

int cli_quantize(const cli_options *opt) {
    rg_status st = {0};
    rg_buf text;
    rg_buf_init(&text, 0);
    if (opt->tools.list) return print_buf(rg_forge_list_mixes(&text, &st), &text, &st);
    if (opt->n_args != 2)
        return cli_usage("quantize", "give the file to read and the one to write");
    if (!opt->tools.type && !opt->tools.target_bytes) {
        return cli_usage("quantize", "--type T is missing (--list shows them)");
    }
    const rg_quantize_options o = {.in_path = opt->args[0],
                                   .out_path = opt->args[1],
                                   .mix = opt->tools.type ? opt->tools.type : "iq2_xs",
                                   .imatrix_path = opt->tools.imatrix,
                                   .rules = opt->types,
                                   .n_rules = (uint32_t)opt->n_types,
                                   .target_bytes = opt->tools.target_bytes,
                                   .weights_path = opt->tools.sensitivity,
                                   .parts = opt->split_files,
                                   .overwrite = opt->overwrite,
                                   .dry_run = opt->tools.dry_run,
                                   .verbose = opt->verbose > 0,
                                   .n_threads = opt->threads,
                                   .cpu_level = getenv("RG_CPU"),
                                   .progress = cli_progress};
    return print_buf(rg_forge_quantize(&o, &text, &st), &text, &st);
}
