/* The deterministic simulator: sim [--seed S | --from A --count N].
 *
 * Each seed runs its world three times or twice: on an instant drive, on a slow and unruly one
 * (what the directory held must be the same after every call), and every third seed also on a drive
 * that really fails. --seed replays one and prints what happened.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/world.h"

static const char *const drive_names[] = {"instant", "soft", "hard"};

static void print(uint64_t seed, rg_sim_drive drive, const rg_sim_report *r) {
    const rg_stream_meters *m = &r->meters;
    printf("seed %llu %-7s turns %llu hits %llu misses %llu late %llu waves %llu evictions %llu "
           "slabs %llu cancels %llu orphans %llu retries %llu errors %llu lost %llu ticks %llu "
           "logic %016llx\n",
           (unsigned long long)seed, drive_names[drive], (unsigned long long)r->n_turn,
           (unsigned long long)m->hits, (unsigned long long)m->misses, (unsigned long long)m->late,
           (unsigned long long)m->waves, (unsigned long long)m->evictions,
           (unsigned long long)m->slab_moves, (unsigned long long)m->cancels,
           (unsigned long long)m->orphans, (unsigned long long)m->retries,
           (unsigned long long)r->n_error, (unsigned long long)m->lost_reads,
           (unsigned long long)r->n_tick, (unsigned long long)r->logic_hash);
}

/* The counts that are functions of the calls alone. */
static bool same_logic(const rg_sim_report *a, const rg_sim_report *b) {
    return a->logic_hash == b->logic_hash &&
           memcmp(&a->meters, &b->meters, offsetof(rg_stream_meters, late)) == 0;
}

static bool run_seed(uint64_t seed, bool verbose, rg_stream_meters *sum) {
    rg_sim_report instant, soft, hard;
    rg_sim_run(seed, RG_SIM_INSTANT, &instant);
    rg_sim_run(seed, RG_SIM_SOFT, &soft);
    if (verbose) {
        print(seed, RG_SIM_INSTANT, &instant);
        print(seed, RG_SIM_SOFT, &soft);
    }
    if (!same_logic(&instant, &soft)) {
        fprintf(stderr, "sim: seed %llu: the directory depends on time\n",
                (unsigned long long)seed);
        return false;
    }
    rg_stream_meters *m = &soft.meters;
    if (seed % 3 == 0 || verbose) {
        rg_sim_run(seed, RG_SIM_HARD, &hard);
        if (verbose) print(seed, RG_SIM_HARD, &hard);
        sum->read_errors += hard.meters.read_errors;
        sum->checksum_errors += hard.meters.checksum_errors;
        sum->lost_reads += hard.meters.lost_reads;
    }
    sum->hits += m->hits;
    sum->misses += m->misses;
    sum->late += m->late;
    sum->waves += m->waves;
    sum->slab_moves += m->slab_moves;
    sum->cancels += m->cancels;
    sum->orphans += m->orphans;
    sum->retries += m->retries;
    return true;
}

int main(int argc, char **argv) {
    uint64_t from = 0, count = 1000;
    bool verbose = false;
    for (int i = 1; i + 1 < argc; i += 2) {
        const uint64_t x = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--seed") == 0) {
            from = x;
            count = 1;
            verbose = true;
        } else if (strcmp(argv[i], "--from") == 0) {
            from = x;
        } else if (strcmp(argv[i], "--count") == 0) {
            count = x;
        } else {
            fprintf(stderr, "usage: sim [--seed S | --from A --count N]\n");
            return 2;
        }
    }
    rg_stream_meters sum = {0};
    for (uint64_t seed = from; seed < from + count; seed++)
        if (!run_seed(seed, verbose, &sum)) return 1;
    printf("%llu seeds: hits %llu misses %llu late %llu waves %llu slab moves %llu cancels %llu "
           "orphans %llu; failing drives: errors %llu checksum errors %llu lost %llu\n",
           (unsigned long long)count, (unsigned long long)sum.hits, (unsigned long long)sum.misses,
           (unsigned long long)sum.late, (unsigned long long)sum.waves,
           (unsigned long long)sum.slab_moves, (unsigned long long)sum.cancels,
           (unsigned long long)sum.orphans, (unsigned long long)sum.read_errors,
           (unsigned long long)sum.checksum_errors, (unsigned long long)sum.lost_reads);
    /* A simulation that never meets the hard cases proves nothing about them. */
    if (count < 1000) return 0;
    return sum.late && sum.waves && sum.slab_moves && sum.cancels && sum.orphans &&
                   sum.read_errors && sum.checksum_errors && sum.lost_reads
               ? 0
               : 1;
}
