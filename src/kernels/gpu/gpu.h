/* gpu: a device that computes, behind about a dozen calls: devices, buffers with addresses,
 * pipelines, command lists, timelines. Nothing of Vulkan shows, so that another driver can stand
 * beside it. What the kernels compute is in gpu_ops.h.
 *
 * Memory is addressed by 64-bit device addresses, never bound: any part of a buffer can be handed
 * to a kernel in its push constants.
 *
 * Order: the dispatches of a list run in any order up to a barrier. The lists of one submission run
 * one after another; list i may first wait for a value of the host's timeline and signals a value
 * of the device's when it is done. Both timelines only count upwards.
 *
 * Transfers are lists of copies alone that go to a queue of their own where the device has one, so
 * that they overlap with the lists. Their timeline counts what was handed over; a list may wait for
 * one of its values.
 *
 * Threads: a device and what belongs to it is used by one thread at a time, with two exceptions.
 * rg_gpu_signal and rg_gpu_transfer_passed may be called from any thread. One other thread may
 * record transfers and hand them over (rg_gpu_list_begin, rg_gpu_copy and rg_gpu_list_end of such
 * lists, rg_gpu_transfer_submit, rg_gpu_transfer_ns).
 */
#ifndef RG_GPU_H
#define RG_GPU_H

#include "base/base.h"

#define RG_GPU_PUSH_BYTES_MAX 128u /* what every device takes */
#define RG_GPU_SPEC_MAX       12u  /* constants of a pipeline */
#define RG_GPU_DEVICES_MAX    16u
#define RG_GPU_LISTS_MAX      1024u /* of one submission */

typedef struct rg_gpu rg_gpu;
typedef struct rg_gpu_list rg_gpu_list;

/* ---- devices -------------------------------------------------------------------------------- */

typedef struct rg_gpu_info {
    char name[128];
    const char *kind; /* "discrete", "integrated", "software", "other"; static */
    uint32_t vendor_id, device_id, driver_version;
    uint32_t api_major, api_minor;
    bool usable;            /* has all that the kernels ask for */
    const char *missing;    /* the first thing it lacks, or ""; static */
    uint64_t device_bytes;  /* of the largest heap local to the device */
    bool mappable;          /* all of that heap is visible to the host */
    uint64_t alloc_bytes;   /* largest single allocation */
    uint32_t subgroup_size; /* the usual one */
    uint32_t shared_bytes;  /* of a workgroup */
    uint32_t group_threads; /* of a workgroup at most */
    bool dot;               /* multiplies four bytes in one instruction */
    bool matrix;            /* has matrix units for bytes that mul_mat.comp can use */
    bool transfer;          /* has a queue for copies beside the one that computes */
    double stamp_ns;        /* a tick of the time stamps; 0: none */
} rg_gpu_info;

/* Fills out[cap] in the order of the loader and sets *n. A machine without loader or driver has 0
 * devices: that is no failure. */
RG_MUST_CHECK rg_code rg_gpu_enumerate(rg_gpu_info *out, uint32_t cap, uint32_t *n, rg_status *st);

/* Which of info[n] opening takes for this wish (rg_gpu_options.device); n or more: none. */
uint32_t rg_gpu_choose(const rg_gpu_info *info, uint32_t n, int32_t wanted);

typedef struct rg_gpu_options {
    int32_t device;         /* index as enumerated; < 0: the first discrete usable one, else the
                               first integrated, else any */
    bool validate;          /* with the validation layers, where installed */
    const char *cache_path; /* compiled pipelines are kept there; NULL: nowhere. Copied. */
} rg_gpu_options;

/* UNSUPPORTED when there is no such device or it lacks something (named). On failure *out is NULL.
 */
RG_MUST_CHECK rg_code rg_gpu_open(rg_gpu **out, const rg_gpu_options *opt, rg_status *st);
/* Waits for the device. NULL is allowed. */
void rg_gpu_close(rg_gpu *gpu);
const rg_gpu_info *rg_gpu_get_info(const rg_gpu *gpu);
const rg_gpu_info *rg_gpu_list_info(const rg_gpu_list *list); /* of its device */
/* What the validation layers complained about since opening: how often, and the first message. */
uint64_t rg_gpu_complaints(const rg_gpu *gpu, const char **first);
bool rg_gpu_validated(const rg_gpu *gpu);
uint64_t rg_gpu_bytes(const rg_gpu *gpu);   /* of all buffers now */
uint32_t rg_gpu_kernels(const rg_gpu *gpu); /* pipelines built so far */
/* What became of the file of compiled pipelines at opening. */
typedef enum rg_gpu_cache {
    RG_GPU_CACHE_NONE,    /* there is none */
    RG_GPU_CACHE_USED,    /* handed to the driver */
    RG_GPU_CACHE_DAMAGED, /* not as it was written: left alone */
    RG_GPU_CACHE_FOREIGN  /* of another device or driver: left alone */
} rg_gpu_cache;
rg_gpu_cache rg_gpu_cache_found(const rg_gpu *gpu);

/* ---- buffers -------------------------------------------------------------------------------- */

typedef enum rg_gpu_place {
    RG_GPU_DEVICE,   /* fast for the device; mapped where all of its memory can be */
    RG_GPU_SHARED,   /* the host writes, the device reads; always mapped */
    RG_GPU_READBACK, /* the device writes, the host reads; always mapped */
    /* For transfers, both queues may use them at any time: */
    RG_GPU_UNSEEN,  /* of the device alone, never mapped; no need that the host could map it */
    RG_GPU_STAGING, /* memory of the host, which reads and writes it; always mapped */
} rg_gpu_place;

typedef struct rg_gpu_buffer {
    uint64_t address; /* on the device; 0 = no buffer */
    void *mapped;     /* NULL when the host cannot see it */
    bool uncached;    /* mapped, but slow for the host to read: rg_gpu_read goes another way */
    size_t bytes;
    void *handle, *memory; /* the driver's */
} rg_gpu_buffer;

/* Zeroed. NOMEM names what was asked for. */
RG_MUST_CHECK rg_code rg_gpu_buffer_create(rg_gpu *gpu, rg_gpu_buffer *out, size_t bytes,
                                           rg_gpu_place place, rg_status *st);
/* A STAGING buffer of memory that the caller has (as rg_mem_map gives it) and that stays his: what
 * a drive can write to, which memory of a driver often is not. `bytes` is a multiple of 65536.
 * UNSUPPORTED where the device cannot. */
RG_MUST_CHECK rg_code rg_gpu_buffer_import(rg_gpu *gpu, rg_gpu_buffer *out, void *memory,
                                           size_t bytes, rg_status *st);
/* An empty buffer is allowed. The device must be done with it. */
void rg_gpu_buffer_destroy(rg_gpu *gpu, rg_gpu_buffer *b);
/* Copies to or from a buffer and waits; through staging where it is not mapped. */
RG_MUST_CHECK rg_code rg_gpu_write(rg_gpu *gpu, const rg_gpu_buffer *b, size_t offset,
                                   const void *src, size_t bytes, rg_status *st);
RG_MUST_CHECK rg_code rg_gpu_read(rg_gpu *gpu, const rg_gpu_buffer *b, size_t offset, void *dst,
                                  size_t bytes, rg_status *st);

/* ---- command lists -------------------------------------------------------------------------- */

/* The kernel programs, one for each file of shaders/. NAME_dot is NAME for devices with products of
 * bytes, NAME_tN is NAME with the first constant N: taken where there is one, the same results. */
typedef struct rg_gpu_program {
    const char *name;
    const uint32_t *words;
    size_t n_word;
} rg_gpu_program;
extern const rg_gpu_program rg_gpu_programs[]; /* generated at build time, by ascending name */
extern const size_t rg_gpu_program_count;

/* A program with its constants (constant_id 0, 1, ...): what a pipeline is made of. */
typedef struct rg_gpu_kernel {
    const char *program; /* static */
    uint32_t spec[RG_GPU_SPEC_MAX];
    uint32_t n_spec;
} rg_gpu_kernel;

typedef struct rg_gpu_grid {
    uint32_t x, y, z; /* workgroups; a grid with a 0 does nothing */
} rg_gpu_grid;

RG_MUST_CHECK rg_code rg_gpu_list_create(rg_gpu_list **out, rg_gpu *gpu, rg_status *st);
void rg_gpu_list_destroy(rg_gpu_list *list); /* NULL is allowed; not while it runs */

/* Starts recording anew; what it held is gone. With `stamps` every dispatch is timed. Failures
 * while recording are kept and come back from rg_gpu_list_end. */
void rg_gpu_list_begin(rg_gpu_list *list, bool stamps);
void rg_gpu_dispatch(rg_gpu_list *list, const rg_gpu_kernel *kernel, const void *push,
                     size_t push_bytes, rg_gpu_grid grid);
/* What the next dispatch reads and writes in device memory, and how often it multiplies and adds,
 * for its time; 0: not known. */
void rg_gpu_list_moves(rg_gpu_list *list, uint64_t bytes);
void rg_gpu_list_multiplies(rg_gpu_list *list, uint64_t ops);
/* The grid is read from the buffer when the dispatch starts: 3 words at `offset`. */
void rg_gpu_dispatch_indirect(rg_gpu_list *list, const rg_gpu_kernel *kernel, const void *push,
                              size_t push_bytes, const rg_gpu_buffer *grid, size_t offset);
/* Between them lists that are recorded note their kernels and hold no dispatch; the end builds the
 * kernels that are missing, on all threads of the pool. One that cannot be built says so when it is
 * first dispatched. */
void rg_gpu_plan_begin(rg_gpu *gpu);
RG_MUST_CHECK rg_code rg_gpu_plan_end(rg_gpu *gpu, rg_pool *pool, rg_status *st);
/* What follows sees what came before, and overwrites nothing that it still reads. */
void rg_gpu_barrier(rg_gpu_list *list);
void rg_gpu_copy(rg_gpu_list *list, const rg_gpu_buffer *dst, size_t dst_offset,
                 const rg_gpu_buffer *src, size_t src_offset, size_t bytes);
/* `bytes` and `offset` are multiples of 4. */
void rg_gpu_fill(rg_gpu_list *list, const rg_gpu_buffer *b, size_t offset, size_t bytes,
                 uint32_t word);
RG_MUST_CHECK rg_code rg_gpu_list_end(rg_gpu_list *list, rg_status *st);
/* Dispatches and barriers recorded. */
uint32_t rg_gpu_list_dispatches(const rg_gpu_list *list);
uint32_t rg_gpu_list_barriers(const rg_gpu_list *list);

typedef struct rg_gpu_time {
    const char *program; /* static */
    uint32_t first;      /* its first constant: of products the type of the weights */
    uint32_t groups;     /* workgroups in x; 0: read from a buffer */
    uint64_t bytes, ops; /* as rg_gpu_list_moves and rg_gpu_list_multiplies said */
    uint64_t ns;         /* from the end of those before to its own: they add up to the list's */
} rg_gpu_time;
/* Times of the last run of a list with stamps, in order of recording; NULL when there are none. */
const rg_gpu_time *rg_gpu_list_times(rg_gpu_list *list, uint32_t *n);

/* ---- running -------------------------------------------------------------------------------- */

typedef struct rg_gpu_part {
    rg_gpu_list *list;
    uint64_t wait_host;     /* starts when the host's timeline has this value; 0: at once */
    uint64_t wait_transfer; /* and the transfers' timeline this one; 0: at once */
    uint64_t signal;        /* the device's timeline gets this value behind it; 0: none */
} rg_gpu_part;

/* Hands parts[n] over in one submission and returns at once. A list must not be handed over again
 * before it is done. */
RG_MUST_CHECK rg_code rg_gpu_submit(rg_gpu *gpu, const rg_gpu_part *parts, uint32_t n,
                                    rg_status *st);
/* A fresh value of the device's or of the host's timeline. */
uint64_t rg_gpu_next(rg_gpu *gpu);
uint64_t rg_gpu_next_host(rg_gpu *gpu);
/* The host's timeline gets `value`; values rise. */
RG_MUST_CHECK rg_code rg_gpu_signal(rg_gpu *gpu, uint64_t value, rg_status *st);
/* Blocks until the device's timeline has `value`. IO when the device is lost, TIMEOUT after
 * `timeout_ns`. */
RG_MUST_CHECK rg_code rg_gpu_wait(rg_gpu *gpu, uint64_t value, uint64_t timeout_ns, rg_status *st);
/* Blocks until all that was handed over is done, transfers too, or the device is lost. */
void rg_gpu_drain(rg_gpu *gpu);
/* From now on as after the loss of the device: for tests of those who use it. Any thread. */
void rg_gpu_lose(rg_gpu *gpu);
/* Submits one list and waits for it. */
RG_MUST_CHECK rg_code rg_gpu_run(rg_gpu *gpu, rg_gpu_list *list, rg_status *st);

/* ---- transfers ------------------------------------------------------------------------------- */

/* A list that takes rg_gpu_copy alone, between buffers of UNSEEN and STAGING. With `stamps` it is
 * timed, where the queue can. Copies of different lists may overlap: what one overwrites nobody may
 * still read or write. */
RG_MUST_CHECK rg_code rg_gpu_transfer_create(rg_gpu_list **out, rg_gpu *gpu, rg_status *st);
/* Hands it over; *value is what the transfers' timeline gets behind it, one more each time. The
 * list must not be recorded again before. IO when the device is lost: nothing was handed over. */
RG_MUST_CHECK rg_code rg_gpu_transfer_submit(rg_gpu *gpu, rg_gpu_list *list, uint64_t *value,
                                             rg_status *st);
/* The value that the transfers' timeline has; UINT64_MAX when the device does not answer any more.
 */
uint64_t rg_gpu_transfer_passed(rg_gpu *gpu);
/* As rg_gpu_wait, of the transfers' timeline. */
RG_MUST_CHECK rg_code rg_gpu_transfer_wait(rg_gpu *gpu, uint64_t value, uint64_t timeout_ns,
                                           rg_status *st);
/* The device's time for a list that is done; 0: not known. */
uint64_t rg_gpu_transfer_ns(const rg_gpu_list *list);
bool rg_gpu_transfer_timed(const rg_gpu *gpu); /* whether its queue has time stamps */

#endif
