/* Reads by a few threads that call pread: the portable device, and the one where io_uring is
 * forbidden. Ops and answers pass through two rings of `depth` entries; the scheduler never has
 * more than that in flight, so neither overflows.
 *
 * Threads: `lock` guards both rings and `stop`. It is taken inside the scheduler's lock by submit
 * and alone by everyone else; nothing else is taken under it.
 */
#include "stream/io.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX 32u
#define STAGE_BYTES (1u << 20) /* of a reader; a multiple of RG_STREAM_ALIGN */

typedef struct reader_arg {
    struct pread_io *io;
    uint8_t *stage; /* [STAGE_BYTES]; NULL: reads go to their destination */
} reader_arg;

typedef struct pread_io {
    rg_io base;
    const rg_io_files *files;
    pthread_mutex_t lock;
    pthread_cond_t work, answer;
    bool stop;
    uint32_t depth;
    rg_io_op *ops; /* [depth] ring */
    uint32_t op_head, n_op;
    rg_io_done *done; /* [depth] ring */
    uint32_t done_head, n_done;
    /* For those who look without the lock: what n_op and n_done are, one reader at most. */
    atomic_uint queued, answered;
    bool looks;
    uint64_t look_ns;
    uint32_t n_out; /* ops taken and not yet reaped */
    pthread_t threads[THREADS_MAX];
    reader_arg args[THREADS_MAX];
    uint8_t *stages; /* of all readers, or NULL */
    uint32_t n_thread;
    bool has_lock;
    char name[64];
} pread_io;

static pread_io *self(rg_io *io) {
    return (pread_io *)io;
}

/* Piece by piece, up to the first that comes short. */
static int64_t read_staged(int fd, const rg_io_op *op, uint8_t *stage) {
    uint32_t done = 0;
    while (done < op->bytes) {
        const uint32_t want = op->bytes - done < STAGE_BYTES ? op->bytes - done : STAGE_BYTES;
        const ssize_t n = pread(fd, stage, want, (off_t)(op->offset + done));
        if (n < 0) return done ? (int64_t)done : -(int64_t)errno;
        memcpy((uint8_t *)op->dst + done, stage, (size_t)n);
        done += (uint32_t)n;
        if ((uint32_t)n < want) break;
    }
    return done;
}

static int64_t read_once(const pread_io *p, const rg_io_op *op, uint8_t *stage) {
    RG_ASSERT(op->file < p->files->n);
    const rg_io_file *file = &p->files->files[op->file];
    if (stage && file->direct) return read_staged(file->fd, op, stage);
    const ssize_t n = pread(file->fd, op->dst, op->bytes, (off_t)op->offset);
    return n < 0 ? -(int64_t)errno : (int64_t)n;
}

/* The lock is held. One reader looks for work, the others sleep. */
static void await_work(pread_io *p) {
    if (p->look_ns && !p->looks) {
        p->looks = true;
        pthread_mutex_unlock(&p->lock);
        rg_look(&p->queued, p->look_ns);
        pthread_mutex_lock(&p->lock);
        p->looks = false;
        if (p->n_op || p->stop) return;
    }
    pthread_cond_wait(&p->work, &p->lock);
}

static void note_counts(pread_io *p) {
    atomic_store_explicit(&p->queued, p->n_op, memory_order_release);
    atomic_store_explicit(&p->answered, p->n_done, memory_order_release);
}

static void *reader(void *arg) {
    const reader_arg *a = arg;
    pread_io *p = a->io;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->n_op == 0 && !p->stop)
            await_work(p);
        if (p->stop) break; /* what is queued is dropped: nobody reaps any more */
        const rg_io_op op = p->ops[p->op_head];
        p->op_head = (p->op_head + 1) % p->depth;
        p->n_op--;
        note_counts(p);
        pthread_mutex_unlock(&p->lock);
        const int64_t result = read_once(p, &op, a->stage);
        pthread_mutex_lock(&p->lock);
        RG_ASSERT(p->n_done < p->depth);
        p->done[(p->done_head + p->n_done++) % p->depth] =
            (rg_io_done){.tag = op.tag, .result = result};
        note_counts(p);
        pthread_cond_signal(&p->answer);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static uint32_t pread_submit(rg_io *io, const rg_io_op *ops, uint32_t n) {
    pread_io *p = self(io);
    uint32_t taken = 0;
    pthread_mutex_lock(&p->lock);
    while (taken < n && p->n_out < p->depth) {
        p->ops[(p->op_head + p->n_op++) % p->depth] = ops[taken++];
        p->n_out++;
        pthread_cond_signal(&p->work);
    }
    RG_ASSERT(p->n_op <= p->depth);
    note_counts(p);
    pthread_mutex_unlock(&p->lock);
    return taken;
}

static struct timespec later(uint64_t timeout_ns) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t); /* the clock of cond_timedwait on every system */
    const uint64_t ns = (uint64_t)t.tv_nsec + timeout_ns % 1000000000u;
    t.tv_sec += (time_t)(timeout_ns / 1000000000u + ns / 1000000000u);
    t.tv_nsec = (long)(ns % 1000000000u);
    return t;
}

static uint32_t pread_reap(rg_io *io, rg_io_done *out, uint32_t max, uint64_t timeout_ns) {
    pread_io *p = self(io);
    const struct timespec until = later(timeout_ns);
    uint32_t n = 0;
    rg_look(&p->answered, p->look_ns < timeout_ns ? p->look_ns : timeout_ns);
    pthread_mutex_lock(&p->lock);
    while (p->n_done == 0)
        if (pthread_cond_timedwait(&p->answer, &p->lock, &until) != 0) break;
    while (n < max && p->n_done > 0) {
        out[n++] = p->done[p->done_head];
        p->done_head = (p->done_head + 1) % p->depth;
        p->n_done--;
        RG_ASSERT(p->n_out > 0);
        p->n_out--;
    }
    note_counts(p);
    pthread_mutex_unlock(&p->lock);
    return n;
}

static uint64_t pread_now(rg_io *io) {
    (void)io;
    return rg_now_ns();
}

static void pread_close(rg_io *io) {
    pread_io *p = self(io);
    if (p->has_lock) {
        pthread_mutex_lock(&p->lock);
        p->stop = true;
        pthread_cond_broadcast(&p->work);
        pthread_mutex_unlock(&p->lock);
        for (uint32_t i = 0; i < p->n_thread; i++)
            pthread_join(p->threads[i], NULL);
        pthread_cond_destroy(&p->answer);
        pthread_cond_destroy(&p->work);
        pthread_mutex_destroy(&p->lock);
    }
    rg_free(p->ops);
    rg_free(p->done);
    rg_free(p->stages);
    rg_free(p);
}

static rg_code set_up(pread_io *p, bool staged, rg_status *st) {
    p->ops = rg_alloc(p->depth, sizeof *p->ops, st);
    p->done = rg_alloc(p->depth, sizeof *p->done, st);
    if (!p->ops || !p->done) return RG_NOMEM;
    if (pthread_mutex_init(&p->lock, NULL) != 0)
        return rg_fail(st, RG_NOMEM, "cannot make the lock of the readers");
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->answer, NULL);
    p->has_lock = true;
    const uint32_t n = p->depth < THREADS_MAX ? p->depth : THREADS_MAX;
    if (staged) {
        p->stages = rg_alloc_aligned(RG_STREAM_ALIGN, (size_t)n * STAGE_BYTES, st);
        if (!p->stages) return RG_NOMEM;
    }
    while (p->n_thread < n) {
        reader_arg *a = &p->args[p->n_thread];
        *a = (reader_arg){p, staged ? p->stages + (size_t)p->n_thread * STAGE_BYTES : NULL};
        const int err = pthread_create(&p->threads[p->n_thread], NULL, reader, a);
        if (err != 0) {
            return rg_fail_errno(st, RG_NOMEM, err, "reader thread %u of %u", p->n_thread, n);
        }
        p->n_thread++;
    }
    return RG_OK;
}

rg_code rg_io_pread_open(rg_io **out, const rg_io_config *config, const char **name,
                         rg_status *st) {
    static const rg_io_vtable vtable = {pread_submit, pread_reap, pread_now, pread_close};
    *out = NULL;
    RG_ASSERT(config->depth > 0);
    pread_io *p = rg_alloc(1, sizeof *p, st);
    if (!p) return RG_NOMEM;
    p->base.vtable = &vtable;
    p->files = config->files;
    p->depth = config->depth;
    p->look_ns = config->look_ns;
    const rg_code rc = set_up(p, config->staged, st);
    if (rc != RG_OK) {
        pread_close(&p->base);
        return rc;
    }
    const char *kind = p->files->n_direct == p->files->n ? "direct"
                       : p->files->n_direct == 0         ? "buffered"
                                                         : "partly direct";
    snprintf(p->name, sizeof p->name, "%u pread threads, %s%s", p->n_thread, kind,
             config->staged && p->files->n_direct ? ", staged" : "");
    *name = p->name;
    *out = &p->base;
    return RG_OK;
}
