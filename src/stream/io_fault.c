/* A device that lies: wraps another one and spoils some of its answers by a seed. For tests of the
 * whole program and for a hidden option. The fate of a read is drawn from (seed, number of the
 * read), so a run with one reader repeats.
 *
 * Threads: `lock` guards the table; submit takes it inside the scheduler's lock, reap alone. The
 * wrapped device is called with the lock free.
 */
#include "stream/io.h"

#include <errno.h>
#include <pthread.h>

#define NS_PER_MS 1000000u
#define POLL_NS   1000000u /* the wrapped device may answer while an answer is held back */

typedef enum fate_state { FATE_UNUSED, FATE_OUT, FATE_HELD } fate_state;

typedef struct fate {
    fate_state state;
    rg_io_op op;
    bool eio, shorten, flip;
    uint64_t stall_ns;
    uint64_t draw; /* for the place of a flipped bit */
    uint64_t ready_ns;
    int64_t result;
} fate;

typedef struct fault_io {
    rg_io base;
    rg_io *inner;
    rg_stream_faults faults;
    pthread_mutex_t lock;
    uint64_t number;
    uint32_t burst; /* reads that still fail after an EIO */
    uint32_t depth;
    fate *fates; /* [depth] */
    uint32_t n_held;
} fault_io;

static fault_io *self(rg_io *io) {
    return (fault_io *)io;
}

static bool chance(const fault_io *f, uint64_t n, uint64_t kind, uint32_t permille) {
    return rg_random_u64(f->faults.seed, n * 8 + kind) % 1000 < permille;
}

static void draw_fate(fault_io *f, fate *t, const rg_io_op *op) {
    const uint64_t n = f->number++;
    *t = (fate){.state = FATE_OUT, .op = *op, .draw = rg_random_u64(f->faults.seed, n * 8 + 5)};
    t->eio = chance(f, n, 0, f->faults.eio_permille);
    if (t->eio) {
        f->burst = f->faults.eio_burst;
    } else if (f->burst > 0) {
        f->burst--;
        t->eio = true;
    }
    t->shorten = chance(f, n, 1, f->faults.short_permille);
    t->flip = chance(f, n, 2, f->faults.flip_permille);
    if (f->faults.stall_ms_max > 0 && chance(f, n, 3, f->faults.stall_permille)) {
        t->stall_ns =
            (1 + rg_random_u64(f->faults.seed, n * 8 + 4) % f->faults.stall_ms_max) * NS_PER_MS;
    }
}

static fate *find_fate(fault_io *f, uint64_t tag) {
    for (uint32_t i = 0; i < f->depth; i++)
        if (f->fates[i].state == FATE_OUT && f->fates[i].op.tag == tag) return &f->fates[i];
    return NULL;
}

static fate *unused_fate(fault_io *f) {
    for (uint32_t i = 0; i < f->depth; i++)
        if (f->fates[i].state == FATE_UNUSED) return &f->fates[i];
    return NULL;
}

static uint32_t fault_submit(rg_io *io, const rg_io_op *ops, uint32_t n) {
    fault_io *f = self(io);
    uint32_t taken = 0;
    /* One at a time: the fate must be known before the answer can come. */
    while (taken < n) {
        pthread_mutex_lock(&f->lock);
        const uint64_t number = f->number;
        const uint32_t burst = f->burst;
        fate *t = unused_fate(f);
        if (t) draw_fate(f, t, &ops[taken]);
        pthread_mutex_unlock(&f->lock);
        if (!t) break;
        if (f->inner->vtable->submit(f->inner, &ops[taken], 1) == 1) {
            taken++;
            continue;
        }
        pthread_mutex_lock(&f->lock);
        t->state = FATE_UNUSED;
        f->number = number;
        f->burst = burst;
        pthread_mutex_unlock(&f->lock);
        break;
    }
    return taken;
}

static void spoil(fate *t, const rg_io_done *done, uint64_t now_ns) {
    t->result = done->result;
    if (t->flip && t->result > 0) {
        const uint64_t bit = t->draw % ((uint64_t)t->result * 8);
        ((unsigned char *)t->op.dst)[bit / 8] ^= (unsigned char)(1u << (bit % 8));
    }
    if (t->shorten && t->result > 1) t->result = 1 + (int64_t)(t->draw % (uint64_t)(t->result - 1));
    if (t->eio) t->result = -EIO;
    t->ready_ns = now_ns + t->stall_ns;
    t->state = FATE_HELD;
}

static uint64_t fault_now(rg_io *io) {
    fault_io *f = self(io);
    return f->inner->vtable->now_ns(f->inner);
}

static uint32_t give_ready(fault_io *f, rg_io_done *out, uint32_t max, uint64_t now_ns) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->depth && n < max && f->n_held > 0; i++) {
        fate *t = &f->fates[i];
        if (t->state != FATE_HELD || t->ready_ns > now_ns) continue;
        out[n++] = (rg_io_done){.tag = t->op.tag, .result = t->result};
        t->state = FATE_UNUSED;
        f->n_held--;
    }
    return n;
}

static uint32_t fault_reap(rg_io *io, rg_io_done *out, uint32_t max, uint64_t timeout_ns) {
    fault_io *f = self(io);
    const uint64_t until = fault_now(io) + timeout_ns;
    RG_ASSERT(max > 0);
    for (;;) {
        pthread_mutex_lock(&f->lock);
        const bool held = f->n_held > 0;
        pthread_mutex_unlock(&f->lock);
        const uint64_t wait_ns = held && timeout_ns > POLL_NS ? POLL_NS : timeout_ns;
        const uint32_t n_done = f->inner->vtable->reap(f->inner, out, max, wait_ns);
        const uint64_t now_ns = fault_now(io);
        pthread_mutex_lock(&f->lock);
        for (uint32_t i = 0; i < n_done; i++) {
            fate *t = find_fate(f, out[i].tag);
            RG_ASSERT(t);
            spoil(t, &out[i], now_ns);
            f->n_held++;
        }
        const uint32_t n = give_ready(f, out, max, now_ns);
        pthread_mutex_unlock(&f->lock);
        if (n > 0 || now_ns >= until) return n;
    }
}

static void fault_close(rg_io *io) {
    fault_io *f = self(io);
    rg_io_close(f->inner);
    pthread_mutex_destroy(&f->lock);
    rg_free(f->fates);
    rg_free(f);
}

rg_code rg_io_fault_open(rg_io **out, rg_io *inner, const rg_stream_faults *faults, uint32_t depth,
                         rg_status *st) {
    static const rg_io_vtable vtable = {fault_submit, fault_reap, fault_now, fault_close};
    *out = NULL;
    RG_ASSERT(inner && depth > 0);
    fault_io *f = rg_alloc(1, sizeof *f, st);
    if (!f) return RG_NOMEM;
    *f = (fault_io){.base = {.vtable = &vtable}, .inner = inner, .faults = *faults, .depth = depth};
    f->fates = rg_alloc(depth, sizeof *f->fates, st);
    if (!f->fates || pthread_mutex_init(&f->lock, NULL) != 0) {
        rg_free(f->fates);
        rg_free(f);
        return rg_fail(st, RG_NOMEM, "cannot wrap the device for %u faults", depth);
    }
    *out = &f->base;
    return RG_OK;
}
