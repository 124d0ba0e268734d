/* Whether the machine was quiet: load of others, clock, temperature. What the system does not show
 * stays unknown and is not judged.
 */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/bench.h"

#define LOOK_S_MIN        0.5  /* shorter spans are too coarse for the system's ticks */
#define OTHERS_CORES_MAX  0.2  /* of one core */
#define CLOCK_DRIFT_MAX   0.1  /* of the highest */
#define CELSIUS_DRIFT_MAX 10.0 /* between the coolest and the warmest look */

/* Busy time of all processors, without what waits and interrupts take; negative: unknown. */
static double busy_s(void) {
    FILE *f = fopen("/proc/stat", "re");
    if (!f) return -1;
    char line[256];
    const bool read = fgets(line, sizeof line, f) != NULL;
    fclose(f);
    if (!read || strncmp(line, "cpu", 3) != 0) return -1;
    unsigned long long sum = 0; /* user, nice, system */
    char *at = line + 3;
    for (int i = 0; i < 3; i++) {
        char *end = at;
        sum += strtoull(at, &end, 10);
        if (end == at) return -1;
        at = end;
    }
    const long ticks = sysconf(_SC_CLK_TCK);
    return ticks > 0 ? (double)sum / (double)ticks : -1;
}

static double seconds(struct timeval t) {
    return (double)t.tv_sec + (double)t.tv_usec * 1e-6;
}

static double own_s(void) {
    struct rusage use;
    if (getrusage(RUSAGE_SELF, &use) != 0) return 0;
    return seconds(use.ru_utime) + seconds(use.ru_stime);
}

/* The largest number in the files of a pattern; 0 when there is none. */
static double largest_in(const char *pattern) {
    glob_t found;
    double most = 0;
    if (glob(pattern, 0, NULL, &found) != 0) return 0;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        FILE *f = fopen(found.gl_pathv[i], "re");
        char text[64];
        if (!f) continue;
        if (fgets(text, sizeof text, f)) {
            const double value = strtod(text, NULL); /* 0 where there is no number */
            if (value > most) most = value;
        }
        fclose(f);
    }
    globfree(&found);
    return most;
}

static void widen(double value, double *min, double *max) {
    if (value <= 0) return;
    if (*min <= 0 || value < *min) *min = value;
    if (value > *max) *max = value;
}

static void look_at_sensors(bench_watch *w) {
    widen(largest_in("/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq") * 1e-3,
          &w->mhz_min, &w->mhz_max);
    widen(largest_in("/sys/class/thermal/thermal_zone*/temp") * 1e-3, &w->celsius_min,
          &w->celsius_max);
}

void bench_watch_begin(bench_watch *w) {
    *w = (bench_watch){.begin_s = (double)rg_now_ns() * 1e-9,
                       .busy_s = busy_s(),
                       .own_s = own_s(),
                       .others_cores = -1};
}

void bench_watch_look(bench_watch *w) {
    const double now = (double)rg_now_ns() * 1e-9, span = now - w->begin_s;
    look_at_sensors(w);
    if (span < LOOK_S_MIN) return;
    const double busy = busy_s(), own = own_s();
    if (busy >= 0 && w->busy_s >= 0) {
        const double others = ((busy - w->busy_s) - (own - w->own_s)) / span;
        if (others > w->others_cores) w->others_cores = others > 0 ? others : 0;
    }
    w->begin_s = now;
    w->busy_s = busy;
    w->own_s = own;
}

void bench_watch_judge(bench_job *job) {
    const bench_watch *w = &job->watch;
    const size_t cap = sizeof job->warnings[0];
    if (w->others_cores > OTHERS_CORES_MAX) {
        snprintf(job->warnings[job->n_warning++], cap,
                 "other processes used %.2f cores during the run: the figures are not clean",
                 w->others_cores);
    }
    if (w->mhz_max > 0 && w->mhz_max - w->mhz_min > CLOCK_DRIFT_MAX * w->mhz_max) {
        snprintf(job->warnings[job->n_warning++], cap,
                 "the processor's clock moved between %.0f and %.0f MHz", w->mhz_min, w->mhz_max);
    }
    if (w->celsius_max - w->celsius_min > CELSIUS_DRIFT_MAX) {
        snprintf(job->warnings[job->n_warning++], cap,
                 "the temperature moved between %.0f and %.0f degrees Celsius", w->celsius_min,
                 w->celsius_max);
    }
}
