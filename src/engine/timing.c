#include "engine/gpu_core.h"

static const char *part_name(rg_part part) {
    static const char *const names[] = {
#define RG_PART_NAME(name, text) text,
        RG_PARTS(RG_PART_NAME)
#undef RG_PART_NAME
    };
    return names[part];
}

static const char *kernel_name(rg_kernel kernel) {
    static const char *const names[] = {
#define RG_KERNEL_NAME(name, text) text,
        RG_KERNELS(RG_KERNEL_NAME)
#undef RG_KERNEL_NAME
    };
    return names[kernel];
}

rg_code rg_timing_create(rg_timing **out, int n_threads, rg_status *st) {
    RG_ASSERT(n_threads >= 1 && n_threads <= RG_POOL_THREADS_MAX);
    *out = rg_alloc(1, sizeof **out, st);
    if (!*out) return RG_NOMEM;
    (*out)->n_threads = n_threads;
    return RG_OK;
}

void rg_timing_destroy(rg_timing *p) {
    rg_free(p);
}

/* Bytes of one activation row of n values. */
static uint64_t row_bytes(rg_act_form form, uint64_t n) {
    if (form == RG_ACT_F32) return n * sizeof(float);
    return n + n / rg_act_span(form) * sizeof(float) + n / 16 * sizeof(int16_t);
}

void rg_timing_expect_products(rg_timing *p, const rg_mat *w, uint32_t n, uint32_t T,
                               rg_act_form form) {
    if (!p) return;
    const uint64_t weights = (uint64_t)n * w->n_out * w->row_bytes;
    const uint64_t rows = T * (row_bytes(form, w->n_in) + w->n_out * sizeof(float));
    rg_timing_expect(p, RG_KERNEL_PRODUCT, (uint32_t)w->type, weights + rows,
                     (uint64_t)w->n_out * w->n_in * T);
}

typedef struct timed_job {
    rg_timing *p;
    rg_pool_fn *fn;
    void *arg;
} timed_job;

static void timed_share(void *arg, size_t begin, size_t end, int thread) {
    const timed_job *job = arg;
    job->p->threads[thread].last_ns = rg_now_ns();
    job->fn(job->arg, begin, end, thread);
    rg_timing_lap(job->p, thread, 0);
}

/* Time of all threads in slot s, which starts again from nothing. */
static uint64_t take_busy(rg_timing *p, uint32_t s) {
    uint64_t ns = 0;
    for (int t = 0; t < p->n_threads; t++) {
        ns += p->threads[t].busy_ns[s];
        p->threads[t].busy_ns[s] = 0;
    }
    return ns;
}

/* The owner's time since the last phase or section, up to `now`. */
static void charge_gap(rg_timing *p, uint64_t now) {
    rg_kernel_time *t = &p->times[p->part][RG_KERNEL_HOST][RG_TIMING_NO_TYPE];
    const uint64_t ns = now > p->end_ns ? now - p->end_ns : 0;
    t->calls++;
    t->ns += ns;
    t->busy_ns += ns;
}

void rg_timing_run(rg_timing *p, rg_pool *pool, rg_kernel kernel, size_t n, size_t grain,
                   rg_pool_fn *fn, void *arg) {
    if (n == 0) {
        p->n_slot = 0;
        return;
    }
    if (p->n_slot == 0) rg_timing_expect(p, kernel, RG_TIMING_NO_TYPE, 0, 0);
    timed_job job = {.p = p, .fn = fn, .arg = arg};
    const uint64_t begin = rg_now_ns();
    charge_gap(p, begin);
    rg_pool_run(pool, n, grain, timed_share, &job);
    const uint64_t end = rg_now_ns(), wall = end - begin;
    uint64_t busy[RG_TIMING_SLOTS] = {0}, all = 0;
    for (uint32_t s = 0; s < p->n_slot; s++)
        all += busy[s] = take_busy(p, s);
    uint64_t left = wall;
    for (uint32_t s = p->n_slot; s-- > 0;) {
        const rg_timing_slot *slot = &p->slots[s];
        const double part = all ? (double)busy[s] / (double)all : 0;
        const uint64_t ns = s == 0 ? left : (uint64_t)((double)wall * part + 0.5);
        rg_kernel_time *t = &p->times[p->part][slot->kernel][slot->type];
        t->calls++;
        t->ns += ns;
        t->busy_ns += busy[s];
        t->bytes += slot->bytes;
        t->ops += slot->ops;
        left -= ns < left ? ns : left;
    }
    p->n_slot = 0;
    p->end_ns = end;
}

void rg_timing_end(rg_timing *p, rg_kernel kernel, uint64_t begin) {
    if (!p) return;
    const uint64_t end = rg_now_ns(), ns = end - begin;
    charge_gap(p, begin);
    p->end_ns = end;
    rg_kernel_time *t = &p->times[p->part][kernel][RG_TIMING_NO_TYPE];
    t->calls++;
    t->ns += ns;
    t->busy_ns += ns;
}

size_t rg_core_kernel_times(const rg_core *core, rg_kernel_time *out, size_t cap) {
    const rg_timing *p = core->timing;
    size_t n = 0;
    if (core->gpu) return rg_gpu_kernel_times(core->gpu, out, cap);
    for (uint32_t part = 0; p && part < RG_PART_COUNT; part++) {
        for (uint32_t kernel = 0; kernel < RG_KERNEL_COUNT; kernel++) {
            for (uint32_t type = 0; type <= RG_TYPE_COUNT; type++) {
                const rg_kernel_time *t = &p->times[part][kernel][type];
                if (!t->calls) continue;
                if (n < cap) {
                    out[n] = *t;
                    out[n].part = part_name((rg_part)part);
                    out[n].kernel = kernel_name((rg_kernel)kernel);
                    out[n].type = type;
                }
                n++;
            }
        }
    }
    return n;
}
