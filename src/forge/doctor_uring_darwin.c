#include <errno.h>

#include "forge/doctor_parts.h"

bool rg_doctor_uring_works(int *sys_errno) {
    *sys_errno = ENOSYS;
    return false;
}

void rg_doctor_read_uring(rg_doctor_reads *r) {
    r->sys_errno = ENOSYS;
}
