/* What the files of doctor share. Private. */
#ifndef RG_FORGE_DOCTOR_PARTS_H
#define RG_FORGE_DOCTOR_PARTS_H

#include "forge/doctor.h"

/* doctor_system_linux.c, doctor_system_darwin.c: what only the system knows. */
uint64_t rg_doctor_cache_bytes(void);
void rg_doctor_huge_pages(char out[16]);
void rg_doctor_cgroup(int *version, uint64_t *memory_bytes);
void rg_doctor_file_system(int fd, char out[24], bool *is_memory);
/* Switches an open file between direct and cached reads; false if it does not take it. */
bool rg_doctor_set_direct(int fd, bool direct);
/* Asks for the pages of a file to leave the cache, where the system can. */
void rg_doctor_drop_cache(int fd);

/* One run of random reads until the deadline. */
typedef struct rg_doctor_reads {
    int fd;
    uint64_t file_bytes; /* at least read_bytes */
    uint32_t read_bytes, depth;
    uint64_t seed, deadline_ns;
    uint8_t *buffers; /* [depth][read_bytes], 4096-aligned */
    /* results */
    uint64_t reads, latency_ns;
    int sys_errno; /* the first failure, 0 */
} rg_doctor_reads;

/* doctor_uring_linux.c, doctor_uring_darwin.c. `*sys_errno` tells why not. */
bool rg_doctor_uring_works(int *sys_errno);
void rg_doctor_read_uring(rg_doctor_reads *r);

/* doctor_drive.c */
uint64_t rg_doctor_offset(const rg_doctor_reads *r, uint64_t i); /* of read i, aligned */
void rg_doctor_read_pread(rg_doctor_reads *r);
/* Progress of the whole examination, and whether it is canceled. */
typedef struct rg_doctor_steps {
    const rg_doctor_options *opt;
    uint32_t done, total;
} rg_doctor_steps;
RG_MUST_CHECK rg_code rg_doctor_step(rg_doctor_steps *s, const char *what, rg_status *st);
/* Measures `path`, or a scratch file in `folder` when NULL. */
RG_MUST_CHECK rg_code rg_doctor_measure_drive(rg_doctor_drive *d, const char *path,
                                              const char *folder, bool uring,
                                              rg_doctor_steps *steps, rg_status *st);
uint32_t rg_doctor_drive_steps(bool quick);
/* Only reads of d->expert_bytes from `path`, at the depths that streaming uses. */
RG_MUST_CHECK rg_code rg_doctor_measure_expert(rg_doctor_drive *d, const char *path, bool uring,
                                               rg_status *st);

/* doctor_memory.c */
RG_MUST_CHECK rg_code rg_doctor_measure_memory(rg_doctor_machine *m, bool quick, int n_threads,
                                               rg_status *st);

/* doctor_advice.c */
void rg_doctor_advise(rg_doctor_report *r);

#endif
