/* forge: the model-making and diagnosing commands of the one binary, one function each. A command
 * takes its options and gives results or text in a buffer, progress through a callback; the
 * terminal belongs to cli.
 */
#ifndef RG_FORGE_H
#define RG_FORGE_H

#include "base/base.h"
#include "forge/doctor.h"
#include "forge/route_stats.h"
#include "forge/synth.h"
#include "model/model.h"

/* What `regolith inspect` prints, appended to `out`: files, version, metadata (arrays abbreviated),
 * the tensor table, totals by type; for a qwen4exp model also classes of experts and where its
 * parameters are. A file of another architecture, or one that the description refuses, is shown
 * without those, with a line that says why. */
RG_MUST_CHECK rg_code rg_forge_inspect(const char *path, rg_buf *out, rg_status *st);
/* The same for an object that is open already. */
RG_MUST_CHECK rg_code rg_forge_inspect_gguf(const rg_gguf *g, rg_buf *out, rg_status *st);

#endif
