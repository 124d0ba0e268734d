#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

static rg_log_sink *log_sink;
static void *log_user;
static rg_log_level log_max;

void rg_log_set(rg_log_sink *sink, void *user, rg_log_level max) {
    log_sink = sink;
    log_user = user;
    log_max = max;
}

void rg_log(rg_log_level level, const char *fmt, ...) {
    if (!log_sink || level > log_max) return;
    char line[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    log_sink(log_user, level, line);
}
