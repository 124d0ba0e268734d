/* forge: the model-making and diagnosing commands of the one binary, one function each. A command
 * takes its options and gives results or text in a buffer, progress through a callback; the
 * terminal belongs to cli.
 */
#ifndef RG_FORGE_H
#define RG_FORGE_H

#include "base/base.h"
#include "forge/convert.h"
#include "forge/doctor.h"
#include "forge/imatrix_write.h"
#include "forge/pull.h"
#include "forge/quantize.h"
#include "forge/route_stats.h"
#include "forge/synth.h"
#include "model/model.h"
#include "stream/stream.h"

/* What `regolith inspect` prints, appended to `out`: files, version, metadata (arrays abbreviated),
 * the tensor table, totals by type; for a qwen4exp model also classes of experts and where its
 * parameters are. A file of another architecture, or one that the description refuses, is shown
 * without those, with a line that says why. */
RG_MUST_CHECK rg_code rg_forge_inspect(const char *path, rg_buf *out, rg_status *st);
/* The same for an object that is open already. */
RG_MUST_CHECK rg_code rg_forge_inspect_gguf(const rg_gguf *g, rg_buf *out, rg_status *st);

/* ---- traces --------------------------------------------------------------------------------- */

#define RG_REPLAY_CHOICES_MAX 16u

/* What `regolith trace replay` compares: every combination of the lists. An empty list stands for
 * what the recorded run had. */
typedef struct rg_replay_options {
    uint32_t slots[RG_REPLAY_CHOICES_MAX]; /* arenas, in slots of the largest expert */
    rg_stream_policy policies[RG_REPLAY_CHOICES_MAX];
    int32_t lookaheads[RG_REPLAY_CHOICES_MAX]; /* -1: the governor decides */
    bool guards[RG_REPLAY_CHOICES_MAX];
    uint32_t n_slots, n_policies, n_lookaheads, n_guards;
    double latency_us, gb_s; /* of the virtual drive; 0: 100 us, 2 GB/s */
    double layer_us, row_us; /* computing one layer: of one row, of each further row; 0: 500, 50 */
} rg_replay_options;

/* Sends a recorded run's requests through the stream on a virtual drive and clock; the table is
 * appended to `out`. */
RG_MUST_CHECK rg_code rg_forge_trace_replay(const char *path, const rg_replay_options *opt,
                                            rg_buf *out, rg_status *st);
/* Sums the uses of each expert over traces of one model into a usage profile; a line about it is
 * appended to `out`. */
RG_MUST_CHECK rg_code rg_forge_trace_profile(const char *const *traces, uint32_t n,
                                             const char *out_path, rg_buf *out, rg_status *st);

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
