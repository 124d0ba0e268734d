/* SHA-256 (FIPS 180-4), for what model hubs publish of their files. Private to the room. */
#ifndef RG_FORGE_SHA256_H
#define RG_FORGE_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct rg_sha256 {
    uint32_t h[8];
    uint64_t n_byte;
    uint8_t block[64];
} rg_sha256;

void rg_sha256_init(rg_sha256 *s);
void rg_sha256_add(rg_sha256 *s, const void *data, size_t n);
/* Lower-case hexadecimal and a NUL. Ends the computation. */
void rg_sha256_hex(rg_sha256 *s, char hex[65]);

#endif
