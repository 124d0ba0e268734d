/* How a file is opened past the page cache: one implementation file per system. */
#ifndef RG_STREAM_IO_OPEN_H
#define RG_STREAM_IO_OPEN_H

#include "stream/io.h"

/* A descriptor, or -1 and *err. */
int rg_io_open_direct(const char *path, int *err);

#endif
