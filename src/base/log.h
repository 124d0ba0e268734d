/* Log lines go to a sink set once by the caller of the library; the default sink drops them. */
#ifndef RG_BASE_LOG_H
#define RG_BASE_LOG_H

#include "base/status.h"

/* Levels, the sink's type and rg_log_set are public: regolith.h. */
void rg_log(rg_log_level level, const char *fmt, ...) RG_PRINTF(2, 3);

#endif
