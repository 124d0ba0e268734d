/* draft_print: figures of drafts. Private to cli. */
#ifndef RG_CLI_DRAFT_PRINT_H
#define RG_CLI_DRAFT_PRINT_H

#include <jansson.h>

#include "cli/cli.h"

/* The "draft:" line on standard error; nothing when no window was made. */
void cli_print_drafts(const rg_session *session);
/* NULL when memory is out. */
json_t *cli_draft_json(const rg_draft_stats *stats);

#endif
