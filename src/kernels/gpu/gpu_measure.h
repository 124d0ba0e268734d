/* gpu_measure: what lists of commands take on the device, and what its memory gives at most. For
 * benchmarks and for choosing shapes by measurement (gpu_tiles.h).
 */
#ifndef RG_GPU_MEASURE_H
#define RG_GPU_MEASURE_H

#include "kernels/gpu/gpu.h"

#define RG_GPU_REPS_MAX 99u
/* A device that was idle while a kernel was compiled runs at a sixth of its clock for a while: what
 * was measured then says nothing. */
#define RG_GPU_WARM_NS ((uint64_t)250 * 1000000u)

/* Nanoseconds that each of lists[n], recorded with stamps and ended, takes on the device: medians
 * of `reps` rounds in which all take their turn, after running for `warm_ns`. The host's time on a
 * device without stamps. */
RG_MUST_CHECK rg_code rg_gpu_time_lists(rg_gpu *gpu, rg_gpu_list *const *lists, uint32_t n,
                                        uint64_t warm_ns, uint32_t reps, double *ns, rg_status *st);

/* 10^9 bytes a second of a plain reading of the buffer, the best of three numbers of workgroups.
 * `list` is recorded anew. */
RG_MUST_CHECK rg_code rg_gpu_read_rate(rg_gpu *gpu, rg_gpu_list *list, const rg_gpu_buffer *b,
                                       uint64_t warm_ns, uint32_t reps, double *gb_s,
                                       rg_status *st);

#endif
