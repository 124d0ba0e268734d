/* Kernel times: where the time of the windows goes, kernel by kernel and type by type. Off unless
 * rg_core_time_kernels was called; costs two looks at the clock for each phase and thread then.
 *
 * All work of a window runs in phases of the pool. A phase has up to RG_TIMING_SLOTS kinds of work
 * (slots); each thread charges its time to them, and the wall time of the phase is divided in
 * proportion. What the owner does alone has rows of its own: named sections (grouping, waiting for
 * the drive), and the code between phases. So the rows add up to the time of the windows.
 */
#ifndef RG_ENGINE_TIMING_H
#define RG_ENGINE_TIMING_H

#include "engine/engine.h"

#define RG_PARTS(X)                                                                                \
    X(EMBED, "embedding")                                                                          \
    X(NGRAM, "n-gram layer")                                                                       \
    X(HC, "hyper-connections")                                                                     \
    X(GDN, "delta net")                                                                            \
    X(ATTENTION, "attention")                                                                      \
    X(ROUTER, "router, shared expert")                                                             \
    X(EXPERTS, "experts")                                                                          \
    X(DRAFT, "draft block")                                                                        \
    X(HEAD, "head")
typedef enum rg_part {
#define RG_PART_ENUM(name, text) RG_PART_##name,
    RG_PARTS(RG_PART_ENUM)
#undef RG_PART_ENUM
        RG_PART_COUNT
} rg_part;

#define RG_KERNELS(X)                                                                              \
    X(PRODUCT, "product")                                                                          \
    X(QUANTIZE, "quantize")                                                                        \
    X(UNPACK, "unpack")                                                                            \
    X(ROPE, "rotation table")                                                                      \
    X(NORM, "norm")                                                                                \
    X(ACTIVATE, "activation")                                                                      \
    X(MIX, "mix")                                                                                  \
    X(WRITE, "write")                                                                              \
    X(CONV, "convolution")                                                                         \
    X(DELTA, "delta rule")                                                                         \
    X(GATE, "gate")                                                                                \
    X(PREPARE, "prepare")                                                                          \
    X(BLOCK_KEYS, "block keys")                                                                    \
    X(SELECT, "block choice")                                                                      \
    X(ATTEND, "attention")                                                                         \
    X(ROUTE, "choice")                                                                             \
    X(PLAN, "plan")                                                                                \
    X(HASH, "hash")                                                                                \
    X(WAIT, "wait for the drive")                                                                  \
    X(COMBINE, "combine")                                                                          \
    X(CHECK, "check")                                                                              \
    X(HOST, "between phases")
typedef enum rg_kernel {
#define RG_KERNEL_ENUM(name, text) RG_KERNEL_##name,
    RG_KERNELS(RG_KERNEL_ENUM)
#undef RG_KERNEL_ENUM
        RG_KERNEL_COUNT
} rg_kernel;

#define RG_TIMING_NO_TYPE RG_TYPE_COUNT /* a kernel that reads no weights of a block format */
#define RG_TIMING_SLOTS   16u

typedef struct rg_timing_slot {
    rg_kernel kernel;
    uint32_t type; /* rg_type or RG_TIMING_NO_TYPE */
    uint64_t bytes, ops;
} rg_timing_slot;

typedef struct rg_timing_thread {
    _Alignas(64) uint64_t last_ns; /* when its time was last charged */
    uint64_t busy_ns[RG_TIMING_SLOTS];
} rg_timing_thread;

/* The owner writes everything between phases; in a phase a thread writes its own entry. */
typedef struct rg_timing {
    rg_part part; /* of the phases from here on */
    rg_timing_slot slots[RG_TIMING_SLOTS];
    uint32_t n_slot; /* announced for the next phase */
    int n_threads;
    uint64_t end_ns; /* of the last phase or section */
    rg_timing_thread threads[RG_POOL_THREADS_MAX];
    rg_kernel_time times[RG_PART_COUNT][RG_KERNEL_COUNT][RG_TYPE_COUNT + 1]; /* names are not set */
} rg_timing;

/* Makes an empty table for a pool of n_threads. NULL is left in *out on failure. */
RG_MUST_CHECK rg_code rg_timing_create(rg_timing **out, int n_threads, rg_status *st);
void rg_timing_destroy(rg_timing *p);

/* Everything below does nothing when p is NULL. */

static inline void rg_timing_part(rg_timing *p, rg_part part) {
    if (p) p->part = part;
}

/* A window begins: what passed since the last one is not its time. */
static inline void rg_timing_window(rg_timing *p) {
    if (p) p->end_ns = rg_now_ns();
}

/* Announces the next slot of the next phase. */
static inline void rg_timing_expect(rg_timing *p, rg_kernel kernel, uint32_t type, uint64_t bytes,
                                    uint64_t ops) {
    if (!p || p->n_slot == RG_TIMING_SLOTS) return;
    p->slots[p->n_slot++] =
        (rg_timing_slot){.kernel = kernel, .type = type, .bytes = bytes, .ops = ops};
}

/* The same for products of T rows in all with n matrices like w: the weights, the activations as
 * they are stored for it, and the results. */
void rg_timing_expect_products(rg_timing *p, const rg_mat *w, uint32_t n, uint32_t T,
                               rg_act_form form);

/* Inside a phase: the thread's time since its last charge belongs to `slot`. */
static inline void rg_timing_lap(rg_timing *p, int thread, uint32_t slot) {
    if (!p) return;
    rg_timing_thread *t = &p->threads[thread];
    const uint64_t now = rg_now_ns();
    t->busy_ns[slot] += now - t->last_ns;
    t->last_ns = now;
}

/* rg_pool_run, timed: `kernel` names a phase for which no slot was announced; time that no lap
 * charged goes to the first slot. */
void rg_timing_run(rg_timing *p, rg_pool *pool, rg_kernel kernel, size_t n, size_t grain,
                   rg_pool_fn *fn, void *arg);

/* A section of the owner alone: begins, and is charged to `kernel`. */
static inline uint64_t rg_timing_begin(const rg_timing *p) {
    return p ? rg_now_ns() : 0;
}
void rg_timing_end(rg_timing *p, rg_kernel kernel, uint64_t begin);

#endif
