/* How a file is opened past the page cache: one implementation file per system. */
#ifndef RG_STREAM_IO_OPEN_H
#define RG_STREAM_IO_OPEN_H

#include "stream/io.h"

/* A descriptor, or -1 and *err. */
int rg_io_open_direct(const char *path, int *err);
/* Reads of fd come in no order: the system shall fetch each as a whole and nothing behind it, not
 * in the small steps in which it feels its way along files that are read from front to back. */
void rg_io_expect_random(int fd);

#endif
