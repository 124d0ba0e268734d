/* regolith pull: a model from a hub or a URL into the local store; and `-m hf:...` from there. */
#include <stdlib.h>
#include <string.h>

#include "forge/forge.h"
#include "cli/cli.h"

#define PATH_BYTES 4096

/* The folder of pulled models: --dir, else the user's cache folder. */
static const char *store_folder(const cli_options *opt, char path[PATH_BYTES]) {
    const char *own = getenv("REGOLITH_MODELS"), *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    if (opt && opt->tools.dir) return opt->tools.dir;
    if (own && *own) return own;
    if (cache && *cache) {
        snprintf(path, PATH_BYTES, "%.4000s/regolith/models", cache);
    } else {
        snprintf(path, PATH_BYTES, "%.4000s/.cache/regolith/models", home && *home ? home : ".");
    }
    return path;
}

int cli_pull(const cli_options *opt) {
    char path[PATH_BYTES];
    rg_status st = {0};
    rg_buf text;
    if (opt->n_args != 1) return cli_usage("pull", "give hf:USER/REPO[:QUANT] or a URL");
    rg_buf_init(&text, 0);
    const char *wait = getenv("REGOLITH_PULL_WAIT_MS"); /* tests do not wait seconds */
    const rg_pull_options o = {.name = opt->args[0],
                               .store = store_folder(opt, path),
                               .endpoint = getenv("HF_ENDPOINT"),
                               .token = getenv("HF_TOKEN"),
                               .sha256 = opt->tools.sha256,
                               .wait_ms = wait ? (unsigned)strtoul(wait, NULL, 10) : 0,
                               .progress = cli_progress};
    const rg_code rc = rg_forge_pull(&o, &text, &st);
    cli_progress_clear();
    if (rc == RG_OK && text.data) fputs(text.data, stdout);
    const int code = rc == RG_OK ? CLI_OK : cli_fail(&st);
    rg_buf_deinit(&text);
    const int written = cli_finish_output();
    return code == CLI_OK ? written : code;
}

int cli_resolve_models(cli_options *opt) {
    static char *resolved[CLI_MODELS_MAX]; /* live as long as the process */
    char path[PATH_BYTES];
    for (size_t i = 0; i < opt->n_models; i++) {
        if (strncmp(opt->models[i], "hf:", 3) != 0) continue;
        rg_status st = {0};
        rg_buf text;
        rg_buf_init(&text, 0);
        if (rg_forge_pulled(opt->models[i], store_folder(NULL, path), &text, &st) != RG_OK) {
            rg_buf_deinit(&text);
            return cli_fail(&st);
        }
        opt->models[i] = resolved[i] = text.data;
        if (i + 1 == opt->n_models) opt->model = text.data;
    }
    return CLI_OK;
}
