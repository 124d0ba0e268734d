/* Messages and progress on standard error. */
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"

static const char *command = "regolith";
static bool progress_shown;
static uint64_t span_base, span_total; /* cli_progress_span */
static int output_errno;               /* of the first write that failed */

void cli_name_command(const char *name) {
    command = name;
}

int cli_fail(const rg_status *st) {
    cli_progress_clear();
    const bool interrupted = st->code == RG_CANCELED;
    fprintf(stderr, "regolith: %s: %s%s\n", command, interrupted ? "interrupted: " : "",
            st->message[0] ? st->message : rg_code_text(st->code));
    return interrupted ? CLI_INTERRUPTED : CLI_FAILURE;
}

int cli_usage(const char *name, const char *fmt, ...) {
    char line[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    char all[600];
    snprintf(all, sizeof all, "regolith: %s: %s", name[0] ? name : "\"\"", line);
    for (char *c = all; *c; c++) { /* one line, whatever the words on the command line held */
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    }
    fprintf(stderr, "%s\n", all);
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
    if (span_total && strcmp(what, "prefill") == 0) {
        done += span_base;
        total = span_total;
    }
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
    const bool bytes = strcmp(what, "prefill") != 0;
    fprintf(stderr, "\r%s %3.0f %%  %.1f %s  %.0f s left\033[K", what,
            100.0 * (double)done / (double)total, bytes ? rate * 1e-6 : rate,
            bytes ? "MB/s" : "tok/s", left);
    progress_shown = true;
}

void cli_progress_clear(void) {
    if (progress_shown) fprintf(stderr, "\r\033[K");
    progress_shown = false;
}

void cli_progress_span(uint64_t base, uint64_t total) {
    span_base = base;
    span_total = total;
}

bool cli_flush(void) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return true;
    if (!output_errno) output_errno = errno;
    return false;
}

int cli_finish_output(void) {
    if (cli_flush()) return CLI_OK;
    fprintf(stderr, "regolith: %s: cannot write the output: %s\n", command, strerror(output_errno));
    return CLI_FAILURE;
}
