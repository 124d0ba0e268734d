#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *rg_code_text(rg_code code) {
    static const char *const text[] = {
#define RG_CODE_TEXT(name, words) words,
        RG_CODES(RG_CODE_TEXT)
#undef RG_CODE_TEXT
    };
    return (unsigned)code < RG_CODE_COUNT ? text[code] : "unknown code";
}

/* One line whatever the input held: control characters (also those of file names and keys)
 * become '?'. A message cut by the size limit ends in "...". */
static void finish_message(rg_status *st, int wanted) {
    if (wanted >= (int)sizeof st->message) {
        memcpy(st->message + sizeof st->message - 4, "...", 4);
    }
    for (char *c = st->message; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    }
}

rg_code rg_fail(rg_status *st, rg_code code, const char *fmt, ...) {
    if (!st || st->code != RG_OK) return code;
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(st->message, sizeof st->message, fmt, args);
    va_end(args);
    st->code = code;
    st->sys_errno = 0;
    finish_message(st, n);
    return code;
}

rg_code rg_fail_errno(rg_status *st, rg_code code, int sys_errno, const char *fmt, ...) {
    if (!st || st->code != RG_OK) return code;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(st->message, sizeof st->message, fmt, args);
    va_end(args);
    if (n >= 0 && n < (int)sizeof st->message) {
        char text[96];
        /* GNU strerror_r returns the string, which need not be `text`. */
        const char *why = strerror_r(sys_errno, text, sizeof text);
        n += snprintf(st->message + n, sizeof st->message - (size_t)n, ": %s", why);
    }
    st->code = code;
    st->sys_errno = sys_errno;
    finish_message(st, n);
    return code;
}

rg_code rg_context(rg_status *st, rg_code code, const char *fmt, ...) {
    if (!st || st->code == RG_OK) return code;
    char old[sizeof st->message];
    memcpy(old, st->message, sizeof old);
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(st->message, sizeof st->message, fmt, args);
    va_end(args);
    if (n >= 0 && n < (int)sizeof st->message) {
        n += snprintf(st->message + n, sizeof st->message - (size_t)n, ": %s", old);
    }
    finish_message(st, n);
    return st->code;
}

void rg_status_clear(rg_status *st) {
    if (!st) return;
    st->code = RG_OK;
    st->sys_errno = 0;
    st->message[0] = 0;
}

void rg_assert_failed(const char *condition, const char *file, int line) {
    fprintf(stderr, "regolith: internal error: %s (%s:%d)\n", condition, file, line);
    abort();
}
