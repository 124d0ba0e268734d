/* Log lines go to a sink set once by the caller of the library; the default sink drops them. */
#ifndef RG_BASE_LOG_H
#define RG_BASE_LOG_H

#include "base/status.h"

typedef enum rg_log_level { RG_LOG_ERROR, RG_LOG_WARN, RG_LOG_INFO, RG_LOG_DEBUG } rg_log_level;
typedef void rg_log_sink(void *user, rg_log_level level, const char *line);

/* Process-wide; set before the first engine is opened. NULL restores the default. Lines above `max`
 * are not formatted. */
void rg_log_set(rg_log_sink *sink, void *user, rg_log_level max);
void rg_log(rg_log_level level, const char *fmt, ...) RG_PRINTF(2, 3);

#endif
