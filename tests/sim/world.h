/* One simulated life of a stream: a random model, a random arena, a random drive, a workload as an
 * engine would drive it, and the checks at each tick. Everything follows from the seed.
 */
#ifndef RG_SIM_WORLD_H
#define RG_SIM_WORLD_H

#include "stream/stream.h"

typedef enum rg_sim_drive {
    RG_SIM_INSTANT, /* no latency, no faults */
    RG_SIM_SOFT,    /* latencies, tails, reordering, short reads, transient errors, refusals */
    RG_SIM_HARD     /* also EIO, flipped bits, stalls beyond the limit, reads that never return */
} rg_sim_drive;

typedef struct rg_sim_report {
    uint64_t logic_hash; /* of what the directory held and gave after every call */
    rg_stream_meters meters;
    uint64_t n_turn, n_error, n_tick, n_wave, n_abandoned;
    uint64_t backlog; /* reads still at the drive at the end: those that vanished */
} rg_sim_report;

/* Runs the seed's world on the drive. A broken promise prints the seed and ends the process with
 * exit status 1. */
void rg_sim_run(uint64_t seed, rg_sim_drive drive, rg_sim_report *report);

#endif
