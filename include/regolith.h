/* regolith: run Mixture-of-Experts language models far larger than memory.
 *
 * The one public header. An engine is an opened model; a session is one conversation's state on
 * it. No tensor leaks through this interface.
 *
 * Errors: every fallible function returns an rg_code and takes the status last (NULL is allowed).
 * On failure an `*out` argument is NULL, nothing is leaked and the engine stays usable.
 * Threads: an engine and its sessions belong to one thread at a time. Only rg_session_cancel may be
 * called from another thread.
 */
#ifndef REGOLITH_H
#define REGOLITH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RG_API        __attribute__((visibility("default")))
#define RG_MUST_CHECK __attribute__((warn_unused_result))

/* ---- status ---------------------------------------------------------------------------------- */

/* Codes are appended, never reused. */
#define RG_CODES(X)                                                                                \
    X(OK, "ok")                                                                                    \
    X(INVALID, "invalid argument")                                                                 \
    X(FORMAT, "malformed file")                                                                    \
    X(UNSUPPORTED, "not supported")                                                                \
    X(NOMEM, "out of memory")                                                                      \
    X(IO, "i/o error")                                                                             \
    X(BUSY, "busy")                                                                                \
    X(CANCELED, "canceled")                                                                        \
    X(TIMEOUT, "timed out")                                                                        \
    X(BUG, "internal error")

typedef enum rg_code {
#define RG_CODE_ENUM(name, text) RG_##name,
    RG_CODES(RG_CODE_ENUM)
#undef RG_CODE_ENUM
        RG_CODE_COUNT
} rg_code;

typedef struct rg_status {
    rg_code code;
    int sys_errno;     /* 0 if the system was not involved */
    char message[232]; /* what failed, on which object, with the two numbers that disagree */
} rg_status;

/* Static text of a code, never NULL. */
RG_API const char *rg_code_text(rg_code code);

/* ---- choices --------------------------------------------------------------------------------- */

/* AUTO: 8-bit activations against quantised weights, the canonical arithmetic. REF: the float
 * reference, activations never quantised. */
typedef enum rg_kernel_set { RG_KERNELS_AUTO, RG_KERNELS_REF } rg_kernel_set;

/* Element type of the KV cache. */
typedef enum rg_kv_type { RG_KV_F16, RG_KV_F32 } rg_kv_type;

#endif
