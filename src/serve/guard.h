/* guard: who may ask. Pure functions over header texts.
 *
 * A page of another site can make a browser send requests here, even under a name of its own that
 * resolves to this machine (DNS rebinding). So a server on a loopback address answers to loopback
 * names only, and no request may carry a foreign Origin unless that origin was allowed.
 */
#ifndef RG_SERVE_GUARD_H
#define RG_SERVE_GUARD_H

#include "base/base.h"

/* 127.0.0.0/8, ::1 and localhost. */
bool rg_guard_is_loopback(const char *host);
/* `header`: the Host header's text or NULL. `bound`: the address listened on. */
bool rg_guard_host_ok(const char *header, const char *bound);
/* `origin` NULL: no browser asks on behalf of a page. `allowed`: NULL, one origin, or "*". */
bool rg_guard_origin_ok(const char *origin, const char *host_header, const char *allowed);
/* `authorization` "Bearer KEY", `x_api_key` KEY; either may be NULL. Takes as long for a wrong key
 * as for a right one of the same length. */
bool rg_guard_key_ok(const char *authorization, const char *x_api_key, const char *key);

#endif
