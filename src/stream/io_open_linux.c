#include "stream/io_open.h"

#include <errno.h>
#include <fcntl.h>

int rg_io_open_direct(const char *path, int *err) {
    RG_ASSERT(path && err);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    *err = fd < 0 ? errno : 0;
    return fd;
}

void rg_io_expect_random(int fd) {
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
}
