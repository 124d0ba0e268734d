/* One window on its way over the device: what gpu_window.c, which runs it, and gpu_turns.c share.
 */
#ifndef RG_ENGINE_GPU_PASS_H
#define RG_ENGINE_GPU_PASS_H

#include "engine/gpu_core.h"

/* A device that answers later is given up. */
#define RG_GPU_ANSWER_NS ((uint64_t)120 * 1000000000u)

typedef struct rg_gpu_pass {
    const rg_window *win;
    const rg_eval_call *call;
    rg_core *core;
    rg_gpu_core *g;
    bool draft; /* rows of the draft block */
} rg_gpu_pass;

/* Recording of its ops into a list. */
rg_gpu_rec rg_gpu_pass_rec(const rg_gpu_pass *w, rg_gpu_list *list);
/* Positions and ids, n-gram rows (which waits for them): to where the device reads them. */
void rg_gpu_pass_tell(const rg_gpu_pass *w);
rg_code rg_gpu_pass_tell_ple(const rg_gpu_pass *w, rg_status *st);
/* FORMAT when the device saw a value that is not finite: says where. */
rg_code rg_gpu_pass_check(const rg_gpu_pass *w, rg_status *st);
/* What comes first in a window; what comes last: logits of a short one, and whether all was finite.
 */
void rg_gpu_pass_begin(const rg_gpu_pass *w, rg_gpu_rec *r);
void rg_gpu_pass_end(const rg_gpu_pass *w, rg_gpu_rec *r);
/* So many of the best logits of each row come back; 0: all. */
uint32_t rg_gpu_pass_few(const rg_gpu_pass *w);
/* What recorded lists depend on beside the weights and that number; 0: never the same. */
uint64_t rg_gpu_pass_key(const rg_gpu_pass *w);
/* Whether the host chooses experts for one of the rows. */
bool rg_gpu_pass_moce(const rg_gpu_pass *w);
/* Adds to the window's dispatches and barriers. */
void rg_gpu_pass_count(const rg_gpu_pass *w, const rg_gpu_list *list);

/* ---- gpu_turns.c ----------------------------------------------------------------------------- */

/* The trunk of a window, layer by layer in turns with the host. */
rg_code rg_gpu_turns_run(const rg_gpu_pass *w, rg_status *st);
/* Records its lists and hands none of them over: that builds their kernels. */
rg_code rg_gpu_turns_record(const rg_gpu_pass *w, rg_status *st);
/* No recorded turn is used again. */
void rg_gpu_turns_forget(rg_gpu_core *g);
void rg_gpu_turns_destroy(rg_gpu_core *g);

#endif
