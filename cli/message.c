/* Messages and progress on standard error. */
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"

static bool progress_shown;

int cli_fail(const rg_status *st) {
    cli_progress_clear();
    fprintf(stderr, "regolith: %s\n", st->message[0] ? st->message : rg_code_text(st->code));
    return CLI_FAILURE;
}

int cli_usage(const char *command, const char *fmt, ...) {
    char line[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    fprintf(stderr, "regolith: %s: %s\n", command, line);
    return CLI_USAGE;
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* One line that is rewritten: what, share, rate, time left. Nothing before half a second. */
void cli_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    static const char *current;
    static double begin_s, last_s;
    (void)user;
    if (!isatty(STDERR_FILENO) || total == 0) return;
    const double now = now_s();
    if (!current || strcmp(current, what) != 0) {
        current = what;
        begin_s = last_s = now;
    }
    const double spent = now - begin_s;
    if (done >= total) {
        cli_progress_clear();
        current = NULL;
        return;
    }
    if (spent < 0.5 || now - last_s < 0.1) return;
    last_s = now;
    const double rate = (double)done / spent;
    const double left = rate > 0 ? (double)(total - done) / rate : 0;
    const bool bytes = strcmp(what, "load") == 0;
    fprintf(stderr, "\r%s %3.0f %%  %.1f %s  %.0f s left\033[K", what,
            100.0 * (double)done / (double)total, bytes ? rate * 1e-6 : rate,
            bytes ? "MB/s" : "tok/s", left);
    progress_shown = true;
}

void cli_progress_clear(void) {
    if (progress_shown) fprintf(stderr, "\r\033[K");
    progress_shown = false;
}

int cli_finish_output(void) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return CLI_OK;
    fprintf(stderr, "regolith: cannot write the output: %s\n", strerror(errno));
    return CLI_FAILURE;
}
