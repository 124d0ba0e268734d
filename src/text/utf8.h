/* One step of a UTF-8 decoder. Private to the room. */
#ifndef RG_TEXT_UTF8_H
#define RG_TEXT_UTF8_H

#include "base/base.h"

typedef enum rg_utf8_kind { RG_UTF8_VALID, RG_UTF8_INVALID, RG_UTF8_SHORT } rg_utf8_kind;

typedef struct rg_utf8_step {
    rg_utf8_kind kind;
    uint8_t len;   /* bytes of the character, or of the maximal subpart of an ill-formed sequence */
    uint32_t code; /* of a valid character */
} rg_utf8_step;

/* Looks at the start of `n` >= 1 bytes. SHORT: the bytes are a proper prefix of some character and
 * end there. */
rg_utf8_step rg_utf8_next(const uint8_t *p, size_t n);

#endif
