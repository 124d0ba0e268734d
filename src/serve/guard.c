#include "serve/guard.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#define HOST_MAX 255u

bool rg_guard_is_loopback(const char *host) {
    if (strcasecmp(host, "localhost") == 0 || strcmp(host, "::1") == 0) return true;
    if (strncmp(host, "127.", 4) != 0) return false;
    for (const char *c = host; *c; c++) { /* 127.evil.example is a name, not an address */
        if (!isdigit((unsigned char)*c) && *c != '.') return false;
    }
    return true;
}

/* The name of "name:port" or "[v6]:port", lower case, into out. */
static bool host_name(const char *header, char out[HOST_MAX + 1]) {
    size_t len = 0;
    if (header[0] == '[') {
        header++;
        len = strcspn(header, "]");
        if (header[len] != ']') return false;
    } else {
        len = strcspn(header, ":");
    }
    if (len == 0 || len > HOST_MAX) return false;
    for (size_t i = 0; i < len; i++)
        out[i] = (char)tolower((unsigned char)header[i]);
    out[len] = 0;
    return true;
}

bool rg_guard_host_ok(const char *header, const char *bound) {
    char name[HOST_MAX + 1];
    if (!rg_guard_is_loopback(bound)) return true; /* the key guards */
    if (!header || !host_name(header, name)) return false;
    return rg_guard_is_loopback(name) || strcasecmp(name, bound) == 0;
}

bool rg_guard_origin_ok(const char *origin, const char *host_header, const char *allowed) {
    if (!origin) return true;
    if (allowed && (strcmp(allowed, "*") == 0 || strcasecmp(allowed, origin) == 0)) return true;
    static const char scheme[] = "http://";
    if (strncasecmp(origin, scheme, sizeof scheme - 1) != 0 || !host_header) return false;
    return strcasecmp(origin + sizeof scheme - 1, host_header) == 0;
}

/* Looks at every byte of `given`, wherever it differs. */
static bool same_key(const char *given, const char *key) {
    const size_t n = strlen(given), m = strlen(key);
    unsigned differ = n != m;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned)((unsigned char)given[i] ^ (unsigned char)key[m ? i % m : 0]);
    return differ == 0;
}

bool rg_guard_key_ok(const char *authorization, const char *x_api_key, const char *key) {
    if (!key) return true;
    if (x_api_key && same_key(x_api_key, key)) return true;
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0) return false;
    return same_key(authorization + 7, key);
}
