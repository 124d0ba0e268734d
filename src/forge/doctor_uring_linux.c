/* Random reads through io_uring: `depth` in flight, each completion starts the next. */
#include <errno.h>
#include <liburing.h>
#include <string.h>

#include "forge/doctor_parts.h"

#define DEPTH_MAX 64u

bool rg_doctor_uring_works(int *sys_errno) {
    struct io_uring ring;
    const int err = io_uring_queue_init(4, &ring, 0);
    *sys_errno = err < 0 ? -err : 0;
    if (err < 0) return false;
    io_uring_queue_exit(&ring);
    return true;
}

typedef struct flight {
    uint64_t started_ns[DEPTH_MAX];
    uint32_t n; /* in flight */
} flight;

static bool start_read(struct io_uring *ring, rg_doctor_reads *r, flight *f, uint32_t slot,
                       uint64_t i) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    if (!sqe) return false;
    io_uring_prep_read(sqe, r->fd, r->buffers + (size_t)slot * r->read_bytes, r->read_bytes,
                       rg_doctor_offset(r, i));
    sqe->user_data = slot;
    f->started_ns[slot] = rg_now_ns();
    f->n++;
    return true;
}

/* Takes one completion; the slot that became free, or -1. Reads that were interrupted or came short
 * count as done: their time was spent. */
static int finish_read(struct io_uring *ring, rg_doctor_reads *r, flight *f) {
    struct io_uring_cqe *cqe = NULL;
    int err;
    do {
        err = io_uring_wait_cqe(ring, &cqe);
    } while (err == -EINTR);
    if (err < 0) {
        r->sys_errno = -err;
        return -1;
    }
    const int slot = (int)cqe->user_data;
    if (cqe->res < 0 && cqe->res != -EINTR && cqe->res != -EAGAIN && !r->sys_errno)
        r->sys_errno = -cqe->res;
    r->reads++;
    r->latency_ns += rg_now_ns() - f->started_ns[slot];
    f->n--;
    io_uring_cqe_seen(ring, cqe);
    return slot;
}

void rg_doctor_read_uring(rg_doctor_reads *r) {
    RG_ASSERT(r->depth >= 1 && r->depth <= DEPTH_MAX);
    struct io_uring ring;
    flight f = {.n = 0};
    uint64_t next = 0;
    const int err = io_uring_queue_init(r->depth, &ring, 0);
    if (err < 0) {
        r->sys_errno = -err;
        return;
    }
    for (uint32_t i = 0; i < r->depth; i++)
        (void)start_read(&ring, r, &f, i, next++);
    int sent = io_uring_submit(&ring);
    while (sent >= 0 && f.n > 0) {
        const int slot = finish_read(&ring, r, &f);
        if (slot < 0) break;
        if (r->sys_errno || rg_now_ns() >= r->deadline_ns) continue;
        if (start_read(&ring, r, &f, (uint32_t)slot, next++)) sent = io_uring_submit(&ring);
    }
    if (sent < 0 && !r->sys_errno) r->sys_errno = -sent;
    io_uring_queue_exit(&ring);
}
