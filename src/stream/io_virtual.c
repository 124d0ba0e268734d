/* A drive without data, for simulations: the fourth device below the scheduler.
 *
 * Time is a number that moves only inside reap: to the next answer, or by the timeout. An op takes
 * the bus for bytes / bytes_per_s after those before it, then its latency, sometimes with a tail;
 * so a queue of reads gets the drive's bandwidth and a lone read its latency. Answers come in the
 * order of their times; equal times by a drawn order. Everything is drawn from (seed, number of the
 * op), so one seed replays exactly.
 *
 * Threads: one, the caller of everything.
 */
#include "stream/io_virtual.h"

#include <errno.h>

#define NS_PER_S 1000000000u

typedef struct virtual_op {
    rg_io_op op;
    bool used;
    uint64_t ready_ns;
    uint64_t order; /* among equal times */
    int64_t result;
    uint64_t flip; /* bit to flip + 1; 0: none */
} virtual_op;

typedef struct virtual_io {
    rg_io base;
    rg_virtual_config cfg;
    uint64_t now_ns, bus_free_ns;
    uint64_t number; /* of the op */
    uint32_t n_op;
    virtual_op *ops; /* [depth] */
} virtual_io;

static virtual_io *self(rg_io *io) {
    return (virtual_io *)io;
}

static uint64_t draw(const virtual_io *v, uint64_t kind) {
    return rg_random_u64(v->cfg.drive.seed, v->number * 16 + kind);
}

static bool fault(virtual_io *v, const rg_io_op *op, rg_virtual_fault kind) {
    if (draw(v, (uint64_t)kind) % 1000 >= v->cfg.fault_permille[kind]) return false;
    if (v->cfg.hooks.fault) v->cfg.hooks.fault(v->cfg.hooks.user, op, kind);
    return true;
}

/* What the drive will say and when. */
static void decide(virtual_io *v, virtual_op *t) {
    static const int transient[] = {EINTR, EAGAIN, ENOMEM};
    const rg_stream_virtual *d = &v->cfg.drive;
    const uint64_t start = v->now_ns > v->bus_free_ns ? v->now_ns : v->bus_free_ns;
    const uint64_t end = v->cfg.file_bytes ? v->cfg.file_bytes[t->op.file] : UINT64_MAX;
    const uint64_t left = t->op.offset < end ? end - t->op.offset : 0;
    t->result = (int64_t)(left < t->op.bytes ? left : t->op.bytes);
    v->bus_free_ns = start;
    if (d->bytes_per_s) /* a read is shorter than 2^32 bytes: no overflow */
        v->bus_free_ns += (uint64_t)t->op.bytes * NS_PER_S / d->bytes_per_s;
    t->ready_ns = v->bus_free_ns + d->latency_ns;
    if (draw(v, 8) % 1000 < d->tail_permille) t->ready_ns += draw(v, 9) % (d->tail_ns + 1);
    t->order = draw(v, 10);
    if (fault(v, &t->op, RG_VIRTUAL_EIO))
        t->result = -EIO;
    else if (fault(v, &t->op, RG_VIRTUAL_TRANSIENT))
        t->result = -transient[draw(v, 11) % 3];
    else if (t->result > 1 && fault(v, &t->op, RG_VIRTUAL_SHORT))
        t->result = 1 + (int64_t)(draw(v, 12) % (uint64_t)(t->result - 1));
    if (t->result > 0 && fault(v, &t->op, RG_VIRTUAL_FLIP))
        t->flip = 1 + draw(v, 13) % ((uint64_t)t->result * 8);
    if (fault(v, &t->op, RG_VIRTUAL_STALL)) t->ready_ns += v->cfg.stall_ns;
    if (fault(v, &t->op, RG_VIRTUAL_VANISH)) t->ready_ns = UINT64_MAX;
}

static uint32_t virtual_submit(rg_io *io, const rg_io_op *ops, uint32_t n) {
    virtual_io *v = self(io);
    uint32_t taken = 0;
    if (v->cfg.hooks.submitting) v->cfg.hooks.submitting(v->cfg.hooks.user, ops, n);
    for (uint32_t i = 0; i < v->cfg.depth && taken < n; i++) {
        virtual_op *t = &v->ops[i];
        if (t->used) continue;
        v->number++;
        if (fault(v, &ops[taken], RG_VIRTUAL_REFUSE)) break;
        *t = (virtual_op){.op = ops[taken], .used = true};
        decide(v, t);
        taken++;
        v->n_op++;
    }
    RG_ASSERT(v->n_op <= v->cfg.depth);
    return taken;
}

static virtual_op *first_answer(virtual_io *v) {
    virtual_op *best = NULL;
    for (uint32_t i = 0; i < v->cfg.depth; i++) {
        virtual_op *t = &v->ops[i];
        if (!t->used || t->ready_ns == UINT64_MAX) continue;
        if (!best || t->ready_ns < best->ready_ns ||
            (t->ready_ns == best->ready_ns && t->order < best->order))
            best = t;
    }
    return best;
}

static void answer(virtual_io *v, virtual_op *t, rg_io_done *out) {
    if (t->result > 0 && v->cfg.hooks.fill)
        v->cfg.hooks.fill(v->cfg.hooks.user, &t->op, (uint64_t)t->result);
    if (t->flip) {
        const uint64_t bit = t->flip - 1;
        ((unsigned char *)t->op.dst)[bit / 8] ^= (unsigned char)(1u << (bit % 8));
    }
    *out = (rg_io_done){.tag = t->op.tag, .result = t->result};
    t->used = false;
    RG_ASSERT(v->n_op > 0);
    v->n_op--;
}

static uint32_t virtual_reap(rg_io *io, rg_io_done *out, uint32_t max, uint64_t timeout_ns) {
    virtual_io *v = self(io);
    const uint64_t until = v->now_ns + timeout_ns;
    uint32_t n = 0;
    RG_ASSERT(max > 0);
    if (v->cfg.hooks.tick) v->cfg.hooks.tick(v->cfg.hooks.user);
    virtual_op *t = first_answer(v);
    if (!t || t->ready_ns > until) {
        v->now_ns = until;
        return 0;
    }
    if (t->ready_ns > v->now_ns) v->now_ns = t->ready_ns;
    while (n < max && t && t->ready_ns <= v->now_ns) {
        answer(v, t, &out[n++]);
        t = first_answer(v);
    }
    return n;
}

static uint64_t virtual_now(rg_io *io) {
    return self(io)->now_ns;
}

static void virtual_close(rg_io *io) {
    virtual_io *v = self(io);
    rg_free(v->ops);
    rg_free(v);
}

rg_code rg_io_virtual_open(rg_io **out, const rg_virtual_config *config, rg_status *st) {
    static const rg_io_vtable vtable = {virtual_submit, virtual_reap, virtual_now, virtual_close};
    *out = NULL;
    RG_ASSERT(config->depth > 0);
    virtual_io *v = rg_alloc(1, sizeof *v, st);
    if (!v) return RG_NOMEM;
    *v = (virtual_io){.base = {.vtable = &vtable}, .cfg = *config};
    v->ops = rg_alloc(config->depth, sizeof *v->ops, st);
    if (!v->ops) {
        rg_free(v);
        return RG_NOMEM;
    }
    *out = &v->base;
    return RG_OK;
}

uint32_t rg_io_virtual_in_flight(const rg_io *io) {
    return ((const virtual_io *)io)->n_op;
}
