/* Every instruction level that was compiled is one that the tests of the kernels execute here. A
 * machine that lacks one skips this test, and with RG_REQUIRE_LEVELS=1 fails it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/kernels.h"

#if defined(__x86_64__)
#define LEVELS 3 /* scalar, x86-64-v3, x86-64-v4 */
#elif defined(__aarch64__)
#define LEVELS 2 /* scalar, neon */
#else
#define LEVELS 1
#endif

int main(void) {
    int compiled = 0, missing = 0;
    for (int i = 0; i < RG_CPU_LEVEL_COUNT; i++) {
        const rg_cpu_level level = (rg_cpu_level)i;
        if (rg_ops_get(level)->level != level) continue; /* of another architecture */
        const bool runs = rg_cpu_level_runs(level);
        printf("%s: %s\n", rg_cpu_level_name(level), runs ? "executed" : "NOT executed");
        compiled++;
        missing += !runs;
    }
    if (compiled < LEVELS) {
        printf("%d levels compiled, %d expected\n", compiled, LEVELS);
        return 1;
    }
    if (missing == 0) return 0;
    return getenv("RG_REQUIRE_LEVELS") ? 1 : 77;
}
