/* There is no io_uring here; the caller falls back to pread threads. */
#include "stream/io.h"

rg_code rg_io_uring_open(rg_io **out, const rg_io_config *config, const char **name,
                         rg_status *st) {
    RG_ASSERT(config);
    *out = NULL;
    *name = NULL;
    return rg_fail(st, RG_UNSUPPORTED, "this system has no io_uring");
}
