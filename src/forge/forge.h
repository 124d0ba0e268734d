/* forge: the model-making commands of the one binary. Each command is a function that takes its
 * options and writes text to a buffer; the terminal belongs to cli.
 */
#ifndef RG_FORGE_H
#define RG_FORGE_H

#include "base/base.h"
#include "model/model.h"

/* What `regolith inspect` prints, appended to `out`: files, version, metadata (arrays abbreviated),
 * the tensor table, totals by type; for a qwen4exp model also classes of experts and where its
 * parameters are. A file of another architecture, or one that the description refuses, is shown
 * without those, with a line that says why. */
RG_MUST_CHECK rg_code rg_forge_inspect(const char *path, rg_buf *out, rg_status *st);
/* The same for an object that is open already. */
RG_MUST_CHECK rg_code rg_forge_inspect_gguf(const rg_gguf *g, rg_buf *out, rg_status *st);

#endif
