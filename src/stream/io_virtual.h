/* A drive made of arithmetic: virtual clock, seeded faults, one thread. See io_virtual.c. */
#ifndef RG_STREAM_IO_VIRTUAL_H
#define RG_STREAM_IO_VIRTUAL_H

#include "stream/io.h"

typedef enum rg_virtual_fault {
    RG_VIRTUAL_EIO,
    RG_VIRTUAL_SHORT,
    RG_VIRTUAL_TRANSIENT, /* EINTR, EAGAIN, ENOMEM as the answer */
    RG_VIRTUAL_FLIP,
    RG_VIRTUAL_STALL,  /* answers after stall_ns more */
    RG_VIRTUAL_VANISH, /* never answers */
    RG_VIRTUAL_REFUSE, /* the submission is not taken */
    RG_VIRTUAL_FAULTS
} rg_virtual_fault;

/* What a test wants to see and to supply; each may be NULL. Called on the one thread. */
typedef struct rg_virtual_hooks {
    void *user;
    void (*submitting)(void *user, const rg_io_op *ops, uint32_t n); /* before any is taken */
    void (*fill)(void *user, const rg_io_op *op, uint64_t bytes);    /* write bytes to op->dst */
    void (*fault)(void *user, const rg_io_op *op, rg_virtual_fault fault);
    void (*tick)(void *user); /* each reap, before it looks */
} rg_virtual_hooks;

typedef struct rg_virtual_config {
    rg_stream_virtual drive;
    uint32_t fault_permille[RG_VIRTUAL_FAULTS];
    uint64_t stall_ns;
    uint32_t depth;
    const uint64_t *file_bytes; /* [n_file] borrowed; NULL: files have no end */
    rg_virtual_hooks hooks;
} rg_virtual_config;

RG_MUST_CHECK rg_code rg_io_virtual_open(rg_io **out, const rg_virtual_config *config,
                                         rg_status *st);
/* Ops at the drive, those that will never answer included. */
uint32_t rg_io_virtual_in_flight(const rg_io *io);

#endif
