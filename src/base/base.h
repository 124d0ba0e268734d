/* base: the ground floor. Status, log, allocation, clock, random, bounds-checked cursor, map,
 * files, thread pool, CPU features. Includes libc and the public status type only; every room may
 * use it.
 */
#ifndef RG_BASE_H
#define RG_BASE_H

#include "base/status.h"
#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/cursor.h"
#include "base/log.h"
#include "base/look.h"
#include "base/map.h"
#include "base/os.h"
#include "base/pool.h"
#include "base/random.h"

#define RG_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#endif
