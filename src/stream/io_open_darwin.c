#include "stream/io_open.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int rg_io_open_direct(const char *path, int *err) {
    RG_ASSERT(path && err);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    *err = fd < 0 ? errno : 0;
    if (fd < 0) return -1;
    if (fcntl(fd, F_NOCACHE, 1) == 0) return fd;
    *err = errno;
    close(fd);
    return -1;
}

void rg_io_expect_random(int fd) {
    (void)fcntl(fd, F_RDAHEAD, 0);
}
