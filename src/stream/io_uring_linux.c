/* Reads by io_uring. One ring: submissions come from any thread under the scheduler's lock, so they
 * are one at a time; completions are taken by one thread without it. The two sides of a ring are
 * independent as long as waiting needs no submission, hence IORING_FEAT_EXT_ARG (Linux 5.11) is
 * asked for. No SQPOLL: the kernel looks at the queue only inside our submit, which makes taking
 * back refused entries safe.
 *
 * Files and the arena are registered where the system lets us (a memlock limit may forbid the
 * latter); each saves the kernel a lookup, or pinning of pages, per read. liburing 2.3.
 */
#include "stream/io.h"

#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <string.h>

#define BUFFER_BYTES_MAX ((uint64_t)1 << 30) /* the kernel's limit for one registered buffer */
#define BUFFERS_MAX      1024u

typedef struct uring_io {
    rg_io base;
    struct io_uring ring;
    const rg_io_files *files;
    char *memory;
    uint64_t buffer_bytes; /* each registered buffer but the last */
    uint64_t look_ns;
    bool has_ring, fixed_files, fixed_buffers;
    char name[64];
} uring_io;

static uring_io *self(rg_io *io) {
    return (uring_io *)io;
}

static void prepare(const uring_io *u, struct io_uring_sqe *sqe, const rg_io_op *op) {
    const int fd = u->fixed_files ? (int)op->file : u->files->files[op->file].fd;
    if (u->fixed_buffers) {
        const uint64_t at = (uint64_t)((char *)op->dst - u->memory);
        RG_ASSERT((at + op->bytes - 1) / u->buffer_bytes == at / u->buffer_bytes);
        io_uring_prep_read_fixed(sqe, fd, op->dst, op->bytes, op->offset,
                                 (int)(at / u->buffer_bytes));
    } else {
        io_uring_prep_read(sqe, fd, op->dst, op->bytes, op->offset);
    }
    unsigned flags = u->fixed_files ? IOSQE_FIXED_FILE : 0;
    /* A buffered read that hits the page cache would copy inside submit, under the lock. */
    if (!u->files->files[op->file].direct) flags |= IOSQE_ASYNC;
    io_uring_sqe_set_flags(sqe, flags);
    sqe->user_data = op->tag;
}

/* Takes the last `n` entries out of the submission queue again. */
static void take_back(uring_io *u, unsigned n) {
    struct io_uring_sq *sq = &u->ring.sq;
    sq->sqe_tail -= n;
    sq->sqe_head = sq->sqe_tail;
    io_uring_smp_store_release(sq->ktail, sq->sqe_tail);
}

static uint32_t uring_submit(rg_io *io, const rg_io_op *ops, uint32_t n) {
    uring_io *u = self(io);
    unsigned queued = 0, taken = 0;
    while (queued < n) {
        RG_ASSERT(ops[queued].file < u->files->n);
        struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
        if (!sqe) break;
        prepare(u, sqe, &ops[queued]);
        queued++;
    }
    while (taken < queued) {
        const int r = io_uring_submit(&u->ring);
        if (r == -EINTR) continue;
        if (r <= 0) break;
        taken += (unsigned)r;
    }
    RG_ASSERT(taken <= queued);
    if (taken < queued) take_back(u, queued - taken);
    return taken;
}

/* Until an answer is there or it is worth to sleep. */
static void look(uring_io *u) {
    const uint64_t begin = rg_now_ns();
    while (io_uring_cq_ready(&u->ring) == 0 && rg_now_ns() - begin < u->look_ns)
        rg_look_pause();
}

static uint32_t uring_reap(rg_io *io, rg_io_done *out, uint32_t max, uint64_t timeout_ns) {
    uring_io *u = self(io);
    struct io_uring_cqe *cqe = NULL;
    struct __kernel_timespec ts = {.tv_sec = (int64_t)(timeout_ns / 1000000000u),
                                   .tv_nsec = (int64_t)(timeout_ns % 1000000000u)};
    uint32_t n = 0;
    RG_ASSERT(max > 0);
    if (u->look_ns) look(u);
    if (io_uring_wait_cqe_timeout(&u->ring, &cqe, &ts) != 0) return 0; /* late, or interrupted */
    while (n < max && io_uring_peek_cqe(&u->ring, &cqe) == 0) {
        out[n++] = (rg_io_done){.tag = cqe->user_data, .result = cqe->res};
        io_uring_cqe_seen(&u->ring, cqe);
    }
    return n;
}

static uint64_t uring_now(rg_io *io) {
    (void)io;
    return rg_now_ns();
}

static void uring_close(rg_io *io) {
    uring_io *u = self(io);
    if (u->has_ring) io_uring_queue_exit(&u->ring); /* waits for, or cancels, what is in flight */
    rg_free(u);
}

/* ---- opening --------------------------------------------------------------------------------- */

static rg_code register_files(uring_io *u, rg_status *st) {
    int *fds = rg_alloc(u->files->n, sizeof *fds, st);
    if (!fds) return RG_NOMEM;
    for (uint32_t i = 0; i < u->files->n; i++)
        fds[i] = u->files->files[i].fd;
    u->fixed_files = io_uring_register_files(&u->ring, fds, u->files->n) == 0;
    rg_free(fds);
    return RG_OK;
}

/* Buffers are whole blocks, so that no read straddles two of them. */
static rg_code register_memory(uring_io *u, const rg_io_config *c, rg_status *st) {
    if (c->block_bytes > BUFFER_BYTES_MAX) return RG_OK;
    u->buffer_bytes = BUFFER_BYTES_MAX / c->block_bytes * c->block_bytes;
    const uint64_t n = (c->memory_bytes + u->buffer_bytes - 1) / u->buffer_bytes;
    if (n > BUFFERS_MAX) return RG_OK;
    struct iovec *v = rg_alloc((size_t)n, sizeof *v, st);
    if (!v) return RG_NOMEM;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t at = i * u->buffer_bytes, left = c->memory_bytes - at;
        v[i].iov_base = u->memory + at;
        v[i].iov_len = (size_t)(left < u->buffer_bytes ? left : u->buffer_bytes);
    }
    const int r = io_uring_register_buffers(&u->ring, v, (unsigned)n);
    u->fixed_buffers = r == 0;
    if (r != 0) {
        char text[96];
        /* GNU strerror_r returns the string, which need not be `text`. */
        rg_log(RG_LOG_INFO, "io_uring: buffers not registered: %s",
               strerror_r(-r, text, sizeof text));
    }
    rg_free(v);
    return RG_OK;
}

static rg_code set_up(uring_io *u, const rg_io_config *c, rg_status *st) {
    const int r = io_uring_queue_init(c->depth, &u->ring, 0);
    if (r != 0) return rg_fail_errno(st, RG_UNSUPPORTED, -r, "io_uring is refused");
    u->has_ring = true;
    if (!(u->ring.features & IORING_FEAT_EXT_ARG)) {
        return rg_fail(st, RG_UNSUPPORTED, "io_uring without timed waits, Linux 5.11 has them");
    }
    RG_TRY(register_files(u, st));
    RG_TRY(register_memory(u, c, st));
    const char *kind = c->files->n_direct == c->files->n ? "direct"
                       : c->files->n_direct == 0         ? "buffered"
                                                         : "partly direct";
    snprintf(u->name, sizeof u->name, "io_uring, %s%s%s", kind,
             u->fixed_buffers ? ", registered buffers" : "",
             u->fixed_files ? ", registered files" : "");
    return RG_OK;
}

rg_code rg_io_uring_open(rg_io **out, const rg_io_config *config, const char **name,
                         rg_status *st) {
    static const rg_io_vtable vtable = {uring_submit, uring_reap, uring_now, uring_close};
    *out = NULL;
    RG_ASSERT(config->depth > 0);
    uring_io *u = rg_alloc(1, sizeof *u, st);
    if (!u) return RG_NOMEM;
    u->base.vtable = &vtable;
    u->files = config->files;
    u->memory = config->memory;
    u->look_ns = config->look_ns;
    const rg_code rc = set_up(u, config, st);
    if (rc != RG_OK) {
        uring_close(&u->base);
        return rc;
    }
    *name = u->name;
    *out = &u->base;
    return RG_OK;
}
