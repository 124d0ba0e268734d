#include "cli/cli.h"
int cli_kld(const cli_options *opt) {
    (void)opt;
    return 0;
}
