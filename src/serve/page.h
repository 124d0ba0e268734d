/* The web page at "/", built from web/ and embedded. */
#ifndef RG_SERVE_PAGE_H
#define RG_SERVE_PAGE_H

#include <stddef.h>

extern const unsigned char rg_page[];
extern const size_t rg_page_bytes;

#endif
