/* doctor: what this machine gives a streamed model, and what to change. Measures the drive and the
 * memory, reads the limits, checks a model. A fault of the machine or of the model is a finding,
 * not a failure: only bad options, no memory and cancelling come back as a status.
 */
#ifndef RG_FORGE_DOCTOR_H
#define RG_FORGE_DOCTOR_H

#include <stdatomic.h>

#include "base/base.h"
#include "kernels/kernels.h"

#define RG_DOCTOR_POINTS_MAX   192u
#define RG_DOCTOR_ADVICE_MAX   16u
#define RG_DOCTOR_ADVICE_BYTES 200u
#define RG_DOCTOR_UNLIMITED    UINT64_MAX

typedef enum rg_doctor_io { RG_DOCTOR_URING, RG_DOCTOR_PREAD } rg_doctor_io;

/* Random reads of one size at one depth. */
typedef struct rg_doctor_point {
    rg_doctor_io io;
    bool direct; /* O_DIRECT; else through the page cache, dropped before */
    uint32_t read_bytes, depth;
    uint64_t reads;
    double gb_s;       /* 10^9 bytes a second */
    double latency_us; /* mean of one read */
} rg_doctor_point;

typedef struct rg_doctor_machine {
    char cpu_level[32];
    int cores;
    uint64_t cache_bytes; /* last level; 0 = unknown */
    uint64_t memory_available_bytes;
    double memory_gb_s;  /* read by all threads; 0 = not measured */
    char huge_pages[16]; /* always, madvise, never, unknown */
    bool io_uring;
    int io_uring_errno; /* why not */
    /* limits; RG_DOCTOR_UNLIMITED = none */
    uint64_t memlock_bytes, address_space_bytes, nofile;
    int cgroup_version; /* 0 = none, 1, 2 */
    uint64_t cgroup_memory_bytes;
} rg_doctor_machine;

typedef struct rg_doctor_drive {
    bool measured;
    char error[232]; /* why not */
    char file_system[24];
    bool is_memory;        /* a memory file system: no drive behind it */
    bool direct;           /* O_DIRECT works */
    uint64_t file_bytes;   /* what was read from */
    uint32_t expert_bytes; /* read size that stands for an expert */
    uint32_t n_point;
    rg_doctor_point points[RG_DOCTOR_POINTS_MAX];
    double ceiling_gb_s;        /* best of all direct points (buffered without O_DIRECT) */
    double expert_ceiling_gb_s; /* best of those of expert size */
    rg_doctor_io best_io;       /* of expert size */
    uint32_t best_depth;        /* the least depth that comes within 5 % of it */
} rg_doctor_drive;

typedef struct rg_doctor_model {
    bool given, ok;
    bool data_checked; /* every scale of every block is finite */
    char error[232];
    bool pack_found, pack_ok; /* the pack beside it: made of this model, and whole */
    bool pack_checked;        /* every expert has its checksum */
    char pack_error[232];
    uint32_t n_file, n_layer, n_expert, n_expert_used;
    uint64_t n_tensor;
    uint64_t size_bytes, experts_bytes, ngram_bytes, trunk_bytes;
    uint64_t expert_bytes; /* of one expert of the largest class */
} rg_doctor_model;

/* A GPU and what moving bytes to it costs. */
typedef struct rg_doctor_gpu {
    rg_gpu_info info;
    bool measured;
    char error[232]; /* why not */
    double to_device_gb_s, from_device_gb_s;
    double handshake_us; /* host to device and back, lists handed over before */
} rg_doctor_gpu;

typedef struct rg_doctor_report {
    bool quick;
    double seconds;
    rg_doctor_machine machine;
    rg_doctor_drive drive;
    rg_doctor_model model;
    uint32_t n_gpu;
    rg_doctor_gpu gpus[RG_GPU_DEVICES_MAX];
    uint32_t n_advice;
    char advice[RG_DOCTOR_ADVICE_MAX][RG_DOCTOR_ADVICE_BYTES];
} rg_doctor_report;

typedef struct rg_doctor_options {
    const char *model;  /* checked, and its largest file is what the drive is measured on */
    const char *folder; /* without a model: where the scratch file goes; NULL = "." */
    bool quick;         /* about 5 s, model data not read; else about a minute and all data */
    int n_threads;      /* 0 = all */
    const atomic_bool *cancel;
    /* `what` is being measured; `done` of `total` steps. */
    void (*progress)(void *user, const char *what, uint32_t done, uint32_t total);
    void *progress_user;
} rg_doctor_options;

RG_MUST_CHECK rg_code rg_doctor_run(rg_doctor_report *out, const rg_doctor_options *opt,
                                    rg_status *st);
/* Only the drive under the experts of `model`, at reads of `expert_bytes` (> 0), in about 2 s:
 * `*gb_s` is what the full examination calls expert_ceiling_gb_s, 0 if it could not be measured. */
RG_MUST_CHECK rg_code rg_doctor_expert_ceiling(double *gb_s, const char *model,
                                               uint64_t expert_bytes, rg_status *st);
/* What `n_threads` compute threads (0 = all) reach at most, in about 1 s: reading memory, in 10^9
 * bytes a second, and int8 multiply-adds of the level (NULL = best), in 10^9 a second; 0 = not
 * known. */
RG_MUST_CHECK rg_code rg_doctor_compute_ceilings(double *read_gb_s, double *int8_gmac_s,
                                                 const char *cpu_level, int n_threads,
                                                 rg_status *st);
/* What the GPU (< 0: the best) reaches at most at reading its memory, in 10^9 bytes a second; in
 * about 1 s. */
RG_MUST_CHECK rg_code rg_doctor_gpu_ceiling(double *read_gb_s, int32_t device, rg_status *st);
/* Lines for people; an object with stable keys, snake_case, units last. */
RG_MUST_CHECK rg_code rg_doctor_text(const rg_doctor_report *r, rg_buf *out, rg_status *st);
RG_MUST_CHECK rg_code rg_doctor_json(const rg_doctor_report *r, rg_buf *out, rg_status *st);

const char *rg_doctor_io_name(rg_doctor_io io);

#endif
