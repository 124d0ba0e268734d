/* regolith synth: a random model of any shape, for tests and measurements. */
#include <string.h>

#include "cli/cli.h"
#include "forge/forge.h"

static void on_progress(void *user, const rg_synth_progress *p) {
    (void)user;
    cli_progress(NULL, "synth", p->done_bytes, p->total_bytes);
}

static rg_code make_options(const cli_options *opt, rg_synth_options *s, rg_status *st) {
    rg_synth_options_init(s);
    RG_TRY(rg_synth_preset(&s->shape, opt->preset ? opt->preset : "release", st));
    for (size_t i = 0; i < opt->n_sets; i++)
        RG_TRY(rg_synth_set(&s->shape, opt->sets[i], st));
    if (opt->fused) s->shape.fused = 1;
    s->type_rules = opt->types;
    s->n_type_rules = (uint32_t)opt->n_types;
    s->type_default = opt->type_default;
    if (opt->sampling.seed) s->seed = opt->sampling.seed;
    s->skew = opt->skew;
    s->correlation = opt->correlation;
    s->predictability = opt->predictability;
    s->split = opt->split_files;
    s->overwrite = opt->overwrite;
    s->n_threads = opt->threads;
    s->progress = on_progress;
    return RG_OK;
}

int cli_synth(const cli_options *opt) {
    if (opt->n_args != 1) return cli_usage("synth", "give the file to write");
    rg_status st = {0};
    rg_synth_options s;
    rg_synth_result result;
    rg_code rc = make_options(opt, &s, &st);
    if (rc == RG_OK) rc = rg_synth_write(opt->args[0], &s, &result, &st);
    cli_progress_clear();
    if (rc == RG_OK) {
        printf("%s: %u tensors, %.2f GB (experts %.2f GB) in %u file%s, %.1f s\n",
               result.first_path, result.n_tensor, (double)result.size_bytes * 1e-9,
               (double)result.expert_bytes * 1e-9, result.n_file, result.n_file > 1 ? "s" : "",
               result.seconds);
    }
    const int code = rc == RG_OK ? CLI_OK : cli_fail(&st);
    const int written = cli_finish_output();
    return code == CLI_OK ? written : code;
}
