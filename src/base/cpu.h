/* CPU features, read once at start. */
#ifndef RG_BASE_CPU_H
#define RG_BASE_CPU_H

#include "base/status.h"

/* Instruction levels the kernels are built for, weakest first. A level implies those before it on
 * the same architecture. */
typedef enum rg_cpu_level {
    RG_CPU_SCALAR,
    RG_CPU_X86_V3, /* AVX2, FMA, F16C, BMI2 */
    RG_CPU_X86_V4, /* AVX-512 F, BW, CD, DQ, VL, VNNI, VBMI */
    RG_CPU_NEON,   /* aarch64 base */
    RG_CPU_LEVEL_COUNT
} rg_cpu_level;

/* Byte dot products of an aarch64 CPU, weakest first; each implies those before it. */
typedef enum rg_cpu_arm {
    RG_CPU_ARM_PLAIN,
    RG_CPU_ARM_DOTPROD, /* sdot */
    RG_CPU_ARM_I8MM     /* smmla */
} rg_cpu_arm;

/* What this machine has; plain on any other architecture. */
rg_cpu_arm rg_cpu_arm_dot(void);

/* Name as RG_CPU takes it: scalar, x86-64-v3, x86-64-v4, neon. */
const char *rg_cpu_level_name(rg_cpu_level level);

/* The strongest level this machine can run, capped by `cap` (a name as above; NULL = no cap). An
 * unknown name, or one of another architecture, is INVALID. */
RG_MUST_CHECK rg_code rg_cpu_level_pick(rg_cpu_level *out, const char *cap, rg_status *st);

/* Whether this machine can run code of that level. */
bool rg_cpu_level_runs(rg_cpu_level level);

#endif
