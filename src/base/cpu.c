#include "base/cpu.h"

#include <string.h>

static const char *const level_names[RG_CPU_LEVEL_COUNT] = {
    [RG_CPU_SCALAR] = "scalar",
    [RG_CPU_X86_V3] = "x86-64-v3",
    [RG_CPU_X86_V4] = "x86-64-v4",
    [RG_CPU_NEON] = "neon",
};

const char *rg_cpu_level_name(rg_cpu_level level) {
    return (unsigned)level < RG_CPU_LEVEL_COUNT ? level_names[level] : "unknown";
}

#if defined(__x86_64__)
#include <cpuid.h>

/* clang 14 does not know "f16c" by name. That the system saves the vector registers is already
 * part of the compiler's answer for avx2. */
static bool has_f16c(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_v3(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi2") && has_f16c();
}

static bool has_v4(void) {
    return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bitalg");
}

static bool level_is_native(rg_cpu_level level) {
    return level != RG_CPU_NEON;
}

bool rg_cpu_level_runs(rg_cpu_level level) {
    switch (level) {
    case RG_CPU_SCALAR:
        return true;
    case RG_CPU_X86_V3:
        return has_v3();
    case RG_CPU_X86_V4:
        return has_v4();
    default:
        return false;
    }
}

rg_cpu_arm rg_cpu_arm_dot(void) {
    return RG_CPU_ARM_PLAIN;
}
#elif defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>

/* Bits of the kernel's interface; older headers lack the names. */
rg_cpu_arm rg_cpu_arm_dot(void) {
    const bool dotprod = getauxval(AT_HWCAP) >> 20 & 1;
    const bool i8mm = getauxval(AT_HWCAP2) >> 13 & 1;
    if (!dotprod) return RG_CPU_ARM_PLAIN;
    return i8mm ? RG_CPU_ARM_I8MM : RG_CPU_ARM_DOTPROD;
}
#else /* every Apple CPU of this architecture that runs a supported system has it */
rg_cpu_arm rg_cpu_arm_dot(void) {
    return RG_CPU_ARM_DOTPROD;
}
#endif

static bool level_is_native(rg_cpu_level level) {
    return level == RG_CPU_SCALAR || level == RG_CPU_NEON;
}

bool rg_cpu_level_runs(rg_cpu_level level) {
    return level_is_native(level);
}
#else
rg_cpu_arm rg_cpu_arm_dot(void) {
    return RG_CPU_ARM_PLAIN;
}

static bool level_is_native(rg_cpu_level level) {
    return level == RG_CPU_SCALAR;
}

bool rg_cpu_level_runs(rg_cpu_level level) {
    return level_is_native(level);
}
#endif

rg_code rg_cpu_level_pick(rg_cpu_level *out, const char *cap, rg_status *st) {
    *out = RG_CPU_SCALAR;
    int max = RG_CPU_LEVEL_COUNT - 1;
    if (cap) {
        for (max = 0; max < RG_CPU_LEVEL_COUNT; max++) {
            if (strcmp(cap, level_names[max]) == 0) break;
        }
        if (max == RG_CPU_LEVEL_COUNT) {
            return rg_fail(st, RG_INVALID,
                           "unknown CPU level %s (known: scalar, x86-64-v3, x86-64-v4, neon)", cap);
        }
        if (!level_is_native((rg_cpu_level)max)) {
            return rg_fail(st, RG_INVALID, "CPU level %s belongs to another architecture", cap);
        }
    }
    for (int level = 0; level <= max; level++) {
        if (rg_cpu_level_runs((rg_cpu_level)level)) *out = (rg_cpu_level)level;
    }
    return RG_OK;
}
