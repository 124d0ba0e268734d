/* What to change, one line each, most weighty first. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "forge/doctor_parts.h"

#define NOFILE_MIN     256u
#define DRIVE_MAX_GB_S 30.0 /* above what drives do: a cache answers */

static void advise(rg_doctor_report *r, const char *fmt, ...) RG_PRINTF(2, 3);

static void advise(rg_doctor_report *r, const char *fmt, ...) {
    if (r->n_advice == RG_DOCTOR_ADVICE_MAX) return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(r->advice[r->n_advice++], RG_DOCTOR_ADVICE_BYTES, fmt, args);
    va_end(args);
}

static unsigned long long mib(uint64_t bytes) {
    return (unsigned long long)(bytes >> 20);
}

static void on_model(rg_doctor_report *r) {
    const rg_doctor_model *m = &r->model;
    if (m->given && !m->ok) advise(r, "the model cannot be used: %.150s", m->error);
    if (m->given && m->ok && !m->data_checked)
        advise(r, "the model's data was not read; run without --quick to check every block");
    if (m->pack_found && !m->pack_ok)
        advise(r, "remove the pack or make it anew: %.150s", m->pack_error);
    const uint64_t memory = r->machine.memory_available_bytes;
    if (m->ok && memory && m->trunk_bytes > memory) {
        advise(r, "the model's trunk takes %llu MiB, %llu MiB of memory are free",
               mib(m->trunk_bytes), mib(memory));
    } else if (m->ok && memory && m->trunk_bytes + m->experts_bytes < memory) {
        advise(r, "all experts fit into the free memory: give the arena %llu MiB",
               mib(m->experts_bytes));
    }
}

static void on_drive(rg_doctor_report *r) {
    const rg_doctor_drive *d = &r->drive;
    const rg_doctor_machine *m = &r->machine;
    if (!d->measured) advise(r, "the drive was not measured: %.150s", d->error);
    if (!m->io_uring) {
        char why[96];
        advise(r,
               "io_uring is not available (%.60s): reads use threads; a container must allow its"
               " system calls",
               strerror_r(m->io_uring_errno, why, sizeof why));
    }
    if (!d->measured) return;
    if (d->is_memory)
        advise(r, "%s is a file system in memory: these figures say nothing about a drive",
               d->file_system);
    if (!d->direct)
        advise(r,
               "%s takes no direct reads: the page cache will hold experts a second time; put the"
               " model on a local drive",
               d->file_system);
    if (d->ceiling_gb_s > DRIVE_MAX_GB_S)
        advise(r, "%.0f GB/s is more than a drive gives: a cache below answered", d->ceiling_gb_s);
    if (d->best_depth)
        advise(r, "reads of %u KiB: %s at depth %u gives %.2f GB/s", d->expert_bytes >> 10,
               rg_doctor_io_name(d->best_io), d->best_depth, d->expert_ceiling_gb_s);
    if (r->model.ok && d->expert_ceiling_gb_s > 0) {
        advise(r, "a token whose experts all miss waits %.1f ms for the drive",
               (double)r->model.expert_bytes * r->model.n_expert_used * r->model.n_layer /
                   d->expert_ceiling_gb_s * 1e-6);
    }
}

static void on_machine(rg_doctor_report *r) {
    const rg_doctor_machine *m = &r->machine;
    if (m->cgroup_memory_bytes != RG_DOCTOR_UNLIMITED)
        advise(r, "a control group allows %llu MiB of memory: keep --ram below it",
               mib(m->cgroup_memory_bytes));
    if (m->address_space_bytes != RG_DOCTOR_UNLIMITED)
        advise(r, "the address space is limited to %llu MiB (ulimit -v): lift it",
               mib(m->address_space_bytes));
    if (m->memlock_bytes != RG_DOCTOR_UNLIMITED && m->memlock_bytes < m->memory_available_bytes / 2)
        advise(r, "memory that may be locked: %llu KiB; --mlock needs more (ulimit -l)",
               (unsigned long long)(m->memlock_bytes >> 10));
    if (m->nofile < NOFILE_MIN)
        advise(r, "only %llu files may be open (ulimit -n): a split model or a server needs more",
               (unsigned long long)m->nofile);
    if (strcmp(m->huge_pages, "never") == 0)
        advise(r, "huge pages are off: set transparent_hugepage/enabled to madvise");
    if (strcmp(m->cpu_level, "scalar") == 0)
        advise(r, "no vector level of this processor is used: expect a tenth of the speed");
}

void rg_doctor_advise(rg_doctor_report *r) {
    on_model(r);
    on_drive(r);
    on_machine(r);
}
