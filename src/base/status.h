/* Status helpers: building messages, adding context, assertions.
 *
 * The first failure wins; callers add context in front of the message and never replace it.
 */
#ifndef RG_BASE_STATUS_H
#define RG_BASE_STATUS_H

#include "regolith.h"

#define RG_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Records a failure and returns `code`. `st` may be NULL. A status that already holds a failure is
 * left as it is (the first failure wins). */
rg_code rg_fail(rg_status *st, rg_code code, const char *fmt, ...) RG_PRINTF(3, 4);

/* As rg_fail, with the system's error number; its text is appended to the message. */
rg_code rg_fail_errno(rg_status *st, rg_code code, int sys_errno, const char *fmt, ...)
    RG_PRINTF(4, 5);

/* Puts "context: " in front of the message of a failed status. Returns st->code, or `code` when st
 * is NULL. */
rg_code rg_context(rg_status *st, rg_code code, const char *fmt, ...) RG_PRINTF(3, 4);

/* Empties a status so that it can be used again. `st` may be NULL. */
void rg_status_clear(rg_status *st);

/* Leaves the function with the code of a failed call. */
#define RG_TRY(call)                                                                               \
    do {                                                                                           \
        const rg_code rg_try_code_ = (call);                                                       \
        if (rg_try_code_ != RG_OK) return rg_try_code_;                                            \
    } while (0)

/* As RG_TRY with the single exit of a function that owns things: sets `rc` and goes to cleanup. */
#define RG_GO(call)                                                                                \
    do {                                                                                           \
        rc = (call);                                                                               \
        if (rc != RG_OK) goto cleanup;                                                             \
    } while (0)

/* For our own bugs only; no input may reach one. RG_ASSERT stays on in release and must be O(1);
 * RG_DASSERT may walk a structure and exists in debug builds. */
void rg_assert_failed(const char *condition, const char *file, int line) __attribute__((noreturn));
#define RG_ASSERT(cond)                                                                            \
    do {                                                                                           \
        if (!(cond)) rg_assert_failed(#cond, __FILE__, __LINE__);                                  \
    } while (0)
#ifdef RG_DEBUG
#define RG_DASSERT(cond) RG_ASSERT(cond)
#else
#define RG_DASSERT(cond)                                                                           \
    do {                                                                                           \
        if (0) (void)(cond);                                                                       \
    } while (0)
#endif

#endif
