/* regolith tokenize: text to ids, ids to text. */
#include <string.h>

#include "forge/forge.h"
#include "cli/cli.h"

static rg_code encode(const rg_vocab *vocab, const cli_options *opt, rg_status *st) {
    char *file = NULL;
    const char *text = opt->n_args ? opt->args[0] : "";
    size_t len = strlen(text);
    if (opt->file) {
        RG_TRY(cli_read_file(opt->file, &file, &len, st));
        text = file;
    }
    int32_t *ids = NULL;
    size_t n = 0;
    const rg_code rc = rg_vocab_tokenize(vocab, text, len, opt->parse_special, &ids, &n, st);
    for (size_t i = 0; i < n; i++)
        printf("%s%d", i ? " " : "", ids[i]);
    if (rc == RG_OK) putchar('\n');
    rg_release(ids);
    rg_release(file);
    return rc;
}

/* The words given, or the file, as ids. */
static rg_code decode(const rg_vocab *vocab, const cli_options *opt, rg_status *st) {
    int32_t *ids = NULL;
    size_t n = 0;
    if (opt->file) {
        RG_TRY(cli_read_ids(opt->file, &ids, &n, st));
    } else {
        RG_TRY(cli_parse_ids("argument", opt->args[0], &ids, &n, st));
    }
    char *text = NULL;
    size_t len = 0;
    const rg_code rc = rg_vocab_detokenize(vocab, ids, n, &text, &len, st);
    if (rc == RG_OK) fwrite(text, 1, len, stdout);
    rg_release(text);
    rg_release(ids);
    return rc;
}

int cli_tokenize(const cli_options *opt) {
    if (!!opt->file + (opt->n_args > 0) != 1) {
        return cli_usage("tokenize", "give a TEXT or -f FILE");
    }
    rg_status st = {0};
    rg_vocab *vocab = NULL;
    rg_code rc = rg_vocab_open(&vocab, opt->model, &st);
    if (rc == RG_OK) rc = opt->decode_ids ? decode(vocab, opt, &st) : encode(vocab, opt, &st);
    rg_vocab_close(vocab);
    const int code = rc == RG_OK ? CLI_OK : cli_fail(&st);
    const int written = cli_finish_output();
    return code == CLI_OK ? written : code;
}
