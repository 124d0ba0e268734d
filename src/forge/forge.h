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

/* ---- pack ----------------------------------------------------------------------------------- */

typedef struct rg_forge_pack_options {
    const char *model_path;
    const char *out_path;     /* NULL: beside the model, rg_pack_default_path */
    rg_progress_fn *progress; /* "check", "pack", "verify", in bytes; NULL = none */
    void *progress_user;
} rg_forge_pack_options;

/* `regolith pack`: copies every expert of a model into a pack (model/pack.h). It is written as
 * OUT.part, read back, compared with its checksums, then renamed, so under its name a pack is whole
 * or absent. A run that was killed leaves OUT.part; the next one keeps of it what is equal to the
 * model's bytes. A run that fails removes it. One line about the result is appended to `out`. */
RG_MUST_CHECK rg_code rg_forge_pack(const rg_forge_pack_options *opt, rg_buf *out, rg_status *st);

#endif
