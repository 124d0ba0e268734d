/* A drive of a known rate and latency, for figures on machines whose own is slow, shared or far
 * away: a library to preload. A file that lies in memory (/dev/shm) is read through it as through a
 * drive: reads of one file queue for the rate one behind the other, and none returns before the
 * latency has passed.
 *
 *   RG_DRIVE_GB_S=7 RG_DRIVE_US=80 LD_PRELOAD=libemulated_drive.so regolith ... --io pread
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <time.h>

typedef ssize_t pread_fn(int fd, void *dst, size_t bytes, off_t offset);

static struct {
    pthread_mutex_t lock;
    pread_fn *pread;
    double ns_per_byte;
    uint64_t latency_ns;
    uint64_t free_at; /* when the rate has served all reads so far; nanoseconds */
} drive = {.lock = PTHREAD_MUTEX_INITIALIZER};

static double setting(const char *name, double usual) {
    const char *text = getenv(name);
    const double value = text ? strtod(text, NULL) : 0.0;
    return value > 0.0 ? value : usual;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* When a read that is asked for now is answered. */
static uint64_t answered_at(size_t bytes) {
    pthread_mutex_lock(&drive.lock);
    if (!drive.pread) {
        drive.pread = (pread_fn *)dlsym(RTLD_NEXT, "pread");
        drive.ns_per_byte = 1.0 / setting("RG_DRIVE_GB_S", 7.0);
        drive.latency_ns = (uint64_t)(setting("RG_DRIVE_US", 80.0) * 1e3);
    }
    const uint64_t now = now_ns();
    if (drive.free_at < now) drive.free_at = now;
    drive.free_at += (uint64_t)((double)bytes * drive.ns_per_byte);
    const uint64_t at = drive.free_at + drive.latency_ns;
    pthread_mutex_unlock(&drive.lock);
    return at;
}

static void wait_until(uint64_t at) {
    static _Thread_local int prompt; /* woken at once, not when it suits the system */
    if (!prompt) prompt = prctl(PR_SET_TIMERSLACK, 1UL) == 0;
    const struct timespec t = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0)
        continue; /* interrupted */
}

ssize_t pread(int fd, void *dst, size_t bytes, off_t offset) {
    const uint64_t at = answered_at(bytes);
    const ssize_t n = drive.pread(fd, dst, bytes, offset);
    wait_until(at);
    return n;
}

ssize_t pread64(int fd, void *dst, size_t bytes, off_t offset) {
    return pread(fd, dst, bytes, offset);
}
