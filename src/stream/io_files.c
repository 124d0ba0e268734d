/* The files of a stream, opened past the page cache where the file system allows it. */
#include "stream/io_open.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* Some file systems take the flag and refuse the reads: only a read tells. */
static bool direct_read_works(int fd, void *buffer) {
    ssize_t n;
    do {
        n = pread(fd, buffer, RG_STREAM_ALIGN, 0);
    } while (n < 0 && errno == EINTR);
    return n >= 0;
}

static rg_code open_one(rg_io_file *out, const char *path, rg_stream_direct direct, void *buffer,
                        rg_status *st) {
    rg_file plain;
    *out = (rg_io_file){.fd = -1};
    RG_TRY(rg_file_open(&plain, path, st)); /* refuses what is not a regular file */
    out->fd = plain.fd;
    out->size_bytes = plain.size_bytes;
    rg_io_expect_random(plain.fd);
    if (direct == RG_DIRECT_OFF) return RG_OK;
    int err = 0;
    const int fd = rg_io_open_direct(path, &err);
    if (fd >= 0 && direct_read_works(fd, buffer)) {
        rg_file_close(&plain);
        out->fd = fd;
        out->direct = true;
        return RG_OK;
    }
    if (fd >= 0) {
        err = errno;
        close(fd);
    }
    if (direct == RG_DIRECT_AUTO) {
        rg_log(RG_LOG_INFO, "%s: buffered reads, its file system has no direct ones", path);
        return RG_OK;
    }
    rg_file_close(&plain);
    out->fd = -1;
    return rg_fail_errno(st, RG_UNSUPPORTED, err, "%s: no direct reads", path);
}

rg_code rg_io_files_open(rg_io_files *out, const char *const *paths, uint32_t n,
                         rg_stream_direct direct, rg_status *st) {
    *out = (rg_io_files){0};
    RG_ASSERT(n > 0 && n <= RG_STREAM_FILES_MAX);
    rg_code rc = RG_NOMEM;
    void *buffer = rg_alloc_aligned(RG_STREAM_ALIGN, RG_STREAM_ALIGN, st);
    out->files = rg_alloc(n, sizeof *out->files, st);
    if (!buffer || !out->files) goto cleanup;
    for (uint32_t i = 0; i < n; i++) {
        RG_GO(open_one(&out->files[i], paths[i], direct, buffer, st));
        out->n++;
        if (out->files[i].direct) out->n_direct++;
    }
    rc = RG_OK;
cleanup:
    rg_free(buffer);
    if (rc != RG_OK) rg_io_files_close(out);
    return rc;
}

void rg_io_files_close(rg_io_files *f) {
    RG_ASSERT(f->n == 0 || f->files);
    for (uint32_t i = 0; i < f->n; i++)
        close(f->files[i].fd);
    rg_free(f->files);
    *f = (rg_io_files){0};
}

void rg_io_close(rg_io *io) {
    if (io) io->vtable->close(io);
}
