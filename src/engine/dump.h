/* dump: intermediate values of an evaluation as raw files, and their comparison with another dump.
 *
 * A dump folder holds index.tsv (header line, then name, layer, rows, cols, file, tab separated)
 * and one file of little-endian f32 [rows][cols] for each tensor and layer; rows are tokens unless
 * said: mixed_attn, mixed_ffn    [n_embd] input of the half layer (spec 4.1: u) inject_attn,
 * inject_ffn  [n_hc] write weights residual                 [n_hc*n_embd] after the layer,
 * stream-major router_logits [n_expert], router_ids and router_weights [n_expert_used], best first
 *   expert_hidden            [n_expert_used*n_ff], expert_out [n_expert_used*n_embd]
 *   shared_gate              [1] sigmoid of the shared expert's gate
 *   gdn_state                rows n_v_head*D, cols D: the recurrent state after the last token
 *   mtp_logits               [n_vocab] of the draft block; row p guesses token p+2
 * The draft block is layer n_layer. One thread; a dump serves one sequence.
 */
#ifndef RG_ENGINE_DUMP_H
#define RG_ENGINE_DUMP_H

#include "engine/tap.h"

typedef struct rg_dump rg_dump;

/* Writes into the existing folder `dir`. An index that is already there is refused. */
RG_MUST_CHECK rg_code rg_dump_create(rg_dump **out, const char *dir, rg_status *st);
/* Compares with the dump in `dir` instead; values further apart than `tolerance` x the largest
 * reference value of their tensor differ (0 = any bit). */
RG_MUST_CHECK rg_code rg_dump_compare(rg_dump **out, const char *dir, double tolerance,
                                      rg_status *st);
/* The tap that feeds the dump; valid as long as it. */
rg_tap rg_dump_tap(rg_dump *d);
/* Writes the index; of a comparison, one line that names the first tensor that differs, in order of
 * computation, or says that all are equal. `report` [cap] is set in both cases. */
RG_MUST_CHECK rg_code rg_dump_finish(rg_dump *d, char *report, size_t cap, rg_status *st);
void rg_dump_destroy(rg_dump *d);

#endif
